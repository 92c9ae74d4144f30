/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the coordinator's REST port takes and gives, as tables shared by the
 * server, the command line, the page and the OpenAPI file.
 *
 *     POST   /v1/jobs                rest_submit -> rest_job (state "staging" while inputs are awaited)
 *     PUT    /v1/jobs/{id}/inputs    tar of the working folder's first files -> rest_job, now queued
 *     GET    /v1/jobs/{id}/inputs    the same, for the agent that starts it
 *     GET    /v1/jobs                ?all=1 (also ended), ?user=NAME (admin) -> rest_jobs
 *     GET    /v1/jobs/{id}           rest_job; {id}: also a unique prefix, or a name (of the live job, else the latest)
 *     GET    /v1/jobs/{id}/logs      bytes from ?offset=N; ?follow=1 until the job is over
 *     GET    /v1/jobs/{id}/events    one rest_job per line at every change; ends with a final state
 *     POST   /v1/jobs/{id}/cancel    -> rest_job
 *     PUT    /v1/jobs/{id}/results   tar, from the agent (?epoch=N)
 *     GET    /v1/jobs/{id}/results   tar
 *     GET    /v1/jobs/{id}/why       rest_why
 *     GET    /v1/nodes               rest_nodes
 *     GET    /v1/nodes/{name}/forecast
 *     POST   /v1/tokens, /v1/enroll, /v1/admin/...   (see the coordinator)
 */
#ifndef RECLAIM_WIRE_REST_H
#define RECLAIM_WIRE_REST_H

#include "base/schema.h"
#include "wire/control.h"

#define REST_JOBS_MAX 10000
#define REST_NODES_MAX 10000
#define REST_MOVES_MAX 1000
#define REST_INPUTS_MAX (UINT64_C(64) << 30)

enum rest_job_state {
	REST_JOB_STAGING = 0, /* inputs are on their way to the coordinator */
	REST_JOB_QUEUED,
	REST_JOB_STARTING,
	REST_JOB_RUNNING,
	REST_JOB_NOTICED,     /* its machine is wanted back; it saves */
	REST_JOB_MOVING,      /* its image is on the way, nothing runs */
	REST_JOB_RESTORING,
	REST_JOB_DONE,        /* final from here on */
	REST_JOB_FAILED,
	REST_JOB_CANCELLED,
	REST_JOB_STATE_COUNT,
};
extern const char *const rest_job_state_names[]; /* "staging", ... */
bool rest_job_state_is_final(enum rest_job_state s);

struct rest_secret {
	char *name;
	char *value;
};

struct rest_submit {
	json_t *spec;          /* job/spec.h as JSON */
	bool inputs;           /* a PUT of inputs follows */
	struct rest_secret *secrets;
	size_t secrets_count;
	char *request_id;      /* a repeated submit with the same one gives the same job */
};

/* One change of machine, or restart on the same one. */
struct rest_move {
	char *from, *to;       /* node names; from NULL = first start */
	uint64_t epoch;        /* of the incarnation that began */
	char *cause;           /* "start", "reclaim", "reclaim-now", "crash", "lease", "requeue", "cancelled-reclaim" */
	uint64_t at_ms;        /* wall clock */
	uint64_t downtime_ms;  /* guest stopped to guest running again */
	uint64_t bytes;        /* moved over the network for it, final move only */
	uint64_t lost_ms;      /* running time that was thrown away */
	char *image;           /* it started from; NULL = from the beginning */
};

struct rest_job {
	char *id;
	char *name;
	char *user;
	int state;
	char *reason;          /* why it waits, or how it ended, in words */
	char *node;            /* where it is; NULL = nowhere */
	uint64_t epoch;
	uint64_t moves_count_total;
	uint64_t failures;     /* real ones; reclaims are never counted */
	uint64_t reclaims;
	int exit_status;       /* final: the job's own; 128 + signal; 125 when it never ran */
	uint64_t submitted_ms, started_ms, ended_ms; /* wall clock; 0 = not yet */
	uint64_t ran_ms;       /* running time over all incarnations, what was lost included */
	char *saved;           /* newest saved image (digest), and of which epoch */
	char *durable;
	uint64_t durable_epoch, durable_seq;
	uint64_t durable_at_ms; /* wall clock of that commit record; 0 = none yet */
	uint64_t durable_bytes;
	uint64_t output_bytes; /* of the job's log */
	uint64_t results_bytes; /* 0 = none (yet) */
	uint64_t queue_position;
	struct rest_move *moves;
	size_t moves_count;
};

struct rest_jobs {
	struct rest_job *jobs;
	size_t jobs_count;
};

struct rest_node {
	char *name;
	char *building, *room;
	char *owner_state;     /* as in control.h */
	bool up, paused;
	uint64_t window_ms, remaining_ms;
	uint64_t slots, slots_used;
	uint64_t hazard_per_day; /* reclaims expected in the next 24 h, in thousandths */
	char *version;
	char **jobs;
	size_t jobs_count;
};

struct rest_nodes {
	struct rest_node *nodes;
	size_t nodes_count;
};

extern const struct schema rest_submit_schema, rest_job_schema, rest_jobs_schema, rest_node_schema,
	rest_nodes_schema;

#endif
