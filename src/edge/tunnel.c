/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/tunnel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

#define VERSION 1
#define TAG_LEN 16
#define NONCE_LEN 12
#define ADDRESS_BASE 0x647e0000u /* 100.126.0.0 */
#define IP_HEADER_MIN 20
/* Far below what one key may seal, and out of reach at any line rate. */
#define COUNTER_MAX (UINT64_C(1) << 60)

struct pair {
	EVP_CIPHER_CTX *seal, *open;
	uint64_t sent;                       /* last counter */
	uint64_t newest;                     /* counter received */
	uint64_t seen[TUNNEL_WINDOW / 64];   /* bit c % TUNNEL_WINDOW: c was received */
};

struct tunnel {
	uint64_t epoch;
	unsigned rank, ranks;
	struct pair pairs[TUNNEL_RANKS_MAX];
};

struct in_addr tunnel_address(unsigned rank)
{
	return (struct in_addr){ htonl(ADDRESS_BASE + 1 + rank) };
}

static void put_be64(uint8_t *p, uint64_t v)
{
	for (int i = 7; i >= 0; i--, v >>= 8)
		p[i] = (uint8_t)v;
}

static uint64_t get_be64(const uint8_t *p)
{
	uint64_t v = 0;
	for (int i = 0; i < 8; i++)
		v = v << 8 | p[i];
	return v;
}

/* ---- keys ---- */

DEFINE_CLEANUP(EVP_KDF *, EVP_KDF_free)
DEFINE_CLEANUP(EVP_KDF_CTX *, EVP_KDF_CTX_free)

static int derive(const uint8_t key[TUNNEL_KEY_LEN], uint64_t epoch, unsigned from, unsigned to,
		  uint8_t ret[TUNNEL_KEY_LEN])
{
	uint8_t info[] = "reclaim gang tunnel 1 ........ ..";
	CLEANUP(EVP_KDF_free_cleanup) EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	CLEANUP(EVP_KDF_CTX_free_cleanup) EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	put_be64(info + 22, epoch);
	info[31] = (uint8_t)from;
	info[32] = (uint8_t)to;
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)"SHA256", 0),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)key, TUNNEL_KEY_LEN),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof(info) - 1),
		OSSL_PARAM_construct_end(),
	};
	return ctx && EVP_KDF_derive(ctx, ret, TUNNEL_KEY_LEN, params) == 1 ? 0 : -EIO;
}

static int cipher_new(const uint8_t key[TUNNEL_KEY_LEN], uint64_t epoch, unsigned from, unsigned to,
		      bool seal, EVP_CIPHER_CTX **ret)
{
	uint8_t own[TUNNEL_KEY_LEN];
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int r = c ? derive(key, epoch, from, to, own) : -ENOMEM;
	if (r == 0 && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, own, NULL, seal) != 1)
		r = -EIO;
	explicit_bzero(own, sizeof(own));
	if (r < 0) {
		EVP_CIPHER_CTX_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

int tunnel_new(const uint8_t key[TUNNEL_KEY_LEN], uint64_t epoch, unsigned rank, unsigned ranks,
	       struct tunnel **ret)
{
	if (ranks < 2 || ranks > TUNNEL_RANKS_MAX || rank >= ranks)
		return -EINVAL;
	struct tunnel *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->epoch = epoch;
	t->rank = rank;
	t->ranks = ranks;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < ranks; i++) {
		if (i == rank)
			continue;
		r = cipher_new(key, epoch, rank, i, true, &t->pairs[i].seal);
		if (r == 0)
			r = cipher_new(key, epoch, i, rank, false, &t->pairs[i].open);
	}
	if (r < 0) {
		tunnel_free(t);
		return r;
	}
	*ret = t;
	return 0;
}

void tunnel_free(struct tunnel *t)
{
	for (unsigned i = 0; t && i < t->ranks; i++) {
		EVP_CIPHER_CTX_free(t->pairs[i].seal);
		EVP_CIPHER_CTX_free(t->pairs[i].open);
	}
	free(t);
}

/* ---- packets ---- */

static uint32_t address_at(const uint8_t *p)
{
	uint32_t a;
	memcpy(&a, p, sizeof(a));
	return a;
}

static bool is_ip4(const uint8_t *p, size_t len)
{
	return len >= IP_HEADER_MIN && p[0] >> 4 == 4;
}

int tunnel_route(const struct tunnel *t, const void *packet, size_t len)
{
	const uint8_t *p = packet;
	if (!is_ip4(p, len))
		return -EHOSTUNREACH;
	uint32_t rank = ntohl(address_at(p + 16)) - ADDRESS_BASE - 1;
	return rank < t->ranks && rank != t->rank ? (int)rank : -EHOSTUNREACH;
}

