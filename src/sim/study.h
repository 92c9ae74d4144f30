/* SPDX-License-Identifier: Apache-2.0 */
/* Many runs: systems times seeds, over threads, with confidence intervals from paired seeds. */
#ifndef RECLAIM_SIM_STUDY_H
#define RECLAIM_SIM_STUDY_H

#include <jansson.h>
#include <stdio.h>

#include "base/diag.h"
#include "sim/run.h"

struct study_input {
	const char *file; /* scenario (YAML) or trace (CSV) */
	const char *trace, *machines, *jobs, *topology; /* instead of the scenario's; may be NULL */
	const char *const *set; /* KEY=VALUE for its sim part */
	size_t set_count;
};

struct study {
	char *name;
	const struct system **systems;
	size_t systems_count, seeds;
	uint64_t first_seed;
	struct run_result *results; /* [system * seeds + seed] */
};

int study_world(const struct study_input *input, uint64_t seed, struct world *ret,
		struct diag *diag);
/* systems: names with commas, NULL = all. threads 0: one per core. */
int study_run(const struct study_input *input, const char *systems, uint64_t seed, uint64_t seeds,
	      uint64_t threads, void (*progress)(void *ctx, double share), void *ctx,
	      struct study *ret, struct diag *diag);
void study_done(struct study *s);
json_t *study_json(const struct study *s);
void study_print(const struct study *s, FILE *f);

struct study_mean {
	double mean, ci95; /* half width, Student's t */
};
/* A typedef, against the house rule, because a function returning it is unreadable. */
typedef double (*study_metric)(const struct run_result *r);
struct study_mean study_mean(const struct study *s, size_t system, study_metric metric);
/* Of the differences seed by seed: system less `than`. */
struct study_mean study_difference(const struct study *s, size_t system, size_t than,
				   study_metric metric);

#endif
