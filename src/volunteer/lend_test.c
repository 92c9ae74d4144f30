/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"
#include "volunteer/lend.h"

static struct lend *make(bool ordered, uint32_t quorum)
{
	struct lend_config c;
	struct lend *l;
	lend_defaults(&c);
	c.ordered = ordered;
	c.quorum = quorum;
	assert_int_equal(lend_new(&c, &l), 0);
	return l;
}

static void put_numbers(struct lend *l, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		char text[16];
		uint64_t id;
		int len = snprintf(text, sizeof(text), "%u", i);
		assert_int_equal(lend_put(l, text, (size_t)len, &id), 0);
		assert_int_equal(id, i);
	}
}

static void join(struct lend *l, uint64_t who, uint32_t credit, uint64_t now)
{
	assert_int_equal(lend_join(l, who, now), 0);
	lend_demand(l, who, credit, 1, now);
}

static void takes_in_order(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 3);
	lend_end(l);
	join(l, 7, 2, 0);
	join(l, 8, 2, 0);
	struct lend_loan a[3];
	for (int i = 0; i < 3; i++)
		assert_true(lend_next(l, 0, &a[i]));
	struct lend_loan none;
	assert_false(lend_next(l, 0, &none));
	struct lend_result r;
	assert_int_equal(lend_result(l, a[2].volunteer, 2, false, "c", 1, 10), LEND_ACCEPTED);
	assert_false(lend_take(l, &r));
	assert_int_equal(lend_result(l, a[0].volunteer, 0, false, "a", 1, 10), LEND_ACCEPTED);
	assert_true(lend_take(l, &r));
	assert_int_equal(r.value, 0);
	assert_string_equal(r.bytes, "a");
	free(r.bytes);
	assert_false(lend_take(l, &r));
	assert_int_equal(lend_result(l, a[1].volunteer, 1, false, "b", 1, 10), LEND_ACCEPTED);
	for (unsigned i = 1; i < 3; i++) {
		assert_true(lend_take(l, &r));
		assert_int_equal(r.value, i);
		free(r.bytes);
	}
	assert_true(lend_finished(l));
	lend_free(l);
}

static void forged_results_are_refused(void **state)
{
	struct lend *l = make(false, 1);
	put_numbers(l, 2);
	join(l, 7, 1, 0);
	join(l, 8, 0, 0);
	struct lend_loan a;
	assert_true(lend_next(l, 0, &a));
	assert_int_equal(lend_result(l, 8, a.value, false, "x", 1, 1), LEND_NEVER_LENT);
	assert_int_equal(lend_result(l, 9, a.value, false, "x", 1, 1), LEND_NEVER_LENT);
	assert_int_equal(lend_result(l, 7, 99, false, "x", 1, 1), LEND_NEVER_LENT);
	assert_int_equal(lend_result(l, 7, a.value, false, "x", LEND_VALUE_MAX + 1, 1), LEND_TOO_LARGE);
	assert_int_equal(lend_result(l, 7, a.value, false, "x", 1, 1), LEND_ACCEPTED);
	assert_int_equal(lend_result(l, 7, a.value, false, "y", 1, 1), LEND_DOUBLED);
	struct lend_stats s;
	lend_stats(l, &s);
	assert_int_equal(s.never_lent, 3);
	assert_int_equal(s.doubled, 1);
	lend_free(l);
}

static void leaving_lends_again_at_once(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 1);
	join(l, 7, 1, 0);
	struct lend_loan a;
	assert_true(lend_next(l, 0, &a));
	join(l, 8, 1, 5);
	assert_false(lend_next(l, 5, &a));
	lend_leave(l, 7, 20);
	assert_true(lend_next(l, 20, &a));
	assert_int_equal(a.volunteer, 8);
	/* The first one's result may still come, by another path; it counts, once. */
	assert_int_equal(lend_result(l, 7, 0, false, "r", 1, 30), LEND_ACCEPTED);
	assert_int_equal(lend_result(l, 8, 0, false, "r", 1, 31), LEND_DOUBLED);
	uint64_t who, what;
	assert_true(lend_cancelled(l, &who, &what));
	assert_int_equal(who, 8);
	lend_free(l);
}

