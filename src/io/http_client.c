/* SPDX-License-Identifier: Apache-2.0 */
/* REST over libcurl. The server is judged by chain and role, never by host name. */
#include "io/http_client.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/file.h"
#include "base/strbuf.h"

#define LINE_MAX_BYTES (1u << 20)

struct http_client {
	CURL *curl;
	char base[320];
	const struct identity *id;
	char fingerprint[IDENTITY_DIGEST_HEX + 1];
	uint64_t timeout_ms;
};

/* Where the bytes of an answer go. A failure's body is always kept: it holds the reason. */
struct answer {
	struct http_client *client;
	struct strbuf kept;
	struct strbuf line;
	int fd; /* -1, or where the bytes go */
	int (*lines)(void *user, const char *line, size_t len);
	int (*bytes)(void *user, const char *bytes, size_t len);
	void *user;
	uint64_t size;
	int result; /* of fd or of a callback */
};

static CURLcode set_tls(CURL *curl, void *ssl_ctx, void *user)
{
	struct http_client *c = user;
	int r = c->id ? identity_tls_setup_client(c->id, IDENTITY_COORDINATOR, ssl_ctx) :
			identity_tls_setup_fingerprint(c->fingerprint, ssl_ctx);
	return r < 0 ? CURLE_SSL_CERTPROBLEM : CURLE_OK;
}

static int client_open(const char *address, struct http_client **ret, struct diag *diag)
{
	static bool initialised;
	const char *colon = strrchr(address, ':');
	if (!colon || strlen(address) > 280 || strpbrk(address, "/@ ?#"))
		return diag_set(diag, -EINVAL, "address", "\"%.100s\" is not HOST:PORT", address);
	if (!initialised && curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
		return diag_set(diag, -EIO, "", "libcurl cannot start");
	initialised = true;
	struct http_client *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->timeout_ms = 30000;
	snprintf(c->base, sizeof(c->base), "https://%s", address);
	c->curl = curl_easy_init();
	if (!c->curl) {
		free(c);
		return -ENOMEM;
	}
	*ret = c;
	return 0;
}

int http_client_open(const struct identity *id, const char *address, struct http_client **ret,
		     struct diag *diag)
{
	struct http_client *c;
	int r = client_open(address, &c, diag);
	if (r < 0)
		return r;
	c->id = id;
	*ret = c;
	return 0;
}

int http_client_open_fingerprint(const char *ca_fingerprint, const char *address,
				 struct http_client **ret, struct diag *diag)
{
	struct http_client *c;
	if (strlen(ca_fingerprint) != IDENTITY_DIGEST_HEX)
		return diag_set(diag, -EINVAL, "fingerprint", "is not %d hexadecimal digits",
				IDENTITY_DIGEST_HEX);
	int r = client_open(address, &c, diag);
	if (r < 0)
		return r;
	memcpy(c->fingerprint, ca_fingerprint, sizeof(c->fingerprint));
	*ret = c;
	return 0;
}

void http_client_close(struct http_client *c)
{
	if (!c)
		return;
	curl_easy_cleanup(c->curl);
	free(c);
}

void http_client_set_timeout(struct http_client *c, uint64_t timeout_ms)
{
	c->timeout_ms = timeout_ms;
}

static int feed_lines(struct answer *a, const char *bytes, size_t len)
{
	int r = strbuf_append(&a->line, bytes, len);
	size_t start = 0;
	while (r == 0 && start < a->line.len) {
		char *end = memchr(a->line.data + start, '\n', a->line.len - start);
		if (!end)
			break;
		*end = 0;
		r = a->lines(a->user, a->line.data + start, (size_t)(end - a->line.data) - start);
		start = (size_t)(end - a->line.data) + 1;
	}
	strbuf_consume(&a->line, start);
	return r == 0 && a->line.len > LINE_MAX_BYTES ? -EMSGSIZE : r;
}

static size_t take_bytes(char *bytes, size_t size, size_t count, void *user)
{
	struct answer *a = user;
	size_t len = size * count;
	long status = 0;
	curl_easy_getinfo(a->client->curl, CURLINFO_RESPONSE_CODE, &status);
	bool failed = status < 200 || status > 299;
	if (failed || (a->fd < 0 && !a->lines && !a->bytes)) {
		if (a->kept.len + len > HTTP_CLIENT_BODY_MAX)
			a->result = -EFBIG;
		else
			a->result = strbuf_append(&a->kept, bytes, len);
	} else if (a->fd >= 0) {
		a->result = fd_write_all(a->fd, bytes, len);
	} else if (a->lines) {
		a->result = feed_lines(a, bytes, len);
	} else {
		a->result = a->bytes(a->user, bytes, len);
	}
	a->size += len;
	return a->result == 0 ? len : 0;
}

static int errno_of_status(long status)
{
	switch (status) {
	case 400: case 411: case 414: return -EINVAL;
	case 401: case 403: return -EACCES;
	case 404: case 405: return -ENOENT;
	case 409: return -EEXIST;
	case 410: return -ESTALE;
	case 413: return -EFBIG;
	case 429: case 503: return -EAGAIN;
	case 507: return -ENOSPC;
	default: return -EREMOTEIO;
	}
}

static int status_result(struct http_client *c, struct answer *a, struct diag *diag)
{
	long status = 0;
	curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status >= 200 && status <= 299)
		return 0;
	int err = errno_of_status(status);
	CLEANUP_JSON json_t *body =
		a->kept.len ? json_loadb(a->kept.data, a->kept.len, 0, NULL) : NULL;
	const char *where = "", *what = NULL;
	if (json_unpack(body, "{s:{s?s,s:s}}", "error", "where", &where, "what", &what) < 0 || !what)
		return diag_set(diag, err, "coordinator", "answered with status %ld", status);
	return diag_set(diag, err, where, "%s", what);
}

