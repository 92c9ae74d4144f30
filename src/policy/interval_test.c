/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "policy/interval.h"

static void test_single(void **state)
{
	/* Young 1974: C = 60 s, mu = 1 day: sqrt(2 * 60 * 86400). */
	assert_true(fabs(interval_young(60, 1 / 86400.0) - 3219.94) < 0.01);
	double daly = interval_daly(60, 1 / 86400.0), x = sqrt(60 / (2 * 86400.0));
	assert_true(fabs(daly - (3219.938 * (1 + x / 3 + x * x / 9) - 60)) < 0.01);
	assert_true(interval_daly(1000, 1 / 400.0) == 400); /* C >= 2 mu: mu */
	assert_true(isinf(interval_young(60, 0)) && isinf(interval_daly(60, 0)));
	(void)state;
}

static struct interval_job plain_job(void)
{
	return (struct interval_job){ .weight = 1,
				      .stall_s = 10,
				      .bytes_full = 1e9,
				      .bytes_delta = 1e9,
				      .path_bps = 1e8,
				      .crash_per_s = 1e-5 };
}

/* Expected loss of a job, as the solver defines it. */
static double loss(const struct interval_job *j, double tau)
{
	double rate = j->depart_per_s * interval_p_miss(j, tau) + j->crash_per_s;
	return j->weight * (j->stall_s / tau + rate * tau / 2);
}

static void test_alone_is_young(void **state)
{
	struct interval_job j = plain_job();
	struct interval v;
	assert_true(interval_solve(&j, 1, NULL, 0, &v, NULL) >= 0);
	assert_true(fabs(v.interval_s / interval_young(10, 1e-5) - 1) < 1e-3);
	/* A window in which all fits: reclaims cost nothing, only crashes count. */
	static const double wide[] = { 600 }, none[] = { 0 };
	j.depart_per_s = 1e-3;
	j.windows_s = wide;
	j.windows_count = 1;
	assert_true(interval_solve(&j, 1, NULL, 0, &v, NULL) >= 0);
	assert_true(v.p_miss < 0.01 && v.interval_s > 0.5 * interval_young(10, 1e-5));
	j.windows_s = none;
	assert_true(interval_solve(&j, 1, NULL, 0, &v, NULL) >= 0);
	assert_true(v.p_miss > 0.99);
	assert_true(fabs(v.interval_s / interval_young(10, 1e-3 + 1e-5) - 1) < 0.01);
	/* In a mass reclaim the neighbours take the path's time. */
	static const double tight[] = { 25 };
	j.windows_s = tight;
	double alone = interval_p_miss(&j, 100);
	j.neighbours = 10;
	assert_true(interval_p_miss(&j, 100) > alone + 0.5);
	(void)state;
}

/* On one congested link against a search over both intervals. */
static void test_joint_brute(void **state)
{
	struct rng r;
	rng_init(&r, 2);
	for (int round = 0; round < 20; round++) {
		struct interval_job j[2];
		struct interval v[2];
		double price;
		uint32_t link = 0;
		for (int i = 0; i < 2; i++) {
			j[i] = plain_job();
			j[i].weight = 1 + (double)rng_below(&r, 4);
			j[i].stall_s = 1 + (double)rng_below(&r, 30);
			j[i].crash_per_s = 1e-6 * (double)(1 + rng_below(&r, 300));
			j[i].bytes_delta = 1e8 * (double)(1 + rng_below(&r, 20));
			j[i].links = &link;
			j[i].links_count = 1;
		}
		struct interval_link l = { .budget_bps = 5e5 + (double)rng_below(&r, 1000000) };
		assert_true(interval_solve(j, 2, &l, 1, v, &price) >= 0);
		double use = 0, got = 0, best = INFINITY;
		for (int i = 0; i < 2; i++) {
			use += j[i].bytes_delta / v[i].interval_s;
			got += loss(&j[i], v[i].interval_s);
		}
		assert_true(use <= l.budget_bps * 1.001);
		assert_true(price == 0 || use >= l.budget_bps * 0.999); /* a price only where full */
		for (double a = 1; a < 5e5; a *= 1.01) {
			double left = l.budget_bps - j[0].bytes_delta / a;
			if (left <= 0)
				continue;
			double b = fmax(interval_young(j[1].stall_s, j[1].crash_per_s),
					j[1].bytes_delta / left);
			best = fmin(best, loss(&j[0], a) + loss(&j[1], b));
		}
		assert_true(got <= best * 1.002);
	}
	(void)state;
}

