/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/owner.h"

#include "wire/control.h"

#define MS_MAX (400.0 * 86400e3)
#define TEXT_MAX CONTROL_TEXT_MAX

const char *const owner_command_names[] = { "status", "lend",   "back",   "cancel",
					    "pause",  "resume", "reload", "trigger", NULL };
const char *const owner_trigger_names[] = { "login",    "keyboard", "gpu", "cpu",
					    "shutdown", "suspend",  "lid", "stays", NULL };

static const struct schema_field request_fields[] = {
	FIELD_INT(struct owner_request, v, OWNER_VERSION, OWNER_VERSION, .flags = FIELD_REQUIRED),
	FIELD_ENUM(struct owner_request, cmd, owner_command_names, .flags = FIELD_REQUIRED),
	FIELD_BOOL(struct owner_request, now),
	FIELD_BOOL(struct owner_request, window_given),
	FIELD_U64(struct owner_request, window_ms, 0, 86400e3),
	FIELD_BOOL(struct owner_request, watch),
	FIELD_STR(struct owner_request, reason, TEXT_MAX),
	FIELD_ENUM(struct owner_request, trigger, owner_trigger_names),
	FIELD_U64(struct owner_request, history, 0, OWNER_HISTORY_MAX),
	FIELD_END,
};
const struct schema owner_request_schema =
	SCHEMA(struct owner_request, "owner request", request_fields);

static const struct schema_field guest_fields[] = {
	FIELD_STR(struct owner_guest, job, CONTROL_NAME_MAX),
	FIELD_STR(struct owner_guest, name, 128),
	FIELD_STR(struct owner_guest, user, CONTROL_NAME_MAX),
	FIELD_U64(struct owner_guest, epoch, 0, 9e15),
	FIELD_STR(struct owner_guest, state, CONTROL_NAME_MAX),
	FIELD_STR(struct owner_guest, slot, CONTROL_NAME_MAX),
	FIELD_U64(struct owner_guest, ran_ms, 0, MS_MAX),
	FIELD_BOOL(struct owner_guest, saved),
	FIELD_BOOL(struct owner_guest, moved),
	FIELD_STR(struct owner_guest, to, CONTROL_NAME_MAX),
	FIELD_STR(struct owner_guest, rung, CONTROL_NAME_MAX),
	FIELD_END,
};
static const struct schema guest_schema = SCHEMA(struct owner_guest, "guest", guest_fields);

static const struct schema_field use_fields[] = {
	FIELD_STR(struct owner_use, user, CONTROL_NAME_MAX),
	FIELD_STR(struct owner_use, job, CONTROL_NAME_MAX),
	FIELD_STR(struct owner_use, from, 40),
	FIELD_U64(struct owner_use, ran_ms, 0, MS_MAX),
	FIELD_STR(struct owner_use, end, CONTROL_NAME_MAX),
	FIELD_END,
};
static const struct schema use_schema = SCHEMA(struct owner_use, "use", use_fields);

static const struct schema_field status_fields[] = {
	FIELD_INT(struct owner_status, v, OWNER_VERSION, OWNER_VERSION, .flags = FIELD_REQUIRED),
	FIELD_STR(struct owner_status, error, TEXT_MAX),
	FIELD_STR(struct owner_status, node, CONTROL_NAME_MAX),
	FIELD_ENUM(struct owner_status, state, control_owner_state_names),
	FIELD_BOOL(struct owner_status, paused),
	FIELD_BOOL(struct owner_status, coordinator_up),
	FIELD_ENUM(struct owner_status, mode, control_reclaim_mode_names),
	FIELD_STR(struct owner_status, notice_id, CONTROL_NAME_MAX),
	FIELD_STR(struct owner_status, reason, TEXT_MAX),
	FIELD_U64(struct owner_status, remaining_ms, 0, MS_MAX),
	FIELD_U64(struct owner_status, window_ms, 0, MS_MAX),
	FIELD_U64(struct owner_status, waited_ms, 0, MS_MAX),
	FIELD_BOOL(struct owner_status, proven_free),
	FIELD_U64(struct owner_status, pids_left, 0, 1e9),
	FIELD_U64(struct owner_status, decided_boot_ns, 0, 9e18),
	FIELD_U64(struct owner_status, last_guest_packet_us, 0, 9e15),
	FIELD_BOOL(struct owner_status, packet_cut),
	FIELD_STR(struct owner_status, alarm, TEXT_MAX),
	FIELD_STR(struct owner_status, schedule, TEXT_MAX),
	FIELD_STR(struct owner_status, lends, TEXT_MAX),
	FIELD_U64(struct owner_status, idle_ms, 0, MS_MAX),
	FIELD_U64(struct owner_status, slots, 0, 1e6),
	FIELD_U64(struct owner_status, slots_used, 0, 1e6),
	FIELD_LIST(struct owner_status, guests, &guest_schema, OWNER_GUESTS_MAX),
	FIELD_LIST(struct owner_status, history, &use_schema, OWNER_HISTORY_MAX),
	FIELD_STRLIST(struct owner_status, lacks, 256, 64),
	FIELD_END,
};
const struct schema owner_status_schema =
	SCHEMA(struct owner_status, "owner status", status_fields);
