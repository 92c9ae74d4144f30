/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's life, its turns and its timers. Whichever thread is in a call does
 * the work: one of them sleeps in epoll, others wait for it. When none is in a
 * call, a helper thread looks in every few milliseconds, so that leases are
 * renewed and handovers answered while the application computes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "stream/address.h"
#include "stream/node_internal.h"

enum { KEEPER_MS = 2, CONNECT_TIMEOUT_MS = 1000, RETAIN_MAX = 64 << 20, FREEZE_MS = 2000 };

uint64_t node_now(struct reclaim_node *n)
{
	return n->now_ns = clock_boot_ns();
}

uint64_t node_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : clock_boot_ns() + (uint64_t)timeout_ms * NS_PER_MS;
}

void node_event(struct reclaim_node *n, const char *what, const char *who, uint64_t a, uint64_t b)
{
	struct event *e = &n->events[n->events_count++ % EVENTS_MAX];

	e->at_ns = n->now_ns;
	e->what = what;
	snprintf(e->who, sizeof(e->who), "%s", who);
	e->a = a;
	e->b = b;
}

void node_wake(struct reclaim_node *n)
{
	uint64_t one = 1;

	if (n->cond_waiters)
		pthread_cond_broadcast(&n->cond);
	if (n->polling || n->fd_given)
		(void)!write(n->wake_fd, &one, sizeof(one)); /* full means: awake already */
}

/* --- what the owner's state asks for --- */

static void tell_ins(struct reclaim_node *n, uint8_t type)
{
	VEC_EACH(&n->ins, p) {
		struct in *in = *p;

		if (!in->link)
			continue;
		struct stream_frame f = { .type = type, .handle = in->handle, .seq = in->rx.cur,
					  .epoch = n->owner.epoch,
					  .limit = receiver_limit(&in->rx) };
		if (type == STREAM_FRAME_NACK) {
			f.epoch++;
			f.code = STREAM_NACK_MOVED;
		}
		link_send(in->link, &f);
	}
}

static void activate(struct reclaim_node *n)
{
	struct reclaim_stream *o;
	struct link *l;

	if (n->move.target && n->key_next_epoch == n->owner.epoch)
		memcpy(n->key, n->key_next, SEAL_KEY_LEN);
	n->key_epoch = n->owner.epoch;
	TAILQ_FOREACH(o, &n->outs, entry) {
		o->tx.producer_epoch = n->owner.epoch;
		out_pump(o);
	}
	TAILQ_FOREACH(l, &n->links, entry) {
		for (size_t i = 0; i < l->waiting.count && !l->dead; i++) {
			struct stream_frame_saved *w = l->waiting.data[i];

			if (w->f.epoch == n->owner.epoch)
				in_attach(l, &w->f);
			free(w);
		}
		l->waiting.count = 0;
	}
	if (n->move.target)
		move_committed(n);
	if (n->options.standby)
		n->active_event = true;
	n->reg.renew_asked_ns = 0;
	node_soon(n, n->now_ns);
	node_event(n, n->recovered ? "took over" : "owner", n->name, n->owner.epoch, 0);
}

static void tombstone(struct reclaim_node *n)
{
	struct reclaim_stream *o;

	if (n->move.source && n->move.cut_sent) {
		n->moved = true;
		n->stats.moves_out++;
		n->move.committed_ns = n->now_ns;
	}
	node_event(n, n->moved ? "moved away" : "lost", n->name, n->owner.epoch, 0);
	tell_ins(n, STREAM_FRAME_NACK);
	in_purge(n);
	TAILQ_FOREACH(o, &n->outs, entry) {
		/* The new owner has its own copy of these. */
		o->error = -ESTALE;
		out_detach(o, false);
		out_drop_ahead(o);
	}
	n->acks.count = 0;
	n->ack_at_ns = 0;
	VEC_EACH(&n->ins, p)
		(*p)->ack_listed = false;
}

void node_act(struct reclaim_node *n, unsigned todo)
{
	if (!todo)
		return;
	if (todo & OWNER_DO_PREPARE)
		move_begin(n);
	if (todo & OWNER_DO_HANDOVER) {
		tell_ins(n, STREAM_FRAME_FREEZE);
		move_send_cut(n);
	}
	if (todo & OWNER_DO_ABORT) {
		n->stats.moves_aborted++;
		reg_abort(n);
	}
	if (todo & OWNER_DO_RESUME) {
		tell_ins(n, STREAM_FRAME_RESUME);
		move_resumed(n);
	}
	if (todo & OWNER_DO_COMMIT)
		reg_commit(n);
	if (todo & OWNER_DO_ACTIVATE)
		activate(n);
	if (todo & OWNER_DO_TOMBSTONE)
		tombstone(n);
	link_flush_all(n);
	node_wake(n);
}

