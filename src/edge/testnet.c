/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/testnet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/file.h"

static int open_self(void *arg)
{
	(void)arg;
	return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

int testnet_ns_new(void)
{
	CLEANUP_FD int home = open_self(NULL);
	int fd;

	if (home < 0 || unshare(CLONE_NEWNET) < 0)
		return -1;
	fd = open_self(NULL);
	CHECK(setns(home, CLONE_NEWNET) == 0);
	return fd;
}

static struct in_addr addr_of(const char *text)
{
	struct in_addr a;

	CHECK(inet_pton(AF_INET, text, &a) == 1);
	return a;
}

static int build(struct testnet *t)
{
	static const uint8_t mac[6] = { 2, 0, 0, 0, 0, 2 }, world_mac[6] = { 2, 0, 0, 0, 0, 1 };
	struct net_link l;
	int err = net_veth_add(t->machine, "up0", mac, t->world_ns, "eth0", world_mac,
			       &t->uplink_ifindex);

	if (err == 0)
		err = net_link_get(t->world, "eth0", 0, &l);
	if (err < 0)
		return err;
	t->world_ifindex = l.ifindex;
	err = net_addr_add(t->machine, t->uplink_ifindex, addr_of(TESTNET_MACHINE), 24);
	if (err == 0)
		err = net_addr_add(t->world, t->world_ifindex, addr_of(TESTNET_WORLD), 24);
	if (err == 0)
		err = net_addr_add(t->world, 1, addr_of(TESTNET_CAMPUS), 32);
	if (err == 0)
		err = net_addr_add(t->world, 1, addr_of(TESTNET_INTERNET), 32);
	for (int i = 0; i < 2 && err == 0; i++)
		err = net_link_up(i ? t->world : t->machine, 1);
	if (err == 0)
		err = net_link_up(t->machine, t->uplink_ifindex);
	if (err == 0)
		err = net_link_up(t->world, t->world_ifindex);
	if (err == 0)
		err = net_route_default(t->machine, t->uplink_ifindex, addr_of(TESTNET_WORLD));
	return err;
}

const char *testnet_init(struct testnet *t)
{
	memset(t, 0, sizeof(*t));
	t->machine_ns = t->world_ns = -1;
	if (geteuid() != 0)
		return "needs root";
	if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0)
		return "no network and mount namespaces";
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return "cannot make mounts private";
	t->machine_ns = open_self(NULL);
	t->world_ns = testnet_ns_new();
	if (t->world_ns < 0 || net_open(&t->machine) < 0 || net_open_in(t->world_ns, &t->world) < 0)
		return "no second network namespace";
	if (build(t) < 0)
		return "no veth pair";
	(void)snprintf(t->run_dir, sizeof(t->run_dir), "/tmp/edge-test-XXXXXX");
	CHECK(mkdtemp(t->run_dir) != NULL);
	/* As /run is: no journal of a disk in the way. Gone with this mount namespace. */
	if (mount("tmpfs", t->run_dir, "tmpfs", 0, "mode=0755") < 0)
		return "cannot mount a tmpfs";
	CHECK(path_format(t->state_dir, sizeof(t->state_dir), "%s/state", t->run_dir) == 0);
	CHECK(dir_make_all(t->state_dir, 0700) == 0);
	return NULL;
}

void testnet_done(struct testnet *t)
{
	nl_socket_free(t->machine);
	nl_socket_free(t->world);
	fd_cleanup(&t->machine_ns);
	fd_cleanup(&t->world_ns);
	if (t->run_dir[0])
		(void)(umount2(t->run_dir, MNT_DETACH) < 0 || rmdir(t->run_dir) < 0); /* below /tmp */
}

struct edge_config testnet_config(const struct testnet *t)
{
	return (struct edge_config){
		.uplink = "up0", .uplink_bps = UINT64_C(1000000000), .run_dir = t->run_dir,
		.state_dir = t->state_dir, .owner_gid = (gid_t)-1,
	};
}

struct socket_args {
	int domain, type, protocol;
};

static int make_socket(void *arg)
{
	const struct socket_args *a = arg;

	return socket(a->domain, a->type | SOCK_CLOEXEC, a->protocol);
}

int testnet_socket(int netns_fd, int domain, int type, int protocol)
{
	struct socket_args a = { domain, type, protocol };

	return net_run_in(netns_fd, make_socket, &a);
}

int testnet_udp(int netns_fd, const char *bind_addr, uint16_t port)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
	CLEANUP_FD int fd = testnet_socket(netns_fd, AF_INET, SOCK_DGRAM, 0);

	if (bind_addr)
		sin.sin_addr = addr_of(bind_addr);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sin, sizeof(sin)) < 0)
		return -1;
	return TAKE_FD(fd);
}

int testnet_udp_send(int fd, const char *to, uint16_t port, const char *text)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port),
				   .sin_addr = addr_of(to) };

	return sendto(fd, text, strlen(text), 0, (struct sockaddr *)&sin, sizeof(sin)) < 0 ? -errno : 0;
}

bool testnet_udp_recv(int fd, int timeout_ms, char *buf, size_t buf_size,
		      struct sockaddr_in *ret_from)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct sockaddr_in from;
	socklen_t from_len = sizeof(from);
	ssize_t n;

	if (poll(&p, 1, timeout_ms) != 1)
		return false;
	n = recvfrom(fd, buf, buf_size - 1, MSG_DONTWAIT, (struct sockaddr *)&from, &from_len);
	if (n < 0)
		return false;
	buf[n] = '\0';
	if (ret_from)
		*ret_from = from;
	return true;
}
