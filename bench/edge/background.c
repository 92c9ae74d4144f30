/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench edge, cases background_staging, background_deadline and deadline: what
 * research feels of our moves, and whether moves meet their deadlines, at a
 * core link that no machine's own edge sees (campus.h).
 *
 * The core link is 500 Mbit/s unless told otherwise: two shared cores play all
 * machines, and the link must be what limits research, not they. Short flows
 * have a tenth of the web search sizes, so that there are enough for a p99.
 *
 * Stretches with and without a move alternate, with the same arrivals of short
 * flows in both, so that drift of this machine falls on both alike.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/vec.h"
#include "campus.h"
#include "edge/edge_internal.h"
#include "edge/testnet.h"
#include "move.h"

#define FLOOR_SHARE 0.6
#define SETTLE_S 3.0
#define FCT_LIMIT 2.0        /* as a test: a p99 of a few hundred flows says no more */
#define DEADLINE_SLACK_S 2.0 /* start, handshakes, fsync at the far end */

struct options {
	uint64_t core_bps;
	uint32_t queue_bytes;
	double seconds, short_load, short_scale;
	int rounds, moves, large_moves, flows;
	unsigned systems; /* bits 1 << enum move_system */
	unsigned move_mib;
	double loss_limit; /* as a test: more throughput lost, or a deadline missed, is a failure */
	const char *sizes, *congestion, *only, *build;
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
	struct moves moves;
	double base_bps; /* what research gets alone, before anything else is measured */
	bool failed;
};

/* with: research beside the move; alone: research without. granted: what the move may take. */
static void background(struct bench *b, const char *name, enum move_system system,
		       enum traffic_class class, double granted_bps)
{
	struct times with = { 0 }, alone = { 0 };
	double with_sum = 0, alone_sum = 0, moved = 0, lost, fct;
	const char *label = move_system_names[system];

	for (int round = 0; round < b->o.rounds; round++)
		/* The order changes from pair to pair. */
		for (int k = 0; k < 2; k++) {
			bool moving = (k + round) % 2;
			struct move m = { .system = system, .ns = b->a.ns, .traffic_class = class,
					  .rate_bps = (uint64_t)granted_bps };
			struct stretch s;

			if (moving) {
				CHECK(move_start(&b->moves, &m) == 0);
				bench_campus_run(&b->campus, 7, SETTLE_S, &s); /* past its start */
			}
			bench_campus_run(&b->campus, (uint64_t)round + 1, b->o.seconds, &s);
			times_add(moving ? &with : &alone, b->campus.counts, &s);
			*(moving ? &with_sum : &alone_sum) += s.bulk_bps + s.short_bps;
			if (moving) {
				moved += s.core_bps - s.bulk_bps - s.short_bps;
				move_end(&b->moves, &m);
			}
			fprintf(stderr, "    %s %s: research %.1f (bulk %.1f), core link %.1f Mbit/s\n", label,
				moving ? "with " : "alone", (s.bulk_bps + s.short_bps) / 1e6, s.bulk_bps / 1e6,
				s.core_bps / 1e6);
		}
	lost = 1.0 - with_sum / (alone_sum - granted_bps * b->o.rounds);
	b->failed |= b->o.loss_limit > 0 && !(lost < b->o.loss_limit);
	print_metric(name, label, "throughput_lost", lost, "share", (size_t)b->o.rounds);
	print_metric(name, label, "beside_mbps", moved / b->o.rounds / 1e6, "Mbit/s", (size_t)b->o.rounds);
	if (b->o.sizes) {
		fct = quantile(&with, 0.99) / quantile(&alone, 0.99);
		b->failed |= b->o.loss_limit > 0 && class == TRAFFIC_SCAVENGER && !(fct < FCT_LIMIT);
		print_metric(name, label, "fct_p99_ratio", fct, "ratio", with.count);
		print_metric(name, label, "fct_p50_ratio", quantile(&with, 0.5) / quantile(&alone, 0.5),
			     "ratio", with.count);
	}
	free(with.us);
	free(alone.us);
}

/* Two moves at a time, one from each building, each with half of the floors' sum. */
static void deadlines(struct bench *b, enum move_system system, uint64_t bytes, int moves,
		      const char *metric)
{
	double floor = FLOOR_SHARE / 2 * b->base_bps, window = (double)bytes * 8 / floor + DEADLINE_SLACK_S;
	const char *label = move_system_names[system];
	int met = 0, done = 0;
	double worst = 0;

	fprintf(stderr, "  %d moves of %llu MiB by %s: floor %.0f Mbit/s each, window %.2f s fixed beforehand\n",
		moves, (unsigned long long)(bytes >> 20), label, floor / 1e6, window);
	while (done < moves) {
		struct move m[2];
		int running = MIN(2, moves - done);
		uint64_t begin[2];

		for (int i = 0; i < running; i++) {
			m[i] = (struct move){ .system = system, .ns = i ? b->b.ns : b->a.ns, .site = i,
					      .traffic_class = TRAFFIC_DEADLINE,
					      .rate_bps = (uint64_t)floor, .bytes = bytes };
			begin[i] = clock_boot_ns();
			CHECK(move_start(&b->moves, &m[i]) == 0);
		}
		for (int left = running; left > 0; left--) {
			int status, i;
			pid_t pid = waitpid(-1, &status, 0);
			double took;

			for (i = 0; i < running && m[i].pid != pid; i++)
				;
			CHECK(i < running);
			took = (double)(clock_boot_ns() - begin[i]) / 1e9;
			m[i].pid = -1;
			met += status == 0 && took <= window;
			worst = MAX(worst, took);
		}
		for (int i = 0; i < running; i++)
			move_end(&b->moves, &m[i]);
		done += running;
	}
	b->failed |= b->o.loss_limit > 0 && met < moves;
	print_metric("deadline", label, metric, (double)met / moves, "share", (size_t)moves);
	print_metric("deadline", label, "slowest_share_of_window", worst / window, "share", (size_t)moves);
}

