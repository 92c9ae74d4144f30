/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the guests really did, seen from outside of the system under test: a
 * thread reads every incarnation's output file on its machine
 * (STATE/jobs/JOB/EPOCH/output.log) as it grows. Nothing here asks an agent or
 * the coordinator, so it also holds where those are wrong.
 *
 * It understands the lines of examples/train: "step N ...", "resumed at step
 * N", "done step N digest HEX".
 */
#ifndef RECLAIM_LAB_OBSERVE_H
#define RECLAIM_LAB_OBSERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OBSERVE_RUNS_MAX 4096
#define OBSERVE_NAME_MAX 80

/* One incarnation of one job. Instants are CLOCK_BOOTTIME, 0 = not yet. */
struct observe_run {
	char job[OBSERVE_NAME_MAX];
	uint64_t epoch;
	size_t machine;         /* index given to observe_add() */
	uint64_t seen_ns;       /* the file appeared */
	uint64_t first_step, last_step; /* 0 = none printed */
	uint64_t steps;         /* lines of steps */
	uint64_t resumed_at;    /* step of the checkpoint it started from; 0 = from the start */
	uint64_t first_ns, last_ns; /* of its step lines */
	char digest[65];        /* "" until done */
	bool torn;              /* steps did not come one after the other */
};

struct observe;
int observe_new(struct observe **ret);
/* A machine's state folder; need not exist yet. Before observe_start(). */
int observe_add(struct observe *o, size_t machine, const char *state_dir);
int observe_start(struct observe *o);
void observe_free(struct observe *o); /* stops the thread */

/* Copies of what is known now, in order of appearance. Returns how many. */
size_t observe_runs(struct observe *o, struct observe_run *ret, size_t cap);
/* The newest incarnation of a job; false if there is none. */
bool observe_newest(struct observe *o, const char *job, struct observe_run *ret);

/* Pure, for tests: takes the bytes of one more complete line. */
void observe_line(struct observe_run *r, const char *line, size_t len, uint64_t now_ns);

#endif
