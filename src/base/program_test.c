/* SPDX-License-Identifier: Apache-2.0 */
#include "base/program.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/file.h"

static char root[] = "/tmp/reclaim-program-test-XXXXXX";
static const char *const places[] = { "", "near", "../far" };

static void put(const char *path, mode_t mode)
{
	char full[PATH_MAX];
	assert_int_equal(path_format(full, sizeof(full), "%s/%s", root, path), 0);
	*strrchr(full, '/') = '\0';
	assert_int_equal(dir_make_all(full, 0755), 0);
	full[strlen(full)] = '/';
	assert_int_equal(file_write_atomic(full, "", 0, mode), 0);
}

static int find(const char *name, char *ret, size_t size)
{
	char from[PATH_MAX];
	assert_int_equal(path_format(from, sizeof(from), "%s/bin", root), 0);
	return program_find(from, places, ARRAY_SIZE(places), name, ret, size);
}

static void test_first_place_wins(void **state)
{
	char got[PATH_MAX], want[PATH_MAX];
	put("bin/near/tool", 0755);
	put("far/tool", 0755);
	assert_int_equal(find("tool", got, sizeof(got)), 0);
	assert_int_equal(path_format(want, sizeof(want), "%s/bin/near/tool", root), 0);
	assert_string_equal(got, want);
	put("bin/tool", 0755);
	assert_int_equal(find("tool", got, sizeof(got)), 0);
	assert_int_equal(path_format(want, sizeof(want), "%s/bin/tool", root), 0);
	assert_string_equal(got, want);
}

static void test_what_cannot_run_is_passed_over(void **state)
{
	char got[PATH_MAX] = "untouched";
	put("bin/data", 0644);
	put("far/data", 0755);
	assert_int_equal(find("data", got, sizeof(got)), 0);
	assert_non_null(strstr(got, "/bin/../far/data"));
	assert_int_equal(find("nothing", got, sizeof(got)), -ENOENT);
	/* A path that does not fit is no path, and nothing is written. */
	char little[8] = "as was";
	assert_int_equal(find("data", little, sizeof(little)), -ENOENT);
	assert_string_equal(little, "as was");
}

static void test_our_own_folder(void **state)
{
	static const char *const here[] = { "" };
	char dir[PATH_MAX], got[PATH_MAX], real[PATH_MAX];
	assert_int_equal(program_dir(dir, sizeof(dir)), 0);
	assert_non_null(realpath("/proc/self/exe", real));
	const char *name = strrchr(real, '/') + 1;
	assert_int_equal(program_find(NULL, here, 1, name, got, sizeof(got)), 0);
	assert_string_equal(got, real);
	assert_int_equal(strncmp(got, dir, strlen(dir)), 0);
	char little[2];
	assert_int_equal(program_dir(little, sizeof(little)), -ENAMETOOLONG);
}

static int setup(void **state)
{
	return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
	return dir_remove_all(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_first_place_wins),
		cmocka_unit_test(test_what_cannot_run_is_passed_over),
		cmocka_unit_test(test_our_own_folder),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