static int curl_result(struct http_client *c, CURLcode code, const char *error, struct diag *diag)
{
	const char *detail = error[0] ? error : curl_easy_strerror(code);
	long os_errno = 0;
	(void)curl_easy_getinfo(c->curl, CURLINFO_OS_ERRNO, &os_errno);
	/* A server that goes away in the handshake was there, and refuses nobody: that is an alert. */
	if (code == CURLE_SSL_CONNECT_ERROR && !strstr(detail, "alert") &&
	    (os_errno == ECONNRESET || os_errno == EPIPE || strstr(detail, "reset by peer") ||
	     strstr(detail, "SSL_ERROR_SYSCALL") || strstr(detail, "unexpected eof")))
		return diag_set(diag, -ECONNRESET, c->base + 8, "the connection broke: %s", detail);
	switch (code) {
	case CURLE_COULDNT_CONNECT:
	case CURLE_COULDNT_RESOLVE_HOST:
		return diag_set(diag, -ECONNREFUSED, c->base + 8, "the coordinator cannot be reached: %s",
				detail);
	case CURLE_OPERATION_TIMEDOUT:
		return diag_set(diag, -ETIMEDOUT, c->base + 8, "the coordinator does not answer: %s", detail);
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_SSL_CERTPROBLEM:
		return diag_set(diag, -EACCES, c->base + 8,
				"is not our coordinator, or refuses our certificate: %s", detail);
	default:
		return diag_set(diag, -EPIPE, c->base + 8, "the connection broke: %s", detail);
	}
}

static size_t give_bytes(char *bytes, size_t size, size_t count, void *user)
{
	ssize_t n = read(*(int *)user, bytes, size * count);
	return n < 0 ? CURL_READFUNC_ABORT : (size_t)n;
}

/* One exchange; the body is text (with its length) or comes from a descriptor. */
struct exchange {
	const char *method;
	const char *path;
	const char *text;
	int fd;
	uint64_t size;
	bool from_fd;
};

static int perform(struct http_client *c, const struct exchange *e, struct answer *a,
		   struct diag *diag)
{
	CURL *curl = c->curl;
	char url[4096], error[CURL_ERROR_SIZE] = "";
	int n = snprintf(url, sizeof(url), "%s%s", c->base, e->path);
	if (n < 0 || (size_t)n >= sizeof(url))
		return diag_set(diag, -ENAMETOOLONG, "path", "is too long");
	curl_easy_reset(curl); /* keeps the connection */
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_PROXY, "");
	curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https");
	curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_3);
	curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L); /* role instead: identity.h */
	curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
	curl_easy_setopt(curl, CURLOPT_CAINFO, NULL);
	curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
	curl_easy_setopt(curl, CURLOPT_SSL_CTX_FUNCTION, set_tls);
	curl_easy_setopt(curl, CURLOPT_SSL_CTX_DATA, c);
	curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)c->timeout_ms);
	curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(curl, CURLOPT_TCP_KEEPIDLE, 10L);
	curl_easy_setopt(curl, CURLOPT_TCP_KEEPINTVL, 5L);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, a);
	struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
	if (e->from_fd) {
		curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(curl, CURLOPT_READFUNCTION, give_bytes);
		curl_easy_setopt(curl, CURLOPT_READDATA, &e->fd);
		curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)e->size);
		headers = curl_slist_append(headers, "Content-Type: application/octet-stream");
	} else if (e->text || strcmp(e->method, "POST") == 0 || strcmp(e->method, "PUT") == 0) {
		const char *text = e->text ? e->text : "";
		curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, text);
		headers = curl_slist_append(headers, "Content-Type: application/json");
	}
	curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, e->method);
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
	CURLcode code = curl_easy_perform(curl);
	curl_slist_free_all(headers);
	long status = 0;
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	if (a->result != 0)
		return a->result < 0 && !a->lines && !a->bytes ?
			       diag_set(diag, a->result, "answer", "cannot be kept: %s", strerror(-a->result)) :
			       a->result;
	/* A refused upload may break the connection after the reason has come. */
	if (code != CURLE_OK && !(status >= 400 && a->kept.len))
		return curl_result(c, code, error, diag);
	return status_result(c, a, diag);
}

