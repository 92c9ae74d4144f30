/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symbols of one element, given what was predicted for it:
 *
 *     0..45     near: zigzag difference z of the magnitudes below 2^23; the bit
 *               length and, from two bits on, the bit below the leading one. The
 *               remaining bits follow as noise.
 *     46..241   far, or the sign flipped: exponent step -24..24, flip, top bit of
 *               the mantissa; the other 22 mantissa bits follow.
 *     242       anything else: 32 bits follow
 *
 * A symbol's context is the predicted exponent. Contexts are not coded: both
 * ends sort the symbols by it (a counting sort over the prediction), and zstd's
 * Huffman tables, fresh per block, adapt to each stretch.
 */
#include "image/delta_float.h"

#include <math.h>
#include <string.h>

#define SYM_FAR 46u
#define SYM_RAW 242u
#define NEAR_LIMIT (1 << 22)

void delta_float_groups(const uint32_t *pred, size_t n, uint32_t ret_start[257])
{
	uint32_t count[4][256] = { { 0 } }, at = 0;
	size_t i = 0;

	for (; i + 4 <= n; i += 4)
		for (size_t k = 0; k < 4; k++)
			count[k][pred[i + k] >> 23 & 255]++;
	for (; i < n; i++)
		count[0][pred[i] >> 23 & 255]++;
	for (size_t c = 0; c < 256; c++) {
		ret_start[c] = at;
		at += count[0][c] + count[1][c] + count[2][c] + count[3][c];
	}
	ret_start[256] = at;
}

/* Exponents 0 and 255 (zero, denormal, infinite, NaN) are left alone: there multiplication is not
 * the same everywhere. */
static inline uint32_t scaled(uint32_t base, float scale)
{
	uint32_t e = base >> 23 & 255;
	float f;

	if (e == 0 || e == 255)
		return base;
	memcpy(&f, &base, 4);
	f *= scale;
	memcpy(&base, &f, 4);
	return base;
}

static inline uint32_t cost(uint32_t a, uint32_t b)
{
	int32_t d = (int32_t)((a & 0x7fffffff) - (b & 0x7fffffff));
	uint32_t z = ((uint32_t)d << 1) ^ (uint32_t)(d >> 31);

	return (a ^ b) >> 31 || z >= 2 * NEAR_LIMIT ? 26 : z == 0 ? 1 : 35 - (uint32_t)__builtin_clz(z);
}

/* The median ratio of a sample, if it saves bits on that sample. */
static float block_scale(const uint32_t *a, const uint32_t *b, size_t n)
{
	float ratios[64], scale;
	size_t count = 0, step = n / 64 ? n / 64 : 1;
	uint32_t with = 0, without = 0;

	for (size_t i = 0; i < n && count < 64; i += step) {
		uint32_t ea = a[i] >> 23 & 255, eb = b[i] >> 23 & 255;
		float x, y;

		if (ea < 8 || ea == 255 || eb < 8 || eb == 255 || (a[i] ^ b[i]) >> 31)
			continue;
		memcpy(&x, &b[i], 4);
		memcpy(&y, &a[i], 4);
		y /= x;
		if (!(y > 0.125f && y < 8.0f))
			continue;
		/* Insertion: the sample is small. */
		size_t k = count++;
		for (; k > 0 && ratios[k - 1] > y; k--)
			ratios[k] = ratios[k - 1];
		ratios[k] = y;
	}
	if (count < 16)
		return 1.0f;
	scale = ratios[count / 2];
	for (size_t i = 0; i < n; i += step) {
		without += cost(a[i], b[i]);
		with += cost(a[i], scaled(b[i], scale));
	}
	return with < without ? scale : 1.0f;
}

void delta_float_apply(const uint32_t *base, size_t n, const float *scales, uint32_t *pred)
{
	for (size_t i = 0; i < n; i += DELTA_FLOAT_BLOCK) {
		size_t m = n - i < DELTA_FLOAT_BLOCK ? n - i : DELTA_FLOAT_BLOCK;
		float scale = scales[i / DELTA_FLOAT_BLOCK];

		if (scale == 1.0f)
			memcpy(pred + i, base + i, m * 4);
		else
			for (size_t k = 0; k < m; k++)
				pred[i + k] = scaled(base[i + k], scale);
	}
}

void delta_float_predict(const uint32_t *new_words, const uint32_t *base, size_t n, float *scales,
			 uint32_t *pred)
{
	for (size_t i = 0; i < n; i += DELTA_FLOAT_BLOCK)
		scales[i / DELTA_FLOAT_BLOCK] = block_scale(
			new_words + i, base + i,
			n - i < DELTA_FLOAT_BLOCK ? n - i : DELTA_FLOAT_BLOCK);
	delta_float_apply(base, n, scales, pred);
}

