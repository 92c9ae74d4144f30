/* SPDX-License-Identifier: Apache-2.0 */
/* nng PAIR over TCP. */
#include "bench.h"

#include <arpa/inet.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>

static nng_socket s;
static struct bench me;
static void *got;
static size_t got_len;

void bench_open(const struct bench *b)
{
	char where[64] = { 0 };
	nng_listener l;
	nng_sockaddr a;

	me = *b;
	if (nng_pair0_open(&s))
		bench_die("open");
	nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, 0);
	nng_socket_set_int(s, NNG_OPT_SENDBUF, 128);
	nng_socket_set_int(s, NNG_OPT_RECVBUF, 128);
	if (b->server) {
		if (nng_listen(s, "tcp://127.0.0.1:0", &l, 0) ||
		    nng_listener_get_addr(l, NNG_OPT_LOCADDR, &a))
			bench_die("listen");
		snprintf(where, sizeof(where), "tcp://127.0.0.1:%u", ntohs(a.s_in.sa_port));
		pipe_write(b->to_peer, where, sizeof(where));
	} else {
		pipe_read(b->from_peer, where, sizeof(where));
		if (nng_dial(s, where, NULL, 0))
			bench_die("dial");
	}
}

void bench_send(const void *data, size_t len)
{
	if (nng_send(s, (void *)(uintptr_t)data, len, 0))
		bench_die("send");
}

void bench_flush(void)
{
}

const void *bench_recv(size_t *ret_len)
{
	int r;

	if (got)
		nng_free(got, got_len);
	do {
		r = nng_recv(s, &got, &got_len, NNG_FLAG_ALLOC | (me.spin ? NNG_FLAG_NONBLOCK : 0));
	} while (r == NNG_EAGAIN);
	if (r)
		_exit(0);
	*ret_len = got_len;
	return got;
}

void bench_close(void)
{
	nng_close(s);
}
