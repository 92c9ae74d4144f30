/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of wire/control.h, and one encoder and decoder over them. */
#include "wire/control.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

#define NAME_MAX_ CONTROL_NAME_MAX
#define REQ .flags = FIELD_REQUIRED
/* Spans of time and sizes: generous, finite. */
#define MS_MAX (400.0 * 86400e3)
#define BYTES_MAX 1e15
#define RATE_MAX 1e12
#define COUNT_MAX 9e15
#define COMMIT_MAX CONTROL_COMMIT_MAX

const char *const control_type_names[] = {
	"none", "hello", "status", "owner", "job", "saved", "received", "transfer", "output",
	"welcome", "lease", "start", "stop", "move", "standby", "durable", "rates", "interval",
	"notice", "keep", "output_ack", "refused", NULL,
};
const char *const control_owner_state_names[] = { "owned", "lent", "notice", "draining", "free", NULL };
const char *const control_reclaim_mode_names[] = { "none", "notice", "now", NULL };
const char *const control_job_state_names[] = { "starting", "restoring", "running", "noticed",
						"moving", "ended", NULL };
const char *const control_end_names[] = { "none", "done", "failed", "restart", "reclaimed", "lease",
					  "time_limit", "killed", "not_started", "shim_lost", NULL };
const char *const control_transfer_state_names[] = { "started", "progress", "done", "failed", NULL };
const char *const control_move_use_names[] = { "notice", "stage", NULL };

static_assert(ARRAY_SIZE(control_type_names) == CONTROL_TYPE_COUNT + 1, "names of types");
static_assert(ARRAY_SIZE(control_end_names) == CONTROL_END_COUNT + 1, "names of ends");
static_assert(ARRAY_SIZE(control_job_state_names) == CONTROL_JOB_STATE_COUNT + 1, "names of states");
static_assert(ARRAY_SIZE(control_owner_state_names) == CONTROL_OWNER_STATE_COUNT + 1, "owner states");

static const struct schema_field slot_fields[] = {
	FIELD_STR(struct control_slot, name, NAME_MAX_, REQ),
	FIELD_BOOL(struct control_slot, gpu),
	FIELD_STR(struct control_slot, gpu_type, NAME_MAX_),
	FIELD_U64(struct control_slot, gpu_memory, 0, BYTES_MAX),
	FIELD_U64(struct control_slot, cores_milli, 0, COUNT_MAX),
	FIELD_U64(struct control_slot, memory, 0, BYTES_MAX),
	FIELD_END,
};
static const struct schema slot_schema = SCHEMA(struct control_slot, "slot", slot_fields);

static const struct schema_field job_report_fields[] = {
	FIELD_STR(struct control_job_report, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_job_report, epoch, 0, COUNT_MAX, REQ),
	FIELD_ENUM(struct control_job_report, state, control_job_state_names, REQ),
	FIELD_STR(struct control_job_report, slot, NAME_MAX_),
	FIELD_U64(struct control_job_report, ran_ms, 0, MS_MAX),
	FIELD_STR(struct control_job_report, image, CONTROL_DIGEST_HEX),
	FIELD_U64(struct control_job_report, image_seq, 0, COUNT_MAX),
	FIELD_U64(struct control_job_report, image_output, 0, COUNT_MAX),
	FIELD_U64(struct control_job_report, unsaved_ms, 0, MS_MAX),
	FIELD_U64(struct control_job_report, image_bytes, 0, BYTES_MAX),
	FIELD_STR(struct control_job_report, image_commit, COMMIT_MAX),
	FIELD_U64(struct control_job_report, save_ms, 0, MS_MAX),
	FIELD_U64(struct control_job_report, delta_bytes, 0, BYTES_MAX),
	FIELD_U64(struct control_job_report, output_offset, 0, COUNT_MAX),
	FIELD_END,
};
static const struct schema job_report_schema = SCHEMA(struct control_job_report, "job_report", job_report_fields);

static const struct schema_field image_fields[] = {
	FIELD_STR(struct control_image, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_image, epoch, 0, COUNT_MAX),
	FIELD_U64(struct control_image, seq, 0, COUNT_MAX),
	FIELD_STR(struct control_image, image, CONTROL_DIGEST_HEX, REQ),
	FIELD_U64(struct control_image, bytes, 0, BYTES_MAX),
	FIELD_U64(struct control_image, output_offset, 0, COUNT_MAX),
	FIELD_STR(struct control_image, commit, COMMIT_MAX),
	FIELD_END,
};
static const struct schema image_schema = SCHEMA(struct control_image, "image", image_fields);

