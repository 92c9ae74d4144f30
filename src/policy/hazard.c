/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observing. The time that each machine stands lent is cut into cells, at
 * every tick, whenever something happens in its room, and where its age
 * crosses a bin edge; what is known of the moment is read at the start of a
 * cell and held to its end, so no cell knows its own future. Cells feed the
 * fit; the sliding ratios, the adaptive rates and their weights are kept up
 * to date as cells close.
 *
 * Input is trusted to be ordered in time (checked); nothing else about it is
 * assumed.
 */
#include "policy/hazard_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* A room is looked at again at most this often: bounds the work of a login storm. */
#define ROOM_FLUSH_MIN_S 30.0
#define BURST_S 600.0
#define ROOM_RECENT_S 5400.0
#define LEAVING_S 900.0
#define CAMPUS_HOUR_S 3600.0
#define CAMPUS_DAYS_S (2.5 * 86400.0)
#define CAMPUS_OFF_S (7 * 86400.0)
#define OWNER_RECENT_S (14.0 * 86400.0)
#define SIGNS_S 300.0
/* Share of weight that leaks between experts per event: an expert that was bad long ago can
 * come back. */
#define EXPERT_SHARE 1e-3

const double hazard_age_edges_s[AGE_BINS - 1] = { 60,   180,   420,   900,   1800,  3600,
						  7200, 14400, 28800, 57600, 129600 };
static const double expert_memory_s[EXPERTS_PLAIN] = {
	600, 3600, 6 * 3600.0, 86400, 4 * 86400.0, 14 * 86400.0, 60 * 86400.0, 1e12,
};

int hazard_new(const struct hazard_config *config, struct hazard **ret)
{
	struct hazard *h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->config = *config;
	if (h->config.tick_s <= 0)
		h->config.tick_s = 600;
	if (h->config.history_s <= 0)
		h->config.history_s = 400 * 86400.0;
	if (h->config.cells_max == 0)
		h->config.cells_max = 1u << 20;
	h->config.cells_max = MAX(h->config.cells_max, (size_t)1024);
	rng_init(&h->rng, config->seed ^ 0x68617a617264ULL);
	h->keep = 1;
	h->start_s = h->now_s = h->weight_s = NAN;
	for (int m = 0; m < MODEL_COUNT; m++) {
		h->base[m][HAZARD_RECLAIM] = 1 / 14400.0;
		h->base[m][HAZARD_POWER_OFF] = 1 / 86400.0;
	}
	int r = hazard_tables_grow(h);
	if (r < 0) {
		hazard_free(h);
		return r;
	}
	*ret = h;
	return 0;
}

void hazard_free(struct hazard *h)
{
	if (!h)
		return;
	VEC_EACH(&h->owners, o)
		free(o->declared);
	VEC_EACH(&h->rooms, r)
		VEC_DONE(&r->members);
	for (int t = 0; t < TABLE_COUNT; t++) {
		for (int m = 0; m < MODEL_COUNT; m++)
			for (int c = 0; c < HAZARD_CAUSE_COUNT; c++)
				free(h->tables[t].factor[m][c]), free(h->tables[t].log_factor[m][c]);
		free(h->tables[t].seen);
		free(h->tables[t].expected);
	}
	VEC_DONE(&h->owners);
	VEC_DONE(&h->rooms);
	VEC_DONE(&h->cells);
	free(h);
}

int hazard_room_add(struct hazard *h, uint32_t *ret_room)
{
	if (h->rooms.count >= HAZARD_ROOMS_MAX)
		return -ENOSPC;
	struct room room = { .flushed_s = -INFINITY,
			     .off_last_s = -INFINITY,
			     .off_flushed_s = -INFINITY };
	int r = VEC_PUSH(&h->rooms, room);
	if (r < 0)
		return r;
	r = hazard_tables_grow(h);
	if (r < 0) {
		h->rooms.count--;
		return r;
	}
	*ret_room = (uint32_t)h->rooms.count - 1;
	return 0;
}

int hazard_owner_add(struct hazard *h, uint32_t room, double utc_offset_s, uint32_t *ret_owner)
{
	CHECK(room < h->rooms.count);
	if (h->owners.count >= HAZARD_OWNERS_MAX)
		return -ENOSPC;
	struct owner o = { .room = room, .offset_s = utc_offset_s };
	uint32_t index = (uint32_t)h->owners.count;
	int r = VEC_PUSH(&h->rooms.data[room].members, index);
	if (r < 0)
		return r;
	r = VEC_PUSH(&h->owners, o);
	if (r == 0) {
		r = hazard_tables_grow(h);
		if (r < 0)
			h->owners.count--;
	}
	if (r < 0) {
		h->rooms.data[room].members.count--;
		return r;
	}
	h->rooms.data[room].counts[HAZARD_GONE]++;
	*ret_owner = index;
	return 0;
}

