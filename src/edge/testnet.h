/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small campus for tests and benches of the edge, in namespaces that end
 * with the process: this thread becomes the machine, its uplink "up0" leads to
 * the world, a namespace held by a descriptor.
 *
 *     guest(s) --rgN-- machine 10.9.0.2 --up0---eth0-- 10.9.0.1 world
 *                                             lo: 10.9.9.9      campus
 *                                                 198.51.100.1  internet
 */
#ifndef RECLAIM_EDGE_TESTNET_H
#define RECLAIM_EDGE_TESTNET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "edge/edge.h"
#include "edge/net.h"

#define TESTNET_CAMPUS "10.9.9.9"
#define TESTNET_INTERNET "198.51.100.1"
#define TESTNET_MACHINE "10.9.0.2"
#define TESTNET_WORLD "10.9.0.1"

struct testnet {
	int machine_ns, world_ns;
	struct nl_sock *machine, *world;
	int uplink_ifindex, world_ifindex;
	char run_dir[64], state_dir[64];
};

/* NULL, or why it cannot be built here (not root, no namespaces). Folders below /tmp. */
const char *testnet_init(struct testnet *t);
void testnet_done(struct testnet *t);
/* A namespace of its own, as a descriptor. */
int testnet_ns_new(void);
/* UDP sockets; -1 and errno on failure. The namespace is entered only for socket(). */
int testnet_udp(int netns_fd, const char *bind_addr, uint16_t port);
int testnet_udp_send(int fd, const char *to, uint16_t port, const char *text);
/* True if a datagram comes within the time; ret_from may be NULL. */
bool testnet_udp_recv(int fd, int timeout_ms, char *buf, size_t buf_size,
		      struct sockaddr_in *ret_from);
int testnet_socket(int netns_fd, int domain, int type, int protocol);
struct edge_config testnet_config(const struct testnet *t);

#endif
