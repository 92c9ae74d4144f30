/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning: iterative proportional scaling of Poisson rates with a Gamma
 * prior on every factor. For one table after the other, each bin's factor
 * becomes (seen + a) / (expected + a), where expected is what all other
 * factors predict for it and a, the strength of the prior, is the one under
 * which the whole table's data is most probable (negative binomial evidence).
 * A table that holds nothing but noise gets a large a, so factors of 1.
 */
#include "policy/hazard_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/cleanup.h"

#define SWEEPS_FIRST 5
#define SWEEPS_NEXT 2
#define EVIDENCE_BINS 8192
/* No table knows an owner to within a minute. */
#define RATE_MAX_PER_S (1 / 60.0)
#define FACTOR_MIN 0.02f
#define FACTOR_MAX 50.0f

size_t hazard_table_bins(const struct hazard *h, enum table t)
{
	switch (t) {
	case TABLE_DAY_HOUR: return 48;
	case TABLE_HOUR: return 168;
	case TABLE_ROOM: return h->rooms.count;
	case TABLE_ROOM_HOUR: return h->rooms.count * 168;
	case TABLE_ROOM_SLOT: return h->rooms.count * SLOTS_PER_WEEK;
	case TABLE_SLOT: return SLOTS_PER_WEEK;
	case TABLE_OWNER: return h->owners.count;
	case TABLE_AGE: return AGE_BINS;
	case TABLE_AGE_PART: return AGE_BINS * AGE_PARTS;
	case TABLE_ORIGIN: return ORIGIN_KINDS * ORIGIN_AGES;
	default: return DYN_BINS_MAX;
	}
}

static int floats_grow(float **data, size_t from, size_t to, float value)
{
	float *grown = realloc(*data, to * sizeof(float));
	if (!grown)
		return -ENOMEM;
	for (size_t i = from; i < to; i++)
		grown[i] = value;
	*data = grown;
	return 0;
}

int hazard_tables_grow(struct hazard *h)
{
	for (int t = 0; t < TABLE_COUNT; t++) {
		struct table_data *d = &h->tables[t];
		size_t bins = hazard_table_bins(h, t);
		if (bins > d->cap) {
			size_t cap = MAX(bins, d->cap + d->cap / 2);
			for (int m = 0; m < MODEL_COUNT; m++) {
				for (int c = 0; c < HAZARD_CAUSE_COUNT; c++)
					if (floats_grow(&d->factor[m][c], d->cap, cap, 1) < 0 ||
					    floats_grow(&d->log_factor[m][c], d->cap, cap, 0) < 0)
						return -ENOMEM;
			}
			if (floats_grow(&d->seen, d->cap, cap, 0) < 0 ||
			    floats_grow(&d->expected, d->cap, cap, 0) < 0)
				return -ENOMEM;
			d->cap = cap;
		}
		d->bins = bins;
	}
	/* Until data speaks: signs of the owner mean a reclaim is near. */
	if (!h->fitted) {
		float *f = h->tables[TABLE_SIGNS].factor[MODEL_FULL][HAZARD_RECLAIM];
		float *l = h->tables[TABLE_SIGNS].log_factor[MODEL_FULL][HAZARD_RECLAIM];
		f[2] = 4;
		f[3] = 20;
		l[2] = logf(4);
		l[3] = logf(20);
	}
	return 0;
}

static const uint8_t origin_age[AGE_BINS] = { 0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3 };

static unsigned part_of_week(unsigned slot)
{
	unsigned hour = slot / 6;
	return (hour / 24 >= 5) * 8 + hour % 24 / 3;
}

static unsigned day_hour(unsigned slot)
{
	unsigned hour = slot / 6;
	return (hour / 24 >= 5) * 24 + hour % 24;
}

void hazard_where(const struct hazard *h, const struct owner *o, uint32_t owner, unsigned slot,
		  unsigned age_bin, unsigned origin, const uint8_t dyn[DYN_COUNT],
		  struct where *ret)
{
	unsigned hour = slot / 6;

