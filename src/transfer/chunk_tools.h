/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a data link needs to make or open the forms of a chunk that are not as
 * stored. Most transfers never do, so it is made when the first one is.
 */
#ifndef RECLAIM_TRANSFER_CHUNK_TOOLS_H
#define RECLAIM_TRANSFER_CHUNK_TOOLS_H

#include <stdint.h>
#include <zstd.h>

#include "image/delta.h"
#include "image/seal.h"
#include "wire/transfer_frame.h"

/* All zero is empty and fit for chunk_tools_done(). Buffers hold a chunk and are aligned for the
 * store (PACK_ALIGN). */
struct chunk_tools {
	struct sealer *sealer;
	struct delta_coder *coder;
	ZSTD_CCtx *cctx;
	ZSTD_DCtx *dctx;
	uint8_t *chunk, *base;
};

/* Makes what form `codec` needs to be made (or, opens, to be opened), chunk included. */
int chunk_tools_grow(struct chunk_tools *t, const struct seal_keys *keys, uint32_t chunk_size,
		     enum transfer_codec codec, bool opens);
void chunk_tools_done(struct chunk_tools *t);

#endif
