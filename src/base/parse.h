/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to numbers with bounds, and back. Every function returns 0, -EINVAL
 * (not of this form) or -ERANGE (does not fit 64 bits, or negative).
 */
#ifndef RECLAIM_BASE_PARSE_H
#define RECLAIM_BASE_PARSE_H

#include <stddef.h>
#include <stdint.h>

int parse_u64(const char *text, uint64_t *ret);
int parse_i64(const char *text, int64_t *ret);
int parse_double(const char *text, double *ret);

/* "90", "90s", "1.5h", "200ms", "2d" -> nanoseconds. A bare number is seconds. */
int parse_duration_ns(const char *text, uint64_t *ret_ns);

/* "512", "64KiB", "1.5GB", "2G" -> bytes. Bare letters K M G T are powers of 1024. */
int parse_size(const char *text, uint64_t *ret_bytes);

/* "1Gbit", "100Mbit/s", "250kbit", "9600" -> bits per second (powers of 1000). */
int parse_rate_bps(const char *text, uint64_t *ret_bits_per_s);

/* Shortest readable form; returns buf. */
#define FORMAT_MAX 32
const char *format_size(uint64_t bytes, char buf[FORMAT_MAX]);
const char *format_duration(uint64_t ns, char buf[FORMAT_MAX]);
const char *format_rate(uint64_t bits_per_s, char buf[FORMAT_MAX]);

/* Lower-case hexadecimal; hex has room for 2 * len + 1. */
void hex_encode(const uint8_t *bytes, size_t len, char *hex);
int hex_decode(const char *hex, size_t hex_len, uint8_t *ret_bytes, size_t bytes_len);

#endif
