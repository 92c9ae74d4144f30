/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "volunteer/route.h"

#define NODE(n) ((uint64_t)(n) << 40)

static struct route_request anywhere(uint64_t origin)
{
	return (struct route_request){ .origin = origin, .position = ROUTE_ANYWHERE };
}

static void positions_are_breadth_first(void **state)
{
	assert_int_equal(route_child(0, 5, 0), 1);
	assert_int_equal(route_child(0, 5, 4), 5);
	assert_int_equal(route_child(1, 5, 0), 6);
	for (uint64_t p = 1; p < 5000; p++) {
		uint64_t up = route_parent(p, 5);
		assert_true(p >= route_child(up, 5, 0) && p <= route_child(up, 5, 4));
		assert_int_equal(route_depth(p, 5), route_depth(up, 5) + 1);
	}
	assert_int_equal(route_child(ROUTE_POSITION_MAX / 2, 5, 0), ROUTE_ANYWHERE);
}

static void forwarding_needs_no_table(void **state)
{
	struct route r;
	assert_int_equal(route_init(&r, NODE(1), 2, ROUTE_NAMED, 3), 0);
	assert_int_equal(route_towards(&r, 2), ROUTE_HERE);
	assert_int_equal(route_towards(&r, 7), 0);
	assert_int_equal(route_towards(&r, 9), 2);
	assert_int_equal(route_towards(&r, route_child(8, 3, 1)), 1);
	assert_int_equal(route_towards(&r, 1), ROUTE_UP);
	assert_int_equal(route_towards(&r, 10), ROUTE_UP); /* below 3 */
	assert_int_equal(route_towards(&r, UINT64_MAX), ROUTE_UP);
	route_done(&r);
}

static void named_takes_only_what_was_reserved(void **state)
{
	struct route r;
	uint32_t slot;
	assert_int_equal(route_init(&r, NODE(1), 0, ROUTE_NAMED, 2), 0);
	struct route_request q = { .origin = NODE(7), .position = 2, .generation = 5 };
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_REFUSE);
	assert_int_equal(route_reserve(&r, 1, NODE(7), 6, 1000), 0);
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_REFUSE); /* older generation */
	q.generation = 6;
	struct route_request forged = { .origin = NODE(8), .position = 2, .generation = 6 };
	assert_int_equal(route_request(&r, &forged, 0, 0, &slot), ROUTE_REFUSE);
	struct route_request nowhere = anywhere(NODE(9));
	assert_int_equal(route_request(&r, &nowhere, 0, 0, &slot), ROUTE_REFUSE);
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ACCEPT);
	assert_int_equal(slot, 1);
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_SIGNAL); /* replayed */
	assert_int_equal(route_connected(&r, 1, NODE(8)), -ENOENT);
	assert_int_equal(route_connected(&r, 1, NODE(7)), 0);
	assert_int_equal(r.children, 1);
	route_done(&r);
}

static void reservations_and_candidates_run_out(void **state)
{
	struct route r;
	uint32_t slot;
	assert_int_equal(route_init(&r, NODE(1), 0, ROUTE_LOCAL, 2), 0);
	struct route_request q = anywhere(NODE(7));
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ACCEPT);
	assert_int_equal(route_reserve(&r, 1, NODE(8), 1, 500), 0);
	q = anywhere(NODE(9));
	assert_int_equal(route_request(&r, &q, 42, 0, &slot), ROUTE_STORE);
	assert_int_equal(route_expire(&r, 499), -1);
	assert_int_equal(route_expire(&r, 500), 1);
	assert_int_equal(route_expire(&r, 500), -1);
	assert_int_equal(route_expire(&r, r.candidate_ms), 0); /* no ghosts */
	struct route_stored st;
	assert_false(route_expire_stored(&r, r.stored_ms - 1, &st));
	assert_true(route_expire_stored(&r, r.stored_ms, &st));
	assert_int_equal(st.cookie, 42);
	assert_int_equal(r.taken, 0);
	route_done(&r);
}

