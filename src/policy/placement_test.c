/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "policy/placement.h"

#define GB 1e9
#define MB 1e6

/* Two buildings with two machines each behind a slow uplink. */
static void campus(struct network *net, double uplink)
{
	for (int i = 0; i < 3; i++)
		network_point_add(net);
	for (uint32_t b = 1; b <= 2; b++) {
		network_link_add(net, b, 0, uplink, 0, 1, 1e-4);
		network_link_add(net, 0, b, uplink, 0, 1, 1e-4);
	}
	for (uint32_t i = 0; i < 4; i++)
		network_node_add(net, 1 + i / 2, 125 * MB, 0, 1);
	assert_int_equal(network_route(net), 0);
}

static struct placement_node node(double hazard)
{
	return (struct placement_node){ .slots_free = 1,
					.slot_kind = 1,
					.gpu_type = 1,
					.gpu_mem_bytes = (uint64_t)(16 * GB),
					.mem_free_bytes = (uint64_t)(64 * GB),
					.disk_free_bytes = (uint64_t)(500 * GB),
					.isa_level = 3,
					.glibc = 2036,
					.driver = 535,
					.lent = true,
					.hazard_per_s = hazard,
					.survival = -1,
					.window_s = -1 };
}

static struct placement_job job(uint32_t source, double window, double image)
{
	return (struct placement_job){ .id = source + 1,
				       .slots = 1,
				       .slot_kind = 1,
				       .source = source,
				       .window_s = window,
				       .save_s = 1,
				       .image_bytes = image,
				       .unsaved_work_s = 1000,
				       .restart_s = 10,
				       .remaining_s = 36000,
				       .loss_per_reclaim_s = 300 };
}

static void test_facts(void **state)
{
	struct placement_node n = node(1e-5);
	struct placement_job j = job(0, 60, GB);
	assert_null(placement_refusal(&n, &j));
	j.gpu_type = 2;
	assert_string_equal(placement_refusal(&n, &j), "another GPU type");
	j = job(0, 60, GB);
	j.glibc = 2037;
	assert_string_equal(placement_refusal(&n, &j), "glibc too old");
	j = job(0, 60, GB);
	j.transparent = true;
	j.driver = 530;
	assert_string_equal(placement_refusal(&n, &j), "GPU driver");
	j.transparent = false; /* a newer driver runs what an older one asked for */
	assert_null(placement_refusal(&n, &j));
	n.slots_free = 0;
	assert_string_equal(placement_refusal(&n, &j), "no free slot");
	n = node(0);
	j.isa_level = 4;
	assert_string_equal(placement_refusal(&n, &j), "instruction set");
	n.isa_level = 100;
	j.isa_level = 1;
	assert_string_equal(placement_refusal(&n, &j), "instruction set");
	(void)state;
}

static void test_one(void **state)
{
	struct network net = NETWORK_INIT;
	campus(&net, 125 * MB);
	struct placement_node nodes[4] = { node(1e-5), node(3e-4), node(1e-5), node(2e-5) };
	nodes[0].lent = false;
	struct placement_job j = job(0, 60, 2 * GB);
	struct placement p;
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_MOVE);
	assert_int_equal(p.node, 2); /* the one that lasts */
	assert_true(fabs(p.finish_in_s - 17) < 0.1 && fabs(p.floor_bps) < 1); /* save first */
	j.save_s = 0;
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_true(fabs(p.floor_bps - 125 * MB) < 1);
	/* An image that is there already makes a worse node the better one. */
	struct placement_have have = { 1, 2 * GB };
	j.have = &have;
	j.have_count = 1;
	j.window_s = 10;
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.node, 1);
	assert_true(p.bytes == 0);
	/* Without it nothing fits 10 s: nobody is told to try. */
	j.have_count = 0;
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_FALLBACK);
	assert_int_equal(p.rejected_time, 3);
	assert_int_equal(p.node, 2); /* where to start from the durable image */
	/* Blind to hazard, the nearest id wins. */
	struct placement_config blind = { .hazard_blind = true };
	j.window_s = 60;
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, &blind, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_MOVE);
	network_done(&net);
	(void)state;
}

