/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one TLS port: REST, WebSockets and event streams on libwebsockets and
 * the program's loop. Every request carries the identity of the peer's
 * certificate; a route is refused to peers without one unless it says
 * HTTP_ANONYMOUS.
 *
 * A handler answers at once or keeps the request and answers later, exactly
 * once; if the peer leaves before, on_gone runs (if set) and the request is
 * dead. Bodies are bounded per route. Everything runs on the loop.
 */
#ifndef RECLAIM_IO_HTTP_SERVER_H
#define RECLAIM_IO_HTTP_SERVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"
#include "io/identity.h"
#include "io/loop.h"

#define HTTP_PARAMS_MAX 4
#define HTTP_PARAM_LEN_MAX 128
#define HTTP_BODY_MEMORY_MAX (8u << 20) /* JSON bodies, whatever the route says */
#define HTTP_STREAM_QUEUE_MAX (4u << 20) /* a reader that falls further behind is closed */
#define HTTP_CONNECTIONS_MAX 4096

struct http_server;
struct http_request;
struct http_stream;
struct http_socket;

enum http_flags {
	HTTP_ANONYMOUS = 1, /* also for peers without a certificate */
	HTTP_BODY_JSON = 2, /* the body is parsed; bad JSON is answered with 400 */
	HTTP_BODY_FILE = 4, /* the body goes to a file of the spool folder, digested on the way */
	HTTP_PUBLIC = 8,    /* also on the browsers' certificate (open_public below) */
};

struct http_route {
	const char *method; /* "GET", "POST", "PUT", "DELETE" */
	const char *path;   /* "/v1/jobs/{id}/logs"; a last component "*" takes the rest */
	unsigned flags;
	uint64_t body_max;  /* bytes; 0 = no body */
	void (*handle)(struct http_request *r, void *user);
	const void *data;   /* for the handler: http_request_data() */
};

struct http_socket_route {
	const char *path;
	unsigned flags;     /* HTTP_ANONYMOUS, HTTP_PUBLIC */
	size_t message_max; /* bytes of one received message; a larger one closes the socket */
	size_t queue_max;   /* bytes waiting to be sent; beyond, the socket is closed */
	/* 0 accepts; -errno refuses. socket->data is set with http_socket_set_data(). */
	int (*on_open)(struct http_socket *s, void *user);
	void (*on_message)(struct http_socket *s, const char *text, size_t len, void *user);
	void (*on_close)(struct http_socket *s, void *user);
};

struct http_server_config {
	const char *address;     /* numeric; NULL or "" = all */
	uint16_t port;           /* 0 = any: http_server_port() says which */
	const struct identity *identity;
	const char *spool_dir;   /* for HTTP_BODY_FILE; must exist */
	const struct http_route *routes;           /* ends with a NULL path */
	const struct http_socket_route *sockets;   /* ends with a NULL path; may be NULL */
	/* The browsers' side: a second server name on the same port. All NULL = none. */
	const char *public_name, *public_cert, *public_key;
	/*
	 * For people on this machine: no TLS, 127.0.0.1 alone, whatever `address` says; identity is
	 * NULL. Instead of a certificate a peer has the uid of its socket, and this says whether it may
	 * use routes that are not HTTP_ANONYMOUS: 0 or -EACCES. Requests that another site's page made
	 * (Host, Origin) are refused.
	 */
	int (*admit_local)(uid_t uid, void *user);
	/* A veto over every request and socket (revocation): 0 or -EACCES. May be NULL. */
	int (*admit)(const struct identity_peer *peer, void *user);
	void *user;
};

int http_server_open(struct loop *l, const struct http_server_config *config,
		     struct http_server **ret, struct diag *diag);
void http_server_close(struct http_server *s);
uint16_t http_server_port(const struct http_server *s);
/* Closes every open connection of this certificate (after revoking it). */
void http_server_drop_peer(struct http_server *s, const char *serial);

/* ---- requests ---- */

const char *http_request_method(const struct http_request *r);
const char *http_request_path(const struct http_request *r);
const struct identity_peer *http_request_peer(const struct http_request *r);
uid_t http_request_uid(const struct http_request *r); /* admit_local servers; (uid_t)-1 = not known */
const char *http_request_address(const struct http_request *r); /* the peer's, numeric */
/* Part i of the path, decoded: for "/v1/jobs/{id}" part 0 is the id. Never NULL. */
const char *http_request_param(const struct http_request *r, size_t i);
/* A query value, decoded, or NULL. */
const char *http_request_query(const struct http_request *r, const char *name);
const void *http_request_data(const struct http_request *r); /* of its route */
json_t *http_request_json(const struct http_request *r); /* borrowed; NULL without a body */
const char *http_request_body(const struct http_request *r, size_t *ret_len);
/* HTTP_BODY_FILE: where the body lies, fsynced (rename it away, or it is removed afterwards). */
const char *http_request_file(const struct http_request *r, uint64_t *ret_size,
			      char ret_sha256[IDENTITY_DIGEST_HEX + 1]);
/* What to run if the peer leaves before the answer. */
void http_request_on_gone(struct http_request *r, void (*fn)(void *data), void *data);

/* ---- answers: each takes the request; it must not be used afterwards ---- */

void http_reply_json(struct http_request *r, int status, json_t *body); /* takes the reference */
/* {"error": {"status", "what", "where"}} */
void http_reply_error(struct http_request *r, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void http_reply_diag(struct http_request *r, int status, const struct diag *diag);
void http_reply_bytes(struct http_request *r, int status, const char *type, const void *bytes,
		      size_t len);
/* Takes the descriptor. With `type` NULL, application/octet-stream. */
void http_reply_fd(struct http_request *r, const char *type, int fd, uint64_t offset,
		   uint64_t len);

/* An answer without a known end (events, followed logs). on_gone runs once, when the peer left or
 * fell too far behind, or after http_stream_end() has gone out; the stream is dead then. */
struct http_stream *http_stream_open(struct http_request *r, const char *type,
				     void (*on_gone)(struct http_stream *s, void *data), void *data);
int http_stream_write(struct http_stream *s, const void *bytes, size_t len);
int http_stream_json(struct http_stream *s, json_t *line); /* borrowed; one line */
size_t http_stream_queued(const struct http_stream *s);    /* bytes not yet handed to TLS */
/* Called when the queue has run empty, to write more; NULL = none. */
void http_stream_on_drain(struct http_stream *s, void (*fn)(struct http_stream *s, void *data));
void http_stream_end(struct http_stream *s);

/* ---- sockets ---- */

const struct identity_peer *http_socket_peer(const struct http_socket *s);
const char *http_socket_address(const struct http_socket *s);
const char *http_socket_query(const struct http_socket *s, const char *name);
void http_socket_set_data(struct http_socket *s, void *data);
void *http_socket_data(const struct http_socket *s);
int http_socket_send(struct http_socket *s, const char *text, size_t len); /* 0, -ENOBUFS, -EPIPE */
int http_socket_send_json(struct http_socket *s, json_t *message);         /* borrowed */
void http_socket_close(struct http_socket *s); /* on_close comes later, on the loop */

#endif
