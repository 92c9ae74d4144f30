/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim-tunnel: one per rank of a gang. In the rank's network namespace it
 * holds gang0, a TUN device with the rank's address, and a UDP socket that
 * leaves by the rank's own eth0, so that everything that guards a guest's
 * packets (kill switch, lease, shaping, accounts) guards the tunnel's too, by
 * construction and with nobody alive.
 *
 *     program --gang0--> reclaim-tunnel --sealed, UDP--> eth0 --veth, NAT--> uplink
 *
 * Started by the agent as root with its orders as JSON on stdin. Says on stderr
 * why it cannot, with status 1; or makes everything, gives up its rights, goes on
 * in the background and lets its starter have status 0. Ends when the guest's
 * first process has ended, whoever else is alive.
 *
 * Two ranks behind address translation meet by both sending: a first packet that
 * is early is dropped at the other's edge without being remembered there.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <jansson.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/schema.h"
#include "edge/tunnel.h"

#define ORDERS_MAX 65536
#define NOBODY 65534
#define BATCH 64              /* packets of one side before the other is looked at */
#define HELLO_NS (100 * NS_PER_MS) /* until a peer was heard */
#define KEEP_NS (5 * NS_PER_S)     /* below any translator's memory of a flow */
#define SOCKET_BUFFER (1 << 20)

struct orders_rank {
	char *host;
	int port;
};

struct orders {
	uint64_t pid, epoch, rank;
	char *key;
	struct orders_rank *ranks;
	size_t ranks_count;
};

static const struct schema_field rank_fields[] = {
	FIELD_STR(struct orders_rank, host, 255, .flags = FIELD_REQUIRED),
	FIELD_INT(struct orders_rank, port, 1, 65535, .flags = FIELD_REQUIRED),
	FIELD_END,
};
static const struct schema rank_schema = SCHEMA(struct orders_rank, "rank", rank_fields);
static const struct schema_field orders_fields[] = {
	FIELD_U64(struct orders, pid, 1, 1u << 30, .flags = FIELD_REQUIRED),
	FIELD_U64(struct orders, epoch, 0, 9e15, .flags = FIELD_REQUIRED),
	FIELD_U64(struct orders, rank, 0, TUNNEL_RANKS_MAX - 1, .flags = FIELD_REQUIRED),
	FIELD_STR(struct orders, key, 2 * TUNNEL_KEY_LEN, .flags = FIELD_REQUIRED),
	FIELD_LIST(struct orders, ranks, &rank_schema, TUNNEL_RANKS_MAX),
	FIELD_END,
};
static const struct schema orders_schema = SCHEMA(struct orders, "orders", orders_fields);

struct peer {
	struct sockaddr_in at;
	uint64_t heard_ns, sent_ns;
};

struct state {
	struct tunnel *tunnel;
	unsigned rank, ranks;
	struct peer peers[TUNNEL_RANKS_MAX];
	int tun_fd, udp_fd, guest_fd;
	/* A sealed packet that the socket had no room for: gang0 is not read meanwhile. */
	uint8_t pending[TUNNEL_PACKET_MAX];
	size_t pending_len;
	unsigned pending_to;
};

/* ---- making everything ---- */

static int fail(const char *what, int err)
{
	(void)fprintf(stderr, "%s: %s\n", what, strerror(-err));
	return err;
}

static int read_orders(struct orders *o)
{
	char text[ORDERS_MAX];
	size_t len = 0;
	struct diag diag = DIAG_INIT;
	for (ssize_t n; len < sizeof(text) && (n = read(STDIN_FILENO, text + len, sizeof(text) - len)) != 0;) {
		if (n < 0 && errno != EINTR)
			return fail("orders", -errno);
		len += n > 0 ? (size_t)n : 0;
	}
	CLEANUP_JSON json_t *in = json_loadb(text, len, 0, NULL);
	explicit_bzero(text, sizeof(text));
	if (!in)
		return fail("orders are no JSON", -EINVAL);
	int r = schema_decode(&orders_schema, in, SCHEMA_OPEN, NULL, o, &diag);
	if (r < 0)
		(void)fprintf(stderr, "orders: %s: %s\n", diag.where, diag.what);
	return r;
}

