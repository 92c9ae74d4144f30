/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's side of the registry: asks what the state calls for, and asks
 * again after a reconnect. Nothing on the data path waits for it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stream/address.h"
#include "stream/node_internal.h"

enum { RETRY_MS = 20, QUESTION_TIMEOUT_MS = 3000, ROUTE_RETRY_MS = 25 };

static void watch(struct reclaim_node *n, int op)
{
	struct epoll_event ev = { .events = EPOLLIN | (n->reg.want_out ? (unsigned)EPOLLOUT : 0u),
				  .data.ptr = &n->reg };

	(void)epoll_ctl(n->epoll_fd, op, n->reg.fd, &ev);
}

void reg_close(struct reclaim_node *n)
{
	struct regclient *r = &n->reg;
	struct reclaim_stream *o;
	struct reclaim_group *g;

	if (r->fd >= 0) {
		(void)epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, r->fd, NULL);
		close(r->fd);
	}
	r->fd = -1;
	r->up = r->connecting = r->joined = false;
	r->questions.count = 0;
	r->renew_asked_ns = 0;
	strbuf_clear(&r->in);
	strbuf_clear(&r->out);
	r->retry_ns = n->now_ns + RETRY_MS * NS_PER_MS;
	node_soon(n, r->retry_ns);
	TAILQ_FOREACH(o, &n->outs, entry) {
		if (o->route_asked) {
			o->route_asked = false;
			o->route_wanted = true;
		}
		if (o->ahead.asked && !o->ahead.link)
			o->ahead.asked = false;
	}
	TAILQ_FOREACH(g, &n->groups, entry)
		g->asked = false;
}

static void flush(struct reclaim_node *n)
{
	struct regclient *r = &n->reg;
	size_t done = 0;

	if (r->fd < 0 || r->connecting)
		return;
	while (done < r->out.len) {
		ssize_t k = send(r->fd, r->out.data + done, r->out.len - done, MSG_NOSIGNAL);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && errno != EAGAIN) {
			reg_close(n);
			return;
		}
		if (k < 0)
			break;
		done += (size_t)k;
	}
	strbuf_consume(&r->out, done);
	bool want = r->out.len > 0;
	if (want != r->want_out) {
		r->want_out = want;
		watch(n, EPOLL_CTL_MOD);
	}
}

static struct question *ask(struct reclaim_node *n, struct registry_frame *f)
{
	struct regclient *r = &n->reg;
	struct question q = { .id = ++r->next_id, .op = f->op, .asked_ns = node_now(n),
			      .hid = f->hid };
	size_t cap = sizeof(*f) + f->body_len + 256;
	uint8_t *buf = malloc(cap);
	struct bytes_out o = { .data = buf, .cap = buf ? cap : 0 };

	f->id = q.id;
	if (!buf || registry_frame_encode(f, &o) < 0 || strbuf_append(&r->out, buf, o.len) < 0 ||
	    VEC_PUSH(&r->questions, q) < 0) {
		free(buf);
		reg_close(n);
		return NULL;
	}
	free(buf);
	flush(n);
	return r->fd >= 0 && r->questions.count ? &r->questions.data[r->questions.count - 1] : NULL;
}

static void frame_for(struct reclaim_node *n, struct registry_frame *f, uint8_t op)
{
	memset(f, 0, sizeof(*f));
	f->op = op;
	f->instance = n->instance;
	f->epoch = n->owner.epoch;
	memcpy(f->name, n->name, sizeof(f->name));
}

static void join(struct reclaim_node *n)
{
	struct registry_frame f;
	enum owner_state s = n->owner.state;

	if (s == OWNER_GONE)
		return;
	if (s == OWNER_ACTIVE || s == OWNER_FROZEN) {
		n->reg.joined = true;
		frame_for(n, &f, REGISTRY_RENEW);
		n->reg.renew_asked_ns = n->now_ns;
		(void)ask(n, &f);
		return;
	}
	frame_for(n, &f, REGISTRY_JOIN);
	if (s != OWNER_NONE)
		f.flags = REGISTRY_FLAG_STANDBY;
	memcpy(f.group, n->group, sizeof(f.group));
	snprintf(f.locator, sizeof(f.locator), "%s", n->advertise);
	n->reg.joined = true;
	(void)ask(n, &f);
}

