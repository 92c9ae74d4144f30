/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's WebSocket. One libwebsockets context per client, with a TLS
 * context of our own: the server is known by chain and role, so host names
 * are not compared. A connection that says nothing for IDLE_HANGUP_S, ping
 * answers included, counts as broken: a cut cable sends no FIN.
 */
#include "io/control_client.h"

#include <errno.h>
#include <libwebsockets.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "io/http_internal.h"

#define CONNECT_TIMEOUT_S 5
#define LOST_S	  12 /* no attempt lasts so long: its end was not told to us */
#define IDLE_PING_S 3
#define IDLE_HANGUP_S 8
#define HOST_MAX 256

struct control_frame {
	struct control_frame *next;
	size_t len;
	unsigned char bytes[];
};

struct control_client {
	struct loop *loop;
	const struct identity *id;
	struct control_client_ops ops;
	void *user;
	char host[HOST_MAX];
	uint16_t port;
	const char *path;
	SSL_CTX *tls;
	struct lws_context *context;
	struct lws *wsi; /* the attempt or connection of now */
	bool up;
	bool closed;  /* by our user: no callbacks */
	bool leaving; /* the context, to be replaced */
	struct loop_timer retry;
	uint64_t retry_ms;
	uint64_t up_at_ns, began_ns;
	struct rng rng;
	struct strbuf in;
	struct control_frame *out_head, **out_tail;
	size_t out_bytes;
};

static int address_parse(struct control_client *c, const char *address)
{
	const char *host = address, *colon = strrchr(address, ':');
	uint64_t port;
	if (!colon || parse_u64(colon + 1, &port) < 0 || port == 0 || port > 65535)
		return -EINVAL;
	size_t len = (size_t)(colon - address);
	if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
		host++;
		len -= 2;
	}
	if (len == 0 || len >= sizeof(c->host))
		return -EINVAL;
	memcpy(c->host, host, len);
	c->host[len] = 0;
	c->port = (uint16_t)port;
	return 0;
}

static void queue_clear(struct control_client *c)
{
	while (c->out_head) {
		struct control_frame *f = c->out_head;
		c->out_head = f->next;
		free(f);
	}
	c->out_tail = &c->out_head;
	c->out_bytes = 0;
	strbuf_clear(&c->in);
}

static void retry_later(struct control_client *c)
{
	/* A herd of agents that lost one coordinator must not come back in step. */
	uint64_t span = c->retry_ms;
	uint64_t wait_ms = span / 2 + rng_below(&c->rng, span);
	c->retry_ms = MIN(c->retry_ms * 2, (uint64_t)CONTROL_RETRY_MAX_MS);
	(void)loop_timer_in(&c->retry, wait_ms * NS_PER_MS);
}

static void went_down(struct control_client *c, const char *why)
{
	bool was_up = c->up;
	c->wsi = NULL;
	c->up = false;
	queue_clear(c);
	if (was_up && clock_boot_ns() - c->up_at_ns > 2 * NS_PER_S)
		c->retry_ms = CONTROL_RETRY_MIN_MS;
	if (c->closed)
		return;
	retry_later(c);
	if (c->ops.on_down)
		c->ops.on_down(c->user, why);
}

static const lws_retry_bo_t idle_policy = {
	.secs_since_valid_ping = IDLE_PING_S,
	.secs_since_valid_hangup = IDLE_HANGUP_S,
};

static int receive(struct control_client *c, struct lws *wsi, const char *bytes, size_t len)
{
	if (c->in.len + len > CONTROL_MESSAGE_MAX || strbuf_append(&c->in, bytes, len) < 0)
		return -1;
	if (!lws_is_final_fragment(wsi) || lws_remaining_packet_payload(wsi) > 0)
		return 0;
	json_error_t error;
	CLEANUP_JSON json_t *message =
		json_loadb(c->in.data ? c->in.data : "", c->in.len, JSON_REJECT_DUPLICATES, &error);
	strbuf_clear(&c->in);
	if (!json_is_object(message))
		return -1; /* not our coordinator's language: start anew */
	if (c->ops.on_message && !c->closed)
		c->ops.on_message(c->user, message);
	return c->wsi == wsi ? 0 : -1;
}