/* One silent borrower must not hold up the output. */
static void silence_is_a_stall(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 1);
	join(l, 7, 1, 0);
	struct lend_loan a;
	assert_true(lend_next(l, 0, &a));
	join(l, 8, 1, 0);
	for (uint64_t now = 0; now <= 3000; now += 100) {
		lend_alive(l, 8, now);
		lend_tick(l, now);
		assert_false(lend_next(l, now, &a));
	}
	lend_tick(l, 3100);
	assert_true(lend_next(l, 3100, &a));
	assert_int_equal(a.volunteer, 8);
	struct lend_stats s;
	lend_stats(l, &s);
	assert_int_equal(s.relend_p99_ms, 3100);
	lend_free(l);
}

/* Many volunteers are asked for fewer life signs each, and silence is judged by what was asked. */
static void life_signs_are_shared_out(void **state)
{
	struct lend *l = make(true, 1);
	struct lend_loan a;
	put_numbers(l, 2);
	join(l, 1, 1, 0);
	assert_true(lend_next(l, 0, &a));
	assert_int_equal(a.life_ms, 1000);
	for (uint64_t w = 2; w <= 8000; w++)
		assert_int_equal(lend_join(l, w, 0), 0);
	lend_demand(l, 2, 1, 1, 0);
	assert_true(lend_next(l, 0, &a));
	assert_int_equal(a.volunteer, 2);
	assert_int_equal(a.life_ms, 4000); /* 2,000 a second in all */
	struct lend_stats s;
	for (uint64_t now = 0; now <= 12200; now += 100) {
		lend_tick(l, now);
		lend_stats(l, &s);
		assert_int_equal(s.stalls, now > 12000 ? 2 : now > 3000 ? 1 : 0);
		assert_int_equal(lend_silent(l, 1, now), now >= 3000);
		assert_int_equal(lend_silent(l, 2, now), now >= 12000);
		assert_false(lend_silent(l, 3, now)); /* it holds nothing */
	}
	lend_free(l);
}

static void poison_is_reported_with_its_input(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 1);
	lend_end(l);
	for (uint64_t w = 1; w <= 3; w++) {
		join(l, w, 1, 0);
		struct lend_loan a;
		assert_true(lend_next(l, 0, &a));
		assert_int_equal(a.volunteer, w);
		assert_int_equal(lend_result(l, w, 0, true, "boom", 4, 1), LEND_ACCEPTED);
		if (w < 3)
			assert_false(lend_finished(l));
	}
	struct lend_result r;
	assert_true(lend_take(l, &r));
	assert_int_equal(r.outcome, LEND_POISON);
	assert_string_equal(r.bytes, "boom");
	assert_string_equal(r.input, "0");
	free(r.bytes);
	free(r.input);
	assert_true(lend_finished(l));
	lend_free(l);
}

/* With a single volunteer the same one tries again, but not for ever. */
static void poison_with_one_volunteer(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 1);
	join(l, 1, 1, 0);
	struct lend_loan a;
	for (int i = 0; i < 3; i++) {
		assert_true(lend_next(l, 0, &a));
		lend_result(l, 1, 0, true, "boom", 4, 1);
	}
	assert_false(lend_next(l, 0, &a));
	struct lend_result r;
	assert_true(lend_take(l, &r));
	assert_int_equal(r.outcome, LEND_POISON);
	free(r.bytes);
	free(r.input);
	lend_free(l);
}

static void input_that_kills_is_poison(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 1);
	for (uint64_t w = 1; w <= 8; w++) {
		join(l, w, 1, 0);
		struct lend_loan a;
		assert_true(lend_next(l, 0, &a));
		lend_leave(l, w, 1);
	}
	struct lend_result r;
	assert_true(lend_take(l, &r));
	assert_int_equal(r.outcome, LEND_POISON);
	free(r.bytes);
	free(r.input);
	lend_free(l);
}

