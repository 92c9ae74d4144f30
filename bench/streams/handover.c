/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves of a receiver: 1 KiB messages at a fixed rate, sender, old and new
 * receiver in processes of their own. Cutover: last message at the old place
 * to first at the new one. Delay: from the moment a message was due to be sent
 * to its arrival, so that a blocked sender counts.
 *
 *   handover SYSTEM CASE MOVES
 *     SYSTEM  reclaim reclaim_tls tcp tcp_resend zeromq nng ucx
 *     CASE    planned behind state killed
 *
 * Every system moves as well as it can: tcp closes and connects anew, tcp_resend
 * numbers, acknowledges and sends again, zeromq and nng disconnect and connect,
 * ucx flushes its endpoint and opens another.
 * Prints one line per move: cutover_ms added_ms steady_p99_ms lost doubled reordered
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <reclaim/stream.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_ZMQ
#include <zmq.h>
#endif
#ifdef HAVE_NNG
#include <nng/nng.h>
#include <nng/protocol/pipeline0/pull.h>
#include <nng/protocol/pipeline0/push.h>
#endif

#ifdef HAVE_UCX
#include <ucp/api/ucp.h>
#endif

#include "stream/registry_server.h"

enum { SIZE = 1024, RATE = 8000, COUNT = 24000, MOVE_AT = 4000, STATE = 64 << 20, RING = 65536 };

struct message {
	uint64_t seq, due_ns;
};
struct side {
	uint64_t first_ns, last_ns, count, instance, port;
	uint8_t worker[1024]; /* UCX: the worker's address */
	bool ready, stop;
};
struct shared {
	struct side side[2];
	uint8_t seen[2][COUNT + 2];   /* by which side, how often */
	uint64_t arrival[COUNT + 2];  /* the first */
	uint64_t order[2 * COUNT];    /* seqs as they were processed, by whichever side */
	uint64_t processed;
	char registry[160];
};

static struct shared *sh;
static const char *system_name, *case_name;
static uint64_t total = 8000; /* messages sent */
static uint64_t work_ns; /* the receiver's time per message: it falls behind */

/* $HANDOVER_PLACES: "NETNS ADDRESS" of the sender (and registry), the old and the new place;
 * for ours only. */
static char place_ns[3][64], place_address[3][64];

static void go_to(int place)
{
	char path[128];

	if (!place_ns[place][0])
		return;
	snprintf(path, sizeof(path), "/var/run/netns/%s", place_ns[place]);
	int ns = open(path, O_RDONLY | O_CLOEXEC);
	if (ns < 0 || setns(ns, CLONE_NEWNET) < 0) {
		perror(path);
		_exit(1);
	}
	close(ns);
}

