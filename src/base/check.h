/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks for our own bugs. Bad input is never one: it is an error return.
 * CHECK() stays on in release builds; DCHECK() is for hot paths.
 */
#ifndef RECLAIM_BASE_CHECK_H
#define RECLAIM_BASE_CHECK_H

#include <stddef.h>
#include <sys/param.h> /* its MIN and MAX come first, or they would come later */

_Noreturn void check_failed(const char *expr, const char *file, int line);

#define CHECK(expr)                                               \
	do {                                                      \
		if (__builtin_expect(!(expr), 0))                 \
			check_failed(#expr, __FILE__, __LINE__);  \
	} while (0)

#ifdef NDEBUG
#define DCHECK(expr) ((void)sizeof(!(expr)))
#else
#define DCHECK(expr) CHECK(expr)
#endif

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#undef MIN
#undef MAX
/* Each argument is evaluated once; names are unique per use, so that they nest. */
#define PICK_NAMED_(a, op, b, n)                \
	({                                      \
		__typeof__(a) pick_a_##n = (a); \
		__typeof__(b) pick_b_##n = (b); \
		pick_a_##n op pick_b_##n ? pick_a_##n : pick_b_##n; \
	})
#define PICK_(a, op, b, n) PICK_NAMED_(a, op, b, n)
#define MIN(a, b) PICK_(a, <, b, __COUNTER__)
#define MAX(a, b) PICK_(a, >, b, __COUNTER__)
#define CONTAINER_OF(ptr, type, member) \
	((type *)((char *)(ptr)-offsetof(type, member)))

#endif
