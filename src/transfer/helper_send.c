/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One transfer that we began, sending or fetching: the work runs on its own
 * thread, session after session until it is done or hopeless; the main thread
 * listens to the agent and reports.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "io/ticket.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/rng.h"
#include "transfer/helper.h"
#include "transfer/transfer.h"

#define CONNECT_MS 8000
#define REPORT_MS 500
#define PAUSE_MIN_MS 50
#define PAUSE_MAX_MS 1000
#define FETCH_STREAMS 3

struct job {
	struct channel *channel;
	const struct message *config;
	bool fetch;
	struct image_store *store;
	struct identity *identity;
	SSL_CTX *ctx;
	struct ticket ticket;
	uint64_t expires_ns;
	uint8_t key[IMAGE_KEY_LEN], image[IMAGE_DIGEST_LEN], session_id[16];
	struct pacer *pacer;
	atomic_bool cancel, finished;
	int cancel_fd, done_fd;
	struct send_stats sent;
	struct receive_stats received;
	struct session_end end;
	unsigned reconnects;
	uint64_t started_ns;
	char host[256];
};

static void target_fill(struct job *j, struct link_target *t, bool control)
{
	t->host = j->config->host;
	t->port = (uint16_t)j->config->port;
	t->bind_addr = j->config->bind;
	t->traffic_class = control ? TRAFFIC_CONTROL : (enum traffic_class)j->config->traffic_class;
	t->mark_tag = (uint32_t)j->config->mark_tag;
}

static int open_link(struct job *j, unsigned stream, const char *ticket, struct link **ret,
		     struct diag *diag)
{
	struct transfer_hello hello = { .version = TRANSFER_VERSION, .stream = (uint8_t)stream,
					.mode = j->fetch ? TRANSFER_MODE_FETCH : TRANSFER_MODE_SEND,
					.streams = TRANSFER_STREAMS_MAX };
	CLEANUP(link_free_cleanup) struct link *l = NULL;
	uint8_t frame[TICKET_TEXT_MAX + 128];
	struct link_target to;
	int n, r;

	target_fill(j, &to, stream == 0);
	r = link_connect(j->ctx, &to, CONNECT_MS, j->cancel_fd, &l, diag);
	if (r < 0)
		return r;
	memcpy(hello.session, j->session_id, 16);
	memcpy(hello.image, j->image, 32);
	if (path_format(hello.ticket, sizeof(hello.ticket), "%s", ticket) < 0)
		return -EINVAL;
	n = transfer_encode_hello(&hello, frame, sizeof(frame));
	if (n < 0)
		return n;
	r = link_send(l, frame, (size_t)n);
	if (r == 0)
		*ret = TAKE(l);
	return r;
}

static int open_data(void *arg, unsigned stream, struct link **ret, struct diag *diag)
{
	return open_link(arg, stream, "", ret, diag);
}

/* The other end must be the one that the ticket names, before it learns anything. */
static int peer_check(struct job *j, const struct link *control, struct diag *diag)
{
	const struct identity_peer *self = identity_self(j->identity), *peer = link_peer(control);

	return ticket_check(&j->ticket, j->fetch ? peer : self, j->fetch ? self : peer, j->config->job,
			    j->image, j->fetch, diag);
}

static void session_send(struct job *j, struct link *control)
{
	struct send_params p = {
		.store = j->store, .job = j->config->job, .image = j->config->image,
		.key = j->config->key && *j->config->key && !j->ticket.hold_only ? j->key : NULL,
		.streams = (unsigned)j->config->streams, .pacer = j->pacer, .cancel = &j->cancel,
		.wake_fd = j->cancel_fd, .open = open_data, .open_arg = j,
	};
	struct send_session *s = NULL;

	if (send_session_new(&p, &j->sent, &s, &j->end) < 0)
		return;
	send_session_run(s, control, &j->end);
	send_session_free(s);
}

static void session_fetch(struct job *j, struct link *control)
{
	struct receive_params p = {
		.store = j->store, .job = j->config->job, .epoch = j->ticket.epoch,
		.reserve = j->config->reserve, .cancel = &j->cancel, .open = open_data, .open_arg = j,
		.streams = j->config->streams ? (unsigned)MIN(j->config->streams, (uint64_t)TRANSFER_STREAMS_MAX - 1) :
						FETCH_STREAMS,
	};
	struct receive_session *s = NULL;
	struct image_info info;

	memcpy(p.image, j->image, 32);
	if (receive_session_new(&p, &j->received, &s, &j->end) < 0)
		return;
	receive_session_run(s, control, &info, &j->end);
	receive_session_free(s);
}

