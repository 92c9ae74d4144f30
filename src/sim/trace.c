/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/trace.h"

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

DEFINE_CLEANUP(struct map *, map_free)

#define FIELDS_MAX 8
#define FIELD_LEN 64

struct reader {
	const char *text, *end, *name;
	unsigned line;
	char fields[FIELDS_MAX][FIELD_LEN];
	size_t count;
	struct diag *diag;
};

static int fail(struct reader *r, const char *what, const char *value)
{
	char where[DIAG_WHERE_MAX];
	snprintf(where, sizeof(where), "%.200s:%u", r->name, r->line);
	return diag_set(r->diag, -EINVAL, where, "%s: '%.40s'", what, value);
}

/* 1: a line in fields; 0: the end; or an error. Comments and empty lines are skipped. */
static int next_line(struct reader *r)
{
	while (r->text < r->end) {
		const char *eol = memchr(r->text, '\n', (size_t)(r->end - r->text));
		const char *stop = eol ? eol : r->end, *p = r->text;
		r->text = eol ? eol + 1 : r->end;
		r->line++;
		if (stop > p && stop[-1] == '\r')
			stop--;
		if (stop == p || *p == '#')
			continue;
		r->count = 0;
		for (;;) {
			const char *comma = memchr(p, ',', (size_t)(stop - p));
			const char *field_end = comma ? comma : stop;
			size_t len = (size_t)(field_end - p);
			if (r->count == FIELDS_MAX)
				return fail(r, "more than 8 fields", "");
			if (len >= FIELD_LEN)
				return fail(r, "a field is too long", "");
			memcpy(r->fields[r->count], p, len);
			r->fields[r->count++][len] = 0;
			if (!comma)
				break;
			p = comma + 1;
		}
		return 1;
	}
	return 0;
}

static int number(struct reader *r, size_t field, double max, double *ret)
{
	double v;
	if (field >= r->count)
		return fail(r, "a field is missing", "");
	if (parse_double(r->fields[field], &v) < 0 || !(v >= 0 && v <= max))
		return fail(r, "not a number in range", r->fields[field]);
	*ret = v;
	return 0;
}

static int machine_ensure(struct trace *t, uint32_t machine)
{
	while (t->machines.count <= machine) {
		struct trace_machine m = { .first_s = INFINITY, .last_s = -INFINITY };
		int r = VEC_PUSH(&t->machines, m);
		if (r < 0)
			return r;
	}
	return 0;
}

static int event_add(struct trace *t, double at_s, uint32_t machine, enum hazard_state state)
{
	struct trace_event e = { .t_s = at_s, .machine = machine, .state = (uint8_t)state };
	int r = machine_ensure(t, machine);
	if (r == 0)
		r = VEC_PUSH(&t->events, e);
	if (r == 0) {
		struct trace_machine *m = &t->machines.data[machine];
		m->first_s = fmin(m->first_s, at_s);
		m->last_s = fmax(m->last_s, at_s);
		t->end_s = fmax(t->end_s, at_s);
	}
	return r;
}

static int read_campus(struct reader *r, struct trace *t, bool keep_edges)
{
	int got;
	while ((got = next_line(r)) > 0) {
		double at, machine;
		int e = number(r, 0, 1e11, &at);
		if (e == 0)
			e = number(r, 1, TRACE_MACHINES_MAX - 1, &machine);
		if (e < 0)
			return e;
		const char *s = r->count > 2 ? r->fields[2] : "";
		enum hazard_state state;
		if (!strcmp(s, "A") || !strcmp(s, "R"))
			state = HAZARD_LENT;
		else if (!strcmp(s, "U"))
			state = HAZARD_OWNED;
		else if (!strcmp(s, "O"))
			state = HAZARD_OFF;
		else
			return fail(r, "a state is one of A, U, O, R", s);
		/* Rows at 0 repeat a state of before: the machine shows itself at its first change. */
		if (at == 0 && !keep_edges) {
			e = machine_ensure(t, (uint32_t)machine);
			if (e < 0)
				return e;
			continue;
		}
		e = event_add(t, at, (uint32_t)machine, state);
		if (e < 0)
			return e;
	}
	return got;
}

