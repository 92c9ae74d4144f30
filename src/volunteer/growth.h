/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulation of how the tree grows and heals, on the very routing code
 * (route.c, tree.c) that master, native volunteers and pages run. Only
 * latencies, lives and the loss of channels are simulated.
 */
#ifndef RECLAIM_VOLUNTEER_GROWTH_H
#define RECLAIM_VOLUNTEER_GROWTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum growth_rule {
	GROWTH_NAMED = 0, /* the master names the place */
	GROWTH_LOCAL,     /* hash from local information, a leaf fills a hole */
	GROWTH_ORIGINAL,  /* hash, and the subtree of a hole is torn down (Genet), to compare */
	GROWTH_RULE_COUNT
};

struct growth_config {
	enum growth_rule rule;
	uint32_t nodes, degree;
	uint64_t seed;
	double join_s;     /* the first joins are spread evenly over this time */
	double life_s;     /* mean life, exponential; 0 = nobody leaves */
	double settle_s;   /* from here on it is measured, under churn */
	double measure_s;
	double hop_s;      /* one message between two nodes */
	double connect_s;  /* offer accepted to hello acknowledged */
	double detect_s;   /* until a lost neighbour is noticed */
};

struct growth_result {
	uint32_t nodes;           /* in the tree at the end */
	double share_at_ideal;    /* joins only: nodes at the depth that filling gives the i-th;
				   * churn: node-time at breadth-first depth (level histograms) */
	double level_overlap;     /* joins only: the same by level histograms */
	double mean_depth_ratio;  /* mean depth / mean depth of the breadth-first tree */
	unsigned depth_max, depth_ideal;
	double join_messages;     /* per join, all of them */
	double path_breaks;       /* messages of one joiner that took another path than its first */
	double rejoins;           /* connections made anew per failure */
	double lost_node_s;       /* node-seconds out of the tree per failure */
	uint64_t failures;
};

void growth_defaults(enum growth_rule rule, uint32_t nodes, uint32_t degree,
		     struct growth_config *ret);
int growth_run(const struct growth_config *config, struct growth_result *ret);

#endif
