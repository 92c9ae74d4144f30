/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listener: one thread per connection, a bounded number of them. The first
 * connection of a session carries the ticket; the others join by the session's
 * number and the same certificate. A session that begins anew for the same
 * image by the same peer replaces the one before, whose links may be dead
 * without our knowing.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "io/ticket.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/vec.h"
#include "transfer/helper.h"
#include "transfer/transfer.h"

#define HANDSHAKE_MS 8000
#define HELLO_MS 8000
#define REPLACE_MS 7000
#define SESSIONS_DEFAULT 4
#define CONNECTIONS_MAX 96
#define TICKETS_MAX 4096 /* serials remembered; the oldest is forgotten */

struct seen_ticket {
	char serial[TICKET_SERIAL_MAX + 1];
	uint64_t first_ns;
};

struct session {
	uint8_t id[16], image[IMAGE_DIGEST_LEN];
	char job[IMAGE_JOB_MAX + 1];
	char peer_digest[IDENTITY_DIGEST_HEX + 1];
	struct link *control;
	struct receive_session *receive; /* one of the two */
	struct send_session *send;
	atomic_bool cancel;
	unsigned users; /* data links that hold a pointer */
};

struct server {
	struct channel *channel;
	const struct message *config;
	struct image_store *store;
	struct identity *identity;
	SSL_CTX *ctx;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct session *sessions[64];
	unsigned session_count, sessions_max, connections;
	struct VEC(struct seen_ticket) tickets;
	bool serve;
	struct receive_stats total;
};

struct connection {
	struct server *server;
	int fd;
};

/* ---- tickets ---- */

/* Its time runs from when this process first saw it; a reconnect does not start it again. */
static int ticket_time(struct server *s, const struct ticket *t, struct diag *diag)
{
	uint64_t now = clock_boot_ns(), first = now;
	bool known = false;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	VEC_EACH(&s->tickets, k) {
		if (strcmp(k->serial, t->serial) == 0) {
			first = k->first_ns;
			known = true;
		}
	}
	if (!known) {
		struct seen_ticket k = { .first_ns = now };

		memcpy(k.serial, t->serial, sizeof(k.serial));
		if (s->tickets.count >= TICKETS_MAX)
			VEC_REMOVE(&s->tickets, 0);
		r = VEC_PUSH(&s->tickets, k);
	}
	pthread_mutex_unlock(&s->lock);
	if (r == 0 && (now - first) / NS_PER_MS >= t->remaining_ms)
		r = diag_set(diag, -EKEYEXPIRED, "ticket", "its time is over");
	return r;
}

static int ticket_accept(struct server *s, const struct transfer_hello *hello, const struct link *l,
			 struct ticket *ret, struct session_end *end)
{
	const struct identity_peer *self = identity_self(s->identity);
	bool fetch = hello->mode == TRANSFER_MODE_FETCH;
	uint64_t fence = 0;
	int r = ticket_verify(s->identity, hello->ticket, ret, &end->diag);

	end->code = TRANSFER_E_TICKET;
	if (r == 0)
		r = ticket_check(ret, fetch ? self : link_peer(l), fetch ? link_peer(l) : self, NULL,
				 hello->image, fetch, &end->diag);
	if (r < 0)
		return r;
	r = ticket_time(s, ret, &end->diag);
	if (r < 0) {
		end->code = TRANSFER_E_EXPIRED;
		return r;
	}
	if (!fetch && image_fence_get(s->store, ret->job, &fence) == 0 && ret->epoch < fence) {
		end->code = TRANSFER_E_EPOCH;
		return diag_set(&end->diag, -ESTALE, ret->job, "epoch %llu is over: %llu has begun",
				(unsigned long long)ret->epoch, (unsigned long long)fence);
	}
	end->code = TRANSFER_OK;
	return 0;
}

/* ---- the table of sessions ---- */

static void session_abort(struct session *x)
{
	x->cancel = true;
	if (x->control)
		link_shutdown(x->control);
}

static int session_add(struct server *s, struct session *x, struct diag *diag)
{
	uint64_t end = clock_boot_ns() + REPLACE_MS * NS_PER_MS;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct session *old = NULL;
		struct timespec at;

		for (unsigned i = 0; i < s->session_count; i++)
			if (memcmp(s->sessions[i]->image, x->image, 32) == 0 && !s->sessions[i]->send == !x->send &&
			    strcmp(s->sessions[i]->peer_digest, x->peer_digest) == 0)
				old = s->sessions[i];
		if (!old)
			break;
		session_abort(old);
		if (clock_boot_ns() > end) {
			r = diag_set(diag, -EBUSY, "session", "the one before has not ended yet");
			break;
		}
		clock_gettime(CLOCK_REALTIME, &at); /* the condition's clock: how long to wait only */
		at.tv_sec += 1;
		pthread_cond_timedwait(&s->changed, &s->lock, &at);
	}
	if (r == 0 && s->session_count >= s->sessions_max)
		r = diag_set(diag, -EBUSY, "session", "%u transfers run here already", s->session_count);
	if (r == 0)
		s->sessions[s->session_count++] = x;
	pthread_mutex_unlock(&s->lock);
	return r;
}

