/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes for tables and seeds. Content digests are the image layer's. */
#ifndef RECLAIM_BASE_HASH_H
#define RECLAIM_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* SipHash-2-4 (Aumasson, Bernstein 2012). */
uint64_t hash_sip24(const void *bytes, size_t len, uint64_t key0, uint64_t key1);

/* CRC-32C (RFC 3720, B.4), for records on disk. */
uint32_t hash_crc32c(uint32_t crc, const void *bytes, size_t len);

#endif
