/* SPDX-License-Identifier: Apache-2.0 */
/* Paths: one Dijkstra per point over delays, kept as a table of next links. */
#include "policy/network.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/vec.h"

void network_done(struct network *n)
{
	free(n->links);
	free(n->link_from);
	free(n->link_to);
	free(n->link_delay_s);
	free(n->next);
	free(n->node_point);
	free(n->node_up);
	free(n->node_down);
	*n = (struct network)NETWORK_INIT;
}

int64_t network_point_add(struct network *n)
{
	if (n->points_count >= NETWORK_POINTS_MAX)
		return -ENOSPC;
	return (int64_t)n->points_count++;
}

static int grow(void **data, size_t count, size_t size)
{
	void *grown = realloc(*data, count * size);
	if (!grown)
		return -ENOMEM;
	*data = grown;
	return 0;
}

static int64_t link_push(struct network *n, uint32_t from, uint32_t to, double capacity_bps,
			 double research_bps, double floor_share, double delay_s)
{
	if (!(capacity_bps >= 0 && research_bps >= 0 && floor_share >= 0 && floor_share <= 1 &&
	      delay_s >= 0))
		return -EINVAL;
	if (n->links_count == n->links_cap) {
		size_t cap = MAX((size_t)64, n->links_cap * 2);
		if (grow((void **)&n->links, cap, sizeof(*n->links)) < 0 ||
		    grow((void **)&n->link_from, cap, sizeof(uint32_t)) < 0 ||
		    grow((void **)&n->link_to, cap, sizeof(uint32_t)) < 0 ||
		    grow((void **)&n->link_delay_s, cap, sizeof(double)) < 0)
			return -ENOMEM;
		n->links_cap = cap;
	}
	size_t i = n->links_count++;
	n->links[i] = (struct network_link){ capacity_bps, research_bps, floor_share, 0 };
	n->link_from[i] = from;
	n->link_to[i] = to;
	n->link_delay_s[i] = delay_s;
	return (int64_t)i;
}

int64_t network_link_add(struct network *n, uint32_t from, uint32_t to, double capacity_bps,
			 double research_bps, double floor_share, double delay_s)
{
	if (from >= n->points_count || to >= n->points_count || from == to)
		return -EINVAL;
	return link_push(n, from, to, capacity_bps, research_bps, floor_share, delay_s);
}

int64_t network_node_add(struct network *n, uint32_t point, double capacity_bps,
			 double research_bps, double floor_share)
{
	if (point >= n->points_count)
		return -EINVAL;
	if (n->nodes_count == n->nodes_cap) {
		size_t cap = MAX((size_t)64, n->nodes_cap * 2);
		if (grow((void **)&n->node_point, cap, sizeof(uint32_t)) < 0 ||
		    grow((void **)&n->node_up, cap, sizeof(uint32_t)) < 0 ||
		    grow((void **)&n->node_down, cap, sizeof(uint32_t)) < 0)
			return -ENOMEM;
		n->nodes_cap = cap;
	}
	int64_t up = link_push(n, NETWORK_NONE, point, capacity_bps, research_bps, floor_share, 0);
	if (up < 0)
		return up;
	int64_t down = link_push(n, point, NETWORK_NONE, capacity_bps, research_bps, floor_share,
				 0);
	if (down < 0) {
		n->links_count--;
		return down;
	}
	size_t i = n->nodes_count++;
	n->node_point[i] = point;
	n->node_up[i] = (uint32_t)up;
	n->node_down[i] = (uint32_t)down;
	return (int64_t)i;
}

/* Links between points, grouped by the point they lead to. */
struct inbound {
	uint32_t *first, *links;
};

static int inbound_make(const struct network *n, struct inbound *ret)
{
	size_t p = n->points_count;
	ret->first = calloc(p + 2, sizeof(uint32_t));
	ret->links = malloc((n->links_count + 1) * sizeof(uint32_t));
	if (!ret->first || !ret->links)
		return -ENOMEM;
	for (size_t l = 0; l < n->links_count; l++)
		if (n->link_from[l] != NETWORK_NONE && n->link_to[l] != NETWORK_NONE)
			ret->first[n->link_to[l] + 2]++;
	for (size_t i = 2; i < p + 2; i++)
		ret->first[i] += ret->first[i - 1];
	for (size_t l = 0; l < n->links_count; l++)
		if (n->link_from[l] != NETWORK_NONE && n->link_to[l] != NETWORK_NONE)
			ret->links[ret->first[n->link_to[l] + 1]++] = (uint32_t)l;
	return 0;
}

