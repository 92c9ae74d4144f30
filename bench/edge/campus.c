/* SPDX-License-Identifier: Apache-2.0 */
#include "campus.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/pkt_sched.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "edge/testnet.h"
#include "edge/tree.h"
#include "load.h"

#define GSO_BYTES 9000      /* hosts send trains of six packets, not of forty */
#define SIZES_MAX 64
#define CHUNK 65536
#define SHORTS_OPEN_MAX 2000

static char zeros[CHUNK];
static const struct bench_campus_config *config;
static struct campus_counts *counts;

/* --- building it ---------------------------------------------------------- */

static int run_in(int ns, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int run_in(int ns, const char *fmt, ...)
{
	char text[512], cmd[700];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	(void)snprintf(cmd, sizeof(cmd), "nsenter --net=/proc/%d/fd/%d %s", (int)getpid(), ns, text);
	return system(cmd) == 0 ? 0 : -EIO;
}

static int add_site(struct bench_campus *c, struct nl_sock *core, int i)
{
	uint8_t mac[6] = { 2, 0x50, 0, 0, (uint8_t)i, 1 }, peer_mac[6] = { 2, 0x50, 0, 0, (uint8_t)i, 2 };
	char name[16];
	int ifindex, err;

	c->site[i] = testnet_ns_new();
	(void)snprintf(name, sizeof(name), "to%d", i);
	if (c->site[i] < 0)
		return -EPERM;
	err = net_veth_add(core, name, mac, c->site[i], "eth0", peer_mac, &ifindex);
	if (err == 0)
		err = run_in(c->core, "ip address add 10.50.%d.1/24 dev %s", i, name);
	if (err == 0)
		err = run_in(c->core, "ip link set dev %s up", name);
	if (err == 0)
		err = run_in(c->site[i], "ip address add 10.50.%d.2/24 dev eth0", i);
	if (err == 0)
		err = run_in(c->site[i], "ip link set dev eth0 gso_max_size %d up", GSO_BYTES);
	if (err == 0)
		err = run_in(c->site[i], "ip link set dev lo up");
	if (err == 0)
		err = run_in(c->site[i], "ip route add default via 10.50.%d.1", i);
	return err;
}

static int build(struct bench_campus *c)
{
	struct net_link l;
	int err = net_open_in(c->core, &c->core_sock);

	for (int i = 0; i < SITE_COUNT && err == 0; i++)
		err = add_site(c, c->core_sock, i);
	if (err == 0)
		err = net_link_get(c->core_sock, "to4", 0, &l);
	c->core_ifindex = err == 0 ? l.ifindex : 0;
	if (err == 0)
		err = run_in(c->core, "sysctl -qw net.ipv4.ip_forward=1");
	if (err == 0)
		err = run_in(c->core, "tc qdisc add dev to%d root handle 1: htb default 1", SITE_C);
	if (err == 0)
		err = run_in(c->core, "tc class add dev to%d parent 1: classid 1:1 htb rate %llubit burst 128kb cburst 128kb",
			     SITE_C, (unsigned long long)c->core_bps);
	if (err == 0)
		err = run_in(c->core, "tc qdisc add dev to%d parent 1:1 bfifo limit %u", SITE_C,
			     config->queue_bytes);
	return err;
}

/* --- C: counts what arrives ----------------------------------------------- */

struct sink_end {
	int fd;
	uint16_t port;
	bool listens;
};

static int sink_listen(int ep, uint16_t port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sink_end *end = calloc(1, sizeof(*end));
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = end };

	end->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	end->port = port;
	end->listens = true;
	CHECK(bind(end->fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(end->fd, 1024) == 0);
	return epoll_ctl(ep, EPOLL_CTL_ADD, end->fd, &ev);
}

static void sink_accept(int ep, const struct sink_end *from)
{
	for (;;) {
		int fd = accept4(from->fd, NULL, NULL, SOCK_NONBLOCK);
		struct sink_end *end = fd >= 0 ? calloc(1, sizeof(*end)) : NULL;
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = end };

		if (!end)
			return;
		*end = (struct sink_end){ .fd = fd, .port = from->port };
		CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0);
	}
}

