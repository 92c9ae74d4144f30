/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks in a script: "#RECLAIM" and "#SBATCH" lines before the first command.
 *
 * #RECLAIM lines that do not begin with a dash are one YAML text, put together
 * with an empty line for every other line of the script, so that libyaml's line
 * numbers are the script's. Options (both marks) go through one table into a JSON
 * object of the same shape, which then fills in what the YAML text left open.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "job/spec_internal.h"

#define WORDS_MAX 64
#define MIB (UINT64_C(1) << 20)

/* ---- JSON paths ---- */

/* Sets "a.b.c" to value (taken, also on failure), making the objects on the way. */
static int json_path_set(json_t *obj, const char *path, json_t *value)
{
	const char *dot;

	while ((dot = strchr(path, '.'))) {
		char key[64];
		json_t *next;

		if ((size_t)(dot - path) >= sizeof(key)) {
			json_decref(value);
			return -EINVAL;
		}
		memcpy(key, path, (size_t)(dot - path));
		key[dot - path] = '\0';
		next = json_object_get(obj, key);
		if (!json_is_object(next)) {
			next = json_object();
			if (!next || json_object_set_new(obj, key, next) < 0) {
				json_decref(value);
				return -ENOMEM;
			}
		}
		obj = next;
		path = dot + 1;
	}
	return json_object_set_new(obj, path, value) < 0 ? -ENOMEM : 0;
}

/* Copies what dst lacks from src; objects on both sides are merged. dst keeps its
 * own values (their addresses are keys of the line table). */
