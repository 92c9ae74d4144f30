/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of one transfer, over all its connections: SO_MAX_PACING_RATE, changed in flight. A
 * thread of its own samples TCP_INFO every 10 ms while the class is the scavenger's. */
#ifndef RECLAIM_TRANSFER_PACER_H
#define RECLAIM_TRANSFER_PACER_H

#include <stdint.h>

#include "transfer/link.h"
#include "wire/traffic_class.h"

struct pacer;
int pacer_new(enum traffic_class c, uint64_t floor_bps, uint64_t rate_max_bps, uint32_t mark_tag,
	      struct pacer **ret);
void pacer_free(struct pacer *p);

void pacer_add(struct pacer *p, struct link *l);
void pacer_remove(struct pacer *p, struct link *l);
void pacer_set_rate(struct pacer *p, uint64_t floor_bps, uint64_t rate_max_bps);
void pacer_set_class(struct pacer *p, enum traffic_class c);

struct pacer_state {
	uint64_t granted_bps;  /* now; UINT64_MAX = as fast as it goes */
	uint64_t measured_bps; /* acknowledged, over about the last half second */
	uint32_t rtt_us, queue_us;
	/* The last look at the path: what was acknowledged in about 50 ms, all connections
	 * together, and whether more was waiting (else the path could do more). */
	uint64_t path_seq, path_bps;
	bool path_backlog;
};
void pacer_state(struct pacer *p, struct pacer_state *ret);

#endif