static void sink_read(struct sink_end *end)
{
	_Atomic uint64_t *to = end->port == CAMPUS_PORT_BULK    ? &counts->bulk_bytes
			       : end->port == CAMPUS_PORT_SHORT ? &counts->short_bytes
								: &counts->move_bytes;
	/* The bytes are not looked at: no copy. */
	ssize_t n = recv(end->fd, NULL, 1u << 20, MSG_TRUNC | MSG_DONTWAIT);

	if (n > 0) {
		atomic_fetch_add_explicit(to, (uint64_t)n, memory_order_relaxed);
	} else if (n == 0 || errno != EAGAIN) {
		close(end->fd); /* tells the sender of a short flow that all is here */
		free(end);
	}
}

static void sink_main(void)
{
	struct epoll_event ev[64];
	int ep = epoll_create1(0);

	CHECK(sink_listen(ep, CAMPUS_PORT_BULK) == 0 && sink_listen(ep, CAMPUS_PORT_SHORT) == 0 &&
	      sink_listen(ep, CAMPUS_PORT_MOVE) == 0);
	for (;;) {
		int n = epoll_wait(ep, ev, 64, -1);

		for (int i = 0; i < n; i++) {
			struct sink_end *end = ev[i].data.ptr;

			if (end->listens)
				sink_accept(ep, end);
			else
				sink_read(end);
		}
	}
}

/* --- research ------------------------------------------------------------- */

static int dial(uint16_t port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(inet_pton(AF_INET, CAMPUS_C, &a.sin_addr) == 1);
	if (config->congestion)
		(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, config->congestion,
				 (socklen_t)strlen(config->congestion));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void nap_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S) };

	(void)nanosleep(&t, NULL);
}

static void *bulk_flow(void *arg)
{
	(void)arg;
	for (;;) {
		int fd = dial(CAMPUS_PORT_BULK);

		while (fd >= 0 && send(fd, zeros, CHUNK, MSG_NOSIGNAL) > 0)
			;
		close(fd);
		nap_ns(10 * NS_PER_MS);
	}
	return NULL;
}

static void start(void *(*fn)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t t;

	CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 64 << 10) == 0);
	CHECK(pthread_create(&t, &attr, fn, arg) == 0);
	(void)pthread_detach(t); /* ends with the process */
}

static void bulk_main(void)
{
	for (int i = 0; i < config->bulk_flows / 2; i++)
		start(bulk_flow, NULL);
}

struct sizes {
	double bytes[SIZES_MAX], p[SIZES_MAX];
	int count;
};

/* "bytes percent" a line, rising. */
static bool sizes_load(const char *path, struct sizes *s)
{
	FILE *f = fopen(path, "re");

	s->count = 0;
	while (f && s->count < SIZES_MAX &&
	       fscanf(f, "%lf %lf", &s->bytes[s->count], &s->p[s->count]) == 2)
		s->count++;
	if (f)
		(void)fclose(f);
	for (int i = 0; i < s->count; i++)
		s->p[i] /= s->p[s->count - 1];
	return s->count >= 2;
}

static double sizes_draw(const struct sizes *s, double u)
{
	int i = 1;

	while (i < s->count - 1 && s->p[i] < u)
		i++;
	return s->bytes[i - 1] + (s->bytes[i] - s->bytes[i - 1]) * (u - s->p[i - 1]) / (s->p[i] - s->p[i - 1]);
}

static double sizes_mean(const struct sizes *s)
{
	double mean = 0;

	for (int i = 1; i < s->count; i++)
		mean += (s->p[i] - s->p[i - 1]) * (s->bytes[i] + s->bytes[i - 1]) / 2;
	return mean;
}

static void *short_flow(void *arg)
{
	uint64_t left = (uint64_t)(uintptr_t)arg, begin = clock_boot_ns();
	int fd = dial(CAMPUS_PORT_SHORT);
	char byte;
	bool ok = fd >= 0;

	while (ok && left > 0) {
		ssize_t n = send(fd, zeros, MIN(left, (uint64_t)CHUNK), MSG_NOSIGNAL);

		ok = n > 0;
		left -= ok ? (uint64_t)n : 0;
	}
	ok = ok && shutdown(fd, SHUT_WR) == 0 && recv(fd, &byte, 1, 0) == 0;
	close(fd);
	if (ok) {
		uint32_t at = atomic_fetch_add(&counts->short_count, 1) % CAMPUS_SHORT_MAX;

		counts->short_us[at] = (uint32_t)((clock_boot_ns() - begin) / NS_PER_US);
	} else {
		atomic_fetch_add(&counts->short_failed, 1);
	}
	atomic_fetch_sub(&counts->short_open, 1);
	return NULL;
}

static uint64_t short_salt;

