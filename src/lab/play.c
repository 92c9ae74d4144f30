/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays a scenario's events: each fires once its time has come, the event it
 * follows is over and what it waits for holds. One turn every few
 * milliseconds reaps, fires, undoes.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "lab/lab_internal.h"

#define TURN_NS (5 * NS_PER_MS)

static volatile sig_atomic_t told_to_stop;

static void on_stop(int signo)
{
	told_to_stop = signo;
}

double lab_seconds(const struct lab *l, uint64_t boot_ns)
{
	return l->origin_ns && boot_ns > l->origin_ns ? (double)(boot_ns - l->origin_ns) / 1e9 : 0;
}

void lab_say(struct lab *l, const char *fmt, ...)
{
	va_list args;

	if (l->opt->quiet)
		return;
	if (l->origin_ns)
		(void)fprintf(l->out, "%6.2f s  ", lab_seconds(l, clock_boot_ns()));
	va_start(args, fmt);
	(void)vfprintf(l->out, fmt, args);
	va_end(args);
	(void)fputc('\n', l->out);
	(void)fflush(l->out);
}

static struct lab_event *event_named(struct lab *l, const char *name)
{
	VEC_EACH(&l->events, e)
		if (e->spec->name && strcmp(e->spec->name, name) == 0)
			return e;
	return NULL;
}

/* Every unfinished job (or the one that is named) runs; and, for DURABLE, its newest image
 * has a commit record. */
static bool jobs_are(struct lab *l, enum scenario_wait wait, const char *only)
{
	bool ok = true;

	(void)pthread_mutex_lock(&l->watch_lock);
	for (size_t i = 0; i < l->scenario.jobs_count && ok; i++) {
		const struct lab_job *j = &l->jobs[i];

		if (j->finished || (only && strcmp(j->spec->name, only) != 0))
			continue;
		ok = strcmp(j->state, "running") == 0;
		if (wait == SCENARIO_WAIT_DURABLE)
			ok = ok && j->durable;
	}
	(void)pthread_mutex_unlock(&l->watch_lock);
	return ok;
}

static bool is_due(struct lab *l, const struct lab_event *e, uint64_t now)
{
	const struct scenario_event *s = e->spec;

	if (now < l->origin_ns + s->at_ns)
		return false;
	if (s->after) {
		const struct lab_event *before = event_named(l, s->after);

		if (!before || before->state != LAB_EVENT_DONE || now < before->done_ns + s->delay_ns)
			return false;
	}
	return s->wait == SCENARIO_WAIT_NONE || jobs_are(l, s->wait, s->holds);
}

static void fire(struct lab *l, struct lab_event *e)
{
	struct diag diag = DIAG_INIT;
	char text[512];
	int r;

	e->fired_ns = clock_boot_ns();
	e->state = LAB_EVENT_RUNNING;
	r = act_fire(l, e, &diag);
	if (r < 0) {
		e->failed = true;
		(void)snprintf(e->why, sizeof(e->why), "%.199s",
			       diag_format(&diag, text, sizeof(text)));
		lab_say(l, "FAILED: %s: %s", scenario_do_names[e->spec->act], e->why);
	}
}

static void reap(struct lab *l)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		bool mine = false;

		VEC_EACH(&l->events, e)
			VEC_EACH(&e->commands, c)
				if (c->pid == pid) {
					mine = true;
					c->pid = 0;
					act_reaped(l, e, c, status);
				}
		if (!mine)
			system_reaped(l, pid, status);
	}
}

void play_turn(struct lab *l)
{
	uint64_t now = clock_boot_ns();

	reap(l);
	for (size_t i = 0; i < l->events.count; i++) {
		struct lab_event *e = &l->events.data[i];

		if (e->state == LAB_EVENT_WAITING && is_due(l, e, now))
			fire(l, e);
		if (e->state == LAB_EVENT_RUNNING && act_is_over(l, e)) {
			e->state = LAB_EVENT_DONE;
			e->done_ns = clock_boot_ns();
		}
		if (e->state == LAB_EVENT_DONE && e->spec->for_ns && !e->undone &&
		    now >= e->done_ns + e->spec->for_ns) {
			e->undone = true;
			act_undo(l, e);
		}
	}
}

static bool jobs_over(struct lab *l)
{
	bool over = true;

	(void)pthread_mutex_lock(&l->watch_lock);
	for (size_t i = 0; i < l->scenario.jobs_count && over; i++)
		over = l->jobs[i].finished;
	(void)pthread_mutex_unlock(&l->watch_lock);
	return over;
}

bool play_is_over(struct lab *l)
{
	VEC_EACH(&l->events, e)
		if (e->state == LAB_EVENT_RUNNING ||
		    (e->state == LAB_EVENT_DONE && e->spec->for_ns && !e->undone &&
		     e->spec->act != SCENARIO_DO_BACK))
			return false;
	return jobs_over(l);
}

static int submit_due(struct lab *l, struct diag *diag)
{
	uint64_t now = clock_boot_ns();
	int r = 0;

	for (size_t i = 0; i < l->scenario.jobs_count && r == 0; i++) {
		struct lab_job *j = &l->jobs[i];

		if (!j->id[0] && now >= l->origin_ns + j->spec->at_ns)
			r = system_submit(l, j, diag);
	}
	return r;
}

/* 0 played to the end, -ETIMEDOUT, -EINTR, or another -errno. */
int play(struct lab *l)
{
	struct sigaction act = { .sa_handler = on_stop };
	struct diag diag = DIAG_INIT;
	char text[512];
	int r = 0;

	told_to_stop = 0;
	(void)sigaction(SIGTERM, &act, NULL);
	(void)sigaction(SIGINT, &act, NULL);
	while (r == 0 && !play_is_over(l)) {
		struct timespec pause = { 0, TURN_NS };

		r = submit_due(l, &diag);
		if (r < 0)
			lab_say(l, "FAILED: %s", diag_format(&diag, text, sizeof(text)));
		play_turn(l);
		if (r == 0 && told_to_stop)
			r = -EINTR;
		if (r == 0 && clock_boot_ns() > l->origin_ns + l->scenario.duration_ns) {
			lab_say(l, "FAILED: not over after the scenario's duration");
			r = -ETIMEDOUT;
		}
		(void)nanosleep(&pause, NULL);
	}
	l->end_ns = clock_boot_ns();
	return r;
}
