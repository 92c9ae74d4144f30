/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload: u8 mode, u8 word, u16 zero, u32 changed pages; a bitmap of the
 * chunk's pages; then by mode
 *
 *     PLAIN   u32 n, n bytes of zstd: the changed pages, one after another
 *     PLANES  u32 n, n bytes of zstd: planes of the words, then the odd bytes' differences
 *     FLOAT   u32 n, n bytes of zstd: symbols, grouped, then the odd bytes' differences;
 *             u32 s, s bytes of zstd: scales (u8 0, or u8 1 and one float per block)
 *             u32 b, b bytes of noise
 */
#include "image/delta.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <zstd.h>

#include "base/le.h"
#include "image/delta_float.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are coded in memory order");

#define SYMBOL_FLUSH_MIN 2048u /* a context with fewer symbols shares its block with the next */

struct delta_coder {
	size_t len_max;
	ZSTD_CCtx *cctx;
	ZSTD_DCtx *dctx;
	uint8_t *cur, *old; /* the changed pages, gathered */
	uint8_t *work;      /* planes or symbols */
	uint8_t *pred;
	float *scales;
};

int delta_coder_new(size_t len_max, struct delta_coder **ret)
{
	CLEANUP(delta_coder_free_cleanup) struct delta_coder *d = calloc(1, sizeof(*d));
	size_t room = len_max + 64;

	if (!d)
		return -ENOMEM;
	d->len_max = len_max;
	d->cctx = ZSTD_createCCtx();
	d->dctx = ZSTD_createDCtx();
	d->cur = malloc(room);
	d->old = malloc(room);
	d->work = malloc(room);
	d->pred = malloc(room);
	d->scales = malloc(room / 4 / DELTA_FLOAT_BLOCK * sizeof(float) + 64);
	if (!d->cctx || !d->dctx || !d->cur || !d->old || !d->work || !d->pred || !d->scales)
		return -ENOMEM;
	*ret = TAKE(d);
	return 0;
}

void delta_coder_free(struct delta_coder *d)
{
	if (!d)
		return;
	ZSTD_freeCCtx(d->cctx);
	ZSTD_freeDCtx(d->dctx);
	free(d->cur);
	free(d->old);
	free(d->work);
	free(d->pred);
	free(d->scales);
	free(d);
}

size_t delta_bound(size_t len)
{
	return len + len / 8 + 1024 + ZSTD_compressBound(len);
}

/* ---- words ---- */

static void planes_split(const uint8_t *a, const uint8_t *b, size_t n, unsigned word, uint8_t *out)
{
	size_t count = n / word;

	switch (word) {
	case 2:
		for (size_t i = 0; i < count; i++) {
			uint16_t x, y, z;

			memcpy(&x, a + 2 * i, 2);
			memcpy(&y, b + 2 * i, 2);
			x = (uint16_t)(x - y);
			z = (uint16_t)((x << 1) ^ (uint16_t)(0u - (x >> 15)));
			out[i] = (uint8_t)z;
			out[count + i] = (uint8_t)(z >> 8);
		}
		break;
	case 4:
		for (size_t i = 0; i < count; i++) {
			uint32_t x, y, z;

			memcpy(&x, a + 4 * i, 4);
			memcpy(&y, b + 4 * i, 4);
			x -= y;
			z = (x << 1) ^ (0u - (x >> 31));
			for (size_t k = 0; k < 4; k++)
				out[k * count + i] = (uint8_t)(z >> (8 * k));
		}
		break;
	case 8:
		for (size_t i = 0; i < count; i++) {
			uint64_t x, y, z;

			memcpy(&x, a + 8 * i, 8);
			memcpy(&y, b + 8 * i, 8);
			x -= y;
			z = (x << 1) ^ (UINT64_C(0) - (x >> 63));
			for (size_t k = 0; k < 8; k++)
				out[k * count + i] = (uint8_t)(z >> (8 * k));
		}
		break;
	default:
		for (size_t i = 0; i < n; i++)
			out[i] = (uint8_t)(a[i] - b[i]);
		return;
	}
	for (size_t i = count * word; i < n; i++)
		out[i] = (uint8_t)(a[i] - b[i]);
}

static void planes_join(const uint8_t *in, const uint8_t *b, size_t n, unsigned word, uint8_t *out)
{
	size_t count = word > 1 ? n / word : 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t z = 0, y = 0;

		for (size_t k = 0; k < word; k++)
			z |= (uint64_t)in[k * count + i] << (8 * k);
		memcpy(&y, b + i * word, word);
		y += (z >> 1) ^ (UINT64_C(0) - (z & 1));
		memcpy(out + i * word, &y, word);
	}
	for (size_t i = count * word; i < n; i++)
		out[i] = (uint8_t)(in[i] + b[i]);
}

