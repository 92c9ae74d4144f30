/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers: whole ones (a buffer, or a descriptor) and streams without a known
 * end. Everything is queued on the request and written when libwebsockets
 * says that the connection takes more. A stream is delimited by the closing
 * of its connection.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "io/http_internal.h"

#define LINGER_S 5

static const struct {
	int status;
	const char *text;
} reasons[] = {
	{ 200, "OK" },		  { 201, "Created" },	   { 202, "Accepted" },
	{ 204, "No Content" },	  { 400, "Bad Request" },  { 401, "Unauthorized" },
	{ 403, "Forbidden" },	  { 404, "Not Found" },	   { 405, "Method Not Allowed" },
	{ 409, "Conflict" },	  { 410, "Gone" },	   { 411, "Length Required" },
	{ 413, "Content Too Large" }, { 414, "URI Too Long" }, { 429, "Too Many Requests" },
	{ 500, "Internal Server Error" }, { 503, "Service Unavailable" },
	{ 507, "Insufficient Storage" },
};

static const char *reason_of(int status)
{
	for (size_t i = 0; i < ARRAY_SIZE(reasons); i++)
		if (reasons[i].status == status)
			return reasons[i].text;
	return "Status";
}

/* ---- the request's side ---- */

const char *http_request_method(const struct http_request *r)
{
	return r->route ? r->route->method : "";
}

const char *http_request_path(const struct http_request *r)
{
	return r->path;
}

const struct identity_peer *http_request_peer(const struct http_request *r)
{
	return &r->peer;
}

uid_t http_request_uid(const struct http_request *r)
{
	return r->uid;
}

const char *http_request_address(const struct http_request *r)
{
	return r->address;
}

const char *http_request_param(const struct http_request *r, size_t i)
{
	CHECK(i < HTTP_PARAMS_MAX);
	return r->params[i];
}

const char *http_request_query(const struct http_request *r, const char *name)
{
	size_t len = strlen(name);
	for (size_t i = 0; i < r->queries_count; i++)
		if (strncmp(r->queries[i], name, len) == 0 && r->queries[i][len] == '=')
			return r->queries[i] + len + 1;
	return NULL;
}

const void *http_request_data(const struct http_request *r)
{
	return r->route->data;
}

json_t *http_request_json(const struct http_request *r)
{
	return r->json;
}

const char *http_request_body(const struct http_request *r, size_t *ret_len)
{
	*ret_len = r->body.len;
	return r->body.data ? r->body.data : "";
}

const char *http_request_file(const struct http_request *r, uint64_t *ret_size,
			      char ret_sha256[IDENTITY_DIGEST_HEX + 1])
{
	CHECK(r->file_fd >= 0);
	*ret_size = r->body_got;
	memcpy(ret_sha256, r->file_sha256, sizeof(r->file_sha256));
	return r->file_path;
}

void http_request_on_gone(struct http_request *r, void (*fn)(void *data), void *data)
{
	r->on_gone = fn;
	r->on_gone_data = data;
}

void http_request_free(struct http_request *r)
{
	for (size_t i = 0; i < r->queries_count; i++)
		free(r->queries[i]);
	strbuf_done(&r->body);
	strbuf_done(&r->out);
	json_decref(r->json);
	EVP_MD_CTX_free(r->file_md);
	if (r->file_fd >= 0)
		close(r->file_fd);
	if (r->file_path[0])
		(void)unlink(r->file_path); /* the handler may have renamed it away */
	if (r->out_fd >= 0)
		close(r->out_fd);
	free(r);
}

static void stream_gone(struct http_request *r)
{
	struct http_stream *st = &r->stream;
	if (!st->request || st->gone)
		return;
	st->gone = true;
	if (st->on_gone)
		st->on_gone(st, st->data);
}

