/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A campus of our own, for those who have no trace. Fitted to published
 * figures of university desktops, not copied from them:
 *
 *  - reclaims per idle machine-hour: 0.22 on average, 0.7 at noon, 0.005 at
 *    4 am; Monday to Thursday about equal, Friday half, Saturday an eighth,
 *    Sunday a quarter; peak over mean of the hour of week 5.7;
 *  - machines differ: p10/p50/p90 0.089/0.203/0.40 per hour;
 *  - the rate falls with idle age: 3.4/h in the first minute;
 *  - owners' sessions: lognormal, p50 2,634 s, p90 9,806 s;
 *  - classes: in teaching rooms, several times a week, most of the room
 *    logs in within five minutes;
 *  - half of the power-offs come in room-wide groups, at closing time;
 *  - levels drift from week to week.
 *
 * Jobs: durations lognormal in the body with a long tail (Philly: p50 26 min,
 * p95 9.6 h), 94 % with one GPU.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/rng.h"
#include "sim/trace.h"
#include "sim/world.h"

/* Per idle hour, by hour of a working day. */
static const double hour_rate[24] = { 0.06, 0.03, 0.02, 0.01,  0.005, 0.01, 0.03, 0.12,
				      0.33, 0.5,  0.6,  0.68,  0.7,   0.69, 0.66, 0.6,
				      0.5,  0.42, 0.36, 0.32,  0.28,  0.22, 0.15, 0.1 };
static const double day_rate[7] = { 1.0, 1.05, 1.03, 1.0, 0.55, 0.13, 0.28 };
/* After a session the next user often waits already. */
#define EARLY_FACTOR 7.0
#define EARLY_S 150.0
#define CLASSES_PER_ROOM 5
#define RATE_MAX_PER_H 12.0

struct class_time {
	double from_s, length_s; /* in the week */
};

struct gen_room {
	struct class_time classes[CLASSES_PER_ROOM];
	bool teaching;
	double close_s; /* of the day; 0 = never switched off */
};

struct gen {
	const struct generate_config *config;
	struct trace *trace;
	struct gen_room *rooms;
	double *level; /* by week */
	uint64_t seed;
};

static double rate_at(const struct gen *g, double t, double own)
{
	double week = fmod(t, HAZARD_WEEK_S);
	int day = (int)(week / 86400) % 7, hour = (int)(week / 3600) % 24;
	return hour_rate[hour] * day_rate[day] * own * g->level[(size_t)(t / HAZARD_WEEK_S)] /
	       3600;
}

/* The first class of the room that starts at or after t. */
static double next_class(const struct gen_room *room, double t, double *ret_length)
{
	double best = INFINITY, week = floor(t / HAZARD_WEEK_S) * HAZARD_WEEK_S;
	for (int k = 0; room->teaching && k < CLASSES_PER_ROOM; k++) {
		double at = week + room->classes[k].from_s;
		if (at < t)
			at += HAZARD_WEEK_S;
		if (at < best) {
			best = at;
			*ret_length = room->classes[k].length_s;
		}
	}
	return best;
}

static double next_close(const struct gen_room *room, double t)
{
	if (room->close_s <= 0)
		return INFINITY;
	double at = floor(t / 86400) * 86400 + room->close_s;
	return at > t ? at : at + 86400;
}

static int put(struct gen *g, double t, uint32_t m, enum hazard_state s)
{
	struct trace_event e = { .t_s = t, .machine = m, .state = (uint8_t)s };
	return VEC_PUSH(&g->trace->events, e);
}

/* Time of the next walk-in after t, by thinning. */
static double next_walk_in(struct gen *g, struct rng *r, double t, double own, double end)
{
	double free_since = t;
	while (t < end) {
		t += rng_exponential(r, 3600 / RATE_MAX_PER_H);
		if (t >= end)
			break;
		double rate = rate_at(g, t, own);
		if (t - free_since < EARLY_S * 4)
			rate *= 1 + EARLY_FACTOR * exp(-(t - free_since) / EARLY_S);
		if (rng_unit(r) < rate * 3600 / RATE_MAX_PER_H)
			return t;
	}
	return INFINITY;
}

