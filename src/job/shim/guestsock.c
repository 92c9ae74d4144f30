/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest's side: its socket (line JSON, job/notice.h) and the cloud spot paths over
 * HTTP. Everything that comes in here is the guest's and is bounded: connections, bytes
 * of a line or request, bytes that wait to be read. Who oversteps is closed, not served.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "job/shim/shim.h"

#define GUEST_OUT_MAX 65536

static void guest_conn_close(struct shim *s, struct guest_conn *g)
{
	source_close(s, &g->src);
	strbuf_done(&g->in);
	strbuf_done(&g->out);
	*g = (struct guest_conn){ .src.fd = -1 };
}

static void guest_conn_write(struct shim *s, struct guest_conn *g)
{
	while (g->out.len) {
		ssize_t n = send(g->src.fd, g->out.data, g->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			if (g->out.len > GUEST_OUT_MAX)
				guest_conn_close(s, g);
			else
				source_set(s, &g->src, EPOLLIN | EPOLLOUT);
			return;
		}
		if (n < 0) {
			guest_conn_close(s, g);
			return;
		}
		strbuf_consume(&g->out, (size_t)n);
	}
	if (g->closing)
		guest_conn_close(s, g);
	else
		source_set(s, &g->src, EPOLLIN);
}

/* ---- the socket ---- */

static void put_notice(struct shim *s, struct guest_conn *g)
{
	struct notice n = notice_now(s);
	CLEANUP_JSON json_t *doc = notice_document(&n, s->now, clock_wall_ms());
	CLEANUP_FREE char *text = NULL;

	if (!doc || json_object_set_new(doc, "event", json_string("notice")) < 0)
		return;
	text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(15));
	if (text)
		(void)strbuf_printf(&g->out, "%s\n", text);
}

static void put_reply(struct guest_conn *g, const char *error)
{
	(void)strbuf_printf(&g->out, error ? "{\"event\":\"reply\",\"error\":\"%s\"}\n" : "{\"event\":\"reply\"}\n",
			    error);
}

static void guest_line(struct shim *s, struct guest_conn *g, const char *line, size_t len)
{
	struct guest_request q;
	struct shim_event event = { .type = SHIM_EVENT_COMMIT };

	if (guest_request_decode(line, len, &q, NULL) < 0) {
		put_reply(g, "not understood");
		return;
	}
	switch (q.op) {
	case GUEST_OP_HELLO:
	case GUEST_OP_NOTICE:
		put_notice(s, g);
		break;
	case GUEST_OP_ACK:
		if (s->state == SHIM_NOTICED) {
			put_reply(g, NULL);
			notice_acked(s);
		} else {
			put_reply(g, "there is no notice to acknowledge");
		}
		break;
	case GUEST_OP_COMMIT:
		put_reply(g, NULL);
		event.commit = (struct shim_commit){ .name = q.name, .step = q.step };
		conn_event(s, &event);
		s->due.saved_check = s->now;
		break;
	case GUEST_OP_REQUEUE:
		put_reply(g, NULL);
		s->requeue_asked = true;
		log_info("job %s asks to be requeued when it ends", s->start.job);
		state_write(s);
		break;
	default:
		put_reply(g, "not understood");
	}
	guest_request_done(&q);
}

static void serve_lines(struct shim *s, struct guest_conn *g)
{
	char *nl;

	while (g->src.fd >= 0 && g->in.len && (nl = memchr(g->in.data, '\n', g->in.len))) {
		size_t len = (size_t)(nl - g->in.data);

		guest_line(s, g, g->in.data, len);
		if (g->src.fd >= 0)
			strbuf_consume(&g->in, len + 1);
	}
	if (g->src.fd >= 0 && g->in.len > GUEST_LINE_MAX)
		guest_conn_close(s, g);
}

static void serve_http(struct shim *s, struct guest_conn *g, bool changed)
{
	struct notice n = notice_now(s);

	while (g->in.len && !g->closing) {
		struct metadata_effect effect;
		int used = metadata_answer(&n, changed, s->now, clock_wall_ms(), g->in.data, g->in.len, &g->out,
					   &effect);

		if (used == 0)
			break;
		g->waiting = used > 0 && effect.wait;
		if (g->waiting)
			break; /* stays in the buffer until something changes */
		g->closing = used < 0 || effect.close;
		if (used > 0)
			strbuf_consume(&g->in, (size_t)used);
		if (used > 0 && effect.ack && s->state == SHIM_NOTICED)
			notice_acked(s);
	}
}

