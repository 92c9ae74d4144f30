/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of ours that lie near our own, installed or in a build tree. */
#ifndef RECLAIM_BASE_PROGRAM_H
#define RECLAIM_BASE_PROGRAM_H

#include <stddef.h>

/* Folder of the running executable, without a slash at its end. */
int program_dir(char *ret, size_t ret_size);
/*
 * The first "FROM/PLACE/NAME" that may be executed. places: folders relative to `from`, "" is `from`
 * itself; from NULL = our own folder. 0; -ENOENT: in none of them; -errno. A place whose path
 * would be too long is passed over.
 */
int program_find(const char *from, const char *const *places, size_t places_count, const char *name,
		 char *ret, size_t ret_size);

#endif