static int machine_life(struct gen *g, uint32_t m, double end)
{
	struct rng r;
	rng_init(&r, g->seed * 1000003 + m);
	struct gen_room *room = &g->rooms[g->trace->machines.data[m].room];
	double own = exp(0.55 * rng_normal(&r)), t = 0;
	int e = put(g, 0, m, HAZARD_LENT);
	while (e == 0 && t < end) {
		double length = 0, class_at = next_class(room, t, &length);
		double close_at = next_close(room, t), walk_in = next_walk_in(g, &r, t, own, end);
		double at = fmin(walk_in, fmin(class_at, close_at));
		if (!(at < end))
			break;
		if (at == class_at) {
			if (rng_unit(&r) > 0.84) { /* an empty seat */
				t = at + 1;
				continue;
			}
			/* 21 of 25 in five minutes, a few stragglers. */
			double in = at + rng_unit(&r) * 300;
			e = put(g, in, m, HAZARD_OWNED);
			t = at + length * (0.9 + 0.15 * rng_unit(&r));
			if (e == 0)
				e = put(g, t, m, HAZARD_LENT);
		} else if (at == close_at && rng_unit(&r) < 0.5) {
			e = put(g, at + rng_unit(&r) * 60, m, HAZARD_OFF);
			t = floor(at / 86400) * 86400 + 86400 + 7 * 3600 + rng_unit(&r) * 3600;
			if (e == 0)
				e = put(g, t, m, HAZARD_LENT);
		} else if (at == close_at) {
			t = at + 61;
		} else {
			e = put(g, at, m, HAZARD_OWNED);
			t = at + exp(log(2634) + 1.025 * rng_normal(&r));
			if (e == 0)
				e = put(g, t, m, HAZARD_LENT);
		}
	}
	return e;
}

static int by_time(const void *a, const void *b)
{
	const struct trace_event *x = a, *y = b;
	if (x->t_s != y->t_s)
		return x->t_s < y->t_s ? -1 : 1;
	return x->machine < y->machine ? -1 : x->machine > y->machine;
}

static void rooms_draw(struct gen *g, uint32_t rooms)
{
	struct rng r;
	rng_init(&r, g->seed ^ 0xc1a55);
	for (uint32_t i = 0; i < rooms; i++) {
		struct gen_room *room = &g->rooms[i];
		room->teaching = i % 2 == 0;
		room->close_s = i % 3 == 0 ? 22 * 3600 + 1800.0 * (double)rng_below(&r, 3) : 0;
		for (int k = 0; k < CLASSES_PER_ROOM; k++)
			room->classes[k] = (struct class_time){
				.from_s = (double)rng_below(&r, 5) * 86400 +
					  (8 + 2 * (double)rng_below(&r, 5)) * 3600 + 600,
				.length_s = 6300,
			};
	}
}

int generate_trace(const struct generate_config *config, struct trace *ret)
{
	struct trace t = TRACE_INIT;
	struct gen g = { .config = config, .trace = &t, .seed = config->seed };
	double end = config->days * 86400;
	size_t weeks = (size_t)(end / HAZARD_WEEK_S) + 2;
	uint32_t size = config->room_size ? config->room_size : 25;
	t.rooms_count = (config->machines + size - 1) / size;
	g.rooms = calloc(t.rooms_count + 1u, sizeof(*g.rooms));
	g.level = calloc(weeks, sizeof(double));
	int e = g.rooms && g.level ? 0 : -ENOMEM;
	if (e == 0) {
		struct rng r;
		rng_init(&r, config->seed ^ 0x1e7e1);
		double level = 0;
		for (size_t i = 0; i < weeks; i++) {
			level = 0.8 * level + 0.12 * rng_normal(&r);
			g.level[i] = exp(level);
		}
		rooms_draw(&g, t.rooms_count);
	}
	for (uint32_t m = 0; e == 0 && m < config->machines; m++) {
		struct trace_machine machine = { .room = m / size, .first_s = 0, .last_s = end };
		e = VEC_PUSH(&t.machines, machine);
	}
	for (uint32_t m = 0; e == 0 && m < config->machines; m++)
		e = machine_life(&g, m, end);
	free(g.rooms);
	free(g.level);
	if (e < 0) {
		trace_done(&t);
		return e;
	}
	qsort(t.events.data, t.events.count, sizeof(*t.events.data), by_time);
	t.end_s = end;
	*ret = t;
	return 0;
}

int generate_jobs(uint64_t seed, size_t count, struct generated_job *ret)
{
	struct rng r;
	rng_init(&r, seed ^ 0x70b5);
	for (size_t i = 0; i < count; i++) {
		double u = rng_unit(&r), gpus = rng_unit(&r);
		double work = u < 0.82 ? exp(log(1150) + 1.5 * rng_normal(&r)) :
					 exp(log(19000) + 1.4 * rng_normal(&r));
		ret[i] = (struct generated_job){ .work_s = fmax(work, 60),
						 .gpus = gpus < 0.945 ? 1 :
							 gpus < 0.963 ? 2 :
							 gpus < 0.984 ? 4 : 8 };
	}
	return 0;
}
