/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench edge, cases kill_switch and kill_switch_agent_dead: how long after the
 * decision does the last guest packet pass?
 *
 * The guest sends UDP and TCP at its ceiling, so that its queue holds packets
 * (checked before each kill; a kill without backlog is not counted), and gets
 * both. Outbound, the last packet is the one with the latest receive time
 * stamp at the far end of the wire (AF_PACKET, software stamps of the
 * receiving interface). Inbound, the far end is the guest's own interface,
 * behind its last check (seen.bpf.c). The decision is the moment before
 * edge_kill() is called; with the agent dead, the first instruction of
 * reclaim-cut's main (kill_*), and also the moment before it is started
 * (kill_from_exec_*).
 *
 * Samples in whose window the hypervisor took a CPU (the steal counter moved)
 * are listed apart under steal_*.
 */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/pkt_sched.h>
#include <net/ethernet.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/vec.h"
#include "edge/edge_internal.h"
#include "edge/testnet.h"
#include "load.h"
#include "seen.skel.h"

#define UPLINK_BPS UINT64_C(1000000000)
#define CEILING_BPS UINT64_C(200000000)
#define IN_BPS UINT64_C(60000000)
#define WATCH_US 4000  /* after a kill: longer than any queue on the way could hold a packet */
#define READY_MS 3000
#define SHAMS 5
#define SHAM_TRIES 100
#define RING_FRAME 256
#define RING_FRAMES 16384

extern char **environ;

struct variant {
	const char *name, *system;
	uint32_t disable;
	bool research, agent_dead;
	unsigned part;      /* of the kills asked for: 1 in so many */
	unsigned packets;   /* that must have passed before a kill counts */
};
static const struct variant variants[] = {
	{ "kill_switch", "reclaim", 0, false, false, 1, 20 },
	/* Research fills the uplink: the guest's leaf there is full and hardly moves, so what a kill
	 * cannot reach would leak for long. Few packets pass, so each kill takes longer. */
	{ "kill_switch", "reclaim_uplink_full", 0, true, false, 10, 3 },
	{ "kill_switch", "reclaim_no_htb", 1u << EDGE_HTB, false, false, 1, 20 },
	{ "kill_switch_agent_dead", "reclaim", 0, false, true, 1, 20 },
	{ "kill_switch_agent_dead", "reclaim_no_htb", 1u << EDGE_HTB, false, true, 1, 20 },
};

/* --- watching the far ends ------------------------------------------------ */

struct watch {
	int fd;            /* packet socket in the world */
	uint8_t *ring;
	unsigned at;       /* next frame to look at */
	uint64_t last_ns;  /* CLOCK_REALTIME of the latest guest packet */
	uint64_t packets;
	bool lossy;        /* the ring was full at some time: this machine stood still for long */
	struct seen_bpf *seen;
	int seen_fd;
};

static uint64_t real_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_REALTIME, &t); /* always there */
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static int open_capture(void *arg)
{
	(void)arg;
	return socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_IP));
}

/* Keeps the first bytes of packets that carry the guests' DSCP. */
static void watch_world(struct watch *w, const struct testnet *t)
{
	struct sock_filter code[] = {
		{ BPF_LD | BPF_B | BPF_ABS, 0, 0, ETH_HLEN + 1 },
		{ BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xfc },
		{ BPF_JMP | BPF_JEQ | BPF_K, 0, 1, TRAFFIC_DSCP_GUEST << 2 },
		{ BPF_RET | BPF_K, 0, 0, 64 },
		{ BPF_RET | BPF_K, 0, 0, 0 },
	};
	struct sock_fprog filter = { ARRAY_SIZE(code), code };
	struct tpacket_req ring = { .tp_block_size = 1u << 20, .tp_frame_size = RING_FRAME,
				    .tp_frame_nr = RING_FRAMES };
	struct sockaddr_ll ll = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP),
				  .sll_ifindex = t->world_ifindex };
	int version = TPACKET_V2, one = 1;

	ring.tp_block_nr = RING_FRAMES * RING_FRAME / ring.tp_block_size;
	w->fd = net_run_in(t->world_ns, open_capture, NULL);
	CHECK(w->fd >= 0);
	CHECK(setsockopt(w->fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0);
	/* Stamps where the packet enters the interface, before any wait for a CPU. */
	CHECK(setsockopt(w->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one)) == 0);
	CHECK(setsockopt(w->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) == 0);
	CHECK(setsockopt(w->fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)) == 0);
	w->ring = mmap(NULL, RING_FRAMES * RING_FRAME, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
	CHECK(w->ring != MAP_FAILED);
	CHECK(bind(w->fd, (struct sockaddr *)&ll, sizeof(ll)) == 0);
}