void http_request_detach(struct http_request *r)
{
	if (r->conn) {
		r->conn->request = NULL;
		r->conn = NULL;
	}
	if (r->stream.request) {
		stream_gone(r);
		http_request_free(r);
	} else if (r->answered || !r->route || !r->dispatched) {
		http_request_free(r);
	} else if (r->on_gone) {
		void (*fn)(void *data) = r->on_gone;
		void *data = r->on_gone_data;
		http_request_free(r);
		fn(data);
	}
	/* else: a handler still holds it, and frees it by answering */
}

/* ---- the answer's side ---- */

static void reply_start(struct http_request *r, int status, const char *type, uint64_t len,
			bool known_len)
{
	CHECK(!r->answered);
	r->answered = true;
	strbuf_printf(&r->out,
		      "HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncache-control: no-store\r\n"
		      "x-content-type-options: nosniff\r\n",
		      status, reason_of(status), type);
	if (r->server->config.admit_local)
		strbuf_add(&r->out, "content-security-policy: default-src 'self'; frame-ancestors 'none'\r\n"
				    "x-frame-options: DENY\r\nreferrer-policy: no-referrer\r\n");
	if (known_len)
		strbuf_printf(&r->out, "content-length: %llu\r\n", (unsigned long long)len);
	else
		r->close_after = true;
	strbuf_add(&r->out, r->close_after ? "connection: close\r\n\r\n" :
					     "connection: keep-alive\r\n\r\n");
}

/* Queues the answer for writing, or drops it if nobody waits for it any more. */
static void reply_send(struct http_request *r)
{
	r->reply = REPLY_READY;
	if (!r->conn) {
		http_request_free(r);
		return;
	}
	if (r->out.failed)
		r->conn->closing = true;
	lws_callback_on_writable(r->conn->wsi);
}

void http_reply_bytes(struct http_request *r, int status, const char *type, const void *bytes,
		      size_t len)
{
	reply_start(r, status, type, len, true);
	if (len)
		strbuf_append(&r->out, bytes, len);
	reply_send(r);
}

void http_reply_json(struct http_request *r, int status, json_t *body)
{
	CLEANUP_FREE char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	if (body && !text)
		http_reply_bytes(r, 500, "application/json", "{}", 2);
	else
		http_reply_bytes(r, status, "application/json", text ? text : "",
				 text ? strlen(text) : 0);
	json_decref(body);
}

static void reply_problem(struct http_request *r, int status, const char *where, const char *what)
{
	json_t *body = json_pack("{s:{s:i,s:s,s:s}}", "error", "status", status, "where", where,
				 "what", what);
	if (!body)
		body = json_pack("{s:{s:i,s:s,s:s}}", "error", "status", status, "where", "", "what",
				 "(not text)");
	http_reply_json(r, status, body);
}

void http_reply_error(struct http_request *r, int status, const char *fmt, ...)
{
	char what[DIAG_WHAT_MAX];
	va_list args;
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	reply_problem(r, status, "", what);
}

void http_reply_diag(struct http_request *r, int status, const struct diag *diag)
{
	reply_problem(r, status, diag->where, diag->what);
}

void http_reply_fd(struct http_request *r, const char *type, int fd, uint64_t offset, uint64_t len)
{
	reply_start(r, 200, type ? type : "application/octet-stream", len, true);
	r->out_fd = fd;
	r->out_fd_offset = offset;
	r->out_fd_left = len;
	reply_send(r);
}

/* ---- streams ---- */

struct http_stream *http_stream_open(struct http_request *r, const char *type,
				     void (*on_gone)(struct http_stream *s, void *data), void *data)
{
	reply_start(r, 200, type, 0, false);
	r->stream = (struct http_stream){ .request = r, .on_gone = on_gone, .data = data };
	r->reply = REPLY_READY;
	if (r->conn)
		lws_callback_on_writable(r->conn->wsi);
	return &r->stream;
}

