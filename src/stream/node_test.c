/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes end to end: a registry in a thread, nodes in this process, real sockets. */
#include <errno.h>
#include <pthread.h>
#include <reclaim/stream.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "stream/admin.h"
#include "stream/registry_server.h"

struct fixture {
	struct registry_server *server;
	pthread_t thread;
	char address[160];
	char dir[64];
};

static void *serve(void *arg)
{
	struct fixture *f = arg;

	(void)registry_server_run(f->server);
	return NULL;
}

static void start(struct fixture *f, const char *listen, uint64_t ttl_ms)
{
	static const uint8_t secret[SEAL_KEY_LEN] = { 1, 2, 3 };
	static const uint8_t other[SEAL_KEY_LEN] = { 9 };
	struct registry_server_options o = { .listen = listen, .dir = f->dir,
					     .terms = { ttl_ms * NS_PER_MS, 5 * NS_PER_MS, 500 } };

	assert_int_equal(registry_server_open(&o, &f->server), 0);
	snprintf(f->address, sizeof(f->address), "%s", registry_server_address(f->server));
	assert_int_equal(registry_add_job(registry_server_registry(f->server), "job1", "tok", secret), 0);
	assert_int_equal(registry_add_job(registry_server_registry(f->server), "job2", "tok2", other), 0);
	assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
}

static void stop(struct fixture *f)
{
	registry_server_stop(f->server);
	pthread_join(f->thread, NULL);
	registry_server_close(f->server);
}

static int setup_ttl(void **state, uint64_t ttl_ms)
{
	struct fixture *f = calloc(1, sizeof(*f));

	strcpy(f->dir, "/tmp/stream-test-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	start(f, "tcp:127.0.0.1:0", ttl_ms);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	return setup_ttl(state, 1000);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	stop(f);
	(void)dir_remove_all(f->dir);
	free(f);
	return 0;
}

static struct reclaim_node_options options(struct fixture *f, const char *name)
{
	return (struct reclaim_node_options){ .size = sizeof(struct reclaim_node_options),
					      .name = name, .registry = f->address, .token = "tok",
					      .level = 1, .open_timeout_ms = 10000 };
}

static struct reclaim_node *open_node(const struct reclaim_node_options *o)
{
	struct reclaim_node *n = NULL;

	assert_int_equal(reclaim_node_open(o, &n), 0);
	return n;
}

/* The next message that is data. */
static void expect_data(struct reclaim_node *n, uint64_t seq, const void *data, size_t len)
{
	struct reclaim_msg m;
	int r;

	do {
		r = reclaim_recv(n, &m, 10000);
	} while (r == 1 && m.kind != RECLAIM_DATA);
	assert_int_equal(r, 1);
	assert_int_equal(m.seq, seq);
	assert_int_equal(m.len, len);
	if (data)
		assert_memory_equal(m.data, data, len);
}

static void test_sizes(void **state)
{
	static const size_t sizes[] = { 0, 1, 64, 4096, 16384, 16385, 100000, 1 << 20, 9 << 20 };
	struct fixture *f = *state;

	for (int plain = 0; plain < 2; plain++) {
		struct reclaim_node_options a = options(f, "a"), b = options(f, "b");
		struct reclaim_stream *s;

		a.plain = b.plain = plain;
		struct reclaim_node *na = open_node(&a), *nb = open_node(&b);
		assert_int_equal(reclaim_stream_open(na, "b", RECLAIM_ACTIVATION, NULL, &s), 0);
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			uint8_t *p = malloc(sizes[i] + 1);

			for (size_t k = 0; k < sizes[i]; k++)
				p[k] = (uint8_t)(k * 7 + i);
			assert_int_equal(reclaim_send(s, p, sizes[i], 0, 10000), 0);
			expect_data(nb, i + 1, p, sizes[i]);
			free(p);
		}
		assert_int_equal(reclaim_drain(s, false, 5000), 0);
		assert_int_equal(reclaim_stable(nb), 0);
		assert_int_equal(reclaim_drain(s, true, 5000), 0);
		reclaim_node_close(na);
		reclaim_node_close(nb);
	}
}

