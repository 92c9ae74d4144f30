/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volunteer's end of the held WebSocket: text messages to and from a
 * master or coordinator. All sockets of a process share one libwebsockets
 * context, so that thousands cost what their connections cost.
 */
#ifndef RECLAIM_VOLUNTEER_SOCKET_H
#define RECLAIM_VOLUNTEER_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/diag.h"
#include "io/loop.h"

#define SOCKET_QUEUE_MAX (8u << 20) /* bytes waiting; beyond, sends fail */

struct socket_client;

struct socket_ops {
	void (*up)(void *user);
	void (*text)(void *user, const char *text, size_t len);
	/* Once; the socket is gone afterwards. */
	void (*down)(void *user, const char *why);
};

/* Authorities to trust instead of the system's: a PEM file, borrowed. Before the first socket. */
void socket_library_trust(const char *ca_file);
/* "http://host:port/...", "https://..." (ws and wss too): the origin counts, path comes extra. */
int socket_open(struct loop *l, const char *url, const char *path, const struct socket_ops *ops,
		void *user, struct socket_client **ret, struct diag *diag);
void socket_close(struct socket_client *c); /* no callback comes after */
int socket_send(struct socket_client *c, const char *text, size_t len); /* 0, -ENOTCONN, -ENOBUFS */
/* Frees the shared context when no socket is left: at the end of a program. */
void socket_library_done(void);

#endif
