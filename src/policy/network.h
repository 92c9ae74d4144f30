/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The campus network as the planner sees it: points joined by one-way links
 * with a capacity and what research traffic leaves of it, and machines that
 * hang on a point by a link of their own, up and down. Paths are shortest by
 * delay, computed once.
 */
#ifndef RECLAIM_POLICY_NETWORK_H
#define RECLAIM_POLICY_NETWORK_H

#include <stddef.h>
#include <stdint.h>

#define NETWORK_POINTS_MAX 4096
#define NETWORK_PATH_MAX 32
#define NETWORK_NONE UINT32_MAX

struct network_link {
	double capacity_bps; /* bytes per second, one direction */
	double research_bps; /* what research traffic uses now or is forecast to (high quantile) */
	double floor_share;  /* part of the capacity that floors of ours may take at most */
	double peak_bps;     /* part of research_bps that is there only at its busiest: no floor may
			      * count on it, a transfer without one may hope for it */
};

struct network {
	struct network_link *links;
	size_t links_count, links_cap;
	uint32_t *link_from, *link_to; /* points; NETWORK_NONE for a machine's end */
	double *link_delay_s;
	size_t points_count;
	uint32_t *next;  /* [from * points_count + to]: link to take, NETWORK_NONE = unreachable */
	uint32_t *node_point, *node_up, *node_down; /* by machine */
	size_t nodes_count, nodes_cap;
};

#define NETWORK_INIT { 0 }
void network_done(struct network *n);

/* All return the new index, or -ENOMEM / -ENOSPC / -EINVAL. */
int64_t network_point_add(struct network *n);
int64_t network_link_add(struct network *n, uint32_t from, uint32_t to, double capacity_bps,
			 double research_bps, double floor_share, double delay_s);
/* Both directions of a machine's own cable. */
int64_t network_node_add(struct network *n, uint32_t point, double capacity_bps,
			 double research_bps, double floor_share);

/* Computes all paths between points; again after points or links change. 0 or -ENOMEM. */
int network_route(struct network *n);

/* Links from machine a to machine b, in order. Returns the count, 0 if a == b,
 * -EHOSTUNREACH if there is no way. */
int network_path(const struct network *n, uint32_t a, uint32_t b, uint32_t ret[NETWORK_PATH_MAX]);

/* What our floors may use of a link: least of the floor share and what research leaves. */
double network_budget_bps(const struct network_link *l);

/* What research leaves as a rule: for transfers that yield to it. */
double network_usual_bps(const struct network_link *l);

#endif
