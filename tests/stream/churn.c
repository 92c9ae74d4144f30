/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages through churn. One producer, several receivers in processes of
 * their own, a registry in another. Meanwhile, at random: planned moves,
 * kill -9, leave and join, receivers stopped past their lease, connections
 * shut down under way, registry killed and restarted.
 *
 * A receiver's state is the last number it has seen per stream; it is saved
 * with the library's image in shared memory (the "checkpoint") and only that
 * survives a kill. Every message must extend the state by exactly one.
 *
 *     churn MESSAGES [SEED [TRACE.csv SPEEDUP]]
 *
 * With a trace (time_ms,add|remove,node) the receivers die and come as its
 * nodes do.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <reclaim/stream.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "stream/node_internal.h"
#include "stream/registry_server.h"

enum { SINKS = 4, IMAGE_MAX = 4096, MANY = 64, SIZE = 64, TTL_MS = 700, SAVE_EVERY = 16384 };

struct slot {
	uint64_t count, len;
	uint8_t image[IMAGE_MAX];
};
struct sink {
	struct slot slots[2];
	uint32_t current;       /* which slot is whole */
	uint64_t instance;      /* of the process that came last */
	uint64_t delivered;     /* messages handed out, with those that a kill undid */
	uint64_t peak_kib;
};
struct shared {
	struct sink sinks[SINKS];
	uint64_t lost, doubled, reordered, wrong;
	uint64_t failures, leases_lost;
	char text[200];
};

static struct shared *shared;
static char address[160], dir[64];
static pid_t registry_pid, sink_pids[SINKS];
static const uint8_t secret[SEAL_KEY_LEN] = { 42 };

static void fail(const char *what, int r)
{
	if (!__atomic_fetch_add(&shared->failures, 1, __ATOMIC_RELAXED))
		snprintf(shared->text, sizeof(shared->text), "%s: %s", what, strerror(r < 0 ? -r : r));
}

static void start_registry(void)
{
	int ready[2];
	char c;

	if (pipe(ready))
		exit(1);
	registry_pid = fork();
	if (registry_pid == 0) {
		struct registry_server *s = NULL;
		struct registry_server_options o = { .listen = address, .dir = dir,
						     .terms = { TTL_MS * NS_PER_MS, 5 * NS_PER_MS, 500 } };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]);
		for (int i = 0; i < 200 && registry_server_open(&o, &s) < 0; i++)
			usleep(5000); /* the port of the killed one is still being released */
		if (!s)
			_exit(1);
		registry_add_job(registry_server_registry(s), "job", "tok", secret);
		(void)!write(ready[1], registry_server_address(s), strlen(registry_server_address(s)) + 1);
		close(ready[1]);
		registry_server_run(s);
		_exit(0);
	}
	close(ready[1]);
	char text[160] = "";
	size_t n = 0;
	while (n < sizeof(text) - 1 && read(ready[0], &c, 1) == 1)
		text[n++] = c;
	close(ready[0]);
	if (n)
		memcpy(address, text, sizeof(address));
}

static volatile sig_atomic_t leaving, opened;
static struct reclaim_node *sink_node;

static void on_term(int sig)
{
	(void)sig;
	if (!opened)
		_exit(0); /* still waiting for the name */
	leaving = 1;
}

static void save_state(struct sink *k, struct reclaim_node *n, uint64_t count)
{
	struct slot *s = &k->slots[!k->current];
	uint64_t id;
	void *image;
	size_t len;
	int r = reclaim_checkpoint(n, &id, &image, &len);

	if (r < 0)
		return; /* no longer the owner: nothing may be saved */
	if (len > IMAGE_MAX) {
		fail("image", E2BIG);
		free(image);
		return;
	}
	memcpy(s->image, image, len);
	s->len = len;
	s->count = count;
	free(image);
	__atomic_store_n(&k->current, !k->current, __ATOMIC_RELEASE);
	(void)reclaim_durable(n, id);
}

/* What a receiver computes: here, the last number it was given. */
struct state {
	uint64_t count;
	uint64_t unsaved; /* messages since the last save; a state that came by a move is unsaved */
};

static int save_count(void *arg, struct reclaim_sink *sink)
{
	struct state *s = arg;

	return reclaim_sink_write(sink, &s->count, sizeof(s->count));
}

static int load_count(void *arg, const void *bytes, size_t len)
{
	struct state *s = arg;

	if (len != sizeof(s->count))
		return -EINVAL;
	memcpy(&s->count, bytes, len);
	s->unsaved++;
	return 0;
}