static void watch_drain(struct watch *w)
{
	for (;;) {
		volatile struct tpacket2_hdr *h = (void *)(w->ring + (size_t)w->at * RING_FRAME);
		uint64_t ns;

		if (!(h->tp_status & TP_STATUS_USER))
			return;
		w->lossy |= (h->tp_status & TP_STATUS_LOSING) != 0;
		ns = h->tp_sec * NS_PER_S + h->tp_nsec;
		w->last_ns = MAX(w->last_ns, ns);
		w->packets++;
		h->tp_status = TP_STATUS_KERNEL;
		w->at = (w->at + 1) % RING_FRAMES;
	}
}

/* The kernel says "losing" until its count was read. */
static void watch_forgive(struct watch *w)
{
	struct tpacket_stats stats;
	socklen_t len = sizeof(stats);

	CHECK(getsockopt(w->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len) == 0);
	w->lossy = false;
}

struct seen_attach {
	int ifindex, prog_fd;
};

static int attach_seen(void *arg)
{
	const struct seen_attach *a = arg;
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = a->ifindex, .attach_point = BPF_TC_INGRESS);
	/* After the edge's own, which has priority 1. */
	LIBBPF_OPTS(bpf_tc_opts, opts, .handle = 1, .priority = 2, .prog_fd = a->prog_fd);

	return bpf_tc_attach(&hook, &opts);
}

static void watch_guest(struct watch *w, int guest_ns, int ifindex)
{
	struct seen_attach a = { .ifindex = ifindex };

	w->seen = seen_bpf__open_and_load();
	CHECK(w->seen != NULL);
	w->seen_fd = bpf_map__fd(w->seen->maps.seen);
	a.prog_fd = bpf_program__fd(w->seen->progs.seen_in);
	CHECK(net_run_in(guest_ns, attach_seen, &a) == 0);
}

static uint64_t seen_read(const struct watch *w, uint32_t key)
{
	uint64_t v = 0;

	CHECK(bpf_map_lookup_elem(w->seen_fd, &key, &v) == 0);
	return v;
}

static void watch_done(struct watch *w)
{
	(void)munmap(w->ring, RING_FRAMES * RING_FRAME);
	close(w->fd);
	seen_bpf__destroy(w->seen);
}

static uint64_t steal_ticks(void)
{
	CLEANUP_FILE FILE *f = fopen("/proc/stat", "re");
	unsigned long long user, nice, sys, idle, io, irq, soft, steal = 0;

	if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &sys, &idle, &io,
			&irq, &soft, &steal) != 8)
		steal = 0;
	return steal;
}

/* --- one kill ------------------------------------------------------------- */

struct sample {
	double out_us, in_us;   /* last packet after the decision; 0 = none came after it */
	double flag_us;         /* until the flag stood, as the cutter says */
	double exec_us;         /* the later of both, from before reclaim-cut was started */
	uint64_t backlog, call_ns;
	bool stolen, lossy;
};

struct bench {
	struct testnet net;
	struct edge *edge;      /* NULL while the agent is dead */
	struct edge_guest guest;
	struct nl_sock *guest_sock, *up_sock;
	int guest_ifindex, guest_ns, kill_fd;
	struct watch watch;
	const char *cut;
	struct rng rng;
};

/* Flows both ways, and a queue to cut: true within READY_MS. */
static bool wait_ready(struct bench *b, unsigned packets, uint64_t *ret_backlog)
{
	uint64_t until = clock_boot_ns() + READY_MS * NS_PER_MS, in = seen_read(&b->watch, 1);
	uint64_t out;

	watch_drain(&b->watch);
	out = b->watch.packets;
	while (clock_boot_ns() < until) {
		struct timespec nap = { 0, 200000 + (long)rng_below(&b->rng, 800000) };

		(void)nanosleep(&nap, NULL);
		watch_drain(&b->watch);
		if (b->watch.packets < out + packets || seen_read(&b->watch, 1) < in + MIN(packets, 5u))
			continue;
		*ret_backlog = tree_backlog(b->guest_sock, b->guest_ifindex, TC_H_ROOT);
		if (*ret_backlog > 0)
			return true;
	}
	return false;
}

