/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See master.h: who gets which place in the tree, in named mode. Every change of
 * the tree ends in SIGNAL_ATTACH to whoever must connect anew, or in an answer if
 * its offer is here already.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/strbuf.h"
#include "volunteer/master_internal.h"

/* So many connect at a time; the others wait with their offers. All at once would make each take
 * longer than a reservation lasts, and nobody would arrive. */
#define CONNECTING_MAX 192u

void master_relay(struct master *m, struct master_member *v, const char *why)
{
	struct signal s = { .type = SIGNAL_RELAY, .what = (char *)why };
	v->relay = true;
	v->via_tree = false;
	master_send(m, v, &s);
}

/* The place's parent gets the offer; the root answers by itself. */
void master_deliver_offer(struct master *m, struct master_member *v, const struct tree_place *place)
{
	char *offer = TAKE(v->offer);
	struct diag diag = DIAG_INIT;
	if (place->parent != m->root_id) {
		struct master_member *p = master_find(m, place->parent);
		struct signal s = { .type = SIGNAL_OFFER, .node = v->node, .sdp = offer,
				    .position = place->position, .generation = place->generation };
		if (p)
			master_send(m, p, &s);
		free(offer);
		return;
	}
	struct strbuf answer = STRBUF_INIT;
	int slot = node_expect(m->root, v->node, place->position, place->generation, master_now_ms(m));
	if (slot >= 0 && master_root_answer(m, slot, offer, strlen(offer), &answer, &diag) == 0) {
		struct signal s = { .type = SIGNAL_ANSWER, .generation = place->generation,
				    .position = place->position, .sdp = answer.data };
		master_send(m, v, &s);
	} else {
		m->stats.refused++;
		master_relay(m, v, diag.what[0] ? diag.what : "the offer cannot be answered");
	}
	strbuf_done(&answer);
	free(offer);
}

static void ask_offer(struct master *m, struct master_member *v, const struct tree_place *place)
{
	struct signal s = { .type = SIGNAL_ATTACH, .generation = place->generation,
			    .position = place->position };
	v->generation = place->generation;
	master_send(m, v, &s);
}

void master_repairs(struct master *m)
{
	struct tree_place place;
	while (tree_next_repair(m->tree, &place)) {
		struct master_member *v = master_find(m, place.node);
		m->stats.moves++;
		if (v)
			ask_offer(m, v, &place);
	}
}

void master_wait_for_place(struct master *m, struct master_member *v)
{
	if (v->waiting || VEC_PUSH(&m->waiting, v->node) < 0)
		return;
	v->waiting = true;
}

static bool try_place(struct master *m, struct master_member *v)
{
	struct tree_place place;
	int r = tree_place(m->tree, v->node, master_now_ms(m), &place);
	if (r == -EAGAIN)
		return false;
	if (r < 0)
		return true; /* has one already, or no memory: it goes on over its socket */
	v->generation = place.generation;
	if (v->offer)
		master_deliver_offer(m, v, &place);
	else
		ask_offer(m, v, &place);
	return true;
}

void master_place_waiting(struct master *m)
{
	while (m->waiting_at < m->waiting.count &&
	       tree_count(m->tree, TREE_CONNECTING) < CONNECTING_MAX) {
		struct master_member *v = master_find(m, m->waiting.data[m->waiting_at]);
		if (v && v->waiting && !try_place(m, v))
			break;
		if (v)
			v->waiting = false;
		m->waiting_at++;
	}
	if (m->waiting_at == m->waiting.count)
		m->waiting_at = m->waiting.count = 0;
}

void master_tree_attached(struct master *m, struct master_member *v, const struct frame *f)
{
	if (tree_attached(m->tree, v->node, f->generation, master_now_ms(m)) < 0)
		return;
	master_repairs(m);
	master_place_waiting(m);
}

void master_leave_tree(struct master *m, struct master_member *v)
{
	v->via_tree = false;
	if (m->tree && tree_leave(m->tree, v->node, master_now_ms(m)) == 0) {
		master_repairs(m);
		master_place_waiting(m);
	}
}

void master_expire_places(struct master *m)
{
	uint64_t node;
	while (m->tree && tree_expire(m->tree, master_now_ms(m), &node)) {
		struct master_member *v = master_find(m, node);
		master_repairs(m);
		if (!v)
			continue;
		v->via_tree = false;
		master_wait_for_place(m, v);
		master_suspect(m, v);
	}
	if (m->tree)
		master_place_waiting(m);
}
