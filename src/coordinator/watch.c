/* SPDX-License-Identifier: Apache-2.0 */
/*
 * People who follow: a log's bytes, one job's changes, or all changes. What
 * changed is collected and told once per turn of the loop, so that a reader
 * sees each state that lasted, and a burst costs one line.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "coordinator/server.h"

#define LOG_AHEAD_MAX (256u << 10) /* bytes queued for one reader of a log */
#define LOG_CHUNK 65536

struct watcher {
	struct coordinator *c;
	enum watch_kind kind;
	struct http_stream *stream;
	char job[CONTROL_NAME_MAX + 1];
	char user[IDENTITY_NAME_MAX + 1]; /* WATCH_ALL: whose jobs; "" = everybody's */
	char *last; /* the line told last, to leave out what changed nothing visible */
	uint64_t offset;
	bool ended;
	struct watcher *next, **link;
};

static void watcher_gone(struct http_stream *s, void *data)
{
	struct watcher *w = data;
	*w->link = w->next;
	if (w->next)
		w->next->link = w->link;
	free(w->last);
	free(w);
}

static void watcher_end(struct watcher *w)
{
	w->ended = true;
	http_stream_on_drain(w->stream, NULL);
	http_stream_end(w->stream);
}

/* The job's present view as one line; NULL if it is unknown. final says whether it is over. */
static char *job_line(struct coordinator *c, const char *id, const char *user, bool *ret_final)
{
	struct rest_job job;
	if (!engine_job(c->engine, id, &job))
		return NULL;
	if (user[0] && (!job.user || strcmp(job.user, user) != 0))
		return NULL;
	*ret_final = rest_job_state_is_final((enum rest_job_state)job.state);
	CLEANUP_JSON json_t *out = schema_encode(&rest_job_schema, &job);
	char *text = out ? json_dumps(out, JSON_COMPACT) : NULL;
	size_t len = text ? strlen(text) : 0;
	char *line = text ? realloc(text, len + 2) : NULL;
	if (!line) {
		free(text);
		return NULL;
	}
	line[len] = '\n';
	line[len + 1] = 0;
	return line;
}

static void tell_job(struct watcher *w, const char *id)
{
	bool final = false;
	char *line = job_line(w->c, id, w->user, &final);
	if (!line) {
		if (w->kind == WATCH_JOB)
			watcher_end(w);
		return;
	}
	if (!w->last || strcmp(w->last, line) != 0)
		(void)http_stream_write(w->stream, line, strlen(line)); /* too slow: it is closed */
	free(w->last);
	w->last = line;
	if (final && w->kind == WATCH_JOB)
		watcher_end(w);
}

static void tell_log(struct watcher *w)
{
	struct joblog *l = coordinator_log(w->c, w->job);
	struct rest_job job;
	char buf[LOG_CHUNK];
	while (l && w->offset < joblog_length(l) && http_stream_queued(w->stream) < LOG_AHEAD_MAX) {
		size_t want = (size_t)MIN(joblog_length(l) - w->offset, (uint64_t)sizeof(buf));
		ssize_t n = pread(joblog_fd(l), buf, want, (off_t)w->offset);
		if (n <= 0 || http_stream_write(w->stream, buf, (size_t)n) < 0)
			return;
		w->offset += (uint64_t)n;
	}
	if (l && w->offset < joblog_length(l))
		return; /* goes on when the queue has drained */
	if (!engine_job(w->c->engine, w->job, &job) ||
	    rest_job_state_is_final((enum rest_job_state)job.state))
		watcher_end(w);
}

static void log_drained(struct http_stream *s, void *data)
{
	struct watcher *w = data;
	if (!w->ended)
		tell_log(w);
}

void watch_open(struct coordinator *c, struct http_request *r, enum watch_kind kind,
		const char *job, uint64_t offset)
{
	struct watcher *w = calloc(1, sizeof(*w));
	const struct identity_peer *peer = http_request_peer(r);
	if (!w) {
		http_reply_error(r, 503, "out of memory");
		return;
	}
	w->c = c;
	w->kind = kind;
	w->offset = offset;
	snprintf(w->job, sizeof(w->job), "%s", job ? job : "");
	if (kind == WATCH_ALL && peer->role != IDENTITY_ADMIN)
		snprintf(w->user, sizeof(w->user), "%s", peer->name);
	w->next = c->watchers;
	w->link = &c->watchers;
	if (w->next)
		w->next->link = &w->next;
	c->watchers = w;
	w->stream = http_stream_open(r, kind == WATCH_LOG ? "text/plain; charset=utf-8" :
							    "application/x-ndjson", watcher_gone, w);
	if (kind == WATCH_LOG) {
		http_stream_on_drain(w->stream, log_drained);
	} else if (kind == WATCH_JOB) {
		tell_job(w, w->job);
	} else {
		size_t pos = 0;
		for (const char *id; (id = engine_job_next(c->engine, &pos));)
			tell_job(w, id);
	}
}

static void flush(void *user)
{
	struct coordinator *c = user;
	const void *key;
	size_t key_len;
	void *value;
	c->flush_due = false;
	for (size_t i = 0; map_next(c->changed, &i, &key, &key_len, &value);) {
		char id[CONTROL_NAME_MAX + 1];
		snprintf(id, sizeof(id), "%.*s", (int)key_len, (const char *)key);
		for (struct watcher *w = c->watchers, *next; w; w = next) {
			next = w->next;
			if (w->ended || (w->kind != WATCH_ALL && strcmp(w->job, id) != 0))
				continue;
			if (w->kind == WATCH_LOG)
				tell_log(w);
			else
				tell_job(w, id);
		}
	}
	map_free(c->changed);
	CHECK(map_new(&c->changed) == 0);
}

void watch_changed(struct coordinator *c, const char *job)
{
	if (!c->watchers || map_set_str(c->changed, job, c, NULL) < 0 || c->flush_due)
		return;
	c->flush_due = loop_defer(c->loop, flush, c) == 0;
}

void watch_close_all(struct coordinator *c)
{
	for (struct watcher *w = c->watchers; w; w = w->next)
		if (!w->ended)
			watcher_end(w);
}