/* --- timers --- */

static void beats(struct reclaim_node *n)
{
	struct stream_frame f = { .type = STREAM_FRAME_BEAT, .epoch = n->owner.epoch };
	struct link *l, *next;
	uint64_t every = n->reg.ttl_ns ? n->reg.ttl_ns / 4 : NS_PER_S;

	if (n->owner.lease_until_ns > n->now_ns &&
	    (n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN))
		f.limit = (n->owner.lease_until_ns - n->now_ns) / NS_PER_MS;
	for (l = TAILQ_FIRST(&n->links); l; l = next) {
		next = TAILQ_NEXT(l, entry);
		if (l->connecting) {
			if (n->now_ns - l->opened_ns > CONNECT_TIMEOUT_MS * NS_PER_MS)
				link_close(l, "connect timed out");
			continue;
		}
		if (n->reg.ttl_ns && n->now_ns - l->last_in_ns > n->reg.ttl_ns) {
			link_close(l, "silent for a whole lease");
			continue;
		}
		link_send(l, &f);
	}
	n->beat_ns = n->now_ns + every;
	node_soon(n, n->beat_ns);
}

static void timers(struct reclaim_node *n)
{
	struct reclaim_stream *o;

	n->timer_ns = n->now_ns + 100 * NS_PER_MS;
#if RECLAIM_MOBILITY
	node_act(n, owner_on_time(&n->owner, n->now_ns));
	if (n->owner.state == OWNER_FROZEN)
		node_soon(n, n->owner.freeze_deadline_ns);
	if (n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN)
		node_soon(n, n->owner.lease_until_ns);
#endif
	in_flush_acks(n, false);
	if (n->ack_at_ns)
		node_soon(n, n->ack_at_ns);
	reg_timer(n);
	TAILQ_FOREACH(o, &n->outs, entry)
		if (o->link && n->now_ns >= o->tx.route_until_ns)
			out_detach(o, true); /* rule 1: no send on a route that has run out */
	if (n->now_ns >= n->beat_ns)
		beats(n);
	else
		node_soon(n, n->beat_ns);
	if (n->move.source && !n->move.link && n->owner.hid)
		move_begin(n);
	group_timer(n);
}

/* --- turns --- */

static void dispatch(struct reclaim_node *n, struct epoll_event *ev)
{
	enum source *source = ev->data.ptr;
	uint64_t count;

	switch (*source) {
	case SOURCE_LISTEN:
		link_accept(n);
		break;
	case SOURCE_LINK:
		link_events(ev->data.ptr, ev->events);
		break;
	case SOURCE_REGISTRY:
		reg_events(n, ev->events);
		break;
	case SOURCE_WAKE:
		(void)!read(n->wake_fd, &count, sizeof(count));
		break;
	}
}

static int poll_for(struct reclaim_node *n, struct epoll_event *events, int max, uint64_t wait_ns)
{
	struct timespec ts = { (time_t)(wait_ns / NS_PER_S), (long)(wait_ns % NS_PER_S) };
	int k = epoll_pwait2(n->epoll_fd, events, max, &ts, NULL);

	if (k < 0 && errno == ENOSYS)
		k = epoll_wait(n->epoll_fd, events, max, (int)(wait_ns / NS_PER_MS) + 1);
	return k;
}

void node_turn(struct reclaim_node *n, uint64_t wait_ns)
{
	struct epoll_event events[32];
	int k;

	link_watch_again(n);
	if (n->polling) {
		k = 0; /* another thread sleeps in epoll, what comes is its */
	} else if (wait_ns) {
		n->polling = true;
		if (n->hot)
			link_expect(n->hot, true);
		pthread_mutex_unlock(&n->lock);
		k = poll_for(n, events, 32, MIN(wait_ns, 10 * NS_PER_S));
		node_lock(n);
		n->polling = false;
	} else {
		k = epoll_wait(n->epoll_fd, events, 32, 0);
	}
	node_now(n);
	for (int i = 0; i < k; i++)
		dispatch(n, &events[i]);
	if (n->now_ns >= n->timer_ns)
		timers(n);
	if (n->move.freeze_wanted)
		move_try_freeze(n, n->in_receive);
	link_flush_all(n);
	link_bury(n);
	n->progress_ns = n->now_ns;
	if (n->cond_waiters)
		pthread_cond_broadcast(&n->cond);
}

