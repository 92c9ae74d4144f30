/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte buffer that is always NUL-terminated. Growth failure is sticky. */
#ifndef RECLAIM_BASE_STRBUF_H
#define RECLAIM_BASE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct strbuf {
	char *data; /* NULL until the first append */
	size_t len; /* bytes, without the NUL */
	size_t cap;
	bool failed; /* an append found no memory; the content is a prefix */
};

#define STRBUF_INIT { NULL, 0, 0, false }

void strbuf_done(struct strbuf *b);
void strbuf_clear(struct strbuf *b);
int strbuf_append(struct strbuf *b, const void *bytes, size_t len);
int strbuf_add(struct strbuf *b, const char *text);
int strbuf_printf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int strbuf_vprintf(struct strbuf *b, const char *fmt, va_list args);
/* Removes the first len bytes. */
void strbuf_consume(struct strbuf *b, size_t len);
/* Gives the text away (never NULL unless failed) and leaves the buffer empty. */
char *strbuf_take(struct strbuf *b);

#define CLEANUP_STRBUF __attribute__((cleanup(strbuf_done)))

#endif