static void test_mass(void **state)
{
	struct network net = NETWORK_INIT;
	campus(&net, 50 * MB);
	struct placement_node nodes[4] = { node(1e-5), node(1e-5), node(1e-5), node(1e-5) };
	nodes[0].lent = nodes[1].lent = false;
	/* Each alone fits the uplink in 40 s, both together do not: one moves, by saved work. */
	struct placement_job jobs[2] = { job(0, 60, 2 * GB), job(1, 60, 2 * GB) };
	struct placement p[2];
	jobs[1].unsaved_work_s = 5000;
	assert_int_equal(placement_plan(&net, nodes, 4, jobs, 2, NULL, 0, NULL, p), 0);
	assert_int_equal(p[1].verdict, PLACEMENT_MOVE);
	assert_int_equal(p[0].verdict, PLACEMENT_FALLBACK);
	assert_true(p[0].node == PLACEMENT_NONE || p[0].node != p[1].node);
	/* A neighbour in the building that only keeps images: staged. */
	nodes[1].stage_only = true;
	jobs[1].source = 3;
	nodes[3].lent = false;
	jobs[0].window_s = 30;
	struct placement_job one = jobs[0];
	assert_int_equal(placement_plan(&net, nodes, 4, &one, 1, NULL, 0, NULL, p), 0);
	assert_int_equal(p[0].verdict, PLACEMENT_STAGE);
	assert_int_equal(p[0].node, 1);
	/* Two jobs never get the same slot. */
	network_done(&net);
	net = (struct network)NETWORK_INIT;
	campus(&net, 500 * MB);
	nodes[1].stage_only = false;
	nodes[3].lent = true;
	jobs[0] = job(0, 600, GB);
	jobs[1] = job(1, 600, GB);
	assert_int_equal(placement_plan(&net, nodes, 4, jobs, 2, NULL, 0, NULL, p), 0);
	assert_int_equal(p[0].verdict, PLACEMENT_MOVE);
	assert_int_equal(p[1].verdict, PLACEMENT_MOVE);
	assert_int_not_equal(p[0].node, p[1].node);
	network_done(&net);
	(void)state;
}

/* Whatever is asked: facts hold, slots are not sold twice, promised moves fit together. */
static void test_properties(void **state)
{
	struct rng r;
	rng_init(&r, 5);
	for (int round = 0; round < 300; round++) {
		struct network net = NETWORK_INIT;
		enum { N = 24, J = 10 };
		struct placement_node nodes[N];
		struct placement_job jobs[J];
		struct placement p[J];
		uint32_t used[N] = { 0 };
		for (int i = 0; i < 4; i++)
			network_point_add(&net);
		for (uint32_t b = 1; b < 4; b++) {
			double up = (10 + (double)rng_below(&r, 200)) * MB;
			network_link_add(&net, b, 0, up, up * 0.3, 0.8, 0);
			network_link_add(&net, 0, b, up, up * 0.3, 0.8, 0);
		}
		for (uint32_t i = 0; i < N; i++) {
			network_node_add(&net, 1 + i % 3, 125 * MB, 0, 0.9);
			nodes[i] = node(1e-6 * (double)(1 + rng_below(&r, 500)));
			nodes[i].slots_free = (uint32_t)rng_below(&r, 3);
			nodes[i].gpu_type = 1 + (uint32_t)rng_below(&r, 2);
			nodes[i].lent = rng_below(&r, 4) > 0;
			nodes[i].stage_only = rng_below(&r, 4) == 0;
		}
		assert_int_equal(network_route(&net), 0);
		for (uint32_t j = 0; j < J; j++) {
			jobs[j] = job((uint32_t)rng_below(&r, N), 5 + (double)rng_below(&r, 120),
				      (double)(1 + rng_below(&r, 4000)) * MB);
			jobs[j].id = j;
			jobs[j].slots = 1 + (uint32_t)rng_below(&r, 2);
			jobs[j].gpu_type = (uint32_t)rng_below(&r, 3);
			jobs[j].unsaved_work_s = (double)rng_below(&r, 5000);
		}
		assert_int_equal(placement_plan(&net, nodes, N, jobs, J, NULL, 0, NULL, p), 0);
		struct transfer t[J];
		size_t n = 0;
		for (int j = 0; j < J; j++) {
			if (p[j].node == PLACEMENT_NONE)
				continue;
			assert_int_not_equal(p[j].node, jobs[j].source);
			if (p[j].verdict != PLACEMENT_STAGE) {
				assert_null(placement_refusal(&nodes[p[j].node], &jobs[j]));
				used[p[j].node] += jobs[j].slots;
			}
			if (p[j].verdict == PLACEMENT_FALLBACK)
				continue;
			assert_true(p[j].finish_in_s <= jobs[j].window_s + 1e-3);
			if (!p[j].promised)
				continue;
			t[n] = (struct transfer){ .id = (uint64_t)j,
						  .bytes = p[j].bytes,
						  .start_in_s = jobs[j].save_s,
						  .deadline_in_s = jobs[j].window_s,
						  .saved_work = 1 };
			int links = network_path(&net, jobs[j].source, p[j].node, t[n].links);
			assert_true(links > 0);
			t[n++].links_count = (uint32_t)links;
		}
		assert_true(admission_feasible(&net, t, n));
		for (int i = 0; i < N; i++)
			assert_true(used[i] <= nodes[i].slots_free);
		/* The same question, the same answer. */
		struct placement again[J];
		assert_int_equal(placement_plan(&net, nodes, N, jobs, J, NULL, 0, NULL, again), 0);
		for (int j = 0; j < J; j++)
			assert_true(p[j].node == again[j].node && p[j].verdict == again[j].verdict);
		network_done(&net);
	}
	(void)state;
}

