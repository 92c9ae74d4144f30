/* SPDX-License-Identifier: Apache-2.0 */
/* The volunteer page's files, built into the program (web/volunteer/). */
#ifndef RECLAIM_VOLUNTEER_PAGE_FILES_H
#define RECLAIM_VOLUNTEER_PAGE_FILES_H

#include "volunteer/door.h"

extern const struct door_file page_files[]; /* ends with a NULL path */
extern const size_t page_files_count;

#endif
