/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages are kept in the form in which they travel, in segments. The segments
 * are both the send queue and what is retained, so keeping costs no second copy;
 * what is far from being sent can wait on disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stream/node_internal.h"

enum { SEGMENT_POOL_MAX = 64, UNSENT_MAX = 1 << 20, UNSENT_BULK_MAX = 4 << 20 };

static struct segment *segment_new(struct reclaim_node *n, uint32_t cap)
{
	struct segment *s;

	if (cap == SEGMENT_MAX && (s = TAILQ_FIRST(&n->segment_pool))) {
		TAILQ_REMOVE(&n->segment_pool, s, next);
		n->segment_pool_count--;
	} else {
		s = malloc(sizeof(*s));
		if (!s)
			return NULL;
		s->data = malloc(cap);
		if (!s->data) {
			free(s);
			return NULL;
		}
		s->cap = cap;
	}
	s->kind = SEGMENT_RUN;
	s->seq = 0;
	s->count = s->len = s->pins = 0;
	s->dead = false;
	s->iov = NULL;
	s->iov_count = 0;
	s->buf = (struct reclaim_buf){ 0 };
	s->spill_at = -1;
	return s;
}

void segment_free(struct reclaim_node *n, struct segment *s)
{
	if (s->pins) {
		s->dead = true;
		return;
	}
	if (s->spill_at >= 0) {
		n->spill_live -= s->len;
		n->stats.spilled_bytes = n->spill_live;
		if (n->spill_live == 0) {
			n->spill_end = 0; /* all of the file is free again */
			(void)!ftruncate(n->spill_fd, 0);
		}
	}
	if (s->buf.done)
		s->buf.done(s->buf.arg);
	if (s->kind == SEGMENT_RUN && s->cap == SEGMENT_MAX && s->data &&
	    n->segment_pool_count < SEGMENT_POOL_MAX) {
		TAILQ_INSERT_HEAD(&n->segment_pool, s, next);
		n->segment_pool_count++;
		return;
	}
	free(s->iov);
	free(s->data);
	free(s);
}

void segment_unpin(struct reclaim_node *n, struct segment *s)
{
	if (--s->pins == 0 && s->dead)
		segment_free(n, s);
}

static uint64_t segment_memory(const struct segment *s)
{
	return s->data ? s->cap : s->iov && s->spill_at < 0 ? s->len : 0;
}

/* The bytes of a segment of ours, read back from the spill file if need be. */
uint8_t *segment_bytes(struct reclaim_stream *o, struct segment *s)
{
	if (s->data || s->spill_at < 0)
		return s->data;
	uint8_t *p = malloc(s->cap);
	if (p && pread(o->node->spill_fd, p, s->len, s->spill_at) != (ssize_t)s->len) {
		free(p);
		p = NULL;
	}
	s->data = p;
	if (p) {
		o->retained += s->cap;
		o->node->stats.retained_bytes += s->cap;
	}
	return p;
}

