/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/sender.h"

void sender_init(struct sender *s, uint64_t producer_epoch, uint64_t stable, uint64_t last)
{
	*s = (struct sender){
		.producer_epoch = producer_epoch,
		.stable = stable,
		.delivered = stable,
		.sent = stable,
		.last = last,
		.next = stable + 1,
		.release = UINT64_MAX,
	};
}

bool sender_on_route(struct sender *s, uint64_t epoch, uint64_t until_ns)
{
	if (epoch < s->epoch)
		return false; /* the highest epoch wins */
	if (epoch == s->epoch) {
		if (until_ns > s->route_until_ns)
			s->route_until_ns = until_ns;
		return false;
	}
	s->epoch = epoch;
	s->route_until_ns = until_ns;
	s->attached = false;
	s->frozen = false;
	s->limit = 0; /* M6: the old epoch's limit says nothing about the new owner's room */
	s->offset = 0;
	return true;
}

void sender_on_beat(struct sender *s, uint64_t epoch, uint64_t until_ns)
{
	if (epoch == s->epoch && until_ns > s->route_until_ns)
		s->route_until_ns = until_ns;
}

enum sender_verdict sender_on_welcome(struct sender *s, uint64_t epoch, uint64_t next,
				      uint64_t limit)
{
	if (epoch != s->epoch)
		return SENDER_IGNORED;
	if (next <= s->stable)
		return SENDER_LOST;
	if (next > s->last + 1) {
		/* A producer restored from an older state regenerates what the
		 * owner already has; it comes to `next` by itself. */
		next = s->last + 1;
	}
	s->attached = true;
	s->frozen = false;
	s->next = next;
	s->limit = limit;
	s->offset = 0;
	return SENDER_OK;
}

enum sender_verdict sender_on_ack(struct sender *s, uint64_t epoch, uint64_t delivered,
				  uint64_t stable, uint64_t limit)
{
	if (epoch != s->epoch || !s->attached)
		return SENDER_IGNORED;
	if (delivered > s->last)
		delivered = s->last; /* see sender_on_welcome */
	if (stable > delivered)
		stable = delivered;
	/* M4: `delivered` may go back after a recovery, `stable` never does. */
	s->delivered = delivered;
	if (stable > s->stable)
		s->stable = stable;
	if (s->next <= s->stable)
		s->next = s->stable + 1;
	if (limit > s->limit)
		s->limit = limit;
	return SENDER_OK;
}

void sender_on_freeze(struct sender *s, uint64_t epoch)
{
	if (epoch == s->epoch && s->attached)
		s->frozen = true;
}

void sender_on_resume(struct sender *s, uint64_t epoch)
{
	if (epoch == s->epoch)
		s->frozen = false;
}

void sender_on_detach(struct sender *s)
{
	s->attached = false;
	s->frozen = false;
	s->limit = 0;
	s->offset = 0;
}
