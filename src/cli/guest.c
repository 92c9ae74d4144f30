/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest's commands: submit, look, wait, end. All state is the
 * coordinator's; a command that loses its connection asks again from where it
 * was, so that a coordinator restart is a pause and no failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/rng.h"
#include "cli/archive.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/follow.h"
#include "job/spec.h"
#include "wire/rest.h"

struct guest_options {
	bool json, all, follow, quiet, no_results;
	const char *user, *name, *results;
	uint64_t offset, cores, gpus, memory, time_limit;
	struct option_strs input, env, result;
};

static int job_call(struct http_client *c, const char *method, const char *id, const char *rest,
		    struct rest_job *ret, struct diag *diag)
{
	char path[512], escaped[256];
	CLEANUP_JSON json_t *in = NULL;
	int r = http_client_escape(id, escaped, sizeof(escaped));
	if (r == 0)
		r = path_format(path, sizeof(path), "/v1/jobs/%s%s", escaped, rest);
	if (r < 0)
		return diag_set(diag, r, id, "is no job id");
	r = http_client_call(c, method, path, NULL, &in, diag);
	return r < 0 ? r : schema_decode(&rest_job_schema, in, SCHEMA_OPEN, NULL, ret, diag);
}

#define SUBMIT_AGAIN_NS (20 * NS_PER_S)

/* ---- submit ---- */

