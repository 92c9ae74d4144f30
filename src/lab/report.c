/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came of it: the report as JSON, the account for people, and the checks
 * that decide the exit status. Every figure is computed here once, from what
 * was observed from outside, and then shown in both forms.
 */
#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "lab/lab_internal.h"
#include "lab/report_internal.h"

/* Runs of one job, in order of epochs. Returns how many. */
static size_t runs_of(const struct outcome *o, const char *id, const struct observe_run **ret,
		      size_t cap)
{
	size_t n = 0;

	for (size_t i = 0; i < o->runs_count && n < cap; i++) {
		size_t k = n;

		if (strcmp(o->runs[i].job, id) != 0)
			continue;
		for (; k > 0 && ret[k - 1]->epoch > o->runs[i].epoch; k--)
			ret[k] = ret[k - 1];
		ret[k] = &o->runs[i];
		n++;
	}
	return n;
}

static void job_outcome(struct lab *l, struct outcome *o, size_t i)
{
	struct job_outcome *j = &o->jobs[i];
	const struct observe_run *runs[JOB_RUNS_MAX];
	size_t n = runs_of(o, l->jobs[i].id, runs, JOB_RUNS_MAX);
	uint64_t furthest = 0;
	const struct observe_run *before = NULL;

	for (size_t k = 0; k < n; k++) {
		const struct observe_run *r = runs[k];

		j->torn |= r->torn;
		if (r->digest[0])
			(void)snprintf(j->digest, sizeof(j->digest), "%s", r->digest);
		if (!r->first_step)
			continue;
		if (furthest + 1 > r->first_step)
			j->steps_redone += furthest + 1 - r->first_step;
		j->torn |= r->first_step > furthest + 1;
		furthest = MAX(furthest, r->last_step);
		if (before && j->downtimes_count < JOB_RUNS_MAX)
			j->downtime_ms[j->downtimes_count++] =
				(double)(r->first_ns - before->last_ns) / 1e6;
		before = r;
	}
	j->steps = furthest;
	j->incarnations = n;
}

/* What one reclaim cost the jobs on board: from the incarnation it ended to the next. */
static void reclaim_outcome(struct lab *l, struct outcome *o, struct lab_reclaim *r)
{
	r->steps_redone = 0;
	r->downtime_ms = 0;
	for (size_t i = 0; i < r->jobs_count; i++) {
		const struct observe_run *runs[JOB_RUNS_MAX];
		size_t n = runs_of(o, l->jobs[r->jobs[i]].id, runs, JOB_RUNS_MAX);
		const struct observe_run *ended = NULL, *next = NULL;

		for (size_t k = 0; k < n && !next; k++) {
			if (runs[k]->epoch == r->epochs[i] && runs[k]->last_step)
				ended = runs[k];
			if (runs[k]->epoch > r->epochs[i] && runs[k]->first_step)
				next = runs[k];
		}
		if (!ended || !next)
			continue; /* it had computed nothing, or was over with it */
		if (ended->last_step + 1 > next->first_step)
			r->steps_redone += ended->last_step + 1 - next->first_step;
		r->downtime_ms = MAX(r->downtime_ms,
				     (double)(next->first_ns - ended->last_ns) / 1e6);
	}
}

/* Bytes that the coordinator books for the move that followed. */
static void reclaim_bytes(struct lab *l, struct lab_reclaim *r)
{
	for (size_t i = 0; i < r->jobs_count; i++) {
		json_t *moves = json_object_get(l->jobs[r->jobs[i]].raw, "moves"), *move;
		size_t k;

		json_array_foreach(moves, k, move)
			if (report_number(move, "epoch") == r->epochs[i] + 1)
				r->bytes_moved += report_number(move, "bytes");
	}
}

uint64_t report_number(json_t *obj, const char *key)
{
	json_t *v = json_object_get(obj, key);

	if (json_is_string(v))
		return strtoull(json_string_value(v), NULL, 10);
	return json_is_integer(v) ? (uint64_t)json_integer_value(v) : 0;
}

