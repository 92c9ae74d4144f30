/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answering. The rate now is the full product in its mixture. The rate ahead
 * moves along the calendar and the growing age of the session, while what is
 * special about this moment fades, each thing at its own pace, towards the
 * plain model, which says what is normal for that hour.
 */
#include "policy/hazard_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define BAND 1.645 /* 90 % of a normal */

/* The full model's calendar gives way to the plain one's, which follows the level of these days. */
#define STATIC_FADE_S 7200.0
#define LEVEL_FADE_S (6 * 86400.0)

/* How fast what is special now is forgotten, seconds. */
static const double dyn_fade_s[DYN_COUNT] = {
	[TABLE_BURST - TABLE_DYN] = 600,
	[TABLE_ROOM_RECENT - TABLE_DYN] = 5400,
	[TABLE_USE - TABLE_DYN] = 5400,
	[TABLE_LEFT - TABLE_DYN] = 5400,
	[TABLE_LEAVING - TABLE_DYN] = 900,
	[TABLE_CAMPUS_HOUR - TABLE_DYN] = 5400,
	[TABLE_CAMPUS_DAYS - TABLE_DYN] = STATIC_FADE_S,
	[TABLE_OWNER_RECENT - TABLE_DYN] = 20 * 86400,
	[TABLE_SIGNS - TABLE_DYN] = 600,
};

static double owner_age(const struct owner *o, double now_s)
{
	return o->state == HAZARD_LENT ? now_s - o->since_s : 0;
}

static void where_now(struct hazard *h, uint32_t owner, double now_s, struct where *ret)
{
	struct owner *o = &h->owners.data[owner];
	uint8_t dyn[DYN_COUNT];
	hazard_dyn(h, owner, now_s, dyn);
	hazard_where(h, o, owner, hazard_slot(h, o, now_s), hazard_age_bin(owner_age(o, now_s)),
		     o->origin, dyn, ret);
}

/* Seconds until a declared end of lending, 0 inside one, INFINITY if none. */
static double declared_in(const struct hazard *h, const struct owner *o, double now_s)
{
	double w = fmod(now_s - h->config.monday_s + o->offset_s, HAZARD_WEEK_S), best = INFINITY;
	if (w < 0)
		w += HAZARD_WEEK_S;
	for (size_t i = 0; i < o->declared_count; i++) {
		const struct hazard_span *s = &o->declared[i];
		bool inside = s->from_s <= s->to_s ? w >= s->from_s && w < s->to_s :
						     w >= s->from_s || w < s->to_s;
		double in = inside ? 0 : fmod(s->from_s - w + HAZARD_WEEK_S, HAZARD_WEEK_S);
		best = MIN(best, in);
	}
	return best;
}

/* Relative spread (of the logarithm) of the rate: every bin's own, and none below the campus's. */
static double log_spread(const struct hazard *h, const struct where *w)
{
	double var = 1.0 / (h->events[HAZARD_RECLAIM] + 1.0);
	for (int t = 0; t < TABLE_COUNT; t++) {
		const struct table_data *d = &h->tables[t];
		double a = d->strength[MODEL_FULL][HAZARD_RECLAIM];
		if (!h->fitted)
			a = 4;
		var += 1.0 / (d->seen[w->bin[t]] + a);
	}
	return sqrt(var);
}

void hazard_rate(struct hazard *h, uint32_t owner, double now_s, struct hazard_rate *ret)
{
	CHECK(owner < h->owners.count);
	hazard_advance(h, now_s);
	struct where w;
	where_now(h, owner, now_s, &w);
	double rate = hazard_mix(h, HAZARD_RECLAIM,
				 hazard_product(h, MODEL_FULL, HAZARD_RECLAIM, &w), now_s);
	double off = hazard_mix(h, HAZARD_POWER_OFF,
				hazard_product(h, MODEL_PLAIN, HAZARD_POWER_OFF, &w) *
					exp(hazard_off_level(h)),
				now_s);
	double spread = exp(BAND * log_spread(h, &w));
	*ret = (struct hazard_rate){
		.per_s = rate, .low = rate / spread, .high = rate * spread, .off_per_s = off
	};
}

/* The rates ahead as a walk: state that the steps share. */
struct ahead {
	struct hazard *h;
	struct owner *o;
	uint32_t owner;
	double now_s, age_s;
	uint8_t dyn[DYN_COUNT];
	double log_dyn[HAZARD_CAUSE_COUNT][DYN_COUNT]; /* less what is usual */
	double usual[HAZARD_CAUSE_COUNT];
	double mix[EXPERTS];
	/* Ahead the mixture is a geometric mean: of rates that differ a hundredfold between noon
	 * and night, a small share of a constant one must not swamp the night. */
	double constant[HAZARD_CAUSE_COUNT]; /* the experts' part of the log rate */
	double log_off_level;
	double log_level; /* of these days, against the plain model */
};

