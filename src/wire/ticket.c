/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Body: u8 version 1, u8 use, u8 class, u8 flags (1 image_any, 2 hold_only),
 * u64 epoch, u64 remaining_ms, u64 floor_bps, 32 bytes image, then six texts,
 * each a u8 length and its bytes: serial, job, source, source_digest,
 * destination, destination_digest. Nothing after.
 */
#include "wire/ticket.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/base64.h"
#include "base/file.h"
#include "base/le.h"
#include "base/parse.h"

#define BODY_VERSION 1
#define FLAG_IMAGE_ANY 1
#define FLAG_HOLD_ONLY 2
#define FIXED_LEN 60

const char *const ticket_use_names[] = { "none", "move", "stage", "fetch", "standby", NULL };

static bool digest_ok(const char *hex)
{
	uint8_t buf[32];

	return !*hex || (strlen(hex) == TICKET_DIGEST_HEX && hex_decode(hex, 64, buf, 32) == 0);
}

static int check(const struct ticket *t, int err, struct diag *diag)
{
	if (t->use < TICKET_MOVE || t->use >= TICKET_USE_COUNT)
		return diag_set(diag, err, "ticket", "unknown use");
	if (t->traffic_class < TRAFFIC_CONTROL || t->traffic_class >= TRAFFIC_CLASS_COUNT)
		return diag_set(diag, err, "ticket", "unknown traffic class");
	if (!name_is_plain(t->serial))
		return diag_set(diag, err, "ticket", "the serial is not a plain name");
	if (!name_is_plain(t->job) || !name_is_plain(t->source) || !name_is_plain(t->destination))
		return diag_set(diag, err, "ticket", "job, source or destination is not a plain name");
	if (!digest_ok(t->source_digest) || !digest_ok(t->destination_digest))
		return diag_set(diag, err, "ticket", "a certificate's digest is not 64 hexadecimal digits");
	return 0;
}

static const struct {
	size_t offset, max;
} texts[] = {
	{ offsetof(struct ticket, serial), TICKET_SERIAL_MAX },
	{ offsetof(struct ticket, job), TICKET_NAME_MAX },
	{ offsetof(struct ticket, source), TICKET_NAME_MAX },
	{ offsetof(struct ticket, source_digest), TICKET_DIGEST_HEX },
	{ offsetof(struct ticket, destination), TICKET_NAME_MAX },
	{ offsetof(struct ticket, destination_digest), TICKET_DIGEST_HEX },
};
#define TEXT_COUNT (sizeof(texts) / sizeof(texts[0]))

int ticket_encode_body(const struct ticket *t, uint8_t *buf, size_t buf_size, size_t *ret_len,
		       struct diag *diag)
{
	size_t at = FIXED_LEN;
	int r = check(t, -EINVAL, diag);

	if (r < 0)
		return r;
	if (buf_size < FIXED_LEN)
		return -ENOBUFS;
	buf[0] = BODY_VERSION;
	buf[1] = (uint8_t)t->use;
	buf[2] = (uint8_t)t->traffic_class;
	buf[3] = (uint8_t)((t->image_any ? FLAG_IMAGE_ANY : 0) | (t->hold_only ? FLAG_HOLD_ONLY : 0));
	le64_put(buf + 4, t->epoch);
	le64_put(buf + 12, t->remaining_ms);
	le64_put(buf + 20, t->floor_bps);
	memset(buf + 28, 0, 32);
	if (!t->image_any)
		memcpy(buf + 28, t->image, 32);
	for (size_t i = 0; i < TEXT_COUNT; i++) {
		const char *text = (const char *)t + texts[i].offset;
		size_t len = strnlen(text, texts[i].max + 1);

		if (len > texts[i].max)
			return diag_set(diag, -EINVAL, "ticket", "a name is too long");
		if (buf_size - at < len + 1)
			return -ENOBUFS;
		buf[at++] = (uint8_t)len;
		memcpy(buf + at, text, len);
		at += len;
	}
	*ret_len = at;
	return 0;
}

