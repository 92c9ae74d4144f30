/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Case chaos of bench `volunteers`, and a test: a master and native volunteers
 * in processes of their own, which leave, are killed, freeze, or have their
 * network cut (their UDP and TCP sockets are shut), inner nodes first. Every
 * result must come exactly once, in order.
 *
 * usage: chaos VALUES VOLUNTEERS [SEED]
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "volunteer/door.h"
#include "volunteer/master.h"
#include "volunteer/native.h"

#define VOLUNTEERS_MAX 64
#define COMPUTE_MS 40
#define DEGREE 4
#define LIMIT_S 150

/* ---- a volunteer's process ---- */

struct job {
	struct loop_timer timer;
	struct native *native;
	uint64_t value;
	bool busy;
};
static struct job job;

static int welcome(void *user, json_t *j)
{
	(void)user, (void)j;
	return 0;
}

static void answer(void *user)
{
	char text[32];
	(void)user;
	job.busy = false;
	int len = snprintf(text, sizeof(text), "r%llu", (unsigned long long)job.value);
	native_result(job.native, job.value, false, text, (size_t)len, COMPUTE_MS);
}

static void compute(void *user, uint64_t value, const void *bytes, size_t len)
{
	(void)user, (void)bytes, (void)len;
	job.value = value;
	job.busy = true;
	(void)loop_timer_in(&job.timer, COMPUTE_MS * NS_PER_MS); /* armed before: one at a time */
}

static void cancel(void *user, uint64_t value)
{
	(void)user;
	if (job.busy && job.value == value)
		loop_timer_stop(&job.timer);
}

static void state(void *user, const char *what)
{
	(void)user, (void)what;
}

static void ended(void *user, bool done, const char *why)
{
	(void)user, (void)done, (void)why;
	_exit(0);
}

static const struct native_ops native_ops = { welcome, compute, cancel, state, ended };

/* SIGUSR1: leave as a closed page does. */
static void on_leave(void *user, int signum)
{
	struct loop *l = user;
	(void)signum;
	native_free(job.native, true);
	for (int i = 0; i < 5; i++)
		loop_turn(l, 10);
	_exit(0);
}

/* SIGUSR2: the network is cut: nothing leaves or arrives, nobody is told. */
static void on_cut(void *user, int signum)
{
	(void)user, (void)signum;
	for (int fd = 3; fd < 64; fd++) {
		int type;
		socklen_t len = sizeof(type);
		struct sockaddr_storage sa;
		socklen_t sa_len = sizeof(sa);
		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 ||
		    getsockname(fd, (struct sockaddr *)&sa, &sa_len) < 0 || sa.ss_family == AF_UNIX)
			continue;
		/* A TCP end that is only forgotten: no FIN. The descriptor is replaced, not closed. */
		int spare = socket(AF_INET, type, 0);
		int keep = dup(fd);
		(void)keep; /* the old socket stays open, unread */
		if (spare >= 0)
			(void)dup2(spare, fd);
	}
}

static void volunteer_run(const char *url)
{
	struct loop *l;
	struct native_config c = { .url = url, .workers = 1 };
	struct diag d = DIAG_INIT;
	CHECK(address_parse("127.0.0.1", 0, &c.rtc.bind) == 0 && loop_new(&l) == 0);
	loop_timer_init(&job.timer, l, answer, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)loop_on_signal(l, SIGUSR1, on_leave, l);
	(void)loop_on_signal(l, SIGUSR2, on_cut, l);
	if (native_new(l, &c, &native_ops, NULL, &job.native, &d) < 0)
		_exit(1);
	(void)loop_run(l);
	_exit(0);
}

/* ---- the master's process ---- */

struct run {
	struct loop *loop;
	struct master *master;
	char url[128];
	uint64_t values, put, taken, lost, doubled;
	pid_t pids[VOLUNTEERS_MAX];
	int count;
	struct rng rng;
	bool finished;
};

static void progress(void *user)
{
	struct run *r = user;
	struct lend *l = master_lend(r->master);
	struct lend_result res;
	uint64_t id;
	while (lend_take(l, &res)) {
		char want[32];
		(void)snprintf(want, sizeof(want), "r%llu", (unsigned long long)res.value);
		if (res.value != r->taken)
			r->doubled += res.value < r->taken, r->lost += res.value > r->taken;
		else if (res.outcome != LEND_OK || strcmp(res.bytes, want) != 0)
			r->lost++;
		r->taken++;
		free(res.bytes);
		free(res.input);
	}
	while (r->put < r->values && lend_put(l, "x", 1, &id) == 0) {
		if (++r->put == r->values)
			lend_end(l);
	}
	if (r->values && lend_finished(l))
		r->finished = true;
}

