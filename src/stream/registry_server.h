/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry behind a listening socket, with its own loop: for tests,
 * examples and single machines. The coordinator serves the same frames.
 * Nothing listens beyond loopback unless told to; the frames carry keys, so a
 * network between needs a tunnel.
 */
#ifndef RECLAIM_STREAM_REGISTRY_SERVER_H
#define RECLAIM_STREAM_REGISTRY_SERVER_H

#include "stream/registry.h"

struct registry_server;

struct registry_server_options {
	const char *listen;  /* "unix:/path" or "tcp:HOST:PORT" (port 0: any) */
	const char *dir;     /* where registers are kept, or NULL: memory */
	struct register_terms terms; /* ttl_ns 0: 5 s, 20 ms margin, 200 ppm */
};

int registry_server_open(const struct registry_server_options *options,
			 struct registry_server **ret);
struct registry *registry_server_registry(struct registry_server *s);
/* The address to give to nodes, with the real port. */
const char *registry_server_address(const struct registry_server *s);
/* Serves until registry_server_stop(), from any thread or a signal handler. */
int registry_server_run(struct registry_server *s);
void registry_server_stop(struct registry_server *s);
/* Closes connections without a word, as a kill would. */
void registry_server_close(struct registry_server *s);

#endif
