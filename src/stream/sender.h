/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending end of one stream: numbers, credit and routing, no bytes. Pure.
 *
 *     stable <= delivered <= next - 1 <= last
 *
 * What lies in (stable, last] is retained by the caller (retain.h). Sending
 * restarts at `next` whenever an owner says so (WELCOME); only the epoch's words count, a higher epoch's replace them.
 */
#ifndef RECLAIM_STREAM_SENDER_H
#define RECLAIM_STREAM_SENDER_H

#include <stdbool.h>
#include <stdint.h>

struct sender {
	uint64_t epoch;       /* of the endpoint we send to; 0 not routed */
	uint64_t producer_epoch;
	uint64_t last;        /* last seq taken from the application */
	uint64_t next;        /* next seq to send */
	uint64_t sent;        /* highest seq ever sent, for counters */
	uint64_t delivered;
	uint64_t stable;
	uint64_t release;     /* send at most this seq: output held until durable */
	uint64_t limit;       /* absolute bytes since the attach (M6) */
	uint64_t offset;      /* bytes sent since the attach */
	uint64_t route_until_ns; /* own clock: no send later than that */
	bool attached;        /* welcomed in `epoch` */
	bool frozen;
};

enum sender_verdict {
	SENDER_OK = 0,
	SENDER_IGNORED, /* of an older epoch, or out of place */
	SENDER_LOST,    /* the owner needs what is no longer kept */
};

void sender_init(struct sender *s, uint64_t producer_epoch, uint64_t stable, uint64_t last);

/* A route was learnt. True when it replaces the present one: detach and attach anew. */
bool sender_on_route(struct sender *s, uint64_t epoch, uint64_t until_ns);
/* The owner lives and holds its lease for so long. */
void sender_on_beat(struct sender *s, uint64_t epoch, uint64_t until_ns);
/* Activation: send from next. */
enum sender_verdict sender_on_welcome(struct sender *s, uint64_t epoch, uint64_t next,
				      uint64_t limit);
enum sender_verdict sender_on_ack(struct sender *s, uint64_t epoch, uint64_t delivered,
				  uint64_t stable, uint64_t limit);
void sender_on_freeze(struct sender *s, uint64_t epoch);
/* The move was called off: the attach, its order and its credit are as before. */
void sender_on_resume(struct sender *s, uint64_t epoch);
void sender_on_detach(struct sender *s); /* the link broke, or NACK */

static inline bool sender_may_send(const struct sender *s, uint64_t now_ns)
{
	return s->attached && !s->frozen && s->next <= s->last && s->next <= s->release &&
	       s->offset < s->limit && now_ns < s->route_until_ns;
}

#endif
