/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The embedded backend: one SQLite file in WAL mode with synchronous=FULL, so
 * that a commit is on disk before it is acknowledged. The only SQL of the
 * project is here.
 */
#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/point.h"
#include "store/store_internal.h"

enum statement {
	S_BEGIN, S_COMMIT, S_ROLLBACK, S_REVISION, S_REVISION_SET, S_GET, S_LIST, S_PUT, S_DELETE,
	S_LEASES, S_LEASE_ADD, S_LEASE_DELETE, S_LEASE_KEYS, S_HISTORY_ADD, S_HISTORY, S_HISTORY_MIN,
	S_HISTORY_TRIM, S_COUNT,
};

static const char *const sql[S_COUNT] = {
	[S_BEGIN] = "BEGIN IMMEDIATE",
	[S_COMMIT] = "COMMIT",
	[S_ROLLBACK] = "ROLLBACK",
	[S_REVISION] = "SELECT value FROM meta WHERE name = 'revision'",
	[S_REVISION_SET] = "UPDATE meta SET value = ?1 WHERE name = 'revision'",
	[S_GET] = "SELECT key, value, created, modified, version, lease FROM kv WHERE key = ?1",
	[S_LIST] = "SELECT key, value, created, modified, version, lease FROM kv "
		   "WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) ORDER BY key",
	[S_PUT] = "INSERT INTO kv (key, value, created, modified, version, lease) "
		  "VALUES (?1, ?2, ?3, ?3, 1, ?4) ON CONFLICT (key) DO UPDATE SET "
		  "value = ?2, modified = ?3, version = version + 1, lease = ?4",
	[S_DELETE] = "DELETE FROM kv WHERE key = ?1",
	[S_LEASES] = "SELECT id, ttl_ms FROM lease ORDER BY id",
	[S_LEASE_ADD] = "INSERT INTO lease (id, ttl_ms) VALUES (?1, ?2)",
	[S_LEASE_DELETE] = "DELETE FROM lease WHERE id = ?1",
	[S_LEASE_KEYS] = "SELECT key FROM kv WHERE lease = ?1 ORDER BY key",
	[S_HISTORY_ADD] = "INSERT INTO history (revision, key, value, removed) VALUES (?1, ?2, ?3, ?4)",
	[S_HISTORY] = "SELECT revision, key, value, removed FROM history WHERE revision >= ?1 "
		      "ORDER BY revision, rowid",
	[S_HISTORY_MIN] = "SELECT value FROM meta WHERE name = 'trimmed'",
	[S_HISTORY_TRIM] = "DELETE FROM history WHERE revision < ?1",
};

static const char schema_sql[] =
	"CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;"
	"INSERT OR IGNORE INTO meta VALUES ('format', 1), ('revision', 0), ('trimmed', 0);"
	"CREATE TABLE IF NOT EXISTS kv (key BLOB PRIMARY KEY, value BLOB NOT NULL, created INTEGER,"
	" modified INTEGER, version INTEGER, lease INTEGER) WITHOUT ROWID;"
	"CREATE INDEX IF NOT EXISTS kv_lease ON kv (lease) WHERE lease > 0;"
	"CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY, ttl_ms INTEGER);"
	"CREATE TABLE IF NOT EXISTS history (revision INTEGER, key BLOB, value BLOB, removed INTEGER);"
	"CREATE INDEX IF NOT EXISTS history_revision ON history (revision);";

struct sqlite_store {
	sqlite3 *db;
	sqlite3_stmt *statements[S_COUNT];
	bool broken; /* a commit failed so that its outcome is unknown */
};

static int errno_of(int code)
{
	switch (code & 0xff) {
	case SQLITE_OK: case SQLITE_DONE: case SQLITE_ROW: return 0;
	case SQLITE_FULL: return -ENOSPC;
	case SQLITE_NOMEM: return -ENOMEM;
	case SQLITE_BUSY: case SQLITE_LOCKED: return -EBUSY;
	case SQLITE_READONLY: case SQLITE_PERM: return -EACCES;
	case SQLITE_CORRUPT: case SQLITE_NOTADB: return -EBADMSG;
	default: return -EIO;
	}
}

