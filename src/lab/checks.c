/* SPDX-License-Identifier: Apache-2.0 */
/* The statements that a scenario may ask for. One row each; those marked always run anyway. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/check.h"
#include "lab/report_internal.h"

static void detail(struct check_outcome *c, bool ok, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void detail(struct check_outcome *c, bool ok, const char *fmt, ...)
{
	va_list args;

	c->ok = ok;
	va_start(args, fmt);
	(void)vsnprintf(c->detail, sizeof(c->detail), fmt, args);
	va_end(args);
}

static double bound(double given, double fallback)
{
	return isnan(given) ? fallback : given;
}

static void check_finished(struct lab *l, struct outcome *o, const struct scenario_check *s,
			   struct check_outcome *c)
{
	size_t done = 0, torn = 0;
	uint64_t failures = 0;

	for (size_t i = 0; i < l->scenario.jobs_count; i++) {
		done += strcmp(l->jobs[i].state, "done") == 0 && l->jobs[i].status == 0;
		failures += l->jobs[i].failures;
		torn += o->jobs[i].torn;
	}
	detail(c, done == l->scenario.jobs_count && failures == 0 && torn == 0,
	       "%zu of %zu jobs done, %llu counted failures, %zu with steps missing", done,
	       l->scenario.jobs_count, (unsigned long long)failures, torn);
}

static void check_digests(struct lab *l, struct outcome *o, const struct scenario_check *s,
			  struct check_outcome *c)
{
	size_t want = 0, equal = 0;

	for (size_t i = 0; i < l->scenario.jobs_count; i++) {
		want += l->jobs[i].spec->reference;
		equal += l->jobs[i].spec->reference && l->references[i].digest[0] &&
			 strcmp(l->references[i].digest, o->jobs[i].digest) == 0;
	}
	detail(c, want > 0 && equal == want,
	       "%zu of %zu results are bit-identical to an uninterrupted run", equal, want);
}

static void check_owner_waits(struct lab *l, struct outcome *o, const struct scenario_check *s,
			      struct check_outcome *c)
{
	double allowed_ms = bound(s->max, 1000), worst = -INFINITY;
	const char *where = "nobody";
	size_t failed = 0;

	VEC_EACH(&l->reclaims, r) {
		double over = r->wait_ms - (double)r->window_ns / 1e6;

		failed += r->status != 0 || !r->freed_ns;
		if (over > worst) {
			worst = over;
			where = l->machines[r->machine].spec->name;
		}
	}
	detail(c, l->reclaims.count > 0 && worst <= allowed_ms && failed == 0,
	       "%zu reclaims; longest beyond its window: %+.0f ms (%s), allowed %.0f; %zu commands "
	       "failed", l->reclaims.count, worst, where, allowed_ms, failed);
}

static void check_window_enough(struct lab *l, struct outcome *o, const struct scenario_check *s,
				struct check_outcome *c)
{
	size_t held = 0, lossy = 0, want = s->count ? s->count : 1;

	VEC_EACH(&l->reclaims, r) {
		if (strcmp(r->mode, "notice") != 0 || !r->window_enough || r->jobs_count == 0)
			continue;
		held++;
		lossy += r->steps_redone > 0;
	}
	detail(c, held >= want && lossy == 0,
	       "%zu reclaims of a working machine with window >= save + bytes/floor + 2 s (%zu "
	       "wanted); steps redone in %zu of them", held, want, lossy);
}

/* An interval in steps, from the command's --every. */
static uint64_t interval_steps(const struct scenario_job *j)
{
	for (size_t i = 0; i + 1 < j->command_count; i++)
		if (strcmp(j->command[i], "--every") == 0)
			return strtoull(j->command[i + 1], NULL, 10);
	return 25; /* train's own default */
}

static void check_steps_lost(struct lab *l, struct outcome *o, const struct scenario_check *s,
			     struct check_outcome *c)
{
	uint64_t worst = 0, allowed_at_worst = 0;
	size_t over = 0, hard = 0;

	VEC_EACH(&l->reclaims, r) {
		uint64_t allowed = 0;

		if (strcmp(r->mode, "notice") == 0 || r->jobs_count == 0)
			continue;
		hard++;
		for (size_t i = 0; i < r->jobs_count; i++)
			allowed += interval_steps(l->jobs[r->jobs[i]].spec);
		over += r->steps_redone > allowed;
		if (r->steps_redone >= worst) {
			worst = r->steps_redone;
			allowed_at_worst = allowed;
		}
	}
	detail(c, over == 0 && hard >= (s->count ? s->count : 1),
	       "%zu hard ends (--now, kill -9); most steps redone %llu, one interval is %llu", hard,
	       (unsigned long long)worst, (unsigned long long)allowed_at_worst);
}