static void session_remove(struct server *s, struct session *x)
{
	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < s->session_count; i++)
		if (s->sessions[i] == x)
			s->sessions[i] = s->sessions[--s->session_count];
	while (x->users)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

static struct session *session_join(struct server *s, const uint8_t id[16], const char *peer_digest)
{
	struct session *x = NULL;

	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < s->session_count; i++)
		if (memcmp(s->sessions[i]->id, id, 16) == 0 &&
		    strcmp(s->sessions[i]->peer_digest, peer_digest) == 0)
			x = s->sessions[i];
	if (x)
		x->users++;
	pthread_mutex_unlock(&s->lock);
	return x;
}

static void session_leave(struct server *s, struct session *x)
{
	pthread_mutex_lock(&s->lock);
	x->users--;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* ---- reports ---- */

struct arrival {
	struct server *server;
	const struct ticket *ticket;
	const struct link *link;
	struct image_info info;
	bool known;
	uint64_t lacking_bytes, start_ns;
	struct receive_stats stats;
};

static void report(struct arrival *a, enum message_type type, const struct session_end *end)
{
	char image[IMAGE_DIGEST_HEX + 1];
	struct message m = { .type = (int)type, .job = (char *)(uintptr_t)a->ticket->job, .image = image };

	hex_encode(a->ticket->image, 32, image);
	m.epoch = a->ticket->epoch;
	if (a->known) {
		memcpy(image, a->info.digest, sizeof(image));
		m.seq = a->info.seq;
	}
	m.from = (char *)(uintptr_t)link_peer(a->link)->name;
	m.serial = (char *)(uintptr_t)a->ticket->serial;
	m.hold_only = a->ticket->hold_only;
	m.bytes_total = a->lacking_bytes;
	m.bytes_wire = a->stats.bytes_wire;
	m.ms = (clock_boot_ns() - a->start_ns) / NS_PER_MS;
	if (end)
		message_set_end(&m, end);
	channel_send(a->server->channel, &m);
}

static void started(void *arg, const struct image_info *info, uint64_t lacking_bytes)
{
	struct arrival *a = arg;

	a->info = *info;
	a->known = true;
	a->lacking_bytes = lacking_bytes;
	report(a, MESSAGE_STARTED, NULL);
}

static void fail_send(struct link *l, const struct session_end *end)
{
	struct transfer_fail f = { .code = end->code };
	uint8_t frame[TRANSFER_TEXT_MAX + 64];
	int n;

	(void)path_format(f.text, sizeof(f.text), "%.400s", end->diag.what);
	n = transfer_encode_fail(&f, frame, sizeof(frame));
	if (n > 0)
		(void)link_send(l, frame, (size_t)n); /* as a courtesy */
}

/* ---- one session ---- */

static void session_receive(struct server *s, struct session *x, const struct ticket *t,
			    struct link *l, struct session_end *end)
{
	struct arrival a = { .server = s, .ticket = t, .link = l, .start_ns = clock_boot_ns() };
	struct receive_params p = { .store = s->store, .job = t->job, .epoch = t->epoch,
				    .reserve = s->config->reserve, .hold_only = t->hold_only,
				    .cancel = &x->cancel, .started = started, .started_arg = &a };
	struct image_info info;

	memcpy(p.image, x->image, 32);
	memcpy(a.info.digest, "", 1);
	if (receive_session_new(&p, &a.stats, &x->receive, end) < 0)
		return;
	if (session_add(s, x, &end->diag) < 0) {
		end->code = TRANSFER_E_BUSY;
		receive_session_free(x->receive);
		x->receive = NULL;
		return;
	}
	receive_session_run(x->receive, l, &info, end);
	if (end->code && !end->from_peer)
		fail_send(l, end); /* before waiting for data links: the sender should know why */
	session_remove(s, x);
	/* Frees the arrival's lock before the agent hears of it and may fetch or restore. */
	receive_session_free(x->receive);
	x->receive = NULL;
	end->from_peer = true; /* told */
	if (end->code == TRANSFER_OK) {
		a.info = info;
		a.known = true;
		report(&a, MESSAGE_RECEIVED, NULL);
	} else {
		report(&a, MESSAGE_FAILED, end);
	}
}

static void session_serve(struct server *s, struct session *x, const struct ticket *t, struct link *l,
			  struct session_end *end)
{
	struct pacer *pacer = NULL;
	struct send_stats stats;
	char image[IMAGE_DIGEST_HEX + 1];
	struct send_params p = { .store = s->store, .job = t->job, .image = image, .cancel = &x->cancel,
				 .wake_fd = -1 };

	memset(&stats, 0, sizeof(stats));
	hex_encode(x->image, 32, image);
	if (!s->serve) {
		end->code = TRANSFER_E_MISSING;
		diag_set(&end->diag, 0, "holder", "serves nothing while its owner is at the machine");
		return;
	}
	/* As fast as the ticket grants: the fetcher is a job that waits for its state. */
	if (pacer_new(t->traffic_class, t->floor_bps, 0, 0, &pacer) < 0) {
		end->code = TRANSFER_E_IO;
		return;
	}
	p.pacer = pacer;
	if (send_session_new(&p, &stats, &x->send, end) == 0) {
		if (session_add(s, x, &end->diag) < 0) {
			end->code = TRANSFER_E_BUSY;
		} else {
			send_session_run(x->send, l, end);
			session_remove(s, x);
		}
		send_session_free(x->send);
		x->send = NULL;
	}
	pacer_free(pacer);
}

static void session_main(struct server *s, struct link *l, const struct transfer_hello *hello)
{
	struct session x = { .control = l };
	struct session_end end = { .code = TRANSFER_OK };
	struct ticket t;

	memset(&t, 0, sizeof(t));
	if (hello->version != TRANSFER_VERSION) {
		end.code = TRANSFER_E_VERSION;
		diag_set(&end.diag, 0, "hello", "version %u is not spoken here", hello->version);
	} else if (ticket_accept(s, hello, l, &t, &end) == 0) {
		memcpy(x.id, hello->session, 16);
		memcpy(x.image, hello->image, 32);
		memcpy(x.job, t.job, sizeof(x.job));
		memcpy(x.peer_digest, link_peer(l)->digest, sizeof(x.peer_digest));
		if (hello->mode == TRANSFER_MODE_SEND)
			session_receive(s, &x, &t, l, &end);
		else
			session_serve(s, &x, &t, l, &end);
	}
	if (end.code && !end.from_peer) {
		struct arrival a = { .server = s, .ticket = &t, .link = l, .start_ns = clock_boot_ns() };

		fail_send(l, &end);
		report(&a, MESSAGE_FAILED, &end);
	}
}

static void *connection_main(void *arg)
{
	struct connection *c = arg;
	struct server *s = c->server;
	CLEANUP_FREE uint8_t *body = malloc(TRANSFER_BODY_MAX);
	struct transfer_hello *hello = malloc(sizeof(*hello));
	struct transfer_header h;
	struct diag diag = DIAG_INIT;
	struct link *l = NULL;
	int r = link_accept(s->ctx, c->fd, HANDSHAKE_MS, &l, &diag);

	if (r < 0)
		log_info("a connection was refused: %s", diag.what);
	if (r == 0 && (!body || !hello))
		r = -ENOMEM;
	if (r == 0)
		r = link_receive(l, HELLO_MS, -1, &h, body, &diag);
	if (r == 0 && (h.type != TRANSFER_HELLO || transfer_decode_hello(body, h.len, hello, &diag) < 0))
		r = -EPROTO;
	if (r == 0 && hello->stream == 0) {
		session_main(s, l, hello);
	} else if (r == 0) {
		struct session *x = session_join(s, hello->session, link_peer(l)->digest);

		if (x && x->receive)
			receive_session_attach(x->receive, l);
		else if (x && x->send)
			send_session_attach(x->send, l);
		if (x)
			session_leave(s, x);
	}
	link_free(l);
	free(hello);
	pthread_mutex_lock(&s->lock);
	s->connections--;
	pthread_mutex_unlock(&s->lock);
	free(c);
	return NULL;
}

/* ---- the listener ---- */

static int listen_open(const char *addr, uint16_t port, uint16_t *ret_port, struct diag *diag)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_PASSIVE }, *a;
	CLEANUP_FD int fd = -1;
	struct sockaddr_storage got;
	socklen_t len = sizeof(got);
	char text[8];
	int one = 1, r = 0;

	snprintf(text, sizeof(text), "%u", port);
	if (getaddrinfo(addr, text, &hints, &a) != 0)
		return diag_set(diag, -EINVAL, "listen", "\"%s\" is not an address", addr);
	fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd >= 0)
		link_bound_buffer(fd);
	if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 64) < 0 ||
	    getsockname(fd, (struct sockaddr *)&got, &len) < 0)
		r = diag_set(diag, -errno, addr, "cannot listen on port %u: %s", port, strerror(errno));
	freeaddrinfo(a);
	if (r < 0)
		return r;
	*ret_port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port :
						      ((struct sockaddr_in *)&got)->sin_port);
	return TAKE_FD(fd);
}

