/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output: what of a stream goes next and over which link, and the way to its
 * receiver: attach, welcome, ahead of a move, detach. An acknowledgement frees
 * whole segments from the front.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "stream/node_internal.h"

/* --- the send position --- */

/* Puts the cursor on message tx.next. */
void out_seek(struct reclaim_stream *o)
{
	struct segment *s;
	uint64_t unsent = 0;

	o->cursor = NULL;
	o->cursor_at = 0;
	TAILQ_FOREACH(s, &o->segments, next) {
		if (s->seq + s->count <= o->tx.next)
			continue;
		if (o->cursor) {
			unsent += s->len;
			continue;
		}
		o->cursor = s;
		if (s->kind == SEGMENT_RUN && o->tx.next > s->seq) {
			const uint8_t *p = segment_bytes(o, s);

			for (uint64_t q = s->seq; p && q < o->tx.next; q++)
				o->cursor_at += STREAM_RECORD_HEAD + load_le32(p + o->cursor_at);
		}
		unsent += s->len - o->cursor_at;
	}
	o->unsent = unsent;
}

void out_trim(struct reclaim_stream *o, uint64_t stable)
{
	struct segment *s;

	while ((s = TAILQ_FIRST(&o->segments)) && s->seq + s->count - 1 <= stable && s->count) {
		if (!TAILQ_NEXT(s, next) && s->kind == SEGMENT_RUN && !s->pins && s->data &&
		    s->spill_at < 0) {
			/* The last one is used again in place: its memory is warm. */
			if (o->cursor == s)
				o->cursor = NULL;
			s->seq = o->tx.last + 1;
			s->len = s->count = 0;
			return;
		}
		if (o->cursor == s) {
			o->cursor = TAILQ_NEXT(s, next);
			o->cursor_at = 0;
		}
		TAILQ_REMOVE(&o->segments, s, next);
		segment_uncount(o, s);
		segment_free(o->node, s);
	}
}

static void cursor_next(struct reclaim_stream *o)
{
	struct segment *s = o->cursor;

	o->cursor = TAILQ_NEXT(s, next);
	o->cursor_at = 0;
	/* An empty tail, kept for reuse, holds nothing yet. */
	if (o->cursor && o->cursor->count == 0)
		o->cursor = NULL;
	if (s->spill_at >= 0 && s->data && !s->pins) {
		free(s->data); /* read back only to be sent */
		s->data = NULL;
		o->retained -= s->cap;
		o->node->stats.retained_bytes -= s->cap;
	}
}

static size_t gather_run(struct reclaim_stream *o, struct link *l, size_t budget)
{
	struct segment *s = o->cursor;
	uint8_t *data = segment_bytes(o, s);
	uint64_t room = o->tx.limit - o->tx.offset;
	uint32_t left = s->len - o->cursor_at, bytes = left;
	uint64_t seg_end = s->seq + s->count - 1;
	uint32_t count = (uint32_t)(seg_end - o->tx.next + 1);

	if (!data)
		return 0;
	if (bytes > budget || bytes > room || seg_end > o->tx.release) {
		/* Cut at a record; one alone may exceed the budget, never the credit. */
		uint32_t at = 0, i = 0;

		for (; i < count && o->tx.next + i <= o->tx.release; i++) {
			uint32_t rec = STREAM_RECORD_HEAD + load_le32(data + o->cursor_at + at);

			if (at + rec > room || (at && at + rec > budget))
				break;
			at += rec;
		}
		if (i == 0)
			return 0;
		bytes = at;
		count = i;
	}
	uint8_t *head = link_head(l);

	stream_run_head(head, (uint8_t)o->cls, o->handle, count, o->tx.epoch, o->tx.next, bytes);
	link_pend(l, head, STREAM_RUN_HEAD, NULL);
	link_pend(l, data + o->cursor_at, bytes, s);
	if (o->tx.next <= o->tx.sent)
		o->node->stats.messages_resent += MIN((uint64_t)count, o->tx.sent - o->tx.next + 1);
	o->tx.next += count;
	o->tx.offset += bytes;
	o->unsent -= bytes;
	o->node->stats.messages_sent += count;
	o->node->stats.bytes_sent += bytes;
	o->cursor_at += bytes;
	if (o->cursor_at == s->len)
		cursor_next(o);
	return bytes + STREAM_RUN_HEAD;
}

