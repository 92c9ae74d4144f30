/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths that programs for spot machines already poll: AWS instance-action and
 * termination-time (with the token of IMDSv2), GCP instance/preempted, Azure
 * scheduledevents. The requests come from the guest: bounded, and parsed here alone.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "job/notice.h"

struct request {
	char method[8];
	char path[512]; /* with its query */
	const char *body;
	size_t body_len;
	bool keep_alive;
	bool google; /* Metadata-Flavor: Google */
};

static const char *header_end(const char *bytes, size_t len)
{
	const char *at = memmem(bytes, len, "\r\n\r\n", 4);

	return at ? at + 4 : NULL;
}

/* The value of a header inside the head, not NUL-terminated; NULL if absent. */
static const char *header_get(const char *head, size_t len, const char *name, size_t *ret_len)
{
	size_t name_len = strlen(name);

	for (const char *p = head, *end = head + len; p < end;) {
		const char *nl = memmem(p, (size_t)(end - p), "\r\n", 2);
		size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);

		if (n > name_len && p[name_len] == ':' && !strncasecmp(p, name, name_len)) {
			p += name_len + 1;
			n -= name_len + 1;
			while (n && (*p == ' ' || *p == '\t')) {
				p++;
				n--;
			}
			*ret_len = n;
			return p;
		}
		p += n + 2;
	}
	return NULL;
}

/* Bytes used, 0, -EPROTO or -EMSGSIZE. */
static int request_parse(const char *bytes, size_t len, struct request *ret)
{
	struct request q = { .keep_alive = true };
	const char *end = header_end(bytes, len), *line_end, *sp1, *sp2, *value;
	size_t head_len, value_len, content = 0;

	if (!end)
		return len >= METADATA_REQUEST_MAX ? -EMSGSIZE : 0;
	head_len = (size_t)(end - bytes);
	if (memchr(bytes, 0, head_len))
		return -EPROTO;
	line_end = memmem(bytes, head_len, "\r\n", 2);
	sp1 = memchr(bytes, ' ', (size_t)(line_end - bytes));
	sp2 = sp1 ? memchr(sp1 + 1, ' ', (size_t)(line_end - sp1 - 1)) : NULL;
	if (!sp2 || (size_t)(sp1 - bytes) >= sizeof(q.method) || (size_t)(sp2 - sp1 - 1) >= sizeof(q.path) ||
	    line_end - sp2 != 9 || strncmp(sp2 + 1, "HTTP/1.", 7))
		return -EPROTO;
	memcpy(q.method, bytes, (size_t)(sp1 - bytes));
	memcpy(q.path, sp1 + 1, (size_t)(sp2 - sp1 - 1));
	if (sp2[8] == '0')
		q.keep_alive = false;
	value = header_get(bytes, head_len, "Content-Length", &value_len);
	if (value) {
		if (value_len == 0 || value_len > 5)
			return -EPROTO;
		for (size_t i = 0; i < value_len; i++) {
			if (value[i] < '0' || value[i] > '9')
				return -EPROTO;
			content = content * 10 + (size_t)(value[i] - '0');
		}
	}
	if (header_get(bytes, head_len, "Transfer-Encoding", &value_len))
		return -EPROTO; /* nobody sends a body in chunks here */
	if (head_len + content > METADATA_REQUEST_MAX)
		return -EMSGSIZE;
	if (len < head_len + content)
		return 0;
	value = header_get(bytes, head_len, "Connection", &value_len);
	if (value && value_len == 5 && !strncasecmp(value, "close", 5))
		q.keep_alive = false;
	value = header_get(bytes, head_len, "Metadata-Flavor", &value_len);
	q.google = value && value_len == 6 && !strncasecmp(value, "Google", 6);
	q.body = end;
	q.body_len = content;
	*ret = q;
	return (int)(head_len + content);
}

static void respond(struct strbuf *out, const struct request *q, int status, const char *type,
		    const char *body)
{
	static const struct {
		int status;
		const char *text;
	} texts[] = { { 200, "OK" }, { 400, "Bad Request" }, { 403, "Forbidden" }, { 404, "Not Found" },
		      { 405, "Method Not Allowed" }, { 413, "Content Too Large" } };
	const char *text = "";

	for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
		if (texts[i].status == status)
			text = texts[i].text;
	(void)strbuf_printf(out,
			    "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
			    "Metadata-Flavor: Google\r\nServer: reclaim\r\nConnection: %s\r\n\r\n%s",
			    status, text, type, strlen(body), q && q->keep_alive ? "keep-alive" : "close",
			    q && !strcmp(q->method, "HEAD") ? "" : body);
}

static void respond_json(struct strbuf *out, const struct request *q, json_t *doc)
{
	CLEANUP_FREE char *text = doc ? json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

	respond(out, q, 200, "application/json", text ? text : "{}");
}

