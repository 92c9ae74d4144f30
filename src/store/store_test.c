/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "store/store.h"

static char dir[64], path[128];

static struct store *opened(const char *vfs)
{
	struct diag d = DIAG_INIT;
	struct store *s = NULL;
	if (store_open_sqlite_vfs(path, vfs, &s, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	return s;
}

static int put_one(struct store *s, const char *key, const char *value)
{
	struct store_txn t = STORE_TXN_INIT;
	store_put(&t, key, value, strlen(value));
	return store_commit(s, &t, NULL);
}

static void assert_value(struct store *s, const char *key, const char *value)
{
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	int r = store_get(s, key, &kv);
	if (!value) {
		assert_int_equal(r, -ENOENT);
		return;
	}
	assert_int_equal(r, 0);
	assert_string_equal(kv.value, value);
}

static void test_revisions(void **state)
{
	struct store *s = opened(NULL);
	uint64_t start = store_revision(s), revision;
	struct store_txn t = STORE_TXN_INIT;

	store_put(&t, "a", "1", 1);
	store_put(&t, "b", "1", 1);
	assert_int_equal(store_commit(s, &t, &revision), 0);
	assert_int_equal(revision, start + 1);
	assert_int_equal(put_one(s, "a", "2"), 0);
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	assert_int_equal(store_get(s, "a", &kv), 0);
	assert_int_equal(kv.create_revision, start + 1);
	assert_int_equal(kv.mod_revision, start + 2);
	assert_int_equal(kv.version, 2);

	/* Two who read the same revision: one wins, the other changes nothing at all. */
	store_compare_revision(&t, "a", kv.mod_revision);
	store_put(&t, "a", "first", 5);
	assert_int_equal(store_commit(s, &t, NULL), 0);
	store_compare_revision(&t, "a", kv.mod_revision);
	store_put(&t, "a", "second", 6);
	store_put(&t, "b", "second", 6);
	assert_int_equal(store_commit(s, &t, NULL), -EAGAIN);
	assert_value(s, "a", "first");
	assert_value(s, "b", "1");
	store_compare_value(&t, "a", "first", 5);
	store_compare_missing(&t, "c");
	store_put(&t, "c", "x", 1);
	assert_int_equal(store_commit(s, &t, NULL), 0);
	store_compare_missing(&t, "c");
	store_delete(&t, "c");
	assert_int_equal(store_commit(s, &t, NULL), -EAGAIN);
	store_compare_value(&t, "nothing", "first", 5);
	store_delete(&t, "c");
	assert_int_equal(store_commit(s, &t, NULL), -EAGAIN);
	store_close(s);
}

static int collect(void *user, const struct store_kv *kv)
{
	strcat(user, kv->key);
	strcat(user, " ");
	return 0;
}

static void test_prefixes(void **state)
{
	struct store *s = opened(NULL);
	char keys[256] = "";
	struct store_txn t = STORE_TXN_INIT;
	static const char *const all[] = { "j/2", "j/1", "j/10", "j", "k/1", "i/9", "j/\xff", NULL };
	for (size_t i = 0; all[i]; i++)
		assert_int_equal(put_one(s, all[i], ""), 0);
	assert_int_equal(store_list(s, "j/", collect, keys), 0);
	assert_string_equal(keys, "j/1 j/10 j/2 j/\xff ");
	keys[0] = 0;
	assert_int_equal(store_list(s, "j/\xff", collect, keys), 0);
	assert_string_equal(keys, "j/\xff ");
	store_delete_prefix(&t, "j/1");
	assert_int_equal(store_commit(s, &t, NULL), 0);
	keys[0] = 0;
	assert_int_equal(store_list(s, "j", collect, keys), 0);
	assert_string_equal(keys, "j j/2 j/\xff ");

	store_put(&t, "", "x", 1);
	assert_int_equal(store_commit(s, &t, NULL), -EINVAL);
	char *large = calloc(1, STORE_VALUE_MAX + 1);
	store_put(&t, "large", large, STORE_VALUE_MAX + 1);
	assert_int_equal(store_commit(s, &t, NULL), -E2BIG);
	free(large);
	for (int i = 0; i <= STORE_TXN_MAX; i++)
		store_put(&t, "many", "x", 1);
	assert_int_equal(store_commit(s, &t, NULL), -E2BIG);
	assert_value(s, "many", NULL);
	store_close(s);
}

static void test_leases(void **state)
{
	struct store *s = opened(NULL);
	uint64_t lease, other;
	struct store_txn t = STORE_TXN_INIT;
	assert_int_equal(store_lease_grant(s, 100, NS_PER_S, &lease), 0);
	assert_int_equal(store_lease_grant(s, 100, NS_PER_S, &other), 0);
	store_put_lease(&t, "l/1", "x", 1, lease);
	store_put_lease(&t, "l/2", "x", 1, other);
	assert_int_equal(store_commit(s, &t, NULL), 0);
	assert_int_equal(store_lease_renew(s, other, NS_PER_S + 90 * NS_PER_MS), 0);
	assert_int_equal(store_lease_tick(s, NS_PER_S + 99 * NS_PER_MS), 0);
	assert_value(s, "l/1", "x");
	assert_int_equal(store_lease_tick(s, NS_PER_S + 100 * NS_PER_MS), 1);
	assert_value(s, "l/1", NULL);
	assert_value(s, "l/2", "x");
	assert_int_equal(store_lease_renew(s, lease, 0), -ENOENT);
	store_close(s);

	/* After a restart the other has its full time again. */
	s = opened(NULL);
	assert_int_equal(store_lease_tick(s, 50 * NS_PER_S), 0);
	assert_value(s, "l/2", "x");
	assert_int_equal(store_lease_tick(s, 50 * NS_PER_S + 100 * NS_PER_MS), 1);
	assert_value(s, "l/2", NULL);
	store_close(s);
}

static struct store *watched;

static void on_event(void *user, const struct store_event *e)
{
	char *text = user;
	sprintf(text + strlen(text), "%c%s=%s ", e->kind == STORE_EVENT_PUT ? '+' : '-', e->key,
		e->value ? e->value : "");
	if (strcmp(e->key, "w/ping") == 0)
		assert_int_equal(put_one(watched, "w/pong", "1"), 0);
}

static void test_watch(void **state)
{
	char seen[512] = "", late[512] = "";
	struct store_watch *w, *w2;
	struct store_txn t = STORE_TXN_INIT;
	watched = opened(NULL);
	uint64_t from = store_revision(watched) + 1;
	assert_int_equal(store_watch_open(watched, "w/", 0, on_event, seen, &w), 0);
	put_one(watched, "other", "1");
	put_one(watched, "w/a", "1");
	store_put(&t, "w/ping", "1", 1);
	store_put(&t, "w/after", "1", 1);
	assert_int_equal(store_commit(watched, &t, NULL), 0);
	store_delete(&t, "w/a");
	store_delete(&t, "w/never");
	assert_int_equal(store_commit(watched, &t, NULL), 0);
	assert_string_equal(seen, "+w/a=1 +w/ping=1 +w/after=1 +w/pong=1 -w/a= ");
	store_watch_close(w);

	assert_int_equal(store_watch_open(watched, "w/a", from, on_event, late, &w2), 0);
	assert_string_equal(late, "+w/a=1 +w/after=1 -w/a= ");
	store_watch_close(w2);
	for (int i = 0; i < STORE_HISTORY_MAX + 300; i++)
		assert_int_equal(put_one(watched, "spin", "1"), 0);
	assert_int_equal(store_watch_open(watched, "w/", from, on_event, late, &w2), -ESTALE);
	store_close(watched);
}

static void test_one_owner(void **state)
{
	struct diag d = DIAG_INIT;
	struct store *s = opened(NULL), *second;
	assert_int_equal(store_open_sqlite(path, &second, &d), -EBUSY);
	assert_non_null(strstr(d.what, "in use"));
	store_close(s);
	assert_int_equal(store_open_sqlite("/nonexistent/x", &second, &d), -EIO);
	char junk[128];
	snprintf(junk, sizeof(junk), "%s/junk", dir);
	assert_int_equal(file_write_atomic(junk, "no database, but long enough to look at......", 40, 0600), 0);
	assert_int_equal(store_open_sqlite(junk, &second, &d), -EBADMSG);
}

/* A writer that is killed at a random moment: what it was told is there, in whole pairs. */
static void test_kill(void **state)
{
	struct rng rng;
	rng_init(&rng, 7);
	uint64_t acknowledged = 0;
	for (int round = 0; round < 20; round++) {
		int out[2];
		assert_int_equal(pipe(out), 0);
		pid_t child = fork();
		if (child == 0) {
			struct store *s = opened(NULL);
			for (uint64_t i = acknowledged + 1;; i++) {
				struct store_txn t = STORE_TXN_INIT;
				store_put(&t, "n/1", &i, sizeof(i));
				store_put(&t, "n/2", &i, sizeof(i));
				if (store_commit(s, &t, NULL) < 0)
					_exit(1);
				if (write(out[1], &i, sizeof(i)) != sizeof(i))
					_exit(1);
			}
		}
		close(out[1]);
		uint64_t stop_at = acknowledged + 1 + rng_below(&rng, 40), n;
		while (read(out[0], &n, sizeof(n)) == sizeof(n)) {
			acknowledged = n;
			if (n >= stop_at)
				kill(child, SIGKILL);
		}
		close(out[0]);
		int status;
		waitpid(child, &status, 0);
		assert_true(WIFSIGNALED(status));

		CLEANUP_STORE struct store *s = opened(NULL);
		CLEANUP_STORE_KV struct store_kv a = { 0 }, b = { 0 };
		assert_int_equal(store_get(s, "n/1", &a), 0);
		assert_int_equal(store_get(s, "n/2", &b), 0);
		assert_memory_equal(a.value, b.value, sizeof(n));
		memcpy(&n, a.value, sizeof(n));
		assert_true(n >= acknowledged);
		acknowledged = n;
	}
}

/* ---- every write and sync fails once, then persistently ---- */

static sqlite3_vfs failing_vfs;
/* SQLite's own VFS has one table for the database and another for its companions. */
static sqlite3_io_methods failing_methods[2];
static const sqlite3_io_methods *real_methods[2];
static int fail_at, io_count;
static bool fail_on;

static bool io_fails(void)
{
	io_count++;
	return io_count == fail_at || (fail_on && fail_at > 0 && io_count > fail_at);
}

static int failing_write(sqlite3_file *f, const void *bytes, int len, sqlite3_int64 at)
{
	return io_fails() ? SQLITE_IOERR_WRITE : real_methods[f->pMethods == &failing_methods[1]]->xWrite(f, bytes, len, at);
}

static int failing_sync(sqlite3_file *f, int flags)
{
	return io_fails() ? SQLITE_IOERR_FSYNC : real_methods[f->pMethods == &failing_methods[1]]->xSync(f, flags);
}

static int failing_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
	sqlite3_vfs *real = vfs->pAppData;
	int r = real->xOpen(real, name, f, flags, out);
	if (r == SQLITE_OK && f->pMethods) {
		int which = flags & SQLITE_OPEN_MAIN_DB ? 0 : 1;
		real_methods[which] = f->pMethods;
		failing_methods[which] = *f->pMethods;
		failing_methods[which].xWrite = failing_write;
		failing_methods[which].xSync = failing_sync;
		f->pMethods = &failing_methods[which];
	}
	return r;
}

static void fail_one(int at, bool persistently)
{
	uint64_t before, after;
	CLEANUP_STORE_KV struct store_kv kv = { 0 }, pair = { 0 };
	struct store *s = opened(NULL);
	assert_int_equal(put_one(s, "f/1", "before"), 0);
	assert_int_equal(put_one(s, "f/2", "before"), 0);
	before = store_revision(s);
	store_close(s);

	fail_at = 0;
	s = opened("failing");
	io_count = 0;
	fail_at = at;
	fail_on = persistently;
	struct store_txn t = STORE_TXN_INIT;
	store_put(&t, "f/1", "after", 5);
	store_put(&t, "f/2", "after", 5);
	int r = store_commit(s, &t, &after);
	fail_at = 0;
	store_close(s);

	s = opened(NULL);
	assert_int_equal(store_get(s, "f/1", &kv), 0);
	assert_int_equal(store_get(s, "f/2", &pair), 0);
	assert_string_equal(kv.value, pair.value); /* never half */
	if (r == 0)
		assert_string_equal(kv.value, "after");
	else
		assert_true(store_revision(s) == before || strcmp(kv.value, "after") == 0);
	store_close(s);
}

static void test_nth_io(void **state)
{
	sqlite3_vfs *real = sqlite3_vfs_find(NULL);
	failing_vfs = *real;
	failing_vfs.zName = "failing";
	failing_vfs.pAppData = real;
	failing_vfs.xOpen = failing_open;
	assert_int_equal(sqlite3_vfs_register(&failing_vfs, 0), SQLITE_OK);
	int failed = 0;
	for (int persistently = 0; persistently < 2; persistently++) {
		for (int at = 1; at < 40; at++) {
			fail_one(at, persistently);
			failed += io_count >= at;
			if (io_count < at)
				break; /* it needed fewer: every one has failed once */
		}
	}
	assert_true(failed >= 4);
}

static int setup(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/reclaim-store-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/state.db", dir);
	return 0;
}

static int teardown(void **state)
{
	return dir_remove_all(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_revisions), cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_leases),	  cmocka_unit_test(test_watch),
		cmocka_unit_test(test_one_owner), cmocka_unit_test(test_kill),
		cmocka_unit_test(test_nth_io),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
