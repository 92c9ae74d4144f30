/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by http_server.c (libwebsockets, routing, bodies), http_reply.c
 * (answers and streams) and http_socket.c (WebSockets). One http_conn per
 * connection of libwebsockets; it dies with it. A request can outlive its
 * connection until its handler lets go of it.
 */
#ifndef RECLAIM_IO_HTTP_INTERNAL_H
#define RECLAIM_IO_HTTP_INTERNAL_H

#include <libwebsockets.h>
#include <openssl/evp.h>

#include "base/strbuf.h"
#include "io/http_server.h"

#define HTTP_QUERIES_MAX 16
#define HTTP_QUERY_LEN_MAX 1024
#define HTTP_PATH_MAX 1024
#define HTTP_ADDRESS_MAX 64
#define HTTP_CHUNK 32768u
/* More than a TLS record (16 KiB), so that one read always empties it: with its libuv plug-in
 * libwebsockets 4.1 serves data that OpenSSL holds back only once, and then waits for the socket. */
#define HTTP_SERVICE_BUFFER 65536

struct http_conn {
	struct http_server *server;
	struct lws *wsi;
	struct http_conn *next, **link;
	struct identity_peer peer;
	uid_t uid; /* local servers; (uid_t)-1 = not known */
	char address[HTTP_ADDRESS_MAX];
	struct http_request *request; /* being received or answered */
	struct http_socket *socket;
	bool public_side;
	bool closing; /* callbacks from here on close it */
};

struct http_stream {
	struct http_request *request;
	void (*on_gone)(struct http_stream *s, void *data);
	void (*on_drain)(struct http_stream *s, void *data);
	void *data;
	bool ended;
	bool gone;
};

enum http_reply_state { REPLY_NONE, REPLY_READY, REPLY_BODY };

struct http_request {
	struct http_conn *conn; /* NULL: the peer left */
	struct http_server *server;
	const struct http_route *route;
	struct identity_peer peer;
	uid_t uid;
	char address[HTTP_ADDRESS_MAX];
	char path[HTTP_PATH_MAX];
	char params[HTTP_PARAMS_MAX][HTTP_PATH_MAX];
	char *queries[HTTP_QUERIES_MAX]; /* "name=value" */
	size_t queries_count;
	void (*on_gone)(void *data);
	void *on_gone_data;

	/* the body */
	uint64_t body_len, body_got;
	struct strbuf body;
	json_t *json;
	int file_fd;
	char file_path[4096];
	EVP_MD_CTX *file_md;
	char file_sha256[IDENTITY_DIGEST_HEX + 1];
	int body_error; /* -errno of the spool file */
	bool dispatched;

	/* the answer */
	enum http_reply_state reply;
	bool answered;
	bool close_after;
	struct strbuf out; /* header, then body or stream queue, not yet handed to libwebsockets */
	size_t out_at;
	int out_fd;
	uint64_t out_fd_offset, out_fd_left;
	struct http_stream stream;
};

struct http_socket {
	struct http_conn *conn; /* NULL: gone */
	const struct http_socket_route *route;
	struct strbuf in;
	struct http_frame *out_head, **out_tail;
	size_t out_bytes;
	char query[HTTP_QUERIES_MAX][HTTP_QUERY_LEN_MAX];
	size_t queries_count;
	void *data;
	bool open; /* on_open accepted it */
	bool closing;
};

struct http_server {
	struct loop *loop;
	struct lws_context *context;
	struct lws_vhost *vhost;
	SSL_CTX *client_tls; /* unused: else libwebsockets makes one with the system's authorities */
	struct http_server_config config;
	char *spool_dir;
	struct http_conn *conns;
	size_t conns_count;
};

void http_request_free(struct http_request *r);
/* Writes what fits; -1 closes the connection. */
int http_reply_pump(struct http_conn *c);
/* The peer left, or the answer is complete. */
void http_request_detach(struct http_request *r);

int http_socket_accept(struct http_conn *c, const struct http_socket_route *route);
int http_socket_established(struct http_conn *c);
int http_socket_receive(struct http_conn *c, const char *bytes, size_t len);
int http_socket_pump(struct http_conn *c);
void http_socket_gone(struct http_conn *c);

/* Quietens libwebsockets' own log; once per process. */
void http_lws_log(void);
int http_admit(struct http_conn *c, unsigned flags);

#endif
