/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that dies in one call: a configuration generation, a connection. */
#ifndef RECLAIM_BASE_ARENA_H
#define RECLAIM_BASE_ARENA_H

#include <stddef.h>

struct arena_block;
struct arena {
	struct arena_block *head;
	size_t used; /* bytes handed out, for limits */
};

#define ARENA_INIT { NULL, 0 }

void arena_done(struct arena *a);
/* Zeroed, aligned for any type; NULL when out of memory. */
void *arena_alloc(struct arena *a, size_t size);
char *arena_strdup(struct arena *a, const char *text);
char *arena_memdup(struct arena *a, const void *bytes, size_t len); /* adds a NUL */

#endif
