/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See tree.h. Two maps (node -> tree_node, position -> place) and two heaps
 * whose entries may be stale: they are checked when they come to the top.
 *
 * The heap of free places holds cursors: an entry stands for "this position
 * and its later siblings", so a node of degree 10,000 costs one entry, not
 * 10,000. An entry whose parent cannot take children now is dropped and its
 * position remembered in the parent, which puts it back when it is attached.
 */
#include "volunteer/tree.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/map.h"
#include "base/vec.h"
#include "volunteer/route.h"

struct tree_node {
	uint64_t node;
	uint64_t pos;  /* ROUTE_ANYWHERE: none yet */
	uint64_t next; /* reserved, ROUTE_ANYWHERE: none */
	uint32_t generation;
	enum tree_state state;
	bool link_up;      /* the channel to the parent of pos stands */
	uint64_t due_ms;
	uint64_t free_from; /* lowest child position that may be free and is in no heap entry */
	size_t pending;     /* index + 1 in tree.pending; 0 = not there */
};

struct place {
	uint64_t pos;
	struct tree_node *who; /* NULL: a hole */
	uint32_t children;     /* places right below, occupied or holes */
};

struct heap {
	struct VEC(uint64_t) keys;
	bool max;
};

struct tree {
	uint32_t degree;
	uint32_t generation;
	struct map *nodes, *places;
	struct tree_node *root;
	struct heap free, occupied;
	struct VEC(struct tree_node *) pending;
	struct VEC(struct tree_place) repairs;
	struct VEC(uint64_t) holes; /* that nobody could fill yet */
	size_t repairs_next;
	size_t counts[TREE_STATE_COUNT];
};

static bool heap_before(const struct heap *h, uint64_t a, uint64_t b)
{
	return h->max ? a > b : a < b;
}

static int heap_push(struct heap *h, uint64_t key)
{
	int r = VEC_PUSH(&h->keys, key);
	if (r < 0)
		return r;
	uint64_t *k = h->keys.data;
	for (size_t i = h->keys.count - 1; i > 0 && heap_before(h, k[i], k[(i - 1) / 2]);
	     i = (i - 1) / 2) {
		uint64_t t = k[i];
		k[i] = k[(i - 1) / 2];
		k[(i - 1) / 2] = t;
	}
	return 0;
}

static uint64_t heap_pop(struct heap *h)
{
	uint64_t *k = h->keys.data, top = k[0];
	size_t n = --h->keys.count;
	k[0] = k[n];
	for (size_t i = 0;;) {
		size_t c = 2 * i + 1;
		if (c >= n)
			return top;
		if (c + 1 < n && heap_before(h, k[c + 1], k[c]))
			c++;
		if (!heap_before(h, k[c], k[i]))
			return top;
		uint64_t t = k[i];
		k[i] = k[c];
		k[c] = t;
		i = c;
	}
}

static struct tree_node *node_get(const struct tree *t, uint64_t node)
{
	return map_get(t->nodes, &node, sizeof(node));
}

static struct place *place_get(const struct tree *t, uint64_t pos)
{
	return map_get(t->places, &pos, sizeof(pos));
}

/* The place at pos, made if need be; the one above it is there already. */
static struct place *place_make(struct tree *t, uint64_t pos)
{
	struct place *p = place_get(t, pos);
	if (p)
		return p;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->pos = pos;
	if (map_insert(t->places, &pos, sizeof(pos), p) < 0) {
		free(p);
		return NULL;
	}
	if (pos > 0)
		place_get(t, route_parent(pos, t->degree))->children++;
	return p;
}

static void place_drop_if_empty(struct tree *t, struct place *p)
{
	while (p && !p->who && p->children == 0) {
		struct place *above = p->pos ? place_get(t, route_parent(p->pos, t->degree)) : NULL;
		(void)map_remove(t->places, &p->pos, sizeof(p->pos));
		/* A hole that others waited to see filled is free now, if its parent stands. */
		(void)heap_push(&t->free, p->pos);
		free(p);
		if (above)
			above->children--;
		p = above;
	}
}

static int occupy(struct tree *t, uint64_t pos, struct tree_node *n)
{
	struct place *p = place_make(t, pos);
	if (!p)
		return -ENOMEM;
	p->who = n;
	return 0;
}

/* Takes a node out of a place; without anything below it is free for newcomers. */
static void vacate(struct tree *t, uint64_t pos)
{
	struct place *p = place_get(t, pos);
	if (!p || !p->who)
		return;
	p->who = NULL;
	place_drop_if_empty(t, p);
}

