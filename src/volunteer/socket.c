/* SPDX-License-Identifier: Apache-2.0 */
/* See socket.h. */
#include "volunteer/socket.h"

#include <stdio.h>

#include "base/check.h"
#include "base/strbuf.h"
#include "volunteer/signal.h"
#include "volunteer/text_queue.h"

struct socket_client {
	struct lws *wsi;
	const struct socket_ops *ops;
	void *user;
	bool up, closed; /* closed: by its owner; freed when libwebsockets lets go */
	bool *gone;      /* set when it goes, while socket_open() is at work */
	struct text_queue out;
	struct strbuf in;
};

static struct {
	struct lws_context *context;
	struct loop *loop;
	const char *ca_file;
} shared;

static void client_free(struct socket_client *c)
{
	while (c->out.head)
		text_queue_drop(&c->out);
	strbuf_done(&c->in);
	free(c);
}

static void gone(struct socket_client *c, const char *why)
{
	bool tell = !c->closed;
	c->closed = true;
	if (c->gone)
		*c->gone = true;
	if (tell)
		c->ops->down(c->user, why);
	client_free(c);
}

static int receive(struct socket_client *c, struct lws *wsi, const char *bytes, size_t len)
{
	if (c->in.len + len > SIGNAL_MESSAGE_MAX || strbuf_append(&c->in, bytes, len) < 0)
		return -1;
	if (!lws_is_final_fragment(wsi) || lws_remaining_packet_payload(wsi) > 0)
		return 0;
	struct strbuf whole = c->in; /* the callback may close the socket */
	c->in = (struct strbuf)STRBUF_INIT;
	if (!c->closed)
		c->ops->text(c->user, whole.data ? whole.data : "", whole.len);
	strbuf_done(&whole);
	return c->closed ? -1 : 0;
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
		    size_t len)
{
	struct socket_client *c = lws_get_opaque_user_data(wsi);
	(void)user;
	if (!c)
		return 0;
	switch (reason) {
	case LWS_CALLBACK_CLIENT_ESTABLISHED:
		c->wsi = wsi;
		c->up = true;
		if (c->closed)
			return -1;
		c->ops->up(c->user);
		return c->closed ? -1 : 0;
	case LWS_CALLBACK_CLIENT_RECEIVE:
		return receive(c, wsi, in, len);
	case LWS_CALLBACK_CLIENT_WRITEABLE:
		return c->closed ? -1 : text_queue_write(&c->out, wsi);
	case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
		lws_set_opaque_user_data(wsi, NULL);
		gone(c, in ? in : "cannot connect");
		return 0;
	case LWS_CALLBACK_CLIENT_CLOSED:
		lws_set_opaque_user_data(wsi, NULL);
		gone(c, "connection closed");
		return 0;
	default:
		return 0;
	}
}

static const struct lws_protocols protocols[] = {
	{ .name = "reclaim-volunteer", .callback = callback, .rx_buffer_size = 2048 },
	{ 0 },
};

static int library_start(struct loop *l, struct diag *diag)
{
	if (shared.context)
		return 0;
	void *loops[1] = { loop_uv(l) };
	struct lws_context_creation_info info = {
		.port = CONTEXT_PORT_NO_LISTEN, .protocols = protocols,
		.options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT,
		.foreign_loops = loops, .gid = (gid_t)-1, .uid = (uid_t)-1,
		.retry_and_idle_policy = &text_queue_no_pings,
		.pt_serv_buf_size = 65536, .connect_timeout_secs = 10, .timeout_secs = 10,
		.client_ssl_ca_filepath = shared.ca_file,
	};
	if (!getenv("RECLAIM_LWS_DEBUG"))
		lws_set_log_level(0, NULL);
	shared.context = lws_create_context(&info);
	shared.loop = l;
	if (!shared.context)
		return diag_set(diag, -EIO, "socket",
				"libwebsockets cannot start (is its libuv plug-in installed?)");
	return 0;
}