int http_stream_write(struct http_stream *s, const void *bytes, size_t len)
{
	struct http_request *r = s->request;
	if (s->gone || s->ended || !r->conn || r->conn->closing)
		return -EPIPE;
	if (r->out.len - r->out_at + len > HTTP_STREAM_QUEUE_MAX ||
	    strbuf_append(&r->out, bytes, len) < 0) {
		r->conn->closing = true;
		lws_callback_on_writable(r->conn->wsi);
		return -ENOBUFS;
	}
	lws_callback_on_writable(r->conn->wsi);
	return 0;
}

int http_stream_json(struct http_stream *s, json_t *line)
{
	CLEANUP_FREE char *text = json_dumps(line, JSON_COMPACT);
	if (!text)
		return -ENOMEM;
	size_t len = strlen(text);
	text[len] = '\n'; /* in place of the NUL: the length goes along */
	return http_stream_write(s, text, len + 1);
}

size_t http_stream_queued(const struct http_stream *s)
{
	return s->request->out.len - s->request->out_at;
}

void http_stream_on_drain(struct http_stream *s, void (*fn)(struct http_stream *s, void *data))
{
	s->on_drain = fn;
	if (fn && s->request->conn)
		lws_callback_on_writable(s->request->conn->wsi);
}

void http_stream_end(struct http_stream *s)
{
	s->ended = true;
	if (s->request->conn)
		lws_callback_on_writable(s->request->conn->wsi);
}

/* ---- writing ---- */

/* More of the body from the descriptor into the buffer; -1 when the file is shorter than said. */
static int refill_from_fd(struct http_request *r)
{
	char chunk[HTTP_CHUNK];
	size_t want = (size_t)MIN(r->out_fd_left, (uint64_t)sizeof(chunk));
	ssize_t n = pread(r->out_fd, chunk, want, (off_t)r->out_fd_offset);
	if (n <= 0)
		return -1;
	r->out_fd_offset += (uint64_t)n;
	r->out_fd_left -= (uint64_t)n;
	return strbuf_append(&r->out, chunk, (size_t)n) < 0 ? -1 : 0;
}

static int write_some(struct http_conn *c, struct http_request *r)
{
	unsigned char buf[LWS_PRE + HTTP_CHUNK];
	size_t n = MIN(r->out.len - r->out_at, (size_t)HTTP_CHUNK);
	memcpy(buf + LWS_PRE, r->out.data + r->out_at, n);
	if (lws_write(c->wsi, buf + LWS_PRE, n, LWS_WRITE_HTTP) < (int)n)
		return -1;
	r->out_at += n;
	if (r->out_at == r->out.len) {
		strbuf_clear(&r->out);
		r->out_at = 0;
	} else if (r->out_at > (1u << 20)) {
		strbuf_consume(&r->out, r->out_at);
		r->out_at = 0;
	}
	return 0;
}

int http_reply_pump(struct http_conn *c)
{
	struct http_request *r = c->request;
	if (c->closing)
		return -1;
	if (!r || r->reply == REPLY_NONE)
		return 0;
	if (r->out.len == r->out_at && r->out_fd_left > 0 && refill_from_fd(r) < 0)
		return -1;
	if (r->out.len > r->out_at) {
		if (write_some(c, r) < 0)
			return -1;
		lws_callback_on_writable(c->wsi);
		return 0;
	}
	if (r->stream.request && !r->stream.ended) {
		if (r->stream.on_drain)
			r->stream.on_drain(&r->stream, r->stream.data);
		return c->closing ? -1 : 0;
	}
	bool close_after = r->close_after;
	if (close_after && !r->stream.request && r->body_got < r->body_len) {
		/* A refused body is still coming: closing now would reset the connection and take
		 * the answer with it. The rest is dropped, for a while. */
		lws_set_timeout(c->wsi, PENDING_TIMEOUT_HTTP_CONTENT, LINGER_S);
		return 0;
	}
	http_request_detach(r);
	if (close_after)
		return -1;
	return lws_http_transaction_completed(c->wsi) ? -1 : 0;
}
