/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest's output, from the file that its shim appends to, to the
 * coordinator: (epoch, offset, bytes), sent again from the last acknowledged
 * byte on each new connection. At most OUTPUT_AHEAD_MAX bytes travel ahead of
 * the acknowledgement; the file is the buffer.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/base64.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"

#define OUTPUT_AHEAD_MAX (8u * CONTROL_OUTPUT_MAX)
#define OUTPUT_TAIL_MAX  65536u

_Static_assert(BASE64_LEN(OUTPUT_TAIL_MAX) + 4096 < IMAGE_META_MAX, "a tail fits into an image's meta");

static int output_open(struct guest *g)
{
	if (g->output_fd >= 0)
		return 0;
	char path[PATH_MAX];
	int r = path_format(path, sizeof(path), "%s/output.log", g->dir);
	if (r < 0)
		return r;
	g->output_fd = open(path, O_RDONLY | O_CLOEXEC);
	return g->output_fd < 0 ? -errno : 0;
}

uint64_t output_size(const struct guest *g)
{
	char path[PATH_MAX];
	struct stat st;
	if (path_format(path, sizeof(path), "%s/output.log", g->dir) < 0 || stat(path, &st) < 0)
		return 0;
	return (uint64_t)st.st_size;
}

static int output_send(struct agent *a, const char *job, uint64_t epoch, uint64_t offset,
		       const unsigned char *bytes, size_t len)
{
	char text[CONTROL_OUTPUT_MAX / 3 * 4 + 8];
	(void)EVP_EncodeBlock((unsigned char *)text, bytes, (int)len);
	struct control_message m = {
		.type = CONTROL_OUTPUT,
		.output = { .job = (char *)job, .epoch = epoch, .offset = offset, .data = text },
	};
	return link_send(a, &m);
}

void output_pump(struct guest *g)
{
	if (!link_is_up(g->agent) || output_open(g) < 0)
		return;
	unsigned char bytes[CONTROL_OUTPUT_MAX];
	while (g->output_sent - g->output_acked < OUTPUT_AHEAD_MAX) {
		ssize_t n = pread(g->output_fd, bytes, sizeof(bytes), (off_t)g->output_sent);
		if (n <= 0 || output_send(g->agent, g->job, g->epoch, g->output_sent, bytes, (size_t)n) < 0)
			return;
		g->output_sent += (uint64_t)n;
	}
}

void output_acked(struct guest *g, uint64_t offset)
{
	if (offset > g->output_acked && offset <= output_size(g))
		g->output_acked = offset;
	/* The coordinator may know more than we remember (our restart). */
	if (g->output_sent < g->output_acked)
		g->output_sent = g->output_acked;
	output_pump(g);
	guest_tell_end(g);
}

void output_rewind(struct agent *a)
{
	for (struct guest *g = a->guests; g; g = g->next) {
		g->output_sent = g->output_acked;
		output_pump(g);
	}
}

bool output_drained(const struct guest *g)
{
	return g->output_acked >= output_size(g);
}

/* ---- the end of it, with an image ---- */

json_t *output_tail(struct guest *g)
{
	uint64_t end = output_size(g), at = g->output_acked;
	if (end <= at || output_open(g) < 0)
		return NULL;
	if (end - at > OUTPUT_TAIL_MAX)
		at = end - OUTPUT_TAIL_MAX; /* the coordinator may have more than it has said */
	unsigned char bytes[OUTPUT_TAIL_MAX];
	char text[BASE64_LEN(OUTPUT_TAIL_MAX) + 1];
	ssize_t n = pread(g->output_fd, bytes, (size_t)(end - at), (off_t)at);
	if (n <= 0)
		return NULL;
	(void)base64url_encode(bytes, (size_t)n, text);
	return json_pack("{s:I,s:s}", "at", (json_int_t)at, "data", text);
}

/* Comes from another machine: what is not such a tail is left alone. */
void output_tail_tell(struct agent *a, const char *job, uint64_t epoch, const json_t *meta)
{
	const json_t *tail = json_object_get(meta, "output");
	const char *text = json_string_value(json_object_get(tail, "data"));
	json_int_t at = json_integer_value(json_object_get(tail, "at"));
	unsigned char bytes[OUTPUT_TAIL_MAX];
	int64_t n = text && at >= 0 ? base64url_decode(text, strlen(text), bytes, sizeof(bytes)) : 0;
	for (int64_t i = 0; i < n; i += CONTROL_OUTPUT_MAX)
		if (output_send(a, job, epoch, (uint64_t)at + (uint64_t)i, bytes + i,
				(size_t)MIN(n - i, (int64_t)CONTROL_OUTPUT_MAX)) < 0)
			return; /* again after the next welcome */
}

void output_tails_tell(struct agent *a)
{
	struct image_info *list = NULL;
	size_t n = 0;
	if (image_list(a->images, NULL, &list, &n, NULL) < 0)
		return;
	while (n-- > 0) { /* the oldest first: what comes behind a gap is not taken */
		CLEANUP_JSON json_t *meta = link_image_meta(a, list[n].job, list[n].digest);
		output_tail_tell(a, list[n].job, list[n].epoch, meta);
	}
	free(list);
}
