/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fluid network: flows share links max-min fairly over what research
 * traffic leaves, after each has its floor. Between events rates are constant,
 * so progress is computed, not stepped; a change recomputes only the flows
 * that it can reach over links which could be full.
 */
#ifndef RECLAIM_SIM_FLOW_H
#define RECLAIM_SIM_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/vec.h"
#include "policy/network.h"

#define FLOW_NONE UINT32_MAX

struct flow {
	double bytes_left, rate, at_s; /* left at at_s */
	double floor;                  /* bytes per second, within the links' budgets */
	uint32_t links[NETWORK_PATH_MAX];
	uint32_t links_count;
	uint32_t user;                 /* the caller's */
	uint32_t version;              /* of the expected end */
	uint32_t stamp;
	double most;                   /* narrowest link */
	bool active;
};

struct flow_list {
	uint32_t *data;
	size_t count, cap;
};

struct flows {
	const struct network *net;
	struct VEC(struct flow) items;
	struct VEC(uint32_t) free;
	struct flow_list *on_link;
	double *capacity;     /* of each link for us, now */
	double *demand;       /* sum of what its flows could use at most */
	double *left;         /* scratch */
	uint32_t *active_on;  /* scratch */
	uint32_t *link_stamp;
	uint32_t stamp;
	struct VEC(uint32_t) touched;       /* flows of the last recomputation */
	struct VEC(uint32_t) touched_links;
	size_t active_count;
};

/* 0 or -ENOMEM. Capacities start as capacity - research. */
int flows_init(struct flows *f, const struct network *net);
void flows_done(struct flows *f);

/* Adds or removes; afterwards `touched` lists the flows whose end may have moved. */
int flow_add(struct flows *f, double now_s, double bytes, const uint32_t *links, uint32_t count,
	     uint32_t user, uint32_t *ret_flow);
int flow_remove(struct flows *f, uint32_t flow, double now_s);
/* A new floor: set, then call flows_update() once for all. */
void flow_floor(struct flows *f, uint32_t flow, double floor);
int flows_update(struct flows *f, uint32_t flow, double now_s);
/* A link's capacity for us changed. */
int flows_capacity(struct flows *f, uint32_t link, double capacity, double now_s);
/* When it will end at its present rate; INFINITY if it stands still. */
double flow_end(const struct flow *f);
double flow_left(const struct flow *f, double now_s);

#endif