static void *short_arrivals(void *arg)
{
	struct sizes s;
	struct rng rng;
	double per_s;

	(void)arg;
	CHECK(sizes_load(config->sizes, &s));
	per_s = config->short_load * (double)config->core_bps / 8 / (sizes_mean(&s) * config->short_scale) / 2;
	for (;;) {
		uint64_t next;

		while (!atomic_load(&counts->short_run))
			nap_ns(NS_PER_MS);
		rng_init(&rng, atomic_load(&counts->short_seed) + short_salt);
		next = clock_boot_ns();
		while (atomic_load(&counts->short_run)) {
			uint64_t now = clock_boot_ns();
			double size;

			next += (uint64_t)(rng_exponential(&rng, 1.0 / per_s) * 1e9);
			size = sizes_draw(&s, rng_unit(&rng)) * config->short_scale;
			if (next > now)
				nap_ns(next - now);
			if (atomic_load(&counts->short_open) >= SHORTS_OPEN_MAX)
				continue; /* the link cannot carry this load */
			atomic_fetch_add(&counts->short_open, 1);
			start(short_flow, (void *)(uintptr_t)(size < 1 ? 1 : size));
		}
	}
	return NULL;
}

static void short_main(void)
{
	start(short_arrivals, NULL);
}

/* --- whole ---------------------------------------------------------------- */

static pid_t spawn(int ns, void (*fn)(void))
{
	pid_t parent = getpid(), pid = fork();

	if (pid != 0)
		return pid;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || setns(ns, CLONE_NEWNET) < 0)
		_exit(1);
	fn();
	for (;;)
		(void)pause();
}

const char *bench_campus_init(struct bench_campus *c, const struct bench_campus_config *given)
{
	memset(c, 0, sizeof(*c));
	config = given;
	c->core_bps = given->core_bps;
	c->core = testnet_ns_new();
	if (c->core < 0)
		return "no network namespaces";
	if (build(c) < 0)
		return "building the campus failed";
	c->counts = counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				  -1, 0);
	CHECK(counts != MAP_FAILED);
	c->sink = spawn(c->site[SITE_C], sink_main);
	nap_ns(100 * NS_PER_MS); /* dial() tries again where it must */
	for (int i = 0; i < 2; i++) {
		c->bulk[i] = spawn(c->site[i ? SITE_HOSTS_B : SITE_HOSTS_A], bulk_main);
		short_salt = (uint64_t)i * 1000003;
		if (given->sizes)
			c->shorts[i] = spawn(c->site[i ? SITE_HOSTS_B : SITE_HOSTS_A], short_main);
	}
	return NULL;
}

void bench_campus_done(struct bench_campus *c)
{
	for (int i = 0; i < 2; i++) {
		load_stop(c->bulk[i]);
		load_stop(c->shorts[i]);
	}
	load_stop(c->sink);
	for (int i = 0; i < SITE_COUNT; i++)
		fd_cleanup(&c->site[i]);
	fd_cleanup(&c->core);
	nl_socket_free(c->core_sock);
}

void bench_campus_run(struct bench_campus *c, uint64_t seed, double seconds, struct stretch *ret)
{
	uint64_t begin, bulk, shorts, core, end;

	ret->short_first = atomic_load(&counts->short_count);
	atomic_store(&counts->short_seed, seed);
	atomic_store(&counts->short_run, true);
	begin = clock_boot_ns();
	bulk = atomic_load(&counts->bulk_bytes);
	shorts = atomic_load(&counts->short_bytes);
	core = tree_sent(c->core_sock, c->core_ifindex, TC_H_ROOT);
	nap_ns((uint64_t)(seconds * 1e9));
	end = clock_boot_ns();
	ret->seconds = (double)(end - begin) / 1e9;
	ret->bulk_bps = (double)(atomic_load(&counts->bulk_bytes) - bulk) * 8 / ret->seconds;
	ret->short_bps = (double)(atomic_load(&counts->short_bytes) - shorts) * 8 / ret->seconds;
	ret->core_bps = (double)(tree_sent(c->core_sock, c->core_ifindex, TC_H_ROOT) - core) * 8 / ret->seconds;
	atomic_store(&counts->short_run, false);
	/* Flows that began count, however long they take: a slow one must not escape the p99. */
	end = clock_boot_ns() + 60 * NS_PER_S;
	while (atomic_load(&counts->short_open) > 0 && clock_boot_ns() < end)
		nap_ns(5 * NS_PER_MS);
	ret->short_count = atomic_load(&counts->short_count) - ret->short_first;
}