static const struct schema_field hello_fields[] = {
	FIELD_STR(struct control_hello, node, NAME_MAX_, REQ),
	FIELD_STR(struct control_hello, boot_id, NAME_MAX_),
	FIELD_U64(struct control_hello, agent_starts, 0, COUNT_MAX),
	FIELD_STR(struct control_hello, version, NAME_MAX_),
	FIELD_STR(struct control_hello, host, CONTROL_HOST_MAX),
	FIELD_INT(struct control_hello, transfer_port, 0, 65535),
	FIELD_INT(struct control_hello, gang_port, 0, 65536 - CONTROL_GANG_PORTS),
	FIELD_STR(struct control_hello, arch, NAME_MAX_),
	FIELD_STR(struct control_hello, libc, NAME_MAX_),
	FIELD_STR(struct control_hello, building, NAME_MAX_),
	FIELD_STR(struct control_hello, room, NAME_MAX_),
	FIELD_LIST(struct control_hello, slots, &slot_schema, CONTROL_SLOTS_MAX),
	FIELD_U64(struct control_hello, window_ms, 0, MS_MAX),
	FIELD_BOOL(struct control_hello, shadow_keep),
	FIELD_BOOL(struct control_hello, shadow_owned),
	FIELD_U64(struct control_hello, disk_free, 0, BYTES_MAX),
	FIELD_U64(struct control_hello, uplink_bps, 0, RATE_MAX),
	FIELD_STRLIST(struct control_hello, users, NAME_MAX_, 256),
	FIELD_STRLIST(struct control_hello, groups, NAME_MAX_, 256),
	FIELD_STRLIST(struct control_hello, deny, NAME_MAX_, 256),
	FIELD_STR(struct control_hello, rung, NAME_MAX_),
	FIELD_STRLIST(struct control_hello, lacks, NAME_MAX_, 64),
	FIELD_JSON(struct control_hello, schedule),
	FIELD_INT(struct control_hello, utc_offset_s, -86400, 86400),
	FIELD_ENUM(struct control_hello, owner_state, control_owner_state_names, REQ),
	FIELD_BOOL(struct control_hello, paused),
	FIELD_U64(struct control_hello, remaining_ms, 0, MS_MAX),
	FIELD_STR(struct control_hello, notice_id, NAME_MAX_),
	FIELD_ENUM(struct control_hello, mode, control_reclaim_mode_names),
	FIELD_U64(struct control_hello, idle_ms, 0, MS_MAX),
	FIELD_LIST(struct control_hello, jobs, &job_report_schema, CONTROL_JOBS_MAX),
	FIELD_LIST(struct control_hello, images, &image_schema, CONTROL_IMAGES_MAX),
	FIELD_END,
};
static const struct schema hello_schema = SCHEMA(struct control_hello, "hello", hello_fields);

static const struct schema_field status_fields[] = {
	FIELD_U64(struct control_status, seq, 0, COUNT_MAX, REQ),
	FIELD_ENUM(struct control_status, owner_state, control_owner_state_names, REQ),
	FIELD_BOOL(struct control_status, paused),
	FIELD_U64(struct control_status, remaining_ms, 0, MS_MAX),
	FIELD_U64(struct control_status, idle_ms, 0, MS_MAX),
	FIELD_U64(struct control_status, disk_free, 0, BYTES_MAX),
	FIELD_U64(struct control_status, floor_bps, 0, RATE_MAX),
	FIELD_LIST(struct control_status, jobs, &job_report_schema, CONTROL_JOBS_MAX),
	FIELD_END,
};
static const struct schema status_schema = SCHEMA(struct control_status, "status", status_fields);

static const struct schema_field owner_fields[] = {
	FIELD_ENUM(struct control_owner, state, control_owner_state_names, REQ),
	FIELD_BOOL(struct control_owner, paused),
	FIELD_ENUM(struct control_owner, mode, control_reclaim_mode_names),
	FIELD_STR(struct control_owner, notice_id, NAME_MAX_),
	FIELD_STR(struct control_owner, reason, CONTROL_TEXT_MAX),
	FIELD_BOOL(struct control_owner, cancelled),
	FIELD_U64(struct control_owner, remaining_ms, 0, MS_MAX),
	FIELD_U64(struct control_owner, window_ms, 0, MS_MAX),
	FIELD_U64(struct control_owner, waited_ms, 0, MS_MAX),
	FIELD_U64(struct control_owner, pids_left, 0, COUNT_MAX),
	FIELD_U64(struct control_owner, last_guest_packet_us, 0, COUNT_MAX),
	FIELD_LIST(struct control_owner, jobs, &job_report_schema, CONTROL_JOBS_MAX),
	FIELD_END,
};
static const struct schema owner_schema = SCHEMA(struct control_owner, "owner", owner_fields);

