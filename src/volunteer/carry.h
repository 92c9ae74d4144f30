/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between a master that runs in somebody's command and the
 * coordinator that carries its volunteers' sockets, one JSON object each on a
 * WebSocket over mutual TLS (CARRY_PATH). The coordinator serves the page and
 * the functions, and passes signalling on; it never parses a frame, and DTLS
 * and SCTP never reach it. Values go through it only for volunteers that have
 * no direct channel.
 */
#ifndef RECLAIM_VOLUNTEER_CARRY_H
#define RECLAIM_VOLUNTEER_CARRY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/diag.h"
#include "volunteer/signal.h"

#define CARRY_VERSION 1
#define CARRY_PATH "/v1/map"
#define CARRY_INVITE_MIN 16u
#define CARRY_PART_MAX (384u << 10)    /* bytes of a file in one message */
#define CARRY_MESSAGE_MAX (1u << 20)   /* as io/control_client.h allows */
#define CARRY_FILES_MAX 4u
#define CARRY_FILE_MAX (32u << 20)

enum carry_type {
	CARRY_MAP,    /* m>c: version, invite: first; again after each new connection */
	CARRY_FILE,   /* m>c: path, kind, data, more: (the next part of) a function */
	CARRY_READY,  /* m>c: all files are there; c>m: origin: the volunteers' address */
	CARRY_OPENED, /* c>m: socket, what: a volunteer is there, and from where */
	CARRY_TEXT,   /* either way: socket, text */
	CARRY_CLOSE,  /* m>c: socket: after what waits; c>m: it has closed */
	CARRY_REFUSED,/* c>m: what; the connection is closed */
	CARRY_TYPE_COUNT
};

struct carry {
	int type;
	uint64_t version, socket;
	char *invite, *path, *kind, *data, *text, *origin, *what;
	bool more;
};

extern const struct schema carry_schema;

int carry_decode(json_t *json, struct carry *ret, struct diag *diag);
/* A new object, or NULL when out of memory. */
json_t *carry_encode(const struct carry *c);
void carry_done(struct carry *c);

#endif