/* ---- zstd ---- */

/* u32 length and the bytes; 0 on failure, which with room for the bound is a lack of memory. */
static size_t squeeze(struct delta_coder *d, const uint8_t *in, size_t len, int level, uint8_t *out)
{
	size_t n = ZSTD_compressCCtx(d->cctx, out + 4, ZSTD_compressBound(len), in, len, level);

	if (ZSTD_isError(n))
		return 0;
	le32_put(out, (uint32_t)n);
	return 4 + n;
}

/* Symbols: one frame, a new block (so a new Huffman table, if it pays) at each context of size. */
static size_t squeeze_groups(struct delta_coder *d, const uint8_t *in, size_t len,
			     const uint32_t start[257], int level, uint8_t *out, size_t room)
{
	ZSTD_outBuffer o = { out + 4, room - 4, 0 };
	ZSTD_inBuffer in_buf = { in, 0, 0 };
	size_t done = 0;

	ZSTD_CCtx_reset(d->cctx, ZSTD_reset_session_and_parameters);
	ZSTD_CCtx_setParameter(d->cctx, ZSTD_c_compressionLevel, level);
	ZSTD_CCtx_setPledgedSrcSize(d->cctx, len);
	for (size_t c = 0; c < 256; c++) {
		if (start[c + 1] - done < SYMBOL_FLUSH_MIN || len - start[c + 1] < SYMBOL_FLUSH_MIN)
			continue;
		in_buf.size = done = start[c + 1];
		if (ZSTD_compressStream2(d->cctx, &o, &in_buf, ZSTD_e_flush) != 0)
			return 0;
	}
	in_buf.size = len;
	if (ZSTD_compressStream2(d->cctx, &o, &in_buf, ZSTD_e_end) != 0)
		return 0;
	ZSTD_CCtx_reset(d->cctx, ZSTD_reset_session_and_parameters);
	le32_put(out, (uint32_t)o.pos);
	return 4 + o.pos;
}

/* Takes "u32 n, n bytes" at *at and unpacks to exactly len bytes. */
static int expand(struct delta_coder *d, const uint8_t *in, size_t in_len, size_t *at, uint8_t *out,
		  size_t len)
{
	size_t n;

	if (in_len - *at < 4)
		return -EBADMSG;
	n = le32_get(in + *at);
	*at += 4;
	if (n > in_len - *at)
		return -EBADMSG;
	if (ZSTD_decompressDCtx(d->dctx, out, len, in + *at, n) != len)
		return -EBADMSG;
	*at += n;
	return 0;
}

/* ---- choice ---- */

/* zstd's size of a sample of some kilobytes, as a share of it, in 1/1000. */
static unsigned sample_ratio(struct delta_coder *d, const uint8_t *in, size_t len, uint8_t *scratch)
{
	size_t n = len ? ZSTD_compressCCtx(d->cctx, scratch, ZSTD_compressBound(len), in, len, 1) : 0;

	return len == 0 ? 1000 : ZSTD_isError(n) ? 1000 : (unsigned)(n * 1000 / len);
}

#define SAMPLE_PIECE 8192u

/* Gathers up to four pieces spread over the changed pages. */
static size_t sample_take(const uint8_t *in, size_t n, uint8_t *out)
{
	size_t pieces = n / SAMPLE_PIECE < 4 ? n / SAMPLE_PIECE : 4;

	if (pieces < 2) {
		size_t m = n < 2 * SAMPLE_PIECE ? n : 2 * SAMPLE_PIECE;

		memcpy(out, in, m);
		return m;
	}
	for (size_t i = 0; i < pieces; i++)
		memcpy(out + i * SAMPLE_PIECE,
		       in + i * (n - SAMPLE_PIECE) / (pieces - 1) / 8 * 8, SAMPLE_PIECE);
	return pieces * SAMPLE_PIECE;
}

static void choose(struct delta_coder *d, size_t n, uint8_t *scratch, enum delta_mode *ret_mode,
		   unsigned *ret_word)
{
	uint8_t a[4 * SAMPLE_PIECE], b[4 * SAMPLE_PIECE];
	size_t m = sample_take(d->cur, n, a);
	unsigned best = sample_ratio(d, a, m, scratch), r;

	(void)sample_take(d->old, n, b);
	*ret_mode = DELTA_PLAIN;
	*ret_word = 1;
	for (unsigned word = 1; word <= 8; word *= 2) {
		planes_split(a, b, m, word, d->work);
		r = sample_ratio(d, d->work, m, scratch);
		if (r + 5 < best) {
			best = r;
			*ret_mode = DELTA_PLANES;
			*ret_word = word;
		}
	}
	if (m >= 64) {
		static _Thread_local float scales[4 * SAMPLE_PIECE / 4 / DELTA_FLOAT_BLOCK + 1];
		uint32_t start[257];
		size_t bits, words = m / 4, syms;

		delta_float_predict((const uint32_t *)(const void *)a,
				    (const uint32_t *)(const void *)b, words, scales,
				    (uint32_t *)(void *)d->pred);
		bits = delta_float_encode((const uint32_t *)(const void *)a,
					  (const uint32_t *)(const void *)d->pred, words, d->work,
					  scratch);
		delta_float_groups((const uint32_t *)(const void *)d->pred, words, start);
		syms = squeeze_groups(d, d->work, words, start, 1, scratch, delta_bound(m));
		r = (unsigned)((bits + syms) * 1000 / m);
		if (syms && r < best + 10) { /* long stretches shrink better than samples */
			*ret_mode = DELTA_FLOAT;
			*ret_word = 4;
		}
	}
}

