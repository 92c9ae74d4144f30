/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/reference.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/schema.h"
#include "lab/proc.h"

struct outcome {
	uint64_t steps, checkpoint_bytes;
	char *digest;
	double loss, save_ms, seconds;
};

static const struct schema_field outcome_fields[] = {
	FIELD_U64(struct outcome, steps, 0, 1e15, .flags = FIELD_REQUIRED),
	FIELD_U64(struct outcome, checkpoint_bytes, 0, 1e15, .flags = FIELD_REQUIRED),
	FIELD_STR(struct outcome, digest, 64, .flags = FIELD_REQUIRED),
	FIELD_DOUBLE(struct outcome, save_ms, 0, 1e9, .flags = FIELD_REQUIRED),
	FIELD_DOUBLE(struct outcome, seconds, 0, 1e9, .flags = FIELD_REQUIRED),
	FIELD_END,
};
static const struct schema outcome_schema = SCHEMA(struct outcome, "result", outcome_fields);

uint64_t reference_window_needed_ns(uint64_t save_ns, uint64_t bytes, uint64_t floor_bps)
{
	return save_ns + (floor_bps ? (uint64_t)((double)bytes * 8e9 / (double)floor_bps) : 0) +
	       REFERENCE_MARGIN_NS;
}

static bool same_command(const struct scenario_job *a, const struct scenario_job *b)
{
	if (a->command_count != b->command_count)
		return false;
	for (size_t i = 0; i < a->command_count; i++)
		if (strcmp(a->command[i], b->command[i]) != 0)
			return false;
	return true;
}

/* The same work without what only costs time or meets others. */
static int start(const struct scenario_job *j, const char *dir, pid_t *ret, struct diag *diag)
{
	struct proc_spec p = { .cwd = dir, .own_group = true };
	char program[PROC_PATH_MAX], log[PROC_PATH_MAX], ckpt[PROC_PATH_MAX];
	size_t n = 0;
	int r = dir_make_all(dir, 0755);

	if (r == 0)
		r = path_format(log, sizeof(log), "%s/log", dir);
	if (r == 0)
		r = path_format(ckpt, sizeof(ckpt), "RECLAIM_CHECKPOINT_DIR=%s/checkpoints", dir);
	if (r < 0)
		return r;
	p.argv[n++] = proc_program(j->command[0], program);
	for (size_t i = 1; i < j->command_count && n + 1 < PROC_ARGS_MAX; i++) {
		if (strcmp(j->command[i], "--pace") == 0 || strcmp(j->command[i], "--send") == 0)
			i++;
		else
			p.argv[n++] = j->command[i];
	}
	p.log = log;
	p.env[0] = ckpt;
	return proc_spawn(&p, ret, diag);
}

static int collect(const struct scenario_job *j, const char *dir, struct reference *ret,
		   struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	CLEANUP_JSON json_t *json = NULL;
	struct outcome o;
	char path[PROC_PATH_MAX];
	size_t len;
	int r = path_format(path, sizeof(path), "%s/result.json", dir);

	if (r == 0)
		r = file_read(path, 65536, &text, &len);
	if (r < 0)
		return diag_set(diag, r, j->name, "its reference run left no result.json");
	json = json_loads(text, 0, NULL);
	r = json ? schema_decode(&outcome_schema, json, SCHEMA_OPEN, NULL, &o, diag) : -EINVAL;
	if (r < 0)
		return diag_set(diag, r, path, "is not a result");
	(void)snprintf(ret->digest, sizeof(ret->digest), "%s", o.digest);
	ret->steps = o.steps;
	ret->image_bytes = o.checkpoint_bytes;
	ret->save_ns = (uint64_t)(o.save_ms * 1e6);
	ret->seconds = o.seconds;
	schema_done(&outcome_schema, &o);
	return 0;
}

/* The log goes with the lab, so its last line is said. */
static int failed(const struct scenario_job *j, int status, const char *dir, struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	char path[PROC_PATH_MAX], *line = NULL;
	size_t len = 0;

	if (path_format(path, sizeof(path), "%s/log", dir) == 0 &&
	    file_read(path, 1u << 20, &text, &len) == 0) {
		while (len && text[len - 1] == '\n')
			text[--len] = '\0';
		line = strrchr(text, '\n');
		line = line ? line + 1 : text;
	}
	return diag_set(diag, -EIO, j->name, "its reference run ended with %s %d: %.200s",
			WIFSIGNALED(status) ? "signal" : "status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
			line && *line ? line : "and said nothing");
}

static int finish(const struct scenario_job *j, pid_t pid, const char *dir, struct reference *ret,
		  struct diag *diag)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return failed(j, status, dir, diag);
	return collect(j, dir, ret, diag);
}

int reference_run_all(const struct scenario *s, const char *dir, struct reference *ret,
		      struct diag *diag)
{
	size_t parallel = (size_t)MAX(1L, MIN(8L, sysconf(_SC_NPROCESSORS_ONLN)));
	struct {
		pid_t pid;
		size_t job;
		char dir[PROC_PATH_MAX];
	} running[8];
	size_t count = 0;
	int r = 0;

	memset(ret, 0, s->jobs_count * sizeof(*ret));
	for (size_t i = 0; i <= s->jobs_count; i++) {
		bool wanted = i < s->jobs_count && s->jobs[i].reference &&
			      s->jobs[i].command_count > 0;

		for (size_t k = 0; k < i && wanted; k++)
			wanted = !(s->jobs[k].reference && same_command(&s->jobs[i], &s->jobs[k]));
		while (count == parallel || (i == s->jobs_count && count > 0)) {
			int one = finish(&s->jobs[running[0].job], running[0].pid, running[0].dir,
					 &ret[running[0].job], r == 0 ? diag : NULL);

			r = r < 0 ? r : one;
			memmove(running, running + 1, --count * sizeof(*running));
		}
		if (!wanted || r < 0)
			continue;
		running[count].job = i;
		r = path_format(running[count].dir, sizeof(running[count].dir), "%s/%s", dir,
				s->jobs[i].name);
		if (r == 0)
			r = start(&s->jobs[i], running[count].dir, &running[count].pid, diag);
		count += r == 0;
	}
	for (size_t i = 0; i < s->jobs_count && r == 0; i++)
		for (size_t k = 0; k < i && s->jobs[i].reference && !ret[i].digest[0]; k++)
			if (s->jobs[k].reference && same_command(&s->jobs[i], &s->jobs[k]))
				ret[i] = ret[k];
	return r;
}
