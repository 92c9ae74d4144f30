/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base64.h"

#include <errno.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

size_t base64url_encode(const void *bytes, size_t len, char *text)
{
	const uint8_t *p = bytes;
	size_t n = 0;

	for (size_t i = 0; i < len; i += 3) {
		uint32_t v = (uint32_t)p[i] << 16;

		if (i + 1 < len)
			v |= (uint32_t)p[i + 1] << 8;
		if (i + 2 < len)
			v |= p[i + 2];
		text[n++] = alphabet[v >> 18 & 63];
		text[n++] = alphabet[v >> 12 & 63];
		if (i + 1 < len)
			text[n++] = alphabet[v >> 6 & 63];
		if (i + 2 < len)
			text[n++] = alphabet[v & 63];
	}
	text[n] = 0;
	return n;
}

int64_t base64url_decode(const char *text, size_t text_len, void *ret, size_t ret_size)
{
	uint8_t *out = ret;
	uint32_t acc = 0;
	unsigned bits = 0;
	size_t n = 0;

	if (text_len % 4 == 1)
		return -EINVAL;
	for (size_t i = 0; i < text_len; i++) {
		const char *at = text[i] ? memchr(alphabet, text[i], 64) : NULL;

		if (!at)
			return -EINVAL;
		acc = acc << 6 | (uint32_t)(at - alphabet);
		bits += 6;
		if (bits < 8)
			continue;
		if (n == ret_size)
			return -ENOBUFS;
		bits -= 8;
		out[n++] = (uint8_t)(acc >> bits);
		acc &= (1u << bits) - 1;
	}
	return acc ? -EINVAL : (int64_t)n; /* one text per value: stray bits are refused */
}
