/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest: header, the caller's JSON, the table of chunks. Read in place
 * (mapped from the file), so that an image of any size costs no memory; every
 * field is checked at decode, every row when it is read. Format with test
 * vector: docs/protocol.md. Pure.
 */
#ifndef RECLAIM_IMAGE_MANIFEST_H
#define RECLAIM_IMAGE_MANIFEST_H

#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "image/seal.h"
#include "image/store.h"

#define MANIFEST_HEADER_LEN 256
#define MANIFEST_CHUNK_LEN 48
#define MANIFEST_CHUNKS_MAX (1u << 24)
#define MANIFEST_LEN_MAX \
	((uint64_t)MANIFEST_HEADER_LEN + IMAGE_META_MAX + (uint64_t)MANIFEST_CHUNKS_MAX * MANIFEST_CHUNK_LEN)
#define IMAGE_CHUNK_SIZE_MIN (64u << 10)
#define IMAGE_CHUNK_SIZE_MAX (4u << 20)

struct manifest {
	char job[IMAGE_JOB_MAX + 1];
	uint64_t epoch, seq;
	uint64_t created_wall_ms;
	uint8_t previous[IMAGE_DIGEST_LEN]; /* zeros = none */
	uint32_t chunk_size;                /* largest chunk, a power of two */
	uint32_t chunk_count;               /* data chunks, then chunks of the file table */
	uint32_t data_chunk_count;
	uint32_t meta_len;
	uint64_t bytes, files, table_len;
	uint8_t key_check[SEAL_KEY_CHECK_LEN];
	const char *meta;                   /* not NUL-terminated; into the buffer */
	const uint8_t *chunks;              /* chunk_count rows; into the buffer */
};

struct chunk {
	uint8_t name[SEAL_NAME_LEN];
	uint8_t tag[SEAL_TAG_LEN];
	uint8_t check[SEAL_CHECK_LEN];
	uint32_t len; /* plain and sealed alike: the tag stands here */
};

/* buf must outlive ret. 0 or -EBADMSG with diag; ret is written only on success. */
int manifest_decode(const void *buf, size_t len, struct manifest *ret, struct diag *diag);
/* Row i, which must be below chunk_count (our bug otherwise). */
void manifest_chunk(const struct manifest *m, uint32_t i, struct chunk *ret);
/* Only the length, for passing over many. */
uint32_t manifest_chunk_len(const struct manifest *m, uint32_t i);

/* Header (with m's fields) and one row; the caller writes meta padded to 8 bytes between. */
void manifest_encode_header(const struct manifest *m, uint8_t ret[MANIFEST_HEADER_LEN]);
void manifest_encode_chunk(const struct chunk *c, uint8_t ret[MANIFEST_CHUNK_LEN]);
static inline uint32_t manifest_meta_padded(uint32_t meta_len)
{
	return (meta_len + 7u) & ~7u;
}

void image_info_fill(const struct manifest *m, const uint8_t digest[IMAGE_DIGEST_LEN],
		     struct image_info *ret);

#endif
