/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint intervals, by src/policy: all running jobs solved together on
 * the rates that the hazard model gives, with every machine's uplink as a
 * shared link. A job that asks for an interval of its own keeps it. The
 * configured interval is the longest: a model with little history behind it
 * must not talk a job out of saving.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/vec.h"
#include "coordinator/engine_internal.h"
#include "policy/interval.h"

#define CRASH_PER_S (1.0 / (30 * 86400.0)) /* losses without notice: one a month and machine */
#define UPLINK_DEFAULT_BPS 1e9
#define COPIES_SHARE 0.2     /* of an uplink, for background copies */
#define INTERVAL_MIN_S 5.0
#define STALL_DEFAULT_S 1.0
#define CHANGE_WORTH_TELLING 0.1

void engine_node_hazard(struct engine *e, const char *node, double per_s)
{
	struct enode *n = engine_node(e, node);
	if (n)
		n->hazard_per_s = isfinite(per_s) && per_s > 0 ? per_s : 0;
}

static double uplink_bps(const struct enode *n)
{
	uint64_t bps = n->hello.hello.uplink_bps;
	return bps ? (double)bps : UPLINK_DEFAULT_BPS;
}

/* link: the number of the machine's uplink. windows: one, its declared window. */
static struct interval_job facts(const struct engine *e, const struct ejob *j,
				 const struct enode *n, const uint32_t *link, const double *window_s,
				 uint64_t now_ns)
{
	double stall_s = j->save_ms ? (double)j->save_ms / 1e3 : STALL_DEFAULT_S;
	double full = (double)MAX(j->durable.bytes, j->saved.bytes);
	return (struct interval_job){
		.weight = (double)MAX(j->slots_count, (size_t)1),
		.stall_s = stall_s,
		.save_s = stall_s,
		.restart_s = 1,
		.bytes_full = full,
		.bytes_delta = j->delta_bytes ? (double)j->delta_bytes : full,
		.path_bps = uplink_bps(n) / 8,
		.depart_per_s = enode_hazard_per_s(n, now_ns),
		.crash_per_s = CRASH_PER_S,
		.windows_s = window_s,
		.windows_count = 1,
		.links = link,
		.links_count = 1,
		.interval_min_s = INTERVAL_MIN_S,
		.interval_max_s = (double)e->config.interval_ms / 1e3,
	};
}

static void tell(struct engine *e, struct ejob *j, const struct interval *iv)
{
	double longest_s = (double)e->config.interval_ms / 1e3;
	double s = isfinite(iv->interval_s) ? MIN(iv->interval_s, longest_s) : longest_s;
	uint64_t ms = (uint64_t)(MAX(s, INTERVAL_MIN_S) * 1e3);
	uint64_t before = j->interval_ms ? j->interval_ms : e->config.interval_ms;
	ms = MIN(ms, e->config.interval_ms);
	j->rate_eff = iv->rate_eff;
	j->p_miss = iv->p_miss;
	if (j->interval_ms && fabs((double)ms - (double)before) < CHANGE_WORTH_TELLING * (double)before)
		return;
	j->interval_ms = ms;
	if (ms == before)
		return;
	struct control_message m = {
		.type = CONTROL_INTERVAL,
		.interval = { .job = j->id, .epoch = j->epoch, .interval_ms = ms },
	};
	(void)engine_send(e, j->node, &m); /* its agent goes on with the interval it has */
}

void engine_plan_intervals(struct engine *e, uint64_t now_ns)
{
	size_t count = 0, max = e->jobs.count;
	struct interval_job *jobs = calloc(max + 1, sizeof(*jobs));
	struct interval_link *links = calloc(max + 1, sizeof(*links));
	struct interval *solved = calloc(max + 1, sizeof(*solved));
	struct ejob **whose = calloc(max + 1, sizeof(*whose));
	uint32_t *link_of = calloc(max + 1, sizeof(*link_of));
	double *windows_s = calloc(max + 1, sizeof(*windows_s));
	if (!jobs || !links || !solved || !whose || !link_of || !windows_s)
		goto out; /* as before */
	for (size_t i = 0; i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		struct enode *n = engine_node(e, j->node);
		if (!j->alive || !n || !n->hello_seen || j->state != REST_JOB_RUNNING ||
		    j->spec.checkpoint.interval_ns)
			continue;
		/* Jobs of one machine share its uplink. */
		uint32_t link = (uint32_t)count;
		for (size_t k = 0; k < count; k++)
			if (strcmp(whose[k]->node, j->node) == 0)
				link = link_of[k];
		links[link].budget_bps = uplink_bps(n) / 8 * COPIES_SHARE;
		link_of[count] = link;
		windows_s[count] = (double)n->hello.hello.window_ms / 1e3;
		whose[count] = j;
		jobs[count] = facts(e, j, n, &link_of[count], &windows_s[count], now_ns);
		count++;
	}
	if (count > 0 && interval_solve(jobs, count, links, count, solved, NULL) >= 0)
		for (size_t i = 0; i < count; i++)
			tell(e, whose[i], &solved[i]);
out:
	free(jobs);
	free(links);
	free(solved);
	free(whose);
	free(link_of);
	free(windows_s);
}