static const struct schema_field job_fields[] = {
	FIELD_STR(struct control_job, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_job, epoch, 0, COUNT_MAX, REQ),
	FIELD_ENUM(struct control_job, state, control_job_state_names, REQ),
	FIELD_ENUM(struct control_job, end, control_end_names),
	FIELD_INT(struct control_job, status, 0, 255),
	FIELD_STR(struct control_job, reason, CONTROL_TEXT_MAX),
	FIELD_U64(struct control_job, ran_ms, 0, MS_MAX),
	FIELD_U64(struct control_job, cpu_ms, 0, MS_MAX),
	FIELD_BOOL(struct control_job, acked),
	FIELD_STR(struct control_job, rung, NAME_MAX_),
	FIELD_STR(struct control_job, driver, NAME_MAX_),
	FIELD_U64(struct control_job, downtime_ms, 0, MS_MAX),
	FIELD_U64(struct control_job, output_offset, 0, COUNT_MAX),
	FIELD_U64(struct control_job, results_bytes, 0, BYTES_MAX),
	FIELD_END,
};
static const struct schema job_schema = SCHEMA(struct control_job, "job", job_fields);

static const struct schema_field saved_fields[] = {
	FIELD_STR(struct control_saved, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_saved, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_saved, seq, 0, COUNT_MAX, REQ),
	FIELD_STR(struct control_saved, image, CONTROL_DIGEST_HEX, REQ),
	FIELD_STR(struct control_saved, previous, CONTROL_DIGEST_HEX),
	FIELD_U64(struct control_saved, bytes, 0, BYTES_MAX),
	FIELD_U64(struct control_saved, new_bytes, 0, BYTES_MAX),
	FIELD_U64(struct control_saved, take_ms, 0, MS_MAX),
	FIELD_U64(struct control_saved, step, 0, COUNT_MAX),
	FIELD_U64(struct control_saved, output_offset, 0, COUNT_MAX),
	FIELD_BOOL(struct control_saved, final),
	FIELD_STR(struct control_saved, notice_id, NAME_MAX_),
	FIELD_STR(struct control_saved, commit, COMMIT_MAX),
	FIELD_END,
};
static const struct schema saved_schema = SCHEMA(struct control_saved, "saved", saved_fields);

static const struct schema_field received_fields[] = {
	FIELD_STR(struct control_received, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_received, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_received, seq, 0, COUNT_MAX),
	FIELD_STR(struct control_received, image, CONTROL_DIGEST_HEX, REQ),
	FIELD_STR(struct control_received, from, NAME_MAX_),
	FIELD_STR(struct control_received, ticket_serial, NAME_MAX_),
	FIELD_BOOL(struct control_received, hold_only),
	FIELD_U64(struct control_received, bytes_wire, 0, BYTES_MAX),
	FIELD_U64(struct control_received, ms, 0, MS_MAX),
	FIELD_U64(struct control_received, output_offset, 0, COUNT_MAX),
	FIELD_STR(struct control_received, commit, COMMIT_MAX),
	FIELD_END,
};
static const struct schema received_schema = SCHEMA(struct control_received, "received", received_fields);

static const struct schema_field transfer_fields[] = {
	FIELD_STR(struct control_transfer, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_transfer, epoch, 0, COUNT_MAX, REQ),
	FIELD_STR(struct control_transfer, image, CONTROL_DIGEST_HEX),
	FIELD_STR(struct control_transfer, to, NAME_MAX_),
	FIELD_ENUM(struct control_transfer, state, control_transfer_state_names, REQ),
	FIELD_STR(struct control_transfer, code, NAME_MAX_),
	FIELD_STR(struct control_transfer, detail, CONTROL_TEXT_MAX),
	FIELD_U64(struct control_transfer, bytes_done, 0, BYTES_MAX),
	FIELD_U64(struct control_transfer, bytes_total, 0, BYTES_MAX),
	FIELD_U64(struct control_transfer, rate_bps, 0, RATE_MAX),
	FIELD_U64(struct control_transfer, bytes_wire, 0, BYTES_MAX),
	FIELD_U64(struct control_transfer, ms, 0, MS_MAX),
	FIELD_END,
};
static const struct schema transfer_schema = SCHEMA(struct control_transfer, "transfer", transfer_fields);