void reg_start(struct reclaim_node *n)
{
	struct regclient *r = &n->reg;
	struct address a;

	r->source = SOURCE_REGISTRY;
	if (stream_address_parse(n->registry_address, &a) < 0) {
		r->error = -EINVAL;
		return;
	}
	int rc = stream_address_connect(&a, &r->fd);
	if (rc < 0 && rc != -EINPROGRESS) {
		r->fd = -1;
		r->retry_ns = n->now_ns + RETRY_MS * NS_PER_MS;
		node_soon(n, r->retry_ns);
		return;
	}
	r->connecting = true;
	r->want_out = true;
	r->last_in_ns = n->now_ns;
	watch(n, EPOLL_CTL_ADD);
}

static void connected(struct reclaim_node *n)
{
	struct regclient *r = &n->reg;
	struct registry_frame f = { .op = REGISTRY_HELLO };
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0 || err) {
		reg_close(n);
		return;
	}
	r->connecting = false;
	snprintf(f.token, sizeof(f.token), "%s", n->token);
	(void)ask(n, &f);
}

void reg_route(struct reclaim_stream *o, bool ahead)
{
	struct reclaim_node *n = o->node;
	struct registry_frame f;

	if (!n->reg.up || n->owner.state == OWNER_GONE || !n->owner.epoch)
		return;
	frame_for(n, &f, REGISTRY_ROUTE);
	memcpy(f.name, o->to, sizeof(f.name));
	memcpy(f.group, n->name, sizeof(f.group));
	if (ahead)
		f.flags = REGISTRY_FLAG_AHEAD;
	else
		o->route_asked = true;
	o->asked_ns = n->now_ns;
	struct question *q = ask(n, &f);
	if (q) {
		q->about = o;
		q->ahead = ahead;
	}
}

void reg_commit(struct reclaim_node *n)
{
	struct registry_frame f;

	if (!n->reg.up)
		return;
	frame_for(n, &f, REGISTRY_COMMIT);
	f.hid = n->owner.hid;
	(void)ask(n, &f);
}

void reg_abort(struct reclaim_node *n)
{
	struct registry_frame f;

	if (!n->reg.up)
		return;
	frame_for(n, &f, REGISTRY_ABORT);
	f.hid = n->owner.hid;
	(void)ask(n, &f);
}

void reg_release(struct reclaim_node *n)
{
	struct registry_frame f;

	if (!n->reg.up)
		return;
	frame_for(n, &f, REGISTRY_RELEASE);
	(void)ask(n, &f);
}

void reg_members(struct reclaim_group *g)
{
	struct reclaim_node *n = g->node;
	struct registry_frame f;

	if (!n->reg.up || g->asked)
		return;
	frame_for(n, &f, REGISTRY_MEMBERS);
	memcpy(f.name, g->name, sizeof(f.name));
	g->asked = ask(n, &f) != NULL;
}

int reg_store(struct reclaim_node *n, const void *cursors, size_t len, uint64_t snapshot)
{
	struct registry_frame f;

	if (!n->reg.up)
		return -EAGAIN;
	frame_for(n, &f, REGISTRY_STORE);
	f.body = cursors;
	f.body_len = len;
	struct question *q = ask(n, &f);
	if (!q)
		return -EAGAIN;
	q->cursors_id = snapshot;
	return 0;
}

void reg_forget(struct reclaim_node *n, const void *about)
{
	VEC_EACH(&n->reg.questions, q)
		if (q->about == about)
			q->about = NULL;
}

/* --- answers --- */

