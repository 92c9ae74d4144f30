/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fluid network. Floors come first and stand against research traffic, as
 * they do on the wire; then flows share max-min fairly what floors and
 * research leave; last come the flows that yield (background copies). Between
 * events rates are constant, so progress is computed, not stepped; a change
 * recomputes only the flows that it can reach over links which are full before or after.
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
	double floor;                  /* bytes per second */
	double limit;                  /* never faster than this */
	uint32_t links[NETWORK_PATH_MAX];
	uint32_t links_count;
	uint32_t user;                 /* the caller's */
	double event_s;                /* the caller's: when it looks next whether this has ended */
	uint32_t stamp;
	bool active, open;
	bool yields;                   /* takes what all others leave */
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
	double *used;         /* sum of its flows' rates now */
	double *left;         /* scratch */
	double *floors;       /* what floors take of each link now */
	double *over;         /* of it, what research would have had */
	double over_sum, over_at_s;
	double research_lost; /* bytes that floors took from research so far, over all links */
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

struct flow_spec {
	double bytes;
	const uint32_t *links;
	uint32_t count, user;
	double limit; /* bytes per second; 0 = none */
	bool yields;
};
/* Adds or removes; afterwards `touched` lists the flows whose end may have moved. */
int flow_add(struct flows *f, double now_s, const struct flow_spec *spec, uint32_t *ret_flow);
int flow_remove(struct flows *f, uint32_t flow, double now_s);
/* A new floor: set, then call flows_update() once for all. */
void flow_floor(struct flows *f, uint32_t flow, double floor);
int flows_update(struct flows *f, uint32_t flow, double now_s);
/* A link's capacity for us (all of it less research) changed. */
int flows_capacity(struct flows *f, uint32_t link, double capacity, double now_s);
/* When it will end at its present rate; INFINITY if it stands still. */
double flow_end(const struct flow *f);
double flow_left(const struct flow *f, double now_s);
/* Bytes that research lost to floors until now. */
double flows_research_lost(const struct flows *f, double now_s);

#endif
