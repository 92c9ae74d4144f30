/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuv with one timerfd on CLOCK_BOOTTIME behind a binary heap of timers.
 * Handles are freed in libuv's close callbacks, which need one more turn: so
 * loop_free() runs the loop until they are gone.
 */
#include "io/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/vec.h"

struct loop_signal {
	uv_signal_t handle;
	void (*fn)(void *user, int signum);
	void *user;
	struct loop_signal *next;
};

struct loop_deferred {
	void (*fn)(void *user);
	void *user;
};

struct loop_watch {
	uv_poll_t handle;
	void (*fn)(void *user, int events, int error);
	void *user;
};

struct loop {
	uv_loop_t uv;
	uv_poll_t timer_poll;
	uv_idle_t deferred_idle;
	uv_timer_t turn_limit;
	int timer_fd;
	uint64_t timer_set_ns; /* what the timerfd is armed to; 0 = not */
	bool firing; /* timers are running: the timerfd is armed once, afterwards */
	struct VEC(struct loop_timer *) heap;
	uint64_t order;
	struct VEC(struct loop_deferred) deferred;
	struct loop_signal *signals;
	uint64_t now_ns;
	uint64_t now_uv_ms;
};

uv_loop_t *loop_uv(struct loop *l)
{
	return &l->uv;
}

uint64_t loop_now_ns(struct loop *l)
{
	/* libuv renews its clock once a turn, after waiting: follow it. */
	uint64_t uv_ms = uv_now(&l->uv);
	if (l->now_ns == 0 || uv_ms != l->now_uv_ms) {
		l->now_uv_ms = uv_ms;
		l->now_ns = clock_boot_ns();
	}
	return l->now_ns;
}

/* ---- timers: a binary heap by (instant, order of start) ---- */

