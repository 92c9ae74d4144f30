/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See master.h: frames that arrive at the root or over a socket, and values
 * that go out. A frame speaks for the volunteer it names only if it came from
 * the place where that volunteer stands, or over its own socket.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "volunteer/master_internal.h"

#define PARTS_MAX 512u /* unfinished results of one volunteer */

int master_send_frame(struct master *m, struct master_member *v, struct frame *f,
		      const uint64_t *ids)
{
	f->node = v->node;
	f->position = v->position;
	if (v->via_tree && (!m->tree || tree_reachable(m->tree, v->node))) {
		int r = node_down(m->root, f, ids);
		if (r != -ENOTCONN)
			return r;
	}
	if (!v->socket)
		return -ENOTCONN;
	uint8_t bytes[FRAME_MAX + 8 * FRAME_IDS_MAX];
	char text[(sizeof(bytes) + 2) / 3 * 4 + 1];
	(void)base64_encode(bytes, frame_encode(f, ids, bytes), text);
	struct signal s = { .type = SIGNAL_FRAME, .data = text };
	master_send(m, v, &s);
	return 0;
}

static void lend_value_to(struct master *m, struct master_member *v, const struct lend_loan *loan,
			  uint64_t now)
{
	struct frame f = { .type = FRAME_LEND, .value = loan->value, .total = (uint32_t)loan->len,
			   .ms = loan->life_ms };
	do {
		size_t left = loan->len - f.offset;
		f.len = left < FRAME_PART_MAX ? left : FRAME_PART_MAX;
		f.bytes = (const uint8_t *)loan->bytes + f.offset;
		if (master_send_frame(m, v, &f, NULL) < 0) {
			lend_reachable(m->lend, v->node, false);
			lend_undelivered(m->lend, v->node, loan->value, now);
			return;
		}
		f.offset += (uint32_t)f.len;
	} while (f.offset < f.total);
}

void master_pump(struct master *m)
{
	if (m->pumping) { /* sending may end channels, which comes back here */
		m->pump_again = true;
		return;
	}
	m->pumping = true;
	do {
		struct lend_loan loan;
		uint64_t now = master_now_ms(m), node, value;
		m->pump_again = false;
		while (lend_next(m->lend, now, &loan)) {
			struct master_member *v = master_find(m, loan.volunteer);
			if (v)
				lend_value_to(m, v, &loan, now);
			else
				lend_leave(m->lend, loan.volunteer, now);
		}
		while (lend_cancelled(m->lend, &node, &value)) {
			struct master_member *v = master_find(m, node);
			struct frame f = { .type = FRAME_CANCEL, .value = value };
			if (v)
				(void)master_send_frame(m, v, &f, NULL); /* else it computes in vain */
		}
	} while (m->pump_again);
	m->pumping = false;
}

/* ---- results ---- */

void master_member_parts_done(struct master_member *v)
{
	VEC_EACH(&v->parts, p)
		free(p->bytes);
	VEC_DONE(&v->parts);
}

static void acknowledge(struct master *m, struct master_member *v, uint64_t value)
{
	if (VEC_PUSH(&v->acks, value) < 0)
		return; /* it sends the result again, and is acknowledged then */
	if (!v->acks_due && VEC_PUSH(&m->ack_list, v) == 0)
		v->acks_due = true;
	if (!m->flush_armed) {
		m->flush_armed = loop_timer_in(&m->flush, 5 * NS_PER_MS) == 0;
	}
}

void master_flush_acks(struct master *m)
{
	if (m->flush_armed)
		loop_timer_stop(&m->flush);
	m->flush_armed = false;
	VEC_EACH(&m->ack_list, v) {
		struct master_member *w = *v;
		w->acks_due = false;
		for (size_t at = 0; at < w->acks.count; at += FRAME_IDS_MAX) {
			struct frame f = { .type = FRAME_ACK, .ids_count = MIN(w->acks.count - at,
									       (size_t)FRAME_IDS_MAX) };
			(void)master_send_frame(m, w, &f, w->acks.data + at); /* it asks again */
		}
		w->acks.count = 0;
	}
	m->ack_list.count = 0;
}

/* It has its way to us, and a first result of it is here. */
static void count_connected(struct master *m, struct master_member *v)
{
	if (v->counted || !v->got_result || !(v->via_tree || v->relay))
		return;
	v->counted = true;
	m->stats.connected++;
	m->last_connected_ms = master_now_ms(m);
}

static void whole_result(struct master *m, struct master_member *v, uint64_t value, bool failed,
			 const void *bytes, size_t len)
{
	uint64_t now = master_now_ms(m);
	enum lend_verdict verdict = lend_result(m->lend, v->node, value, failed, bytes, len, now);
	if (verdict == LEND_NEVER_LENT || verdict == LEND_TOO_LARGE)
		m->stats.refused++;
	acknowledge(m, v, value);
	if (failed) /* it may be asked again, and must have forgotten its first answer by then */
		master_flush_acks(m);
	if (verdict != LEND_NEVER_LENT && verdict != LEND_TOO_LARGE)
		v->got_result = true;
	count_connected(m, v);
	m->ops->progress(m->user);
	master_pump(m);
}

