/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ends of a move as commands, for the bench: the same libraries and
 * the same helper program as the agent's, without an agent.
 *
 *     transfer-drive campus DIR
 *     transfer-drive take DIR STORE SRC SEQ [CHUNK_KIB]     one image, JSON
 *     transfer-drive receive DIR STORE ADDR PORT            until standard input ends
 *     transfer-drive send DIR STORE HOST PORT IMAGE CLASS RATE_BPS STREAMS RETRY_MS
 *     transfer-drive restore STORE IMAGE DST
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "io/identity.h"
#include "io/ticket.h"
#include "transfer/transfer.h"
#include "wire/ticket.h"

static const uint8_t key[IMAGE_KEY_LEN] = "a key that protects nothing";
static uv_loop_t loop;

static int failed(const char *what, const struct diag *d, int r)
{
	fprintf(stderr, "transfer-drive: %s: %s: %s (%d)\n", what, d->where, d->what, r);
	return 1;
}

static int enrol(const char *dir, struct identity_ca *ca, const char *name, enum identity_role role)
{
	char path[4096], *csr = NULL, *cert = NULL;
	struct diag d = DIAG_INIT;
	int r = path_format(path, sizeof(path), "%s/%s", dir, name);

	if (r == 0)
		r = identity_request(path, name, &csr, &d);
	if (r == 0)
		r = identity_ca_sign(ca, csr, name, role, 86400, &cert, NULL, &d);
	if (r == 0)
		r = identity_install(path, identity_ca_pem(ca), cert, &d);
	free(csr);
	free(cert);
	return r < 0 ? failed(name, &d, r) : 0;
}

static int campus(const char *dir)
{
	struct identity_ca *ca = NULL;
	struct diag d = DIAG_INIT;
	int r = identity_ca_create(dir, "bench", &d);

	if (r == 0)
		r = identity_ca_open(dir, &ca, &d);
	if (r < 0)
		return failed(dir, &d, r);
	r = enrol(dir, ca, "coordinator", IDENTITY_COORDINATOR) || enrol(dir, ca, "a", IDENTITY_AGENT) ||
	    enrol(dir, ca, "b", IDENTITY_AGENT);
	identity_ca_free(ca);
	return r;
}

