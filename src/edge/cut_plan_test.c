/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "edge/cut_plan.h"

static int parse(const char *text, struct cut_plan *p, unsigned *line)
{
	char copy[1024];

	assert_true(strlen(text) < sizeof(copy));
	memcpy(copy, text, strlen(text) + 1);
	*line = 0;
	return cut_plan_parse(copy, p, line);
}

static void test_good(void **state)
{
	struct cut_plan p;
	unsigned line;

	(void)state;
	assert_int_equal(parse("version 1\ngid 998\nbpf /run/reclaim/bpf/edge\nnetns 4 4026531840\n"
			       "ifindex 2\nleaf 50000\nfuture 7\ncgroup_v2 /sys/fs/cgroup/g\n"
			       "cgroup_v1_freezer /sys/fs/cgroup/freezer/g\n", &p, &line), 0);
	assert_int_equal(p.gid, 998);
	assert_string_equal(p.bpf, "/run/reclaim/bpf/edge");
	assert_int_equal(p.netns_dev, 4);
	assert_int_equal(p.netns_ino, 4026531840);
	assert_int_equal(p.ifindex, 2);
	assert_int_equal(p.leaf, 50000);
	assert_string_equal(p.cgroup_v2, "/sys/fs/cgroup/g");
	assert_string_equal(p.cgroup_v1_freezer, "/sys/fs/cgroup/freezer/g");
	assert_int_equal(parse("version 1\n", &p, &line), 0);
	assert_int_equal(p.gid, UINT32_MAX);
	assert_string_equal(p.bpf, "");
}

static void test_bad(void **state)
{
	static const struct {
		const char *text;
		unsigned line;
	} cases[] = {
		{ "", 0 },
		{ "gid 1\nversion 1\n", 1 },
		{ "version 2\n", 1 },
		{ "version 1\ngid\n", 2 },
		{ "version 1\ngid -1\n", 2 },
		{ "version 1\ngid 4294967295\n", 2 }, /* would mean everybody's "none" */
		{ "version 1\ngid 1\ngid 2\n", 3 },
		{ "version 1\nbpf run/bpf\n", 2 },
		{ "version 1\nbpf /run/../etc\n", 2 },
		{ "version 1\nnetns 4\n", 2 },
		{ "version 1\nnetns 4 18446744073709551616\n", 2 },
		{ "version 1\nifindex 2x\n", 2 },
		{ "version 1\nleaf 99999999999\n", 2 },
	};
	struct cut_plan p;
	unsigned line;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(parse(cases[i].text, &p, &line), -EINVAL);
		assert_int_equal(line, cases[i].line);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_good), cmocka_unit_test(test_bad) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
