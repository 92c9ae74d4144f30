/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uninterrupted runs of the jobs, before the campus is built: what the result
 * must be, what a checkpoint costs, and so whether a window is enough. Runs
 * without pacing and without a neighbour.
 */
#ifndef RECLAIM_LAB_REFERENCE_H
#define RECLAIM_LAB_REFERENCE_H

#include <stdint.h>

#include "base/diag.h"
#include "scenario/scenario.h"

struct reference {
	char digest[65]; /* "" = the job wants none */
	uint64_t steps;
	uint64_t image_bytes; /* one checkpoint */
	uint64_t save_ns;     /* mean standstill per checkpoint */
	double seconds;
};

/* One per job of the scenario; ret has room for all. Equal commands run once. */
int reference_run_all(const struct scenario *s, const char *dir, struct reference *ret,
		      struct diag *diag);

/* The rule that is decided before the run: window >= save + bytes / floor + 2 s. */
#define REFERENCE_MARGIN_NS UINT64_C(2000000000)
uint64_t reference_window_needed_ns(uint64_t save_ns, uint64_t bytes, uint64_t floor_bps);

#endif