static struct owner_view view_of(const struct reclaim_node *n, const struct registry_frame *f)
{
	return (struct owner_view){ (enum register_state)f->state, f->epoch, f->hid,
				    f->owner == n->instance, f->target == n->instance };
}

static void take_key(struct reclaim_node *n, const struct registry_frame *f)
{
	memcpy(n->key, f->key, SEAL_KEY_LEN);
	n->key_epoch = f->epoch;
}

static void on_own_view(struct reclaim_node *n, const struct registry_frame *f)
{
	struct owner_view v = view_of(n, f);
	bool told = f->flags & REGISTRY_FLAG_TOLD;

	if (told && v.state == REGISTER_PREP && v.targeted) {
		memcpy(n->key_next, f->key, SEAL_KEY_LEN);
		n->key_next_epoch = f->epoch + 1;
	}
	if (told && v.state == REGISTER_PREP && v.owned && f->ticket_len && !n->move.cut_sent) {
		memcpy(n->move.locator, f->locator, sizeof(n->move.locator));
		memcpy(n->move.ticket, f->ticket, f->ticket_len);
		n->move.ticket_len = f->ticket_len;
		memcpy(n->move.session, f->key, SEAL_KEY_LEN);
	} else if (v.state == REGISTER_PREP && v.owned && !told) {
		return; /* the told view has the way to the target: it comes, or came */
	}
	if ((v.epoch > n->owner.epoch) && !v.owned &&
	    (n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN))
		n->moved = true;
	bool vacant = (f->flags & REGISTRY_FLAG_RECOVER) || v.state == REGISTER_FREE;
	node_act(n, owner_on_view(&n->owner, &v, n->now_ns));
	if (told && vacant && !n->options.no_takeover && n->owner.state == OWNER_STANDBY) {
		owner_on_vacant(&n->owner);
		join(n);
	}
}

static void on_route_view(struct reclaim_node *n, const struct registry_frame *f)
{
	struct reclaim_stream *o;

	TAILQ_FOREACH(o, &n->outs, entry) {
		if (strcmp(o->to, f->name) || o->error)
			continue;
		if (f->epoch > o->tx.epoch && f->state != REGISTER_FREE) {
			bool ahead = o->ahead.attached && o->ahead.epoch == f->epoch;

			/* Attached ahead: its WELCOME is on the way. */
			o->backoff_ms = 0;
			out_detach(o, true);
			o->route_at_ns = n->now_ns + (ahead ? 100 * NS_PER_MS : 0);
			node_soon(n, o->route_at_ns);
		}
	}
}

static void on_join(struct reclaim_node *n, const struct registry_frame *f,
		    const struct question *q)
{
	if (f->status < 0) {
		n->reg.error = f->status;
		node_wake(n);
		return;
	}
	if (f->flags & REGISTRY_FLAG_STANDBY) {
		struct owner_view v = view_of(n, f);

		if (v.state == REGISTER_PREP && v.targeted) {
			memcpy(n->key_next, f->key, SEAL_KEY_LEN);
			n->key_next_epoch = f->epoch + 1;
		}
		n->active_told = true; /* the open call may return */
		node_act(n, owner_on_view(&n->owner, &v, n->now_ns));
		if (v.state == REGISTER_FREE && !n->options.no_takeover &&
		    n->owner.state == OWNER_STANDBY && f->epoch > 0) {
			owner_on_vacant(&n->owner);
			join(n);
		}
		return;
	}
	if (n->owner.state != OWNER_NONE)
		return;
	if (n->now_ns - q->asked_ns > n->reg.ttl_ns / 4) {
		/* It waited for another's lease, and a lease counts from the ask (M7):
		 * ask anew, it is ours. */
		join(n);
		return;
	}
	take_key(n, f);
	n->recovered = f->flags & REGISTRY_FLAG_RECOVER;
	if (!n->options.image)
		VEC_EACH(&n->ins, p) /* from a handover that was called off */
			receiver_init(&(*p)->rx, in_window(n, (*p)->cls));
	if (f->body_len && !n->options.image)
		(void)image_restore(n, f->body, f->body_len); /* else: senders tell where to begin */
	node_act(n, owner_on_grant(&n->owner, f->epoch, q->asked_ns, n->reg.ttl_ns, n->now_ns));
	n->reg.renew_asked_ns = 0;
	node_soon(n, n->now_ns);
}