static int pend_external(struct reclaim_stream *o, struct link *l, struct segment *s, uint32_t at,
			 uint32_t len)
{
	if (s->buf.get) {
		/* Memory that only the callback can read: through a buffer of the link. */
		uint8_t *p = malloc(len);

		if (!p || s->buf.get(s->buf.arg, at, p, len) < 0) {
			free(p);
			return -EIO;
		}
		struct segment *tmp = calloc(1, sizeof(*tmp));
		if (!tmp) {
			free(p);
			return -ENOMEM;
		}
		tmp->kind = SEGMENT_MESSAGE;
		tmp->data = p;
		tmp->spill_at = -1;
		tmp->dead = true; /* goes with its last pin */
		link_pend(l, p, len, tmp);
		return 0;
	}
	for (int i = 0; i < s->iov_count && len; i++) {
		if (at >= s->iov[i].iov_len) {
			at -= (uint32_t)s->iov[i].iov_len;
			continue;
		}
		uint32_t n = (uint32_t)MIN((size_t)len, s->iov[i].iov_len - at);

		link_pend(l, (uint8_t *)s->iov[i].iov_base + at, n, s);
		at = 0;
		len -= n;
	}
	return 0;
}

static size_t gather_message(struct reclaim_stream *o, struct link *l, size_t budget)
{
	struct segment *s = o->cursor;
	uint64_t room = o->tx.limit - o->tx.offset;
	uint32_t len = s->len - o->cursor_at;

	/* A scattered message may need more pieces than one write takes. */
	if (s->iov_count > GATHER_MAX / 2 && !s->buf.get)
		len = (uint32_t)MIN((size_t)len, s->iov[0].iov_len ? s->iov[0].iov_len : 4096);
	len = (uint32_t)MIN((uint64_t)len, room);
	len = (uint32_t)MIN((size_t)len, budget);
	if (len == 0)
		return 0;
	uint8_t *data = s->iov ? NULL : segment_bytes(o, s);
	if (!s->iov && !data)
		return 0;
	uint8_t *head = link_head(l);

	stream_frag_head(head, (uint8_t)o->cls, o->handle, o->tx.epoch, o->tx.next, s->len,
			 o->cursor_at, len);
	link_pend(l, head, STREAM_FRAG_HEAD, NULL);
	if (data)
		link_pend(l, data + o->cursor_at, len, s);
	else if (pend_external(o, l, s, o->cursor_at, len) < 0) {
		out_fail(o, -EIO);
		link_close(l, "device memory could not be read");
		return 0;
	}
	o->cursor_at += len;
	o->tx.offset += len;
	o->unsent -= len;
	o->node->stats.bytes_sent += len;
	if (o->cursor_at == s->len) {
		if (o->tx.next <= o->tx.sent)
			o->node->stats.messages_resent++;
		o->tx.next++;
		o->node->stats.messages_sent++;
		cursor_next(o);
	}
	return len + STREAM_FRAG_HEAD;
}

/* Adds frames of the stream to the link's next write; the bytes taken, 0: nothing to send. */
size_t out_gather(struct reclaim_stream *o, struct link *l, size_t budget)
{
	size_t total = 0;

	while (total < budget && l->pend_count + 6 < GATHER_MAX && o->cursor &&
	       sender_may_send(&o->tx, o->node->now_ns)) {
		size_t n;

		if (o->cursor->kind == SEGMENT_MESSAGE) {
			if (o->cursor->iov_count && l->pend_count + o->cursor->iov_count + 2 > GATHER_MAX &&
			    l->pend_count)
				return total ? total : 1; /* in the next write */
			n = gather_message(o, l, budget - total);
		} else {
			n = gather_run(o, l, budget - total);
		}
		if (n == 0)
			break;
		total += n;
	}
	if (o->tx.next > o->tx.sent + 1)
		o->tx.sent = o->tx.next - 1;
	if (o->closing && !o->closed_sent && o->tx.attached && !o->tx.frozen &&
	    o->tx.next > o->tx.last) {
		struct stream_frame f = { .type = STREAM_FRAME_CLOSE, .handle = o->handle,
					  .epoch = o->tx.epoch, .seq = o->tx.last };

		o->closed_sent = true;
		link_send(l, &f);
	}
	return total;
}

/* --- attach, detach --- */

