/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* A text as ids of its distinct bytes, in order of byte value. */
struct text {
	uint8_t *ids;
	size_t len;
	uint32_t vocab;
	uint8_t bytes[256]; /* id to byte */
	char digest[65];    /* SHA-256 of the bytes */
};

/* A file, or the regular files of a folder by name. 0 or -errno. */
int text_load(const char *path, struct text *ret);
void text_done(struct text *t);

#endif