static void note(uint64_t value, uint64_t want)
{
	if (value == want)
		return;
	if (value < want)
		__atomic_fetch_add(&shared->doubled, 1, __ATOMIC_RELAXED);
	else
		__atomic_fetch_add(&shared->lost, value - want, __ATOMIC_RELAXED);
}

/* One life as the owner; true: the lease was lost, as on a machine too busy to renew it,
 * and the supervisor starts it again from what was saved. */
static bool sink_life(int i, bool standby)
{
	struct sink *k = &shared->sinks[i];
	struct slot *s = &k->slots[k->current];
	char name[32];
	struct state st = { .count = standby ? 0 : s->count };
	struct reclaim_msg got[MANY];
	struct sigaction sa = { .sa_handler = on_term };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGTERM, &sa, NULL);
	snprintf(name, sizeof(name), "sink-%d", i);
	struct reclaim_node_options o = { .size = sizeof(o), .name = name, .registry = address,
					  .token = "tok", .level = 1, .standby = standby,
					  .no_takeover = true, .plain = true, .save = save_count,
					  .load = load_count, .arg = &st, .window = 1 << 20,
					  .image = standby || !s->len ? NULL : s->image,
					  .image_len = standby ? 0 : s->len, .open_timeout_ms = 20000 };
	opened = 0;
	int r = reclaim_node_open(&o, &sink_node);
	opened = 1;
	if (r < 0) {
		if (!standby && r != -ETIMEDOUT)
			fail("open", r);
		return !standby;
	}
	__atomic_store_n(&k->instance, reclaim_node_instance(sink_node), __ATOMIC_RELEASE);
	while (!leaving) {
		int n = reclaim_recv_many(sink_node, got, MANY, 50);

		if (n == -ESTALE)
			break;
		if (n < 0) {
			fail("recv", n);
			break;
		}
		for (int j = 0; j < n; j++) {
			uint64_t v;

			if (got[j].kind != RECLAIM_DATA)
				continue;
			memcpy(&v, got[j].data, 8);
			note(v, st.count + 1);
			if (v != got[j].seq || got[j].len != SIZE)
				__atomic_fetch_add(&shared->wrong, 1, __ATOMIC_RELAXED);
			st.count = v;
			st.unsaved++;
		}
		k->delivered += (uint64_t)n;
		if (st.unsaved >= SAVE_EVERY || (st.unsaved && n == 0)) {
			save_state(k, sink_node, st.count);
			st.unsaved = 0;
		}
	}
	if (leaving && reclaim_node_state(sink_node) == RECLAIM_STATE_OWNER)
		save_state(k, sink_node, st.count);
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	if ((uint64_t)u.ru_maxrss > k->peak_kib)
		k->peak_kib = (uint64_t)u.ru_maxrss;
	bool again = reclaim_node_state(sink_node) == RECLAIM_STATE_LOST;
	reclaim_node_close(sink_node);
	return again && !leaving;
}

static void sink_main(int i, bool standby)
{
	while (sink_life(i, standby)) {
		standby = false;
		__atomic_fetch_add(&shared->leases_lost, 1, __ATOMIC_RELAXED);
	}
	_exit(0);
}

static pid_t start_sink(int i, bool standby)
{
	pid_t p;

	shared->sinks[i].instance = 0;
	p = fork();
	if (p == 0)
		sink_main(i, standby);
	return p;
}

static void reap(pid_t p)
{
	int status;

	while (waitpid(p, &status, 0) < 0 && errno == EINTR)
		;
}

/* Is that process still there after so long? */
static bool ended(pid_t p, int ms)
{
	for (int i = 0; i < ms; i++) {
		if (waitpid(p, NULL, WNOHANG) == p)
			return true;
		usleep(1000);
	}
	return false;
}

static struct {
	uint64_t moves, moves_failed, kills, leaves, stops, resets, stores;
} done;

static void replace(int i)
{
	sink_pids[i] = start_sink(i, false);
}

static void move_sink(int i)
{
	pid_t t = start_sink(i, true);

	for (int w = 0; w < 3000 && !__atomic_load_n(&shared->sinks[i].instance, __ATOMIC_ACQUIRE); w++)
		usleep(1000);
	int r = reclaim_move(address, "tok", shared->sinks[i].instance ? (char[8]){ 's', 'i', 'n', 'k',
			     '-', (char)('0' + i), 0 } : "none", shared->sinks[i].instance);
	if (r == 0 && ended(sink_pids[i], 4000)) {
		sink_pids[i] = t;
		done.moves++;
		return;
	}
	/* Not begun, or called off: the old one goes on. */
	done.moves_failed++;
	kill(t, SIGKILL);
	reap(t);
	if (waitpid(sink_pids[i], NULL, WNOHANG) == sink_pids[i])
		replace(i); /* it had committed after all, and its new owner is gone now */
}