/* How many of a reclaim's moves crossed a link of this flow in its direction: the uplink out of
 * the flow's building, or the one into the building that it goes to. */
static size_t moves_beside(struct lab *l, const struct outcome *o, const struct lab_reclaim *r,
			   const struct scenario_flow *f)
{
	size_t from = campus_find(l->campus, f->from)->building;
	size_t to = campus_find(l->campus, f->to)->building;
	size_t left = l->machines[r->machine].node->building, count = 0;

	for (size_t i = 0; i < r->jobs_count; i++) {
		const struct observe_run *runs[JOB_RUNS_MAX];
		size_t n = runs_of(o, l->jobs[r->jobs[i]].id, runs, JOB_RUNS_MAX);
		size_t k = 0;

		while (k < n && runs[k]->epoch <= r->epochs[i])
			k++;
		if (k < n) {
			size_t came = l->machines[runs[k]->machine].node->building;

			count += left != came && (left == from || came == to);
		}
	}
	return count;
}

/* Floors that stood on the flow's links in that time, those of other reclaims too. A machine's
 * floor is of all its moves; the share of them that crossed is taken. */
static double floors_beside(struct lab *l, const struct outcome *o, const struct scenario_flow *f,
			    uint64_t from_ns, uint64_t to_ns)
{
	double sum = 0;

	for (size_t i = 0; i < l->reclaims.count; i++) {
		const struct lab_reclaim *r = &l->reclaims.data[i];
		uint64_t from = MAX(from_ns, r->asked_ns), to = MIN(to_ns, r->freed_ns);

		if (r->jobs_count && from < to)
			sum += floors_of_machine(l, r->machine, from, to) *
			       ((double)(to - from) / (double)(to_ns - from_ns)) *
			       (double)moves_beside(l, o, r, f) / (double)r->jobs_count;
	}
	return sum;
}

/*
 * Research traffic before the first reclaim and while reclaims with a window
 * were under way, against the floors that the edges had set at that time.
 */
static void background_outcome(struct lab *l, struct outcome *o)
{
	const struct scenario_flow *f = NULL;
	uint64_t first = UINT64_MAX;
	double weight = 0, sum = 0, floors = 0;
	size_t at = 0;

	for (; at < l->scenario.flows_count && !f; at++)
		if (l->scenario.flows[at].kind == SCENARIO_FLOW_BULK && l->flows[at])
			f = &l->scenario.flows[at];
	if (!f)
		return;
	at--;
	VEC_EACH(&l->reclaims, r)
		first = MIN(first, r->asked_ns);
	if (first == UINT64_MAX)
		first = l->end_ns;
	o->background = true;
	/* TCP has found the link's rate after a second or so. */
	o->before_mbps = flow_mbps(l->flows[at],
				   l->origin_ns + f->start_ns + UINT64_C(1500000000), first);
	for (size_t i = 0; i < l->reclaims.count; i++) {
		const struct lab_reclaim *r = &l->reclaims.data[i];
		double span = (double)(r->freed_ns - r->asked_ns);

		if (strcmp(r->mode, "notice") != 0 || !r->freed_ns || span <= 2 * FLOW_BIN_NS)
			continue;
		sum += span * flow_mbps(l->flows[at], r->asked_ns, r->freed_ns);
		floors += floors_beside(l, o, f, r->asked_ns, r->freed_ns) / 1e6 * span;
		weight += span;
	}
	if (weight > 0) {
		o->during_mbps = sum / weight;
		o->floor_mbps = floors / weight;
	}
	o->ratio = o->before_mbps > o->floor_mbps && weight > 0 ?
			   o->during_mbps / (o->before_mbps - o->floor_mbps) : 0;
}