static void state_set(struct tree *t, struct tree_node *n, enum tree_state state, uint64_t due_ms)
{
	t->counts[n->state]--;
	t->counts[state]++;
	n->state = state;
	n->due_ms = due_ms;
	bool pending = state != TREE_ATTACHED && state != TREE_ABSENT;
	if (pending && !n->pending) {
		/* Without memory for the entry the reservation only never expires. */
		if (VEC_PUSH(&t->pending, n) == 0)
			n->pending = t->pending.count;
	} else if (!pending && n->pending) {
		size_t i = n->pending - 1;
		VEC_SWAP_REMOVE(&t->pending, i);
		if (i < t->pending.count)
			t->pending.data[i]->pending = i + 1;
		n->pending = 0;
	}
}

static void offer_places(struct tree *t, struct tree_node *n)
{
	if (n->free_from != ROUTE_ANYWHERE && heap_push(&t->free, n->free_from) == 0)
		n->free_from = ROUTE_ANYWHERE;
}

int tree_new(uint64_t root, uint32_t degree, struct tree **ret)
{
	if (degree < 1 || degree > ROUTE_DEGREE_MAX || root == 0)
		return -EINVAL;
	struct tree *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->degree = degree;
	t->occupied.max = true;
	t->counts[TREE_ABSENT] = 1; /* the root on its way in */
	struct tree_node *n = calloc(1, sizeof(*n));
	t->root = n;
	if (!n || map_new(&t->nodes) < 0 || map_new(&t->places) < 0) {
		tree_free(t);
		return -ENOMEM;
	}
	n->node = root;
	n->next = ROUTE_ANYWHERE;
	n->link_up = true;
	n->free_from = 1;
	if (map_insert(t->nodes, &root, sizeof(root), n) < 0 || occupy(t, 0, n) < 0) {
		tree_free(t);
		return -ENOMEM;
	}
	state_set(t, n, TREE_ATTACHED, 0);
	offer_places(t, n);
	*ret = t;
	return 0;
}

void tree_free(struct tree *t)
{
	if (!t)
		return;
	size_t i = 0;
	const void *key;
	size_t key_len;
	void *value;
	bool root_in_map = false;
	while (t->nodes && map_next(t->nodes, &i, &key, &key_len, &value)) {
		root_in_map |= value == t->root;
		free(value);
	}
	if (!root_in_map)
		free(t->root);
	for (i = 0; t->places && map_next(t->places, &i, &key, &key_len, &value);)
		free(value);
	map_free(t->nodes);
	map_free(t->places);
	VEC_DONE(&t->free.keys);
	VEC_DONE(&t->occupied.keys);
	VEC_DONE(&t->pending);
	VEC_DONE(&t->repairs);
	VEC_DONE(&t->holes);
	free(t);
}

uint32_t tree_degree(const struct tree *t)
{
	return t->degree;
}

size_t tree_count(const struct tree *t, enum tree_state state)
{
	if (state == TREE_ABSENT)
		return map_count(t->nodes) - 1;
	return t->counts[state] - (state == TREE_ATTACHED);
}

/* Takes the smallest free position off the heap, or ROUTE_ANYWHERE. */
static uint64_t free_pop(struct tree *t)
{
	while (t->free.keys.count > 0) {
		uint64_t pos = heap_pop(&t->free);
		struct place *above = place_get(t, route_parent(pos, t->degree));
		struct tree_node *parent = above ? above->who : NULL;
		if (!parent)
			continue; /* whoever stands there next starts its own cursor */
		if (parent->state != TREE_ATTACHED || parent->pos != above->pos) {
			if (pos < parent->free_from)
				parent->free_from = pos;
			continue;
		}
		struct place *p = place_get(t, pos);
		bool is_free = !p || (!p->who && p->children == 0);
		uint64_t next = pos + 1;
		if (route_parent(next, t->degree) == above->pos)
			(void)heap_push(&t->free, next); /* fits: one was just popped */
		if (is_free)
			return pos;
	}
	return ROUTE_ANYWHERE;
}

static void fill_place(const struct tree *t, const struct tree_node *n, uint64_t pos,
		       struct tree_place *ret)
{
	*ret = (struct tree_place){ n->node, tree_occupant(t, route_parent(pos, t->degree)), pos,
				    n->generation };
}

int tree_place(struct tree *t, uint64_t node, uint64_t now_ms, struct tree_place *ret)
{
	if (node_get(t, node))
		return -EEXIST;
	struct tree_node *n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	uint64_t pos = free_pop(t);
	if (pos == ROUTE_ANYWHERE) {
		free(n);
		return -EAGAIN;
	}
	n->node = node;
	n->pos = pos;
	n->next = ROUTE_ANYWHERE;
	n->free_from = ROUTE_ANYWHERE;
	n->generation = ++t->generation;
	if (map_insert(t->nodes, &node, sizeof(node), n) < 0 || occupy(t, pos, n) < 0) {
		(void)map_remove(t->nodes, &node, sizeof(node));
		(void)heap_push(&t->free, pos);
		free(n);
		return -ENOMEM;
	}
	t->counts[TREE_ABSENT]++;
	state_set(t, n, TREE_CONNECTING, now_ms + TREE_CONNECT_MS);
	fill_place(t, n, pos, ret);
	return 0;
}

