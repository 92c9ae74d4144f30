/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two connections: one streams the job's state line by line (this thread), one
 * its output (a second thread). Each reconnects by itself, the output from the
 * byte after the last one written, so that no line is lost or shown twice.
 */
#include "cli/follow.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"

#define RETRY_MS 300
/* A coordinator that does not come back in this time is an error to say, not to sit out. */
#define AWAY_MAX_NS (600 * NS_PER_S)

static volatile sig_atomic_t interrupted;
static pthread_mutex_t terminal = PTHREAD_MUTEX_INITIALIZER;

struct follow {
	const struct cli_context *ctx;
	const struct follow_options *options;
	char id[CONTROL_NAME_MAX + 1];
	struct rest_job job;
	bool have, tty, line_shown, cancel_sent;
	char last_words[160];
	atomic_bool over;
	uint64_t offset;
	int output_error;
};

static void on_interrupt(int signum)
{
	interrupted = signum;
}

static void retry_pause(void)
{
	/* Nothing to wait on: the peer is away. */
	struct timespec t = { 0, RETRY_MS * 1000000L };
	(void)nanosleep(&t, NULL);
}

static bool is_away(int r)
{
	return http_client_went_away(r) || r == -EAGAIN || r == -EREMOTEIO;
}

/* ---- output ---- */

static void line_clear(struct follow *f)
{
	if (f->line_shown)
		(void)fputs("\r\033[K", stderr);
	f->line_shown = false;
}

static int on_output(void *user, const char *bytes, size_t len)
{
	struct follow *f = user;
	(void)pthread_mutex_lock(&terminal);
	line_clear(f);
	int r = fd_write_all(STDOUT_FILENO, bytes, len);
	(void)pthread_mutex_unlock(&terminal);
	if (r < 0)
		return r;
	f->offset += len;
	return 0;
}

static int output_once(struct follow *f, bool follow)
{
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	struct diag diag = DIAG_INIT;
	char path[256];
	int r = http_client_open(f->ctx->identity, f->ctx->address, &c, &diag);
	if (r == 0)
		r = path_format(path, sizeof(path), "/v1/jobs/%s/logs?offset=%llu&follow=%d", f->id,
				(unsigned long long)f->offset, follow);
	if (r < 0)
		return r;
	http_client_set_timeout(c, 0);
	r = http_client_stream(c, path, on_output, f, &diag);
	if (r < 0 && !is_away(r))
		(void)cli_fail(&diag);
	return r;
}

static void *output_thread(void *arg)
{
	struct follow *f = arg;
	for (;;) {
		bool last = atomic_load(&f->over);
		int r = output_once(f, true);
		if (r == 0 && (last || atomic_load(&f->over)))
			return NULL;
		if (r < 0 && !is_away(r)) {
			f->output_error = r;
			return NULL;
		}
		if (r < 0)
			retry_pause();
	}
}

/* ---- state ---- */

static void say_state(struct follow *f)
{
	const struct rest_job *j = &f->job;
	char a[FORMAT_MAX], b[FORMAT_MAX], words[160], line[512];
	uint64_t now = clock_wall_ms();
	size_t moves = j->moves_count ? j->moves_count - 1 : 0;
	(void)snprintf(words, sizeof(words), "%s %s%s%s", j->id, rest_job_state_names[j->state],
		       j->node ? " on " : "", j->node ? j->node : "");
	if (!f->tty) {
		/* Not a terminal: one line per change that a person would care about. */
		if (strcmp(words, f->last_words) != 0)
			(void)fprintf(stderr, "reclaim: %s%s%.200s\n", words, j->reason ? ": " : "",
				      j->reason ? j->reason : "");
		memcpy(f->last_words, words, sizeof(words));
		return;
	}
	if (j->durable_at_ms)
		(void)snprintf(line, sizeof(line), "%s | durable %s ago, %s | moves %zu", words,
			       format_duration((now > j->durable_at_ms ? now - j->durable_at_ms : 0) * NS_PER_MS, a),
			       format_size(j->durable_bytes, b), moves);
	else
		(void)snprintf(line, sizeof(line), "%s | nothing durable yet | moves %zu%s%.100s", words, moves,
			       j->reason ? " | " : "", j->reason ? j->reason : "");
	(void)fprintf(stderr, "\r\033[K%.*s", 110, line);
	f->line_shown = true;
}

