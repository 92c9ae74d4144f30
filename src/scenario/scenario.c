/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a scenario: decodes it by the tables of scenario_fields.c, lays each
 * machine's terms over the common ones, and holds names and references to
 * each other, so that its readers need no error paths. Trusts nothing it reads.
 */
#include "scenario/scenario.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <assert.h>

#include "base/cleanup.h"
#include "base/map.h"
#include "scenario/scenario_internal.h"

DEFINE_CLEANUP(struct map *, map_free)
DEFINE_CLEANUP(struct yaml_lines *, yaml_lines_free)

struct loading {
	struct scenario *s;
	const struct yaml_lines *lines;
	const char *dir; /* of the file, "" for the current one */
	json_t *root;
	struct diag *diag;
};

/* Where an item of a list stood: "demo.yaml:12: jobs[2]". */
static int fail(const struct loading *l, int err, const char *list, size_t i, const char *what,
		const char *name)
{
	char where[DIAG_WHERE_MAX];
	json_t *items = json_object_get(l->root, list);
	unsigned line;

	if (!items)
		items = json_object_get(json_object_get(l->root, "topology"), list);
	line = l->lines ? yaml_lines_get(l->lines, items, NULL, i) : 0;
	if (line)
		(void)snprintf(where, sizeof(where), "%s:%u: %s[%zu]", yaml_lines_name(l->lines),
			       line, list, i);
	else
		(void)snprintf(where, sizeof(where), "%s[%zu]", list, i);
	return diag_set(l->diag, err, where, what, name);
}

/* Objects are merged, everything else is replaced. A new reference. */
static json_t *overlay(json_t *below, json_t *above)
{
	json_t *out, *value;
	const char *key;

	if (!json_is_object(below) || !json_is_object(above))
		return json_incref(above);
	out = json_copy(below);
	json_object_foreach(above, key, value) {
		json_t *under = json_object_get(below, key);

		if (out && json_object_set_new(out, key, under ? overlay(under, value)
							       : json_incref(value)) < 0) {
			json_decref(out);
			return NULL;
		}
	}
	return out;
}

/* The file's path seen from the scenario's folder. */
static int resolve(const struct loading *l, char **path)
{
	char *full = NULL;

	if (!*path || **path == '/' || !*l->dir)
		return 0;
	if (asprintf(&full, "%s/%s", l->dir, *path) < 0)
		return -ENOMEM;
	free(*path);
	*path = full;
	return 0;
}

static int load_terms(struct loading *l, size_t i)
{
	struct scenario_machine *m = &l->s->topology.machines[i];
	CLEANUP_JSON json_t *merged = NULL;
	int r;

	r = resolve(l, &m->terms_file);
	if (r < 0)
		return r;
	if (m->terms_file)
		return terms_load(m->terms_file, &m->lend, l->diag);
	if (m->terms && l->s->terms)
		merged = overlay(l->s->terms, m->terms);
	else if (m->terms || l->s->terms)
		merged = json_incref(m->terms ? m->terms : l->s->terms);
	else
		merged = json_pack("{s:[{}]}", "slots");
	if (!merged)
		return -ENOMEM;
	r = schema_decode(&terms_schema, merged, SCHEMA_STRICT, l->lines, &m->lend, l->diag);
	if (r < 0) {
		diag_prefix(l->diag, "terms");
		return r;
	}
	return terms_complete(&m->lend);
}

/* Registers a name; values are index + 1, so that 0 means unknown. */
static int take_name(struct loading *l, struct map *names, const char *list, size_t i,
		     const char *name)
{
	int r;

	for (const char *c = name; *c; c++)
		if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '-' ||
		      (*c >= 'A' && *c <= 'Z') || *c == '_' || *c == '.'))
			return fail(l, -EINVAL, list, i,
				    "the name '%s' has something else than letters, digits, - _ .",
				    name);
	if (!*name || *name == '.' || *name == '-')
		return fail(l, -EINVAL, list, i, "the name '%s' starts with none of its letters",
			    name);
	r = map_insert(names, name, strlen(name), (void *)(uintptr_t)(i + 1));
	return r == -EEXIST ? fail(l, -EINVAL, list, i, "the name '%s' is taken", name) : r;
}

static size_t index_of(const struct map *names, const char *name)
{
	return (uintptr_t)map_get_str(names, name) - 1; /* unknown wraps to SCENARIO_NONE */
}