static void ahead_init(struct ahead *a, struct hazard *h, uint32_t owner, double now_s)
{
	a->h = h;
	a->owner = owner;
	a->o = &h->owners.data[owner];
	a->now_s = now_s;
	a->age_s = owner_age(a->o, now_s);
	hazard_dyn(h, owner, now_s, a->dyn);
	memcpy(a->mix, hazard_weights(h, now_s), sizeof(a->mix));
	a->log_off_level = hazard_off_level(h);
	a->log_level = h->fitted ? log((h->campus_days.seen + 10) / (h->campus_days.expected + 10)) :
				   0;
	for (int c = 0; c < HAZARD_CAUSE_COUNT; c++) {
		a->usual[c] = 0;
		for (int i = 0; i < DYN_COUNT; i++) {
			const struct table_data *d = &h->tables[TABLE_DYN + i];
			double usual = a->dyn[i] == DYN_NONE ? 0 : d->usual[MODEL_FULL][c];
			a->usual[c] += usual;
			a->log_dyn[c][i] = d->log_factor[MODEL_FULL][c][a->dyn[i]] - usual;
		}
		a->constant[c] = 0;
		for (int i = 0; i < EXPERTS_PLAIN; i++)
			if (a->mix[i] > 1e-9)
				a->constant[c] += a->mix[i] *
						  log(h->expert_rate[c][i]);
		if (h->config.constant) {
			a->constant[c] = log(h->expert_rate[c][EXPERTS_PLAIN - 1]);
			a->mix[EXPERTS - 1] = 0;
		}
	}
}

static const struct fade *fade_at(struct hazard *h, double in_s)
{
	struct fade *f = &h->fades[(size_t)(in_s * 0.1) % FADES];
	if (f->in_s == in_s && f->level > 0)
		return f;
	f->in_s = in_s;
	f->calendar = exp(-in_s / STATIC_FADE_S);
	f->level = exp(-in_s / LEVEL_FADE_S);
	for (int i = 0; i < DYN_COUNT; i++)
		f->dyn[i] = exp(-in_s / dyn_fade_s[i]);
	return f;
}

static void ahead_rates(const struct ahead *a, double in_s, double ret[HAZARD_CAUSE_COUNT])
{
	const struct hazard *h = a->h;
	static const uint8_t none[DYN_COUNT];
	struct where w;
	if (a->mix[EXPERTS - 1] < 1e-9) {
		for (int c = 0; c < HAZARD_CAUSE_COUNT; c++)
			ret[c] = exp(a->constant[c]);
		return;
	}
	hazard_where(h, a->o, a->owner, hazard_slot(h, a->o, a->now_s + in_s),
		     hazard_age_bin(a->age_s + in_s), a->o->origin, none, &w);
	const struct fade *fade = fade_at(a->h, in_s);
	for (int c = 0; c < HAZARD_CAUSE_COUNT; c++) {
		double rate = hazard_log_product(h, MODEL_PLAIN, c, &w);
		if (hazard_model_of(c) == MODEL_FULL) {
			double full = hazard_log_product(h, MODEL_FULL, c, &w);
			rate += fade->calendar * (full + a->usual[c] - rate) +
				(1 - fade->calendar) * fade->level * a->log_level;
			for (int i = 0; i < DYN_COUNT; i++)
				rate += fade->dyn[i] * a->log_dyn[c][i];
		} else {
			rate += fade->level * a->log_off_level;
		}
		ret[c] = exp(a->constant[c] + a->mix[EXPERTS - 1] * rate);
	}
	ret[HAZARD_POWER_OFF] = fmax(ret[HAZARD_POWER_OFF],
				     hazard_group_rate(h, &h->rooms.data[a->o->room], a->now_s + in_s));
}

/* A step that is short while things change fast. */
static double step_at(double in_s)
{
	return in_s < 600 ? 60 : in_s < 3600 ? 300 : in_s < 14400 ? 900 : 3600;
}

void hazard_forecast(struct hazard *h, uint32_t owner, double now_s, double horizon_s,
		     struct hazard_forecast *ret)
{
	CHECK(owner < h->owners.count);
	hazard_advance(h, now_s);
	struct ahead a;
	ahead_init(&a, h, owner, now_s);
	double declared = declared_in(h, a.o, now_s);
	double end = MIN(horizon_s, declared), t = 0, survival = 1, p[HAZARD_CAUSE_COUNT] = { 0 };

