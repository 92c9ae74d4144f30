/* SPDX-License-Identifier: Apache-2.0 */
/* The float part of delta.h: words of 32 bits to symbols and noise bits, and back. */
#ifndef RECLAIM_IMAGE_DELTA_FLOAT_H
#define RECLAIM_IMAGE_DELTA_FLOAT_H

#include <stddef.h>
#include <stdint.h>

#define DELTA_FLOAT_BLOCK 4096u /* elements that share a scale */

/* Start of each context's symbols in the grouped stream, for n elements; [256] = n. */
void delta_float_groups(const uint32_t *pred, size_t n, uint32_t ret_start[257]);

/* Fills scales (one per block) and pred[i] = base[i] scaled; encoder's choice. */
void delta_float_predict(const uint32_t *new_words, const uint32_t *base, size_t n, float *scales,
			 uint32_t *pred);
/* The same from given scales. */
void delta_float_apply(const uint32_t *base, size_t n, const float *scales, uint32_t *pred);

/* Room for bits: 4 bytes per element + 8. Returns the bytes of bits. */
size_t delta_float_encode(const uint32_t *new_words, const uint32_t *pred, size_t n,
			  uint8_t *symbols, uint8_t *bits);
/* 0 or -1 when symbols or bits make no sense. */
int delta_float_decode(const uint8_t *symbols, const uint8_t *bits, size_t bits_len,
		       const uint32_t *pred, size_t n, uint32_t *out);
/* Estimated bytes of the above, without doing it. */
size_t delta_float_estimate(const uint32_t *new_words, const uint32_t *base, size_t n);

#endif