static void check_last_packet(struct lab *l, struct outcome *o, const struct scenario_check *s,
			      struct check_outcome *c)
{
	double allowed_us = bound(s->max, 1000), worst = -INFINITY;
	size_t measured = 0, silent = 0;

	VEC_EACH(&l->reclaims, r) {
		if (strcmp(r->mode, "now") != 0)
			continue;
		if (r->last_packet_ns == INT64_MIN || r->packets_before < 1000) {
			silent++; /* no load: the measurement says nothing */
			continue;
		}
		measured++;
		worst = MAX(worst, (double)r->last_packet_ns / 1e3);
	}
	detail(c, measured >= (s->count ? s->count : 1) && silent == 0 && worst < allowed_us,
	       "%zu cuts under load, %zu without; last guest packet at the far end %.0f us after "
	       "the decision, allowed %.0f", measured, silent, worst, allowed_us);
}

static void check_background(struct lab *l, struct outcome *o, const struct scenario_check *s,
			     struct check_outcome *c)
{
	double least = bound(s->min, 0.97);

	detail(c, o->background && o->ratio >= least,
	       "%.1f Mbit/s before, %.1f during, floors %.1f: ratio %.3f, at least %.2f",
	       o->before_mbps, o->during_mbps, o->floor_mbps, o->ratio, least);
}

static void check_pids_left(struct lab *l, struct outcome *o, const struct scenario_check *s,
			    struct check_outcome *c)
{
	uint64_t left = 0;

	VEC_EACH(&l->reclaims, r)
		left += r->cancelled ? 0 : r->pids_left;
	detail(c, left == 0, "%llu guest processes on machines that were said to be free",
	       (unsigned long long)left);
}

static void check_events(struct lab *l, struct outcome *o, const struct scenario_check *s,
			 struct check_outcome *c)
{
	size_t failed = 0, waiting = 0;
	const char *why = "";

	VEC_EACH(&l->events, e) {
		waiting += e->state == LAB_EVENT_WAITING;
		if (e->failed) {
			failed++;
			why = e->why;
		}
	}
	detail(c, failed == 0 && waiting == 0, "%zu events, %zu failed, %zu never came %.150s",
	       l->events.count, failed, waiting, why);
}

static void check_surprises(struct lab *l, struct outcome *o, const struct scenario_check *s,
			    struct check_outcome *c)
{
	detail(c, l->surprises == 0, "%d programs ended without being told to %s", l->surprises,
	       l->surprise);
}

static void check_moves(struct lab *l, struct outcome *o, const struct scenario_check *s,
			struct check_outcome *c)
{
	uint64_t moves = 0;

	for (size_t i = 0; i < l->scenario.jobs_count; i++)
		moves += l->jobs[i].moves;
	detail(c, (double)moves >= bound(s->min, 1) && (double)moves <= bound(s->max, 1e9),
	       "%llu moves", (unsigned long long)moves);
}

static const struct {
	const char *name;
	bool always;
	bool campus; /* needs what the loopback campus lacks */
	void (*run)(struct lab *l, struct outcome *o, const struct scenario_check *s,
		    struct check_outcome *c);
} rows[] = {
	{ "finished", false, false, check_finished },
	{ "digests", false, false, check_digests },
	{ "owner_waits", false, false, check_owner_waits },
	{ "window_enough", false, false, check_window_enough },
	{ "steps_lost", false, false, check_steps_lost },
	{ "last_packet", false, true, check_last_packet },
	{ "background", false, true, check_background },
	{ "moves", false, false, check_moves },
	{ "pids_left", true, false, check_pids_left },
	{ "events", true, false, check_events },
	{ "surprises", true, false, check_surprises },
};

bool checks_known(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		if (strcmp(rows[i].name, name) == 0)
			return true;
	return false;
}

static void run_row(struct lab *l, struct outcome *o, size_t row, const struct scenario_check *s)
{
	struct check_outcome *c = &o->checks[o->checks_count];

	if (o->checks_count == CHECKS_MAX)
		return;
	(void)snprintf(c->name, sizeof(c->name), "%s", rows[row].name);
	if (rows[row].campus && !campus_has_namespaces(l->campus))
		return; /* said once, in left_out */
	rows[row].run(l, o, s, c);
	o->checks_count++;
}

void checks_run(struct lab *l, struct outcome *o)
{
	static const struct scenario_check none = { .min = NAN, .max = NAN };

	for (size_t i = 0; i < l->scenario.checks_count; i++)
		for (size_t k = 0; k < ARRAY_SIZE(rows); k++)
			if (strcmp(rows[k].name, l->scenario.checks[i].name) == 0)
				run_row(l, o, k, &l->scenario.checks[i]);
	for (size_t k = 0; k < ARRAY_SIZE(rows); k++)
		if (rows[k].always)
			run_row(l, o, k, &none);
}
