/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of one lab. Who does what:
 *
 *     lab.c        from options to exit status: guard, campus, play, report
 *     system.c     the programs under test: configuration, start, stop, crash
 *     watch.c      a thread that asks the coordinator what the jobs are doing
 *     play.c       the scenario's events: when, and that they happen
 *     act.c        what one event does
 *     observe.c    a thread that reads what the guests really did
 *     report.c     the JSON, the account for people, the checks
 *     shell.c      a campus to play with
 *
 * All of it runs on one thread but for watch.c and observe.c. Instants are
 * CLOCK_BOOTTIME. What the reports say comes from outside of the system under
 * test wherever it can: owners' waits by this program's clock, processes left
 * by /proc, steps by the guests' own output, packets by the far end.
 */
#ifndef RECLAIM_LAB_LAB_INTERNAL_H
#define RECLAIM_LAB_LAB_INTERNAL_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/diag.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "lab/campus.h"
#include "lab/flow.h"
#include "lab/guard.h"
#include "lab/lab.h"
#include "lab/observe.h"
#include "lab/proc.h"
#include "lab/reference.h"
#include "scenario/scenario.h"

#define LAB_PATH_MAX 256
#define LAB_ID_MAX 80
#define LAB_OWNER_GROUP "reclaim-owner"
#define LAB_GID_OWNERS 64990
#define LAB_UID_OWNERS 65000 /* + machine, as far as there are such uids */
#define LAB_UID_USERS 64000  /* + user */
#define LAB_PORT 7411
#define LAB_TARGETS_MAX 64

struct lab_machine {
	const struct scenario_machine *spec;
	const struct campus_node *node;
	char state[LAB_PATH_MAX], run[LAB_PATH_MAX], config[LAB_PATH_MAX], terms[LAB_PATH_MAX];
	char log[LAB_PATH_MAX];
	char cgroup[64];     /* "lab-ID-NAME" */
	pid_t agent;         /* 0 = not running */
	uint64_t agent_started_ns;
	bool down_on_purpose; /* an event killed it */
	bool armed;          /* started with a protocol point that kills */
	char points[256];    /* RECLAIM_POINTS=... for the next start; "" = none of its own */
	unsigned starts;
	uid_t uid;
	gid_t gid;
};

struct lab_user {
	const char *name;
	uid_t uid;
	char home[LAB_PATH_MAX];
};

struct lab_job {
	const struct scenario_job *spec;
	struct lab_user *user;
	char id[LAB_ID_MAX]; /* "" until submitted */
	/* As the coordinator says (watch.c). */
	char state[24];
	char machine[SCENARIO_NAME_MAX + 8];
	uint64_t epoch, moves, failures, reclaims;
	uint64_t durable_epoch;
	bool durable;        /* its newest image has a commit record */
	bool finished;       /* a terminal state */
	int status;          /* its exit status then */
	json_t *raw;         /* the whole answer, for the report */
};

struct lab_reclaim {
	size_t machine;
	const char *mode;    /* "notice", "now", "crash" */
	uint64_t window_ns;
	bool window_enough;
	uint64_t needed_ns;  /* what the rule asks for, with the floor as declared */
	uint64_t asked_ns, freed_ns;
	double wait_ms;
	uint64_t pids_left;
	int status;          /* of the command */
	int64_t last_packet_ns; /* at the far end, after the decision; INT64_MIN = null */
	uint64_t packets_before;
	size_t jobs[8];      /* on board when it was asked for */
	uint64_t epochs[8];
	size_t jobs_count;
	/* Filled by report.c. */
	uint64_t steps_redone;
	double downtime_ms;
	uint64_t bytes_moved;
	bool cancelled;
};

enum lab_event_state { LAB_EVENT_WAITING = 0, LAB_EVENT_RUNNING, LAB_EVENT_DONE };

struct lab_command { /* one `reclaim` of an event, still running */
	pid_t pid;
	size_t machine;
	size_t reclaim;      /* index + 1; 0 = none */
	uint64_t started_ns;
	char out[LAB_PATH_MAX];
};

struct lab_event {
	const struct scenario_event *spec;
	struct scenario_event own; /* `lab do`: the event itself, owned */
	enum lab_event_state state;
	uint64_t fired_ns, done_ns;
	struct VEC(struct lab_command) commands;
	bool undone;         /* `for` has run out and been acted on */
	bool failed;
	char why[200];
	struct VEC(size_t) targets; /* machines, for undoing */
};

