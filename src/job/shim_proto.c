/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and codec of the shim's messages. Pure apart from shim_record_load(). */
#include "job/shim_proto.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"

#define U64_TOP 18446744073709549568.0 /* the largest double below 2^64 */
#define PATH_TOP 4096
#define TEXT_TOP 4096
#define STATE_FILE_MAX (1u << 20)

#define U64(t, m, ...) FIELD_U64(t, m, 0, U64_TOP, ##__VA_ARGS__)
#define PATH(t, m, ...) FIELD_STR(t, m, PATH_TOP, ##__VA_ARGS__)
#define TEXT(t, m, ...) FIELD_STR(t, m, TEXT_TOP, ##__VA_ARGS__)

const char *const shim_state_names[] = { "waiting", "preparing", "ready", "running", "noticed",
					 "stopping", "ended", NULL };
const char *const shim_end_names[] = { "none", "done", "failed", "restart", "reclaimed", "lease",
				       "time_limit", "killed", "not_started", "shim_lost", NULL };
const char *const shim_lease_action_names[] = { "freeze", "kill", NULL };
const char *const shim_command_names[] = { "none", "start", "go", "lease", "notice", "cancel", "freeze",
					   "thaw", "saved", "kill", "signal", "dump", "status", "close",
					   NULL };
const char *const shim_event_names[] = { "none", "hello", "reply", "ready", "state", "told", "commit",
					 "acked", "dumped", "alarm", "exited", NULL };

/* ---- start ---- */

static const struct schema_field bind_fields[] = {
	PATH(struct shim_bind, path, .flags = FIELD_REQUIRED, .help = "on the host"),
	PATH(struct shim_bind, to, .help = "inside; the same path if absent"),
	FIELD_BOOL(struct shim_bind, writable),
	FIELD_END,
};
static const struct schema bind_schema = SCHEMA(struct shim_bind, "bind", bind_fields);

