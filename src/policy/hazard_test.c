/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "policy/hazard.h"

#define HOUR 3600.0
#define DAY 86400.0

struct world {
	struct hazard *h;
	struct rng rng;
	uint32_t owners;
};

static void make(struct world *w, uint32_t rooms, uint32_t owners, bool constant)
{
	struct hazard_config config = { .constant = constant, .cells_max = 1u << 18,
					.fit_every_s = 5 * DAY };
	uint32_t id;
	rng_init(&w->rng, 4);
	w->owners = owners;
	assert_int_equal(hazard_new(&config, &w->h), 0);
	for (uint32_t i = 0; i < rooms; i++)
		assert_int_equal(hazard_room_add(w->h, &id), 0);
	for (uint32_t i = 0; i < owners; i++) {
		assert_int_equal(hazard_owner_add(w->h, i % rooms, 0, &id), 0);
		assert_int_equal(hazard_observe(w->h, i, 0, HAZARD_LENT), 0);
	}
}

/* Owners come at `day` per hour from 8 to 20 and at `night` otherwise, for half an hour. */
static void live(struct world *w, double from, double to, double day, double night)
{
	double until[64] = { 0 };
	for (double t = from; t < to; t += 60) {
		double hour = fmod(t / HOUR, 24), rate = hour >= 8 && hour < 20 ? day : night;
		for (uint32_t i = 0; i < w->owners; i++) {
			if (until[i] > 0 && t >= until[i]) {
				until[i] = 0;
				assert_int_equal(hazard_observe(w->h, i, t, HAZARD_LENT), 0);
			} else if (until[i] == 0 && rng_unit(&w->rng) < rate / 60) {
				until[i] = t + 1800;
				assert_int_equal(hazard_observe(w->h, i, t, HAZARD_OWNED), 0);
			}
		}
	}
	for (uint32_t i = 0; i < w->owners; i++)
		assert_int_equal(hazard_observe(w->h, i, to, HAZARD_LENT), 0);
}

static double per_hour(struct world *w, uint32_t owner, double t)
{
	struct hazard_rate r;
	hazard_rate(w->h, owner, t, &r);
	assert_true(r.low > 0 && r.low <= r.per_s && r.per_s <= r.high && r.off_per_s > 0);
	return r.per_s * HOUR;
}

static void test_learns_the_day(void **state)
{
	struct world w;
	make(&w, 2, 20, false);
	live(&w, 0, 28 * DAY, 0.6, 0.03);
	assert_int_equal(hazard_fit(w.h, 28 * DAY), 0);
	/* Ask on a quiet evening for the hours ahead. */
	double curve[24], now = 28 * DAY + 2 * HOUR;
	hazard_curve(w.h, 0, now, HOUR, 24, curve);
	double night = curve[3] * HOUR, noon = curve[11] * HOUR;
	assert_true(night > 0.005 && night < 0.1);
	print_message("night %.4f noon %.4f\n", night, noon);
	assert_true(noon > 0.3 && noon < 1.0);
	struct hazard_forecast f, longer;
	hazard_forecast(w.h, 0, now, HOUR, &f);
	hazard_forecast(w.h, 0, now, 20 * HOUR, &longer);
	assert_true(fabs(f.p_reclaim + f.p_off + f.survival - 1) < 1e-9);
	assert_true(longer.survival < f.survival && longer.p_reclaim > f.p_reclaim);
	assert_true(f.low <= f.survival && f.survival <= f.high && f.low >= 0 && f.high <= 1);
	hazard_free(w.h);
	(void)state;
}

static void test_new_owner_and_level(void **state)
{
	struct world w;
	uint32_t id;
	make(&w, 1, 20, false);
	live(&w, 0, 21 * DAY, 0.3, 0.3);
	assert_int_equal(hazard_fit(w.h, 21 * DAY), 0);
	/* A machine without history gets its campus's rate. */
	assert_int_equal(hazard_owner_add(w.h, 0, 0, &id), 0);
	assert_int_equal(hazard_observe(w.h, id, 21 * DAY, HAZARD_LENT), 0);
	double fresh = per_hour(&w, id, 21 * DAY + 2 * HOUR);
	assert_true(fresh > 0.1 && fresh < 0.8);
	/* Three times as many owners: within two days the rate follows, without a new fit. */
	live(&w, 21 * DAY, 23.5 * DAY, 0.9, 0.9);
	double after = per_hour(&w, 3, 23.5 * DAY + 60);
	print_message("fresh %.3f after %.3f\n", fresh, after);
	assert_true(after > 0.5 && after < 1.6);
	struct hazard_evidence e;
	hazard_evidence(w.h, 3, &e);
	assert_true(e.exposed_s > 10 * DAY && e.reclaims > 50 && e.campus_reclaims > 1000);
	hazard_free(w.h);
	(void)state;
}

static void test_no_calendar(void **state)
{
	/* No data, little data: never zero, never wild. */
	struct world w;
	make(&w, 1, 4, false);
	double r = per_hour(&w, 0, 60);
	assert_true(r > 0.001 && r < 1);
	assert_int_equal(hazard_fit(w.h, HOUR), 0);
	r = per_hour(&w, 0, 2 * HOUR);
	assert_true(r > 0.0005 && r < 1);
	hazard_free(w.h);
	(void)state;
}

