/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/rest.h"

#define NAME CONTROL_NAME_MAX
#define TEXT CONTROL_TEXT_MAX
#define BIG 9e15

const char *const rest_job_state_names[] = { "staging", "queued",    "starting", "running",
					     "noticed", "moving",    "restoring", "done",
					     "failed",  "cancelled", NULL };

bool rest_job_state_is_final(enum rest_job_state s)
{
	return s >= REST_JOB_DONE;
}

static const struct schema_field secret_fields[] = {
	FIELD_STR(struct rest_secret, name, NAME, .flags = FIELD_REQUIRED),
	FIELD_STR(struct rest_secret, value, 65536, .flags = FIELD_REQUIRED),
	FIELD_END,
};
static const struct schema secret_schema = SCHEMA(struct rest_secret, "secret", secret_fields);

static const struct schema_field submit_fields[] = {
	FIELD_JSON(struct rest_submit, spec, .flags = FIELD_REQUIRED, .help = "the job, as in a job file"),
	FIELD_BOOL(struct rest_submit, inputs, .help = "a PUT of inputs follows"),
	FIELD_LIST(struct rest_submit, secrets, &secret_schema, 256),
	FIELD_STR(struct rest_submit, request_id, NAME,
		  .help = "a repeated submit with the same one gives the same job"),
	FIELD_END,
};
const struct schema rest_submit_schema = SCHEMA(struct rest_submit, "submit", submit_fields);

static const struct schema_field move_fields[] = {
	FIELD_STR(struct rest_move, from, NAME, .help = "node left; absent for a first start"),
	FIELD_STR(struct rest_move, to, NAME),
	FIELD_U64(struct rest_move, epoch, 0, BIG),
	FIELD_STR(struct rest_move, cause, NAME),
	FIELD_U64(struct rest_move, at_ms, 0, BIG, .help = "wall clock, ms since 1970"),
	FIELD_U64(struct rest_move, downtime_ms, 0, BIG, .help = "guest stopped to guest running again"),
	FIELD_U64(struct rest_move, bytes, 0, BIG, .help = "moved over the network for it"),
	FIELD_U64(struct rest_move, lost_ms, 0, BIG, .help = "running time thrown away"),
	FIELD_STR(struct rest_move, image, CONTROL_DIGEST_HEX),
	FIELD_END,
};
static const struct schema move_schema = SCHEMA(struct rest_move, "move", move_fields);

static const struct schema_field job_fields[] = {
	FIELD_STR(struct rest_job, id, NAME, .flags = FIELD_REQUIRED),
	FIELD_STR(struct rest_job, name, 128),
	FIELD_STR(struct rest_job, user, NAME),
	FIELD_ENUM(struct rest_job, state, rest_job_state_names, .flags = FIELD_REQUIRED),
	FIELD_STR(struct rest_job, reason, TEXT, .help = "why it waits, or how it ended"),
	FIELD_STR(struct rest_job, node, NAME, .help = "where it is; absent = nowhere"),
	FIELD_U64(struct rest_job, epoch, 0, BIG),
	FIELD_U64(struct rest_job, moves_count_total, 0, BIG),
	FIELD_U64(struct rest_job, failures, 0, BIG, .help = "real ones; reclaims never count"),
	FIELD_U64(struct rest_job, reclaims, 0, BIG),
	FIELD_INT(struct rest_job, exit_status, 0, 255),
	FIELD_U64(struct rest_job, submitted_ms, 0, BIG, .help = "wall clock, ms since 1970"),
	FIELD_U64(struct rest_job, started_ms, 0, BIG),
	FIELD_U64(struct rest_job, ended_ms, 0, BIG),
	FIELD_U64(struct rest_job, ran_ms, 0, BIG),
	FIELD_STR(struct rest_job, saved, CONTROL_DIGEST_HEX, .help = "newest image on its machine"),
	FIELD_STR(struct rest_job, durable, CONTROL_DIGEST_HEX, .help = "newest committed image"),
	FIELD_U64(struct rest_job, durable_epoch, 0, BIG),
	FIELD_U64(struct rest_job, durable_seq, 0, BIG),
	FIELD_U64(struct rest_job, durable_at_ms, 0, BIG),
	FIELD_U64(struct rest_job, durable_bytes, 0, BIG),
	FIELD_U64(struct rest_job, output_bytes, 0, BIG),
	FIELD_U64(struct rest_job, results_bytes, 0, BIG),
	FIELD_U64(struct rest_job, queue_position, 0, BIG),
	FIELD_LIST(struct rest_job, moves, &move_schema, REST_MOVES_MAX),
	FIELD_END,
};
const struct schema rest_job_schema = SCHEMA(struct rest_job, "job", job_fields);

static const struct schema_field jobs_fields[] = {
	FIELD_LIST(struct rest_jobs, jobs, &rest_job_schema, REST_JOBS_MAX),
	FIELD_END,
};
const struct schema rest_jobs_schema = SCHEMA(struct rest_jobs, "jobs", jobs_fields);

static const struct schema_field node_fields[] = {
	FIELD_STR(struct rest_node, name, NAME, .flags = FIELD_REQUIRED),
	FIELD_STR(struct rest_node, building, NAME),
	FIELD_STR(struct rest_node, room, NAME),
	FIELD_STR(struct rest_node, owner_state, NAME),
	FIELD_BOOL(struct rest_node, up, .help = "its agent is connected"),
	FIELD_BOOL(struct rest_node, paused),
	FIELD_U64(struct rest_node, window_ms, 0, BIG),
	FIELD_U64(struct rest_node, remaining_ms, 0, BIG),
	FIELD_U64(struct rest_node, slots, 0, BIG),
	FIELD_U64(struct rest_node, slots_used, 0, BIG),
	FIELD_U64(struct rest_node, hazard_per_day, 0, BIG,
		  .help = "reclaims expected in the next 24 h, in thousandths"),
	FIELD_STR(struct rest_node, version, NAME),
	FIELD_STRLIST(struct rest_node, jobs, NAME, CONTROL_JOBS_MAX),
	FIELD_END,
};
const struct schema rest_node_schema = SCHEMA(struct rest_node, "node", node_fields);

static const struct schema_field nodes_fields[] = {
	FIELD_LIST(struct rest_nodes, nodes, &rest_node_schema, REST_NODES_MAX),
	FIELD_END,
};
const struct schema rest_nodes_schema = SCHEMA(struct rest_nodes, "nodes", nodes_fields);
