/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking REST client with mutual TLS (libcurl), for the command line and
 * for staging files. One connection, kept alive between calls.
 *
 * Every call returns 0 for a 2xx answer, otherwise -errno with diag filled
 * from the server's error body: 400 -EINVAL, 401/403 -EACCES, 404 -ENOENT,
 * 409 -EEXIST, 410 -ESTALE, 413 -EFBIG, 429 -EAGAIN, 503 -EAGAIN, other
 * -EREMOTEIO; no connection -ECONNREFUSED, -ETIMEDOUT; one that broke
 * -ECONNRESET (in the handshake), -EPIPE; a server that is not ours -EACCES.
 */
#ifndef RECLAIM_IO_HTTP_CLIENT_H
#define RECLAIM_IO_HTTP_CLIENT_H

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"
#include "io/identity.h"

#define HTTP_CLIENT_BODY_MAX (64u << 20) /* of an answer that is kept in memory */

struct http_client;

/* address is "host:port". id is borrowed; NULL with ca_fingerprint for enrolment only. */
int http_client_open(const struct identity *id, const char *address, struct http_client **ret,
		     struct diag *diag);
int http_client_open_fingerprint(const char *ca_fingerprint, const char *address,
				 struct http_client **ret, struct diag *diag);
void http_client_close(struct http_client *c);
DEFINE_CLEANUP(struct http_client *, http_client_close)
#define CLEANUP_HTTP_CLIENT CLEANUP(http_client_close_cleanup)
/* The server is not there, or went away in the middle: it may come back. */
static inline bool http_client_went_away(int err)
{
	return err == -ECONNREFUSED || err == -ECONNRESET || err == -EPIPE || err == -ETIMEDOUT;
}

/* Whole call; 0 = none (streams). Default 30 s. */
void http_client_set_timeout(struct http_client *c, uint64_t timeout_ms);

/* path begins with "/v1/" and carries its query. body (borrowed) may be NULL, ret (new
 * reference, NULL for an empty answer) too. */
int http_client_call(struct http_client *c, const char *method, const char *path, json_t *body,
		     json_t **ret, struct diag *diag);
/* A body of raw bytes from a descriptor, from its present offset. */
int http_client_upload(struct http_client *c, const char *method, const char *path, int fd,
		       uint64_t size, json_t **ret, struct diag *diag);
/* The answer's bytes into a descriptor; ret_size may be NULL. */
int http_client_download(struct http_client *c, const char *path, int fd, uint64_t *ret_size,
			 struct diag *diag);
/* fn gets each line of a streamed answer (without the newline, NUL-terminated); it ends the call
 * by returning non-zero, which becomes the return value. 0 when the server ended the stream. */
int http_client_lines(struct http_client *c, const char *path,
		      int (*fn)(void *user, const char *line, size_t len), void *user,
		      struct diag *diag);
/* The same without cutting into lines (followed logs). */
int http_client_stream(struct http_client *c, const char *path,
		       int (*fn)(void *user, const char *bytes, size_t len), void *user,
		       struct diag *diag);
/* Escapes one path component or query value; buf gets at most buf_size bytes. */
int http_client_escape(const char *text, char *buf, size_t buf_size);

#endif
