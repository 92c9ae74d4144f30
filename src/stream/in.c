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

enum { BLOCK_POOL_MAX = 16, BIG_POOL_BYTES = 64 << 20, ACK_DELAY_NS = 2 * 1000 * 1000 };

uint64_t in_window(const struct reclaim_node *n, uint8_t cls)
{
	static const uint64_t by_class[STREAM_CLASS_COUNT] = { 256 << 10, 1 << 20, 4 << 20, 8 << 20 };

	return n->options.window ? MAX(n->options.window, (uint64_t)SEGMENT_MAX) : by_class[cls];
}

static void ack_later(struct reclaim_node *n, struct in *in);

/* --- memory --- */

struct block *block_new(struct reclaim_node *n, uint32_t cap)
{
	struct block *b;

	if (cap == BLOCK_SIZE && n->block_pool.count) {
		b = n->block_pool.data[--n->block_pool.count];
	} else {
		b = malloc(sizeof(*b) + cap);
		if (!b)
			return NULL;
		b->cap = cap;
	}
	b->refs = 1;
	return b;
}

void block_unref(struct reclaim_node *n, struct block *b)
{
	if (--b->refs)
		return;
	if (b->cap == BLOCK_SIZE && n->block_pool.count < BLOCK_POOL_MAX &&
	    VEC_PUSH(&n->block_pool, b) == 0)
		return;
	free(b);
}

static size_t round_up(size_t len)
{
	size_t cap = 32 << 10;

	while (cap < len)
		cap *= 2;
	return cap;
}

static struct big *big_new(struct reclaim_node *n, size_t len)
{
	struct big *b;

	if (n->options.alloc) {
		uint8_t *mem = n->options.alloc(n->options.arg, len);

		if (mem && (b = calloc(1, sizeof(*b)))) {
			*b = (struct big){ mem, len, len, true };
			return b;
		}
	}
	/* The last one given back first: its pages are there and warm. */
	for (size_t i = n->big_pool.count; i-- > 0;) {
		b = n->big_pool.data[i];
		if (b->cap >= len && b->cap <= 4 * round_up(len)) {
			VEC_REMOVE(&n->big_pool, i);
			n->big_pool_bytes -= b->cap;
			b->len = len;
			return b;
		}
	}
	b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->cap = round_up(len);
	b->len = len;
	b->data = malloc(b->cap);
	if (!b->data) {
		free(b);
		return NULL;
	}
	return b;
}

static void big_free(struct reclaim_node *n, struct big *b, bool handed_out)
{
	if (!b)
		return;
	if (b->application) {
		if (!handed_out && n->options.unalloc)
			n->options.unalloc(n->options.arg, b->data, b->len);
		free(b);
		return;
	}
	if (n->big_pool_bytes + b->cap <= BIG_POOL_BYTES && VEC_PUSH(&n->big_pool, b) == 0) {
		n->big_pool_bytes += b->cap;
		return;
	}
	free(b->data);
	free(b);
}

void run_drop(struct reclaim_node *n, struct run *r)
{
	if (r->block)
		block_unref(n, r->block);
	free(r->copy);
	big_free(n, r->big, false);
}

static struct run *queue_push(struct run_queue *q)
{
	if (q->count == q->cap) {
		size_t cap = q->cap ? q->cap * 2 : 64;
		struct run *data = malloc(cap * sizeof(*data));

		if (!data)
			return NULL;
		for (size_t i = 0; i < q->count; i++)
			data[i] = q->data[(q->head + i) & (q->cap - 1)];
		free(q->data);
		q->data = data;
		q->cap = cap;
		q->head = 0;
	}
	struct run *r = &q->data[(q->head + q->count++) & (q->cap - 1)];

	memset(r, 0, sizeof(*r));
	return r;
}

static void queue_pop(struct run_queue *q)
{
	q->head = (q->head + 1) & (q->cap - 1);
	q->count--;
}

void in_release_given(struct reclaim_node *n)
{
	for (size_t i = 0; i < n->given_blocks.count; i++)
		block_unref(n, n->given_blocks.data[i]);
	for (size_t i = 0; i < n->given_copies.count; i++)
		free(n->given_copies.data[i]);
	for (size_t i = 0; i < n->given_bigs.count; i++)
		big_free(n, n->given_bigs.data[i], true);
	n->given_blocks.count = n->given_copies.count = n->given_bigs.count = 0;
}

