/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <endian.h>
#include <string.h>

static inline uint64_t rotl(uint64_t x, int b)
{
	return x << b | x >> (64 - b);
}

static inline void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotl(v[1], 13) ^ v[0];
	v[0] = rotl(v[0], 32);
	v[2] += v[3];
	v[3] = rotl(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotl(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotl(v[1], 17) ^ v[2];
	v[2] = rotl(v[2], 32);
}

uint64_t hash_sip24(const void *bytes, size_t len, uint64_t key0, uint64_t key1)
{
	const uint8_t *p = bytes;
	uint64_t v[4] = {
		key0 ^ UINT64_C(0x736f6d6570736575), key1 ^ UINT64_C(0x646f72616e646f6d),
		key0 ^ UINT64_C(0x6c7967656e657261), key1 ^ UINT64_C(0x7465646279746573),
	};
	uint64_t m;
	size_t left = len;
	for (; left >= 8; left -= 8, p += 8) {
		memcpy(&m, p, 8);
		m = le64toh(m);
		v[3] ^= m;
		sip_round(v);
		sip_round(v);
		v[0] ^= m;
	}
	m = (uint64_t)len << 56;
	for (size_t i = 0; i < left; i++)
		m |= (uint64_t)p[i] << (8 * i);
	v[3] ^= m;
	sip_round(v);
	sip_round(v);
	v[0] ^= m;
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint32_t hash_crc32c(uint32_t crc, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	crc = ~crc;
	for (size_t i = 0; i < len; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (UINT32_C(0x82f63b78) & (0 - (crc & 1)));
	}
	return ~crc;
}
