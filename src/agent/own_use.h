/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does the owner compute here: processes that are no guest's on a lent GPU, or
 * CPU time that is neither the guests' nor our own. Looked at while the machine
 * is lent, every few seconds, in a thread where it could block (NVML).
 */
#ifndef RECLAIM_AGENT_OWN_USE_H
#define RECLAIM_AGENT_OWN_USE_H

#include <stdbool.h>
#include <stdint.h>

/* ---- CPU: pure, from two samples ---- */

struct own_cpu_sample {
	uint64_t at_ns;
	uint64_t busy_ns;   /* of all CPUs since boot: /proc/stat */
	uint64_t guests_ns; /* of the guests' control groups */
	uint64_t ours_ns;   /* agent, shims, transfers */
};

/* Cores used by neither guests nor us between the two; 0 if the samples make no sense. */
double own_cpu_cores(const struct own_cpu_sample *before, const struct own_cpu_sample *now);
/* The first line of /proc/stat -> busy time of all CPUs. 0 or -EINVAL. */
int own_cpu_parse(const char *stat, uint64_t ticks_per_s, uint64_t *ret_busy_ns);

/* ---- on the agent's loop ---- */

struct agent;
struct own_use;

int own_use_open(struct agent *a, struct own_use **ret);
/* The machine is lent, or lent no longer: takes the baseline of its GPUs, begins or ends to look. */
void own_use_lent(struct own_use *u, bool lent);
/* Why a kind of use cannot be seen here, or NULL. */
const char *own_use_missing_gpu(const struct own_use *u);
const char *own_use_missing_cpu(const struct own_use *u);

#endif
