/* SPDX-License-Identifier: Apache-2.0 */
/* Ours. RECLAIM_BENCH_TLS=1: encrypted; RECLAIM_BENCH_LEVEL: 0 (default) or 1, where
 * the server declares its state stable every 4,096 messages. */
#include "bench.h"

#include <pthread.h>
#include <reclaim/stream.h>

#include "stream/registry_server.h"

enum { MANY = 64 };
static struct reclaim_node *node;
static struct reclaim_stream *stream;
static struct registry_server *server;
static struct bench me;
static struct reclaim_msg got[MANY];
static int got_count, got_at, level;
static struct iovec many[MANY];
static uint8_t *many_mem;
static int many_count;
static unsigned since_stable;

static void *serve(void *arg)
{
	(void)arg;
	(void)registry_server_run(server);
	return NULL;
}

void bench_open(const struct bench *b)
{
	static const uint8_t secret[SEAL_KEY_LEN] = { 1 };
	char address[160] = { 0 };

	me = *b;
	level = getenv("RECLAIM_BENCH_LEVEL") ? atoi(getenv("RECLAIM_BENCH_LEVEL")) : 0;
	if (b->server) {
		struct registry_server_options o = { .listen = "tcp:127.0.0.1:0" };
		pthread_t t;

		if (registry_server_open(&o, &server))
			bench_die("registry");
		registry_add_job(registry_server_registry(server), "bench", "bench", secret);
		pthread_create(&t, NULL, serve, NULL);
		snprintf(address, sizeof(address), "%s", registry_server_address(server));
		pipe_write(b->to_peer, address, sizeof(address));
	} else {
		pipe_read(b->from_peer, address, sizeof(address));
	}
	struct reclaim_node_options o = { .size = sizeof(o), .name = b->server ? "server" : "client",
					  .registry = address, .token = "bench", .level = level,
					  .plain = !getenv("RECLAIM_BENCH_TLS"), .spin = b->spin };
	int r = reclaim_node_open(&o, &node);
	if (r < 0) {
		errno = -r;
		bench_die("node");
	}
	enum reclaim_class cls = b->size > 65536 ? RECLAIM_BULK : b->size > 1024 ? RECLAIM_ACTIVATION :
										  RECLAIM_TOKEN;
	reclaim_stream_open(node, b->server ? "client" : "server", cls, NULL, &stream);
	many_mem = malloc(MANY * (b->size + 1));
}

static void check(int r)
{
	if (r < 0) {
		errno = -r;
		bench_die("stream");
	}
}

static void send_many(void)
{
	for (int done = 0; done < many_count;) {
		int r = reclaim_send_many(stream, many + done, many_count - done, RECLAIM_MORE, -1);

		check(r);
		done += r;
	}
	many_count = 0;
}

void bench_send(const void *data, size_t len)
{
	if (me.batch && !me.server) {
		many[many_count++] = (struct iovec){ (void *)(uintptr_t)data, len };
		if (many_count == MANY)
			send_many();
		return;
	}
	if (len >= 65536 && !me.pingpong) {
		struct iovec iov = { (void *)(uintptr_t)data, len };
		struct reclaim_buf buf = { .iov = &iov, .iov_count = 1 };

		check(reclaim_send_buf(stream, &buf, 0, -1));
		return;
	}
	check(reclaim_send(stream, data, len, 0, -1));
}

void bench_flush(void)
{
	if (many_count)
		send_many();
	reclaim_flush(stream);
}

const void *bench_recv(size_t *ret_len)
{
	while (got_at == got_count) {
		got_at = 0;
		got_count = reclaim_recv_many(node, got, me.pingpong ? 1 : MANY, -1);
		check(got_count);
		if (level && (since_stable += (unsigned)got_count) >= 4096) {
			since_stable = 0;
			reclaim_stable(node);
		}
	}
	*ret_len = got[got_at].len;
	return got[got_at++].data;
}

void bench_close(void)
{
	reclaim_node_close(node);
	if (server) {
		registry_server_stop(server);
	}
}