struct names {
	struct map *buildings, *hosts, *jobs, *events, *flows; /* hosts: machines too */
};

static int link_machines(struct loading *l, struct names *n)
{
	struct scenario_topology *t = &l->s->topology;
	int r = 0;

	for (size_t i = 0; i < t->machines_count && r == 0; i++) {
		struct scenario_machine *m = &t->machines[i];

		r = take_name(l, n->hosts, "machines", i, m->name);
		if (r < 0)
			break;
		m->building_index = index_of(n->buildings, m->building);
		if (m->building_index == SCENARIO_NONE)
			return fail(l, -EINVAL, "machines", i, "there is no building '%s'",
				    m->building);
		if (m->terms && m->terms_file)
			return fail(l, -EINVAL, "machines", i,
				    "terms and terms_file ('%s') exclude each other", m->terms_file);
		if (!m->owner && asprintf(&m->owner, "owner-%s", m->name) < 0)
			return -ENOMEM;
		r = load_terms(l, i);
	}
	return r;
}

static int link_topology(struct loading *l, struct names *n)
{
	struct scenario_topology *t = &l->s->topology;
	int r = 0;

	if (t->buildings_count == 0)
		return diag_set(l->diag, -EINVAL, "topology.buildings", "at least one is needed");
	for (size_t i = 0; i < t->buildings_count && r == 0; i++)
		r = take_name(l, n->buildings, "buildings", i, t->buildings[i].name);
	if (r == 0)
		r = link_machines(l, n);
	for (size_t i = 0; i < t->hosts_count && r == 0; i++) {
		struct scenario_host *h = &t->hosts[i];

		r = take_name(l, n->hosts, "hosts", i, h->name);
		h->building_index = index_of(n->buildings, h->building);
		if (r == 0 && h->building_index == SCENARIO_NONE)
			return fail(l, -EINVAL, "hosts", i, "there is no building '%s'",
				    h->building);
	}
	if (r == 0 && t->coordinator && index_of(n->buildings, t->coordinator) == SCENARIO_NONE)
		return diag_set(l->diag, -EINVAL, "topology.coordinator",
				"there is no building '%s'", t->coordinator);
	return r;
}

static int link_jobs(struct loading *l, struct names *n)
{
	int r = 0;

	for (size_t i = 0; i < l->s->jobs_count && r == 0; i++) {
		struct scenario_job *j = &l->s->jobs[i];

		r = take_name(l, n->jobs, "jobs", i, j->name);
		if (r == 0 && (j->command_count > 0) == (j->file != NULL) &&
		    j->cost.work_ns == 0)
			return fail(l, -EINVAL, "jobs", i, "'%s' needs one of command and file",
				    j->name);
		if (r == 0)
			r = resolve(l, &j->file);
	}
	return r;
}

/* Hosts share the map of machines, with indexes of their own list. */
static bool names_machine(const struct scenario *s, const struct names *n, const char *name)
{
	size_t i = index_of(n->hosts, name);

	return i < s->topology.machines_count && strcmp(s->topology.machines[i].name, name) == 0;
}

static int link_targets(struct loading *l, struct names *n, const struct scenario_event *e,
			size_t i)
{
	bool machines = e->machines_count > 0 || e->holds || e->like;

	for (size_t k = 0; k < e->machines_count; k++)
		if (!names_machine(l->s, n, e->machines[k]))
			return fail(l, -EINVAL, "events", i, "there is no machine '%s'",
				    e->machines[k]);
	for (size_t k = 0; k < e->buildings_count; k++)
		if (index_of(n->buildings, e->buildings[k]) == SCENARIO_NONE)
			return fail(l, -EINVAL, "events", i, "there is no building '%s'",
				    e->buildings[k]);
	if (e->holds && index_of(n->jobs, e->holds) == SCENARIO_NONE)
		return fail(l, -EINVAL, "events", i, "there is no job '%s'", e->holds);
	if (e->job && index_of(n->jobs, e->job) == SCENARIO_NONE)
		return fail(l, -EINVAL, "events", i, "there is no job '%s'", e->job);
	if (e->act == SCENARIO_DO_CANCEL_JOB && !e->job)
		return fail(l, -EINVAL, "events", i, "%s needs a job", "cancel_job");
	if (e->act == SCENARIO_DO_STOP_ALL || e->act == SCENARIO_DO_CANCEL_JOB)
		return 0;
	if ((e->act == SCENARIO_DO_CRASH || e->act == SCENARIO_DO_RESTART) &&
	    e->what == SCENARIO_WHAT_COORDINATOR)
		return 0;
	if ((e->act == SCENARIO_DO_CUT || e->act == SCENARIO_DO_RESTORE) && e->buildings_count > 0)
		return 0;
	if (!machines)
		return fail(l, -EINVAL, "events", i, "'%s' says neither machines nor holds",
			    scenario_do_names[e->act]);
	return 0;
}