static int on_event(void *user, const char *line, size_t len)
{
	struct follow *f = user;
	struct diag diag = DIAG_INIT;
	CLEANUP_JSON json_t *in = json_loadb(line, len, 0, NULL);
	struct rest_job next;
	if (!in || schema_decode(&rest_job_schema, in, SCHEMA_OPEN, NULL, &next, &diag) < 0)
		return 0; /* an empty keep-alive line, or a newer server's event */
	if (f->have)
		schema_done(&rest_job_schema, &f->job);
	f->job = next;
	f->have = true;
	(void)snprintf(f->id, sizeof(f->id), "%s", next.id);
	if (f->options->progress) {
		(void)pthread_mutex_lock(&terminal);
		say_state(f);
		(void)pthread_mutex_unlock(&terminal);
	}
	if (rest_job_state_is_final(next.state))
		return 1;
	return interrupted ? -EINTR : 0;
}

static void cancel_job(struct follow *f)
{
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	struct diag diag = DIAG_INIT;
	char path[256];
	CLEANUP_JSON json_t *in = NULL;
	if (f->cancel_sent || http_client_open(f->ctx->identity, f->ctx->address, &c, &diag) < 0 ||
	    path_format(path, sizeof(path), "/v1/jobs/%s/cancel", f->id) < 0)
		return;
	if (http_client_call(c, "POST", path, NULL, &in, &diag) == 0)
		f->cancel_sent = true;
	interrupted = 0;
}

static int events_until_final(struct follow *f)
{
	uint64_t away_since = 0;
	for (;;) {
		CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
		struct diag diag = DIAG_INIT;
		char path[256], escaped[128];
		int r = http_client_escape(f->id, escaped, sizeof(escaped));
		if (r == 0)
			r = path_format(path, sizeof(path), "/v1/jobs/%s/events", escaped);
		if (r == 0)
			r = http_client_open(f->ctx->identity, f->ctx->address, &c, &diag);
		if (r == 0) {
			http_client_set_timeout(c, 0);
			r = http_client_lines(c, path, on_event, f, &diag);
		}
		if (r == 1)
			return 0;
		if (interrupted && f->options->cancel_on_interrupt) {
			cancel_job(f);
			continue;
		}
		if (interrupted)
			return -EINTR;
		if (r < 0 && !is_away(r))
			return cli_fail(&diag), r;
		uint64_t now = clock_boot_ns();
		if (r == 0)
			away_since = 0;
		else if (!away_since)
			away_since = now;
		if (away_since && now - away_since > AWAY_MAX_NS)
			return cli_fail(&diag), r;
		retry_pause();
	}
}

int follow_job(const struct cli_context *ctx, const char *id, const struct follow_options *o,
	       struct rest_job *ret)
{
	struct follow f = { .ctx = ctx, .options = o, .tty = isatty(STDERR_FILENO) };
	pthread_t thread;
	if (path_format(f.id, sizeof(f.id), "%s", id) < 0)
		return cli_failf("'%.80s' is no job id", id), -EINVAL;
	struct sigaction act = { .sa_handler = on_interrupt }, before;
	(void)sigaction(SIGINT, &act, &before);
	bool threaded = o->output && pthread_create(&thread, NULL, output_thread, &f) == 0;
	int r = events_until_final(&f);
	atomic_store(&f.over, true);
	if (threaded && r == 0)
		(void)pthread_join(thread, NULL);
	(void)sigaction(SIGINT, &before, NULL);
	(void)pthread_mutex_lock(&terminal);
	line_clear(&f);
	(void)pthread_mutex_unlock(&terminal);
	if (r == 0 && f.output_error < 0)
		r = f.output_error;
	if (r < 0 && f.have)
		schema_done(&rest_job_schema, &f.job);
	if (r == 0)
		*ret = f.job;
	return r;
}

int follow_logs(const struct cli_context *ctx, const char *id, uint64_t offset, bool follow)
{
	static const struct follow_options o = { .output = true };
	struct follow f = { .ctx = ctx, .options = &o, .offset = offset };
	if (path_format(f.id, sizeof(f.id), "%s", id) < 0)
		return cli_failf("'%.80s' is no job id", id), -EINVAL;
	for (;;) {
		int r = output_once(&f, follow);
		if (!follow || r == 0 || !is_away(r))
			return r < 0 && is_away(r) ? (cli_failf("%s: not in reach", ctx->address), r) : r;
		retry_pause();
	}
}
