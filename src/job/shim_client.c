/* SPDX-License-Identifier: Apache-2.0 */
#include "job/shim_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/program.h"

#define TIMEOUT_NS (5 * NS_PER_S)
#define RETRY_MS 2

struct shim_client {
	uv_loop_t *loop;
	struct shim_callbacks callbacks;
	void *ctx;
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
	uv_pipe_t pipe;
	uv_timer_t timer;
	uv_process_t *process; /* NULL once reaped, or when adopted */
	uv_connect_t connect;
	bool pipe_open, timer_open, connected, greeted, lost, freed, adopting;
	unsigned handles;      /* that are not closed yet; the client goes with the last */
	uint64_t deadline_ns, next_id;
	struct strbuf in, queue; /* queue: lines that wait for the greeting */
	char read_buf[65536];
};

struct write_request {
	uv_write_t req;
	char data[];
};

static void connect_try(struct shim_client *c);

/* ---- end ---- */

static void client_release(struct shim_client *c)
{
	if (!c->freed || c->handles)
		return;
	strbuf_done(&c->in);
	strbuf_done(&c->queue);
	free(c);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct shim_client *c = h->data;

	c->handles--;
	client_release(c);
}

static void client_close(struct shim_client *c)
{
	if (c->pipe_open) {
		c->pipe_open = false;
		uv_close((uv_handle_t *)&c->pipe, on_handle_closed);
	}
	if (c->timer_open) {
		c->timer_open = false;
		uv_close((uv_handle_t *)&c->timer, on_handle_closed);
	}
}

static void client_lost(struct shim_client *c, int err, const char *what)
{
	if (c->lost || c->freed)
		return;
	c->lost = true;
	client_close(c);
	c->callbacks.on_lost(c->ctx, c, err, what);
}

static void on_process_closed(uv_handle_t *h)
{
	free(h);
}

void shim_client_free(struct shim_client *c)
{
	if (!c || c->freed)
		return;
	c->freed = true;
	if (c->process) {
		/* It lives on; its end will be reaped by the loop's SIGCHLD handling, into nothing. */
		c->process->data = NULL;
		c->process = NULL;
	}
	client_close(c);
	/* Handles that close will release it; without any, do it now. */
	client_release(c);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct shim_client *c = h->data;

	*buf = uv_buf_init(c->read_buf, sizeof(c->read_buf));
}

static int put(struct shim_client *c, const char *bytes, size_t len);

static void client_line(struct shim_client *c, const char *line, size_t len)
{
	struct shim_event event;
	struct diag diag = DIAG_INIT;
	char text[800];
	int r = shim_event_decode(line, len, &event, &diag);

	if (r < 0) {
		client_lost(c, -EPROTO, diag_format(&diag, text, sizeof(text)));
		return;
	}
	if (event.type == SHIM_EVENT_HELLO && !c->greeted) {
		c->greeted = true;
		if (c->queue.len && put(c, c->queue.data, c->queue.len) < 0)
			client_lost(c, -ENOMEM, "out of memory");
		strbuf_clear(&c->queue);
	}
	if (!c->lost)
		c->callbacks.on_event(c->ctx, c, &event);
	shim_event_done(&event);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
	struct shim_client *c = stream->data;
	size_t used = 0;
	char *nl;

	if (n == 0)
		return;
	if (n < 0) {
		client_lost(c, -EPIPE, n == UV_EOF ? "the shim is gone" : uv_strerror((int)n));
		return;
	}
	if (strbuf_append(&c->in, buf->base, (size_t)n) < 0) {
		client_lost(c, -ENOMEM, "out of memory");
		return;
	}
	/* A callback may free the client; memory stays until its handles are closed. */
	while (!c->lost && !c->freed && used < c->in.len &&
	       (nl = memchr(c->in.data + used, '\n', c->in.len - used))) {
		size_t len = (size_t)(nl - (c->in.data + used));

		client_line(c, c->in.data + used, len);
		used += len + 1;
	}
	if (c->lost || c->freed)
		return;
	strbuf_consume(&c->in, used);
	if (c->in.len > SHIM_LINE_MAX)
		client_lost(c, -EPROTO, "the shim sent a line that does not end");
}

/* ---- writing ---- */

static void on_written(uv_write_t *req, int status)
{
	struct shim_client *c = req->handle->data;

	free(CONTAINER_OF(req, struct write_request, req));
	if (status < 0 && status != UV_ECANCELED)
		client_lost(c, -EPIPE, uv_strerror(status));
}

