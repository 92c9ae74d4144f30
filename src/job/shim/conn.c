/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's and the owner's connections: who they are, their lines, our answers. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/point.h"
#include "job/shim/shim.h"

#define OUT_MAX (1u << 20) /* an agent that does not read is dropped; it will come again */
#define OWNER_GROUP "reclaim-owner"

static void conn_close(struct shim *s, struct conn *c)
{
	source_close(s, &c->src);
	strbuf_done(&c->in);
	strbuf_done(&c->out);
	*c = (struct conn){ .src.fd = -1 };
}

void conn_close_all(struct shim *s)
{
	for (size_t i = 0; i < SHIM_CONNS_MAX; i++)
		if (s->conns[i].src.fd >= 0)
			conn_close(s, &s->conns[i]);
	source_close(s, &s->listener);
}

bool conn_agent_present(const struct shim *s)
{
	for (size_t i = 0; i < SHIM_CONNS_MAX; i++)
		if (s->conns[i].src.fd >= 0 && s->conns[i].full)
			return true;
	return false;
}

static void conn_write(struct shim *s, struct conn *c)
{
	while (c->out.len) {
		ssize_t n = send(c->src.fd, c->out.data, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			source_set(s, &c->src, EPOLLIN | EPOLLOUT);
			return;
		}
		if (n < 0) {
			conn_close(s, c);
			return;
		}
		strbuf_consume(&c->out, (size_t)n);
	}
	source_set(s, &c->src, EPOLLIN);
}

void conn_flush(struct shim *s)
{
	for (size_t i = 0; i < SHIM_CONNS_MAX; i++)
		if (s->conns[i].src.fd >= 0 && s->conns[i].out.len)
			conn_write(s, &s->conns[i]);
}

static void conn_put(struct shim *s, struct conn *c, const struct shim_event *event)
{
	if (shim_event_encode(event, &c->out) < 0 || c->out.len > OUT_MAX) {
		log_warn("a client that does not read was dropped");
		conn_close(s, c);
	}
}

void conn_event(struct shim *s, const struct shim_event *event)
{
	for (size_t i = 0; i < SHIM_CONNS_MAX; i++)
		if (s->conns[i].src.fd >= 0)
			conn_put(s, &s->conns[i], event);
}

void conn_reply(struct shim *s, struct conn *c, uint64_t id, const char *error_fmt, ...)
{
	struct shim_event event = { .type = SHIM_EVENT_REPLY, .id = id };
	char error[900];
	va_list args;

	if (error_fmt) {
		va_start(args, error_fmt);
		(void)vsnprintf(error, sizeof(error), error_fmt, args);
		va_end(args);
		event.reply.error = error;
	}
	if (c->src.fd >= 0)
		conn_put(s, c, &event);
}

static void conn_hello(struct shim *s, struct conn *c, uint64_t id)
{
	struct shim_event event = { .type = SHIM_EVENT_HELLO, .id = id };

	state_hello(s, &event.hello);
	conn_put(s, c, &event);
	free(event.hello.lacks);
}

/* ---- commands ---- */

static bool may(const struct conn *c, enum shim_command_type type)
{
	return c->full || type == SHIM_CMD_STATUS || type == SHIM_CMD_NOTICE || type == SHIM_CMD_CANCEL ||
	       type == SHIM_CMD_KILL;
}

static void conn_command(struct shim *s, struct conn *c, struct shim_command *cmd)
{
	struct diag diag = DIAG_INIT;
	char text[800];
	uint64_t id = cmd->id;
	int r;

	if (!may(c, cmd->type)) {
		conn_reply(s, c, id, "%s is for the agent only", shim_command_names[cmd->type]);
		return;
	}
	if (cmd->type == SHIM_CMD_STATUS) {
		conn_hello(s, c, id);
		return;
	}
	if (cmd->type == SHIM_CMD_START) {
		if (s->have_start) {
			conn_reply(s, c, id, "already started: job %s, epoch %llu", s->start.job,
				   (unsigned long long)s->start.epoch);
			return;
		}
		s->start = cmd->start;
		s->have_start = true;
		s->due.start = NEVER;
		cmd->type = SHIM_CMD_NONE; /* taken */
		POINT("shim.start");
		/* The reply says that the start was understood; what becomes of it are events. */
		conn_reply(s, c, id, NULL);
		r = guest_prepare(s, &diag);
		if (r < 0) {
			(void)diag_format(&diag, text, sizeof(text));
			guest_stop(s, SHIM_END_NOT_STARTED, text);
		}
		return;
	}
	r = guest_command(s, cmd, &diag);
	if (r < 0)
		conn_reply(s, c, id, "%s", diag_format(&diag, text, sizeof(text)));
	else
		conn_reply(s, c, id, NULL);
}