static void on_route(struct reclaim_node *n, const struct registry_frame *f,
		     const struct question *q)
{
	struct reclaim_stream *o = q->about;
	struct link *l;

	if (!o || o->error)
		return;
	if (!q->ahead)
		o->route_asked = false;
	if (q->ahead) {
		if (f->status < 0 || f->epoch != o->ahead.epoch || f->epoch <= o->tx.epoch) {
			memset(&o->ahead, 0, sizeof(o->ahead));
			return;
		}
		memcpy(o->ahead.locator, f->locator, sizeof(o->ahead.locator));
		memcpy(o->ahead.ticket, f->ticket, f->ticket_len);
		o->ahead.ticket_len = f->ticket_len;
		memcpy(o->ahead.session, f->key, SEAL_KEY_LEN);
		l = link_connect(n, f->locator, f->epoch, f->ticket, f->ticket_len, f->key);
		if (l) {
			uint32_t handle = o->handle;

			if (link_add_out(l, o) == 0) {
				o->ahead.link = l;
				o->ahead.handle = o->handle;
				o->handle = handle;
				out_attach_ahead(o);
			} else {
				o->handle = handle;
			}
		}
		return;
	}
	if (f->status < 0) {
		/* Told when it changes; asked again now and then all the same. */
		o->route_wanted = true;
		o->route_at_ns = n->now_ns + ROUTE_RETRY_MS * NS_PER_MS;
		node_soon(n, o->route_at_ns);
		return;
	}
	if (f->epoch < o->tx.epoch)
		return;
	bool changed = sender_on_route(&o->tx, f->epoch, q->asked_ns + f->ttl_ms * NS_PER_MS);

	o->route_wanted = false;
	o->have_route = true;
	memcpy(o->ticket, f->ticket, f->ticket_len);
	o->ticket_len = f->ticket_len;
	memcpy(o->session, f->key, SEAL_KEY_LEN);
	if (o->link && !changed)
		return;
	if (o->link)
		out_detach(o, false);
	snprintf(o->locator, sizeof(o->locator), "%s", f->locator);
	out_pump(o);
}

static void on_answer(struct reclaim_node *n, const struct registry_frame *f)
{
	struct regclient *r = &n->reg;
	struct question q = { 0 };
	size_t i;

	for (i = 0; i < r->questions.count; i++)
		if (r->questions.data[i].id == f->id)
			break;
	if (i == r->questions.count)
		return;
	q = r->questions.data[i];
	VEC_REMOVE(&r->questions, i);
	switch (f->op) {
	case REGISTRY_HELLO:
		if (f->status < 0) {
			r->error = f->status;
			node_wake(n);
			break;
		}
		r->up = true;
		r->ttl_ns = f->ttl_ms * NS_PER_MS;
		join(n);
		break;
	case REGISTRY_JOIN:
		on_join(n, f, &q);
		break;
	case REGISTRY_RENEW:
		if (f->status == 0)
			owner_on_renewed(&n->owner, n->owner.epoch, q.asked_ns, r->ttl_ns);
		on_own_view(n, f);
		break;
	case REGISTRY_ROUTE:
		on_route(n, f, &q);
		break;
	case REGISTRY_COMMIT:
		if (f->status == 0 && n->owner.state == OWNER_INSTALLED)
			take_key(n, f);
		node_act(n, owner_on_commit_result(&n->owner, q.hid, f->status == 0, f->epoch,
						   q.asked_ns, r->ttl_ns, n->now_ns));
		if (f->status < 0 && n->owner.state == OWNER_STANDBY)
			move_end(n);
		break;
	case REGISTRY_ABORT:
		node_act(n, owner_on_abort_result(&n->owner, q.hid, f->status == 0, n->now_ns));
		on_own_view(n, f);
		break;
	case REGISTRY_STORE:
		node_durable(n, q.cursors_id, f->status == 0);
		break;
	case REGISTRY_MEMBERS:
		group_changed(n, f->name, f->body, f->body_len);
		break;
	default:
		break;
	}
}

