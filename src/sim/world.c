/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/world.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/rng.h"
#include "base/schema.h"
#include "sim/topology.h"
#include "sim/trace.h"

static const struct schema_field model_fields[] = {
	FIELD_STR(struct world_model, name, 64, .flags = FIELD_REQUIRED),
	{ .name = "image", .kind = FIELD_KIND_DOUBLE, .offset = offsetof(struct world_model, image_bytes),
	  .min = 0, .max = 1e13, .flags = FIELD_REQUIRED, .help = "bytes" },
	{ .name = "save", .kind = FIELD_KIND_DOUBLE, .offset = offsetof(struct world_model, save_s),
	  .min = 0, .max = 1e5, .help = "seconds of standing still per checkpoint" },
	{ .name = "restore", .kind = FIELD_KIND_DOUBLE, .offset = offsetof(struct world_model, restore_s),
	  .min = 0, .max = 1e5, .help = "seconds from image in place to computing" },
	FIELD_DOUBLE(struct world_model, delta, 0, 1, .fallback = "0.85"),
	FIELD_DOUBLE(struct world_model, weight, 0, 1e6, .fallback = "1"),
	FIELD_BOOL(struct world_model, transparent),
	FIELD_END,
};
static const struct schema model_schema = SCHEMA(struct world_model, "sim model", model_fields);

#define YEAR_NS (400.0 * 86400 * 1e9)
static const struct schema_field settings_fields[] = {
	{ .name = "duration", .kind = FIELD_KIND_DURATION,
	  .offset = offsetof(struct world_settings, duration_ns), .max = YEAR_NS,
	  .fallback = "60d", .help = "simulated time that counts" },
	{ .name = "history", .kind = FIELD_KIND_DURATION,
	  .offset = offsetof(struct world_settings, history_ns), .max = YEAR_NS,
	  .fallback = "49d", .help = "trace before it, to learn from" },
	{ .name = "start", .kind = FIELD_KIND_DURATION,
	  .offset = offsetof(struct world_settings, start_ns), .max = YEAR_NS,
	  .fallback = "0s", .help = "where in the trace the history starts" },
	FIELD_STR(struct world_settings, trace, 4096, .help = "trace file; absent: generated"),
	FIELD_STR(struct world_settings, machines, 4096, .help = "rooms of the trace's machines"),
	FIELD_STR(struct world_settings, jobs, 4096, .help = "job sizes; absent: generated"),
	FIELD_STR(struct world_settings, topology, 4096, .help = "graph file of sites"),
	FIELD_U64(struct world_settings, nodes, 2, 100000, .fallback = "54"),
	FIELD_U64(struct world_settings, buildings, 1, 2000, .fallback = "3"),
	FIELD_U64(struct world_settings, gpu_types, 1, 16, .fallback = "3"),
	FIELD_U64(struct world_settings, slots, 0, 64, .fallback = "1",
		  .help = "GPUs of a machine; 0: 1, 2 or 4 by type"),
	FIELD_U64(struct world_settings, room_size, 1, 1000, .fallback = "25"),
	{ .name = "edge", .kind = FIELD_KIND_RATE, .offset = offsetof(struct world_settings, edge_bps),
	  .max = 1e13, .fallback = "1Gbit", .help = "a machine's link" },
	{ .name = "core", .kind = FIELD_KIND_RATE, .offset = offsetof(struct world_settings, core_bps),
	  .max = 1e13, .fallback = "10Gbit", .help = "the core, shared by all buildings" },
	{ .name = "uplink", .kind = FIELD_KIND_RATE, .offset = offsetof(struct world_settings, uplink_bps),
	  .max = 1e13, .fallback = "1Gbit", .help = "a building's link to the core" },
	{ .name = "server", .kind = FIELD_KIND_RATE, .offset = offsetof(struct world_settings, server_bps),
	  .max = 1e13, .fallback = "10Gbit", .help = "the shared file server's link" },
	FIELD_DOUBLE(struct world_settings, research, 0, 0.99, .fallback = "0.6"),
	FIELD_DOUBLE(struct world_settings, research_swing, 0, 0.5, .fallback = "0.15"),
	FIELD_DOUBLE(struct world_settings, floors, 0, 1, .fallback = "0.9"),
	FIELD_DOUBLE(struct world_settings, load, 0, 10, .fallback = "0.25"),
	{ .name = "job_max", .kind = FIELD_KIND_DURATION,
	  .offset = offsetof(struct world_settings, job_max_ns), .max = YEAR_NS,
	  .fallback = "7d", .help = "longer jobs are cut to this" },
	FIELD_U64(struct world_settings, jobs_max, 1, 10000000, .fallback = "1000000"),
	FIELD_DOUBLE(struct world_settings, background, 0, 1, .fallback = "0.5"),
	FIELD_STRLIST(struct world_settings, windows, 32, WORLD_WINDOWS_MAX,
		      .help = "owners' notice windows, drawn evenly"),
	FIELD_LIST(struct world_settings, models, &model_schema, WORLD_MODELS_MAX),
	FIELD_END,
};
const struct schema world_settings_schema =
	SCHEMA(struct world_settings, "sim settings", settings_fields);