static int pump(struct control_client *c, struct lws *wsi)
{
	struct control_frame *f = c->out_head;
	if (!f)
		return 0;
	c->out_head = f->next;
	if (!c->out_head)
		c->out_tail = &c->out_head;
	c->out_bytes -= f->len;
	bool short_write = lws_write(wsi, f->bytes + LWS_PRE, f->len, LWS_WRITE_TEXT) < (int)f->len;
	free(f);
	if (short_write)
		return -1;
	if (c->out_head)
		lws_callback_on_writable(wsi);
	return 0;
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
		    size_t len)
{
	struct control_client *c = lws_get_opaque_user_data(wsi);
	switch (reason) {
	case LWS_CALLBACK_CLIENT_ESTABLISHED:
	case LWS_CALLBACK_CLIENT_RECEIVE:
	case LWS_CALLBACK_CLIENT_WRITEABLE:
	case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
	case LWS_CALLBACK_CLIENT_CLOSED:
		break;
	default:
		return 0;
	}
	if (!c || (c->wsi && c->wsi != wsi))
		return reason == LWS_CALLBACK_CLIENT_CLOSED ||
		       reason == LWS_CALLBACK_CLIENT_CONNECTION_ERROR ? 0 : -1; /* an abandoned one */
	switch (reason) {
	case LWS_CALLBACK_CLIENT_ESTABLISHED:
		c->wsi = wsi;
		c->up = true;
		c->up_at_ns = clock_boot_ns();
		if (c->ops.on_up && !c->closed)
			c->ops.on_up(c->user);
		return 0;
	case LWS_CALLBACK_CLIENT_RECEIVE:
		return receive(c, wsi, in, len);
	case LWS_CALLBACK_CLIENT_WRITEABLE:
		return pump(c, wsi);
	case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
		lws_set_opaque_user_data(wsi, NULL);
		went_down(c, in ? in : "cannot connect");
		return 0;
	default:
		lws_set_opaque_user_data(wsi, NULL);
		went_down(c, "connection closed");
		return 0;
	}
}

static const struct lws_protocols protocols[] = {
	{ .name = "reclaim-control", .callback = callback, .rx_buffer_size = 65536 },
	{ 0 },
};

static int context_open(struct control_client *c)
{
	void *loops[1] = { loop_uv(c->loop) };
	struct lws_context_creation_info info = {
		.port = CONTEXT_PORT_NO_LISTEN,
		.protocols = protocols,
		.options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT,
		.foreign_loops = loops,
		.gid = (gid_t)-1,
		.uid = (uid_t)-1,
		.provided_client_ssl_ctx = c->tls,
		.connect_timeout_secs = CONNECT_TIMEOUT_S,
		.timeout_secs = CONNECT_TIMEOUT_S,
		.retry_and_idle_policy = &idle_policy,
		.fd_limit_per_thread = 32,
		.pt_serv_buf_size = HTTP_SERVICE_BUFFER,
		.pcontext = &c->context,
	};
	http_lws_log();
	c->context = lws_create_context(&info);
	return c->context ? 0 : -EIO;
}

/*
 * Seen once in some hundred kills of a coordinator: libwebsockets never calls back about an
 * attempt that was cut off, and the machine would stay alone for ever. Its context is then given
 * up with all that it has, and a new one made once it is gone. False: not now.
 */
static bool context_ready(struct control_client *c)
{
	if (c->wsi && clock_boot_ns() - c->began_ns > LOST_S * NS_PER_S) {
		log_warn("control: an attempt to connect got lost; beginning anew");
		c->wsi = NULL;
		c->leaving = true;
		lws_context_destroy(c->context); /* begins to close its handles */
	} else if (c->leaving && c->context) {
		lws_context_destroy(c->context); /* they are closed: the rest, and it is NULL */
	}
	if (!c->wsi && !c->context && context_open(c) == 0)
		c->leaving = false;
	bool ready = !c->wsi && !c->leaving && c->context;
	if (!ready)
		(void)loop_timer_in(&c->retry, NS_PER_S);
	return ready;
}