static int finish_json(struct answer *a, int r, json_t **ret, struct diag *diag)
{
	if (r == 0 && ret) {
		*ret = NULL;
		if (a->kept.len) {
			json_error_t error;
			*ret = json_loadb(a->kept.data, a->kept.len, JSON_DECODE_ANY, &error);
			if (!*ret)
				r = diag_set(diag, -EBADMSG, "answer", "is no JSON: %s", error.text);
		}
	}
	strbuf_done(&a->kept);
	strbuf_done(&a->line);
	return r;
}

int http_client_call(struct http_client *c, const char *method, const char *path, json_t *body,
		     json_t **ret, struct diag *diag)
{
	CLEANUP_FREE char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	if (body && !text)
		return -ENOMEM;
	struct answer a = { .client = c, .fd = -1 };
	struct exchange e = { .method = method, .path = path, .text = text };
	return finish_json(&a, perform(c, &e, &a, diag), ret, diag);
}

int http_client_upload(struct http_client *c, const char *method, const char *path, int fd,
		       uint64_t size, json_t **ret, struct diag *diag)
{
	struct answer a = { .client = c, .fd = -1 };
	struct exchange e = { .method = method, .path = path, .fd = fd, .size = size, .from_fd = true };
	uint64_t timeout_ms = c->timeout_ms;
	c->timeout_ms = 0; /* as long as it takes; keep-alive probes find a dead server */
	int r = perform(c, &e, &a, diag);
	c->timeout_ms = timeout_ms;
	return finish_json(&a, r, ret, diag);
}

int http_client_download(struct http_client *c, const char *path, int fd, uint64_t *ret_size,
			 struct diag *diag)
{
	struct answer a = { .client = c, .fd = fd };
	struct exchange e = { .method = "GET", .path = path };
	uint64_t timeout_ms = c->timeout_ms;
	c->timeout_ms = 0;
	int r = perform(c, &e, &a, diag);
	c->timeout_ms = timeout_ms;
	if (r == 0 && ret_size)
		*ret_size = a.size;
	return finish_json(&a, r, NULL, diag);
}

static int stream(struct http_client *c, const char *path, struct answer *a, struct diag *diag)
{
	struct exchange e = { .method = "GET", .path = path };
	uint64_t timeout_ms = c->timeout_ms;
	c->timeout_ms = 0;
	int r = perform(c, &e, a, diag);
	c->timeout_ms = timeout_ms;
	return finish_json(a, r, NULL, diag);
}

int http_client_lines(struct http_client *c, const char *path,
		      int (*fn)(void *user, const char *line, size_t len), void *user,
		      struct diag *diag)
{
	struct answer a = { .client = c, .fd = -1, .lines = fn, .user = user };
	return stream(c, path, &a, diag);
}

int http_client_stream(struct http_client *c, const char *path,
		       int (*fn)(void *user, const char *bytes, size_t len), void *user,
		       struct diag *diag)
{
	struct answer a = { .client = c, .fd = -1, .bytes = fn, .user = user };
	return stream(c, path, &a, diag);
}

int http_client_escape(const char *text, char *buf, size_t buf_size)
{
	size_t at = 0;
	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		bool plain = isalnum(*p) || strchr("-._~", *p);
		int n = snprintf(buf + at, buf_size - at, plain ? "%c" : "%%%02X", *p);
		if (n < 0 || (size_t)n >= buf_size - at)
			return -ENAMETOOLONG;
		at += (size_t)n;
	}
	if (at >= buf_size)
		return -ENAMETOOLONG;
	buf[at] = 0;
	return 0;
}
