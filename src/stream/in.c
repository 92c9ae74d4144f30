/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Input: a RUN is queued as it lies in the link's block and taken apart one
 * message at a time by the receive call, which therefore copies nothing. A long
 * message is read straight into its own memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "stream/node_internal.h"

enum { ACK_DELAY_NS = 2 * 1000 * 1000 };

uint64_t in_window(const struct reclaim_node *n, uint8_t cls)
{
	static const uint64_t by_class[STREAM_CLASS_COUNT] = { 256 << 10, 1 << 20, 4 << 20, 8 << 20 };

	return n->options.window ? MAX(n->options.window, (uint64_t)SEGMENT_MAX) : by_class[cls];
}

/* --- acknowledgements --- */

static bool owning(const struct reclaim_node *n)
{
	return n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN;
}

void in_ack(struct in *in)
{
	struct link *l = in->link;

	if (!l || !owning(l->node))
		return;
	struct stream_frame f = { .type = STREAM_FRAME_ACK, .handle = in->handle,
				  .epoch = l->node->owner.epoch, .seq = in->rx.cur,
				  .limit = receiver_limit(&in->rx) };

	if (l->node->level == 0)
		receiver_set_stable(&in->rx, in->rx.cur);
	f.stable = in->rx.stable;
	in->rx.acked = in->rx.cur;
	in->rx.acked_stable = in->rx.stable;
	if (f.limit > in->rx.granted)
		in->rx.granted = f.limit;
	l->node->stats.acks_sent++;
	link_send(l, &f);
}

void in_ack_later(struct reclaim_node *n, struct in *in)
{
	if (in->ack_listed || VEC_PUSH(&n->acks, in) < 0)
		return;
	in->ack_listed = true;
	if (!n->ack_at_ns) {
		n->ack_at_ns = n->now_ns + ACK_DELAY_NS;
		node_soon(n, n->ack_at_ns);
	}
}

void in_flush_acks(struct reclaim_node *n, bool all)
{
	if (!all && (!n->ack_at_ns || n->now_ns < n->ack_at_ns))
		return;
	for (size_t i = 0; i < n->acks.count; i++) {
		struct in *in = n->acks.data[i];

		in->ack_listed = false;
		if (receiver_ack_pending(&in->rx))
			in_ack(in);
	}
	n->acks.count = 0;
	n->ack_at_ns = 0;
}

/* Forgets what is queued and not taken, as after a move: the new owner gets it. */
void in_purge(struct reclaim_node *n)
{
	for (int c = 0; c < STREAM_CLASS_COUNT; c++) {
		struct run_queue *q = &n->queues[c];

		while (q->count) {
			run_drop(n, &q->data[q->head]);
			run_pop(q);
		}
	}
	VEC_EACH(&n->ins, p) {
		struct in *in = *p;

		in->queued = 0;
		receiver_drop_queue(&in->rx);
		big_free(n, in->frag, false);
		in->frag = NULL;
		in->frag_have = 0;
	}
	n->stats.queued_bytes = 0;
}

/* --- streams --- */

static size_t key_of(char *key, const char *from, uint32_t number)
{
	size_t len = strlen(from);

	memcpy(key, from, len);
	memcpy(key + len, &number, sizeof(number));
	return len + sizeof(number);
}

struct in *in_find(struct reclaim_node *n, const char *from, uint32_t number)
{
	char key[STREAM_NAME_MAX + 8];

	return map_get(n->in_map, key, key_of(key, from, number));
}

struct in *in_get(struct reclaim_node *n, const char *from, uint32_t number, uint8_t cls)
{
	struct in *in = in_find(n, from, number);
	char key[STREAM_NAME_MAX + 8];

	if (in)
		return in;
	in = calloc(1, sizeof(*in));
	if (!in)
		return NULL;
	in->node = n;
	snprintf(in->from, sizeof(in->from), "%s", from);
	in->number = number;
	in->cls = cls;
	receiver_init(&in->rx, in_window(n, cls));
	if (VEC_PUSH(&n->ins, in) < 0) {
		free(in);
		return NULL;
	}
	if (map_set(n->in_map, key, key_of(key, from, number), in, NULL) < 0) {
		n->ins.count--;
		free(in);
		return NULL;
	}
	return in;
}

void in_free(struct reclaim_node *n, struct in *in)
{
	big_free(n, in->frag, false);
	free(in->put_buf);
	free(in->digests);
	free(in);
}

void in_detach(struct in *in)
{
	struct link *l = in->link;

	if (!l)
		return;
	if (l->direct == in) {
		/* What was announced but did not come. */
		in->frag_have -= l->direct_left;
		if (in->put_buf)
			in->frag_have = in->put_at; /* a device piece counts only whole */
		l->direct = NULL;
		l->direct_left = 0;
	}
	if (in->handle < l->ins.count && l->ins.data[in->handle] == in)
		l->ins.data[in->handle] = NULL;
	in->link = NULL;
	in->rx.attached = false;
}

