/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The difference between a chunk and an older one, made small. Training
 * rewrites every tensor at each step, so equal bytes are rare, but a float
 * usually stays near its old self. Pages of 4 KiB that did not change at all are
 * listed in a bitmap; the rest is coded by the best of three ways, told by a
 * sample:
 *
 * FLOAT  32-bit floats: per element a symbol (how many bits the difference
 *        needs; or sign flip, step of the exponent and one bit of mantissa for one that
 *        went far), grouped by the exponent of the old value, which says
 *        much about the size of the change, and Huffman-coded by zstd; what
 *        lies below the symbol is noise and stored as bits. Each 4096 elements may
 *        scale the old values first (decaying optimiser moments).
 * PLANES byte planes of the zigzag difference of 1-, 2-, 4- or 8-byte words, zstd
 * PLAIN  the changed pages themselves, zstd
 *
 * Pure; not thread-safe per coder. Format and test vector: docs/protocol.md.
 */
#ifndef RECLAIM_IMAGE_DELTA_H
#define RECLAIM_IMAGE_DELTA_H

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"

enum delta_mode { DELTA_PLAIN = 0, DELTA_PLANES = 1, DELTA_FLOAT = 2, DELTA_MODE_COUNT };

#define DELTA_PAGE 4096u

struct delta_coder;
/* len_max: the largest chunk. */
int delta_coder_new(size_t len_max, struct delta_coder **ret);
void delta_coder_free(struct delta_coder *d);
DEFINE_CLEANUP(struct delta_coder *, delta_coder_free)

/* No payload is longer than this for a chunk of len bytes. */
size_t delta_bound(size_t len);

/*
 * Codes new against base (which may be shorter or longer; missing bytes count as zero) into out,
 * which has delta_bound(len) bytes. Returns the length. level is zstd's.
 */
int64_t delta_encode(struct delta_coder *d, const uint8_t *new_bytes, size_t len,
		     const uint8_t *base, size_t base_len, int level, uint8_t *out);
/* 0 or -EBADMSG; out gets exactly len bytes. The payload is not trusted. */
int delta_decode(struct delta_coder *d, const uint8_t *payload, size_t payload_len,
		 const uint8_t *base, size_t base_len, uint8_t *out, size_t len);

#endif
