/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"

int stream_address_parse(const char *text, struct address *ret)
{
	char host[64];
	uint64_t port;

	memset(ret, 0, sizeof(*ret));
	if (!strncmp(text, "unix:", 5)) {
		struct sockaddr_un *un = (struct sockaddr_un *)&ret->sa;

		if (strlen(text + 5) >= sizeof(un->sun_path) || !text[5])
			return -EINVAL;
		un->sun_family = AF_UNIX;
		strcpy(un->sun_path, text + 5);
		ret->len = sizeof(*un);
		ret->local = true;
		return 0;
	}
	if (!strncmp(text, "tcp:", 4))
		text += 4;
	const char *colon = strrchr(text, ':');
	if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host) ||
	    parse_u64(colon + 1, &port) < 0 || port > 65535)
		return -EINVAL;
	size_t n = (size_t)(colon - text);
	if (text[0] == '[' && text[n - 1] == ']') {
		text++;
		n -= 2;
	}
	memcpy(host, text, n);
	host[n] = '\0';
	struct sockaddr_in *in = (struct sockaddr_in *)&ret->sa;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ret->sa;

	if (inet_pton(AF_INET, host, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)port);
		ret->len = sizeof(*in);
	} else if (inet_pton(AF_INET6, host, &in6->sin6_addr) == 1) {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)port);
		ret->len = sizeof(*in6);
	} else {
		return -EINVAL;
	}
	return 0;
}

int stream_address_format(int fd, char *buf, size_t cap)
{
	struct sockaddr_storage sa = { 0 };
	socklen_t len = sizeof(sa);
	char host[INET6_ADDRSTRLEN];
	int n;

	if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
		return -errno;
	if (sa.ss_family == AF_INET) {
		struct sockaddr_in *in = (struct sockaddr_in *)&sa;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		n = snprintf(buf, cap, "%s:%u", host, ntohs(in->sin_port));
	} else if (sa.ss_family == AF_INET6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&sa;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		n = snprintf(buf, cap, "[%s]:%u", host, ntohs(in6->sin6_port));
	} else {
		n = snprintf(buf, cap, "unix:%s", ((struct sockaddr_un *)&sa)->sun_path);
	}
	return n > 0 && (size_t)n < cap ? 0 : -ENAMETOOLONG;
}

int stream_address_listen(const struct address *a, int *ret_fd)
{
	int on = 1;
	CLEANUP_FD int fd =
		socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (a->local)
		(void)unlink(((const struct sockaddr_un *)&a->sa)->sun_path); /* a stale one */
	else
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (const struct sockaddr *)&a->sa, a->len) < 0 || listen(fd, 256) < 0)
		return -errno;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int stream_address_connect(const struct address *a, int *ret_fd)
{
	CLEANUP_FD int fd =
		socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int on = 1, r = 0;

	if (fd < 0)
		return -errno;
	if (!a->local)
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (const struct sockaddr *)&a->sa, a->len) < 0) {
		if (errno != EINPROGRESS && errno != EAGAIN)
			return -errno;
		r = errno == EAGAIN ? -EAGAIN : -EINPROGRESS;
	}
	if (r == -EAGAIN)
		return r; /* a Unix listener's backlog is full */
	*ret_fd = TAKE_FD(fd);
	return r;
}