static int link_events(struct loading *l, struct names *n)
{
	json_t *events = json_object_get(l->root, "events");
	int r = 0;

	for (size_t i = 0; i < l->s->events_count && r == 0; i++) {
		struct scenario_event *e = &l->s->events[i];

		e->window_set = json_object_get(json_array_get(events, i), "window") != NULL;
		if (e->after && index_of(n->events, e->after) == SCENARIO_NONE)
			return fail(l, -EINVAL, "events", i, "there is no earlier event '%s'",
				    e->after);
		if (e->like && index_of(n->events, e->like) == SCENARIO_NONE)
			return fail(l, -EINVAL, "events", i, "there is no earlier event '%s'",
				    e->like);
		if (e->name)
			r = take_name(l, n->events, "events", i, e->name);
		if (r == 0)
			r = link_targets(l, n, e, i);
	}
	return r;
}

static int fill_names(struct map *m, const char *first, size_t count, size_t step)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		const char *name = *(char *const *)(first + i * step);

		r = map_insert(m, name, strlen(name), (void *)(uintptr_t)(i + 1));
	}
	return r;
}

int scenario_event_parse(const char *text, size_t len, const struct scenario *s,
			 struct scenario_event *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *json = NULL;
	CLEANUP(yaml_lines_free_cleanup) struct yaml_lines *lines = NULL;
	CLEANUP(map_free_cleanup) struct map *buildings = NULL;
	CLEANUP(map_free_cleanup) struct map *hosts = NULL;
	CLEANUP(map_free_cleanup) struct map *jobs = NULL;
	struct loading l = { .s = (struct scenario *)s, .dir = "", .diag = diag };
	struct names n = { 0 };
	int r = yaml_parse(text, len, "event", &json, &lines, diag);

	if (r < 0)
		return r;
	if (map_new(&buildings) < 0 || map_new(&hosts) < 0 || map_new(&jobs) < 0)
		return -ENOMEM;
	n = (struct names){ .buildings = buildings, .hosts = hosts, .jobs = jobs };
	/* A name is each struct's first field. */
	r = fill_names(buildings, (const char *)s->topology.buildings, s->topology.buildings_count,
		       sizeof(*s->topology.buildings));
	if (r == 0)
		r = fill_names(hosts, (const char *)s->topology.machines,
			       s->topology.machines_count, sizeof(*s->topology.machines));
	if (r == 0)
		r = fill_names(jobs, (const char *)s->jobs, s->jobs_count, sizeof(*s->jobs));
	if (r == 0)
		r = schema_decode(&scenario_event_schema, json, SCHEMA_STRICT, lines, ret, diag);
	if (r < 0)
		return r;
	ret->window_set = json_object_get(json, "window") != NULL;
	l.root = json;
	r = ret->after || ret->like ?
			 diag_set(diag, -EINVAL, "event", "'%s' needs a list of events",
				  ret->after ? "after" : "like") :
			 link_targets(&l, &n, ret, 0);
	if (r < 0)
		scenario_event_done(ret);
	return r;
}

void scenario_event_done(struct scenario_event *e)
{
	schema_done(&scenario_event_schema, e);
}

static int link_flows(struct loading *l, struct names *n)
{
	int r = 0;

	for (size_t i = 0; i < l->s->flows_count && r == 0; i++) {
		struct scenario_flow *f = &l->s->flows[i];

		r = take_name(l, n->flows, "flows", i, f->name);
		if (r == 0 && index_of(n->hosts, f->from) == SCENARIO_NONE)
			return fail(l, -EINVAL, "flows", i, "there is no machine or host '%s'",
				    f->from);
		if (r == 0 && index_of(n->hosts, f->to) == SCENARIO_NONE)
			return fail(l, -EINVAL, "flows", i, "there is no machine or host '%s'",
				    f->to);
		if (r == 0 && f->kind == SCENARIO_FLOW_SHORT && (!f->sizes || f->load <= 0))
			return fail(l, -EINVAL, "flows", i, "'%s' is short: give sizes and load",
				    f->name);
		if (r == 0)
			r = resolve(l, &f->sizes);
	}
	return r;
}