/* Two links, three jobs, one of which crosses both: budgets hold, prices are complementary. */
static void test_two_links(void **state)
{
	uint32_t both[] = { 0, 1 };
	struct interval_job j[3] = { plain_job(), plain_job(), plain_job() };
	struct interval v[3];
	struct interval_link l[2] = { { 2e5 }, { 1e5 } };
	double prices[2];
	j[0].links = both;
	j[0].links_count = 2;
	j[1].links = both;
	j[1].links_count = 1;
	j[2].links = both + 1;
	j[2].links_count = 1;
	assert_true(interval_solve(j, 3, l, 2, v, prices) >= 0);
	double use0 = j[0].bytes_delta / v[0].interval_s + j[1].bytes_delta / v[1].interval_s;
	double use1 = j[0].bytes_delta / v[0].interval_s + j[2].bytes_delta / v[2].interval_s;
	assert_true(use0 <= 2e5 * 1.01 && use1 <= 1e5 * 1.01);
	assert_true(use1 >= 1e5 * 0.99 && prices[1] > 0);
	assert_true(v[0].interval_s >= v[1].interval_s);
	(void)state;
}

static void test_monotone(void **state)
{
	struct rng r;
	rng_init(&r, 9);
	static const double windows[] = { 0, 7, 30, 60, 120, 300, 600 };
	for (int round = 0; round < 500; round++) {
		struct interval_job j = plain_job();
		struct interval a, b;
		j.depart_per_s = 1e-6 * (double)(1 + rng_below(&r, 1000));
		j.windows_s = windows;
		j.windows_count = 7;
		j.save_s = 1 + (double)rng_below(&r, 30);
		j.bytes_full = 1e8 * (double)(1 + rng_below(&r, 100));
		j.bytes_delta = j.bytes_full * rng_unit(&r);
		assert_true(interval_solve(&j, 1, NULL, 0, &a, NULL) >= 0);
		assert_true(a.p_miss >= 1.0 / 7 - 1e-4 && a.p_miss <= 1);
		assert_true(a.interval_s > 0 && a.loss_share > 0);
		j.crash_per_s *= 3; /* more danger, sooner saves */
		assert_true(interval_solve(&j, 1, NULL, 0, &b, NULL) >= 0);
		assert_true(b.interval_s <= a.interval_s * (1 + 1e-6));
		j.stall_s *= 2; /* dearer saves, later */
		assert_true(interval_solve(&j, 1, NULL, 0, &a, NULL) >= 0);
		assert_true(a.interval_s >= b.interval_s * (1 - 1e-6));
		assert_true(interval_p_miss(&j, 10) <= interval_p_miss(&j, 1000) + 1e-12);
	}
	(void)state;
}

static void test_varying(void **state)
{
	/* A constant rate gives the constant interval. */
	double rates[48];
	for (int i = 0; i < 48; i++)
		rates[i] = 1e-4;
	double tau = interval_next(rates, 48, 600, 1, 10, 0);
	assert_true(fabs(tau - interval_young(10, 1e-4)) < 1e-6);
	assert_true(fabs(interval_next(rates, 48, 600, 1, 10, 0.5) - tau / 2) < 1e-6);
	assert_true(fabs(interval_accrue(1e-4, 10, tau) - 1) < 1e-9);
	/* A quiet hour ahead of a dangerous one: the save moves to its edge. */
	for (int i = 0; i < 6; i++)
		rates[i] = 0;
	assert_true(fabs(interval_next(rates, 48, 600, 1, 10, 0) - 3600 - tau) < 1e-6);
	for (int i = 0; i < 48; i++)
		rates[i] = 0;
	assert_true(isinf(interval_next(rates, 48, 600, 1, 10, 0)));
	(void)state;
}

static double cdf_step(void *ctx, double x)
{
	return x >= *(double *)ctx ? 1 : 0;
}

static void test_last_save(void **state)
{
	double need = 12;
	double x = interval_last_save(60, cdf_step, &need);
	assert_true(x >= 12 && x < 12.2);
	need = 90; /* never: start at once, there is nothing to gain by waiting */
	assert_true(interval_last_save(60, cdf_step, &need) == 60);
	assert_true(interval_skip(1e-4, 100, 100, 10));
	assert_false(interval_skip(0.2, 100, 100, 10));
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_single),	    cmocka_unit_test(test_alone_is_young),
		cmocka_unit_test(test_joint_brute), cmocka_unit_test(test_two_links),
		cmocka_unit_test(test_monotone),    cmocka_unit_test(test_varying),
		cmocka_unit_test(test_last_save),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
