/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/forecast.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "coordinator/server.h"
#include "policy/hazard.h"
#include "scenario/terms.h"

#define ALIVE_KEY "observed-alive"
#define ALIVE_EVERY_MS 60000
#define FIT_EVERY_S (6 * 3600.0)
#define TRIM_EVERY_MS (UINT64_C(24) * 3600 * 1000)
#define MEAN_OVER_S 3600.0

struct machine {
	char node[CONTROL_NAME_MAX + 1];
	char place[2 * CONTROL_NAME_MAX + 2];
	int utc_offset_s;
	uint32_t owner;          /* in the model */
	enum hazard_state state; /* as observed last */
	uint64_t silent_ms;      /* its agent went at this time; 0 = connected, or counted already */
};

struct forecast {
	struct store *store;
	struct hazard *model;
	struct map *machines; /* node -> struct machine */
	struct map *rooms;    /* place -> 1 + room */
	uint64_t alive_ms, trimmed_ms;
};

static double seconds(uint64_t wall_ms)
{
	return (double)wall_ms / 1e3;
}

static uint32_t room_of(struct forecast *f, const char *place)
{
	uintptr_t known = (uintptr_t)map_get_str(f->rooms, place);
	uint32_t room = 0;
	if (known)
		return (uint32_t)(known - 1);
	if (hazard_room_add(f->model, &room) == 0)
		(void)map_set_str(f->rooms, place, (void *)((uintptr_t)room + 1), NULL); /* else again */
	return room;
}

static struct machine *machine_of(struct forecast *f, const char *node, const char *place,
				  int utc_offset_s)
{
	struct machine *m = map_get_str(f->machines, node);
	if (m)
		return m;
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	snprintf(m->node, sizeof(m->node), "%s", node);
	snprintf(m->place, sizeof(m->place), "%s", place);
	m->utc_offset_s = utc_offset_s;
	if (hazard_owner_add(f->model, room_of(f, place), utc_offset_s, &m->owner) < 0 ||
	    map_set_str(f->machines, node, m, NULL) < 0) {
		free(m);
		return NULL;
	}
	return m;
}

/* ---- records ---- */

/* observed/<ms, 15 digits>.<node> = {"s": state, "p": place, "z": offset} */
static int replay(void *user, const struct store_kv *kv)
{
	struct forecast *f = user;
	unsigned long long ms;
	char node[CONTROL_NAME_MAX + 1];
	if (sscanf(kv->key, "observed/%15llu.%64s", &ms, node) != 2)
		return 0;
	CLEANUP_JSON json_t *in = json_loadb(kv->value, kv->value_len, 0, NULL);
	const char *place = json_string_value(json_object_get(in, "p"));
	json_int_t state = json_integer_value(json_object_get(in, "s"));
	struct machine *m = machine_of(f, node, place ? place : "",
				       (int)json_integer_value(json_object_get(in, "z")));
	if (!m)
		return -ENOMEM;
	if (state < 0 || state >= HAZARD_STATE_COUNT)
		return 0;
	m->state = (enum hazard_state)state;
	(void)hazard_observe(f->model, m->owner, seconds(ms), m->state); /* only exposure could be lost */
	return 0;
}

static int record(struct forecast *f, const struct machine *m, uint64_t wall_ms)
{
	char key[160];
	struct store_txn t = STORE_TXN_INIT;
	CLEANUP_JSON json_t *value = json_pack("{s:i,s:s,s:i}", "s", (int)m->state, "p",
					       m->place, "z", m->utc_offset_s);
	CLEANUP_FREE char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	if (!text)
		return -ENOMEM;
	snprintf(key, sizeof(key), "observed/%015llu.%s", (unsigned long long)wall_ms, m->node);
	store_put(&t, key, text, strlen(text));
	return store_commit(f->store, &t, NULL);
}

static void all_gone(struct forecast *f, double now_s)
{
	const void *key;
	size_t len;
	void *value;
	for (size_t i = 0; map_next(f->machines, &i, &key, &len, &value);) {
		struct machine *m = value;
		m->state = HAZARD_GONE;
		(void)hazard_observe(f->model, m->owner, now_s, HAZARD_GONE);
	}
}

int forecast_open(struct store *store, uint64_t wall_ms, struct forecast **ret, struct diag *diag)
{
	struct forecast *f = calloc(1, sizeof(*f));
	const struct hazard_config config = { .monday_s = HAZARD_MONDAY_UNIX,
					      .fit_every_s = FIT_EVERY_S, .seed = 1 };
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	uint64_t alive_ms = 0;
	if (!f)
		return -ENOMEM;
	f->store = store;
	int r = hazard_new(&config, &f->model);
	if (r == 0)
		r = map_new(&f->machines);
	if (r == 0)
		r = map_new(&f->rooms);
	if (r == 0)
		r = store_list(store, "observed/", replay, f);
	if (r == 0 && store_get(store, ALIVE_KEY, &kv) == 0)
		(void)parse_u64(kv.value, &alive_ms); /* 0: no such mark yet */
	if (r < 0) {
		forecast_close(f);
		return diag_set(diag, r, "store", "owners' history cannot be read: %s", strerror(-r));
	}
	/* From the last mark until now nobody looked. A clock that was set back looks the same. */
	all_gone(f, seconds(MIN(alive_ms, wall_ms)));
	(void)hazard_fit(f->model, seconds(wall_ms)); /* without: the prior */
	*ret = f;
	return 0;
}

