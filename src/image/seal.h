/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and seals of chunks. From the job's key (32 random bytes of the
 * coordinator) HKDF-SHA256 gives a sealing key, a naming secret and a check
 * value that tells a wrong key early.
 *
 * name  = XXH3-128(plain) under the naming secret: tells equal chunks of one job
 * seal  = AES-256-GCM; nonce = first 12 bytes of the name, additional data = name
 *         and length. So a chunk always seals to the same bytes: whoever rebuilds it
 *         from a delta can check the outcome against the manifest, and a nonce meets
 *         a second plaintext only if two chunks of one job agree in 96 bits of name.
 * check = XXH3-64 of the sealed bytes: finds damage without the key
 */
#ifndef RECLAIM_IMAGE_SEAL_H
#define RECLAIM_IMAGE_SEAL_H

#include <stdint.h>
#include <stddef.h>

#include "base/cleanup.h"

#define SEAL_NAME_LEN 16
#define SEAL_TAG_LEN 16
#define SEAL_CHECK_LEN 8
#define SEAL_SECRET_LEN 192
#define SEAL_KEY_CHECK_LEN 16

struct seal_keys {
	uint8_t key[32];
	uint8_t name_secret[SEAL_SECRET_LEN];
	uint8_t key_check[SEAL_KEY_CHECK_LEN]; /* public: goes into the manifest */
};

/* 0, -ENOMEM or -EIO (libcrypto). */
int seal_keys_derive(const uint8_t job_key[32], struct seal_keys *ret);

void seal_name(const struct seal_keys *k, const void *plain, size_t len,
	       uint8_t ret_name[SEAL_NAME_LEN]);
void seal_check(const void *sealed, size_t len, uint8_t ret_check[SEAL_CHECK_LEN]);

/* One per thread. */
struct sealer;
int sealer_new(const struct seal_keys *k, struct sealer **ret);
void sealer_free(struct sealer *s);
DEFINE_CLEANUP(struct sealer *, sealer_free)

/* sealed has len bytes and may be plain itself. */
int sealer_seal(struct sealer *s, const uint8_t name[SEAL_NAME_LEN], const void *plain, size_t len,
		void *sealed, uint8_t ret_tag[SEAL_TAG_LEN]);
/* -EBADMSG when the tag does not fit; plain's content is then undefined. */
int sealer_open(struct sealer *s, const uint8_t name[SEAL_NAME_LEN],
		const uint8_t tag[SEAL_TAG_LEN], const void *sealed, size_t len, void *plain);

#endif
