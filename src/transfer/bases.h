/* SPDX-License-Identifier: Apache-2.0 */
/* Which chunk of an older image is the best base for each chunk of a newer one: the chunk that
 * began with the same byte of the same file. Four bytes per chunk. */
#ifndef RECLAIM_TRANSFER_BASES_H
#define RECLAIM_TRANSFER_BASES_H

#include "image/reader.h"

#define BASE_NONE UINT32_MAX

/* ret: malloc'd, one per chunk of image; BASE_NONE where there is none. */
int bases_find(const struct image_reader *image, const struct image_reader *base,
	       const struct seal_keys *keys, uint32_t **ret, struct diag *diag);

#endif