int node_wait(struct reclaim_node *n, uint64_t deadline_ns)
{
	if (n->cancelled)
		return -ECANCELED;
	node_now(n);
	if (n->now_ns >= deadline_ns)
		return -ETIMEDOUT;
	link_flush_all(n);
	if (n->polling) {
		uint64_t until = MIN(deadline_ns, n->now_ns + NS_PER_S);
		struct timespec ts = { (time_t)(until / NS_PER_S), (long)(until % NS_PER_S) };

		/* The condition runs on CLOCK_MONOTONIC, which is never ahead. */
		n->cond_waiters++;
		(void)pthread_cond_timedwait(&n->cond, &n->lock, &ts);
		n->cond_waiters--;
		node_now(n);
	} else if (n->options.spin) {
		node_turn(n, 0);
		pthread_mutex_unlock(&n->lock); /* nobody else would get it */
		node_lock(n);
	} else {
		uint64_t until = MIN(deadline_ns, n->timer_ns);

		node_turn(n, until > n->now_ns ? until - n->now_ns : 0);
	}
	return n->cancelled ? -ECANCELED : 0;
}

static void *keeper(void *arg)
{
	struct reclaim_node *n = arg;
	const struct timespec nap = { 0, KEEPER_MS * NS_PER_MS };

	while (!__atomic_load_n(&n->closing, __ATOMIC_RELAXED)) {
		nanosleep(&nap, NULL);
		if (!node_try_lock(n))
			continue; /* someone is at work */
		node_now(n);
		if (!n->closing && !n->polling &&
		    (n->deferred || n->now_ns - n->progress_ns > KEEPER_MS * NS_PER_MS))
			node_turn(n, 0);
		pthread_mutex_unlock(&n->lock);
	}
	return NULL;
}

/* --- open and close --- */

static const char *or_env(const char *value, const char *name)
{
	return value ? value : getenv(name);
}

