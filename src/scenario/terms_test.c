/* SPDX-License-Identifier: Apache-2.0 */
#include "scenario/terms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"

static int load(const char *text, struct terms *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *json = NULL;
	struct yaml_lines *lines = NULL;
	int r = yaml_parse(text, strlen(text), "t.yaml", &json, &lines, diag);

	if (r == 0)
		r = schema_decode(&terms_schema, json, SCHEMA_STRICT, lines, ret, diag);
	yaml_lines_free(lines);
	return r;
}

static void refuses(const char *text, const char *where, const char *what)
{
	struct terms t;
	struct diag diag = DIAG_INIT;
	char text_of[1024];

	assert_true(load(text, &t, &diag) < 0);
	(void)diag_format(&diag, text_of, sizeof(text_of));
	if (!strstr(text_of, where) || !strstr(text_of, what))
		fail_msg("got '%s', wanted '%s' and '%s'", text_of, where, what);
}

static void test_defaults(void **state)
{
	struct terms t;
	struct diag diag = DIAG_INIT;

	assert_int_equal(load("slots: [{}]\n", &t, &diag), 0);
	assert_int_equal(t.version, 1);
	assert_true(t.window_ns == UINT64_C(60000000000));
	assert_int_equal(t.slots_count, 1);
	assert_true(t.slots[0].cores == 1.0);
	assert_int_equal(t.slots[0].kind, TERMS_SLOT_CPU);
	assert_true(t.shadow.keep && t.triggers.shutdown && !t.triggers.login);
	assert_true(t.caps.pids == 512);
	assert_int_equal(t.sandbox, TERMS_SANDBOX_PROCESS);
	assert_true(terms_lendable(&t, 0));
	assert_int_equal(terms_change_in(&t, 0), 0);
	terms_done(&t);
	terms_done(NULL);
}

static void test_bad(void **state)
{
	refuses("slots: []\n", "slots", "at least one");
	refuses("window: 10s\n", "slots", "missing");
	refuses("slots:\n  - {cores: 700000}\n", "t.yaml:2", "4096");
	refuses("slots:\n  - {kind: gpu}\n", "slots[0]", "which");
	refuses("slots: [{name: a}, {name: a}]\n", "slots[1]", "taken");
	refuses("slots: [{}]\nwindows: 10s\n", "t.yaml:2", "windows");
	refuses("slots: [{}]\nwindow: 25h\n", "t.yaml:2", "");
	refuses("slots: [{}]\nschedule: {lend: [{from: \"9:00\", to: \"10:00\"}]}\n",
		"schedule.lend[0]", "9:00");
	refuses("slots: [{}]\nschedule: {keep: [{days: [monkey], from: \"09:00\", to: \"10:00\"}]}\n",
		"schedule.keep[0]", "monkey");
	refuses("slots: [{}]\ndestinations: [{to: 10.0.0.0/33}]\n", "destinations[0]", "33");
	refuses("slots: [{}]\ndestinations: [{to: ten}]\n", "destinations[0]", "ten");
	refuses("slots: [{memory: 4GiB}]\ncaps: {memory: 2GiB}\n", "caps.memory", "more than");
}

#define AT(day, hour, minute) ((day) * 1440u + (hour) * 60u + (minute))

static void test_schedule(void **state)
{
	struct terms t;
	struct diag diag = DIAG_INIT;
	struct tm tm = { .tm_wday = 0, .tm_hour = 23, .tm_min = 59 };

	assert_int_equal(load("slots: [{}]\n"
			      "schedule:\n"
			      "  lend:\n"
			      "    - {days: [mon, sunday], from: \"18:00\", to: \"08:00\"}\n"
			      "    - {days: [Sat], from: \"00:00\", to: \"24:00\"}\n"
			      "  keep:\n"
			      "    - {from: \"20:00\", to: \"20:30\"}\n",
			      &t, &diag), 0);
	assert_true(terms_lendable(&t, AT(0, 7, 59)));  /* from Sunday evening */
	assert_false(terms_lendable(&t, AT(0, 8, 0)));
	assert_false(terms_lendable(&t, AT(0, 17, 59)));
	assert_true(terms_lendable(&t, AT(0, 18, 0)));
	assert_false(terms_lendable(&t, AT(0, 20, 10))); /* keep wins */
	assert_true(terms_lendable(&t, AT(1, 7, 0)));
	assert_false(terms_lendable(&t, AT(1, 18, 0)));
	assert_true(terms_lendable(&t, AT(5, 0, 0)));
	assert_true(terms_lendable(&t, AT(5, 23, 59)));
	assert_false(terms_lendable(&t, AT(6, 0, 0)));
	assert_int_equal(terms_change_in(&t, AT(0, 8, 0)), 600);
	assert_int_equal(terms_change_in(&t, AT(6, 23, 0)), 540);
	assert_int_equal(terms_week_minute(&tm), TERMS_WEEK_MINUTES - 1);
	terms_done(&t);
}

static void test_who(void **state)
{
	struct terms t;
	struct diag diag = DIAG_INIT;
	const char *groups[] = { "nobody", "ml" };

	assert_int_equal(load("slots: [{}]\n", &t, &diag), 0);
	assert_true(terms_admits(&t, "eve", NULL, 0));
	terms_done(&t);
	assert_int_equal(load("slots: [{}]\nwho: {users: [ann], groups: [ml], deny: [bob]}\n", &t,
			      &diag), 0);
	assert_true(terms_admits(&t, "ann", NULL, 0));
	assert_false(terms_admits(&t, "eve", groups, 1));
	assert_true(terms_admits(&t, "eve", groups, 2));
	assert_false(terms_admits(&t, "bob", groups, 2));
	terms_done(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_schedule),
		cmocka_unit_test(test_who),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
