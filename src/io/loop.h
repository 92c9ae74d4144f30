/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of a program: libuv, plus timers on CLOCK_BOOTTIME (libuv's
 * own run on the monotonic clock, which stands still in suspend; a lease must
 * not outlive a closed lid). One loop, one thread; callbacks run on it.
 *
 * Equal timers fire in the order in which they were started. A callback may
 * start, stop or free anything, also its own timer or watch.
 */
#ifndef RECLAIM_IO_LOOP_H
#define RECLAIM_IO_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct loop;

int loop_new(struct loop **ret);
/* Every timer, watch and server on the loop must be closed before. */
void loop_free(struct loop *l);
uv_loop_t *loop_uv(struct loop *l);
/* Runs until loop_stop(); 0 or -errno. */
int loop_run(struct loop *l);
/* One turn: waits at most wait_ms (0 = poll only, -1 = until something happens). For tests. */
int loop_turn(struct loop *l, int wait_ms);
void loop_stop(struct loop *l);
/* CLOCK_BOOTTIME as of this turn of the loop (at most 1 ms old). */
uint64_t loop_now_ns(struct loop *l);

/* Embedded, zeroed by loop_timer_init(). */
struct loop_timer {
	struct loop *loop;
	void (*fn)(void *user);
	void *user;
	uint64_t at_ns; /* CLOCK_BOOTTIME */
	uint64_t order;
	size_t slot; /* place in the heap + 1; 0 = not armed */
};
void loop_timer_init(struct loop_timer *t, struct loop *l, void (*fn)(void *user), void *user);
/* (Re)arms; an instant that has passed fires in the next turn. 0 or -ENOMEM. */
int loop_timer_at(struct loop_timer *t, uint64_t at_boot_ns);
int loop_timer_in(struct loop_timer *t, uint64_t delay_ns);
void loop_timer_stop(struct loop_timer *t); /* fine when not armed or only zeroed */
bool loop_timer_armed(const struct loop_timer *t);

/* fn(user, signum) on the loop at each delivery of the signal. */
int loop_on_signal(struct loop *l, int signum, void (*fn)(void *user, int signum), void *user);

/* A borrowed file descriptor: events is UV_READABLE | UV_WRITABLE | UV_DISCONNECT;
 * error is 0 or -errno from the kernel. Close the watch before the descriptor. */
struct loop_watch;
int loop_watch_open(struct loop *l, int fd, int events,
		    void (*fn)(void *user, int events, int error), void *user,
		    struct loop_watch **ret);
int loop_watch_set(struct loop_watch *w, int events);
void loop_watch_close(struct loop_watch *w);

/* fn(user) once, in the next turn, from inside a callback that must not go deeper. */
int loop_defer(struct loop *l, void (*fn)(void *user), void *user);

#endif
