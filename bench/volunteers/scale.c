/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Case collatz of bench `volunteers`, metric efficiency, at sizes this machine
 * does not have: a simulation in which the real lending code (lend.c) keeps
 * volunteers busy that stand in the real tree (route.c). Simulated are only the
 * cores, the network and the processor time that messages cost, which are
 * measured on this machine (see docs/evaluation.md) and can be given:
 *
 * usage: bench_volunteers_scale [VALUE_MS MASTER_US RELAY_US NODE_US HOP_MS]
 *
 *   VALUE_MS   computing one value takes on average (times vary from 0.5 to 1.5 of it)
 *   MASTER_US  the master's processor per value, from result in to next value out
 *   RELAY_US   an inner node's processor per value that it passes on, both ways
 *   NODE_US    a volunteer's processor per value of its own beside computing it
 *   HOP_MS     one channel, one way
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "base/vec.h"
#include "volunteer/lend.h"
#include "volunteer/route.h"

#define DEGREE 10
#define WARM_S 10.0
#define MEASURE_S 30.0
#define TICK_S 0.1
#define DEPTH_MAX 16

struct costs {
	double value_s, master_s, relay_s, node_s, hop_s;
};

enum event_kind { EV_LENT, EV_COMPUTED, EV_RESULT, EV_SERVED, EV_SIGN, EV_TICK };

struct event {
	double at;
	uint64_t order;
	enum event_kind kind;
	uint32_t who;
	uint64_t value;
};

struct one {
	struct VEC(uint64_t) held;
	size_t held_at;
	bool computing;
	double debt_s; /* processor time of messages that the next value has to wait for */
};

struct sim {
	struct costs c;
	uint32_t nodes;
	struct one *ones; /* [nodes + 1]: by position in the tree, 0 is the master */
	struct lend *lend;
	struct VEC(struct event) heap;
	uint64_t order;
	struct rng rng;
	double now, master_free_s, master_busy_s, computed_s;
	uint64_t results;
	bool measuring;
};

static bool before(const struct event *x, const struct event *y)
{
	return x->at < y->at || (x->at == y->at && x->order < y->order);
}

static void post(struct sim *s, double at, enum event_kind kind, uint32_t who, uint64_t value)
{
	struct event ev = { at, ++s->order, kind, who, value };
	CHECK(VEC_PUSH(&s->heap, ev) == 0);
	struct event *h = s->heap.data;
	for (size_t i = s->heap.count - 1; i > 0 && before(&h[i], &h[(i - 1) / 2]); i = (i - 1) / 2) {
		struct event t = h[i];
		h[i] = h[(i - 1) / 2];
		h[(i - 1) / 2] = t;
	}
}

static struct event take(struct sim *s)
{
	struct event *h = s->heap.data, top = h[0];
	size_t n = --s->heap.count;
	h[0] = h[n];
	for (size_t i = 0, c; (c = 2 * i + 1) < n; i = c) {
		if (c + 1 < n && before(&h[c + 1], &h[c]))
			c++;
		if (!before(&h[c], &h[i]))
			break;
		struct event t = h[i];
		h[i] = h[c];
		h[c] = t;
	}
	return top;
}

static uint64_t ms(double seconds)
{
	return (uint64_t)(seconds * 1000);
}

/* One way through the tree; those on the way pay half of what passing a value on costs. */
static double way_s(struct sim *s, uint32_t who)
{
	double took = s->c.hop_s;
	for (uint64_t p = route_parent(who, DEGREE); p > 0; p = route_parent(p, DEGREE)) {
		s->ones[p].debt_s += s->c.relay_s / 2;
		took += s->c.hop_s + s->c.relay_s / 2;
	}
	return took;
}

static void compute_next(struct sim *s, uint32_t who)
{
	struct one *o = &s->ones[who];
	if (o->computing || o->held_at == o->held.count)
		return;
	uint64_t value = o->held.data[o->held_at++];
	if (o->held_at == o->held.count)
		o->held_at = o->held.count = 0;
	o->computing = true;
	double work = s->c.value_s * (0.5 + rng_unit(&s->rng));
	if (s->measuring)
		s->computed_s += work;
	post(s, s->now + work + s->c.node_s + o->debt_s, EV_COMPUTED, who, value);
	o->debt_s = 0;
}

/* Lends what the lending code says, each at the master's speed. */
static void pump(struct sim *s)
{
	struct lend_loan loan;
	struct lend_result r;
	uint64_t id;
	while (lend_take(s->lend, &r))
		free(r.bytes);
	while (lend_room(s->lend) > 0)
		CHECK(lend_put(s->lend, "x", 1, &id) == 0);
	while (lend_next(s->lend, ms(s->now), &loan))
		post(s, MAX(s->now, s->master_free_s) + way_s(s, (uint32_t)loan.volunteer), EV_LENT,
		     (uint32_t)loan.volunteer, loan.value);
}

