/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a TCP connection within this machine: the kernel
 * knows the user of every socket, and says so in /proc/net/tcp.
 */
#ifndef RECLAIM_IO_HTTP_LOCAL_H
#define RECLAIM_IO_HTTP_LOCAL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The user of the peer's socket of this connection (IPv4). -ENOTCONN when the peer's end is not
 * open any more: the kernel shows a socket that its process has let go of as root's.
 */
int http_local_uid(int fd, uid_t *ret);
/* The same in one text in the form of /proc/net/tcp. Addresses and ports in network order. Pure. */
int http_local_find(const char *table, uint32_t peer_addr, uint16_t peer_port, uint32_t our_addr,
		    uint16_t our_port, uid_t *ret);

#endif
