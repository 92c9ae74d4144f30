/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How good are the hazard model's predictions on a trace? Every prediction is
 * made through the public interface from what happened before it.
 */
#ifndef RECLAIM_SIM_SCORE_H
#define RECLAIM_SIM_SCORE_H

#include <jansson.h>

#include "sim/trace.h"

struct score_config {
	double fit_from_s, fit_to_s;     /* the tables are learned here */
	double score_from_s, score_to_s; /* predictions are scored here */
	double step_s;                   /* of the integral; 0 = 60 */
	double probe_s;                  /* between forecasts of an hour; 0 = 1800 */
	double refit_s;                  /* 0: the tables stay as fitted; only levels adapt */
	const struct trace *const *before; /* earlier traces of the same campus, oldest first */
	const double *before_shift_s;    /* added to their times */
	size_t before_count;
	bool constant;
};

#define SCORE_BINS 10
struct score {
	uint64_t reclaims;
	double exposed_s;
	double nats_over_constant; /* per reclaim; the constant is the fit window's rate */
	double nats_over_adaptive; /* over the best of several adaptive rates, chosen in hindsight */
	double adaptive_memory_s;  /* that best one */
	double calibration_error;  /* expected, of the one-hour probability */
	double expected_over_seen; /* integral of the rate / reclaims: the level's own error */
	uint64_t probes;
	struct {
		double predicted, observed;
		uint64_t count;
	} bins[SCORE_BINS];
};

/* 0, -EINVAL (empty windows, no reclaims to score) or -ENOMEM. */
int score_hazard(const struct trace *trace, const struct score_config *config, struct score *ret,
		 struct diag *diag);
/* New reference or NULL. */
json_t *score_json(const struct score *s);

#endif