/*
 * From the sourced table of checkpoint sizes and times: full training state at
 * 13 bytes per parameter, saved at 0.5 GB/s, cold starts as measured; one
 * transparent image. What runs on lent desktops is mostly small, so the small
 * ones weigh more.
 */
static const struct world_model default_models[] = {
	{ (char *)"resnet18", 0.152e9, 0.5, 30, 0.85, 4, false },
	{ (char *)"deepspeech2", 0.65e9, 1.5, 25, 0.85, 4, false },
	{ (char *)"yolov3", 0.806e9, 1.8, 45, 0.85, 3, false },
	{ (char *)"bert", 1.43e9, 3.1, 120, 0.85, 1, false },
	{ (char *)"qwen2-1.5b", 8.89e9, 15.5, 5.7, 0.85, 1, true },
	{ (char *)"resnet50", 0.332e9, 0.9, 250, 0.85, 0.5, false },
	{ (char *)"bert-large", 4.42e9, 9, 120, 0.85, 0.5, false },
	{ (char *)"opt-1.3b", 17.1e9, 34, 62, 0.85, 0.5, false },
};
static const double default_windows_s[] = { 0, 7, 30, 60, 120, 300, 600 };

void world_done(struct world *w)
{
	free(w->name);
	for (size_t i = 0; i < w->models.count; i++)
		free(w->models.data[i].name);
	VEC_DONE(&w->nodes);
	VEC_DONE(&w->events);
	VEC_DONE(&w->jobs);
	VEC_DONE(&w->models);
	VEC_DONE(&w->research_links);
	network_done(&w->net);
	memset(w, 0, sizeof(*w));
}

static int model_add(struct world *w, const struct world_model *m)
{
	struct world_model copy = *m;
	copy.name = strdup(m->name);
	if (!copy.name)
		return -ENOMEM;
	int r = VEC_PUSH(&w->models, copy);
	if (r < 0)
		free(copy.name);
	return r;
}

static int models_make(struct world *w, const struct world_settings *s)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < s->models_count; i++)
		r = model_add(w, &s->models[i]);
	for (size_t i = 0; r == 0 && s->models_count == 0 && i < ARRAY_SIZE(default_models); i++)
		r = model_add(w, &default_models[i]);
	return r;
}

static int windows_make(struct world *w, const struct world_settings *s, struct diag *diag)
{
	for (size_t i = 0; i < s->windows_count; i++) {
		uint64_t ns;
		if (parse_duration_ns(s->windows[i], &ns) < 0)
			return diag_set(diag, -EINVAL, "sim.windows", "'%s' is no duration",
					s->windows[i]);
		w->windows_s[w->windows_count++] = (double)ns / 1e9;
	}
	if (w->windows_count == 0) {
		memcpy(w->windows_s, default_windows_s, sizeof(default_windows_s));
		w->windows_count = ARRAY_SIZE(default_windows_s);
	}
	return 0;
}

