/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row per frame type says which fields it has; encoder and decoder walk
 * the row in the order of the bits below. A new field gets a new bit at the
 * end, so that old frames keep their bytes.
 */
#include "wire/stream_frame.h"

#include <errno.h>

#include "base/check.h"

enum {
	F_HANDLE = 1 << 0,
	F_COUNT = 1 << 1,
	F_EPOCH = 1 << 2,
	F_SEQ = 1 << 3,
	F_STABLE = 1 << 4,
	F_LIMIT = 1 << 5,
	F_HID = 1 << 6,
	F_TOTAL = 1 << 7,
	F_OFFSET = 1 << 8,
	F_CODE = 1 << 9,
	F_PRODUCER_EPOCH = 1 << 10,
	F_STREAM = 1 << 11,
	F_LEVEL = 1 << 12,
	F_KIND = 1 << 13,
	F_NAME = 1 << 14,
	F_PRODUCER = 1 << 15,
	F_LOCATOR = 1 << 16,
	F_TICKET = 1 << 17,
	F_PAYLOAD = 1 << 18, /* the body goes on past the fields */
};

static const struct {
	const char *name;
	unsigned fields;
} rows[STREAM_FRAME_COUNT] = {
	[STREAM_FRAME_HELLO] = { "HELLO", F_CODE | F_PRODUCER },
	[STREAM_FRAME_ATTACH] = { "ATTACH", F_HANDLE | F_EPOCH | F_SEQ | F_STABLE |
				  F_PRODUCER_EPOCH | F_STREAM | F_LEVEL | F_NAME | F_PRODUCER |
				  F_TICKET },
	[STREAM_FRAME_WELCOME] = { "WELCOME", F_HANDLE | F_EPOCH | F_SEQ | F_STABLE | F_LIMIT |
				   F_OFFSET },
	[STREAM_FRAME_NACK] = { "NACK", F_HANDLE | F_EPOCH | F_CODE },
	[STREAM_FRAME_RUN] = { "RUN", F_HANDLE | F_COUNT | F_EPOCH | F_SEQ | F_PAYLOAD },
	[STREAM_FRAME_FRAG] = { "FRAG", F_HANDLE | F_COUNT | F_EPOCH | F_SEQ | F_TOTAL | F_OFFSET |
				F_PAYLOAD },
	[STREAM_FRAME_ACK] = { "ACK", F_HANDLE | F_EPOCH | F_SEQ | F_STABLE | F_LIMIT },
	[STREAM_FRAME_FREEZE] = { "FREEZE", F_HANDLE | F_EPOCH | F_SEQ },
	[STREAM_FRAME_RESUME] = { "RESUME", F_HANDLE | F_EPOCH | F_SEQ | F_LIMIT },
	[STREAM_FRAME_PREPARE] = { "PREPARE", F_EPOCH | F_NAME | F_LOCATOR },
	[STREAM_FRAME_ABORT] = { "ABORT", F_HANDLE | F_CODE },
	[STREAM_FRAME_CLOSE] = { "CLOSE", F_HANDLE | F_EPOCH | F_SEQ },
	[STREAM_FRAME_BEAT] = { "BEAT", F_EPOCH | F_LIMIT | F_CODE },
	[STREAM_FRAME_OFFER] = { "OFFER", F_EPOCH | F_HID | F_NAME | F_PRODUCER | F_TICKET },
	[STREAM_FRAME_READY] = { "READY", F_HID | F_CODE },
	[STREAM_FRAME_STATE] = { "STATE", F_HID | F_KIND | F_PAYLOAD },
	[STREAM_FRAME_CUT] = { "CUT", F_HID | F_LIMIT | F_STABLE | F_SEQ },
	[STREAM_FRAME_MOVED] = { "MOVED", F_HID | F_EPOCH | F_CODE },
};

static const char *const class_names[STREAM_CLASS_COUNT] = { "control", "token", "activation",
							     "bulk" };
static const char *const nack_names[STREAM_NACK_COUNT] = {
	"none", "moved", "stale", "frozen", "unknown", "refused", "lost",
};