/* Moves what was sent, or is far from being sent, out of memory; true if anything went. */
bool out_spill(struct reclaim_stream *o)
{
	struct reclaim_node *n = o->node;
	struct segment *s;
	bool any = false;

	if (!n->options.spill_dir)
		return false;
	if (n->spill_fd < 0) {
		n->spill_fd = open(n->options.spill_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		if (n->spill_fd < 0)
			return false;
	}
	TAILQ_FOREACH(s, &o->segments, next) {
		if (!s->data || s->iov || s->pins || s == o->cursor || !TAILQ_NEXT(s, next))
			continue;
		if (s->spill_at < 0) {
			if (n->spill_live + s->len > n->options.spill_max)
				break;
			if (pwrite(n->spill_fd, s->data, s->len, n->spill_end) != (ssize_t)s->len)
				break;
			s->spill_at = n->spill_end;
			n->spill_end += s->len;
			n->spill_live += s->len;
			n->stats.spilled_bytes = n->spill_live;
		}
		free(s->data);
		s->data = NULL;
		o->retained -= s->cap;
		n->stats.retained_bytes -= s->cap;
		any = true;
		if (o->retained < n->options.retain_max / 2)
			break;
	}
	return any;
}

bool out_has_room(const struct reclaim_stream *o, size_t len)
{
	/* Bulk is gathered in slices of up to 2 MiB: the next one should be there by then. */
	uint64_t most = o->cls == RECLAIM_BULK ? UNSENT_BULK_MAX : UNSENT_MAX;
	uint64_t unsent_max = MAX(most, (uint64_t)len);

	if (o->unsent && o->unsent + len > unsent_max && !o->node->options.spill_dir)
		return false;
	return o->retained == 0 || o->retained + len <= o->node->options.retain_max;
}

static void segment_count(struct reclaim_stream *o, struct segment *s)
{
	uint64_t m = segment_memory(s);

	o->retained += m;
	o->node->stats.retained_bytes += m;
}

void segment_uncount(struct reclaim_stream *o, struct segment *s)
{
	uint64_t m = segment_memory(s);

	o->retained -= m;
	o->node->stats.retained_bytes -= m;
}

static void appended(struct reclaim_stream *o, struct segment *s, uint32_t at, size_t len)
{
	o->tx.last++;
	o->unsent += len;
	if (!o->cursor && o->tx.next == o->tx.last) {
		o->cursor = s;
		o->cursor_at = at;
	}
}

static struct segment *run_tail(struct reclaim_stream *o, size_t need)
{
	struct segment *s = TAILQ_LAST(&o->segments, segments);

	if (s && s->kind == SEGMENT_RUN && s->data && s->spill_at < 0 && s->cap - s->len >= need)
		return s;
	/* Small for a stream that says little, large once a second one is needed. */
	if (s || need > o->segment_cap)
		o->segment_cap = SEGMENT_MAX;
	s = segment_new(o->node, o->segment_cap);
	if (!s)
		return NULL;
	s->seq = o->tx.last + 1;
	TAILQ_INSERT_TAIL(&o->segments, s, next);
	segment_count(o, s);
	return s;
}

int out_append_message(struct reclaim_stream *o, const struct iovec *iov, int iov_count,
		       size_t len, const struct reclaim_buf *buf)
{
	struct segment *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->kind = SEGMENT_MESSAGE;
	s->seq = o->tx.last + 1;
	s->count = 1;
	s->len = s->cap = (uint32_t)len;
	s->spill_at = -1;
	if (buf) {
		s->iov = malloc(sizeof(*iov) * (size_t)iov_count);
		s->iov_count = iov_count;
		s->buf = *buf;
		if (s->iov)
			memcpy(s->iov, iov, sizeof(*iov) * (size_t)iov_count);
	} else if ((s->data = malloc(len))) {
		size_t at = 0;

		for (int i = 0; i < iov_count; at += iov[i++].iov_len)
			memcpy(s->data + at, iov[i].iov_base, iov[i].iov_len);
	}
	if (!s->iov && !s->data) {
		free(s);
		return -ENOMEM;
	}
	TAILQ_INSERT_TAIL(&o->segments, s, next);
	segment_count(o, s);
	appended(o, s, 0, len);
	return 0;
}

int out_append(struct reclaim_stream *o, const struct iovec *iov, int iov_count, size_t len)
{
	if (len > RECORD_MAX)
		return out_append_message(o, iov, iov_count, len, NULL);
	struct segment *s = run_tail(o, len + STREAM_RECORD_HEAD);
	if (!s)
		return -ENOMEM;
	uint32_t at = s->len;
	uint8_t *p = s->data + at;

	store_le32(p, (uint32_t)len);
	p += STREAM_RECORD_HEAD;
	for (int i = 0; i < iov_count; i++) {
		memcpy(p, iov[i].iov_base, iov[i].iov_len);
		p += iov[i].iov_len;
	}
	s->len += (uint32_t)len + STREAM_RECORD_HEAD;
	s->count++;
	appended(o, s, at, len + STREAM_RECORD_HEAD);
	return 0;
}

int out_append_many(struct reclaim_stream *o, const struct iovec *messages, int count)
{
	int r = 0, done = 0;

	while (r == 0 && done < count) {
		size_t len = messages[done].iov_len;

		if (len > STREAM_MESSAGE_MAX)
			r = -EMSGSIZE;
		else if (done && !out_has_room(o, len))
			break;
		else
			r = out_append(o, &messages[done], 1, len);
		done += r == 0;
	}
	return done ? done : r;
}
