/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unix sockets on the loop. Written on plain descriptors and uv_poll rather
 * than uv_pipe: the peer's credentials and the file's mode before anybody can
 * connect are wanted, and one read never takes more than one turn's share.
 */
#include "io/unix_server.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/strbuf.h"

#define READ_CHUNK 65536

struct unix_conn {
	struct loop *loop;
	struct unix_server *server; /* NULL for a connecting end, or once the server is gone */
	const struct unix_ops *ops;
	void *user;
	void *data;
	struct loop_watch *watch;
	int fd;
	struct unix_peer peer;
	struct strbuf in, out;
	size_t out_at;
	bool closing;  /* no more messages; close when the queue is empty */
	bool closed;   /* on_close is due */
	struct unix_conn *next, **link;
};

struct unix_server {
	struct loop *loop;
	struct unix_ops ops;
	void *user;
	struct loop_watch *watch;
	int fd;
	char *path;
	struct unix_conn *conns;
	size_t conns_count;
};

static int address_of(const char *path, struct sockaddr_un *ret, socklen_t *ret_len)
{
	size_t len = strlen(path);
	if (len == 0 || len >= sizeof(ret->sun_path))
		return -ENAMETOOLONG;
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(ret->sun_path, path, len);
	*ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
	return 0;
}

/* ---- connections ---- */

static void conn_destroy(struct unix_conn *c)
{
	if (c->server) {
		c->server->conns_count--;
		*c->link = c->next;
		if (c->next)
			c->next->link = c->link;
	}
	strbuf_done(&c->in);
	strbuf_done(&c->out);
	free(c);
}

static void conn_reap(void *user)
{
	struct unix_conn *c = user;
	if (c->ops->on_close)
		c->ops->on_close(c, c->user);
	conn_destroy(c);
}

/* The descriptor goes at once; the owner hears of it on a fresh stack. */
static void conn_shut(struct unix_conn *c)
{
	if (c->closed)
		return;
	c->closed = c->closing = true;
	loop_watch_close(c->watch);
	c->watch = NULL;
	close(c->fd);
	c->fd = -1;
	CHECK(loop_defer(c->loop, conn_reap, c) == 0);
}

static void conn_flush(struct unix_conn *c)
{
	while (c->out_at < c->out.len) {
		ssize_t n = send(c->fd, c->out.data + c->out_at, c->out.len - c->out_at,
				 MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0) {
			conn_shut(c);
			return;
		}
		c->out_at += (size_t)n;
	}
	if (c->out_at == c->out.len) {
		strbuf_clear(&c->out);
		c->out_at = 0;
		if (c->closing) {
			conn_shut(c);
			return;
		}
	} else if (c->out_at > UNIX_LINE_MAX) {
		strbuf_consume(&c->out, c->out_at);
		c->out_at = 0;
	}
	int events = (c->closing ? 0 : UV_READABLE) | (c->out.len ? UV_WRITABLE : 0);
	loop_watch_set(c->watch, events);
}

static void conn_refuse(struct unix_conn *c, const char *what)
{
	CLEANUP_JSON json_t *error = json_pack("{s:s}", "error", what);
	if (error)
		(void)unix_conn_send(c, error); /* on its way out anyway */
	unix_conn_close(c);
}

static void conn_line(struct unix_conn *c, const char *line, size_t len)
{
	json_error_t error;
	CLEANUP_JSON json_t *message = json_loadb(line, len, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(message)) {
		char what[320];
		snprintf(what, sizeof(what), "not a JSON object: column %d: %s", error.column,
			 message ? "wants {...}" : error.text);
		conn_refuse(c, what);
		return;
	}
	if (c->ops->on_message)
		c->ops->on_message(c, message, c->user);
}

static void conn_lines(struct unix_conn *c)
{
	size_t start = 0;
	while (!c->closing && start < c->in.len) {
		char *end = memchr(c->in.data + start, '\n', c->in.len - start);
		size_t len = end ? (size_t)(end - (c->in.data + start)) : c->in.len - start;
		if (len > UNIX_LINE_MAX) {
			conn_refuse(c, "the line is longer than 65536 bytes");
			break;
		}
		if (!end)
			break;
		if (len > 0)
			conn_line(c, c->in.data + start, len);
		start += len + 1;
	}
	strbuf_consume(&c->in, MIN(start, c->in.len));
}

static void conn_event(void *user, int events, int error)
{
	struct unix_conn *c = user;
	char buf[READ_CHUNK];

	if (error < 0) {
		conn_shut(c);
		return;
	}
	if (events & UV_READABLE && !c->closing) {
		ssize_t n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
			conn_shut(c);
			return;
		}
		if (n > 0) {
			if (strbuf_append(&c->in, buf, (size_t)n) < 0) {
				conn_shut(c);
				return;
			}
			conn_lines(c);
		}
	}
	if (!c->closed)
		conn_flush(c);
}