static int64_t server_add(struct world *w, const struct world_settings *s, uint32_t in, uint32_t out,
			  double bps)
{
	struct network *n = &w->net;
	int64_t p = network_point_add(n);
	if (p < 0 || in == out)
		return p < 0 ? p : network_node_add(n, in, bps, 0, s->floors);
	int64_t r = network_link_add(n, (uint32_t)p, in, bps, 0, s->floors, 1e-5);
	if (r >= 0)
		r = network_link_add(n, out, (uint32_t)p, bps, 0, s->floors, 1e-5);
	return r < 0 ? r : network_node_add(n, (uint32_t)p, bps, 0, s->floors);
}

/*
 * Buildings around a core. All that leaves a building crosses its uplink and
 * the core, which is one link from its entry to its exit: research traffic is
 * there. Floors count on what research leaves at its busiest.
 */
static int campus_network(struct world *w, const struct world_settings *s)
{
	struct network *n = &w->net;
	double core = (double)s->core_bps / 8, edge = (double)s->edge_bps / 8;
	double up = (double)s->uplink_bps / 8;
	double busy = core * fmin(s->research + s->research_swing, 0.98);
	int64_t in = network_point_add(n), out = network_point_add(n), r;
	if (in < 0 || out < 0)
		return -ENOMEM;
	r = network_link_add(n, (uint32_t)in, (uint32_t)out, core, busy, s->floors, 1e-5);
	if (r >= 0 && VEC_PUSH(&w->research_links, (uint32_t)r) < 0)
		return -ENOMEM;
	for (uint64_t b = 0; r >= 0 && b < s->buildings; b++) {
		r = network_point_add(n);
		uint32_t p = (uint32_t)r;
		if (r >= 0)
			r = network_link_add(n, p, (uint32_t)in, up, 0, s->floors, 1e-4);
		if (r >= 0)
			r = network_link_add(n, (uint32_t)out, p, up, 0, s->floors, 1e-4);
	}
	for (size_t i = 0; r >= 0 && i < w->nodes.count; i++)
		r = network_node_add(n, 2 + w->nodes.data[i].building, edge, 0, s->floors);
	if (r >= 0)
		r = w->server = (uint32_t)server_add(w, s, (uint32_t)in, (uint32_t)out,
						     (double)s->server_bps / 8);
	if (r >= 0)
		r = w->hub = (uint32_t)server_add(w, s, (uint32_t)in, (uint32_t)out, edge);
	if (r >= 0)
		n->links[w->research_links.data[0]].peak_bps = busy - core * s->research;
	return r < 0 ? (int)r : network_route(n);
}

static int site_network(struct world *w, const struct world_settings *s, struct diag *diag)
{
	struct network *n = &w->net;
	int sites = topology_load(s->topology, fmin(s->research + s->research_swing, 0.98),
				  s->floors, n, diag);
	if (sites < 0)
		return sites;
	for (uint32_t l = 0; l < n->links_count; l++) {
		struct network_link *x = &n->links[l];
		x->peak_bps = fmax(x->research_bps - x->capacity_bps * s->research, 0);
		if (VEC_PUSH(&w->research_links, l) < 0)
			return -ENOMEM;
	}
	double edge = (double)s->edge_bps / 8;
	int64_t r = 0;
	/* Rooms are spread over the sites. */
	for (size_t i = 0; r >= 0 && i < w->nodes.count; i++)
		r = network_node_add(n, w->nodes.data[i].building % (uint32_t)sites, edge, 0,
				     s->floors);
	if (r >= 0)
		r = w->server = (uint32_t)network_node_add(n, 0, (double)s->server_bps / 8, 0,
							   s->floors);
	if (r >= 0)
		r = w->hub = (uint32_t)network_node_add(n, 0, edge, 0, s->floors);
	return r < 0 ? (int)r : network_route(n);
}

