/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/admin.h"

#include <errno.h>
#include <poll.h>
#include <reclaim/stream.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "stream/address.h"
#include "wire/registry_frame.h"

enum { TIMEOUT_MS = 5000 };

static int wait_for(int fd, short events, uint64_t deadline_ns)
{
	uint64_t now = clock_boot_ns();
	struct pollfd p = { fd, events, 0 };
	int r = now < deadline_ns ? poll(&p, 1, (int)((deadline_ns - now) / NS_PER_MS) + 1) : 0;

	return r < 0 ? -errno : r == 0 ? -ETIMEDOUT : 0;
}

static int exchange(int fd, const struct registry_frame *q, uint64_t deadline_ns, struct strbuf *in,
		    struct registry_frame *ret)
{
	uint8_t buf[4096];
	struct bytes_out o = { .data = buf, .cap = sizeof(buf) };
	size_t done = 0;
	int r = registry_frame_encode(q, &o);

	while (r == 0 && done < o.len) {
		ssize_t k = send(fd, buf + done, o.len - done, MSG_NOSIGNAL);

		if (k > 0)
			done += (size_t)k;
		else if (errno == EAGAIN)
			r = wait_for(fd, POLLOUT, deadline_ns);
		else if (errno != EINTR)
			r = -errno;
	}
	strbuf_clear(in);
	while (r == 0) {
		ssize_t k = recv(fd, buf, sizeof(buf), 0);

		if (k > 0)
			r = strbuf_append(in, buf, (size_t)k);
		else if (k == 0)
			r = -ECONNRESET;
		else if (errno == EAGAIN)
			r = wait_for(fd, POLLIN, deadline_ns);
		else if (errno != EINTR)
			r = -errno;
		if (r == 0 && k > 0) {
			int used = registry_frame_decode((const uint8_t *)in->data, in->len, ret);

			if (used < 0)
				r = used;
			else if (used > 0)
				return ret->status;
		}
	}
	return r;
}

static int ask(const char *registry, const char *token, const struct registry_frame *q,
	       int timeout_ms, struct strbuf *in, struct registry_frame *ret)
{
	uint64_t deadline = clock_boot_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	struct registry_frame hello = { .op = REGISTRY_HELLO };
	CLEANUP_FD int fd = -1;
	struct address a;
	int r = stream_address_parse(registry, &a);

	if (strlen(token) > REGISTRY_TOKEN_MAX)
		return -EINVAL;
	strcpy(hello.token, token);
	if (r == 0)
		r = stream_address_connect(&a, &fd);
	if (r == -EINPROGRESS)
		r = wait_for(fd, POLLOUT, deadline);
	if (r == 0)
		r = exchange(fd, &hello, deadline, in, ret);
	return r < 0 ? r : exchange(fd, q, deadline, in, ret);
}

int stream_admin_list(const char *registry, const char *token, int timeout_ms, char **ret)
{
	CLEANUP_STRBUF struct strbuf in = STRBUF_INIT;
	struct registry_frame q = { .op = REGISTRY_LIST }, a;
	int r = ask(registry, token, &q, timeout_ms, &in, &a);

	if (r < 0)
		return r;
	*ret = strndup((const char *)a.body, a.body_len);
	return *ret ? 0 : -ENOMEM;
}

int reclaim_move(const char *registry, const char *token, const char *name,
		 uint64_t target_instance)
{
	CLEANUP_STRBUF struct strbuf in = STRBUF_INIT;
	struct registry_frame q = { .op = REGISTRY_PREPARE, .target = target_instance }, a;

	if (!stream_name_valid(name))
		return -EINVAL;
	strcpy(q.name, name);
	return ask(registry, token, &q, TIMEOUT_MS, &in, &a);
}