void hazard_owner_zone(struct hazard *h, uint32_t owner, double utc_offset_s)
{
	CHECK(owner < h->owners.count);
	h->owners.data[owner].offset_s = utc_offset_s;
}

int hazard_declare(struct hazard *h, uint32_t owner, const struct hazard_span *spans, size_t count)
{
	CHECK(owner < h->owners.count);
	if (count > HAZARD_DECLARED_MAX)
		return -ENOSPC;
	struct owner *o = &h->owners.data[owner];
	struct hazard_span *copy = NULL;
	if (count > 0) {
		copy = malloc(count * sizeof(*copy));
		if (!copy)
			return -ENOMEM;
		memcpy(copy, spans, count * sizeof(*copy));
	}
	free(o->declared);
	o->declared = copy;
	o->declared_count = count;
	return 0;
}

static double week_s(const struct hazard *h, const struct owner *o, double now_s)
{
	double w = fmod(now_s - h->config.monday_s + o->offset_s, HAZARD_WEEK_S);
	return w < 0 ? w + HAZARD_WEEK_S : w;
}

unsigned hazard_slot(const struct hazard *h, const struct owner *o, double now_s)
{
	unsigned slot = (unsigned)(week_s(h, o, now_s) / (HAZARD_WEEK_S / SLOTS_PER_WEEK));
	return MIN(slot, SLOTS_PER_WEEK - 1u);
}

unsigned hazard_age_bin(double age_s)
{
	unsigned b = 0;
	while (b < AGE_BINS - 1 && age_s >= hazard_age_edges_s[b])
		b++;
	return b;
}

static void recent_decay(struct recent *r, double now_s, double memory_s)
{
	if (now_s <= r->at_s)
		return;
	double k = exp((r->at_s - now_s) / memory_s);
	r->seen *= k;
	r->expected *= k;
	r->at_s = now_s;
}

/* Widths of ratio bins, in e-folds, and their upper edges. */
enum ratio { RATIO_BURST, RATIO_ROOM, RATIO_CAMPUS_HOUR, RATIO_CAMPUS_DAYS, RATIO_OWNER,
	     RATIO_COUNT };
static const struct {
	double prior;
	double edges[RATIO_BINS - 1]; /* exp((k - 4.5) * width) for widths 0.5 0.3 0.2 0.15 0.3 */
} ratios[RATIO_COUNT] = {
	{ 0.3, { 0.105399, 0.173774, 0.286505, 0.472367, 0.778801, 1.284025, 2.117, 3.490343,
		 5.754603, 9.487736 } },
	{ 1, { 0.25924, 0.349938, 0.472367, 0.637628, 0.860708, 1.161834, 1.568312, 2.117,
	       2.857651, 3.857426 } },
	{ 3, { 0.40657, 0.496585, 0.606531, 0.740818, 0.904837, 1.105171, 1.349859, 1.648721,
	       2.013753, 2.459603 } },
	{ 10, { 0.509156, 0.591555, 0.687289, 0.798516, 0.927743, 1.077884, 1.252323, 1.454991,
		1.690459, 1.964033 } },
	{ 2, { 0.25924, 0.349938, 0.472367, 0.637628, 0.860708, 1.161834, 1.568312, 2.117,
	       2.857651, 3.857426 } },
};

/* Bins 1..RATIO_BINS of seen over expected, both shrunk; 1 falls in the middle. */
static uint8_t ratio_bin(const struct recent *r, enum ratio kind)
{
	double x = (r->seen + ratios[kind].prior) / (r->expected + ratios[kind].prior);
	uint8_t b = 0;
	while (b < RATIO_BINS - 1 && x >= ratios[kind].edges[b])
		b++;
	return (uint8_t)(1 + b);
}

static uint8_t count_bin(unsigned n)
{
	static const uint8_t edges[] = { 1, 2, 3, 4, 6, 9, 13, 19, 28 };
	uint8_t b = 0;
	while (b < ARRAY_SIZE(edges) && n >= edges[b])
		b++;
	return (uint8_t)(1 + b);
}

