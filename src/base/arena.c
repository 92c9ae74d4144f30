/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK_SIZE 4096

struct arena_block {
	struct arena_block *next;
	size_t size, used;
	alignas(max_align_t) char bytes[];
};

void arena_done(struct arena *a)
{
	while (a->head) {
		struct arena_block *next = a->head->next;
		free(a->head);
		a->head = next;
	}
	a->used = 0;
}

void *arena_alloc(struct arena *a, size_t size)
{
	if (size > SIZE_MAX / 2)
		return NULL;
	size = (size + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
	if (!a->head || a->head->size - a->head->used < size) {
		size_t block_size = size > ARENA_BLOCK_SIZE ? size : ARENA_BLOCK_SIZE;
		struct arena_block *b = malloc(sizeof(*b) + block_size);
		if (!b)
			return NULL;
		b->next = a->head;
		b->size = block_size;
		b->used = 0;
		a->head = b;
	}
	void *p = a->head->bytes + a->head->used;
	a->head->used += size;
	a->used += size;
	memset(p, 0, size);
	return p;
}

char *arena_memdup(struct arena *a, const void *bytes, size_t len)
{
	char *p = arena_alloc(a, len + 1);
	if (p && len)
		memcpy(p, bytes, len);
	return p;
}

char *arena_strdup(struct arena *a, const char *text)
{
	return arena_memdup(a, text, strlen(text));
}
