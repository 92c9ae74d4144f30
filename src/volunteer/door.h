/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of a master that runs by itself (`reclaim map --here`): serves the
 * page, the function's file and the volunteers' WebSockets on one port. In
 * clear on loopback only; with certificate files it may listen anywhere.
 */
#ifndef RECLAIM_VOLUNTEER_DOOR_H
#define RECLAIM_VOLUNTEER_DOOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "io/loop.h"
#include "volunteer/master.h"

#define DOOR_CONNECTIONS_MAX 65536u
#define DOOR_QUEUE_MAX (4u << 20) /* bytes waiting in one socket; beyond, it is closed */
#define DOOR_SOCKET_PATH "/v1/volunteer"
#define DOOR_FUNCTION_PATH "/v1/volunteer/function/"

struct door;

struct door_file {
	const char *path; /* "/volunteer.js" */
	const char *type;
	const void *bytes;
	size_t len;
};

struct door_config {
	const char *address;   /* numeric; NULL = 127.0.0.1 */
	uint16_t port;         /* 0 = any */
	const char *cert, *key; /* PEM files; NULL = in clear, on loopback only */
	const struct door_file *files; /* static; ends with a NULL path */
	size_t files_count;
	/* Served below DOOR_FUNCTION_PATH INVITE/PATH to whoever knows the invitation. */
	const struct door_file *functions;
	size_t functions_count;
};

struct door_stats {
	uint32_t sockets;
	uint64_t opened, refused, requests;
};

/* master is borrowed and must outlive the door. */
int door_open(struct loop *l, struct master *m, const struct door_config *config,
	      struct door **ret, struct diag *diag);
void door_close(struct door *d);
uint16_t door_port(const struct door *d);
void door_stats(const struct door *d, struct door_stats *ret);

#endif
