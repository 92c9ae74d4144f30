/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which transfers are promised their deadline, and at which rate each may run
 * now. A schedule is built over every link of every path: earliest deadline
 * first, checked to the end. What it gives a transfer now is that transfer's
 * guaranteed floor; everything above floors yields to research traffic. Call
 * again at every event (a transfer starts, ends, is cancelled; a link or its
 * load changes).
 *
 * When not all fit, the transfer with the least saved work per byte goes
 * first, whole: a shortage is never spread so that all miss.
 */
#ifndef RECLAIM_POLICY_ADMISSION_H
#define RECLAIM_POLICY_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/network.h"

struct transfer {
	uint64_t id;          /* the caller's; ties are broken by it */
	double bytes;         /* still to send */
	double start_in_s;    /* earliest start from now (a save that still runs), usually 0 */
	double deadline_in_s; /* from now, margin already taken off; INFINITY = background */
	double saved_work;    /* slot-seconds that are lost if it misses, >= 0 */
	bool promised;        /* admitted before: dropped only after all that are not */
	uint32_t links[NETWORK_PATH_MAX];
	uint32_t links_count; /* 0: nothing shared, always fits */
};

enum admission_verdict {
	ADMISSION_ADMITTED = 0, /* makes its deadline by the schedule */
	ADMISSION_DROPPED,      /* gave way to transfers with more saved work per byte */
	ADMISSION_IMPOSSIBLE,   /* misses even alone */
	ADMISSION_BACKGROUND,   /* no deadline: scavenges */
};

struct admission {
	enum admission_verdict verdict;
	double floor_bps;   /* bytes per second guaranteed now */
	double finish_in_s; /* by the schedule; INFINITY unless admitted */
	uint32_t bottleneck; /* link that decided against it, or NETWORK_NONE */
};

struct admission_config {
	bool topology_blind; /* ablation: only the first link of each path counts */
	bool deadline_blind; /* ablation: equal shares, nobody is dropped */
	size_t effort;       /* attempts to put dropped transfers back; 0 = 64 */
};

/* Seconds from now until the floors should be planned again goes to ret_valid_s (may be NULL).
 * 0 or -ENOMEM. */
int admission_plan(const struct network *net, const struct transfer *transfers, size_t count,
		   const struct admission_config *config, struct admission *ret,
		   double *ret_valid_s);

/* True if all transfers make their deadlines in the schedule that admission_plan() would build. */
bool admission_feasible(const struct network *net, const struct transfer *transfers,
			size_t count);

#endif