static void connect_now(void *user)
{
	struct control_client *c = user;
	struct lws_client_connect_info info = {
		.address = c->host,
		.host = c->host,
		.origin = c->host,
		.port = c->port,
		.path = c->path,
		.ssl_connection = LCCSCF_USE_SSL | LCCSCF_SKIP_SERVER_CERT_HOSTNAME_CHECK,
		.protocol = NULL,
		.local_protocol_name = "reclaim-control",
		.ietf_version_or_minus_one = -1,
		.retry_and_idle_policy = &idle_policy,
		.opaque_user_data = c,
		.pwsi = &c->wsi,
		.alpn = "http/1.1",
	};
	if (c->up || c->closed || !context_ready(c))
		return;
	info.context = c->context;
	c->began_ns = clock_boot_ns();
	/* On failure the error callback may have run already and armed the timer. */
	if (!lws_client_connect_via_info(&info) && !c->wsi && !loop_timer_armed(&c->retry))
		went_down(c, "cannot connect");
	if (!loop_timer_armed(&c->retry))
		(void)loop_timer_in(&c->retry, NS_PER_S);
}

int control_client_open(struct loop *l, const struct identity *id, const char *address,
			const struct control_client_ops *ops, void *user,
			struct control_client **ret)
{
	return control_client_open_at(l, id, address, "/v1/agent", ops, user, ret);
}

int control_client_open_at(struct loop *l, const struct identity *id, const char *address,
			   const char *path, const struct control_client_ops *ops, void *user,
			   struct control_client **ret)
{
	struct control_client *c = calloc(1, sizeof(*c));
	uint64_t seed = 0;
	if (!c)
		return -ENOMEM;
	c->loop = l;
	c->id = id;
	c->path = path;
	c->ops = *ops;
	c->user = user;
	c->out_tail = &c->out_head;
	c->retry_ms = CONTROL_RETRY_MIN_MS;
	int r = random_bytes(&seed, sizeof(seed));
	rng_init(&c->rng, seed);
	if (r == 0)
		r = address_parse(c, address);
	if (r == 0)
		r = identity_tls_client(id, IDENTITY_COORDINATOR, &c->tls);
	if (r == 0)
		r = context_open(c);
	loop_timer_init(&c->retry, l, connect_now, c);
	if (r == 0)
		r = loop_timer_in(&c->retry, 0);
	if (r < 0) {
		control_client_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

void control_client_close(struct control_client *c)
{
	if (!c)
		return;
	c->closed = true;
	loop_timer_stop(&c->retry);
	if (c->context) {
		lws_context_destroy(c->context);
		for (int i = 0; i < 64 && c->context; i++)
			uv_run(loop_uv(c->loop), UV_RUN_NOWAIT);
		if (c->context)
			lws_context_destroy(c->context);
	}
	queue_clear(c);
	strbuf_done(&c->in);
	SSL_CTX_free(c->tls);
	free(c);
}

bool control_client_is_up(const struct control_client *c)
{
	return c->up;
}

int control_client_send(struct control_client *c, json_t *message)
{
	if (!c->up)
		return -ENOTCONN;
	CLEANUP_FREE char *text = json_dumps(message, JSON_COMPACT);
	size_t len = text ? strlen(text) : 0;
	if (!text)
		return -ENOMEM;
	if (len > CONTROL_MESSAGE_MAX)
		return -EMSGSIZE;
	if (c->out_bytes + len > CONTROL_QUEUE_MAX)
		return -ENOBUFS;
	struct control_frame *f = malloc(sizeof(*f) + LWS_PRE + len);
	if (!f)
		return -ENOMEM;
	f->next = NULL;
	f->len = len;
	memcpy(f->bytes + LWS_PRE, text, len);
	*c->out_tail = f;
	c->out_tail = &f->next;
	c->out_bytes += len;
	lws_callback_on_writable(c->wsi);
	return 0;
}

int control_client_restart(struct control_client *c, const char *address)
{
	if (address) {
		int r = address_parse(c, address);
		if (r < 0)
			return r;
	}
	c->retry_ms = CONTROL_RETRY_MIN_MS;
	if (c->wsi) {
		/* The old one is abandoned: its callbacks find no client. */
		lws_set_opaque_user_data(c->wsi, NULL);
		lws_set_timeout(c->wsi, PENDING_TIMEOUT_CLOSE_SEND, LWS_TO_KILL_ASYNC);
		went_down(c, "restarted");
	}
	return loop_timer_in(&c->retry, 0);
}