/* The deepest attached leaf, taken off the heap; NULL if there is none. */
static struct tree_node *leaf_pop(struct tree *t)
{
	struct VEC(uint64_t) aside = VEC_INIT;
	struct tree_node *leaf = NULL;
	while (!leaf && t->occupied.keys.count > 0) {
		uint64_t pos = heap_pop(&t->occupied);
		struct place *p = place_get(t, pos);
		if (!p || !p->who || p->who->pos != pos || p->who == t->root)
			continue;
		if (p->who->state == TREE_ATTACHED && p->children == 0)
			leaf = p->who;
		else if (p->who->state != TREE_MOVING)
			(void)VEC_PUSH(&aside, pos); /* no memory: as in tree_attached() */
	}
	VEC_EACH(&aside, pos)
		(void)heap_push(&t->occupied, *pos);
	VEC_DONE(&aside);
	return leaf;
}

static void add_repair(struct tree *t, const struct tree_node *n, uint64_t pos)
{
	struct tree_place place;
	fill_place(t, n, pos, &place);
	/* Without memory the reservation runs out, and the node is placed anew. */
	(void)VEC_PUSH(&t->repairs, place);
}

/* Those below a position connect to its new occupant. */
static void orphan_children(struct tree *t, uint64_t pos, const struct tree_node *except,
			    uint64_t now_ms)
{
	uint64_t first = route_child(pos, t->degree, 0);
	struct place *above = place_get(t, pos);
	uint32_t left = above ? above->children : 0;
	for (uint32_t i = 0; i < t->degree && left > 0; i++) {
		struct place *p = place_get(t, first + i);
		struct tree_node *c = p ? p->who : NULL;
		left -= p != NULL;
		if (!c || c == except)
			continue;
		if (c->pos == first + i)
			c->link_up = false;
		if (c->state == TREE_MOVING && c->pos == first + i)
			continue; /* on its way to another place anyhow */
		c->generation = ++t->generation;
		enum tree_state state = c->state == TREE_ATTACHED ? TREE_ORPHAN : c->state;
		state_set(t, c, state, now_ms + TREE_CONNECT_MS);
		add_repair(t, c, first + i);
	}
}

static void move_into(struct tree *t, struct tree_node *n, uint64_t pos, uint64_t now_ms)
{
	n->next = pos;
	n->generation = ++t->generation;
	CHECK(occupy(t, pos, n) == 0); /* the place exists: it has children */
	state_set(t, n, TREE_MOVING, now_ms + TREE_CONNECT_MS);
	add_repair(t, n, pos);
	orphan_children(t, pos, n, now_ms);
}

static void fill_hole(struct tree *t, uint64_t pos, uint64_t now_ms)
{
	struct tree_node *leaf = leaf_pop(t);
	if (leaf) {
		move_into(t, leaf, pos, now_ms);
		return;
	}
	/* No leaf stands firm: a child of the hole moves up, and leaves a hole below. */
	for (uint32_t i = 0; i < t->degree; i++) {
		uint64_t below = route_child(pos, t->degree, i);
		struct place *p = place_get(t, below);
		struct tree_node *c = p ? p->who : NULL;
		if (!c || c->state == TREE_MOVING)
			continue;
		bool inner = p->children > 0;
		vacate(t, below);
		c->pos = ROUTE_ANYWHERE;
		c->link_up = false;
		move_into(t, c, pos, now_ms);
		if (inner)
			fill_hole(t, below, now_ms);
		return;
	}
	/* All below are on the move, perhaps only now into this subtree: look again later. */
	(void)VEC_PUSH(&t->holes, pos);
}

static void refill(struct tree *t, uint64_t pos, uint64_t now_ms)
{
	struct place *p = place_get(t, pos);
	if (p && !p->who && p->children > 0)
		fill_hole(t, pos, now_ms);
}

static void fill_waiting_holes(struct tree *t, uint64_t now_ms)
{
	for (size_t i = t->holes.count; i-- > 0;) {
		uint64_t pos = t->holes.data[i];
		VEC_SWAP_REMOVE(&t->holes, i);
		refill(t, pos, now_ms);
	}
}

