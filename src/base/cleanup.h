/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scope-bound ownership: locals release what they own when they leave scope,
 * and hand it over with TAKE(). A destructor named here accepts NULL.
 */
#ifndef RECLAIM_BASE_CLEANUP_H
#define RECLAIM_BASE_CLEANUP_H

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(fn) __attribute__((cleanup(fn)))

/* Hands over a pointer: the local becomes NULL, so its cleanup does nothing. */
#define TAKE(p)                     \
	({                          \
		__typeof__(p) *take_p_ = &(p); \
		__typeof__(p) take_v_ = *take_p_; \
		*take_p_ = NULL;    \
		take_v_;            \
	})

/* The same for a file descriptor, whose empty value is -1. */
#define TAKE_FD(fd)                 \
	({                          \
		int *take_p_ = &(fd); \
		int take_v_ = *take_p_; \
		*take_p_ = -1;      \
		take_v_;            \
	})

/* Defines `name_cleanup`, for CLEANUP(), from a destructor that takes a pointer. */
#define DEFINE_CLEANUP(type, fn)                            \
	static inline void fn##_cleanup(type *p)            \
	{                                                   \
		if (*p)                                     \
			fn(*p);                             \
	}

static inline void free_cleanup(void *p)
{
	free(*(void **)p);
}

static inline void fd_cleanup(int *fd)
{
	if (*fd >= 0)
		(void)close(*fd); /* nothing left to report to */
}

DEFINE_CLEANUP(FILE *, fclose)
DEFINE_CLEANUP(DIR *, closedir)
DEFINE_CLEANUP(json_t *, json_decref)

#define CLEANUP_FREE CLEANUP(free_cleanup)
#define CLEANUP_FD CLEANUP(fd_cleanup)
#define CLEANUP_JSON CLEANUP(json_decref_cleanup)
#define CLEANUP_FILE CLEANUP(fclose_cleanup)
#define CLEANUP_DIR CLEANUP(closedir_cleanup)

#endif
