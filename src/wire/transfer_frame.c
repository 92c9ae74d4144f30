/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/transfer_frame.h"

#include <errno.h>
#include <string.h>

#include "base/le.h"

const char *const transfer_code_names[] = {
	"ok", "version", "protocol", "ticket", "expired", "epoch", "peer", "space", "damaged",
	"missing", "key", "busy", "cancelled", "superseded", "link", "crashed", "io", NULL,
};

const char *transfer_code_name(enum transfer_code code)
{
	return code < TRANSFER_CODE_COUNT ? transfer_code_names[code] : "protocol";
}

enum transfer_code transfer_code_parse(const char *text)
{
	for (int i = 0; i < TRANSFER_CODE_COUNT; i++)
		if (strcmp(text, transfer_code_names[i]) == 0)
			return (enum transfer_code)i;
	return TRANSFER_E_PROTOCOL;
}

/* ---- writing: a cursor that never passes the end ---- */

struct out {
	uint8_t *buf;
	size_t size, at;
	bool full;
};

static void put(struct out *o, const void *bytes, size_t len)
{
	if (o->full || o->size - o->at < len) {
		o->full = true;
		return;
	}
	memcpy(o->buf + o->at, bytes, len);
	o->at += len;
}

static void put8(struct out *o, uint8_t v)
{
	put(o, &v, 1);
}

static void put16(struct out *o, uint16_t v)
{
	uint8_t b[2];

	le16_put(b, v);
	put(o, b, 2);
}

static void put32(struct out *o, uint32_t v)
{
	uint8_t b[4];

	le32_put(b, v);
	put(o, b, 4);
}

static void put64(struct out *o, uint64_t v)
{
	uint8_t b[8];

	le64_put(b, v);
	put(o, b, 8);
}

static struct out begin(uint8_t *buf, size_t size)
{
	struct out o = { buf, size, 0, false };

	put64(&o, 0);
	return o;
}

/* extra: bytes that the caller appends to the body. */
static int end(struct out *o, enum transfer_frame_type type, uint32_t extra)
{
	if (o->full)
		return -ENOBUFS;
	o->buf[0] = (uint8_t)type;
	le32_put(o->buf + 4, (uint32_t)(o->at - TRANSFER_HEADER_LEN) + extra);
	return (int)o->at;
}

int transfer_encode_hello(const struct transfer_hello *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);
	size_t len = strnlen(m->ticket, sizeof(m->ticket));

	if (len == sizeof(m->ticket))
		return -EINVAL;
	put16(&o, m->version);
	put8(&o, (uint8_t)m->mode);
	put8(&o, m->stream);
	put8(&o, m->streams);
	put(&o, m->session, 16);
	put(&o, m->image, 32);
	put16(&o, (uint16_t)len);
	put(&o, m->ticket, len);
	return end(&o, TRANSFER_HELLO, 0);
}

int transfer_encode_offer(const struct transfer_offer *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	if (m->base_count > TRANSFER_BASES_MAX)
		return -EINVAL;
	put(&o, m->image, 32);
	put64(&o, m->manifest_len);
	put8(&o, m->has_key);
	if (m->has_key)
		put(&o, m->key, 32);
	put8(&o, m->base_count);
	for (size_t i = 0; i < m->base_count; i++)
		put(&o, m->bases[i], 32);
	return end(&o, TRANSFER_OFFER, 0);
}

int transfer_encode_manifest(uint32_t len, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	return len == 0 || len > TRANSFER_BODY_MAX ? -EINVAL : end(&o, TRANSFER_MANIFEST, len);
}

int transfer_encode_need(const struct transfer_need *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	if (m->count == 0 || m->count > TRANSFER_NEED_MAX)
		return -EINVAL;
	put32(&o, m->first);
	put32(&o, m->count);
	put(&o, m->bitmap, (m->count + 7) / 8);
	return end(&o, TRANSFER_NEED, 0);
}

static void put_chunk(struct out *o, const struct transfer_chunk *m)
{
	put32(o, m->index);
	put32(o, (uint32_t)m->codec); /* one byte and three of zeros */
	put32(o, m->base_index);
	put32(o, m->payload_len);
	put32(o, m->offset);
	put(o, m->check, 8);
}

int transfer_encode_partial(const struct transfer_partial *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	put_chunk(&o, &m->chunk);
	return end(&o, TRANSFER_PARTIAL, 0);
}

int transfer_encode_ready(const struct transfer_ready *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	put64(&o, m->lacking);
	put64(&o, m->lacking_bytes);
	put8(&o, m->base);
	return end(&o, TRANSFER_READY, 0);
}

int transfer_encode_chunk(const struct transfer_chunk *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	if (m->payload_len > TRANSFER_PAYLOAD_MAX || m->offset >= m->payload_len)
		return -EINVAL;
	put_chunk(&o, m);
	return end(&o, TRANSFER_CHUNK, m->payload_len - m->offset);
}

int transfer_encode_nak(uint32_t index, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	put32(&o, index);
	return end(&o, TRANSFER_NAK, 0);
}

