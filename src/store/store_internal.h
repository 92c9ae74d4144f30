/* SPDX-License-Identifier: Apache-2.0 */
/* What a backend gives; store.c adds transactions' building, leases' clocks and watchers. */
#ifndef RECLAIM_STORE_INTERNAL_H
#define RECLAIM_STORE_INTERNAL_H

#include "base/vec.h"
#include "store/store.h"

enum store_step_kind {
	STEP_COMPARE_REVISION,
	STEP_COMPARE_VALUE,
	STEP_PUT,
	STEP_DELETE,
	STEP_DELETE_PREFIX,
	STEP_DELETE_LEASE, /* the lease and all its keys */
	STEP_LEASE,        /* a new lease: number = id, ttl in revision */
};

struct store_step {
	enum store_step_kind kind;
	char *key;
	char *value;
	size_t value_len;
	uint64_t number; /* revision, or lease */
	uint64_t ttl_ms;
};

struct store_change {
	enum store_event_kind kind;
	uint64_t revision;
	char *key;
	char *value;
	size_t value_len;
};
struct store_changes VEC(struct store_change);

struct store_backend {
	void (*close)(void *b);
	int (*revision)(void *b, uint64_t *ret);
	int (*get)(void *b, const char *key, struct store_kv *ret);
	int (*list)(void *b, const char *prefix, int (*fn)(void *user, const struct store_kv *kv),
		    void *user);
	/* All or nothing; appends what changed. */
	int (*commit)(void *b, const struct store_step *steps, size_t count, uint64_t *ret_revision,
		      struct store_changes *changes);
	int (*leases)(void *b, int (*fn)(void *user, uint64_t lease, uint64_t ttl_ms), void *user);
	/* Changes of revisions >= from; -ESTALE when they are no longer all there. */
	int (*history)(void *b, uint64_t from, struct store_changes *changes);
};

int store_new(const struct store_backend *backend, void *b, struct store **ret);
void store_changes_done(struct store_changes *changes);

#endif