static void master_works(struct sim *s, double seconds)
{
	s->master_free_s = MAX(s->now, s->master_free_s) + seconds;
	if (s->measuring)
		s->master_busy_s += seconds;
}

static void handle(struct sim *s, const struct event *ev)
{
	struct one *o = &s->ones[ev->who];
	switch (ev->kind) {
	case EV_LENT:
		CHECK(VEC_PUSH(&o->held, ev->value) == 0);
		compute_next(s, ev->who);
		break;
	case EV_COMPUTED:
		o->computing = false;
		post(s, s->now + way_s(s, ev->who), EV_RESULT, ev->who, ev->value);
		compute_next(s, ev->who);
		break;
	case EV_RESULT: /* the master is one thread: what arrives waits for its turn */
		master_works(s, s->c.master_s);
		post(s, s->master_free_s, EV_SERVED, ev->who, ev->value);
		break;
	case EV_SERVED:
		(void)lend_result(s->lend, ev->who, ev->value, false, "y", 1, ms(s->now));
		s->results += s->measuring;
		pump(s);
		break;
	case EV_SIGN: /* a life sign costs about half of a value */
		master_works(s, s->c.master_s / 2);
		lend_demand(s->lend, ev->who, 512, 1, ms(s->now));
		pump(s);
		post(s, s->now + MAX(1.0, s->nodes / 2000.0), EV_SIGN, ev->who, 0);
		break;
	case EV_TICK:
		lend_tick(s->lend, ms(s->now));
		pump(s);
		post(s, s->now + TICK_S, EV_TICK, 0, 0);
		break;
	}
}

static void line(uint32_t cores, const char *metric, double value, const char *unit)
{
	printf("{\"bench\":\"volunteers\",\"case\":\"collatz_%u\",\"system\":\"reclaim\",\"metric\":\"%s\","
	       "\"value\":%.4f,\"unit\":\"%s\",\"n\":1}\n", cores, metric, value, unit);
}

static double run(uint32_t nodes, const struct costs *c, bool quiet)
{
	struct sim s = { .c = *c, .nodes = nodes };
	struct lend_config lc;
	lend_defaults(&lc);
	lc.ordered = false;
	lc.window = 16 * nodes + 1024;
	CHECK(lend_new(&lc, &s.lend) == 0);
	s.ones = calloc(nodes + 1, sizeof(*s.ones));
	CHECK(s.ones);
	rng_init(&s.rng, 1);
	for (uint32_t i = 1; i <= nodes; i++) {
		CHECK(lend_join(s.lend, i, 0) == 0);
		post(&s, rng_unit(&s.rng), EV_SIGN, i, 0);
	}
	post(&s, 0, EV_TICK, 0, 0);
	while (s.heap.data[0].at < WARM_S + MEASURE_S) {
		struct event ev = take(&s);
		s.now = ev.at;
		s.measuring = s.now >= WARM_S;
		handle(&s, &ev);
	}
	double efficiency = s.computed_s / (nodes * MEASURE_S);
	struct lend_stats st;
	lend_stats(s.lend, &st);
	if (!quiet) {
		line(nodes, "efficiency", efficiency, "share");
		line(nodes, "values_per_s", (double)s.results / MEASURE_S, "values/s");
		line(nodes, "master_busy", s.master_busy_s / MEASURE_S, "share of a core");
		line(nodes, "lent_again", (double)st.relent, "values");
	}
	for (uint32_t i = 0; i <= nodes; i++)
		VEC_DONE(&s.ones[i].held);
	free(s.ones);
	VEC_DONE(&s.heap);
	lend_free(s.lend);
	return efficiency;
}

int main(int argc, char **argv)
{
	struct costs c = { .value_s = 0.222, .master_s = 30e-6, .relay_s = 45e-6, .node_s = 1.6e-3,
			   .hop_s = 2e-3 };
	if (argc == 6)
		c = (struct costs){ atof(argv[1]) / 1e3, atof(argv[2]) / 1e6, atof(argv[3]) / 1e6,
				    atof(argv[4]) / 1e6, atof(argv[5]) / 1e3 };
	static const uint32_t sizes[] = { 2, 32, 320, 1000, 3200, 10000 };
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		if (run(sizes[i], &c, false) < 0.9) { /* how large must a value be for that many? */
			struct costs larger = c;
			do
				larger.value_s *= 1.25;
			while (run(sizes[i], &larger, true) < 0.9);
			line(sizes[i], "value_ms_needed", 1e3 * larger.value_s, "ms");
		}
	return 0;
}
