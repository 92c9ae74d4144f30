/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving end of one stream: cursors and credit, no bytes. Pure.
 * Whether this process may deliver at all is owner.h's word, asked first.
 *
 *     stable <= cur <= arrived
 *
 * cur: last seq given to the application. arrived: last seq queued for it.
 * TCP keeps the order of one attach, the cursor compare drops what comes again
 * after another attach; so no window of remembered numbers is needed and the
 * credit alone bounds what is in flight.
 */
#ifndef RECLAIM_STREAM_RECEIVER_H
#define RECLAIM_STREAM_RECEIVER_H

#include <stdbool.h>
#include <stdint.h>

struct receiver {
	uint64_t producer_epoch; /* highest seen: an older one is fenced */
	uint64_t cur;
	uint64_t stable;
	uint64_t arrived;
	uint64_t window;         /* bytes of room */
	int64_t used;            /* bytes consumed since the attach, less what was queued then */
	uint64_t received;       /* bytes arrived since the attach */
	uint64_t need;           /* the message in assembly is longer than the window: up to here */
	uint64_t acked;          /* seq of the last ack sent */
	uint64_t acked_stable;
	uint64_t granted;        /* limit of the last ack or welcome sent */
	bool known;              /* a cursor exists: set by the first attach, or a restored image */
	bool attached;
};

enum receiver_verdict {
	RECEIVER_NEW = 0,  /* queue it */
	RECEIVER_AGAIN,    /* had it: drop */
	RECEIVER_FENCED,   /* older producer */
	RECEIVER_GAP,      /* messages missing before it: the peer broke the protocol */
	RECEIVER_OVERRUN,  /* beyond the credit: likewise */
};

void receiver_init(struct receiver *r, uint64_t window);
/* From an image: where the restored state stands. */
void receiver_restore(struct receiver *r, uint64_t producer_epoch, uint64_t cur, uint64_t stable);

/*
 * A sender attaches: it can send again from oldest. Returns RECEIVER_NEW with
 * *ret_next and *ret_limit, RECEIVER_FENCED, or RECEIVER_GAP when what we need
 * is no longer there. queued: bytes still waiting for the application.
 */
enum receiver_verdict receiver_on_attach(struct receiver *r, uint64_t producer_epoch,
					 uint64_t oldest, uint64_t queued, uint64_t *ret_next,
					 uint64_t *ret_limit);
/*
 * Complete messages seq .. seq+count-1 arrived, `bytes` as counted for credit.
 * *ret_skip: how many of the front we had already; the caller gives the bytes
 * of those back with receiver_skip() and queues the rest.
 */
enum receiver_verdict receiver_on_run(struct receiver *r, uint64_t seq, uint32_t count,
				      uint64_t bytes, uint32_t *ret_skip);
/* `bytes` of message seq, `total` long, begin to arrive; receiver_complete() once all are there. */
enum receiver_verdict receiver_on_piece(struct receiver *r, uint64_t seq, uint64_t total,
					uint64_t bytes);
static inline void receiver_complete(struct receiver *r, uint64_t seq)
{
	r->arrived = seq;
	r->need = 0;
}
static inline void receiver_skip(struct receiver *r, uint64_t bytes)
{
	r->used += (int64_t)bytes;
}
/* The application took the next message. */
static inline void receiver_take(struct receiver *r, uint64_t bytes)
{
	r->cur++;
	r->used += (int64_t)bytes;
}
/* What was queued but not taken is forgotten (freeze, abort): it comes again. */
void receiver_drop_queue(struct receiver *r);
void receiver_set_stable(struct receiver *r, uint64_t seq);
/* The absolute limit we could grant now. */
static inline uint64_t receiver_limit(const struct receiver *r)
{
	int64_t limit = r->used + (int64_t)r->window;

	if (limit < 0)
		limit = 0;
	return (uint64_t)limit > r->need ? (uint64_t)limit : r->need;
}
/* Is a credit or stable ack worth a frame now? */
static inline bool receiver_ack_due(const struct receiver *r)
{
	uint64_t limit = receiver_limit(r);

	return r->attached && limit > r->granted &&
	       (limit - r->granted >= r->window / 4 || r->need > r->granted);
}
static inline bool receiver_ack_pending(const struct receiver *r)
{
	return r->attached && (r->cur != r->acked || r->stable != r->acked_stable ||
			       receiver_limit(r) > r->granted);
}

#endif