size_t delta_float_estimate(const uint32_t *new_words, const uint32_t *base, size_t n)
{
	uint64_t bits = 0;

	for (size_t i = 0; i < n; i++)
		bits += cost(new_words[i], base[i]);
	return (size_t)(bits / 8);
}

size_t delta_float_encode(const uint32_t *new_words, const uint32_t *pred, size_t n,
			  uint8_t *symbols, uint8_t *bits)
{
	uint32_t at[257];
	uint64_t acc = 0;
	unsigned fill = 0;
	uint8_t *out = bits;

	delta_float_groups(pred, n, at);
	for (size_t i = 0; i < n; i++) {
		uint32_t a = new_words[i], b = pred[i], ctx = b >> 23 & 255, sym, noise;
		unsigned noise_len;
		int32_t d = (int32_t)((a & 0x7fffffff) - (b & 0x7fffffff));

		if (!((a ^ b) >> 31) && d < NEAR_LIMIT && d > -NEAR_LIMIT) {
			uint32_t z = ((uint32_t)d << 1) ^ (uint32_t)(d >> 31);
			unsigned len = z ? 32 - (unsigned)__builtin_clz(z) : 0;

			if (len < 2) {
				sym = len;
				noise = noise_len = 0;
			} else {
				noise_len = len - 2;
				sym = 2 + (len - 2) * 2 + (z >> noise_len & 1);
				noise = z & ((1u << noise_len) - 1);
			}
		} else {
			int step = (int)(a >> 23 & 255) - (int)ctx;

			if (step < -24 || step > 24) {
				sym = SYM_RAW;
				noise = a;
				noise_len = 32;
			} else {
				sym = SYM_FAR + (uint32_t)(step + 24) * 4 + ((a ^ b) >> 31) * 2 +
				      (a >> 22 & 1);
				noise = a & 0x3fffff;
				noise_len = 22;
			}
		}
		symbols[at[ctx]++] = (uint8_t)sym;
		acc |= (uint64_t)noise << fill;
		fill += noise_len;
		if (fill >= 32) {
			uint32_t word = (uint32_t)acc;

			memcpy(out, &word, 4); /* little-endian, see the assertion in delta.c */
			out += 4;
			acc >>= 32;
			fill -= 32;
		}
	}
	for (; fill; fill = fill > 8 ? fill - 8 : 0) {
		*out++ = (uint8_t)acc;
		acc >>= 8;
	}
	return (size_t)(out - bits);
}

int delta_float_decode(const uint8_t *symbols, const uint8_t *bits, size_t bits_len,
		       const uint32_t *pred, size_t n, uint32_t *out)
{
	uint32_t at[257];
	uint64_t acc = 0;
	unsigned fill = 0;
	size_t pos = 0;

	delta_float_groups(pred, n, at);
	for (size_t i = 0; i < n; i++) {
		uint32_t b = pred[i], ctx = b >> 23 & 255, sym = symbols[at[ctx]++], noise;
		unsigned noise_len = sym < 2 ? 0 : sym < SYM_FAR ? (sym - 2) / 2 : sym < SYM_RAW ? 22 : 32;

		if (sym > SYM_RAW)
			return -1;
		if (fill < noise_len) {
			uint32_t word = 0;
			size_t m = bits_len - pos < 4 ? bits_len - pos : 4;

			memcpy(&word, bits + pos, m);
			pos += m;
			acc |= (uint64_t)word << fill;
			fill += (unsigned)m * 8;
			if (fill < noise_len)
				return -1;
		}
		noise = (uint32_t)(acc & ((UINT64_C(1) << noise_len) - 1));
		acc >>= noise_len;
		fill -= noise_len;
		if (sym < SYM_FAR) {
			uint32_t z = sym < 2 ? sym : (2 | ((sym - 2) & 1)) << noise_len | noise;
			uint32_t d = (z >> 1) ^ (0u - (z & 1));

			out[i] = (b & 0x80000000) | (((b & 0x7fffffff) + d) & 0x7fffffff);
		} else if (sym < SYM_RAW) {
			uint32_t k = sym - SYM_FAR;
			int e = (int)ctx + (int)(k / 4) - 24;

			if (e < 0 || e > 255)
				return -1;
			out[i] = ((b ^ (k & 2) << 30) & 0x80000000) | (uint32_t)e << 23 | (k & 1) << 22 |
				 noise;
		} else {
			out[i] = noise;
		}
	}
	return pos == bits_len && fill < 8 ? 0 : -1;
}