	ret->bin[TABLE_DAY_HOUR] = day_hour(slot);
	ret->bin[TABLE_HOUR] = hour;
	ret->bin[TABLE_ROOM] = o->room;
	ret->bin[TABLE_ROOM_HOUR] = o->room * 168 + hour;
	ret->bin[TABLE_ROOM_SLOT] = o->room * SLOTS_PER_WEEK + slot;
	ret->bin[TABLE_SLOT] = slot;
	ret->bin[TABLE_OWNER] = owner;
	ret->bin[TABLE_AGE] = age_bin;
	ret->bin[TABLE_AGE_PART] = age_bin * AGE_PARTS + part_of_week(slot);
	ret->bin[TABLE_ORIGIN] = origin * ORIGIN_AGES + origin_age[age_bin];
	for (int i = 0; i < DYN_COUNT; i++)
		ret->bin[TABLE_DYN + i] = dyn[i];
	(void)h;
}

double hazard_product(const struct hazard *h, enum model m, enum hazard_cause c,
		      const struct where *w)
{
	int tables = m == MODEL_FULL ? TABLE_COUNT : TABLE_DYN;
	double p = h->base[m][c];
	for (int t = 0; t < tables; t++)
		p *= h->tables[t].factor[m][c][w->bin[t]];
	return fmin(p, RATE_MAX_PER_S);
}

double hazard_log_product(const struct hazard *h, enum model m, enum hazard_cause c,
			  const struct where *w)
{
	int tables = m == MODEL_FULL ? TABLE_COUNT : TABLE_DYN;
	double sum = log(h->base[m][c]);
	for (int t = 0; t < tables; t++)
		sum += h->tables[t].log_factor[m][c][w->bin[t]];
	return sum;
}

/* log of the chance of the table's counts if its factors are Gamma(a, a), up to a constant. */
static double evidence(const float *seen, const float *expected, size_t bins, double a)
{
	double sum = 0, log_a = log(a), lgamma_a = lgamma(a);
	size_t stride = bins / EVIDENCE_BINS + 1; /* a large table's prior needs no census */
	for (size_t b = 0; b < bins; b += stride) {
		double d = seen[b], e = expected[b];
		if (e <= 0 && d <= 0)
			continue;
		sum += a * log_a - (d + a) * log(e + a);
		if (d < 8)
			for (double i = 0; i < d; i++)
				sum += log(a + i);
		else
			sum += lgamma(d + a) - lgamma_a;
	}
	return sum;
}

static double strength_choose(const float *seen, const float *expected, size_t bins)
{
	static const double grid[] = { 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 512, 4096, 1e6 };
	double best = -INFINITY, choice = 1e6;
	for (size_t i = 0; i < ARRAY_SIZE(grid); i++) {
		double e = evidence(seen, expected, bins, grid[i]);
		if (e > best) {
			best = e;
			choice = grid[i];
		}
	}
	return choice;
}

/* The cells by column: a sweep reads a few bytes of each cell, not all of it. */
struct columns {
	size_t count;
	float *exposure;  /* seconds, weighted */
	uint32_t *owner;
	uint16_t *slot;
	uint8_t *age, *origin, *cause;
	uint8_t *dyn[DYN_COUNT];
};

#define BLOCK 1024

struct fit {
	struct hazard *h;
	const struct columns *cols;
	enum model model;
	enum hazard_cause cause;
	float *mu;              /* expected events of each cell, now */
	float *seen, *expected; /* scratch, one table */
	float *ratio;           /* what the table before this one changed by */
	int ratio_table;        /* -1: nothing pending */
};

/* Bins of cells [from, from + count) in table t. */
static void bins_fill(const struct hazard *h, const struct columns *c, enum table t, size_t from,
		      size_t count, uint32_t *ret)
{
	const uint16_t *slot = c->slot + from;
	const uint32_t *owner = c->owner + from;
	const uint8_t *age = c->age + from;
	const struct owner *o = h->owners.data;
#define FILL(expr) \
	for (size_t i = 0; i < count; i++) \
		ret[i] = (uint32_t)(expr); \
	break
	switch (t) {
	case TABLE_DAY_HOUR: FILL(day_hour(slot[i]));
	case TABLE_HOUR: FILL(slot[i] / 6);
	case TABLE_ROOM: FILL(o[owner[i]].room);
	case TABLE_ROOM_HOUR: FILL(o[owner[i]].room * 168 + slot[i] / 6);
	case TABLE_ROOM_SLOT: FILL(o[owner[i]].room * SLOTS_PER_WEEK + slot[i]);
	case TABLE_SLOT: FILL(slot[i]);
	case TABLE_OWNER: FILL(owner[i]);
	case TABLE_AGE: FILL(age[i]);
	case TABLE_AGE_PART: FILL(age[i] * AGE_PARTS + part_of_week(slot[i]));
	case TABLE_ORIGIN: FILL(c->origin[from + i] * ORIGIN_AGES + origin_age[age[i]]);
	default: FILL(c->dyn[t - TABLE_DYN][from + i]);
	}
#undef FILL
}

