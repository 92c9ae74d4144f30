/* SPDX-License-Identifier: Apache-2.0 */
/* Text messages on their way to libwebsockets, which wants room before each. */
#ifndef RECLAIM_VOLUNTEER_TEXT_QUEUE_H
#define RECLAIM_VOLUNTEER_TEXT_QUEUE_H

#include <errno.h>
#include <libwebsockets.h>
#include <stdlib.h>
#include <string.h>

/* No validity pings: their timers stand in one sorted list, which thousands of sockets would walk
 * for each message. Silence is judged by those who wait for something. */
static const lws_retry_bo_t text_queue_no_pings = { 0 };

struct text_message {
	struct text_message *next;
	size_t len;
	unsigned char bytes[];
};

struct text_queue {
	struct text_message *head, **tail;
	size_t bytes;
};

static inline void text_queue_init(struct text_queue *q)
{
	q->head = NULL;
	q->tail = &q->head;
	q->bytes = 0;
}

static inline int text_queue_push(struct text_queue *q, const char *text, size_t len, size_t max)
{
	if (q->bytes + len > max)
		return -ENOBUFS;
	struct text_message *m = malloc(sizeof(*m) + LWS_PRE + len);
	if (!m)
		return -ENOMEM;
	m->next = NULL;
	m->len = len;
	memcpy(m->bytes + LWS_PRE, text, len);
	*q->tail = m;
	q->tail = &m->next;
	q->bytes += len;
	return 0;
}

static inline void text_queue_drop(struct text_queue *q)
{
	struct text_message *m = q->head;
	q->head = m->next;
	if (!q->head)
		q->tail = &q->head;
	q->bytes -= m->len;
	free(m);
}

/* Writes what the socket takes without waiting; -1 if it is broken. */
static inline int text_queue_write(struct text_queue *q, struct lws *wsi)
{
	while (q->head && !lws_send_pipe_choked(wsi)) {
		struct text_message *m = q->head;
		int n = lws_write(wsi, m->bytes + LWS_PRE, m->len, LWS_WRITE_TEXT);
		if (n < (int)m->len)
			return -1;
		text_queue_drop(q);
	}
	if (q->head)
		lws_callback_on_writable(wsi);
	return 0;
}

#endif
