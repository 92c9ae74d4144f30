/* SPDX-License-Identifier: Apache-2.0 */
/* Between the computing of outcomes (report.c) and the judging of them (checks.c). */
#ifndef RECLAIM_LAB_REPORT_INTERNAL_H
#define RECLAIM_LAB_REPORT_INTERNAL_H

#include "lab/lab_internal.h"

#define JOB_RUNS_MAX 256
#define CHECKS_MAX 64

struct job_outcome {
	char digest[65];
	uint64_t steps, steps_redone, incarnations;
	double downtime_ms[JOB_RUNS_MAX];
	size_t downtimes_count;
	bool torn; /* its steps are not one unbroken sequence */
};

struct check_outcome {
	char name[SCENARIO_NAME_MAX + 8];
	bool ok;
	char detail[240];
};

struct outcome {
	struct observe_run *runs;
	size_t runs_count;
	struct job_outcome *jobs; /* as in the scenario */
	bool background;          /* there was research traffic to measure */
	double before_mbps, during_mbps, floor_mbps, ratio;
	struct check_outcome checks[CHECKS_MAX];
	size_t checks_count;
};

/* floors.c: bit/s that one machine's moves were guaranteed, averaged over that time: from the text
 * of its agent's log, and read from there. */
double floors_granted(const char *text, uint64_t from_ns, uint64_t to_ns);
double floors_of_machine(const struct lab *l, size_t machine, uint64_t from_ns, uint64_t to_ns);

uint64_t report_number(json_t *obj, const char *key);
/* Fills o->checks by the scenario's list, and those that always apply. */
void checks_run(struct lab *l, struct outcome *o);
/* Does this name mean anything? For the loading of a scenario. */
bool checks_known(const char *name);

#endif
