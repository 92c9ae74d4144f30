/* SPDX-License-Identifier: Apache-2.0 */
/* Loopback of the guest's own network namespace, and the sockets of the cloud spot paths on it. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "job/sandbox_internal.h"

static void address_set(struct sockaddr *sa, const char *text)
{
	struct sockaddr_in in = { .sin_family = AF_INET };

	(void)inet_pton(AF_INET, text, &in.sin_addr);
	memcpy(sa, &in, sizeof(in));
}

static int loopback_up(int fd)
{
	struct ifreq ifr = { .ifr_name = "lo" };

	if (ioctl(fd, SIOCGIFFLAGS, &ifr) < 0)
		return -errno;
	ifr.ifr_flags |= IFF_UP | IFF_RUNNING;
	return ioctl(fd, SIOCSIFFLAGS, &ifr) < 0 ? -errno : 0;
}

static int loopback_alias(int fd, const char *address)
{
	struct ifreq ifr = { .ifr_name = "lo:1" };

	address_set(&ifr.ifr_addr, address);
	if (ioctl(fd, SIOCSIFADDR, &ifr) < 0)
		return -errno;
	address_set(&ifr.ifr_netmask, "255.255.255.255");
	return ioctl(fd, SIOCSIFNETMASK, &ifr) < 0 ? -errno : 0;
}

static int listen_on(const char *address, uint16_t port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	CLEANUP_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int one = 1;

	if (fd < 0)
		return -errno;
	(void)inet_pton(AF_INET, address, &in.sin_addr);
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* a nicety */
	if (bind(fd, (struct sockaddr *)&in, sizeof(in)) < 0 || listen(fd, 16) < 0)
		return -errno;
	return TAKE_FD(fd);
}

int sandbox_network(const struct sandbox_config *c, int ret_listeners[2], struct diag *diag)
{
	CLEANUP_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r, aws, local;

	if (fd < 0)
		return diag_set(diag, -errno, "network", "socket: %s", strerror(errno));
	r = loopback_up(fd);
	if (r < 0)
		return diag_set(diag, r, "network", "loopback cannot be brought up: %s", strerror(-r));
	if (!c->metadata)
		return 0;
	r = loopback_alias(fd, "169.254.169.254");
	if (r < 0)
		return diag_set(diag, r, "network", "169.254.169.254 cannot be set: %s", strerror(-r));
	aws = listen_on("169.254.169.254", 80);
	if (aws < 0)
		return diag_set(diag, aws, "network", "169.254.169.254:80: %s", strerror(-aws));
	local = listen_on("127.0.0.1", 80);
	if (local < 0) {
		(void)close(aws);
		return diag_set(diag, local, "network", "127.0.0.1:80: %s", strerror(-local));
	}
	ret_listeners[0] = aws;
	ret_listeners[1] = local;
	return 0;
}
