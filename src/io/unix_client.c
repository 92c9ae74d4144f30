/* SPDX-License-Identifier: Apache-2.0 */
#include "io/unix_client.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/strbuf.h"
#include "io/unix_server.h"

struct unix_client {
	int fd;
	struct strbuf in;
};

int unix_client_open(const char *path, struct unix_client **ret)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t len = strlen(path);
	if (len == 0 || len >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, len);
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -errno;
	struct unix_client *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->fd = TAKE_FD(fd);
	*ret = c;
	return 0;
}

void unix_client_close(struct unix_client *c)
{
	if (!c)
		return;
	close(c->fd);
	strbuf_done(&c->in);
	free(c);
}

int unix_client_fd(const struct unix_client *c)
{
	return c->fd;
}

int unix_client_send(struct unix_client *c, json_t *message)
{
	CLEANUP_FREE char *text = json_dumps(message, JSON_COMPACT);
	if (!text)
		return -ENOMEM;
	size_t len = strlen(text), at = 0;
	if (len > UNIX_LINE_MAX)
		return -EMSGSIZE;
	text[len++] = '\n'; /* in place of the NUL */
	while (at < len) {
		ssize_t n = send(c->fd, text + at, len - at, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += (size_t)n;
	}
	return 0;
}

/* A complete line from the buffer: 0, or -EAGAIN if there is none yet. */
static int take_line(struct unix_client *c, json_t **ret)
{
	char *end = c->in.len ? memchr(c->in.data, '\n', c->in.len) : NULL;
	if (!end)
		return c->in.len > UNIX_LINE_MAX ? -EMSGSIZE : -EAGAIN;
	size_t len = (size_t)(end - c->in.data);
	if (len > UNIX_LINE_MAX)
		return -EMSGSIZE;
	json_t *message = json_loadb(c->in.data, len, JSON_REJECT_DUPLICATES, NULL);
	strbuf_consume(&c->in, len + 1);
	if (!json_is_object(message)) {
		json_decref(message);
		return -EBADMSG;
	}
	*ret = message;
	return 0;
}

int unix_client_receive(struct unix_client *c, uint64_t timeout_ns, json_t **ret)
{
	uint64_t start = clock_boot_ns();
	for (;;) {
		int r = take_line(c, ret);
		if (r != -EAGAIN)
			return r;
		int wait_ms = -1;
		if (timeout_ns != UINT64_MAX) {
			uint64_t spent = clock_boot_ns() - start;
			if (spent >= timeout_ns)
				return -ETIMEDOUT;
			wait_ms = (int)MIN((timeout_ns - spent) / NS_PER_MS + 1, UINT64_C(60000));
		}
		struct pollfd p = { .fd = c->fd, .events = POLLIN };
		int n = poll(&p, 1, wait_ms);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n <= 0)
			continue;
		char buf[16384];
		ssize_t got = recv(c->fd, buf, sizeof(buf), 0);
		if (got == 0)
			return -EPIPE;
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno == ECONNRESET ? -EPIPE : -errno;
		r = strbuf_append(&c->in, buf, (size_t)got);
		if (r < 0)
			return r;
	}
}

int unix_client_call(struct unix_client *c, json_t *message, uint64_t timeout_ns, json_t **ret)
{
	int r = unix_client_send(c, message);
	return r < 0 ? r : unix_client_receive(c, timeout_ns, ret);
}

int unix_client_ask(const char *path, json_t *message, uint64_t timeout_ns, json_t **ret)
{
	CLEANUP_UNIX_CLIENT struct unix_client *c = NULL;
	int r = unix_client_open(path, &c);
	return r < 0 ? r : unix_client_call(c, message, timeout_ns, ret);
}