static void quorum_names_liars(void **state)
{
	struct lend *l = make(true, 3);
	put_numbers(l, 1);
	for (uint64_t w = 1; w <= 3; w++)
		join(l, w, 4, 0);
	struct lend_loan a;
	uint64_t seen = 0;
	while (lend_next(l, 0, &a))
		seen |= UINT64_C(1) << a.volunteer;
	assert_int_equal(seen, 0xe); /* three distinct ones */
	assert_int_equal(lend_result(l, 1, 0, false, "4", 1, 1), LEND_VOTED);
	assert_int_equal(lend_result(l, 2, 0, false, "5", 1, 1), LEND_VOTED);
	assert_int_equal(lend_result(l, 3, 0, false, "4", 1, 1), LEND_ACCEPTED);
	struct lend_result r;
	assert_true(lend_take(l, &r));
	assert_string_equal(r.bytes, "4");
	free(r.bytes);
	size_t pos = 0;
	uint64_t liar;
	uint32_t lies;
	assert_true(lend_liar(l, &pos, &liar, &lies));
	assert_int_equal(liar, 2);
	assert_false(lend_liar(l, &pos, &liar, &lies));
	lend_free(l);
}

static void disagreement_asks_one_more(void **state)
{
	struct lend *l = make(true, 2);
	put_numbers(l, 1);
	join(l, 1, 4, 0);
	join(l, 2, 4, 0);
	struct lend_loan a;
	assert_true(lend_next(l, 0, &a));
	assert_true(lend_next(l, 0, &a));
	lend_result(l, 1, 0, false, "4", 1, 1);
	assert_int_equal(lend_result(l, 2, 0, false, "5", 1, 1), LEND_VOTED);
	assert_false(lend_next(l, 1, &a));
	join(l, 3, 4, 1);
	assert_true(lend_next(l, 1, &a));
	assert_int_equal(a.volunteer, 3);
	assert_int_equal(lend_result(l, 3, 0, false, "5", 1, 2), LEND_ACCEPTED);
	lend_free(l);
}

static void what_it_does_not_hold_is_lent_again(void **state)
{
	struct lend *l = make(true, 1);
	put_numbers(l, 3);
	join(l, 1, 2, 0);
	struct lend_loan a;
	assert_true(lend_next(l, 0, &a));
	assert_true(lend_next(l, 0, &a));
	uint64_t held[] = { 1 };
	lend_holds(l, 1, held, 1, 10);
	assert_true(lend_next(l, 10, &a));
	assert_int_equal(a.value, 0);
	lend_undelivered(l, 1, 0, 12);
	assert_true(lend_next(l, 12, &a));
	assert_int_equal(a.value, 0);
	lend_free(l);
}

static void window_bounds_memory(void **state)
{
	struct lend_config c;
	struct lend *l;
	lend_defaults(&c);
	c.window = 4;
	assert_int_equal(lend_new(&c, &l), 0);
	put_numbers(l, 4);
	uint64_t id;
	assert_int_equal(lend_put(l, "x", 1, &id), -ENOBUFS);
	lend_end(l);
	assert_int_equal(lend_put(l, "x", 1, &id), -EPIPE);
	lend_free(l);
}

/*
 * Chaos on the core alone: volunteers come, leave, freeze, lose what they hold,
 * answer twice. Every value must come out once, in order where asked.
 */
struct helper {
	uint64_t id;
	bool present, frozen;
	struct lend_loan held[8];
	size_t held_count;
};

