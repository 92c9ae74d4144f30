/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate of a background transfer that lets everybody else go first, also at
 * a bottleneck that is not ours: it takes rising delay for somebody's traffic
 * and aims at about 1 ms of queue (LEDBAT++'s 60 ms would be far beyond a campus
 * switch). Pure: samples and now in, rate out.
 *
 * The base delay is the least round trip ever seen on the path. Somebody who
 * comes late to a full queue would take the queue for distance; against that,
 * loss halves the rate, variation counts as queue, and every few seconds the
 * rate drops to the minimum for a moment to see the path without us.
 */
#ifndef RECLAIM_TRANSFER_SCAVENGER_H
#define RECLAIM_TRANSFER_SCAVENGER_H

#include <stdbool.h>
#include <stdint.h>

#define SCAVENGER_TARGET_US 1000
#define SCAVENGER_SAMPLE_MS 10
#define SCAVENGER_WINDOW 4 /* samples; their minimum is believed */

struct scavenger {
	uint64_t rate_bps, floor_bps, max_bps;
	uint32_t base_us;       /* least round trip; 0 = none yet */
	uint32_t window[SCAVENGER_WINDOW];
	unsigned window_at;
	uint64_t retrans;       /* of the last sample */
	uint64_t cut_ns;        /* last decrease */
	uint64_t probe_ns;      /* next look at the path without us */
	uint64_t probe_end_ns;  /* 0 = not looking */
	uint64_t rate_before;
	bool start;             /* doubling until the first sign of others */
	uint32_t queue_us;      /* last estimate, for reports */
};

struct scavenger_sample {
	uint32_t rtt_us, rttvar_us; /* smoothed, of the connection that fares best; 0 = all idle */
	uint32_t min_rtt_us;        /* least of the connections */
	uint64_t retrans;           /* sum so far */
	uint64_t delivered_bps;     /* over the last samples */
};

/* One connection's figures into a zeroed sample. A smoothed round trip stands still on a connection
 * that sends nothing, so one that was idle for long says nothing of the queue. All connections
 * share the path: what a queue does to one it does to each, what a busy machine does it does to
 * some; hence the least. */
#define SCAVENGER_IDLE_MS 200
void scavenger_sample_add(struct scavenger_sample *x, uint32_t rtt_us, uint32_t rttvar_us,
			  uint32_t min_rtt_us, uint64_t retrans, uint32_t idle_ms);

void scavenger_init(struct scavenger *s, uint64_t floor_bps, uint64_t max_bps, uint64_t now_ns);
/* Every SCAVENGER_SAMPLE_MS. Returns the rate from now on, bit/s. */
uint64_t scavenger_update(struct scavenger *s, const struct scavenger_sample *x, uint64_t now_ns);

#endif