static int watch(struct reclaim_node *n, int fd, void *source)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = source };

	return epoll_ctl(n->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int start_listening(struct reclaim_node *n)
{
	const char *text = n->options.listen ? n->options.listen : "127.0.0.1:0";
	char bound[STREAM_LOCATOR_MAX + 1];
	struct address a;
	int r = stream_address_parse(text, &a);

	if (r == 0)
		r = stream_address_listen(&a, &n->listener.fd);
	if (r == 0)
		r = stream_address_format(n->listener.fd, bound, sizeof(bound));
	if (r < 0)
		return r;
	if (n->options.advertise) {
		const char *port = strrchr(bound, ':');

		/* "10.0.0.7:0" means: that host, our port. */
		size_t len = strlen(n->options.advertise);
		if (len > 2 && !strcmp(n->options.advertise + len - 2, ":0")) {
			char full[STREAM_LOCATOR_MAX + 1];

			if (snprintf(full, sizeof(full), "%.*s%s", (int)len - 2,
				     n->options.advertise, port) >= (int)sizeof(full))
				return -ENAMETOOLONG;
			n->advertise = strdup(full);
		} else {
			n->advertise = strdup(n->options.advertise);
		}
	} else {
		n->advertise = strdup(bound);
	}
	return n->advertise ? watch(n, n->listener.fd, &n->listener) : -ENOMEM;
}

static int copy_options(struct reclaim_node *n, const struct reclaim_node_options *options)
{
	size_t size = MIN(options->size, sizeof(n->options));
	const char *name, *registry, *token;

	if (size < offsetof(struct reclaim_node_options, level))
		return -EINVAL;
	memcpy(&n->options, options, size);
	name = or_env(n->options.name, "RECLAIM_STREAM_NAME");
	registry = or_env(n->options.registry, "RECLAIM_STREAM_REGISTRY");
	token = or_env(n->options.token, "RECLAIM_STREAM_TOKEN");
	if (!name || !registry || !stream_name_valid(name) ||
	    (n->options.group && !stream_name_valid(n->options.group)) ||
	    (token && strlen(token) > REGISTRY_TOKEN_MAX))
		return -EINVAL;
	snprintf(n->name, sizeof(n->name), "%s", name);
	snprintf(n->group, sizeof(n->group), "%s", n->options.group ? n->options.group : "");
	n->registry_address = strdup(registry);
	n->token = strdup(token ? token : "");
	n->level = n->options.level == 0 ? 0 : 1;
	if (!n->options.retain_max)
		n->options.retain_max = RETAIN_MAX;
	if (!n->options.freeze_ms)
		n->options.freeze_ms = FREEZE_MS;
	for (size_t i = 0; i < n->options.regions_count; i++) {
		const struct reclaim_region *g = &n->options.regions[i];
		struct region mine = { .id = g->id, .data = g->data, .len = g->len };

		if (VEC_PUSH(&n->regions, mine) < 0)
			return -ENOMEM;
	}
	n->options.regions = NULL;
	return n->registry_address && n->token ? 0 : -ENOMEM;
}

static void node_free(struct reclaim_node *n)
{
	struct reclaim_stream *o;
	struct reclaim_group *g;
	struct segment *s;
	struct link *l;

	while ((g = TAILQ_FIRST(&n->groups)))
		group_free(g);
	while ((o = TAILQ_FIRST(&n->outs)))
		out_free(o);
	while ((l = TAILQ_FIRST(&n->links)))
		link_close(l, "closed");
	link_bury(n); /* no call is running any more, so none sleeps on a link */
	in_release_given(n);
	in_purge(n);
	for (int i = 0; i < STREAM_CLASS_COUNT; i++)
		free(n->queues[i].data);
	VEC_EACH(&n->ins, p)
		in_free(n, *p);
	VEC_DONE(&n->ins);
	VEC_DONE(&n->acks);
	map_free(n->in_map);
	while ((s = TAILQ_FIRST(&n->segment_pool))) {
		TAILQ_REMOVE(&n->segment_pool, s, next);
		free(s->data);
		free(s);
	}
	VEC_EACH(&n->block_pool, b)
		free(*b);
	VEC_DONE(&n->block_pool);
	VEC_EACH(&n->big_pool, b) {
		free((*b)->data);
		free(*b);
	}
	VEC_DONE(&n->big_pool);
	VEC_DONE(&n->given_bigs);
	VEC_DONE(&n->given_blocks);
	VEC_DONE(&n->given_copies);
	move_end(n);
	VEC_EACH(&n->regions, r)
		free(r->dirty);
	VEC_DONE(&n->regions);
	VEC_EACH(&n->snapshots, p) {
		VEC_DONE(&(*p)->ins);
		VEC_DONE(&(*p)->outs);
		free(*p);
	}
	VEC_DONE(&n->snapshots);
	if (n->reg.fd >= 0)
		close(n->reg.fd);
	VEC_DONE(&n->reg.questions);
	strbuf_done(&n->reg.in);
	strbuf_done(&n->reg.out);
	if (n->listener.fd >= 0)
		close(n->listener.fd);
	if (n->wake_fd >= 0)
		close(n->wake_fd);
	if (n->epoll_fd >= 0)
		close(n->epoll_fd);
	if (n->spill_fd >= 0)
		close(n->spill_fd);
	seal_wipe(n->key, sizeof(n->key));
	seal_wipe(n->key_next, sizeof(n->key_next));
	free(n->registry_address);
	free(n->token);
	free(n->advertise);
	pthread_mutex_destroy(&n->lock);
	pthread_mutex_destroy(&n->next);
	pthread_cond_destroy(&n->cond);
	free(n);
}

/* Until the name is ours, or as a standby until the registry knows us. */
static int wait_joined(struct reclaim_node *n)
{
	uint64_t deadline = n->options.open_timeout_ms ?
				    node_deadline((int)n->options.open_timeout_ms) :
				    UINT64_MAX;
	int r = 0;

	while (r == 0) {
		if (n->reg.error)
			return n->reg.error;
		if (n->owner.state == OWNER_ACTIVE || n->active_told)
			return 0;
		if (n->owner.state == OWNER_GONE) {
			/* The grant came too late to be of use: ask again, as somebody new. */
			owner_init(&n->owner, n->instance, n->options.standby);
			reg_close(n);
		}
		if (n->options.spin) {
			node_turn(n, NS_PER_MS);
			r = node_now(n) > deadline ? -ETIMEDOUT : 0;
		} else {
			r = node_wait(n, deadline);
		}
	}
	return r;
}

static struct reclaim_node *node_new(void)
{
	struct reclaim_node *n = calloc(1, sizeof(*n));
	pthread_condattr_t attr;

	if (!n)
		return NULL;
	pthread_mutex_init(&n->lock, NULL);
	pthread_mutex_init(&n->next, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&n->cond, &attr);
	pthread_condattr_destroy(&attr);
	n->epoll_fd = n->wake_fd = n->listener.fd = n->reg.fd = n->spill_fd = -1;
	n->listener.source = SOURCE_LISTEN;
	n->wake_source = SOURCE_WAKE;
	TAILQ_INIT(&n->links);
	TAILQ_INIT(&n->grave);
	TAILQ_INIT(&n->outs);
	TAILQ_INIT(&n->groups);
	TAILQ_INIT(&n->segment_pool);
	n->timer_ns = UINT64_MAX;
	return n;
}

int reclaim_node_open(const struct reclaim_node_options *options, struct reclaim_node **ret)
{
	struct reclaim_node *n = node_new();
	int r;

	if (!n)
		return -ENOMEM;
	r = map_new(&n->in_map);
	if (r == 0)
		r = copy_options(n, options);
	if (r == 0)
		r = random_bytes(&n->instance, sizeof(n->instance));
	n->instance = (n->instance >> 1) | 1; /* never 0, and fits a signed 64-bit number */
	if (r == 0 && (n->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
		r = -errno;
	if (r == 0 && (n->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
		r = -errno;
	if (r == 0)
		r = watch(n, n->wake_fd, &n->wake_source);
	if (r == 0)
		r = start_listening(n);
	if (r < 0) {
		node_free(n);
		return r;
	}
	node_lock(n);
	node_now(n);
	n->timer_ns = n->now_ns;
	owner_init(&n->owner, n->instance, n->options.standby);
	if (n->options.image && n->options.image_len)
		r = image_restore(n, n->options.image, n->options.image_len);
	if (r == 0) {
		reg_start(n);
		r = wait_joined(n);
	}
	n->options.image = NULL;
	n->options.image_len = 0;
	if (r == 0 && pthread_create(&n->keeper, NULL, keeper, n) == 0)
		n->keeper_runs = true;
	pthread_mutex_unlock(&n->lock);
	if (r == 0 && !n->keeper_runs)
		r = -EAGAIN;
	if (r < 0) {
		node_free(n);
		return r;
	}
	*ret = n;
	return 0;
}

void reclaim_node_cancel(struct reclaim_node *n)
{
	node_lock(n);
	n->cancelled = true;
	node_wake(n);
	pthread_mutex_unlock(&n->lock);
}

void reclaim_node_close(struct reclaim_node *n)
{
	if (!n)
		return;
	node_lock(n);
	__atomic_store_n(&n->closing, true, __ATOMIC_RELAXED);
	n->cancelled = true;
	node_now(n);
	if (n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN) {
		/* What was handed out is acknowledged; then the name is free for others. */
		in_flush_acks(n, true);
		link_flush_all(n);
		n->owner.state = OWNER_GONE;
	}
	if (n->reg.joined)
		reg_release(n);
	pthread_mutex_unlock(&n->lock);
	if (n->keeper_runs)
		pthread_join(n->keeper, NULL);
	node_free(n);
}

int reclaim_node_fd(struct reclaim_node *n)
{
	node_lock(n);
	n->fd_given = true;
	link_watch_again(n);
	node_wake(n); /* there may be something queued already */
	pthread_mutex_unlock(&n->lock);
	return n->epoll_fd;
}

/* --- what it is --- */

enum reclaim_state reclaim_node_state(struct reclaim_node *n)
{
	static const enum reclaim_state states[OWNER_STATE_COUNT] = {
		RECLAIM_STATE_JOINING, RECLAIM_STATE_STANDBY, RECLAIM_STATE_STANDBY,
		RECLAIM_STATE_OWNER,   RECLAIM_STATE_FROZEN,  RECLAIM_STATE_LOST,
	};

	node_lock(n);
	enum reclaim_state s = states[n->owner.state];
	if (s == RECLAIM_STATE_LOST && n->moved)
		s = RECLAIM_STATE_MOVED;
	pthread_mutex_unlock(&n->lock);
	return s;
}

uint64_t reclaim_node_epoch(struct reclaim_node *n)
{
	node_lock(n);
	uint64_t e = n->owner.epoch;
	pthread_mutex_unlock(&n->lock);
	return e;
}

uint64_t reclaim_node_instance(struct reclaim_node *n)
{
	return n->instance;
}