int ticket_decode_body(const uint8_t *body, size_t len, struct ticket *ret, struct diag *diag)
{
	struct ticket t = { 0 };
	size_t at = FIXED_LEN;
	int r;

	if (len < FIXED_LEN || len > TICKET_BODY_MAX || body[0] != BODY_VERSION)
		return diag_set(diag, -EBADMSG, "ticket", "not a ticket of this version");
	if (body[3] & ~(FLAG_IMAGE_ANY | FLAG_HOLD_ONLY))
		return diag_set(diag, -EBADMSG, "ticket", "unknown flags");
	t.use = body[1];
	t.traffic_class = body[2];
	t.image_any = body[3] & FLAG_IMAGE_ANY;
	t.hold_only = body[3] & FLAG_HOLD_ONLY;
	t.epoch = le64_get(body + 4);
	t.remaining_ms = le64_get(body + 12);
	t.floor_bps = le64_get(body + 20);
	memcpy(t.image, body + 28, 32);
	for (size_t i = 0; i < TEXT_COUNT; i++) {
		size_t n;

		if (at == len)
			return diag_set(diag, -EBADMSG, "ticket", "cut off");
		n = body[at++];
		if (n > texts[i].max || n > len - at || memchr(body + at, 0, n))
			return diag_set(diag, -EBADMSG, "ticket", "a name is out of bounds");
		memcpy((char *)&t + texts[i].offset, body + at, n);
		at += n;
	}
	if (at != len)
		return diag_set(diag, -EBADMSG, "ticket", "bytes after the end");
	r = check(&t, -EBADMSG, diag);
	if (r == 0)
		*ret = t;
	return r;
}

static const char text_prefix[] = "rt1.";

int ticket_format(const struct ticket_text *parts, char *buf, size_t buf_size)
{
	size_t need = sizeof(text_prefix) + BASE64_LEN(parts->body_len) + 1 +
		      BASE64_LEN(parts->signature_len) + 1 + BASE64_LEN(parts->cert_len);
	size_t at = sizeof(text_prefix) - 1;

	if (need > buf_size)
		return -ENOBUFS;
	memcpy(buf, text_prefix, at);
	at += base64url_encode(parts->body, parts->body_len, buf + at);
	buf[at++] = '.';
	at += base64url_encode(parts->signature, parts->signature_len, buf + at);
	buf[at++] = '.';
	base64url_encode(parts->cert, parts->cert_len, buf + at);
	return 0;
}

static int part_take(const char **text, char end, uint8_t *ret, size_t size, size_t *ret_len)
{
	const char *stop = end ? strchr(*text, end) : *text + strlen(*text);
	int64_t n;

	if (!stop)
		return -EBADMSG;
	n = base64url_decode(*text, (size_t)(stop - *text), ret, size);
	if (n <= 0)
		return -EBADMSG;
	*ret_len = (size_t)n;
	*text = end ? stop + 1 : stop;
	return 0;
}

int ticket_parse(const char *text, struct ticket_text *ret, struct diag *diag)
{
	struct ticket_text t = { .body_len = 0 };

	if (strnlen(text, TICKET_TEXT_MAX) == TICKET_TEXT_MAX ||
	    strncmp(text, text_prefix, sizeof(text_prefix) - 1) != 0)
		return diag_set(diag, -EBADMSG, "ticket", "not a ticket");
	text += sizeof(text_prefix) - 1;
	if (part_take(&text, '.', t.body, sizeof(t.body), &t.body_len) < 0 ||
	    part_take(&text, '.', t.signature, sizeof(t.signature), &t.signature_len) < 0 ||
	    part_take(&text, 0, t.cert, sizeof(t.cert), &t.cert_len) < 0)
		return diag_set(diag, -EBADMSG, "ticket", "its text is damaged");
	*ret = t;
	return 0;
}