struct lab {
	const struct lab_options *opt;
	const struct guard *guard;
	struct scenario scenario;
	struct campus *campus;
	char dir[64];
	FILE *out;           /* the account */
	struct reference *references;
	struct lab_machine *machines;
	struct VEC(struct lab_user) users;
	struct lab_job *jobs;
	struct VEC(struct lab_event) events;
	struct VEC(struct lab_reclaim) reclaims;
	struct flow **flows;
	struct sink **sinks; /* one per host */
	struct observe *observe;
	/* the coordinator */
	pid_t coordinator;
	unsigned coordinator_starts;
	bool coordinator_armed;
	char coordinator_points[256];
	bool coordinator_down_on_purpose;
	char coordinator_dir[LAB_PATH_MAX], coordinator_log[LAB_PATH_MAX];
	char address[40];    /* host:port */
	char admin_home[LAB_PATH_MAX];
	/* watch.c */
	pthread_t watch_thread;
	bool watch_started, watch_stop;
	pthread_mutex_t watch_lock; /* over the watched fields of jobs */
	uint64_t watch_seen_ns; /* of the last good answer */
	uint64_t watch_round;
	uint64_t origin_ns;  /* scenario time 0 */
	uint64_t end_ns;
	pid_t shell;         /* shell.c: 0 once it has ended */
	int shell_status;
	int surprises;       /* programs that died without being told to */
	char surprise[200];
};

/* Says one line of the account: scenario time, then the text. */
void lab_say(struct lab *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
double lab_seconds(const struct lab *l, uint64_t boot_ns);

/* system.c */
int system_start(struct lab *l, struct diag *diag);
int system_start_agent(struct lab *l, size_t machine, struct diag *diag);
int system_start_coordinator(struct lab *l, struct diag *diag);
/*
 * Ends the program in an orderly way, if it runs, and starts it again. point (may be NULL) is a
 * protocol point at whose nth passing it, or a child of it, is to die.
 */
int system_restart_agent(struct lab *l, size_t machine, const char *point, uint64_t nth,
			 struct diag *diag);
int system_restart_coordinator(struct lab *l, const char *point, uint64_t nth,
			       struct diag *diag);
int system_lend_all(struct lab *l, struct diag *diag);
int system_submit(struct lab *l, struct lab_job *j, struct diag *diag);
void system_stop(struct lab *l);
/* A program of ours ended: which, and was it meant to? Restarts nothing. */
void system_reaped(struct lab *l, pid_t pid, int status);
/* An owner's command on a machine, as its owner; out goes to c->out. */
int system_owner(struct lab *l, size_t machine, const char *const *args, struct lab_command *c,
		 struct diag *diag);
int system_admin(struct lab *l, const char *const *args, struct strbuf *out, int *ret_status,
		 struct diag *diag);
int system_user(struct lab *l, const struct lab_user *u, const char *const *args,
		struct strbuf *out, int *ret_status, struct diag *diag);
/* Fills argv and environment for a person's command, for shell.c too. */
const char *system_reclaim(void);

/* crash.c */
/* kill -9 of the programs of this kind on a machine (ignored for the coordinator); how many. */
int crash_kill(struct lab *l, size_t machine, enum scenario_what what);
/* Guest processes on a machine, by their network namespace, cgroup or job id: /proc says. */
uint64_t crash_guests_left(struct lab *l, size_t machine);

/* watch.c */
int watch_start(struct lab *l);
void watch_stop(struct lab *l);

/* act.c */
int act_fire(struct lab *l, struct lab_event *e, struct diag *diag);
void act_reaped(struct lab *l, struct lab_event *e, struct lab_command *c, int status);
void act_undo(struct lab *l, struct lab_event *e);
bool act_is_over(struct lab *l, struct lab_event *e);
void act_reclaim_window(struct lab *l, struct lab_reclaim *r);

/* play.c */
int play(struct lab *l);
/* One turn: reaps, fires, undoes. `listen_fd` and `until` are shell.c's. */
void play_turn(struct lab *l);
bool play_is_over(struct lab *l);

/* report.c */
int report_write(struct lab *l, bool *ret_ok);

/* The index of a job or machine of this lab by the system's name for it, or SCENARIO_NONE. */
size_t lab_job_by_id(const struct lab *l, const char *id);
size_t lab_machine_by_name(const struct lab *l, const char *name);

#endif
