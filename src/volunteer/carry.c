/* SPDX-License-Identifier: Apache-2.0 */
/* See carry.h. */
#include "volunteer/carry.h"

#include <errno.h>

#include "base/schema.h"

static const char *const type_names[CARRY_TYPE_COUNT + 1] = {
	"map", "file", "ready", "opened", "text", "close", "refused", NULL };

static const struct schema_field fields[] = {
	FIELD_ENUM(struct carry, type, type_names, .flags = FIELD_REQUIRED, .help = "which message"),
	FIELD_U64(struct carry, version, 0, 1000, .help = "map: protocol version"),
	FIELD_U64(struct carry, socket, 0, 18446744073709551615.0, .help = "which volunteer's"),
	FIELD_STR(struct carry, invite, SIGNAL_TOKEN_MAX, .help = "map: what its volunteers show"),
	FIELD_STR(struct carry, path, 255, .help = "file: its name"),
	FIELD_STR(struct carry, kind, 64, .help = "file: content type"),
	FIELD_STR(struct carry, data, CARRY_PART_MAX / 3 * 4 + 4, .help = "file: base64"),
	FIELD_STR(struct carry, text, SIGNAL_MESSAGE_MAX, .help = "text: the message itself"),
	FIELD_STR(struct carry, origin, 512, .help = "ready: where volunteers open the page"),
	FIELD_STR(struct carry, what, 256, .help = "for people"),
	FIELD_BOOL(struct carry, more, .help = "file: another part follows"),
	FIELD_END,
};
const struct schema carry_schema = SCHEMA(struct carry, "volunteer-carry", fields);

int carry_decode(json_t *json, struct carry *ret, struct diag *diag)
{
	return schema_decode(&carry_schema, json, SCHEMA_OPEN, NULL, ret, diag);
}

json_t *carry_encode(const struct carry *c)
{
	return schema_encode(&carry_schema, c);
}

void carry_done(struct carry *c)
{
	schema_done(&carry_schema, c);
}