/* What floors may not promise is tried on what research leaves, if it is worth the wait. */
static void test_try(void **state)
{
	struct network net = NETWORK_INIT;
	campus(&net, 125 * MB);
	struct placement_node nodes[4] = { node(1e-5), node(1e-5), node(1e-5), node(1e-5) };
	struct placement_job j = job(0, 30, GB);
	struct placement p;
	for (size_t l = 0; l < net.links_count; l++) {
		net.links[l].research_bps = 115 * MB; /* at its busiest: 100 s for the image */
		net.links[l].peak_bps = 50 * MB;      /* as a rule: 17 s */
	}
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_MOVE);
	assert_false(p.promised);
	assert_true(p.floor_bps == 0);
	j.unsaved_work_s = 5; /* less than the owner's window would cost */
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_FALLBACK);
	j = job(0, 12, GB); /* hopeless as a rule, too */
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_FALLBACK);
	j = job(0, 150, GB);
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, NULL, 0, NULL, &p), 0);
	assert_int_equal(p.verdict, PLACEMENT_MOVE);
	assert_true(p.promised);
	/* A transfer that was only tried makes room for one that can be promised. */
	struct transfer tried = { .id = 9, .bytes = 1 * GB, .deadline_in_s = 140, .saved_work = 1,
				  .links = { net.node_up[0] }, .links_count = 1 };
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, &tried, 1, NULL, &p), 0);
	assert_true(p.verdict == PLACEMENT_MOVE && p.promised);
	tried.promised = true;
	assert_int_equal(placement_plan(&net, nodes, 4, &j, 1, &tried, 1, NULL, &p), 0);
	assert_false(p.promised);
	network_done(&net);
	(void)state;
}

static void test_standby(void **state)
{
	struct network net = NETWORK_INIT;
	campus(&net, 125 * MB);
	struct placement_node nodes[4] = { node(1e-5), node(3e-4), node(1e-5), node(2e-5) };
	struct placement_job j = job(0, INFINITY, 2 * GB);
	uint32_t homes[4];
	size_t n = placement_standby(&net, nodes, 4, &j, NULL, homes, 4);
	assert_int_equal(n, 3);
	assert_int_equal(homes[0], 2);
	assert_int_equal(homes[2], 1);
	network_done(&net);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_facts), cmocka_unit_test(test_one),
		cmocka_unit_test(test_mass), cmocka_unit_test(test_properties),
		cmocka_unit_test(test_try), cmocka_unit_test(test_standby),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
