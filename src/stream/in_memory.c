/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds input: blocks that links read into, whole long messages, and the
 * queues of runs. Freed memory is kept for the next message, whose pages are
 * then there and warm.
 */
#include <stdlib.h>
#include <string.h>

#include "stream/node_internal.h"

enum { BLOCK_POOL_MAX = 16, BIG_POOL_BYTES = 64 << 20 };

struct block *block_new(struct reclaim_node *n, uint32_t cap)
{
	struct block *b;

	if (cap == BLOCK_SIZE && n->block_pool.count) {
		b = n->block_pool.data[--n->block_pool.count];
	} else {
		b = malloc(sizeof(*b) + cap);
		if (!b)
			return NULL;
		b->cap = cap;
	}
	b->refs = 1;
	return b;
}

void block_unref(struct reclaim_node *n, struct block *b)
{
	if (--b->refs)
		return;
	if (b->cap == BLOCK_SIZE && n->block_pool.count < BLOCK_POOL_MAX &&
	    VEC_PUSH(&n->block_pool, b) == 0)
		return;
	free(b);
}

static size_t round_up(size_t len)
{
	size_t cap = 32 << 10;

	while (cap < len)
		cap *= 2;
	return cap;
}

struct big *big_new(struct reclaim_node *n, size_t len)
{
	struct big *b;

	if (n->options.alloc) {
		uint8_t *mem = n->options.alloc(n->options.arg, len);

		if (mem && (b = calloc(1, sizeof(*b)))) {
			*b = (struct big){ mem, len, len, true };
			return b;
		}
	}
	/* The last one given back first: its pages are there and warm. */
	for (size_t i = n->big_pool.count; i-- > 0;) {
		b = n->big_pool.data[i];
		if (b->cap >= len && b->cap <= 4 * round_up(len)) {
			VEC_REMOVE(&n->big_pool, i);
			n->big_pool_bytes -= b->cap;
			b->len = len;
			return b;
		}
	}
	b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->cap = round_up(len);
	b->len = len;
	b->data = malloc(b->cap);
	if (!b->data) {
		free(b);
		return NULL;
	}
	return b;
}

void big_free(struct reclaim_node *n, struct big *b, bool handed_out)
{
	if (!b)
		return;
	if (b->application) {
		if (!handed_out && n->options.unalloc)
			n->options.unalloc(n->options.arg, b->data, b->len);
		free(b);
		return;
	}
	if (n->big_pool_bytes + b->cap <= BIG_POOL_BYTES && VEC_PUSH(&n->big_pool, b) == 0) {
		n->big_pool_bytes += b->cap;
		return;
	}
	free(b->data);
	free(b);
}

void run_drop(struct reclaim_node *n, struct run *r)
{
	if (r->block)
		block_unref(n, r->block);
	free(r->copy);
	big_free(n, r->big, false);
}

struct run *run_push(struct run_queue *q)
{
	if (q->count == q->cap) {
		size_t cap = q->cap ? q->cap * 2 : 64;
		struct run *data = malloc(cap * sizeof(*data));

		if (!data)
			return NULL;
		for (size_t i = 0; i < q->count; i++)
			data[i] = q->data[(q->head + i) & (q->cap - 1)];
		free(q->data);
		q->data = data;
		q->cap = cap;
		q->head = 0;
	}
	struct run *r = &q->data[(q->head + q->count++) & (q->cap - 1)];

	memset(r, 0, sizeof(*r));
	return r;
}

void run_pop(struct run_queue *q)
{
	q->head = (q->head + 1) & (q->cap - 1);
	q->count--;
}

void in_release_given(struct reclaim_node *n)
{
	for (size_t i = 0; i < n->given_blocks.count; i++)
		block_unref(n, n->given_blocks.data[i]);
	for (size_t i = 0; i < n->given_copies.count; i++)
		free(n->given_copies.data[i]);
	for (size_t i = 0; i < n->given_bigs.count; i++)
		big_free(n, n->given_bigs.data[i], true);
	n->given_blocks.count = n->given_copies.count = n->given_bigs.count = 0;
}
