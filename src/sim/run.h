/* SPDX-License-Identifier: Apache-2.0 */
/* One run: one world, one system, one answer. Same input, same bytes out. */
#ifndef RECLAIM_SIM_RUN_H
#define RECLAIM_SIM_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "sim/system.h"
#include "sim/world.h"

#define DOWNTIME_BINS 400 /* logarithmic, 0.01 s to 10^6 s */

struct run_window {
	double window_s;
	uint64_t reclaims;     /* of machines that carried a job, per job */
	double lost_s;         /* slot-seconds thrown away at them */
	uint64_t saved, missed;
};

struct run_result {
	/* Slot-seconds. */
	double lent_s, used_s;
	double lost_s;         /* executed and thrown away */
	double stalled_s;      /* checkpoints */
	double redundant_s;
	double work_loss_share; /* the three over lent_s */
	double lost_power_off_s; /* part of lost_s without any notice */
	/* Downtime, per interruption, in seconds. */
	uint64_t interruptions;
	double downtime_mean_s, downtime_p50_s, downtime_p99_s;
	uint64_t downtime_bins[DOWNTIME_BINS];
	uint64_t owner_over_window; /* reclaims with a guest still there after the window and 1 s */
	uint64_t reclaims, power_offs, checkpoints;
	uint64_t moves, stages, fallbacks, moves_missed, promises_broken;
	uint64_t jobs, jobs_done;
	double moved_bytes, background_bytes;
	double background_lost_share; /* part of what research asked for that floors took from it */
	struct run_window windows[WORLD_WINDOWS_MAX];
	size_t windows_count;
	uint64_t events;
	double seconds;        /* wall clock of the run; not part of the bytes that repeat */
};

struct run_config {
	uint64_t seed;
	void (*progress)(void *ctx, double share);
	void *progress_ctx;
	bool trace;            /* log every decision to stderr: for people */
};

int run_system(const struct world *w, const struct system *s, const struct run_config *config,
	       struct run_result *ret);
double downtime_bin_s(size_t bin);
/* Without wall-clock figures. */
json_t *run_json(const struct run_result *r);

#endif
