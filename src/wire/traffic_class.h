/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The classes of our own traffic, as every packet shows them: a socket mark
 * (SO_MARK, for the machine's own edge) and a DSCP (for the campus). Whoever
 * opens a socket sets both; the edge reads both. Needs only <stdint.h>, so
 * that BPF programs can include it.
 *
 * Mark: bits 31-24 TRAFFIC_MARK_MAGIC, bits 23-20 the class, bits 19-0 a tag
 * that the agent gives to a job on its machine (0 = no single job), so that the
 * edge can count per job without knowing ports.
 */
#ifndef RECLAIM_WIRE_TRAFFIC_CLASS_H
#define RECLAIM_WIRE_TRAFFIC_CLASS_H

#ifdef __bpf__
#include <linux/types.h>
typedef __u32 traffic_u32;
#else
#include <stdint.h>
typedef uint32_t traffic_u32;
#endif

enum traffic_class {
	TRAFFIC_RESEARCH = 0, /* everything that is not ours; never marked */
	TRAFFIC_CONTROL,      /* control connection, tickets, small and urgent */
	TRAFFIC_DEADLINE,     /* a move under a granted floor */
	TRAFFIC_SCAVENGER,    /* background staging, bulk without a deadline */
	TRAFFIC_GUEST,        /* guests' own packets: labelled by the edge, never by a socket */
	TRAFFIC_CLASS_COUNT,
};

#define TRAFFIC_CLASS_NAMES { "research", "control", "deadline", "scavenger", "guest", 0 }

#define TRAFFIC_MARK_MAGIC 0x52000000u
#define TRAFFIC_MARK_MAGIC_MASK 0xff000000u
#define TRAFFIC_MARK_CLASS_SHIFT 20
#define TRAFFIC_MARK_CLASS_MASK 0x00f00000u
#define TRAFFIC_MARK_TAG_MASK 0x000fffffu

/* DSCP values: CS2 (RFC 4594, operations), AF11 (high-throughput data), LE (RFC 8622), and
 * CS1 for guests, which networks without LE already serve last. */
#define TRAFFIC_DSCP_CONTROL 16
#define TRAFFIC_DSCP_DEADLINE 10
#define TRAFFIC_DSCP_SCAVENGER 1
#define TRAFFIC_DSCP_GUEST 8

/*
 * TCP congestion control (TCP_CONGESTION) that yields to everybody on rising
 * delay, also at a bottleneck that is not ours; and one that holds the rate of
 * SO_MAX_PACING_RATE, for floors that the schedule has granted. The edge loads
 * both where the kernel takes them. A socket that cannot have them (ENOENT)
 * keeps its default and paces in user space. Setting them needs CAP_NET_ADMIN.
 */
#define TRAFFIC_CC_SCAVENGER "reclaim_yield"
#define TRAFFIC_CC_FLOOR "reclaim_floor"

static inline traffic_u32 traffic_mark(enum traffic_class c, traffic_u32 tag)
{
	return TRAFFIC_MARK_MAGIC | (traffic_u32)c << TRAFFIC_MARK_CLASS_SHIFT |
	       (tag & TRAFFIC_MARK_TAG_MASK);
}

/* TRAFFIC_RESEARCH for a mark that is not ours. */
static inline enum traffic_class traffic_mark_class(traffic_u32 mark)
{
	traffic_u32 c = (mark & TRAFFIC_MARK_CLASS_MASK) >> TRAFFIC_MARK_CLASS_SHIFT;

	if ((mark & TRAFFIC_MARK_MAGIC_MASK) != TRAFFIC_MARK_MAGIC || c >= TRAFFIC_CLASS_COUNT)
		return TRAFFIC_RESEARCH;
	return (enum traffic_class)c;
}

/* The 6-bit DSCP; IP_TOS and IPV6_TCLASS take it shifted left by 2. */
static inline int traffic_dscp(enum traffic_class c)
{
	return c == TRAFFIC_CONTROL     ? TRAFFIC_DSCP_CONTROL
	       : c == TRAFFIC_DEADLINE  ? TRAFFIC_DSCP_DEADLINE
	       : c == TRAFFIC_SCAVENGER ? TRAFFIC_DSCP_SCAVENGER
	       : c == TRAFFIC_GUEST     ? TRAFFIC_DSCP_GUEST
					: 0;
}

#endif
