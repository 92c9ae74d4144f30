/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the owner's commands: owner.c speaks to the agent, owner_direct.c to
 * what is left when there is none.
 */
#ifndef RECLAIM_CLI_OWNER_INTERNAL_H
#define RECLAIM_CLI_OWNER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

/* A reclaim that has not ended by then, counted from its deadline, is an alarm. */
#define OWNER_AFTER_DEADLINE_NS (5 * NS_PER_S)

struct owner_options {
	const char *run;
	bool json, now, cancel, no_wait, here;
	uint64_t in, history;
	const char *reason;
};

const char *owner_run_dir(const struct owner_options *o);

/* Each says what it did and returns the exit status. */

/* The guests' supervisors hold the timers: each gets the notice and keeps its own deadline. A
 * deadline that has passed ends the guest at once. */
int owner_back_direct(const struct owner_options *o, uint64_t window_ns);
/* The same with --in, or with the window that the agent last declared. */
int owner_back_direct_declared(const struct owner_options *o);
/* Everything that is needed is in the kernel and in one small program. Does not return where
 * reclaim-cut runs. */
int owner_cut_direct(const struct owner_options *o);

#endif