void hazard_dyn(struct hazard *h, uint32_t owner, double now_s, uint8_t ret[DYN_COUNT])
{
	struct owner *o = &h->owners.data[owner];
	struct room *room = &h->rooms.data[o->room];

	memset(ret, DYN_NONE, DYN_COUNT);
	/* Signs need no history to mean something. */
	double signs = o->signs * exp((o->signs_s - now_s) / SIGNS_S);
	ret[TABLE_SIGNS - TABLE_DYN] = signs > 0.5 ? 3 : signs > 0.1 ? 2 : 1;
	if (!h->fitted)
		return;
	recent_decay(&room->burst, now_s, BURST_S);
	recent_decay(&room->recent, now_s, ROOM_RECENT_S);
	recent_decay(&h->campus_hour, now_s, CAMPUS_HOUR_S);
	recent_decay(&h->campus_days, now_s, CAMPUS_DAYS_S);
	recent_decay(&o->recent, now_s, OWNER_RECENT_S);
	double leaving = room->leaving * exp((room->leaving_s - now_s) / LEAVING_S);
	unsigned used = room->counts[HAZARD_OWNED], free_count = room->counts[HAZARD_LENT];

	ret[TABLE_BURST - TABLE_DYN] = ratio_bin(&room->burst, RATIO_BURST);
	ret[TABLE_ROOM_RECENT - TABLE_DYN] = ratio_bin(&room->recent, RATIO_ROOM);
	ret[TABLE_USE - TABLE_DYN] =
		(uint8_t)(1 + (used + free_count ? used * 12 / (used + free_count) : 0));
	ret[TABLE_LEFT - TABLE_DYN] = count_bin(free_count);
	ret[TABLE_LEAVING - TABLE_DYN] = count_bin((unsigned)(leaving * 2));
	ret[TABLE_CAMPUS_HOUR - TABLE_DYN] = ratio_bin(&h->campus_hour, RATIO_CAMPUS_HOUR);
	ret[TABLE_CAMPUS_DAYS - TABLE_DYN] = ratio_bin(&h->campus_days, RATIO_CAMPUS_DAYS);
	ret[TABLE_OWNER_RECENT - TABLE_DYN] = ratio_bin(&o->recent, RATIO_OWNER);
}

/*
 * All plain experts' rates. Each is drawn towards the next slower one by half
 * an event, the slowest towards half an event in two days: a short memory
 * that has seen nothing lately says what a longer one knows.
 */
void hazard_expert_rates(const struct hazard *h, enum hazard_cause c, double ret[EXPERTS_PLAIN])
{
	double slower = 1 / 172800.0;
	for (int i = EXPERTS_PLAIN - 1; i >= 0; i--) {
		const struct expert *e = &h->experts[i];
		slower = ret[i] = (e->events[c] + 0.5) / (e->exposed_s + 0.5 / slower);
	}
}

/* Brings the plain experts and their part of the weights up to now. */
static void experts_advance(struct hazard *h, double now_s)
{
	double dt = now_s - h->experts_s;
	if (!(dt > 0))
		return;
	double rates[EXPERTS_PLAIN];
	hazard_expert_rates(h, HAZARD_RECLAIM, rates);
	for (int i = 0; i < EXPERTS_PLAIN; i++) {
		struct expert *e = &h->experts[i];
		double memory = expert_memory_s[i], k = exp(-dt / memory);
		h->log_weight[i] -= rates[i] * h->open_count * dt;
		e->events[0] *= k;
		e->events[1] *= k;
		e->exposed_s = e->exposed_s * k - h->open_count * memory * expm1(-dt / memory);
	}
	h->experts_s = now_s;
}

const double *hazard_weights(struct hazard *h, double now_s)
{
	if (h->weight_s == now_s)
		return h->weight;
	experts_advance(h, now_s);
	double at_s = now_s - h->start_s; /* small numbers keep their digits */
	double open_events = fmax(h->open_rate_sum * at_s - h->open_rate_cut_sum, 0);
	double lw[EXPERTS], top = -INFINITY, sum = 0;
	for (int i = 0; i < EXPERTS; i++) {
		lw[i] = h->log_weight[i] - (i < EXPERTS_PLAIN ? 0 : open_events);
		top = fmax(top, lw[i]);
	}
	for (int i = 0; i < EXPERTS; i++)
		sum += h->weight[i] = exp(lw[i] - top);
	for (int i = 0; i < EXPERTS; i++)
		h->weight[i] /= sum;
	for (int c = 0; c < HAZARD_CAUSE_COUNT; c++)
		hazard_expert_rates(h, c, h->expert_rate[c]);
	h->weight_s = now_s;
	return h->weight;
}

