/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

#define WRITE_GATHER (256 * 1024)
#define READ_GATHER (256 * 1024)
#define NOTSENT_MAX (512 * 1024)
#define RECEIVE_MAX (768 * 1024)
#define PEER_DEAD_MS 6000u /* unanswered data for so long: the path is cut */

struct link {
	int fd;
	SSL *ssl;
	pthread_mutex_t lock; /* control link: around ssl */
	struct identity_peer peer;
	char cc_default[16]; /* TCP_CA_NAME_MAX */
	bool marked;
	bool broken;
	uint8_t partial[TRANSFER_HEADER_LEN]; /* control link: a header half read */
	size_t partial_len;
};

static int poll_fd(int fd, short events, int timeout_ms, int cancel_fd)
{
	struct pollfd p[2] = { { fd, events, 0 }, { cancel_fd, POLLIN, 0 } };
	int n;

	do {
		n = poll(p, cancel_fd >= 0 ? 2 : 1, timeout_ms);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if (cancel_fd >= 0 && p[1].revents)
		return -ECANCELED;
	return n == 0 ? -ETIMEDOUT : 0;
}

static int set_nonblocking(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) < 0 ?
		       -errno : 0;
}

void link_bound_buffer(int fd)
{
	int size = RECEIVE_MAX;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)); /* cut to rmem_max */
}

/* Options that may fail on some kernel without harm to the transfer are set and forgotten. */
static void socket_prepare(int fd)
{
	int one = 1, idle = 3, interval = 1, count = 3;
	unsigned dead = PEER_DEAD_MS;
	int lowat = NOTSENT_MAX;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	/* Little waits unsent: a new rate, class or cancel acts at once, and a blocked write
	 * measures the path and not the buffer. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead, sizeof(dead));
}

static bool socket_mark(int fd, enum traffic_class c, uint32_t tag)
{
	int mark = (int)traffic_mark(c, tag), tos = traffic_dscp(c) << 2;

	(void)setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));        /* by family one of */
	(void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos)); /* these applies */
	return setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) == 0;
}

void link_set_class(struct link *l, enum traffic_class c, uint32_t mark_tag)
{
	l->marked = socket_mark(l->fd, c, mark_tag);
}

static bool cc_set(int fd, const char *name)
{
	return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

bool link_set_cc(struct link *l, enum link_cc cc)
{
	if (cc == LINK_CC_YIELD)
		return cc_set(l->fd, TRAFFIC_CC_SCAVENGER) || (cc_set(l->fd, "reno") && false);
	if (cc == LINK_CC_HOLD && cc_set(l->fd, TRAFFIC_CC_FLOOR))
		return true;
	return cc_set(l->fd, l->cc_default) && cc == LINK_CC_DEFAULT;
}

static int address_bind(int fd, int family, const char *addr)
{
	struct addrinfo hints = { .ai_family = family, .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_NUMERICHOST | AI_PASSIVE }, *list;
	int r = 0;

	if (getaddrinfo(addr, NULL, &hints, &list) != 0)
		return -EADDRNOTAVAIL;
	if (bind(fd, list->ai_addr, list->ai_addrlen) < 0)
		r = -errno;
	freeaddrinfo(list);
	return r;
}

static int connect_one(const struct addrinfo *a, const struct link_target *to, int timeout_ms,
		       int cancel_fd, int *ret_fd)
{
	CLEANUP_FD int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r = 0, err = 0;
	socklen_t len = sizeof(err);

	if (fd < 0)
		return -errno;
	socket_prepare(fd);
	link_bound_buffer(fd);
	(void)socket_mark(fd, to->traffic_class, to->mark_tag); /* told later, by link_is_marked */
	if (to->bind_addr)
		r = address_bind(fd, a->ai_family, to->bind_addr);
	if (r == 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS)
		r = -errno;
	if (r == 0)
		r = poll_fd(fd, POLLOUT, timeout_ms, cancel_fd);
	if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0)
		r = -err;
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}

static int tcp_connect(const struct link_target *to, int timeout_ms, int cancel_fd, int *ret_fd,
		       struct diag *diag)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG }, *list;
	char port[8];
	int r = -EHOSTUNREACH, e;

	snprintf(port, sizeof(port), "%u", to->port);
	e = getaddrinfo(to->host, port, &hints, &list);
	if (e != 0)
		return diag_set(diag, -EHOSTUNREACH, to->host, "%s", gai_strerror(e));
	for (struct addrinfo *a = list; a && r < 0 && r != -ECANCELED; a = a->ai_next)
		r = connect_one(a, to, timeout_ms, cancel_fd, ret_fd);
	freeaddrinfo(list);
	return r < 0 ? diag_set(diag, r, to->host, "cannot connect to port %u: %s", to->port,
				strerror(-r)) : 0;
}