/* Whole rooms where possible, in an order drawn by the seed; which = machine -> node or NONE. */
static int pick_machines(struct world *w, const struct trace *t, const struct world_settings *s,
			 struct rng *r, uint32_t *which)
{
	size_t n = t->machines.count;
	CLEANUP_FREE uint32_t *order = malloc((n + 1) * sizeof(*order));
	CLEANUP_FREE uint32_t *events = calloc(n + 1, sizeof(*events));
	if (!order || !events)
		return -ENOMEM;
	for (size_t i = 0; i < t->events.count; i++)
		events[t->events.data[i].machine]++;
	for (uint32_t i = 0; i < n; i++)
		order[i] = i;
	for (size_t i = n; i > 1; i--) {
		size_t k = rng_below(r, i);
		uint32_t x = order[i - 1];
		order[i - 1] = order[k];
		order[k] = x;
	}
	for (size_t i = 0; i < n; i++)
		which[i] = NETWORK_NONE;
	for (size_t i = 0; i < n && w->nodes.count < s->nodes; i++) {
		uint32_t m = order[i];
		if (events[m] < 20 && n > s->nodes) /* hardly in the record */
			continue;
		uint32_t index = (uint32_t)w->nodes.count;
		uint32_t type = index % (uint32_t)s->gpu_types;
		struct world_node node = {
			.room = t->machines.data[m].room,
			.building = t->machines.data[m].room % (uint32_t)s->buildings,
			.gpu_type = 1 + type,
			.slots = s->slots ? (uint32_t)s->slots : 1u << (type % 3),
			.slot_kind = TERMS_SLOT_GPU,
			.window_s = w->windows_s[rng_below(r, w->windows_count)],
		};
		which[m] = index;
		int e = VEC_PUSH(&w->nodes, node);
		if (e < 0)
			return e;
	}
	w->rooms_count = t->rooms_count;
	w->gpu_types = (uint32_t)s->gpu_types;
	return w->nodes.count >= 2 ? 0 : -EINVAL;
}

static int events_from_trace(struct world *w, const struct trace *t, const uint32_t *which)
{
	for (size_t i = 0; i < t->events.count; i++) {
		const struct trace_event *e = &t->events.data[i];
		uint32_t node = which[e->machine];
		if (node == NETWORK_NONE)
			continue;
		struct world_event v = { .t_s = e->t_s, .node = node, .state = e->state };
		if (VEC_PUSH(&w->events, v) < 0)
			return -ENOMEM;
		if (e->t_s >= t->machines.data[e->machine].last_s && e->state != HAZARD_GONE &&
		    e->t_s < w->end_s) {
			v.state = HAZARD_GONE;
			if (VEC_PUSH(&w->events, v) < 0)
				return -ENOMEM;
		}
	}
	return 0;
}

/* Lent slot-seconds between start and end. */
static double lent_slot_seconds(const struct world *w)
{
	CLEANUP_FREE double *since = malloc((w->nodes.count + 1) * sizeof(double));
	double sum = 0;
	if (!since)
		return 0;
	for (size_t i = 0; i < w->nodes.count; i++)
		since[i] = NAN;
	for (size_t i = 0; i <= w->events.count; i++) {
		bool last = i == w->events.count;
		const struct world_event *e = last ? NULL : &w->events.data[i];
		for (uint32_t n = last ? 0 : e->node; n < w->nodes.count; n++) {
			double t = last ? w->end_s : e->t_s;
			if (!isnan(since[n]) && (last || e->state != HAZARD_LENT)) {
				sum += w->nodes.data[n].slots *
				       fmax(fmin(t, w->end_s) - fmax(since[n], w->start_s), 0);
				since[n] = NAN;
			} else if (!last && e->state == HAZARD_LENT && isnan(since[n])) {
				since[n] = t;
			}
			if (!last)
				break;
		}
	}
	return sum;
}

/* Sizes of a job log, in its order. */
static int load_jobs(const char *path, struct generated_job **ret, size_t *ret_count,
		     struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = file_read(path, TRACE_FILE_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, path, "%s", strerror(-r));
	struct VEC(struct generated_job) jobs = VEC_INIT;
	unsigned line = 0;
	char *save = NULL;
	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		double submit, duration;
		unsigned gpus;
		line++;
		if (sscanf(l, "%lf,%lf,%u", &submit, &duration, &gpus) != 3) {
			if (line == 1)
				continue; /* the header */
			VEC_DONE(&jobs);
			char where[DIAG_WHERE_MAX];
			snprintf(where, sizeof(where), "%.200s:%u", path, line);
			return diag_set(diag, -EINVAL, where, "not 'submit_s,duration_s,gpus'");
		}
		struct generated_job j = { .work_s = duration, .gpus = gpus };
		if (duration > 0 && gpus > 0 && VEC_PUSH(&jobs, j) < 0) {
			VEC_DONE(&jobs);
			return -ENOMEM;
		}
	}
	*ret = jobs.data;
	*ret_count = jobs.count;
	return 0;
}

