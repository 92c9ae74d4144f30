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
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/file.h"

#define OUTPUT_AHEAD_MAX (8u * CONTROL_OUTPUT_MAX)

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

static int output_send(struct guest *g, const unsigned char *bytes, size_t len)
{
	char text[CONTROL_OUTPUT_MAX / 3 * 4 + 8];
	(void)EVP_EncodeBlock((unsigned char *)text, bytes, (int)len);
	struct control_message m = {
		.type = CONTROL_OUTPUT,
		.output = { .job = g->job, .epoch = g->epoch, .offset = g->output_sent, .data = text },
	};
	return link_send(g->agent, &m);
}

void output_pump(struct guest *g)
{
	if (!link_is_up(g->agent) || output_open(g) < 0)
		return;
	unsigned char bytes[CONTROL_OUTPUT_MAX];
	while (g->output_sent - g->output_acked < OUTPUT_AHEAD_MAX) {
		ssize_t n = pread(g->output_fd, bytes, sizeof(bytes), (off_t)g->output_sent);
		if (n <= 0 || output_send(g, bytes, (size_t)n) < 0)
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
