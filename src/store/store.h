/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator's state, shaped like etcd's API on purpose: keys in byte
 * order with revisions, transactions that compare and swap, leases, watch. The
 * embedded backend is SQLite; another one implements struct store_backend.
 *
 * Every committed transaction raises the store's revision by one; a key knows
 * the revision at which it was made and last changed. What store_commit() has
 * acknowledged survives kill -9 and power loss. Calls block (a commit for one
 * fsync); one thread. An I/O error leaves the store as before the call; after
 * one whose outcome is unknown every call answers -EIO until it is reopened.
 */
#ifndef RECLAIM_STORE_STORE_H
#define RECLAIM_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"

#define STORE_KEY_MAX 512              /* bytes, without NUL bytes */
#define STORE_VALUE_MAX (8u << 20)
#define STORE_TXN_MAX 256              /* compares plus operations */
#define STORE_HISTORY_MAX 4096         /* revisions a late watcher can still catch up with */

struct store;

struct store_kv {
	char *key;
	char *value;        /* NUL after it; value_len is the truth */
	size_t value_len;
	uint64_t create_revision, mod_revision;
	uint64_t version;   /* changes since it was made; 1 = new */
	uint64_t lease;     /* 0 = none */
};
void store_kv_done(struct store_kv *kv);
#define CLEANUP_STORE_KV CLEANUP(store_kv_done)

/* Opens or makes the file. */
int store_open_sqlite(const char *path, struct store **ret, struct diag *diag);
/* The same through a named SQLite VFS (tests inject failures). */
int store_open_sqlite_vfs(const char *path, const char *vfs, struct store **ret,
			  struct diag *diag);
void store_close(struct store *s);
DEFINE_CLEANUP(struct store *, store_close)
#define CLEANUP_STORE CLEANUP(store_close_cleanup)

uint64_t store_revision(struct store *s);

/* 0, -ENOENT, -EIO. ret is filled only on success. */
int store_get(struct store *s, const char *key, struct store_kv *ret);
/* Each key that begins with prefix, in byte order; fn ends the walk by returning non-zero, which
 * becomes the result. kv is borrowed. fn must not change the store. */
int store_list(struct store *s, const char *prefix,
	       int (*fn)(void *user, const struct store_kv *kv), void *user);

/* ---- transactions ---- */

enum store_target { STORE_MOD_REVISION, STORE_VERSION, STORE_VALUE };

/* Built on the caller's stack, run once by store_commit(), then empty. */
struct store_txn {
	struct store_step *steps;
	size_t count, cap;
	int error; /* of building; reported by the commit */
};
#define STORE_TXN_INIT { NULL, 0, 0, 0 }
void store_txn_done(struct store_txn *t);
#define CLEANUP_STORE_TXN CLEANUP(store_txn_done)

/* The commit happens only if every comparison holds. A missing key has revision and version 0. */
void store_compare_revision(struct store_txn *t, const char *key, uint64_t mod_revision);
void store_compare_missing(struct store_txn *t, const char *key);
void store_compare_value(struct store_txn *t, const char *key, const void *value, size_t len);
void store_put(struct store_txn *t, const char *key, const void *value, size_t len);
void store_put_lease(struct store_txn *t, const char *key, const void *value, size_t len,
		     uint64_t lease);
void store_delete(struct store_txn *t, const char *key);
void store_delete_prefix(struct store_txn *t, const char *prefix);
/* 0 with the new revision (ret may be NULL); -EAGAIN when a comparison failed (nothing changed);
 * -EINVAL, -E2BIG for a bad key, value or size; -ENOSPC; -EIO. Empties t in every case. */
int store_commit(struct store *s, struct store_txn *t, uint64_t *ret_revision);

/* ---- leases: keys that go when nobody renews ---- */

int store_lease_grant(struct store *s, uint64_t ttl_ms, uint64_t now_ns, uint64_t *ret_lease);
int store_lease_renew(struct store *s, uint64_t lease, uint64_t now_ns); /* 0 or -ENOENT */
int store_lease_revoke(struct store *s, uint64_t lease);
/* Removes the keys of leases that have run out. After an open every lease has its full time to
 * live again, from the first tick. Returns how many ended. */
int store_lease_tick(struct store *s, uint64_t now_ns);

/* ---- watch ---- */

enum store_event_kind { STORE_EVENT_PUT, STORE_EVENT_DELETE };
struct store_event {
	enum store_event_kind kind;
	uint64_t revision;
	const char *key;
	const char *value; /* NULL for a delete */
	size_t value_len;
};
struct store_watch;
/* fn for each change under prefix from revision `from` on (0 = only new ones), in order; past ones
 * before this returns. -ESTALE when `from` is no longer kept: list, then watch anew. fn may change
 * the store; it hears of that after the changes before. */
int store_watch_open(struct store *s, const char *prefix, uint64_t from,
		     void (*fn)(void *user, const struct store_event *e), void *user,
		     struct store_watch **ret);
void store_watch_close(struct store_watch *w);

#endif
