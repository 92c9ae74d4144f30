/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log-likelihood of a point process: log rate at each reclaim, less the
 * integral of the rate over all lent time. The integral is sampled in the
 * middle of every step. A probe asks for the chance of a reclaim within the
 * hour and waits to see what came.
 */
#include "sim/score.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/cleanup.h"

#define PROBE_HORIZON_S 3600.0

static const double memories_s[] = { 3600,	   6 * 3600,	 86400,	       3 * 86400.0,
				     7 * 86400.0, 14 * 86400.0, 30 * 86400.0, 1e12 };
#define MEMORIES (sizeof(memories_s) / sizeof(memories_s[0]))

struct probe {
	double at_s, predicted;
	uint32_t machine;
	bool observed;
};

struct adaptive {
	double events, exposed_s, log_likelihood;
};

struct run {
	const struct trace *trace;
	const struct score_config *config;
	struct hazard *hazard;
	uint8_t *state;       /* of each machine */
	double *since_s;
	size_t lent_count;
	double constant;      /* per second */
	double log_likelihood, log_constant, expected;
	double fit_events, fit_exposed_s;
	struct adaptive adaptive[MEMORIES];
	double adaptive_at_s;
	struct VEC(struct probe) probes;
	uint32_t *probe_open; /* last probe of each machine + 1 */
	struct score score;
};

static bool in(double t, double from, double to)
{
	return t >= from && t < to;
}

static double adaptive_rate(const struct adaptive *a)
{
	return (a->events + 0.25) / (a->exposed_s + 43200.0);
}

/* All lent machines over one step of dt, seen from its middle. */
static void step(struct run *r, double mid_s, double dt)
{
	const struct score_config *c = r->config;
	bool scored = in(mid_s, c->score_from_s, c->score_to_s);
	bool fitted = in(mid_s, c->fit_from_s, c->fit_to_s);
	size_t lent = 0;

	for (uint32_t m = 0; m < r->trace->machines.count; m++) {
		if (r->state[m] != HAZARD_LENT)
			continue;
		lent++;
		if (!scored)
			continue;
		struct hazard_rate rate;
		hazard_rate(r->hazard, m, mid_s, &rate);
		r->log_likelihood -= rate.per_s * dt;
		r->expected += rate.per_s * dt;
	}
	double exposed = (double)lent * dt;
	if (fitted)
		r->fit_exposed_s += exposed;
	if (scored) {
		r->log_constant -= r->constant * exposed;
		r->score.exposed_s += exposed;
	}
	for (size_t i = 0; i < MEMORIES; i++) {
		struct adaptive *a = &r->adaptive[i];
		if (scored)
			a->log_likelihood -= adaptive_rate(a) * exposed;
		double k = exp(-dt / memories_s[i]);
		a->events *= k;
		a->exposed_s = a->exposed_s * k + exposed;
	}
}

static void reclaimed(struct run *r, uint32_t machine, double t)
{
	const struct score_config *c = r->config;
	bool scored = in(t, c->score_from_s, c->score_to_s);
	if (in(t, c->fit_from_s, c->fit_to_s))
		r->fit_events++;
	if (scored) {
		struct hazard_rate rate;
		hazard_rate(r->hazard, machine, t, &rate);
		r->log_likelihood += log(rate.per_s);
		r->log_constant += log(r->constant);
		r->score.reclaims++;
	}
	for (size_t i = 0; i < MEMORIES; i++) {
		struct adaptive *a = &r->adaptive[i];
		if (scored)
			a->log_likelihood += log(adaptive_rate(a));
		a->events += 1;
	}
	/* Open probes of the last hour. */
	for (size_t p = r->probe_open[machine]; p > 0;) {
		struct probe *probe = &r->probes.data[p - 1];
		if (t - probe->at_s > PROBE_HORIZON_S)
			break;
		probe->observed = true;
		size_t back = p - 1;
		while (back > 0 && r->probes.data[back - 1].machine != machine &&
		       t - r->probes.data[back - 1].at_s <= PROBE_HORIZON_S)
			back--;
		p = back > 0 && r->probes.data[back - 1].machine == machine ? back : 0;
	}
	r->probe_open[machine] = 0;
}

