/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to the stream registry, its answers, and what it tells unasked.
 * One struct for all: u32 length, then every field in order, little-endian.
 * Spans of time are remaining milliseconds. docs/protocol.md, "Stream registry".
 */
#ifndef RECLAIM_WIRE_REGISTRY_FRAME_H
#define RECLAIM_WIRE_REGISTRY_FRAME_H

#include <stdint.h>

#include "wire/stream_frame.h"

#define REGISTRY_BODY_MAX (1u << 20)
#define REGISTRY_FRAME_MAX (REGISTRY_BODY_MAX + 2048u)
#define REGISTRY_TOKEN_MAX 127
#define REGISTRY_KEY_LEN 32

enum registry_op {
	REGISTRY_HELLO = 1, /* token; first on a connection */
	REGISTRY_JOIN,      /* name, instance, locator, group; flags: STANDBY. Answered when granted */
	REGISTRY_RENEW,     /* instance, epoch */
	REGISTRY_ROUTE,     /* to `name` for producer (instance, epoch, text in group): route and ticket; also watches */
	REGISTRY_PREPARE,   /* name, target */
	REGISTRY_COMMIT,    /* instance, hid */
	REGISTRY_ABORT,     /* hid */
	REGISTRY_RELEASE,   /* instance, epoch */
	REGISTRY_STORE,     /* instance, epoch, body: stable cursors */
	REGISTRY_READ,      /* name: the register */
	REGISTRY_MEMBERS,   /* group in name: body is the list; also watches */
	REGISTRY_LIST,      /* every endpoint of the job, in body as JSON */
	REGISTRY_VIEW,      /* told: the register of `name` changed */
	REGISTRY_OP_COUNT,
};

enum {
	REGISTRY_FLAG_STANDBY = 1,
	REGISTRY_FLAG_RECOVER = 2, /* the former owner did not hand over */
	REGISTRY_FLAG_AHEAD = 4,   /* route of the epoch that is being prepared */
	REGISTRY_FLAG_TOLD = 8,    /* not an answer */
	REGISTRY_FLAG_ANSWER = 16,
};

struct registry_frame {
	uint8_t op;
	uint8_t flags;
	uint8_t state;        /* enum register_state */
	uint32_t id;          /* of the question */
	int32_t status;       /* 0 or -errno */
	uint32_t ttl_ms;      /* lease or route */
	uint64_t instance;
	uint64_t epoch;
	uint64_t hid;
	uint64_t owner;
	uint64_t target;
	char name[STREAM_NAME_MAX + 1];
	char group[STREAM_NAME_MAX + 1];
	char locator[STREAM_LOCATOR_MAX + 1];
	char token[REGISTRY_TOKEN_MAX + 1];
	uint8_t key[REGISTRY_KEY_LEN];     /* the owner's or target's own; with a route the session's */
	uint8_t ticket[STREAM_TICKET_MAX];
	uint32_t ticket_len;
	const uint8_t *body;  /* a view */
	size_t body_len;
};

int registry_frame_encode(const struct registry_frame *f, struct bytes_out *out);
/* Bytes taken, 0: more needed, -EBADMSG. */
int registry_frame_decode(const uint8_t *data, size_t len, struct registry_frame *ret);
const char *registry_op_name(unsigned op);

#endif