/* A statement, ready to bind. */
static sqlite3_stmt *prepared(struct sqlite_store *b, enum statement which)
{
	if (!b->statements[which] &&
	    sqlite3_prepare_v3(b->db, sql[which], -1, SQLITE_PREPARE_PERSISTENT,
			       &b->statements[which], NULL) != SQLITE_OK)
		return NULL;
	sqlite3_reset(b->statements[which]);
	sqlite3_clear_bindings(b->statements[which]);
	return b->statements[which];
}

/* Runs to the end; 0 or -errno. */
static int run(sqlite3_stmt *st)
{
	if (!st)
		return -EIO;
	int code = sqlite3_step(st);
	sqlite3_reset(st);
	return errno_of(code);
}

static void bind_key(sqlite3_stmt *st, int at, const char *key)
{
	if (st)
		sqlite3_bind_blob(st, at, key, (int)strlen(key), SQLITE_STATIC);
}

static void bind_u64(sqlite3_stmt *st, int at, uint64_t n)
{
	if (st)
		sqlite3_bind_int64(st, at, (sqlite3_int64)n);
}

static char *column_text(sqlite3_stmt *st, int at, size_t *ret_len)
{
	size_t len = (size_t)sqlite3_column_bytes(st, at);
	const void *bytes = sqlite3_column_blob(st, at);
	char *text = malloc(len + 1);
	if (!text)
		return NULL;
	if (len)
		memcpy(text, bytes, len);
	text[len] = 0;
	if (ret_len)
		*ret_len = len;
	return text;
}

static int one_number(struct sqlite_store *b, enum statement which, uint64_t *ret)
{
	sqlite3_stmt *st = prepared(b, which);
	if (!st)
		return -EIO;
	int code = sqlite3_step(st);
	int r = code == SQLITE_ROW ? 0 : code == SQLITE_DONE ? -ENOENT : errno_of(code);
	if (r == 0)
		*ret = (uint64_t)sqlite3_column_int64(st, 0);
	sqlite3_reset(st);
	return r;
}

static int sqlite_revision(void *user, uint64_t *ret)
{
	struct sqlite_store *b = user;
	return b->broken ? -EIO : one_number(b, S_REVISION, ret);
}

static int row_kv(sqlite3_stmt *st, struct store_kv *ret)
{
	*ret = (struct store_kv){
		.key = column_text(st, 0, NULL),
		.create_revision = (uint64_t)sqlite3_column_int64(st, 2),
		.mod_revision = (uint64_t)sqlite3_column_int64(st, 3),
		.version = (uint64_t)sqlite3_column_int64(st, 4),
		.lease = (uint64_t)sqlite3_column_int64(st, 5),
	};
	ret->value = column_text(st, 1, &ret->value_len);
	if (ret->key && ret->value)
		return 0;
	store_kv_done(ret);
	return -ENOMEM;
}

static int sqlite_get(void *user, const char *key, struct store_kv *ret)
{
	struct sqlite_store *b = user;
	if (b->broken)
		return -EIO;
	sqlite3_stmt *st = prepared(b, S_GET);
	if (!st)
		return -EIO;
	bind_key(st, 1, key);
	int code = sqlite3_step(st);
	int r = code == SQLITE_ROW ? row_kv(st, ret) : code == SQLITE_DONE ? -ENOENT : errno_of(code);
	sqlite3_reset(st);
	return r;
}

/* The first key behind all keys with this prefix; false when there is none. */
static bool prefix_end(const char *prefix, char end[STORE_KEY_MAX + 1])
{
	size_t len = strlen(prefix);
	memcpy(end, prefix, len + 1);
	while (len > 0 && (unsigned char)end[len - 1] == 0xff)
		len--;
	if (len == 0)
		return false;
	end[len - 1] = (char)((unsigned char)end[len - 1] + 1);
	end[len] = 0;
	return true;
}