/* Forgets what is queued and not taken, as after a move: the new owner gets it. */
void in_purge(struct reclaim_node *n)
{
	for (int c = 0; c < STREAM_CLASS_COUNT; c++) {
		struct run_queue *q = &n->queues[c];

		while (q->count) {
			run_drop(n, &q->data[q->head]);
			queue_pop(q);
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
		ack_later(n, in);
	node_event(n, "attached", in->from, f->producer_epoch, next);
	if (n->owner.state == OWNER_FROZEN) {
		struct stream_frame z = { .type = STREAM_FRAME_FREEZE, .handle = f->handle,
					  .epoch = n->owner.epoch, .seq = in->rx.cur };
		link_send(l, &z);
	}
}

/* --- what arrives --- */

static bool owning(const struct reclaim_node *n)
{
	return n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN;
}

static uint64_t digest_of(const uint8_t *p, size_t len)
{
	return hash_sip24(p, len, 0x7265636c61696d31, 0x73747265616d3031);
}

/* A message that we had before: is it the same? */
static void check_again(struct in *in, uint64_t seq, const uint8_t *p, size_t len)
{
	if (in->digests && seq <= in->rx.cur && seq + DIGESTS_MAX > in->rx.cur &&
	    in->digests[seq % DIGESTS_MAX] && in->digests[seq % DIGESTS_MAX] != digest_of(p, len))
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
	struct run *r = queue_push(&n->queues[in->cls]);

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
	struct run *r = queue_push(&n->queues[in->cls]);
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
	struct run *r = queue_push(&n->queues[in->cls]);
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

/* --- acknowledgements --- */

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

static void ack_later(struct reclaim_node *n, struct in *in)
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

/* --- the calls --- */

static void fill(struct reclaim_msg *m, const struct reclaim_node *n, const struct run *r)
{
	m->kind = r->kind;
	m->cls = (enum reclaim_class)r->in->cls;
	m->from = r->in->from;
	m->number = r->in->number;
	m->code = r->code;
	m->seq = r->seq;
	m->epoch = n->owner.epoch;
	m->data = NULL;
	m->len = 0;
}

/* The front run is used up: its memory lives until the next receive call. */
static void run_done(struct reclaim_node *n, struct run_queue *q, struct run *r)
{
	if (r->block && VEC_PUSH(&n->given_blocks, r->block) < 0)
		block_unref(n, r->block); /* the link still holds what it reads into */
	if (r->copy && VEC_PUSH(&n->given_copies, r->copy) < 0)
		free(r->copy);
	if (r->big && VEC_PUSH(&n->given_bigs, r->big) < 0)
		big_free(n, r->big, true);
	queue_pop(q);
}

static bool record_broken(struct reclaim_node *n, struct run_queue *q, struct run *r)
{
	struct in *in = r->in;

	run_drop(n, r);
	queue_pop(q);
	in->generation++;
	in->queued = 0;
	receiver_drop_queue(&in->rx);
	if (in->link)
		link_close(in->link, "peer broke the protocol");
	return false;
}

static bool take_data(struct reclaim_node *n, struct run_queue *q, struct run *r,
		      struct reclaim_msg *m)
{
	struct in *in = r->in;
	uint64_t bytes;

	fill(m, n, r);
	if (r->big) {
		m->data = r->big->data;
		m->len = r->big->len;
		bytes = m->len;
	} else {
		size_t left = (size_t)(r->end - r->at);
		uint32_t len = left >= STREAM_RECORD_HEAD ? load_le32(r->at) : UINT32_MAX;

		if (len > left - STREAM_RECORD_HEAD || left < STREAM_RECORD_HEAD)
			return record_broken(n, q, r);
		m->data = r->at + STREAM_RECORD_HEAD;
		m->len = len;
		bytes = (uint64_t)len + STREAM_RECORD_HEAD;
		r->at += bytes;
		if (r->count == 1 && r->at != r->end)
			return record_broken(n, q, r);
	}
	receiver_take(&in->rx, bytes);
	in->queued -= bytes;
	n->stats.queued_bytes -= bytes;
	n->stats.messages_received++;
	n->stats.bytes_received += m->len;
	if (in->digests)
		in->digests[m->seq % DIGESTS_MAX] = digest_of(m->data, m->len);
	r->seq++;
	if (--r->count == 0)
		run_done(n, q, r);
	return true;
}

static int take(struct reclaim_node *n, struct reclaim_msg *ret, int max)
{
	int count = 0;

	for (int c = 0; c < STREAM_CLASS_COUNT && count < max; c++) {
		struct run_queue *q = &n->queues[c];

		while (count < max && q->count) {
			struct run *r = &q->data[q->head];
			struct in *in = r->in;

			if (r->generation != in->generation) {
				run_drop(n, r);
				queue_pop(q);
				continue;
			}
			if (r->kind != RECLAIM_DATA) {
				fill(&ret[count++], n, r);
				queue_pop(q);
				continue;
			}
			if (!take_data(n, q, r, &ret[count]))
				continue;
			count++;
			if (receiver_ack_due(&in->rx)) {
				in_ack(in);
				if (in->link)
					link_flush(in->link);
			} else {
				ack_later(n, in);
			}
			if (in->close_known && in->rx.cur == in->close_seq) {
				in->close_known = false;
				in_event(in, RECLAIM_CLOSED, in->close_seq, 0);
			}
		}
	}
	return count;
}

/* What a receive call does besides taking: the states of the owner. */
static int before_take(struct reclaim_node *n)
{
	if (n->cancelled)
		return -ECANCELED;
	if (n->move.freeze_wanted)
		move_try_freeze(n, true);
#if RECLAIM_MOBILITY
	if (n->owner.lease_until_ns && n->now_ns >= n->owner.lease_until_ns)
		node_act(n, owner_on_time(&n->owner, n->now_ns));
#endif
	if (n->owner.state == OWNER_GONE)
		return -ESTALE;
	if (n->move.load_due && n->owner.state == OWNER_ACTIVE)
		return move_load(n);
	return 0;
}

/* Only while one link alone brings messages, and somebody else can look after the rest. */
static bool may_sleep_on_link(struct reclaim_node *n, uint64_t deadline)
{
	if (n->hot != n->steady) {
		n->steady = n->hot;
		n->steady_count = 0;
		return false;
	}
	return n->hot && ++n->steady_count > 16 && n->keeper_runs && !n->polling && !n->fd_given &&
	       deadline - n->now_ns > 4 * NS_PER_MS && !n->move.source &&
	       owner_may_deliver(&n->owner, n->now_ns) && n->hot->ins.count;
}

static void after_sleep(struct reclaim_node *n)
{
	if (n->now_ns >= n->timer_ns)
		link_flush_all(n);
	link_bury(n);
	if (n->now_ns >= n->timer_ns)
		node_turn(n, 0);
	if (n->cond_waiters)
		pthread_cond_broadcast(&n->cond);
}

static int receive(struct reclaim_node *n, struct reclaim_msg *ret, int max, int timeout_ms)
{
	uint64_t deadline = 0;
	unsigned spins = 0;
	bool looked = false;
	int r;

	if (max < 1)
		return -EINVAL;
	in_release_given(n);
	n->in_receive = true;
	n->received_once = true;
	node_now(n);
	if (n->deferred)
		link_flush_all(n);
	for (;;) {
		r = before_take(n);
		if (r < 0)
			break;
		if (n->active_event) {
			n->active_event = false;
			memset(ret, 0, sizeof(*ret));
			*ret = (struct reclaim_msg){ .kind = RECLAIM_ACTIVE, .from = n->name,
						     .epoch = n->owner.epoch };
			r = 1;
			break;
		}
		if (owner_may_deliver(&n->owner, n->now_ns)) {
			r = take(n, ret, max);
			if (r) {
				if (n->move.target)
					move_first_message(n);
				break;
			}
		}
		if (!deadline)
			deadline = node_deadline(timeout_ms);
		if (looked && n->now_ns >= deadline)
			break;
		looked = true;
		if (timeout_ms == 0) {
			node_turn(n, 0);
		} else if (n->options.spin) {
			/* The link that spoke last is looked at directly, all else now and then. */
			if (n->hot && ++spins % 64) {
				if (spins % 16 == 0)
					node_now(n);
				link_read(n->hot);
			} else {
				node_turn(n, 0);
			}
			if (spins % 256 == 255) {
				/* Let other threads have the lock. */
				pthread_mutex_unlock(&n->lock);
				node_lock(n);
			}
		} else if (may_sleep_on_link(n, deadline) && link_sleep(n->hot)) {
			after_sleep(n);
		} else {
			r = node_wait(n, deadline);
			if (r == -ETIMEDOUT)
				continue; /* one last look */
			if (r < 0)
				break;
		}
	}
	n->in_receive = false;
	return r;
}

int reclaim_recv_many(struct reclaim_node *n, struct reclaim_msg *ret, int max, int timeout_ms)
{
	node_lock(n);
	int r = receive(n, ret, max, timeout_ms);

	pthread_mutex_unlock(&n->lock);
	return r;
}

int reclaim_recv(struct reclaim_node *n, struct reclaim_msg *ret, int timeout_ms)
{
	return reclaim_recv_many(n, ret, 1, timeout_ms);
}

int reclaim_refuse(struct reclaim_node *n, const char *from, uint32_t number, uint32_t code)
{
	int r = -ENOENT;

	node_lock(n);
	node_now(n);
	struct in *in = in_find(n, from, number);
	if (in && !in->refused) {
		struct link *l = in->link;

		if (l) {
			struct stream_frame f = { .type = STREAM_FRAME_ABORT,
						  .cls = STREAM_ABORT_BY_OWNER, .handle = in->handle,
						  .code = code };
			link_send(l, &f);
			in_detach(in);
			link_flush(l);
		}
		in->refused = true;
		in->handle = code; /* told again when it attaches again */
		in->generation++;
		n->stats.queued_bytes -= in->queued;
		in->queued = 0;
		receiver_drop_queue(&in->rx);
		r = 0;
	}
	pthread_mutex_unlock(&n->lock);
	return r;
}