static int resolve(const struct orders_rank *r, struct sockaddr_in *ret)
{
	const struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_DGRAM };
	struct addrinfo *found = NULL;
	if (getaddrinfo(r->host, NULL, &hints, &found) != 0 || !found)
		return fail(r->host, -EHOSTUNREACH);
	memcpy(ret, found->ai_addr, sizeof(*ret));
	ret->sin_port = htons((uint16_t)r->port);
	freeaddrinfo(found);
	return 0;
}

static int open_udp(int port, int *ret)
{
	CLEANUP_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int size = SOCKET_BUFFER;
	if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0)
		return fail("UDP socket", -errno);
	/* Less than asked for only costs speed. */
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	*ret = TAKE_FD(fd);
	return 0;
}

static int set_in(int fd, struct ifreq *r, unsigned long request, struct in_addr address)
{
	const struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = address };
	memcpy(&r->ifr_addr, &in, sizeof(in));
	return ioctl(fd, request, r) < 0 ? -errno : 0;
}

static int open_tun(unsigned rank, int udp_fd, int *ret)
{
	CLEANUP_FD int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	struct ifreq r = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	if (fd < 0)
		return fail("/dev/net/tun", -errno);
	(void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", TUNNEL_IFNAME);
	if (ioctl(fd, TUNSETIFF, &r) < 0)
		return fail(TUNNEL_IFNAME, -errno);
	int err = set_in(udp_fd, &r, SIOCSIFADDR, tunnel_address(rank));
	if (err == 0)
		err = set_in(udp_fd, &r, SIOCSIFNETMASK, (struct in_addr){ htonl(0xffffff00) });
	r.ifr_mtu = TUNNEL_MTU;
	if (err == 0 && ioctl(udp_fd, SIOCSIFMTU, &r) < 0)
		err = -errno;
	r.ifr_flags = IFF_UP | IFF_RUNNING;
	if (err == 0 && ioctl(udp_fd, SIOCSIFFLAGS, &r) < 0)
		err = -errno;
	if (err < 0)
		return fail(TUNNEL_IFNAME, err);
	*ret = TAKE_FD(fd);
	return 0;
}

static int enter(uint64_t pid)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "/proc/%llu/ns/net", (unsigned long long)pid);
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
		return fail(path, -errno);
	return 0;
}

static int make(struct state *s, const struct orders *o)
{
	uint8_t key[TUNNEL_KEY_LEN];
	s->rank = (unsigned)o->rank;
	s->ranks = (unsigned)o->ranks_count;
	if (strlen(o->key) != 2 * sizeof(key) || hex_decode(o->key, strlen(o->key), key, sizeof(key)) < 0)
		return fail("key", -EINVAL);
	int r = tunnel_new(key, o->epoch, s->rank, s->ranks, &s->tunnel);
	explicit_bzero(key, sizeof(key));
	if (r < 0)
		return fail("ciphers", r);
	/* Before the names: it must be that process, not one that has its number later. */
	s->guest_fd = (int)syscall(SYS_pidfd_open, (pid_t)o->pid, 0);
	if (s->guest_fd < 0)
		return fail("guest", -errno);
	for (unsigned i = 0; r == 0 && i < s->ranks; i++)
		if (i != s->rank)
			r = resolve(&o->ranks[i], &s->peers[i].at);
	if (r == 0)
		r = enter(o->pid);
	if (r == 0)
		r = open_udp(o->ranks[s->rank].port, &s->udp_fd);
	return r < 0 ? r : open_tun(s->rank, s->udp_fd, &s->tun_fd);
}

/* From here on it needs its three descriptors and nothing else. */
static int give_up_rights(void)
{
	if (chdir("/") < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setgroups(0, NULL) < 0 ||
	    setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return fail("giving up root's rights", -errno);
	return 0;
}

/* Whoever started us waits for our stderr to end. */
static int leave_starter(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || setsid() < 0)
		return -errno;
	for (int fd = 0; fd < 3; fd++)
		if (dup2(null, fd) < 0)
			return -errno;
	return 0;
}

/* ---- carrying packets ---- */

/* False: the socket is full, and the packet waits. Any other failure loses it, as networks do. */
static bool send_sealed(struct state *s, unsigned to, const uint8_t *wire, size_t len, uint64_t now)
{
	struct peer *p = &s->peers[to];
	ssize_t n = sendto(s->udp_fd, wire, len, 0, (struct sockaddr *)&p->at, sizeof(p->at));
	if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
		if (wire != s->pending)
			memcpy(s->pending, wire, len);
		s->pending_len = len;
		s->pending_to = to;
		return false;
	}
	s->pending_len = 0;
	p->sent_ns = now;
	return true;
}

