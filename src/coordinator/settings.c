/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a campus operator changes while it runs: the stop switch, the cap on
 * floors, blackout hours, and who is in which group of users (owners' terms may
 * admit groups). One record in the store, so that a restart forgets
 * nothing; blackout hours are local time of this machine, looked at once a
 * minute.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/server.h"
#include "scenario/terms.h"

#define SETTINGS_KEY "settings"
#define SPANS_MAX 64
#define GROUPS_MAX 1000
#define MEMBERS_MAX 10000

struct group {
	char *name;
	char **people;
	size_t people_count;
};

struct settings_record {
	bool stop_all;
	bool floor_cap_set;
	uint64_t floor_cap;
	struct terms_span *blackout;
	size_t blackout_count;
	struct group *groups;
	size_t groups_count;
};

static const struct schema_field group_fields[] = {
	FIELD_STR(struct group, name, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_STRLIST(struct group, people, IDENTITY_NAME_MAX, MEMBERS_MAX, .help = "enrolled names"),
	FIELD_END,
};
static const struct schema group_schema = SCHEMA(struct group, "group", group_fields);

static const struct schema_field span_fields[] = {
	FIELD_STRLIST(struct terms_span, days, 3, 7, .help = "mon ... sun; none = every day"),
	FIELD_STR(struct terms_span, from, 5, .flags = FIELD_REQUIRED, .help = "HH:MM"),
	FIELD_STR(struct terms_span, to, 5, .flags = FIELD_REQUIRED, .help = "HH:MM, up to 24:00"),
	FIELD_END,
};
static const struct schema span_schema = SCHEMA(struct terms_span, "span", span_fields);

static const struct schema_field settings_fields[] = {
	FIELD_BOOL(struct settings_record, stop_all, .help = "no packet of ours but control"),
	FIELD_BOOL(struct settings_record, floor_cap_set, .help = "an admin set the cap"),
	FIELD_RATE(struct settings_record, floor_cap, 0, 1e13, .help = "bit/s, sum of all floors"),
	FIELD_LIST(struct settings_record, blackout, &span_schema, SPANS_MAX,
		   .help = "hours without floors"),
	FIELD_LIST(struct settings_record, groups, &group_schema, GROUPS_MAX,
		   .help = "of users, for owners' terms"),
	FIELD_END,
};
static const struct schema settings_schema =
	SCHEMA(struct settings_record, "settings", settings_fields);

struct settings {
	struct coordinator *c;
	struct settings_record now;
	struct loop_timer minute;
};

static bool minute_of(const char *text, unsigned *ret)
{
	unsigned h, m;
	char rest;
	if (sscanf(text, "%2u:%2u%c", &h, &m, &rest) != 2 || m > 59 || h * 60 + m > 24 * 60)
		return false;
	*ret = h * 60 + m;
	return true;
}

static int day_of(const char *text)
{
	static const char *const days[] = { "mon", "tue", "wed", "thu", "fri", "sat", "sun" };
	for (int i = 0; i < 7; i++)
		if (strcmp(text, days[i]) == 0)
			return i;
	return -1;
}

/* week_minute: 0 = Monday 00:00. A span whose end is not after its start reaches into the next day. */
static bool span_holds(const struct terms_span *s, unsigned week_minute)
{
	unsigned from, to, day = week_minute / 1440, minute = week_minute % 1440;
	if (!minute_of(s->from, &from) || !minute_of(s->to, &to))
		return false;
	for (unsigned back = 0; back < 2; back++) {
		unsigned begun_on = (day + 7 - back) % 7, at = minute + back * 1440;
		unsigned end = to > from ? to : to + 1440;
		bool on = s->days_count == 0;
		for (size_t i = 0; i < s->days_count; i++)
			on = on || day_of(s->days[i]) == (int)begun_on;
		if (on && at >= from && at < end)
			return true;
	}
	return false;
}

static int span_check(const struct terms_span *s, struct diag *diag)
{
	unsigned minute;
	if (!minute_of(s->from, &minute))
		return diag_set(diag, -EINVAL, "blackout.from", "\"%s\" is not HH:MM", s->from);
	if (!minute_of(s->to, &minute))
		return diag_set(diag, -EINVAL, "blackout.to", "\"%s\" is not HH:MM", s->to);
	for (size_t i = 0; i < s->days_count; i++)
		if (day_of(s->days[i]) < 0)
			return diag_set(diag, -EINVAL, "blackout.days", "\"%s\" is not mon ... sun",
					s->days[i]);
	return 0;
}

static bool blackout_now(const struct settings *s)
{
	time_t now = time(NULL);
	struct tm local;
	if (!localtime_r(&now, &local))
		return false;
	unsigned week_minute = terms_week_minute(&local);
	for (size_t i = 0; i < s->now.blackout_count; i++)
		if (span_holds(&s->now.blackout[i], week_minute))
			return true;
	return false;
}

static void apply(struct settings *s)
{
	struct engine *e = s->c->engine;
	engine_stop_all(e, s->now.stop_all);
	engine_floor_cap(e, s->now.floor_cap_set ? s->now.floor_cap : s->c->config->floors);
	engine_blackout(e, blackout_now(s));
	if (s->c->http)
		coordinator_poke(s->c);
}

static void minute_passed(void *user)
{
	struct settings *s = user;
	engine_blackout(s->c->engine, blackout_now(s));
	coordinator_poke(s->c);
	(void)loop_timer_in(&s->minute, 60 * NS_PER_S);
}

/* Stores `next` and, once it is durable, makes it what holds. Takes next in either case. */
static int change(struct settings *s, struct settings_record *next, struct diag *diag)
{
	CLEANUP_JSON json_t *out = schema_encode(&settings_schema, next);
	CLEANUP_FREE char *text = out ? json_dumps(out, JSON_COMPACT) : NULL;
	struct store_txn t = STORE_TXN_INIT;
	int r = text ? 0 : -ENOMEM;
	if (r == 0) {
		store_put(&t, SETTINGS_KEY, text, strlen(text));
		r = store_commit(s->c->store, &t, NULL);
	}
	if (r < 0) {
		schema_done(&settings_schema, next);
		return diag_set(diag, r, "settings", "cannot be stored: %s", strerror(-r));
	}
	schema_done(&settings_schema, &s->now);
	s->now = *next;
	apply(s);
	return 0;
}

/* A copy of what holds, to be changed. */
static int copy(const struct settings *s, struct settings_record *ret)
{
	CLEANUP_JSON json_t *out = schema_encode(&settings_schema, &s->now);
	return out ? schema_decode(&settings_schema, out, SCHEMA_OPEN, NULL, ret, NULL) : -ENOMEM;
}

int settings_open(struct coordinator *c, struct settings **ret, struct diag *diag)
{
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	struct settings *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->c = c;
	loop_timer_init(&s->minute, c->loop, minute_passed, s);
	int r = store_get(c->store, SETTINGS_KEY, &kv);
	if (r == 0) {
		CLEANUP_JSON json_t *in = json_loadb(kv.value, kv.value_len, 0, NULL);
		r = in ? schema_decode(&settings_schema, in, SCHEMA_OPEN, NULL, &s->now, diag) : -EBADMSG;
	} else if (r == -ENOENT) {
		r = 0;
	}
	if (r == 0)
		r = loop_timer_in(&s->minute, 60 * NS_PER_S);
	if (r < 0) {
		settings_close(s);
		return diag_set(diag, r, "settings", "cannot be read from the store: %s", strerror(-r));
	}
	apply(s);
	*ret = s;
	return 0;
}

void settings_close(struct settings *s)
{
	if (!s)
		return;
	loop_timer_stop(&s->minute);
	schema_done(&settings_schema, &s->now);
	free(s);
}

json_t *settings_show(struct settings *s)
{
	json_t *out = schema_encode(&settings_schema, &s->now);
	uint64_t cap = s->now.floor_cap_set ? s->now.floor_cap : s->c->config->floors;
	if (out) {
		json_object_set_new(out, "blackout_now", json_boolean(blackout_now(s)));
		json_object_set_new(out, "floor_cap", json_sprintf("%llu", (unsigned long long)cap));
	}
	return out;
}

int settings_stop_all(struct settings *s, bool on, struct diag *diag)
{
	struct settings_record next;
	int r = copy(s, &next);
	if (r < 0)
		return diag_set(diag, r, "settings", "%s", strerror(-r));
	next.stop_all = on;
	log_warn("stop-all is %s", on ? "on: no packet of ours but control" : "off");
	return change(s, &next, diag);
}

int settings_floor_cap(struct settings *s, uint64_t bits_per_s, struct diag *diag)
{
	struct settings_record next;
	int r = copy(s, &next);
	if (r < 0)
		return diag_set(diag, r, "settings", "%s", strerror(-r));
	next.floor_cap_set = true;
	next.floor_cap = bits_per_s;
	return change(s, &next, diag);
}

int settings_blackout(struct settings *s, json_t *spans, struct diag *diag)
{
	struct settings_record next, given;
	CLEANUP_JSON json_t *in = json_pack("{s:O}", "blackout", spans);
	int r = in ? schema_decode(&settings_schema, in, SCHEMA_STRICT, NULL, &given, diag) : -ENOMEM;
	if (r < 0)
		return r;
	for (size_t i = 0; r == 0 && i < given.blackout_count; i++)
		r = span_check(&given.blackout[i], diag);
	if (r == 0)
		r = copy(s, &next);
	if (r < 0) {
		schema_done(&settings_schema, &given);
		return r;
	}
	given.stop_all = next.stop_all;
	given.floor_cap_set = next.floor_cap_set;
	given.floor_cap = next.floor_cap;
	given.groups = next.groups;
	given.groups_count = next.groups_count;
	next.groups = NULL;
	next.groups_count = 0;
	schema_done(&settings_schema, &next);
	return change(s, &given, diag);
}

bool settings_in_group(const struct settings *s, const char *group, const char *person)
{
	for (size_t i = 0; s && i < s->now.groups_count; i++) {
		const struct group *g = &s->now.groups[i];
		if (strcmp(g->name, group) != 0)
			continue;
		for (size_t k = 0; k < g->people_count; k++)
			if (strcmp(g->people[k], person) == 0)
				return true;
	}
	return false;
}

/* The groups without this one, and with it if it has anybody, as JSON for the schema to check. */
int settings_group(struct settings *s, const char *name, json_t *people, struct diag *diag)
{
	CLEANUP_JSON json_t *out = schema_encode(&settings_schema, &s->now);
	json_t *groups = json_object_get(out, "groups"), *g;
	struct settings_record next;
	size_t i;
	int r = 0;
	if (!identity_name_is_valid(name))
		return diag_set(diag, -EINVAL, "name", "\"%.80s\" is no name", name);
	json_array_foreach(people, i, g)
		if (!json_is_string(g) || !identity_name_is_valid(json_string_value(g)))
			return diag_set(diag, -EINVAL, "people", "\"%.80s\" is no name",
					json_is_string(g) ? json_string_value(g) : "?");
	if (out && !groups) {
		groups = json_array();
		(void)json_object_set_new(out, "groups", groups);
	}
	for (i = 0; i < json_array_size(groups);) {
		g = json_array_get(groups, i);
		if (strcmp(json_string_value(json_object_get(g, "name")), name) == 0)
			(void)json_array_remove(groups, i);
		else
			i++;
	}
	if (json_array_size(people) &&
	    json_array_append_new(groups, json_pack("{s:s,s:O}", "name", name, "people", people)) < 0)
		r = diag_set(diag, -ENOMEM, "settings", "out of memory");
	if (r == 0)
		r = out ? schema_decode(&settings_schema, out, SCHEMA_OPEN, NULL, &next, diag) : -ENOMEM;
	return r < 0 ? r : change(s, &next, diag);
}
