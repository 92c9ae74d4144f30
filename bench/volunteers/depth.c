/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases depth_N_D and churn_N_D of bench `volunteers`: the shape of the tree
 * that the real routing code grows. Figures that docs/evaluation.md promises
 * are asserted here: the program exits 1 if one is missed.
 *
 * usage: bench_depth [--quick]
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/growth.h"

#define SEEDS 5

static const char *const rule_system[GROWTH_RULE_COUNT] = { "reclaim", "reclaim_local",
							     "genet_rule" };
static int failures;

static void line(const char *kind, const struct growth_config *c, const char *metric, double value,
		 const char *unit, int n)
{
	printf("{\"bench\":\"volunteers\",\"case\":\"%s_%u_%u\",\"system\":\"%s\",\"metric\":\"%s\","
	       "\"value\":%.4f,\"unit\":\"%s\",\"n\":%d}\n",
	       kind, c->nodes, c->degree, rule_system[c->rule], metric, value, unit, n);
}

static void expect(bool ok, const struct growth_config *c, const char *what, double value)
{
	if (ok)
		return;
	failures++;
	fprintf(stderr, "MISSED: %s, %u nodes, degree %u: %s is %.4f\n", rule_system[c->rule],
		c->nodes, c->degree, what, value);
}

/* What simulations of the original's rule gave, joins only: the share of nodes at the depth that
 * filling breadth first gives them. */
static double local_least(uint32_t nodes, uint32_t degree)
{
	static const struct {
		uint32_t nodes, degree;
		double share;
	} rows[] = {
		{ 1000, 5, .767 }, { 10000, 5, .851 }, { 100000, 5, .780 },
		{ 1000, 10, .903 }, { 10000, 10, .900 }, { 100000, 10, .899 },
		{ 1000, 20, .930 }, { 10000, 20, .872 }, { 100000, 20, .984 },
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (rows[i].nodes == nodes && rows[i].degree == degree)
			return rows[i].share;
	}
	return 0;
}

static void average(struct growth_result *sum, const struct growth_result *r, int seeds)
{
	sum->share_at_ideal += r->share_at_ideal / seeds;
	sum->level_overlap += r->level_overlap / seeds;
	sum->mean_depth_ratio += r->mean_depth_ratio / seeds;
	sum->join_messages += r->join_messages / seeds;
	sum->rejoins += r->rejoins / seeds;
	sum->lost_node_s += r->lost_node_s / seeds;
	sum->path_breaks += r->path_breaks;
	sum->depth_max = MAX(sum->depth_max, r->depth_max);
	sum->depth_ideal = r->depth_ideal;
}

static void joins_only(enum growth_rule rule, uint32_t nodes, uint32_t degree)
{
	struct growth_config c;
	struct growth_result sum = { 0 };
	growth_defaults(rule, nodes, degree, &c);
	int seeds = nodes >= 100000 ? 3 : SEEDS;
	for (c.seed = 1; c.seed <= (uint64_t)seeds; c.seed++) {
		struct growth_result r;
		CHECK(growth_run(&c, &r) == 0);
		expect(r.nodes == nodes, &c, "nodes in the tree", r.nodes);
		average(&sum, &r, seeds);
	}
	line("depth", &c, "share_at_ideal_depth", sum.share_at_ideal, "share", seeds);
	line("depth", &c, "level_overlap", sum.level_overlap, "share", seeds);
	line("depth", &c, "mean_depth_ratio", sum.mean_depth_ratio, "ratio", seeds);
	line("depth", &c, "join_messages", sum.join_messages, "messages", seeds);
	line("depth", &c, "depth_max", sum.depth_max, "levels", seeds);
	expect(sum.path_breaks == 0, &c, "messages off their path", sum.path_breaks);
	if (rule == GROWTH_NAMED)
		expect(sum.share_at_ideal == 1, &c, "share at ideal depth", sum.share_at_ideal);
	/* The same rule measured twice differs by chance: 1.5 points, the spread over seeds. */
	else if (rule == GROWTH_LOCAL && nodes >= 1000)
		expect(sum.share_at_ideal >= local_least(nodes, degree) - 0.015, &c,
		       "share at ideal depth", sum.share_at_ideal);
}

static void churn(enum growth_rule rule, uint32_t nodes, uint32_t degree)
{
	struct growth_config c;
	struct growth_result sum = { 0 };
	growth_defaults(rule, nodes, degree, &c);
	int seeds = nodes >= 10000 ? 1 : 3;
	c.life_s = 600;
	c.join_s = MIN(c.join_s, 60.0);
	c.settle_s = c.join_s + 600;
	c.measure_s = 600;
	for (c.seed = 1; c.seed <= (uint64_t)seeds; c.seed++) {
		struct growth_result r;
		CHECK(growth_run(&c, &r) == 0);
		average(&sum, &r, seeds);
	}
	line("churn", &c, "share_at_ideal_depth", sum.share_at_ideal, "share", seeds);
	line("churn", &c, "mean_depth_ratio", sum.mean_depth_ratio, "ratio", seeds);
	line("churn", &c, "join_messages", sum.join_messages, "messages", seeds);
	line("churn", &c, "rejoins_per_failure", sum.rejoins, "connections", seeds);
	line("churn", &c, "lost_per_failure", sum.lost_node_s, "node_s", seeds);
	line("churn", &c, "depth_max", sum.depth_max, "levels", seeds);
	if (rule == GROWTH_NAMED)
		expect(sum.share_at_ideal >= 0.99, &c, "share of node-time", sum.share_at_ideal);
	else if (rule == GROWTH_LOCAL && degree == 10)
		expect(sum.share_at_ideal >= 0.85, &c, "share of node-time", sum.share_at_ideal);
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	static const uint32_t sizes[] = { 100, 1000, 10000, 100000 };
	for (size_t i = 0; i < ARRAY_SIZE(sizes) - 2 * quick; i++) {
		for (uint32_t degree = 5; degree <= 20; degree *= 2) {
			for (enum growth_rule rule = 0; rule < GROWTH_RULE_COUNT; rule++) {
				if (rule != GROWTH_ORIGINAL)
					joins_only(rule, sizes[i], degree);
				if (sizes[i] >= 1000)
					churn(rule, sizes[i], degree);
			}
		}
	}
	return failures ? 1 : 0;
}
