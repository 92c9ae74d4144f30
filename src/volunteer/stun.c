/* SPDX-License-Identifier: Apache-2.0 */
/* See stun.h. */
#include "volunteer/stun.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#define COOKIE 0x2112A442u

enum {
	ATTR_USERNAME = 0x0006,
	ATTR_INTEGRITY = 0x0008,
	ATTR_ERROR = 0x0009,
	ATTR_XOR_MAPPED = 0x0020,
	ATTR_PRIORITY = 0x0024,
	ATTR_USE_CANDIDATE = 0x0025,
	ATTR_FINGERPRINT = 0x8028,
	ATTR_CONTROLLED = 0x8029,
	ATTR_CONTROLLING = 0x802A,
};

static void put16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v);
}

static uint32_t get16(const uint8_t *p)
{
	return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t get32(const uint8_t *p)
{
	return get16(p) << 16 | get16(p + 2);
}

static uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

/* CRC-32 of ISO 3309, as FINGERPRINT wants it, four bits at a time. */
static uint32_t crc32(const uint8_t *p, size_t len)
{
	static const uint32_t table[16] = {
		0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
		0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
		0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c };
	uint32_t c = ~0u;
	for (size_t i = 0; i < len; i++) {
		c = table[(c ^ p[i]) & 15] ^ c >> 4;
		c = table[(c ^ p[i] >> 4) & 15] ^ c >> 4;
	}
	return ~c;
}

bool stun_is(const uint8_t *bytes, size_t len)
{
	return len >= STUN_HEADER && bytes[0] < 4 && get32(bytes + 4) == COOKIE;
}

/* v4 or v6, XORed with cookie and transaction id. */
static int decode_mapped(const uint8_t *message, const uint8_t *v, size_t len, struct address *ret)
{
	struct address a = { .port = (uint16_t)(get16(v + 2) ^ COOKIE >> 16) };
	size_t ip_len = len == 8 ? 4 : 16;
	if ((len != 8 || v[1] != 1) && (len != 20 || v[1] != 2))
		return -EBADMSG;
	a.family = ip_len == 4 ? 4 : 6;
	for (size_t i = 0; i < ip_len; i++)
		a.ip[i] = v[4 + i] ^ message[4 + i];
	*ret = a;
	return 0;
}

static int decode_attr(const uint8_t *m, size_t at, uint32_t type, size_t len, struct stun *s)
{
	const uint8_t *v = m + at + 4;
	/* After the integrity only the fingerprint counts (RFC 8489, 14.5). */
	if (s->integrity && type != ATTR_FINGERPRINT)
		return 0;
	switch (type) {
	case ATTR_USERNAME:
		if (len > STUN_USER_MAX)
			return -EBADMSG;
		s->user = (const char *)v;
		s->user_len = len;
		return 0;
	case ATTR_INTEGRITY:
		s->integrity = at;
		return len == 20 ? 0 : -EBADMSG;
	case ATTR_ERROR:
		if (len < 4)
			return -EBADMSG;
		s->error = (uint16_t)((v[2] & 7) * 100 + v[3] % 100);
		return 0;
	case ATTR_XOR_MAPPED:
		return len >= 4 ? decode_mapped(m, v, len, &s->mapped) : -EBADMSG;
	case ATTR_USE_CANDIDATE:
		s->use_candidate = true;
		return 0;
	case ATTR_CONTROLLED:
	case ATTR_CONTROLLING:
		if (len != 8)
			return -EBADMSG;
		s->controlling = type == ATTR_CONTROLLING;
		s->controlled = !s->controlling;
		s->tie_breaker = get64(v);
		return 0;
	case ATTR_FINGERPRINT:
		if (len != 4 || (crc32(m, at) ^ 0x5354554eu) != get32(v))
			return -EBADMSG;
		s->fingerprint = true;
		return 0;
	default:
		return 0;
	}
}

int stun_decode(const uint8_t *bytes, size_t len, struct stun *ret)
{
	if (!stun_is(bytes, len) || get16(bytes + 2) + STUN_HEADER != len || len % 4 != 0)
		return -EBADMSG;
	struct stun s = { .type = (enum stun_type)get16(bytes) };
	memcpy(s.id, bytes + 8, STUN_ID);
	for (size_t at = STUN_HEADER; at < len;) {
		if (s.fingerprint || len - at < 4)
			return -EBADMSG;
		size_t attr_len = get16(bytes + at + 2), padded = (attr_len + 3) & ~(size_t)3;
		if (padded > len - at - 4)
			return -EBADMSG;
		int r = decode_attr(bytes, at, get16(bytes + at), attr_len, &s);
		if (r < 0)
			return r;
		at += 4 + padded;
	}
	*ret = s;
	return 0;
}

static void integrity(const uint8_t *m, size_t at, const char *password, uint8_t ret[20])
{
	/* The length in the header counts up to the end of this attribute. */
	uint8_t copy[STUN_MESSAGE_MAX];
	unsigned len = 20;
	memcpy(copy, m, at);
	put16(copy + 2, (uint32_t)(at - STUN_HEADER + 24));
	if (!HMAC(EVP_sha1(), password, (int)strlen(password), copy, at, ret, &len))
		memset(ret, 0, 20); /* no memory: the message is refused or gets no answer */
}

bool stun_verify(const struct stun *s, const uint8_t *bytes, const char *password)
{
	uint8_t want[20];
	if (!s->integrity || s->integrity > STUN_MESSAGE_MAX)
		return false;
	integrity(bytes, s->integrity, password, want);
	return CRYPTO_memcmp(want, bytes + s->integrity + 4, sizeof(want)) == 0;
}

static size_t start(uint8_t *m, enum stun_type type, const uint8_t id[STUN_ID])
{
	put16(m, type);
	put16(m + 2, 0);
	put32(m + 4, COOKIE);
	memcpy(m + 8, id, STUN_ID);
	return STUN_HEADER;
}

static size_t attr(uint8_t *m, size_t at, uint32_t type, const void *value, size_t len)
{
	put16(m + at, type);
	put16(m + at + 2, (uint32_t)len);
	if (len > 0)
		memcpy(m + at + 4, value, len);
	size_t padded = (len + 3) & ~(size_t)3;
	memset(m + at + 4 + len, 0, padded - len);
	return at + 4 + padded;
}

static size_t finish(uint8_t *m, size_t at, const char *password)
{
	uint8_t digest[20], crc[4];
	if (password) {
		integrity(m, at, password, digest);
		at = attr(m, at, ATTR_INTEGRITY, digest, sizeof(digest));
	}
	put16(m + 2, (uint32_t)(at - STUN_HEADER + 8));
	put32(crc, crc32(m, at) ^ 0x5354554eu);
	return attr(m, at, ATTR_FINGERPRINT, crc, sizeof(crc));
}

size_t stun_encode_request(const struct stun_request *r, uint8_t *buf)
{
	size_t at = start(buf, STUN_REQUEST, r->id);
	if (r->user) {
		uint8_t v[8];
		size_t user_len = strnlen(r->user, STUN_USER_MAX);
		at = attr(buf, at, ATTR_USERNAME, r->user, user_len);
		put32(v, r->priority);
		at = attr(buf, at, ATTR_PRIORITY, v, 4);
		put32(v, (uint32_t)(r->tie_breaker >> 32));
		put32(v + 4, (uint32_t)r->tie_breaker);
		at = attr(buf, at, r->controlling ? ATTR_CONTROLLING : ATTR_CONTROLLED, v, 8);
		if (r->use_candidate)
			at = attr(buf, at, ATTR_USE_CANDIDATE, NULL, 0);
	}
	return finish(buf, at, r->password);
}

size_t stun_encode_success(const uint8_t id[STUN_ID], const struct address *mapped,
			   const char *password, uint8_t *buf)
{
	size_t at = start(buf, STUN_SUCCESS, id);
	size_t ip_len = mapped->family == 6 ? 16 : 4;
	uint8_t v[20] = { 0, mapped->family == 6 ? 2 : 1 };
	put16(v + 2, mapped->port ^ COOKIE >> 16);
	for (size_t i = 0; i < ip_len; i++)
		v[4 + i] = mapped->ip[i] ^ buf[4 + i];
	at = attr(buf, at, ATTR_XOR_MAPPED, v, 4 + ip_len);
	return finish(buf, at, password);
}

size_t stun_encode_error(const uint8_t id[STUN_ID], uint16_t code, const char *password,
			 uint8_t *buf)
{
	size_t at = start(buf, STUN_ERROR, id);
	uint8_t v[4] = { 0, 0, (uint8_t)(code / 100), (uint8_t)(code % 100) };
	at = attr(buf, at, ATTR_ERROR, v, sizeof(v));
	return finish(buf, at, password);
}
