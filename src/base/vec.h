/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing arrays of any element type:
 *
 *     struct VEC(struct peer) peers = VEC_INIT;
 *     if (VEC_PUSH(&peers, peer) < 0) ...
 *     VEC_EACH(&peers, p) use(p);
 *     VEC_DONE(&peers);
 */
#ifndef RECLAIM_BASE_VEC_H
#define RECLAIM_BASE_VEC_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define VEC(type)          \
	{                  \
		type *data; \
		size_t count; \
		size_t cap; \
	}
#define VEC_INIT { NULL, 0, 0 }

/* 0 or -ENOMEM; on failure nothing changes. */
int vec_reserve(void **data, size_t *cap, size_t count_min, size_t item_size);

#define VEC_RESERVE(v, n) \
	vec_reserve((void **)&(v)->data, &(v)->cap, (n), sizeof(*(v)->data))
#define VEC_PUSH(v, item)                                            \
	({                                                           \
		int vec_r_ = VEC_RESERVE((v), (v)->count + 1);       \
		if (vec_r_ == 0)                                     \
			(v)->data[(v)->count++] = (item);            \
		vec_r_;                                              \
	})
/* Removes item i, keeping the order of the others. */
#define VEC_REMOVE(v, i)                                                       \
	do {                                                                   \
		size_t vec_i_ = (i);                                           \
		memmove(&(v)->data[vec_i_], &(v)->data[vec_i_ + 1],            \
			((v)->count - vec_i_ - 1) * sizeof(*(v)->data));       \
		(v)->count--;                                                  \
	} while (0)
/* Removes item i by putting the last one in its place. */
#define VEC_SWAP_REMOVE(v, i) ((v)->data[(i)] = (v)->data[--(v)->count])
#define VEC_EACH(v, p) \
	for (__typeof__((v)->data[0]) *p = (v)->data; p && p < (v)->data + (v)->count; p++)
#define VEC_DONE(v)                      \
	do {                             \
		free((v)->data);         \
		(v)->data = NULL;        \
		(v)->count = (v)->cap = 0; \
	} while (0)

#endif