static bool timer_before(const struct loop_timer *a, const struct loop_timer *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_put(struct loop *l, size_t i, struct loop_timer *t)
{
	l->heap.data[i] = t;
	t->slot = i + 1;
}

static void heap_up(struct loop *l, size_t i)
{
	struct loop_timer *t = l->heap.data[i];
	while (i > 0 && timer_before(t, l->heap.data[(i - 1) / 2])) {
		heap_put(l, i, l->heap.data[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_put(l, i, t);
}

static void heap_down(struct loop *l, size_t i)
{
	struct loop_timer *t = l->heap.data[i];
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= l->heap.count)
			break;
		if (child + 1 < l->heap.count &&
		    timer_before(l->heap.data[child + 1], l->heap.data[child]))
			child++;
		if (!timer_before(l->heap.data[child], t))
			break;
		heap_put(l, i, l->heap.data[child]);
		i = child;
	}
	heap_put(l, i, t);
}

static void timers_arm(struct loop *l)
{
	uint64_t at = l->heap.count ? MAX(l->heap.data[0]->at_ns, UINT64_C(1)) : 0;
	if (at == l->timer_set_ns || l->firing)
		return;
	struct itimerspec spec = {
		.it_value = { .tv_sec = (time_t)(at / NS_PER_S), .tv_nsec = (long)(at % NS_PER_S) }
	};
	CHECK(timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL) == 0);
	l->timer_set_ns = at;
}

static void timers_fire(uv_poll_t *handle, int status, int events)
{
	struct loop *l = handle->data;
	uint64_t expirations;

	if (read(l->timer_fd, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
		return; /* EAGAIN: rearmed meanwhile; anything else comes again */
	l->timer_set_ns = 0;
	/* Only those started before this turn: a timer that re-arms itself at once must not
	 * keep the loop here. */
	uint64_t order_end = l->order;
	uint64_t now = clock_boot_ns();
	l->firing = true; /* one system call at the end, not one for each timer */
	while (l->heap.count && l->heap.data[0]->at_ns <= now &&
	       l->heap.data[0]->order < order_end) {
		struct loop_timer *t = l->heap.data[0];
		loop_timer_stop(t);
		t->fn(t->user);
	}
	l->firing = false;
	timers_arm(l);
}

void loop_timer_init(struct loop_timer *t, struct loop *l, void (*fn)(void *user), void *user)
{
	*t = (struct loop_timer){ .loop = l, .fn = fn, .user = user };
}

int loop_timer_at(struct loop_timer *t, uint64_t at_boot_ns)
{
	struct loop *l = t->loop;
	CHECK(l && t->fn);
	loop_timer_stop(t);
	t->at_ns = at_boot_ns;
	t->order = l->order++;
	int r = VEC_PUSH(&l->heap, t);
	if (r < 0)
		return r;
	heap_up(l, l->heap.count - 1);
	timers_arm(l);
	return 0;
}

int loop_timer_in(struct loop_timer *t, uint64_t delay_ns)
{
	uint64_t now = clock_boot_ns();
	return loop_timer_at(t, delay_ns > UINT64_MAX / 4 ? UINT64_MAX / 4 : now + delay_ns);
}

void loop_timer_stop(struct loop_timer *t)
{
	if (t->slot == 0)
		return;
	struct loop *l = t->loop;
	size_t i = t->slot - 1;
	DCHECK(i < l->heap.count && l->heap.data[i] == t);
	t->slot = 0;
	struct loop_timer *last = l->heap.data[--l->heap.count];
	if (last != t) {
		heap_put(l, i, last);
		heap_up(l, i);
		heap_down(l, last->slot - 1);
	}
	timers_arm(l);
}

bool loop_timer_armed(const struct loop_timer *t)
{
	return t->slot != 0;
}

/* ---- the loop ---- */

static void deferred_run(uv_idle_t *handle)
{
	struct loop *l = handle->data;
	size_t count = l->deferred.count;
	for (size_t i = 0; i < count; i++) {
		struct loop_deferred d = l->deferred.data[i];
		d.fn(d.user);
	}
	memmove(l->deferred.data, l->deferred.data + count,
		(l->deferred.count - count) * sizeof(*l->deferred.data));
	l->deferred.count -= count;
	if (l->deferred.count == 0)
		uv_idle_stop(&l->deferred_idle);
}

int loop_defer(struct loop *l, void (*fn)(void *user), void *user)
{
	struct loop_deferred d = { fn, user };
	int r = VEC_PUSH(&l->deferred, d);
	if (r < 0)
		return r;
	return uv_idle_start(&l->deferred_idle, deferred_run);
}

int loop_new(struct loop **ret)
{
	struct loop *l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (l->timer_fd < 0) {
		int r = -errno;
		free(l);
		return r;
	}
	int r = uv_loop_init(&l->uv);
	if (r < 0) {
		close(l->timer_fd);
		free(l);
		return r;
	}
	l->uv.data = l;
	CHECK(uv_poll_init(&l->uv, &l->timer_poll, l->timer_fd) == 0);
	l->timer_poll.data = l;
	CHECK(uv_poll_start(&l->timer_poll, UV_READABLE, timers_fire) == 0);
	CHECK(uv_idle_init(&l->uv, &l->deferred_idle) == 0);
	l->deferred_idle.data = l;
	CHECK(uv_timer_init(&l->uv, &l->turn_limit) == 0);
	*ret = l;
	return 0;
}

static void signal_closed(uv_handle_t *handle)
{
	free(CONTAINER_OF((uv_signal_t *)handle, struct loop_signal, handle));
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	while (l->signals) {
		struct loop_signal *s = l->signals;
		l->signals = s->next;
		uv_close((uv_handle_t *)&s->handle, signal_closed);
	}
	uv_close((uv_handle_t *)&l->timer_poll, NULL);
	uv_close((uv_handle_t *)&l->deferred_idle, NULL);
	uv_close((uv_handle_t *)&l->turn_limit, NULL);
	uv_run(&l->uv, UV_RUN_NOWAIT);
	/* Close callbacks of what was closed just now may need further turns. */
	for (int i = 0; i < 16 && uv_loop_close(&l->uv) == UV_EBUSY; i++)
		uv_run(&l->uv, UV_RUN_NOWAIT);
	close(l->timer_fd);
	VEC_DONE(&l->heap);
	VEC_DONE(&l->deferred);
	free(l);
}

int loop_run(struct loop *l)
{
	int r = uv_run(&l->uv, UV_RUN_DEFAULT);
	return r < 0 ? r : 0;
}

static void turn_over(uv_timer_t *handle)
{
}

int loop_turn(struct loop *l, int wait_ms)
{
	if (wait_ms == 0) {
		uv_run(&l->uv, UV_RUN_NOWAIT);
		return 0;
	}
	if (wait_ms < 0) {
		uv_run(&l->uv, UV_RUN_ONCE);
		return 0;
	}
	uv_update_time(&l->uv);
	uv_timer_start(&l->turn_limit, turn_over, (uint64_t)wait_ms, 0); /* uv_run(ONCE) waits for it */
	uv_run(&l->uv, UV_RUN_ONCE);
	uv_timer_stop(&l->turn_limit);
	return 0;
}

void loop_stop(struct loop *l)
{
	uv_stop(&l->uv);
}

static void signal_fired(uv_signal_t *handle, int signum)
{
	struct loop_signal *s = CONTAINER_OF(handle, struct loop_signal, handle);
	s->fn(s->user, signum);
}

int loop_on_signal(struct loop *l, int signum, void (*fn)(void *user, int signum), void *user)
{
	struct loop_signal *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->fn = fn;
	s->user = user;
	uv_signal_init(&l->uv, &s->handle);
	s->next = l->signals;
	l->signals = s;
	return uv_signal_start(&s->handle, signal_fired, signum);
}

/* ---- descriptors ---- */

static void watch_fired(uv_poll_t *handle, int status, int events)
{
	struct loop_watch *w = CONTAINER_OF(handle, struct loop_watch, handle);
	w->fn(w->user, events, status < 0 ? status : 0);
}

int loop_watch_open(struct loop *l, int fd, int events,
		    void (*fn)(void *user, int events, int error), void *user,
		    struct loop_watch **ret)
{
	struct loop_watch *w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->fn = fn;
	w->user = user;
	int r = uv_poll_init(&l->uv, &w->handle, fd);
	if (r < 0) {
		free(w);
		return r;
	}
	r = uv_poll_start(&w->handle, events, watch_fired);
	if (r < 0) {
		loop_watch_close(w);
		return r;
	}
	*ret = w;
	return 0;
}

int loop_watch_set(struct loop_watch *w, int events)
{
	return events ? uv_poll_start(&w->handle, events, watch_fired) : uv_poll_stop(&w->handle);
}

static void watch_closed(uv_handle_t *handle)
{
	free(CONTAINER_OF((uv_poll_t *)handle, struct loop_watch, handle));
}

void loop_watch_close(struct loop_watch *w)
{
	if (w)
		uv_close((uv_handle_t *)&w->handle, watch_closed);
}