void reg_events(struct reclaim_node *n, unsigned events)
{
	struct regclient *r = &n->reg;
	static __thread struct registry_frame f; /* large, and never needed twice at once */
	uint8_t buf[16384];
	size_t pos = 0;

	if (r->fd < 0)
		return;
	if (r->connecting) {
		connected(n);
		return;
	}
	if (events & EPOLLOUT)
		flush(n);
	if (r->fd < 0 || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return;
	ssize_t k = recv(r->fd, buf, sizeof(buf), 0);
	if (k <= 0) {
		if (k == 0 || (errno != EAGAIN && errno != EINTR))
			reg_close(n);
		return;
	}
	r->last_in_ns = n->now_ns;
	if (strbuf_append(&r->in, buf, (size_t)k) < 0) {
		reg_close(n);
		return;
	}
	while (r->fd >= 0) {
		int used = registry_frame_decode((const uint8_t *)r->in.data + pos, r->in.len - pos, &f);

		if (used < 0) {
			reg_close(n);
			return;
		}
		if (used == 0)
			break;
		pos += (size_t)used;
		if (!(f.flags & REGISTRY_FLAG_TOLD))
			on_answer(n, &f);
		else if (f.op == REGISTRY_MEMBERS)
			group_changed(n, f.name, f.body, f.body_len);
		else if (!strcmp(f.name, n->name) && (f.instance == n->instance || !f.instance))
			on_own_view(n, &f);
		if ((f.flags & REGISTRY_FLAG_TOLD) && f.op == REGISTRY_VIEW)
			on_route_view(n, &f);
	}
	if (r->fd >= 0)
		strbuf_consume(&r->in, pos);
	node_wake(n);
}

void reg_timer(struct reclaim_node *n)
{
	struct regclient *r = &n->reg;
	struct reclaim_stream *o;
	struct reclaim_group *g;
	struct registry_frame f;

	if (r->error || n->closing)
		return;
	if (r->fd < 0) {
		if (n->now_ns >= r->retry_ns)
			reg_start(n);
		else
			node_soon(n, r->retry_ns);
		return;
	}
	if (!r->up)
		return;
	VEC_EACH(&r->questions, q)
		if (q->op != REGISTRY_JOIN &&
		    n->now_ns - q->asked_ns > QUESTION_TIMEOUT_MS * NS_PER_MS) {
			reg_close(n); /* it says nothing: perhaps its machine is gone */
			return;
		}
	bool owning = n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN;
	if (owning && n->now_ns >= r->renew_asked_ns + r->ttl_ns / 4) {
		frame_for(n, &f, REGISTRY_RENEW);
		r->renew_asked_ns = n->now_ns;
		if (!ask(n, &f))
			return;
	}
	if (owning)
		node_soon(n, r->renew_asked_ns + r->ttl_ns / 4);
	TAILQ_FOREACH(o, &n->outs, entry) {
		if (o->error || !owning)
			continue;
		if (o->route_wanted && !o->route_asked) {
			if (n->now_ns >= o->route_at_ns)
				reg_route(o, false);
			else
				node_soon(n, o->route_at_ns);
		} else if (o->have_route && !o->route_asked &&
			   n->now_ns + r->ttl_ns / 2 >= o->tx.route_until_ns) {
			reg_route(o, false); /* no beat of the owner has renewed it */
		}
		if (r->fd < 0)
			return;
	}
	TAILQ_FOREACH(g, &n->groups, entry)
		reg_members(g);
}