static const struct master_ops ops = { progress, NULL };

static void start(struct run *r, int i)
{
	r->pids[i] = fork();
	if (r->pids[i] == 0)
		volunteer_run(r->url);
}

/* One accident: leaves (closed page), killed, frozen, or cut off. The first ones joined first, so
 * low numbers are inner nodes: they are hit twice as often. */
static void accident(struct run *r)
{
	static const int how[] = { SIGUSR1, SIGKILL, SIGSTOP, SIGUSR2 };
	int i = (int)rng_below(&r->rng, (uint64_t)r->count);
	if (i > r->count / 2 && rng_below(&r->rng, 2) == 0)
		i = (int)rng_below(&r->rng, (uint64_t)r->count / 2);
	(void)kill(r->pids[i], how[rng_below(&r->rng, 4)]);
	/* A frozen or cut one stays as it is, beside the one that comes instead. */
	start(r, i);
}

static void line(const char *metric, double value, const char *unit)
{
	printf("{\"bench\":\"volunteers\",\"case\":\"chaos\",\"system\":\"reclaim\",\"metric\":\"%s\","
	       "\"value\":%.3f,\"unit\":\"%s\",\"n\":1}\n", metric, value, unit);
}

int main(int argc, char **argv)
{
	struct run r = { .values = argc > 1 ? strtoull(argv[1], NULL, 10) : 3000,
			 .count = argc > 2 ? atoi(argv[2]) : 20 };
	uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
	struct master_config mc = { .degree = DEGREE };
	struct door_config dc = { 0 };
	struct diag d = DIAG_INIT;
	struct door *door;
	CHECK(r.count >= 2 && r.count <= VOLUNTEERS_MAX);
	(void)setpgid(0, 0); /* so that all of them end with this program */
	(void)signal(SIGPIPE, SIG_IGN);
	rng_init(&r.rng, seed);
	lend_defaults(&mc.lend);
	mc.lend.losses_max = 1000; /* accidents are no poison here */
	mc.rtc.lite = true;
	CHECK(address_parse("127.0.0.1", 0, &mc.rtc.bind) == 0 && loop_new(&r.loop) == 0);
	if (master_new(r.loop, &mc, &ops, &r, &r.master, &d) < 0 ||
	    door_open(r.loop, r.master, &dc, &door, &d) < 0) {
		fprintf(stderr, "%s: %s\n", d.where, d.what);
		return 1;
	}
	(void)snprintf(r.url, sizeof(r.url), "http://127.0.0.1:%u/#%s", door_port(door),
		       master_invite(r.master));
	fprintf(stderr, "# seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < r.count; i++)
		start(&r, i);
	progress(&r);
	uint64_t begin = clock_boot_ns(), next = begin + 2 * NS_PER_S, accidents = 0;
	while (!r.finished && clock_boot_ns() < begin + LIMIT_S * NS_PER_S) {
		loop_turn(r.loop, 20);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (clock_boot_ns() >= next && r.taken + 200 < r.values) {
			accident(&r);
			accidents++;
			next = clock_boot_ns() + (100 + rng_below(&r.rng, 500)) * NS_PER_MS;
		}
	}
	struct master_stats s;
	master_stats(r.master, &s);
	r.lost += r.values - r.taken;
	line("lost", (double)r.lost, "results");
	line("doubled", (double)r.doubled, "results");
	line("accidents", (double)accidents, "accidents");
	line("relent", (double)s.lend.relent, "values");
	line("relend_p50_ms", (double)s.lend.relend_p50_ms, "ms");
	line("relend_p99_ms", (double)s.lend.relend_p99_ms, "ms");
	line("seconds", (double)(clock_boot_ns() - begin) / 1e9, "s");
	bool ok = r.finished && r.lost == 0 && r.doubled == 0;
	fprintf(stderr, "# %s: %llu of %llu values, %llu accidents, %llu joins, %llu moves, %llu refused\n",
		ok ? "ok" : "FAILED", (unsigned long long)r.taken, (unsigned long long)r.values,
		(unsigned long long)accidents, (unsigned long long)s.joins, (unsigned long long)s.moves,
		(unsigned long long)s.refused);
	fflush(NULL);
	door_close(door);
	master_free(r.master);
	(void)signal(SIGTERM, SIG_IGN);
	(void)kill(0, SIGCONT);
	(void)kill(0, SIGTERM);
	return ok ? 0 : 1;
}
