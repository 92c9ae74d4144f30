/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job spec's table, its rules, and the ways into it: YAML, script, argv, JSON.
 * Everything ends in one schema_decode(), so that no way in can skip a rule.
 */
#include "job/spec.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "job/spec_internal.h"

#define CORES_MAX 4096
#define BYTES_MAX ((double)(UINT64_C(1) << 60))
#define TIME_MAX ((double)(UINT64_C(3660) * 24 * 3600) * 1e9 / 10)
#define ENV_MAX 1024

const char *const job_driver_names[] = { "auto", "signal", "poll", "criu", "cuda", NULL };
const char *const job_ckpt_format_names[] = { "auto", "manifest", "files", NULL };
const char *const job_network_mode_names[] = { "default", "none", "declared", NULL };

/* A row whose key is not the member's name. */
#define ROW(t, m, key, kind_, lo, hi, ...) \
	{ .name = (key), .kind = (kind_), .offset = offsetof(t, m), .min = (lo), .max = (hi), \
	  ##__VA_ARGS__ }

static const struct schema_field slots_fields[] = {
	FIELD_U64(struct job_slots, cores, 1, CORES_MAX, .fallback = "1",
		  .help = "CPU cores per rank"),
	FIELD_SIZE(struct job_slots, memory, 0, BYTES_MAX,
		   .help = "memory per rank; 0 = what the owner's terms give a slot"),
	FIELD_U64(struct job_slots, gpus, 0, 64, .help = "GPUs per rank"),
	FIELD_STR(struct job_slots, gpu_type, JOB_NAME_MAX, .help = "GPU model, or part of its name"),
	FIELD_SIZE(struct job_slots, gpu_memory, 0, BYTES_MAX, .help = "memory per GPU at least"),
	FIELD_SIZE(struct job_slots, disk, 0, BYTES_MAX,
		   .help = "room for the job's folders; 0 = the terms' limit"),
	FIELD_U64(struct job_slots, ranks, 1, 1024, .fallback = "1",
		  .help = "machines that start together"),
	FIELD_END,
};
static const struct schema slots_schema = SCHEMA(struct job_slots, "slots", slots_fields);

static const struct schema_field checkpoint_fields[] = {
	FIELD_STR(struct job_checkpoint, dir, JOB_PATH_MAX,
		  .help = "where the program keeps its checkpoints, below its working folder"),
	FIELD_ENUM(struct job_checkpoint, driver, job_driver_names, .fallback = "auto",
		   .help = "who saves: the program on a signal, on its own time, or CRIU"),
	FIELD_ENUM(struct job_checkpoint, format, job_ckpt_format_names, .fallback = "auto",
		   .help = "how a complete checkpoint is recognised"),
	ROW(struct job_checkpoint, interval_ns, "interval", FIELD_KIND_DURATION, 0, TIME_MAX,
	    .help = "time between checkpoints; 0 = planned from the machine's hazard"),
	ROW(struct job_checkpoint, save_estimate_ns, "save_estimate", FIELD_KIND_DURATION, 0, TIME_MAX,
	    .help = "how long a save takes; 0 = measured"),
	FIELD_END,
};
static const struct schema checkpoint_schema =
	SCHEMA(struct job_checkpoint, "checkpoint", checkpoint_fields);

static const struct schema_field input_fields[] = {
	FIELD_STR(struct job_input, path, JOB_PATH_MAX, .flags = FIELD_REQUIRED,
		  .help = "file or folder on the submitter's machine"),
	FIELD_STR(struct job_input, to, JOB_PATH_MAX, .help = "below the working folder"),
	FIELD_BOOL(struct job_input, executable, .help = "make it executable"),
	FIELD_END,
};
static const struct schema input_schema = SCHEMA(struct job_input, "input", input_fields);

static const struct schema_field secret_fields[] = {
	FIELD_STR(struct job_secret, name, JOB_NAME_MAX, .flags = FIELD_REQUIRED,
		  .help = "file name below $RECLAIM_SECRETS_DIR"),
	FIELD_STR(struct job_secret, from, JOB_PATH_MAX, .help = "file on the submitter's machine"),
	FIELD_END,
};
static const struct schema secret_schema = SCHEMA(struct job_secret, "secret", secret_fields);

static const struct schema_field network_fields[] = {
	FIELD_ENUM(struct job_network, mode, job_network_mode_names, .fallback = "default",
		   .help = "none, or the declared destinations"),
	FIELD_STRLIST(struct job_network, destinations, JOB_NAME_MAX * 2, JOB_LIST_MAX,
		      .help = "host or prefix, port, and /udp if not TCP: \"10.1.0.5:5432\""),
	FIELD_END,
};
static const struct schema network_schema = SCHEMA(struct job_network, "network", network_fields);

static int spec_check(const void *obj, struct diag *diag);

static const struct schema_field spec_fields[] = {
	FIELD_STR(struct job_spec, name, JOB_NAME_MAX, .help = "what people call the job"),
	FIELD_STRLIST(struct job_spec, command, JOB_TEXT_MAX, JOB_ARGS_MAX,
		      .help = "program and arguments; one string is run by /bin/sh -c"),
	FIELD_STR(struct job_spec, script, JOB_SCRIPT_MAX, .help = "text of a script, instead of command"),
	FIELD_STRLIST(struct job_spec, args, JOB_TEXT_MAX, JOB_ARGS_MAX, .help = "the script's arguments"),
	FIELD_OBJECT(struct job_spec, slots, &slots_schema, .help = "what each rank needs"),
	ROW(struct job_spec, time_limit_ns, "time_limit", FIELD_KIND_DURATION, 0, TIME_MAX,
	    .help = "running time over all incarnations; 0 = no limit"),
	FIELD_OBJECT(struct job_spec, checkpoint, &checkpoint_schema, .help = "how its state is saved"),
	FIELD_STR(struct job_spec, signal, 64, .help = "[B:]SIG[@SECONDS], as for sbatch --signal"),
	FIELD_BOOL(struct job_spec, requeue, .fallback = "true",
		   .help = "run again after a reclaim that left no checkpoint"),
	FIELD_BOOL(struct job_spec, done_on_notice_exit,
		   .help = "exit status 0 during a notice means finished"),
	FIELD_U64(struct job_spec, failure_limit, 1, 1000, .fallback = "1",
		  .help = "real failures until the job fails; reclaims never count"),
	FIELD_LIST(struct job_spec, inputs, &input_schema, JOB_LIST_MAX, .help = "brought in before the start"),
	FIELD_STRLIST(struct job_spec, results, JOB_PATH_MAX, JOB_LIST_MAX,
		      .help = "files brought back at the end, with * and ?"),
	FIELD_JSON(struct job_spec, env, .help = "environment: a mapping of names to values"),
	FIELD_LIST(struct job_spec, secrets, &secret_schema, JOB_LIST_MAX,
		   .help = "handed over in memory only"),
	FIELD_OBJECT(struct job_spec, network, &network_schema, .help = "what it may reach"),
	FIELD_STR(struct job_spec, image, JOB_PATH_MAX,
		  .help = "root folder or OCI image folder on the machine; the machine's own system if absent"),
	FIELD_BOOL(struct job_spec, deterministic,
		   .help = "output regenerated after a move is the same, byte for byte"),
	FIELD_STR(struct job_spec, work_dir, JOB_PATH_MAX, .help = "start below the working folder"),
	FIELD_END,
};

const struct schema job_spec_schema = SCHEMA(struct job_spec, "job", spec_fields, .check = spec_check);

/* ---- rules over several fields ---- */

/* A relative path that stays below where it starts. */
static bool path_stays_below(const char *path)
{
	if (!path[0] || path[0] == '/')
		return false;
	for (const char *p = path; *p;) {
		size_t n = strcspn(p, "/");

		if (n == 2 && p[0] == '.' && p[1] == '.')
			return false;
		p += n;
		p += *p == '/';
	}
	return true;
}

static bool env_name_ok(const char *name)
{
	if (!isalpha((unsigned char)name[0]) && name[0] != '_')
		return false;
	for (const char *p = name; *p; p++)
		if (!isalnum((unsigned char)*p) && *p != '_')
			return false;
	return true;
}

static int env_check(const json_t *env, struct diag *diag)
{
	const char *key;
	json_t *value;

	if (!env)
		return 0;
	if (!json_is_object(env))
		return diag_set(diag, -EINVAL, "env", "not a mapping of names to values");
	if (json_object_size(env) > ENV_MAX)
		return diag_set(diag, -ERANGE, "env", "%zu names are above the maximum, %d",
				json_object_size(env), ENV_MAX);
	json_object_foreach((json_t *)env, key, value) {
		if (!env_name_ok(key))
			return diag_set(diag, -EINVAL, "env", "\"%.64s\" is not a name for a variable", key);
		if (!json_is_string(value) && !json_is_number(value) && !json_is_boolean(value))
			return diag_set(diag, -EINVAL, "env", "the value of %.64s is not a text or number", key);
		if (json_is_string(value) && json_string_length(value) > JOB_TEXT_MAX)
			return diag_set(diag, -ERANGE, "env", "the value of %.64s is longer than %d bytes",
					key, JOB_TEXT_MAX);
		if (json_is_string(value) && strlen(json_string_value(value)) != json_string_length(value))
			return diag_set(diag, -EINVAL, "env", "the value of %.64s has a NUL byte", key);
	}
	return 0;
}

static int destination_check(const char *text, struct diag *diag)
{
	char copy[JOB_NAME_MAX * 2 + 1];
	uint64_t port;
	char *colon, *slash;

	(void)snprintf(copy, sizeof(copy), "%s", text);
	colon = strrchr(copy, ':');
	if (!colon || colon == copy)
		return diag_set(diag, -EINVAL, "network.destinations",
				"\"%.100s\" is not host:port or host:port/udp", text);
	*colon++ = '\0';
	slash = strchr(colon, '/');
	if (slash) {
		if (strcmp(slash, "/udp") && strcmp(slash, "/tcp"))
			return diag_set(diag, -EINVAL, "network.destinations",
					"\"%.100s\" ends in neither /tcp nor /udp", text);
		*slash = '\0';
	}
	if (!strcmp(colon, "*"))
		return 0;
	if (parse_u64(colon, &port) < 0 || port < 1 || port > 65535)
		return diag_set(diag, -ERANGE, "network.destinations",
				"\"%.100s\" has no port from 1 to 65535", text);
	return 0;
}

static int spec_check_lists(const struct job_spec *s, struct diag *diag)
{
	int r;

	for (size_t i = 0; i < s->inputs_count; i++)
		if (s->inputs[i].to && !path_stays_below(s->inputs[i].to))
			return diag_set(diag, -EINVAL, "inputs", "\"%.200s\" does not stay below the working folder",
					s->inputs[i].to);
	for (size_t i = 0; i < s->results_count; i++)
		if (!path_stays_below(s->results[i]))
			return diag_set(diag, -EINVAL, "results", "\"%.200s\" does not stay below the working folder",
					s->results[i]);
	for (size_t i = 0; i < s->secrets_count; i++)
		if (!name_is_plain(s->secrets[i].name))
			return diag_set(diag, -EINVAL, "secrets", "\"%.100s\" is not a plain file name",
					s->secrets[i].name);
	for (size_t i = 0; i < s->network.destinations_count; i++) {
		r = destination_check(s->network.destinations[i], diag);
		if (r < 0)
			return r;
	}
	return 0;
}

static int spec_check(const void *obj, struct diag *diag)
{
	const struct job_spec *s = obj;
	struct job_signal sig;
	int r;

	if (!s->command_count && !s->script)
		return diag_set(diag, -EINVAL, "command", "neither command nor script is given");
	if (s->command_count && s->script)
		return diag_set(diag, -EINVAL, "command", "both command and script are given");
	if (s->command_count && !s->command[0][0])
		return diag_set(diag, -EINVAL, "command", "the program's name is empty");
	if (s->script && !s->script[0])
		return diag_set(diag, -EINVAL, "script", "the script is empty");
	if (s->args_count && !s->script)
		return diag_set(diag, -EINVAL, "args", "args belong to a script; put them into command");
	if (s->name)
		for (const char *p = s->name; *p; p++)
			if (iscntrl((unsigned char)*p))
				return diag_set(diag, -EINVAL, "name", "has a control character");
	if (s->signal) {
		r = job_signal_parse(s->signal, &sig, diag);
		if (r < 0)
			return r;
	}
	if (s->checkpoint.dir && !path_stays_below(s->checkpoint.dir))
		return diag_set(diag, -EINVAL, "checkpoint.dir",
				"\"%.200s\" does not stay below the working folder", s->checkpoint.dir);
	if (s->work_dir && !path_stays_below(s->work_dir))
		return diag_set(diag, -EINVAL, "work_dir", "\"%.200s\" does not stay below the working folder",
				s->work_dir);
	if (s->slots.gpu_type && !s->slots.gpus)
		return diag_set(diag, -EINVAL, "slots.gpu_type", "a GPU type without gpus");
	if (s->checkpoint.driver == JOB_DRIVER_CUDA && !s->slots.gpus)
		return diag_set(diag, -EINVAL, "checkpoint.driver", "cuda needs slots.gpus");
	if (s->network.destinations_count && s->network.mode == JOB_NETWORK_NONE)
		return diag_set(diag, -EINVAL, "network", "destinations are given but mode is none");
	r = env_check(s->env, diag);
	if (r < 0)
		return r;
	return spec_check_lists(s, diag);
}

/* ---- what a parse adds ---- */

/* Numbers and truth values written in YAML become text, as a shell would have them. */
static int env_normalise(json_t *env)
{
	const char *key;
	json_t *value;
	void *tmp;

	if (!env)
		return 0;
	json_object_foreach_safe(env, tmp, key, value) {
		CLEANUP_FREE char *text = NULL;

		if (json_is_string(value))
			continue;
		text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
		if (!text || json_object_set_new(env, key, json_string(text)) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int name_fall_back(struct job_spec *s, const char *file_name)
{
	const char *from = s->script ? file_name : s->command[0], *slash;

	if (s->name)
		return 0;
	/* "sh -c 'python3 train.py'": the shell is not what people would call it. */
	if (!s->script && s->command_count >= 3 && !strcmp(s->command[1], "-c"))
		from = s->command[2];
	s->name = strndup(from, strcspn(from, " \t\r\n;|&"));
	if (!s->name)
		return -ENOMEM;
	slash = strrchr(s->name, '/');
	if (slash && slash[1])
		memmove(s->name, slash + 1, strlen(slash + 1) + 1);
	if (strlen(s->name) > 64)
		s->name[64] = '\0';
	for (char *p = s->name; *p; p++)
		if (iscntrl((unsigned char)*p))
			*p = '_';
	if (!s->name[0]) {
		free(s->name);
		s->name = strdup("job");
	}
	return s->name ? 0 : -ENOMEM;
}

/* `command: ./train --steps 10`: one string is a shell's. */
static int command_from_text(json_t *obj)
{
	json_t *command = json_object_get(obj, "command"), *list;

	if (!json_is_string(command))
		return 0;
	list = json_pack("[s,s,O]", "/bin/sh", "-c", command);
	if (!list || json_object_set_new(obj, "command", list) < 0)
		return -ENOMEM;
	return 0;
}

static int spec_finish(json_t *obj, enum schema_mode mode, const struct yaml_lines *lines,
		       const char *file_name, struct job_spec *ret, struct diag *diag)
{
	struct job_spec spec = { 0 };
	int r;

	if (json_is_object(obj)) {
		r = command_from_text(obj);
		if (r < 0)
			return diag_set(diag, r, file_name, "out of memory");
	}
	r = schema_decode(&job_spec_schema, obj, mode, lines, &spec, diag);
	if (r < 0)
		return r;
	/* env is a reference into obj, which is ours alone by now or borrowed JSON: copy. */
	if (spec.env) {
		json_t *copy = json_deep_copy(spec.env);

		json_decref(spec.env);
		spec.env = copy;
		if (!copy || env_normalise(copy) < 0) {
			job_spec_done(&spec);
			return diag_set(diag, -ENOMEM, file_name, "out of memory");
		}
	}
	r = name_fall_back(&spec, file_name);
	if (r < 0) {
		job_spec_done(&spec);
		return diag_set(diag, r, file_name, "out of memory");
	}
	*ret = spec;
	return 0;
}

/* ---- ways in ---- */

void job_warn(struct job_warnings *warnings, const char *name, unsigned line, const char *fmt, ...)
{
	struct diag d = DIAG_INIT;
	va_list args;

	if (!warnings || warnings->count > JOB_WARNINGS_MAX)
		return;
	(void)snprintf(d.where, sizeof(d.where), "%.200s:%u", name, line);
	if (warnings->count == JOB_WARNINGS_MAX) {
		(void)snprintf(d.what, sizeof(d.what), "and more warnings");
	} else {
		va_start(args, fmt);
		(void)vsnprintf(d.what, sizeof(d.what), fmt, args);
		va_end(args);
	}
	(void)VEC_PUSH(warnings, d); /* a warning that finds no memory is not worth a failure */
}

static int parse_script(const char *text, size_t len, const char *name, struct job_spec *ret,
			struct job_warnings *warnings, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = NULL;
	struct yaml_lines *lines = NULL;
	int r;

	if (len > JOB_SCRIPT_MAX)
		return diag_set(diag, -EFBIG, name, "the script is longer than %u bytes", JOB_SCRIPT_MAX);
	if (memchr(text, 0, len))
		return diag_set(diag, -EINVAL, name, "the script has a NUL byte: is it a program?");
	r = job_script_marks(text, len, name, &obj, &lines, warnings, diag);
	if (r < 0)
		return r;
	if (json_object_get(obj, "command") || json_object_get(obj, "script"))
		r = diag_set(diag, -EINVAL, name, "a script's #RECLAIM lines cannot give a command: the script is it");
	else {
		json_t *script = json_stringn(text, len);

		if (!script)
			r = diag_set(diag, -EINVAL, name, "the script is not UTF-8 text");
		else
			r = json_object_set_new(obj, "script", script) < 0 ? -ENOMEM : 0;
	}
	if (r == 0)
		r = spec_finish(obj, SCHEMA_STRICT, lines, name, ret, diag);
	yaml_lines_free(lines);
	return r;
}

int job_spec_parse(const char *text, size_t len, const char *name, struct job_spec *ret,
		   struct job_warnings *ret_warnings, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = NULL;
	struct yaml_lines *lines = NULL;
	int r;

	if (job_text_is_script(text, len))
		return parse_script(text, len, name, ret, ret_warnings, diag);
	r = yaml_parse(text, len, name, &obj, &lines, diag);
	if (r < 0)
		return r;
	r = spec_finish(obj, SCHEMA_STRICT, lines, name, ret, diag);
	yaml_lines_free(lines);
	return r;
}

int job_spec_load(const char *path, struct job_spec *ret, struct job_warnings *ret_warnings,
		  struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	const char *slash = strrchr(path, '/');
	size_t len;
	int r;

	r = file_read(path, JOB_SCRIPT_MAX + JOB_TEXT_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, path, "cannot be read: %s", strerror(-r));
	return job_spec_parse(text, len, slash && slash[1] ? slash + 1 : path, ret, ret_warnings, diag);
}

int job_spec_from_json(json_t *in, struct job_spec *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *copy = json_copy(in); /* command_from_text may change it */

	if (!copy)
		return diag_set(diag, -ENOMEM, "job", "out of memory");
	return spec_finish(copy, SCHEMA_OPEN, NULL, "job", ret, diag);
}

int job_spec_from_argv(int argc, const char *const *argv, struct job_spec *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = json_object();
	json_t *list = json_array();

	if (!obj || json_object_set_new(obj, "command", list) < 0)
		return diag_set(diag, -ENOMEM, "command", "out of memory");
	for (int i = 0; i < argc; i++)
		if (json_array_append_new(list, json_string(argv[i])) < 0)
			return diag_set(diag, -EINVAL, "command", "argument %d is not UTF-8 text", i);
	return spec_finish(obj, SCHEMA_STRICT, NULL, "command", ret, diag);
}

json_t *job_spec_to_json(const struct job_spec *spec)
{
	return schema_encode(&job_spec_schema, spec);
}

void job_spec_done(struct job_spec *spec)
{
	if (spec)
		schema_done(&job_spec_schema, spec);
}
