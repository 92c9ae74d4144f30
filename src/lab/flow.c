/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/flow.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define STREAMS_MAX 256
#define CHUNK (256u << 10)

struct flow_shared {
	_Atomic uint64_t bins_count; /* of bins[], fixed before the processes start */
	_Atomic uint64_t bins[];     /* bytes */
};

struct flow {
	const struct scenario_flow *spec;
	uint64_t origin_ns;
	struct flow_shared *shared;
	size_t shared_size;
	pid_t sender, receiver;
};

static void sleep_until(uint64_t boot_ns)
{
	struct timespec t = { (time_t)(boot_ns / NS_PER_S), (long)(boot_ns % NS_PER_S) };

	while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static struct sockaddr_in address_of(const struct campus_node *n, unsigned port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	(void)inet_pton(AF_INET, n->address, &a.sin_addr);
	return a;
}

static void tune(int fd, uint64_t rate_bps)
{
	uint64_t bytes_per_s = rate_bps / 8;

	/* The usual algorithm of hosts, whatever this machine's default is. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	if (rate_bps)
		(void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s,
				 sizeof(bytes_per_s));
}

static void receive(const struct flow *f, int listen_fd)
{
	struct pollfd p[STREAMS_MAX + 1] = { { listen_fd, POLLIN, 0 } };
	static char buf[CHUNK];
	nfds_t count = 1;

	for (;;) {
		uint64_t bin;

		if (poll(p, count, -1) < 0)
			continue;
		bin = (clock_boot_ns() - f->origin_ns) / FLOW_BIN_NS;
		for (nfds_t i = 1; i < count; i++) {
			ssize_t n = p[i].revents ? recv(p[i].fd, buf, sizeof(buf), 0) : 1;

			if (n <= 0) {
				(void)close(p[i].fd);
				p[i--] = p[--count];
			} else if (p[i].revents && bin < f->shared->bins_count) {
				(void)atomic_fetch_add(&f->shared->bins[bin], (uint64_t)n);
			}
		}
		if (p[0].revents && count <= STREAMS_MAX) {
			int fd = accept(listen_fd, NULL, NULL);

			if (fd >= 0)
				p[count++] = (struct pollfd){ fd, POLLIN, 0 };
		}
	}
}

static int connect_stream(const struct flow *f, const struct sockaddr_in *to)
{
	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (fd < 0)
			_exit(1);
		tune(fd, f->spec->rate_bps / f->spec->streams);
		if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) == 0) {
			(void)fcntl(fd, F_SETFL, O_NONBLOCK);
			return fd;
		}
		(void)close(fd);
		sleep_until(clock_boot_ns() + 100 * NS_PER_MS);
	}
}

static void send_all(const struct flow *f, const struct sockaddr_in *to)
{
	struct pollfd p[STREAMS_MAX];
	static char buf[CHUNK];
	size_t count = MIN(f->spec->streams, (size_t)STREAMS_MAX);
	uint64_t stop = f->spec->stop_ns ? f->origin_ns + f->spec->stop_ns : UINT64_MAX;

	(void)signal(SIGPIPE, SIG_IGN);
	sleep_until(f->origin_ns + f->spec->start_ns);
	for (size_t i = 0; i < count; i++)
		p[i] = (struct pollfd){ connect_stream(f, to), POLLOUT, 0 };
	while (clock_boot_ns() < stop) {
		if (poll(p, count, 100) <= 0)
			continue;
		for (size_t i = 0; i < count; i++) {
			if (!p[i].revents)
				continue;
			if (send(p[i].fd, buf, sizeof(buf), 0) < 0 && errno != EAGAIN) {
				(void)close(p[i].fd); /* a cable was cut: like any program, again */
				p[i].fd = connect_stream(f, to);
			}
		}
	}
}

static pid_t start_process(const struct campus_node *node, const char *name)
{
	pid_t pid = fork();

	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)prctl(PR_SET_NAME, name);
		(void)setpgid(0, 0);
		if (campus_enter(node) < 0)
			_exit(1);
	}
	return pid;
}

/* Listening before anybody connects, inside the node's network. */
static int listen_in(const struct campus_node *node, unsigned port, int type)
{
	struct sockaddr_in a = address_of(node, port);
	int one = 1, fd = socket(AF_INET, type, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 ||
	    (type == SOCK_STREAM && listen(fd, STREAMS_MAX) < 0))
		return -errno;
	return fd;
}

int flow_start(const struct scenario_flow *spec, size_t index, const struct campus_node *from,
	       const struct campus_node *to, uint64_t origin_boot_ns, uint64_t length_ns,
	       struct flow **ret, struct diag *diag)
{
	size_t bins = length_ns / FLOW_BIN_NS + 1;
	unsigned port = FLOW_PORT_BASE + (unsigned)index;
	struct sockaddr_in a = address_of(to, port);
	struct flow *f = calloc(1, sizeof(*f));