static bool able(const struct bench *b, enum move_system system)
{
	const char *lack = moves_lack(&b->moves, system);

	if (lack)
		fprintf(stderr, "skipped: background by %s: %s\n", move_system_names[system], lack);
	return !lack;
}

static void cases(struct bench *b, enum move_system system)
{
	const char *only = b->o.only;
	uint64_t bytes = (uint64_t)b->o.move_mib << 20;
	bool all = !only;

	/* So much that no stretch sees its end. */
	if (all || strncmp(only, "background", 10) == 0)
		CHECK(moves_prepare(&b->moves, 0,
				    (uint64_t)((double)b->o.core_bps / 8 * (b->o.seconds + SETTLE_S + 1))) == 0);
	if (all || strcmp(only, "background_staging") == 0)
		background(b, "background_staging", system, TRAFFIC_SCAVENGER, 0);
	if (system != MOVE_RSYNC && (all || strcmp(only, "background_deadline") == 0))
		background(b, "background_deadline", system, TRAFFIC_DEADLINE, FLOOR_SHARE * b->base_bps);
	for (int site = 0; site < 2 && (all || strcmp(only, "deadline") == 0); site++)
		CHECK(moves_prepare(&b->moves, site, bytes) == 0);
	if (all || strcmp(only, "deadline") == 0)
		deadlines(b, system, bytes, system == MOVE_RSYNC ? MIN(b->o.moves, 10) : b->o.moves,
			  "deadlines_met");
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
		return b->o.loss_limit > 0 ? 77 : 0;
	}
	CHECK(mkdtemp(dir) != NULL);
	why = moves_init(&b->moves, dir, b->o.build, b->campus.site[SITE_C]);
	if (why) {
		fprintf(stderr, "background: %s\n", why);
		return 1;
	}
	machine_init(&b->a, b, b->campus.site[SITE_MACHINE_A], dir, 0);
	machine_init(&b->b, b, b->campus.site[SITE_MACHINE_B], dir, 1);
	bench_campus_run(&b->campus, 7, SETTLE_S, &s);
	bench_campus_run(&b->campus, 7, b->o.seconds, &s);
	b->base_bps = s.bulk_bps + s.short_bps;
	fprintf(stderr, "  research alone: %.1f Mbit/s of a core link of %.0f\n", b->base_bps / 1e6,
		(double)b->o.core_bps / 1e6);
	for (int system = 0; system <= MOVE_SOCKET; system++)
		if ((b->o.systems >> system & 1) && able(b, (enum move_system)system))
			cases(b, (enum move_system)system);
	if (b->o.large_moves && able(b, MOVE_RECLAIM)) {
		for (int site = 0; site < 2; site++)
			CHECK(moves_prepare(&b->moves, site, UINT64_C(4) << 30) == 0);
		deadlines(b, MOVE_RECLAIM, UINT64_C(4) << 30, b->o.large_moves, "deadlines_met_4g");
	}
	moves_done(&b->moves);
	CHECK(net_run_in(b->a.ns, machine_close, &b->a) == 0);
	CHECK(net_run_in(b->b.ns, machine_close, &b->b) == 0);
	bench_campus_done(&b->campus);
	return dir_remove_all(dir) < 0 || b->failed;
}

int main(int argc, char **argv)
{
	struct bench b = { .o = { .core_bps = UINT64_C(500000000), .queue_bytes = 1u << 20, .seconds = 10,
				  .short_load = 0.1, .short_scale = 0.1, .rounds = 4, .moves = 100,
				  .large_moves = 3, .flows = 20, .move_mib = 256, .congestion = "cubic", .build = "build",
				  .systems = 1u << MOVE_RECLAIM | 1u << MOVE_RSYNC } };
	struct testnet net;
	const char *why;
	int opt, failed;

	while ((opt = getopt(argc, argv, "r:q:t:l:s:n:m:g:f:d:c:o:b:y:z:x:")) != -1) {
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
		case 'z': b.o.move_mib = (unsigned)strtoul(optarg, NULL, 10); break;
		case 'x': b.o.loss_limit = atof(optarg); break;
		case 'o': b.o.only = optarg; break;
		case 'b': b.o.build = optarg; break;
		case 'y': b.o.systems = (unsigned)strtoul(optarg, NULL, 0); break;
		default: return 2;
		}
	}
	why = testnet_init(&net);
	if (why) {
		fprintf(stderr, "skipped: background: %s\n", why);
		testnet_done(&net);
		return b.o.loss_limit > 0 ? 77 : 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	failed = run(&b);
	testnet_done(&net);
	return failed;
}