static void nack(struct link *l, const struct stream_frame *f, uint32_t code)
{
	struct stream_frame a = { .type = STREAM_FRAME_NACK, .handle = f->handle,
				  .epoch = l->node->owner.epoch, .code = code };

	l->node->stats.stale_refused++;
	link_send(l, &a);
}

static int put_handle(struct link *l, uint32_t handle, struct in *in)
{
	if (handle >= HANDLES_MAX)
		return -EBADMSG;
	while (l->ins.count <= handle)
		if (VEC_PUSH(&l->ins, NULL) < 0)
			return -ENOMEM;
	l->ins.data[handle] = in;
	return 0;
}

void in_attach(struct link *l, const struct stream_frame *f)
{
	struct reclaim_node *n = l->node;
	struct in *in = in_get(n, f->producer, f->stream, f->cls);
	uint64_t next = 0, limit = 0;

	if (!in) {
		link_close(l, "no memory");
		return;
	}
	if (in->refused) {
		struct stream_frame a = { .type = STREAM_FRAME_ABORT, .cls = STREAM_ABORT_BY_OWNER,
					  .handle = f->handle,
					  .code = in->handle };
		link_send(l, &a);
		return;
	}
	bool restarted = f->producer_epoch > in->rx.producer_epoch;

	if (f->producer_epoch >= in->rx.producer_epoch && (in->link != l || restarted))
		in_detach(in);
	switch (receiver_on_attach(&in->rx, f->producer_epoch, f->seq, in->queued, &next, &limit)) {
	case RECEIVER_NEW:
		break;
	case RECEIVER_FENCED:
		nack(l, f, STREAM_NACK_STALE);
		return;
	default:
		nack(l, f, STREAM_NACK_LOST);
		return;
	}
	if (in->link == l && in->handle < l->ins.count && l->ins.data[in->handle] == in)
		l->ins.data[in->handle] = NULL; /* attached twice: the last one counts */
	if (put_handle(l, f->handle, in) < 0) {
		link_close(l, "peer broke the protocol");
		return;
	}
	if (restarted && in->frag) {
		big_free(n, in->frag, false);
		in->frag = NULL;
		in->frag_have = 0;
	}
	in->link = l;
	in->handle = f->handle;
	in->cls = f->cls;
	in->close_known = false;
	in->deterministic = f->level & STREAM_ATTACH_DETERMINISTIC;
	if (in->deterministic && !in->digests)
		in->digests = calloc(DIGESTS_MAX, sizeof(*in->digests));
	if (n->recovered && !in->recover_told && next > 1) {
		in->recover_told = true;
		n->stats.recoveries++;
		in_event(in, RECLAIM_RECOVERED, next, 0);
	}
	struct stream_frame a = { .type = STREAM_FRAME_WELCOME, .cls = f->cls, .handle = f->handle,
				  .epoch = n->owner.epoch, .seq = next, .stable = in->rx.stable,
				  .limit = limit, .offset = (uint32_t)in->frag_have };

	link_send(l, &a);
	if (receiver_ack_pending(&in->rx))
		in_ack_later(n, in);
	node_event(n, "attached", in->from, f->producer_epoch, next);
	if (n->owner.state == OWNER_FROZEN) {
		struct stream_frame z = { .type = STREAM_FRAME_FREEZE, .handle = f->handle,
					  .epoch = n->owner.epoch, .seq = in->rx.cur };
		link_send(l, &z);
	}
}

/* --- what arrives --- */

uint64_t in_digest(const uint8_t *p, size_t len)
{
	return hash_sip24(p, len, 0x7265636c61696d31, 0x73747265616d3031);
}

/* A message that we had before: is it the same? */
static void check_again(struct in *in, uint64_t seq, const uint8_t *p, size_t len)
{
	if (in->digests && seq <= in->rx.cur && seq + DIGESTS_MAX > in->rx.cur &&
	    in->digests[seq % DIGESTS_MAX] && in->digests[seq % DIGESTS_MAX] != in_digest(p, len))
		in_event(in, RECLAIM_DIVERGED, seq, 0);
}

static void wake_receiver(struct reclaim_node *n)
{
	if (n->cond_waiters || n->fd_given)
		node_wake(n);
}

void in_event(struct in *in, enum reclaim_kind kind, uint64_t seq, uint32_t code)
{
	struct reclaim_node *n = in->node;
	struct run *r = run_push(&n->queues[in->cls]);

	if (!r)
		return; /* an event is a courtesy, its cause is dealt with anyway */
	r->kind = kind;
	r->in = in;
	r->generation = in->generation;
	r->seq = seq;
	r->code = code;
	wake_receiver(n);
}

