/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overlay frames: what travels on a data channel (and, as a fallback, on the
 * held WebSocket), one frame per binary message. Big-endian:
 *
 *   0  u8  type        1  u8  flags       2  u16 hops left
 *   4  u64 node        the volunteer it is for (down) or from (up)
 *  12  u64 position    where that volunteer stands
 *  20  body            by type, see struct frame
 *
 * Every frame comes from another volunteer and is outside input; decoding
 * checks type, length and each count, and borrows the bytes.
 */
#ifndef RECLAIM_VOLUNTEER_FRAME_H
#define RECLAIM_VOLUNTEER_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_VERSION 1
#define FRAME_HEADER 20u
#define FRAME_PART_MAX 16384u              /* value or result bytes in one frame */
#define FRAME_MAX (FRAME_PART_MAX + 64u)   /* what any peer must take; larger is refused */
#define FRAME_IDS_MAX 1024u
#define FRAME_SIGNAL_MAX 8192u             /* an offer or answer */
#define FRAME_HOPS 64u

enum frame_type {
	FRAME_NONE = 0,
	FRAME_HELLO,      /* child to parent, first on a channel */
	FRAME_HELLO_ACK,  /* parent to child; again whenever the child's position changes */
	FRAME_LEND,       /* down: part of a value */
	FRAME_RESULT,     /* up: part of a result; flag FAILED: of an error text */
	FRAME_DEMAND,     /* up: credit, life sign; flag HOLDS: ids of all values held */
	FRAME_ACK,        /* down: results that may be forgotten */
	FRAME_CANCEL,     /* down: a value not needed any more */
	FRAME_BOUNCE,     /* up: a value that did not reach node */
	FRAME_REPORT,     /* child to parent: its subtree */
	FRAME_SIGNAL,     /* an offer or answer routed through the tree (local mode) */
	FRAME_FILL,       /* search for a leaf to fill a hole (local mode) */
	FRAME_CREDIT,     /* either way: bytes of this link consumed so far */
	FRAME_BYE,        /* either way: this end leaves now */
	FRAME_TYPE_COUNT
};

enum frame_flags {
	FRAME_FAILED = 1,
	FRAME_HOLDS = 2,
	FRAME_ANSWER = 4, /* SIGNAL: an answer, else an offer */
	FRAME_DOWN = 8,   /* FILL: has turned at the top */
	FRAME_LOCAL = 16, /* HELLO_ACK: the tree is in local mode */
	FRAME_PING = 32,  /* CREDIT: answer with one */
	FRAME_FLAGS_ALL = 63,
};

struct frame {
	enum frame_type type;
	unsigned flags;
	uint32_t hops;
	uint64_t node, position;

	uint64_t value;              /* LEND RESULT CANCEL BOUNCE */
	uint32_t total, offset;      /* LEND RESULT: bytes of the whole and where this part starts */
	uint32_t ms;                 /* LEND: a life sign is wanted so often; RESULT: computing took;
				      * 0 = unknown */
	const uint8_t *bytes;        /* LEND RESULT SIGNAL; borrowed */
	size_t len;

	uint32_t generation;         /* HELLO HELLO_ACK SIGNAL DEMAND: of the reservation */
	uint32_t degree;             /* HELLO_ACK */
	uint64_t peer;               /* HELLO_ACK: the parent; SIGNAL: who asks; FILL: the hole */
	uint64_t target;             /* SIGNAL: the position asked for; an answer: who answers */
	uint32_t credit, workers;    /* DEMAND */
	uint32_t size, height;       /* REPORT */
	uint64_t consumed;           /* CREDIT */
	const uint8_t *ids;          /* DEMAND ACK: frame_id() reads them; borrowed */
	size_t ids_count;
};

/* 0, -EBADMSG (not a frame), -EMSGSIZE (larger than FRAME_MAX), -EPROTO (another version). */
int frame_decode(const void *bytes, size_t len, struct frame *ret);
uint64_t frame_id(const struct frame *f, size_t i);
/*
 * Writes into buf, which holds FRAME_MAX bytes; returns the length. For DEMAND
 * and ACK the ids come from `ids` (may be NULL when ids_count is 0).
 */
size_t frame_encode(const struct frame *f, const uint64_t *ids, uint8_t *buf);
/* Rewrites the hop count of an encoded frame; false when there are none left. */
bool frame_hop(uint8_t *bytes, size_t len);

#endif
