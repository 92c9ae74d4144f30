/* SPDX-License-Identifier: Apache-2.0 */
/* See route.h. Requests come from other volunteers: nothing in them is trusted
 * beyond what the slot table of this node says about them. */
#include "volunteer/route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATE_MS 10000u
#define STORED_MS 15000u

int route_init(struct route *r, uint64_t self, uint64_t position, enum route_mode mode,
	       uint32_t degree)
{
	memset(r, 0, sizeof(*r));
	if (degree < 1 || degree > ROUTE_DEGREE_MAX || mode >= ROUTE_MODE_COUNT)
		return -EINVAL;
	r->slots = calloc(degree, sizeof(*r->slots));
	if (!r->slots)
		return -ENOMEM;
	r->self = self;
	r->position = position;
	r->mode = mode;
	r->degree = degree;
	r->candidate_ms = CANDIDATE_MS;
	r->stored_ms = STORED_MS;
	return 0;
}

void route_done(struct route *r)
{
	free(r->slots);
	free(r->stored);
	memset(r, 0, sizeof(*r));
}

uint64_t route_parent(uint64_t position, uint32_t degree)
{
	return position == 0 ? 0 : (position - 1) / degree;
}

uint64_t route_child(uint64_t position, uint32_t degree, uint32_t slot)
{
	if (position > (ROUTE_POSITION_MAX - slot - 1) / degree)
		return ROUTE_ANYWHERE;
	return position * degree + 1 + slot;
}

unsigned route_depth(uint64_t position, uint32_t degree)
{
	unsigned depth = 0;
	/* degree 1 is a chain: the position is the depth */
	if (degree == 1)
		return (unsigned)position;
	for (; position > 0; depth++)
		position = route_parent(position, degree);
	return depth;
}

int route_towards(const struct route *r, uint64_t dest)
{
	if (dest == r->position)
		return ROUTE_HERE;
	while (dest > r->position) {
		uint64_t parent = route_parent(dest, r->degree);
		if (parent == r->position)
			return (int)(dest - parent * r->degree - 1);
		dest = parent;
	}
	return ROUTE_UP;
}

/* Robert Jenkins' 32-bit integer hash, kept to 31 bits as in Genet's published code. */
static uint32_t hash31(uint32_t v)
{
	v = (v + 0x7ed55d16u + (v << 12)) & 0x7fffffffu;
	v = ((v ^ 0xc761c23cu) ^ (v >> 19)) & 0x7fffffffu;
	v = (v + 0x165667b1u + (v << 5)) & 0x7fffffffu;
	v = ((v + 0xd3a2646cu) ^ (v << 9)) & 0x7fffffffu;
	v = (v + 0xfd7046c5u + (v << 3)) & 0x7fffffffu;
	v = ((v ^ 0xb55a4f09u) ^ (v >> 16)) & 0x7fffffffu;
	return v;
}

uint32_t route_hash_slot(const struct route *r, uint64_t origin)
{
	uint32_t first24 = (uint32_t)(origin >> 40);
	return hash31(first24 ^ (uint32_t)(r->self >> 40)) % r->degree;
}

int route_find(const struct route *r, uint64_t node)
{
	for (uint32_t i = 0; r->taken > 0 && i < r->degree; i++) {
		if (r->slots[i].state != SLOT_FREE && r->slots[i].node == node)
			return (int)i;
	}
	return -1;
}

static void slot_set(struct route *r, uint32_t slot, enum slot_state state, uint64_t node,
		     uint32_t generation, uint64_t due_ms)
{
	struct route_slot *s = &r->slots[slot];
	r->taken -= s->state != SLOT_FREE;
	r->children -= s->state == SLOT_CHILD;
	*s = (struct route_slot){ .state = state, .node = node, .generation = generation,
				  .due_ms = due_ms };
	r->taken += state != SLOT_FREE;
	r->children += state == SLOT_CHILD;
}

static enum route_verdict accept_at(struct route *r, uint32_t slot,
				    const struct route_request *req, uint64_t now_ms,
				    uint32_t *ret_slot)
{
	if (route_child(r->position, r->degree, slot) == ROUTE_ANYWHERE)
		return ROUTE_REFUSE;
	slot_set(r, slot, SLOT_CANDIDATE, req->origin, req->generation, now_ms + r->candidate_ms);
	*ret_slot = slot;
	return ROUTE_ACCEPT;
}