static struct part *part_of(struct master_member *v, const struct frame *f)
{
	VEC_EACH(&v->parts, p) {
		if (p->value == f->value)
			return p;
	}
	if (f->offset != 0 || f->total > LEND_VALUE_MAX || v->parts.count >= PARTS_MAX)
		return NULL;
	struct part fresh = { .value = f->value, .total = f->total, .bytes = malloc(f->total) };
	if (!fresh.bytes || VEC_PUSH(&v->parts, fresh) < 0) {
		free(fresh.bytes);
		return NULL;
	}
	return &v->parts.data[v->parts.count - 1];
}

static void on_result(struct master *m, struct master_member *v, const struct frame *f)
{
	bool failed = f->flags & FRAME_FAILED;
	if (f->offset == 0 && f->len == f->total) {
		whole_result(m, v, f->value, failed, f->bytes, f->len);
		return;
	}
	struct part *p = part_of(v, f);
	if (!p) {
		m->stats.refused++;
		return;
	}
	if (f->offset == 0)
		p->have = 0; /* sent again from the start */
	if (p->total != f->total || p->have != f->offset)
		return;
	memcpy(p->bytes + p->have, f->bytes, f->len);
	p->have += (uint32_t)f->len;
	lend_alive(m->lend, v->node, master_now_ms(m));
	if (p->have < p->total)
		return;
	struct part done = *p;
	size_t i = (size_t)(p - v->parts.data);
	VEC_SWAP_REMOVE(&v->parts, i);
	whole_result(m, v, done.value, failed, done.bytes, done.total);
	free(done.bytes);
}

static void on_demand(struct master *m, struct master_member *v, const struct frame *f)
{
	uint64_t now = master_now_ms(m);
	if (f->flags & FRAME_HOLDS) {
		uint64_t ids[FRAME_IDS_MAX];
		for (size_t i = 0; i < f->ids_count; i++)
			ids[i] = frame_id(f, i);
		lend_holds(m->lend, v->node, ids, f->ids_count, now);
	}
	lend_reachable(m->lend, v->node, true);
	lend_demand(m->lend, v->node, f->credit, f->workers, now);
	master_pump(m);
}

/* Does a frame that came through the tree come from where its volunteer stands? */
static bool stands_there(struct master *m, struct master_member *v, const struct frame *f)
{
	if (!m->tree)
		return true; /* local mode: the nodes on the way have checked their part */
	struct tree_place place;
	enum tree_state state = tree_state(m->tree, v->node);
	if (tree_where(m->tree, v->node, &place) < 0)
		return false;
	if (f->type == FRAME_DEMAND && state != TREE_ATTACHED)
		return true; /* master_tree_attached() looks at generation and place */
	return place.position == f->position;
}

/* Whether v stands in the subtree of `above`, where that one stands or is about to. */
static bool is_below(struct master *m, const struct master_member *v,
		     const struct master_member *above)
{
	struct tree_place now = { .position = above->position }, next = now;
	if (m->tree && (tree_where(m->tree, above->node, &now) < 0 ||
			tree_target(m->tree, above->node, &next) < 0))
		return false;
	for (uint64_t p = v->position; p > 0;) {
		p = route_parent(p, m->config.degree);
		if (p > 0 && (p == now.position || p == next.position))
			return true;
	}
	return false;
}

void master_frame(struct master *m, struct master_member *from_socket, const struct frame *f)
{
	if (f->type == FRAME_BOUNCE) { /* sent by whoever could not pass it on */
		struct master_member *v = master_find(m, f->node);
		if (v) {
			lend_reachable(m->lend, v->node, false);
			lend_undelivered(m->lend, v->node, f->value, master_now_ms(m));
			master_pump(m);
		}
		return;
	}
	struct master_member *v = from_socket ? from_socket : master_find(m, f->node);
	if (!v || !v->joined || v->node != f->node || (!from_socket && !stands_there(m, v, f))) {
		/* What an inner node passes on over its socket while it moves: its subtree's frames. */
		struct master_member *below = from_socket ? master_find(m, f->node) : NULL;
		if (!below || !below->joined || !is_below(m, below, from_socket)) {
			m->stats.refused++;
			return;
		}
		v = below;
	}
	v->heard_ms = master_now_ms(m);
	v->ping_ms = 0; /* whichever way it came: it lives */
	if (!from_socket) {
		v->via_tree = true;
		v->relay = false;
		v->position = f->position;
		if (m->tree && f->type == FRAME_DEMAND)
			master_tree_attached(m, v, f);
		count_connected(m, v);
	} else if (f->type == FRAME_DEMAND && v == from_socket) {
		v->via_tree = false;
		if (v->adopted)
			master_detached(m, v);
	}
	v->adopted = false;
	if (f->type == FRAME_RESULT)
		on_result(m, v, f);
	else if (f->type == FRAME_DEMAND)
		on_demand(m, v, f);
	else
		m->stats.refused++;
}

void master_work_tick(struct master *m)
{
	lend_tick(m->lend, master_now_ms(m));
	master_pump(m);
}
