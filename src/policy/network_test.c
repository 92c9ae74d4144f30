/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>

#include "base/rng.h"
#include "policy/network.h"

#define POINTS 8

/* Every path against Floyd and Warshall. */
static void test_shortest(void **state)
{
	struct rng r;
	rng_init(&r, 8);
	for (int round = 0; round < 100; round++) {
		struct network n = NETWORK_INIT;
		double d[POINTS][POINTS];
		for (int i = 0; i < POINTS; i++) {
			network_point_add(&n);
			for (int j = 0; j < POINTS; j++)
				d[i][j] = i == j ? 0 : INFINITY;
		}
		for (int k = 0; k < 14; k++) {
			uint32_t a = (uint32_t)rng_below(&r, POINTS), b = (uint32_t)rng_below(&r, POINTS);
			double delay = (double)(1 + rng_below(&r, 50)) / 1000;
			if (a == b) {
				assert_true(network_link_add(&n, a, b, 1, 0, 1, delay) == -EINVAL);
				continue;
			}
			assert_true(network_link_add(&n, a, b, 1e6, 0, 1, delay) >= 0);
			d[a][b] = fmin(d[a][b], delay + 1e-6);
		}
		for (uint32_t i = 0; i < POINTS; i++)
			assert_int_equal(network_node_add(&n, i, 1e6, 0, 1), i);
		assert_int_equal(network_route(&n), 0);
		for (int k = 0; k < POINTS; k++)
			for (int i = 0; i < POINTS; i++)
				for (int j = 0; j < POINTS; j++)
					d[i][j] = fmin(d[i][j], d[i][k] + d[k][j]);
		for (uint32_t i = 0; i < POINTS; i++) {
			for (uint32_t j = 0; j < POINTS; j++) {
				uint32_t path[NETWORK_PATH_MAX];
				int count = network_path(&n, i, j, path);
				if (i == j) {
					assert_int_equal(count, 0);
				} else if (isinf(d[i][j])) {
					assert_int_equal(count, -EHOSTUNREACH);
				} else {
					double sum = 0;
					assert_int_equal(path[0], n.node_up[i]);
					assert_int_equal(path[count - 1], n.node_down[j]);
					for (int k = 1; k < count - 1; k++)
						sum += n.link_delay_s[path[k]] + 1e-6;
					assert_true(fabs(sum - d[i][j]) < 1e-9);
				}
			}
		}
		network_done(&n);
	}
	(void)state;
}

static void test_budget(void **state)
{
	struct network_link l = { .capacity_bps = 100, .research_bps = 60, .floor_share = 0.9 };
	assert_true(network_budget_bps(&l) == 40);
	l.floor_share = 0.3;
	assert_true(fabs(network_budget_bps(&l) - 30) < 1e-12);
	l = (struct network_link){ .capacity_bps = 100, .research_bps = 60, .floor_share = 0.9,
				   .peak_bps = 15 };
	assert_true(network_budget_bps(&l) == 40 && network_usual_bps(&l) == 55);
	l.research_bps = 120;
	assert_true(network_budget_bps(&l) == 0);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_shortest),
					    cmocka_unit_test(test_budget) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
