/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "sim/flow.h"
#include "sim/run.h"
#include "sim/study.h"
#include "sim/topology.h"
#include "sim/trace.h"
#include "sim/world.h"

#define OWNER_NOTICES_S 1.0

static int parse(const char *text, struct trace *t, struct diag *diag)
{
	return trace_parse(text, strlen(text), NULL, 0, "t.csv", false, t, diag);
}

static void test_trace_formats(void **state)
{
	struct trace t;
	struct diag d = DIAG_INIT;
	static const char campus[] = "# note\nt,m,s\n0,0,A\n60,0,U\n90,1,R\n120,0,A\n";
	assert_int_equal(parse(campus, &t, &d), 0);
	assert_int_equal(t.events.count, 3); /* rows at 0 repeat what was before */
	assert_int_equal(t.events.data[0].state, HAZARD_OWNED);
	assert_int_equal(t.events.data[1].state, HAZARD_LENT);
	assert_true(t.machines.data[0].first_s == 60 && t.machines.data[0].last_s == 120);
	trace_done(&t);
	assert_int_equal(trace_parse(campus, strlen(campus), "m,room\n0,x\n1,y\n", 15, "t", true, &t,
				     &d), 0);
	assert_int_equal(t.events.count, 4);
	assert_int_not_equal(t.machines.data[0].room, t.machines.data[1].room);
	trace_done(&t);
	assert_int_equal(parse("minute,cap,running,idle\n0,8,6,2\n5,8,7,1\n9,8,5,3\n", &t, &d), 0);
	assert_int_equal(t.events.count, 5);
	assert_int_equal(t.events.data[2].state, HAZARD_OWNED);
	trace_done(&t);
	assert_int_equal(parse("kind,nodes,set,zone,gap_s,start_s,end_s,n\n"
			       "availability,1,a,z,600,0,600,1\navailability,1,a,z,600,600,900,0\n",
			       &t, &d), 0);
	assert_int_equal(t.events.count, 3);
	assert_int_equal(t.events.data[2].state, HAZARD_GONE);
	trace_done(&t);
	assert_int_equal(parse("1000,add,n1\n5000,remove,n1\n", &t, &d), 0);
	assert_true(t.events.count == 2 && t.events.data[1].t_s == 5);
	trace_done(&t);
	(void)state;
}

static void test_trace_refuses(void **state)
{
	struct trace t;
	struct diag d = DIAG_INIT;
	assert_int_equal(parse("t,m,s\n5,0,X\n", &t, &d), -EINVAL);
	assert_string_equal(d.where, "t.csv:2");
	assert_non_null(strstr(d.what, "'X'"));
	assert_int_equal(parse("t,m,s\n-5,0,A\n", &t, &d), -EINVAL);
	assert_int_equal(parse("t,m,s\n5,100000000,A\n", &t, &d), -EINVAL);
	assert_int_equal(parse("", &t, &d), -EINVAL);
	assert_int_equal(parse("hello\n", &t, &d), -EINVAL);
	assert_int_equal(parse("1000,grow,n1\n", &t, &d), -EINVAL);
	(void)state;
}

static void test_topology(void **state)
{
	static const char text[] = "NODES 2\nlabel x y\na 0 0\nb 1 1\n\nEDGES 2\n"
				   "label src dest weight bw delay\ne0 0 1 10 1000000 93\n"
				   "e1 1 0 10 1000000 93\n";
	struct network n = NETWORK_INIT;
	struct diag d = DIAG_INIT;
	assert_int_equal(topology_parse(text, strlen(text), "g", 0.5, 0.9, &n, &d), 2);
	assert_true(n.links[0].capacity_bps == 125e6 && n.links[0].research_bps == 62.5e6);
	network_done(&n);
	assert_int_equal(topology_parse("NODES 5\n", 8, "g", 0, 1, &n, &d), -EINVAL);
	network_done(&n);
	assert_int_equal(topology_parse("EDGES", 5, "g", 0, 1, &n, &d), -EINVAL);
	network_done(&n);
	(void)state;
}