static void accept_one(struct server *s, int listen_fd)
{
	CLEANUP_FD int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	struct connection *c;
	pthread_attr_t attr;
	pthread_t thread;
	bool room;

	if (fd < 0)
		return;
	pthread_mutex_lock(&s->lock);
	room = s->connections < CONNECTIONS_MAX;
	s->connections += room;
	pthread_mutex_unlock(&s->lock);
	if (!room)
		return;
	c = malloc(sizeof(*c));
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 512 << 10);
	if (c) {
		c->server = s;
		c->fd = fd;
	}
	if (c && pthread_create(&thread, &attr, connection_main, c) == 0) {
		(void)TAKE_FD(fd);
	} else {
		free(c);
		pthread_mutex_lock(&s->lock);
		s->connections--;
		pthread_mutex_unlock(&s->lock);
	}
	pthread_attr_destroy(&attr);
}

static void drop(struct server *s, const struct message *m)
{
	char path[4096];

	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; m->job && i < s->session_count; i++) {
		char image[IMAGE_DIGEST_HEX + 1];

		hex_encode(s->sessions[i]->image, 32, image);
		if (strcmp(s->sessions[i]->job, m->job) == 0 && (!m->image || strcmp(image, m->image) == 0))
			session_abort(s->sessions[i]);
	}
	pthread_mutex_unlock(&s->lock);
	/* What has arrived goes too; a session that still ends writes into a folder that is gone. */
	if (m->job && name_is_plain(m->job) && (!m->image || name_is_plain(m->image)) &&
	    path_format(path, sizeof(path), "%s/jobs/%s/incoming/%s", image_store_dir(s->store), m->job,
			m->image ? m->image : "") == 0) {
		(void)dir_remove_all(path); /* prune takes what stays */
		if (!m->image)
			(void)dir_make_all(path, 0700);
	}
}

