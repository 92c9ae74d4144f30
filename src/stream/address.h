/* SPDX-License-Identifier: Apache-2.0 */
/* "unix:/path", "tcp:HOST:PORT" and "HOST:PORT" as socket addresses; numeric hosts only. */
#ifndef RECLAIM_STREAM_ADDRESS_H
#define RECLAIM_STREAM_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

struct address {
	struct sockaddr_storage sa;
	socklen_t len;
	bool local; /* a Unix socket */
};

int stream_address_parse(const char *text, struct address *ret);
/* The bound address of a listening socket in the same form. */
int stream_address_format(int fd, char *buf, size_t cap);
/* Non-blocking, close-on-exec. Listening: backlog > 0. */
int stream_address_listen(const struct address *a, int *ret_fd);
/* Begins to connect; 0 or -EINPROGRESS. */
int stream_address_connect(const struct address *a, int *ret_fd);

#endif