static const struct schema_field secret_fields[] = {
	FIELD_STR(struct shim_secret, name, JOB_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_STR(struct shim_secret, value, JOB_TEXT_MAX, .flags = FIELD_REQUIRED,
		  .help = "kept in memory only"),
	FIELD_END,
};
static const struct schema secret_schema = SCHEMA(struct shim_secret, "secret", secret_fields);

static int start_check(const void *obj, struct diag *diag)
{
	const struct shim_start *s = obj;

	if (!name_is_plain(s->job))
		return diag_set(diag, -EINVAL, "job", "\"%.64s\" is not a plain name", s->job);
	for (const char *const *p = (const char *const[]){ s->dir, s->log, s->state_file, s->run_dir, NULL }; *p;
	     p++)
		if ((*p)[0] != '/')
			return diag_set(diag, -EINVAL, "start", "\"%.200s\" is not an absolute path", *p);
	for (size_t i = 0; i < s->binds_count; i++)
		if (s->binds[i].path[0] != '/' || (s->binds[i].to && s->binds[i].to[0] != '/'))
			return diag_set(diag, -EINVAL, "binds", "\"%.200s\" is not an absolute path",
					s->binds[i].path);
	for (size_t i = 0; i < s->devices_count; i++)
		if (strncmp(s->devices[i], "/dev/", 5) || strstr(s->devices[i], "/../"))
			return diag_set(diag, -EINVAL, "devices", "\"%.200s\" is not below /dev", s->devices[i]);
	for (size_t i = 0; i < s->secrets_count; i++)
		if (!name_is_plain(s->secrets[i].name))
			return diag_set(diag, -EINVAL, "secrets", "\"%.64s\" is not a plain name",
					s->secrets[i].name);
	if (s->cgroup_parent && (s->cgroup_parent[0] == '/' || strstr(s->cgroup_parent, "..")))
		return diag_set(diag, -EINVAL, "cgroup_parent", "\"%.200s\" is not below the mount",
				s->cgroup_parent);
	return 0;
}

static const struct schema_field start_fields[] = {
	FIELD_STR(struct shim_start, job, JOB_NAME_MAX, .flags = FIELD_REQUIRED),
	U64(struct shim_start, epoch),
	FIELD_OBJECT(struct shim_start, spec, &job_spec_schema, .flags = FIELD_REQUIRED),
	U64(struct shim_start, restart_count),
	U64(struct shim_start, reclaim_count),
	PATH(struct shim_start, dir, .flags = FIELD_REQUIRED),
	PATH(struct shim_start, log, .flags = FIELD_REQUIRED),
	U64(struct shim_start, log_max),
	PATH(struct shim_start, state_file, .flags = FIELD_REQUIRED),
	PATH(struct shim_start, run_dir, .flags = FIELD_REQUIRED),
	FIELD_STR(struct shim_start, user, JOB_NAME_MAX),
	U64(struct shim_start, lease_deadline_ns),
	U64(struct shim_start, lease_margin_ns),
	FIELD_ENUM(struct shim_start, lease_action, shim_lease_action_names, .fallback = "freeze"),
	U64(struct shim_start, window_ns),
	U64(struct shim_start, time_used_ns),
	U64(struct shim_start, memory_max),
	U64(struct shim_start, cores_milli),
	U64(struct shim_start, pids_max),
	U64(struct shim_start, disk_max),
	U64(struct shim_start, files_max),
	FIELD_INT(struct shim_start, nice, -20, 19),
	PATH(struct shim_start, cgroup_parent),
	FIELD_STR(struct shim_start, rung_min, 32),
	FIELD_STR(struct shim_start, rung, 32),
	U64(struct shim_start, uid_base),
	PATH(struct shim_start, image),
	FIELD_LIST(struct shim_start, binds, &bind_schema, JOB_LIST_MAX),
	FIELD_STRLIST(struct shim_start, devices, PATH_TOP, JOB_LIST_MAX),
	FIELD_STRLIST(struct shim_start, gpu_uuids, JOB_NAME_MAX, SHIM_GPUS_MAX),
	FIELD_BOOL(struct shim_start, own_network),
	FIELD_BOOL(struct shim_start, wait_go),
	FIELD_STR(struct shim_start, hostname, 64),
	FIELD_STRLIST(struct shim_start, env, JOB_TEXT_MAX, JOB_ARGS_MAX),
	FIELD_LIST(struct shim_start, secrets, &secret_schema, JOB_LIST_MAX),
	U64(struct shim_start, rank),
	FIELD_STRLIST(struct shim_start, rank_hosts, 256, SHIM_RANKS_MAX),
	PATH(struct shim_start, restore_dir),
	PATH(struct shim_start, criu),
	FIELD_BOOL(struct shim_start, auto_criu),
	FIELD_END,
};
const struct schema shim_start_schema =
	SCHEMA(struct shim_start, "start", start_fields, .check = start_check);

/* ---- the other commands ---- */

static const struct schema_field lease_fields[] = {
	U64(struct shim_lease, lease_deadline_ns, .flags = FIELD_REQUIRED),
	FIELD_END,
};
static const struct schema lease_schema = SCHEMA(struct shim_lease, "lease", lease_fields);

static const struct schema_field notice_fields[] = {
	FIELD_STR(struct shim_notice, notice_id, JOB_NAME_MAX),
	FIELD_STR(struct shim_notice, reason, 256),
	U64(struct shim_notice, deadline_ns, .flags = FIELD_REQUIRED),
	U64(struct shim_notice, window_ns),
	FIELD_END,
};
static const struct schema notice_schema = SCHEMA(struct shim_notice, "notice", notice_fields);

static const struct schema_field dump_fields[] = {
	PATH(struct shim_dump, dir, .flags = FIELD_REQUIRED),
	FIELD_BOOL(struct shim_dump, leave_frozen),
	FIELD_END,
};
static const struct schema dump_schema = SCHEMA(struct shim_dump, "dump", dump_fields);

static const struct schema_field kill_fields[] = {
	FIELD_STR(struct shim_kill, reason, 256),
	FIELD_ENUM(struct shim_kill, end, shim_end_names),
	FIELD_END,
};
static const struct schema kill_schema = SCHEMA(struct shim_kill, "kill", kill_fields);

/* ---- events ---- */

static const struct schema_field exited_fields[] = {
	FIELD_ENUM(struct shim_exited, end, shim_end_names),
	FIELD_INT(struct shim_exited, status, 0, 255),
	FIELD_INT(struct shim_exited, signal, 0, 64),
	TEXT(struct shim_exited, reason),
	U64(struct shim_exited, ended_ns),
	U64(struct shim_exited, ran_ns),
	U64(struct shim_exited, cpu_ns),
	U64(struct shim_exited, memory_peak),
	U64(struct shim_exited, log_dropped),
	U64(struct shim_exited, pids_left),
	FIELD_BOOL(struct shim_exited, oom),
	FIELD_BOOL(struct shim_exited, acked),
	FIELD_END,
};
static const struct schema exited_schema = SCHEMA(struct shim_exited, "exited", exited_fields);

static const struct schema_field hello_fields[] = {
	U64(struct shim_hello, pid),
	FIELD_STR(struct shim_hello, job, JOB_NAME_MAX),
	U64(struct shim_hello, epoch),
	FIELD_ENUM(struct shim_hello, state, shim_state_names),
	FIELD_BOOL(struct shim_hello, frozen),
	FIELD_BOOL(struct shim_hello, lease_frozen),
	FIELD_ENUM(struct shim_hello, driver, job_driver_names),
	TEXT(struct shim_hello, driver_why),
	U64(struct shim_hello, guest_pid),
	PATH(struct shim_hello, netns),
	FIELD_STR(struct shim_hello, rung, 32),
	FIELD_STRLIST(struct shim_hello, lacks, 256, 64),
	PATH(struct shim_hello, cgroup),
	U64(struct shim_hello, lease_deadline_ns),
	FIELD_STR(struct shim_hello, notice_id, JOB_NAME_MAX),
	U64(struct shim_hello, deadline_ns),
	FIELD_BOOL(struct shim_hello, acked),
	FIELD_BOOL(struct shim_hello, saved),
	U64(struct shim_hello, started_ns),
	U64(struct shim_hello, ran_ns),
	U64(struct shim_hello, log_bytes),
	FIELD_OBJECT(struct shim_hello, exited, &exited_schema),
	FIELD_END,
};
static const struct schema hello_schema = SCHEMA(struct shim_hello, "hello", hello_fields);

static const struct schema_field reply_fields[] = {
	TEXT(struct shim_reply, error),
	FIELD_END,
};
static const struct schema reply_schema = SCHEMA(struct shim_reply, "reply", reply_fields);

static const struct schema_field ready_fields[] = {
	U64(struct shim_ready, guest_pid),
	PATH(struct shim_ready, netns),
	FIELD_STR(struct shim_ready, rung, 32),
	FIELD_STRLIST(struct shim_ready, lacks, 256, 64),
	FIELD_ENUM(struct shim_ready, driver, job_driver_names),
	TEXT(struct shim_ready, driver_why),
	U64(struct shim_ready, metadata_port),
	FIELD_END,
};
static const struct schema ready_schema = SCHEMA(struct shim_ready, "ready", ready_fields);

static const struct schema_field state_fields[] = {
	FIELD_ENUM(struct shim_state_change, state, shim_state_names),
	FIELD_BOOL(struct shim_state_change, frozen),
	FIELD_BOOL(struct shim_state_change, lease_frozen),
	TEXT(struct shim_state_change, why),
	FIELD_END,
};
static const struct schema state_schema = SCHEMA(struct shim_state_change, "state", state_fields);

static const struct schema_field told_fields[] = {
	FIELD_STR(struct shim_told, notice_id, JOB_NAME_MAX),
	FIELD_STRLIST(struct shim_told, channels, 128, 32),
	FIELD_END,
};
static const struct schema told_schema = SCHEMA(struct shim_told, "told", told_fields);

static const struct schema_field commit_fields[] = {
	FIELD_STR(struct shim_commit, name, 256),
	U64(struct shim_commit, step),
	FIELD_END,
};
static const struct schema commit_schema = SCHEMA(struct shim_commit, "commit", commit_fields);

static const struct schema_field dumped_fields[] = {
	TEXT(struct shim_dumped, error),
	PATH(struct shim_dumped, dir),
	U64(struct shim_dumped, bytes),
	U64(struct shim_dumped, took_ns),
	U64(struct shim_dumped, frozen_ns),
	FIELD_END,
};
static const struct schema dumped_schema = SCHEMA(struct shim_dumped, "dumped", dumped_fields);

static const struct schema_field left_fields[] = {
	U64(struct shim_left, pid),
	FIELD_STR(struct shim_left, name, 64),
	FIELD_END,
};
static const struct schema left_schema = SCHEMA(struct shim_left, "left", left_fields);

static const struct schema_field alarm_fields[] = {
	TEXT(struct shim_alarm, what),
	FIELD_LIST(struct shim_alarm, left, &left_schema, SHIM_LEFT_MAX),
	FIELD_END,
};
static const struct schema alarm_schema = SCHEMA(struct shim_alarm, "alarm", alarm_fields);

/* ---- codec ---- */

static const struct schema *const command_schemas[SHIM_CMD_COUNT] = {
	[SHIM_CMD_START] = &shim_start_schema, [SHIM_CMD_LEASE] = &lease_schema,
	[SHIM_CMD_NOTICE] = &notice_schema,    [SHIM_CMD_KILL] = &kill_schema,
	[SHIM_CMD_DUMP] = &dump_schema,
};
static const struct schema *const event_schemas[SHIM_EVENT_COUNT] = {
	[SHIM_EVENT_HELLO] = &hello_schema,   [SHIM_EVENT_REPLY] = &reply_schema,
	[SHIM_EVENT_READY] = &ready_schema,   [SHIM_EVENT_STATE] = &state_schema,
	[SHIM_EVENT_TOLD] = &told_schema,     [SHIM_EVENT_COMMIT] = &commit_schema,
	[SHIM_EVENT_DUMPED] = &dumped_schema, [SHIM_EVENT_ALARM] = &alarm_schema,
	[SHIM_EVENT_EXITED] = &exited_schema,
};

struct envelope {
	uint64_t v;
	uint64_t id;
	char *type;
};
static const struct schema_field envelope_fields[] = {
	U64(struct envelope, v, .flags = FIELD_REQUIRED),
	U64(struct envelope, id),
	FIELD_STR(struct envelope, type, 32, .flags = FIELD_REQUIRED),
	FIELD_END,
};
static const struct schema envelope_schema = SCHEMA(struct envelope, "message", envelope_fields);

/* The JSON object, the type's index and the id; -EPROTO for what we do not speak. */
static int line_decode(const char *line, size_t len, const char *const *names, json_t **ret_obj,
		       int *ret_type, uint64_t *ret_id, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = NULL;
	struct envelope env;
	json_error_t err;
	int r, type = 0;

	if (len > SHIM_LINE_MAX)
		return diag_set(diag, -EPROTO, "message", "longer than %u bytes", SHIM_LINE_MAX);
	obj = json_loadb(line, len, JSON_REJECT_DUPLICATES, &err);
	if (!obj)
		return diag_set(diag, -EINVAL, "message", "not JSON at byte %d: %s", err.position, err.text);
	r = schema_decode(&envelope_schema, obj, SCHEMA_OPEN, NULL, &env, diag);
	if (r < 0)
		return r;
	for (int i = 1; names[i]; i++)
		if (!strcmp(names[i], env.type))
			type = i;
	*ret_id = env.id;
	if (env.v != SHIM_PROTO_VERSION)
		r = diag_set(diag, -EPROTO, "message", "version %llu; we speak %d", (unsigned long long)env.v,
			     SHIM_PROTO_VERSION);
	else if (!type)
		r = diag_set(diag, -EPROTO, "message", "type \"%.32s\" is not known", env.type);
	schema_done(&envelope_schema, &env);
	if (r < 0)
		return r;
	*ret_obj = TAKE(obj);
	*ret_type = type;
	return 0;
}

static int line_encode(const char *type, uint64_t id, const struct schema *schema, const void *body,
		       struct strbuf *out)
{
	CLEANUP_JSON json_t *obj = schema ? schema_encode(schema, body) : json_object();
	CLEANUP_FREE char *text = NULL;
	struct envelope env = { .v = SHIM_PROTO_VERSION, .id = id, .type = (char *)type };
	CLEANUP_JSON json_t *head = schema_encode(&envelope_schema, &env);

	if (!obj || !head || json_object_update_missing(obj, head) < 0)
		return -ENOMEM;
	text = json_dumps(obj, JSON_COMPACT);
	if (!text || strbuf_add(out, text) < 0 || strbuf_add(out, "\n") < 0)
		return -ENOMEM;
	return 0;
}

int shim_command_decode(const char *line, size_t len, struct shim_command *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = NULL;
	struct shim_command cmd = { 0 };
	int type, r;

	r = line_decode(line, len, shim_command_names, &obj, &type, &cmd.id, diag);
	if (r < 0)
		return r;
	cmd.type = (enum shim_command_type)type;
	if (command_schemas[type]) {
		r = schema_decode(command_schemas[type], obj, SCHEMA_OPEN, NULL, &cmd.start, diag);
		if (r < 0)
			return r;
	}
	*ret = cmd;
	return 0;
}

int shim_command_encode(const struct shim_command *cmd, struct strbuf *out)
{
	CHECK(cmd->type > SHIM_CMD_NONE && cmd->type < SHIM_CMD_COUNT);
	return line_encode(shim_command_names[cmd->type], cmd->id, command_schemas[cmd->type], &cmd->start,
			   out);
}

void shim_command_done(struct shim_command *cmd)
{
	if (cmd->type < SHIM_CMD_COUNT && command_schemas[cmd->type])
		schema_done(command_schemas[cmd->type], &cmd->start);
	*cmd = (struct shim_command){ 0 };
}

int shim_event_decode(const char *line, size_t len, struct shim_event *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = NULL;
	struct shim_event event = { 0 };
	int type, r;

	r = line_decode(line, len, shim_event_names, &obj, &type, &event.id, diag);
	if (r < 0)
		return r;
	event.type = (enum shim_event_type)type;
	if (event_schemas[type]) {
		r = schema_decode(event_schemas[type], obj, SCHEMA_OPEN, NULL, &event.hello, diag);
		if (r < 0)
			return r;
	}
	*ret = event;
	return 0;
}

int shim_event_encode(const struct shim_event *event, struct strbuf *out)
{
	CHECK(event->type > SHIM_EVENT_NONE && event->type < SHIM_EVENT_COUNT);
	return line_encode(shim_event_names[event->type], event->id, event_schemas[event->type],
			   &event->hello, out);
}

void shim_event_done(struct shim_event *event)
{
	if (event->type < SHIM_EVENT_COUNT && event_schemas[event->type])
		schema_done(event_schemas[event->type], &event->hello);
	*event = (struct shim_event){ 0 };
}

/* ---- state file ---- */

static const struct schema_field record_fields[] = {
	FIELD_STR(struct shim_record, boot_id, 64, .flags = FIELD_REQUIRED),
	PATH(struct shim_record, socket, .flags = FIELD_REQUIRED),
	PATH(struct shim_record, dir, .flags = FIELD_REQUIRED),
	FIELD_OBJECT(struct shim_record, hello, &hello_schema),
	FIELD_END,
};
const struct schema shim_record_schema = SCHEMA(struct shim_record, "shim", record_fields);

int shim_record_load(const char *state_file, struct shim_record *ret, struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	CLEANUP_JSON json_t *obj = NULL;
	json_error_t err;
	size_t len;
	int r;

	r = file_read(state_file, STATE_FILE_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, state_file, "cannot be read: %s", strerror(-r));
	obj = json_loadb(text, len, JSON_REJECT_DUPLICATES, &err);
	if (!obj)
		return diag_set(diag, -EINVAL, state_file, "not JSON at byte %d: %s", err.position, err.text);
	r = schema_decode(&shim_record_schema, obj, SCHEMA_OPEN, NULL, ret, diag);
	if (r < 0)
		diag_prefix(diag, state_file);
	return r;
}

void shim_record_done(struct shim_record *r)
{
	schema_done(&shim_record_schema, r);
}
