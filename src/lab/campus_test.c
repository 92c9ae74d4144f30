/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a small campus, measures its links, cuts them, and looks for what is left behind. */
#include "lab/campus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "lab/flow.h"
#include "lab/guard.h"
#include "lab/proc.h"

static const char text[] =
	"name: t\n"
	"topology:\n"
	"  core: {capacity: 1Gbit}\n"
	"  buildings: [{name: a, uplink: 40Mbit}, {name: b, uplink: 200Mbit}]\n"
	"  machines: [{name: a1, building: a, link: 80Mbit}, {name: a2, building: a, link: 80Mbit},\n"
	"             {name: b1, building: b, link: 20Mbit}]\n"
	"  hosts: [{name: ha, building: a, link: 100Mbit}, {name: hb, building: b, link: 100Mbit}]\n"
	"flows:\n"
	"  - {name: inside, from: a1, to: a2}\n"
	"  - {name: across, from: ha, to: hb, start: 1s}\n"
	"  - {name: narrow, from: b1, to: hb, rate: 10Mbit, start: 1s}\n";

/* In the lab's process: a failure is a message and a status, cmocka is outside. */
#define WANT(cond, ...)                                                       \
	do {                                                                  \
		if (!(cond)) {                                                \
			(void)fprintf(stderr, "%s: ", #cond);                 \
			(void)fprintf(stderr, __VA_ARGS__);                   \
			(void)fputc('\n', stderr);                            \
			return 1;                                             \
		}                                                             \
	} while (0)

static void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	(void)nanosleep(&t, NULL);
}

static int ping(const struct campus *c, const char *from, const char *to)
{
	struct proc_spec p = { .argv = { "ping", "-q", "-c1", "-W1", campus_find(c, to)->address },
			       .node = campus_find(c, from) };
	struct strbuf out = STRBUF_INIT;
	struct diag diag = DIAG_INIT;
	int status = -1;

	if (proc_run(&p, 5000, &out, &status, &diag) < 0)
		status = -1;
	strbuf_done(&out);
	return status;
}

static int play(const struct guard *g, void *arg)
{
	struct scenario s;
	struct diag diag = DIAG_INIT;
	struct campus *c;
	struct flow *flows[3];
	struct sink *sink;
	uint64_t origin, t, packets = 0;
	double inside, across, narrow;

	WANT(scenario_parse(text, strlen(text), "t", &s, &diag) == 0, "%s", diag.what);
	WANT(campus_build(&s, g->dir, true, &c, &diag) == 0, "%s: %s", diag.where, diag.what);
	WANT(ping(c, "a1", "hb") == 0, "no way across");
	WANT(sink_start(campus_find(c, "hb"), &sink, &diag) == 0, "%s", diag.what);
	origin = clock_boot_ns() + 200 * NS_PER_MS;
	for (size_t i = 0; i < 3; i++)
		WANT(flow_start(&s.flows[i], i, campus_find(c, s.flows[i].from),
				campus_find(c, s.flows[i].to), origin, 30 * NS_PER_S, &flows[i],
				&diag) == 0, "%s", diag.what);
	sleep_ms(3400);
	t = clock_boot_ns();
	inside = flow_mbps(flows[0], t - 1500 * NS_PER_MS, t - 100 * NS_PER_MS);
	across = flow_mbps(flows[1], t - 1500 * NS_PER_MS, t - 100 * NS_PER_MS);
	narrow = flow_mbps(flows[2], t - 1500 * NS_PER_MS, t - 100 * NS_PER_MS);
	/* TCP's share of a link is about 0.95 of its rate. */
	WANT(inside > 66 && inside < 82, "%f", inside);
	WANT(across > 33 && across < 41, "%f", across);
	WANT(narrow > 8 && narrow < 11, "%f", narrow);
	WANT(campus_uplink(c, 0, false, &diag) == 0, "%s", diag.what);
	WANT(ping(c, "a1", "hb") != 0, "a cut cable carries");
	WANT(ping(c, "a1", "a2") == 0, "the building is cut off from itself");
	WANT(campus_uplink(c, 0, true, &diag) == 0, "%s", diag.what);
	WANT(ping(c, "a1", "hb") == 0, "a plugged cable does not carry");
	WANT(campus_link(c, campus_find(c, "a2"), false, &diag) == 0, "%s", diag.what);
	WANT(ping(c, "a1", "a2") != 0, "a cut cable carries");
	WANT(campus_link(c, campus_find(c, "a2"), true, &diag) == 0, "%s", diag.what);
	WANT(ping(c, "a1", "a2") == 0, "a plugged cable does not carry");

	struct proc_spec p = { .argv = { "bash", "-c", "for i in 1 2 3; do echo x > /dev/udp/$1/9; done",
					 "-", campus_find(c, "hb")->address },
			       .node = campus_find(c, "b1") };
	int status;

	t = clock_boot_ns();
	WANT(proc_run(&p, 5000, NULL, &status, &diag) == 0 && status == 0, "%s", diag.what);
	for (int i = 0; i < 100 && packets < 3; i++, sleep_ms(10))
		(void)sink_last(sink, campus_find(c, "b1")->address, &packets);
	WANT(packets == 3, "%llu packets", (unsigned long long)packets);
	WANT(sink_last(sink, campus_find(c, "b1")->address, NULL) >= t, "an old time");
	WANT(sink_last(sink, campus_find(c, "b1")->address, NULL) <= clock_boot_ns(), "the future");
	for (size_t i = 0; i < 3; i++)
		flow_stop(flows[i]);
	sink_stop(sink);
	campus_free(c);
	scenario_done(&s);
	*(char *)arg = 1; /* not seen outside: another process */
	return 42;
}

static void test_campus(void **state)
{
	struct diag diag = DIAG_INIT;
	char mark = 0;
	int r;

	if (geteuid() != 0) {
		(void)printf("skipped: network namespaces need root\n");
		skip();
	}
	r = guard_run(false, true, play, &mark, &diag);
	if (r != 42)
		fail_msg("%d %s: %s", r, diag.where, diag.what);
}

struct left {
	char dir[64];
	pid_t child;
};

static int crash(const struct guard *g, void *arg)
{
	struct left *l = arg; /* shared with the test by a file: another process */
	char path[128];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s", l->dir);
	f = fopen(path, "we");
	if (!f)
		return 1;
	(void)fprintf(f, "%s\n", g->dir);
	(void)fclose(f);
	if (fork() == 0) {
		(void)setsid(); /* a daemon that would outlive us */
		for (;;)
			(void)pause();
	}
	(void)signal(SIGILL, SIG_DFL);
	__builtin_trap();
}

/* The lab's own crash leaves neither process nor folder. */
static void test_crash(void **state)
{
	struct diag diag = DIAG_INIT;
	struct left l = { .dir = "/tmp/lab-crash-test-XXXXXX" };
	char dir[64] = "";
	struct stat st;
	FILE *f;
	int fd = mkstemp(l.dir);

	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(guard_run(false, true, crash, &l, &diag), 128 + SIGILL);
	f = fopen(l.dir, "re");
	assert_non_null(f);
	assert_non_null(fgets(dir, sizeof(dir), f));
	(void)fclose(f);
	(void)unlink(l.dir);
	dir[strcspn(dir, "\n")] = 0;
	assert_true(dir[0] == '/');
	assert_true(stat(dir, &st) < 0 && errno == ENOENT);
	assert_int_equal(guard_clean_stale(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_campus),
		cmocka_unit_test(test_crash),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