static int conn_new(struct loop *l, int fd, const struct unix_ops *ops, void *user,
		    struct unix_conn **ret)
{
	struct unix_conn *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	struct ucred cred = { 0 };
	socklen_t len = sizeof(cred);
	(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len); /* zeroes mean nobody */
	c->loop = l;
	c->fd = fd;
	c->ops = ops;
	c->user = user;
	c->peer = (struct unix_peer){ cred.pid, cred.uid, cred.gid };
	int r = loop_watch_open(l, fd, UV_READABLE, conn_event, c, &c->watch);
	if (r < 0) {
		free(c);
		return r;
	}
	*ret = c;
	return 0;
}

int unix_conn_open(struct loop *l, const char *path, const struct unix_ops *ops, void *user,
		   struct unix_conn **ret)
{
	struct sockaddr_un address;
	socklen_t len;
	int r = address_of(path, &address, &len);
	if (r < 0)
		return r;
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, len) < 0)
		return -errno;
	r = conn_new(l, fd, ops, user, ret);
	if (r == 0)
		(void)TAKE_FD(fd);
	return r;
}

int unix_conn_send(struct unix_conn *c, json_t *message)
{
	if (c->closed || c->closing)
		return -EPIPE;
	CLEANUP_FREE char *text = json_dumps(message, JSON_COMPACT);
	if (!text)
		return -ENOMEM;
	size_t len = strlen(text);
	if (len > UNIX_LINE_MAX)
		return -EMSGSIZE;
	text[len] = '\n'; /* in place of the NUL */
	if (c->out.len - c->out_at + len + 1 > UNIX_QUEUE_MAX ||
	    strbuf_append(&c->out, text, len + 1) < 0) {
		conn_shut(c);
		return -EPIPE;
	}
	loop_watch_set(c->watch, UV_READABLE | UV_WRITABLE);
	return 0;
}

void unix_conn_close(struct unix_conn *c)
{
	if (c->closing)
		return;
	c->closing = true;
	loop_watch_set(c->watch, UV_WRITABLE); /* the next turn flushes, then shuts */
}

const struct unix_peer *unix_conn_peer(const struct unix_conn *c)
{
	return &c->peer;
}

void unix_conn_set_data(struct unix_conn *c, void *data)
{
	c->data = data;
}

void *unix_conn_data(const struct unix_conn *c)
{
	return c->data;
}

/* ---- the server ---- */

static void server_event(void *user, int events, int error)
{
	struct unix_server *s = user;
	for (int i = 0; i < 16; i++) {
		int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			return; /* EAGAIN, or out of descriptors: later turns try again */
		struct unix_conn *c;
		if (s->conns_count >= UNIX_CONNS_MAX ||
		    conn_new(s->loop, fd, &s->ops, s->user, &c) < 0) {
			close(fd);
			continue;
		}
		c->server = s;
		c->next = s->conns;
		c->link = &s->conns;
		if (c->next)
			c->next->link = &c->next;
		s->conns = c;
		s->conns_count++;
		if (s->ops.on_open)
			s->ops.on_open(c, s->user);
	}
}

/* Somebody alive behind the file? A stale one is removed. */
static int clear_stale(const char *path, const struct sockaddr_un *address, socklen_t len)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	CLEANUP_FD int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return -errno;
	if (connect(probe, (const struct sockaddr *)address, len) == 0 || errno == EAGAIN)
		return -EADDRINUSE;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

int unix_server_open(struct loop *l, const char *path, mode_t mode, gid_t gid,
		     const struct unix_ops *ops, void *user, struct unix_server **ret)
{
	struct sockaddr_un address;
	socklen_t len;
	int r = address_of(path, &address, &len);
	if (r == 0)
		r = clear_stale(path, &address, len);
	if (r < 0)
		return r;
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	mode_t old = umask(0777);
	r = bind(fd, (struct sockaddr *)&address, len) < 0 ? -errno : 0;
	umask(old);
	if (r < 0)
		return r;
	/* Nobody can connect before listen(): owner and mode are right by then. */
	if ((gid != (gid_t)-1 && chown(path, (uid_t)-1, gid) < 0) || chmod(path, mode) < 0 ||
	    listen(fd, 64) < 0) {
		r = -errno;
		(void)unlink(path);
		return r;
	}
	struct unix_server *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->loop = l;
	s->ops = *ops;
	s->user = user;
	s->path = strdup(path);
	s->fd = fd;
	r = s->path ? loop_watch_open(l, fd, UV_READABLE, server_event, s, &s->watch) : -ENOMEM;
	if (r < 0) {
		free(s->path);
		free(s);
		return r;
	}
	(void)TAKE_FD(fd);
	*ret = s;
	return 0;
}

void unix_server_close(struct unix_server *s)
{
	if (!s)
		return;
	loop_watch_close(s->watch);
	close(s->fd);
	(void)unlink(s->path); /* may be gone already */
	for (struct unix_conn *c = s->conns; c; c = c->next)
		conn_shut(c);
	/* Their on_close must run while the server's ops are there: drain the deferred calls. */
	for (int i = 0; i < 64 && s->conns; i++)
		loop_turn(s->loop, 0);
	free(s->path);
	free(s);
}