int transfer_encode_progress(const struct transfer_progress *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	put64(&o, m->chunks);
	put64(&o, m->bytes);
	return end(&o, TRANSFER_PROGRESS, 0);
}

int transfer_encode_end(uint64_t chunks, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	put64(&o, chunks);
	return end(&o, TRANSFER_END, 0);
}

int transfer_encode_committed(const uint8_t image[32], uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);

	put(&o, image, 32);
	return end(&o, TRANSFER_COMMITTED, 0);
}

int transfer_encode_fail(const struct transfer_fail *m, uint8_t *buf, size_t size)
{
	struct out o = begin(buf, size);
	size_t len = strnlen(m->text, TRANSFER_TEXT_MAX);

	put16(&o, (uint16_t)m->code);
	put16(&o, (uint16_t)len);
	put(&o, m->text, len);
	return end(&o, TRANSFER_FAIL, 0);
}

/* ---- reading ---- */

struct in {
	const uint8_t *buf;
	size_t len, at;
	bool bad;
};

static const uint8_t *get(struct in *i, size_t len)
{
	static const uint8_t zeros[32];
	const uint8_t *p = i->buf + i->at;

	if (i->bad || i->len - i->at < len) {
		i->bad = true;
		return zeros; /* integers and digests only ask for 32 at most */
	}
	i->at += len;
	return p;
}

static int done(const struct in *i, const char *what, struct diag *diag)
{
	if (i->bad || i->at != i->len)
		return diag_set(diag, -EBADMSG, what, "the frame's length does not fit its content");
	return 0;
}

static int bad(struct diag *diag, const char *what, const char *why)
{
	return diag_set(diag, -EBADMSG, what, "%s", why);
}

int transfer_decode_header(const uint8_t buf[TRANSFER_HEADER_LEN], struct transfer_header *ret,
			   struct diag *diag)
{
	struct transfer_header h = { .type = buf[0], .len = le32_get(buf + 4) };
	uint32_t max = TRANSFER_BODY_MAX;

	if (h.type < TRANSFER_HELLO || h.type >= TRANSFER_TYPE_COUNT || buf[1] || buf[2] || buf[3])
		return bad(diag, "frame", "unknown type");
	if (h.type == TRANSFER_CHUNK)
		max = TRANSFER_CHUNK_BODY_LEN + TRANSFER_PAYLOAD_MAX;
	if (h.len > max)
		return bad(diag, "frame", "longer than allowed");
	*ret = h;
	return 0;
}

int transfer_decode_hello(const uint8_t *body, size_t len, struct transfer_hello *ret,
			  struct diag *diag)
{
	struct in i = { body, len, 0, false };
	struct transfer_hello m = { .version = le16_get(get(&i, 2)) };
	size_t n;
	int r;

	m.mode = *get(&i, 1);
	m.stream = *get(&i, 1);
	m.streams = *get(&i, 1);
	memcpy(m.session, get(&i, 16), 16);
	memcpy(m.image, get(&i, 32), 32);
	n = le16_get(get(&i, 2));
	if (n >= sizeof(m.ticket) || i.bad || n > len - i.at)
		return bad(diag, "hello", "ticket out of bounds");
	memcpy(m.ticket, get(&i, n), n);
	r = done(&i, "hello", diag);
	if (r < 0)
		return r;
	if (m.mode != TRANSFER_MODE_SEND && m.mode != TRANSFER_MODE_FETCH)
		return bad(diag, "hello", "unknown mode");
	if (m.streams == 0 || m.streams > TRANSFER_STREAMS_MAX || m.stream >= m.streams)
		return bad(diag, "hello", "stream out of bounds");
	if (strlen(m.ticket) != n || (m.stream == 0) != (n > 0))
		return bad(diag, "hello", "the ticket belongs on the first stream, as text");
	*ret = m;
	return 0;
}

int transfer_decode_offer(const uint8_t *body, size_t len, struct transfer_offer *ret,
			  struct diag *diag)
{
	struct in i = { body, len, 0, false };
	struct transfer_offer m = { 0 };
	uint8_t flag;
	int r;

	memcpy(m.image, get(&i, 32), 32);
	m.manifest_len = le64_get(get(&i, 8));
	flag = *get(&i, 1);
	if (flag > 1)
		return bad(diag, "offer", "unknown flags");
	m.has_key = flag;
	if (flag)
		memcpy(m.key, get(&i, 32), 32);
	m.base_count = *get(&i, 1);
	if (m.base_count > TRANSFER_BASES_MAX)
		return bad(diag, "offer", "too many bases");
	for (size_t k = 0; k < m.base_count; k++)
		memcpy(m.bases[k], get(&i, 32), 32);
	r = done(&i, "offer", diag);
	if (r == 0)
		*ret = m;
	return r;
}

int transfer_decode_need(const uint8_t *body, size_t len, struct transfer_need *ret,
			 struct diag *diag)
{
	struct in i = { body, len, 0, false };
	struct transfer_need m = { .first = le32_get(get(&i, 4)) };