int tree_attached(struct tree *t, uint64_t node, uint32_t generation, uint64_t now_ms)
{
	struct tree_node *n = node_get(t, node);
	if (!n || n == t->root)
		return -ENOENT;
	if (n->generation != generation || n->state == TREE_ATTACHED)
		return -ESTALE;
	if (n->state == TREE_MOVING) {
		vacate(t, n->pos);
		n->pos = n->next;
		n->next = ROUTE_ANYWHERE;
	}
	state_set(t, n, TREE_ATTACHED, 0);
	n->link_up = true;
	n->free_from = route_child(n->pos, t->degree, 0);
	offer_places(t, n);
	(void)heap_push(&t->occupied, n->pos); /* no memory: it is never asked to fill a hole */
	fill_waiting_holes(t, now_ms);
	return 0;
}

static void remove_node(struct tree *t, struct tree_node *n, uint64_t now_ms)
{
	uint64_t pos = n->pos, next = n->next;
	state_set(t, n, TREE_ABSENT, 0);
	t->counts[TREE_ABSENT]--;
	(void)map_remove(t->nodes, &n->node, sizeof(n->node));
	/* Out of both places before either is filled: nobody is to find the dying node. */
	vacate(t, next);
	vacate(t, pos);
	free(n);
	refill(t, next, now_ms);
	refill(t, pos, now_ms);
}

int tree_leave(struct tree *t, uint64_t node, uint64_t now_ms)
{
	struct tree_node *n = node_get(t, node);
	if (!n || n == t->root)
		return -ENOENT;
	remove_node(t, n, now_ms);
	return 0;
}

int tree_detached(struct tree *t, uint64_t node, uint64_t now_ms)
{
	struct tree_node *n = node_get(t, node);
	if (!n || n == t->root)
		return -ENOENT;
	n->link_up = false;
	if (n->state != TREE_ATTACHED)
		return 0; /* it is connecting already */
	n->generation = ++t->generation;
	state_set(t, n, TREE_ORPHAN, now_ms + TREE_CONNECT_MS);
	add_repair(t, n, n->pos);
	return 0;
}

bool tree_next_repair(struct tree *t, struct tree_place *ret)
{
	while (t->repairs_next < t->repairs.count) {
		*ret = t->repairs.data[t->repairs_next++];
		struct tree_node *n = node_get(t, ret->node);
		/* Later events may have overtaken it. */
		if (!n || n->generation != ret->generation)
			continue;
		ret->parent = tree_occupant(t, route_parent(ret->position, t->degree));
		return true;
	}
	t->repairs.count = t->repairs_next = 0;
	return false;
}

bool tree_expire(struct tree *t, uint64_t now_ms, uint64_t *ret_node)
{
	VEC_EACH(&t->pending, n) {
		if (now_ms < (*n)->due_ms)
			continue;
		*ret_node = (*n)->node;
		remove_node(t, *n, now_ms);
		return true;
	}
	return false;
}

enum tree_state tree_state(const struct tree *t, uint64_t node)
{
	const struct tree_node *n = node_get(t, node);
	return n ? n->state : TREE_ABSENT;
}

int tree_where(const struct tree *t, uint64_t node, struct tree_place *ret)
{
	const struct tree_node *n = node_get(t, node);
	if (!n)
		return -ENOENT;
	fill_place(t, n, n->pos == ROUTE_ANYWHERE ? n->next : n->pos, ret);
	return 0;
}

int tree_target(const struct tree *t, uint64_t node, struct tree_place *ret)
{
	const struct tree_node *n = node_get(t, node);
	if (!n)
		return -ENOENT;
	fill_place(t, n, n->next == ROUTE_ANYWHERE ? n->pos : n->next, ret);
	return 0;
}

uint64_t tree_occupant(const struct tree *t, uint64_t position)
{
	const struct place *p = place_get(t, position);
	return p && p->who ? p->who->node : 0;
}

bool tree_reachable(const struct tree *t, uint64_t node)
{
	const struct tree_node *n = node_get(t, node);
	while (n && n != t->root) {
		if (!n->link_up || n->pos == ROUTE_ANYWHERE)
			return false;
		const struct place *above = place_get(t, route_parent(n->pos, t->degree));
		/* Whoever moves into that place is not there yet. */
		if (!above || !above->who || above->who->pos != above->pos)
			return false;
		n = above->who;
	}
	return n != NULL;
}

size_t tree_levels(const struct tree *t, size_t *levels, size_t levels_cap)
{
	size_t count = 0, i = 0;
	const void *key;
	size_t key_len;
	void *value;
	for (size_t k = 0; k < levels_cap; k++)
		levels[k] = 0;
	while (map_next(t->nodes, &i, &key, &key_len, &value)) {
		const struct tree_node *n = value;
		if (n->pos == ROUTE_ANYWHERE || !n->link_up)
			continue;
		size_t depth = route_depth(n->pos, t->degree);
		if (depth < levels_cap) {
			levels[depth]++;
			count = MAX(count, depth + 1);
		}
	}
	return count;
}