/* Max-min: nobody can get more without taking from somebody who has no more. */
static void test_flows_fair(void **state)
{
	struct rng r;
	rng_init(&r, 6);
	for (int round = 0; round < 200; round++) {
		struct network net = NETWORK_INIT;
		struct flows f;
		enum { LINKS = 5, FLOWS = 8 };
		uint32_t id[FLOWS];
		network_point_add(&net);
		network_point_add(&net);
		for (int l = 0; l < LINKS; l++)
			network_link_add(&net, 0, 1, 10 + (double)rng_below(&r, 90), 0, 1, 0);
		assert_int_equal(flows_init(&f, &net), 0);
		for (int i = 0; i < FLOWS; i++) {
			uint32_t links[LINKS], n = 0;
			for (uint32_t l = 0; l < LINKS; l++)
				if (rng_below(&r, 3) == 0)
					links[n++] = l;
			if (n == 0)
				links[n++] = (uint32_t)rng_below(&r, LINKS);
			struct flow_spec spec = { .bytes = 1e6, .links = links, .count = n };
			assert_int_equal(flow_add(&f, i, &spec, &id[i]), 0);
		}
		assert_int_equal(flow_remove(&f, id[3], 20), 0);
		double use[LINKS] = { 0 };
		for (int i = 0; i < FLOWS; i++) {
			const struct flow *x = &f.items.data[id[i]];
			for (uint32_t k = 0; x->active && k < x->links_count; k++)
				use[x->links[k]] += x->rate;
		}
		for (int l = 0; l < LINKS; l++)
			assert_true(use[l] <= f.capacity[l] * (1 + 1e-6));
		for (int i = 0; i < FLOWS; i++) {
			const struct flow *x = &f.items.data[id[i]];
			bool held = !x->active;
			for (uint32_t k = 0; k < x->links_count && !held; k++) {
				uint32_t l = x->links[k];
				bool full = use[l] >= f.capacity[l] * (1 - 1e-6), most = true;
				for (int j = 0; j < FLOWS; j++) {
					const struct flow *y = &f.items.data[id[j]];
					for (uint32_t q = 0; y->active && q < y->links_count; q++)
						if (y->links[q] == l && y->rate > x->rate * (1 + 1e-6))
							most = false;
				}
				held = full && most;
			}
			assert_true(held);
		}
		flows_done(&f);
		network_done(&net);
	}
	(void)state;
}

/* Floors stand against research and say what that cost; who yields gets only what is left. */
static void test_flows_classes(void **state)
{
	struct network net = NETWORK_INIT;
	struct flows f;
	uint32_t link[1] = { 0 }, floor, plain, copy, capped;
	network_point_add(&net);
	network_point_add(&net);
	network_link_add(&net, 0, 1, 100, 60, 1, 0);
	assert_int_equal(flows_init(&f, &net), 0);
	struct flow_spec spec = { .bytes = 1e6, .links = link, .count = 1 };
	assert_int_equal(flow_add(&f, 0, &spec, &floor), 0);
	flow_floor(&f, floor, 30);
	assert_int_equal(flows_update(&f, floor, 0), 0);
	assert_true(fabs(f.items.data[floor].rate - 40) < 1e-6);
	spec.yields = true;
	assert_int_equal(flow_add(&f, 1, &spec, &copy), 0);
	assert_true(f.items.data[copy].rate < 1e-6);
	spec.yields = false;
	spec.limit = 3;
	assert_int_equal(flow_add(&f, 1, &spec, &capped), 0);
	assert_true(fabs(f.items.data[capped].rate - 3) < 1e-6);
	spec.limit = 0;
	assert_int_equal(flow_add(&f, 1, &spec, &plain), 0);
	assert_true(fabs(f.items.data[floor].rate - 33.5) < 1e-6);
	assert_true(fabs(f.items.data[plain].rate - 3.5) < 1e-6);
	assert_true(flows_research_lost(&f, 2) < 1e-9);
	/* Research needs all but 10: the floor holds its 30, and takes 20 a second. */
	assert_int_equal(flows_capacity(&f, 0, 10, 2), 0);
	assert_true(fabs(f.items.data[floor].rate - 30) < 1e-6);
	assert_true(f.items.data[plain].rate < 1e-6);
	assert_int_equal(flow_remove(&f, floor, 5), 0);
	assert_true(fabs(flows_research_lost(&f, 9) - 60) < 1e-6);
	assert_true(fabs(f.items.data[plain].rate - 7) < 1e-6);
	assert_int_equal(flow_remove(&f, plain, 9), 0);
	assert_true(fabs(f.items.data[copy].rate - 7) < 1e-6);
	flows_done(&f);
	network_done(&net);
	(void)state;
}

