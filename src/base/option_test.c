/* SPDX-License-Identifier: Apache-2.0 */
#include "base/option.h"

#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

#include "base/clock.h"

struct values {
	bool now;
	const char *job;
	uint64_t in;
	struct option_strs env;
};

static const struct option options[] = {
	{ "now", 0, OPTION_FLAG, offsetof(struct values, now), .help = "at once" },
	{ "job", 'j', OPTION_STR, offsetof(struct values, job), .arg = "JOB", .help = "which" },
	{ "in", 0, OPTION_DURATION, offsetof(struct values, in), .fallback = "30s", .max = 600e9, .help = "when" },
	{ "env", 'e', OPTION_STRS, offsetof(struct values, env), .help = "many" },
	{ .kind = OPTION_END },
};
static const struct command back = { "back", "[FILE]", 0, 1, false, options, sizeof(struct values),
				     "take back", NULL, NULL };

static int parse(int argc, const char *const *argv, struct values *v, struct diag *diag)
{
	const char *args[4];
	size_t n;
	return command_parse(&back, argc, argv, v, args, 4, &n, diag);
}

static void test_forms(void **state)
{
	const char *argv[] = { "--now", "--job=a", "-eX=1", "-e", "Y=2", "file" };
	struct values v;
	struct diag diag = DIAG_INIT;
	assert_int_equal(parse(6, argv, &v, &diag), 0);
	assert_true(v.now);
	assert_string_equal(v.job, "a");
	assert_true(v.in == 30 * NS_PER_S);
	assert_int_equal(v.env.count, 2);
	assert_string_equal(v.env.items[1], "Y=2");
}

static void test_errors(void **state)
{
	static const char *const rows[][2] = {
		{ "--later", "is not an option" },
		{ "--in=soon", "is not a duration" },
		{ "--in=1h", "is not between" },
		{ "--now=yes", "takes no value" },
		{ "--job", "needs a value" },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct values v;
		struct diag diag = DIAG_INIT;
		assert_true(parse(1, &rows[i][0], &v, &diag) < 0);
		assert_non_null(strstr(diag.what, rows[i][1]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_errors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
