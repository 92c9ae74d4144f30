/* SPDX-License-Identifier: Apache-2.0 */
#include "base/strbuf.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_done(struct strbuf *b)
{
	free(b->data);
	*b = (struct strbuf)STRBUF_INIT;
}

void strbuf_clear(struct strbuf *b)
{
	b->len = 0;
	b->failed = false;
	if (b->data)
		b->data[0] = '\0';
}

static int strbuf_room(struct strbuf *b, size_t more)
{
	if (b->failed || more > SIZE_MAX / 4 - b->len) {
		b->failed = true;
		return -ENOMEM;
	}
	size_t need = b->len + more + 1;
	if (need <= b->cap)
		return 0;
	size_t cap = b->cap ? b->cap : 64;
	while (cap < need)
		cap *= 2;
	char *data = realloc(b->data, cap);
	if (!data) {
		b->failed = true;
		return -ENOMEM;
	}
	b->data = data;
	b->cap = cap;
	return 0;
}

int strbuf_append(struct strbuf *b, const void *bytes, size_t len)
{
	int r = strbuf_room(b, len);
	if (r < 0)
		return r;
	if (len)
		memcpy(b->data + b->len, bytes, len);
	b->len += len;
	b->data[b->len] = '\0';
	return 0;
}

int strbuf_add(struct strbuf *b, const char *text)
{
	return strbuf_append(b, text, strlen(text));
}

int strbuf_vprintf(struct strbuf *b, const char *fmt, va_list args)
{
	va_list again;
	va_copy(again, args);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0)
		return -EINVAL;
	int r = strbuf_room(b, (size_t)n);
	if (r < 0)
		return r;
	(void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args);
	b->len += (size_t)n;
	return 0;
}

int strbuf_printf(struct strbuf *b, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	int r = strbuf_vprintf(b, fmt, args);
	va_end(args);
	return r;
}

void strbuf_consume(struct strbuf *b, size_t len)
{
	if (len > b->len)
		len = b->len;
	if (!len)
		return;
	memmove(b->data, b->data + len, b->len - len + 1);
	b->len -= len;
}

char *strbuf_take(struct strbuf *b)
{
	if (!b->data && strbuf_append(b, "", 0) < 0)
		return NULL;
	if (b->failed) {
		strbuf_done(b);
		return NULL;
	}
	char *text = b->data;
	*b = (struct strbuf)STRBUF_INIT;
	return text;
}
