/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "edge/testnet.h"

#define PORT_UDP_OUT 5001
#define PORT_TCP_OUT 5002
#define PORT_TCP_IN 5003
#define PORT_UDP_IN 5004
#define PAYLOAD 1400
#define CHUNK (256u << 10)

static char zeros[CHUNK];
static uint64_t in_rate;

static struct sockaddr_in address(uint16_t port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

	CHECK(inet_pton(AF_INET, TESTNET_INTERNET, &a.sin_addr) == 1);
	return a;
}

static void start(void *(*fn)(void *), void *arg)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, fn, arg) == 0);
	(void)pthread_detach(t); /* ends with the process */
}

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	(void)nanosleep(&t, NULL);
}

/* --- the world ------------------------------------------------------------ */

static void *sink_tcp(void *arg)
{
	int fd = (int)(intptr_t)arg;

	while (recv(fd, NULL, CHUNK, MSG_TRUNC) > 0)
		;
	close(fd);
	return NULL;
}

static void *source_tcp(void *arg)
{
	int fd = (int)(intptr_t)arg;

	if (in_rate) {
		uint32_t pace = (uint32_t)(in_rate / 2 / 8);

		(void)setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof(pace));
	}
	while (send(fd, zeros, 65536, MSG_NOSIGNAL) > 0)
		;
	close(fd);
	return NULL;
}

static void *listen_tcp(void *arg)
{
	uint16_t port = (uint16_t)(intptr_t)arg;
	struct sockaddr_in a = address(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	a.sin_addr.s_addr = htonl(INADDR_ANY);
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 64) == 0);
	for (;;) {
		int c = accept(fd, NULL, NULL);

		if (c >= 0)
			start(port == PORT_TCP_OUT ? sink_tcp : source_tcp, (void *)(intptr_t)c);
	}
}

/* Floods whoever said hello last, a millisecond's worth at a time. */
static void *source_udp(void *arg)
{
	struct sockaddr_in a = address(PORT_UDP_IN), to = { 0 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t burst = in_rate / 2 / 8 / 1000 / PAYLOAD + 1;
	char text[64];

	(void)arg;
	CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	for (;;) {
		struct sockaddr_in from;
		socklen_t len = sizeof(from);

		if (recvfrom(fd, text, sizeof(text), MSG_DONTWAIT, (struct sockaddr *)&from, &len) > 0)
			to = from;
		for (uint64_t i = 0; to.sin_port && in_rate && i < burst; i++)
			(void)sendto(fd, zeros, PAYLOAD, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof(to));
		pause_ms(1);
	}
}

static void world_main(void)
{
	struct sockaddr_in a = address(PORT_UDP_OUT);
	int sink = socket(AF_INET, SOCK_DGRAM, 0);

	/* Bound but never read: the kernel drops, and nobody answers "unreachable". */
	CHECK(bind(sink, (struct sockaddr *)&a, sizeof(a)) == 0);
	start(listen_tcp, (void *)(intptr_t)PORT_TCP_OUT);
	start(listen_tcp, (void *)(intptr_t)PORT_TCP_IN);
	start(source_udp, NULL);
}

/* --- the guest ------------------------------------------------------------ */

static int dial(uint16_t port)
{
	struct sockaddr_in a = address(port);

	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
			return fd;
		close(fd);
		pause_ms(5);
	}
}

static void *guest_tcp_out(void *arg)
{
	(void)arg;
	for (;;) {
		int fd = dial(PORT_TCP_OUT);

		while (send(fd, zeros, 65536, MSG_NOSIGNAL) > 0)
			;
		close(fd);
	}
	return NULL; /* not reached */
}

static void *guest_tcp_in(void *arg)
{
	(void)arg;
	for (;;)
		(void)sink_tcp((void *)(intptr_t)dial(PORT_TCP_IN));
	return NULL; /* not reached */
}

static void *guest_udp_out(void *arg)
{
	struct sockaddr_in a = address(PORT_UDP_OUT);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	(void)arg;
	/* Blocking: the socket's buffer keeps the guest's queue full. */
	for (;;)
		if (sendto(fd, zeros, PAYLOAD, 0, (struct sockaddr *)&a, sizeof(a)) < 0)
			pause_ms(1);
	return NULL; /* not reached */
}

static void *guest_udp_in(void *arg)
{
	struct sockaddr_in a = address(PORT_UDP_IN);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	(void)arg;
	for (;;) {
		(void)sendto(fd, "hello", 5, 0, (struct sockaddr *)&a, sizeof(a));
		pause_ms(20);
	}
	return NULL; /* not reached */
}

static void guest_main(void)
{
	start(guest_udp_out, NULL);
	start(guest_udp_in, NULL);
	start(guest_tcp_out, NULL);
	start(guest_tcp_in, NULL);
}

/* --- processes ------------------------------------------------------------ */

static int research_flows;

static void research_main(void)
{
	for (int i = 0; i < research_flows; i++)
		start(guest_tcp_out, NULL);
}

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

pid_t load_world(int world_ns, uint64_t in_bps)
{
	in_rate = in_bps;
	return spawn(world_ns, world_main);
}

pid_t load_guest(int guest_ns)
{
	return spawn(guest_ns, guest_main);
}

pid_t load_research(int machine_ns, int flows)
{
	research_flows = flows;
	return spawn(machine_ns, research_main);
}

void load_stop(pid_t pid)
{
	if (pid > 0 && kill(pid, SIGKILL) == 0)
		(void)waitpid(pid, NULL, 0); /* our child, just killed */
}
