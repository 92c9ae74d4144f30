/* SPDX-License-Identifier: Apache-2.0 */
/* libreclaim outside a job, and its commits. Inside a job: tests/job/contract_test.py. */
#include "reclaim/reclaim.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int setup(void **state)
{
	(void)snprintf(dir, sizeof(dir), "/tmp/reclaim-lib-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char cmd[128];

	(void)snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	return system(cmd);
}

static void put(const char *folder, const char *name, const char *text)
{
	char path[4600];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "w");
	assert_non_null(f);
	(void)fputs(text, f);
	(void)fclose(f);
}

static void commit(const char *name, const char *text)
{
	struct reclaim_commit *c;

	assert_int_equal(reclaim_commit_begin(dir, name, &c), 0);
	put(reclaim_commit_path(c), "model.pt", text);
	assert_int_equal(reclaim_commit_end(c, 1), 0);
}

static void test_outside(void **state)
{
	struct reclaim_notice n;

	assert_int_equal(reclaim_notice_get(&n), -ENOENT);
	assert_int_equal(reclaim_ack(), -ENOENT);
	assert_true(reclaim_remaining() > 1e8);
	assert_null(reclaim_checkpoint_dir());
	assert_int_equal(reclaim_notice_fd(), -ENOENT);
	assert_true(reclaim_version()[0]);
}

static void test_notice_file(void **state)
{
	struct reclaim_notice n;
	char path[128];

	put(dir, "notice.json", "{\"action\":\"terminate\",\"time\":\"x\",\"remaining_s\":9.0,\"deadline\":99999999999.0,"
				"\"window_s\":10.0,\"epoch\":3,\"id\":\"r9\"}\n");
	(void)snprintf(path, sizeof(path), "%s/notice.json", dir);
	(void)setenv("RECLAIM_NOTICE_FILE", path, 1);
	assert_int_equal(reclaim_notice_get(&n), 1);
	assert_int_equal(n.action, RECLAIM_ACTION_TERMINATE);
	assert_int_equal(n.epoch, 3);
	assert_string_equal(n.id, "r9");
	put(dir, "notice.json", "{\"action\":\"none\",\"epoch\":3,\"id\":\"r9\"}\n");
	assert_int_equal(reclaim_notice_get(&n), 0);
	(void)unsetenv("RECLAIM_NOTICE_FILE");
}

static void test_commit(void **state)
{
	char path[300], line[300];
	FILE *f;

	assert_int_equal(reclaim_commit_latest(dir, path, sizeof(path)), 0);
	commit("step-1", "abc");
	assert_int_equal(reclaim_commit_latest(dir, path, sizeof(path)), 1);
	assert_non_null(strstr(path, "/step-1"));
	(void)snprintf(path, sizeof(path), "%s/step-1/MANIFEST", dir);
	f = fopen(path, "r");
	assert_non_null(fgets(line, sizeof(line), f));
	(void)fclose(f);
	/* FIPS 180-4's own example. */
	assert_string_equal(line, "3 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad model.pt\n");
	commit("step-2", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq");
	commit("step-2", "again"); /* the same name replaces it */
	assert_int_equal(reclaim_commit_latest(dir, path, sizeof(path)), 1);
	assert_non_null(strstr(path, "/step-2"));
	put(path, "model.pt", "agaim"); /* damaged: the one before it */
	assert_int_equal(reclaim_commit_latest(dir, path, sizeof(path)), 1);
	assert_non_null(strstr(path, "/step-1"));
	commit("step-3", "x");
	assert_int_equal(reclaim_commit_prune(dir, 1), 2);
	assert_int_equal(reclaim_commit_latest(dir, path, sizeof(path)), 1);
	assert_non_null(strstr(path, "/step-3"));
}

static void test_commit_refused(void **state)
{
	struct reclaim_commit *c;
	char path[5000];

	assert_int_equal(reclaim_commit_begin(dir, "../up", &c), -EINVAL);
	assert_int_equal(reclaim_commit_begin(dir, ".hidden", &c), -EINVAL);
	assert_int_equal(reclaim_commit_begin(dir, "", &c), -EINVAL);
	assert_int_equal(reclaim_commit_begin("/no/such/folder", "a", &c), -ENOENT);
	assert_int_equal(reclaim_commit_begin(dir, "empty", &c), 0);
	assert_int_equal(reclaim_commit_end(c, 0), -ENODATA);
	assert_int_equal(reclaim_commit_begin(dir, "link", &c), 0);
	(void)snprintf(path, sizeof(path), "%s/l", reclaim_commit_path(c));
	assert_int_equal(symlink("/etc/passwd", path), 0);
	assert_int_equal(reclaim_commit_end(c, 0), -EINVAL);
	assert_int_equal(reclaim_commit_latest(dir, path, sizeof(path)), 0);
}

/* Lengths around the block's edges, against a digest made with sha256sum. */
static void test_long(void **state)
{
	static char text[200001];
	char path[300];

	memset(text, 'a', 200000);
	commit("long", text);
	(void)snprintf(path, sizeof(path), "cd %s/long && tail -n1 MANIFEST | cut -d' ' -f2,3 | sed 's/ /  /' | "
		       "sha256sum -c --status", dir);
	assert_int_equal(system(path), 0);
	for (int len = 50; len < 135; len++) {
		char name[32];

		text[len] = '\0';
		(void)snprintf(name, sizeof(name), "l%d", len);
		commit(name, text);
		(void)snprintf(path, sizeof(path), "cd %s/%s && cut -d' ' -f2,3 MANIFEST | sed 's/ /  /' | "
			       "sha256sum -c --status", dir, name);
		assert_int_equal(system(path), 0);
		text[len] = 'a';
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_outside),
		cmocka_unit_test_setup_teardown(test_notice_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_commit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_commit_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_long, setup, teardown),
	};

	(void)unsetenv("RECLAIM_SOCKET");
	(void)unsetenv("RECLAIM_NOTICE_FILE");
	(void)unsetenv("RECLAIM_CHECKPOINT_DIR");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
