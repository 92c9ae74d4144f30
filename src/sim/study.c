/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/study.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/schema.h"
#include "scenario/scenario.h"

static bool ends_with(const char *text, const char *end)
{
	size_t a = strlen(text), b = strlen(end);
	return a >= b && !strcmp(text + a - b, end);
}

/* Numbers as numbers, all else as text: the settings' schema says what fits. */
static json_t *value_of(const char *text)
{
	char *end;
	double d = strtod(text, &end);
	if (*text && !*end)
		return floor(d) == d && fabs(d) < 1e15 ? json_integer((json_int_t)d) : json_real(d);
	if (!strcmp(text, "true") || !strcmp(text, "false"))
		return json_boolean(*text == 't');
	return json_string(text);
}

static int apply(const struct study_input *in, json_t *sim, struct diag *diag)
{
	const char *keys[] = { "trace", "machines", "jobs", "topology" };
	const char *values[] = { in->trace, in->machines, in->jobs, in->topology };
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
		if (values[i] && json_object_set_new(sim, keys[i], json_string(values[i])) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < in->set_count; i++) {
		const char *eq = strchr(in->set[i], '=');
		char key[64];
		if (!eq || (size_t)(eq - in->set[i]) >= sizeof(key))
			return diag_set(diag, -EINVAL, "--set", "'%s' is not KEY=VALUE", in->set[i]);
		memcpy(key, in->set[i], (size_t)(eq - in->set[i]));
		key[eq - in->set[i]] = 0;
		if (json_object_set_new(sim, key, value_of(eq + 1)) < 0)
			return -ENOMEM;
	}
	return 0;
}

int study_world(const struct study_input *in, uint64_t seed, struct world *ret, struct diag *diag)
{
	struct scenario s = { 0 };
	bool trace = ends_with(in->file, ".csv");
	struct study_input copy = *in;
	int r = trace ? 0 : scenario_load(in->file, &s, diag);
	if (r < 0)
		return r;
	if (trace) {
		copy.trace = in->file;
		s.name = strdup("trace");
	}
	bool changed = copy.trace || copy.machines || copy.jobs || copy.topology || copy.set_count;
	if (trace || (changed && !s.sim))
		s.sim = json_object();
	if (changed)
		r = s.sim ? apply(&copy, s.sim, diag) : -ENOMEM;
	if (r == 0)
		r = world_make(&s, seed, ret, diag);
	if (trace) {
		free(s.name);
		json_decref(s.sim);
	} else {
		scenario_done(&s);
	}
	return r;
}

struct pool {
	const struct study_input *input;
	struct study *study;
	atomic_size_t next, done;
	size_t total;
	pthread_mutex_t lock;
	struct diag *diag;
	int error;
	void (*progress)(void *ctx, double share);
	void *ctx;
};

/* One seed's world serves all systems in a row: made once, never changed. */
static void *work(void *arg)
{
	struct pool *p = arg;
	struct study *s = p->study;
	for (;;) {
		size_t seed = atomic_fetch_add(&p->next, 1);
		struct world w;
		struct diag diag = DIAG_INIT;
		if (seed >= s->seeds)
			return NULL;
		int r = study_world(p->input, s->first_seed + seed, &w, &diag);
		for (size_t i = 0; r == 0 && i < s->systems_count; i++) {
			struct run_config config = { .seed = s->first_seed + seed };
			r = run_system(&w, s->systems[i], &config, &s->results[i * s->seeds + seed]);
			size_t done = atomic_fetch_add(&p->done, 1) + 1;
			if (p->progress) {
				pthread_mutex_lock(&p->lock);
				p->progress(p->ctx, (double)done / (double)p->total);
				pthread_mutex_unlock(&p->lock);
			}
		}
		if (diag.what[0] == 0 || r == 0)
			(void)diag_set(&diag, r, "", "%s", strerror(-r));
		if (r == 0) {
			world_done(&w);
			continue;
		}
		pthread_mutex_lock(&p->lock);
		if (p->error == 0 && p->diag)
			*p->diag = diag;
		p->error = p->error ? p->error : r;
		pthread_mutex_unlock(&p->lock);
		return NULL;
	}
}