static int put(struct shim_client *c, const char *bytes, size_t len)
{
	struct write_request *w = malloc(sizeof(*w) + len);
	uv_buf_t buf;
	int r;

	if (!w)
		return -ENOMEM;
	memcpy(w->data, bytes, len);
	buf = uv_buf_init(w->data, (unsigned)len);
	r = uv_write(&w->req, (uv_stream_t *)&c->pipe, &buf, 1, on_written);
	if (r < 0)
		free(w);
	return r;
}

uint64_t shim_client_send(struct shim_client *c, struct shim_command *cmd)
{
	CLEANUP_STRBUF struct strbuf line = STRBUF_INIT;
	int r;

	if (!c || c->lost || c->freed)
		return 0;
	cmd->id = ++c->next_id;
	r = shim_command_encode(cmd, &line);
	if (r == 0)
		r = c->greeted ? put(c, line.data, line.len) : strbuf_append(&c->queue, line.data, line.len);
	/* Secrets may be in it. */
	if (line.data)
		explicit_bzero(line.data, line.len);
	return r < 0 ? 0 : cmd->id;
}

/* ---- connecting ---- */

static void on_retry(uv_timer_t *t)
{
	connect_try(t->data);
}

static void connect_again(struct shim_client *c, int err)
{
	if (c->adopting || clock_boot_ns() >= c->deadline_ns) {
		client_lost(c, c->adopting ? err : -ETIMEDOUT,
			    c->adopting ? "no shim listens there" : "the shim did not come up");
		return;
	}
	(void)uv_timer_start(&c->timer, on_retry, RETRY_MS, 0);
}

static void on_greeting_late(uv_timer_t *t)
{
	struct shim_client *c = t->data;

	if (!c->greeted)
		client_lost(c, -ETIMEDOUT, "the shim did not greet");
}

static void on_connected(uv_connect_t *req, int status)
{
	struct shim_client *c = req->data;

	if (c->freed || c->lost)
		return;
	if (status < 0) {
		connect_again(c, status);
		return;
	}
	c->connected = true;
	(void)uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
	(void)uv_timer_start(&c->timer, on_greeting_late, TIMEOUT_NS / NS_PER_MS, 0);
}

static void on_pipe_reopen(uv_handle_t *h)
{
	struct shim_client *c = h->data;

	c->handles--;
	if (c->freed || c->lost) {
		client_release(c);
		return;
	}
	(void)uv_pipe_init(c->loop, &c->pipe, 0);
	c->pipe.data = c;
	c->pipe_open = true;
	c->handles++;
	uv_pipe_connect(&c->connect, &c->pipe, c->socket, on_connected);
}

static void connect_try(struct shim_client *c)
{
	/* libuv does not connect a pipe twice: a fresh one for each try. */
	c->pipe_open = false;
	uv_close((uv_handle_t *)&c->pipe, on_pipe_reopen);
}

static struct shim_client *client_new(uv_loop_t *loop, const struct shim_client_config *config,
				      const struct shim_callbacks *callbacks, void *ctx)
{
	struct shim_client *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->loop = loop;
	c->callbacks = *callbacks;
	c->ctx = ctx;
	c->deadline_ns = clock_boot_ns() + (config->timeout_ns ? config->timeout_ns : TIMEOUT_NS);
	(void)snprintf(c->socket, sizeof(c->socket), "%s", config->socket);
	(void)uv_pipe_init(loop, &c->pipe, 0);
	(void)uv_timer_init(loop, &c->timer);
	c->pipe.data = c->timer.data = c->connect.data = c;
	c->pipe_open = c->timer_open = true;
	c->handles = 2;
	return c;
}

