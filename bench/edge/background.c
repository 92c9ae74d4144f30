/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench edge, cases background_staging, background_deadline and deadline: what
 * research feels of our moves, and whether moves meet their deadlines, at a
 * core link that no machine's own edge sees (campus.h).
 *
 * Stretches with and without a move alternate, with the same arrivals of short
 * flows in both, so that drift of this machine falls on both alike.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/vec.h"
#include "campus.h"
#include "edge/edge_internal.h"
#include "edge/testnet.h"
#include "load.h"

#define STREAMS 4
#define FLOOR_SHARE 0.6
#define SETTLE_S 3.0

struct options {
	uint64_t core_bps;
	uint32_t queue_bytes;
	double seconds, short_load, short_scale;
	int rounds, moves, large_moves, flows;
	const char *sizes, *congestion, *only;
};

/* --- a machine's edge ----------------------------------------------------- */

struct machine {
	int ns;
	char run_dir[64];
	struct edge *edge;
	const struct options *o;
	uint64_t floor_bps;
};

static int machine_open(void *arg)
{
	struct machine *m = arg;
	struct edge_config c = { .uplink = "eth0", .uplink_bps = UINT64_C(1000000000),
				 .run_dir = m->run_dir, .owner_gid = (gid_t)-1 };
	struct diag d = DIAG_INIT;
	int err = edge_open(&c, &m->edge, &d);

	if (err < 0)
		fprintf(stderr, "edge: %s: %s\n", d.where, d.what);
	return err;
}

static int machine_close(void *arg)
{
	struct machine *m = arg;
	int err = edge_remove(m->edge, NULL);

	edge_close(m->edge);
	return err;
}

static int machine_floor(void *arg)
{
	struct machine *m = arg;

	return edge_floor_set(m->edge, m->floor_bps);
}

/* --- movers --------------------------------------------------------------- */

enum mover_kind { MOVER_NONE, MOVER_STAGE, MOVER_DEADLINE, MOVER_RSYNC };

struct mover {
	enum mover_kind kind;
	int ns;
	uint64_t rate_bps;   /* the floor */
	uint64_t bytes;      /* 0 = until stopped */
	pid_t pid;
};

static const struct mover *mover;
static const char zeros[65536];

static int mover_socket(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(CAMPUS_PORT_MOVE) };
	enum traffic_class class = mover->kind == MOVER_STAGE ? TRAFFIC_SCAVENGER : TRAFFIC_DEADLINE;
	const char *cc = class == TRAFFIC_SCAVENGER ? TRAFFIC_CC_SCAVENGER : TRAFFIC_CC_FLOOR;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), tos = traffic_dscp(class) << 2;
	int lowat = 128 << 10;
	uint32_t mark = traffic_mark(class, 1);
	uint64_t pace = mover->rate_bps / 8 / STREAMS;

	CHECK(inet_pton(AF_INET, CAMPUS_C, &a.sin_addr) == 1);
	CHECK(setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)) == 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) == 0);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat));
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)) < 0)
		fprintf(stderr, "  (no %s here: %s)\n", cc, strerror(errno));
	if (class == TRAFFIC_DEADLINE)
		CHECK(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof(pace)) == 0);
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	return fd;
}

static void *mover_stream(void *arg)
{
	uint64_t left = mover->bytes ? mover->bytes / STREAMS : UINT64_MAX;
	int fd = mover_socket();
	char byte;

	(void)arg;
	while (left > 0) {
		ssize_t n = send(fd, zeros, MIN(left, sizeof(zeros)), MSG_NOSIGNAL);

		if (n <= 0)
			_exit(1);
		left -= (uint64_t)n;
	}
	if (getenv("BENCH_EDGE_TRACE")) {
		struct tcp_info_tail {
			struct tcp_info i;
			uint64_t room[32];
		} info;
		socklen_t len = sizeof(info);
		const struct {
			uint64_t sent, retrans;
		} *bytes = (const void *)((const char *)&info + 200); /* tcpi_bytes_sent, linux/tcp.h */

		memset(&info, 0, sizeof(info));
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
			fprintf(stderr, "    sent %llu retrans %llu cwnd %u rtt %u us lost %u\n",
				(unsigned long long)bytes->sent, (unsigned long long)bytes->retrans,
				info.i.tcpi_snd_cwnd, info.i.tcpi_rtt, info.i.tcpi_lost);
	}
	/* Arrived, not only handed to the kernel. */
	if (shutdown(fd, SHUT_WR) < 0 || recv(fd, &byte, 1, 0) != 0)
		_exit(1);
	close(fd);
	return NULL;
}

static void mover_start(struct mover *m)
{
	pid_t parent = getpid();

	m->pid = fork();
	if (m->pid != 0)
		return;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || setns(m->ns, CLONE_NEWNET) < 0)
		_exit(1);
	mover = m;
	pthread_t t[STREAMS];

	for (int i = 0; i < STREAMS; i++)
		CHECK(pthread_create(&t[i], NULL, mover_stream, NULL) == 0);
	for (int i = 0; i < STREAMS; i++)
		(void)pthread_join(t[i], NULL);
	_exit(0);
}