struct heap_item {
	double cost;
	uint32_t point;
};

/* A plain binary heap; equal costs come out by number, so that paths never depend on luck. */
static bool before(struct heap_item a, struct heap_item b)
{
	return a.cost != b.cost ? a.cost < b.cost : a.point < b.point;
}

static void heap_push(struct heap_item *heap, size_t *count, struct heap_item item)
{
	size_t i = (*count)++;
	while (i > 0 && before(item, heap[(i - 1) / 2])) {
		heap[i] = heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap[i] = item;
}

static struct heap_item heap_pop(struct heap_item *heap, size_t *count)
{
	struct heap_item top = heap[0], last = heap[--*count];
	size_t i = 0;
	for (;;) {
		size_t c = 2 * i + 1;
		if (c >= *count)
			break;
		if (c + 1 < *count && before(heap[c + 1], heap[c]))
			c++;
		if (!before(heap[c], last))
			break;
		heap[i] = heap[c];
		i = c;
	}
	heap[i] = last;
	return top;
}

/* From every point towards `to`. */
static void route_to(struct network *n, const struct inbound *in, uint32_t to, double *cost,
		     struct heap_item *heap)
{
	size_t p = n->points_count, count = 0;
	for (size_t i = 0; i < p; i++) {
		cost[i] = INFINITY;
		n->next[i * p + to] = NETWORK_NONE;
	}
	cost[to] = 0;
	heap_push(heap, &count, (struct heap_item){ 0, to });
	while (count > 0) {
		struct heap_item item = heap_pop(heap, &count);
		if (item.cost > cost[item.point])
			continue;
		for (uint32_t k = in->first[item.point]; k < in->first[item.point + 1]; k++) {
			uint32_t link = in->links[k], from = n->link_from[link];
			/* A hop costs a little by itself: fewer shared links at equal delay. */
			double c = item.cost + n->link_delay_s[link] + 1e-6;
			if (c < cost[from]) {
				cost[from] = c;
				n->next[from * p + to] = link;
				heap_push(heap, &count, (struct heap_item){ c, from });
			}
		}
	}
}

int network_route(struct network *n)
{
	size_t p = n->points_count;
	struct inbound in = { 0 };
	CLEANUP_FREE double *cost = malloc((p + 1) * sizeof(double));
	CLEANUP_FREE struct heap_item *heap = malloc((n->links_count + p + 1) * sizeof(*heap));
	int r = inbound_make(n, &in);
	if (r == 0)
		r = grow((void **)&n->next, MAX(p * p, (size_t)1), sizeof(uint32_t));
	if (!cost || !heap)
		r = -ENOMEM;
	for (uint32_t to = 0; r == 0 && to < p; to++)
		route_to(n, &in, to, cost, heap);
	free(in.first);
	free(in.links);
	return r;
}

int network_path(const struct network *n, uint32_t a, uint32_t b, uint32_t ret[NETWORK_PATH_MAX])
{
	CHECK(a < n->nodes_count && b < n->nodes_count);
	if (a == b)
		return 0;
	int count = 0;
	uint32_t at = n->node_point[a], to = n->node_point[b];
	ret[count++] = n->node_up[a];
	while (at != to) {
		uint32_t link = n->next[(size_t)at * n->points_count + to];
		if (link == NETWORK_NONE || count >= NETWORK_PATH_MAX - 1)
			return -EHOSTUNREACH;
		ret[count++] = link;
		at = n->link_to[link];
	}
	ret[count++] = n->node_down[b];
	return count;
}

double network_usual_bps(const struct network_link *l)
{
	return fmax(l->capacity_bps - (l->research_bps - l->peak_bps), 0);
}

double network_budget_bps(const struct network_link *l)
{
	return fmax(fmin(l->capacity_bps * l->floor_share, l->capacity_bps - l->research_bps), 0);
}
