/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"

static char root[] = "/tmp/reclaim-file-test-XXXXXX";

static void test_atomic_write_replaces(void **state)
{
	char path[256];
	assert_int_equal(path_format(path, sizeof(path), "%s/a", root), 0);
	assert_int_equal(file_write_atomic(path, "one", 3, 0600), 0);
	assert_int_equal(file_write_atomic(path, "second", 6, 0640), 0);
	CLEANUP_FREE char *text = NULL;
	size_t len;
	assert_int_equal(file_read(path, 100, &text, &len), 0);
	assert_int_equal(len, 6);
	assert_string_equal(text, "second");
	struct stat st;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0640);
}

static void test_read_is_bounded(void **state)
{
	char path[256];
	assert_int_equal(path_format(path, sizeof(path), "%s/b", root), 0);
	assert_int_equal(file_write_atomic(path, "123456", 6, 0600), 0);
	char *text = NULL;
	assert_int_equal(file_read(path, 5, &text, NULL), -EFBIG);
	assert_null(text);
}

static void test_trees(void **state)
{
	char path[256], link[256], outside[256];
	assert_int_equal(path_format(path, sizeof(path), "%s/t/u/v", root), 0);
	assert_int_equal(path_format(link, sizeof(link), "%s/t/link", root), 0);
	assert_int_equal(path_format(outside, sizeof(outside), "%s/keep", root), 0);
	assert_int_equal(dir_make_all(path, 0755), 0);
	assert_int_equal(dir_make_all(path, 0755), 0);
	assert_int_equal(dir_make_all(outside, 0755), 0);
	assert_int_equal(symlink(outside, link), 0);
	assert_int_equal(path_format(path, sizeof(path), "%s/t", root), 0);
	assert_int_equal(dir_remove_all(path), 0);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(access(outside, F_OK), 0); /* links are not followed */
	assert_int_equal(dir_remove_all(path), 0);
}

static void test_plain_names(void **state)
{
	assert_true(name_is_plain("weights.bin"));
	assert_false(name_is_plain(""));
	assert_false(name_is_plain(".."));
	assert_false(name_is_plain("a/b"));
	assert_false(name_is_plain("a\nb"));
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
		cmocka_unit_test(test_atomic_write_replaces),
		cmocka_unit_test(test_read_is_bounded),
		cmocka_unit_test(test_trees),
		cmocka_unit_test(test_plain_names),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