static const char *listen_at(int place, const char *prefix)
{
	static char text[96];

	snprintf(text, sizeof(text), "%s%s:0", prefix,
		 place_ns[place][0] ? place_address[place] : "127.0.0.1");
	return text;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap_until(uint64_t at)
{
	struct timespec t = { (time_t)(at / 1000000000u), (long)(at % 1000000000u) };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void die(const char *what, int r)
{
	fprintf(stderr, "handover %s: %s: %s\n", system_name, what, strerror(r < 0 ? -r : errno));
	_exit(1);
}

/* One message is processed here. A receiver that is behind takes its time. */
static void process(int me, const void *data)
{
	struct message m;
	uint64_t t = now_ns();

	memcpy(&m, data, sizeof(m));
	if (m.seq == 0 || m.seq > COUNT)
		return;
	if (!sh->side[me].first_ns)
		sh->side[me].first_ns = t;
	sh->side[me].last_ns = t;
	sh->side[me].count++;
	if (!sh->seen[0][m.seq] && !sh->seen[1][m.seq])
		sh->arrival[m.seq] = t;
	sh->seen[me][m.seq]++;
	sh->order[__atomic_fetch_add(&sh->processed, 1, __ATOMIC_ACQ_REL) % (2 * COUNT)] = m.seq;
	/* 20 ms behind at the move: the old side pauses once, 20 ms before it. */
	if (me == 0 && work_ns && m.seq == MOVE_AT - 160)
		nap_until(now_ns() + work_ns);
}

/* --- ours --- */

static uint8_t *region;

static void reclaim_side(int me)
{
	struct reclaim_region g = { 1, region, STATE };
	struct reclaim_node_options o = { .size = sizeof(o), .name = "sink", .registry = sh->registry,
					  .token = "t", .level = 1, .standby = me == 1,
					  .no_takeover = strcmp(case_name, "killed") != 0,
					  .listen = listen_at(1 + me, ""),
					  .plain = strcmp(system_name, "reclaim_tls") != 0 };
	struct reclaim_node *n;
	struct reclaim_msg m[64];
	unsigned since = 0;

	if (!strcmp(case_name, "state")) {
		o.regions = &g;
		o.regions_count = 1;
	}
	int r = reclaim_node_open(&o, &n);
	if (r < 0)
		die("open", r);
	sh->side[me].instance = reclaim_node_instance(n);
	__atomic_store_n(&sh->side[me].ready, true, __ATOMIC_RELEASE);
	/* Once moved away, or told so by the bench. */
	while ((r = reclaim_recv_many(n, m, 1, 20)) >= 0 && !__atomic_load_n(&sh->side[me].stop, __ATOMIC_ACQUIRE)) {
		for (int i = 0; i < r; i++)
			if (m[i].kind == RECLAIM_DATA) {
				process(me, m[i].data);
				if (o.regions_count) {
					region[(m[i].seq * 4099) % STATE]++;
					reclaim_region_dirty(n, 1, (m[i].seq * 4099) % STATE, 1);
				}
				if (++since % 256 == 0 || !strcmp(case_name, "killed"))
					reclaim_stable(n);
			}
	}
	if (getenv("HANDOVER_DEBUG")) {
		char *text = reclaim_node_describe(n);

		fprintf(stderr, "%d: %s\n", me, strstr(text, "\"counters\""));
		free(text);
	}
	while (!__atomic_load_n(&sh->side[me].stop, __ATOMIC_ACQUIRE))
		usleep(500);
	reclaim_node_close(n);
}

/* --- TCP, with and without resend --- */

static void read_all_messages(int me, int fd, bool acks)
{
	uint8_t buf[SIZE * 64];
	size_t have = 0;
	uint64_t want = 0;

	for (;;) {
		ssize_t k = recv(fd, buf + have, sizeof(buf) - have, 0);
		size_t at = 0;

		if (k <= 0)
			return;
		have += (size_t)k;
		for (; have - at >= SIZE; at += SIZE) {
			process(me, buf + at);
			if (acks) {
				memcpy(&want, buf + at, 8);
				if (send(fd, &want, 8, MSG_NOSIGNAL) != 8)
					return;
			}
		}
		memmove(buf, buf + at, have - at);
		have -= at;
	}
}

static void tcp_side(int me, bool acks)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(l, (struct sockaddr *)&a, sizeof(a)) || listen(l, 8))
		die("listen", 0);
	getsockname(l, (struct sockaddr *)&a, &len);
	sh->side[me].port = ntohs(a.sin_port);
	__atomic_store_n(&sh->side[me].ready, true, __ATOMIC_RELEASE);
	for (;;) {
		int fd = accept(l, NULL, NULL), on = 1;

		if (fd < 0)
			return;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		read_all_messages(me, fd, acks);
		close(fd);
	}
}

#ifdef HAVE_ZMQ
static void zmq_side(int me)
{
	void *ctx = zmq_ctx_new(), *s = zmq_socket(ctx, ZMQ_PULL);
	char where[64];
	size_t len = sizeof(where);
	uint8_t buf[SIZE];

	if (zmq_bind(s, "tcp://127.0.0.1:*"))
		die("bind", 0);
	zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, where, &len);
	sh->side[me].port = strtoul(strrchr(where, ':') + 1, NULL, 10);
	__atomic_store_n(&sh->side[me].ready, true, __ATOMIC_RELEASE);
	while (zmq_recv(s, buf, SIZE, 0) == SIZE)
		process(me, buf);
}
#endif
#ifdef HAVE_NNG
static void nng_side(int me)
{
	nng_socket s;
	nng_listener l;
	nng_sockaddr a;
	uint8_t *p;
	size_t len;

	if (nng_pull0_open(&s) || nng_listen(s, "tcp://127.0.0.1:0", &l, 0) ||
	    nng_listener_get_addr(l, NNG_OPT_LOCADDR, &a))
		die("listen", 0);
	sh->side[me].port = ntohs(a.s_in.sa_port);
	__atomic_store_n(&sh->side[me].ready, true, __ATOMIC_RELEASE);
	while (nng_recv(s, &p, &len, NNG_FLAG_ALLOC) == 0) {
		process(me, p);
		nng_free(p, len);
	}
}
#endif