void forecast_close(struct forecast *f)
{
	const void *key;
	size_t len;
	void *value;
	if (!f)
		return;
	for (size_t i = 0; f->machines && map_next(f->machines, &i, &key, &len, &value);)
		free(value);
	map_free(f->machines);
	map_free(f->rooms);
	hazard_free(f->model);
	free(f);
}

/* ---- what agents say ---- */

/* Parts of the week in which it is declared not to be lent, by the rule of the lend terms. */
static size_t declared(const json_t *schedule, struct hazard_span *ret)
{
	struct terms terms = { 0 };
	CLEANUP_JSON json_t *in = json_pack("{s:O}", "schedule", schedule);
	size_t count = 0;
	/* Minute by minute through the terms' own rule: it knows both lists and what wins. */
	if (!in || schema_decode(&terms_schema, in, SCHEMA_OPEN, NULL, &terms, NULL) < 0)
		return 0;
	for (unsigned at = 0; at < TERMS_WEEK_MINUTES && count < HAZARD_DECLARED_MAX;) {
		unsigned step = terms_change_in(&terms, at);
		unsigned end = step ? MIN(at + step, (unsigned)TERMS_WEEK_MINUTES) : TERMS_WEEK_MINUTES;
		if (!terms_lendable(&terms, at))
			ret[count++] = (struct hazard_span){ at * 60.0, end * 60.0 };
		at = end;
	}
	terms_done(&terms);
	return count;
}

int forecast_node(struct forecast *f, const char *node, const char *place, int utc_offset_s,
		  const json_t *schedule)
{
	struct hazard_span spans[HAZARD_DECLARED_MAX];
	struct machine *m = machine_of(f, node, place, utc_offset_s);
	if (!m)
		return -ENOMEM;
	m->utc_offset_s = utc_offset_s;
	hazard_owner_zone(f->model, m->owner, utc_offset_s);
	return hazard_declare(f->model, m->owner, spans, schedule ? declared(schedule, spans) : 0);
}

static int change(struct forecast *f, struct machine *m, enum hazard_state state, uint64_t wall_ms)
{
	if (m->state == state)
		return 0;
	m->state = state;
	int r = hazard_observe(f->model, m->owner, seconds(wall_ms), state);
	int stored = record(f, m, wall_ms);
	return r < 0 ? r : stored;
}

int forecast_observe(struct forecast *f, const char *node, int state, bool up, uint64_t wall_ms)
{
	struct machine *m = machine_of(f, node, "", 0);
	if (!m)
		return -ENOMEM;
	if (!up) {
		/* A cable that is out for a moment is no power-off. */
		if (!m->silent_ms)
			m->silent_ms = wall_ms;
		return 0;
	}
	m->silent_ms = 0;
	return change(f, m, state == CONTROL_OWNER_LENT ? HAZARD_LENT : HAZARD_OWNED, wall_ms);
}

static int too_old(void *user, const struct store_kv *kv)
{
	struct store_txn *t = user;
	if (t->count >= STORE_TXN_MAX - 1)
		return 1;
	store_delete(t, kv->key);
	return 0;
}

/* Drops what the model forgets anyway: whole days older than FORECAST_KEEP_S. */
static void trim(struct forecast *f, uint64_t wall_ms)
{
	char prefix[32];
	uint64_t day_ms = wall_ms > FORECAST_KEEP_S * 1000 ? wall_ms - FORECAST_KEEP_S * 1000 : 0;
	if (wall_ms - f->trimmed_ms < TRIM_EVERY_MS || day_ms == 0)
		return;
	f->trimmed_ms = wall_ms;
	/* The key's first digits are the time's: 10^8 ms are a good day. */
	snprintf(prefix, sizeof(prefix), "observed/%07llu", (unsigned long long)(day_ms / 100000000));
	struct store_txn t = STORE_TXN_INIT;
	if (store_list(f->store, prefix, too_old, &t) >= 0 && t.count > 0)
		(void)store_commit(f->store, &t, NULL); /* again tomorrow */
	store_txn_done(&t);
}