static int systems_pick(const char *names, struct study *s, struct diag *diag)
{
	s->systems = calloc(systems_count + 1, sizeof(*s->systems));
	if (!s->systems)
		return -ENOMEM;
	if (!names) {
		for (size_t i = 0; i < systems_count; i++)
			s->systems[s->systems_count++] = &systems[i];
		return 0;
	}
	for (const char *n = names; *n;) {
		size_t len = strcspn(n, ",");
		char name[64];
		snprintf(name, sizeof(name), "%.*s", (int)len, n);
		const struct system *found = system_find(name);
		if (!found || s->systems_count == systems_count)
			return diag_set(diag, -EINVAL, "--policy", "no policy '%s'", name);
		s->systems[s->systems_count++] = found;
		n += len + (n[len] == ',');
	}
	return 0;
}

int study_run(const struct study_input *input, const char *names, uint64_t seed, uint64_t seeds,
	      uint64_t threads, void (*progress)(void *ctx, double share), void *ctx,
	      struct study *ret, struct diag *diag)
{
	struct study s = { .seeds = seeds, .first_seed = seed, .name = strdup(input->file) };
	int r = s.name ? systems_pick(names, &s, diag) : -ENOMEM;
	s.results = calloc(s.systems_count * seeds + 1, sizeof(*s.results));
	if (r == 0 && !s.results)
		r = -ENOMEM;
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	size_t n = threads ? threads : cores > 0 ? (size_t)cores : 1;
	n = MIN(n, (size_t)seeds);
	struct pool p = { .input = input,
			  .study = &s,
			  .total = s.systems_count * seeds,
			  .lock = PTHREAD_MUTEX_INITIALIZER,
			  .diag = diag,
			  .progress = progress,
			  .ctx = ctx };
	pthread_t *ids = calloc(n + 1, sizeof(*ids));
	size_t started = 0;
	for (; r == 0 && ids && started + 1 < n; started++)
		if (pthread_create(&ids[started], NULL, work, &p) != 0)
			break;
	if (r == 0)
		(void)work(&p);
	for (size_t i = 0; i < started; i++)
		pthread_join(ids[i], NULL);
	free(ids);
	r = r < 0 ? r : p.error;
	if (r < 0) {
		study_done(&s);
		return r;
	}
	*ret = s;
	return 0;
}

void study_done(struct study *s)
{
	free(s->name);
	free(s->systems);
	free(s->results);
	memset(s, 0, sizeof(*s));
}

/* Student's t, two-sided 95 %. */
static double t95(size_t df)
{
	static const double t[] = { 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
				    2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
				    2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
				    2.060,  2.056, 2.052, 2.048, 2.045, 2.042 };
	return df == 0 ? INFINITY : df <= ARRAY_SIZE(t) ? t[df - 1] : 1.96;
}

static struct study_mean mean_of(const double *v, size_t n)
{
	double sum = 0, sq = 0;
	for (size_t i = 0; i < n; i++)
		sum += v[i];
	struct study_mean m = { .mean = sum / (double)n };
	for (size_t i = 0; i < n; i++)
		sq += (v[i] - m.mean) * (v[i] - m.mean);
	m.ci95 = n > 1 ? t95(n - 1) * sqrt(sq / (double)(n - 1) / (double)n) : 0;
	return m;
}

struct study_mean study_mean(const struct study *s, size_t system, study_metric metric)
{
	CLEANUP_FREE double *v = calloc(s->seeds + 1, sizeof(double));
	for (size_t i = 0; v && i < s->seeds; i++)
		v[i] = metric(&s->results[system * s->seeds + i]);
	return v ? mean_of(v, s->seeds) : (struct study_mean){ NAN, NAN };
}

struct study_mean study_difference(const struct study *s, size_t system, size_t than,
				   study_metric metric)
{
	CLEANUP_FREE double *v = calloc(s->seeds + 1, sizeof(double));
	for (size_t i = 0; v && i < s->seeds; i++)
		v[i] = metric(&s->results[system * s->seeds + i]) -
		       metric(&s->results[than * s->seeds + i]);
	return v ? mean_of(v, s->seeds) : (struct study_mean){ NAN, NAN };
}

#define METRIC(name, expr) \
	static double name(const struct run_result *r) \
	{ \
		return (double)(expr); \
	}
METRIC(work_loss, r->work_loss_share)
METRIC(downtime_mean, r->downtime_mean_s)
METRIC(downtime_p50, r->downtime_p50_s)
METRIC(downtime_p99, r->downtime_p99_s)
METRIC(over_window, r->owner_over_window)
METRIC(lost, r->lost_s / r->lent_s)
METRIC(lost_off, r->lost_power_off_s / r->lent_s)
METRIC(stalled, r->stalled_s / r->lent_s)
METRIC(redundant, r->redundant_s / r->lent_s)
METRIC(used, r->used_s / r->lent_s)
METRIC(interruptions, r->interruptions)
METRIC(broken, r->promises_broken)
METRIC(jobs_done, r->jobs_done)
METRIC(background_lost, r->background_lost_share)

