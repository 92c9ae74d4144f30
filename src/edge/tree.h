/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The class tree on the uplink (HTB) and the guests' shapers (TBF), over
 * libnl-route. Every setter creates or changes in place, never rebuilds:
 * packets of other classes are not touched.
 *
 *     RC:  htb, all of the uplink's rate
 *      RC:1
 *       RC:10 control    first, 1 %
 *       RC:20 research   second, all but the others' guarantees; the default
 *       RC:30 deadline   third, guaranteed its floor
 *       RC:50 guests     fourth, up to their ceiling, short leaves
 *        RC:100 ... RC:13f one leaf per slot
 *       RC:40 scavenger  last
 *
 * HTB gives what is left over by priority, so that only guarantees stand
 * against research: the deadline floor, and a thousandth each for scavenger
 * and guests, without which their connections would time out.
 */
#ifndef RECLAIM_EDGE_TREE_H
#define RECLAIM_EDGE_TREE_H

#include <netlink/netlink.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/diag.h"

#define TREE_MAJOR 0x52430000u /* "RC": tells our root qdisc from anybody else's */
#define TREE_ROOT (TREE_MAJOR | 0x1)
#define TREE_CONTROL (TREE_MAJOR | 0x10)
#define TREE_RESEARCH (TREE_MAJOR | 0x20)
#define TREE_DEADLINE (TREE_MAJOR | 0x30)
#define TREE_SCAVENGER (TREE_MAJOR | 0x40)
#define TREE_GUESTS (TREE_MAJOR | 0x50)
#define TREE_GUEST0 (TREE_MAJOR | 0x100)

struct tree {
	struct nl_sock *sock; /* borrowed */
	int ifindex;
	bool physical;        /* frames cost 24 bytes more on the wire than the kernel counts */
	uint64_t rate_bps, floor_bps, scavenger_ceiling_bps, guest_ceiling_bps;
};

enum tree_found { TREE_NONE, TREE_OURS, TREE_FOREIGN };
/* What the uplink's root qdisc is; ret_kind gets a foreign one's kind. */
int tree_find(struct nl_sock *sock, int ifindex, enum tree_found *ret, char ret_kind[16]);
/* Builds the tree, or brings one that stands to these numbers. */
int tree_set(const struct tree *t, struct diag *diag);
/* Only the shares that depend on the floor. */
int tree_floor_set(const struct tree *t);
int tree_guests_set(const struct tree *t);
/* A guest's class and its leaf. */
int tree_guest_add(const struct tree *t, unsigned slot, uint64_t rate_bps);
int tree_guest_del(const struct tree *t, unsigned slot);
int tree_remove(const struct tree *t);
/* Bytes waiting below a class (or root qdisc, parent TC_H_ROOT); 0 if there is none. */
uint64_t tree_backlog(struct nl_sock *sock, int ifindex, uint32_t parent);
/* Bytes that left it so far. */
uint64_t tree_sent(struct nl_sock *sock, int ifindex, uint32_t parent);

/* How long a guest's leaf on the uplink is, and how much one offloaded packet may hold: both
 * short, because a kill can only purge, not recall. */
uint32_t tree_leaf_bytes(uint64_t ceiling_bps);
uint32_t tree_gso_bytes(uint64_t ceiling_bps);
/* The shaper on a guest's own eth0; sock is one of the guest's namespace. */
int tree_shaper_set(struct nl_sock *sock, int ifindex, uint64_t rate_bps);

#endif