/* ---- encode ---- */

static size_t pages_gather(struct delta_coder *d, const uint8_t *cur, size_t len,
			   const uint8_t *base, size_t base_len, uint8_t *bitmap, uint32_t *ret_pages)
{
	size_t n = 0;
	uint32_t pages = 0;

	for (size_t at = 0, i = 0; at < len; at += DELTA_PAGE, i++) {
		size_t m = len - at < DELTA_PAGE ? len - at : DELTA_PAGE;
		size_t b = at >= base_len ? 0 : base_len - at < m ? base_len - at : m;

		if (b == m && memcmp(cur + at, base + at, m) == 0)
			continue;
		bitmap[i / 8] |= (uint8_t)(1 << i % 8);
		memcpy(d->cur + n, cur + at, m);
		if (b)
			memcpy(d->old + n, base + at, b);
		memset(d->old + n + b, 0, m - b);
		n += m;
		pages++;
	}
	*ret_pages = pages;
	return n;
}

static size_t encode_float(struct delta_coder *d, size_t n, int level, uint8_t *out, size_t room)
{
	const uint32_t *cur = (const uint32_t *)(const void *)d->cur;
	const uint32_t *old = (const uint32_t *)(const void *)d->old;
	uint32_t *pred = (uint32_t *)(void *)d->pred, start[257];
	size_t words = n / 4, blocks = (words + DELTA_FLOAT_BLOCK - 1) / DELTA_FLOAT_BLOCK;
	size_t at, k, bits;
	bool any = false;
	uint8_t *bits_at;

	delta_float_predict(cur, old, words, d->scales, pred);
	delta_float_groups(pred, words, start);
	/* Noise goes to the far end of the room first: its length is known last. */
	bits_at = out + room - (n + 16);
	bits = delta_float_encode(cur, pred, words, d->work, bits_at);
	for (size_t i = words * 4; i < n; i++)
		d->work[words + i - words * 4] = (uint8_t)(d->cur[i] - d->old[i]);
	start[256] = (uint32_t)(words + n % 4);
	/* Level 1 whatever is asked: matches only get in the way of the Huffman tables. */
	at = squeeze_groups(d, d->work, words + n % 4, start, 1, out, (size_t)(bits_at - out));
	if (at == 0)
		return 0;
	for (size_t i = 0; i < blocks; i++)
		any |= d->scales[i] != 1.0f;
	d->work[0] = any;
	if (any)
		memcpy(d->work + 1, d->scales, blocks * 4);
	k = squeeze(d, d->work, any ? 1 + blocks * 4 : 1, level, out + at);
	if (k == 0)
		return 0;
	at += k;
	le32_put(out + at, (uint32_t)bits);
	memmove(out + at + 4, bits_at, bits);
	return at + 4 + bits;
}

int64_t delta_encode(struct delta_coder *d, const uint8_t *new_bytes, size_t len,
		     const uint8_t *base, size_t base_len, int level, uint8_t *out)
{
	size_t map_len = ((len + DELTA_PAGE - 1) / DELTA_PAGE + 7) / 8, at = 8 + map_len, n, k;
	enum delta_mode mode;
	unsigned word;
	uint32_t pages;

	if (len > d->len_max)
		return -EINVAL;
	memset(out, 0, at);
	n = pages_gather(d, new_bytes, len, base, base_len, out + 8, &pages);
	choose(d, n, out + at, &mode, &word);
	if (mode == DELTA_FLOAT) {
		k = encode_float(d, n, level, out + at, delta_bound(len) - at);
	} else if (mode == DELTA_PLANES) {
		planes_split(d->cur, d->old, n, word, d->work);
		k = squeeze(d, d->work, n, level, out + at);
	} else {
		k = squeeze(d, d->cur, n, level, out + at);
	}
	if (k == 0)
		return -ENOMEM;
	out[0] = (uint8_t)mode;
	out[1] = (uint8_t)word;
	le32_put(out + 4, pages);
	return (int64_t)(at + k);
}