void forecast_tick(struct forecast *f, uint64_t wall_ms)
{
	const void *key;
	size_t len;
	void *value;
	char text[24];
	for (size_t i = 0; map_next(f->machines, &i, &key, &len, &value);) {
		struct machine *m = value;
		if (m->silent_ms && wall_ms - m->silent_ms > FORECAST_OFF_AFTER_S * 1000) {
			m->silent_ms = 0;
			if (m->state != HAZARD_GONE)
				(void)change(f, m, HAZARD_OFF, wall_ms); /* the model knows; the record may lack */
		}
	}
	if (wall_ms - f->alive_ms < ALIVE_EVERY_MS)
		return;
	f->alive_ms = wall_ms;
	struct store_txn t = STORE_TXN_INIT;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)wall_ms);
	store_put(&t, ALIVE_KEY, text, strlen(text));
	(void)store_commit(f->store, &t, NULL); /* a restart then looks back less far */
	trim(f, wall_ms);
}

/* ---- answers ---- */

static double mean_rate(struct forecast *f, const struct machine *m, uint64_t wall_ms)
{
	double ahead[12], sum = 0;
	hazard_curve(f->model, m->owner, seconds(wall_ms), MEAN_OVER_S / 12, 12, ahead);
	for (size_t i = 0; i < 12; i++)
		sum += ahead[i];
	return sum / 12;
}

double forecast_rate(struct forecast *f, const char *node, uint64_t wall_ms)
{
	const struct machine *m = map_get_str(f->machines, node);
	return m ? mean_rate(f, m, wall_ms) : 0;
}

void forecast_each(struct forecast *f, uint64_t wall_ms,
		   void (*fn)(void *user, const char *node, double per_s), void *user)
{
	const void *key;
	size_t len;
	void *value;
	for (size_t i = 0; map_next(f->machines, &i, &key, &len, &value);) {
		const struct machine *m = value;
		fn(user, m->node, mean_rate(f, m, wall_ms));
	}
}

static json_t *reasons(struct forecast *f, const struct machine *m, double now_s,
		       struct strbuf *text)
{
	struct hazard_reason list[HAZARD_REASONS_MAX];
	double base = 0;
	size_t n = hazard_explain(f->model, m->owner, now_s, list, &base);
	json_t *out = json_array();
	strbuf_printf(text, "A machine of this campus is wanted back %.2f times a day on average.\n",
		      base * 86400);
	for (size_t i = 0; i < n; i++) {
		json_array_append_new(out, json_pack("{s:s,s:f,s:f,s:f}", "name", list[i].name, "factor",
						     list[i].factor, "seen", list[i].seen, "expected",
						     list[i].expected));
		if (i < 4 && fabs(log(list[i].factor)) > 0.05)
			strbuf_printf(text, "  %s: x %.2f (%.1f seen, %.1f expected)\n", list[i].name,
				      list[i].factor, list[i].seen, list[i].expected);
	}
	return out;
}

json_t *forecast_explain(struct forecast *f, const char *node, uint64_t wall_ms, uint64_t horizon_s)
{
	const struct machine *m = map_get_str(f->machines, node);
	static const char *const states[] = { "unknown", "lent", "owned", "off" };
	struct hazard_rate rate;
	struct hazard_forecast ahead;
	struct hazard_evidence evidence;
	CLEANUP_STRBUF struct strbuf text = STRBUF_INIT;
	char span[FORMAT_MAX];
	double now_s = seconds(wall_ms);
	if (!m)
		return NULL;
	hazard_rate(f->model, m->owner, now_s, &rate);
	hazard_forecast(f->model, m->owner, now_s, (double)horizon_s, &ahead);
	hazard_evidence(f->model, m->owner, &evidence);
	strbuf_printf(&text,
		      "%s is %s. Within %s its owner takes it back with probability %.0f %%; it goes off "
		      "with %.0f %%; it stays with %.0f %% (%.0f to %.0f).\n",
		      node, states[m->state], format_duration(horizon_s * NS_PER_S, span),
		      ahead.p_reclaim * 100, ahead.p_off * 100, ahead.survival * 100, ahead.low * 100,
		      ahead.high * 100);
	if (isfinite(ahead.declared_in_s))
		strbuf_printf(&text, "Its schedule ends lending in %s.\n",
			      format_duration((uint64_t)ahead.declared_in_s * NS_PER_S, span));
	strbuf_printf(&text, "Known of it: %.1f h lent, %llu reclaims (campus: %llu).\n",
		      evidence.exposed_s / 3600, (unsigned long long)evidence.reclaims,
		      (unsigned long long)evidence.campus_reclaims);
	json_t *why = reasons(f, m, now_s, &text);
	return json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:f,s:I,s:o,s:s}", "node", node,
			 "state", states[m->state], "horizon_s", (double)horizon_s, "reclaims_per_day",
			 rate.per_s * 86400, "low_per_day", rate.low * 86400, "high_per_day",
			 rate.high * 86400, "p_reclaim", ahead.p_reclaim, "p_off", ahead.p_off, "survival",
			 ahead.survival, "survival_low", ahead.low, "survival_high", ahead.high,
			 "declared_in_s",
			 isfinite(ahead.declared_in_s) ? json_real(ahead.declared_in_s) : json_null(),
			 "exposed_s", evidence.exposed_s, "reclaims", (json_int_t)evidence.reclaims,
			 "reasons", why, "text", text.data ? text.data : "");
}