static void kill_alive(struct bench *b, struct sample *s, uint64_t *ret_boot, uint64_t *ret_real)
{
	struct edge_kill_report r;

	*ret_real = real_ns();
	CHECK(edge_kill(b->edge, EDGE_ALL, &r) == 0);
	*ret_boot = r.decided_boot_ns;
	s->call_ns = MAX(r.map_ns, r.purge_ns);
	s->flag_us = (double)r.map_ns / 1000.0;
}

static void kill_dead(struct bench *b, struct sample *s, uint64_t *ret_boot, uint64_t *ret_real,
		      uint64_t *ret_spawn)
{
	char *argv[] = { (char *)b->cut, (char *)"--run", b->net.run_dir, NULL };
	posix_spawn_file_actions_t fa;
	unsigned long long decided = 0, flag_us = 0;
	uint64_t real, boot;
	char text[1024], *at;
	size_t len = 0;
	ssize_t n;
	int out[2], status;
	pid_t pid;

	CHECK(pipe2(out, O_CLOEXEC) == 0 && posix_spawn_file_actions_init(&fa) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&fa, out[1], 1) == 0);
	real = real_ns();
	*ret_spawn = boot = clock_boot_ns();
	CHECK(posix_spawn(&pid, b->cut, &fa, NULL, argv, environ) == 0);
	close(out[1]);
	while ((n = read(out[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	close(out[0]);
	(void)posix_spawn_file_actions_destroy(&fa);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	at = strstr(text, "decided at ");
	CHECK(at && sscanf(at, "decided at %llu", &decided) == 1);
	CHECK(sscanf(text, "packets: cut after %llu us", &flag_us) == 1);
	s->flag_us = (double)flag_us;
	*ret_boot = decided;
	*ret_real = real + (decided - boot);
	s->call_ns = clock_boot_ns() - decided;
}

static double us_after(uint64_t last, uint64_t decision)
{
	return last > decision ? (double)(last - decision) / 1000.0 : 0;
}

/* sham: everything but the kill, to show that the watchers would see one that fails. */
static bool kill_once(struct bench *b, const struct variant *v, bool sham, struct sample *ret)
{
	struct sample s = { 0 };
	uint64_t boot = 0, real = 0, spawned = 0, steal;
	struct timespec watch_time = { 0, WATCH_US * 1000 };
	uint32_t all = EDGE_ABI_KILL_ALL, zero = 0;

	if (!wait_ready(b, v->packets, &s.backlog))
		return false;
	steal = steal_ticks();
	if (sham) {
		real = real_ns();
		boot = clock_boot_ns();
	} else if (b->edge) {
		kill_alive(b, &s, &boot, &real);
	} else {
		kill_dead(b, &s, &boot, &real, &spawned);
	}
	(void)nanosleep(&watch_time, NULL);
	watch_drain(&b->watch);
	if (b->watch.lossy) {
		watch_forgive(&b->watch);
		s.lossy = true; /* the last packet may be one of the lost */
	}
	s.out_us = us_after(b->watch.last_ns, real);
	s.in_us = us_after(seen_read(&b->watch, 0), boot);
	if (spawned)
		s.exec_us = MAX(s.out_us, s.in_us) + (double)(boot - spawned) / 1000.0;
	s.stolen = steal_ticks() != steal;
	CHECK(bpf_map_update_elem(b->kill_fd, &all, &zero, BPF_ANY) == 0);
	*ret = s;
	return true;
}

/* --- figures -------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void print_metric(const struct variant *v, const char *prefix, const char *what, double value,
			 const char *unit, size_t n)
{
	printf("{\"bench\":\"edge\",\"case\":\"%s\",\"system\":\"%s\",\"metric\":\"%s%s\",\"value\":%.1f,"
	       "\"unit\":\"%s\",\"n\":%zu}\n",
	       v->name, v->system, prefix, what, value, unit, n);
}

static void print_quantiles(const struct variant *v, const char *prefix, double *values, size_t n)
{
	if (n == 0)
		return;
	qsort(values, n, sizeof(*values), by_value);
	print_metric(v, prefix, "kill_p50_us", values[n / 2], "us", n);
	print_metric(v, prefix, "kill_p99_us", values[(n - 1) * 99 / 100], "us", n);
	print_metric(v, prefix, "kill_max_us", values[n - 1], "us", n);
	fprintf(stderr, "  %-24s %-20s %-10s n=%-6zu p50 %7.1f  p99 %7.1f  max %8.1f us\n", v->name,
		v->system, prefix, n, values[n / 2], values[(n - 1) * 99 / 100], values[n - 1]);
}

static double p50_limit_us; /* as a test: fail above; 0 = only measure */
static bool too_slow;

enum series { SERIES_ALL, SERIES_OUT, SERIES_IN, SERIES_EXEC, SERIES_STEAL, SERIES_COUNT };

static void report(const struct variant *v, const struct sample *samples, size_t n)
{
	static const char *const prefix[SERIES_COUNT] = { "", "out_", "in_", "from_exec_", "steal_" };
	double *values = calloc(n ? n : 1, sizeof(*values));
	uint64_t backlog_min = UINT64_MAX;
	double after_flag = 0;
	size_t over = 0;

	CHECK(values != NULL);
	for (int series = 0; series < SERIES_COUNT; series++) {
		size_t count = 0;

		for (size_t i = 0; i < n; i++) {
			const struct sample *s = &samples[i];
			double both = MAX(s->out_us, s->in_us);

			if (s->stolen != (series == SERIES_STEAL) || (series == SERIES_EXEC && !v->agent_dead))
				continue;
			values[count++] = series == SERIES_OUT    ? s->out_us
					  : series == SERIES_IN   ? s->in_us
					  : series == SERIES_EXEC ? s->exec_us
								  : both;
		}
		print_quantiles(v, prefix[series], values, count);
		if (series == SERIES_ALL && p50_limit_us > 0 && count && values[count / 2] > p50_limit_us)
			too_slow = true;
	}
	for (size_t i = 0; i < n; i++) {
		const struct sample *s = &samples[i];
		double last = MAX(s->out_us, s->in_us);

		backlog_min = MIN(backlog_min, s->backlog);
		after_flag = MAX(after_flag, last - s->flag_us);
		over += last > 1000.0;
		if (last > 1000.0)
			fprintf(stderr, "    last packet %.0f us after the decision, %.0f us after the flag stood%s\n", last,
				last - s->flag_us, s->stolen ? " (steal)" : "");
	}
	print_metric(v, "", "over_1ms", (double)over, "kills", n);
	print_metric(v, "", "after_flag_max_us", after_flag, "us", n);
	print_metric(v, "", "backlog_min_bytes", n ? (double)backlog_min : 0, "bytes", n);
	free(values);
}

/* --- a variant ------------------------------------------------------------ */

static int open_up(void *arg)
{
	return net_open(arg);
}

static void short_rto(struct bench *b)
{
	/* TCP must be back soon after each kill, or there is no TCP load: 10,000 kills in minutes
	 * instead of one in a TCP timeout. */
	char cmd[256];
	int r;

	(void)snprintf(cmd, sizeof(cmd),
		       "nsenter --net=/proc/%d/fd/%d ip route change default via %s dev eth0 rto_min 2ms; "
		       "nsenter --net=/proc/%d/fd/%d ip route change 10.9.0.0/24 dev eth0 rto_min 2ms",
		       (int)getpid(), b->guest_ns, inet_ntoa(b->guest.gateway), (int)getpid(),
		       b->net.world_ns);
	r = system(cmd);
	if (r != 0)
		fprintf(stderr, "  (no short TCP timeout: TCP load comes back slowly)\n");
}

static void bench_open(struct bench *b, const struct variant *v)
{
	struct edge_config c = testnet_config(&b->net);
	struct edge_guest_config g = { .job = "bench", .epoch = 1, .netns_fd = b->guest_ns,
				       .internet = true, .lease_deadline_boot_ns = UINT64_MAX };
	struct diag d = DIAG_INIT;
	struct net_link eth;
	char path[256];

	c.uplink_bps = UPLINK_BPS;
	c.guest_ceiling_bps = CEILING_BPS;
	c.disable = v->disable;
	if (edge_open(&c, &b->edge, &d) < 0 || edge_guest_attach(b->edge, &g, &b->guest, &d) < 0) {
		fprintf(stderr, "%s: %s\n", d.where, d.what);
		exit(1);
	}
	CHECK(net_open_in(b->guest_ns, &b->guest_sock) == 0);
	CHECK(net_link_get(b->guest_sock, "eth0", 0, &eth) == 0);
	b->guest_ifindex = eth.ifindex;
	(void)snprintf(path, sizeof(path), "%s/bpf/edge/edge_kill", b->net.run_dir);
	b->kill_fd = bpf_obj_get(path);
	CHECK(b->kill_fd >= 0 && open_up(&b->up_sock) == 0);
	short_rto(b);
	watch_world(&b->watch, &b->net);
	watch_guest(&b->watch, b->guest_ns, b->guest_ifindex);
}

static int run_variant(struct bench *b, const struct variant *v, size_t count)
{
	struct VEC(struct sample) samples = VEC_INIT;
	pid_t world, guest, research = -1;
	size_t misses = 0, unseen = 0;
	int seen = 0;
	struct diag d = DIAG_INIT;

	memset(&b->watch, 0, sizeof(b->watch));
	b->guest_ns = testnet_ns_new();
	bench_open(b, v);
	world = load_world(b->net.world_ns, IN_BPS);
	guest = load_guest(b->guest_ns);
	if (v->research)
		research = load_research(b->net.machine_ns, 4);
	if (v->agent_dead) {
		edge_close(b->edge);
		b->edge = NULL;
	}
	/* Not each one: on a busy machine the traffic itself may pause for that long. */
	for (int i = 0; i < SHAM_TRIES && seen < SHAMS && !v->research; i++) {
		struct sample s;

		seen += kill_once(b, v, true, &s) && s.out_us > WATCH_US / 4 && s.in_us > WATCH_US / 4;
	}
	CHECK(v->research || seen == SHAMS);
	watch_forgive(&b->watch);
	while (samples.count < MAX(count / v->part, (size_t)1) && misses < 10) {
		struct sample s;

		if (!kill_once(b, v, false, &s)) {
			misses++;
		} else if (s.lossy) {
			unseen++;
		} else {
			CHECK(VEC_PUSH(&samples, s) == 0);
			misses = 0;
		}
	}
	load_stop(guest);
	load_stop(world);
	load_stop(research);
	report(v, samples.data, samples.count);
	print_metric(v, "", "unseen_kills", (double)unseen, "kills", samples.count);
	VEC_DONE(&samples);
	watch_done(&b->watch);
	close(b->kill_fd);
	nl_socket_free(b->guest_sock);
	nl_socket_free(b->up_sock);
	if (!b->edge) {
		struct edge_config c = testnet_config(&b->net);

		c.disable = v->disable;
		CHECK(edge_open(&c, &b->edge, &d) == 0);
	}
	CHECK(edge_remove(b->edge, &d) == 0);
	edge_close(b->edge);
	close(b->guest_ns);
	if (misses == 10)
		fprintf(stderr, "  %s %s: no traffic to cut in %d tries\n", v->name, v->system, (int)misses);
	return misses == 10 ? 1 : 0;
}

/* By system, or as case/system. */
static bool chosen(const struct variant *v, const char *only)
{
	char full[96];

	(void)snprintf(full, sizeof(full), "%s/%s", v->name, v->system);
	return strcmp(only, v->system) == 0 || strcmp(only, full) == 0;
}

int main(int argc, char **argv)
{
	struct bench b = { 0 };
	size_t count = 10000;
	const char *why, *only = NULL;
	int opt, failed = 0;

	while ((opt = getopt(argc, argv, "n:c:s:x:")) != -1) {
		if (opt == 'n')
			count = strtoul(optarg, NULL, 10);
		else if (opt == 'c')
			b.cut = optarg;
		else if (opt == 's')
			only = optarg;
		else if (opt == 'x')
			p50_limit_us = atof(optarg);
		else
			return 2;
	}
	why = testnet_init(&b.net);
	if (why) {
		fprintf(stderr, "skipped: kill_switch: %s\n", why);
		testnet_done(&b.net);
		return p50_limit_us > 0 ? 77 : 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	rng_init(&b.rng, 1);
	for (size_t i = 0; i < ARRAY_SIZE(variants); i++) {
		if (variants[i].agent_dead && !b.cut)
			continue;
		if (only && !chosen(&variants[i], only))
			continue;
		failed |= run_variant(&b, &variants[i], count);
	}
	testnet_done(&b.net);
	return failed || too_slow;
}