static void small_with(uint64_t seed, const char *more, struct world *w)
{
	char text[512];
	snprintf(text, sizeof(text),
		 "name: t\ntopology:\n  buildings: [{name: a, uplink: 1Gbit}]\n"
		 "  machines: [{name: a1, building: a, link: 1Gbit}]\n"
		 "sim: {duration: 6d, history: 8d, nodes: 20, buildings: 2, load: 0.5%s}\n", more);
	struct scenario s;
	struct diag d = DIAG_INIT;
	int r = scenario_parse(text, strlen(text), "t.yaml", &s, &d);
	if (r < 0)
		print_message("%s: %s\n", d.where, d.what);
	assert_int_equal(r, 0);
	assert_int_equal(world_make(&s, seed, w, &d), 0);
	scenario_done(&s);
}

static void small(uint64_t seed, struct world *w)
{
	small_with(seed, "", w);
}

static char *play(const struct world *w, const char *name, struct run_result *ret)
{
	struct run_config config = { .seed = 3 };
	assert_int_equal(run_system(w, system_find(name), &config, ret), 0);
	json_t *j = run_json(ret);
	char *text = json_dumps(j, JSON_REAL_PRECISION(17));
	json_decref(j);
	assert_non_null(text);
	return text;
}

/* Same input, same bytes; sums add up; the order of the systems is what it must be. */
/* Is `x` held back, in its class, by its limit, or by a full link on which none has more? */
static bool held(const struct flows *f, const struct flow *x)
{
	if (x->rate >= x->limit * (1 - 1e-6))
		return true;
	for (uint32_t k = 0; k < x->links_count; k++) {
		const struct flow_list *list = &f->on_link[x->links[k]];
		double sum = 0, most = 0;
		for (size_t i = 0; i < list->count; i++) {
			const struct flow *y = &f->items.data[list->data[i]];
			if (y->yields && !x->yields)
				continue;
			sum += y->rate;
			if (y->yields == x->yields && !(y->floor > 0))
				most = fmax(most, y->rate);
		}
		if (sum >= f->capacity[x->links[k]] * (1 - 1e-5) && x->rate >= most * (1 - 1e-5) - 1e-3)
			return true;
	}
	return false;
}

/* However changes come, what was left untouched is as fair as what was computed anew. */
static void test_flows_local(void **state)
{
	enum { LINKS = 24, FLOWS = 60, STEPS = 4000 };
	struct network net = NETWORK_INIT;
	struct flows f;
	struct rng r;
	uint32_t id[FLOWS];
	bool is[FLOWS] = { false };
	rng_init(&r, 5);
	network_point_add(&net);
	network_point_add(&net);
	for (int l = 0; l < LINKS; l++)
		network_link_add(&net, 0, 1, 50 + (double)rng_below(&r, 400), 0, 1, 0);
	assert_int_equal(flows_init(&f, &net), 0);
	for (int step = 0; step < STEPS; step++) {
		uint32_t i = (uint32_t)rng_below(&r, FLOWS);
		double now = step;
		if (rng_below(&r, 5) == 0) {
			uint32_t l = (uint32_t)rng_below(&r, LINKS);
			double c = net.links[l].capacity_bps * (0.2 + 0.8 * rng_unit(&r));
			assert_int_equal(flows_capacity(&f, l, c, now), 0);
		} else if (is[i]) {
			assert_int_equal(flow_remove(&f, id[i], now), 0);
			is[i] = false;
		} else {
			uint32_t links[3] = { (uint32_t)rng_below(&r, LINKS) }, n = 1;
			while (n < 3 && rng_below(&r, 2))
				links[n] = (links[n - 1] + 1 + (uint32_t)rng_below(&r, 7)) % LINKS, n++;
			struct flow_spec spec = { .bytes = 1e12, .links = links, .count = n,
						  .limit = rng_below(&r, 3) ? 0 : 5 + (double)rng_below(&r, 60),
						  .yields = rng_below(&r, 3) == 0 };
			assert_int_equal(flow_add(&f, now, &spec, &id[i]), 0);
			is[i] = true;
			if (!spec.yields && rng_below(&r, 4) == 0) {
				flow_floor(&f, id[i], 2);
				assert_int_equal(flows_update(&f, id[i], now), 0);
			}
		}
		for (uint32_t l = 0; l < LINKS; l++) {
			double sum = 0;
			for (size_t k = 0; k < f.on_link[l].count; k++)
				sum += f.items.data[f.on_link[l].data[k]].rate;
			assert_true(fabs(sum - f.used[l]) < 1e-6);
			assert_true(sum <= net.links[l].capacity_bps * (1 + 1e-9));
		}
		for (uint32_t k = 0; k < FLOWS; k++) {
			const struct flow *x = is[k] ? &f.items.data[id[k]] : NULL;
			if (x && !(x->floor > 0))
				assert_true(held(&f, x));
		}
	}
	flows_done(&f);
	network_done(&net);
	(void)state;
}

