/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's own state as bytes: the cursors of what it receives, and its
 * unstable output. Part of a checkpoint image and of a handover. Layout:
 * "RSI1", u32 ins, per in {from, number, class, producer epoch, cur, stable},
 * u32 outs, per out {to, number, class, last, stable, u64 bytes, records}.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream/node_internal.h"

#define IMAGE_MAGIC 0x31495352u /* "RSI1" */
enum { IMAGE_STREAMS_MAX = 100000 };

static int put(struct strbuf *b, const void *p, size_t len)
{
	return strbuf_append(b, p, len);
}

static void put_u32(struct strbuf *b, uint32_t v)
{
	uint8_t p[4];

	store_le32(p, v);
	(void)put(b, p, 4); /* failure sticks in the buffer */
}

static void put_u64(struct strbuf *b, uint64_t v)
{
	uint8_t p[8];

	store_le64(p, v);
	(void)put(b, p, 8);
}

static void put_name(struct strbuf *b, const char *name)
{
	put_u32(b, (uint32_t)strlen(name));
	(void)put(b, name, strlen(name));
}

static void put_ins(struct reclaim_node *n, struct strbuf *b)
{
	put_u32(b, IMAGE_MAGIC);
	put_u32(b, (uint32_t)n->ins.count);
	VEC_EACH(&n->ins, p) {
		struct in *in = *p;

		put_name(b, in->from);
		put_u32(b, in->number);
		put_u32(b, in->cls | (in->rx.known ? 256u : 0));
		put_u64(b, in->rx.producer_epoch);
		put_u64(b, in->rx.cur);
		put_u64(b, in->rx.stable);
	}
}

/* Records of the messages after `stable`, as u32 length and bytes each. */
static int put_segment(struct reclaim_stream *o, struct segment *s, struct strbuf *b)
{
	uint8_t *data = s->iov ? NULL : segment_bytes(o, s);

	if (s->kind == SEGMENT_RUN) {
		uint32_t at = 0;

		if (!data)
			return -EIO;
		for (uint64_t q = s->seq; q <= o->tx.stable && at < s->len; q++)
			at += STREAM_RECORD_HEAD + load_le32(data + at);
		return put(b, data + at, s->len - at);
	}
	put_u32(b, s->len);
	if (data)
		return put(b, data, s->len);
	if (s->buf.get) {
		uint8_t piece[16384];

		for (uint32_t at = 0; at < s->len;) {
			uint32_t len = MIN((uint32_t)sizeof(piece), s->len - at);
			int r = s->buf.get(s->buf.arg, at, piece, len);

			if (r < 0)
				return r;
			(void)put(b, piece, len);
			at += len;
		}
		return 0;
	}
	if (!s->iov)
		return -EIO;
	for (int i = 0; i < s->iov_count; i++)
		(void)put(b, s->iov[i].iov_base, s->iov[i].iov_len);
	return 0;
}

int image_write(struct reclaim_node *n, struct strbuf *b)
{
	struct reclaim_stream *o;
	uint32_t outs = 0;

	put_ins(n, b);
	TAILQ_FOREACH(o, &n->outs, entry)
		outs += !o->error;
	put_u32(b, outs);
	TAILQ_FOREACH(o, &n->outs, entry) {
		struct segment *s;
		size_t len_at, from;

		if (o->error)
			continue;
		put_name(b, o->to);
		put_u32(b, o->number);
		put_u32(b, (uint32_t)o->cls);
		put_u64(b, o->tx.last);
		put_u64(b, o->tx.stable);
		len_at = b->len;
		put_u64(b, 0);
		from = b->len;
		TAILQ_FOREACH(s, &o->segments, next) {
			int r = s->count && s->seq + s->count - 1 > o->tx.stable ? put_segment(o, s, b) : 0;

			if (r < 0)
				return r;
		}
		if (!b->failed)
			store_le64((uint8_t *)b->data + len_at, b->len - from);
	}
	return b->failed ? -ENOMEM : 0;
}

int image_write_cursors(struct reclaim_node *n, struct strbuf *b)
{
	put_ins(n, b);
	put_u32(b, 0);
	if (b->failed)
		return -ENOMEM;
	return b->len <= REGISTRY_BODY_MAX ? 0 : -E2BIG;
}

static bool get_name(struct bytes_in *in, char ret[STREAM_NAME_MAX + 1])
{
	size_t len;
	const uint8_t *p = bytes_in_blob(in, STREAM_NAME_MAX, &len);

	if (p)
		memcpy(ret, p, len);
	ret[p ? len : 0] = '\0';
	return p && stream_name_valid(ret);
}

/* What an owner starts from is what survives: all that it covers is stable, and says so to
 * senders whose ack was lost with the owner before. */
int image_restore(struct reclaim_node *n, const void *image, size_t len)
{
	int r = image_read(n, image, len);

	if (r < 0)
		return r;
	VEC_EACH(&n->ins, p)
		receiver_set_stable(&(*p)->rx, (*p)->rx.cur);
	return 0;
}

int image_read(struct reclaim_node *n, const void *image, size_t len)
{
	struct bytes_in in = { .data = image, .len = len };
	char name[STREAM_NAME_MAX + 1];

	if (bytes_in_u32(&in) != IMAGE_MAGIC)
		return -EBADMSG;
	uint32_t count = bytes_in_u32(&in);
	for (uint32_t i = 0; i < count && i < IMAGE_STREAMS_MAX; i++) {
		bool ok = get_name(&in, name);
		uint32_t number = bytes_in_u32(&in), cls = bytes_in_u32(&in);
		uint64_t pe = bytes_in_u64(&in), cur = bytes_in_u64(&in), st = bytes_in_u64(&in);

		if (!ok || in.failed || (cls & 255) >= STREAM_CLASS_COUNT || st > cur)
			return -EBADMSG;
		struct in *s = in_get(n, name, number, (uint8_t)(cls & 255));
		if (!s)
			return -ENOMEM;
		receiver_init(&s->rx, in_window(n, s->cls));
		if (cls & 256)
			receiver_restore(&s->rx, pe, cur, st);
	}
	count = bytes_in_u32(&in);
	for (uint32_t i = 0; i < count && i < IMAGE_STREAMS_MAX; i++) {
		bool ok = get_name(&in, name);
		uint32_t number = bytes_in_u32(&in), cls = bytes_in_u32(&in);
		uint64_t last = bytes_in_u64(&in), st = bytes_in_u64(&in), bytes = bytes_in_u64(&in);
		const uint8_t *records = bytes_in_grab(&in, bytes);

		if (!ok || !records || cls >= STREAM_CLASS_COUNT || st > last ||
		    !out_restore(n, name, number, (uint8_t)cls, last, st, records, bytes))
			return -EBADMSG;
	}
	return in.failed || in.pos != in.len ? -EBADMSG : 0;
}
