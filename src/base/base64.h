/* SPDX-License-Identifier: Apache-2.0 */
/* base64url without padding (RFC 4648, section 5): for text that carries bytes. */
#ifndef RECLAIM_BASE_BASE64_H
#define RECLAIM_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

#define BASE64_LEN(n) (((n) * 4 + 2) / 3) /* without the NUL */

/* text has room for BASE64_LEN(len) + 1. Returns the length. */
size_t base64url_encode(const void *bytes, size_t len, char *text);
/* Returns the number of bytes, -EINVAL (not canonical base64url) or -ENOBUFS. */
int64_t base64url_decode(const char *text, size_t text_len, void *ret, size_t ret_size);

#endif
