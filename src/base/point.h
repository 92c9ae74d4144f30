/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protocol points: named places at which a crash must do no harm. The crash
 * campaign kills programs there. With RECLAIM_POINTS unset a point costs one
 * predictable branch.
 *
 *     RECLAIM_POINTS="transfer.send.before_commit=kill@2,agent.notice=kill"
 *     RECLAIM_POINTS_HITS=/path/file   appends "name\n" for every hit, "name!\n" before a kill
 *
 * Actions: `kill` raises SIGKILL in this process at the n-th hit (default the
 * first); `count` only counts. `RECLAIM_POINTS=count` counts all of them.
 * The list of all points is taken from the sources by tests/campaign.
 */
#ifndef RECLAIM_BASE_POINT_H
#define RECLAIM_BASE_POINT_H

#include <stdbool.h>

extern bool point_active;
void point_hit(const char *name);

/* Reads the environment; the first thing main does. */
void point_init(void);

#define POINT(name)                                        \
	do {                                               \
		if (__builtin_expect(point_active, false)) \
			point_hit(name);                   \
	} while (0)

#endif