static const struct {
	const char *name;
	study_metric metric;
} metrics[] = {
	{ "work_loss_share", work_loss },   { "downtime_mean_s", downtime_mean },
	{ "downtime_p50_s", downtime_p50 }, { "downtime_p99_s", downtime_p99 },
	{ "owner_over_window", over_window }, { "lost_share", lost },
	{ "lost_power_off_share", lost_off }, { "stalled_share", stalled },
	{ "redundant_share", redundant },   { "used_share", used },
	{ "interruptions", interruptions }, { "promises_broken", broken },
	{ "jobs_done", jobs_done },	    { "background_lost_share", background_lost },
};

static json_t *windows_json(const struct study *s, size_t system)
{
	json_t *a = json_array();
	const struct run_result *first = &s->results[system * s->seeds];
	for (size_t w = 0; w < first->windows_count; w++) {
		double lost = 0, reclaims = 0, saved = 0, missed = 0;
		for (size_t i = 0; i < s->seeds; i++) {
			const struct run_window *x = &s->results[system * s->seeds + i].windows[w];
			lost += x->lost_s;
			reclaims += (double)x->reclaims;
			saved += (double)x->saved;
			missed += (double)x->missed;
		}
		json_array_append_new(a, json_pack("{s:f,s:f,s:f,s:f,s:f}", "window_s",
						   first->windows[w].window_s, "reclaims", reclaims,
						   "lost_per_reclaim_s",
						   reclaims > 0 ? lost / reclaims : 0, "saved", saved,
						   "missed", missed));
	}
	return a;
}

static json_t *cdf_json(const struct study *s, size_t system)
{
	json_t *a = json_array();
	double total = 0, sum = 0;
	for (size_t i = 0; i < s->seeds; i++)
		total += (double)s->results[system * s->seeds + i].interruptions;
	for (size_t b = 0; b < DOWNTIME_BINS; b++) {
		double n = 0;
		for (size_t i = 0; i < s->seeds; i++)
			n += (double)s->results[system * s->seeds + i].downtime_bins[b];
		sum += n;
		if (n > 0)
			json_array_append_new(a, json_pack("[f,f]", downtime_bin_s(b), sum / total));
	}
	return a;
}

json_t *study_json(const struct study *s)
{
	json_t *list = json_array();
	for (size_t i = 0; i < s->systems_count; i++) {
		json_t *j = json_pack("{s:s}", "system", s->systems[i]->name);
		for (size_t m = 0; m < ARRAY_SIZE(metrics); m++) {
			struct study_mean v = study_mean(s, i, metrics[m].metric);
			struct study_mean d = study_difference(s, i, 0, metrics[m].metric);
			json_object_set_new(j, metrics[m].name,
					    json_pack("{s:f,s:f,s:f,s:f}", "mean", v.mean, "ci95",
						      v.ci95, "difference", d.mean,
						      "difference_ci95", d.ci95));
		}
		json_object_set_new(j, "windows", windows_json(s, i));
		json_object_set_new(j, "downtime_cdf", cdf_json(s, i));
		json_array_append_new(list, j);
	}
	return json_pack("{s:s,s:I,s:I,s:o}", "scenario", s->name, "seeds", (json_int_t)s->seeds,
			 "first_seed", (json_int_t)s->first_seed, "systems", list);
}

void study_print(const struct study *s, FILE *f)
{
	fprintf(f, "%-24s %9s %7s %8s | %7s %7s %7s %7s | %9s %9s %6s\n", "system", "loss %", "+-",
		"vs first", "lost", "(off)", "stalled", "redund.", "down mean", "down p99", "over");
	for (size_t i = 0; i < s->systems_count; i++) {
		struct study_mean v = study_mean(s, i, work_loss), one = study_mean(s, 0, work_loss);
		fprintf(f,
			"%-24s %9.4f %7.4f %8.3f | %7.4f %7.4f %7.4f %7.4f | %9.2f %9.1f %6.0f\n",
			s->systems[i]->name, v.mean * 100, v.ci95 * 100,
			one.mean > 0 ? v.mean / one.mean : 0, study_mean(s, i, lost).mean * 100,
			study_mean(s, i, lost_off).mean * 100, study_mean(s, i, stalled).mean * 100,
			study_mean(s, i, redundant).mean * 100, study_mean(s, i, downtime_mean).mean,
			study_mean(s, i, downtime_p99).mean, study_mean(s, i, over_window).mean);
	}
}
