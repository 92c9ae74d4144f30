/* SPDX-License-Identifier: Apache-2.0 */
#include "io/http_local.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"

#define TABLE_MAX (32u << 20) /* 200,000 sockets */
#define ESTABLISHED 1

int http_local_find(const char *table, uint32_t peer_addr, uint16_t peer_port, uint32_t our_addr,
		    uint16_t our_port, uid_t *ret)
{
	for (const char *line = strchr(table, '\n'); line; line = strchr(line + 1, '\n')) {
		/* "sl: LOCAL:PORT REMOTE:PORT STATE TX:RX TR:WHEN RETRANSMITS UID TIMEOUT INODE" */
		unsigned laddr, lport, raddr, rport, state, uid;
		unsigned long inode;
		if (sscanf(line + 1, "%*u: %8x:%4x %8x:%4x %2x %*x:%*x %*x:%*x %*x %u %*u %lu", &laddr, &lport,
			   &raddr, &rport, &state, &uid, &inode) != 7)
			continue;
		/* Addresses stand there as the machine's words, ports as numbers. */
		if (laddr != peer_addr || lport != ntohs(peer_port) || raddr != our_addr || rport != ntohs(our_port))
			continue;
		if (state != ESTABLISHED || inode == 0)
			return -ENOTCONN;
		*ret = (uid_t)uid;
		return 0;
	}
	return -ENOTCONN;
}

int http_local_uid(int fd, uid_t *ret)
{
	struct sockaddr_in peer, own;
	socklen_t peer_len = sizeof(peer), own_len = sizeof(own);
	CLEANUP_FREE char *table = NULL;
	if (getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&own, &own_len) < 0)
		return -errno;
	if (peer.sin_family != AF_INET || own.sin_family != AF_INET)
		return -EAFNOSUPPORT;
	int r = file_read("/proc/net/tcp", TABLE_MAX, &table, NULL);
	return r < 0 ? r
		     : http_local_find(table, peer.sin_addr.s_addr, peer.sin_port, own.sin_addr.s_addr,
				       own.sin_port, ret);
}