static const struct schema_field output_fields[] = {
	FIELD_STR(struct control_output, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_output, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_output, offset, 0, COUNT_MAX, REQ),
	FIELD_STR(struct control_output, data, CONTROL_OUTPUT_MAX / 3 * 4 + 8, REQ),
	FIELD_END,
};
static const struct schema output_schema = SCHEMA(struct control_output, "output", output_fields);

static const struct schema_field welcome_fields[] = {
	FIELD_U64(struct control_welcome, lease_ms, 0, MS_MAX, REQ),
	FIELD_U64(struct control_welcome, status_every_ms, 0, MS_MAX, REQ),
	FIELD_STR(struct control_welcome, coordinator, NAME_MAX_),
	FIELD_BOOL(struct control_welcome, stop_all),
	FIELD_U64(struct control_welcome, floor_cap_bps, 0, RATE_MAX),
	FIELD_END,
};
static const struct schema welcome_schema = SCHEMA(struct control_welcome, "welcome", welcome_fields);

static const struct schema_field lease_item_fields[] = {
	FIELD_STR(struct control_lease_item, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_lease_item, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_lease_item, remaining_ms, 0, MS_MAX, REQ),
	FIELD_END,
};
static const struct schema lease_item_schema = SCHEMA(struct control_lease_item, "lease_item", lease_item_fields);

static const struct schema_field lease_fields[] = {
	FIELD_U64(struct control_lease, seq, 0, COUNT_MAX, REQ),
	FIELD_LIST(struct control_lease, leases, &lease_item_schema, CONTROL_JOBS_MAX),
	FIELD_END,
};
static const struct schema lease_schema = SCHEMA(struct control_lease, "lease", lease_fields);

static const struct schema_field peer_fields[] = {
	FIELD_STR(struct control_peer, node, NAME_MAX_),
	FIELD_STR(struct control_peer, host, CONTROL_HOST_MAX),
	FIELD_INT(struct control_peer, port, 0, 65535),
	FIELD_STR(struct control_peer, ticket, CONTROL_TICKET_MAX),
	FIELD_END,
};
static const struct schema peer_schema = SCHEMA(struct control_peer, "peer", peer_fields);

static const struct schema_field secret_fields[] = {
	FIELD_STR(struct control_secret, name, NAME_MAX_, REQ),
	FIELD_STR(struct control_secret, value, 65536, REQ),
	FIELD_END,
};
static const struct schema secret_schema = SCHEMA(struct control_secret, "secret", secret_fields);

static const struct schema_field rank_fields[] = {
	FIELD_STR(struct control_rank, host, CONTROL_HOST_MAX, REQ),
	FIELD_INT(struct control_rank, port, 1, 65535, REQ),
	FIELD_END,
};
static const struct schema rank_schema = SCHEMA(struct control_rank, "rank", rank_fields);

static const struct schema_field start_fields[] = {
	FIELD_STR(struct control_start, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_start, epoch, 0, COUNT_MAX, REQ),
	FIELD_STR(struct control_start, user, NAME_MAX_, REQ),
	FIELD_JSON(struct control_start, spec, REQ),
	FIELD_STRLIST(struct control_start, slots, NAME_MAX_, CONTROL_SLOTS_MAX),
	FIELD_STR(struct control_start, key, CONTROL_DIGEST_HEX, REQ),
	FIELD_STR(struct control_start, image, CONTROL_DIGEST_HEX),
	FIELD_U64(struct control_start, image_epoch, 0, COUNT_MAX),
	FIELD_U64(struct control_start, image_seq, 0, COUNT_MAX),
	FIELD_LIST(struct control_start, holders, &peer_schema, CONTROL_PEERS_MAX),
	FIELD_U64(struct control_start, lease_ms, 0, MS_MAX, REQ),
	FIELD_U64(struct control_start, restart_count, 0, COUNT_MAX),
	FIELD_U64(struct control_start, reclaim_count, 0, COUNT_MAX),
	FIELD_U64(struct control_start, time_used_ms, 0, MS_MAX),
	FIELD_U64(struct control_start, interval_ms, 0, MS_MAX),
	FIELD_BOOL(struct control_start, inputs),
	FIELD_LIST(struct control_start, secrets, &secret_schema, 256),
	FIELD_STR(struct control_start, why, CONTROL_TEXT_MAX),
	FIELD_STR(struct control_start, gang, NAME_MAX_),
	FIELD_U64(struct control_start, rank, 0, CONTROL_RANKS_MAX - 1),
	FIELD_U64(struct control_start, ranks, 0, CONTROL_RANKS_MAX),
	FIELD_STR(struct control_start, gang_key, CONTROL_KEY_HEX),
	FIELD_LIST(struct control_start, gang_ranks, &rank_schema, CONTROL_RANKS_MAX),
	FIELD_END,
};
static const struct schema start_schema = SCHEMA(struct control_start, "start", start_fields);