/* ---- TLS ---- */

static const char *tls_error(char buf[256])
{
	unsigned long e = ERR_get_error();

	if (!e)
		return "connection closed";
	ERR_error_string_n(e, buf, 256);
	ERR_clear_error();
	return buf;
}

static int handshake(struct link *l, bool server, int timeout_ms, int cancel_fd, struct diag *diag)
{
	uint64_t end = clock_boot_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	char text[256];

	for (;;) {
		int n = server ? SSL_accept(l->ssl) : SSL_connect(l->ssl), e, r;
		uint64_t now = clock_boot_ns();

		if (n == 1)
			return 0;
		e = SSL_get_error(l->ssl, n);
		if (e != SSL_ERROR_WANT_READ && e != SSL_ERROR_WANT_WRITE) {
			bool link_error = e == SSL_ERROR_SYSCALL;

			return diag_set(diag, link_error ? -ECONNRESET : -EACCES, "TLS", "%s",
					link_error && errno ? strerror(errno) : tls_error(text));
		}
		if (now >= end)
			return diag_set(diag, -ETIMEDOUT, "TLS", "the handshake took too long");
		r = poll_fd(l->fd, e == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
			    (int)((end - now) / NS_PER_MS) + 1, cancel_fd);
		if (r < 0)
			return diag_set(diag, r, "TLS", "%s", strerror(-r));
	}
}

/* The buffer goes in after the handshake, which reads and writes in turn. */
static int gather_writes(SSL *ssl)
{
	BIO *gather = BIO_new(BIO_f_buffer()), *socket_bio = SSL_get_wbio(ssl);

	if (!gather)
		return -ENOMEM;
	BIO_set_write_buffer_size(gather, WRITE_GATHER);
	BIO_up_ref(socket_bio);
	BIO_push(gather, socket_bio);
	SSL_set0_wbio(ssl, gather);
	return 0;
}

static int link_new(SSL_CTX *ctx, int fd, bool server, int timeout_ms, int cancel_fd,
		    struct link **ret, struct diag *diag)
{
	CLEANUP(link_free_cleanup) struct link *l = calloc(1, sizeof(*l));
	socklen_t cc_len;
	int r;

	if (!l) {
		(void)close(fd); /* ours by contract */
		return -ENOMEM;
	}
	l->fd = fd;
	pthread_mutex_init(&l->lock, NULL);
	cc_len = sizeof(l->cc_default) - 1;
	(void)getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, l->cc_default, &cc_len); /* "" is refused later */
	l->ssl = SSL_new(ctx);
	if (!l->ssl || SSL_set_fd(l->ssl, fd) != 1)
		return -ENOMEM;
	SSL_set_read_ahead(l->ssl, 1);
	SSL_set_default_read_buffer_len(l->ssl, READ_GATHER);
	/* 128-bit keys: the chunks inside are sealed with 256 already. */
	if (SSL_set_ciphersuites(l->ssl, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
					 "TLS_CHACHA20_POLY1305_SHA256") != 1)
		return -EIO;
	r = set_nonblocking(fd, true);
	if (r == 0)
		r = handshake(l, server, timeout_ms, cancel_fd, diag);
	if (r == 0 && identity_peer_of(l->ssl, &l->peer) < 0)
		r = diag_set(diag, -EACCES, "TLS", "the peer's certificate does not verify");
	if (r == 0)
		r = set_nonblocking(fd, false);
	if (r == 0)
		r = gather_writes(l->ssl);
	if (r == 0)
		*ret = TAKE(l);
	return r;
}

int link_connect(SSL_CTX *ctx, const struct link_target *to, int timeout_ms, int cancel_fd,
		 struct link **ret, struct diag *diag)
{
	int fd = -1, r = tcp_connect(to, timeout_ms, cancel_fd, &fd, diag);

	if (r == 0)
		r = link_new(ctx, fd, false, timeout_ms, cancel_fd, ret, diag);
	if (r == 0)
		link_set_class(*ret, to->traffic_class, to->mark_tag);
	return r;
}

int link_accept(SSL_CTX *ctx, int fd, int timeout_ms, struct link **ret, struct diag *diag)
{
	socket_prepare(fd);
	return link_new(ctx, fd, true, timeout_ms, -1, ret, diag);
}

void link_free(struct link *l)
{
	if (!l)
		return;
	if (l->ssl && !l->broken && SSL_is_init_finished(l->ssl)) {
		/* Tells the peer that this is the end and no cut; if it is gone, nothing is lost. */
		(void)set_nonblocking(l->fd, true);
		(void)SSL_shutdown(l->ssl);
		(void)BIO_flush(SSL_get_wbio(l->ssl));
	}
	SSL_free(l->ssl);
	(void)close(l->fd); /* nothing buffered that would matter */
	pthread_mutex_destroy(&l->lock);
	ERR_clear_error();
	free(l);
}

