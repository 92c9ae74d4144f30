/* SPDX-License-Identifier: Apache-2.0 */
/* Raw TCP: the size is known to both sides. "batch" gathers 64 KiB and frames
 * each message with its length, which is what a batching library must do. */
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { BATCH = 65536, READ = 262144 };
static int fd;
static struct bench me;
static uint8_t *out, *in;
static size_t out_len, in_rd, in_wr, in_cap;

void bench_open(const struct bench *b)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int on = 1;

	me = *b;
	in_cap = READ + b->size;
	out = malloc(BATCH + b->size + 4);
	in = malloc(in_cap);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (b->server) {
		int l = fd;

		if (bind(l, (struct sockaddr *)&a, sizeof(a)) || listen(l, 1))
			bench_die("listen");
		getsockname(l, (struct sockaddr *)&a, &len);
		pipe_write(b->to_peer, &a, sizeof(a));
		fd = accept(l, NULL, NULL);
		close(l);
	} else {
		pipe_read(b->from_peer, &a, sizeof(a));
		if (connect(fd, (struct sockaddr *)&a, sizeof(a)))
			bench_die("connect");
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void write_all(const void *p, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = send(fd, (const char *)p + done, len - done, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			bench_die("send");
		done += n > 0 ? (size_t)n : 0;
	}
}

void bench_flush(void)
{
	if (out_len)
		write_all(out, out_len);
	out_len = 0;
}

void bench_send(const void *data, size_t len)
{
	if (!me.batch || (me.server && !me.pingpong)) {
		/* The server's one answer of a byte is padded to the fixed size. */
		if (len < me.size) {
			memset(out, 0, me.size);
			data = out;
			len = me.size;
		}
		write_all(data, len);
		return;
	}
	uint32_t n = (uint32_t)len;
	memcpy(out + out_len, &n, 4);
	memcpy(out + out_len + 4, data, len);
	out_len += len + 4;
	if (out_len >= BATCH)
		bench_flush();
}

static void fill(size_t need)
{
	if (in_rd == in_wr)
		in_rd = in_wr = 0;
	if (in_cap - in_rd < need) {
		memmove(in, in + in_rd, in_wr - in_rd);
		in_wr -= in_rd;
		in_rd = 0;
	}
	while (in_wr - in_rd < need) {
		/* Without batches a read takes one message, as a plain program would. */
		size_t room = me.batch ? in_cap - in_wr : need - (in_wr - in_rd);
		ssize_t n = recv(fd, in + in_wr, room, me.spin ? MSG_DONTWAIT : 0);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			_exit(0);
		in_wr += (size_t)n;
	}
}

const void *bench_recv(size_t *ret_len)
{
	const uint8_t *p;
	uint32_t n = (uint32_t)me.size;

	if (me.batch && me.server) {
		if (in_wr - in_rd < 4)
			fill(4);
		memcpy(&n, in + in_rd, 4);
		if (in_wr - in_rd < 4 + (size_t)n)
			fill(4 + (size_t)n);
		in_rd += 4;
	} else {
		fill(n);
	}
	p = in + in_rd;
	in_rd += n;
	*ret_len = n;
	return p;
}

void bench_close(void)
{
	close(fd);
}