void socket_library_trust(const char *ca_file)
{
	shared.ca_file = ca_file;
}

void socket_library_done(void)
{
	if (!shared.context)
		return;
	lws_context_destroy(shared.context);
	for (int i = 0; i < 16; i++)
		uv_run(loop_uv(shared.loop), UV_RUN_NOWAIT);
	shared.context = NULL;
}

/* "scheme://host:port/..." into its parts. */
static int parse_url(const char *url, char *host, size_t host_size, int *ret_port, bool *ret_tls)
{
	const char *rest = strstr(url, "://");
	if (!rest)
		return -EINVAL;
	size_t scheme = (size_t)(rest - url);
	bool tls = (scheme == 5 && memcmp(url, "https", 5) == 0) ||
		   (scheme == 3 && memcmp(url, "wss", 3) == 0);
	if (!tls && !(scheme == 4 && memcmp(url, "http", 4) == 0) &&
	    !(scheme == 2 && memcmp(url, "ws", 2) == 0))
		return -EINVAL;
	rest += 3;
	size_t len = strcspn(rest, "/?#");
	const char *colon = memchr(rest, ':', len);
	if (rest[0] == '[') {
		const char *end = memchr(rest, ']', len);
		colon = end ? memchr(end, ':', len - (size_t)(end - rest)) : NULL;
	}
	size_t host_len = colon ? (size_t)(colon - rest) : len;
	if (rest[0] == '[' && host_len >= 2) {
		rest++;
		host_len -= 2;
	}
	if (host_len == 0 || host_len >= host_size)
		return -EINVAL;
	memcpy(host, rest, host_len);
	host[host_len] = '\0';
	*ret_port = colon ? atoi(colon + 1) : tls ? 443 : 80;
	*ret_tls = tls;
	return *ret_port > 0 && *ret_port < 65536 ? 0 : -EINVAL;
}

int socket_open(struct loop *l, const char *url, const char *path, const struct socket_ops *ops,
		void *user, struct socket_client **ret, struct diag *diag)
{
	char host[256];
	int port;
	bool tls;
	if (parse_url(url, host, sizeof(host), &port, &tls) < 0)
		return diag_set(diag, -EINVAL, url, "not an address like https://host:port/");
	int r = library_start(l, diag);
	if (r < 0)
		return r;
	struct socket_client *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->ops = ops;
	c->user = user;
	text_queue_init(&c->out);
	struct lws_client_connect_info info = {
		.context = shared.context, .address = host, .host = host, .origin = host,
		.port = port, .path = path, .ssl_connection = tls ? LCCSCF_USE_SSL : 0,
		.local_protocol_name = "reclaim-volunteer", .ietf_version_or_minus_one = -1,
		.opaque_user_data = c, .alpn = "http/1.1",
		.retry_and_idle_policy = &text_queue_no_pings,
	};
	bool gone = false;
	c->gone = &gone;
	if (!lws_client_connect_via_info(&info)) {
		/* For a refused connection the callback came from within, and c is gone with it;
		 * for a name that nobody knows it does not come. */
		if (!gone)
			client_free(c);
		return diag_set(diag, -ECONNREFUSED, url, "cannot connect to \"%s\"", host);
	}
	c->gone = NULL;
	*ret = c;
	return 0;
}

void socket_close(struct socket_client *c)
{
	if (!c)
		return;
	c->closed = true;
	if (c->wsi)
		lws_set_timeout(c->wsi, PENDING_TIMEOUT_CLOSE_SEND, LWS_TO_KILL_ASYNC);
}

int socket_send(struct socket_client *c, const char *text, size_t len)
{
	if (!c->up || c->closed)
		return -ENOTCONN;
	int r = text_queue_push(&c->out, text, len, SOCKET_QUEUE_MAX);
	if (r == 0)
		lws_callback_on_writable(c->wsi);
	return r;
}