	if (!f)
		return -ENOMEM;
	*f = (struct flow){ .spec = spec, .origin_ns = origin_boot_ns,
			    .shared_size = sizeof(*f->shared) + bins * sizeof(uint64_t) };
	f->shared = mmap(NULL, f->shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);
	if (f->shared == MAP_FAILED) {
		free(f);
		return diag_set(diag, -ENOMEM, spec->name, "no memory for %zu bins", bins);
	}
	f->shared->bins_count = bins;
	f->receiver = start_process(to, "flow-receiver");
	if (f->receiver == 0) {
		int fd = listen_in(to, port, SOCK_STREAM);

		if (fd < 0)
			_exit(1);
		receive(f, fd);
	}
	f->sender = start_process(from, "flow-sender");
	if (f->sender == 0) {
		send_all(f, &a);
		_exit(0);
	}
	*ret = f;
	return 0;
}

static void end(pid_t pid)
{
	if (pid <= 0)
		return;
	(void)kill(pid, SIGKILL); /* may have ended by itself */
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

void flow_stop(struct flow *f)
{
	if (!f)
		return;
	end(f->sender);
	end(f->receiver);
	(void)munmap(f->shared, f->shared_size);
	free(f);
}

double flow_mbps(const struct flow *f, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t first, last, bytes = 0;

	if (from_ns < f->origin_ns || to_ns <= from_ns)
		return 0;
	first = (from_ns - f->origin_ns + FLOW_BIN_NS - 1) / FLOW_BIN_NS;
	last = MIN((to_ns - f->origin_ns) / FLOW_BIN_NS, (uint64_t)f->shared->bins_count);
	if (last <= first)
		return 0;
	for (uint64_t i = first; i < last; i++)
		bytes += f->shared->bins[i];
	return (double)bytes * 8 / ((double)(last - first) * (double)FLOW_BIN_NS / 1e9) / 1e6;
}

/* ---- datagrams ---- */

struct sink_source {
	_Atomic uint32_t address;
	_Atomic uint64_t packets, last_boot_ns;
};

struct sink {
	pid_t pid;
	struct sink_source *sources; /* shared, SINK_SOURCES_MAX */
};

/* The kernel stamps packets with the wall clock; deadlines are on the boot clock. */
static uint64_t wall_to_boot(const struct timespec *stamp)
{
	struct timespec wall;
	uint64_t boot = clock_boot_ns();

	(void)clock_gettime(CLOCK_REALTIME, &wall);
	return boot - ((uint64_t)(wall.tv_sec - stamp->tv_sec) * NS_PER_S +
		       (uint64_t)(wall.tv_nsec - stamp->tv_nsec));
}

static void note_packet(struct sink *s, uint32_t address, uint64_t boot_ns)
{
	for (size_t i = 0; i < SINK_SOURCES_MAX; i++) {
		struct sink_source *src = &s->sources[i];

		if (src->address == 0)
			src->address = address;
		if (src->address == address) {
			src->last_boot_ns = boot_ns;
			(void)atomic_fetch_add(&src->packets, 1);
			return;
		}
	}
}

static void sink_run(struct sink *s, int fd)
{
	int one = 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one));
	for (;;) {
		char payload[2048], control[256];
		struct sockaddr_in from;
		struct iovec iov = { payload, sizeof(payload) };
		struct msghdr m = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov,
				    .msg_iovlen = 1, .msg_control = control,
				    .msg_controllen = sizeof(control) };
		uint64_t boot_ns = 0;

		if (recvmsg(fd, &m, 0) < 0)
			continue;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
			if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
				struct timespec t;

				memcpy(&t, CMSG_DATA(c), sizeof(t));
				boot_ns = wall_to_boot(&t);
			}
		note_packet(s, from.sin_addr.s_addr, boot_ns ? boot_ns : clock_boot_ns());
	}
}

int sink_start(const struct campus_node *node, struct sink **ret, struct diag *diag)
{
	struct sink *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->sources = mmap(NULL, SINK_SOURCES_MAX * sizeof(*s->sources), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s->sources == MAP_FAILED) {
		free(s);
		return diag_set(diag, -ENOMEM, node->name, "no memory");
	}
	s->pid = start_process(node, "datagram-sink");
	if (s->pid == 0) {
		int fd = listen_in(node, SINK_PORT, SOCK_DGRAM);

		if (fd < 0)
			_exit(1);
		sink_run(s, fd);
	}
	*ret = s;
	return 0;
}

void sink_stop(struct sink *s)
{
	if (!s)
		return;
	end(s->pid);
	(void)munmap(s->sources, SINK_SOURCES_MAX * sizeof(*s->sources));
	free(s);
}

uint64_t sink_last(const struct sink *s, const char *address, uint64_t *ret_packets)
{
	struct in_addr a;

	if (inet_pton(AF_INET, address, &a) != 1)
		return 0;
	for (size_t i = 0; i < SINK_SOURCES_MAX; i++)
		if (s->sources[i].address == a.s_addr) {
			if (ret_packets)
				*ret_packets = s->sources[i].packets;
			return s->sources[i].last_boot_ns;
		}
	return 0;
}