void in_run(struct link *l, struct in *in, const struct stream_frame *f, const uint8_t *p,
	    uint32_t len)
{
	struct reclaim_node *n = l->node;
	uint32_t skip = 0, at = 0;

#if RECLAIM_MOBILITY
	if (f->epoch != n->owner.epoch || !owning(n)) {
		n->stats.stale_refused += f->count;
		return;
	}
#endif
	switch (receiver_on_run(&in->rx, f->seq, f->count, len, &skip)) {
	case RECEIVER_NEW:
	case RECEIVER_AGAIN:
		break;
	default:
		link_close(l, "peer broke the protocol");
		return;
	}
	for (uint32_t i = 0; i < skip; i++) {
		uint32_t rec = len - at >= STREAM_RECORD_HEAD ? load_le32(p + at) : UINT32_MAX;

		if (rec > len - at - STREAM_RECORD_HEAD) {
			link_close(l, "peer broke the protocol");
			return;
		}
		check_again(in, f->seq + i, p + at + STREAM_RECORD_HEAD, rec);
		at += STREAM_RECORD_HEAD + rec;
	}
	receiver_skip(&in->rx, at);
	n->stats.duplicates_dropped += skip;
	if (skip == f->count)
		return;
	struct run *r = run_push(&n->queues[in->cls]);
	if (!r) {
		receiver_drop_queue(&in->rx);
		link_close(l, "no memory");
		return;
	}
	r->kind = RECLAIM_DATA;
	r->in = in;
	r->generation = in->generation;
	r->seq = f->seq + skip;
	r->count = f->count - skip;
	r->at = p + at;
	r->end = p + len;
	if (in->queued > in->rx.window / 2 && (r->copy = malloc(len - at))) {
		/* Its reader is slow: don't keep a whole block for a few bytes. */
		memcpy(r->copy, p + at, len - at);
		r->at = r->copy;
		r->end = r->copy + (len - at);
	} else {
		r->block = l->block;
		l->block->refs++;
	}
	in->queued += len - at;
	n->stats.queued_bytes += len - at;
	wake_receiver(n);
}

int in_frag(struct link *l, struct in *in, const struct stream_frame *f, uint32_t payload,
	    uint8_t **ret_at)
{
	struct reclaim_node *n = l->node;

#if RECLAIM_MOBILITY
	if (f->epoch != n->owner.epoch || !owning(n)) {
		n->stats.stale_refused++;
		return 0;
	}
#endif
	switch (receiver_on_piece(&in->rx, f->seq, f->total, payload)) {
	case RECEIVER_NEW:
		break;
	case RECEIVER_AGAIN:
		receiver_skip(&in->rx, payload);
		n->stats.duplicates_dropped += f->offset == 0;
		return 0;
	default:
		return -EBADMSG;
	}
	if (f->offset == 0) {
		big_free(n, in->frag, false);
		in->frag_have = 0;
		in->frag_total = f->total;
		in->frag = big_new(n, f->total);
		if (!in->frag)
			return -ENOMEM;
	}
	if (!in->frag || f->offset != in->frag_have || f->total != in->frag_total)
		return -EBADMSG;
	in->frag_have += payload;
	if (receiver_ack_due(&in->rx))
		in_ack(in); /* a message longer than the window asks for more at once */
	if (in->frag->application && n->options.put) {
		in->put_buf = malloc(payload);
		if (!in->put_buf)
			return -ENOMEM;
		in->put_at = f->offset;
		in->put_len = payload;
		*ret_at = in->put_buf;
		return 0;
	}
	*ret_at = in->frag->data + f->offset;
	return 0;
}

void in_frag_done(struct link *l, struct in *in)
{
	struct reclaim_node *n = l->node;

	if (in->put_buf) {
		int r = n->options.put(n->options.arg, in->frag->data, in->put_at, in->put_buf,
				       in->put_len);

		free(in->put_buf);
		in->put_buf = NULL;
		if (r < 0) {
			in->frag_have = in->put_at;
			link_close(l, "device memory could not be written");
			return;
		}
	}
	if (in->frag_have < in->frag_total)
		return;
	struct run *r = run_push(&n->queues[in->cls]);
	if (!r) {
		link_close(l, "no memory");
		return;
	}
	r->kind = RECLAIM_DATA;
	r->in = in;
	r->generation = in->generation;
	r->big = in->frag;
	r->seq = in->rx.arrived + 1;
	r->count = 1;
	receiver_complete(&in->rx, r->seq);
	in->queued += in->frag_total;
	n->stats.queued_bytes += in->frag_total;
	in->frag = NULL;
	in->frag_have = 0;
	wake_receiver(n);
}