static void session_once(struct job *j)
{
	struct diag diag = DIAG_INIT;
	struct link *control = NULL;
	int r;

	memset(&j->end, 0, sizeof(j->end));
	if (clock_boot_ns() > j->expires_ns) {
		j->end.code = TRANSFER_E_EXPIRED;
		diag_set(&j->end.diag, 0, "ticket", "its time is over");
		return;
	}
	r = random_bytes(j->session_id, sizeof(j->session_id));
	if (r == 0)
		r = open_link(j, 0, j->config->ticket, &control, &diag);
	if (r == 0)
		r = peer_check(j, control, &diag);
	if (r < 0) {
		j->end.code = r == -EACCES && control ? TRANSFER_E_TICKET : transfer_code_of(r);
		j->end.diag = diag;
	} else if (j->fetch) {
		session_fetch(j, control);
	} else {
		session_send(j, control);
	}
	if (control && j->end.code && !j->end.from_peer) {
		struct transfer_fail f = { .code = j->end.code };
		uint8_t frame[TRANSFER_TEXT_MAX + 64];
		int n;

		(void)path_format(f.text, sizeof(f.text), "%.400s", j->end.diag.what);
		n = transfer_encode_fail(&f, frame, sizeof(frame));
		if (n > 0)
			(void)link_send(control, frame, (size_t)n); /* as a courtesy */
	}
	link_free(control);
}

static uint64_t bytes_moved(struct job *j)
{
	return j->fetch ? j->received.bytes_wire : j->sent.bytes_sent;
}

/* Waits, unless cancelled. */
static void pause_ms(struct job *j, unsigned ms)
{
	struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(j->cancel_fd, &set);
	(void)pselect(j->cancel_fd + 1, &set, NULL, NULL, &t, NULL); /* either way we look again */
}

static void *work_main(void *arg)
{
	struct job *j = arg;
	uint64_t retry_ns = (j->config->retry_ms ? j->config->retry_ms : 30000) * NS_PER_MS;
	uint64_t progress_ns = clock_boot_ns(), moved = 0, one = 1;
	unsigned pause = PAUSE_MIN_MS;

	for (;;) {
		session_once(j);
		if (j->cancel) {
			j->end.code = j->end.code ? TRANSFER_E_CANCELLED : TRANSFER_OK;
			break;
		}
		if (j->end.code != TRANSFER_E_LINK && j->end.code != TRANSFER_E_BUSY)
			break;
		if (bytes_moved(j) > moved) {
			moved = bytes_moved(j);
			progress_ns = clock_boot_ns();
			pause = PAUSE_MIN_MS;
		}
		if (clock_boot_ns() - progress_ns > retry_ns)
			break;
		pause_ms(j, pause);
		pause = MIN(pause * 2, (unsigned)PAUSE_MAX_MS);
		j->reconnects++;
	}
	j->finished = true;
	(void)!write(j->done_fd, &one, sizeof(one)); /* an eventfd with room */
	return NULL;
}

static uint64_t rss_peak_bytes(void)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	uint64_t kib = 0;
	const char *at;

	/* Anonymous memory: without the page cache that mapped files show as resident. */
	if (file_read("/proc/self/status", 65536, &text, &len) < 0)
		return 0;
	at = strstr(text, "RssAnon:");
	if (at)
		kib = strtoull(at + 8, NULL, 10);
	return kib << 10;
}