static enum route_verdict store(struct route *r, uint32_t slot, const struct route_request *req,
				uint64_t cookie, uint64_t now_ms, uint32_t *ret_slot)
{
	if (!r->stored) {
		r->stored = calloc(ROUTE_STORED_MAX, sizeof(*r->stored));
		if (!r->stored)
			return ROUTE_REFUSE;
	}
	/* A joiner that asks again replaces its own request: one place each. */
	uint32_t i = 0;
	while (i < r->stored_count && r->stored[i].request.origin != req->origin)
		i++;
	if (i == r->stored_count) {
		if (r->stored_count == ROUTE_STORED_MAX)
			return ROUTE_REFUSE;
		r->stored_count++;
	}
	r->stored[i] = (struct route_stored){ *req, slot, now_ms + r->stored_ms, cookie };
	*ret_slot = slot;
	return ROUTE_STORE;
}

static enum route_verdict pass_on(struct route *r, uint32_t slot, const struct route_request *req,
				  uint64_t cookie, uint64_t now_ms, uint32_t *ret_slot)
{
	if (r->slots[slot].state == SLOT_CHILD) {
		*ret_slot = slot;
		return ROUTE_FORWARD;
	}
	return store(r, slot, req, cookie, now_ms, ret_slot);
}

/* The slot the master named, or the one a repaired tree kept for the origin. */
static bool slot_is_for(const struct route_slot *s, const struct route_request *req,
			enum route_mode mode)
{
	switch (s->state) {
	case SLOT_FREE:
		/* In named mode only a reservation opens a slot. */
		return mode == ROUTE_LOCAL;
	case SLOT_RESERVED:
		return (s->node == req->origin || (s->node == 0 && mode == ROUTE_LOCAL)) &&
		       (mode == ROUTE_LOCAL || s->generation == req->generation);
	default:
		return false;
	}
}

static enum route_verdict by_hash(struct route *r, struct route_request *req, uint64_t cookie,
				  uint64_t now_ms, uint32_t *ret_slot)
{
	/* Further down it must not turn back towards the place that is taken. */
	req->position = ROUTE_ANYWHERE;
	if (r->taken < r->degree) {
		for (uint32_t i = 0; i < r->degree; i++) {
			if (r->slots[i].state == SLOT_FREE)
				return accept_at(r, i, req, now_ms, ret_slot);
		}
	}
	return pass_on(r, route_hash_slot(r, req->origin), req, cookie, now_ms, ret_slot);
}

static enum route_verdict by_position(struct route *r, struct route_request *req, uint64_t cookie,
				      uint64_t now_ms, uint32_t *ret_slot)
{
	int way = route_towards(r, req->position);
	if (way == ROUTE_UP)
		return ROUTE_ASCEND;
	if (way == ROUTE_HERE) /* somebody else stands there now */
		return r->mode == ROUTE_LOCAL ? by_hash(r, req, cookie, now_ms, ret_slot)
					      : ROUTE_REFUSE;

	uint32_t slot = (uint32_t)way;
	struct route_slot *s = &r->slots[slot];
	if (route_parent(req->position, r->degree) == r->position) {
		if (slot_is_for(s, req, r->mode))
			return accept_at(r, slot, req, now_ms, ret_slot);
		return r->mode == ROUTE_LOCAL ? by_hash(r, req, cookie, now_ms, ret_slot)
					      : ROUTE_REFUSE;
	}
	/* A hole on the way that nobody is filling: the orphan itself fills it. */
	if (s->state == SLOT_FREE && r->mode == ROUTE_LOCAL)
		return accept_at(r, slot, req, now_ms, ret_slot);
	return pass_on(r, slot, req, cookie, now_ms, ret_slot);
}

enum route_verdict route_request(struct route *r, struct route_request *req, uint64_t cookie,
				 uint64_t now_ms, uint32_t *ret_slot)
{
	if (req->origin == 0 || req->origin == r->self)
		return ROUTE_REFUSE;
	/* A leaf on its way to a hole asks through its own parent: only the place it asks for counts. */
	int known = -1;
	if (req->position == ROUTE_ANYWHERE)
		known = route_find(r, req->origin);
	else if (req->position > 0 && route_parent(req->position, r->degree) == r->position)
		known = route_towards(r, req->position);
	if (known >= 0 && r->slots[known].node == req->origin &&
	    r->slots[known].state >= SLOT_CANDIDATE) {
		/* A newer reservation is a new attempt of the same node. */
		if (r->slots[known].generation == req->generation) {
			*ret_slot = (uint32_t)known;
			return ROUTE_SIGNAL;
		}
		if (r->mode == ROUTE_NAMED)
			return ROUTE_REFUSE;
		slot_set(r, (uint32_t)known, SLOT_RESERVED, req->origin, req->generation,
			 now_ms + r->candidate_ms);
		return accept_at(r, (uint32_t)known, req, now_ms, ret_slot);
	}
	if (req->position != ROUTE_ANYWHERE)
		return by_position(r, req, cookie, now_ms, ret_slot);
	if (r->mode == ROUTE_NAMED) /* nobody joins past the master */
		return ROUTE_REFUSE;
	return by_hash(r, req, cookie, now_ms, ret_slot);
}

