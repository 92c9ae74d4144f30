/* SPDX-License-Identifier: Apache-2.0 */
/* See node.h: values that this node computes, and results until they are acknowledged. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/node_internal.h"

static struct held *held_find(struct node *n, uint64_t value)
{
	VEC_EACH(&n->held, h) {
		if (h->value == value)
			return h;
	}
	return NULL;
}

static void held_remove(struct node *n, struct held *h)
{
	n->held_bytes -= h->total;
	n->computing -= h->computing;
	free(h->bytes);
	size_t i = (size_t)(h - n->held.data);
	VEC_REMOVE(&n->held, i);
}

static void bounce(struct node *n, uint64_t value, int link)
{
	struct frame f = { .type = FRAME_BOUNCE, .node = n->self, .position = n->position,
			   .value = value };
	n->stats.bounced++;
	(void)node_emit(n, link, &f, NULL); /* else the deadline lends it again */
}

static uint32_t credit_of(const struct node *n)
{
	if (n->workers == 0 || n->leaving)
		return 0;
	/* As many as fit, going by the mean size of those held now. */
	size_t mean = n->held.count ? n->held_bytes / n->held.count + 1 : 1;
	size_t fit = NODE_HELD_BYTES_MAX / 2 / mean;
	uint32_t least = n->workers + 1;
	if (fit > NODE_HELD_MAX)
		return NODE_HELD_MAX;
	return fit < least ? least : (uint32_t)fit;
}

static bool send_result(struct node *n, struct done *d)
{
	int up = node_uplink(n);
	if (up == 0)
		return false;
	struct frame f = { .type = FRAME_RESULT, .flags = d->failed ? FRAME_FAILED : 0,
			   .node = n->self, .position = n->position, .value = d->value,
			   .total = d->len, .ms = d->took_ms };
	do {
		f.len = d->len - f.offset < FRAME_PART_MAX ? d->len - f.offset : FRAME_PART_MAX;
		f.bytes = d->bytes + f.offset;
		if (node_emit(n, up, &f, NULL) < 0)
			return false; /* sent again from the start later */
		f.offset += (uint32_t)f.len;
	} while (f.offset < d->len);
	d->sent_ms = n->now_ms ? n->now_ms : 1;
	return true;
}

static struct held *held_new(struct node *n, const struct frame *f)
{
	if (f->total > NODE_VALUE_MAX || n->held.count >= NODE_HELD_MAX + 64 ||
	    n->held_bytes + f->total > NODE_HELD_BYTES_MAX)
		return NULL;
	struct held h = { .value = f->value, .total = f->total, .bytes = malloc(f->total + 1u) };
	if (!h.bytes || VEC_PUSH(&n->held, h) < 0) {
		free(h.bytes);
		return NULL;
	}
	n->held_bytes += f->total;
	return &n->held.data[n->held.count - 1];
}

void node_work_lend(struct node *n, const struct frame *f, int link)
{
	n->life_ms = MIN(MAX(f->ms, NODE_LIFE_MS), NODE_LIFE_MAX_MS);
	VEC_EACH(&n->done, d) {
		if (d->value == f->value) { /* lent twice: the answer is here already */
			(void)send_result(n, d); /* else by node_work_resend() */
			return;
		}
	}
	struct held *h = held_find(n, f->value);
	if (h && h->have == h->total && h->total > 0)
		return;
	if (!h && f->offset == 0) {
		h = held_new(n, f);
		if (!h) {
			n->stats.refused++;
			bounce(n, f->value, link);
			return;
		}
	}
	/* Parts come in order on one way; a part that does not follow belongs to a broken one. */
	if (!h || h->total != f->total || h->have != f->offset) {
		if (h && f->offset == 0 && h->total == f->total && !h->computing)
			h->have = 0;
		else
			return;
	}
	memcpy(h->bytes + h->have, f->bytes, f->len);
	h->have += (uint32_t)f->len;
	node_work_start(n);
}

void node_work_start(struct node *n)
{
	for (size_t i = 0; i < n->held.count && n->computing < n->workers; i++) {
		struct held *h = &n->held.data[i];
		if (h->computing || h->have != h->total)
			continue;
		h->computing = true;
		n->computing++;
		n->ops->compute(n->user, h->value, h->bytes, h->total);
	}
}

void node_work_cancel(struct node *n, uint64_t value)
{
	struct held *h = held_find(n, value);
	if (!h)
		return;
	if (h->computing)
		n->ops->cancel(n->user, value);
	held_remove(n, h);
	node_work_start(n);
}

void node_work_ack(struct node *n, const struct frame *f)
{
	for (size_t k = 0; k < f->ids_count; k++) {
		uint64_t value = frame_id(f, k);
		for (size_t i = 0; i < n->done.count; i++) {
			if (n->done.data[i].value != value)
				continue;
			free(n->done.data[i].bytes);
			VEC_REMOVE(&n->done, i);
			break;
		}
	}
}

/* all: on a new way up, whatever was sent on the old one. */
void node_work_resend(struct node *n, bool all)
{
	VEC_EACH(&n->done, d) {
		bool late = d->sent_ms && n->now_ms >= d->sent_ms + NODE_RESEND_MS;
		if (d->sent_ms && !late && !all)
			continue;
		n->stats.resent += d->sent_ms != 0;
		if (!send_result(n, d))
			return;
	}
}

void node_work_demand(struct node *n)
{
	int up = node_uplink(n);
	if (up == 0)
		return;
	uint64_t ids[FRAME_IDS_MAX];
	struct frame f = { .type = FRAME_DEMAND, .node = n->self, .position = n->position,
			   .credit = credit_of(n), .workers = n->workers,
			   .generation = n->generation };
	if (n->holds_due) {
		f.flags = FRAME_HOLDS;
		for (size_t i = 0; i < n->held.count && f.ids_count < FRAME_IDS_MAX; i++)
			ids[f.ids_count++] = n->held.data[i].value;
		for (size_t i = 0; i < n->done.count && f.ids_count < FRAME_IDS_MAX; i++)
			ids[f.ids_count++] = n->done.data[i].value;
	}
	if (node_emit(n, up, &f, ids) < 0)
		return;
	n->demand_due = n->holds_due = false;
	n->demand_ms = n->now_ms;
}

void node_result(struct node *n, uint64_t value, bool failed, const void *bytes, size_t len,
		 uint32_t took_ms, uint64_t now_ms)
{
	n->now_ms = now_ms;
	struct held *h = held_find(n, value);
	if (!h || !h->computing)
		return; /* cancelled meanwhile */
	held_remove(n, h);
	if (len > NODE_VALUE_MAX) {
		static const char why[] = "the result is larger than 4 MiB";
		failed = true;
		bytes = why;
		len = sizeof(why) - 1;
	}
	struct done d = { .value = value, .failed = failed, .bytes = malloc(len + 1),
			  .len = (uint32_t)len, .took_ms = took_ms };
	if (d.bytes) {
		memcpy(d.bytes, bytes, len);
		if (VEC_PUSH(&n->done, d) < 0)
			free(d.bytes); /* computed in vain: the deadline lends it again */
		else
			(void)send_result(n, &n->done.data[n->done.count - 1]);
	}
	n->stats.computed += !failed;
	n->stats.failed += failed;
	node_work_start(n);
}

void node_work_done(struct node *n)
{
	VEC_EACH(&n->held, h)
		free(h->bytes);
	VEC_EACH(&n->done, d)
		free(d->bytes);
	VEC_DONE(&n->held);
	VEC_DONE(&n->done);
}
