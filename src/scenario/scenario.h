/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scenario: a campus, what runs on it, and what happens to it. The lab
 * builds it out of network namespaces and plays it with the real programs;
 * the simulator computes it. Nothing here knows which of the two reads it.
 *
 *     name: two-rooms
 *     topology:
 *       core: {capacity: 1Gbit}
 *       buildings: [{name: a, uplink: 200Mbit}, {name: b, uplink: 200Mbit}]
 *       machines:
 *         - {name: a1, building: a, link: 200Mbit}
 *         - {name: b1, building: b, link: 200Mbit}
 *     terms: {window: 10s, slots: [{cores: 1}]}
 *     jobs:
 *       - {name: train, command: [train, --steps, "400"], interval: 2s}
 *     events:
 *       - {name: first, at: 5s, do: back, machines: [a1]}
 *     checks: [{name: finished}]
 *
 * Time in a scenario counts from the moment at which every machine is up and
 * lent. The network is a tree: machine - building switch - core - building
 * switch - machine. Each link has one capacity per direction.
 *
 * The struct owns what it points to: scenario_done(). Names are checked to be
 * unique and references to exist when a file is loaded, so the readers can
 * look them up without error paths (scenario_machine() and the like).
 */
#ifndef RECLAIM_SCENARIO_SCENARIO_H
#define RECLAIM_SCENARIO_SCENARIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"
#include "scenario/terms.h"

#define SCENARIO_NAME_MAX 48
#define SCENARIO_BUILDINGS_MAX 256
#define SCENARIO_MACHINES_MAX 100000
#define SCENARIO_JOBS_MAX 1000000
#define SCENARIO_EVENTS_MAX 1000000
#define SCENARIO_FLOWS_MAX 4096
#define SCENARIO_NONE SIZE_MAX

struct scenario_building {
	char *name;
	uint64_t uplink_bps; /* building switch - core, each direction */
};

struct scenario_machine {
	char *name;
	char *building;
	uint64_t link_bps; /* machine - building switch, each direction */
	char *owner;       /* defaults to "owner-NAME" */
	char *room;        /* machines whose owners tend to come together; may be NULL */
	json_t *terms;     /* laid over the scenario's `terms`, key by key; may be NULL */
	char *terms_file;  /* or a file of its own */
	struct terms lend; /* the result of both: filled by scenario_load() */
	size_t building_index; /* the same */
};

/* A host that is only an end of research flows, or the coordinator's. */
struct scenario_host {
	char *name;
	char *building;
	uint64_t link_bps;
	size_t building_index; /* filled by scenario_load() */
};

struct scenario_topology {
	uint64_t core_bps; /* the core's switching capacity; 0 = never the bottleneck */
	struct scenario_building *buildings;
	size_t buildings_count;
	struct scenario_machine *machines;
	size_t machines_count;
	struct scenario_host *hosts;
	size_t hosts_count;
	char *coordinator; /* the building it stands in; defaults to the first */
};

/* How a job's cost looks to somebody who does not run it. The simulator
 * computes with it; the lab decides from it whether a window is enough. */
struct scenario_cost {
	uint64_t work_ns;    /* of computing, uninterrupted */
	uint64_t step_ns;    /* one step */
	uint64_t save_ns;    /* the guest stands still for so long per checkpoint */
	uint64_t restore_ns; /* from start to computing again */
	uint64_t image_bytes; /* one full image */
	double delta;        /* share of it that travels when the image before is there */
};

struct scenario_job {
	char *name;
	char *user;
	uint64_t at_ns;   /* submitted */
	char **command;   /* argv; the lab finds the example programs by bare name */
	size_t command_count;
	char *file;       /* or a job file (YAML, or a script with #SBATCH lines) */
	json_t *spec;     /* more keys of a job file, merged over `command` */
	uint64_t interval_ns; /* between checkpoints; 0 = the policy decides */
	size_t slots;
	bool reference;   /* compare its result with an uninterrupted run's */
	double weight;    /* of its work, for policies */
	struct scenario_cost cost;
};

enum scenario_do {
	SCENARIO_DO_BACK = 0,   /* the owners take `machines` back: mode, window */
	SCENARIO_DO_LEND,       /* and lend them again */
	SCENARIO_DO_CANCEL,     /* the owner changes their mind during the notice */
	SCENARIO_DO_PAUSE,
	SCENARIO_DO_RESUME,
	SCENARIO_DO_CRASH,      /* kill -9 of `what` on `machines` */
	SCENARIO_DO_RESTART,    /* start it again */
	SCENARIO_DO_CUT,        /* the link of `machines` or `buildings` carries nothing */
	SCENARIO_DO_RESTORE,    /* it carries again */
	SCENARIO_DO_STOP_ALL,   /* the operator's switch */
	SCENARIO_DO_CANCEL_JOB, /* `job` is cancelled by its user */
	SCENARIO_DO_POWER_OFF,  /* the machine goes without a word */
	SCENARIO_DO_POWER_ON,
};
extern const char *const scenario_do_names[];