static void outward(struct state *s, uint64_t now)
{
	uint8_t packet[TUNNEL_PACKET_MAX], wire[TUNNEL_PACKET_MAX + TUNNEL_OVERHEAD];
	for (int i = 0; i < BATCH; i++) {
		ssize_t n = read(s->tun_fd, packet, TUNNEL_PACKET_MAX - TUNNEL_OVERHEAD);
		if (n <= 0)
			return;
		int to = tunnel_route(s->tunnel, packet, (size_t)n);
		n = to < 0 ? to : tunnel_seal(s->tunnel, (unsigned)to, packet, (size_t)n, wire);
		if (n > 0 && !send_sealed(s, (unsigned)to, wire, (size_t)n, now))
			return;
	}
}

static void inward(struct state *s, uint64_t now)
{
	uint8_t wire[TUNNEL_PACKET_MAX], packet[TUNNEL_PACKET_MAX];
	for (int i = 0; i < BATCH; i++) {
		struct sockaddr_in from;
		socklen_t from_len = sizeof(from);
		unsigned rank;
		ssize_t n = recvfrom(s->udp_fd, wire, sizeof(wire), 0, (struct sockaddr *)&from, &from_len);
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
			continue; /* an ICMP error of a peer that is not there yet */
		n = tunnel_open(s->tunnel, wire, (size_t)n, packet, &rank);
		if (n < 0)
			continue;
		/* A translator may have given it another port: answers go to where it spoke from. */
		s->peers[rank].at = from;
		s->peers[rank].heard_ns = now;
		if (n > 0 && write(s->tun_fd, packet, (size_t)n) < 0)
			continue; /* gang0 is full: lost, as in any network */
	}
}

/* Returns when to look again. */
static uint64_t keep(struct state *s, uint64_t now)
{
	uint8_t wire[TUNNEL_OVERHEAD];
	uint64_t next = now + KEEP_NS;
	for (unsigned i = 0; i < s->ranks; i++) {
		struct peer *p = &s->peers[i];
		if (i == s->rank)
			continue;
		uint64_t every = p->heard_ns ? KEEP_NS : HELLO_NS;
		if (now >= p->sent_ns + every && !s->pending_len &&
		    tunnel_seal(s->tunnel, i, NULL, 0, wire) > 0)
			(void)send_sealed(s, i, wire, sizeof(wire), now); /* full: it waits like any other */
		next = MIN(next, MAX(p->sent_ns + every, now + NS_PER_MS));
	}
	return next;
}

static int carry(struct state *s)
{
	for (;;) {
		uint64_t now = clock_boot_ns(), next = keep(s, now);
		struct pollfd fds[] = {
			{ .fd = s->guest_fd, .events = POLLIN },
			{ .fd = s->udp_fd, .events = (short)(POLLIN | (s->pending_len ? POLLOUT : 0)) },
			{ .fd = s->pending_len ? -1 : s->tun_fd, .events = POLLIN },
		};
		if (poll(fds, ARRAY_SIZE(fds), (int)((next - now) / NS_PER_MS) + 1) < 0 && errno != EINTR)
			return -errno;
		now = clock_boot_ns();
		if (fds[0].revents)
			return 0;
		if (fds[1].revents & POLLOUT && s->pending_len)
			(void)send_sealed(s, s->pending_to, s->pending, s->pending_len, now);
		if (fds[1].revents & (POLLIN | POLLERR))
			inward(s, now);
		if (fds[2].revents & (POLLERR | POLLHUP))
			return -ENODEV;
		if (fds[2].revents)
			outward(s, now);
	}
}

int main(void)
{
	static struct state s = { .tun_fd = -1, .udp_fd = -1, .guest_fd = -1 };
	struct orders o = { 0 };
	if (read_orders(&o) < 0)
		return EXIT_FAILURE;
	int r = make(&s, &o);
	if (o.key)
		explicit_bzero(o.key, strlen(o.key));
	schema_done(&orders_schema, &o);
	if (r == 0)
		r = give_up_rights();
	if (r < 0)
		return EXIT_FAILURE;
	pid_t pid = fork();
	if (pid < 0)
		return EXIT_FAILURE;
	if (pid > 0)
		return EXIT_SUCCESS; /* all is made: what is sent from now on arrives */
	r = leave_starter();
	if (r == 0)
		r = carry(&s);
	tunnel_free(s.tunnel);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
