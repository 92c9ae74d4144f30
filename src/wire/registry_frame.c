/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/registry_frame.h"

#include <errno.h>

static const char *const names[REGISTRY_OP_COUNT] = {
	"none",  "hello",   "join",  "renew", "route",   "prepare", "commit",
	"abort", "release", "store", "read",  "members", "list",    "view",
};

const char *registry_op_name(unsigned op)
{
	return op < REGISTRY_OP_COUNT ? names[op] : "?";
}

static void put_text(struct bytes_out *o, const char *text)
{
	size_t n = strlen(text);

	bytes_out_u8(o, (uint8_t)n);
	bytes_out_raw(o, text, n);
}

static void get_text(struct bytes_in *in, char *ret, size_t max, bool is_name)
{
	size_t n = bytes_in_u8(in);
	const uint8_t *p = n <= max ? bytes_in_grab(in, n) : NULL;

	if (!p || memchr(p, 0, n)) {
		in->failed = true;
		return;
	}
	memcpy(ret, p, n);
	ret[n] = '\0';
	if (is_name && n && !stream_name_valid(ret))
		in->failed = true;
}

int registry_frame_encode(const struct registry_frame *f, struct bytes_out *out)
{
	size_t start = out->len;

	bytes_out_u32(out, 0);
	bytes_out_u8(out, f->op);
	bytes_out_u8(out, f->flags);
	bytes_out_u8(out, f->state);
	bytes_out_u32(out, f->id);
	bytes_out_u32(out, (uint32_t)f->status);
	bytes_out_u32(out, f->ttl_ms);
	bytes_out_u64(out, f->instance);
	bytes_out_u64(out, f->epoch);
	bytes_out_u64(out, f->hid);
	bytes_out_u64(out, f->owner);
	bytes_out_u64(out, f->target);
	put_text(out, f->name);
	put_text(out, f->group);
	put_text(out, f->locator);
	put_text(out, f->token);
	bytes_out_raw(out, f->key, REGISTRY_KEY_LEN);
	bytes_out_blob(out, f->ticket, f->ticket_len);
	bytes_out_blob(out, f->body, f->body_len);
	if (out->failed) {
		out->len = start;
		return -ENOBUFS;
	}
	store_le32(out->data + start, (uint32_t)(out->len - start - 4));
	return 0;
}

int registry_frame_decode(const uint8_t *data, size_t len, struct registry_frame *ret)
{
	if (len < 4)
		return 0;
	uint32_t body = load_le32(data);
	if (body > REGISTRY_FRAME_MAX)
		return -EBADMSG;
	if (len < 4 + (size_t)body)
		return 0;

	struct bytes_in in = { .data = data, .len = 4 + (size_t)body, .pos = 4 };
	struct registry_frame *f = ret;
	const uint8_t *ticket;
	size_t ticket_len;

	memset(f, 0, offsetof(struct registry_frame, ticket));
	f->op = bytes_in_u8(&in);
	f->flags = bytes_in_u8(&in);
	f->state = bytes_in_u8(&in);
	f->id = bytes_in_u32(&in);
	f->status = (int32_t)bytes_in_u32(&in);
	f->ttl_ms = bytes_in_u32(&in);
	f->instance = bytes_in_u64(&in);
	f->epoch = bytes_in_u64(&in);
	f->hid = bytes_in_u64(&in);
	f->owner = bytes_in_u64(&in);
	f->target = bytes_in_u64(&in);
	get_text(&in, f->name, STREAM_NAME_MAX, true);
	get_text(&in, f->group, STREAM_NAME_MAX, true);
	get_text(&in, f->locator, STREAM_LOCATOR_MAX, false);
	get_text(&in, f->token, REGISTRY_TOKEN_MAX, false);
	bytes_in_raw(&in, f->key, REGISTRY_KEY_LEN);
	ticket = bytes_in_blob(&in, STREAM_TICKET_MAX, &ticket_len);
	f->ticket_len = (uint32_t)ticket_len;
	if (ticket)
		memcpy(f->ticket, ticket, ticket_len);
	f->body = bytes_in_blob(&in, REGISTRY_BODY_MAX, &f->body_len);
	if (in.failed || in.pos != in.len || f->op == 0 || f->op >= REGISTRY_OP_COUNT)
		return -EBADMSG;
	return (int)in.len;
}
