/* SPDX-License-Identifier: Apache-2.0 */
/* Telling the guest: file, socket, HTTP, signals; and seeing that it has saved. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/point.h"
#include "job/shim/shim.h"
#include "job/signal_name.h"
#include "job/signal_plan.h"

#define LAST_WINDOW_MIN_NS (5 * NS_PER_S)   /* below, there is no time for a second signal */
#define TIME_LIMIT_GRACE_NS (10 * NS_PER_S)

struct notice notice_now(const struct shim *s)
{
	return (struct notice){ .kind = s->notice_kind, .id = s->notice.notice_id, .epoch = s->start.epoch,
				.window_ns = s->notice.window_ns, .deadline_ns = s->notice.deadline_ns };
}

struct told {
	char text[8][64];
	char *items[8];
	size_t count;
};

static void told_add(struct told *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void told_add(struct told *t, const char *fmt, ...)
{
	va_list args;

	if (t->count == ARRAY_SIZE(t->text))
		return;
	va_start(args, fmt);
	(void)vsnprintf(t->text[t->count], sizeof(t->text[0]), fmt, args);
	va_end(args);
	t->items[t->count] = t->text[t->count];
	t->count++;
}

static void told_send(struct shim *s, struct told *t)
{
	struct shim_event event = { .type = SHIM_EVENT_TOLD };

	event.told = (struct shim_told){ .notice_id = s->notice.notice_id, .channels = t->items,
					 .channels_count = t->count };
	conn_event(s, &event);
}

/* File, socket and HTTP: for every driver, at once. */
static void tell_quietly(struct shim *s, struct told *t)
{
	struct notice n = notice_now(s);
	char path[4300];
	unsigned sockets;
	int r;

	(void)snprintf(path, sizeof(path), "%s/notice.json", s->run_dir);
	r = notice_write(path, &n, s->now, clock_wall_ms());
	if (r < 0)
		log_error("%s: cannot be written: %s", path, strerror(-r));
	else
		told_add(t, "file");
	sockets = guestsock_tell(s);
	if (sockets)
		told_add(t, "socket:%u", sockets);
	told_add(t, "http");
}

static unsigned send_signals(struct shim *s, const struct job_signal *sig, bool insist, enum signal_stage stage)
{
	struct proc_list procs = VEC_INIT, targets = VEC_INIT;
	unsigned sent = 0;

	if (guest_processes(s, &procs) == 0 &&
	    signal_plan(&procs, guest_top(s, &procs), sig, insist, stage, &targets) == 0)
		VEC_EACH(&targets, p) {
			/* A stopped process takes its signal only when it goes on. */
			if (p->state == 'T')
				(void)proc_kill(p->pid, p->start_ticks, SIGCONT);
			sent += proc_kill(p->pid, p->start_ticks, sig->signo) == 0;
		}
	VEC_DONE(&procs);
	VEC_DONE(&targets);
	return sent;
}

static void tell_by_signal(struct shim *s, enum signal_stage stage, struct told *t)
{
	struct job_signal sig = job_spec_signal(&s->start.spec);
	bool insist = s->driver == JOB_DRIVER_SIGNAL;
	unsigned sent;

	/* poll, criu and cuda guests get none before they are saved; a poll guest whose driver
	 * was chosen by us gets its SIGTERM if it has a handler for it. */
	if (s->driver != JOB_DRIVER_SIGNAL && !(s->driver == JOB_DRIVER_POLL && s->signal_if_caught))
		return;
	if (stage == SIGNAL_LAST && !insist)
		return;
	sent = send_signals(s, &sig, insist, stage);
	if (sent)
		told_add(t, "%s:%u", signal_to_name(sig.signo), sent);
	log_info("job %s.%llu: %s to %u processes", s->start.job, (unsigned long long)s->start.epoch,
		 signal_to_name(sig.signo), sent);
}

static void on_watch(struct shim *s, struct source *src, uint32_t events)
{
	s->due.saved_check = MIN(s->due.saved_check, s->now);
}

static void watch_begin(struct shim *s)
{
	int fd;

	if (!s->watch || s->watch_src.fd >= 0)
		return;
	if (ckpt_watch_scan(s->watch, s->now, CKPT_RUNNING, &s->before, NULL) < 0)
		s->before = (struct ckpt_commit){ 0 };
	/* The watch owns its fd; ours is a copy that may be closed. */
	fd = dup(ckpt_watch_fd(s->watch));
	if (fd < 0 || source_add(s, &s->watch_src, fd, EPOLLIN, on_watch) < 0) {
		if (fd >= 0)
			(void)close(fd);
		log_warn("commits are not seen: %s", strerror(errno));
	}
	if (s->before.settling)
		s->due.saved_check = s->now + s->before.wait_ns;
}

/* When to ask once more: the last fifth of the window, or twice what a save takes. */
static uint64_t last_signal_at(const struct shim *s, uint64_t window_ns)
{
	uint64_t lead = MAX(window_ns / 5, 2 * s->start.spec.checkpoint.save_estimate_ns);

	if (window_ns < LAST_WINDOW_MIN_NS || s->driver != JOB_DRIVER_SIGNAL)
		return NEVER;
	lead = MIN(lead, window_ns / 2);
	return s->notice.deadline_ns - lead;
}

void notice_begin(struct shim *s, struct shim_notice *notice)
{
	struct told t = { .count = 0 };
	bool again = s->state == SHIM_NOTICED;
	uint64_t left = notice->deadline_ns > s->now ? notice->deadline_ns - s->now : 0;

	free(s->notice.notice_id);
	free(s->notice.reason);
	s->notice = *notice;
	*notice = (struct shim_notice){ 0 };
	if (!s->notice.window_ns)
		s->notice.window_ns = left;
	s->notice_kind = NOTICE_RECLAIM;
	if (!again)
		s->notice_ns = s->now;
	s->due.kill = s->notice.deadline_ns;
	POINT("shim.notice");
	if (!left || !s->guest_running) {
		guest_stop(s, SHIM_END_RECLAIMED,
			   s->guest_running ? "the owner takes the machine now" : "reclaimed before it started");
		return;
	}
	s->state = SHIM_NOTICED;
	if (s->frozen && !s->lease_frozen)
		(void)guest_freeze(s, false, NULL); /* it must be able to save */
	tell_quietly(s, &t);
	watch_begin(s);
	/* Told already and only the deadline moved: the signal was sent. */
	if (!again)
		tell_by_signal(s, SIGNAL_FIRST, &t);
	s->due.last_signal = s->saved || s->acked ? NEVER : last_signal_at(s, left);
	state_changed(s, s->notice.reason);
	told_send(s, &t);
}

void notice_last(struct shim *s)
{
	struct told t = { .count = 0 };

	notice_look(s);
	if (s->state != SHIM_NOTICED || s->saved || s->acked)
		return;
	POINT("shim.last_signal");
	tell_by_signal(s, SIGNAL_LAST, &t);
	told_send(s, &t);
}

void notice_saved(struct shim *s, const char *how)
{
	if (s->state != SHIM_NOTICED || s->saved)
		return;
	s->saved = true;
	s->due.last_signal = NEVER;
	log_info("job %s.%llu: saved since the notice: %s", s->start.job, (unsigned long long)s->start.epoch, how);
	state_changed(s, how);
}

void notice_look(struct shim *s)
{
	struct ckpt_commit c;

	if (s->state != SHIM_NOTICED || !s->watch ||
	    ckpt_watch_scan(s->watch, s->now, s->frozen ? CKPT_FROZEN : CKPT_RUNNING, &c, NULL) < 0)
		return;
	if (c.found && (!s->before.found || c.seq != s->before.seq))
		notice_saved(s, c.name[0] ? c.name : "a commit");
	if (c.settling)
		s->due.saved_check = s->now + c.wait_ns;
}

void notice_acked(struct shim *s)
{
	struct shim_event event = { .type = SHIM_EVENT_ACKED };

	if (s->acked)
		return;
	s->acked = true;
	s->due.last_signal = NEVER;
	POINT("shim.acked");
	conn_event(s, &event);
	/* With an agent there the state is moved first; alone, there is nothing to wait for. */
	if (conn_agent_present(s))
		state_changed(s, "acknowledged");
	else
		guest_stop(s, SHIM_END_RECLAIMED, "acknowledged, and no agent is there to move it");
}

void notice_cancel(struct shim *s)
{
	struct told t = { .count = 0 };

	s->notice_kind = NOTICE_CANCELLED;
	s->due.kill = s->due.last_signal = s->due.saved_check = NEVER;
	if (s->frozen && !s->lease_frozen)
		(void)guest_freeze(s, false, NULL); /* the state event says if it still stands */
	s->acked = s->saved = false;
	s->notice.deadline_ns = 0;
	s->state = SHIM_RUNNING;
	tell_quietly(s, &t);
	source_close(s, &s->watch_src);
	state_changed(s, "the notice was withdrawn");
	told_send(s, &t);
}

/* "Save when you can": by the quiet channels alone, since a signal would mean an end. */
void notice_checkpoint(struct shim *s)
{
	struct told t = { .count = 0 };

	s->notice_kind = NOTICE_CHECKPOINT;
	tell_quietly(s, &t);
	told_send(s, &t);
}

void notice_time_limit(struct shim *s)
{
	struct job_signal term = { .signo = SIGTERM };

	if (s->state >= SHIM_STOPPING)
		return;
	log_info("job %s: time limit", s->start.job);
	(void)send_signals(s, &term, true, SIGNAL_LAST);
	s->stop_end = SHIM_END_TIME_LIMIT;
	s->due.time_limit_kill = s->now + TIME_LIMIT_GRACE_NS;
}
