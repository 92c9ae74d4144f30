/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traffic that is not ours, and the measuring of it: a sender and a receiver
 * process per flow. The receiver counts into bins of FLOW_BIN_NS that the lab
 * shares; time is CLOCK_BOOTTIME, which all namespaces have in common.
 */
#ifndef RECLAIM_LAB_FLOW_H
#define RECLAIM_LAB_FLOW_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"
#include "lab/campus.h"
#include "scenario/scenario.h"

#define FLOW_BIN_NS UINT64_C(50000000)
#define FLOW_PORT_BASE 5001

struct flow;

/* Starts both ends; packets begin at origin_boot_ns + start. */
int flow_start(const struct scenario_flow *spec, size_t index, const struct campus_node *from,
	       const struct campus_node *to, uint64_t origin_boot_ns, uint64_t length_ns,
	       struct flow **ret, struct diag *diag);
void flow_stop(struct flow *f); /* kills both ends and frees */
/* Bytes that the receiver got between two instants (CLOCK_BOOTTIME), by whole bins inside. */
double flow_mbps(const struct flow *f, uint64_t from_ns, uint64_t to_ns);

/* A host's receiver of datagrams on UDP port 9: who sent last, and when the kernel saw it. */
#define SINK_PORT 9
#define SINK_SOURCES_MAX 64

struct sink;
int sink_start(const struct campus_node *node, struct sink **ret, struct diag *diag);
void sink_stop(struct sink *s);
/* The last packet from a source address: its CLOCK_BOOTTIME, or 0 if there was none. How many
 * came from it in all goes to ret_packets (may be NULL). */
uint64_t sink_last(const struct sink *s, const char *address, uint64_t *ret_packets);

#endif
