/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two buildings and a server room whose traffic meets on one core link that no
 * machine's own edge sees:
 *
 *     machine A --- .                   . --- machine C (destination of moves)
 *     hosts A   --- |  core ==HTB==>  C |
 *     machine B --- |   (bottleneck)    '
 *     hosts B   --- '
 *
 * All are namespaces held by descriptors and gone with the process. Research
 * traffic is real TCP: bulk flows, and short ones of the web search sizes that
 * arrive at random. What arrives is counted at C.
 */
#ifndef RECLAIM_BENCH_EDGE_CAMPUS_H
#define RECLAIM_BENCH_EDGE_CAMPUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct nl_sock;

enum campus_site { SITE_MACHINE_A = 0, SITE_HOSTS_A, SITE_MACHINE_B, SITE_HOSTS_B, SITE_C, SITE_COUNT };

#define CAMPUS_SHORT_MAX (1u << 17)
#define CAMPUS_PORT_BULK 6001
#define CAMPUS_PORT_SHORT 6002
#define CAMPUS_PORT_MOVE 6003
#define CAMPUS_C "10.50.4.2"

/* Shared with the traffic's processes. */
struct campus_counts {
	_Atomic uint64_t bulk_bytes, short_bytes, move_bytes; /* arrived at C */
	_Atomic uint32_t short_count;
	uint32_t short_us[CAMPUS_SHORT_MAX]; /* completion times in order of completion */
	_Atomic uint32_t short_open, short_failed;
	_Atomic bool short_run;
	_Atomic uint64_t short_seed;
};

struct bench_campus {
	int core, site[SITE_COUNT], core_ifindex;
	struct nl_sock *core_sock;
	uint64_t core_bps;
	struct campus_counts *counts;
	pid_t sink, bulk[2], shorts[2];
};

struct bench_campus_config {
	uint64_t core_bps;
	uint32_t queue_bytes;     /* of the core link, as of a campus switch */
	int bulk_flows;           /* both buildings together */
	double short_load;        /* of the core link */
	double short_scale;       /* sizes are multiplied by it */
	const char *sizes;        /* file of a flow size distribution; NULL = no short flows */
	const char *congestion;   /* of research; NULL = the kernel's default */
};

/* NULL, or why it cannot be built. */
const char *bench_campus_init(struct bench_campus *c, const struct bench_campus_config *config);
void bench_campus_done(struct bench_campus *c);

/* One measured stretch of time: what research got. */
struct stretch {
	double seconds;
	double bulk_bps, short_bps; /* payload that arrived */
	double core_bps;            /* everything on the core link, headers included */
	uint32_t short_first, short_count; /* in counts->short_us */
};
/* Short flows start afresh from seed, run for the time, and all of them end. */
void bench_campus_run(struct bench_campus *c, uint64_t seed, double seconds, struct stretch *ret);

#endif