static void helper_step(struct lend *l, struct helper *h, struct rng *rng, uint64_t now,
			uint64_t *next_id)
{
	uint64_t dice = rng_below(rng, 1000);
	if (!h->present) {
		*h = (struct helper){ .id = (*next_id)++, .present = true };
		join(l, h->id, 4, now);
	} else if (dice < 5) {
		h->present = false;
		lend_leave(l, h->id, now);
	} else if (dice < 8) {
		h->frozen = true; /* says nothing for ever */
	} else if (dice < 12 && !h->frozen) {
		h->held_count = 0;
		lend_holds(l, h->id, NULL, 0, now);
	} else if (!h->frozen && h->held_count > 0 && dice < 300) {
		size_t i = (size_t)rng_below(rng, h->held_count);
		uint64_t value = h->held[i].value;
		char text[32];
		int len = snprintf(text, sizeof(text), "r%llu", (unsigned long long)value);
		h->held[i] = h->held[--h->held_count];
		(void)lend_result(l, h->id, value, false, text, (size_t)len, now);
		if (dice < 30)
			assert_int_not_equal(lend_result(l, h->id, value, false, text, (size_t)len, now),
					     LEND_ACCEPTED);
	} else if (!h->frozen) {
		lend_demand(l, h->id, 4, 1, now);
	}
	/* Somebody closes a frozen page at last. */
	if (h->present && h->frozen && rng_below(rng, 3000) == 0) {
		h->present = false;
		lend_leave(l, h->id, now);
	}
}

static void chaos(bool ordered, uint32_t quorum, uint64_t seed)
{
	enum { HELPERS = 12, VALUES = 2000 };
	struct lend_config c;
	struct lend *l;
	lend_defaults(&c);
	c.ordered = ordered;
	c.quorum = quorum;
	c.window = 256;
	c.losses_max = 1000;
	assert_int_equal(lend_new(&c, &l), 0);
	struct rng rng;
	rng_init(&rng, seed);
	struct helper helpers[HELPERS] = { 0 };
	uint64_t next_id = 1, put = 0, taken = 0, now = 0;
	static unsigned char seen[VALUES];
	memset(seen, 0, sizeof(seen));
	for (; !lend_finished(l); now += 10) {
		assert_true(now < 4000000);
		while (put < VALUES && lend_room(l) > 0) {
			char text[16];
			int len = snprintf(text, sizeof(text), "%llu", (unsigned long long)put);
			uint64_t id;
			assert_int_equal(lend_put(l, text, (size_t)len, &id), 0);
			if (++put == VALUES)
				lend_end(l);
		}
		for (size_t i = 0; i < HELPERS; i++)
			helper_step(l, &helpers[i], &rng, now, &next_id);
		struct lend_loan loan;
		while (lend_next(l, now, &loan)) {
			for (size_t i = 0; i < HELPERS; i++) {
				struct helper *h = &helpers[i];
				if (h->present && h->id == loan.volunteer && h->held_count < ARRAY_SIZE(h->held))
					h->held[h->held_count++] = loan;
			}
		}
		lend_tick(l, now);
		struct lend_result r;
		while (lend_take(l, &r)) {
			char want[32];
			(void)snprintf(want, sizeof(want), "r%llu", (unsigned long long)r.value);
			assert_string_equal(r.bytes, want);
			assert_int_equal(seen[r.value]++, 0);
			if (ordered)
				assert_int_equal(r.value, taken);
			taken++;
			free(r.bytes);
		}
	}
	assert_int_equal(taken, VALUES);
	struct lend_stats s;
	lend_stats(l, &s);
	assert_int_equal(s.delivered, VALUES);
	assert_int_equal(s.in_flight, 0);
	assert_true(s.relent > 0);
	lend_free(l);
}

static void chaos_delivers_once(void **state)
{
	for (uint64_t seed = 1; seed <= 4; seed++) {
		print_message("seed %llu\n", (unsigned long long)seed);
		chaos(true, 1, seed);
		chaos(false, 1, seed);
		chaos(false, 3, seed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_in_order),
		cmocka_unit_test(forged_results_are_refused),
		cmocka_unit_test(leaving_lends_again_at_once),
		cmocka_unit_test(silence_is_a_stall),
		cmocka_unit_test(life_signs_are_shared_out),
		cmocka_unit_test(poison_is_reported_with_its_input),
		cmocka_unit_test(poison_with_one_volunteer),
		cmocka_unit_test(input_that_kills_is_poison),
		cmocka_unit_test(quorum_names_liars),
		cmocka_unit_test(disagreement_asks_one_more),
		cmocka_unit_test(what_it_does_not_hold_is_lent_again),
		cmocka_unit_test(window_bounds_memory),
		cmocka_unit_test(chaos_delivers_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
