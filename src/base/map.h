/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash map from byte strings to pointers (open addressing, keyed hash so
 * that outside input cannot aim at one bucket). Keys are copied, values
 * borrowed. Iteration is in insertion order as long as nothing was removed.
 */
#ifndef RECLAIM_BASE_MAP_H
#define RECLAIM_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map;

int map_new(struct map **ret);
void map_free(struct map *m); /* the values are the caller's */

size_t map_count(const struct map *m);
/* 0, or -EEXIST (nothing changes), or -ENOMEM. */
int map_insert(struct map *m, const void *key, size_t key_len, void *value);
/* Inserts or replaces; the old value, if any, goes to ret_old (may be NULL). */
int map_set(struct map *m, const void *key, size_t key_len, void *value, void **ret_old);
void *map_get(const struct map *m, const void *key, size_t key_len);
void *map_remove(struct map *m, const void *key, size_t key_len);

/* for (size_t i = 0; map_next(m, &i, &key, &key_len, &value);) -- do not change m inside. */
bool map_next(const struct map *m, size_t *pos, const void **ret_key, size_t *ret_key_len,
	      void **ret_value);

void *map_get_str(const struct map *m, const char *key);
int map_set_str(struct map *m, const char *key, void *value, void **ret_old);
void *map_remove_str(struct map *m, const char *key);

#endif