ssize_t tunnel_seal(struct tunnel *t, unsigned to, const void *packet, size_t len, uint8_t *out)
{
	uint8_t nonce[NONCE_LEN] = { 0 };
	int n = 0, last = 0;
	if (to >= t->ranks || to == t->rank || len > TUNNEL_PACKET_MAX - TUNNEL_OVERHEAD)
		return -EINVAL;
	struct pair *p = &t->pairs[to];
	if (p->sent >= COUNTER_MAX)
		return -EOVERFLOW;
	memset(out, 0, TUNNEL_HEADER_LEN);
	out[0] = VERSION;
	out[1] = (uint8_t)t->rank;
	for (int i = 0; i < 4; i++)
		out[4 + i] = (uint8_t)(t->epoch >> (24 - 8 * i));
	put_be64(out + 8, ++p->sent);
	memcpy(nonce + 4, out + 8, 8);
	if (EVP_EncryptInit_ex(p->seal, NULL, NULL, NULL, nonce) != 1 ||
	    EVP_EncryptUpdate(p->seal, NULL, &n, out, TUNNEL_HEADER_LEN) != 1)
		return -EIO;
	n = 0;
	if (len && EVP_EncryptUpdate(p->seal, out + TUNNEL_HEADER_LEN, &n, packet, (int)len) != 1)
		return -EIO;
	if (EVP_EncryptFinal_ex(p->seal, out + TUNNEL_HEADER_LEN + n, &last) != 1 ||
	    EVP_CIPHER_CTX_ctrl(p->seal, EVP_CTRL_GCM_GET_TAG, TAG_LEN, out + TUNNEL_HEADER_LEN + len) != 1)
		return -EIO;
	return (ssize_t)(len + TUNNEL_OVERHEAD);
}

static bool was_seen(const struct pair *p, uint64_t c)
{
	if (c + TUNNEL_WINDOW <= p->newest)
		return true; /* too old to know */
	return c <= p->newest && (p->seen[c % TUNNEL_WINDOW / 64] >> (c % 64) & 1);
}

static void set_seen(struct pair *p, uint64_t c)
{
	/* Bits of the counters that were passed over are of a turn before. */
	uint64_t steps = c > p->newest ? MIN(c - p->newest, (uint64_t)TUNNEL_WINDOW) : 0;
	for (uint64_t i = 0; i < steps; i++)
		p->seen[(c - i) % TUNNEL_WINDOW / 64] &= ~(UINT64_C(1) << ((c - i) % 64));
	p->newest = MAX(p->newest, c);
	p->seen[c % TUNNEL_WINDOW / 64] |= UINT64_C(1) << (c % 64);
}

ssize_t tunnel_open(struct tunnel *t, const uint8_t *in, size_t len, uint8_t *out, unsigned *ret_from)
{
	uint8_t nonce[NONCE_LEN] = { 0 };
	int n = 0, last = 0;
	if (len < TUNNEL_OVERHEAD || len > TUNNEL_PACKET_MAX || in[0] != VERSION || in[2] || in[3])
		return -EBADMSG;
	unsigned from = in[1];
	size_t inner = len - TUNNEL_OVERHEAD;
	uint64_t counter = get_be64(in + 8);
	if (from >= t->ranks || from == t->rank || counter == 0 || counter > COUNTER_MAX)
		return -EBADMSG;
	struct pair *p = &t->pairs[from];
	if (was_seen(p, counter))
		return -EALREADY;
	memcpy(nonce + 4, in + 8, 8);
	if (EVP_DecryptInit_ex(p->open, NULL, NULL, NULL, nonce) != 1 ||
	    EVP_DecryptUpdate(p->open, NULL, &n, in, TUNNEL_HEADER_LEN) != 1)
		return -EBADMSG;
	n = 0;
	if ((inner && EVP_DecryptUpdate(p->open, out, &n, in + TUNNEL_HEADER_LEN, (int)inner) != 1) ||
	    EVP_CIPHER_CTX_ctrl(p->open, EVP_CTRL_GCM_SET_TAG, TAG_LEN, (void *)(in + len - TAG_LEN)) != 1 ||
	    EVP_DecryptFinal_ex(p->open, out + n, &last) != 1)
		return -EBADMSG;
	/* Counted only now: who has no key moves no window. */
	set_seen(p, counter);
	if (inner && (!is_ip4(out, inner) || address_at(out + 12) != tunnel_address(from).s_addr ||
		      address_at(out + 16) != tunnel_address(t->rank).s_addr))
		return -EBADMSG;
	*ret_from = from;
	return (ssize_t)inner;
}
