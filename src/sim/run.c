/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop. Machine changes and submissions come from two sorted
 * arrays, all else from a heap; at equal times machines change first, then
 * submissions, then the heap in order of insertion. Between events nothing is
 * stepped: progress of jobs and flows is a line in time.
 */
#include "sim/run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "sim/run_internal.h"

#define TICK_S 900.0
/* What an owner does not notice: how long a wait may be over the window. */
#define OVER_S 1.0

static bool before(const struct run_event *a, const struct run_event *b)
{
	return a->t_s != b->t_s ? a->t_s < b->t_s : a->order < b->order;
}

void run_push(struct run *r, double t_s, enum run_event_kind kind, uint32_t subject,
	      uint32_t version)
{
	struct run_event e = { .t_s = t_s,
			       .order = r->order++,
			       .subject = subject,
			       .version = version,
			       .kind = (uint8_t)kind };
	if (!(t_s <= r->world->end_s)) /* never happens in this run */
		return;
	if (VEC_PUSH(&r->heap, e) < 0) {
		r->error = -1;
		return;
	}
	size_t i = r->heap.count - 1;
	struct run_event *h = r->heap.data;
	while (i > 0 && before(&e, &h[(i - 1) / 2])) {
		h[i] = h[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	h[i] = e;
}

static struct run_event pop(struct run *r)
{
	struct run_event *h = r->heap.data, top = h[0], last = h[--r->heap.count];
	size_t i = 0, n = r->heap.count;
	for (;;) {
		size_t c = 2 * i + 1;
		if (c >= n)
			break;
		if (c + 1 < n && before(&h[c + 1], &h[c]))
			c++;
		if (!before(&h[c], &last))
			break;
		h[i] = h[c];
		i = c;
	}
	if (n > 0)
		h[i] = last;
	return top;
}

/* A flow that will end later than thought is left alone: its event looks again. */
static void flow_watch(struct run *r, uint32_t flow)
{
	struct flow *x = &r->flows.items.data[flow];
	double end = fmax(flow_end(x), r->now_s);
	if (end >= x->event_s)
		return;
	x->event_s = end;
	run_push(r, end, EVENT_FLOW, flow, 0);
}

void run_flows_touched(struct run *r)
{
	for (size_t i = 0; i < r->flows.touched.count; i++)
		if (r->flows.items.data[r->flows.touched.data[i]].active)
			flow_watch(r, r->flows.touched.data[i]);
}

static void flow_event(struct run *r, const struct run_event *e)
{
	struct flow *x = &r->flows.items.data[e->subject];
	if (!x->active || x->event_s != e->t_s)
		return;
	x->event_s = INFINITY;
	if (flow_end(x) <= r->now_s + 1e-9)
		job_flow_end(r, e->subject);
	else
		flow_watch(r, e->subject);
}

void run_lost(struct run *r, struct sim_job *j, double slot_s, bool power_off)
{
	if (!r->counting || slot_s <= 0)
		return;
	r->result->lost_s += slot_s;
	if (power_off) {
		r->result->lost_power_off_s += slot_s;
		return;
	}
	r->result->windows[j->window_class].lost_s += slot_s;
	r->result->windows[j->window_class].missed++;
}

static void exposure(struct run *r, double now)
{
	double dt = now - r->campus_at_s;
	if (dt > 0) {
		r->campus_exposed_s += dt * (double)r->lent_nodes;
		if (r->counting)
			r->result->lent_s += dt * r->lent_slots;
		r->campus_at_s = now;
	}
}

static void node_lent(struct run *r, uint32_t node)
{
	struct sim_node *n = &r->nodes[node];
	n->state = HAZARD_LENT;
	n->lent_since_s = r->now_s;
	n->hazard_at_s = -INFINITY;
	n->leaving++;
	r->places[node].lent = true;
	r->lent_nodes++;
	r->lent_slots += r->world->nodes.data[node].slots;
	r->slots_free += n->free;
	plan_rank_mark(r, node);
	r->queue_dirty = true;
	if (VEC_PUSH(&r->lately, node) < 0)
		r->error = -1;
}

static void node_unlent(struct run *r, uint32_t node, const struct world_event *e)
{
	struct sim_node *n = &r->nodes[node];
	n->state = e->state;
	r->places[node].lent = false;
	r->lent_nodes--;
	r->lent_slots -= r->world->nodes.data[node].slots;
	r->slots_free -= n->free;
	plan_rank_mark(r, node);
	if (e->state != HAZARD_GONE)
		r->campus_events++;
}

/* Free slots of a machine that is not lent do not count: job code adds to slots_free. */
static void node_event(struct run *r, const struct world_event *e)
{
	struct sim_node *n = &r->nodes[e->node];
	bool was = n->state == HAZARD_LENT, is = e->state == HAZARD_LENT;
	exposure(r, e->t_s);
	if (r->hazard && hazard_observe(r->hazard, e->node, e->t_s, e->state) < 0)
		r->error = -1;
	if (was == is) {
		bool off = e->state == HAZARD_OFF && n->state != HAZARD_OFF;
		n->state = e->state;
		if (off)
			plan_room_off(r, e->node);
		return;
	}
	if (is) {
		node_lent(r, e->node);
		return;
	}
	n->lent_since_s = r->now_s; /* since when it is what it is */
	node_unlent(r, e->node, e);
	bool reclaim = e->state == HAZARD_OWNED;
	if (r->counting) {
		r->result->reclaims += reclaim;
		r->result->power_offs += !reclaim;
	}
	if (reclaim) {
		double window = e->has_window ? (double)e->window_s :
						r->world->nodes.data[e->node].window_s;
		if (n->jobs != NOBODY)
			run_push(r, r->now_s + window + OVER_S, EVENT_FREE, e->node, ++n->leaving);
		job_notice(r, e->node, window);
		plan_room(r, e->node);
	} else if (r->system->notice == NOTICE_CLAIRVOYANT) {
		job_notice(r, e->node, 0);
	} else {
		while (n->jobs != NOBODY)
			job_evict(r, n->jobs, true);
		job_image_gone(r, e->node);
		if (e->state == HAZARD_OFF)
			plan_room_off(r, e->node);
	}
}

/* Research traffic rises and falls; links change together by the day and each by itself. */
static void research_move(struct run *r)
{
	const struct world *w = r->world;
	double dt = r->now_s - r->research_at_s;
	if (r->counting)
		r->research_bytes += r->research_bps * dt;
	r->research_at_s = r->now_s;
	r->research_bps = 0;
	double day = sin((r->now_s / 86400 - 0.25) * 2 * M_PI);
	for (size_t i = 0; i < w->research_links.count; i++) {
		uint32_t l = w->research_links.data[i];
		double load = w->research + w->research_swing * (0.5 * day + rng_unit(&r->rng) - 0.5);
		double c = w->net.links[l].capacity_bps * (1 - fmin(fmax(load, 0), 1));
		r->research_bps += w->net.links[l].capacity_bps - c;
		if (flows_capacity(&r->flows, l, c, r->now_s) < 0)
			r->error = -1;
		else if (r->flows.on_link[l].count > 0)
			run_flows_touched(r);
	}
}

static void tick(struct run *r)
{
	research_move(r);
	plan_tick(r);
	r->queue_dirty = true; /* rates have moved: ask again for those that wait */
	run_push(r, r->now_s + TICK_S, EVENT_TICK, 0, 0);
}

static void heap_event(struct run *r, const struct run_event *e)
{
	bool of_job = e->kind != EVENT_FLOW && e->kind != EVENT_TICK && e->kind != EVENT_FREE;
	struct sim_job *j = of_job ? &r->jobs[e->subject] : NULL;
	if (j && e->version != (e->kind == EVENT_CHECKPOINT ? j->check :
				e->kind == EVENT_COPY	    ? j->copying :
							      j->version))
		return;
	switch ((enum run_event_kind)e->kind) {
	case EVENT_DONE:
		job_finish(r, e->subject);
		break;
	case EVENT_CHECKPOINT:
		if (j->state != JOB_RUNNING)
			break;
		if (r->system->interval == EVERY_POLICY &&
		    !(r->world->jobs.data[e->subject].interval_s > 0)) {
			plan_checkpoint(r, e->subject); /* accrues up to now */
			if (j->accrued < 1 - 1e-6)
				break;
		}
		job_checkpoint(r, e->subject);
		break;
	case EVENT_COPY:
		job_copy(r, e->subject);
		break;
	case EVENT_SAVED:
		job_saved(r, e->subject);
		break;
	case EVENT_DEADLINE:
		job_deadline(r, e->subject);
		break;
	case EVENT_FREE:
		/* Looked at, not assumed: is a guest still there, or its image still leaving? */
		if (e->version == r->nodes[e->subject].leaving && r->counting &&
		    r->nodes[e->subject].jobs != NOBODY)
			r->result->owner_over_window++;
		break;
	case EVENT_FLOW:
		flow_event(r, e);
		break;
	case EVENT_RESTORED:
		job_compute(r, e->subject);
		break;
	case EVENT_READY:
		job_requeue(r, e->subject, 0);
		break;
	case EVENT_TICK:
		tick(r);
		break;
	case EVENT_KIND_COUNT:
		break;
	}
}

/* For the clairvoyant: when the lent time that starts with each event ends. */
static int leaves_make(struct run *r)
{
	const struct world *w = r->world;
	double *next = malloc((w->nodes.count + 1) * sizeof(double));
	r->leaves = malloc((w->events.count + 1) * sizeof(float));
	if (!next || !r->leaves) {
		free(next);
		return -ENOMEM;
	}
	for (size_t i = 0; i < w->nodes.count; i++)
		next[i] = INFINITY;
	for (size_t i = w->events.count; i-- > 0;) {
		const struct world_event *e = &w->events.data[i];
		if (e->state != HAZARD_LENT)
			next[e->node] = e->t_s;
		r->leaves[i] = (float)next[e->node];
	}
	free(next);
	return 0;
}

static int hazard_make(struct run *r)
{
	const struct world *w = r->world;
	struct hazard_config config = {
		.monday_s = w->monday_s,
		.tick_s = TICK_S,
		.cells_max = MAX((size_t)(1u << 17), 40 * w->nodes.count),
		.fit_every_s = r->system->oracle ? 0 : 21 * 86400.0,
		.constant = r->system->constant_hazard,
		.seed = r->config->seed,
	};
	int e = hazard_new(&config, &r->hazard);
	uint32_t id;
	for (uint32_t i = 0; e == 0 && i < w->rooms_count; i++)
		e = hazard_room_add(r->hazard, &id);
	for (uint32_t i = 0; e == 0 && i < w->nodes.count; i++)
		e = hazard_owner_add(r->hazard, r->system->rooms_blind ? 0 : w->nodes.data[i].room, 0,
				     &id);
	return e;
}

/* Hindsight: the oracle's tables have seen the whole trace, whole weeks earlier. */
static int oracle_learn(struct run *r)
{
	const struct world *w = r->world;
	double weeks = ceil((w->end_s + 86400) / HAZARD_WEEK_S) + 1;
	int e = 0;
	for (int round = 0; e == 0 && round < 2; round++) {
		double shift = (round - 2) * weeks * HAZARD_WEEK_S;
		for (size_t i = 0; e == 0 && i < w->events.count; i++)
			e = hazard_observe(r->hazard, w->events.data[i].node,
					   w->events.data[i].t_s + shift, w->events.data[i].state);
		for (uint32_t n = 0; e == 0 && n < w->nodes.count; n++)
			e = hazard_observe(r->hazard, n, w->end_s + shift, HAZARD_GONE);
		if (e == 0)
			e = hazard_fit(r->hazard, w->end_s + shift);
	}
	return e;
}

static int places_make(struct run *r)
{
	const struct world *w = r->world;
	r->places = calloc(w->net.nodes_count + 1, sizeof(*r->places));
	if (!r->places)
		return -ENOMEM;
	for (size_t i = 0; i < w->net.nodes_count; i++) {
		bool machine = i < w->nodes.count;
		const struct world_node *n = machine ? &w->nodes.data[i] : NULL;
		r->places[i] = (struct placement_node){
			.slots_free = machine ? n->slots : 0,
			.slot_kind = machine ? n->slot_kind : 0,
			.gpu_type = machine ? n->gpu_type : 0,
			.gpu_mem_bytes = UINT64_MAX / 2,
			.mem_free_bytes = UINT64_MAX / 2,
			.disk_free_bytes = UINT64_MAX / 2,
			.isa_level = 3,
			.glibc = 2036,
			.room = machine ? n->room : UINT32_MAX,
			.hazard_per_s = 1e-5,
			.survival = -1,
			.window_s = machine ? n->window_s : 0,
		};
	}
	/* The file server keeps images and starts nothing. */
	r->places[w->server].stage_only = true;
	return 0;
}

static int rooms_make(struct run *r)
{
	const struct world *w = r->world;
	r->room_first = calloc(w->rooms_count + 3u, sizeof(uint32_t));
	r->room_nodes = calloc(w->nodes.count + 1, sizeof(uint32_t));
	if (!r->room_first || !r->room_nodes)
		return -ENOMEM;
	for (size_t i = 0; i < w->nodes.count; i++)
		r->room_first[w->nodes.data[i].room + 2]++;
	for (uint32_t k = 2; k < w->rooms_count + 2u; k++)
		r->room_first[k] += r->room_first[k - 1];
	for (uint32_t i = 0; i < w->nodes.count; i++)
		r->room_nodes[r->room_first[w->nodes.data[i].room + 1]++] = i;
	return 0;
}

static int run_init(struct run *r)
{
	const struct world *w = r->world;
	rng_init(&r->rng, r->config->seed * 31 + 5);
	r->jobs = calloc(w->jobs.count + 1, sizeof(*r->jobs));
	r->nodes = calloc(w->nodes.count + 1, sizeof(*r->nodes));
	r->rank_open = calloc(w->nodes.count / 64 + 1, sizeof(*r->rank_open));
	r->prices = calloc(w->net.links_count + 1, sizeof(double));
	if (!r->jobs || !r->nodes || !r->rank_open || !r->prices)
		return -ENOMEM;
	for (size_t i = 0; i < w->jobs.count; i++)
		r->jobs[i] = (struct sim_job){ .fresh = true,
					       .node = NOBODY,
					       .dest = NOBODY,
					       .flow = FLOW_NONE,
					       .copy = FLOW_NONE,
					       .image_at = NETWORK_NONE,
					       .home = NETWORK_NONE,
					       .partner = NOBODY,
					       .pending_s = -1,
					       .stopped_s = NAN };
	for (size_t i = 0; i < w->nodes.count; i++) {
		r->nodes[i].free = w->nodes.data[i].slots;
		r->nodes[i].jobs = r->nodes[i].position = NOBODY;
		r->nodes[i].hazard_at_s = r->nodes[i].off_at_s = -INFINITY;
	}
	r->jobs_left = w->jobs.count;
	r->result->jobs = w->jobs.count;
	r->result->windows_count = w->windows_count;
	for (size_t i = 0; i < w->windows_count; i++)
		r->result->windows[i].window_s = w->windows_s[i];
	int e = flows_init(&r->flows, &w->net);
	if (e == 0)
		e = places_make(r);
	if (e == 0)
		e = rooms_make(r);
	if (e == 0 && r->system->planned)
		e = hazard_make(r);
	if (e == 0 && r->system->oracle)
		e = oracle_learn(r);
	if (e == 0 && r->system->notice == NOTICE_CLAIRVOYANT)
		e = leaves_make(r);
	return e;
}

static void run_done(struct run *r)
{
	for (size_t i = 0; r->nodes && i < r->world->nodes.count; i++)
		VEC_DONE(&r->nodes[i].homed);
	hazard_free(r->hazard);
	flows_done(&r->flows);
	free(r->jobs);
	free(r->nodes);
	free(r->places);
	free(r->prices);
	free(r->rank_open);
	free(r->leaves);
	free(r->room_first);
	free(r->room_nodes);
	free(r->evicted.items);
	free(r->fresh.items);
	VEC_DONE(&r->heap);
	VEC_DONE(&r->moving);
	VEC_DONE(&r->rank);
	VEC_DONE(&r->lately);
}

double downtime_bin_s(size_t bin)
{
	return pow(10, ((double)bin + 0.5) / DOWNTIME_BINS * 8 - 2);
}

static double quantile(const struct run_result *x, double q)
{
	double want = q * (double)x->interruptions, sum = 0;
	for (size_t b = 0; b < DOWNTIME_BINS; b++) {
		sum += (double)x->downtime_bins[b];
		if (sum >= want && sum > 0)
			return downtime_bin_s(b);
	}
	return 0;
}

static void finish(struct run *r)
{
	struct run_result *x = r->result;
	exposure(r, r->now_s);
	for (uint32_t j = 0; j < r->world->jobs.count; j++) {
		struct sim_job *job = &r->jobs[j];
		if (job->state != JOB_RUNNING && job->state != JOB_DYING)
			continue;
		double ran = (r->now_s - fmax(job->started_s, r->world->start_s)) *
			     r->world->jobs.data[j].slots;
		x->used_s += fmax(ran, 0);
		x->redundant_s += fmax(ran, 0) * r->system->redundancy;
	}
	r->research_bytes += r->research_bps * fmax(r->now_s - r->research_at_s, 0);
	if (r->research_bytes > 0)
		x->background_lost_share =
			(flows_research_lost(&r->flows, r->now_s) - r->research_lost) / r->research_bytes;
	if (x->interruptions > 0)
		x->downtime_mean_s /= (double)x->interruptions;
	x->downtime_p50_s = quantile(x, 0.5);
	x->downtime_p99_s = quantile(x, 0.99);
	if (x->lent_s > 0)
		x->work_loss_share = (x->lost_s + x->stalled_s + x->redundant_s) / x->lent_s;
}

static void loop(struct run *r)
{
	const struct world *w = r->world;
	size_t ev = 0, sub = 0;
	double begin = w->events.count ? fmin(w->events.data[0].t_s, w->start_s) : w->start_s;
	bool started = false, ahead = r->system->notice == NOTICE_CLAIRVOYANT;
	r->now_s = r->campus_at_s = begin;
	for (uint64_t n = 0; r->error == 0; n++) {
		double t_ev = ev < w->events.count ? w->events.data[ev].t_s : INFINITY;
		double t_sub = sub < w->jobs.count ? w->jobs.data[sub].submit_s : INFINITY;
		double t_heap = r->heap.count ? r->heap.data[0].t_s : INFINITY;
		double t = fmin(t_ev, fmin(t_sub, t_heap));
		if (!started && t >= w->start_s) {
			started = true;
			exposure(r, w->start_s);
			r->now_s = w->start_s;
			r->counting = true;
			r->research_at_s = w->start_s;
			r->research_lost = flows_research_lost(&r->flows, w->start_s);
			if (r->hazard && !r->system->oracle && hazard_fit(r->hazard, w->start_s) < 0)
				r->error = -1;
			tick(r);
			continue;
		}
		if (!(t <= w->end_s) || (w->stop_when_done && r->jobs_left == 0))
			break;
		r->now_s = t;
		if (t == t_ev) {
			if (ahead && w->events.data[ev].state == HAZARD_LENT)
				r->nodes[w->events.data[ev].node].next_leave_s = (double)r->leaves[ev];
			node_event(r, &w->events.data[ev++]);
		} else if (t == t_sub) {
			job_requeue(r, (uint32_t)sub++, 0);
		} else {
			struct run_event e = pop(r);
			heap_event(r, &e);
		}
		r->result->events++;
		if (started)
			plan_queue(r);
		if (r->config->progress && (n & 0xffff) == 0)
			r->config->progress(r->config->progress_ctx,
					    (t - begin) / (w->end_s - begin));
	}
	if (!w->stop_when_done)
		r->now_s = w->end_s;
}

int run_system(const struct world *w, const struct system *s, const struct run_config *config,
	       struct run_result *ret)
{
	struct run_result *result = calloc(1, sizeof(*result));
	if (!result)
		return -ENOMEM;
	struct run r = { .world = w, .system = s, .config = config, .result = result };
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	int e = run_init(&r);
	if (e == 0) {
		loop(&r);
		finish(&r);
		e = r.error ? -ENOMEM : 0;
	}
	clock_gettime(CLOCK_MONOTONIC, &b);
	result->seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
	run_done(&r);
	if (e == 0)
		*ret = *result;
	free(result);
	return e;
}

json_t *run_json(const struct run_result *r)
{
	json_t *windows = json_array();
	for (size_t i = 0; i < r->windows_count; i++) {
		const struct run_window *w = &r->windows[i];
		json_array_append_new(windows,
				      json_pack("{s:f,s:I,s:f,s:I,s:I}", "window_s", w->window_s,
						"reclaims", (json_int_t)w->reclaims, "lost_s",
						w->lost_s, "saved", (json_int_t)w->saved, "missed",
						(json_int_t)w->missed));
	}
	json_t *j = json_pack(
		"{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I}", "work_loss_share",
		r->work_loss_share, "lent_slot_s", r->lent_s, "used_slot_s", r->used_s,
		"lost_slot_s", r->lost_s, "lost_power_off_slot_s", r->lost_power_off_s,
		"stalled_slot_s", r->stalled_s, "redundant_slot_s", r->redundant_s,
		"downtime_mean_s", r->downtime_mean_s, "downtime_p50_s", r->downtime_p50_s,
		"downtime_p99_s", r->downtime_p99_s, "background_lost_share",
		r->background_lost_share, "interruptions",
		(json_int_t)r->interruptions, "owner_over_window",
		(json_int_t)r->owner_over_window);
	json_t *more = json_pack(
		"{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:I,s:o}", "reclaims",
		(json_int_t)r->reclaims, "power_offs", (json_int_t)r->power_offs, "checkpoints",
		(json_int_t)r->checkpoints, "moves", (json_int_t)r->moves, "stages",
		(json_int_t)r->stages, "fallbacks", (json_int_t)r->fallbacks, "moves_missed",
		(json_int_t)r->moves_missed, "promises_broken", (json_int_t)r->promises_broken,
		"jobs", (json_int_t)r->jobs, "jobs_done", (json_int_t)r->jobs_done, "moved_bytes",
		r->moved_bytes, "background_bytes", r->background_bytes, "events",
		(json_int_t)r->events, "windows", windows);
	if (!j || !more || json_object_update(j, more) < 0) {
		json_decref(j);
		json_decref(more);
		return NULL;
	}
	json_decref(more);
	return j;
}