#ifdef HAVE_UCX
static ucp_context_h uctx;
static ucp_worker_h uworker;
static ucp_ep_h uep;

static void ucx_open(void)
{
	ucp_params_t p = { .field_mask = UCP_PARAM_FIELD_FEATURES,
			   .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				   .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_config_t *config;

	setenv("UCX_TLS", "tcp", 0);
	setenv("UCX_NET_DEVICES", "lo", 0);
	if (ucp_config_read(NULL, NULL, &config) || ucp_init(&p, config, &uctx) ||
	    ucp_worker_create(uctx, &wp, &uworker))
		die("ucp", -EIO);
}

static void ucx_wait(void *req)
{
	if (!req || UCS_PTR_IS_ERR(req))
		return;
	while (ucp_request_check_status(req) == UCS_INPROGRESS)
		if (!ucp_worker_progress(uworker))
			(void)ucp_worker_wait(uworker);
	ucp_request_free(req);
}

static void ucx_side(int me)
{
	ucp_request_param_t p = { .op_attr_mask = 0 };
	static uint8_t buf[SIZE];
	ucp_address_t *mine;
	size_t len;

	ucx_open();
	if (ucp_worker_get_address(uworker, &mine, &len) || len > sizeof(sh->side[me].worker))
		die("address", -EIO);
	memcpy(sh->side[me].worker, mine, len);
	__atomic_store_n(&sh->side[me].ready, true, __ATOMIC_RELEASE);
	for (;;) {
		void *req = ucp_tag_recv_nbx(uworker, buf, SIZE, 1, (ucp_tag_t)-1, &p);

		if (UCS_PTR_IS_ERR(req))
			return;
		ucx_wait(req);
		process(me, buf);
	}
}

static void ucx_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg, (void)ep, (void)status; /* the oracle tells us when to go elsewhere */
}

static void ucx_connect(int side)
{
	ucp_ep_params_t p = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
					    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
					    UCP_EP_PARAM_FIELD_ERR_HANDLER,
			      .err_handler.cb = ucx_failed,
			      .address = (ucp_address_t *)sh->side[side].worker,
			      .err_mode = UCP_ERR_HANDLING_MODE_PEER };

	if (ucp_ep_create(uworker, &p, &uep))
		die("endpoint", -EIO);
}

static void ucx_send(const void *kept_bytes)
{
	ucp_request_param_t p = { .op_attr_mask = 0 };
	void *req = ucp_tag_send_nbx(uep, kept_bytes, SIZE, 1, &p);

	if (req && !UCS_PTR_IS_ERR(req))
		ucp_request_free(req); /* goes when it is done */
	while (ucp_worker_progress(uworker))
		;
}

static void ucx_switch(bool dead)
{
	ucp_request_param_t p = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
				  .flags = dead ? UCP_EP_CLOSE_FLAG_FORCE : 0 };

	ucx_wait(ucp_ep_close_nbx(uep, &p)); /* without force it flushes first */
	ucx_connect(1);
}
#endif

/* gate: begins when the other end of that pipe is written to; -1: at once. */
static pid_t start_side(int me, int gate)
{
	pid_t p = fork();
	char go;

	if (p)
		return p;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (gate >= 0 && read(gate, &go, 1) != 1)
		_exit(0);
	go_to(1 + me);
	if (!strncmp(system_name, "reclaim", 7))
		reclaim_side(me);
	else if (!strcmp(system_name, "tcp"))
		tcp_side(me, false);
	else if (!strcmp(system_name, "tcp_resend"))
		tcp_side(me, true);
#ifdef HAVE_ZMQ
	else if (!strcmp(system_name, "zeromq"))
		zmq_side(me);
#endif
#ifdef HAVE_NNG
	else if (!strcmp(system_name, "nng"))
		nng_side(me);
#endif
#ifdef HAVE_UCX
	else if (!strcmp(system_name, "ucx"))
		ucx_side(me);
#endif
	_exit(0);
}