int route_reserve(struct route *r, uint32_t slot, uint64_t node, uint32_t generation,
		  uint64_t due_ms)
{
	if (slot >= r->degree)
		return -EINVAL;
	if (r->slots[slot].state == SLOT_CHILD)
		return -EBUSY;
	slot_set(r, slot, SLOT_RESERVED, node, generation, due_ms);
	return 0;
}

int route_connected(struct route *r, uint32_t slot, uint64_t node)
{
	if (slot >= r->degree || r->slots[slot].state != SLOT_CANDIDATE ||
	    r->slots[slot].node != node)
		return -ENOENT;
	slot_set(r, slot, SLOT_CHILD, node, r->slots[slot].generation, 0);
	r->slots[slot].size = 1;
	return 0;
}

uint32_t route_lost(struct route *r, uint32_t slot)
{
	uint32_t size = r->slots[slot].size;
	slot_set(r, slot, SLOT_FREE, 0, 0, 0);
	return size;
}

void route_report(struct route *r, uint32_t slot, uint32_t size, uint32_t height)
{
	if (slot < r->degree && r->slots[slot].state == SLOT_CHILD) {
		r->slots[slot].size = size;
		r->slots[slot].height = height;
	}
}

void route_summary(const struct route *r, uint32_t *ret_size, uint32_t *ret_height)
{
	uint64_t size = 1;
	uint32_t height = 0;
	for (uint32_t i = 0; r->children > 0 && i < r->degree; i++) {
		const struct route_slot *s = &r->slots[i];
		if (s->state != SLOT_CHILD)
			continue;
		size += s->size;
		if (s->height + 1 > height)
			height = s->height + 1;
	}
	*ret_size = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
	*ret_height = height;
}

bool route_take_stored(struct route *r, uint32_t slot, struct route_stored *ret)
{
	for (uint32_t i = 0; i < r->stored_count; i++) {
		if (r->stored[i].slot != slot)
			continue;
		*ret = r->stored[i];
		memmove(&r->stored[i], &r->stored[i + 1],
			(r->stored_count - i - 1) * sizeof(*r->stored));
		r->stored_count--;
		return true;
	}
	return false;
}

int route_expire(struct route *r, uint64_t now_ms)
{
	if (r->taken == r->children)
		return -1;
	for (uint32_t i = 0; i < r->degree; i++) {
		enum slot_state state = r->slots[i].state;
		if ((state == SLOT_RESERVED || state == SLOT_CANDIDATE) &&
		    now_ms >= r->slots[i].due_ms) {
			slot_set(r, i, SLOT_FREE, 0, 0, 0);
			return (int)i;
		}
	}
	return -1;
}

bool route_expire_stored(struct route *r, uint64_t now_ms, struct route_stored *ret_dropped)
{
	for (uint32_t i = 0; i < r->stored_count; i++) {
		if (now_ms < r->stored[i].due_ms)
			continue;
		*ret_dropped = r->stored[i];
		r->stored[i] = r->stored[--r->stored_count];
		return true;
	}
	return false;
}

/*
 * The deepest alone would draw every search of the tree to the one leaf that
 * stands a level below all others, until the news that it has left is up here:
 * one search would find it and the rest would end at leaves that stand no
 * deeper than their holes. So one level less is as good, if it is deeper than
 * the hole.
 */
int route_deepest(const struct route *r, uint64_t hole)
{
	int best = -1;
	uint32_t top = 0, here = route_depth(r->position, r->degree);
	if (r->children == 0)
		return -1;
	uint32_t start = hash31((uint32_t)(hole ^ hole >> 24) ^ (uint32_t)(r->self >> 40)) % r->degree;
	for (uint32_t i = 0; i < r->degree; i++) {
		if (r->slots[i].state == SLOT_CHILD && r->slots[i].height > top)
			top = r->slots[i].height;
	}
	uint32_t depth = route_depth(hole, r->degree), below = depth > here ? depth - here : 0;
	uint32_t least = top > 0 ? top - 1 : 0;
	if (least < below)
		least = below < top ? below : top;
	for (uint32_t k = 0; k < r->degree && best < 0; k++) {
		uint32_t i = (start + k) % r->degree;
		if (r->slots[i].state == SLOT_CHILD && r->slots[i].height >= least)
			best = (int)i;
	}
	return best;
}
