/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the store that every backend shares. */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "store/store_internal.h"

struct lease {
	uint64_t id;
	uint64_t ttl_ms;
	uint64_t ends_ns; /* 0 = not yet counted (just opened) */
};

struct store_watch {
	struct store *store;
	char *prefix;
	void (*fn)(void *user, const struct store_event *e);
	void *user;
	bool closed;
	struct store_watch *next;
};

struct store {
	const struct store_backend *backend;
	void *b;
	struct VEC(struct lease) leases;
	uint64_t lease_next;
	struct store_watch *watches;
	struct store_changes pending; /* not yet told to the watchers */
	size_t pending_at;
	bool telling;
};

void store_kv_done(struct store_kv *kv)
{
	free(kv->key);
	free(kv->value);
	*kv = (struct store_kv){ 0 };
}

void store_changes_done(struct store_changes *changes)
{
	VEC_EACH(changes, c) {
		free(c->key);
		free(c->value);
	}
	VEC_DONE(changes);
}

static int lease_loaded(void *user, uint64_t id, uint64_t ttl_ms)
{
	struct store *s = user;
	struct lease l = { .id = id, .ttl_ms = ttl_ms };
	s->lease_next = MAX(s->lease_next, id + 1);
	return VEC_PUSH(&s->leases, l);
}

int store_new(const struct store_backend *backend, void *b, struct store **ret)
{
	struct store *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->backend = backend;
	s->b = b;
	s->lease_next = 1;
	int r = backend->leases(b, lease_loaded, s);
	if (r < 0) {
		VEC_DONE(&s->leases);
		free(s);
		return r;
	}
	*ret = s;
	return 0;
}

void store_close(struct store *s)
{
	if (!s)
		return;
	while (s->watches) {
		struct store_watch *w = s->watches;
		s->watches = w->next;
		free(w->prefix);
		free(w);
	}
	store_changes_done(&s->pending);
	VEC_DONE(&s->leases);
	s->backend->close(s->b);
	free(s);
}

uint64_t store_revision(struct store *s)
{
	uint64_t revision = 0;
	(void)s->backend->revision(s->b, &revision); /* 0 tells: nothing can be read */
	return revision;
}

static bool key_is_valid(const char *key)
{
	size_t len = key ? strlen(key) : 0;
	return len > 0 && len <= STORE_KEY_MAX;
}

int store_get(struct store *s, const char *key, struct store_kv *ret)
{
	return key_is_valid(key) ? s->backend->get(s->b, key, ret) : -EINVAL;
}

int store_list(struct store *s, const char *prefix,
	       int (*fn)(void *user, const struct store_kv *kv), void *user)
{
	return strlen(prefix) <= STORE_KEY_MAX ? s->backend->list(s->b, prefix, fn, user) : -EINVAL;
}

/* ---- building transactions ---- */

static void step_done(struct store_step *step)
{
	free(step->key);
	free(step->value);
}

void store_txn_done(struct store_txn *t)
{
	for (size_t i = 0; i < t->count; i++)
		step_done(&t->steps[i]);
	free(t->steps);
	*t = (struct store_txn)STORE_TXN_INIT;
}

static void txn_add(struct store_txn *t, enum store_step_kind kind, const char *key,
		    const void *value, size_t len, uint64_t number, uint64_t ttl_ms)
{
	struct store_step step = { .kind = kind, .value_len = len, .number = number, .ttl_ms = ttl_ms };
	if (t->error)
		return;
	if (key && !key_is_valid(key))
		t->error = -EINVAL;
	else if (t->count >= STORE_TXN_MAX || len > STORE_VALUE_MAX)
		t->error = -E2BIG;
	else if (vec_reserve((void **)&t->steps, &t->cap, t->count + 1, sizeof(step)) < 0)
		t->error = -ENOMEM;
	if (t->error)
		return;
	step.key = key ? strdup(key) : NULL;
	step.value = value ? malloc(len + 1) : NULL;
	if ((key && !step.key) || (value && !step.value)) {
		step_done(&step);
		t->error = -ENOMEM;
		return;
	}
	if (value) {
		memcpy(step.value, value, len);
		step.value[len] = 0;
	}
	t->steps[t->count++] = step;
}

void store_compare_revision(struct store_txn *t, const char *key, uint64_t mod_revision)
{
	txn_add(t, STEP_COMPARE_REVISION, key, NULL, 0, mod_revision, 0);
}

void store_compare_missing(struct store_txn *t, const char *key)
{
	txn_add(t, STEP_COMPARE_REVISION, key, NULL, 0, 0, 0);
}

void store_compare_value(struct store_txn *t, const char *key, const void *value, size_t len)
{
	txn_add(t, STEP_COMPARE_VALUE, key, value, len, 0, 0);
}

void store_put(struct store_txn *t, const char *key, const void *value, size_t len)
{
	txn_add(t, STEP_PUT, key, value, len, 0, 0);
}

void store_put_lease(struct store_txn *t, const char *key, const void *value, size_t len,
		     uint64_t lease)
{
	txn_add(t, STEP_PUT, key, value, len, lease, 0);
}

void store_delete(struct store_txn *t, const char *key)
{
	txn_add(t, STEP_DELETE, key, NULL, 0, 0, 0);
}

void store_delete_prefix(struct store_txn *t, const char *prefix)
{
	txn_add(t, STEP_DELETE_PREFIX, prefix, NULL, 0, 0, 0);
}