enum scenario_mode {
	SCENARIO_MODE_NOTICE = 0, /* with the declared window, or the event's */
	SCENARIO_MODE_NOW,        /* cut at once */
};

enum scenario_what {
	SCENARIO_WHAT_AGENT = 0,
	SCENARIO_WHAT_SHIM,
	SCENARIO_WHAT_COORDINATOR,
	SCENARIO_WHAT_SENDER,
	SCENARIO_WHAT_RECEIVER,
	SCENARIO_WHAT_GUEST,
};
extern const char *const scenario_what_names[];

/* What else must hold before an event fires, so that scenarios do not depend
 * on the speed of the machine that plays them. */
enum scenario_wait {
	SCENARIO_WAIT_NONE = 0,
	SCENARIO_WAIT_RUNNING, /* every unfinished job is running (only `holds`, if given) */
	SCENARIO_WAIT_DURABLE, /* and its newest image is durable */
};

struct scenario_event {
	char *name;        /* for `after` and reports; may be NULL */
	uint64_t at_ns;    /* not before this time */
	char *after;       /* not before the end of this earlier event; may be NULL */
	uint64_t delay_ns; /* and so long after it */
	int wait;          /* enum scenario_wait */
	int act;           /* enum scenario_do; `do` in files */
	char **machines;
	size_t machines_count;
	char **buildings;
	size_t buildings_count;
	char *holds;       /* instead of `machines`: those that run this job at that moment */
	bool room;         /* and everybody in the same room as those */
	char *like;        /* instead: the machines of this earlier event */
	char *job;
	int mode;          /* enum scenario_mode */
	bool window_set;   /* filled by scenario_load(): window_ns was given */
	uint64_t window_ns;
	int what;          /* enum scenario_what */
	char *point;       /* crash at this protocol point instead of at once */
	uint64_t nth;      /* at its nth passing */
	uint64_t for_ns;   /* undo it (lend, restore, restart, power on) after so long; 0 = never */
};

enum scenario_flow_kind {
	SCENARIO_FLOW_BULK = 0, /* as fast as it goes, or at `rate` */
	SCENARIO_FLOW_SHORT,    /* Poisson arrivals of flows, sizes from a file */
};

/* Traffic that is not ours. */
struct scenario_flow {
	char *name;
	char *from, *to; /* machines or hosts */
	int kind;        /* enum scenario_flow_kind */
	uint64_t start_ns, stop_ns; /* stop 0 = to the end */
	size_t streams;
	uint64_t rate_bps; /* 0 = as fast as it goes */
	double load;       /* SHORT: share of the path's smallest link */
	char *sizes;       /* SHORT: file of a size distribution */
};

/* One statement that must hold at the end; the reader knows the names. */
struct scenario_check {
	char *name;
	double min, max; /* bounds, where the check has one; NAN = its own default */
	size_t count;    /* how often it must hold, where that makes sense */
};

/* Settings of the system under test. Zero = the program's own default. */
struct scenario_system {
	uint64_t lease_ns;
	uint64_t status_ns;    /* agents report so often */
	uint64_t floor_bps;    /* guaranteed to a move at notice */
	uint64_t floors_bps;   /* campus-wide cap on the sum of floors */
	uint64_t interval_ns;  /* checkpoint interval where the job gives none */
	char *policy;          /* a policy's name, for the simulator and ablations */
};

struct scenario {
	int version;
	char *name;
	char *summary;
	uint64_t seed;
	uint64_t duration_ns; /* gives up after so long */
	struct scenario_topology topology;
	json_t *terms;        /* every machine's, unless it says otherwise */
	struct scenario_system system;
	struct scenario_job *jobs;
	size_t jobs_count;
	struct scenario_event *events;
	size_t events_count;
	struct scenario_flow *flows;
	size_t flows_count;
	struct scenario_check *checks;
	size_t checks_count;
	json_t *sim;          /* traces, workloads and sweeps: the simulator's own */
};

extern const struct schema scenario_schema;

/* Paths in the file are taken from the file's folder. */
int scenario_load(const char *path, struct scenario *ret, struct diag *diag);
int scenario_parse(const char *text, size_t len, const char *name, struct scenario *ret,
		   struct diag *diag);
void scenario_done(struct scenario *s);
/* One event by itself ("{do: back, machines: [a1]}"), held to this scenario's names. */
int scenario_event_parse(const char *text, size_t len, const struct scenario *s,
			 struct scenario_event *ret, struct diag *diag);
void scenario_event_done(struct scenario_event *e);

/* Index by name, or SCENARIO_NONE. Linear: build a map if you ask often. */
size_t scenario_machine(const struct scenario *s, const char *name);
size_t scenario_building(const struct scenario *s, const char *name);
size_t scenario_host(const struct scenario *s, const char *name);
size_t scenario_job(const struct scenario *s, const char *name);
size_t scenario_event(const struct scenario *s, const char *name);
/* The building that the coordinator stands in. */
size_t scenario_coordinator_building(const struct scenario *s);

#endif
