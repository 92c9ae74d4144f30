/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h. */
#include "volunteer/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct link_frame {
	struct link_frame *next;
	int32_t from;
	size_t len;
	uint8_t bytes[];
};

void link_init(struct link *l)
{
	memset(l, 0, sizeof(*l));
}

void link_done(struct link *l)
{
	while (l->head) {
		struct link_frame *f = l->head;
		l->head = f->next;
		free(f);
	}
	link_init(l);
}

void link_open(struct link *l, uint64_t now_ms)
{
	l->sent = l->granted = l->consumed = l->told = 0;
	l->up = true;
	l->progress_ms = l->heard_ms = l->pinged_ms = now_ms;
}

int link_push(struct link *l, const void *bytes, size_t len, int32_t from)
{
	if (l->queued + len > LINK_QUEUE_MAX)
		return -ENOBUFS;
	struct link_frame *f = malloc(sizeof(*f) + len);
	if (!f)
		return -ENOMEM;
	f->next = NULL;
	f->from = from;
	f->len = len;
	memcpy(f->bytes, bytes, len);
	*(l->tail ? l->tail : &l->head) = f;
	l->tail = &f->next;
	l->queued += len;
	return 0;
}

const uint8_t *link_next(struct link *l, size_t *ret_len, int32_t *ret_from)
{
	const struct link_frame *f = l->head;
	if (!l->up || !f || l->sent + f->len > l->granted + LINK_WINDOW)
		return NULL;
	*ret_len = f->len;
	*ret_from = f->from;
	return f->bytes;
}

void link_pop(struct link *l, uint64_t now_ms)
{
	struct link_frame *f = l->head;
	l->head = f->next;
	if (!l->head)
		l->tail = NULL;
	l->queued -= f->len;
	l->sent += f->len;
	l->progress_ms = now_ms;
	free(f);
}

int link_credit(struct link *l, uint64_t consumed, uint64_t now_ms)
{
	if (consumed > l->sent)
		return -EPROTO;
	if (consumed > l->granted) {
		l->granted = consumed;
		l->progress_ms = now_ms;
	}
	return 0;
}

bool link_consume(struct link *l, size_t len)
{
	l->consumed += len;
	if (l->consumed - l->told < LINK_WINDOW / 4)
		return false;
	l->told = l->consumed;
	return true;
}

bool link_stalled(const struct link *l, uint64_t now_ms)
{
	return l->up && l->head && now_ms > l->progress_ms + LINK_STALL_MS;
}