const char *stream_frame_name(unsigned type)
{
	return type < STREAM_FRAME_COUNT && rows[type].name ? rows[type].name : "?";
}

const char *stream_class_name(unsigned cls)
{
	return cls < STREAM_CLASS_COUNT ? class_names[cls] : "?";
}

const char *stream_nack_name(unsigned code)
{
	return code < STREAM_NACK_COUNT ? nack_names[code] : "?";
}

static bool name_ok(const char *name, size_t len)
{
	if (len == 0 || len > STREAM_NAME_MAX || name[0] == '.')
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		      (c && strchr("-_./:", c))))
			return false;
	}
	return true;
}

bool stream_name_valid(const char *name)
{
	return name_ok(name, strnlen(name, STREAM_NAME_MAX + 1));
}

static void put_text(struct bytes_out *o, const char *text, size_t max)
{
	size_t n = strnlen(text, max + 1);

	if (n > max) {
		o->failed = true;
		return;
	}
	bytes_out_u8(o, (uint8_t)n);
	bytes_out_raw(o, text, n);
}

static void get_text(struct bytes_in *in, char *ret, size_t max)
{
	size_t n = bytes_in_u8(in);
	const uint8_t *p = n <= max ? bytes_in_grab(in, n) : NULL;

	ret[0] = '\0';
	if (!p || memchr(p, 0, n)) {
		in->failed = true;
		return;
	}
	memcpy(ret, p, n);
	ret[n] = '\0';
}

int stream_frame_encode(const struct stream_frame *f, struct bytes_out *out)
{
	size_t start = out->len;

	if (f->type == 0 || f->type >= STREAM_FRAME_COUNT || f->cls >= STREAM_CLASS_COUNT)
		return -EINVAL;
	unsigned m = rows[f->type].fields;

	bytes_out_u8(out, f->type);
	bytes_out_u8(out, f->cls);
	bytes_out_u16(out, 0);
	bytes_out_u32(out, 0);
	if (m & F_HANDLE)
		bytes_out_u32(out, f->handle);
	if (m & F_COUNT)
		bytes_out_u32(out, f->count);
	if (m & F_EPOCH)
		bytes_out_u64(out, f->epoch);
	if (m & F_SEQ)
		bytes_out_u64(out, f->seq);
	if (m & F_STABLE)
		bytes_out_u64(out, f->stable);
	if (m & F_LIMIT)
		bytes_out_u64(out, f->limit);
	if (m & F_HID)
		bytes_out_u64(out, f->hid);
	if (m & F_TOTAL)
		bytes_out_u32(out, f->total);
	if (m & F_OFFSET)
		bytes_out_u32(out, f->offset);
	if (m & F_CODE)
		bytes_out_u32(out, f->code);
	if (m & F_PRODUCER_EPOCH)
		bytes_out_u64(out, f->producer_epoch);
	if (m & F_STREAM)
		bytes_out_u32(out, f->stream);
	if (m & F_LEVEL)
		bytes_out_u8(out, f->level);
	if (m & F_KIND)
		bytes_out_u8(out, f->kind);
	if (m & F_NAME)
		put_text(out, f->name, STREAM_NAME_MAX);
	if (m & F_PRODUCER)
		put_text(out, f->producer, STREAM_NAME_MAX);
	if (m & F_LOCATOR)
		put_text(out, f->locator, STREAM_LOCATOR_MAX);
	if (m & F_TICKET)
		bytes_out_blob(out, f->blob, f->blob_len);
	if (m & F_PAYLOAD)
		bytes_out_raw(out, f->blob, f->blob_len);
	if (out->failed) {
		out->len = start;
		return -ENOBUFS;
	}
	store_le32(out->data + start + 4, (uint32_t)(out->len - start - STREAM_FRAME_HEAD));
	return 0;
}