/* One of the producer's connections breaks. */
static void reset_link(struct reclaim_node *n, struct rng *rng)
{
	pthread_mutex_lock(&n->lock);
	size_t at = n->links_count ? rng_below(rng, n->links_count) : 0;
	struct link *l;

	TAILQ_FOREACH(l, &n->links, entry)
		if (at-- == 0)
			shutdown(l->fd, SHUT_RDWR);
	pthread_mutex_unlock(&n->lock);
}

static void disturb(struct reclaim_node *n, struct rng *rng)
{
	int i = (int)rng_below(rng, SINKS);

	switch (rng_below(rng, 8)) {
	case 0: case 1: case 2:
		move_sink(i);
		break;
	case 3:
		kill(sink_pids[i], SIGKILL);
		reap(sink_pids[i]);
		replace(i);
		done.kills++;
		break;
	case 4:
		kill(sink_pids[i], SIGTERM);
		reap(sink_pids[i]);
		replace(i);
		done.leaves++;
		break;
	case 5: {
		/* Silent past its lease, replaced, then awake again: it must notice. */
		pid_t old = sink_pids[i];

		kill(old, SIGSTOP);
		replace(i);
		for (int w = 0; w < 4000 && !__atomic_load_n(&shared->sinks[i].instance, __ATOMIC_ACQUIRE);
		     w++)
			usleep(1000);
		kill(old, SIGCONT);
		/* It finds out, and as its supervisor we let it not come again. */
		kill(old, SIGTERM);
		if (!ended(old, 3000)) {
			fail("a stopped receiver went on", ETIMEDOUT);
			kill(old, SIGKILL);
			reap(old);
		}
		done.stops++;
		break;
	}
	case 6:
		kill(registry_pid, SIGKILL);
		reap(registry_pid);
		start_registry();
		done.stores++;
		break;
	default:
		reset_link(n, rng);
		done.resets++;
	}
}

static struct reclaim_node *producer;
static uint64_t seed;
static bool over, quiet, finished;
static FILE *trace;
static double speedup;

