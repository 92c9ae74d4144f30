/* SPDX-License-Identifier: Apache-2.0 */
/* ZeroMQ PAIR over TCP; it batches by itself. */
#include "bench.h"

#include <zmq.h>

static void *ctx, *s;
static struct bench me;
static zmq_msg_t got;
static bool have;

void bench_open(const struct bench *b)
{
	char where[64] = { 0 };
	size_t len = sizeof(where);
	int hwm = 100000;

	me = *b;
	ctx = zmq_ctx_new();
	s = zmq_socket(ctx, ZMQ_PAIR);
	zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof(hwm));
	zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof(hwm));
	if (b->server) {
		if (zmq_bind(s, "tcp://127.0.0.1:*"))
			bench_die("bind");
		zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, where, &len);
		pipe_write(b->to_peer, where, sizeof(where));
	} else {
		pipe_read(b->from_peer, where, sizeof(where));
		if (zmq_connect(s, where))
			bench_die("connect");
	}
}

void bench_send(const void *data, size_t len)
{
	if (zmq_send(s, data, len, 0) < 0)
		bench_die("send");
}

void bench_flush(void)
{
}

const void *bench_recv(size_t *ret_len)
{
	if (have)
		zmq_msg_close(&got);
	zmq_msg_init(&got);
	have = true;
	while (zmq_msg_recv(&got, s, me.spin ? ZMQ_DONTWAIT : 0) < 0)
		if (errno != EAGAIN && errno != EINTR)
			bench_die("recv");
	*ret_len = zmq_msg_size(&got);
	return zmq_msg_data(&got);
}

void bench_close(void)
{
	int linger = 100;

	zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof(linger));
	zmq_close(s);
	zmq_ctx_term(ctx);
}