/* ---- decode ---- */

/* Gathers the base under the changed pages; the number of bytes, or -EBADMSG. */
static int64_t base_gather(struct delta_coder *d, const uint8_t *bitmap, uint32_t pages,
			   const uint8_t *base, size_t base_len, size_t len)
{
	size_t n = 0;
	uint32_t count = 0;

	for (size_t at = 0, i = 0; at < len; at += DELTA_PAGE, i++) {
		size_t m = len - at < DELTA_PAGE ? len - at : DELTA_PAGE;
		size_t b = at >= base_len ? 0 : base_len - at < m ? base_len - at : m;

		if (!(bitmap[i / 8] >> i % 8 & 1)) {
			if (b < m)
				return -EBADMSG; /* "unchanged" where the base has nothing */
			continue;
		}
		if (b)
			memcpy(d->old + n, base + at, b);
		memset(d->old + n + b, 0, m - b);
		n += m;
		count++;
	}
	return count == pages ? (int64_t)n : -EBADMSG;
}

static int decode_float(struct delta_coder *d, const uint8_t *in, size_t in_len, size_t at, size_t n)
{
	size_t words = n / 4, blocks = (words + DELTA_FLOAT_BLOCK - 1) / DELTA_FLOAT_BLOCK, bits, m;
	uint8_t *packed = (uint8_t *)d->scales;
	int r = expand(d, in, in_len, &at, d->work, words + n % 4);

	if (r < 0)
		return r;
	/* Scales: one byte, and if it is 1 a float per block. */
	if (in_len - at < 4 || le32_get(in + at) > in_len - at - 4)
		return -EBADMSG;
	m = le32_get(in + at);
	{
		uint8_t buf[1 + (8u << 20) / 4 / DELTA_FLOAT_BLOCK * 4];
		size_t got = ZSTD_decompressDCtx(d->dctx, buf, sizeof(buf), in + at + 4, m);

		if (ZSTD_isError(got) || !(got == 1 || got == 1 + blocks * 4) || buf[0] != (got > 1))
			return -EBADMSG;
		if (got > 1)
			memcpy(packed, buf + 1, blocks * 4);
		else
			for (size_t i = 0; i < blocks; i++)
				d->scales[i] = 1.0f;
	}
	at += 4 + m;
	if (in_len - at < 4)
		return -EBADMSG;
	bits = le32_get(in + at);
	at += 4;
	if (bits != in_len - at)
		return -EBADMSG;
	delta_float_apply((const uint32_t *)(const void *)d->old, words, d->scales,
			  (uint32_t *)(void *)d->pred);
	if (delta_float_decode(d->work, in + at, bits, (const uint32_t *)(const void *)d->pred, words,
			       (uint32_t *)(void *)d->cur) < 0)
		return -EBADMSG;
	for (size_t i = words * 4; i < n; i++)
		d->cur[i] = (uint8_t)(d->work[words + i - words * 4] + d->old[i]);
	return 0;
}

int delta_decode(struct delta_coder *d, const uint8_t *payload, size_t payload_len,
		 const uint8_t *base, size_t base_len, uint8_t *out, size_t len)
{
	size_t map_len = ((len + DELTA_PAGE - 1) / DELTA_PAGE + 7) / 8, at = 8 + map_len, from = 0;
	unsigned word;
	int64_t n;
	int r;

	if (len > d->len_max || payload_len < at || payload[0] >= DELTA_MODE_COUNT ||
	    le16_get(payload + 2))
		return -EBADMSG;
	word = payload[1];
	if (word != 1 && word != 2 && word != 4 && word != 8)
		return -EBADMSG;
	n = base_gather(d, payload + 8, le32_get(payload + 4), base, base_len, len);
	if (n < 0)
		return -EBADMSG;
	switch (payload[0]) {
	case DELTA_FLOAT:
		r = word == 4 ? decode_float(d, payload, payload_len, at, (size_t)n) : -EBADMSG;
		break;
	case DELTA_PLANES:
		r = expand(d, payload, payload_len, &at, d->work, (size_t)n);
		if (r == 0)
			planes_join(d->work, d->old, (size_t)n, word, d->cur);
		break;
	default: r = expand(d, payload, payload_len, &at, d->cur, (size_t)n);
	}
	if (r < 0)
		return r;
	for (size_t pos = 0, i = 0; pos < len; pos += DELTA_PAGE, i++) {
		size_t m = len - pos < DELTA_PAGE ? len - pos : DELTA_PAGE;

		if (payload[8 + i / 8] >> i % 8 & 1) {
			memcpy(out + pos, d->cur + from, m);
			from += m;
		} else {
			memcpy(out + pos, base + pos, m);
		}
	}
	return 0;
}