/* One pass: brings mu up to date with the last change and sums it over the bins of t (or only
 * the first, if t is TABLE_COUNT). */
static void pass(struct fit *f, int t)
{
	uint32_t bins[BLOCK];
	const uint8_t *cause = f->cols->cause;
	for (size_t from = 0; from < f->cols->count; from += BLOCK) {
		size_t count = f->cols->count - from;
		count = MIN(count, (size_t)BLOCK);
		float *mu = f->mu + from;
		if (f->ratio_table >= 0) {
			bins_fill(f->h, f->cols, f->ratio_table, from, count, bins);
			for (size_t i = 0; i < count; i++)
				mu[i] *= f->ratio[bins[i]];
		}
		if (t == TABLE_COUNT)
			continue;
		bins_fill(f->h, f->cols, t, from, count, bins);
		for (size_t i = 0; i < count; i++) {
			f->expected[bins[i]] += mu[i];
			if (cause[from + i] == f->cause)
				f->seen[bins[i]] += 1;
		}
	}
	f->ratio_table = -1;
}

/* What a bin's factor is believed to be before data: mostly 1. */
static float prior_of(const struct fit *f, enum table t, size_t bin)
{
	static const float signs[] = { 1, 1, 4, 20 };
	if (f->cause != HAZARD_RECLAIM)
		return 1;
	if (t == TABLE_SIGNS)
		return signs[bin < 4 ? bin : 3];
	/* A level never seen before is taken at its word. */
	if (t == TABLE_CAMPUS_DAYS && bin >= 1 && bin <= RATIO_BINS)
		return expf(((float)bin - 6) * 0.15f);
	return 1;
}

static void table_fit(struct fit *f, enum table t, bool choose)
{
	struct hazard *h = f->h;
	struct table_data *d = &h->tables[t];
	float *factor = d->factor[f->model][f->cause];
	size_t bins = d->bins;

	memset(f->seen, 0, bins * sizeof(float));
	memset(f->expected, 0, bins * sizeof(float));
	pass(f, t);
	for (size_t b = 0; b < bins; b++)
		f->expected[b] /= factor[b];
	size_t first = t >= TABLE_DYN ? 1 : 0; /* DYN_NONE stays 1 */
	double *strength = &d->strength[f->model][f->cause];
	if (choose || *strength <= 0)
		*strength = strength_choose(f->seen + first, f->expected + first, bins - first);
	double with = 0, without = 0;
	for (size_t b = first; b < bins; b++) {
		double a = fmin(*strength, t >= TABLE_DYN ? 64 : INFINITY);
		float next = (float)((f->seen[b] + a * prior_of(f, t, b)) / (f->expected[b] + a));
		next = fminf(fmaxf(next, FACTOR_MIN), FACTOR_MAX);
		f->ratio[b] = next / factor[b];
		factor[b] = next;
		without += f->expected[b];
		with += f->expected[b] * next;
	}
	d->usual[f->model][f->cause] = with > 0 && without > 0 ? log(with / without) : 0;
	if (first)
		f->ratio[0] = 1;
	f->ratio_table = t;
	if (f->model == MODEL_FULL && f->cause == HAZARD_RECLAIM) {
		memcpy(d->seen, f->seen, bins * sizeof(float));
		memcpy(d->expected, f->expected, bins * sizeof(float));
	}
}

/* One factor for all cells: the level. */
static void base_fit(struct fit *f)
{
	double seen = 0, expected = 0;
	pass(f, TABLE_COUNT);
	for (size_t i = 0; i < f->cols->count; i++) {
		expected += f->mu[i];
		seen += f->cols->cause[i] == f->cause;
	}
	double ratio = (seen + 0.5) / (expected + 0.5);
	f->h->base[f->model][f->cause] *= ratio;
	for (size_t i = 0; i < f->cols->count; i++)
		f->mu[i] *= (float)ratio;
}

