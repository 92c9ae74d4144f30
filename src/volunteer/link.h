/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One end of a link between two nodes: how much may be sent (the other end
 * grants LINK_WINDOW bytes beyond what it has consumed), what waits, and what
 * has been consumed here. A frame that a node passes on counts as consumed
 * only when it has left on its next link, so a slow reader holds back its
 * sender instead of filling memory on the way.
 *
 * Pure: the owner sends what link_next() returns.
 */
#ifndef RECLAIM_VOLUNTEER_LINK_H
#define RECLAIM_VOLUNTEER_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_WINDOW (1u << 20)
/* Waiting bytes beyond which a link counts as broken; own frames are not held to the window. */
#define LINK_QUEUE_MAX (16u << 20)
#define LINK_STALL_MS 10000u /* nothing consumed for so long while something waits: broken */
#define LINK_NOBODY INT32_MIN

struct link_frame;

struct link {
	bool up;
	uint64_t sent, granted;      /* bytes sent; the other end consumed */
	uint64_t consumed, told;     /* bytes consumed here; as the other end was told */
	size_t queued;               /* bytes waiting */
	uint64_t progress_ms;        /* last time something was consumed over there, or sent freely */
	uint64_t heard_ms, pinged_ms;
	struct link_frame *head, **tail; /* tail NULL: empty; a zeroed link is a closed one */
};

void link_init(struct link *l);
void link_done(struct link *l);  /* frees what waits */
/* The transport stands: counters start anew; what waited goes first. */
void link_open(struct link *l, uint64_t now_ms);

/* Copies a frame into the queue. `from` is the link it came on, LINK_NOBODY for own frames.
 * -ENOBUFS beyond LINK_QUEUE_MAX, -ENOMEM. */
int link_push(struct link *l, const void *bytes, size_t len, int32_t from);
/* The next frame that may leave now, or NULL; the caller sends it and calls link_pop(). */
const uint8_t *link_next(struct link *l, size_t *ret_len, int32_t *ret_from);
void link_pop(struct link *l, uint64_t now_ms);
/* The other end has consumed so many bytes in all; -EPROTO if that is more than was sent. */
int link_credit(struct link *l, uint64_t consumed, uint64_t now_ms);
/* Bytes were consumed here; true: the other end should be told link.consumed now. */
bool link_consume(struct link *l, size_t len);
bool link_stalled(const struct link *l, uint64_t now_ms);

#endif
