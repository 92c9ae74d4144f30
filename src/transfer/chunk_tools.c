/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/chunk_tools.h"

#include <errno.h>
#include <stdlib.h>

#include "image/pack.h"

static int buffer(uint8_t **buf, uint32_t size)
{
	if (!*buf)
		*buf = aligned_alloc(PACK_ALIGN, size);
	return *buf ? 0 : -ENOMEM;
}

int chunk_tools_grow(struct chunk_tools *t, const struct seal_keys *keys, uint32_t chunk_size,
		     enum transfer_codec codec, bool opens)
{
	int r = buffer(&t->chunk, chunk_size);

	if (codec == TRANSFER_SEALED)
		return r;
	if (r == 0 && !t->sealer)
		r = sealer_new(keys, &t->sealer);
	if (r == 0 && codec == TRANSFER_DELTA)
		r = buffer(&t->base, chunk_size);
	if (r == 0 && codec == TRANSFER_DELTA && !t->coder)
		r = delta_coder_new(chunk_size, &t->coder);
	if (r == 0 && codec == TRANSFER_ZSTD && opens && !t->dctx && !(t->dctx = ZSTD_createDCtx()))
		r = -ENOMEM;
	if (r == 0 && codec == TRANSFER_ZSTD && !opens && !t->cctx && !(t->cctx = ZSTD_createCCtx()))
		r = -ENOMEM;
	return r;
}

void chunk_tools_done(struct chunk_tools *t)
{
	sealer_free(t->sealer);
	delta_coder_free(t->coder);
	ZSTD_freeCCtx(t->cctx);
	ZSTD_freeDCtx(t->dctx);
	free(t->chunk);
	free(t->base);
}