/* --- the sender --- */

static struct reclaim_node *client;
static struct reclaim_stream *stream;
static int fd = -1;
static uint8_t kept[RING][SIZE];
static uint64_t acked;
static int at_side;
#ifdef HAVE_ZMQ
static void *zctx, *zpush;
#endif
#ifdef HAVE_NNG
static nng_socket npush;
static nng_dialer ndialer;
#endif

static void where(int side, char *text, size_t cap)
{
	snprintf(text, cap, "tcp://127.0.0.1:%" PRIu64, sh->side[side].port);
}

static void tcp_connect(int side)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)sh->side[side].port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int on = 1;

	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)))
		die("connect", 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void connect_to(int side)
{
	char text[64];

	where(side, text, sizeof(text));
	at_side = side;
	if (!strncmp(system_name, "tcp", 3))
		tcp_connect(side);
#ifdef HAVE_ZMQ
	if (!strcmp(system_name, "zeromq"))
		zmq_connect(zpush, text);
#endif
#ifdef HAVE_NNG
	if (!strcmp(system_name, "nng") && nng_dial(npush, text, &ndialer, 0))
		die("dial", 0);
#endif
#ifdef HAVE_UCX
	if (!strcmp(system_name, "ucx"))
		ucx_connect(side);
#endif
}

static void open_sender(void)
{
#ifdef HAVE_ZMQ
	if (!strcmp(system_name, "zeromq")) {
		zctx = zmq_ctx_new();
		zpush = zmq_socket(zctx, ZMQ_PUSH);
	}
#endif
#ifdef HAVE_NNG
	if (!strcmp(system_name, "nng") && nng_push0_open(&npush))
		die("open", 0);
#endif
#ifdef HAVE_UCX
	if (!strcmp(system_name, "ucx"))
		ucx_open();
#endif
	if (!strncmp(system_name, "reclaim", 7)) {
		struct reclaim_node_options o = { .size = sizeof(o), .name = "client", .level = 1,
						  .registry = sh->registry, .token = "t",
						  .listen = listen_at(0, ""),
						  .plain = strcmp(system_name, "reclaim_tls") != 0 };
		int r = reclaim_node_open(&o, &client);

		if (r < 0)
			die("open", r);
		reclaim_stream_open(client, "sink", RECLAIM_TOKEN, NULL, &stream);
	} else {
		connect_to(0);
	}
}

static void take_acks(void)
{
	uint64_t a[64];
	ssize_t k;

	while ((k = recv(fd, a, sizeof(a), MSG_DONTWAIT)) >= 8)
		acked = a[k / 8 - 1];
}

static void send_one(uint64_t seq, const uint8_t *p)
{
	if (stream) {
		int r = reclaim_send(stream, p, SIZE, 0, -1);

		if (r < 0)
			die("send", r);
	} else if (fd >= 0) {
		memcpy(kept[seq % RING], p, SIZE);
		(void)send(fd, p, SIZE, MSG_NOSIGNAL); /* a dead peer: lost, or sent again later */
		if (!strcmp(system_name, "tcp_resend"))
			take_acks();
	}
#ifdef HAVE_ZMQ
	else if (zpush)
		zmq_send(zpush, p, SIZE, 0);
#endif
#ifdef HAVE_UCX
	else if (uep) {
		memcpy(kept[seq % RING], p, SIZE);
		ucx_send(kept[seq % RING]);
	}
#endif
#ifdef HAVE_NNG
	else
		nng_send(npush, (void *)(uintptr_t)p, SIZE, 0);
#endif
}

/* The sender's part of a move: it is told the new address and does what its system offers. */
static void switch_over(uint64_t next)
{
	char text[64];

	where(0, text, sizeof(text));
	if (!strncmp(system_name, "reclaim", 7))
		return;
	if (fd >= 0) {
		if (!strcmp(system_name, "tcp_resend"))
			take_acks();
		shutdown(fd, SHUT_WR); /* the old side still reads what is under way */
		tcp_connect(1);
		if (!strcmp(system_name, "tcp_resend"))
			for (uint64_t s = acked + 1; s < next; s++)
				(void)send(fd, kept[s % RING], SIZE, MSG_NOSIGNAL);
		return;
	}
#ifdef HAVE_ZMQ
	if (zpush)
		zmq_disconnect(zpush, text);
#endif
#ifdef HAVE_NNG
	if (!strcmp(system_name, "nng"))
		nng_dialer_close(ndialer);
#endif
#ifdef HAVE_UCX
	if (!strcmp(system_name, "ucx")) {
		ucx_switch(!strcmp(case_name, "killed"));
		return;
	}
#endif
	connect_to(1);
}

static int cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static struct registry_server *server;

static void *serve(void *arg)
{
	(void)registry_server_run(arg);
	return NULL;
}

static void *mover(void *arg)
{
	(void)arg;
	int r = reclaim_move(sh->registry, "t", "sink", sh->side[1].instance);

	if (r < 0)
		die("move", r);
	return NULL;
}

static void one_move(void)
{
	uint8_t msg[SIZE] = { 0 };
	pid_t side[2] = { 0 };
	pthread_t thread;
	bool ours = !strncmp(system_name, "reclaim", 7), killed = !strcmp(case_name, "killed");
	uint64_t due[COUNT + 2];
	int gate[2] = { -1, -1 };

	memset(sh, 0, offsetof(struct shared, registry));
	/* Who comes after a kill is forked before the sender opens its library: UCX and nng have
	 * threads, which a child would believe in and not have, and would then hear nothing. */
	if (killed) {
		if (pipe(gate))
			die("pipe", 0);
		side[1] = start_side(1, gate[0]);
	}
	side[0] = start_side(0, -1);
	while (!__atomic_load_n(&sh->side[0].ready, __ATOMIC_ACQUIRE))
		usleep(500);
	if (!killed) {
		side[1] = start_side(1, -1);
		while (!__atomic_load_n(&sh->side[1].ready, __ATOMIC_ACQUIRE))
			usleep(500);
	}
	open_sender();
	uint64_t from = now_ns() + 5000000;
	for (uint64_t seq = 1; seq <= total; seq++) {
		struct message m = { seq, from + seq * (1000000000u / RATE) };

		due[seq] = m.due_ns;
		if (now_ns() < m.due_ns)
			nap_until(m.due_ns);
		if (seq == MOVE_AT) {
			if (killed) {
				kill(side[0], SIGKILL);
				waitpid(side[0], NULL, 0);
				if (write(gate[1], "", 1) != 1)
					die("gate", 0);
				if (!ours) {
					while (!__atomic_load_n(&sh->side[1].ready, __ATOMIC_ACQUIRE))
						usleep(500);
					/* The others have a perfect oracle, 50 ms after the kill. */
					nap_until(m.due_ns + 50000000);
					switch_over(seq);
				}
			} else if (ours) {
				pthread_create(&thread, NULL, mover, NULL);
			} else {
				switch_over(seq);
			}
		}
		memcpy(msg, &m, sizeof(m));
		send_one(seq, msg);
	}
	if (ours && !killed)
		pthread_join(thread, NULL);
	/* Until all has come, or nothing comes any more. */
	for (uint64_t last = 0, still = now_ns();;) {
		uint64_t n = __atomic_load_n(&sh->processed, __ATOMIC_ACQUIRE);

		if (n != last) {
			last = n;
			still = now_ns();
		}
		if (now_ns() - still > (killed ? 3000000000u : n >= total ? 30000000u : 500000000u))
			break;
		usleep(1000);
	}
	uint64_t lost = 0, doubled = 0, reordered = 0, worst = 0, high = 0, n = 0;
	static uint64_t steady[COUNT];
	for (uint64_t s = 1; s <= total; s++) {
		unsigned times = sh->seen[0][s] + sh->seen[1][s];

		lost += times == 0;
		doubled += times > 1 ? times - 1 : 0;
		if (!times)
			continue;
		uint64_t delay = sh->arrival[s] > due[s] ? sh->arrival[s] - due[s] : 0;
		if (s > 1000 && s < MOVE_AT - 400)
			steady[n++] = delay;
		else if (s >= MOVE_AT - 20 && delay > worst)
			worst = delay;
	}
	qsort(steady, n, sizeof(*steady), cmp);
	for (uint64_t i = 0; i < sh->processed && i < 2 * COUNT; i++) {
		reordered += sh->order[i] < high;
		if (sh->order[i] > high)
			high = sh->order[i];
	}
	double cut = sh->side[1].first_ns && sh->side[0].last_ns ?
			     ((double)sh->side[1].first_ns - (double)sh->side[0].last_ns) / 1e6 : -1;
	printf("%.3f %.3f %.3f %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", cut, (double)worst / 1e6,
	       n ? (double)steady[n * 99 / 100] / 1e6 : 0, lost, doubled, reordered - (doubled < reordered ?
	       doubled : reordered));
	fflush(stdout);
	sh->side[0].stop = sh->side[1].stop = true;
	if (ours) {
		reclaim_node_close(client);
		client = NULL;
		stream = NULL;
		usleep(30000);
	}
	for (int i = 0; i < 2; i++) {
		if (gate[i] >= 0)
			close(gate[i]);
		kill(side[i], SIGKILL);
		waitpid(side[i], NULL, 0);
	}
	if (fd >= 0)
		close(fd);
	fd = -1;
	acked = 0;
#ifdef HAVE_ZMQ
	if (zpush) {
		int zero = 0;

		zmq_setsockopt(zpush, ZMQ_LINGER, &zero, sizeof(zero));
		zmq_close(zpush);
		zmq_ctx_term(zctx);
		zpush = NULL;
	}
#endif
#ifdef HAVE_NNG
	if (!strcmp(system_name, "nng"))
		nng_close(npush);
#endif
#ifdef HAVE_UCX
	if (!strcmp(system_name, "ucx")) {
		ucp_request_param_t force = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
					      .flags = UCP_EP_CLOSE_FLAG_FORCE };

		ucx_wait(ucp_ep_close_nbx(uep, &force));
		ucp_worker_destroy(uworker);
		ucp_cleanup(uctx);
		uep = NULL;
	}
#endif
}

