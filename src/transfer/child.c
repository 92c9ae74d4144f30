/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/program.h"

int child_program(const char *given, char *ret, size_t size, struct diag *diag)
{
	static const char *const places[] = { "", "../transfer", "../src/transfer", "../libexec/reclaim" };
	int r;

	if (given)
		return path_format(ret, size, "%s", given);
	r = program_find(NULL, places, ARRAY_SIZE(places), "reclaim-transfer", ret, size);
	return r == -ENOENT ? diag_set(diag, r, "reclaim-transfer", "not found near our own program") : r;
}

static void handle_closed(uv_handle_t *h)
{
	struct child *c = h->data;

	if (--c->handles == 0) {
		strbuf_done(&c->in);
		c->on_end(c);
	}
}

static void handle_close(void *h)
{
	if (!uv_is_closing(h))
		uv_close(h, handle_closed);
}

/* Both the end of the process and the end of its lines must have come: what it said last counts. */
static void end_if_done(struct child *c)
{
	if (!c->exited || uv_is_active((uv_handle_t *)&c->pipe))
		return;
	handle_close(&c->process);
	handle_close(&c->pipe);
	handle_close(&c->kill_timer);
}

static void on_process_exit(uv_process_t *p, int64_t status, int signal_number)
{
	struct child *c = p->data;

	c->exited = true;
	c->exit_status = status;
	c->term_signal = signal_number;
	end_if_done(c);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	buf->base = malloc(MESSAGE_LINE_MAX);
	buf->len = buf->base ? MESSAGE_LINE_MAX : 0;
}

static void lines_take(struct child *c)
{
	char *end;

	while (c->in.len && (end = memchr(c->in.data, '\n', c->in.len))) {
		size_t len = (size_t)(end - c->in.data);
		struct message m;

		if (message_parse(c->in.data, len, &m, NULL) == 0) {
			c->on_message(c, &m);
			message_done(&m);
		}
		strbuf_consume(&c->in, len + 1);
	}
	if (c->in.len > MESSAGE_LINE_MAX)
		strbuf_clear(&c->in); /* not one of our helpers' lines */
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct child *c = s->data;

	if (n > 0 && strbuf_append(&c->in, buf->base, (size_t)n) == 0)
		lines_take(c);
	free(buf->base);
	if (n < 0) {
		uv_read_stop(s);
		end_if_done(c);
	}
}

int child_start(uv_loop_t *loop, const char *program, struct child *c, bool *ret_pending,
		struct diag *diag)
{
	char *argv[] = { (char *)(uintptr_t)program, NULL };
	uv_stdio_container_t stdio[4] = { { .flags = UV_IGNORE }, { .flags = UV_IGNORE },
					  { .flags = UV_INHERIT_FD, .data.fd = 2 },
					  { .flags = UV_CREATE_PIPE | UV_READABLE_PIPE | UV_WRITABLE_PIPE } };
	uv_process_options_t options = { .file = program, .args = argv, .stdio = stdio, .stdio_count = 4,
					 .exit_cb = on_process_exit };
	int r;

	memset(&c->in, 0, sizeof(c->in));
	c->exited = false;
	c->handles = 3;
	CHECK(uv_pipe_init(loop, &c->pipe, 0) == 0);
	CHECK(uv_timer_init(loop, &c->kill_timer) == 0);
	c->pipe.data = c->kill_timer.data = c->process.data = c;
	stdio[3].data.stream = (uv_stream_t *)&c->pipe;
	r = uv_spawn(loop, &c->process, &options);
	*ret_pending = true;
	if (r < 0) {
		diag_set(diag, r, program, "cannot start: %s", uv_strerror(r));
		c->exited = true;
		handle_close(&c->process);
		handle_close(&c->pipe);
		handle_close(&c->kill_timer);
		return r;
	}
	uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
	return 0;
}

struct line_write {
	uv_write_t req;
	char *line;
	size_t len;
};

static void on_written(uv_write_t *req, int status)
{
	struct line_write *w = CONTAINER_OF(req, struct line_write, req);

	explicit_bzero(w->line, w->len); /* it may hold a key */
	free(w->line);
	free(w);
}

void child_send(struct child *c, const struct message *m)
{
	struct line_write *w;
	uv_buf_t buf;

	if (c->exited || uv_is_closing((uv_handle_t *)&c->pipe))
		return;
	w = calloc(1, sizeof(*w));
	if (!w)
		return;
	w->line = message_format(m, &w->len);
	if (!w->line) {
		free(w);
		return;
	}
	buf = uv_buf_init(w->line, (unsigned)w->len);
	if (uv_write(&w->req, (uv_stream_t *)&c->pipe, &buf, 1, on_written) < 0)
		on_written(&w->req, -EPIPE);
}

static void on_kill(uv_timer_t *t)
{
	struct child *c = t->data;

	if (!c->exited)
		(void)uv_process_kill(&c->process, SIGKILL); /* gone by itself meanwhile */
}

void child_stop(struct child *c, unsigned grace_ms)
{
	if (c->exited || uv_is_closing((uv_handle_t *)&c->kill_timer))
		return;
	uv_timer_start(&c->kill_timer, on_kill, grace_ms, 0);
}

void child_describe(const struct child *c, char *buf, size_t size)
{
	if (c->term_signal)
		snprintf(buf, size, "reclaim-transfer was killed by signal %d", c->term_signal);
	else
		snprintf(buf, size, "reclaim-transfer ended with status %lld", (long long)c->exit_status);
}