static void on_guest_conn(struct shim *s, struct source *src, uint32_t events)
{
	struct guest_conn *g = CONTAINER_OF(src, struct guest_conn, src);
	char buf[METADATA_REQUEST_MAX];
	ssize_t n = read(src->fd, buf, sizeof(buf));

	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (events & EPOLLOUT)
			guest_conn_write(s, g);
		return;
	}
	if (n <= 0 || g->in.len + (size_t)n > 2 * METADATA_REQUEST_MAX ||
	    strbuf_append(&g->in, buf, (size_t)n) < 0) {
		guest_conn_close(s, g);
		return;
	}
	if (g->kind == GUEST_CONN_SOCKET)
		serve_lines(s, g);
	else if (!g->waiting)
		serve_http(s, g, false);
	if (g->src.fd >= 0)
		guest_conn_write(s, g);
}

static void guest_accept(struct shim *s, int listen_fd, enum guest_conn_kind kind)
{
	int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	for (size_t i = 0; fd >= 0 && i < GUEST_CONNS_MAX; i++) {
		struct guest_conn *g = &s->guest_conns[i];

		if (g->src.fd >= 0)
			continue;
		if (source_add(s, &g->src, fd, EPOLLIN, on_guest_conn) < 0)
			break;
		g->kind = kind;
		return;
	}
	if (fd >= 0)
		(void)close(fd);
}

static void on_guest_listener(struct shim *s, struct source *src, uint32_t events)
{
	guest_accept(s, src->fd, src == &s->guest_listener ? GUEST_CONN_SOCKET : GUEST_CONN_HTTP);
}

unsigned guestsock_tell(struct shim *s)
{
	unsigned told = 0;

	for (size_t i = 0; i < GUEST_CONNS_MAX; i++) {
		struct guest_conn *g = &s->guest_conns[i];

		if (g->src.fd < 0)
			continue;
		if (g->kind == GUEST_CONN_HTTP) {
			if (g->waiting) {
				g->waiting = false;
				serve_http(s, g, true);
				guest_conn_write(s, g);
			}
			continue;
		}
		put_notice(s, g);
		guest_conn_write(s, g);
		told++;
	}
	return told;
}

/* ---- listening ---- */

int guestsock_listen(struct shim *s, struct diag *diag)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	CLEANUP_FD int dir_fd = open(s->run_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	CLEANUP_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	char path[4300];
	int r;

	if (dir_fd < 0 || fd < 0)
		return diag_set(diag, -errno, s->run_dir, "%s", strerror(errno));
	/* The folder's path may be longer than a socket's address. */
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/self/fd/%d/guest.sock", dir_fd);
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 16) < 0)
		return diag_set(diag, -errno, s->run_dir, "guest.sock: %s", strerror(errno));
	(void)snprintf(path, sizeof(path), "%s/guest.sock", s->run_dir);
	/* Whoever sees the folder may connect: that is this guest alone. */
	if (chmod(path, 0666) < 0)
		return diag_set(diag, -errno, path, "%s", strerror(errno));
	r = source_add(s, &s->guest_listener, fd, EPOLLIN, on_guest_listener);
	if (r < 0)
		return diag_set(diag, r, path, "%s", strerror(-r));
	(void)TAKE_FD(fd);
	return 0;
}

/* The cloud spot paths: on the sockets that the child made inside its own network, or on a
 * loopback port of the machine where the guest has none of its own. */
int guestsock_metadata(struct shim *s, struct diag *diag)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(in);
	CLEANUP_FD int fd = -1;
	int r;

	if (s->child.metadata_fds[0] >= 0) {
		for (int i = 0; i < 2; i++) {
			r = source_add(s, &s->http_listeners[i], s->child.metadata_fds[i], EPOLLIN,
				       on_guest_listener);
			if (r < 0)
				return diag_set(diag, r, "metadata", "%s", strerror(-r));
			s->child.metadata_fds[i] = -1;
		}
		return 0;
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&in, sizeof(in)) < 0 || listen(fd, 16) < 0 ||
	    getsockname(fd, (struct sockaddr *)&in, &len) < 0)
		return diag_set(diag, -errno, "metadata", "%s", strerror(errno));
	r = source_add(s, &s->http_listeners[0], fd, EPOLLIN, on_guest_listener);
	if (r < 0)
		return diag_set(diag, r, "metadata", "%s", strerror(-r));
	(void)TAKE_FD(fd);
	s->metadata_port = ntohs(in.sin_port);
	return 0;
}

void guestsock_close(struct shim *s)
{
	for (size_t i = 0; i < GUEST_CONNS_MAX; i++)
		if (s->guest_conns[i].src.fd >= 0)
			guest_conn_close(s, &s->guest_conns[i]);
	source_close(s, &s->guest_listener);
	source_close(s, &s->http_listeners[0]);
	source_close(s, &s->http_listeners[1]);
}
