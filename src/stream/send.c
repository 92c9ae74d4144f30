/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of who sends: open a stream, send, flush, drain, close. A call that
 * must wait for room does the node's work meanwhile.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream/node_internal.h"

int reclaim_stream_open(struct reclaim_node *n, const char *to, enum reclaim_class cls,
			const struct reclaim_stream_options *options, struct reclaim_stream **ret)
{
	uint32_t number = options ? options->number : 0;
	struct reclaim_stream *o;

	if (!to || !stream_name_valid(to) || (unsigned)cls >= STREAM_CLASS_COUNT)
		return -EINVAL;
	node_lock(n);
	node_now(n);
	TAILQ_FOREACH(o, &n->outs, entry)
		if (!strcmp(o->to, to) && o->number == number)
			break;
	if (o && !o->restored) {
		pthread_mutex_unlock(&n->lock);
		return -EEXIST;
	}
	if (!o)
		o = out_new(n, to, number, cls);
	if (!o) {
		pthread_mutex_unlock(&n->lock);
		return -ENOMEM;
	}
	o->restored = false;
	o->deterministic = options && options->deterministic;
	o->hold = options && options->hold;
	if (o->hold)
		o->tx.release = o->tx.last; /* what the image holds is durable with it */
	out_pump(o);
	reg_timer(n);
	*ret = o;
	pthread_mutex_unlock(&n->lock);
	return 0;
}

static int wait_room(struct reclaim_stream *o, size_t len, int timeout_ms)
{
	struct reclaim_node *n = o->node;
	uint64_t deadline, began;
	int r = 0;

	if (o->error)
		return o->error;
	if (n->cancelled)
		return -ECANCELED;
	if (o->closing)
		return -EPIPE;
	if (out_has_room(o, len) || (out_spill(o) && out_has_room(o, len)))
		return 0;
	began = node_now(n);
	deadline = node_deadline(timeout_ms);
	for (;;) {
		link_flush_all(n);
		if (timeout_ms == 0)
			node_turn(n, 0);
		if (o->error)
			return o->error;
		if (out_has_room(o, len) || (out_spill(o) && out_has_room(o, len)))
			break;
		if (timeout_ms == 0)
			return -EAGAIN;
		r = node_wait(n, deadline);
		if (r < 0)
			break;
	}
	n->stats.blocked_ns += n->now_ns - began;
	return r;
}

static void sent(struct reclaim_stream *o, unsigned flags)
{
	struct reclaim_node *n = o->node;

	if (!o->link || !o->tx.attached || o->tx.frozen) {
		/* Something is on its way that lifts this, and a program that only sends
		 * would not see it before the helper thread looks. */
		out_pump(o);
		node_turn(n, 0);
		return;
	}
	if ((flags & RECLAIM_MORE) && o->unsent < SEGMENT_MAX) {
		n->deferred = true;
		return;
	}
	if (!o->cursor)
		return;
	node_now(n);
	link_ready(o->link, o);
	if (!o->link->want_out)
		link_flush(o->link);
	if (o->ahead.asked)
		node_turn(n, 0); /* its receiver is about to move: hear of it at once */
}

int reclaim_sendv(struct reclaim_stream *s, const struct iovec *iov, int iov_count, unsigned flags,
		  int timeout_ms)
{
	size_t len = 0;

	for (int i = 0; i < iov_count; i++)
		len += iov[i].iov_len;
	if (len > STREAM_MESSAGE_MAX)
		return -EMSGSIZE;
	node_lock(s->node);
	int r = wait_room(s, len, timeout_ms);

	if (r == 0)
		r = out_append(s, iov, iov_count, len);
	if (r == 0)
		sent(s, flags);
	pthread_mutex_unlock(&s->node->lock);
	return r;
}

int reclaim_send(struct reclaim_stream *s, const void *data, size_t len, unsigned flags,
		 int timeout_ms)
{
	struct iovec iov = { (void *)(uintptr_t)data, len };

	return reclaim_sendv(s, &iov, 1, flags, timeout_ms);
}

int reclaim_send_many(struct reclaim_stream *s, const struct iovec *messages, int count,
		      unsigned flags, int timeout_ms)
{
	if (count <= 0)
		return -EINVAL;
	node_lock(s->node);
	int r = wait_room(s, messages[0].iov_len, timeout_ms);

	if (r == 0)
		r = out_append_many(s, messages, count);
	if (r > 0)
		sent(s, flags);
	pthread_mutex_unlock(&s->node->lock);
	return r;
}

int reclaim_send_buf(struct reclaim_stream *s, const struct reclaim_buf *buf, unsigned flags,
		     int timeout_ms)
{
	size_t len = 0;

	for (int i = 0; i < buf->iov_count; i++)
		len += buf->iov[i].iov_len;
	if (buf->iov_count < 1 || (buf->get && buf->iov_count != 1))
		return -EINVAL;
	if (len > STREAM_MESSAGE_MAX)
		return -EMSGSIZE;
	node_lock(s->node);
	int r = wait_room(s, len, timeout_ms);

	if (r == 0 && len <= RECORD_MAX && !buf->get) {
		/* Copying so little is cheaper than keeping track of it. */
		r = out_append(s, buf->iov, buf->iov_count, len);
		if (r == 0 && buf->done)
			buf->done(buf->arg);
	} else if (r == 0 && len == 0) {
		r = -EINVAL;
	} else if (r == 0) {
		r = out_append_message(s, buf->iov, buf->iov_count, len, buf);
	}
	if (r == 0)
		sent(s, flags);
	pthread_mutex_unlock(&s->node->lock);
	return r;
}

int reclaim_flush(struct reclaim_stream *s)
{
	node_lock(s->node);
	sent(s, 0);
	int r = s->error;
	pthread_mutex_unlock(&s->node->lock);
	return r;
}

int reclaim_drain(struct reclaim_stream *s, bool stable, int timeout_ms)
{
	struct reclaim_node *n = s->node;
	uint64_t deadline = node_deadline(timeout_ms);
	int r = 0;

	node_lock(n);
	sent(s, 0);
	while (r == 0) {
		if (s->error)
			r = s->error;
		else if ((stable ? s->tx.stable : s->tx.delivered) >= s->tx.last &&
			 (s->closed_sent || !s->closing))
			break;
		else
			r = node_wait(n, deadline);
	}
	pthread_mutex_unlock(&n->lock);
	return r;
}

int reclaim_stream_close(struct reclaim_stream *s)
{
	node_lock(s->node);
	int r = s->error;

	if (r == 0) {
		node_now(s->node);
		s->closing = true;
		out_pump(s);
		if (s->link)
			link_flush(s->link);
	}
	pthread_mutex_unlock(&s->node->lock);
	return r;
}

void reclaim_stream_abort(struct reclaim_stream *s, uint32_t code)
{
	struct reclaim_node *n = s->node;

	node_lock(n);
	node_now(n);
	if (s->link && s->attach_sent) {
		struct stream_frame f = { .type = STREAM_FRAME_ABORT, .cls = STREAM_ABORT_BY_SENDER,
					  .handle = s->handle,
					  .code = code };
		struct link *l = s->link;

		link_send(l, &f);
		link_flush(l);
	}
	node_event(n, "abort", s->to, code, s->tx.last);
	out_free(s);
	pthread_mutex_unlock(&n->lock);
}
