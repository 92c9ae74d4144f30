/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "volunteer/growth.h"
#include "volunteer/route.h"
#include "volunteer/tree.h"

#define ROOT 1000000

static uint64_t add(struct tree *t, uint64_t node)
{
	struct tree_place p;
	assert_int_equal(tree_place(t, node, 0, &p), 0);
	assert_int_equal(tree_attached(t, node, p.generation, 0), 0);
	return p.position;
}

static void fills_breadth_first(void **state)
{
	struct tree *t;
	assert_int_equal(tree_new(ROOT, 3, &t), 0);
	for (uint64_t i = 1; i <= 100; i++)
		assert_int_equal(add(t, i), i);
	struct tree_place p;
	assert_int_equal(tree_place(t, 50, 0, &p), -EEXIST);
	assert_int_equal(tree_where(t, 13, &p), 0);
	assert_int_equal(p.parent, 4);
	assert_true(tree_reachable(t, 100));
	tree_free(t);
}

static void waits_for_parents_that_connect(void **state)
{
	struct tree *t;
	struct tree_place a, b, c;
	assert_int_equal(tree_new(ROOT, 2, &t), 0);
	assert_int_equal(tree_place(t, 1, 0, &a), 0);
	assert_int_equal(tree_place(t, 2, 0, &b), 0);
	assert_int_equal(tree_place(t, 3, 0, &c), -EAGAIN);
	assert_int_equal(tree_attached(t, 1, a.generation + 7, 0), -ESTALE);
	assert_int_equal(tree_attached(t, 1, a.generation, 0), 0);
	assert_int_equal(tree_place(t, 3, 0, &c), 0);
	assert_int_equal(c.position, 3);
	assert_int_equal(c.parent, 1);
	/* node 2 never comes: its place is free again, and the shallowest */
	uint64_t lost;
	assert_true(tree_expire(t, TREE_CONNECT_MS, &lost));
	assert_true(lost == 2 || lost == 3);
	assert_true(tree_expire(t, TREE_CONNECT_MS, &lost));
	assert_false(tree_expire(t, TREE_CONNECT_MS, &lost));
	assert_int_equal(tree_place(t, 4, 0, &c), 0);
	assert_int_equal(c.position, 2);
	tree_free(t);
}

static void a_leaf_fills_the_hole_and_the_subtree_stays(void **state)
{
	struct tree *t;
	assert_int_equal(tree_new(ROOT, 2, &t), 0);
	for (uint64_t i = 1; i <= 14; i++)
		add(t, i);
	assert_int_equal(tree_leave(t, 2, 0), 0);
	struct tree_place p;
	assert_true(tree_next_repair(t, &p)); /* the deepest leaf */
	assert_int_equal(p.node, 14);
	assert_int_equal(p.position, 2);
	assert_int_equal(p.parent, ROOT);
	struct tree_place filler = p;
	for (uint64_t i = 5; i <= 6; i++) { /* the orphans keep their positions */
		assert_true(tree_next_repair(t, &p));
		assert_int_equal(p.node, i);
		assert_int_equal(p.position, i);
		assert_int_equal(p.parent, 14);
		assert_false(tree_reachable(t, i));
		assert_int_equal(tree_attached(t, i, p.generation, 0), 0);
	}
	assert_false(tree_next_repair(t, &p));
	assert_false(tree_reachable(t, 11)); /* its path leads through the hole */
	/* newcomers do not steal the hole */
	assert_int_equal(add(t, 15), 15);
	assert_int_equal(tree_attached(t, 14, filler.generation, 0), 0);
	assert_true(tree_reachable(t, 11));
	assert_true(tree_reachable(t, 14));
	/* what the leaf left is free again, and the shallowest */
	assert_int_equal(add(t, 16), 14);
	tree_free(t);
}

static void a_filler_that_dies_is_replaced(void **state)
{
	struct tree *t;
	assert_int_equal(tree_new(ROOT, 2, &t), 0);
	for (uint64_t i = 1; i <= 14; i++)
		add(t, i);
	tree_leave(t, 2, 0);
	struct tree_place p;
	assert_true(tree_next_repair(t, &p));
	assert_int_equal(p.node, 14);
	tree_leave(t, 14, 0);
	assert_true(tree_next_repair(t, &p));
	assert_int_equal(p.node, 13);
	assert_int_equal(p.position, 2);
	tree_free(t);
}