static const struct schema_field stop_fields[] = {
	FIELD_STR(struct control_stop, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_stop, epoch, 0, COUNT_MAX, REQ),
	FIELD_ENUM(struct control_stop, end, control_end_names),
	FIELD_STR(struct control_stop, reason, CONTROL_TEXT_MAX),
	FIELD_END,
};
static const struct schema stop_schema = SCHEMA(struct control_stop, "stop", stop_fields);

static const struct schema_field move_fields[] = {
	FIELD_STR(struct control_move, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_move, epoch, 0, COUNT_MAX, REQ),
	FIELD_ENUM(struct control_move, use, control_move_use_names, REQ),
	FIELD_STR(struct control_move, notice_id, NAME_MAX_),
	FIELD_STR(struct control_move, image, CONTROL_DIGEST_HEX),
	FIELD_OBJECT(struct control_move, to, &peer_schema),
	FIELD_U64(struct control_move, floor_bps, 0, RATE_MAX),
	FIELD_BOOL(struct control_move, hold_only),
	FIELD_STR(struct control_move, reason, CONTROL_TEXT_MAX),
	FIELD_END,
};
static const struct schema move_schema = SCHEMA(struct control_move, "move", move_fields);

static const struct schema_field standby_fields[] = {
	FIELD_STR(struct control_standby, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_standby, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_standby, remaining_ms, 0, MS_MAX),
	FIELD_LIST(struct control_standby, peers, &peer_schema, CONTROL_PEERS_MAX),
	FIELD_END,
};
static const struct schema standby_schema = SCHEMA(struct control_standby, "standby", standby_fields);

static const struct schema_field durable_fields[] = {
	FIELD_STR(struct control_durable, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_durable, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_durable, seq, 0, COUNT_MAX),
	FIELD_STR(struct control_durable, image, CONTROL_DIGEST_HEX, REQ),
	FIELD_STR(struct control_durable, holder, NAME_MAX_),
	FIELD_END,
};
static const struct schema durable_schema = SCHEMA(struct control_durable, "durable", durable_fields);

static const struct schema_field rate_fields[] = {
	FIELD_STR(struct control_rate, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_rate, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_rate, floor_bps, 0, RATE_MAX, REQ),
	FIELD_END,
};
static const struct schema rate_schema = SCHEMA(struct control_rate, "rate", rate_fields);

static const struct schema_field rates_fields[] = {
	FIELD_U64(struct control_rates, floor_cap_bps, 0, RATE_MAX),
	FIELD_BOOL(struct control_rates, stop_all),
	FIELD_BOOL(struct control_rates, blackout),
	FIELD_LIST(struct control_rates, rates, &rate_schema, CONTROL_JOBS_MAX),
	FIELD_END,
};
static const struct schema rates_schema = SCHEMA(struct control_rates, "rates", rates_fields);

static const struct schema_field interval_fields[] = {
	FIELD_STR(struct control_interval, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_interval, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_interval, interval_ms, 0, MS_MAX),
	FIELD_U64(struct control_interval, next_ms, 0, MS_MAX),
	FIELD_END,
};
static const struct schema interval_schema = SCHEMA(struct control_interval, "interval", interval_fields);

static const struct schema_field notice_fields[] = {
	FIELD_STR(struct control_notice, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_notice, epoch, 0, COUNT_MAX, REQ),
	FIELD_STR(struct control_notice, notice_id, NAME_MAX_),
	FIELD_STR(struct control_notice, reason, CONTROL_TEXT_MAX),
	FIELD_U64(struct control_notice, remaining_ms, 0, MS_MAX),
	FIELD_U64(struct control_notice, window_ms, 0, MS_MAX),
	FIELD_BOOL(struct control_notice, cancelled),
	FIELD_END,
};
static const struct schema notice_schema = SCHEMA(struct control_notice, "notice", notice_fields);