static int config_check(const struct shim_client_config *config, struct diag *diag)
{
	if (strlen(config->socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return diag_set(diag, -ENAMETOOLONG, config->socket, "longer than a socket's path may be");
	return 0;
}

int shim_client_adopt(uv_loop_t *loop, const struct shim_client_config *config,
		      const struct shim_callbacks *callbacks, void *ctx, struct shim_client **ret,
		      struct diag *diag)
{
	struct shim_client *c;
	int r = config_check(config, diag);

	if (r < 0)
		return r;
	c = client_new(loop, config, callbacks, ctx);
	if (!c)
		return diag_set(diag, -ENOMEM, config->socket, "out of memory");
	c->adopting = true;
	uv_pipe_connect(&c->connect, &c->pipe, c->socket, on_connected);
	*ret = c;
	return 0;
}

/* ---- spawning ---- */

static void on_process_exit(uv_process_t *p, int64_t status, int signo)
{
	struct shim_client *c = p->data;

	uv_close((uv_handle_t *)p, on_process_closed);
	if (!c)
		return;
	c->process = NULL;
	/* Connected: the end of the stream tells, after all that it said. */
	if (!c->connected) {
		char what[100];

		(void)snprintf(what, sizeof(what), "reclaim-shim ended at once: %s %d", signo ? "signal" : "status",
			       signo ? signo : (int)status);
		client_lost(c, -EPIPE, what);
	}
}

static const char *shim_program(const char *given, char *buf, size_t buf_size)
{
	static const char *const places[] = { "", "../job", "../libexec/reclaim" };

	if (given)
		return given;
	return program_find(NULL, places, ARRAY_SIZE(places), "reclaim-shim", buf, buf_size) == 0 ?
		       buf : "reclaim-shim";
}

static int process_start(struct shim_client *c, const struct shim_client_config *config, struct diag *diag)
{
	CLEANUP_FD int log_fd = -1;
	char program_buf[4000];
	const char *program = shim_program(config->program, program_buf, sizeof(program_buf));
	char *args[] = { (char *)program, "--socket", c->socket, NULL };
	uv_stdio_container_t stdio[3] = { { .flags = UV_IGNORE }, { .flags = UV_IGNORE },
					  { .flags = UV_INHERIT_FD, .data.fd = 2 } };
	uv_process_options_t options = { .file = program, .args = args, .stdio_count = 3, .stdio = stdio,
					 .flags = UV_PROCESS_DETACHED, .exit_cb = on_process_exit };
	int r;

	if (config->log) {
		log_fd = open(config->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
		if (log_fd < 0)
			return diag_set(diag, -errno, config->log, "%s", strerror(errno));
		stdio[2].data.fd = log_fd;
	}
	c->process = calloc(1, sizeof(*c->process));
	if (!c->process)
		return diag_set(diag, -ENOMEM, "reclaim-shim", "out of memory");
	c->process->data = c;
	r = uv_spawn(c->loop, c->process, &options);
	if (r < 0) {
		/* libuv has initialised the handle even so. */
		uv_close((uv_handle_t *)c->process, on_process_closed);
		c->process = NULL;
		return diag_set(diag, r, program, "cannot be started: %s", uv_strerror(r));
	}
	/* A shim that outlives us must not keep our loop alive. */
	uv_unref((uv_handle_t *)c->process);
	return 0;
}

int shim_client_spawn(uv_loop_t *loop, const struct shim_client_config *config, const struct shim_start *start,
		      const struct shim_callbacks *callbacks, void *ctx, struct shim_client **ret,
		      struct diag *diag)
{
	struct shim_command cmd = { .type = SHIM_CMD_START, .start = *start };
	struct shim_client *c;
	int r = config_check(config, diag);

	if (r < 0)
		return r;
	c = client_new(loop, config, callbacks, ctx);
	if (!c)
		return diag_set(diag, -ENOMEM, config->socket, "out of memory");
	r = shim_client_send(c, &cmd) ? process_start(c, config, diag)
				      : diag_set(diag, -ENOMEM, config->socket, "out of memory");
	if (r < 0) {
		shim_client_free(c);
		return r;
	}
	(void)uv_timer_start(&c->timer, on_retry, RETRY_MS, 0);
	*ret = c;
	return 0;
}

/* ---- the usual commands ---- */

static uint64_t send_plain(struct shim_client *c, enum shim_command_type type)
{
	struct shim_command cmd = { .type = type };

	return shim_client_send(c, &cmd);
}

uint64_t shim_client_go(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_GO);
}

uint64_t shim_client_lease(struct shim_client *c, uint64_t lease_deadline_ns)
{
	struct shim_command cmd = { .type = SHIM_CMD_LEASE, .lease = { lease_deadline_ns } };

	return shim_client_send(c, &cmd);
}

uint64_t shim_client_notice(struct shim_client *c, const char *notice_id, const char *reason,
			    uint64_t deadline_ns, uint64_t window_ns)
{
	struct shim_command cmd = {
		.type = SHIM_CMD_NOTICE,
		.notice = { (char *)notice_id, (char *)reason, deadline_ns, window_ns },
	};

	return shim_client_send(c, &cmd);
}

uint64_t shim_client_cancel(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_CANCEL);
}

uint64_t shim_client_freeze(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_FREEZE);
}