static void decode_fields(unsigned m, struct bytes_in *in, struct stream_frame *f)
{
	if (m & F_HANDLE)
		f->handle = bytes_in_u32(in);
	if (m & F_COUNT)
		f->count = bytes_in_u32(in);
	if (m & F_EPOCH)
		f->epoch = bytes_in_u64(in);
	if (m & F_SEQ)
		f->seq = bytes_in_u64(in);
	if (m & F_STABLE)
		f->stable = bytes_in_u64(in);
	if (m & F_LIMIT)
		f->limit = bytes_in_u64(in);
	if (m & F_HID)
		f->hid = bytes_in_u64(in);
	if (m & F_TOTAL)
		f->total = bytes_in_u32(in);
	if (m & F_OFFSET)
		f->offset = bytes_in_u32(in);
	if (m & F_CODE)
		f->code = bytes_in_u32(in);
	if (m & F_PRODUCER_EPOCH)
		f->producer_epoch = bytes_in_u64(in);
	if (m & F_STREAM)
		f->stream = bytes_in_u32(in);
	if (m & F_LEVEL)
		f->level = bytes_in_u8(in);
	if (m & F_KIND)
		f->kind = bytes_in_u8(in);
	if (m & F_NAME)
		get_text(in, f->name, STREAM_NAME_MAX);
	if (m & F_PRODUCER)
		get_text(in, f->producer, STREAM_NAME_MAX);
	if (m & F_LOCATOR)
		get_text(in, f->locator, STREAM_LOCATOR_MAX);
	if (m & F_TICKET)
		f->blob = bytes_in_blob(in, STREAM_TICKET_MAX, &f->blob_len);
}

/* The length of the fixed part of a frame with a payload. */
static size_t fixed_len(unsigned type)
{
	switch (type) {
	case STREAM_FRAME_RUN:
		return STREAM_RUN_HEAD;
	case STREAM_FRAME_FRAG:
		return STREAM_FRAG_HEAD;
	default:
		return STREAM_FRAME_HEAD + 9; /* STATE: hid, kind */
	}
}

static bool frame_sane(const struct stream_frame *f, unsigned m, uint32_t payload)
{
	if ((m & F_NAME) && !name_ok(f->name, strlen(f->name)))
		return false;
	if ((m & F_PRODUCER) && !name_ok(f->producer, strlen(f->producer)))
		return false;
	if ((m & F_KIND) && f->kind >= STREAM_STATE_KIND_COUNT)
		return false;
	if (f->type == STREAM_FRAME_RUN)
		/* every record has a head, seq starts at 1 and never wraps */
		return f->count > 0 && f->seq > 0 && f->seq < UINT64_MAX - f->count &&
		       (uint64_t)f->count * STREAM_RECORD_HEAD <= payload;
	if (f->type == STREAM_FRAME_FRAG)
		return f->seq > 0 && f->count == 0 && f->total <= STREAM_MESSAGE_MAX && payload > 0 &&
		       (uint64_t)f->offset + payload <= f->total;
	return true;
}

int stream_frame_decode(const uint8_t *data, size_t len, struct stream_frame *ret,
			uint32_t *ret_payload)
{
	if (len < STREAM_FRAME_HEAD)
		return 0;
	unsigned type = data[0];
	uint32_t body = load_le32(data + 4);

	if (type == 0 || type >= STREAM_FRAME_COUNT || data[1] >= STREAM_CLASS_COUNT || data[2] ||
	    data[3])
		return -EBADMSG;
	unsigned m = rows[type].fields;
	size_t need = STREAM_FRAME_HEAD + (size_t)body;
	uint32_t payload = 0;

	if (m & F_PAYLOAD) {
		size_t fixed = fixed_len(type);

		if (need < fixed || need - fixed > STREAM_BODY_MAX)
			return -EBADMSG;
		payload = (uint32_t)(need - fixed);
		need = fixed;
	} else if (body > STREAM_SMALL_MAX) {
		return -EBADMSG;
	}
	if (len < need)
		return 0;

	struct stream_frame f = { .type = (uint8_t)type, .cls = data[1] };
	struct bytes_in in = { .data = data, .len = need, .pos = STREAM_FRAME_HEAD };

	decode_fields(m, &in, &f);
	if (in.failed || in.pos != need || !frame_sane(&f, m, payload))
		return -EBADMSG;
	*ret = f;
	*ret_payload = payload;
	return (int)need;
}