static const struct schema_field keep_fields[] = {
	FIELD_STR(struct control_keep, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_keep, epoch, 0, COUNT_MAX, REQ),
	FIELD_STRLIST(struct control_keep, images, NAME_MAX_, 16),
	FIELD_BOOL(struct control_keep, forget),
	FIELD_END,
};
static const struct schema keep_schema = SCHEMA(struct control_keep, "keep", keep_fields);

static const struct schema_field output_ack_fields[] = {
	FIELD_STR(struct control_output_ack, job, NAME_MAX_, REQ),
	FIELD_U64(struct control_output_ack, epoch, 0, COUNT_MAX, REQ),
	FIELD_U64(struct control_output_ack, offset, 0, COUNT_MAX, REQ),
	FIELD_END,
};
static const struct schema output_ack_schema = SCHEMA(struct control_output_ack, "output_ack", output_ack_fields);

static const struct schema_field refused_fields[] = {
	FIELD_STR(struct control_refused, reason, CONTROL_TEXT_MAX),
	FIELD_END,
};
static const struct schema refused_schema = SCHEMA(struct control_refused, "refused", refused_fields);

static const struct schema *const schemas[CONTROL_TYPE_COUNT] = {
	[CONTROL_HELLO] = &hello_schema,
	[CONTROL_STATUS] = &status_schema,
	[CONTROL_OWNER] = &owner_schema,
	[CONTROL_JOB] = &job_schema,
	[CONTROL_SAVED] = &saved_schema,
	[CONTROL_RECEIVED] = &received_schema,
	[CONTROL_TRANSFER] = &transfer_schema,
	[CONTROL_OUTPUT] = &output_schema,
	[CONTROL_WELCOME] = &welcome_schema,
	[CONTROL_LEASE] = &lease_schema,
	[CONTROL_START] = &start_schema,
	[CONTROL_STOP] = &stop_schema,
	[CONTROL_MOVE] = &move_schema,
	[CONTROL_STANDBY] = &standby_schema,
	[CONTROL_DURABLE] = &durable_schema,
	[CONTROL_RATES] = &rates_schema,
	[CONTROL_INTERVAL] = &interval_schema,
	[CONTROL_NOTICE] = &notice_schema,
	[CONTROL_KEEP] = &keep_schema,
	[CONTROL_OUTPUT_ACK] = &output_ack_schema,
	[CONTROL_REFUSED] = &refused_schema,
};

const struct schema *control_schema(enum control_type type)
{
	return type > CONTROL_NONE && type < CONTROL_TYPE_COUNT ? schemas[type] : NULL;
}

/* All members of the union start where the union starts. */
static void *body_of(struct control_message *m)
{
	return &m->hello;
}

static enum control_type type_find(const char *name)
{
	for (int i = 1; name && i < CONTROL_TYPE_COUNT; i++)
		if (strcmp(control_type_names[i], name) == 0)
			return (enum control_type)i;
	return CONTROL_NONE;
}

int control_decode(json_t *in, struct control_message *ret, struct diag *diag)
{
	memset(ret, 0, sizeof(*ret));
	json_t *version = json_object_get(in, "v");
	if (!json_is_integer(version) || json_integer_value(version) != CONTROL_VERSION)
		return diag_set(diag, -EPROTO, "v", "this side speaks version %d", CONTROL_VERSION);
	const char *name = json_string_value(json_object_get(in, "type"));
	enum control_type type = type_find(name);
	if (type == CONTROL_NONE)
		return diag_set(diag, -EPROTO, "type", "'%.40s' is no message of version %d",
				name ? name : "", CONTROL_VERSION);
	int r = schema_decode(schemas[type], in, SCHEMA_OPEN, NULL, body_of(ret), diag);
	if (r < 0) {
		diag_prefix(diag, control_type_names[type]);
		return r;
	}
	ret->type = type;
	return 0;
}

json_t *control_encode(const struct control_message *m)
{
	CHECK(control_schema(m->type));
	CLEANUP_JSON json_t *out = schema_encode(schemas[m->type], &m->hello);
	if (!out || json_object_set_new(out, "v", json_integer(CONTROL_VERSION)) < 0 ||
	    json_object_set_new(out, "type", json_string(control_type_names[m->type])) < 0)
		return NULL;
	return TAKE(out);
}

void control_done(struct control_message *m)
{
	if (control_schema(m->type))
		schema_done(schemas[m->type], body_of(m));
	m->type = CONTROL_NONE;
}
