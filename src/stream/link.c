/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is one TCP connection between two nodes; it carries all streams from
 * the one that connected to the other, and the answers back.
 *
 * Out: control frames first, then the classes in order; activation and bulk
 * take turns, one slice each (link_pace.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "stream/address.h"
#include "stream/node_internal.h"

enum { STAGE_SIZE = 256 << 10, CTL_MAX = 16 << 20, FLUSH_NS = 300 * 1000 };

/* --- life --- */

static void set_options(int fd, uint64_t ttl_ns)
{
	int on = 1, user = (int)(ttl_ns / NS_PER_MS);

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (user)
		(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof(user));
}

static struct link *link_new(struct reclaim_node *n, int fd)
{
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->source = SOURCE_LINK;
	l->node = n;
	l->fd = fd;
	l->slice = SEGMENT_MAX;
	l->expect = 1;
	l->last_in_ns = l->last_out_ns = l->opened_ns = n->now_ns;
	for (int i = 0; i < 3; i++)
		TAILQ_INIT(&l->ready[i]);
	TAILQ_INSERT_TAIL(&n->links, l, entry);
	n->links_count++;
	n->stats.links = n->links_count;
	return l;
}

static void watch(struct link *l, int op)
{
	struct epoll_event ev = { .events = EPOLLIN | (l->want_out ? (unsigned)EPOLLOUT : 0u),
				  .data.ptr = l };

	if (l->node->unwatched == l) {
		op = EPOLL_CTL_ADD;
		l->node->unwatched = NULL;
	}
	(void)epoll_ctl(l->node->epoll_fd, op, l->fd, &ev);
}

void link_watch_again(struct reclaim_node *n)
{
	if (n->unwatched)
		watch(n->unwatched, EPOLL_CTL_ADD);
}

static void want_out(struct link *l, bool want)
{
	if (l->want_out == want || l->dead)
		return;
	l->want_out = want;
	watch(l, EPOLL_CTL_MOD);
}

static void link_up(struct link *l)
{
	struct reclaim_node *n = l->node;
	int flags = fcntl(l->fd, F_GETFL);
	struct stream_frame hello = { .type = STREAM_FRAME_HELLO, .code = STREAM_PROTOCOL };

	l->up = true;
	l->connecting = false;
	/* From here on every call says itself whether it may wait. */
	(void)fcntl(l->fd, F_SETFL, flags & ~O_NONBLOCK);
	link_pace_start(l);
	if (l->incoming)
		return;
	memcpy(hello.producer, n->name, sizeof(hello.producer));
	link_send(l, &hello);
	for (size_t i = 0; i < l->outs.count; i++) {
		struct reclaim_stream *o = l->outs.data[i];

		if (!o)
			continue;
		if (o->link == l && o->handle == i)
			out_attach(o, l);
		else if (o->ahead.link == l)
			out_attach_ahead(o);
	}
	move_link_up(l);
	link_flush(l);
}

static void link_connected(struct link *l)
{
	int r = 0;

	if (l->tls && !l->tls_done) {
		r = tls_handshake(l);
		if (r == -EAGAIN) {
			want_out(l, false);
			return;
		}
	}
	if (r < 0)
		link_close(l, "handshake refused");
	else
		link_up(l);
}

struct link *link_connect(struct reclaim_node *n, const char *locator, uint64_t epoch,
			  const uint8_t *ticket, uint32_t ticket_len, const uint8_t *session)
{
	struct address a;
	struct link *l;
	int fd;

	TAILQ_FOREACH(l, &n->links, entry)
		if (!l->incoming && !l->dead && !strcmp(l->locator, locator))
			return l;
	if (n->links_count >= LINKS_MAX || stream_address_parse(locator, &a) < 0)
		return NULL;
	int r = stream_address_connect(&a, &fd);
	if (r < 0 && r != -EINPROGRESS)
		return NULL;
	set_options(fd, n->reg.ttl_ns);
	l = link_new(n, fd);
	if (!l) {
		close(fd);
		return NULL;
	}
	snprintf(l->locator, sizeof(l->locator), "%s", locator);
	l->tls_epoch = epoch;
	memcpy(l->tls_ticket, ticket, ticket_len);
	l->tls_ticket_len = ticket_len;
	memcpy(l->tls_session, session, SEAL_KEY_LEN);
	l->connecting = true;
	l->want_out = true;
	watch(l, EPOLL_CTL_ADD);
	if (!n->options.plain && tls_attach(l) < 0) {
		link_close(l, "no memory for TLS");
		return NULL;
	}
	return l;
}

/* The registry's ticket told who opened the link: that incarnation and no other may be
 * answered on it, which saves a connection and lets acknowledgements ride along. */
struct link *link_from(struct reclaim_node *n, const char *name, uint64_t epoch)
{
	struct link *l;

	TAILQ_FOREACH(l, &n->links, entry)
		if (l->incoming && l->up && !l->dead && l->peer_epoch == epoch &&
		    !strcmp(l->peer, name))
			return l;
	return NULL;
}

void link_accept(struct reclaim_node *n)
{
	for (;;) {
		int fd = accept4(n->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			return;
		struct link *l = n->links_count < LINKS_MAX ? link_new(n, fd) : NULL;
		if (!l) {
			close(fd);
			continue;
		}
		set_options(fd, n->reg.ttl_ns);
		l->incoming = true;
		l->connecting = true;
		watch(l, EPOLL_CTL_ADD);
		if (n->options.plain)
			link_up(l);
		else if (tls_attach(l) < 0)
			link_close(l, "no memory for TLS");
	}
}

static void unpend(struct link *l)
{
	for (int i = 0; i < l->pend_count; i++)
		if (l->pend[i].segment)
			segment_unpin(l->node, l->pend[i].segment);
	l->pend_count = l->pend_at = 0;
	l->heads_used = 0;
	strbuf_clear(&l->ctl_out);
}

void link_close(struct link *l, const char *why)
{
	struct reclaim_node *n = l->node;

	if (l->dead)
		return;
	l->dead = true;
	l->up = false;
	if (n->hot == l)
		n->hot = NULL;
	if (n->steady == l)
		n->steady = NULL;
	if (n->unwatched == l)
		n->unwatched = NULL;
	n->links_count--;
	n->stats.links = n->links_count;
	n->stats.links_broken++;
	node_event(n, why, l->incoming ? l->peer : l->locator, 0, 0);
	for (size_t i = 0; i < l->ins.count; i++)
		if (l->ins.data[i] && l->ins.data[i]->link == l)
			in_detach(l->ins.data[i]);
	for (size_t i = 0; i < l->outs.count; i++) {
		struct reclaim_stream *o = l->outs.data[i];

		if (!o)
			continue;
		if (o->ahead.link == l)
			out_drop_ahead(o);
		if (o->link == l)
			out_detach(o, true);
	}
	unpend(l);
	move_link_down(l);
	if (l->direct_drop)
		free(l->direct_at);
	(void)epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
	if (l->reading)
		(void)shutdown(l->fd, SHUT_RDWR);
	TAILQ_REMOVE(&n->links, l, entry);
	TAILQ_INSERT_TAIL(&n->grave, l, entry); /* events for it may be in this turn's list */
}

void link_free(struct link *l)
{
	if (l->tls)
		tls_done(l);
	close(l->fd);
	if (l->block)
		block_unref(l->node, l->block);
	VEC_EACH(&l->waiting, w)
		free(*w);
	VEC_DONE(&l->waiting);
	VEC_DONE(&l->outs);
	VEC_DONE(&l->ins);
	strbuf_done(&l->ctl);
	strbuf_done(&l->ctl_out);
	free(l->stage);
	seal_wipe(l->tls_session, sizeof(l->tls_session));
	free(l);
}

void link_bury(struct reclaim_node *n)
{
	struct link *l, *next;

	for (l = TAILQ_FIRST(&n->grave); l; l = next) {
		next = TAILQ_NEXT(l, entry);
		if (l->reading)
			continue; /* a thread sleeps on it, and wakes within 2 ms */
		TAILQ_REMOVE(&n->grave, l, entry);
		link_free(l);
	}
}

int link_add_out(struct link *l, struct reclaim_stream *o)
{
	for (size_t i = 0; i < l->outs.count; i++)
		if (!l->outs.data[i]) {
			l->outs.data[i] = o;
			o->handle = (uint32_t)i;
			return 0;
		}
	if (l->outs.count >= HANDLES_MAX || VEC_PUSH(&l->outs, o) < 0)
		return -ENOMEM;
	o->handle = (uint32_t)l->outs.count - 1;
	return 0;
}

/* --- out --- */

void link_send(struct link *l, const struct stream_frame *f)
{
	uint8_t buf[STREAM_SMALL_MAX + STREAM_FRAME_HEAD];
	struct bytes_out o = { .data = buf, .cap = sizeof(buf) };

	if (l->dead)
		return;
	CHECK(stream_frame_encode(f, &o) == 0);
	if (l->ctl.len > CTL_MAX || strbuf_append(&l->ctl, buf, o.len) < 0)
		link_close(l, "peer reads nothing");
}

static int list_of(const struct reclaim_stream *o)
{
	return MIN((int)o->cls, 2);
}

void link_ready(struct link *l, struct reclaim_stream *o)
{
	if (o->is_ready)
		return;
	o->is_ready = true;
	TAILQ_INSERT_TAIL(&l->ready[list_of(o)], o, ready);
}

void link_unready(struct reclaim_stream *o)
{
	if (!o->is_ready)
		return;
	o->is_ready = false;
	TAILQ_REMOVE(&o->link->ready[list_of(o)], o, ready);
}

uint8_t *link_head(struct link *l)
{
	return l->heads[l->heads_used++];
}

void link_pend(struct link *l, const void *bytes, size_t len, struct segment *s)
{
	DCHECK(l->pend_count < GATHER_MAX);
	l->pend[l->pend_count].iov = (struct iovec){ (void *)(uintptr_t)bytes, len };
	l->pend[l->pend_count++].segment = s;
	if (s)
		s->pins++;
}

static size_t gather_class(struct link *l, int list, size_t budget)
{
	struct reclaim_stream *o;
	size_t total = 0;

	/* Short of room in this write a stream stays ready: it is first in the next. */
	while (total < budget && l->pend_count + 6 < GATHER_MAX &&
	       (o = TAILQ_FIRST(&l->ready[list]))) {
		size_t n = out_gather(o, l, budget - total);

		if (l->dead)
			return 0;
		total += n;
		if ((n == 0 && l->pend_count + 6 < GATHER_MAX) || !o->cursor)
			link_unready(o);
	}
	return total;
}

/* One slice of the next stream in turn, activation or bulk. */
static size_t gather_shared(struct link *l, size_t budget)
{
	struct reclaim_stream *o;
	size_t total = 0;

	while (total < budget && l->pend_count + 6 < GATHER_MAX) {
		if (l->state_ready) {
			size_t n = move_gather(l, budget - total);

			total += n;
			if (total >= budget)
				break;
		}
		o = TAILQ_FIRST(&l->ready[2]);
		if (!o)
			break;
		size_t n = out_gather(o, l, budget - total);

		if (l->dead)
			return 0;
		total += n;
		if ((n == 0 && l->pend_count + 6 < GATHER_MAX) || !o->cursor) {
			link_unready(o);
			continue;
		}
		TAILQ_REMOVE(&l->ready[2], o, ready);
		TAILQ_INSERT_TAIL(&l->ready[2], o, ready);
	}
	return total;
}

static bool gather(struct link *l)
{
	l->heads_used = 0;
	if (l->ctl.len) {
		struct strbuf swap = l->ctl_out;

		l->ctl_out = l->ctl;
		l->ctl = swap;
		link_pend(l, l->ctl_out.data, l->ctl_out.len, NULL);
	}
	size_t n = gather_class(l, 0, SEGMENT_MAX);

	n += gather_class(l, 1, SEGMENT_MAX);
	if (n < l->slice)
		n += gather_shared(l, l->slice - n);
	return !l->dead && l->pend_count > 0;
}

/* Copies the gathered pieces into one buffer; TLS wants them in one piece. */
static bool stage(struct link *l)
{
	if (l->stage_at < l->stage_len)
		return true;
	if (!l->stage && !(l->stage = malloc(STAGE_SIZE)))
		return false;
	l->stage_len = l->stage_at = 0;
	while (l->pend_at < l->pend_count && l->stage_len < STAGE_SIZE) {
		struct iovec *v = &l->pend[l->pend_at].iov;
		size_t n = MIN(v->iov_len, (size_t)STAGE_SIZE - l->stage_len);

		memcpy(l->stage + l->stage_len, v->iov_base, n);
		l->stage_len += n;
		v->iov_base = (uint8_t *)v->iov_base + n;
		v->iov_len -= n;
		if (v->iov_len == 0)
			l->pend_at++;
	}
	return true;
}

static ssize_t write_some(struct link *l)
{
	if (l->tls) {
		if (!stage(l))
			return -ENOMEM;
		ssize_t n = tls_write(l, l->stage + l->stage_at, l->stage_len - l->stage_at);

		if (n > 0)
			l->stage_at += (size_t)n;
		return n;
	}
	struct iovec iov[GATHER_MAX];
	uint8_t small[1024];
	size_t total = 0;
	int count = 0;
	ssize_t n;

	for (int i = l->pend_at; i < l->pend_count; i++) {
		iov[count] = l->pend[i].iov;
		total += iov[count++].iov_len;
	}
	if (total <= sizeof(small)) {
		/* The kernel takes one short piece faster than several. */
		size_t at = 0;

		for (int i = 0; i < count; at += iov[i++].iov_len)
			memcpy(small + at, iov[i].iov_base, iov[i].iov_len);
		n = send(l->fd, small, total, MSG_NOSIGNAL | MSG_DONTWAIT);
	} else {
		struct msghdr m = { .msg_iov = iov, .msg_iovlen = (size_t)count };

		n = sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	}

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	size_t left = (size_t)n;

	while (left) {
		struct iovec *v = &l->pend[l->pend_at].iov;
		size_t k = MIN(left, v->iov_len);

		v->iov_base = (uint8_t *)v->iov_base + k;
		v->iov_len -= k;
		left -= k;
		if (v->iov_len == 0)
			l->pend_at++;
	}
	return n;
}

/* 1: all of the gathered pieces are written; 0: the socket is full; < 0: broken. */
static int write_pending(struct link *l)
{
	while (l->pend_at < l->pend_count || l->stage_at < l->stage_len) {
		ssize_t n = write_some(l);

		if (n == -EAGAIN) {
			link_pace(l, 0, true);
			return 0;
		}
		if (n < 0)
			return (int)n;
		l->last_out_ns = l->node->now_ns;
		link_pace(l, (size_t)n, l->backlogged);
	}
	return 1;
}

#if !RECLAIM_MOBILITY
static void forget_written(struct link *l)
{
	for (size_t i = 0; i < l->outs.count; i++) {
		struct reclaim_stream *o = l->outs.data[i];

		if (o && o->link == l && o->tx.next - 1 > o->tx.stable) {
			o->tx.stable = o->tx.next - 1;
			out_trim(o, o->tx.stable);
		}
	}
}
#endif

void link_flush(struct link *l)
{
	uint64_t until = l->node->now_ns + FLUSH_NS;

	if (!l->up || l->dead)
		return;
	for (unsigned round = 0;; round++) {
		/* A socket that drains as fast as it is filled would keep this thread, and the lock,
		 * for as long as there is bulk. The next turn goes on. */
		if (round && clock_boot_ns() > until) {
			want_out(l, true);
			return;
		}
		if (l->pend_count) {
			int r = write_pending(l);

			if (r < 0) {
				link_close(l, "broken while writing");
				return;
			}
			if (r == 0) {
				want_out(l, true);
				return;
			}
			unpend(l);
#if !RECLAIM_MOBILITY
			forget_written(l);
#endif
		}
		if (!gather(l))
			break;
	}
	l->backlogged = false;
	want_out(l, false);
}

void link_flush_all(struct reclaim_node *n)
{
	struct link *l, *next;

	if (n->deferred) {
		struct reclaim_stream *o;

		n->deferred = false;
		TAILQ_FOREACH(o, &n->outs, entry)
			if (o->cursor)
				out_pump(o);
	}
	for (l = TAILQ_FIRST(&n->links); l && ((next = TAILQ_NEXT(l, entry)), true); l = next)
		if (!l->want_out && (l->ctl.len || l->state_ready || !TAILQ_EMPTY(&l->ready[0]) ||
				     !TAILQ_EMPTY(&l->ready[1]) || !TAILQ_EMPTY(&l->ready[2])))
			link_flush(l);
}

void link_events(struct link *l, unsigned events)
{
	if (l->dead)
		return;
	if (l->connecting) {
		int err = 0;
		socklen_t len = sizeof(err);

		if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0 || err) {
			link_close(l, "not reachable");
			return;
		}
		if (l->incoming || (events & (EPOLLOUT | EPOLLIN)))
			link_connected(l);
		if (l->dead || !l->up)
			return;
	}
	if (events & EPOLLOUT)
		link_flush(l);
	if (!l->dead && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		link_read(l);
}