void out_pump(struct reclaim_stream *o)
{
	if (o->error)
		return;
	if (o->link && o->tx.attached) {
		if (o->cursor || (o->closing && !o->closed_sent))
			link_ready(o->link, o);
		return;
	}
	if (!o->link && o->have_route && (o->tx.last || o->closing)) {
		/* Connected only when there is something to say: by then the peer may
		 * have opened a link to us, which serves both ways. */
		struct link *l = link_from(o->node, o->to, o->tx.epoch);

		if (!l)
			l = link_connect(o->node, o->locator, o->tx.epoch, o->ticket, o->ticket_len,
					 o->session);
		if (l)
			out_attach(o, l);
		else
			out_detach(o, true);
		return;
	}
	if (!o->link && !o->have_route) {
		o->route_wanted = true;
		node_soon(o->node, MAX(o->route_at_ns, o->node->now_ns));
	}
}

static void fill_attach(struct reclaim_stream *o, struct stream_frame *f, uint64_t epoch,
			uint32_t handle)
{
	*f = (struct stream_frame){
		.type = STREAM_FRAME_ATTACH,
		.cls = (uint8_t)o->cls,
		.level = o->deterministic ? STREAM_ATTACH_DETERMINISTIC : 0,
		.handle = handle,
		.epoch = epoch,
		.seq = o->tx.stable + 1, /* all after `stable` is kept */
		.stable = o->tx.last,
		.producer_epoch = o->node->owner.epoch,
		.stream = o->number,
	};
	memcpy(f->name, o->to, sizeof(f->name));
	memcpy(f->producer, o->node->name, sizeof(f->producer));
}

void out_attach(struct reclaim_stream *o, struct link *l)
{
	struct stream_frame f;

	/* The owner answers the attach that it saw last; only that one may count here. */
	out_drop_ahead(o);
	if (o->link != l) {
		if (link_add_out(l, o) < 0)
			return;
		o->link = l;
	}
	o->attach_sent = false;
	if (!l->up)
		return;
	fill_attach(o, &f, o->tx.epoch, o->handle);
	f.blob = o->ticket;
	f.blob_len = o->ticket_len;
	o->attach_sent = true;
	if (o->cls <= RECLAIM_TOKEN)
		link_pace_urgent(l);
	link_send(l, &f);
}

void out_attach_ahead(struct reclaim_stream *o)
{
	struct stream_frame f;

	if (!o->ahead.link || !o->ahead.link->up || o->ahead.attached)
		return;
	fill_attach(o, &f, o->ahead.epoch, o->ahead.handle);
	f.blob = o->ahead.ticket;
	f.blob_len = o->ahead.ticket_len;
	o->ahead.attached = true;
	link_send(o->ahead.link, &f);
}

void out_drop_ahead(struct reclaim_stream *o)
{
	struct link *l = o->ahead.link;

	if (l && o->ahead.handle < l->outs.count && l->outs.data[o->ahead.handle] == o)
		l->outs.data[o->ahead.handle] = NULL;
	memset(&o->ahead, 0, sizeof(o->ahead));
}

void out_detach(struct reclaim_stream *o, bool ask_route)
{
	struct link *l = o->link;

	if (l)
		link_unready(o);
	if (l && o->handle < l->outs.count && l->outs.data[o->handle] == o)
		l->outs.data[o->handle] = NULL;
	o->link = NULL;
	o->attach_sent = false;
	o->closed_sent = false;
	sender_on_detach(&o->tx);
	if (ask_route) {
		o->have_route = false;
		o->route_wanted = true;
		o->route_asked = false;
		if (o->backoff_ms < 1)
			o->backoff_ms = 1;
		o->route_at_ns = o->node->now_ns + o->backoff_ms * NS_PER_MS;
		o->backoff_ms = MIN(o->backoff_ms * 2, 20u);
		node_soon(o->node, o->route_at_ns);
	}
}

void out_fail(struct reclaim_stream *o, int error)
{
	if (o->error)
		return;
	o->error = error;
	node_event(o->node, "output failed", o->to, (uint64_t)-error, o->tx.last);
	out_detach(o, false);
	out_drop_ahead(o);
	out_trim(o, UINT64_MAX - 1);
	o->unsent = 0;
	node_wake(o->node);
}