static double cpu_s(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int take(const char *store, const char *src, uint64_t seq, uint64_t chunk_kib)
{
	struct image_take_params p = { .job = "bench", .epoch = 1, .seq = seq, .src_dir = src,
				       .chunk_size = (uint32_t)chunk_kib << 10 };
	struct image_store *s = NULL;
	struct image_info *infos = NULL, info;
	struct diag d = DIAG_INIT;
	size_t count = 0;
	uint64_t start;
	int r = image_store_open(store, &s, &d);

	memcpy(p.key, key, sizeof(key));
	if (r == 0)
		r = image_list(s, "bench", &infos, &count, &d);
	if (r == 0 && count)
		p.previous = infos[0].digest;
	start = clock_boot_ns();
	if (r == 0)
		r = image_take(s, &p, &info, &d);
	if (r < 0)
		return failed(src, &d, r);
	printf("{\"image\":\"%s\",\"bytes\":%llu,\"stored_bytes\":%llu,\"new_bytes\":%llu,\"chunks\":%llu,"
	       "\"seconds\":%.4f,\"cpu_s\":%.4f}\n",
	       info.digest, (unsigned long long)info.bytes, (unsigned long long)info.stored_bytes,
	       (unsigned long long)info.new_bytes, (unsigned long long)info.chunks,
	       (double)(clock_boot_ns() - start) / 1e9, cpu_s(RUSAGE_SELF));
	free(infos);
	image_store_close(s);
	return 0;
}

static int restore(const char *store, const char *image, const char *dst)
{
	struct image_store *s = NULL;
	struct diag d = DIAG_INIT;
	uint64_t start = clock_boot_ns();
	int r = image_store_open(store, &s, &d);

	if (r == 0)
		r = image_restore(s, "bench", image, key, dst, NULL, NULL, &d);
	if (r < 0)
		return failed(dst, &d, r);
	printf("{\"seconds\":%.4f,\"cpu_s\":%.4f}\n", (double)(clock_boot_ns() - start) / 1e9,
	       cpu_s(RUSAGE_SELF));
	image_store_close(s);
	return 0;
}

/* ---- receive ---- */

static struct transfer_receiver *receiver;

static uint64_t status_kib(pid_t pid, const char *field)
{
	char path[64], *text = NULL, *at;
	uint64_t kib = 0;
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (file_read(path, 65536, &text, &len) == 0 && (at = strstr(text, field)))
		kib = strtoull(at + strlen(field), NULL, 10);
	free(text);
	return kib;
}

static uint64_t peak_kib;
static uv_timer_t sampler;

static void on_sample(uv_timer_t *t)
{
	uint64_t kib = status_kib(transfer_receiver_pid(receiver), "RssAnon:");

	peak_kib = kib > peak_kib ? kib : peak_kib;
}

static double child_cpu_s(pid_t pid)
{
	char path[64], *text = NULL, *at;
	unsigned long long user = 0, sys = 0;
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (file_read(path, 4096, &text, &len) == 0 && (at = strrchr(text, ')')))
		(void)sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &sys);
	free(text);
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

static void on_listening(void *arg, uint16_t port)
{
	printf("{\"event\":\"listening\",\"port\":%u}\n", port);
	fflush(stdout);
}

static void on_received(void *arg, const struct transfer_incoming *in)
{
	on_sample(NULL);
	printf("{\"event\":\"received\",\"image\":\"%s\",\"bytes_wire\":%llu,\"ms\":%llu,\"cpu_s\":%.3f,"
	       "\"peak_kib\":%llu}\n",
	       in->image, (unsigned long long)in->bytes_wire, (unsigned long long)in->ms,
	       child_cpu_s(transfer_receiver_pid(receiver)), (unsigned long long)peak_kib);
	fflush(stdout);
	peak_kib = 0;
}

static void on_receive_failed(void *arg, const struct transfer_incoming *in, enum transfer_code code,
			      const struct diag *diag)
{
	printf("{\"event\":\"failed\",\"code\":\"%s\"}\n", transfer_code_name(code));
	fflush(stdout);
	fprintf(stderr, "receive: %s: %s: %s\n", transfer_code_name(code), diag->where, diag->what);
}

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf)
{
	static char text[256];

	*buf = uv_buf_init(text, sizeof(text));
}

static void on_stdin(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	if (n >= 0)
		return;
	uv_close((uv_handle_t *)s, NULL);
	uv_close((uv_handle_t *)&sampler, NULL);
	transfer_receiver_stop(receiver, NULL, NULL);
}

static int receive(const char *dir, const char *store, const char *addr, uint64_t port)
{
	char identity[4096];
	struct transfer_receiver_params p = { .program = getenv("RECLAIM_TRANSFER"), .store_dir = store,
					      .identity_dir = identity, .listen_addr = addr,
					      .port = (uint16_t)port };
	struct transfer_receiver_callbacks cb = { .listening = on_listening, .received = on_received,
						  .failed = on_receive_failed };
	struct diag d = DIAG_INIT;
	static uv_pipe_t in;
	int r = path_format(identity, sizeof(identity), "%s/b", dir);

	uv_timer_init(&loop, &sampler);
	uv_timer_start(&sampler, on_sample, 50, 50);
	if (r == 0)
		r = transfer_receiver_start(&loop, &p, &cb, NULL, &receiver, &d);
	if (r < 0)
		return failed(addr, &d, r);
	uv_pipe_init(&loop, &in, 0);
	uv_pipe_open(&in, 0);
	uv_read_start((uv_stream_t *)&in, on_alloc, on_stdin);
	uv_run(&loop, UV_RUN_DEFAULT);
	return 0;
}

/* ---- send ---- */

static int send_status = 1;

static void on_done(void *arg, const struct transfer_result *r)
{
	printf("{\"event\":\"done\",\"bytes_wire\":%llu,\"bytes_stored\":%llu,\"chunks\":%llu,\"delta\":%llu,"
	       "\"zstd\":%llu,\"ms\":%llu,\"reconnects\":%u,\"peak_kib\":%llu,\"cpu_s\":%.3f}\n",
	       (unsigned long long)r->bytes_wire, (unsigned long long)r->bytes_stored,
	       (unsigned long long)r->chunks_sent, (unsigned long long)r->chunks_delta,
	       (unsigned long long)r->chunks_zstd, (unsigned long long)r->ms, r->reconnects,
	       (unsigned long long)r->peak_rss_bytes >> 10, (double)r->cpu_us / 1e6);
	send_status = 0;
}