static json_t *job_json(struct lab *l, const struct outcome *o, size_t i)
{
	const struct lab_job *j = &l->jobs[i];
	const struct job_outcome *out = &o->jobs[i];
	json_t *downtimes = json_array();

	for (size_t k = 0; k < out->downtimes_count; k++)
		(void)json_array_append_new(downtimes, json_real(out->downtime_ms[k]));
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:s}", "id", j->id,
			 "name", j->spec->name, "state", j->state, "moves", (json_int_t)j->moves,
			 "failures", (json_int_t)j->failures, "incarnations",
			 (json_int_t)out->incarnations, "steps", (json_int_t)out->steps,
			 "steps_redone", (json_int_t)out->steps_redone, "downtime_ms", downtimes,
			 "digest", out->digest, "reference_digest", l->references[i].digest);
}

static json_t *reclaim_json(struct lab *l, const struct lab_reclaim *r)
{
	json_t *jobs = json_array();
	bool timed = r->last_packet_ns != INT64_MIN && strcmp(r->mode, "now") == 0;

	for (size_t i = 0; i < r->jobs_count; i++)
		(void)json_array_append_new(jobs, json_string(l->jobs[r->jobs[i]].spec->name));
	return json_pack("{s:s, s:s, s:I, s:f, s:I, s:b, s:o, s:f, s:I, s:f, s:I, s:o}", "node",
			 l->machines[r->machine].spec->name, "mode", r->mode, "window_ms",
			 (json_int_t)(r->window_ns / 1000000), "owner_wait_ms", r->wait_ms,
			 "pids_left", (json_int_t)r->pids_left, "window_enough", r->window_enough,
			 "last_packet_us",
			 timed ? json_real((double)MAX(r->last_packet_ns, 0) / 1e3) : json_null(),
			 "window_needed_ms", (double)r->needed_ns / 1e6, "steps_redone",
			 (json_int_t)r->steps_redone, "downtime_ms", r->downtime_ms, "bytes_moved",
			 (json_int_t)r->bytes_moved, "jobs", jobs);
}

static json_t *report_json(struct lab *l, const struct outcome *o)
{
	json_t *jobs = json_array(), *reclaims = json_array(), *checks = json_array();
	json_t *background = json_null();

	for (size_t i = 0; i < l->scenario.jobs_count; i++)
		(void)json_array_append_new(jobs, job_json(l, o, i));
	VEC_EACH(&l->reclaims, r)
		(void)json_array_append_new(reclaims, reclaim_json(l, r));
	for (size_t i = 0; i < o->checks_count; i++)
		(void)json_array_append_new(checks,
			json_pack("{s:s, s:b, s:s}", "name", o->checks[i].name, "ok",
				  o->checks[i].ok, "detail", o->checks[i].detail));
	if (o->background)
		background = json_pack("{s:f, s:f, s:f, s:f}", "before_mbps", o->before_mbps,
				       "during_mbps", o->during_mbps, "floor_mbps", o->floor_mbps,
				       "ratio", o->ratio);
	return json_pack("{s:s, s:f, s:o, s:o, s:o, s:o, s:o?}", "scenario", l->scenario.name,
			 "duration_s", lab_seconds(l, l->end_ns), "jobs", jobs, "reclaims",
			 reclaims, "background", background, "checks", checks, "left_out",
			 campus_left_out(l->campus) ? json_string(campus_left_out(l->campus)) : NULL);
}

static int write_json(struct lab *l, const struct outcome *o)
{
	CLEANUP_JSON json_t *json = report_json(l, o);
	CLEANUP_FREE char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	CLEANUP_FREE char *dir = NULL;
	int r;

	if (!l->opt->report)
		return 0;
	dir = strdup(l->opt->report);
	if (!text || !dir)
		return -ENOMEM;
	r = dir_make_all(dirname(dir), 0755);
	return r < 0 ? r : file_write_atomic(l->opt->report, text, strlen(text), 0644);
}