static uint32_t draw_model(const struct world *w, struct rng *r)
{
	double sum = 0, u;
	for (size_t i = 0; i < w->models.count; i++)
		sum += w->models.data[i].weight;
	u = rng_unit(r) * sum;
	for (uint32_t i = 0; i < w->models.count; i++) {
		u -= w->models.data[i].weight;
		if (u < 0)
			return i;
	}
	return (uint32_t)w->models.count - 1;
}

/* Poisson arrivals of sizes drawn from the log until the load is reached. */
static int jobs_make(struct world *w, const struct world_settings *s, struct rng *r,
		     struct diag *diag)
{
	CLEANUP_FREE struct generated_job *sizes = NULL;
	size_t count = 0;
	uint32_t largest = 0;
	int e;
	if (s->jobs) {
		e = load_jobs(s->jobs, &sizes, &count, diag);
	} else {
		count = 20000;
		sizes = calloc(count, sizeof(*sizes));
		e = sizes ? generate_jobs(rng_u64(r), count, sizes) : -ENOMEM;
	}
	if (e < 0)
		return e;
	if (count == 0)
		return diag_set(diag, -EINVAL, s->jobs ? s->jobs : "", "no jobs");
	for (size_t i = 0; i < w->nodes.count; i++)
		largest = MAX(largest, w->nodes.data[i].slots);
	double most = (double)s->job_max_ns / 1e9, demand = lent_slot_seconds(w) * s->load;
	double start = w->start_s, span = w->end_s - w->start_s, sum = 0;
	while (sum < demand && w->jobs.count < s->jobs_max) {
		const struct generated_job *g = &sizes[rng_below(r, count)];
		if (g->gpus > largest) {
			w->jobs_skipped++;
			continue;
		}
		struct world_job j = {
			.submit_s = start + rng_unit(r) * span,
			.work_s = fmin(g->work_s, most),
			.weight = 1,
			.slots = g->gpus,
			.model = draw_model(w, r),
			.slot_kind = TERMS_SLOT_GPU,
		};
		sum += fmin(j.work_s, w->end_s - j.submit_s) * j.slots;
		if (VEC_PUSH(&w->jobs, j) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int job_order(const void *a, const void *b)
{
	double x = ((const struct world_job *)a)->submit_s;
	double y = ((const struct world_job *)b)->submit_s;
	return (x > y) - (x < y);
}

struct keyed_event {
	struct world_event e;
	size_t order;
};

static int event_order(const void *a, const void *b)
{
	const struct keyed_event *x = a, *y = b;
	if (x->e.t_s != y->e.t_s)
		return x->e.t_s < y->e.t_s ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static int events_sort(struct world *w)
{
	CLEANUP_FREE struct keyed_event *k = malloc((w->events.count + 1) * sizeof(*k));
	if (!k)
		return -ENOMEM;
	for (size_t i = 0; i < w->events.count; i++)
		k[i] = (struct keyed_event){ w->events.data[i], i };
	qsort(k, w->events.count, sizeof(*k), event_order);
	for (size_t i = 0; i < w->events.count; i++)
		w->events.data[i] = k[i].e;
	return 0;
}

static int make_from_settings(struct world *w, const struct world_settings *s, uint64_t seed,
			      struct diag *diag)
{
	struct rng r;
	struct trace t = TRACE_INIT;
	rng_init(&r, seed * 7919 + 17);
	double from = (double)s->start_ns / 1e9, history = (double)s->history_ns / 1e9;
	w->start_s = from + history;
	w->end_s = w->start_s + (double)s->duration_ns / 1e9;
	int e = windows_make(w, s, diag);
	if (e == 0)
		e = models_make(w, s);
	struct generate_config g = { .seed = seed,
				     .machines = (uint32_t)s->nodes,
				     .room_size = (uint32_t)s->room_size,
				     .days = w->end_s / 86400 };
	if (e == 0)
		e = s->trace ? trace_load(s->trace, s->machines, false, &t, diag) :
			       generate_trace(&g, &t);
	uint32_t *which = malloc((t.machines.count + 1) * sizeof(*which));
	if (e == 0 && !which)
		e = -ENOMEM;
	if (e == 0 && t.end_s < w->end_s - 86400)
		e = diag_set(diag, -EINVAL, s->trace ? s->trace : "", "the trace ends at %.0f s, before %.0f s",
			     t.end_s, w->end_s);
	if (e == 0)
		e = pick_machines(w, &t, s, &r, which);
	if (e == 0)
		e = events_from_trace(w, &t, which);
	w->monday_s = t.monday_s;
	trace_done(&t);
	free(which);
	if (e == 0)
		e = s->topology ? site_network(w, s, diag) : campus_network(w, s);
	if (e == 0)
		e = jobs_make(w, s, &r, diag);
	if (e == 0 && w->jobs.count > 1)
		qsort(w->jobs.data, w->jobs.count, sizeof(*w->jobs.data), job_order);
	w->research = s->research;
	w->research_swing = s->research_swing;
	w->background = s->background;
	return e;
}

/* A scenario that is written out: the lab's own. */
static int machines_from_scenario(struct world *w, const struct scenario *s)
{
	const struct scenario_topology *t = &s->topology;
	struct network *n = &w->net;
	int64_t r = network_point_add(n);
	for (size_t b = 0; r >= 0 && b < t->buildings_count; b++) {
		double up = (double)t->buildings[b].uplink_bps / 8;
		r = network_point_add(n);
		for (int dir = 0; r >= 0 && dir < 2; dir++)
			r = network_link_add(n, dir ? 0 : (uint32_t)b + 1, dir ? (uint32_t)b + 1 : 0,
					     up, 0, 0.9, 1e-4);
	}
	CLEANUP_FREE char **rooms = calloc(t->machines_count + 1, sizeof(*rooms));
	if (!rooms)
		return -ENOMEM;
	for (size_t i = 0; r >= 0 && i < t->machines_count; i++) {
		const struct scenario_machine *m = &t->machines[i];
		const char *room = m->room ? m->room : t->buildings[m->building_index].name;
		uint32_t k = 0;
		while (k < w->rooms_count && strcmp(rooms[k], room))
			k++;
		if (k == w->rooms_count)
			rooms[w->rooms_count++] = (char *)room;
		struct world_node node = {
			.room = k,
			.building = (uint32_t)m->building_index,
			.gpu_type = 1,
			.slots = (uint32_t)MAX(m->lend.slots_count, (size_t)1),
			.window_s = (double)m->lend.window_ns / 1e9,
			.slot_kind = m->lend.slots_count ? (uint32_t)m->lend.slots[0].kind : 0,
		};
		if (VEC_PUSH(&w->nodes, node) < 0)
			return -ENOMEM;
		r = network_node_add(n, (uint32_t)m->building_index + 1, (double)m->link_bps / 8, 0,
				     0.9);
	}
	uint32_t at = t->buildings_count ? (uint32_t)scenario_coordinator_building(s) + 1 : 0;
	if (r >= 0)
		r = w->server = w->hub = (uint32_t)network_node_add(n, at, 125e6, 0, 0.9);
	w->gpu_types = 1;
	return r < 0 ? (int)r : network_route(n);
}

static int event_put(struct world *w, double t, size_t node, enum hazard_state state,
		     const struct scenario_event *e)
{
	struct world_event v = { .t_s = t,
				 .node = (uint32_t)node,
				 .state = (uint8_t)state,
				 .cancel = e && e->act == SCENARIO_DO_CANCEL };
	if (e && e->act == SCENARIO_DO_BACK) {
		v.has_window = e->window_set || e->mode == SCENARIO_MODE_NOW;
		v.window_s = e->mode == SCENARIO_MODE_NOW ? 0 : (float)((double)e->window_ns / 1e9);
	}
	return VEC_PUSH(&w->events, v);
}

/* When an event happens: at its time, and after the one it waits for. */
static double event_time(const struct scenario *s, const struct scenario_event *e)
{
	double t = (double)e->at_ns / 1e9;
	if (e->after) {
		size_t before = scenario_event(s, e->after);
		if (before != SCENARIO_NONE && &s->events[before] != e)
			t = fmax(t, event_time(s, &s->events[before]) + (double)e->delay_ns / 1e9);
	}
	return t;
}

static int events_from_scenario(struct world *w, const struct scenario *s)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < s->topology.machines_count; i++)
		r = event_put(w, 0, i, HAZARD_LENT, NULL);
	for (size_t i = 0; r == 0 && i < s->events_count; i++) {
		const struct scenario_event *e = &s->events[i];
		enum hazard_state state, undo = HAZARD_LENT;
		switch ((enum scenario_do)e->act) {
		case SCENARIO_DO_BACK: state = HAZARD_OWNED; break;
		case SCENARIO_DO_LEND: case SCENARIO_DO_CANCEL: case SCENARIO_DO_POWER_ON:
			state = HAZARD_LENT; break;
		case SCENARIO_DO_POWER_OFF: state = HAZARD_OFF; break;
		default: continue; /* faults of programs and links: the lab's alone */
		}
		double t = event_time(s, e);
		for (size_t m = 0; r == 0 && m < e->machines_count; m++) {
			size_t node = scenario_machine(s, e->machines[m]);
			r = event_put(w, t, node, state, e);
			if (r == 0 && e->for_ns > 0)
				r = event_put(w, t + (double)e->for_ns / 1e9, node, undo, NULL);
		}
	}
	return r;
}

static int jobs_from_scenario(struct world *w, const struct scenario *s)
{
	for (size_t i = 0; i < s->jobs_count; i++) {
		const struct scenario_job *j = &s->jobs[i];
		struct world_model m = {
			.name = j->name,
			.image_bytes = (double)j->cost.image_bytes,
			.save_s = (double)j->cost.save_ns / 1e9,
			.restore_s = (double)j->cost.restore_ns / 1e9,
			.delta = j->cost.delta,
			.weight = 1,
		};
		uint64_t every = j->interval_ns ? j->interval_ns : s->system.interval_ns;
		struct world_job job = { .submit_s = (double)j->at_ns / 1e9,
					 .work_s = (double)j->cost.work_ns / 1e9,
					 .weight = j->weight > 0 ? j->weight : 1,
					 .interval_s = (double)every / 1e9,
					 .slots = (uint32_t)MAX(j->slots, (size_t)1),
					 .model = (uint32_t)i,
					 .slot_kind = w->nodes.count ? w->nodes.data[0].slot_kind : 0 };
		if (model_add(w, &m) < 0 || VEC_PUSH(&w->jobs, job) < 0)
			return -ENOMEM;
	}
	return 0;
}

int world_make(const struct scenario *s, uint64_t seed, struct world *ret, struct diag *diag)
{
	struct world w = { .name = strdup(s->name ? s->name : "") };
	int r = w.name ? 0 : -ENOMEM;
	if (r == 0 && s->sim) {
		struct world_settings settings = { 0 };
		r = schema_decode(&world_settings_schema, s->sim, SCHEMA_STRICT, NULL, &settings,
				  diag);
		if (r == 0)
			r = make_from_settings(&w, &settings, seed, diag);
		schema_done(&world_settings_schema, &settings);
	} else if (r == 0) {
		w.end_s = (double)s->duration_ns / 1e9;
		w.background = 0.5;
		w.stop_when_done = true;
		w.floor_bps = (double)s->system.floor_bps / 8;
		r = machines_from_scenario(&w, s);
		if (r == 0)
			r = events_from_scenario(&w, s);
		if (r == 0)
			r = jobs_from_scenario(&w, s);
		if (r == 0 && w.jobs.count > 1)
			qsort(w.jobs.data, w.jobs.count, sizeof(*w.jobs.data), job_order);
	}
	if (r == 0)
		r = events_sort(&w);
	if (r < 0) {
		if (diag && !diag->what[0])
			(void)diag_set(diag, r, "", "%s", strerror(-r));
		world_done(&w);
		return r;
	}
	*ret = w;
	return 0;
}