static void test_declared(void **state)
{
	struct world w;
	struct hazard_span span = { 10 * HOUR, 12 * HOUR };
	struct hazard_forecast f;
	make(&w, 1, 2, false);
	assert_int_equal(hazard_declare(w.h, 0, &span, 1), 0);
	hazard_forecast(w.h, 0, 9 * HOUR, 1800, &f);
	assert_true(f.survival > 0.5 && f.declared_in_s == HOUR);
	hazard_forecast(w.h, 0, 9 * HOUR, 2 * HOUR, &f);
	assert_true(f.survival == 0 && fabs(f.p_reclaim + f.p_off - 1) < 1e-9);
	hazard_forecast(w.h, 1, 9 * HOUR, 2 * HOUR, &f);
	assert_true(f.survival > 0 && isinf(f.declared_in_s));
	/* Inside it, and over the end of the week. */
	span = (struct hazard_span){ 6 * DAY + 23 * HOUR, HOUR };
	assert_int_equal(hazard_declare(w.h, 1, &span, 1), 0);
	hazard_forecast(w.h, 1, 7 * DAY + 0.5 * HOUR, 60, &f);
	assert_true(f.declared_in_s == 0 && f.survival == 0);
	hazard_free(w.h);
	(void)state;
}

static void test_signs_and_room(void **state)
{
	struct world w;
	make(&w, 1, 20, false);
	live(&w, 0, 21 * DAY, 0.2, 0.2);
	assert_int_equal(hazard_fit(w.h, 21 * DAY), 0);
	double t = 21 * DAY + 3 * HOUR, quiet = per_hour(&w, 0, t);
	hazard_activity(w.h, 0, t, 1);
	assert_true(per_hour(&w, 0, t + 1) >= quiet);
	assert_true(hazard_room_shock(w.h, 1, t) < 2);
	for (uint32_t i = 5; i < 15; i++) /* a class comes in */
		assert_int_equal(hazard_observe(w.h, i, t + i * 5, HAZARD_OWNED), 0);
	assert_true(hazard_room_shock(w.h, 1, t + 90) > 4);
	struct hazard_reason why[HAZARD_REASONS_MAX];
	double base;
	size_t n = hazard_explain(w.h, 1, t + 90, why, &base);
	assert_true(n > 5 && base > 0);
	for (size_t i = 1; i < n; i++) /* largest effect first */
		assert_true(fabs(log(why[i - 1].factor)) >= fabs(log(why[i].factor)) - 1e-12);
	hazard_free(w.h);
	(void)state;
}

/* Rooms that go off together teach that one off is followed by others; bounded, and it ends. */
static void test_off_groups(void **state)
{
	struct world w;
	make(&w, 4, 20, false);
	assert_true(hazard_off_group(w.h, 1, 0, 0) == 0);
	double t = 0;
	for (int night = 0; night < 20; night++) {
		t = (night + 1) * DAY;
		for (uint32_t i = 0; i < 20; i++)
			assert_int_equal(hazard_observe(w.h, i, t - 3600, HAZARD_LENT), 0);
		for (uint32_t i = 0; i < 10; i++) /* room by room, a machine every five seconds */
			assert_int_equal(hazard_observe(w.h, i, t + i * 5, HAZARD_OFF), 0);
	}
	t += DAY;
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(hazard_observe(w.h, i, t, HAZARD_LENT), 0);
	t += 3600;
	assert_int_equal(hazard_observe(w.h, 0, t, HAZARD_OFF), 0);
	double mate = hazard_off_group(w.h, 4, t, 0), before = mate;
	struct hazard_forecast f;
	hazard_forecast(w.h, 4, t, 300, &f);
	assert_true(mate > 0.1 && mate < 1 && f.p_off > 0.05);
	for (double from = 5; from < 400; from += 5) { /* less and less is left to rescue */
		double p = hazard_off_group(w.h, 4, t, from);
		assert_true(p <= before + 1e-12 && p >= 0);
		before = p;
	}
	assert_true(before == 0);
	assert_true(hazard_off_group(w.h, 4, t + 301, 0) == 0);
	hazard_free(w.h);
	(void)state;
}

static void test_repeats(void **state)
{
	double got[2];
	for (int k = 0; k < 2; k++) {
		struct world w;
		make(&w, 2, 10, false);
		live(&w, 0, 10 * DAY, 0.5, 0.1);
		assert_int_equal(hazard_fit(w.h, 10 * DAY), 0);
		got[k] = per_hour(&w, 4, 10 * DAY + 5 * HOUR);
		hazard_free(w.h);
	}
	assert_memory_equal(&got[0], &got[1], sizeof(double));
	(void)state;
}

static void test_constant(void **state)
{
	struct world w;
	make(&w, 2, 20, true);
	live(&w, 0, 14 * DAY, 0.6, 0.03);
	assert_int_equal(hazard_fit(w.h, 14 * DAY), 0);
	double night = per_hour(&w, 0, 14 * DAY + 3 * HOUR), day = per_hour(&w, 1, 14 * DAY + 12 * HOUR);
	assert_true(fabs(night / day - 1) < 0.05);
	assert_true(night > 0.15 && night < 0.5);
	hazard_free(w.h);
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_learns_the_day), cmocka_unit_test(test_new_owner_and_level),
		cmocka_unit_test(test_no_calendar),    cmocka_unit_test(test_declared),
		cmocka_unit_test(test_signs_and_room), cmocka_unit_test(test_repeats),
		cmocka_unit_test(test_off_groups),
		cmocka_unit_test(test_constant),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