static void conn_line(struct shim *s, struct conn *c, const char *line, size_t len)
{
	struct shim_command cmd;
	struct diag diag = DIAG_INIT;
	char text[800];

	if (shim_command_decode(line, len, &cmd, &diag) < 0) {
		(void)diag_format(&diag, text, sizeof(text));
		log_warn("a message was refused: %s", text);
		conn_reply(s, c, 0, "%s", text);
		return;
	}
	conn_command(s, c, &cmd);
	shim_command_done(&cmd);
}

static void on_conn(struct shim *s, struct source *src, uint32_t events)
{
	struct conn *c = CONTAINER_OF(src, struct conn, src);
	char buf[65536];
	ssize_t n = read(src->fd, buf, sizeof(buf));
	char *nl;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		n = -2;
	if (n == 0 || n == -1) {
		conn_close(s, c);
		if (s->state == SHIM_NOTICED && s->acked && !conn_agent_present(s))
			guest_stop(s, SHIM_END_RECLAIMED, "acknowledged, and no agent is there to move it");
		return;
	}
	if (n > 0 && strbuf_append(&c->in, buf, (size_t)n) < 0) {
		conn_close(s, c);
		return;
	}
	while (c->src.fd >= 0 && c->in.len && (nl = memchr(c->in.data, '\n', c->in.len))) {
		size_t len = (size_t)(nl - c->in.data);

		conn_line(s, c, c->in.data, len);
		if (c->src.fd >= 0)
			strbuf_consume(&c->in, len + 1);
	}
	if (c->src.fd >= 0 && c->in.len > SHIM_LINE_MAX) {
		log_warn("a line longer than %u bytes: client dropped", SHIM_LINE_MAX);
		conn_close(s, c);
		return;
	}
	if (c->src.fd >= 0 && (events & EPOLLOUT))
		conn_write(s, c);
}

/* ---- listening ---- */

static void on_accept(struct shim *s, struct source *src, uint32_t events)
{
	int fd = accept4(src->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (fd < 0)
		return;
	for (size_t i = 0; i < SHIM_CONNS_MAX; i++) {
		struct conn *c = &s->conns[i];

		if (c->src.fd >= 0)
			continue;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 ||
		    source_add(s, &c->src, fd, EPOLLIN, on_conn) < 0)
			break;
		c->full = cred.uid == 0 || cred.uid == geteuid();
		conn_hello(s, c, 0);
		return;
	}
	(void)close(fd);
}

int conn_listen(struct shim *s, struct diag *diag)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct group *g = getgrnam(OWNER_GROUP);
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r;

	if (fd < 0)
		return diag_set(diag, -errno, "socket", "%s", strerror(errno));
	if (strlen(s->socket_path) >= sizeof(sa.sun_path))
		return diag_set(diag, -ENAMETOOLONG, s->socket_path, "longer than %zu bytes",
				sizeof(sa.sun_path) - 1);
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", s->socket_path);
	(void)unlink(s->socket_path); /* of an incarnation that died; names are not used twice */
	(void)umask(0177);
	r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -errno : 0;
	(void)umask(022);
	if (r < 0)
		return diag_set(diag, r, s->socket_path, "%s", strerror(-r));
	/* Owners reach us without root when there is no agent to ask; what they may say is little. */
	if (g && chown(s->socket_path, (uid_t)-1, g->gr_gid) == 0)
		(void)chmod(s->socket_path, 0660);
	if (listen(fd, 16) < 0)
		return diag_set(diag, -errno, s->socket_path, "%s", strerror(errno));
	r = source_add(s, &s->listener, fd, EPOLLIN, on_accept);
	if (r < 0)
		return diag_set(diag, r, s->socket_path, "%s", strerror(-r));
	(void)TAKE_FD(fd);
	return 0;
}
