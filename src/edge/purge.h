/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emptying the guests' leaves on the uplink: each leaf qdisc is replaced by a
 * fresh one, which frees what the old one held. One sendmsg, so that nothing
 * stands between the decision and the purge but the kernel's own lock. Uses
 * libc only: reclaim-cut links it too.
 */
#ifndef RECLAIM_EDGE_PURGE_H
#define RECLAIM_EDGE_PURGE_H

#include <stddef.h>
#include <stdint.h>

/* A route netlink socket for purge_leaves(), close() it; or -errno. */
int purge_open(void);

/*
 * Puts an empty bfifo of limit_bytes below each class. 0 when all are purged
 * (the call returns after the packets are gone), else the first -errno, with
 * the others still done. At most 64 classes.
 */
int purge_leaves(int fd, int ifindex, const uint32_t *classids, size_t count,
		 uint32_t limit_bytes);

#endif
