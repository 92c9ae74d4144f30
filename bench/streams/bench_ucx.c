/* SPDX-License-Identifier: Apache-2.0 */
/* UCX tag messages over TCP (UCX_TLS=tcp). It always spins: sleeping needs its own event loop. */
#include "bench.h"

#include <arpa/inet.h>
#include <ucp/api/ucp.h>

static ucp_context_h ctx;
static ucp_worker_h worker;
static ucp_ep_h ep;
static struct bench me;
static uint8_t *in;
static int flying;

void bench_open(const struct bench *b)
{
	ucp_params_t p = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				   .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_ep_params_t ep_params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_config_t *config;
	ucp_address_t *mine;
	size_t mine_len, len;

	me = *b;
	in = malloc(b->size + 64);
	setenv("UCX_TLS", "tcp", 0);
	setenv("UCX_NET_DEVICES", "lo", 0);

	if (ucp_config_read(NULL, NULL, &config) || ucp_init(&p, config, &ctx) ||
	    ucp_worker_create(ctx, &wp, &worker) || ucp_worker_get_address(worker, &mine, &mine_len))
		bench_die("ucp");
	pipe_write(b->to_peer, &mine_len, sizeof(mine_len));
	pipe_write(b->to_peer, mine, mine_len);
	pipe_read(b->from_peer, &len, sizeof(len));
	void *theirs = malloc(len);
	pipe_read(b->from_peer, theirs, len);
	ep_params.address = theirs;
	if (ucp_ep_create(worker, &ep_params, &ep))
		bench_die("ep");
}

static void wait_for(void *req)
{
	if (!req)
		return;
	if (UCS_PTR_IS_ERR(req))
		_exit(0);
	while (ucp_request_check_status(req) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	ucp_request_free(req);
}

void bench_send(const void *data, size_t len)
{
	ucp_request_param_t p = { .op_attr_mask = 0 };

	wait_for(ucp_tag_send_nbx(ep, data, len, 1, &p));
	if (!me.pingpong && ++flying % 64 == 0)
		ucp_worker_progress(worker);
}

void bench_flush(void)
{
	ucp_request_param_t p = { .op_attr_mask = 0 };

	if (!me.pingpong)
		wait_for(ucp_ep_flush_nbx(ep, &p));
}

const void *bench_recv(size_t *ret_len)
{
	ucp_tag_recv_info_t info = { 0 };
	ucp_request_param_t p = { .op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
				  .recv_info.tag_info = &info };
	void *req = ucp_tag_recv_nbx(worker, in, me.size + 64, 1, (ucp_tag_t)-1, &p);

	(void)info;
	wait_for(req);
	*ret_len = me.size;
	return in;
}

void bench_close(void)
{
}
