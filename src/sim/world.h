/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is simulated: machines on a network, who takes them back when, and the
 * jobs that come. Made from a scenario file: either all of it is written out
 * there (as for the lab), or its `sim` part names traces, sizes and seeds.
 * Everything here is input; nothing changes while a run uses it.
 */
#ifndef RECLAIM_SIM_WORLD_H
#define RECLAIM_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/vec.h"
#include "policy/hazard.h"
#include "policy/network.h"
#include "scenario/scenario.h"

#define WORLD_WINDOWS_MAX 16
#define WORLD_MODELS_MAX 64

/* One kind of job state: how large, how long to save and to start again. */
struct world_model {
	char *name;
	double image_bytes;
	double save_s;    /* the guest stands still */
	double restore_s; /* from image in place to computing */
	double delta;     /* share of the image that travels when the one before is there */
	double weight;    /* how often */
	bool transparent; /* restores on the same GPU type only */
};

struct world_settings {
	/* The time that counts, and what came before it to learn from. */
	uint64_t duration_ns, history_ns, start_ns;
	char *trace, *machines; /* a trace in a handed format, and its rooms; else generated */
	char *jobs;             /* job sizes (submit_s,duration_s,gpus,vc), else generated */
	char *topology;         /* a graph of research sites; else buildings around a core */
	uint64_t nodes, buildings, gpu_types, room_size, slots;
	uint64_t edge_bps, uplink_bps, core_bps, server_bps;
	double research;        /* share of the core that research traffic uses, on average */
	double research_swing;  /* up and down by this, share */
	double floors;          /* share of a link that floors may take at most */
	double load;            /* demand, as a share of the lent slots */
	uint64_t job_max_ns;    /* longer ones are cut */
	uint64_t jobs_max;
	double background;      /* share of what is free that background copies use */
	char **windows;
	size_t windows_count;
	struct world_model *models;
	size_t models_count;
};
extern const struct schema world_settings_schema;

struct world_node {
	uint32_t room, building, gpu_type, slots, slot_kind;
	double window_s;
};

struct world_event {
	double t_s;
	uint32_t node;
	uint8_t state;   /* enum hazard_state from then on */
	bool has_window; /* this reclaim's own, not the owner's default */
	bool cancel;     /* the owner changes their mind */
	float window_s;
};

struct world_job {
	double submit_s, work_s; /* work: seconds of computing */
	double weight;
	double interval_s;       /* fixed by the job; 0 = the policy decides */
	uint32_t slots, model, slot_kind;
};

struct world {
	char *name;
	struct VEC(struct world_node) nodes;
	struct VEC(struct world_event) events; /* by time */
	struct VEC(struct world_job) jobs;     /* by submit */
	struct VEC(struct world_model) models;
	uint32_t rooms_count, gpu_types;
	struct network net;       /* one machine more than nodes: the file server */
	uint32_t server, hub;     /* machines of net */
	struct VEC(uint32_t) research_links;
	double research, research_swing;
	double background;
	double windows_s[WORLD_WINDOWS_MAX];
	size_t windows_count;
	double start_s, end_s;    /* what counts; events before start are history */
	double monday_s;
	uint64_t jobs_skipped;    /* larger than any machine */
	bool stop_when_done;      /* a lab scenario ends when its jobs end */
	double floor_bps;         /* what the coordinator grants a move there at least; 0: floors come
				   * from the schedule */
};

/* Draws owners' windows, machines of the trace, job order and kinds from `seed`. */
int world_make(const struct scenario *s, uint64_t seed, struct world *ret, struct diag *diag);
void world_done(struct world *w);

/* A campus of our own: owners' weeks, classes and breaks (see generate.c for the fit). */
struct generate_config {
	uint64_t seed;
	uint32_t machines, room_size;
	double days;
};
struct trace;
int generate_trace(const struct generate_config *config, struct trace *ret);
/* Job sizes like Philly's: n jobs, durations and GPUs. */
struct generated_job {
	double work_s;
	uint32_t gpus;
};
int generate_jobs(uint64_t seed, size_t count, struct generated_job *ret);

#endif