	m.count = le32_get(get(&i, 4));
	if (i.bad || m.count == 0 || m.count > TRANSFER_NEED_MAX || m.first > UINT32_MAX - m.count ||
	    len - 8 != (m.count + 7) / 8)
		return bad(diag, "need", "bitmap out of bounds");
	m.bitmap = body + 8;
	*ret = m;
	return 0;
}

/* Of PARTIAL and CHUNK. */
static int get_chunk(struct in *i, struct transfer_chunk *ret, const char *what, struct diag *diag)
{
	struct transfer_chunk m = { .index = le32_get(get(i, 4)) };
	uint32_t codec = le32_get(get(i, 4));

	m.codec = codec;
	m.base_index = le32_get(get(i, 4));
	m.payload_len = le32_get(get(i, 4));
	m.offset = le32_get(get(i, 4));
	memcpy(m.check, get(i, 8), 8);
	if (i->bad)
		return bad(diag, what, "cut off");
	if (codec >= TRANSFER_CODEC_COUNT)
		return bad(diag, what, "unknown codec");
	if (m.payload_len == 0 || m.payload_len > TRANSFER_PAYLOAD_MAX || m.offset >= m.payload_len)
		return bad(diag, what, "lengths out of bounds");
	*ret = m;
	return 0;
}

int transfer_decode_partial(const uint8_t *body, size_t len, struct transfer_partial *ret,
			    struct diag *diag)
{
	struct in i = { body, len, 0, false };
	struct transfer_partial m;
	int r = get_chunk(&i, &m.chunk, "partial", diag);

	if (r == 0)
		r = done(&i, "partial", diag);
	if (r == 0)
		*ret = m;
	return r;
}

int transfer_decode_chunk(const uint8_t *body, size_t body_len, struct transfer_chunk *ret,
			  struct diag *diag)
{
	struct in i = { body, body_len < TRANSFER_CHUNK_BODY_LEN ? body_len : TRANSFER_CHUNK_BODY_LEN, 0, false };
	struct transfer_chunk m;
	int r = get_chunk(&i, &m, "chunk", diag);

	if (r < 0)
		return r;
	if (body_len - TRANSFER_CHUNK_BODY_LEN != m.payload_len - m.offset)
		return bad(diag, "chunk", "the frame's length does not fit the payload");
	*ret = m;
	return 0;
}

int transfer_decode_ready(const uint8_t *body, size_t len, struct transfer_ready *ret,
			  struct diag *diag)
{
	struct in i = { body, len, 0, false };
	struct transfer_ready m = { .lacking = le64_get(get(&i, 8)) };
	int r;

	m.lacking_bytes = le64_get(get(&i, 8));
	m.base = *get(&i, 1);
	r = done(&i, "ready", diag);
	if (r < 0)
		return r;
	if (m.base != 0xff && m.base >= TRANSFER_BASES_MAX)
		return bad(diag, "ready", "base out of bounds");
	*ret = m;
	return 0;
}

int transfer_decode_nak(const uint8_t *body, size_t len, uint32_t *ret, struct diag *diag)
{
	struct in i = { body, len, 0, false };
	uint32_t index = le32_get(get(&i, 4));
	int r = done(&i, "nak", diag);

	if (r == 0)
		*ret = index;
	return r;
}

int transfer_decode_progress(const uint8_t *body, size_t len, struct transfer_progress *ret,
			     struct diag *diag)
{
	struct in i = { body, len, 0, false };
	struct transfer_progress m = { .chunks = le64_get(get(&i, 8)) };
	int r;

	m.bytes = le64_get(get(&i, 8));
	r = done(&i, "progress", diag);
	if (r == 0)
		*ret = m;
	return r;
}

int transfer_decode_end(const uint8_t *body, size_t len, uint64_t *ret, struct diag *diag)
{
	struct in i = { body, len, 0, false };
	uint64_t chunks = le64_get(get(&i, 8));
	int r = done(&i, "end", diag);

	if (r == 0)
		*ret = chunks;
	return r;
}

int transfer_decode_committed(const uint8_t *body, size_t len, uint8_t ret[32], struct diag *diag)
{
	struct in i = { body, len, 0, false };
	const uint8_t *p = get(&i, 32);
	int r = done(&i, "committed", diag);

	if (r == 0)
		memcpy(ret, p, 32);
	return r;
}

int transfer_decode_fail(const uint8_t *body, size_t len, struct transfer_fail *ret,
			 struct diag *diag)
{
	struct in i = { body, len, 0, false };
	uint32_t code = le16_get(get(&i, 2));
	size_t n = le16_get(get(&i, 2));
	struct transfer_fail m = { .code = TRANSFER_E_PROTOCOL };

	if (i.bad || n > TRANSFER_TEXT_MAX || n != len - i.at)
		return bad(diag, "fail", "text out of bounds");
	/* A newer peer may know more reasons; none of them is "ok". */
	if (code > TRANSFER_OK && code < TRANSFER_CODE_COUNT)
		m.code = (enum transfer_code)code;
	for (size_t k = 0; k < n; k++) /* it ends in logs and terminals */
		m.text[k] = body[i.at + k] < 0x20 || body[i.at + k] == 0x7f ? '?' : (char)body[i.at + k];
	*ret = m;
	return 0;
}