static void test_wrong_job_refused(void **state)
{
	struct fixture *f = *state;
	struct reclaim_node_options a = options(f, "a"), b = options(f, "b");
	struct reclaim_node *n = NULL;
	struct reclaim_stream *s;
	struct reclaim_msg m;

	a.token = "no such";
	assert_int_equal(reclaim_node_open(&a, &n), -EPERM);
	/* Another job has names of its own: its "b" is not ours. */
	a.token = "tok2";
	struct reclaim_node *na = open_node(&a), *nb = open_node(&b);
	assert_int_equal(reclaim_stream_open(na, "b", RECLAIM_TOKEN, NULL, &s), 0);
	assert_int_equal(reclaim_send(s, "x", 1, 0, 1000), 0);
	assert_int_equal(reclaim_recv(nb, &m, 200), 0);
	assert_int_equal(reclaim_drain(s, false, 10), -ETIMEDOUT);
	reclaim_node_close(na);
	reclaim_node_close(nb);
}

struct mover {
	struct fixture *f;
	struct reclaim_node *node;
	uint64_t count, last;
	uint8_t region[200000];
	uint64_t saved;
	int failed;
};

static int save(void *arg, struct reclaim_sink *sink)
{
	struct mover *m = arg;

	return reclaim_sink_write(sink, &m->count, sizeof(m->count));
}

static int load(void *arg, const void *bytes, size_t len)
{
	struct mover *m = arg;

	if (len != sizeof(m->count))
		return -EINVAL;
	memcpy(&m->count, bytes, len);
	m->saved = m->count;
	return 0;
}

/* Receives until its name is moved away; the state is how many it has seen, in all. */
static void *receiver_main(void *arg)
{
	struct mover *m = arg;
	struct reclaim_msg msg;
	int r;

	while ((r = reclaim_recv(m->node, &msg, 10000)) == 1) {
		uint64_t v;

		if (msg.kind != RECLAIM_DATA)
			continue;
		memcpy(&v, msg.data, 8);
		if (v != m->count + 1 || msg.seq != v)
			m->failed = 1;
		m->count = v;
		m->region[v % sizeof(m->region)] = (uint8_t)v;
		reclaim_region_dirty(m->node, 1, v % sizeof(m->region), 1);
	}
	if (r != -ESTALE && r != -ECANCELED)
		m->failed = r ? r : 2;
	return NULL;
}

static void test_planned_moves(void **state)
{
	enum { MOVES = 10, TOTAL = 40000 };
	struct fixture *f = *state;
	struct mover *m = calloc(MOVES + 1, sizeof(*m));
	pthread_t threads[MOVES + 1];
	struct reclaim_node_options c = options(f, "client");
	struct reclaim_node *client = open_node(&c);
	struct reclaim_stream *s;
	uint64_t sent = 0;

	for (int i = 0; i <= MOVES; i++) {
		struct reclaim_node_options o = options(f, "sink");
		struct reclaim_region region = { 1, m[i].region, sizeof(m[i].region) };

		o.standby = i > 0;
		o.no_takeover = true;
		o.save = save;
		o.load = load;
		o.arg = &m[i];
		o.regions = &region;
		o.regions_count = 1;
		m[i].node = open_node(&o);
		assert_int_equal(pthread_create(&threads[i], NULL, receiver_main, &m[i]), 0);
		if (i == 0) {
			assert_int_equal(reclaim_stream_open(client, "sink", RECLAIM_TOKEN, NULL, &s), 0);
			continue;
		}
		assert_int_equal(reclaim_move(f->address, "tok", "sink",
					      reclaim_node_instance(m[i].node)), 0);
		for (uint64_t until = sent + TOTAL / MOVES; sent < until;) {
			sent++;
			assert_int_equal(reclaim_send(s, &sent, 8, sent % 7 ? RECLAIM_MORE : 0, 10000), 0);
		}
		pthread_join(threads[i - 1], NULL);
		assert_int_equal(reclaim_node_state(m[i - 1].node), RECLAIM_STATE_MOVED);
		assert_int_equal(m[i - 1].failed, 0);
	}
	assert_int_equal(reclaim_drain(s, false, 10000), 0);
	reclaim_node_cancel(m[MOVES].node);
	pthread_join(threads[MOVES], NULL);
	assert_int_equal(m[MOVES].failed, 0);
	assert_int_equal(m[MOVES].count, TOTAL);
	for (uint64_t v = 1; v <= TOTAL; v++)
		assert_int_equal(m[MOVES].region[v], (uint8_t)v);
	for (int i = 0; i <= MOVES; i++)
		reclaim_node_close(m[i].node);
	reclaim_node_close(client);
	free(m);
}

