/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index of 32-bit slots (linear probing) over a dense array of entries, as
 * in Python's dict: iteration is a walk over the array, removal swaps the
 * last entry into the hole.
 */
#include "base/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"

struct entry {
	uint64_t hash;
	void *value;
	char *key;
	size_t key_len;
};

#define SLOT_EMPTY 0u
#define SLOT_TOMB UINT32_MAX
#define MAP_COUNT_MAX (UINT32_MAX / 4)

struct map {
	uint64_t key[2];
	uint32_t *slots; /* entry number + 1 */
	size_t slots_count; /* a power of two */
	size_t slots_used;  /* with tombstones */
	struct entry *entries;
	size_t count, cap;
};

int map_new(struct map **ret)
{
	struct map *m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->slots_count = 16;
	m->slots = calloc(m->slots_count, sizeof(*m->slots));
	int r = m->slots ? random_bytes(m->key, sizeof(m->key)) : -ENOMEM;
	if (r < 0) {
		map_free(m);
		return r;
	}
	*ret = m;
	return 0;
}

void map_free(struct map *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->count; i++)
		free(m->entries[i].key);
	free(m->entries);
	free(m->slots);
	free(m);
}

size_t map_count(const struct map *m)
{
	return m->count;
}

/* The slot that holds the key, or SIZE_MAX. */
static size_t slot_find(const struct map *m, uint64_t hash, const void *key, size_t key_len)
{
	size_t mask = m->slots_count - 1;
	for (size_t i = hash & mask;; i = (i + 1) & mask) {
		uint32_t s = m->slots[i];
		if (s == SLOT_EMPTY)
			return SIZE_MAX;
		if (s == SLOT_TOMB)
			continue;
		const struct entry *e = &m->entries[s - 1];
		if (e->hash == hash && e->key_len == key_len && memcmp(e->key, key, key_len) == 0)
			return i;
	}
}

static void slot_put(uint32_t *slots, size_t slots_count, uint64_t hash, uint32_t value)
{
	size_t mask = slots_count - 1;
	size_t i = hash & mask;
	while (slots[i] != SLOT_EMPTY)
		i = (i + 1) & mask;
	slots[i] = value;
}

static int map_grow(struct map *m)
{
	size_t n = 16;
	while (n < (m->count + 1) * 2)
		n *= 2;
	uint32_t *slots = calloc(n, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < m->count; i++)
		slot_put(slots, n, m->entries[i].hash, (uint32_t)i + 1);
	free(m->slots);
	m->slots = slots;
	m->slots_count = n;
	m->slots_used = m->count;
	return 0;
}

static int map_append(struct map *m, uint64_t hash, const void *key, size_t key_len, void *value)
{
	if (m->count >= MAP_COUNT_MAX)
		return -ENOMEM;
	if ((m->slots_used + 1) * 4 > m->slots_count * 3) {
		int r = map_grow(m);
		if (r < 0)
			return r;
	}
	if (m->count == m->cap) {
		size_t cap = m->cap ? m->cap * 2 : 8;
		struct entry *grown = reallocarray(m->entries, cap, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		m->entries = grown;
		m->cap = cap;
	}
	char *copy = malloc(key_len + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, key, key_len);
	copy[key_len] = '\0';
	m->entries[m->count] = (struct entry){ hash, value, copy, key_len };
	m->count++;
	m->slots_used++;
	slot_put(m->slots, m->slots_count, hash, (uint32_t)m->count);
	return 0;
}

int map_insert(struct map *m, const void *key, size_t key_len, void *value)
{
	uint64_t hash = hash_sip24(key, key_len, m->key[0], m->key[1]);
	if (slot_find(m, hash, key, key_len) != SIZE_MAX)
		return -EEXIST;
	return map_append(m, hash, key, key_len, value);
}

int map_set(struct map *m, const void *key, size_t key_len, void *value, void **ret_old)
{
	uint64_t hash = hash_sip24(key, key_len, m->key[0], m->key[1]);
	size_t slot = slot_find(m, hash, key, key_len);
	void *old = NULL;
	if (slot != SIZE_MAX) {
		struct entry *e = &m->entries[m->slots[slot] - 1];
		old = e->value;
		e->value = value;
	} else {
		int r = map_append(m, hash, key, key_len, value);
		if (r < 0)
			return r;
	}
	if (ret_old)
		*ret_old = old;
	return 0;
}

void *map_get(const struct map *m, const void *key, size_t key_len)
{
	uint64_t hash = hash_sip24(key, key_len, m->key[0], m->key[1]);
	size_t slot = slot_find(m, hash, key, key_len);
	return slot == SIZE_MAX ? NULL : m->entries[m->slots[slot] - 1].value;
}

void *map_remove(struct map *m, const void *key, size_t key_len)
{
	uint64_t hash = hash_sip24(key, key_len, m->key[0], m->key[1]);
	size_t slot = slot_find(m, hash, key, key_len);
	if (slot == SIZE_MAX)
		return NULL;
	size_t hole = m->slots[slot] - 1;
	void *value = m->entries[hole].value;
	free(m->entries[hole].key);
	m->slots[slot] = SLOT_TOMB;
	size_t last = m->count - 1;
	if (hole != last) {
		const struct entry *e = &m->entries[last];
		size_t last_slot = slot_find(m, e->hash, e->key, e->key_len);
		CHECK(last_slot != SIZE_MAX);
		m->slots[last_slot] = (uint32_t)hole + 1;
		m->entries[hole] = *e;
	}
	m->count--;
	return value;
}

bool map_next(const struct map *m, size_t *pos, const void **ret_key, size_t *ret_key_len,
	      void **ret_value)
{
	if (*pos >= m->count)
		return false;
	const struct entry *e = &m->entries[(*pos)++];
	if (ret_key)
		*ret_key = e->key;
	if (ret_key_len)
		*ret_key_len = e->key_len;
	if (ret_value)
		*ret_value = e->value;
	return true;
}

void *map_get_str(const struct map *m, const char *key)
{
	return map_get(m, key, strlen(key));
}

int map_set_str(struct map *m, const char *key, void *value, void **ret_old)
{
	return map_set(m, key, strlen(key), value, ret_old);
}

void *map_remove_str(struct map *m, const char *key)
{
	return map_remove(m, key, strlen(key));
}