static int link_all(struct loading *l)
{
	CLEANUP(map_free_cleanup) struct map *buildings = NULL;
	CLEANUP(map_free_cleanup) struct map *hosts = NULL;
	CLEANUP(map_free_cleanup) struct map *jobs = NULL;
	CLEANUP(map_free_cleanup) struct map *events = NULL;
	CLEANUP(map_free_cleanup) struct map *flows = NULL;
	struct names n;
	int r;

	if (map_new(&buildings) < 0 || map_new(&hosts) < 0 || map_new(&jobs) < 0 ||
	    map_new(&events) < 0 || map_new(&flows) < 0)
		return -ENOMEM;
	n = (struct names){ buildings, hosts, jobs, events, flows };
	r = link_topology(l, &n);
	if (r == 0)
		r = link_jobs(l, &n);
	if (r == 0)
		r = link_events(l, &n);
	if (r == 0)
		r = link_flows(l, &n);
	for (size_t i = 0; i < l->s->checks_count && r == 0; i++) {
		struct scenario_check *c = &l->s->checks[i];

		c->min = c->min == strtod(SCENARIO_UNSET_MIN, NULL) ? NAN : c->min;
		c->max = c->max == strtod(SCENARIO_UNSET_MAX, NULL) ? NAN : c->max;
	}
	return r;
}

static int decode(json_t *json, const struct yaml_lines *lines, const char *dir,
		  struct scenario *ret, struct diag *diag)
{
	struct loading l = { .s = ret, .lines = lines, .dir = dir, .root = json, .diag = diag };
	int r = schema_decode(&scenario_schema, json, SCHEMA_STRICT, lines, ret, diag);

	if (r < 0)
		return r;
	r = link_all(&l);
	if (r == -ENOMEM)
		(void)diag_set(diag, r, "", "no memory");
	if (r < 0)
		scenario_done(ret);
	return r;
}

int scenario_load(const char *path, struct scenario *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *json = NULL;
	CLEANUP(yaml_lines_free_cleanup) struct yaml_lines *lines = NULL;
	CLEANUP_FREE char *dir = NULL;
	const char *slash = strrchr(path, '/');
	int r = yaml_load(path, &json, &lines, diag);

	if (r < 0)
		return r;
	dir = strndup(path, slash ? (size_t)(slash - path) : 0);
	if (!dir)
		return diag_set(diag, -ENOMEM, path, "no memory");
	return decode(json, lines, dir, ret, diag);
}

int scenario_parse(const char *text, size_t len, const char *name, struct scenario *ret,
		   struct diag *diag)
{
	CLEANUP_JSON json_t *json = NULL;
	CLEANUP(yaml_lines_free_cleanup) struct yaml_lines *lines = NULL;
	int r = yaml_parse(text, len, name, &json, &lines, diag);

	return r < 0 ? r : decode(json, lines, "", ret, diag);
}

void scenario_done(struct scenario *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->topology.machines_count; i++)
		terms_done(&s->topology.machines[i].lend);
	schema_done(&scenario_schema, s);
}

#define FIND(items, count, wanted)                                    \
	do {                                                          \
		for (size_t i = 0; i < (count); i++)                  \
			if ((items)[i].name &&                        \
			    strcmp((items)[i].name, (wanted)) == 0)   \
				return i;                             \
		return SCENARIO_NONE;                                 \
	} while (0)

size_t scenario_machine(const struct scenario *s, const char *name)
{
	FIND(s->topology.machines, s->topology.machines_count, name);
}

size_t scenario_building(const struct scenario *s, const char *name)
{
	FIND(s->topology.buildings, s->topology.buildings_count, name);
}

size_t scenario_host(const struct scenario *s, const char *name)
{
	FIND(s->topology.hosts, s->topology.hosts_count, name);
}

size_t scenario_job(const struct scenario *s, const char *name)
{
	FIND(s->jobs, s->jobs_count, name);
}

size_t scenario_event(const struct scenario *s, const char *name)
{
	FIND(s->events, s->events_count, name);
}

size_t scenario_coordinator_building(const struct scenario *s)
{
	return s->topology.coordinator ? scenario_building(s, s->topology.coordinator) : 0;
}