static void say_reclaims(struct lab *l)
{
	if (!l->reclaims.count)
		return;
	lab_say(l, "%-8s %-7s %9s %9s %7s %6s %9s %9s %s", "machine", "mode", "window", "waited",
		"enough", "redone", "moved", "downtime", "jobs");
	VEC_EACH(&l->reclaims, r) {
		char jobs[200] = "", packet[64] = "";

		for (size_t i = 0; i < r->jobs_count; i++)
			(void)snprintf(jobs + strlen(jobs), sizeof(jobs) - strlen(jobs), "%s%s",
				       i ? " " : "", l->jobs[r->jobs[i]].spec->name);
		if (strcmp(r->mode, "now") == 0 && r->last_packet_ns != INT64_MIN)
			(void)snprintf(packet, sizeof(packet), ", last packet %.0f us after the cut",
				       (double)r->last_packet_ns / 1e3);
		lab_say(l, "%-8s %-7s %7.1f s %7.2f s %7s %6llu %7.2f M %7.2f s %s%s",
			l->machines[r->machine].spec->name, r->mode, (double)r->window_ns / 1e9,
			r->wait_ms / 1e3, r->window_enough ? "yes" : "no",
			(unsigned long long)r->steps_redone, (double)r->bytes_moved / 1e6,
			r->downtime_ms / 1e3, jobs, packet);
	}
}

static void say_jobs(struct lab *l, const struct outcome *o)
{
	lab_say(l, "%-12s %-10s %6s %6s %6s %9s  %s", "job", "state", "moves", "steps", "redone",
		"failures", "result");
	for (size_t i = 0; i < l->scenario.jobs_count; i++) {
		const struct lab_job *j = &l->jobs[i];
		const struct job_outcome *out = &o->jobs[i];
		const char *want = l->references[i].digest;

		lab_say(l, "%-12s %-10s %6llu %6llu %6llu %9llu  %.16s %s", j->spec->name, j->state,
			(unsigned long long)j->moves, (unsigned long long)out->steps,
			(unsigned long long)out->steps_redone, (unsigned long long)j->failures,
			out->digest, !want[0] ? "" : strcmp(want, out->digest) == 0 ?
			"= uninterrupted run" : "IS NOT that of the uninterrupted run");
	}
}

static void say(struct lab *l, const struct outcome *o)
{
	l->origin_ns = 0; /* no times before the lines of the account */
	lab_say(l, "%s", "");
	say_reclaims(l);
	lab_say(l, "%s", "");
	say_jobs(l, o);
	if (o->background)
		lab_say(l, "\nresearch traffic: %.1f Mbit/s before, %.1f during reclaims, %.1f granted "
			"as floors: %.3f of what it could have had", o->before_mbps, o->during_mbps,
			o->floor_mbps, o->ratio);
	lab_say(l, "%s", "");
	for (size_t i = 0; i < o->checks_count; i++)
		(void)fprintf(l->out, "%s %-16s %s\n", o->checks[i].ok ? "ok    " : "FAILED",
			      o->checks[i].name, o->checks[i].detail);
}

int report_write(struct lab *l, bool *ret_ok)
{
	struct outcome o = { 0 };
	int r = -ENOMEM;

	o.runs = calloc(OBSERVE_RUNS_MAX, sizeof(*o.runs));
	o.jobs = calloc(l->scenario.jobs_count + 1, sizeof(*o.jobs));
	if (o.runs && o.jobs) {
		o.runs_count = observe_runs(l->observe, o.runs, OBSERVE_RUNS_MAX);
		for (size_t i = 0; i < l->scenario.jobs_count; i++)
			job_outcome(l, &o, i);
		VEC_EACH(&l->reclaims, rec) {
			reclaim_outcome(l, &o, rec);
			reclaim_bytes(l, rec);
		}
		background_outcome(l, &o);
		checks_run(l, &o);
		r = write_json(l, &o);
		say(l, &o);
		*ret_ok = true;
		for (size_t i = 0; i < o.checks_count; i++)
			*ret_ok &= o.checks[i].ok;
	}
	free(o.runs);
	free(o.jobs);
	return r;
}