static void all_messages_of_a_joiner_take_one_path(void **state)
{
	struct route r;
	uint32_t slot, again;
	assert_int_equal(route_init(&r, NODE(1), 0, ROUTE_LOCAL, 4), 0);
	for (uint64_t i = 0; i < 4; i++) {
		struct route_request q = anywhere(NODE(100 + i));
		assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ACCEPT);
		assert_int_equal(route_connected(&r, slot, NODE(100 + i)), 0);
	}
	unsigned used[4] = { 0 };
	for (uint64_t i = 0; i < 1000; i++) {
		struct route_request q = anywhere(NODE(5000 + i) | 7);
		assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_FORWARD);
		assert_int_equal(route_request(&r, &q, 0, 9, &again), ROUTE_FORWARD);
		assert_int_equal(slot, again);
		used[slot]++;
	}
	for (int i = 0; i < 4; i++)
		assert_true(used[i] > 200 && used[i] < 300);
	route_done(&r);
}

static void stored_requests_are_bounded_and_follow(void **state)
{
	struct route r;
	uint32_t slot;
	assert_int_equal(route_init(&r, NODE(1), 0, ROUTE_LOCAL, 1), 0);
	struct route_request q = anywhere(NODE(7));
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ACCEPT);
	for (uint64_t i = 0; i < ROUTE_STORED_MAX; i++) {
		q = anywhere(NODE(100 + i));
		assert_int_equal(route_request(&r, &q, i, 0, &slot), ROUTE_STORE);
	}
	q = anywhere(NODE(100)); /* the same joiner again takes no second place */
	assert_int_equal(route_request(&r, &q, 1000, 0, &slot), ROUTE_STORE);
	q = anywhere(NODE(9000));
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_REFUSE);
	assert_int_equal(route_connected(&r, 0, NODE(7)), 0);
	struct route_stored st;
	unsigned n = 0;
	while (route_take_stored(&r, 0, &st))
		n++;
	assert_int_equal(n, ROUTE_STORED_MAX);
	route_done(&r);
}

/* A leaf that fills a hole asks through its own parent, where it is a child already. */
static void a_filler_passes_its_own_parent(void **state)
{
	struct route r;
	uint32_t slot;
	assert_int_equal(route_init(&r, NODE(1), 1, ROUTE_LOCAL, 2), 0);
	struct route_request q = anywhere(NODE(7));
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ACCEPT);
	assert_int_equal(route_connected(&r, slot, NODE(7)), 0);
	q = (struct route_request){ .origin = NODE(7), .position = 2 };
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ASCEND);
	route_done(&r);
}

static void an_orphan_finds_its_place_or_another(void **state)
{
	struct route r;
	uint32_t slot;
	assert_int_equal(route_init(&r, NODE(1), 0, ROUTE_LOCAL, 2), 0);
	/* its parent's place is being refilled: wait there */
	assert_int_equal(route_reserve(&r, 0, 0, 0, 1000), 0);
	struct route_request q = { .origin = NODE(7), .position = 4 };
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_STORE);
	assert_int_equal(slot, 0);
	/* whoever comes for the hole gets it */
	struct route_request fill = { .origin = NODE(8), .position = 1 };
	assert_int_equal(route_request(&r, &fill, 0, 0, &slot), ROUTE_ACCEPT);
	/* nobody fills it: the orphan does */
	route_lost(&r, 0);
	assert_int_equal(route_request(&r, &q, 0, 0, &slot), ROUTE_ACCEPT);
	assert_int_equal(slot, 0);
	/* its own place is taken: anywhere, and it must not turn back on the way down */
	assert_int_equal(route_connected(&r, 0, NODE(7)), 0);
	struct route_request late = { .origin = NODE(9), .position = 1 };
	assert_int_equal(route_request(&r, &late, 0, 0, &slot), ROUTE_ACCEPT);
	assert_int_equal(slot, 1);
	assert_int_equal(late.position, ROUTE_ANYWHERE);
	route_done(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(positions_are_breadth_first),
		cmocka_unit_test(forwarding_needs_no_table),
		cmocka_unit_test(named_takes_only_what_was_reserved),
		cmocka_unit_test(reservations_and_candidates_run_out),
		cmocka_unit_test(all_messages_of_a_joiner_take_one_path),
		cmocka_unit_test(stored_requests_are_bounded_and_follow),
		cmocka_unit_test(a_filler_passes_its_own_parent),
		cmocka_unit_test(an_orphan_finds_its_place_or_another),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