static uint64_t cpu_us(void)
{
	struct rusage u;

	if (getrusage(RUSAGE_SELF, &u) < 0)
		return 0;
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void report(struct job *j, enum message_type type, uint64_t rss)
{
	struct pacer_state pace;
	struct message m = { .type = (int)type, .image = j->config->image };

	pacer_state(j->pacer, &pace);
	m.ms = (clock_boot_ns() - j->started_ns) / NS_PER_MS;
	m.rate_bps = pace.measured_bps;
	m.rtt_us = pace.rtt_us;
	m.queue_us = pace.queue_us;
	m.reconnects = j->reconnects;
	m.rss_bytes = rss;
	m.cpu_us = cpu_us();
	if (j->fetch) {
		m.bytes_wire = m.bytes_done = j->received.bytes_wire;
		m.bytes_total = m.bytes_stored = j->received.bytes_total;
		m.chunks_done = j->received.chunks_done;
		m.chunks_total = j->received.chunks_total;
	} else {
		m.bytes_wire = j->sent.bytes_sent;
		m.bytes_done = j->sent.bytes_sent;
		m.bytes_total = j->sent.bytes_total;
		m.bytes_stored = j->sent.bytes_stored;
		m.chunks_done = j->sent.chunks_sent;
		m.chunks_total = j->sent.chunks_total;
		m.chunks_delta = j->sent.chunks_delta;
		m.chunks_zstd = j->sent.chunks_zstd;
	}
	if (type == MESSAGE_FAILED)
		message_set_end(&m, &j->end);
	channel_send(j->channel, &m);
}

static void command(struct job *j, struct message *m)
{
	uint64_t one = 1;

	switch (m->type) {
	case MESSAGE_RATE: pacer_set_rate(j->pacer, m->floor_bps, m->rate_max_bps); break;
	case MESSAGE_CLASS: pacer_set_class(j->pacer, (enum traffic_class)m->traffic_class); break;
	case MESSAGE_CANCEL:
		j->cancel = true;
		(void)!write(j->cancel_fd, &one, sizeof(one)); /* an eventfd with room */
		break;
	default: break;
	}
}

static int job_open(struct job *j, struct diag *diag)
{
	const struct message *c = j->config;
	int r;

	if (!c->store || !c->identity || !c->host || !c->ticket || !c->job || !c->image || c->port > 65535 ||
	    c->traffic_class >= TRAFFIC_CLASS_COUNT)
		return diag_set(diag, -EINVAL, "task", "incomplete");
	if (hex_decode(c->image, strlen(c->image), j->image, 32) < 0)
		return diag_set(diag, -EINVAL, "image", "not a digest");
	if (c->key && *c->key && hex_decode(c->key, strlen(c->key), j->key, IMAGE_KEY_LEN) < 0)
		return diag_set(diag, -EINVAL, "key", "not 64 hexadecimal digits");
	r = image_store_open(c->store, &j->store, diag);
	if (r == 0)
		r = identity_open(c->identity, &j->identity, diag);
	if (r == 0)
		r = identity_tls_client(j->identity, IDENTITY_AGENT, &j->ctx);
	if (r == 0)
		r = pacer_new((enum traffic_class)c->traffic_class, c->floor_bps, c->rate_max_bps,
			      (uint32_t)c->mark_tag, &j->pacer);
	if (r < 0)
		return r;
	r = ticket_verify(j->identity, c->ticket, &j->ticket, diag);
	j->expires_ns = clock_boot_ns() + MIN(j->ticket.remaining_ms, UINT64_C(1) << 40) * NS_PER_MS;
	return r < 0 ? -EKEYEXPIRED : 0; /* told apart below */
}

static void job_close(struct job *j)
{
	pacer_free(j->pacer);
	SSL_CTX_free(j->ctx);
	identity_free(j->identity);
	image_store_close(j->store);
	explicit_bzero(j->key, sizeof(j->key));
	(void)close(j->cancel_fd); /* eventfds */
	(void)close(j->done_fd);
}

static bool listen_to_agent(struct job *j, uint64_t *rss)
{
	uint64_t report_ns = clock_boot_ns();

	while (!j->finished) {
		fd_set set;
		struct timespec t = { 0, 100000000 };
		struct message m;
		int r;

		FD_ZERO(&set);
		FD_SET(j->done_fd, &set);
		FD_SET(j->channel->fd, &set);
		(void)pselect(MAX(j->done_fd, j->channel->fd) + 1, &set, NULL, NULL, &t, NULL);
		while ((r = channel_receive(j->channel, 0, &m)) == 1) {
			command(j, &m);
			message_done(&m);
		}
		if (r < 0)
			return false;
		*rss = MAX(*rss, rss_peak_bytes());
		if (clock_boot_ns() - report_ns >= REPORT_MS * NS_PER_MS) {
			report_ns = clock_boot_ns();
			report(j, MESSAGE_PROGRESS, *rss);
		}
	}
	return true;
}

int helper_send(struct channel *c, const struct message *config)
{
	struct job j = { .channel = c, .config = config, .fetch = config->type == MESSAGE_FETCH };
	struct diag diag = DIAG_INIT;
	pthread_t thread;
	uint64_t rss = 0;
	int r;

	j.started_ns = clock_boot_ns();
	j.cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	j.done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = j.cancel_fd < 0 || j.done_fd < 0 ? -errno : job_open(&j, &diag);
	if (r < 0) {
		struct message m = { .type = MESSAGE_FAILED };

		j.end.code = r == -EKEYEXPIRED ? TRANSFER_E_TICKET : transfer_code_of(r);
		if (diag.what[0])
			j.end.diag = diag;
		else
			diag_set(&j.end.diag, 0, "", "%s", strerror(-r));
		message_set_end(&m, &j.end);
		channel_send(c, &m);
		job_close(&j);
		return 1;
	}
	if (pthread_create(&thread, NULL, work_main, &j) != 0) {
		job_close(&j);
		return 1;
	}
	if (!listen_to_agent(&j, &rss))
		_exit(1); /* nobody is left to work for; what arrived is kept over there */
	pthread_join(thread, NULL);
	report(&j, j.end.code ? MESSAGE_FAILED : MESSAGE_DONE, rss);
	job_close(&j);
	return 0;
}
