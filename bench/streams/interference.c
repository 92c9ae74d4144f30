/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token stream of 1 kHz beside saturating bulk to the same receiver. The
 * run script puts the two sides into network namespaces with 1 Gbit/s between.
 *
 *   interference server ADDRESS REGISTRY_PORT SECONDS [MOVE]
 *   interference client ADDRESS REGISTRY
 *
 * The server side prints: token_p50_us token_p99_us bulk_solo bulk_beside (MB/s).
 * With MOVE the receiver moves to another process there half way.
 */
#include <errno.h>
#include <pthread.h>
#include <reclaim/stream.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stream/registry_server.h"

enum { BULK = 1 << 20, DELAYS = 200000 };

struct shared {
	uint64_t delays[DELAYS], count, bulk, instance[2];
	bool stop;
	char registry[160];
};
static struct shared *sh;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check(const char *what, int r)
{
	if (r >= 0)
		return;
	fprintf(stderr, "interference: %s: %s\n", what, strerror(-r));
	_exit(1);
}

static void receiver(int me, const char *address)
{
	char listen[64];
	struct reclaim_node_options o = { .size = sizeof(o), .name = "sink", .registry = sh->registry,
					  .token = "t", .level = 0, .plain = true, .listen = listen,
					  .standby = me > 0, .no_takeover = true };
	struct reclaim_node *n;
	struct reclaim_msg m;
	int r;

	snprintf(listen, sizeof(listen), "%s:0", address);
	check("open", reclaim_node_open(&o, &n));
	__atomic_store_n(&sh->instance[me], reclaim_node_instance(n), __ATOMIC_RELEASE);
	while ((r = reclaim_recv(n, &m, 100)) >= 0) {
		if (__atomic_load_n(&sh->stop, __ATOMIC_ACQUIRE))
			break;
		if (r == 0 || m.kind != RECLAIM_DATA)
			continue;
		if (m.cls == RECLAIM_TOKEN) {
			uint64_t at;

			memcpy(&at, m.data, 8);
			uint64_t i = __atomic_fetch_add(&sh->count, 1, __ATOMIC_ACQ_REL);
			if (i < DELAYS)
				sh->delays[i] = now_ns() - at;
		} else {
			__atomic_fetch_add(&sh->bulk, m.len, __ATOMIC_ACQ_REL);
		}
	}
	while (!__atomic_load_n(&sh->stop, __ATOMIC_ACQUIRE))
		usleep(10000);
	_exit(0);
}

static int cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void *serve(void *arg)
{
	(void)registry_server_run(arg);
	return NULL;
}

static void wait_for(uint64_t *p)
{
	while (!__atomic_load_n(p, __ATOMIC_ACQUIRE))
		usleep(1000);
}

static int server_main(int argc, char **argv)
{
	static const uint8_t secret[SEAL_KEY_LEN] = { 1 };
	char where[96];
	struct registry_server *s;
	struct registry_server_options o = { .listen = where };
	double seconds = atof(argv[4]);
	pthread_t t;

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(where, sizeof(where), "tcp:%s:%s", argv[2], argv[3]);
	snprintf(sh->registry, sizeof(sh->registry), "%s", where);
	pid_t side[2] = { 0 };
	check("registry", registry_server_open(&o, &s));
	registry_add_job(registry_server_registry(s), "job", "t", secret);
	for (int i = 0; i < (argc > 5 ? 2 : 1); i++) {
		side[i] = fork();
		if (side[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			usleep(100000);
			receiver(i, argv[2]);
		}
	}
	pthread_create(&t, NULL, serve, s);
	wait_for(&sh->instance[0]);
	if (argc > 5)
		wait_for(&sh->instance[1]);
	wait_for(&sh->bulk);
	/* Bulk alone until the client begins with tokens. */
	usleep(500000);
	uint64_t from = now_ns(), b0 = sh->bulk;
	while (!__atomic_load_n(&sh->count, __ATOMIC_ACQUIRE))
		usleep(1000);
	double solo = (double)(sh->bulk - b0) / 1e6 / ((double)(now_ns() - from) / 1e9);
	usleep(300000);
	uint64_t first = sh->count, b1 = sh->bulk;
	from = now_ns();
	usleep((useconds_t)(seconds * 5e5));
	if (argc > 5)
		check("move", reclaim_move(sh->registry, "t", "sink", sh->instance[1]));
	usleep((useconds_t)(seconds * 5e5));
	double beside = (double)(sh->bulk - b1) / 1e6 / ((double)(now_ns() - from) / 1e9);
	uint64_t n = sh->count - first;
	qsort(sh->delays + first, n, sizeof(uint64_t), cmp);
	printf("%.1f %.1f %.2f %.2f\n", (double)sh->delays[first + n / 2] / 1e3,
	       (double)sh->delays[first + n * 99 / 100] / 1e3, solo, beside);
	fflush(stdout);
	__atomic_store_n(&sh->stop, true, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		if (side[i]) {
			kill(side[i], SIGKILL);
			waitpid(side[i], NULL, 0);
		}
	_exit(0);
}

static void *tokens(void *arg)
{
	uint64_t at = now_ns();

	usleep(3000000);
	for (at = now_ns();; at += 1000000) {
		struct timespec t = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };
		uint8_t msg[64] = { 0 };

		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		memcpy(msg, &at, 8);
		if (reclaim_send(arg, msg, sizeof(msg), 0, 1000) < 0)
			_exit(0);
	}
	return NULL;
}

static int client_main(char **argv)
{
	char listen[64];
	struct reclaim_node_options o = { .size = sizeof(o), .name = "client", .registry = argv[3],
					  .token = "t", .level = 0, .plain = true, .listen = listen };
	struct reclaim_node *n;
	struct reclaim_stream *token, *bulk;
	struct iovec iov = { calloc(1, BULK), BULK };
	struct reclaim_buf buf = { .iov = &iov, .iov_count = 1 };
	pthread_t t;

	snprintf(listen, sizeof(listen), "%s:0", argv[2]);
	check("open", reclaim_node_open(&o, &n));
	check("stream", reclaim_stream_open(n, "sink", RECLAIM_TOKEN, NULL, &token));
	check("stream", reclaim_stream_open(n, "sink", RECLAIM_BULK, &(struct reclaim_stream_options){
		.size = sizeof(struct reclaim_stream_options), .number = 1 }, &bulk));
	pthread_create(&t, NULL, tokens, token);
	for (;;)
		if (reclaim_send_buf(bulk, &buf, 0, 5000) < 0)
			_exit(0);
}

int main(int argc, char **argv)
{
	if (argc >= 5 && !strcmp(argv[1], "server"))
		return server_main(argc, argv);
	if (argc >= 4 && !strcmp(argv[1], "client"))
		return client_main(argv);
	return 2;
}