static bool looks_like_job_file(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* reclaim submit FILE [ARG...]: a job file or a script; reclaim submit -- COMMAND...: a command. */
static int spec_from_args(int argc, const char *const *argv, struct job_spec *ret,
			  struct diag *diag)
{
	if (!looks_like_job_file(argv[0]))
		return job_spec_from_argv(argc, argv, ret, diag);
	struct job_warnings warnings = VEC_INIT;
	int r = job_spec_load(argv[0], ret, &warnings, diag);
	VEC_EACH(&warnings, w) {
		char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
		(void)fprintf(stderr, "reclaim: warning: %s\n", diag_format(w, text, sizeof(text)));
	}
	VEC_DONE(&warnings);
	if (r < 0 || argc == 1)
		return r;
	char **args = calloc((size_t)argc, sizeof(*args));
	if (!args)
		return -ENOMEM;
	for (int i = 1; i < argc; i++)
		args[i - 1] = strdup(argv[i]);
	for (size_t i = 0; i < ret->args_count; i++)
		free(ret->args[i]);
	free(ret->args);
	ret->args = args;
	ret->args_count = (size_t)argc - 1;
	return 0;
}

static int add_inputs(const struct guest_options *o, struct job_spec *spec)
{
	for (size_t i = 0; i < o->input.count; i++) {
		struct job_input *grown =
			reallocarray(spec->inputs, spec->inputs_count + 1, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		spec->inputs = grown;
		grown[spec->inputs_count++] = (struct job_input){ .path = strdup(o->input.items[i]) };
	}
	for (size_t i = 0; i < o->result.count; i++) {
		char **grown = reallocarray(spec->results, spec->results_count + 1, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		spec->results = grown;
		grown[spec->results_count++] = strdup(o->result.items[i]);
	}
	return 0;
}

static int apply_options(const struct guest_options *o, struct job_spec *spec, struct diag *diag)
{
	if (o->name) {
		free(spec->name);
		spec->name = strdup(o->name);
	}
	if (o->cores)
		spec->slots.cores = o->cores;
	if (o->gpus)
		spec->slots.gpus = o->gpus;
	if (o->memory)
		spec->slots.memory = o->memory;
	if (o->time_limit)
		spec->time_limit_ns = o->time_limit;
	if (o->env.count && !spec->env)
		spec->env = json_object();
	for (size_t i = 0; i < o->env.count; i++) {
		const char *eq = strchr(o->env.items[i], '=');
		if (!eq || eq == o->env.items[i])
			return diag_set(diag, -EINVAL, "--env", "'%.60s' is not NAME=VALUE", o->env.items[i]);
		CLEANUP_FREE char *name = strndup(o->env.items[i], (size_t)(eq - o->env.items[i]));
		if (!name || json_object_set_new(spec->env, name, json_string(eq + 1)) < 0)
			return diag_set(diag, -EINVAL, "--env", "'%.60s' is not valid text", o->env.items[i]);
	}
	return add_inputs(o, spec);
}

/* Secrets are read here and travel over TLS only; `from` does not leave this machine. */
static int read_secrets(struct job_spec *spec, struct rest_submit *submit, struct diag *diag)
{
	submit->secrets = calloc(spec->secrets_count + 1, sizeof(*submit->secrets));
	if (!submit->secrets)
		return -ENOMEM;
	for (size_t i = 0; i < spec->secrets_count; i++) {
		struct job_secret *s = &spec->secrets[i];
		char *value = NULL;
		int r = s->from ? file_read(s->from, 65536, &value, NULL) : -EINVAL;
		if (r < 0)
			return diag_set(diag, r, s->from ? s->from : s->name, "secret '%.60s': %s", s->name,
					strerror(-r));
		submit->secrets[submit->secrets_count++] =
			(struct rest_secret){ strdup(s->name), value };
		free(s->from);
		s->from = NULL;
	}
	return 0;
}

static int upload_inputs(struct http_client *c, const struct job_spec *spec, struct rest_job *job,
			 struct diag *diag)
{
	char path[256];
	uint64_t size;
	CLEANUP_FD int fd = archive_inputs(spec, &size, diag);
	if (fd < 0)
		return fd;
	CLEANUP_JSON json_t *in = NULL;
	int r = path_format(path, sizeof(path), "/v1/jobs/%s/inputs", job->id);
	http_client_set_timeout(c, 0);
	if (r == 0)
		r = http_client_upload(c, "PUT", path, fd, size, &in, diag);
	http_client_set_timeout(c, 30000);
	if (r < 0)
		return r;
	schema_done(&rest_job_schema, job);
	return schema_decode(&rest_job_schema, in, SCHEMA_OPEN, NULL, job, diag);
}

/* The job, and then its inputs if it still waits for them. */
static int submit_once(struct http_client *c, const struct job_spec *spec, json_t *body,
		       struct rest_job *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *in = NULL;
	int r = http_client_call(c, "POST", "/v1/jobs", body, &in, diag);
	if (r == 0)
		r = schema_decode(&rest_job_schema, in, SCHEMA_OPEN, NULL, ret, diag);
	if (r == 0 && spec->inputs_count > 0 && ret->state == REST_JOB_STAGING) {
		r = upload_inputs(c, spec, ret, diag);
		if (http_client_went_away(r)) {
			schema_done(&rest_job_schema, ret); /* it is asked for again */
		} else if (r < 0) {
			/* Half a job is no job. */
			struct rest_job gone;
			if (job_call(c, "POST", ret->id, "/cancel", &gone, NULL) == 0)
				schema_done(&rest_job_schema, &gone);
			schema_done(&rest_job_schema, ret);
		}
	}
	return r;
}

/* Once it has begun, a submit outlives a restart of the coordinator: its request id makes the same
 * job of the second try. */
static int submit_spec(struct http_client *c, struct job_spec *spec, struct rest_job *ret,
		       struct diag *diag)
{
	char request_id[33];
	uint8_t bits[16];
	int r = random_bytes(bits, sizeof(bits));
	hex_encode(bits, sizeof(bits), request_id);
	struct rest_submit submit = { .inputs = spec->inputs_count > 0, .request_id = request_id };
	if (r == 0)
		r = read_secrets(spec, &submit, diag);
	submit.spec = r == 0 ? job_spec_to_json(spec) : NULL;
	CLEANUP_JSON json_t *body = submit.spec ? schema_encode(&rest_submit_schema, &submit) : NULL;
	submit.request_id = NULL; /* not owned */
	schema_done(&rest_submit_schema, &submit);
	if (r < 0)
		return r;
	if (!body)
		return diag_set(diag, -ENOMEM, "", "out of memory");
	r = submit_once(c, spec, body, ret, diag);
	uint64_t until = clock_boot_ns() + SUBMIT_AGAIN_NS;
	bool begun = r != -ECONNREFUSED; /* nobody there from the start: said at once */
	while (begun && http_client_went_away(r) && clock_boot_ns() < until) {
		struct timespec pause = { 0, 200 * 1000 * 1000 };
		(void)nanosleep(&pause, NULL);
		*diag = (struct diag)DIAG_INIT;
		r = submit_once(c, spec, body, ret, diag);
	}
	return r;
}

static int submit_args(const struct guest_options *o, struct http_client *c, int argc,
		       const char *const *argv, struct rest_job *ret)
{
	struct job_spec spec;
	struct diag diag = DIAG_INIT;
	int r = spec_from_args(argc, argv, &spec, &diag);
	if (r < 0)
		return cli_fail(&diag), r;
	r = apply_options(o, &spec, &diag);
	if (r == 0)
		r = submit_spec(c, &spec, ret, &diag);
	job_spec_done(&spec);
	return r < 0 ? (cli_fail(&diag), r) : 0;
}

static int run_submit(const void *values, int argc, const char *const *argv)
{
	const struct guest_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	struct rest_job job;
	if (cli_open(&ctx, &c) < 0)
		return 1;
	if (submit_args(o, c, argc, argv, &job) < 0)
		return 1;
	if (o->json)
		cli_print_json(schema_encode(&rest_job_schema, &job));
	else
		(void)puts(job.id);
	schema_done(&rest_job_schema, &job);
	return 0;
}

/* ---- results ---- */

static int fetch_results(const struct cli_context *ctx, const char *id, const char *into, bool quiet)
{
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	struct diag diag = DIAG_INIT;
	char path[256];
	if (cli_connect(ctx, &c) < 0 ||
	    path_format(path, sizeof(path), "/v1/jobs/%s/results", id) < 0)
		return 1;
	CLEANUP_FD int fd = archive_scratch(&diag);
	uint64_t size;
	http_client_set_timeout(c, 0);
	int r = fd < 0 ? fd : http_client_download(c, path, fd, &size, &diag);
	if (r == 0)
		r = archive_unpack(fd, into, &diag);
	if (r < 0)
		return cli_fail(&diag);
	char text[FORMAT_MAX];
	if (!quiet)
		(void)fprintf(stderr, "results: %s into %s\n", format_size(size, text), into);
	return 0;
}

static int run_results(const void *values, int argc, const char *const *argv)
{
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	if (cli_context_open(&ctx) < 0)
		return 1;
	return fetch_results(&ctx, argv[0], argc > 1 ? argv[1] : ".", false);
}

/* ---- run and wait ---- */

static void print_end(const struct rest_job *job)
{
	char ran[FORMAT_MAX];
	(void)fprintf(stderr, "%s: %s%s%s, ran %s, %zu move(s), %llu failure(s)\n", job->id,
		      rest_job_state_names[job->state], job->reason ? ": " : "",
		      job->reason ? job->reason : "", format_duration(job->ran_ms * NS_PER_MS, ran),
		      job->moves_count ? job->moves_count - 1 : 0, (unsigned long long)job->failures);
}

static int end_status(const struct rest_job *job)
{
	if (job->state == REST_JOB_CANCELLED)
		return 130;
	return job->state == REST_JOB_DONE ? job->exit_status : (job->exit_status ? job->exit_status : 1);
}

static int run_run(const void *values, int argc, const char *const *argv)
{
	const struct guest_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	struct rest_job job;
	if (cli_open(&ctx, &c) < 0)
		return 1;
	if (submit_args(o, c, argc, argv, &job) < 0)
		return 1;
	struct follow_options f = { .output = true, .progress = !o->quiet, .cancel_on_interrupt = true };
	struct rest_job end;
	int r = follow_job(&ctx, job.id, &f, &end);
	schema_done(&rest_job_schema, &job);
	if (r < 0)
		return 1;
	if (!o->quiet)
		print_end(&end);
	int status = end_status(&end);
	if (end.results_bytes > 0 && !o->no_results &&
	    fetch_results(&ctx, end.id, o->results ? o->results : ".", o->quiet) != 0 && status == 0)
		status = 1;
	if (o->json)
		cli_print_json(schema_encode(&rest_job_schema, &end));
	schema_done(&rest_job_schema, &end);
	return status;
}

static int run_wait(const void *values, int argc, const char *const *argv)
{
	const struct guest_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	if (cli_context_open(&ctx) < 0)
		return 1;
	int status = 0;
	for (int i = 0; i < argc; i++) {
		struct follow_options f = { .progress = false };
		struct rest_job end;
		if (follow_job(&ctx, argv[i], &f, &end) < 0)
			return 1;
		if (o->json)
			cli_print_json(schema_encode(&rest_job_schema, &end));
		else if (!o->quiet)
			print_end(&end);
		status = end_status(&end) ? end_status(&end) : status;
		schema_done(&rest_job_schema, &end);
	}
	return status;
}

/* ---- looking ---- */

static const char *age(uint64_t wall_ms, char buf[FORMAT_MAX])
{
	uint64_t now = clock_wall_ms();
	if (!wall_ms)
		return "-";
	return format_duration((now > wall_ms ? now - wall_ms : 0) * NS_PER_MS, buf);
}

static int run_ps(const void *values, int argc, const char *const *argv)
{
	const struct guest_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	CLEANUP_JSON json_t *in = NULL;
	struct diag diag = DIAG_INIT;
	char path[512], user[256] = "";
	if (o->user && http_client_escape(o->user, user, sizeof(user)) < 0)
		return cli_failf("--user: '%s' is no name", o->user);
	if (cli_open(&ctx, &c) < 0)
		return 1;
	(void)snprintf(path, sizeof(path), "/v1/jobs?all=%d%s%s", o->all, *user ? "&user=" : "", user);
	struct rest_jobs jobs;
	int r = http_client_call(c, "GET", path, NULL, &in, &diag);
	if (r == 0)
		r = schema_decode(&rest_jobs_schema, in, SCHEMA_OPEN, NULL, &jobs, &diag);
	if (r < 0)
		return cli_fail(&diag);
	if (o->json) {
		cli_print_json(schema_encode(&rest_jobs_schema, &jobs));
	} else {
		(void)printf("%-14s %-16s %-10s %-10s %-12s %8s %12s  %s\n", "JOB", "NAME", "USER", "STATE",
			     "NODE", "MOVES", "DURABLE", "WHY");
		for (size_t i = 0; i < jobs.jobs_count; i++) {
			const struct rest_job *j = &jobs.jobs[i];
			char when[FORMAT_MAX];
			(void)printf("%-14s %-16.16s %-10.10s %-10s %-12.12s %8llu %12s  %.60s\n", j->id,
				     j->name ? j->name : "", j->user ? j->user : "",
				     rest_job_state_names[j->state], j->node ? j->node : "-",
				     (unsigned long long)(j->moves_count ? j->moves_count - 1 : 0),
				     age(j->durable_at_ms, when), j->reason ? j->reason : "");
		}
	}
	schema_done(&rest_jobs_schema, &jobs);
	return 0;
}

static void print_job(const struct rest_job *j)
{
	char a[FORMAT_MAX], b[FORMAT_MAX], when[CLOCK_TEXT_MAX];
	(void)printf("job        %s (%s), of %s\nstate      %s%s%s\n", j->id, j->name ? j->name : "",
		     j->user ? j->user : "", rest_job_state_names[j->state], j->reason ? ": " : "",
		     j->reason ? j->reason : "");
	(void)printf("where      %s, incarnation %llu, ran %s in all\n", j->node ? j->node : "nowhere",
		     (unsigned long long)j->epoch, format_duration(j->ran_ms * NS_PER_MS, a));
	if (j->durable)
		(void)printf("durable    image %.12s, %s, %s ago\n", j->durable, format_size(j->durable_bytes, a),
			     age(j->durable_at_ms, b));
	else
		(void)puts("durable    nothing yet: a reclaim now starts it anew");
	(void)printf("reclaims   %llu, failures %llu\n", (unsigned long long)j->reclaims,
		     (unsigned long long)j->failures);
	for (size_t i = 0; i < j->moves_count; i++) {
		const struct rest_move *m = &j->moves[i];
		(void)printf("  %s  %-16s %s -> %s, down %s, %s moved, %s of work lost\n",
			     clock_format_wall(m->at_ms, when), m->cause ? m->cause : "",
			     m->from ? m->from : "-", m->to ? m->to : "-",
			     format_duration(m->downtime_ms * NS_PER_MS, a), format_size(m->bytes, b),
			     m->lost_ms ? "some" : "none");
	}
	if (rest_job_state_is_final(j->state))
		(void)printf("exit       %d, results %s\n", j->exit_status, format_size(j->results_bytes, a));
}

static int run_show(const void *values, int argc, const char *const *argv)
{
	const struct guest_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	struct diag diag = DIAG_INIT;
	struct rest_job job;
	if (cli_open(&ctx, &c) < 0)
		return 1;
	if (job_call(c, "GET", argv[0], "", &job, &diag) < 0)
		return cli_fail(&diag);
	if (o->json)
		cli_print_json(schema_encode(&rest_job_schema, &job));
	else
		print_job(&job);
	schema_done(&rest_job_schema, &job);
	return 0;
}

static int run_cancel(const void *values, int argc, const char *const *argv)
{
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	if (cli_open(&ctx, &c) < 0)
		return 1;
	int status = 0;
	for (int i = 0; i < argc; i++) {
		struct diag diag = DIAG_INIT;
		struct rest_job job;
		if (job_call(c, "POST", argv[i], "/cancel", &job, &diag) < 0) {
			status = cli_fail(&diag);
			continue;
		}
		(void)printf("%s: %s\n", job.id, rest_job_state_names[job.state]);
		schema_done(&rest_job_schema, &job);
	}
	return status;
}

static int run_logs(const void *values, int argc, const char *const *argv)
{
	const struct guest_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	if (cli_context_open(&ctx) < 0)
		return 1;
	return follow_logs(&ctx, argv[0], o->offset, o->follow) < 0 ? 1 : 0;
}

#define O(m) offsetof(struct guest_options, m)
#define JSON_ROW { "json", 0, OPTION_FLAG, O(json), NULL, NULL, 0, 0, "print JSON" }
#define END_ROW { .kind = OPTION_END }
#define SUBMIT_ROWS                                                                                \
	{ "name", 'J', OPTION_STR, O(name), "NAME", NULL, 0, 0, "what people call it" },             \
	{ "cores", 'c', OPTION_U64, O(cores), "N", NULL, 0, 4096, "CPU cores" },                     \
	{ "gpus", 0, OPTION_U64, O(gpus), "N", NULL, 0, 64, "GPUs" },                                \
	{ "memory", 'm', OPTION_SIZE, O(memory), "SIZE", NULL, 0, 0, "memory" },                     \
	{ "time", 't', OPTION_DURATION, O(time_limit), "TIME", NULL, 0, 0, "limit of running time" }, \
	{ "input", 'i', OPTION_STRS, O(input), "PATH", NULL, 0, 0,                                   \
	  "copied into its working folder; may be given many times" },                               \
	{ "result", 'o', OPTION_STRS, O(result), "GLOB", NULL, 0, 0,                                 \
	  "brought back from its working folder; may be given many times" },                         \
	{ "env", 'e', OPTION_STRS, O(env), "NAME=VALUE", NULL, 0, 0, "environment" }

static const struct option submit_options[] = { SUBMIT_ROWS, JSON_ROW, END_ROW };
static const struct option run_options[] = {
	SUBMIT_ROWS,
	{ "results", 0, OPTION_STR, O(results), "DIR", NULL, 0, 0, "where results go (here)" },
	{ "no-results", 0, OPTION_FLAG, O(no_results), NULL, NULL, 0, 0, "leave results where they are" },
	{ "quiet", 'q', OPTION_FLAG, O(quiet), NULL, NULL, 0, 0, "no progress line" },
	JSON_ROW,
	END_ROW,
};
static const struct option wait_options[] = {
	{ "quiet", 'q', OPTION_FLAG, O(quiet), NULL, NULL, 0, 0, "print nothing" },
	JSON_ROW,
	END_ROW,
};
static const struct option ps_options[] = {
	{ "all", 'a', OPTION_FLAG, O(all), NULL, NULL, 0, 0, "also those that are over" },
	{ "user", 'u', OPTION_STR, O(user), "NAME", NULL, 0, 0, "of this user (administrators)" },
	JSON_ROW,
	END_ROW,
};
static const struct option logs_options[] = {
	{ "follow", 'f', OPTION_FLAG, O(follow), NULL, NULL, 0, 0, "until the job is over" },
	{ "offset", 0, OPTION_U64, O(offset), "BYTES", NULL, 0, 0, "begin there" },
	END_ROW,
};
static const struct option show_options[] = { JSON_ROW, END_ROW };
static const struct option no_options[] = { END_ROW };

#define COMMAND(n, a, lo, hi, rows, fn, text, ...)                                               \
	{ .name = (n), .args = (a), .args_min = (lo), .args_max = (hi), .options = (rows),       \
	  .values_size = sizeof(struct guest_options), .run = (fn), .help = (text), ##__VA_ARGS__ }

const struct command cli_guest_commands[] = {
	COMMAND("run", "FILE|COMMAND [ARG...]", 1, SIZE_MAX, run_options, run_run,
		"run a job and stay with it: output here, its exit status at the end", .stop_at_args = true,
		.detail = "FILE is a job file (YAML) or a script with #RECLAIM or #SBATCH lines. Output is\n"
			  "forwarded across moves. Interrupt (Ctrl-C) cancels the job; close the terminal\n"
			  "and it goes on: 'reclaim wait JOB' finds it again."),
	COMMAND("submit", "FILE|COMMAND [ARG...]", 1, SIZE_MAX, submit_options, run_submit,
		"queue a job and print its id", .stop_at_args = true),
	COMMAND("ps", NULL, 0, 0, ps_options, run_ps, "your jobs"),
	COMMAND("show", "JOB", 1, 1, show_options, run_show, "all about one job: moves, images, failures"),
	COMMAND("logs", "JOB", 1, 1, logs_options, run_logs, "a job's output"),
	COMMAND("wait", "JOB...", 1, 64, wait_options, run_wait,
		"wait until a job is over; ends with its exit status"),
	COMMAND("results", "JOB [DIR]", 1, 2, no_options, run_results, "bring back a job's results"),
	COMMAND("cancel", "JOB...", 1, 64, no_options, run_cancel, "end a job"),
	{ .name = NULL },
};