static int sqlite_list(void *user, const char *prefix,
		       int (*fn)(void *user, const struct store_kv *kv), void *fn_user)
{
	struct sqlite_store *b = user;
	char end[STORE_KEY_MAX + 1];
	sqlite3_stmt *st = NULL;
	/* Its own statement: fn may list too. */
	if (b->broken || sqlite3_prepare_v2(b->db, sql[S_LIST], -1, &st, NULL) != SQLITE_OK)
		return -EIO;
	sqlite3_bind_blob(st, 1, prefix, (int)strlen(prefix), SQLITE_STATIC);
	if (prefix_end(prefix, end))
		bind_key(st, 2, end);
	int code, r = 0;
	while (r == 0 && (code = sqlite3_step(st)) == SQLITE_ROW) {
		struct store_kv kv;
		r = row_kv(st, &kv);
		if (r == 0) {
			r = fn(fn_user, &kv);
			store_kv_done(&kv);
		}
	}
	if (r == 0)
		r = errno_of(code);
	sqlite3_finalize(st);
	return r;
}

/* ---- commits ---- */

static int compare(struct sqlite_store *b, const struct store_step *step)
{
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	int r = sqlite_get(b, step->key, &kv);
	if (r < 0 && r != -ENOENT)
		return r;
	if (step->kind == STEP_COMPARE_REVISION)
		return kv.mod_revision == step->number ? 0 : -EAGAIN;
	if (r == -ENOENT)
		return -EAGAIN;
	return kv.value_len == step->value_len &&
	       memcmp(kv.value, step->value, kv.value_len) == 0 ? 0 : -EAGAIN;
}

static int record(struct sqlite_store *b, uint64_t revision, const char *key, const char *value,
		  size_t len, struct store_changes *changes)
{
	sqlite3_stmt *st = prepared(b, S_HISTORY_ADD);
	bind_u64(st, 1, revision);
	bind_key(st, 2, key);
	if (st && value)
		sqlite3_bind_blob(st, 3, value, (int)len, SQLITE_STATIC);
	bind_u64(st, 4, value ? 0 : 1);
	int r = run(st);
	if (r < 0)
		return r;
	struct store_change c = { .kind = value ? STORE_EVENT_PUT : STORE_EVENT_DELETE,
				  .revision = revision, .key = strdup(key), .value_len = len };
	if (value) {
		c.value = malloc(len + 1);
		if (c.value) {
			memcpy(c.value, value, len);
			c.value[len] = 0;
		}
	}
	if (!c.key || (value && !c.value) || VEC_PUSH(changes, c) < 0) {
		free(c.key);
		free(c.value);
		return -ENOMEM;
	}
	return 0;
}

static int put(struct sqlite_store *b, const struct store_step *step, uint64_t revision,
	       struct store_changes *changes)
{
	sqlite3_stmt *st = prepared(b, S_PUT);
	bind_key(st, 1, step->key);
	if (st)
		sqlite3_bind_blob(st, 2, step->value, (int)step->value_len, SQLITE_STATIC);
	bind_u64(st, 3, revision);
	bind_u64(st, 4, step->number);
	int r = run(st);
	return r < 0 ? r : record(b, revision, step->key, step->value, step->value_len, changes);
}

static int delete_key(struct sqlite_store *b, const char *key, uint64_t revision,
		      struct store_changes *changes)
{
	sqlite3_stmt *st = prepared(b, S_DELETE);
	bind_key(st, 1, key);
	int r = run(st);
	if (r < 0 || sqlite3_changes(b->db) == 0)
		return r; /* nothing there: nothing changed */
	return record(b, revision, key, NULL, 0, changes);
}

struct keys {
	struct VEC(char *) keys;
};

static int keys_add(void *user, const struct store_kv *kv)
{
	struct keys *k = user;
	char *key = strdup(kv->key);
	if (!key || VEC_PUSH(&k->keys, key) < 0) {
		free(key);
		return -ENOMEM;
	}
	return 0;
}

static int delete_keys(struct sqlite_store *b, struct keys *k, int r, uint64_t revision,
		       struct store_changes *changes)
{
	VEC_EACH(&k->keys, key) {
		if (r == 0)
			r = delete_key(b, *key, revision, changes);
		free(*key);
	}
	VEC_DONE(&k->keys);
	return r;
}