static void test_runs(void **state)
{
	struct world w;
	struct run_result a, b;
	small(5, &w);
	for (size_t i = 0; i < systems_count; i++) {
		char *first = play(&w, systems[i].name, &a), *again = play(&w, systems[i].name, &b);
		assert_string_equal(first, again);
		assert_true(a.used_s <= a.lent_s * (1 + 1e-9) + 1e6);
		assert_true(a.lost_s >= 0 && a.lost_power_off_s <= a.lost_s + 1e-6);
		/* Counted, so zero means something: a guest that is killed late is seen. */
		if (systems[i].late_s > OWNER_NOTICES_S && systems[i].notice == NOTICE_IGNORE)
			assert_true(a.owner_over_window > 0);
		else if (!(systems[i].late_s > OWNER_NOTICES_S))
			assert_int_equal(a.owner_over_window, 0);
		if (systems[i].planned && !systems[i].topology_blind && !systems[i].deadline_blind) {
			assert_true(a.background_lost_share < 1e-9);
			assert_int_equal(a.promises_broken, 0);
		}
		assert_true(a.jobs_done <= a.jobs);
		double lost = a.lost_power_off_s;
		for (size_t k = 0; k < a.windows_count; k++)
			lost += a.windows[k].lost_s;
		assert_true(fabs(lost - a.lost_s) < 1e-6 * (a.lost_s + 1));
		free(first);
		free(again);
	}
	free(play(&w, "reclaim", &a));
	free(play(&w, "none", &b));
	assert_true(b.work_loss_share > a.work_loss_share);
	free(play(&w, "slurm_requeue", &b));
	assert_true(b.work_loss_share > a.work_loss_share);
	free(play(&w, "clairvoyant", &b));
	assert_true(b.work_loss_share < a.work_loss_share);
	world_done(&w);
	(void)state;
}

/* A core so narrow that moves meet there all day: what was promised is kept, research loses
 * nothing; a plan that does not see the core oversells it. */
static void test_crowded(void **state)
{
	struct world w;
	struct run_result a;
	small_with(2, ", uplink: 300Mbit, core: 400Mbit, server: 1Gbit", &w);
	free(play(&w, "reclaim", &a));
	assert_true(a.moves > 100);
	assert_int_equal(a.promises_broken, 0);
	assert_true(a.background_lost_share < 1e-9);
	free(play(&w, "ablate_links", &a));
	assert_true(a.promises_broken > 0);
	assert_true(a.background_lost_share > 0);
	world_done(&w);
	(void)state;
}

/* A scenario of the lab, written out: three reclaims with time enough, nothing lost. */
static void test_lab_scenario(void **state)
{
	static const char text[] =
		"name: t\nduration: 100s\ntopology:\n"
		"  buildings: [{name: a, uplink: 100Mbit}, {name: b, uplink: 100Mbit}]\n"
		"  machines: [{name: a1, building: a, link: 200Mbit},\n"
		"    {name: b1, building: b, link: 200Mbit}]\n"
		"terms: {window: 10s, slots: [{cores: 1}]}\n"
		"jobs: [{name: j, command: [train], interval: 4s, cost: {work: 30s, save: 100ms,\n"
		"  restore: 500ms, image: 10MB, delta: 1}}]\n"
		"events: [{name: e, at: 10s, do: back, machines: [a1]}]\n";
	struct scenario s;
	struct world w;
	struct diag d = DIAG_INIT;
	struct run_result r;
	assert_int_equal(scenario_parse(text, strlen(text), "t.yaml", &s, &d), 0);
	assert_int_equal(world_make(&s, 1, &w, &d), 0);
	scenario_done(&s);
	free(play(&w, "reclaim", &r));
	assert_int_equal(r.jobs_done, 1);
	assert_true(r.lost_s < 1e-6);
	if (r.interruptions) /* 0.1 s of saving, 10 MB over 100 Mbit/s, 0.5 s of starting */
		assert_true(fabs(r.downtime_mean_s - (0.1 + 0.8 + 0.5)) < 0.3);
	world_done(&w);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_trace_formats), cmocka_unit_test(test_trace_refuses),
		cmocka_unit_test(test_topology),      cmocka_unit_test(test_flows_fair),
		cmocka_unit_test(test_flows_classes), cmocka_unit_test(test_flows_local),
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_crowded),	      cmocka_unit_test(test_lab_scenario),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
