/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/registry_server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "stream/address.h"

enum { OUT_MAX = 8 << 20 };

struct conn {
	struct registry_server *server;
	struct registry_client *client;
	int fd;
	struct strbuf in, out;
	bool want_out;
	bool dead;
};

struct registry_server {
	struct registry *registry;
	struct registry_store store;
	int listen_fd, epoll_fd, stop_fd;
	char address[160];
	struct VEC(struct conn *) conns;
	uint8_t *frame;
};

static void conn_flush(struct conn *c)
{
	size_t done = 0;

	while (done < c->out.len) {
		ssize_t n = send(c->fd, c->out.data + done, c->out.len - done, MSG_NOSIGNAL);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN)
				c->dead = true;
			break;
		}
		done += (size_t)n;
	}
	strbuf_consume(&c->out, done);
	bool want = c->out.len > 0;
	if (want != c->want_out && !c->dead) {
		struct epoll_event ev = { .events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = c };

		c->want_out = want;
		(void)epoll_ctl(c->server->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
	}
}

static void server_send(void *arg, void *conn, const struct registry_frame *f)
{
	struct registry_server *s = arg;
	struct conn *c = conn;
	struct bytes_out o = { .data = s->frame, .cap = REGISTRY_FRAME_MAX + 64 };

	if (c->dead || registry_frame_encode(f, &o) < 0)
		return;
	if (c->out.len + o.len > OUT_MAX || strbuf_append(&c->out, o.data, o.len) < 0) {
		c->dead = true; /* reads nothing: it will come again and ask */
		return;
	}
	conn_flush(c);
}

int registry_server_open(const struct registry_server_options *options,
			 struct registry_server **ret)
{
	struct registry_server *s = calloc(1, sizeof(*s));
	struct registry_options ro = { .terms = options->terms, .send = server_send, .arg = s };
	struct epoll_event ev = { .events = EPOLLIN };
	struct address a;
	char text[140];
	int r;

	if (!s)
		return -ENOMEM;
	s->listen_fd = s->epoll_fd = s->stop_fd = -1;
	if (!ro.terms.ttl_ns)
		ro.terms = (struct register_terms){ 5 * NS_PER_S, 20 * NS_PER_MS, 200 };
	s->frame = malloc(REGISTRY_FRAME_MAX + 64);
	r = s->frame ? stream_address_parse(options->listen, &a) : -ENOMEM;
	if (r == 0)
		r = stream_address_listen(&a, &s->listen_fd);
	if (r == 0 && options->dir)
		r = registry_file_store(options->dir, &s->store);
	ro.store = s->store;
	if (r == 0)
		r = registry_new(&ro, clock_boot_ns(), &s->registry);
	if (r == 0)
		r = stream_address_format(s->listen_fd, text, sizeof(text));
	if (r == 0) {
		snprintf(s->address, sizeof(s->address), "%s%s", a.local ? "" : "tcp:", text);
		s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (s->epoll_fd < 0 || s->stop_fd < 0 ||
		    epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &ev) < 0)
			r = -errno;
		ev.data.ptr = &s->stop_fd;
		if (r == 0 && epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->stop_fd, &ev) < 0)
			r = -errno;
	}
	if (r < 0) {
		registry_server_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

struct registry *registry_server_registry(struct registry_server *s)
{
	return s->registry;
}

const char *registry_server_address(const struct registry_server *s)
{
	return s->address;
}

static void conn_free(struct conn *c)
{
	registry_disconnect(c->client);
	close(c->fd);
	strbuf_done(&c->in);
	strbuf_done(&c->out);
	free(c);
}

static void accept_all(struct registry_server *s)
{
	for (;;) {
		int on = 1, fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			return;
		struct conn *c = calloc(1, sizeof(*c));
		struct epoll_event ev = { .events = EPOLLIN, .data.ptr = c };

		if (!c) {
			close(fd);
			return;
		}
		c->server = s;
		c->fd = fd;
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* not for Unix */
		if (registry_connect(s->registry, c, &c->client) < 0 || VEC_PUSH(&s->conns, c) < 0) {
			conn_free(c);
			return;
		}
		if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
			c->dead = true;
	}
}

static void conn_read(struct conn *c)
{
	char buf[65536];
	ssize_t n = recv(c->fd, buf, sizeof(buf), 0);
	size_t pos = 0;
	struct registry_frame f;

	if (n <= 0) {
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			c->dead = true;
		return;
	}
	if (strbuf_append(&c->in, buf, (size_t)n) < 0)
		c->dead = true;
	while (!c->dead) {
		int used = registry_frame_decode((const uint8_t *)c->in.data + pos, c->in.len - pos, &f);

		if (used < 0)
			c->dead = true;
		if (used <= 0)
			break;
		registry_handle(c->client, &f, clock_boot_ns());
		pos += (size_t)used;
	}
	strbuf_consume(&c->in, pos);
}

int registry_server_run(struct registry_server *s)
{
	struct epoll_event events[64];
	uint64_t next = 0;

	for (;;) {
		uint64_t now = clock_boot_ns();

		if (now >= next)
			next = registry_tick(s->registry, now);
		now = clock_boot_ns();
		/* Rounded up: a tick before its time would only spin. */
		int wait = next > now ? (int)((next - now) / NS_PER_MS) + 1 : 0;
		int n = epoll_wait(s->epoll_fd, events, 64, wait);

		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;

			if (events[i].data.ptr == &s->stop_fd)
				return 0;
			if (!c) {
				accept_all(s);
				continue;
			}
			if (events[i].events & EPOLLOUT)
				conn_flush(c);
			if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
				conn_read(c);
		}
		for (size_t i = s->conns.count; i-- > 0;)
			if (s->conns.data[i]->dead) {
				conn_free(s->conns.data[i]);
				VEC_SWAP_REMOVE(&s->conns, i);
			}
		if (n > 0) /* a join may have to wait for a lease that ends sooner */
			next = 0;
	}
}

void registry_server_stop(struct registry_server *s)
{
	uint64_t one = 1;

	(void)!write(s->stop_fd, &one, sizeof(one)); /* an eventfd never refuses a 1 */
}

void registry_server_close(struct registry_server *s)
{
	if (!s)
		return;
	VEC_EACH(&s->conns, c)
		conn_free(*c);
	VEC_DONE(&s->conns);
	registry_free(s->registry);
	registry_file_store_done(&s->store);
	if (s->listen_fd >= 0)
		close(s->listen_fd);
	if (s->epoll_fd >= 0)
		close(s->epoll_fd);
	if (s->stop_fd >= 0)
		close(s->stop_fd);
	free(s->frame);
	free(s);
}
