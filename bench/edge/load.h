/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic for the edge's benches: processes of this program in the namespaces of a testnet. */
#ifndef RECLAIM_BENCH_EDGE_LOAD_H
#define RECLAIM_BENCH_EDGE_LOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The far end: sinks, and senders towards the guest at in_bps (half UDP, half TCP). They end
 * with their parent. The child's pid, or -1. */
pid_t load_world(int world_ns, uint64_t in_bps);
/* The guest: UDP and TCP as fast as they can, and the other ends of what comes in. */
pid_t load_guest(int guest_ns);
/* Research from the machine itself: TCP flows as fast as they can. */
pid_t load_research(int machine_ns, int flows);
void load_stop(pid_t pid);

#endif