	while (t < end && survival > 1e-12) {
		double dt = MIN(step_at(t), end - t), rates[HAZARD_CAUSE_COUNT];
		ahead_rates(&a, t + dt / 2, rates);
		double total = rates[0] + rates[1], leave = survival * -expm1(-total * dt);
		for (int c = 0; c < HAZARD_CAUSE_COUNT && total > 0; c++)
			p[c] += leave * rates[c] / total;
		survival -= leave;
		t += dt;
	}
	if (declared < horizon_s) {
		p[HAZARD_RECLAIM] += survival;
		survival = 0;
	}
	struct where w;
	where_now(h, owner, now_s, &w);
	double spread = exp(BAND * log_spread(h, &w));
	*ret = (struct hazard_forecast){
		.p_reclaim = p[HAZARD_RECLAIM],
		.p_off = p[HAZARD_POWER_OFF],
		.survival = MAX(0.0, survival),
		.low = survival > 0 ? pow(survival, spread) : 0,
		.high = survival > 0 ? pow(survival, 1 / spread) : 0,
		.declared_in_s = declared,
	};
}

void hazard_curve(struct hazard *h, uint32_t owner, double now_s, double step_s, size_t count,
		  double *ret)
{
	CHECK(owner < h->owners.count);
	hazard_advance(h, now_s);
	struct ahead a;
	ahead_init(&a, h, owner, now_s);
	for (size_t i = 0; i < count; i++) {
		double rates[HAZARD_CAUSE_COUNT];
		ahead_rates(&a, ((double)i + 0.5) * step_s, rates);
		ret[i] = rates[0] + rates[1];
	}
}

void hazard_curve_cause(struct hazard *h, uint32_t owner, enum hazard_cause cause, double now_s,
			double step_s, size_t count, double *ret)
{
	CHECK(owner < h->owners.count && cause < HAZARD_CAUSE_COUNT);
	hazard_advance(h, now_s);
	struct ahead a;
	ahead_init(&a, h, owner, now_s);
	for (size_t i = 0; i < count; i++) {
		double rates[HAZARD_CAUSE_COUNT];
		ahead_rates(&a, ((double)i + 0.5) * step_s, rates);
		ret[i] = rates[cause];
	}
}

double hazard_room_shock(struct hazard *h, uint32_t owner, double now_s)
{
	CHECK(owner < h->owners.count);
	hazard_advance(h, now_s);
	const struct room *room = &h->rooms.data[h->owners.data[owner].room];
	double k = exp((room->burst.at_s - now_s) / 600);
	return (room->burst.seen * k + 0.5) / (room->burst.expected * k + 0.5);
}

static const char *const table_names[TABLE_COUNT] = {
	[TABLE_DAY_HOUR] = "hour of day",
	[TABLE_HOUR] = "hour of week",
	[TABLE_ROOM] = "room",
	[TABLE_ROOM_HOUR] = "room at this hour of the week",
	[TABLE_ROOM_SLOT] = "room in these ten minutes of the week",
	[TABLE_SLOT] = "these ten minutes of the week",
	[TABLE_OWNER] = "this machine",
	[TABLE_AGE] = "time since it became free",
	[TABLE_AGE_PART] = "time since it became free, at this hour",
	[TABLE_ORIGIN] = "how it became free",
	[TABLE_BURST] = "reclaims in the room in the last minutes",
	[TABLE_ROOM_RECENT] = "reclaims in the room in the last hour",
	[TABLE_USE] = "share of the room in use",
	[TABLE_LEFT] = "free machines left in the room",
	[TABLE_LEAVING] = "owners leaving the room",
	[TABLE_CAMPUS_HOUR] = "campus in the last hour",
	[TABLE_CAMPUS_DAYS] = "campus in the last days",
	[TABLE_OWNER_RECENT] = "this machine in the last weeks",
	[TABLE_SIGNS] = "signs of its owner",
};

static int reason_order(const void *a, const void *b)
{
	double x = fabs(log(((const struct hazard_reason *)a)->factor));
	double y = fabs(log(((const struct hazard_reason *)b)->factor));
	return (x < y) - (x > y);
}

size_t hazard_explain(struct hazard *h, uint32_t owner, double now_s,
		      struct hazard_reason ret[HAZARD_REASONS_MAX], double *ret_base_per_s)
{
	CHECK(owner < h->owners.count);
	_Static_assert(TABLE_COUNT <= HAZARD_REASONS_MAX, "a reason per table");
	hazard_advance(h, now_s);
	struct where w;
	where_now(h, owner, now_s, &w);
	for (int t = 0; t < TABLE_COUNT; t++)
		ret[t] = (struct hazard_reason){
			.name = table_names[t],
			.factor = h->tables[t].factor[MODEL_FULL][HAZARD_RECLAIM][w.bin[t]],
			.seen = h->tables[t].seen[w.bin[t]],
			.expected = h->tables[t].expected[w.bin[t]],
		};
	qsort(ret, TABLE_COUNT, sizeof(*ret), reason_order);
	*ret_base_per_s = h->base[MODEL_FULL][HAZARD_RECLAIM];
	return TABLE_COUNT;
}