static void azure_events(struct strbuf *out, const struct request *q, const struct notice *n,
			 uint64_t now_boot_ns, uint64_t now_wall_ms)
{
	CLEANUP_JSON json_t *doc = NULL;
	char not_before[64] = "";

	if (n->kind == NOTICE_RECLAIM) {
		uint64_t left = n->deadline_ns > now_boot_ns ? n->deadline_ns - now_boot_ns : 0;
		time_t at = (time_t)((now_wall_ms + left / NS_PER_MS) / 1000);
		struct tm tm;

		(void)gmtime_r(&at, &tm);
		(void)strftime(not_before, sizeof(not_before), "%a, %d %b %Y %H:%M:%S GMT", &tm);
		doc = json_pack("{s:i,s:[{s:s,s:s,s:s,s:[s],s:s,s:s}]}", "DocumentIncarnation", 2, "Events",
				"EventId", n->id ? n->id : "reclaim", "EventType", "Preempt", "ResourceType",
				"VirtualMachine", "Resources", "reclaim", "EventStatus", "Scheduled",
				"NotBefore", not_before);
	} else {
		doc = json_pack("{s:i,s:[]}", "DocumentIncarnation", 1, "Events");
	}
	respond_json(out, q, doc);
}

static bool path_is(const struct request *q, const char *path)
{
	size_t n = strcspn(q->path, "?");

	while (n > 1 && q->path[n - 1] == '/')
		n--;
	return strlen(path) == n && !strncmp(q->path, path, n);
}

/* AWS lets "latest" be a date, and clients differ. */
static bool aws_path_is(const struct request *q, const char *below)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "/latest/%s", below);
	if (path_is(q, path))
		return true;
	(void)snprintf(path, sizeof(path), "/2021-07-15/%s", below);
	return path_is(q, path);
}

static void answer_get(const struct notice *n, bool changed, uint64_t now_boot_ns, uint64_t now_wall_ms,
		       const struct request *q, struct strbuf *out, struct metadata_effect *effect)
{
	bool reclaim = n->kind == NOTICE_RECLAIM;
	CLEANUP_JSON json_t *doc = reclaim ? notice_document(n, now_boot_ns, now_wall_ms) : NULL;

	if (aws_path_is(q, "meta-data/spot/instance-action")) {
		if (reclaim)
			respond_json(out, q, doc);
		else
			respond(out, q, 404, "text/plain", "");
	} else if (aws_path_is(q, "meta-data/spot/termination-time")) {
		if (reclaim)
			respond(out, q, 200, "text/plain", json_string_value(json_object_get(doc, "time")));
		else
			respond(out, q, 404, "text/plain", "");
	} else if (path_is(q, "/computeMetadata/v1/instance/preempted")) {
		if (!q->google) {
			respond(out, q, 403, "text/plain", "Metadata-Flavor: Google is missing\n");
		} else if (strstr(q->path, "wait_for_change=true") && !changed && !reclaim) {
			effect->wait = true;
		} else {
			respond(out, q, 200, "text/plain", reclaim ? "TRUE" : "FALSE");
		}
	} else if (path_is(q, "/metadata/scheduledevents")) {
		azure_events(out, q, n, now_boot_ns, now_wall_ms);
	} else {
		respond(out, q, 404, "text/plain", "");
	}
}

int metadata_answer(const struct notice *n, bool changed, uint64_t now_boot_ns, uint64_t now_wall_ms,
		    const char *bytes, size_t len, struct strbuf *out, struct metadata_effect *ret)
{
	struct metadata_effect effect = { 0 };
	struct request q;
	int used = request_parse(bytes, len, &q);

	if (used == 0)
		return 0;
	if (used < 0) {
		respond(out, NULL, used == -EMSGSIZE ? 413 : 400, "text/plain", "");
		effect.close = true;
		*ret = effect;
		return used;
	}
	effect.close = !q.keep_alive;
	if (!strcmp(q.method, "GET") || !strcmp(q.method, "HEAD")) {
		answer_get(n, changed, now_boot_ns, now_wall_ms, &q, out, &effect);
	} else if (!strcmp(q.method, "PUT") && aws_path_is(&q, "api/token")) {
		/* The namespace is the fence here; the token only has to exist. */
		respond(out, &q, 200, "text/plain", "reclaim-token");
	} else if (!strcmp(q.method, "POST") && path_is(&q, "/metadata/scheduledevents")) {
		effect.ack = q.body_len && memmem(q.body, q.body_len, "StartRequests", 13);
		respond(out, &q, effect.ack ? 200 : 400, "application/json", "{}");
	} else {
		respond(out, &q, 405, "text/plain", "");
	}
	*ret = effect;
	return used;
}