static void model_fit(struct fit *f, int sweeps)
{
	struct hazard *h = f->h;
	int tables = f->model == MODEL_FULL ? TABLE_COUNT : TABLE_DYN;
	float base = (float)h->base[f->model][f->cause];
	for (size_t i = 0; i < f->cols->count; i++)
		f->mu[i] = base * f->cols->exposure[i];
	for (int t = 0; t < tables; t++) {
		memcpy(f->ratio, h->tables[t].factor[f->model][f->cause],
		       h->tables[t].bins * sizeof(float));
		f->ratio_table = t;
		pass(f, TABLE_COUNT);
	}
	for (int s = 0; s < sweeps; s++) {
		base_fit(f);
		for (int t = 0; t < tables; t++)
			table_fit(f, t, s == sweeps - 1);
	}
	base_fit(f);
	for (int t = 0; t < tables; t++) {
		const float *factor = h->tables[t].factor[f->model][f->cause];
		float *log_factor = h->tables[t].log_factor[f->model][f->cause];
		for (size_t b = 0; b < h->tables[t].bins; b++)
			log_factor[b] = factor[b] == 1 ? 0 : logf(factor[b]);
	}
}

static int columns_make(const struct hazard *h, struct arena *arena, struct columns *ret)
{
	size_t n = h->cells.count;
	struct columns c = {
		.count = n,
		.exposure = arena_alloc(arena, n * sizeof(float)),
		.owner = arena_alloc(arena, n * sizeof(uint32_t)),
		.slot = arena_alloc(arena, n * sizeof(uint16_t)),
		.age = arena_alloc(arena, n),
		.origin = arena_alloc(arena, n),
		.cause = arena_alloc(arena, n),
	};
	if (!c.exposure || !c.owner || !c.slot || !c.age || !c.origin || !c.cause)
		return -ENOMEM;
	for (int k = 0; k < DYN_COUNT; k++) {
		c.dyn[k] = arena_alloc(arena, n);
		if (!c.dyn[k])
			return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		const struct cell *cell = &h->cells.data[i];
		c.exposure[i] = cell->exposed_s * cell->weight;
		c.owner[i] = cell->owner;
		c.slot[i] = cell->slot;
		c.age[i] = cell->age;
		c.origin[i] = cell->origin;
		c.cause[i] = cell->cause;
		for (int k = 0; k < DYN_COUNT; k++)
			c.dyn[k][i] = cell->dyn[k];
	}
	*ret = c;
	return 0;
}

static void cells_forget(struct hazard *h, double now_s)
{
	double oldest = (now_s - h->config.history_s - h->start_s) / 86400;
	size_t kept = 0;
	for (size_t i = 0; i < h->cells.count; i++)
		if (h->cells.data[i].end_day >= oldest)
			h->cells.data[kept++] = h->cells.data[i];
	h->cells.count = kept;
}

int hazard_fit(struct hazard *h, double now_s)
{
	hazard_advance(h, now_s);
	if (h->config.constant)
		return 0;
	cells_forget(h, now_s);
	size_t bins_max = 0;
	for (int t = 0; t < TABLE_COUNT; t++)
		bins_max = MAX(bins_max, h->tables[t].bins);
	if (h->cells.count == 0)
		return 0;
	CLEANUP(arena_done) struct arena arena = ARENA_INIT;
	struct columns columns;
	float *mu = arena_alloc(&arena, h->cells.count * sizeof(float));
	float *scratch = arena_alloc(&arena, 3 * bins_max * sizeof(float));
	if (!mu || !scratch || columns_make(h, &arena, &columns) < 0)
		return -ENOMEM;
	for (int m = 0; m < MODEL_COUNT; m++) {
		for (int c = 0; c < HAZARD_CAUSE_COUNT; c++) {
			if (m == MODEL_FULL && hazard_model_of(c) != MODEL_FULL)
				continue;
			struct fit f = {
				.h = h,
				.cols = &columns,
				.model = m,
				.cause = c,
				.mu = mu,
				.seen = scratch,
				.expected = scratch + bins_max,
				.ratio = scratch + 2 * bins_max,
				.ratio_table = -1,
			};
			model_fit(&f, h->fitted ? SWEEPS_NEXT : SWEEPS_FIRST);
		}
	}
	if (!h->fitted) {
		/* What the product said before it knew anything does not count against it. */
		double top = h->log_weight[0];
		for (int i = 1; i < EXPERTS; i++)
			top = fmax(top, h->log_weight[i]);
		h->log_weight[EXPERTS - 1] = top + 2;
	}
	h->weight_s = NAN;
	h->fitted = true;
	return 0;
}
