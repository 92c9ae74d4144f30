/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links, addresses, routes and namespaces over route netlink, as far as the
 * edge needs them. A socket belongs to the namespace it was opened in, also
 * after its opener left. All return 0 or -errno.
 */
#ifndef RECLAIM_EDGE_NET_H
#define RECLAIM_EDGE_NET_H

#include <netinet/in.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

DEFINE_CLEANUP(struct nl_sock *, nl_socket_free)
#define CLEANUP_NL CLEANUP(nl_socket_free_cleanup)
DEFINE_CLEANUP(struct nl_msg *, nlmsg_free)
#define CLEANUP_MSG CLEANUP(nlmsg_free_cleanup)

/* libnl's error as -errno. */
int net_errno(int nl_err);
int net_open(struct nl_sock **ret);
/* A socket in another namespace. The thread comes back or the process ends. */
int net_open_in(int netns_fd, struct nl_sock **ret);
/* Runs fn in another namespace, for what has no socket (sysctl, nftables). */
int net_run_in(int netns_fd, int (*fn)(void *arg), void *arg);

struct net_link {
	int ifindex;
	char name[16];
	int32_t peer_nsid; /* where a veth's peer is, as this namespace numbers it; -1 = here */
	bool up;
	uint8_t mac[6];
};
/* By name, or by index if name is NULL. -ENODEV. */
int net_link_get(struct nl_sock *s, const char *name, int ifindex, struct net_link *ret);
/* A veth pair: `name` here with mac, "eth0" with peer_mac in the namespace of peer_ns_fd. */
int net_veth_add(struct nl_sock *s, const char *name, const uint8_t mac[6], int peer_ns_fd,
		 const char *peer_name, const uint8_t peer_mac[6], int *ret_ifindex);
int net_link_del(struct nl_sock *s, int ifindex);
int net_link_up(struct nl_sock *s, int ifindex);
/* Largest packet that segmentation offload may build; bounds what one kill can miss. */
int net_link_gso_max(struct nl_sock *s, int ifindex, uint32_t bytes);
int net_addr_add(struct nl_sock *s, int ifindex, struct in_addr addr, uint8_t prefix_len);
int net_route_default(struct nl_sock *s, int ifindex, struct in_addr gateway);
/* Calls fn for every IPv4 address of this namespace: local address, prefix, interface. */
int net_addr_each(struct nl_sock *s, void (*fn)(struct in_addr, uint8_t, int ifindex, void *),
		  void *arg);
/* The interface of the IPv4 default route with the lowest metric, or -ENOENT. */
int net_default_ifindex(struct nl_sock *s, int *ret);

/* /proc/sys/net/ipv4/conf/IFNAME/NAME in this thread's namespace. */
int net_conf_get(const char *ifname, const char *name, int *ret);
int net_conf_set(const char *ifname, const char *name, int value);
int net_conf_set_v6(const char *ifname, const char *name, int value);

/* The namespace that this one numbers nsid, looked for among all processes: an fd. */
int net_find_ns(struct nl_sock *s, int32_t nsid);

#endif
