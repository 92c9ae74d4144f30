/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signalling messages between volunteers and the master, JSON text over the
 * held WebSocket. One struct and one table for all of them; signal_fields says
 * which type carries what. 64-bit numbers are strings of digits.
 */
#ifndef RECLAIM_VOLUNTEER_SIGNAL_H
#define RECLAIM_VOLUNTEER_SIGNAL_H

#include <jansson.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"

#define SIGNAL_VERSION 1
#define SIGNAL_MESSAGE_MAX (32u << 10) /* bytes; a frame of FRAME_MAX in base64 fits */
#define SIGNAL_TOKEN_MAX 64u

enum signal_type {
	SIGNAL_JOIN,     /* v>m: invite, token, kind, workers, offer (bundled) */
	SIGNAL_WELCOME,  /* m>v: node, degree, mode, job */
	SIGNAL_ATTACH,   /* m>v: connect (again): generation, position; answered by SIGNAL_OFFER */
	SIGNAL_OFFER,    /* v>m: generation, sdp; m>v: node (the child), generation, position, sdp */
	SIGNAL_ANSWER,   /* v>m: node (the child), generation, sdp; m>v: generation, position, sdp */
	SIGNAL_DETACHED, /* v>m: the channel to the parent broke */
	SIGNAL_LOST,     /* v>m: node: a child's channel broke */
	SIGNAL_FAILED,   /* v>m: generation, what: no channel could be made */
	SIGNAL_RELAY,    /* m>v: go on over this socket; what says why */
	SIGNAL_FRAME,    /* either way: data: an overlay frame, base64 */
	SIGNAL_PING,
	SIGNAL_PONG,
	SIGNAL_LEAVE,    /* v>m: the volunteer leaves */
	SIGNAL_DONE,     /* m>v: everything is computed */
	SIGNAL_ERROR,    /* m>v: what; the socket is closed */
	SIGNAL_TYPE_COUNT
};
extern const char *const signal_type_names[SIGNAL_TYPE_COUNT + 1];

enum signal_kind { SIGNAL_PAGE, SIGNAL_NATIVE };

struct signal {
	int type;
	uint64_t version;
	uint64_t node, position, generation;
	uint64_t degree, workers;
	int mode, kind;
	char *invite, *token;
	char *sdp, *data, *what;
	json_t *job; /* title, owner, function {kind, path, sha256}, ice_servers */
};

extern const struct schema signal_schema;

int signal_decode(const char *text, size_t len, struct signal *ret, struct diag *diag);
/* malloc'd text, or NULL when out of memory. */
char *signal_encode(const struct signal *s);
void signal_done(struct signal *s);

/* Standard base64. Encoding needs 4 * ((len + 2) / 3) + 1 bytes. */
size_t base64_encode(const void *bytes, size_t len, char *ret);
/* -EINVAL, or -ENOBUFS if cap is too small; else the length. */
long base64_decode(const char *text, size_t len, void *ret, size_t cap);

#endif