static void test_takeover_from_image(void **state)
{
	struct fixture *f = *state;
	struct reclaim_node_options c = options(f, "client"), o = options(f, "stage");
	struct reclaim_node *client = open_node(&c), *stage = open_node(&o);
	struct reclaim_stream *s;
	uint64_t id;
	void *image;
	size_t len;
	struct reclaim_msg m;

	assert_int_equal(reclaim_stream_open(client, "stage", RECLAIM_ACTIVATION, NULL, &s), 0);
	for (uint64_t i = 1; i <= 10; i++)
		assert_int_equal(reclaim_send(s, &i, 8, 0, 1000), 0);
	for (uint64_t i = 1; i <= 6; i++)
		expect_data(stage, i, &i, 8);
	assert_int_equal(reclaim_checkpoint(stage, &id, &image, &len), 0);
	for (uint64_t i = 7; i <= 8; i++)
		expect_data(stage, i, &i, 8);
	assert_int_equal(reclaim_durable(stage, id), 0);
	/* Two messages were taken after the checkpoint: its state has not seen them. */
	reclaim_node_close(stage);
	o.image = image;
	o.image_len = len;
	stage = open_node(&o);
	assert_int_equal(reclaim_node_epoch(stage), 2);
	for (uint64_t i = 7; i <= 10; i++)
		expect_data(stage, i, &i, 8);
	assert_int_equal(reclaim_recv(stage, &m, 50), 0);
	free(image);
	reclaim_node_close(client);
	reclaim_node_close(stage);
}

/* A stage ends right after its image was stored: whether the sender still heard of it or not,
 * the next owner has that image, and the sender need keep nothing for it. */
static void test_restored_is_stable(void **state)
{
	struct fixture *f = *state;
	struct reclaim_node_options c = options(f, "client"), o = options(f, "stage");
	struct reclaim_node *client = open_node(&c), *stage = open_node(&o);
	struct reclaim_stream *s;
	uint64_t id;
	void *image;
	size_t len;

	assert_int_equal(reclaim_stream_open(client, "stage", RECLAIM_ACTIVATION, NULL, &s), 0);
	for (uint64_t i = 1; i <= 10; i++)
		assert_int_equal(reclaim_send(s, &i, 8, 0, 1000), 0);
	for (uint64_t i = 1; i <= 10; i++)
		expect_data(stage, i, &i, 8);
	assert_int_equal(reclaim_checkpoint(stage, &id, &image, &len), 0);
	reclaim_node_close(stage); /* reclaim_durable() was never reached */
	o.image = image;
	o.image_len = len;
	stage = open_node(&o);
	assert_int_equal(reclaim_drain(s, true, 5000), 0);
	free(image);
	reclaim_node_close(client);
	reclaim_node_close(stage);
}

static void test_store_restart(void **state)
{
	struct fixture *f = *state;
	struct reclaim_node_options c = options(f, "client"), o = options(f, "stage");
	struct reclaim_node *client = open_node(&c), *stage = open_node(&o);
	struct reclaim_stream *s;
	char listen[160];
	uint64_t v = 0;

	assert_int_equal(reclaim_stream_open(client, "stage", RECLAIM_ACTIVATION, NULL, &s), 0);
	snprintf(listen, sizeof(listen), "%s", f->address);
	for (int round = 0; round < 5; round++) {
		stop(f);
		uint64_t until = clock_boot_ns() + 150 * NS_PER_MS;
		while (clock_boot_ns() < until) {
			v++;
			assert_int_equal(reclaim_send(s, &v, 8, 0, 1000), 0);
			expect_data(stage, v, &v, 8);
		}
		start(f, listen, 1000);
		until = clock_boot_ns() + 400 * NS_PER_MS;
		while (clock_boot_ns() < until) {
			v++;
			assert_int_equal(reclaim_send(s, &v, 8, 0, 1000), 0);
			expect_data(stage, v, &v, 8);
		}
	}
	assert_int_equal(reclaim_node_epoch(stage), 1);
	reclaim_node_close(stage);
	stage = open_node(&o);
	assert_int_equal(reclaim_node_epoch(stage), 2);
	reclaim_node_close(stage);
	reclaim_node_close(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_job_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_planned_moves, setup, teardown),
		cmocka_unit_test_setup_teardown(test_takeover_from_image, setup, teardown),
		cmocka_unit_test_setup_teardown(test_restored_is_stable, setup, teardown),
		cmocka_unit_test_setup_teardown(test_store_restart, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