static int json_fill(json_t *dst, json_t *src)
{
	const char *key;
	json_t *value;

	json_object_foreach(src, key, value) {
		json_t *mine = json_object_get(dst, key);

		if (!mine) {
			if (json_object_set(dst, key, value) < 0)
				return -ENOMEM;
		} else if (json_is_object(mine) && json_is_object(value)) {
			int r = json_fill(mine, value);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* ---- what Slurm's options mean here ---- */

struct mark {
	const char *name; /* of the file */
	unsigned line;
	const char *option; /* as written, for messages */
	json_t *out;
	uint64_t tasks, cpus_per_task, mem_per_cpu; /* combined at the end */
	unsigned mem_line;
	struct job_warnings *warnings;
	struct diag *diag;
};

static int mark_error(const struct mark *m, const char *value, const char *want)
{
	char where[DIAG_WHERE_MAX];

	(void)snprintf(where, sizeof(where), "%.150s:%u: %.60s", m->name, m->line, m->option);
	return diag_set(m->diag, -EINVAL, where, "\"%.100s\" is not %s", value, want);
}

static int take_u64(struct mark *m, const char *value, uint64_t lo, uint64_t hi, uint64_t *ret)
{
	uint64_t n;

	if (parse_u64(value, &n) < 0 || n < lo || n > hi) {
		char want[64];

		(void)snprintf(want, sizeof(want), "a number from %llu to %llu", (unsigned long long)lo,
			       (unsigned long long)hi);
		return mark_error(m, value, want);
	}
	*ret = n;
	return 0;
}

static int set_text(struct mark *m, const char *path, const char *value)
{
	json_t *v = json_string(value);

	return v ? json_path_set(m->out, path, v) : mark_error(m, value, "UTF-8 text");
}

static int set_u64(struct mark *m, const char *path, uint64_t value)
{
	return json_path_set(m->out, path, json_integer((json_int_t)value));
}

/* Slurm: minutes, minutes:seconds, h:m:s, d-h, d-h:m, d-h:m:s, UNLIMITED. */
static int slurm_time(struct mark *m, const char *value, uint64_t *ret_s)
{
	unsigned long long days = 0, part[3] = { 0 };
	const char *p = value, *dash = strchr(value, '-');
	size_t n = 0;
	uint64_t v;
	char copy[64], *save = NULL;

	if (!strcasecmp(value, "UNLIMITED") || !strcasecmp(value, "INFINITE")) {
		*ret_s = 0;
		return 0;
	}
	if (strlen(value) >= sizeof(copy))
		return mark_error(m, value, "a time");
	if (dash) {
		(void)snprintf(copy, sizeof(copy), "%.*s", (int)(dash - value), value);
		if (parse_u64(copy, &v) < 0 || v > 366)
			return mark_error(m, value, "a time (days-hours:minutes:seconds)");
		days = v;
		p = dash + 1;
	}
	(void)snprintf(copy, sizeof(copy), "%s", p);
	for (char *t = strtok_r(copy, ":", &save); t; t = strtok_r(NULL, ":", &save)) {
		if (n == 3 || parse_u64(t, &v) < 0 || v > 10000000)
			return mark_error(m, value, "a time (days-hours:minutes:seconds)");
		part[n++] = v;
	}
	if (n == 0)
		return mark_error(m, value, "a time");
	if (days || dash)
		*ret_s = days * 86400 + part[0] * 3600 + part[1] * 60 + part[2];
	else if (n == 1)
		*ret_s = part[0] * 60;
	else if (n == 2)
		*ret_s = part[0] * 60 + part[1];
	else
		*ret_s = part[0] * 3600 + part[1] * 60 + part[2];
	return 0;
}

static int on_time(struct mark *m, const char *value)
{
	uint64_t s = 0;
	char text[32];
	int r = slurm_time(m, value, &s);

	if (r < 0)
		return r;
	(void)snprintf(text, sizeof(text), "%llus", (unsigned long long)s);
	return set_text(m, "time_limit", text);
}

/* Slurm's memory: a bare number is MiB; K M G T. */
static int slurm_memory(struct mark *m, const char *value, uint64_t *ret)
{
	uint64_t n;

	if (parse_u64(value, &n) == 0) {
		if (n > UINT64_C(1) << 40)
			return mark_error(m, value, "an amount of memory");
		*ret = n * MIB;
		return 0;
	}
	if (parse_size(value, &n) < 0)
		return mark_error(m, value, "an amount of memory (\"4G\"; a bare number is MiB)");
	*ret = n;
	return 0;
}

static int on_mem(struct mark *m, const char *value)
{
	uint64_t n = 0;
	int r = slurm_memory(m, value, &n);

	return r < 0 ? r : set_u64(m, "slots.memory", n);
}

static int on_mem_per_cpu(struct mark *m, const char *value)
{
	return slurm_memory(m, value, &m->mem_per_cpu);
}

static int on_cpus(struct mark *m, const char *value)
{
	return take_u64(m, value, 1, 4096, &m->cpus_per_task);
}

static int on_ntasks(struct mark *m, const char *value)
{
	return take_u64(m, value, 1, 4096, &m->tasks);
}

static int on_nodes(struct mark *m, const char *value)
{
	uint64_t n;
	char copy[32];
	int r;

	(void)snprintf(copy, sizeof(copy), "%.31s", value);
	copy[strcspn(copy, "-")] = '\0'; /* "2-4": the least will do */
	r = take_u64(m, copy, 1, 1024, &n);
	return r < 0 ? r : set_u64(m, "slots.ranks", n);
}

/* "2", "a100:2", "gpu:2", "gpu:a100:2", "gpu:a100". */
static int on_gpus(struct mark *m, const char *value)
{
	char copy[JOB_NAME_MAX];
	char *p = copy, *last;
	uint64_t n = 1;
	int r;

	if (strlen(value) >= sizeof(copy))
		return mark_error(m, value, "a number of GPUs");
	(void)snprintf(copy, sizeof(copy), "%s", value);
	copy[strcspn(copy, "(")] = '\0'; /* "(S:0-1)": socket affinity */
	if (!strncasecmp(p, "gpu:", 4))
		p += 4;
	else if (!strcasecmp(p, "gpu"))
		p += 3;
	last = strrchr(p, ':');
	last = last ? last + 1 : p;
	if (*last && isdigit((unsigned char)*last)) {
		r = take_u64(m, last, 0, 64, &n);
		if (r < 0)
			return r;
		*last = '\0';
		if (last > p)
			last[-1] = '\0';
	}
	r = set_u64(m, "slots.gpus", n);
	if (r == 0 && *p)
		r = set_text(m, "slots.gpu_type", p);
	return r;
}

static int on_gres(struct mark *m, const char *value)
{
	if (!strncasecmp(value, "gpu", 3) && !strchr(value, ','))
		return on_gpus(m, value);
	job_warn(m->warnings, m->name, m->line, "%s=%.80s: only GPUs can be asked for; ignored", m->option,
		 value);
	return 0;
}

static int on_signal(struct mark *m, const char *value)
{
	struct job_signal sig;
	struct diag inner = DIAG_INIT;

	if (strlen(value) > 64 || job_signal_parse(value, &sig, &inner) < 0)
		return mark_error(m, value, "a signal ([B:]SIG[@SECONDS])");
	return set_text(m, "signal", value);
}

static int on_requeue(struct mark *m, const char *value)
{
	return json_path_set(m->out, "requeue", json_true());
}

static int on_no_requeue(struct mark *m, const char *value)
{
	return json_path_set(m->out, "requeue", json_false());
}

static int on_name(struct mark *m, const char *value)
{
	return set_text(m, "name", value);
}

static int on_chdir(struct mark *m, const char *value)
{
	if (value[0] == '/') {
		job_warn(m->warnings, m->name, m->line,
			 "%s=%.80s: a job starts in a folder of its own; only one below it can be named; ignored",
			 m->option, value);
		return 0;
	}
	return set_text(m, "work_dir", value);
}

static int on_export(struct mark *m, const char *value)
{
	CLEANUP_FREE char *copy = strdup(value);
	char *save = NULL;
	int r = 0;

	if (!copy)
		return -ENOMEM;
	for (char *t = strtok_r(copy, ",", &save); t && r == 0; t = strtok_r(NULL, ",", &save)) {
		char *eq = strchr(t, '=');
		char path[300];

		if (!eq) {
			if (strcasecmp(t, "NONE") && strcasecmp(t, "NIL"))
				job_warn(m->warnings, m->name, m->line,
					 "%s=%.80s: the submitter's environment does not travel; give NAME=VALUE",
					 m->option, t);
			continue;
		}
		*eq = '\0';
		if (strlen(t) > 60 || strchr(t, '.'))
			return mark_error(m, t, "a name for a variable");
		(void)snprintf(path, sizeof(path), "env.%s", t);
		r = set_text(m, path, eq + 1);
	}
	return r;
}

static int on_output(struct mark *m, const char *value)
{
	job_warn(m->warnings, m->name, m->line,
		 "%s=%.80s: output is kept with the job (reclaim logs); no file is written", m->option, value);
	return 0;
}

static int on_array(struct mark *m, const char *value)
{
	job_warn(m->warnings, m->name, m->line,
		 "%s=%.80s: job arrays are not expanded; this submits ONE job without SLURM_ARRAY_TASK_ID",
		 m->option, value);
	return 0;
}

static int on_quiet(struct mark *m, const char *value)
{
	return 0;
}

enum { ARG_NONE, ARG_NEEDED, ARG_MAYBE };

static const struct slurm_option {
	const char *name;
	char letter;
	int arg;
	int (*set)(struct mark *m, const char *value); /* NULL: known, not honoured */
	const char *why;                               /* not honoured because ... */
} slurm_options[] = {
	{ "job-name", 'J', ARG_NEEDED, on_name, NULL },
	{ "time", 't', ARG_NEEDED, on_time, NULL },
	{ "cpus-per-task", 'c', ARG_NEEDED, on_cpus, NULL },
	{ "ntasks", 'n', ARG_NEEDED, on_ntasks, NULL },
	{ "ntasks-per-node", 0, ARG_NEEDED, on_ntasks, NULL },
	{ "nodes", 'N', ARG_NEEDED, on_nodes, NULL },
	{ "mem", 0, ARG_NEEDED, on_mem, NULL },
	{ "mem-per-cpu", 0, ARG_NEEDED, on_mem_per_cpu, NULL },
	{ "gres", 0, ARG_NEEDED, on_gres, NULL },
	{ "gpus", 'G', ARG_NEEDED, on_gpus, NULL },
	{ "gpus-per-node", 0, ARG_NEEDED, on_gpus, NULL },
	{ "gpus-per-task", 0, ARG_NEEDED, on_gpus, NULL },
	{ "signal", 0, ARG_NEEDED, on_signal, NULL },
	{ "requeue", 0, ARG_NONE, on_requeue, NULL },
	{ "no-requeue", 0, ARG_NONE, on_no_requeue, NULL },
	{ "chdir", 'D', ARG_NEEDED, on_chdir, NULL },
	{ "export", 0, ARG_NEEDED, on_export, NULL },
	{ "output", 'o', ARG_NEEDED, on_output, NULL },
	{ "error", 'e', ARG_NEEDED, on_output, NULL },
	{ "open-mode", 0, ARG_NEEDED, on_quiet, NULL }, /* output always appends */
	{ "comment", 0, ARG_NEEDED, on_quiet, NULL },
	{ "array", 'a', ARG_NEEDED, on_array, NULL },
	{ "dependency", 'd', ARG_NEEDED, NULL, "jobs do not wait for each other here" },
	{ "partition", 'p', ARG_NEEDED, NULL, "there are no partitions" },
	{ "account", 'A', ARG_NEEDED, NULL, "the submitter's own name counts" },
	{ "qos", 'q', ARG_NEEDED, NULL, "there is one quality of service" },
	{ "reservation", 0, ARG_NEEDED, NULL, "machines cannot be reserved" },
	{ "constraint", 'C', ARG_NEEDED, NULL, "ask for slots.gpu_type and sizes instead" },
	{ "nodelist", 'w', ARG_NEEDED, NULL, "the machine is chosen by survival and bandwidth" },
	{ "exclude", 'x', ARG_NEEDED, NULL, "the machine is chosen by survival and bandwidth" },
	{ "exclusive", 0, ARG_MAYBE, NULL, "a slot is exclusive, the machine is its owner's" },
	{ "mail-type", 0, ARG_NEEDED, NULL, "no mail is sent" },
	{ "mail-user", 0, ARG_NEEDED, NULL, "no mail is sent" },
	{ "nice", 0, ARG_MAYBE, NULL, "fair share alone orders the queue" },
	{ "time-min", 0, ARG_NEEDED, NULL, "the limit is the limit" },
	{ "begin", 'b', ARG_NEEDED, NULL, "jobs start as soon as they can" },
	{ "deadline", 0, ARG_NEEDED, NULL, "there are no deadlines for jobs" },
	{ "mem-per-gpu", 0, ARG_NEEDED, NULL, "give mem" },
	{ "cpus-per-gpu", 0, ARG_NEEDED, NULL, "give cpus-per-task" },
	{ "licenses", 'L', ARG_NEEDED, NULL, "there are no licences to count" },
	{ "tmp", 0, ARG_NEEDED, NULL, "ask for slots.disk" },
	{ "get-user-env", 0, ARG_MAYBE, NULL, "the submitter's environment does not travel" },
	{ "input", 'i', ARG_NEEDED, NULL, "standard input is empty; use inputs" },
	{ "threads-per-core", 0, ARG_NEEDED, NULL, "cores are cores" },
	{ "hint", 0, ARG_NEEDED, NULL, "cores are cores" },
	{ "distribution", 'm', ARG_NEEDED, NULL, "each rank has its own machine" },
	{ "switches", 0, ARG_NEEDED, NULL, "topology is the planner's" },
	{ "verbose", 'v', ARG_NONE, on_quiet, NULL },
	{ "quiet", 'Q', ARG_NONE, on_quiet, NULL },
	{ "parsable", 0, ARG_NONE, on_quiet, NULL },
	{ "wait", 'W', ARG_NONE, NULL, "use reclaim wait" },
	{ "overcommit", 'O', ARG_NONE, NULL, "cores are cores" },
};

static const struct slurm_option *slurm_find(const char *name, char letter)
{
	for (size_t i = 0; i < ARRAY_SIZE(slurm_options); i++)
		if (name ? !strcmp(slurm_options[i].name, name) : slurm_options[i].letter == letter)
			return &slurm_options[i];
	return NULL;
}

/* ---- words of a line ---- */

struct words {
	char *items[WORDS_MAX];
	size_t count;
	char *buf;
};

static void words_done(struct words *w)
{
	free(w->buf);
}

/* Splits as a shell would, without expansions; " #" starts a comment. */
static int words_split(const char *text, size_t len, struct words *ret)
{
	struct words w = { .buf = malloc(len + 1) };
	char *out = w.buf;
	size_t i = 0;

	if (!out)
		return -ENOMEM;
	while (i < len) {
		char quote = 0;

		while (i < len && isspace((unsigned char)text[i]))
			i++;
		if (i == len || text[i] == '#')
			break;
		if (w.count == WORDS_MAX)
			goto bad;
		w.items[w.count++] = out;
		for (; i < len && (quote || !isspace((unsigned char)text[i])); i++) {
			if (quote ? text[i] == quote : (text[i] == '\'' || text[i] == '"'))
				quote = quote ? 0 : text[i];
			else if (text[i] == '\\' && quote != '\'' && i + 1 < len)
				*out++ = text[++i];
			else
				*out++ = text[i];
		}
		if (quote)
			goto bad;
		*out++ = '\0';
		if (out > w.buf + len)
			break;
	}
	*ret = w;
	return 0;
bad:
	free(w.buf);
	return -EINVAL;
}

/* ---- options of a line ---- */

/* A path of the job file, "checkpoint.dir" or "time-limit": true if its first part is a key. */
static bool own_key(const char *name, char path[64])
{
	size_t n = strcspn(name, ".");
	static const char *const slot_keys[] = { "cores", "memory", "gpus", "gpu-type", "gpu-memory", "disk",
						 "ranks" };

	if (strlen(name) >= 50)
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(slot_keys); i++)
		if (!strcmp(name, slot_keys[i])) {
			(void)snprintf(path, 64, "slots.%s", name);
			goto found;
		}
	(void)snprintf(path, 64, "%s", name);
	for (const struct schema_field *f = job_spec_schema.fields; f->kind != FIELD_KIND_END; f++) {
		char key[64];

		(void)snprintf(key, sizeof(key), "%.*s", (int)n, name);
		for (char *p = key; *p; p++)
			if (*p == '-')
				*p = '_';
		if (!strcmp(key, f->name))
			goto found;
	}
	return false;
found:
	for (char *p = path; *p; p++)
		if (*p == '-')
			*p = '_';
	return true;
}

static int own_option(struct mark *m, const char *path, const char *value)
{
	static const char *const lists[] = { "command", "args", "results", "network.destinations" };

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		if (!strcmp(path, lists[i])) {
			json_t *list = json_object_get(m->out, path);
			const char *dot = strchr(path, '.');

			if (dot) /* the only nested list */
				list = json_object_get(json_object_get(m->out, "network"), dot + 1);
			if (!list) {
				list = json_array();
				if (!list || json_path_set(m->out, path, list) < 0)
					return -ENOMEM;
			}
			return json_array_append_new(list, json_string(value)) < 0
				       ? mark_error(m, value, "UTF-8 text") : 0;
		}
	if (!value || !strcasecmp(value, "true") || !strcasecmp(value, "yes"))
		return json_path_set(m->out, path, json_true());
	if (!strcasecmp(value, "false") || !strcasecmp(value, "no"))
		return json_path_set(m->out, path, json_false());
	return set_text(m, path, value);
}

static int unknown_option(struct mark *m, bool own, const char *word)
{
	if (own)
		return mark_error(m, word, "an option or a key of the job file");
	job_warn(m->warnings, m->name, m->line, "%.80s: not known; ignored", word);
	return 0;
}

static int apply_words(struct mark *m, bool own, const struct words *w)
{
	for (size_t i = 0; i < w->count; i++) {
		char *word = w->items[i], *value = NULL, path[64], option[80];
		const struct slurm_option *o;
		int r;

		(void)snprintf(option, sizeof(option), "%.70s", word);
		m->option = option;
		if (word[0] != '-' || !word[1]) {
			job_warn(m->warnings, m->name, m->line, "\"%.80s\" is not an option; ignored", word);
			continue;
		}
		if (word[1] == '-') {
			value = strchr(word, '=');
			if (value)
				*value++ = '\0';
			option[strcspn(option, "=")] = '\0';
			if (own && own_key(word + 2, path)) {
				r = own_option(m, path, value ? value : "true");
				if (r < 0)
					return r;
				continue;
			}
			o = slurm_find(word + 2, 0);
		} else {
			o = slurm_find(NULL, word[1]);
			if (word[2])
				value = word + 2 + (word[2] == '=');
			option[2] = '\0';
		}
		if (!o) {
			r = unknown_option(m, own, word);
			if (r < 0)
				return r;
			continue;
		}
		if (o->arg == ARG_NEEDED && !value) {
			if (i + 1 == w->count)
				return mark_error(m, "", "a value, and it needs one");
			value = w->items[++i];
		}
		if (!o->set) {
			job_warn(m->warnings, m->name, m->line, "--%s is not honoured: %s", o->name, o->why);
			continue;
		}
		r = o->set(m, value ? value : "");
		if (r < 0)
			return r;
	}
	return 0;
}

/* Sizes that Slurm gives per task or per core. */
static int combine(struct mark *m)
{
	uint64_t cores = m->tasks * m->cpus_per_task;
	json_t *slots = json_object_get(m->out, "slots");
	int r = 0;

	if (!json_object_get(slots, "cores") && (m->tasks > 1 || m->cpus_per_task > 1))
		r = set_u64(m, "slots.cores", cores);
	if (r == 0 && m->mem_per_cpu && !json_object_get(slots, "memory")) {
		if (m->mem_per_cpu > (UINT64_C(1) << 60) / cores)
			return mark_error(m, "mem-per-cpu", "an amount of memory that exists");
		r = set_u64(m, "slots.memory", m->mem_per_cpu * cores);
	}
	/* srun's shim starts as many tasks as the script asked for. */
	if (r == 0 && m->tasks > 1) {
		char text[32];

		(void)snprintf(text, sizeof(text), "%llu", (unsigned long long)m->tasks);
		r = set_text(m, "env.SLURM_NTASKS", text);
		if (r == 0)
			r = set_text(m, "env.SLURM_NTASKS_PER_NODE", text);
	}
	if (r == 0 && m->cpus_per_task > 1) {
		char text[32];

		(void)snprintf(text, sizeof(text), "%llu", (unsigned long long)m->cpus_per_task);
		r = set_text(m, "env.SLURM_CPUS_PER_TASK", text);
	}
	return r;
}

/* ---- lines ---- */

enum line_kind { LINE_OTHER, LINE_COMMAND, LINE_RECLAIM, LINE_SBATCH };

static enum line_kind line_kind(const char *line, size_t len, const char **ret_rest, size_t *ret_len)
{
	static const char own[] = "#RECLAIM", slurm[] = "#SBATCH";
	size_t i = 0;

	if (len >= sizeof(own) - 1 && !memcmp(line, own, sizeof(own) - 1))
		i = sizeof(own) - 1;
	else if (len >= sizeof(slurm) - 1 && !memcmp(line, slurm, sizeof(slurm) - 1))
		i = sizeof(slurm) - 1;
	if (i && (i == len || line[i] == ' ' || line[i] == '\t')) {
		*ret_rest = line + i;
		*ret_len = len - i;
		return i == sizeof(own) - 1 ? LINE_RECLAIM : LINE_SBATCH;
	}
	while (i < len && isspace((unsigned char)line[i]))
		i++;
	return i == len || line[i] == '#' ? LINE_OTHER : LINE_COMMAND;
}

bool job_text_is_script(const char *text, size_t len)
{
	if (len >= 2 && text[0] == '#' && text[1] == '!')
		return true;
	for (const char *p = text, *end = text + len; p < end;) {
		const char *nl = memchr(p, '\n', (size_t)(end - p)), *rest;
		size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p), rest_len;
		enum line_kind k = line_kind(p, n, &rest, &rest_len);

		if (k == LINE_RECLAIM || k == LINE_SBATCH)
			return true;
		if (k == LINE_COMMAND)
			return false;
		p += n + (nl != NULL);
	}
	return false;
}

static int one_mark(struct mark *m, bool own, const char *rest, size_t len, struct strbuf *yaml,
		    bool *ret_yaml_used)
{
	struct words w = { 0 };
	size_t skip = 0;
	int r;

	while (skip < len && isspace((unsigned char)rest[skip]))
		skip++;
	if (own && skip < len && !(rest[skip] == '-' && skip + 1 < len && !isspace((unsigned char)rest[skip + 1]))) {
		/* One blank after the mark is the mark's; what is left is YAML's indentation. */
		*ret_yaml_used = true;
		return strbuf_append(yaml, rest + 1, len - 1);
	}
	r = words_split(rest, len, &w);
	if (r == -EINVAL) {
		m->option = own ? "#RECLAIM" : "#SBATCH";
		return mark_error(m, "", "a line of options: a quote is open, or there are too many");
	}
	if (r < 0)
		return r;
	r = apply_words(m, own, &w);
	words_done(&w);
	return r;
}

int job_script_marks(const char *text, size_t len, const char *name, json_t **ret,
		     struct yaml_lines **ret_lines, struct job_warnings *warnings, struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf yaml = STRBUF_INIT;
	CLEANUP_JSON json_t *slurm = json_object(), *own = json_object(), *obj = NULL;
	struct yaml_lines *lines = NULL;
	struct mark m = { .name = name, .warnings = warnings, .diag = diag, .tasks = 1, .cpus_per_task = 1 };
	bool over = false, yaml_used = false;
	int r = 0;

	if (!slurm || !own)
		return diag_set(diag, -ENOMEM, name, "out of memory");
	for (const char *p = text, *end = text + len; p < end && r == 0;) {
		const char *nl = memchr(p, '\n', (size_t)(end - p)), *rest = NULL;
		size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p), rest_len = 0;
		size_t chars = n && p[n - 1] == '\r' ? n - 1 : n;
		enum line_kind k = line_kind(p, chars, &rest, &rest_len);

		m.line++;
		if (k == LINE_COMMAND)
			over = true;
		else if (k != LINE_OTHER && over)
			job_warn(warnings, name, m.line, "%s after the first command; ignored",
				 k == LINE_RECLAIM ? "#RECLAIM" : "#SBATCH");
		else if (k != LINE_OTHER && rest_len) {
			m.out = k == LINE_RECLAIM ? own : slurm;
			r = one_mark(&m, k == LINE_RECLAIM, rest, rest_len, &yaml, &yaml_used);
		}
		if (r == 0 && !over)
			r = strbuf_add(&yaml, "\n");
		p += n + (nl != NULL);
	}
	m.out = slurm;
	m.option = "#SBATCH";
	if (r == 0)
		r = combine(&m);
	if (r == 0 && yaml_used)
		r = yaml_parse(yaml.data, yaml.len, name, &obj, &lines, diag);
	else if (r == 0 && !(obj = json_object()))
		r = -ENOMEM;
	if (r == 0 && !json_is_object(obj))
		r = diag_set(diag, -EINVAL, name, "the #RECLAIM lines are not a mapping of keys to values");
	if (r == 0)
		r = json_fill(obj, own);
	if (r == 0)
		r = json_fill(obj, slurm);
	if (r < 0) {
		yaml_lines_free(lines);
		return r == -ENOMEM ? diag_set(diag, r, name, "out of memory") : r;
	}
	*ret = TAKE(obj);
	*ret_lines = lines;
	return 0;
}