/* The counts name no GPU: a free one is handed back at the lowest number, as schedulers do. */
static int read_lab(struct reader *r, struct trace *t)
{
	uint32_t idle = 0;
	int got;
	t->rooms_count = 1;
	while ((got = next_line(r)) > 0) {
		double minute, free_count;
		int e = number(r, 0, 1e9, &minute);
		if (e == 0)
			e = number(r, 3, TRACE_MACHINES_MAX - 1, &free_count);
		uint32_t now = e == 0 ? (uint32_t)free_count : 0;
		while (e == 0 && idle < now)
			e = event_add(t, minute * 60, idle++, HAZARD_LENT);
		while (e == 0 && idle > now)
			e = event_add(t, minute * 60, --idle, HAZARD_OWNED);
		if (e < 0)
			return e;
	}
	return got;
}

static int name_index(struct map *names, const char *name, uint32_t *ret)
{
	void *found = map_get_str(names, name);
	if (!found) {
		found = (void *)(uintptr_t)(map_count(names) + 1);
		int r = map_set_str(names, name, found, NULL);
		if (r < 0)
			return r;
	}
	*ret = (uint32_t)((uintptr_t)found - 1);
	return 0;
}

/* Sets are recorded one after the other, so each starts where the last one ended. */
static int read_spot(struct reader *r, struct trace *t, struct map *names)
{
	int got;
	char set[FIELD_LEN] = "";
	double shift = 0, set_end = 0;
	CLEANUP_FREE double *ends = NULL; /* where each zone's record ends so far */
	size_t ends_count = 0, ends_cap = 0;
	while ((got = next_line(r)) > 0) {
		double from, to, up;
		int e = number(r, 5, 1e11, &from);
		if (e == 0)
			e = number(r, 6, 1e11, &to);
		if (e == 0)
			e = number(r, 7, 1e6, &up);
		if (e < 0)
			return e;
		if (strcmp(r->fields[0], "availability"))
			continue;
		if (strcmp(set, r->fields[2])) {
			snprintf(set, sizeof(set), "%s", r->fields[2]);
			shift = set_end;
		}
		char name[3 * FIELD_LEN];
		uint32_t zone;
		snprintf(name, sizeof(name), "%s/%s", r->fields[1], r->fields[3]);
		e = name_index(names, name, &zone);
		if (e == 0)
			e = vec_reserve((void **)&ends, &ends_cap, zone + 1u, sizeof(*ends));
		if (e < 0)
			return e;
		/* In a gap of the record nothing is known. */
		if (zone == ends_count)
			ends_count++;
		else if (ends[zone] < shift + from)
			e = event_add(t, ends[zone], zone, HAZARD_GONE);
		ends[zone] = shift + to;
		if (e == 0)
			e = event_add(t, shift + from, zone, up > 0 ? HAZARD_LENT : HAZARD_OWNED);
		if (e < 0)
			return e;
		set_end = fmax(set_end, shift + to);
	}
	for (uint32_t z = 0; got == 0 && z < ends_count; z++)
		got = event_add(t, ends[z], z, HAZARD_GONE);
	t->rooms_count = 1;
	return got;
}

static int read_nodes(struct reader *r, struct trace *t, struct map *names)
{
	t->rooms_count = 1;
	do {
		double ms;
		uint32_t node;
		int e = number(r, 0, 1e14, &ms);
		if (e == 0 && r->count < 3)
			e = fail(r, "a field is missing", "");
		if (e == 0)
			e = name_index(names, r->fields[2], &node);
		if (e < 0)
			return e;
		bool add = !strcmp(r->fields[1], "add");
		if (!add && strcmp(r->fields[1], "remove"))
			return fail(r, "neither add nor remove", r->fields[1]);
		e = event_add(t, ms / 1000, node, add ? HAZARD_LENT : HAZARD_OWNED);
		if (e < 0)
			return e;
		e = next_line(r);
		if (e <= 0)
			return e;
	} while (true);
}