double hazard_mix(struct hazard *h, enum hazard_cause c, double product, double now_s)
{
	const double *w = hazard_weights(h, now_s);
	if (h->config.constant) /* the longest memory alone */
		return h->expert_rate[c][EXPERTS_PLAIN - 1];
	double rate = w[EXPERTS - 1] * product;
	for (int i = 0; i < EXPERTS_PLAIN; i++)
		rate += w[i] * h->expert_rate[c][i];
	return rate;
}

/* A lent machine's exposure opens (sign 1) or closes (-1) at its cut. */
static void open_count(struct hazard *h, const struct owner *o, double now_s, double sign)
{
	experts_advance(h, now_s);
	h->open_count += sign;
	h->open_rate_sum += sign * o->open_rate;
	h->open_rate_cut_sum += sign * o->open_rate * (o->cut_s - h->start_s);
	if (h->open_count < 0.5) /* nothing open: rounding ends here */
		h->open_count = h->open_rate_sum = h->open_rate_cut_sum = 0;
	h->weight_s = NAN;
}

/* A reclaim or power-off: what each expert said of it moves the weights. */
static void experts_event(struct hazard *h, double now_s, double product, enum hazard_cause cause)
{
	experts_advance(h, now_s);
	if (cause == HAZARD_RECLAIM) {
		double top = -INFINITY, sum = 0, rates[EXPERTS];
		hazard_expert_rates(h, cause, rates);
		rates[EXPERTS - 1] = product;
		for (int i = 0; i < EXPERTS; i++) {
			h->log_weight[i] += log(rates[i]);
			top = fmax(top, h->log_weight[i]);
		}
		for (int i = 0; i < EXPERTS; i++)
			sum += h->log_weight[i] = exp(h->log_weight[i] - top);
		for (int i = 0; i < EXPERTS; i++)
			h->log_weight[i] = log(h->log_weight[i] / sum * (1 - EXPERT_SHARE) +
					       EXPERT_SHARE / EXPERTS);
	}
	for (int i = 0; i < EXPERTS_PLAIN; i++)
		h->experts[i].events[cause] += 1;
	h->weight_s = NAN;
}

static void expected_add(struct hazard *h, struct owner *o, double now_s, double expected)
{
	struct room *room = &h->rooms.data[o->room];
	recent_decay(&room->burst, now_s, BURST_S);
	recent_decay(&room->recent, now_s, ROOM_RECENT_S);
	recent_decay(&h->campus_hour, now_s, CAMPUS_HOUR_S);
	recent_decay(&h->campus_days, now_s, CAMPUS_DAYS_S);
	recent_decay(&o->recent, now_s, OWNER_RECENT_S);
	room->burst.expected += expected;
	room->recent.expected += expected;
	h->campus_hour.expected += expected;
	h->campus_days.expected += expected;
	o->recent.expected += expected;
}

static void seen_add(struct hazard *h, struct owner *o, double now_s)
{
	expected_add(h, o, now_s, 0);
	struct room *room = &h->rooms.data[o->room];
	room->burst.seen += 1;
	room->recent.seen += 1;
	h->campus_hour.seen += 1;
	h->campus_days.seen += 1;
	o->recent.seen += 1;
}

/* Every other empty cell goes, the rest count double: memory stays bounded, sums unbiased. */
static void cells_thin(struct hazard *h)
{
	size_t kept = 0;
	for (size_t i = 0; i < h->cells.count; i++) {
		struct cell *c = &h->cells.data[i];
		if (c->cause == HAZARD_CAUSE_COUNT) {
			if (rng_u64(&h->rng) & 1)
				continue;
			c->weight *= 2;
		}
		h->cells.data[kept++] = *c;
	}
	/* Events alone fill it: forget the oldest half. */
	if (kept > h->config.cells_max * 3 / 4) {
		size_t drop = kept / 2;
		memmove(h->cells.data, h->cells.data + drop, (kept - drop) * sizeof(*h->cells.data));
		kept -= drop;
	}
	h->cells.count = kept;
	h->keep /= 2;
}

static int cell_keep(struct hazard *h, const struct cell *c)
{
	struct cell cell = *c;
	if (cell.cause == HAZARD_CAUSE_COUNT && h->keep < 1) {
		if (rng_unit(&h->rng) >= h->keep)
			return 0;
		cell.weight = (float)(1 / h->keep);
	}
	if (h->cells.count >= h->config.cells_max)
		cells_thin(h);
	return VEC_PUSH(&h->cells, cell);
}

