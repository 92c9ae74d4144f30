/* SPDX-License-Identifier: Apache-2.0 */
/* See frame.h. */
#include "volunteer/frame.h"

#include <errno.h>
#include <string.h>

static void put16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

static uint32_t get16(const uint8_t *p)
{
	return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t get32(const uint8_t *p)
{
	return get16(p) << 16 | get16(p + 2);
}

static uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

/* What stands before the variable part of each body. */
static const uint8_t body_size[FRAME_TYPE_COUNT] = {
	[FRAME_HELLO] = 8,   [FRAME_HELLO_ACK] = 16, [FRAME_LEND] = 20, [FRAME_RESULT] = 20,
	[FRAME_DEMAND] = 12, [FRAME_ACK] = 0,        [FRAME_CANCEL] = 8, [FRAME_BOUNCE] = 8,
	[FRAME_REPORT] = 8,  [FRAME_SIGNAL] = 20,    [FRAME_FILL] = 8,  [FRAME_CREDIT] = 8,
	[FRAME_BYE] = 0,
};

static int decode_part(struct frame *f, const uint8_t *b, size_t rest)
{
	f->value = get64(b);
	f->total = get32(b + 8);
	f->offset = get32(b + 12);
	f->ms = get32(b + 16);
	f->bytes = b + 20;
	f->len = rest;
	if (rest > FRAME_PART_MAX || f->offset > f->total || rest > f->total - f->offset)
		return -EBADMSG;
	/* An empty part says nothing, except that the whole is empty. */
	return rest == 0 && f->total != 0 ? -EBADMSG : 0;
}

static int decode_ids(struct frame *f, const uint8_t *b, size_t rest)
{
	if (rest % 8 != 0 || rest / 8 > FRAME_IDS_MAX)
		return -EBADMSG;
	f->ids = b;
	f->ids_count = rest / 8;
	return 0;
}

static int decode_body(struct frame *f, const uint8_t *b, size_t rest)
{
	switch (f->type) {
	case FRAME_HELLO:
		f->generation = get32(b);
		if (get32(b + 4) != FRAME_VERSION)
			return -EPROTO;
		break;
	case FRAME_HELLO_ACK:
		f->generation = get32(b);
		f->degree = get32(b + 4);
		f->peer = get64(b + 8);
		break;
	case FRAME_LEND:
	case FRAME_RESULT:
		return decode_part(f, b, rest);
	case FRAME_DEMAND:
		f->credit = get32(b);
		f->workers = get32(b + 4);
		f->generation = get32(b + 8);
		return decode_ids(f, b + 12, rest);
	case FRAME_ACK:
		return decode_ids(f, b, rest);
	case FRAME_CANCEL:
	case FRAME_BOUNCE:
		f->value = get64(b);
		break;
	case FRAME_REPORT:
		f->size = get32(b);
		f->height = get32(b + 4);
		break;
	case FRAME_SIGNAL:
		f->peer = get64(b);
		f->target = get64(b + 8);
		f->generation = get32(b + 16);
		f->bytes = b + 20;
		f->len = rest;
		return rest > FRAME_SIGNAL_MAX ? -EBADMSG : 0;
	case FRAME_FILL:
		f->peer = get64(b);
		break;
	case FRAME_CREDIT:
		f->consumed = get64(b);
		break;
	default:
		break;
	}
	return rest != 0 ? -EBADMSG : 0;
}

int frame_decode(const void *bytes, size_t len, struct frame *ret)
{
	const uint8_t *p = bytes;
	if (len > FRAME_MAX)
		return -EMSGSIZE;
	if (len < FRAME_HEADER || p[0] == FRAME_NONE || p[0] >= FRAME_TYPE_COUNT ||
	    (p[1] & ~(unsigned)FRAME_FLAGS_ALL))
		return -EBADMSG;
	struct frame f = { .type = (enum frame_type)p[0], .flags = p[1], .hops = get16(p + 2),
			   .node = get64(p + 4), .position = get64(p + 12) };
	size_t fixed = FRAME_HEADER + body_size[f.type];
	if (len < fixed)
		return -EBADMSG;
	int r = decode_body(&f, p + FRAME_HEADER, len - fixed);
	if (r == 0)
		*ret = f;
	return r;
}

uint64_t frame_id(const struct frame *f, size_t i)
{
	return get64(f->ids + 8 * i);
}

static size_t encode_ids(const struct frame *f, const uint64_t *ids, uint8_t *p)
{
	for (size_t i = 0; i < f->ids_count; i++)
		put64(p + 8 * i, ids[i]);
	return 8 * f->ids_count;
}

size_t frame_encode(const struct frame *f, const uint64_t *ids, uint8_t *buf)
{
	buf[0] = (uint8_t)f->type;
	buf[1] = (uint8_t)f->flags;
	put16(buf + 2, f->hops ? f->hops : FRAME_HOPS);
	put64(buf + 4, f->node);
	put64(buf + 12, f->position);
	uint8_t *b = buf + FRAME_HEADER;
	size_t more = 0;
	switch (f->type) {
	case FRAME_HELLO:
		put32(b, f->generation);
		put32(b + 4, FRAME_VERSION);
		break;
	case FRAME_HELLO_ACK:
		put32(b, f->generation);
		put32(b + 4, f->degree);
		put64(b + 8, f->peer);
		break;
	case FRAME_LEND:
	case FRAME_RESULT:
		put64(b, f->value);
		put32(b + 8, f->total);
		put32(b + 12, f->offset);
		put32(b + 16, f->ms);
		if (f->len > 0)
			memcpy(b + 20, f->bytes, f->len);
		more = f->len;
		break;
	case FRAME_DEMAND:
		put32(b, f->credit);
		put32(b + 4, f->workers);
		put32(b + 8, f->generation);
		more = encode_ids(f, ids, b + 12);
		break;
	case FRAME_ACK:
		more = encode_ids(f, ids, b);
		break;
	case FRAME_CANCEL:
	case FRAME_BOUNCE:
		put64(b, f->value);
		break;
	case FRAME_REPORT:
		put32(b, f->size);
		put32(b + 4, f->height);
		break;
	case FRAME_SIGNAL:
		put64(b, f->peer);
		put64(b + 8, f->target);
		put32(b + 16, f->generation);
		memcpy(b + 20, f->bytes, f->len);
		more = f->len;
		break;
	case FRAME_FILL:
		put64(b, f->peer);
		break;
	case FRAME_CREDIT:
		put64(b, f->consumed);
		break;
	default:
		break;
	}
	return FRAME_HEADER + body_size[f->type] + more;
}

bool frame_hop(uint8_t *bytes, size_t len)
{
	if (len < FRAME_HEADER)
		return false;
	uint32_t hops = get16(bytes + 2);
	if (hops == 0)
		return false;
	put16(bytes + 2, hops - 1);
	return true;
}