int main(int argc, char **argv)
{
	static const uint8_t secret[SEAL_KEY_LEN] = { 1 };

	if (argc < 4)
		return 2;
	system_name = argv[1];
	case_name = argv[2];
	const char *places = getenv("HANDOVER_PLACES");
	if (places && sscanf(places, "%63s %63s %63s %63s %63s %63s", place_ns[0], place_address[0],
			     place_ns[1], place_address[1], place_ns[2], place_address[2]) != 6)
		return 2;
	go_to(0);
	if (!strcmp(case_name, "behind"))
		work_ns = 20000000;
	if (!strcmp(case_name, "state"))
		total = COUNT; /* the copy takes a while on a busy machine */
	signal(SIGPIPE, SIG_IGN);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < atoi(argv[3]); i++) {
		if (!strncmp(system_name, "reclaim", 7)) {
			struct registry_server_options o = {
				.listen = listen_at(0, "tcp:"),
				.terms = { !strcmp(case_name, "killed") ? 300000000u : 2000000000u, 5000000, 500 } };
			int ready[2];
			pid_t p;

			/* In a process of its own, as in life. */
			if (pipe(ready))
				return 1;
			p = fork();
			if (p == 0) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				if (registry_server_open(&o, &server))
					_exit(1);
				registry_add_job(registry_server_registry(server), "job", "t", secret);
				(void)!write(ready[1], registry_server_address(server), 160);
				(void)serve(server);
				_exit(0);
			}
			if (read(ready[0], sh->registry, 160) < 10)
				return 1;
			if (!region)
				region = malloc(STATE);
			memset(region, 1, STATE);
			one_move();
			kill(p, SIGKILL);
			waitpid(p, NULL, 0);
			close(ready[0]);
			close(ready[1]);
		} else {
			one_move();
		}
	}
	return 0;
}