static int delete_lease(struct sqlite_store *b, uint64_t lease, uint64_t revision,
			struct store_changes *changes)
{
	struct keys k = { VEC_INIT };
	int r = 0, code;
	sqlite3_stmt *st = prepared(b, S_LEASE_KEYS);
	bind_u64(st, 1, lease);
	while (r == 0 && st && (code = sqlite3_step(st)) == SQLITE_ROW) {
		struct store_kv kv = { .key = column_text(st, 0, NULL) };
		r = kv.key ? keys_add(&k, &kv) : -ENOMEM;
		free(kv.key);
	}
	if (r == 0)
		r = st ? errno_of(code) : -EIO;
	r = delete_keys(b, &k, r, revision, changes);
	st = prepared(b, S_LEASE_DELETE);
	bind_u64(st, 1, lease);
	return r < 0 ? r : run(st);
}

static int step_run(struct sqlite_store *b, const struct store_step *step, uint64_t revision,
		    struct store_changes *changes)
{
	struct keys k = { VEC_INIT };
	sqlite3_stmt *st;
	switch (step->kind) {
	case STEP_COMPARE_REVISION:
	case STEP_COMPARE_VALUE:
		return 0; /* all of them came first */
	case STEP_PUT:
		return put(b, step, revision, changes);
	case STEP_DELETE:
		return delete_key(b, step->key, revision, changes);
	case STEP_DELETE_PREFIX:
		return delete_keys(b, &k, sqlite_list(b, step->key, keys_add, &k), revision, changes);
	case STEP_DELETE_LEASE:
		return delete_lease(b, step->number, revision, changes);
	case STEP_LEASE:
		st = prepared(b, S_LEASE_ADD);
		bind_u64(st, 1, step->number);
		bind_u64(st, 2, step->ttl_ms);
		return run(st);
	}
	return -EINVAL;
}

/* Keeps the last STORE_HISTORY_MAX revisions; now and then, since it costs a delete. */
static int history_trim(struct sqlite_store *b, uint64_t revision)
{
	if (revision % 256 != 0 || revision <= STORE_HISTORY_MAX)
		return 0;
	sqlite3_stmt *st = prepared(b, S_HISTORY_TRIM);
	bind_u64(st, 1, revision - STORE_HISTORY_MAX);
	int r = run(st);
	if (r < 0)
		return r;
	char text[128];
	sqlite3_snprintf(sizeof(text), text, "UPDATE meta SET value = %lld WHERE name = 'trimmed'",
			 (sqlite3_int64)(revision - STORE_HISTORY_MAX));
	return errno_of(sqlite3_exec(b->db, text, NULL, NULL, NULL));
}

static int commit_inside(struct sqlite_store *b, const struct store_step *steps, size_t count,
			 uint64_t *ret_revision, struct store_changes *changes)
{
	uint64_t revision;
	int r = one_number(b, S_REVISION, &revision);
	if (r < 0)
		return r;
	revision++;
	for (size_t i = 0; i < count; i++) {
		if (steps[i].kind > STEP_COMPARE_VALUE)
			continue;
		r = compare(b, &steps[i]);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < count; i++) {
		r = step_run(b, &steps[i], revision, changes);
		if (r < 0)
			return r;
	}
	sqlite3_stmt *st = prepared(b, S_REVISION_SET);
	bind_u64(st, 1, revision);
	r = run(st);
	if (r == 0)
		r = history_trim(b, revision);
	*ret_revision = revision;
	return r;
}

static int sqlite_commit(void *user, const struct store_step *steps, size_t count,
			 uint64_t *ret_revision, struct store_changes *changes)
{
	struct sqlite_store *b = user;
	if (b->broken)
		return -EIO;
	int r = run(prepared(b, S_BEGIN));
	if (r < 0)
		return r;
	r = commit_inside(b, steps, count, ret_revision, changes);
	if (r == 0) {
		POINT("store.commit.before");
		r = run(prepared(b, S_COMMIT));
		if (r == 0) {
			POINT("store.commit.after");
			return 0;
		}
	}
	if (sqlite3_get_autocommit(b->db) == 0)
		(void)run(prepared(b, S_ROLLBACK));
	/* SQLite rolled back, or we did. If neither could be, or if the commit itself failed on its
	 * way to the disk, what a reader sees now may not be what is there after a crash. */
	if (sqlite3_get_autocommit(b->db) == 0)
		b->broken = true;
	return r;
}