static void command(struct server *s, const struct message *m)
{
	switch (m->type) {
	case MESSAGE_FENCE:
		if (m->job && image_fence(s->store, m->job, m->epoch, NULL) < 0)
			log_warn("cannot write the epoch fence of %s", m->job);
		break;
	case MESSAGE_DROP: drop(s, m); break;
	case MESSAGE_SERVE: s->serve = m->serve; break;
	default: break;
	}
}

static int serve_until_closed(struct server *s, int listen_fd)
{
	for (;;) {
		struct pollfd p[2] = { { listen_fd, POLLIN, 0 }, { s->channel->fd, POLLIN, 0 } };
		struct message m;
		int r;

		(void)poll(p, 2, 1000); /* an interruption only means to look again */
		if (p[0].revents)
			accept_one(s, listen_fd);
		while ((r = channel_receive(s->channel, 0, &m)) == 1) {
			command(s, &m);
			message_done(&m);
		}
		if (r < 0)
			return 0;
	}
}

int helper_receive(struct channel *c, const struct message *config)
{
	struct server s = { .channel = c, .config = config, .serve = true };
	struct diag diag = DIAG_INIT;
	uint16_t port = 0;
	int r, fd = -1;

	pthread_mutex_init(&s.lock, NULL);
	pthread_cond_init(&s.changed, NULL);
	s.sessions_max = config->sessions ? (unsigned)MIN(config->sessions, (uint64_t)ARRAY_SIZE(s.sessions)) :
					    SESSIONS_DEFAULT;
	r = config->store && config->identity && config->bind && config->port <= 65535 ? 0 : -EINVAL;
	if (r == 0)
		r = image_store_open(config->store, &s.store, &diag);
	if (r == 0)
		r = identity_open(config->identity, &s.identity, &diag);
	if (r == 0)
		r = identity_tls_server(s.identity, true, &s.ctx);
	if (r == 0)
		r = fd = listen_open(config->bind, (uint16_t)config->port, &port, &diag);
	if (r >= 0) {
		struct message m = { .type = MESSAGE_LISTENING, .port = port };

		channel_send(c, &m);
		r = serve_until_closed(&s, fd);
		/* Sessions that still run hold pointers into this frame: end with the process. */
		_exit(0);
	}
	log_error("cannot receive images: %s: %s", diag.where, diag.what[0] ? diag.what : strerror(-r));
	{
		struct message m = { .type = MESSAGE_FAILED };
		struct session_end end = { .code = transfer_code_of(r), .diag = diag };

		message_set_end(&m, &end);
		channel_send(c, &m);
	}
	return 1;
}
