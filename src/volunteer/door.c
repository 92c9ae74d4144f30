/* SPDX-License-Identifier: Apache-2.0 */
/* See door.h. Requests and messages are outside input; the master judges messages. */
#include "volunteer/door.h"

#include <openssl/crypto.h>
#include <stdio.h>

#include "base/check.h"
#include "base/strbuf.h"
#include "volunteer/address.h"
#include "volunteer/signal.h"
#include "volunteer/text_queue.h"

#define PATH_SIZE 256
#define CHUNK 16384u

struct door {
	struct loop *loop;
	struct master *master;
	struct door_config config;
	struct lws_context *context;
	struct lws_vhost *vhost;
	struct door_stats stats;
	bool closing;
};

/* Per connection, zeroed by libwebsockets. */
struct connection {
	struct door *door;
	struct lws *wsi;
	struct master_member *member;
	struct text_queue out;
	struct strbuf in;
	bool socket, closing;
	const struct door_file *file; /* being sent */
	size_t sent;
};

static int socket_send_text(void *socket, const char *text, size_t len)
{
	struct connection *c = socket;
	if (c->closing)
		return -EPIPE;
	int r = text_queue_push(&c->out, text, len, DOOR_QUEUE_MAX);
	if (r < 0) { /* a reader that is too slow */
		c->closing = true;
		lws_set_timeout(c->wsi, PENDING_TIMEOUT_CLOSE_SEND, LWS_TO_KILL_ASYNC);
		return r;
	}
	lws_callback_on_writable(c->wsi);
	return 0;
}

/* What waits goes out first, then the socket closes. */
static void socket_shut(void *socket)
{
	struct connection *c = socket;
	c->member = NULL;
	c->closing = true;
	lws_callback_on_writable(c->wsi);
}

static const struct master_socket_ops socket_ops = { socket_send_text, socket_shut };

/* ---- files ---- */

static const struct door_file *named(const struct door_file *files, size_t count, const char *path)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(files[i].path, path) == 0)
			return &files[i];
	}
	return NULL;
}

static const struct door_file *find_file(struct connection *c, const char *path)
{
	struct door *d = c->door;
	static const char prefix[] = DOOR_FUNCTION_PATH;
	size_t n = sizeof(prefix) - 1;
	if (strncmp(path, prefix, n) == 0) {
		const char *invite = master_invite(d->master), *name = strchr(path + n, '/');
		size_t len = name ? (size_t)(name - path - n) : 0;
		if (!name || len != strlen(invite) || CRYPTO_memcmp(invite, path + n, len) != 0)
			return NULL;
		return named(d->config.functions, d->config.functions_count, name);
	}
	if (strcmp(path, "/") == 0)
		path = "/index.html";
	return named(d->config.files, d->config.files_count, path);
}

static int add_header(struct lws *wsi, const char *name, const char *value, unsigned char **at,
		      unsigned char *end)
{
	return lws_add_http_header_by_name(wsi, (const unsigned char *)name,
					   (const unsigned char *)value, (int)strlen(value), at, end);
}

static int reply(struct connection *c, struct lws *wsi, const char *path)
{
	unsigned char buf[LWS_PRE + 2048], *start = buf + LWS_PRE, *at = start, *end = buf + sizeof(buf);
	const struct door_file *f = find_file(c, path);
	c->door->stats.requests++;
	if (!f) {
		(void)lws_return_http_status(wsi, HTTP_STATUS_NOT_FOUND, NULL);
		return -1;
	}
	/* The page may start only what it carries itself, or was lent as the function. */
	static const char policy[] =
		"default-src 'self'; script-src 'self' blob: 'wasm-unsafe-eval'; "
		"worker-src 'self' blob:; connect-src 'self' ws: wss:; style-src 'self'; "
		"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
	if (lws_add_http_common_headers(wsi, HTTP_STATUS_OK, f->type, f->len, &at, end) ||
	    add_header(wsi, "content-security-policy:", policy, &at, end) ||
	    add_header(wsi, "x-content-type-options:", "nosniff", &at, end) ||
	    add_header(wsi, "referrer-policy:", "no-referrer", &at, end) ||
	    add_header(wsi, "cache-control:", "no-store", &at, end) ||
	    lws_finalize_write_http_header(wsi, start, &at, end))
		return -1;
	c->file = f;
	c->sent = 0;
	lws_callback_on_writable(wsi);
	return 0;
}

static int send_more(struct connection *c, struct lws *wsi)
{
	unsigned char buf[LWS_PRE + CHUNK];
	if (!c->file)
		return -1;
	size_t n = MIN(c->file->len - c->sent, (size_t)CHUNK);
	bool last = c->sent + n == c->file->len;
	if (n > 0)
		memcpy(buf + LWS_PRE, (const char *)c->file->bytes + c->sent, n);
	if (lws_write(wsi, buf + LWS_PRE, n, last ? LWS_WRITE_HTTP_FINAL : LWS_WRITE_HTTP) != (int)n)
		return -1;
	c->sent += n;
	if (!last) {
		lws_callback_on_writable(wsi);
		return 0;
	}
	c->file = NULL;
	return lws_http_transaction_completed(wsi) ? -1 : 0;
}

/* ---- sockets ---- */

static int upgrade(struct door *d, struct lws *wsi)
{
	char path[PATH_SIZE];
	int n = lws_hdr_copy(wsi, path, sizeof(path), WSI_TOKEN_GET_URI);
	if (n <= 0 || strcmp(path, DOOR_SOCKET_PATH) != 0 || d->closing ||
	    d->stats.sockets >= DOOR_CONNECTIONS_MAX) {
		d->stats.refused++;
		return -1;
	}
	return 0;
}

