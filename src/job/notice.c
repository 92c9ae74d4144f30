/* SPDX-License-Identifier: Apache-2.0 */
#include "job/notice.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/schema.h"

static const char *const actions[] = { "none", "terminate", "none", "checkpoint" };

json_t *notice_document(const struct notice *n, uint64_t now_boot_ns, uint64_t now_wall_ms)
{
	uint64_t remaining_ns = n->deadline_ns > now_boot_ns ? n->deadline_ns - now_boot_ns : 0;
	uint64_t wall_ms = now_wall_ms + remaining_ns / NS_PER_MS;
	char time[CLOCK_TEXT_MAX];
	double remaining_s = round((double)remaining_ns / 1e6) / 1e3;

	/* Cloud programs parse the time as in AWS's example, whole seconds and Z. */
	(void)clock_format_wall(wall_ms, time);
	if (strlen(time) == 24)
		(void)strcpy(time + 19, "Z");
	if (n->kind != NOTICE_RECLAIM)
		return json_pack("{s:s,s:I,s:s}", "action", actions[n->kind], "epoch", (json_int_t)n->epoch,
				 "id", n->id ? n->id : "");
	return json_pack("{s:s,s:s,s:f,s:f,s:f,s:I,s:s}", "action", actions[n->kind], "time", time,
			 "remaining_s", remaining_s, "deadline", (double)wall_ms / 1e3, "window_s",
			 round((double)n->window_ns / 1e6) / 1e3, "epoch", (json_int_t)n->epoch, "id",
			 n->id ? n->id : "");
}

int notice_write(const char *path, const struct notice *n, uint64_t now_boot_ns, uint64_t now_wall_ms)
{
	CLEANUP_JSON json_t *doc = NULL;
	CLEANUP_FREE char *text = NULL;
	CLEANUP_STRBUF struct strbuf line = STRBUF_INIT;

	if (n->kind == NOTICE_NONE)
		return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
	doc = notice_document(n, now_boot_ns, now_wall_ms);
	text = doc ? json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
	if (!text || strbuf_add(&line, text) < 0 || strbuf_add(&line, "\n") < 0)
		return -ENOMEM;
	return file_write_atomic(path, line.data, line.len, 0644);
}

/* ---- the guest's socket ---- */

static const char *const op_names[] = { "none", "hello", "ack", "commit", "requeue", "notice", NULL };

static const struct schema_field request_fields[] = {
	FIELD_ENUM(struct guest_request, op, op_names, .flags = FIELD_REQUIRED),
	FIELD_STR(struct guest_request, name, 255),
	FIELD_U64(struct guest_request, step, 0, 9e18),
	FIELD_END,
};
static const struct schema request_schema = SCHEMA(struct guest_request, "request", request_fields);

int guest_request_decode(const char *line, size_t len, struct guest_request *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *obj = NULL;
	json_error_t err;

	if (len > GUEST_LINE_MAX)
		return diag_set(diag, -EINVAL, "request", "longer than %d bytes", GUEST_LINE_MAX);
	obj = json_loadb(line, len, JSON_REJECT_DUPLICATES, &err);
	if (!obj)
		return diag_set(diag, -EINVAL, "request", "not JSON at byte %d: %s", err.position, err.text);
	return schema_decode(&request_schema, obj, SCHEMA_OPEN, NULL, ret, diag);
}

void guest_request_done(struct guest_request *r)
{
	schema_done(&request_schema, r);
}
