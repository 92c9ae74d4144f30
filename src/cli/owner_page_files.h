/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's page, built into the program (web/owner/). */
#ifndef RECLAIM_CLI_OWNER_PAGE_FILES_H
#define RECLAIM_CLI_OWNER_PAGE_FILES_H

#include <stddef.h>

struct owner_page_file {
	const char *path, *type;
	const void *bytes;
	size_t len;
};
extern const struct owner_page_file owner_page_files[]; /* ends with a NULL path */

#endif