static int established(struct door *d, struct connection *c, struct lws *wsi)
{
	*c = (struct connection){ .door = d, .wsi = wsi, .socket = true };
	text_queue_init(&c->out);
	if (master_socket_open(d->master, &socket_ops, c, &c->member) < 0) {
		d->stats.refused++;
		return -1;
	}
	d->stats.sockets++;
	d->stats.opened++;
	return 0;
}

static int receive(struct connection *c, struct lws *wsi, const char *bytes, size_t len)
{
	if (!c->member || c->closing)
		return c->closing ? 0 : -1;
	if (c->in.len + len > SIGNAL_MESSAGE_MAX || strbuf_append(&c->in, bytes, len) < 0)
		return -1;
	if (!lws_is_final_fragment(wsi) || lws_remaining_packet_payload(wsi) > 0)
		return 0;
	struct strbuf whole = c->in;
	c->in = (struct strbuf)STRBUF_INIT;
	master_socket_text(c->door->master, c->member, whole.data ? whole.data : "", whole.len);
	strbuf_done(&whole);
	return 0;
}

static void socket_gone(struct connection *c)
{
	if (!c->socket)
		return;
	c->socket = false;
	c->closing = true;
	c->door->stats.sockets--;
	if (c->member && c->door->closing)
		master_socket_abandon(c->member);
	else if (c->member)
		master_socket_closed(c->door->master, c->member);
	c->member = NULL;
	while (c->out.head)
		text_queue_drop(&c->out);
	strbuf_done(&c->in);
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
		    size_t len)
{
	struct connection *c = user;
	struct lws_vhost *vhost = lws_get_vhost(wsi);
	struct door *d = vhost ? lws_get_vhost_user(vhost) : NULL;
	switch (reason) {
	case LWS_CALLBACK_HTTP:
		*c = (struct connection){ .door = d, .wsi = wsi };
		text_queue_init(&c->out);
		return reply(c, wsi, in);
	case LWS_CALLBACK_HTTP_WRITEABLE:
		return c ? send_more(c, wsi) : -1;
	case LWS_CALLBACK_FILTER_PROTOCOL_CONNECTION:
		return upgrade(d, wsi);
	case LWS_CALLBACK_ESTABLISHED:
		return established(d, c, wsi);
	case LWS_CALLBACK_RECEIVE:
		return receive(c, wsi, in, len);
	case LWS_CALLBACK_SERVER_WRITEABLE:
		if (text_queue_write(&c->out, wsi) < 0)
			return -1;
		return c->closing && !c->out.head ? -1 : 0;
	case LWS_CALLBACK_CLOSED:
		socket_gone(c);
		return 0;
	default:
		return 0;
	}
}

static const struct lws_protocols protocols[] = {
	{ .name = "reclaim-door", .callback = callback, .rx_buffer_size = 2048,
	  .per_session_data_size = sizeof(struct connection) },
	{ 0 },
};

static bool is_loopback(const char *address)
{
	struct address a;
	static const uint8_t six[16] = { [15] = 1 };
	if (address_parse(address, 0, &a) < 0)
		return false;
	return a.family == 4 ? a.ip[0] == 127 : memcmp(a.ip, six, 16) == 0;
}

int door_open(struct loop *l, struct master *m, const struct door_config *config,
	      struct door **ret, struct diag *diag)
{
	const char *address = config->address ? config->address : "127.0.0.1";
	if (!config->cert && !is_loopback(address))
		return diag_set(diag, -EACCES, address,
				"in clear only on loopback; give a certificate and its key");
	struct door *d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->loop = l;
	d->master = m;
	d->config = *config;
	void *loops[1] = { loop_uv(l) };
	struct lws_context_creation_info info = {
		.iface = address, .port = config->port, .protocols = protocols,
		.options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
			   LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND,
		.foreign_loops = loops, .user = d, .gid = (gid_t)-1, .uid = (uid_t)-1,
		.pt_serv_buf_size = 65536, .timeout_secs = 15, .keepalive_timeout = 15,
		.ssl_cert_filepath = config->cert, .ssl_private_key_filepath = config->key,
		.alpn = "http/1.1", .vhost_name = "reclaim-door",
		.retry_and_idle_policy = &text_queue_no_pings, .ka_time = 15, .ka_interval = 5, .ka_probes = 3,
	};
	if (!getenv("RECLAIM_LWS_DEBUG"))
		lws_set_log_level(0, NULL);
	d->context = lws_create_context(&info);
	d->vhost = d->context ? lws_create_vhost(d->context, &info) : NULL;
	if (!d->vhost) {
		door_close(d);
		return diag_set(diag, -EADDRINUSE, address, "cannot listen on port %u%s", config->port,
				config->cert ? ", or not a certificate and its key" : "");
	}
	*ret = d;
	return 0;
}

void door_close(struct door *d)
{
	if (!d)
		return;
	d->closing = true;
	if (d->context) {
		lws_context_destroy(d->context);
		/* libuv closes handles a turn later */
		for (int i = 0; i < 16; i++)
			uv_run(loop_uv(d->loop), UV_RUN_NOWAIT);
	}
	free(d);
}

uint16_t door_port(const struct door *d)
{
	return (uint16_t)lws_get_vhost_listen_port(d->vhost);
}

void door_stats(const struct door *d, struct door_stats *ret)
{
	*ret = d->stats;
}
