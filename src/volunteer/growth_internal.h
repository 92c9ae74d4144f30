/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by growth.c (what happens) and growth_measure.c (what the tree looks like then). */
#ifndef RECLAIM_VOLUNTEER_GROWTH_INTERNAL_H
#define RECLAIM_VOLUNTEER_GROWTH_INTERNAL_H

#include "base/map.h"
#include "base/rng.h"
#include "base/vec.h"
#include "volunteer/growth.h"
#include "volunteer/route.h"
#include "volunteer/tree.h"

#define NONE UINT32_MAX

enum event_kind {
	EV_JOIN,      /* node `a` asks for a place */
	EV_REQUEST,   /* request of `a` arrives at node `b` */
	EV_CONNECTED, /* `a` is connected to `b` in slot `n` */
	EV_DEATH,
	EV_CHILD_LOST,  /* `a` notices that slot `n` (generation `gen`) is gone */
	EV_PARENT_LOST, /* `a` notices that its parent is gone */
	EV_FILL,      /* search for a filler of hole `pos` arrives at `a`; n = 1 on its way down */
	EV_REPORT,    /* `a` tells its parent about its subtree */
	EV_RETRY,     /* `a` asks again unless it is connected by now */
	EV_MEASURE,
};

struct event {
	double at;
	uint64_t order;
	enum event_kind kind;
	uint32_t a, b, n;
	uint64_t a_id, b_id; /* the event is void if another node uses the entry now */
	uint64_t pos;
	uint32_t gen;
};

struct sim_node {
	uint64_t id; /* 0 = entry unused */
	struct route route;
	uint32_t parent; /* NONE = out of the tree */
	uint32_t slot;
	uint32_t *child; /* [degree] entry per slot */
	uint64_t wanted; /* position it asks for; ROUTE_ANYWHERE */
	uint32_t generation;
	uint32_t order; /* joins only: the order in which it joined */
	double out_since;
	bool asking, reporting, moving;
	uint32_t told_size, told_height;
	uint32_t depth;
};

struct sim {
	const struct growth_config *config;
	struct rng rng;
	double now;
	uint64_t order;
	struct VEC(struct event) heap;
	struct sim_node *nodes; /* [0] is the root */
	uint32_t nodes_cap;
	struct VEC(uint32_t) unused;
	struct VEC(uint32_t) waiting; /* named: no free slot yet */
	struct map *by_id;
	struct tree *tree;
	uint32_t joined;
	uint64_t messages, joins, breaks, rejoins;
	double lost_node_s;
	bool measuring;
	double measured_overlap, measured_depth;
	uint64_t samples;
	struct growth_result *result;
};

/* The child in a slot; NONE if it has died unnoticed (its entry may be in use again). */
uint32_t growth_child(const struct sim *s, uint32_t a, uint32_t slot);
/* The share of `live` nodes that stand at a depth where breadth-first filling has room for them. */
double growth_overlap(struct sim *s, uint64_t live, double *ret_depth_ratio, unsigned *ret_top,
		      unsigned *ret_ideal);
void growth_measured(struct sim *s, struct growth_result *ret);

#endif