static int sqlite_leases(void *user, int (*fn)(void *user, uint64_t lease, uint64_t ttl_ms),
			 void *fn_user)
{
	struct sqlite_store *b = user;
	sqlite3_stmt *st = prepared(b, S_LEASES);
	int code = SQLITE_ERROR, r = 0;
	while (r == 0 && st && (code = sqlite3_step(st)) == SQLITE_ROW)
		r = fn(fn_user, (uint64_t)sqlite3_column_int64(st, 0),
		       (uint64_t)sqlite3_column_int64(st, 1));
	if (st)
		sqlite3_reset(st);
	return r < 0 ? r : errno_of(code);
}

static int sqlite_history(void *user, uint64_t from, struct store_changes *changes)
{
	struct sqlite_store *b = user;
	uint64_t trimmed;
	int r = one_number(b, S_HISTORY_MIN, &trimmed);
	if (r < 0)
		return r;
	if (from < trimmed)
		return -ESTALE;
	sqlite3_stmt *st = prepared(b, S_HISTORY);
	bind_u64(st, 1, from);
	int code = SQLITE_ERROR;
	while (r == 0 && st && (code = sqlite3_step(st)) == SQLITE_ROW) {
		struct store_change c = {
			.revision = (uint64_t)sqlite3_column_int64(st, 0),
			.key = column_text(st, 1, NULL),
			.kind = sqlite3_column_int(st, 3) ? STORE_EVENT_DELETE : STORE_EVENT_PUT,
		};
		if (c.kind == STORE_EVENT_PUT)
			c.value = column_text(st, 2, &c.value_len);
		r = c.key && (c.kind == STORE_EVENT_DELETE || c.value) ? VEC_PUSH(changes, c) : -ENOMEM;
		if (r < 0) {
			free(c.key);
			free(c.value);
		}
	}
	if (st)
		sqlite3_reset(st);
	return r < 0 ? r : errno_of(code);
}

static void sqlite_close(void *user)
{
	struct sqlite_store *b = user;
	for (size_t i = 0; i < S_COUNT; i++)
		sqlite3_finalize(b->statements[i]);
	sqlite3_close(b->db);
	free(b);
}

static const struct store_backend backend = {
	.close = sqlite_close,
	.revision = sqlite_revision,
	.get = sqlite_get,
	.list = sqlite_list,
	.commit = sqlite_commit,
	.leases = sqlite_leases,
	.history = sqlite_history,
};

int store_open_sqlite_vfs(const char *path, const char *vfs, struct store **ret, struct diag *diag)
{
	struct sqlite_store *b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	int code = sqlite3_open_v2(path, &b->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
					   SQLITE_OPEN_NOMUTEX, vfs);
	/* The lock is for the whole run: two coordinators on one file would be two truths. */
	if (code == SQLITE_OK)
		code = sqlite3_exec(b->db, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
				    "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 500;",
				    NULL, NULL, NULL);
	if (code == SQLITE_OK)
		code = sqlite3_exec(b->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
	if (code == SQLITE_OK)
		code = sqlite3_exec(b->db, schema_sql, NULL, NULL, NULL);
	if (code == SQLITE_OK)
		code = sqlite3_exec(b->db, "COMMIT", NULL, NULL, NULL);
	int r = errno_of(code);
	if (r < 0)
		diag_set(diag, r, path, r == -EBUSY ? "is in use by another coordinator" :
			 "cannot be used as the store: %s", b->db ? sqlite3_errmsg(b->db) : "no memory");
	if (r == 0)
		r = store_new(&backend, b, ret);
	if (r < 0)
		sqlite_close(b);
	return r;
}

int store_open_sqlite(const char *path, struct store **ret, struct diag *diag)
{
	return store_open_sqlite_vfs(path, NULL, ret, diag);
}
