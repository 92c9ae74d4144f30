/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One main for every messaging system: the system's file defines five
 * functions, this header the measurements, so that all are timed alike.
 *
 *   PROGRAM pingpong SIZE SECONDS [spin]
 *   PROGRAM throughput SIZE SECONDS [batch]
 *
 * The parent is the client, a forked child the server. Prints one line:
 * "pingpong p50_us p99_us count" or "throughput messages_per_s mbytes_per_s".
 */
#ifndef BENCH_STREAMS_BENCH_H
#define BENCH_STREAMS_BENCH_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct bench {
	bool server, spin, batch, pingpong;
	size_t size;
	int to_peer, from_peer; /* pipes between the two processes, for addresses */
};

/* Both sides; the server first writes what the client needs to to_peer. */
void bench_open(const struct bench *b);
void bench_send(const void *data, size_t len);
/* The next message; valid until the next call. */
const void *bench_recv(size_t *ret_len);
/* Whatever was batched goes out. */
void bench_flush(void);
void bench_close(void);

static inline uint64_t bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void bench_die(const char *what)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static inline void pipe_write(int fd, const void *p, size_t len)
{
	if (write(fd, p, len) != (ssize_t)len)
		bench_die("pipe");
}

static inline void pipe_read(int fd, void *p, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = read(fd, (char *)p + done, len - done);

		if (n <= 0)
			bench_die("pipe");
		done += (size_t)n;
	}
}

/* Two spinning processes on one core would measure the scheduler's slices. */
static inline void bench_pin(const struct bench *b)
{
	cpu_set_t set;

	if (!b->spin)
		return;
	CPU_ZERO(&set);
	CPU_SET(b->server ? 1 : 0, &set);
	(void)sched_setaffinity(0, sizeof(set), &set); /* one core: as it is */
}

static int compare_u64(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The first byte tells the server what to do: 0 echo, 1 count, 2 answer and stop. */
static inline void bench_serve(void)
{
	for (;;) {
		size_t len;
		const uint8_t *p = bench_recv(&len);

		if (p[0] == 1)
			continue;
		if (p[0] == 2) {
			bench_send("k", 1);
			bench_flush();
			return;
		}
		bench_send(p, len);
		bench_flush();
	}
}

static inline void bench_stop(const struct bench *b)
{
	size_t len;
	char *stop = calloc(1, b->size ? b->size : 1);

	stop[0] = 2;
	bench_send(stop, b->size ? b->size : 1);
	bench_flush();
	(void)bench_recv(&len);
	free(stop);
}

static inline void bench_pingpong(const struct bench *b, double seconds)
{
	size_t cap = 4000000, n = 0, len;
	uint64_t *t = malloc(cap * sizeof(*t));
	char *msg = calloc(1, b->size);
	uint64_t end, warm = bench_now() + 200000000u;

	while (bench_now() < warm) {
		bench_send(msg, b->size);
		bench_flush();
		(void)bench_recv(&len);
	}
	end = bench_now() + (uint64_t)(seconds * 1e9);
	while (n < cap) {
		uint64_t from = bench_now(), now;

		bench_send(msg, b->size);
		bench_flush();
		(void)bench_recv(&len);
		now = bench_now();
		t[n++] = now - from;
		if (now > end)
			break;
	}
	bench_stop(b);
	qsort(t, n, sizeof(*t), compare_u64);
	printf("pingpong %.3f %.3f %zu\n", (double)t[n / 2] / 1000, (double)t[n * 99 / 100] / 1000, n);
}

static inline void bench_throughput(const struct bench *b, double seconds)
{
	char *msg = calloc(1, b->size);
	uint64_t from, now, end, n = 0;
	size_t each = b->size >= 65536 ? 1 : 64;

	msg[0] = 1;
	end = bench_now() + 200000000u;
	while (bench_now() < end)
		for (size_t i = 0; i < each; i++)
			bench_send(msg, b->size);
	from = bench_now();
	end = from + (uint64_t)(seconds * 1e9);
	do {
		for (size_t i = 0; i < each; i++)
			bench_send(msg, b->size);
		n += each;
		now = bench_now();
	} while (now < end);
	bench_stop(b); /* answered once all of it has arrived: counted into the time */
	now = bench_now();
	double s = (double)(now - from) / 1e9;

	printf("throughput %.0f %.3f\n", (double)n / s, (double)n * (double)b->size / s / 1e6);
}

int main(int argc, char **argv)
{
	struct bench b = { 0 };
	int down[2], up[2];

	if (argc < 4) {
		fprintf(stderr, "usage: %s pingpong|throughput SIZE SECONDS [spin] [batch]\n", argv[0]);
		return 2;
	}
	b.pingpong = !strcmp(argv[1], "pingpong");
	b.size = strtoul(argv[2], NULL, 10);
	for (int i = 4; i < argc; i++) {
		b.spin |= !strcmp(argv[i], "spin");
		b.batch |= !strcmp(argv[i], "batch");
	}
	double seconds = strtod(argv[3], NULL);
	if (pipe(down) || pipe(up))
		bench_die("pipe");
	pid_t child = fork();
	if (child < 0)
		bench_die("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(down[1]);
		close(up[0]);
		b.server = true;
		b.from_peer = down[0];
		b.to_peer = up[1];
		bench_pin(&b);
		bench_open(&b);
		bench_serve();
		char c;
		(void)!read(down[0], &c, 1); /* the client closes first */
		bench_close();
		_exit(0);
	}
	close(down[0]);
	close(up[1]);
	b.from_peer = up[0];
	b.to_peer = down[1];
	bench_pin(&b);
	bench_open(&b);
	if (b.pingpong)
		bench_pingpong(&b, seconds);
	else
		bench_throughput(&b, seconds);
	fflush(stdout);
	bench_close();
	close(down[1]);
	int status;
	waitpid(child, &status, 0);
	return 0;
}

#endif
