/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/message.h"

#include <errno.h>
#include <string.h>

static const char *const type_names[] = {
	"receive", "send", "fetch", "fence", "drop", "serve", "rate", "class", "cancel",
	"listening", "started", "received", "progress", "done", "failed", NULL,
};

#define STR(m) FIELD_STR(struct message, m, 16384)
#define U64(m) FIELD_U64(struct message, m, 0, 0)

static const struct schema_field fields[] = {
	FIELD_ENUM(struct message, type, type_names, .flags = FIELD_REQUIRED),
	STR(store), STR(identity), STR(host), STR(bind), STR(ticket), STR(job), STR(image), STR(key),
	STR(from), STR(serial), STR(code), STR(where), STR(what),
	U64(port), U64(reserve), U64(sessions), U64(traffic_class), U64(floor_bps), U64(rate_max_bps),
	U64(mark_tag), U64(retry_ms), U64(streams), U64(epoch), U64(seq), U64(bytes_total),
	U64(bytes_wire), U64(bytes_stored), U64(bytes_done), U64(chunks_done), U64(chunks_total),
	U64(chunks_delta), U64(chunks_zstd), U64(ms), U64(rate_bps), U64(rtt_us), U64(queue_us),
	U64(reconnects), U64(rss_bytes), U64(cpu_us),
	FIELD_BOOL(struct message, serve), FIELD_BOOL(struct message, hold_only),
	FIELD_END,
};
const struct schema message_schema = SCHEMA(struct message, "transfer helper message", fields);

char *message_format(const struct message *m, size_t *ret_len)
{
	json_t *json = schema_encode(&message_schema, m);
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL, *line = NULL;
	size_t len;

	json_decref(json);
	if (!text)
		return NULL;
	len = strlen(text);
	line = realloc(text, len + 2);
	if (!line) {
		free(text);
		return NULL;
	}
	memcpy(line + len, "\n", 2);
	*ret_len = len + 1;
	return line;
}

int message_parse(const char *line, size_t len, struct message *ret, struct diag *diag)
{
	json_error_t e;
	json_t *json = json_loadb(line, len, JSON_REJECT_DUPLICATES, &e);
	int r;

	if (!json)
		return diag_set(diag, -EINVAL, "message", "%s", e.text);
	r = schema_decode(&message_schema, json, SCHEMA_OPEN, NULL, ret, diag);
	json_decref(json);
	return r;
}

void message_done(struct message *m)
{
	if (m->key)
		explicit_bzero(m->key, strlen(m->key));
	schema_done(&message_schema, m);
}
