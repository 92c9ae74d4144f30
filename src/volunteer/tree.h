/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master's view of the tree in named mode: who stands where, which places
 * are reserved, and which leaf fills the hole that an inner node leaves.
 *
 * A place is a breadth-first position (see route.h), so "the shallowest free
 * slot" is the smallest free position whose parent stands, and "the deepest
 * leaf" is the largest occupied position. When an inner node leaves, the
 * deepest leaf moves into its position under a new generation; the positions
 * below do not change, only the channels to the new occupant are made anew.
 *
 * Pure: structs and `now` in, decisions out.
 */
#ifndef RECLAIM_VOLUNTEER_TREE_H
#define RECLAIM_VOLUNTEER_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tree;

enum tree_state {
	TREE_ABSENT = 0,
	TREE_CONNECTING, /* a place is reserved, the channel is being made */
	TREE_ATTACHED,
	TREE_MOVING,     /* stands at its old position, is connecting at a new one */
	TREE_ORPHAN,     /* keeps its position, its parent changed, is reconnecting */
	TREE_STATE_COUNT
};

struct tree_place {
	uint64_t node;       /* who is to connect */
	uint64_t parent;     /* whom to */
	uint64_t position;
	uint32_t generation; /* names this reservation; older ones are void */
};

#define TREE_CONNECT_MS 10000u

int tree_new(uint64_t root, uint32_t degree, struct tree **ret);
void tree_free(struct tree *t);
uint32_t tree_degree(const struct tree *t);
size_t tree_count(const struct tree *t, enum tree_state state); /* ABSENT: all but the root */

/*
 * Reserves the shallowest free slot under an attached node. -EAGAIN while all
 * slots hang under nodes that are still connecting, -EEXIST if the node has a
 * place already.
 */
int tree_place(struct tree *t, uint64_t node, uint64_t now_ms, struct tree_place *ret);
/* The channel of this reservation stands. -ESTALE for a void generation. */
int tree_attached(struct tree *t, uint64_t node, uint32_t generation, uint64_t now_ms);
/*
 * The node is gone. What must connect anew (the leaf that fills the hole first,
 * then the orphans) is returned place by place by tree_next_repair().
 */
int tree_leave(struct tree *t, uint64_t node, uint64_t now_ms);
/* The channel between a node and its parent broke, both live: connect again, same place. */
int tree_detached(struct tree *t, uint64_t node, uint64_t now_ms);
bool tree_next_repair(struct tree *t, struct tree_place *ret);
/*
 * A reservation that ran out: its node, which has lost its place and must be
 * placed again (its own subtree is repaired as if it had left). False: none.
 */
bool tree_expire(struct tree *t, uint64_t now_ms, uint64_t *ret_node);

enum tree_state tree_state(const struct tree *t, uint64_t node);
/* -ENOENT if it has no place. A moving node's position is the old one until it is attached. */
int tree_where(const struct tree *t, uint64_t node, struct tree_place *ret);
/* Where it is to connect: its reservation, or where it stands. */
int tree_target(const struct tree *t, uint64_t node, struct tree_place *ret);
uint64_t tree_occupant(const struct tree *t, uint64_t position); /* 0 = none */
/* True if every channel from the root down to the node stands. */
bool tree_reachable(const struct tree *t, uint64_t node);
/* Nodes per depth, for figures; returns the number of levels written. */
size_t tree_levels(const struct tree *t, size_t *levels, size_t levels_cap);

#endif