uint64_t shim_client_thaw(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_THAW);
}

uint64_t shim_client_saved(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_SAVED);
}

uint64_t shim_client_signal(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_SIGNAL);
}

uint64_t shim_client_kill(struct shim_client *c, enum shim_end end, const char *reason)
{
	struct shim_command cmd = { .type = SHIM_CMD_KILL, .kill = { (char *)reason, (int)end } };

	return shim_client_send(c, &cmd);
}

uint64_t shim_client_dump(struct shim_client *c, const char *dir, bool leave_frozen)
{
	struct shim_command cmd = { .type = SHIM_CMD_DUMP, .dump = { (char *)dir, leave_frozen } };

	return shim_client_send(c, &cmd);
}

uint64_t shim_client_close(struct shim_client *c)
{
	return send_plain(c, SHIM_CMD_CLOSE);
}

/* ---- without a loop ---- */

/* The next line that is for us: 1 the reply or hello with our id, 0 another, or -errno. */
static int call_line(const char *line, size_t len, uint64_t id, struct shim_hello *ret_hello,
		     struct diag *diag)
{
	struct shim_event event;
	int r = shim_event_decode(line, len, &event, diag);

	if (r < 0)
		return r;
	if (event.id != id || (event.type != SHIM_EVENT_REPLY && event.type != SHIM_EVENT_HELLO)) {
		shim_event_done(&event);
		return 0;
	}
	r = 1;
	if (event.type == SHIM_EVENT_HELLO && ret_hello) {
		*ret_hello = event.hello;
		event.type = SHIM_EVENT_NONE; /* taken; released with shim_event_done() by the caller */
	}
	if (event.type == SHIM_EVENT_REPLY && event.reply.error)
		r = diag_set(diag, -EREMOTEIO, "shim", "%s", event.reply.error);
	shim_event_done(&event);
	return r;
}

static int call_connect(const char *socket_path, struct diag *diag)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return diag_set(diag, -errno, "socket", "%s", strerror(errno));
	if (strlen(socket_path) >= sizeof(sa.sun_path))
		return diag_set(diag, -ENAMETOOLONG, socket_path, "longer than a socket's path may be");
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", socket_path);
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return diag_set(diag, -errno, socket_path, "%s", strerror(errno));
	return TAKE_FD(fd);
}

int shim_call(const char *socket_path, struct shim_command *cmd, uint64_t timeout_ns,
	      struct shim_hello *ret_hello, struct diag *diag)
{
	uint64_t end = clock_boot_ns() + timeout_ns;
	CLEANUP_STRBUF struct strbuf line = STRBUF_INIT, in = STRBUF_INIT;
	CLEANUP_FD int fd = call_connect(socket_path, diag);

	if (fd < 0)
		return fd;
	cmd->id = 1;
	if (shim_command_encode(cmd, &line) < 0)
		return diag_set(diag, -ENOMEM, socket_path, "out of memory");
	if (send(fd, line.data, line.len, MSG_NOSIGNAL) != (ssize_t)line.len)
		return diag_set(diag, -EPIPE, socket_path, "the shim does not listen");
	for (;;) {
		uint64_t now = clock_boot_ns();
		struct pollfd pfd = { .fd = fd, .events = POLLIN };
		char buf[65536], *nl;
		ssize_t n;

		while (in.len && (nl = memchr(in.data, '\n', in.len))) {
			size_t len = (size_t)(nl - in.data);
			int r = call_line(in.data, len, cmd->id, ret_hello, diag);

			if (r != 0)
				return r < 0 ? r : 0;
			strbuf_consume(&in, len + 1);
		}
		if (now >= end || poll(&pfd, 1, (int)((end - now) / NS_PER_MS) + 1) == 0)
			return diag_set(diag, -ETIMEDOUT, socket_path, "no answer");
		n = read(fd, buf, sizeof(buf));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || strbuf_append(&in, buf, (size_t)n) < 0)
			return diag_set(diag, -EPIPE, socket_path, "the shim went away");
	}
}
