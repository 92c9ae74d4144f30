/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/receiver.h"

void receiver_init(struct receiver *r, uint64_t window)
{
	*r = (struct receiver){ .window = window };
}

void receiver_restore(struct receiver *r, uint64_t producer_epoch, uint64_t cur, uint64_t stable)
{
	r->producer_epoch = producer_epoch;
	r->cur = cur;
	r->arrived = cur;
	r->stable = stable;
	r->known = true;
}

enum receiver_verdict receiver_on_attach(struct receiver *r, uint64_t producer_epoch,
					 uint64_t oldest, uint64_t queued, uint64_t *ret_next,
					 uint64_t *ret_limit)
{
	if (producer_epoch < r->producer_epoch)
		return RECEIVER_FENCED;
	if (oldest == 0)
		return RECEIVER_GAP;
	if (!r->known) {
		/* No state knows this stream: what the sender still has is the start. */
		r->cur = r->stable = r->arrived = oldest - 1;
		r->known = true;
		queued = 0;
	}
	if (oldest > r->arrived + 1)
		return RECEIVER_GAP;
	r->producer_epoch = producer_epoch;
	r->attached = true;
	/* Bytes still queued are given back when taken, and are not counted twice. */
	r->used = -(int64_t)queued;
	r->received = 0;
	r->need = 0;
	r->granted = receiver_limit(r);
	/* The welcome tells `stable` alone: what was delivered beyond it, and acknowledged on a
	 * connection that broke before the ack arrived, is still to be said. */
	r->acked = r->acked_stable = r->stable;
	*ret_next = r->arrived + 1;
	*ret_limit = r->granted;
	return RECEIVER_NEW;
}

enum receiver_verdict receiver_on_run(struct receiver *r, uint64_t seq, uint32_t count,
				      uint64_t bytes, uint32_t *ret_skip)
{
	if (r->received + bytes > r->granted)
		return RECEIVER_OVERRUN;
	if (seq > r->arrived + 1)
		return RECEIVER_GAP;
	r->received += bytes;
	if (seq + count - 1 <= r->arrived) {
		*ret_skip = count;
		return RECEIVER_AGAIN;
	}
	*ret_skip = (uint32_t)(r->arrived + 1 - seq);
	r->arrived = seq + count - 1;
	return RECEIVER_NEW;
}

enum receiver_verdict receiver_on_piece(struct receiver *r, uint64_t seq, uint64_t total,
					uint64_t bytes)
{
	if (r->received + bytes > r->granted)
		return RECEIVER_OVERRUN;
	if (seq > r->arrived + 1)
		return RECEIVER_GAP;
	if (total > r->window && r->received + total > r->need)
		/* It can only be taken whole, so room for the whole is promised. The
		 * first piece fixes the end; later ones would only move it out. */
		r->need = r->need > r->received ? r->need : r->received + total;
	r->received += bytes;
	return seq <= r->arrived ? RECEIVER_AGAIN : RECEIVER_NEW;
}

void receiver_drop_queue(struct receiver *r)
{
	r->arrived = r->cur;
}

void receiver_set_stable(struct receiver *r, uint64_t seq)
{
	if (seq > r->cur)
		seq = r->cur;
	if (seq > r->stable)
		r->stable = seq;
}
