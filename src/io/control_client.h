/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent's connection to the coordinator (or a map's): a WebSocket over mutual
 * TLS to wss://host:port/v1/agent (or another path), one JSON text message each. It reconnects by
 * itself with a jittered, growing pause (CONTROL_RETRY_MIN_MS to
 * CONTROL_RETRY_MAX_MS; back to the least after a connection that stood).
 *
 * Nothing is kept across a break: what was queued when a connection fell is
 * dropped, on_down says so, and on_up is where the agent says anew what holds.
 */
#ifndef RECLAIM_IO_CONTROL_CLIENT_H
#define RECLAIM_IO_CONTROL_CLIENT_H

#include <jansson.h>
#include <stdbool.h>

#include "io/identity.h"
#include "io/loop.h"

#define CONTROL_MESSAGE_MAX (1u << 20) /* bytes of one message, either way */
#define CONTROL_QUEUE_MAX (8u << 20)   /* bytes waiting to be sent; beyond, sends fail */
#define CONTROL_RETRY_MIN_MS 100
#define CONTROL_RETRY_MAX_MS 5000

struct control_client;

struct control_client_ops {
	void (*on_up)(void *user);
	void (*on_down)(void *user, const char *why); /* also for each failed attempt */
	void (*on_message)(void *user, json_t *message); /* borrowed; always an object */
};

/* id is borrowed and must outlive the client. address is "host:port", "[v6]:port". */
int control_client_open(struct loop *l, const struct identity *id, const char *address,
			const struct control_client_ops *ops, void *user,
			struct control_client **ret);
/* The same at another path, which is borrowed like id. */
int control_client_open_at(struct loop *l, const struct identity *id, const char *address,
			   const char *path, const struct control_client_ops *ops, void *user,
			   struct control_client **ret);
/* No callback comes after this. */
void control_client_close(struct control_client *c);
bool control_client_is_up(const struct control_client *c);
/* Borrowed; 0, -ENOTCONN, -EMSGSIZE, -ENOBUFS. */
int control_client_send(struct control_client *c, json_t *message);
/* Drops the connection and connects anew at once (new address or certificate). address may be
 * NULL to keep it. */
int control_client_restart(struct control_client *c, const char *address);

#endif
