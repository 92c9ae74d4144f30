/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Newline-delimited JSON over a Unix stream socket, on the loop: one object
 * per line of at most UNIX_LINE_MAX bytes. A line that is longer, or no JSON
 * object, is answered with {"error": "..."} and the connection is closed.
 * The same connection type serves the accepting and the connecting end.
 */
#ifndef RECLAIM_IO_UNIX_SERVER_H
#define RECLAIM_IO_UNIX_SERVER_H

#include <jansson.h>
#include <sys/types.h>

#include "io/loop.h"

#define UNIX_LINE_MAX (64u << 10)
#define UNIX_QUEUE_MAX (4u << 20) /* bytes waiting to be sent; beyond, the connection is closed */
#define UNIX_CONNS_MAX 256        /* per server; further ones are closed at once */

struct unix_server;
struct unix_conn;

struct unix_peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
};

/* user is the server's (or the connector's). Any may be NULL. A connection lives until its
 * on_close returns; after unix_conn_close() no on_message comes any more. */
struct unix_ops {
	void (*on_open)(struct unix_conn *c, void *user);
	void (*on_message)(struct unix_conn *c, json_t *message, void *user); /* borrowed */
	void (*on_close)(struct unix_conn *c, void *user);
};

/* Replaces a stale socket file; mode is applied before anybody can connect, gid -1 = leave.
 * -EADDRINUSE when another process listens there. */
int unix_server_open(struct loop *l, const char *path, mode_t mode, gid_t gid,
		     const struct unix_ops *ops, void *user, struct unix_server **ret);
void unix_server_close(struct unix_server *s); /* closes its connections (on_close runs), unlinks */

/* Connects to somebody's socket (at once or with -errno, as Unix sockets do); on_open does not
 * run. */
int unix_conn_open(struct loop *l, const char *path, const struct unix_ops *ops, void *user,
		   struct unix_conn **ret);

int unix_conn_send(struct unix_conn *c, json_t *message); /* borrowed; 0, -EMSGSIZE, -EPIPE, -ENOMEM */
/* Closes after what is queued has gone out. on_close runs later, on the loop. */
void unix_conn_close(struct unix_conn *c);
const struct unix_peer *unix_conn_peer(const struct unix_conn *c); /* SO_PEERCRED */
void unix_conn_set_data(struct unix_conn *c, void *data);
void *unix_conn_data(const struct unix_conn *c);

#endif