/* Accounts [cut, now] of a lent machine; cause says how it ended, or HAZARD_CAUSE_COUNT. */
static int cut_close(struct hazard *h, uint32_t owner, double now_s, unsigned cause)
{
	struct owner *o = &h->owners.data[owner];
	int r = 0;
	double from = o->cut_s;
	bool last = false;

	open_count(h, o, now_s, -1);
	while (!last) {
		double age = from - o->since_s;
		unsigned bin = hazard_age_bin(age);
		double to = now_s;
		if (bin < AGE_BINS - 1 && o->since_s + hazard_age_edges_s[bin] < now_s)
			to = o->since_s + hazard_age_edges_s[bin];
		if (to <= from && to < now_s) /* rounding at an edge */
			to = nextafter(from, INFINITY);
		last = to >= now_s;
		double dt = to - from;
		bool event = last && cause != HAZARD_CAUSE_COUNT;
		if (dt <= 0 && !event)
			break;
		struct cell cell = {
			.exposed_s = (float)dt,
			.weight = 1,
			.owner = owner,
			.end_day = (float)((to - h->start_s) / 86400),
			.slot = (uint16_t)hazard_slot(h, o, from + dt / 2),
			.age = (uint8_t)bin,
			.origin = o->origin,
			.cause = (uint8_t)(event ? cause : HAZARD_CAUSE_COUNT),
		};
		memcpy(cell.dyn, o->dyn, sizeof(cell.dyn));
		struct where w;
		hazard_where(h, o, owner, cell.slot, bin, cell.origin, cell.dyn, &w);
		double plain = hazard_product(h, MODEL_PLAIN, HAZARD_RECLAIM, &w);
		double full = hazard_product(h, MODEL_FULL, HAZARD_RECLAIM, &w);
		h->log_weight[EXPERTS - 1] -= full * dt;
		if (event)
			experts_event(h, to, full, cause);
		expected_add(h, o, to, plain * dt);
		recent_decay(&h->campus_off, to, CAMPUS_OFF_S);
		h->campus_off.expected +=
			hazard_product(h, MODEL_PLAIN, HAZARD_POWER_OFF, &w) * dt;
		if (event && cause == HAZARD_POWER_OFF)
			h->campus_off.seen += 1;
		if (event && cause == HAZARD_RECLAIM)
			seen_add(h, o, to);
		o->exposed_s += dt;
		h->exposed_s += dt;
		if (event)
			h->events[cause]++;
		if (!h->config.constant)
			r = cell_keep(h, &cell);
		from = to;
	}
	o->cut_s = now_s;
	return r;
}

static void cut_open(struct hazard *h, uint32_t owner, double now_s)
{
	struct owner *o = &h->owners.data[owner];
	struct where w;

	o->cut_s = now_s;
	if (h->config.constant)
		memset(o->dyn, DYN_NONE, sizeof(o->dyn));
	else
		hazard_dyn(h, owner, now_s, o->dyn);
	hazard_where(h, o, owner, hazard_slot(h, o, now_s), hazard_age_bin(now_s - o->since_s),
		     o->origin, o->dyn, &w);
	o->open_rate = hazard_product(h, MODEL_FULL, HAZARD_RECLAIM, &w);
	open_count(h, o, now_s, 1);
}

static void tick(struct hazard *h, double at_s)
{
	for (uint32_t i = 0; i < h->owners.count; i++) {
		if (h->owners.data[i].state != HAZARD_LENT)
			continue;
		(void)cut_close(h, i, at_s, HAZARD_CAUSE_COUNT); /* a lost cell is a lost sample */
	}
	for (uint32_t i = 0; i < h->owners.count; i++)
		if (h->owners.data[i].state == HAZARD_LENT)
			cut_open(h, i, at_s);
}

