/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases join_N of bench `volunteers`: a master and N native volunteers with
 * the whole stack (WebSocket, ICE, DTLS, SCTP) on this machine, the volunteers
 * in other processes, LOAD_MAX in each. A volunteer counts as connected when its hello is
 * acknowledged and a first result of it was accepted.
 *
 * With WORK_SECONDS it goes on at VALUES_PER_S (1,000) and says what a value costs the master and
 * all volunteers together; two degrees tell what passing one on costs (for scale.c).
 *
 * usage: bench_volunteers_join NODES DEGREE [named|local] [IDLE_SECONDS [WORK_SECONDS VALUES_PER_S]]
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "volunteer/door.h"
#include "volunteer/master.h"
#include "volunteer/native.h"

#define LIMIT_S 120
#define LOAD_MAX 2500 /* two descriptors each */
#define LOADS_MAX 8
#define WINDOW 200
/* A first value is answered at once; later ones take so long that all volunteers together return
 * `rate` a second: what is measured is joining, beside a tree at work. */
#define FIRST_MS 1
static uint64_t rate = 1000;

static void raise_limits(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r); /* as far as it goes; opening fails by name */
	}
}

static double pss_kib(void)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	if (file_read("/proc/self/smaps_rollup", 1 << 16, &text, &len) < 0)
		return 0;
	const char *line = strstr(text, "Pss:");
	return line ? atof(line + 4) : 0;
}