/* --- figures -------------------------------------------------------------- */

static void print_metric(const char *name, const char *system, const char *metric, double value,
			 const char *unit, size_t n)
{
	printf("{\"bench\":\"edge\",\"case\":\"%s\",\"system\":\"%s\",\"metric\":\"%s\",\"value\":%.5g,"
	       "\"unit\":\"%s\",\"n\":%zu}\n",
	       name, system, metric, value, unit, n);
	fprintf(stderr, "  %-20s %-10s %-18s %10.5g %s (n=%zu)\n", name, system, metric, value, unit, n);
}

struct times {
	uint32_t *us;
	size_t count, cap;
};

static void times_add(struct times *t, const struct campus_counts *c, const struct stretch *s)
{
	CHECK(vec_reserve((void **)&t->us, &t->cap, t->count + s->short_count, sizeof(*t->us)) == 0);
	for (uint32_t i = 0; i < s->short_count; i++)
		t->us[t->count++] = c->short_us[(s->short_first + i) % CAMPUS_SHORT_MAX];
}

static int by_us(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static double quantile(struct times *t, double q)
{
	if (t->count == 0)
		return NAN;
	qsort(t->us, t->count, sizeof(*t->us), by_us);
	return t->us[(size_t)((double)(t->count - 1) * q)];
}

/* --- cases ---------------------------------------------------------------- */

struct bench {
	struct options o;
	struct bench_campus campus;
	struct machine a, b;
	double base_bps; /* what research gets alone, before anything else is measured */
};

/* with: research beside the mover; alone: research without. `granted` is what the mover may take. */
static void background(struct bench *b, const char *name, const char *system, enum mover_kind kind,
		       double granted_bps)
{
	struct times with = { 0 }, alone = { 0 };
	double with_sum = 0, alone_sum = 0, moved = 0, lost, left;

	for (int round = 0; round < b->o.rounds; round++)
		/* The order changes from pair to pair. */
		for (int k = 0; k < 2; k++) {
			bool moving = (k + round) % 2;
			struct mover m = { .kind = kind, .ns = b->a.ns, .rate_bps = (uint64_t)granted_bps };
			struct stretch s;

			if (moving) {
				mover_start(&m);
				bench_campus_run(&b->campus, 7, SETTLE_S, &s); /* past its start */
			}
			bench_campus_run(&b->campus, (uint64_t)round + 1, b->o.seconds, &s);
			times_add(moving ? &with : &alone, b->campus.counts, &s);
			*(moving ? &with_sum : &alone_sum) += s.bulk_bps + s.short_bps;
			if (moving) {
				moved += s.move_bps;
				load_stop(m.pid);
			}
			fprintf(stderr, "    round %d %s: research %.1f (bulk %.1f) move %.1f Mbit/s\n", round,
				moving ? "with " : "alone", (s.bulk_bps + s.short_bps) / 1e6, s.bulk_bps / 1e6,
				s.move_bps / 1e6);
		}
	left = alone_sum - granted_bps * b->o.rounds;
	lost = 1.0 - with_sum / left;
	print_metric(name, system, "throughput_lost", lost, "share", (size_t)b->o.rounds);
	print_metric(name, system, "move_mbps", moved / b->o.rounds / 1e6, "Mbit/s", (size_t)b->o.rounds);
	if (b->o.sizes) {
		print_metric(name, system, "fct_p99_ratio", quantile(&with, 0.99) / quantile(&alone, 0.99),
			     "ratio", with.count);
		print_metric(name, system, "fct_p50_ratio", quantile(&with, 0.5) / quantile(&alone, 0.5),
			     "ratio", with.count);
	}
	free(with.us);
	free(alone.us);
}

/* Two moves at a time, one from each building, each with half of the floors' sum. */
static void deadlines(struct bench *b, const char *system, uint64_t bytes, int moves, const char *metric)
{
	double floor = FLOOR_SHARE / 2 * b->base_bps, window = (double)bytes * 8 / floor + 2.0;
	int met = 0, done = 0;
	double worst = 0;

	fprintf(stderr, "  %d moves of %llu MiB: floor %.0f Mbit/s each, window %.2f s fixed beforehand\n",
		moves, (unsigned long long)(bytes >> 20), floor / 1e6, window);
	while (done < moves) {
		struct mover m[2] = {
			{ .kind = MOVER_DEADLINE, .ns = b->a.ns, .rate_bps = (uint64_t)floor, .bytes = bytes },
			{ .kind = MOVER_DEADLINE, .ns = b->b.ns, .rate_bps = (uint64_t)floor, .bytes = bytes },
		};
		int running = MIN(2, moves - done);
		uint64_t begin = clock_boot_ns();

		for (int i = 0; i < running; i++)
			mover_start(&m[i]);
		for (int i = 0; i < running; i++) {
			int status;
			pid_t pid = waitpid(-1, &status, 0);
			double took = (double)(clock_boot_ns() - begin) / 1e9;

			CHECK(pid == m[0].pid || pid == m[1].pid);
			met += status == 0 && took <= window;
			worst = MAX(worst, took);
		}
		done += running;
	}
	print_metric("deadline", system, metric, (double)met / moves, "share", (size_t)moves);
	print_metric("deadline", system, "slowest_share_of_window", worst / window, "share", (size_t)moves);
}

static void machine_init(struct machine *m, const struct bench *b, int ns, const char *dir, int i)
{
	m->ns = ns;
	m->o = &b->o;
	CHECK(path_format(m->run_dir, sizeof(m->run_dir), "%s/m%d", dir, i) == 0);
	CHECK(dir_make_all(m->run_dir, 0700) == 0);
	CHECK(net_run_in(ns, machine_open, m) == 0);
	m->floor_bps = (uint64_t)(FLOOR_SHARE * (double)b->o.core_bps);
	CHECK(net_run_in(ns, machine_floor, m) == 0);
}

static bool wanted(const struct bench *b, const char *name)
{
	return !b->o.only || strcmp(b->o.only, name) == 0;
}

static int run(struct bench *b)
{
	struct bench_campus_config c = {
		.core_bps = b->o.core_bps, .queue_bytes = b->o.queue_bytes, .bulk_flows = b->o.flows,
		.short_load = b->o.short_load, .short_scale = b->o.short_scale, .sizes = b->o.sizes,
		.congestion = b->o.congestion,
	};
	char dir[] = "/tmp/edge-bench-XXXXXX";
	const char *why = bench_campus_init(&b->campus, &c);
	struct stretch s;

	if (why) {
		fprintf(stderr, "skipped: background: %s\n", why);
		return 0;
	}
	CHECK(mkdtemp(dir) != NULL);
	machine_init(&b->a, b, b->campus.site[SITE_MACHINE_A], dir, 0);
	machine_init(&b->b, b, b->campus.site[SITE_MACHINE_B], dir, 1);
	bench_campus_run(&b->campus, 7, SETTLE_S, &s);
	bench_campus_run(&b->campus, 7, b->o.seconds, &s);
	b->base_bps = s.bulk_bps + s.short_bps;
	fprintf(stderr, "  research alone: %.1f Mbit/s of a core link of %.0f\n", b->base_bps / 1e6,
		(double)b->o.core_bps / 1e6);
	if (wanted(b, "background_staging"))
		background(b, "background_staging", "reclaim", MOVER_STAGE, 0);
	if (wanted(b, "background_deadline"))
		background(b, "background_deadline", "reclaim", MOVER_DEADLINE, FLOOR_SHARE * b->base_bps);
	if (wanted(b, "deadline")) {
		deadlines(b, "reclaim", UINT64_C(256) << 20, b->o.moves, "deadlines_met");
		if (b->o.large_moves)
			deadlines(b, "reclaim", UINT64_C(4) << 30, b->o.large_moves, "deadlines_met_4g");
	}
	CHECK(net_run_in(b->a.ns, machine_close, &b->a) == 0);
	CHECK(net_run_in(b->b.ns, machine_close, &b->b) == 0);
	bench_campus_done(&b->campus);
	return dir_remove_all(dir) < 0;
}

int main(int argc, char **argv)
{
	struct bench b = { .o = { .core_bps = UINT64_C(1000000000), .queue_bytes = 1u << 20, .seconds = 10,
				  .short_load = 0.1, .short_scale = 0.1, .rounds = 4, .moves = 100,
				  .large_moves = 3, .flows = 20, .congestion = "cubic" } };
	struct testnet net;
	const char *why;
	int opt, failed;

	while ((opt = getopt(argc, argv, "r:q:t:l:s:n:m:g:f:d:c:o:")) != -1) {
		switch (opt) {
		case 'r': b.o.core_bps = strtoull(optarg, NULL, 10) * 1000000; break;
		case 'q': b.o.queue_bytes = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 't': b.o.seconds = atof(optarg); break;
		case 'l': b.o.short_load = atof(optarg); break;
		case 's': b.o.short_scale = atof(optarg); break;
		case 'n': b.o.rounds = atoi(optarg); break;
		case 'm': b.o.moves = atoi(optarg); break;
		case 'g': b.o.large_moves = atoi(optarg); break;
		case 'f': b.o.flows = atoi(optarg); break;
		case 'd': b.o.sizes = optarg; break;
		case 'c': b.o.congestion = optarg; break;
		case 'o': b.o.only = optarg; break;
		default: return 2;
		}
	}
	why = testnet_init(&net);
	if (why) {
		fprintf(stderr, "skipped: background: %s\n", why);
		testnet_done(&net);
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	failed = run(&b);
	testnet_done(&net);
	return failed;
}