/* Random lives: the tree must never lose or double a node, and always heal. */
static void random_lives(void **state)
{
	enum { N = 300 };
	struct tree *t;
	struct rng rng;
	rng_init(&rng, 3);
	for (uint32_t degree = 1; degree <= 7; degree += 2) {
		assert_int_equal(tree_new(ROOT, degree, &t), 0);
		struct tree_place pending[N + 1] = { 0 };
		bool present[N + 1] = { 0 };
		for (uint64_t step = 0; step < 20000; step++) {
			uint64_t i = 1 + rng_below(&rng, N);
			struct tree_place p;
			uint64_t dice = rng_below(&rng, 10);
			if (dice < 4 && !present[i]) {
				int r = tree_place(t, i, step, &p);
				assert_true(r == 0 || r == -EAGAIN);
				present[i] = r == 0;
				if (r == 0)
					pending[i] = p;
			} else if (dice < 8 && pending[i].node) {
				int r = tree_attached(t, i, pending[i].generation, 0);
				assert_true(r == 0 || r == -ESTALE || r == -ENOENT);
				pending[i].node = 0;
			} else if (dice == 8) {
				assert_int_equal(tree_leave(t, i, step) == 0, present[i]);
				present[i] = false;
				pending[i].node = 0;
			} else if (present[i]) {
				(void)tree_detached(t, i, step);
			}
			while (tree_next_repair(t, &p))
				pending[p.node] = p;
			uint64_t late;
			while (tree_expire(t, step > 2000 ? step - 2000 : 0, &late)) {
				present[late] = false;
				pending[late].node = 0;
			}
		}
		/* quiet at last: everybody who is there can be reached */
		for (int round = 0; round < 10 * N; round++) {
			struct tree_place p;
			for (uint64_t i = 1; i <= N; i++) {
				if (pending[i].node)
					(void)tree_attached(t, i, pending[i].generation, 0);
				pending[i].node = 0;
			}
			while (tree_next_repair(t, &p))
				pending[p.node] = p;
		}
		size_t there = 0;
		for (uint64_t i = 1; i <= N; i++) {
			there += present[i];
			assert_int_equal(tree_state(t, i) != TREE_ABSENT, present[i]);
			if (present[i])
				assert_true(tree_reachable(t, i));
		}
		assert_int_equal(tree_count(t, TREE_ATTACHED), there);
		tree_free(t);
	}
}

static void run(enum growth_rule rule, uint32_t nodes, uint32_t degree, double life_s,
		struct growth_result *r)
{
	struct growth_config c;
	growth_defaults(rule, nodes, degree, &c);
	c.life_s = life_s;
	if (life_s > 0) {
		c.settle_s = 300;
		c.measure_s = 300;
	}
	assert_int_equal(growth_run(&c, r), 0);
}

static void growth_named(void **state)
{
	struct growth_result r;
	for (uint32_t d = 5; d <= 20; d *= 2) {
		run(GROWTH_NAMED, 1000, d, 0, &r);
		assert_int_equal(r.nodes, 1000);
		assert_true(r.share_at_ideal == 1 && r.level_overlap == 1);
		run(GROWTH_NAMED, 1000, d, 600, &r);
		assert_true(r.share_at_ideal >= 0.99);
	}
}

static void growth_local(void **state)
{
	struct growth_result r;
	run(GROWTH_LOCAL, 1000, 10, 0, &r);
	assert_int_equal(r.nodes, 1000);
	assert_true(r.share_at_ideal >= 0.83);
	assert_true(r.path_breaks == 0);
	run(GROWTH_LOCAL, 1000, 10, 600, &r);
	assert_true(r.share_at_ideal >= 0.85);
	assert_true(r.nodes >= 980);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fills_breadth_first),
		cmocka_unit_test(waits_for_parents_that_connect),
		cmocka_unit_test(a_leaf_fills_the_hole_and_the_subtree_stays),
		cmocka_unit_test(a_filler_that_dies_is_replaced),
		cmocka_unit_test(random_lives),
		cmocka_unit_test(growth_named),
		cmocka_unit_test(growth_local),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