static double cpu_s(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Of another process, in the kernel's ticks of 10 ms. */
static double cpu_of_s(pid_t pid)
{
	char path[64];
	CLEANUP_FREE char *text = NULL;
	size_t len;
	unsigned long user, system;
	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (file_read(path, 1 << 12, &text, &len) < 0)
		return 0;
	const char *rest = strrchr(text, ')');
	if (!rest || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
		return 0;
	return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- the volunteers' process ---- */

struct one {
	struct native *native;
	struct loop_timer answer;
	uint64_t value;
	bool answered;
};

static uint32_t total; /* volunteers of all processes */
static int connected; /* of this process's volunteers */

static int welcome(void *user, json_t *job)
{
	(void)user, (void)job;
	return 0;
}

static void answer(void *user)
{
	struct one *o = user;
	native_result(o->native, o->value, false, "1", 1, 0);
}

static void compute(void *user, uint64_t value, const void *bytes, size_t len)
{
	struct one *o = user;
	(void)bytes, (void)len;
	o->value = value;
	uint64_t ms = o->answered ? (uint64_t)total * 1000 / rate : FIRST_MS;
	o->answered = true;
	(void)loop_timer_in(&o->answer, MAX(ms, UINT64_C(1)) * NS_PER_MS); /* one value at a time each */
}

static void cancel(void *user, uint64_t value)
{
	(void)user, (void)value;
}

static void state(void *user, const char *what)
{
	(void)user;
	connected += strcmp(what, "connected") == 0;
	if (getenv("VERBOSE"))
		fprintf(stderr, "%s\n", what);
}

static void ended(void *user, bool done, const char *why)
{
	(void)user;
	if (!done)
		fprintf(stderr, "volunteer ended: %s\n", why);
}

static const struct native_ops native_ops = { welcome, compute, cancel, state, ended };

struct load {
	struct loop *loop;
	struct loop_timer more;
	const char *url;
	struct one *ones;
	int count, started;
};

/* As fast as they get in: a window of joins under way, like that of a room full of people. */
static void start_more(void *user)
{
	struct load *l = user;
	struct native_config c = { .url = l->url, .workers = 1 };
	CHECK(address_parse("127.0.0.1", 0, &c.rtc.bind) == 0);
	for (int i = 0; i < 8 && l->started < l->count && l->started < connected + WINDOW; i++) {
		struct one *o = &l->ones[l->started++];
		struct diag d = DIAG_INIT;
		loop_timer_init(&o->answer, l->loop, answer, o);
		if (native_new(l->loop, &c, &native_ops, o, &o->native, &d) < 0) {
			fprintf(stderr, "volunteer: %s: %s\n", d.where, d.what);
			exit(1);
		}
	}
	if (l->started < l->count)
		(void)loop_timer_in(&l->more, NS_PER_MS); /* armed before */
}

static void load_run(const char *url, int count)
{
	struct load l = { .url = url, .count = count };
	CHECK(loop_new(&l.loop) == 0);
	l.ones = calloc((size_t)count, sizeof(*l.ones));
	loop_timer_init(&l.more, l.loop, start_more, &l);
	CHECK(l.ones && loop_timer_in(&l.more, 0) == 0);
	(void)loop_run(l.loop); /* until it is killed */
	exit(0);
}

/* ---- the master's process ---- */

struct bench {
	struct loop *loop;
	struct master *master;
	uint32_t nodes;
	bool feed;
	uint64_t out; /* values put and not yet delivered */
	uint64_t delivered;
};

static void progress(void *user)
{
	struct bench *b = user;
	struct lend_result r;
	while (lend_take(master_lend(b->master), &r))
		free(r.bytes), b->out--, b->delivered++;
	uint64_t id;
	if (!b->feed)
		return;
	while (b->out < 2 * b->nodes && lend_put(master_lend(b->master), "x", 1, &id) == 0)
		b->out++;
}

static const struct master_ops master_ops = { progress, NULL };

static void line(const char *name, const char *metric, double value, const char *unit)
{
	printf("{\"bench\":\"volunteers\",\"case\":\"%s\",\"system\":\"reclaim\",\"metric\":\"%s\","
	       "\"value\":%.3f,\"unit\":\"%s\",\"n\":1}\n", name, metric, value, unit);
}

static void turns(struct bench *b, double seconds)
{
	uint64_t end = clock_boot_ns() + (uint64_t)(seconds * 1e9);
	while (clock_boot_ns() < end)
		loop_turn(b->loop, 50);
}

static void work(struct bench *b, const char *name, const pid_t *pids, int loads, int seconds)
{
	turns(b, 3);
	double master = cpu_s(), nodes = 0;
	uint64_t from = b->delivered;
	for (int i = 0; i < loads; i++)
		nodes -= cpu_of_s(pids[i]);
	turns(b, seconds);
	for (int i = 0; i < loads; i++)
		nodes += cpu_of_s(pids[i]);
	double values = (double)(b->delivered - from);
	line(name, "values_per_s", values / seconds, "values/s");
	line(name, "master_us_per_value", 1e6 * (cpu_s() - master) / values, "us");
	line(name, "nodes_us_per_value", 1e6 * nodes / values, "us");
}

int main(int argc, char **argv)
{
	struct bench b = { .nodes = argc > 1 ? (uint32_t)atoi(argv[1]) : 1000, .feed = true };
	uint32_t degree = argc > 2 ? (uint32_t)atoi(argv[2]) : 10;
	bool local = argc > 3 && strcmp(argv[3], "local") == 0;
	int idle_s = argc > 4 ? atoi(argv[4]) : 0, work_s = argc > 5 ? atoi(argv[5]) : 0;
	if (argc > 6)
		rate = strtoull(argv[6], NULL, 10);
	struct master_config mc = { .degree = degree, .mode = local ? ROUTE_LOCAL : ROUTE_NAMED };
	struct door_config dc = { 0 };
	struct diag d = DIAG_INIT;
	struct door *door;
	raise_limits();
	lend_defaults(&mc.lend);
	mc.lend.ordered = false;
	mc.lend.window = 8 * b.nodes + 1024;
	CHECK(address_parse("127.0.0.1", 0, &mc.rtc.bind) == 0);
	mc.rtc.lite = true;
	CHECK(loop_new(&b.loop) == 0);
	if (master_new(b.loop, &mc, &master_ops, &b, &b.master, &d) < 0 ||
	    door_open(b.loop, b.master, &dc, &door, &d) < 0) {
		fprintf(stderr, "%s: %s\n", d.where, d.what);
		return 1;
	}
	char url[128];
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/#%s", door_port(door), master_invite(b.master));
	double pss0 = pss_kib();
	total = b.nodes;
	pid_t pids[LOADS_MAX] = { 0 };
	int loads = (int)(b.nodes + LOAD_MAX - 1) / LOAD_MAX;
	CHECK(loads <= LOADS_MAX);
	for (int i = 0; i < loads; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			load_run(url, (int)MIN(b.nodes - (uint32_t)i * LOAD_MAX, (uint32_t)LOAD_MAX));
	}
	progress(&b);
	int status = 0;
	uint64_t start = clock_boot_ns(), report = start;
	struct master_stats s = { 0 };
	do {
		loop_turn(b.loop, 20);
		if (clock_boot_ns() > report + NS_PER_S / 10) {
			master_stats(b.master, &s);
			report = clock_boot_ns();
			if (getenv("VERBOSE"))
				fprintf(stderr, "joined %u channels %u relayed %u connected %lu refused %lu moves %lu dtls %lu bad %lu\n",
					s.volunteers, s.channels, s.relayed, (unsigned long)s.connected,
					(unsigned long)s.refused, (unsigned long)s.moves,
					(unsigned long)s.rtc.handshakes, (unsigned long)s.rtc.handshakes_bad);
		}
	} while ((s.connected < b.nodes || s.channels < b.nodes) &&
		 waitpid(-1, &status, WNOHANG) == 0 &&
		 clock_boot_ns() < start + LIMIT_S * NS_PER_S);
	if (status)
		fprintf(stderr, "# a load process ended with status %x\n", (unsigned)status);
	bool ok = s.connected >= b.nodes && s.channels >= b.nodes;
	char name[32];
	snprintf(name, sizeof(name), "join_%u%s", b.nodes, local ? "_local" : "");
	line(name, "seconds", s.all_connected_s, "s");
	line(name, "connected", (double)s.connected, "nodes");
	line(name, "master_cpu", cpu_s(), "s");
	size_t levels[16], n = master_levels(b.master, levels, ARRAY_SIZE(levels));
	fprintf(stderr, "# levels:");
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " %zu", levels[i]);
	fprintf(stderr, "\n");
	if (ok && work_s > 0)
		work(&b, name, pids, loads, work_s);
	if (ok && idle_s > 0) {
		b.feed = false;
		/* What is lent comes back first; then the channels give their buffers back. */
		uint64_t late = clock_boot_ns() + 60 * NS_PER_S;
		while (b.out > 0 && clock_boot_ns() < late)
			loop_turn(b.loop, 50);
		ok = b.out == 0;
		turns(&b, 5);
		double cpu0 = cpu_s(), wall0 = (double)clock_boot_ns() / 1e9;
		turns(&b, idle_s);
		double share = (cpu_s() - cpu0) / ((double)clock_boot_ns() / 1e9 - wall0);
		master_stats(b.master, &s);
		double channels = (double)s.rtc.channels;
		line(name, "kib_per_channel", (pss_kib() - pss0) / b.nodes, "KiB");
		line(name, "idle_cpu_per_1000", channels ? 100 * share / channels * 1000 : 0, "% of a core");
		line(name, "channels_at_master", channels, "channels");
	}
	for (int i = 0; i < loads; i++) {
		kill(pids[i], SIGKILL);
		(void)waitpid(pids[i], NULL, 0);
	}
	door_close(door);
	master_free(b.master);
	return ok ? 0 : 1;
}