const struct identity_peer *link_peer(const struct link *l)
{
	return &l->peer;
}

int link_fd(const struct link *l)
{
	return l->fd;
}

bool link_is_marked(const struct link *l)
{
	return l->marked;
}

void link_shutdown(struct link *l)
{
	(void)shutdown(l->fd, SHUT_RDWR); /* already gone is as good */
}

uint64_t link_bytes_out(const struct link *l)
{
	return BIO_number_written(SSL_get_wbio(l->ssl));
}

uint64_t link_bytes_in(const struct link *l)
{
	return BIO_number_read(SSL_get_rbio(l->ssl));
}

int link_read(struct link *l, void *buf, size_t len)
{
	for (size_t at = 0; at < len;) {
		size_t n = 0;

		if (SSL_read_ex(l->ssl, (uint8_t *)buf + at, len - at, &n) != 1) {
			l->broken = SSL_get_error(l->ssl, 0) != SSL_ERROR_ZERO_RETURN;
			ERR_clear_error();
			return at == 0 && !l->broken ? -ENODATA : -ECONNRESET;
		}
		at += n;
	}
	return 0;
}

int link_write(struct link *l, const void *buf, size_t len)
{
	size_t n;

	if (len == 0 || SSL_write_ex(l->ssl, buf, len, &n) == 1)
		return 0;
	l->broken = true;
	ERR_clear_error();
	return -ECONNRESET;
}

int link_flush(struct link *l)
{
	if (BIO_flush(SSL_get_wbio(l->ssl)) == 1)
		return 0;
	l->broken = true;
	ERR_clear_error();
	return -ECONNRESET;
}

/* ---- control link ---- */

int link_send(struct link *l, const void *frame, size_t len)
{
	int r;

	pthread_mutex_lock(&l->lock);
	r = link_write(l, frame, len);
	if (r == 0)
		r = link_flush(l);
	pthread_mutex_unlock(&l->lock);
	return r;
}

/* Reads what is there without waiting: the number of bytes, 0 = none yet. */
static int64_t read_some(struct link *l, void *buf, size_t len)
{
	size_t n = 0;
	int64_t r = 0;

	pthread_mutex_lock(&l->lock);
	(void)set_nonblocking(l->fd, true); /* on our own socket it cannot fail */
	if (SSL_read_ex(l->ssl, buf, len, &n) == 1) {
		r = (int64_t)n;
	} else {
		int e = SSL_get_error(l->ssl, 0);

		if (e != SSL_ERROR_WANT_READ) {
			l->broken = e != SSL_ERROR_ZERO_RETURN;
			r = -ECONNRESET;
		}
		ERR_clear_error();
	}
	(void)set_nonblocking(l->fd, false);
	pthread_mutex_unlock(&l->lock);
	return r;
}

static int read_waiting(struct link *l, void *buf, size_t len, uint64_t end_ns, int wake_fd)
{
	for (size_t at = 0; at < len;) {
		int64_t n = read_some(l, (uint8_t *)buf + at, len - at);
		uint64_t now;
		int r;

		if (n < 0)
			return (int)n;
		at += (size_t)n;
		if (n > 0)
			continue;
		now = clock_boot_ns();
		if (end_ns != UINT64_MAX && now >= end_ns)
			return -ETIMEDOUT;
		r = poll_fd(l->fd, POLLIN,
			    end_ns == UINT64_MAX ? -1 : (int)((end_ns - now) / NS_PER_MS) + 1, wake_fd);
		if (r < 0 && r != -ETIMEDOUT)
			return r == -ECANCELED ? -EINTR : r;
	}
	return 0;
}

int link_receive(struct link *l, int timeout_ms, int wake_fd, struct transfer_header *ret_header, uint8_t *body,
		 struct diag *diag)
{
	uint64_t end = timeout_ms < 0 ? UINT64_MAX : clock_boot_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	int r;

	/* A timeout may fall into a header: what came of it is kept for the next call. */
	while (l->partial_len < TRANSFER_HEADER_LEN) {
		r = read_waiting(l, l->partial + l->partial_len, 1, end, wake_fd);
		if (r < 0)
			return r;
		l->partial_len++;
	}
	r = transfer_decode_header(l->partial, ret_header, diag);
	if (r < 0)
		return r;
	if (ret_header->len > TRANSFER_BODY_MAX)
		return diag_set(diag, -EBADMSG, "frame", "a chunk on the control connection");
	l->partial_len = 0;
	/* The rest of a frame is on its way; only a dead peer leaves it unfinished. */
	r = read_waiting(l, body, ret_header->len, clock_boot_ns() + PEER_DEAD_MS * NS_PER_MS, -1);
	return r == -ETIMEDOUT ? -ECONNRESET : r;
}
