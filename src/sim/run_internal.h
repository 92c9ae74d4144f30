/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by run.c (events), run_job.c (a job's life), run_plan.c (decisions). */
#ifndef RECLAIM_SIM_RUN_INTERNAL_H
#define RECLAIM_SIM_RUN_INTERNAL_H

#include "base/rng.h"
#include "base/vec.h"
#include "policy/hazard.h"
#include "policy/interval.h"
#include "policy/placement.h"
#include "sim/flow.h"
#include "sim/run.h"

enum run_event_kind {
	EVENT_DONE = 0,   /* job has computed all */
	EVENT_CHECKPOINT, /* or look again whether to */
	EVENT_COPY,       /* a checkpoint is complete, its copy may travel */
	EVENT_SAVED,      /* notice: image complete, it may travel */
	EVENT_DEADLINE,   /* the owner's window ends for this job */
	EVENT_FREE,       /* the machine must be free by now */
	EVENT_FLOW,       /* a flow ends */
	EVENT_RESTORED,
	EVENT_READY,      /* may be started (again) */
	EVENT_TICK,
	EVENT_KIND_COUNT
};

struct run_event {
	double t_s;
	uint64_t order;
	uint32_t subject, version;
	uint8_t kind;
};

enum job_state {
	JOB_FUTURE = 0,
	JOB_QUEUED,
	JOB_FETCHING,  /* its image travels to where it will run */
	JOB_RESTORING,
	JOB_RUNNING,
	JOB_SAVING,    /* at notice: stands still, writes */
	JOB_MOVING,    /* at notice: image under way */
	JOB_DYING,     /* at notice: runs on until it is killed */
	JOB_OVER,
};

struct sim_job {
	uint8_t state;
	bool fresh;          /* never ran */
	bool promised;       /* its move was admitted */
	bool staging;
	bool reserved;       /* dest's slots are held */
	uint32_t node, dest; /* dest: where a move goes */
	uint32_t next, prev; /* on the node */
	uint32_t version;    /* of its pending events */
	uint32_t check;      /* version of its pending checkpoint event */
	uint32_t copying;    /* version of its pending copy */
	uint32_t gpu_type;   /* a transparent image's; 0 = any */
	uint32_t flow;
	uint32_t copy;       /* flow of the copy under way */
	uint32_t copy_to;
	uint32_t image_at;   /* machine of net with the durable image; NETWORK_NONE: none */
	uint32_t home;       /* where background copies go */
	uint32_t partner;    /* redundancy */
	double done_s;       /* computed, at at_s */
	double at_s, stall_until_s;
	double durable_s;    /* computed, in the durable image */
	double earlier_s;    /* computed, in the durable image before, at earlier_at */
	uint32_t earlier_at;
	double pending_s;    /* computed, in the copy under way; < 0: none */
	double copy_bytes;
	bool checkpoint_due; /* waits for the copy before it */
	double stopped_s;    /* since when it does not compute; NAN: it does or never did */
	double started_s;    /* this time */
	double deadline_s;
	double accrued, accrued_at_s, accrued_rate; /* towards the next checkpoint */
	double floor;
	uint8_t window_class;
};

struct sim_node {
	uint8_t state;
	uint32_t free;       /* slots */
	uint32_t jobs;       /* first job on it */
	double lent_since_s;
	uint32_t leaving;    /* version of its owner's pending wait */
	double next_leave_s; /* clairvoyant: when this lent time ends */
	double hazard_at_s;  /* when placement_node.hazard_per_s was computed */
	uint32_t position;   /* in the ranking, or NOBODY */
	double off_rate, off_at_s;
	struct VEC(uint32_t) homed; /* jobs that copy to it, and some that did */
};

struct job_queue {
	uint32_t *items;
	size_t head, count, cap;
};

struct run {
	const struct world *world;
	const struct system *system;
	const struct run_config *config;
	struct run_result *result;
	struct hazard *hazard;
	struct flows flows;
	struct sim_job *jobs;
	struct sim_node *nodes;
	struct placement_node *places; /* as the planner sees them; server and hub last */
	struct job_queue evicted, fresh;
	struct VEC(struct run_event) heap;
	uint64_t order;
	struct VEC(uint32_t) moving;   /* jobs in a notice move, for admission */
	struct VEC(uint32_t) rank;     /* candidates, by hazard, made at ticks */
	struct VEC(uint32_t) lately;   /* lent since the ranking */
	uint32_t *room_first, *room_nodes; /* nodes by room */
	uint64_t *rank_open;           /* a bit by position in rank: lent and has a slot */
	uint32_t cursor;               /* first position in rank that may have slots */
	uint64_t slots_free;
	double now_s, next_tick_s;
	double rate_campus;            /* reclaims + power-offs per lent second so far */
	double campus_events, campus_exposed_s, campus_at_s;
	double lent_slots;
	uint64_t lent_nodes;
	double *prices;                /* of a background byte, by link */
	double next_price_s;
	struct rng rng;
	bool queue_dirty;
	bool counting;                 /* past the history */
	double research_bytes, research_bps, research_at_s; /* that research asked for */
	double research_lost;          /* by flows, before the counting started */
	uint64_t jobs_left;
	float *leaves;                 /* by machine event, clairvoyant only */
	int error;
};

#define NOBODY UINT32_MAX
/* Whose flow it is, and whether it is a background copy. */
#define FLOW_OF(job, copy) ((job) << 1 | (uint32_t)(copy))

/* run.c */
void run_push(struct run *r, double t_s, enum run_event_kind kind, uint32_t subject,
	      uint32_t version);
void run_flows_touched(struct run *r);
void run_lost(struct run *r, struct sim_job *j, double slot_s, bool power_off);

/* run_job.c */
double job_done_s(const struct sim_job *j, double now_s);
void job_start(struct run *r, uint32_t job, uint32_t node, double fetch_bytes);
void job_compute(struct run *r, uint32_t job);
void job_requeue(struct run *r, uint32_t job, double ready_in_s);
void job_release(struct run *r, uint32_t job);
void job_evict(struct run *r, uint32_t job, bool power_off);
void job_finish(struct run *r, uint32_t job);
void job_checkpoint(struct run *r, uint32_t job);
void job_notice(struct run *r, uint32_t node, double window_s);
void job_saved(struct run *r, uint32_t job);
void job_flow_end(struct run *r, uint32_t flow);
void job_deadline(struct run *r, uint32_t job);
void job_image_gone(struct run *r, uint32_t node);
void job_copy(struct run *r, uint32_t job);
void job_copy_to(struct run *r, uint32_t job, uint32_t to, double bytes);

/* run_plan.c */
void plan_tick(struct run *r);
/* The machine's state or slots have changed. */
void plan_rank_mark(struct run *r, uint32_t node);
void plan_queue(struct run *r);
void plan_moves(struct run *r, const uint32_t *jobs, size_t count, double window_s);
void plan_floors(struct run *r);
void plan_checkpoint(struct run *r, uint32_t job);
void plan_room(struct run *r, uint32_t node);
void plan_room_off(struct run *r, uint32_t node);
double plan_interval(struct run *r, uint32_t job);
void plan_home(struct run *r, uint32_t job);
double plan_copy_limit(struct run *r, const uint32_t *path, int count);

#endif
