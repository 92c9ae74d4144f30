/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) for the guest's library, which must not bring OpenSSL into a guest. */
#ifndef RECLAIM_GUESTLIB_SHA256_H
#define RECLAIM_GUESTLIB_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct guest_sha256 {
	uint32_t state[8];
	uint64_t bytes;
	uint8_t block[64];
};

void guest_sha256_init(struct guest_sha256 *s);
void guest_sha256_update(struct guest_sha256 *s, const void *bytes, size_t len);
void guest_sha256_final(struct guest_sha256 *s, char hex[65]);

#endif