void out_on_welcome(struct reclaim_stream *o, const struct stream_frame *f, struct link *l)
{
	struct reclaim_node *n = o->node;

	if (o->ahead.link == l && f->handle == o->ahead.handle && f->epoch == o->ahead.epoch) {
		/* The move is done: what was prepared becomes the route. */
		uint32_t handle = o->ahead.handle;

		out_detach(o, false);
		memcpy(o->locator, o->ahead.locator, sizeof(o->locator));
		memcpy(o->ticket, o->ahead.ticket, sizeof(o->ticket));
		o->ticket_len = o->ahead.ticket_len;
		memcpy(o->session, o->ahead.session, sizeof(o->session));
		o->link = l;
		o->handle = handle;
		o->attach_sent = true;
		o->have_route = true;
		sender_on_route(&o->tx, f->epoch, n->now_ns + n->reg.ttl_ns);
		memset(&o->ahead, 0, sizeof(o->ahead));
	} else if (o->link != l || f->handle != o->handle) {
		return;
	}
	switch (sender_on_welcome(&o->tx, f->epoch, f->seq, f->limit)) {
	case SENDER_LOST:
		out_fail(o, -ENODATA);
		return;
	case SENDER_IGNORED:
		return;
	default:
		break;
	}
	if (f->stable > o->tx.stable && f->stable < f->seq) {
		o->tx.stable = MIN(f->stable, o->tx.last);
		out_trim(o, o->tx.stable);
	}
	o->backoff_ms = 0;
	out_seek(o);
	if (f->offset && o->cursor && o->cursor->kind == SEGMENT_MESSAGE &&
	    f->offset < o->cursor->len) {
		o->cursor_at = f->offset; /* the front of it is there already */
		o->unsent -= f->offset;
	}
	node_event(n, "welcome", o->to, f->epoch, f->seq);
	out_pump(o);
}

/* --- the calls --- */

struct reclaim_stream *out_new(struct reclaim_node *n, const char *to, uint32_t number,
			       enum reclaim_class cls)
{
	struct reclaim_stream *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->node = n;
	snprintf(o->to, sizeof(o->to), "%s", to);
	o->number = number;
	o->cls = cls;
	o->segment_cap = SEGMENT_MIN;
	TAILQ_INIT(&o->segments);
	sender_init(&o->tx, n->owner.epoch, 0, 0);
	TAILQ_INSERT_TAIL(&n->outs, o, entry);
	return o;
}

void out_free(struct reclaim_stream *o)
{
	struct segment *s;

	out_detach(o, false);
	out_drop_ahead(o);
	reg_forget(o->node, o);
	while ((s = TAILQ_FIRST(&o->segments))) {
		TAILQ_REMOVE(&o->segments, s, next);
		segment_uncount(o, s);
		segment_free(o->node, s);
	}
	VEC_EACH(&o->node->snapshots, p)
		for (size_t i = (*p)->outs.count; i-- > 0;)
			if ((*p)->outs.data[i].out == o)
				VEC_SWAP_REMOVE(&(*p)->outs, i);
	TAILQ_REMOVE(&o->node->outs, o, entry);
	seal_wipe(o->session, sizeof(o->session));
	free(o);
}

bool out_restore(struct reclaim_node *n, const char *to, uint32_t number, uint8_t cls,
		 uint64_t last, uint64_t stable, const uint8_t *records, size_t len)
{
	struct bytes_in in = { .data = records, .len = len };
	struct reclaim_stream *o;
	struct segment *s;

	/* A standby may have opened it already, or hold it from an attempt that was called off. */
	TAILQ_FOREACH(o, &n->outs, entry)
		if (!strcmp(o->to, to) && o->number == number)
			break;
	if (!o) {
		o = out_new(n, to, number, (enum reclaim_class)cls);
		if (!o)
			return false;
		o->restored = true;
	}
	out_detach(o, false);
	while ((s = TAILQ_FIRST(&o->segments))) {
		TAILQ_REMOVE(&o->segments, s, next);
		segment_uncount(o, s);
		segment_free(n, s);
	}
	o->cursor = NULL;
	o->unsent = 0;
	sender_init(&o->tx, n->owner.epoch, stable, stable);
	while (in.pos < in.len && !in.failed) {
		size_t size;
		const uint8_t *p = bytes_in_blob(&in, STREAM_MESSAGE_MAX, &size);
		struct iovec iov = { (void *)(uintptr_t)p, size };

		if (!p || out_append(o, &iov, 1, size) < 0)
			return false;
	}
	if (o->hold)
		o->tx.release = o->tx.last;
	return !in.failed && o->tx.last == last;
}