void hazard_advance(struct hazard *h, double now_s)
{
	if (isnan(h->start_s)) {
		h->start_s = h->now_s = now_s;
		h->next_tick_s = now_s + h->config.tick_s;
		h->next_fit_s = now_s + (h->config.fit_every_s > 0 ? 86400 : INFINITY);
		h->experts_s = now_s;
		h->campus_hour.at_s = h->campus_days.at_s = h->campus_off.at_s = now_s;
	}
	if (now_s <= h->now_s)
		return;
	while (h->next_tick_s <= now_s) {
		tick(h, h->next_tick_s);
		h->now_s = h->next_tick_s;
		if (h->next_tick_s >= h->next_fit_s) {
			(void)hazard_fit(h, h->next_tick_s); /* out of memory: the old tables stay */
			/* Young models learn more often: 1, 2, 4, 8 ... days, then the rhythm. */
			double age = h->next_tick_s - h->start_s;
			h->next_fit_s = h->next_tick_s + MIN(h->config.fit_every_s, age);
		}
		h->next_tick_s += h->config.tick_s;
	}
	h->now_s = now_s;
}

/* Kinds of becoming free: after a boot, or after a session of some length. */
static uint8_t origin_kind(enum hazard_state before, double lasted_s)
{
	if (before != HAZARD_OWNED)
		return before == HAZARD_OFF ? 1 : 0;
	return lasted_s < 120 ? 2 : lasted_s < 900 ? 3 : lasted_s < 3600 ? 4 : 5;
}

static void room_flush(struct hazard *h, uint32_t room_index, double now_s)
{
	struct room *room = &h->rooms.data[room_index];
	if (now_s < room->flushed_s + ROOM_FLUSH_MIN_S || h->config.constant || !h->fitted)
		return;
	room->flushed_s = now_s;
	VEC_EACH(&room->members, m)
		if (h->owners.data[*m].state == HAZARD_LENT)
			(void)cut_close(h, *m, now_s, HAZARD_CAUSE_COUNT);
	VEC_EACH(&room->members, m)
		if (h->owners.data[*m].state == HAZARD_LENT)
			cut_open(h, *m, now_s);
}

int hazard_observe(struct hazard *h, uint32_t owner, double now_s, enum hazard_state state)
{
	CHECK(owner < h->owners.count && state < HAZARD_STATE_COUNT);
	hazard_advance(h, now_s);
	now_s = MAX(now_s, h->now_s);
	struct owner *o = &h->owners.data[owner];
	enum hazard_state before = o->state;
	if (before == state)
		return 0;

	int r = 0;
	struct room *room = &h->rooms.data[o->room];
	hazard_group_flush(h, room, now_s);
	if (state == HAZARD_OFF)
		hazard_group_off(h, room, now_s, before == HAZARD_LENT);
	if (before == HAZARD_LENT) {
		unsigned cause = state == HAZARD_OWNED ? HAZARD_RECLAIM :
				 state == HAZARD_OFF   ? HAZARD_POWER_OFF :
							 HAZARD_CAUSE_COUNT;
		r = cut_close(h, owner, now_s, cause);
		if (cause == HAZARD_RECLAIM)
			o->reclaims++;
	}
	if (before == HAZARD_OWNED) {
		room->leaving *= exp((room->leaving_s - now_s) / LEAVING_S);
		room->leaving += 1;
		room->leaving_s = now_s;
	}
	room->counts[before]--;
	room->counts[state]++;
	if (state == HAZARD_LENT)
		o->origin = origin_kind(before, now_s - o->since_s);
	o->state = (uint8_t)state;
	o->since_s = now_s;
	if (state == HAZARD_LENT)
		cut_open(h, owner, now_s);
	room_flush(h, o->room, now_s);
	return r;
}

void hazard_activity(struct hazard *h, uint32_t owner, double now_s, double level)
{
	CHECK(owner < h->owners.count);
	hazard_advance(h, now_s);
	now_s = MAX(now_s, h->now_s);
	struct owner *o = &h->owners.data[owner];
	double left = o->signs * exp((o->signs_s - now_s) / SIGNS_S);
	o->signs = fmax(left, fmin(fmax(level, 0), 1));
	o->signs_s = now_s;
	if (o->state == HAZARD_LENT) {
		(void)cut_close(h, owner, now_s, HAZARD_CAUSE_COUNT);
		cut_open(h, owner, now_s);
	}
}

double hazard_off_level(const struct hazard *h)
{
	return h->fitted ? log((h->campus_off.seen + 10) / (h->campus_off.expected + 10)) : 0;
}

void hazard_evidence(struct hazard *h, uint32_t owner, struct hazard_evidence *ret)
{
	CHECK(owner < h->owners.count);
	*ret = (struct hazard_evidence){
		.exposed_s = h->owners.data[owner].exposed_s,
		.reclaims = h->owners.data[owner].reclaims,
		.campus_reclaims = h->events[HAZARD_RECLAIM],
	};
}
