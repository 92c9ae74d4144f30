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
#define MIN(a, b)                           \
	({                                  \
		__typeof__(a) min_a_ = (a); \
		__typeof__(b) min_b_ = (b); \
		min_a_ < min_b_ ? min_a_ : min_b_; \
	})
#define MAX(a, b)                           \
	({                                  \
		__typeof__(a) max_a_ = (a); \
		__typeof__(b) max_b_ = (b); \
		max_a_ > max_b_ ? max_a_ : max_b_; \
	})
#define CONTAINER_OF(ptr, type, member) \
	((type *)((char *)(ptr)-offsetof(type, member)))

#endif