static int read_rooms(struct reader *r, struct trace *t)
{
	CLEANUP(map_free_cleanup) struct map *rooms = NULL;
	int got = map_new(&rooms);
	if (got < 0)
		return got;
	while ((got = next_line(r)) > 0) {
		double machine;
		uint32_t room;
		if (!strcmp(r->fields[0], "m"))
			continue;
		int e = number(r, 0, TRACE_MACHINES_MAX - 1, &machine);
		if (e == 0 && r->count < 2)
			e = fail(r, "a field is missing", "");
		if (e == 0)
			e = name_index(rooms, r->fields[1], &room);
		if (e < 0)
			return e;
		if (machine < (double)t->machines.count)
			t->machines.data[(size_t)machine].room = room + 1;
	}
	t->rooms_count = (uint32_t)map_count(rooms) + 1;
	return got;
}

struct keyed {
	struct trace_event e;
	size_t order;
};

static int keyed_order(const void *a, const void *b)
{
	const struct keyed *x = a, *y = b;
	if (x->e.t_s != y->e.t_s)
		return x->e.t_s < y->e.t_s ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static int sort_events(struct trace *t)
{
	CLEANUP_FREE struct keyed *k = malloc((t->events.count + 1) * sizeof(*k));
	if (!k)
		return -ENOMEM;
	for (size_t i = 0; i < t->events.count; i++)
		k[i] = (struct keyed){ t->events.data[i], i };
	qsort(k, t->events.count, sizeof(*k), keyed_order);
	for (size_t i = 0; i < t->events.count; i++)
		t->events.data[i] = k[i].e;
	return 0;
}

static int read_any(struct reader *r, struct trace *t, bool keep_edges)
{
	CLEANUP(map_free_cleanup) struct map *names = NULL;
	int got = map_new(&names);
	if (got == 0)
		got = next_line(r);
	if (got < 0)
		return got;
	if (got == 0)
		return fail(r, "no data", "");
	if (r->count == 3 && !strcmp(r->fields[0], "t"))
		return read_campus(r, t, keep_edges);
	if (!strcmp(r->fields[0], "minute"))
		return read_lab(r, t);
	if (!strcmp(r->fields[0], "kind"))
		return read_spot(r, t, names);
	if (r->count == 3)
		return read_nodes(r, t, names);
	return fail(r, "not a trace format that is known", r->fields[0]);
}

int trace_parse(const char *text, size_t len, const char *machines, size_t machines_len,
		const char *name, bool keep_edges, struct trace *ret, struct diag *diag)
{
	struct trace t = TRACE_INIT;
	struct reader r = { .text = text, .end = text + len, .name = name, .diag = diag };
	t.rooms_count = 1;
	int e = read_any(&r, &t, keep_edges);
	if (e == 0 && machines) {
		struct reader m = { .text = machines,
				    .end = machines + machines_len,
				    .name = "machines",
				    .diag = diag };
		e = read_rooms(&m, &t);
	}
	if (e == 0)
		e = sort_events(&t);
	if (e < 0) {
		trace_done(&t);
		return e;
	}
	*ret = t;
	return 0;
}

int trace_load(const char *path, const char *machines_path, bool keep_edges, struct trace *ret,
	       struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	CLEANUP_FREE char *machines = NULL;
	size_t len, machines_len = 0;
	int r = file_read(path, TRACE_FILE_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, path, "%s", strerror(-r));
	if (machines_path) {
		r = file_read(machines_path, TRACE_FILE_MAX, &machines, &machines_len);
		if (r < 0)
			return diag_set(diag, r, machines_path, "%s", strerror(-r));
	}
	return trace_parse(text, len, machines, machines_len, path, keep_edges, ret, diag);
}

void trace_done(struct trace *t)
{
	VEC_DONE(&t->events);
	VEC_DONE(&t->machines);
}