static void *disturber(void *arg)
{
	struct rng rng;
	char line[256], what[16], node[32];
	double at, first = -1;
	uint64_t began = clock_boot_ns();

	(void)arg;
	rng_init(&rng, seed);
	while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) {
		if (!trace) {
			usleep((useconds_t)(20000 + rng_below(&rng, 100000)));
			disturb(producer, &rng);
			continue;
		}
		if (!fgets(line, sizeof(line), trace))
			break;
		if (sscanf(line, "%lf,%15[^,],%31s", &at, what, node) != 3)
			continue;
		if (first < 0)
			first = at;
		int i = (int)(strtoul(node + strcspn(node, "0123456789"), NULL, 10) % SINKS);
		uint64_t due = began + (uint64_t)((at - first) / speedup * 1e6);
		while (clock_boot_ns() < due && !__atomic_load_n(&over, __ATOMIC_ACQUIRE))
			usleep(1000);
		if (!strcmp(what, "remove")) {
			/* With and without a word, in turns; a removed one comes back at once
			 * under the next epoch, as its job would elsewhere. */
			kill(sink_pids[i], done.kills % 2 ? SIGTERM : SIGKILL);
			reap(sink_pids[i]);
			replace(i);
			done.kills++;
		} else {
			move_sink(i);
		}
	}
	__atomic_store_n(&quiet, true, __ATOMIC_RELEASE);
	/* The receivers die with the thread that started them (PR_SET_PDEATHSIG). */
	while (!__atomic_load_n(&finished, __ATOMIC_ACQUIRE))
		usleep(1000);
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t total = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000000;
	struct reclaim_stream *streams[SINKS];
	uint64_t sent[SINKS] = { 0 };
	uint8_t mem[MANY][SIZE];
	struct iovec iov[MANY];
	pthread_t thread;

	seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	speedup = argc > 4 ? strtod(argv[4], NULL) : 1000;
	if (argc > 3 && !(trace = fopen(argv[3], "re"))) {
		printf("SKIP: no trace %s\n", argv[3]);
		return 77;
	}
	printf("seed %" PRIu64 "\n", seed);
	fflush(stdout);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	strcpy(dir, "/tmp/stream-churn-XXXXXX");
	strcpy(address, "tcp:127.0.0.1:0");
	if (shared == MAP_FAILED || !mkdtemp(dir))
		return 1;
	start_registry();
	for (int i = 0; i < SINKS; i++)
		replace(i);
	struct reclaim_node_options o = { .size = sizeof(o), .name = "producer", .registry = address,
					  .token = "tok", .level = 1, .plain = true };
	int r = reclaim_node_open(&o, &producer);
	if (r < 0) {
		printf("producer: %s\n", strerror(-r));
		return 1;
	}
	for (int i = 0; i < SINKS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "sink-%d", i);
		reclaim_stream_open(producer, name, RECLAIM_ACTIVATION, NULL, &streams[i]);
	}
	memset(mem, 7, sizeof(mem));
	uint64_t began = clock_boot_ns(), all = 0;
	pthread_create(&thread, NULL, disturber, NULL);
	while (all < total && r >= 0) {
		for (int i = 0; i < SINKS && r >= 0; i++) {
			for (int j = 0; j < MANY; j++) {
				uint64_t v = sent[i] + (uint64_t)j + 1;

				memcpy(mem[j], &v, 8);
				iov[j] = (struct iovec){ mem[j], SIZE };
			}
			/* A receiver that is away must not hold up the others for long. */
			r = reclaim_send_many(streams[i], iov, MANY, RECLAIM_MORE, 0);
			if (r == -EAGAIN)
				r = 0;
			if (r > 0) {
				sent[i] += (uint64_t)r;
				all += (uint64_t)r;
			}
		}
	}
	if (r < 0)
		fail("send", r);
	__atomic_store_n(&over, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&quiet, __ATOMIC_ACQUIRE))
		usleep(1000);
	for (int i = 0; i < SINKS && r >= 0; i++) {
		r = reclaim_drain(streams[i], true, 30000);
		if (r < 0)
			fail("drain", r);
	}
	double s = (double)(clock_boot_ns() - began) / NS_PER_S;
	if (r < 0 || shared->failures) {
		char *text = reclaim_node_describe(producer);

		printf("%s\n", text);
		free(text);
	}
	for (int i = 0; i < SINKS; i++) {
		kill(sink_pids[i], SIGTERM);
		reap(sink_pids[i]);
	}
	__atomic_store_n(&finished, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	uint64_t peak = 0, missing = 0;
	for (int i = 0; i < SINKS; i++) {
		struct sink *k = &shared->sinks[i];

		missing += k->slots[k->current].count != sent[i];
		peak += k->peak_kib;
	}
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	struct reclaim_stats st;
	reclaim_node_stats(producer, &st);
	reclaim_node_close(producer);
	kill(registry_pid, SIGKILL);
	reap(registry_pid);
	(void)dir_remove_all(dir);
	printf("%" PRIu64 " messages in %.1f s (%.2f M/s): %" PRIu64 " moves (%" PRIu64 " called off), %"
	       PRIu64 " kills, %" PRIu64 " leaves, %" PRIu64 " stops past the lease, %" PRIu64 " resets, %"
	       PRIu64 " registry kills, %" PRIu64 " leases lost to load; %" PRIu64 " sent again\n",
	       all, s, (double)all / s / 1e6, done.moves, done.moves_failed, done.kills, done.leaves,
	       done.stops, done.resets, done.stores, shared->leases_lost, st.messages_resent);
	printf("lost %" PRIu64 " doubled %" PRIu64 " wrong %" PRIu64 " unfinished %" PRIu64
	       " failures %" PRIu64 " %s; peak MiB: producer %ld, receivers %" PRIu64 "\n",
	       shared->lost, shared->doubled, shared->wrong, missing, shared->failures, shared->text,
	       u.ru_maxrss / 1024, peak / 1024);
	printf("{\"bench\":\"streams\",\"case\":\"churn\",\"system\":\"reclaim\",\"metric\":\"peak_mib\","
	       "\"value\":%" PRIu64 ",\"unit\":\"MiB\",\"n\":%" PRIu64 "}\n",
	       (uint64_t)u.ru_maxrss / 1024 + peak / 1024, all);
	for (int i = 0; i < 3; i++) {
		static const char *const names[] = { "lost", "doubled", "reordered" };
		uint64_t v[] = { shared->lost + missing, shared->doubled, shared->reordered };

		printf("{\"bench\":\"streams\",\"case\":\"churn\",\"system\":\"reclaim\",\"metric\":\"%s\","
		       "\"value\":%" PRIu64 ",\"unit\":\"messages\",\"n\":%" PRIu64 "}\n", names[i], v[i], all);
	}
	return shared->lost || shared->doubled || shared->wrong || missing || shared->failures ||
	       u.ru_maxrss / 1024 > 512;
}