/* ---- telling watchers ---- */

static void watches_sweep(struct store *s)
{
	for (struct store_watch **p = &s->watches; *p;) {
		struct store_watch *w = *p;
		if (!w->closed) {
			p = &w->next;
			continue;
		}
		*p = w->next;
		free(w->prefix);
		free(w);
	}
}

static void watch_tell(struct store_watch *w, const struct store_change *c)
{
	if (w->closed || strncmp(c->key, w->prefix, strlen(w->prefix)) != 0)
		return;
	struct store_event e = { c->kind, c->revision, c->key, c->value, c->value_len };
	w->fn(w->user, &e);
}

/* A watcher may commit: its changes queue up behind those that are being told. */
static void pending_tell(struct store *s)
{
	if (s->telling)
		return;
	s->telling = true;
	while (s->pending_at < s->pending.count) {
		struct store_change c = s->pending.data[s->pending_at++];
		for (struct store_watch *w = s->watches; w; w = w->next)
			watch_tell(w, &c);
		free(c.key);
		free(c.value);
	}
	s->pending.count = s->pending_at = 0;
	s->telling = false;
	watches_sweep(s);
}

int store_commit(struct store *s, struct store_txn *t, uint64_t *ret_revision)
{
	uint64_t revision = 0;
	size_t before = s->pending.count;
	int r = t->error;
	if (r == 0 && t->count == 0)
		r = -EINVAL;
	if (r == 0)
		r = s->backend->commit(s->b, t->steps, t->count, &revision, &s->pending);
	store_txn_done(t);
	if (r < 0) {
		while (s->pending.count > before) {
			struct store_change *c = &s->pending.data[--s->pending.count];
			free(c->key);
			free(c->value);
		}
		return r;
	}
	if (ret_revision)
		*ret_revision = revision;
	pending_tell(s);
	return 0;
}

int store_watch_open(struct store *s, const char *prefix, uint64_t from,
		     void (*fn)(void *user, const struct store_event *e), void *user,
		     struct store_watch **ret)
{
	struct store_watch *w = calloc(1, sizeof(*w));
	struct store_changes past = VEC_INIT;
	int r = w ? 0 : -ENOMEM;
	if (r == 0) {
		w->store = s;
		w->fn = fn;
		w->user = user;
		w->prefix = strdup(prefix);
		r = w->prefix ? 0 : -ENOMEM;
	}
	if (r == 0 && from > 0)
		r = s->backend->history(s->b, from, &past);
	if (r < 0) {
		store_changes_done(&past);
		if (w)
			free(w->prefix);
		free(w);
		return r;
	}
	w->next = s->watches;
	s->watches = w;
	*ret = w;
	bool outer = s->telling;
	s->telling = true; /* what fn commits waits until the past is told */
	VEC_EACH(&past, c)
		watch_tell(w, c);
	s->telling = outer;
	store_changes_done(&past);
	pending_tell(s);
	return 0;
}

void store_watch_close(struct store_watch *w)
{
	if (!w)
		return;
	struct store *s = w->store;
	w->closed = true;
	if (!s->telling)
		watches_sweep(s);
}

/* ---- leases ---- */

static struct lease *lease_find(struct store *s, uint64_t id)
{
	VEC_EACH(&s->leases, l)
		if (l->id == id)
			return l;
	return NULL;
}

int store_lease_grant(struct store *s, uint64_t ttl_ms, uint64_t now_ns, uint64_t *ret_lease)
{
	struct lease l = { s->lease_next, ttl_ms, now_ns + ttl_ms * NS_PER_MS };
	struct store_txn t = STORE_TXN_INIT;
	int r = VEC_RESERVE(&s->leases, s->leases.count + 1);
	if (r < 0)
		return r;
	txn_add(&t, STEP_LEASE, NULL, NULL, 0, l.id, ttl_ms);
	r = store_commit(s, &t, NULL);
	if (r < 0)
		return r;
	s->lease_next++;
	CHECK(VEC_PUSH(&s->leases, l) == 0);
	*ret_lease = l.id;
	return 0;
}

int store_lease_renew(struct store *s, uint64_t lease, uint64_t now_ns)
{
	struct lease *l = lease_find(s, lease);
	if (!l)
		return -ENOENT;
	l->ends_ns = now_ns + l->ttl_ms * NS_PER_MS;
	return 0;
}

int store_lease_revoke(struct store *s, uint64_t lease)
{
	struct lease *l = lease_find(s, lease);
	struct store_txn t = STORE_TXN_INIT;
	if (!l)
		return -ENOENT;
	txn_add(&t, STEP_DELETE_LEASE, NULL, NULL, 0, lease, 0);
	int r = store_commit(s, &t, NULL);
	l = lease_find(s, lease); /* a watcher may have changed the list */
	if (r == 0 && l)
		VEC_SWAP_REMOVE(&s->leases, (size_t)(l - s->leases.data));
	return r;
}

int store_lease_tick(struct store *s, uint64_t now_ns)
{
	int ended = 0;
	for (size_t i = 0; i < s->leases.count;) {
		struct lease *l = &s->leases.data[i];
		if (l->ends_ns == 0)
			l->ends_ns = now_ns + l->ttl_ms * NS_PER_MS;
		if (l->ends_ns > now_ns) {
			i++;
			continue;
		}
		int r = store_lease_revoke(s, l->id);
		if (r < 0 && r != -ENOENT)
			return r;
		ended++;
	}
	return ended;
}
