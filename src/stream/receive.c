/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receive calls: runs are taken apart one message at a time, as they lie in
 * the blocks, and whoever waits also does the node's work.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream/node_internal.h"

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
	run_pop(q);
}

static bool record_broken(struct reclaim_node *n, struct run_queue *q, struct run *r)
{
	struct in *in = r->in;

	run_drop(n, r);
	run_pop(q);
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
		in->digests[m->seq % DIGESTS_MAX] = in_digest(m->data, m->len);
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
				run_pop(q);
				continue;
			}
			if (r->kind != RECLAIM_DATA) {
				fill(&ret[count++], n, r);
				run_pop(q);
				continue;
			}
			if (!take_data(n, q, r, &ret[count]))
				continue;
			count++;
			if (receiver_ack_due(&in->rx)) {
				in_ack(in);
				if (in->link)
					link_flush(in->link);
			} else if (!in->ack_listed) {
				in_ack_later(n, in);
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
