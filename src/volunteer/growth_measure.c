/* SPDX-License-Identifier: Apache-2.0 */
/* See growth.h: the shape of the simulated tree, against one that is filled breadth first. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/growth_internal.h"

#define LEVELS_MAX 64

uint32_t growth_child(const struct sim *s, uint32_t a, uint32_t slot)
{
	const struct sim_node *n = &s->nodes[a];
	if (n->route.slots[slot].state != SLOT_CHILD)
		return NONE;
	const struct sim_node *c = &s->nodes[n->child[slot]];
	bool live = c->id == n->route.slots[slot].node && c->parent == a && c->slot == slot;
	return live ? n->child[slot] : NONE;
}

static size_t level_counts(struct sim *s, size_t levels[LEVELS_MAX], uint64_t *ret_depths)
{
	memset(levels, 0, LEVELS_MAX * sizeof(*levels));
	struct VEC(uint32_t) queue = VEC_INIT;
	s->nodes[0].depth = 0;
	CHECK(VEC_PUSH(&queue, 0) == 0);
	*ret_depths = 0;
	size_t top = 0;
	for (size_t q = 0; q < queue.count; q++) {
		struct sim_node *n = &s->nodes[queue.data[q]];
		levels[n->depth]++;
		*ret_depths += n->depth;
		top = n->depth;
		CHECK(n->depth + 1 < LEVELS_MAX);
		for (uint32_t i = 0; n->route.children && i < s->config->degree; i++) {
			if (growth_child(s, queue.data[q], i) == NONE)
				continue;
			struct sim_node *c = &s->nodes[n->child[i]];
			c->depth = n->depth + 1;
			CHECK(VEC_PUSH(&queue, n->child[i]) == 0);
		}
	}
	VEC_DONE(&queue);
	return top;
}

/* The levels of n nodes beside the root, filled breadth first. */
static size_t ideal_levels(uint64_t n, uint32_t degree, uint64_t levels[LEVELS_MAX],
			   uint64_t *ret_depths)
{
	memset(levels, 0, LEVELS_MAX * sizeof(*levels));
	levels[0] = 1;
	*ret_depths = 0;
	size_t d = 0;
	for (uint64_t width = degree; n > 0; width *= degree) {
		uint64_t here = MIN(n, width);
		levels[++d] = here;
		*ret_depths += d * here;
		n -= here;
	}
	return d;
}

double growth_overlap(struct sim *s, uint64_t live, double *ret_depth_ratio, unsigned *ret_top,
		      unsigned *ret_ideal)
{
	size_t have[LEVELS_MAX];
	uint64_t want[LEVELS_MAX], have_depths, want_depths, same = 0, present = 0;
	size_t top = level_counts(s, have, &have_depths);
	size_t ideal = ideal_levels(live, s->config->degree, want, &want_depths);
	for (size_t d = 1; d < LEVELS_MAX; d++) {
		same += MIN((uint64_t)have[d], want[d]);
		present += have[d];
	}
	*ret_depth_ratio = present && want_depths
		? ((double)have_depths / (double)present) / ((double)want_depths / (double)live) : 0;
	*ret_top = MAX(*ret_top, (unsigned)top);
	*ret_ideal = (unsigned)ideal;
	return live ? (double)same / (double)live : 0;
}

static double share_by_order(struct sim *s)
{
	uint64_t same = 0;
	for (uint32_t i = 1; i < s->nodes_cap; i++) {
		const struct sim_node *n = &s->nodes[i];
		if (n->id != 0 && n->parent != NONE &&
		    n->depth == route_depth(n->order, s->config->degree))
			same++;
	}
	return (double)same / (double)s->config->nodes;
}

void growth_measured(struct sim *s, struct growth_result *ret)
{
	double ratio, b = growth_overlap(s, s->config->nodes, &ratio, &ret->depth_max, &ret->depth_ideal);
	for (uint32_t i = 1; i < s->nodes_cap; i++)
		ret->nodes += s->nodes[i].id != 0 && s->nodes[i].parent != NONE;
	ret->level_overlap = b;
	ret->share_at_ideal = share_by_order(s);
	ret->mean_depth_ratio = ratio;
	if (s->samples) {
		ret->share_at_ideal = ret->level_overlap = s->measured_overlap / (double)s->samples;
		ret->mean_depth_ratio = s->measured_depth / (double)s->samples;
	}
	ret->join_messages = s->joins ? (double)s->messages / (double)s->joins : 0;
	ret->path_breaks = (double)s->breaks;
	if (ret->failures) {
		ret->rejoins = (double)s->rejoins / (double)ret->failures;
		ret->lost_node_s = s->lost_node_s / (double)ret->failures;
	}
}
