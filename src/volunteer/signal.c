/* SPDX-License-Identifier: Apache-2.0 */
/* See signal.h. */
#include "volunteer/signal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "volunteer/sdp.h"

const char *const signal_type_names[SIGNAL_TYPE_COUNT + 1] = {
	"join", "welcome", "attach", "offer", "answer", "detached", "lost", "failed",
	"relay", "frame", "ping", "pong", "leave", "done", "error", NULL };
static const char *const mode_names[] = { "named", "local", NULL };
static const char *const kind_names[] = { "page", "native", NULL };

static const struct schema_field fields[] = {
	FIELD_ENUM(struct signal, type, signal_type_names, .flags = FIELD_REQUIRED,
		   .help = "which message"),
	FIELD_U64(struct signal, version, 0, 1000, .help = "join: protocol version"),
	FIELD_U64(struct signal, node, 0, 18446744073709551615.0,
		  .help = "welcome: your number; offer, answer, lost: the child's"),
	FIELD_U64(struct signal, position, 0, 9007199254740992.0,
		  .help = "breadth-first place in the tree"),
	FIELD_U64(struct signal, generation, 0, 4294967295.0, .help = "names the reservation"),
	FIELD_U64(struct signal, degree, 0, 16384, .help = "welcome: most children of a node"),
	FIELD_U64(struct signal, workers, 0, 4096, .help = "join: cores lent"),
	FIELD_ENUM(struct signal, mode, mode_names, .fallback = "named", .help = "welcome: routing"),
	FIELD_ENUM(struct signal, kind, kind_names, .fallback = "page", .help = "join: volunteer"),
	FIELD_STR(struct signal, invite, SIGNAL_TOKEN_MAX, .help = "join: invitation token"),
	FIELD_STR(struct signal, token, SIGNAL_TOKEN_MAX,
		  .help = "join: the node's own secret, the same at each attempt"),
	FIELD_STR(struct signal, sdp, SDP_MAX, .help = "one bundled offer or answer"),
	FIELD_STR(struct signal, data, 24576, .help = "frame: base64"),
	FIELD_STR(struct signal, what, 256, .help = "for people"),
	FIELD_JSON(struct signal, job, .help = "welcome: what is computed, for whom, ICE servers"),
	FIELD_END,
};
const struct schema signal_schema = SCHEMA(struct signal, "volunteer-signal", fields);

int signal_decode(const char *text, size_t len, struct signal *ret, struct diag *diag)
{
	json_error_t error;
	if (len > SIGNAL_MESSAGE_MAX)
		return diag_set(diag, -EMSGSIZE, "signal", "%zu bytes, more than %u", len,
				SIGNAL_MESSAGE_MAX);
	CLEANUP_JSON json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
	if (!json)
		return diag_set(diag, -EBADMSG, "signal", "%s", error.text);
	return schema_decode(&signal_schema, json, SCHEMA_OPEN, NULL, ret, diag);
}

/* What is zero is left out: every field's absence means zero to the other end. */
char *signal_encode(const struct signal *s)
{
	CLEANUP_JSON json_t *json = schema_encode(&signal_schema, s);
	if (!json)
		return NULL;
	static const struct {
		const char *name;
		size_t offset;
	} numbers[] = {
		{ "version", offsetof(struct signal, version) },
		{ "node", offsetof(struct signal, node) },
		{ "position", offsetof(struct signal, position) },
		{ "generation", offsetof(struct signal, generation) },
		{ "degree", offsetof(struct signal, degree) },
		{ "workers", offsetof(struct signal, workers) },
	};
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		uint64_t v;
		memcpy(&v, (const char *)s + numbers[i].offset, sizeof(v));
		if (v == 0)
			(void)json_object_del(json, numbers[i].name);
	}
	if (s->type != SIGNAL_WELCOME)
		(void)json_object_del(json, "mode");
	if (s->type != SIGNAL_JOIN)
		(void)json_object_del(json, "kind");
	return json_dumps(json, JSON_COMPACT);
}

void signal_done(struct signal *s)
{
	schema_done(&signal_schema, s);
}

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t base64_encode(const void *bytes, size_t len, char *ret)
{
	const uint8_t *p = bytes;
	char *out = ret;
	for (size_t i = 0; i < len; i += 3) {
		size_t left = len - i;
		uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
			     (left > 2 ? p[i + 2] : 0);
		*out++ = alphabet[v >> 18];
		*out++ = alphabet[v >> 12 & 63];
		*out++ = left > 1 ? alphabet[v >> 6 & 63] : '=';
		*out++ = left > 2 ? alphabet[v & 63] : '=';
	}
	*out = '\0';
	return (size_t)(out - ret);
}

static int value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

long base64_decode(const char *text, size_t len, void *ret, size_t cap)
{
	uint8_t *out = ret;
	size_t n = 0;
	if (len % 4 != 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i += 4) {
		bool last = i + 4 == len;
		size_t pad = last ? (size_t)(text[i + 3] == '=') + (text[i + 2] == '=') : 0;
		uint32_t v = 0;
		for (size_t k = 0; k < 4; k++) {
			int digit = k >= 4 - pad ? 0 : value_of(text[i + k]);
			if (digit < 0)
				return -EINVAL;
			v = v << 6 | (uint32_t)digit;
		}
		if (n + 3 - pad > cap)
			return -ENOBUFS;
		for (size_t k = 0; k < 3 - pad; k++)
			out[n++] = (uint8_t)(v >> (16 - 8 * k));
	}
	return (long)n;
}