static void on_failed(void *arg, enum transfer_code code, const struct diag *diag)
{
	printf("{\"event\":\"failed\",\"code\":\"%s\"}\n", transfer_code_name(code));
	fprintf(stderr, "send: %s: %s: %s\n", transfer_code_name(code), diag->where, diag->what);
}

static void on_progress(void *arg, const struct transfer_progress_info *p)
{
	if (getenv("RECLAIM_PROGRESS"))
		fprintf(stderr, "%llu ms %llu/%llu bytes, %llu bit/s, rtt %u us, queue %u us\n",
			(unsigned long long)p->ms, (unsigned long long)p->bytes_done,
			(unsigned long long)p->bytes_total, (unsigned long long)p->rate_bps, p->rtt_us,
			p->queue_us);
}

static int ticket_make(const char *dir, const char *image, enum traffic_class c, char *ret_text,
		       struct diag *d)
{
	struct ticket t = { .serial = "bench", .use = TICKET_MOVE, .job = "bench", .epoch = 1, .source = "a",
			    .destination = "b", .remaining_ms = 86400000, .traffic_class = c };
	struct identity *id = NULL;
	char path[4096];
	int r = path_format(path, sizeof(path), "%s/coordinator", dir);

	if (r == 0)
		r = hex_decode(image, strlen(image), t.image, 32);
	if (r == 0)
		r = identity_open(path, &id, d);
	if (r == 0)
		r = ticket_sign(id, &t, ret_text, d);
	identity_free(id);
	return r;
}

static int send_image(char **argv)
{
	char identity[4096], ticket[TICKET_TEXT_MAX];
	enum traffic_class c = strcmp(argv[5], "scavenger") == 0 ? TRAFFIC_SCAVENGER : TRAFFIC_DEADLINE;
	struct transfer_sender_params p = { .program = getenv("RECLAIM_TRANSFER"), .store_dir = argv[1],
					    .identity_dir = identity, .peer_host = argv[2], .ticket = ticket,
					    .job = "bench", .image = argv[4], .key = key, .traffic_class = c,
					    .peer_port = (uint16_t)atoi(argv[3]),
					    .rate_max_bps = strtoull(argv[6], NULL, 10),
					    .streams = (unsigned)atoi(argv[7]),
					    .retry_ms = strtoull(argv[8], NULL, 10) };
	struct transfer_sender_callbacks cb = { .progress = on_progress, .done = on_done, .failed = on_failed };
	struct transfer_sender *sender;
	struct diag d = DIAG_INIT;
	int r = path_format(identity, sizeof(identity), "%s/a", argv[0]);

	if (r == 0)
		r = ticket_make(argv[0], argv[4], c, ticket, &d);
	if (r == 0)
		r = transfer_sender_start(&loop, &p, &cb, NULL, &sender, &d);
	if (r < 0)
		return failed(argv[2], &d, r);
	uv_run(&loop, UV_RUN_DEFAULT);
	return send_status;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	uv_loop_init(&loop);
	if (strcmp(what, "campus") == 0 && argc == 3)
		return campus(argv[2]);
	if (strcmp(what, "take") == 0 && argc >= 6)
		return take(argv[3], argv[4], strtoull(argv[5], NULL, 10),
			    argc > 6 ? strtoull(argv[6], NULL, 10) : 0);
	if (strcmp(what, "restore") == 0 && argc == 5)
		return restore(argv[2], argv[3], argv[4]);
	if (strcmp(what, "receive") == 0 && argc == 6)
		return receive(argv[2], argv[3], argv[4], strtoull(argv[5], NULL, 10));
	if (strcmp(what, "send") == 0 && argc == 11)
		return send_image(argv + 2);
	fprintf(stderr, "usage: see the top of bench/transfer/drive.c\n");
	return 2;
}
