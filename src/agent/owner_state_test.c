/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/owner_state.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define EACH(s, e)                                                   \
	for (int s = 0; s < CONTROL_OWNER_STATE_COUNT; s++)           \
		for (int e = 0; e < OWNER_EVENT_COUNT; e++)

static int next_of(int state, int event)
{
	enum control_owner_state next;
	return owner_state_next((enum control_owner_state)state, (enum owner_event)event, &next) < 0
		       ? -1
		       : (int)next;
}

static void test_free_is_reached_by_proof_alone(void **state)
{
	EACH(s, e)
	{
		if (next_of(s, e) == CONTROL_OWNER_FREE)
			assert_int_equal(e, OWNER_EVENT_EMPTY);
		if (next_of(s, e) == CONTROL_OWNER_OWNED)
			assert_int_equal(s, CONTROL_OWNER_FREE);
	}
}

static void test_lending_takes_the_owners_word(void **state)
{
	EACH(s, e)
	{
		if (next_of(s, e) == CONTROL_OWNER_LENT)
			assert_true(e == OWNER_EVENT_LEND || e == OWNER_EVENT_CANCEL);
	}
	/* Past the deadline there is no way back to lending but through the proof. */
	for (int e = 0; e < OWNER_EVENT_COUNT; e++)
		assert_int_not_equal(next_of(CONTROL_OWNER_DRAINING, e), CONTROL_OWNER_LENT);
}

static void test_now_is_never_refused_while_guests_may_be_there(void **state)
{
	assert_int_equal(next_of(CONTROL_OWNER_LENT, OWNER_EVENT_NOW), CONTROL_OWNER_DRAINING);
	assert_int_equal(next_of(CONTROL_OWNER_NOTICE, OWNER_EVENT_NOW), CONTROL_OWNER_DRAINING);
	assert_int_equal(next_of(CONTROL_OWNER_DRAINING, OWNER_EVENT_NOW), CONTROL_OWNER_DRAINING);
}

static void test_every_state_can_be_left(void **state)
{
	for (int s = 0; s < CONTROL_OWNER_STATE_COUNT; s++) {
		int ways = 0;
		for (int e = 0; e < OWNER_EVENT_COUNT; e++)
			ways += next_of(s, e) >= 0 && next_of(s, e) != s;
		assert_true(ways > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_free_is_reached_by_proof_alone),
		cmocka_unit_test(test_lending_takes_the_owners_word),
		cmocka_unit_test(test_now_is_never_refused_while_guests_may_be_there),
		cmocka_unit_test(test_every_state_can_be_left),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