static int probe_all(struct run *r, double t)
{
	for (uint32_t m = 0; m < r->trace->machines.count; m++) {
		/* What comes after a machine's record ends is not known. */
		if (r->state[m] != HAZARD_LENT ||
		    r->trace->machines.data[m].last_s < t + PROBE_HORIZON_S)
			continue;
		struct hazard_forecast f;
		hazard_forecast(r->hazard, m, t, PROBE_HORIZON_S, &f);
		struct probe p = { .at_s = t, .predicted = f.p_reclaim, .machine = m };
		int e = VEC_PUSH(&r->probes, p);
		if (e < 0)
			return e;
		r->probe_open[m] = (uint32_t)r->probes.count;
	}
	return 0;
}

static int observe(struct run *r, uint32_t m, double t, enum hazard_state state)
{
	if (r->state[m] == HAZARD_LENT && state == HAZARD_OWNED)
		reclaimed(r, m, t);
	else if (r->state[m] == HAZARD_LENT && state != HAZARD_LENT)
		r->probe_open[m] = 0;
	if (r->state[m] != state)
		r->since_s[m] = t;
	r->state[m] = (uint8_t)state;
	return hazard_observe(r->hazard, m, t, state);
}

static int replay_before(struct run *r)
{
	const struct score_config *c = r->config;
	for (size_t b = 0; b < c->before_count; b++) {
		const struct trace *t = c->before[b];
		double shift = c->before_shift_s[b];
		for (size_t i = 0; i < t->events.count; i++) {
			const struct trace_event *e = &t->events.data[i];
			if (e->machine >= r->trace->machines.count)
				continue;
			int x = hazard_observe(r->hazard, e->machine, e->t_s + shift, e->state);
			if (x == 0 && e->t_s >= t->machines.data[e->machine].last_s)
				x = hazard_observe(r->hazard, e->machine, e->t_s + shift,
						   HAZARD_GONE);
			if (x < 0)
				return x;
		}
	}
	return 0;
}

static int replay(struct run *r)
{
	const struct score_config *c = r->config;
	double step_s = c->step_s > 0 ? c->step_s : 60;
	double probe_s = c->probe_s > 0 ? c->probe_s : 1800;
	double start = c->fit_from_s, end = fmax(c->fit_to_s, c->score_to_s);
	double next_step = start, next_probe = c->score_from_s, next_fit = c->fit_to_s;
	size_t i = 0;
	bool fitted = false;

	while (i < r->trace->events.count || next_step < end) {
		double event_s = i < r->trace->events.count ? r->trace->events.data[i].t_s :
							      INFINITY;
		double mid = next_step + step_s / 2;
		double now = fmin(fmin(event_s, mid), fmin(next_probe, next_fit));
		int e = 0;
		if (now >= end)
			break;
		if (now == next_fit) {
			e = hazard_fit(r->hazard, now);
			if (!fitted) {
				r->constant = (r->fit_events + 0.5) / (r->fit_exposed_s + 3600);
				fitted = true;
			}
			next_fit = c->refit_s > 0 ? now + c->refit_s : INFINITY;
		} else if (now == event_s) {
			const struct trace_event *ev = &r->trace->events.data[i++];
			e = observe(r, ev->machine, ev->t_s, ev->state);
			if (e == 0 && ev->t_s >= r->trace->machines.data[ev->machine].last_s)
				e = observe(r, ev->machine, ev->t_s, HAZARD_GONE);
		} else if (now == next_probe) {
			if (now < c->score_to_s - PROBE_HORIZON_S)
				e = probe_all(r, now);
			next_probe += probe_s;
		} else {
			step(r, mid, step_s);
			next_step += step_s;
		}
		if (e < 0)
			return e;
	}
	return 0;
}

static int probe_order(const void *a, const void *b)
{
	double x = ((const struct probe *)a)->predicted, y = ((const struct probe *)b)->predicted;
	return (x > y) - (x < y);
}

