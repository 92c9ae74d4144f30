/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), so that the example needs no library. */
#ifndef TRAIN_SHA256_H
#define TRAIN_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
	uint32_t state[8];
	uint64_t len;
	uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_update(struct sha256 *s, const void *bytes, size_t len);
void sha256_final_hex(struct sha256 *s, char hex[65]);

#endif