static void calibrate(struct run *r)
{
	struct score *s = &r->score;
	size_t n = r->probes.count;
	s->probes = n;
	if (n == 0)
		return;
	qsort(r->probes.data, n, sizeof(*r->probes.data), probe_order);
	for (size_t b = 0; b < SCORE_BINS; b++) {
		size_t from = n * b / SCORE_BINS, to = n * (b + 1) / SCORE_BINS;
		double predicted = 0, observed = 0;
		for (size_t i = from; i < to; i++) {
			predicted += r->probes.data[i].predicted;
			observed += r->probes.data[i].observed;
		}
		if (to == from)
			continue;
		s->bins[b].count = to - from;
		s->bins[b].predicted = predicted / (double)(to - from);
		s->bins[b].observed = observed / (double)(to - from);
		s->calibration_error += fabs(predicted - observed) / (double)n;
	}
}

static int run_init(struct run *r)
{
	const struct score_config *c = r->config;
	size_t n = r->trace->machines.count;
	struct hazard_config config = {
		.monday_s = r->trace->monday_s,
		.cells_max = 12u << 20,
		.fit_every_s = 28 * 86400.0,
		.constant = c->constant,
	};
	int e = hazard_new(&config, &r->hazard);
	for (uint32_t i = 0, room; e == 0 && i < r->trace->rooms_count; i++)
		e = hazard_room_add(r->hazard, &room);
	for (uint32_t i = 0, owner; e == 0 && i < n; i++)
		e = hazard_owner_add(r->hazard, r->trace->machines.data[i].room, 0, &owner);
	r->state = calloc(n + 1, 1);
	r->since_s = calloc(n + 1, sizeof(double));
	r->probe_open = calloc(n + 1, sizeof(uint32_t));
	if (!r->state || !r->since_s || !r->probe_open)
		e = -ENOMEM;
	return e;
}

static void run_done(struct run *r)
{
	hazard_free(r->hazard);
	free(r->state);
	free(r->since_s);
	free(r->probe_open);
	VEC_DONE(&r->probes);
}

int score_hazard(const struct trace *trace, const struct score_config *config, struct score *ret,
		 struct diag *diag)
{
	if (!(config->fit_from_s < config->fit_to_s && config->fit_to_s <= config->score_from_s &&
	      config->score_from_s < config->score_to_s))
		return diag_set(diag, -EINVAL, "",
				"the windows must be --fit A:B --score C:D with A < B <= C < D");
	struct run r = { .trace = trace, .config = config };
	int e = run_init(&r);
	if (e == 0)
		e = replay_before(&r);
	if (e == 0)
		e = replay(&r);
	if (e < 0)
		(void)diag_set(diag, e, "", "out of memory");
	if (e == 0 && r.score.reclaims == 0)
		e = diag_set(diag, -EINVAL, "", "no reclaim lies in the scored window");
	if (e == 0) {
		double n = (double)r.score.reclaims, best = -INFINITY;
		calibrate(&r);
		r.score.expected_over_seen = r.expected / n;
		r.score.nats_over_constant = (r.log_likelihood - r.log_constant) / n;
		for (size_t i = 0; i < MEMORIES; i++) {
			if (r.adaptive[i].log_likelihood > best) {
				best = r.adaptive[i].log_likelihood;
				r.score.adaptive_memory_s = memories_s[i];
			}
		}
		r.score.nats_over_adaptive = (r.log_likelihood - best) / n;
		*ret = r.score;
	}
	run_done(&r);
	return e;
}

json_t *score_json(const struct score *s)
{
	json_t *bins = json_array();
	for (size_t b = 0; b < SCORE_BINS; b++)
		json_array_append_new(bins, json_pack("{s:f,s:f,s:I}", "predicted",
						      s->bins[b].predicted, "observed",
						      s->bins[b].observed, "count",
						      (json_int_t)s->bins[b].count));
	return json_pack("{s:f,s:f,s:I,s:f,s:f,s:f,s:f,s:I,s:o}", "nats_over_constant",
			 s->nats_over_constant, "calibration_error", s->calibration_error, "reclaims",
			 (json_int_t)s->reclaims, "nats_over_adaptive", s->nats_over_adaptive,
			 "adaptive_memory_s", s->adaptive_memory_s, "exposed_s", s->exposed_s,
			 "expected_over_seen", s->expected_over_seen,
			 "probes", (json_int_t)s->probes, "bins", bins);
}
