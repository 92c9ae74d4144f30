/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half on libwebsockets: one protocol table entry serves every
 * path, and we route ourselves, because identity, body limits and parameters
 * belong together. HTTP/1.1 only (ALPN says so): an API and a few pages gain
 * nothing from streams, and event streams would be cut up by them.
 *
 * Input from peers reaches us as headers (bounded by libwebsockets at
 * HEADER_MAX), paths, queries and bodies (bounded by the route).
 */
#include "io/http_server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/parse.h"
#include "io/http_internal.h"
#include "io/http_local.h"

#define HEADER_MAX 8192
#define HANDSHAKE_TIMEOUT_S 15
#define KEEPALIVE_IDLE_S 60

static const char *const method_names[] = { "GET", "POST", "OPTIONS", "PUT", "PATCH", "DELETE" };

/* ---- connections ---- */

static struct http_conn *conn_of(struct lws *wsi)
{
	return lws_get_opaque_user_data(wsi);
}

static struct http_conn *conn_new(struct http_server *s, struct lws *wsi)
{
	struct http_conn *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->server = s;
	c->wsi = wsi;
	SSL *ssl = lws_get_ssl(wsi);
	c->uid = (uid_t)-1;
	if (s->config.admit_local) {
		if (http_local_uid(lws_get_socket_fd(wsi), &c->uid) < 0)
			c->uid = (uid_t)-1;
	} else if (!ssl || identity_peer_of(ssl, &c->peer) < 0) {
		free(c);
		return NULL;
	}
	c->public_side = lws_get_vhost(wsi) != s->vhost;
	lws_get_peer_simple(wsi, c->address, sizeof(c->address));
	c->next = s->conns;
	c->link = &s->conns;
	if (c->next)
		c->next->link = &c->next;
	s->conns = c;
	s->conns_count++;
	lws_set_opaque_user_data(wsi, c);
	return c;
}

static void conn_free(struct http_conn *c)
{
	if (!c)
		return;
	if (c->request)
		http_request_detach(c->request);
	if (c->socket)
		http_socket_gone(c);
	lws_set_opaque_user_data(c->wsi, NULL);
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	c->server->conns_count--;
	free(c);
}

int http_admit(struct http_conn *c, unsigned flags)
{
	if (c->server->config.admit_local)
		return flags & HTTP_ANONYMOUS   ? 0 :
		       c->uid == (uid_t)-1 ? -EACCES :
					     c->server->config.admit_local(c->uid, c->server->config.user);
	if (c->public_side && !(flags & HTTP_PUBLIC))
		return -EACCES;
	if (c->peer.role == IDENTITY_NONE && !(flags & HTTP_ANONYMOUS))
		return -EACCES;
	if (c->server->config.admit && c->peer.role != IDENTITY_NONE)
		return c->server->config.admit(&c->peer, c->server->config.user);
	return 0;
}

/* ---- routing ---- */

/* Matches "/v1/jobs/{id}/logs" and fills the parts; false if the path is another one. */
static bool path_match(const char *pattern, const char *path,
		       char params[HTTP_PARAMS_MAX][HTTP_PATH_MAX])
{
	size_t n = 0;
	while (*pattern) {
		if (pattern[0] == '*' && pattern[1] == 0 && n < HTTP_PARAMS_MAX) {
			if (params)
				snprintf(params[n], HTTP_PATH_MAX, "%s", path);
			return true;
		}
		if (*pattern == '{') {
			size_t len = strcspn(path, "/");
			if (len == 0 || len > HTTP_PARAM_LEN_MAX || n >= HTTP_PARAMS_MAX)
				return false;
			if (params)
				snprintf(params[n], HTTP_PATH_MAX, "%.*s", (int)len, path);
			n++;
			path += len;
			pattern += strcspn(pattern, "}");
			if (*pattern)
				pattern++;
			continue;
		}
		if (*pattern++ != *path++)
			return false;
	}
	return *path == 0;
}

static const struct http_route *route_find(struct http_server *s, const char *method,
					   struct http_request *r, bool *ret_path_known)
{
	*ret_path_known = false;
	for (const struct http_route *route = s->config.routes; route && route->path; route++) {
		if (!path_match(route->path, r->path, NULL))
			continue;
		*ret_path_known = true;
		if (strcmp(route->method, method) != 0)
			continue;
		path_match(route->path, r->path, r->params);
		return route;
	}
	return NULL;
}

static int queries_read(struct lws *wsi, struct http_request *r)
{
	char buf[HTTP_QUERY_LEN_MAX];
	for (int i = 0; i < HTTP_QUERIES_MAX; i++) {
		int n = lws_hdr_copy_fragment(wsi, buf, sizeof(buf), WSI_TOKEN_HTTP_URI_ARGS, i);
		if (n < 0)
			break;
		r->queries[r->queries_count] = strndup(buf, (size_t)n);
		if (!r->queries[r->queries_count++])
			return -ENOMEM;
	}
	return 0;
}

static int64_t content_length(struct lws *wsi)
{
	char text[24];
	uint64_t len;
	if (lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH) == 0)
		return -1;
	if (lws_hdr_copy(wsi, text, sizeof(text), WSI_TOKEN_HTTP_CONTENT_LENGTH) <= 0 ||
	    parse_u64(text, &len) < 0 || len > INT64_MAX)
		return -2;
	return (int64_t)len;
}

static struct http_request *request_new(struct http_conn *c, const char *path, size_t path_len)
{
	struct http_request *r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->conn = c;
	r->server = c->server;
	r->peer = c->peer;
	r->uid = c->uid;
	memcpy(r->address, c->address, sizeof(r->address));
	r->file_fd = r->out_fd = -1;
	snprintf(r->path, sizeof(r->path), "%.*s", (int)MIN(path_len, sizeof(r->path) - 1), path);
	c->request = r;
	return r;
}

static void request_dispatch(struct http_request *r)
{
	r->dispatched = true;
	if (r->route->flags & HTTP_BODY_JSON && r->body.len > 0) {
		json_error_t error;
		if (memchr(r->body.data, 0, r->body.len)) {
			http_reply_error(r, 400, "the body holds a NUL byte");
			return;
		}
		r->json = json_loadb(r->body.data, r->body.len,
				     JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
		if (!r->json) {
			http_reply_error(r, 400, "the body is no JSON: line %d, column %d: %s",
					 error.line, error.column, error.text);
			return;
		}
	}
	r->route->handle(r, r->server->config.user);
}

static int spool_open(struct http_request *r)
{
	if (!r->server->spool_dir)
		return -EOPNOTSUPP;
	int n = snprintf(r->file_path, sizeof(r->file_path), "%s/in-XXXXXX", r->server->spool_dir);
	if (n < 0 || (size_t)n >= sizeof(r->file_path))
		return -ENAMETOOLONG;
	r->file_fd = mkostemp(r->file_path, O_CLOEXEC);
	if (r->file_fd < 0) {
		r->file_path[0] = 0;
		return -errno;
	}
	r->file_md = EVP_MD_CTX_new();
	if (!r->file_md || !EVP_DigestInit_ex(r->file_md, EVP_sha256(), NULL))
		return -ENOMEM;
	return 0;
}

static int spool_write(struct http_request *r, const char *bytes, size_t len)
{
	size_t at = 0;
	while (at < len) {
		ssize_t n = write(r->file_fd, bytes + at, len - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += (size_t)n;
	}
	return EVP_DigestUpdate(r->file_md, bytes, len) ? 0 : -EIO;
}

static int spool_finish(struct http_request *r)
{
	uint8_t digest[EVP_MAX_MD_SIZE];
	unsigned len = 0;
	if (!EVP_DigestFinal_ex(r->file_md, digest, &len))
		return -EIO;
	hex_encode(digest, len, r->file_sha256);
	return fsync(r->file_fd) < 0 ? -errno : 0;
}

/* A page of another site, in the same browser, may send requests here: by a name of its own that
 * leads to this address (Host), or across sites (Origin). Neither is ours. */
static bool from_our_page(struct http_server *s, struct lws *wsi)
{
	char ip[32], name[32], host[64], origin[96];
	(void)snprintf(ip, sizeof(ip), "127.0.0.1:%u", http_server_port(s));
	(void)snprintf(name, sizeof(name), "localhost:%u", http_server_port(s));
	if (lws_hdr_copy(wsi, host, sizeof(host), WSI_TOKEN_HOST) <= 0 ||
	    (strcmp(host, ip) != 0 && strcmp(host, name) != 0))
		return false;
	if (lws_hdr_total_length(wsi, WSI_TOKEN_ORIGIN) == 0)
		return true;
	return lws_hdr_copy(wsi, origin, sizeof(origin), WSI_TOKEN_ORIGIN) > 0 &&
	       strncmp(origin, "http://", 7) == 0 && strcmp(origin + 7, host) == 0;
}

/* Headers are in. Refusals close the connection, since a body may follow that nobody wants. */
static int on_http(struct http_server *s, struct lws *wsi)
{
	struct http_conn *c = conn_of(wsi);
	if (!c)
		c = conn_new(s, wsi);
	if (!c || c->request || c->socket)
		return -1;
	char *uri = NULL;
	int uri_len = 0;
	int method = lws_http_get_uri_and_method(wsi, &uri, &uri_len);
	if (method < 0 || uri_len <= 0)
		return -1;
	struct http_request *r = request_new(c, uri, (size_t)uri_len);
	if (!r)
		return -1;
	lws_set_timeout(wsi, NO_PENDING_TIMEOUT, 0);
	r->close_after = true; /* until we know that no unread body is in the way */
	r->dispatched = true;

	bool known;
	const char *name = (size_t)method < ARRAY_SIZE(method_names) ? method_names[method] : "?";
	int64_t len = content_length(wsi);
	r->body_len = len < 0 ? 0 : (uint64_t)len;
	if ((size_t)uri_len >= sizeof(r->path)) {
		http_reply_error(r, 414, "the path is longer than %zu bytes", sizeof(r->path) - 1);
		return 0;
	}
	r->route = route_find(s, name, r, &known);
	if (!r->route) {
		http_reply_error(r, known ? 405 : 404, known ? "%s cannot be done with %s" : "nothing is at %s%s",
				 r->path, known ? name : "");
		return 0;
	}
	if (s->config.admit_local && !from_our_page(s, wsi)) {
		http_reply_error(r, 403, "a request for another site, or from one");
		return 0;
	}
	if (s->config.admit_local && http_admit(c, r->route->flags) < 0) {
		http_reply_error(r, 403, "this user may not");
		return 0;
	}
	if (!s->config.admit_local && http_admit(c, r->route->flags) < 0) {
		if (c->peer.role == IDENTITY_NONE)
			http_reply_error(r, 401, "no certificate of this campus: enrol first (reclaim enrol TOKEN)");
		else
			http_reply_error(r, 403, "the certificate of %s \"%s\" is not admitted (revoked?)",
					 identity_role_name(c->peer.role), c->peer.name);
		return 0;
	}
	bool wants_body = strcmp(name, "POST") == 0 || strcmp(name, "PUT") == 0;
	if (len == -2 || (len < 0 && wants_body) ||
	    lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING) > 0) {
		http_reply_error(r, 411, "a Content-Length is needed");
		return 0;
	}
	uint64_t body_max = r->route->body_max;
	if (!(r->route->flags & HTTP_BODY_FILE))
		body_max = MIN(body_max, (uint64_t)HTTP_BODY_MEMORY_MAX);
	if (r->body_len > body_max) {
		http_reply_error(r, 413, "the body is %llu bytes long, at most %llu are taken here",
				 (unsigned long long)r->body_len, (unsigned long long)body_max);
		return 0;
	}
	if (queries_read(wsi, r) < 0)
		return -1;
	if (r->route->flags & HTTP_BODY_FILE) {
		int e = spool_open(r);
		if (e < 0) {
			http_reply_error(r, 507, "no room for the body: %s", strerror(-e));
			return 0;
		}
	}
	r->close_after = false;
	r->dispatched = false;
	if (r->body_len == 0) {
		if (r->file_fd >= 0)
			(void)spool_finish(r);
		request_dispatch(r);
	} else {
		lws_set_timeout(wsi, PENDING_TIMEOUT_HTTP_CONTENT, HANDSHAKE_TIMEOUT_S);
	}
	return 0;
}

static int on_body(struct http_conn *c, const char *bytes, size_t len)
{
	struct http_request *r = c ? c->request : NULL;
	if (!r)
		return -1;
	if (len == 0)
		return 0;
	if (r->dispatched) {
		/* Refused or too long: the answer is on its way, the rest is dropped. */
		r->body_got += len;
		return r->close_after ? 0 : -1;
	}
	r->body_got += len;
	if (r->body_got > r->body_len)
		return -1;
	if (r->file_fd >= 0) {
		if (r->body_error == 0)
			r->body_error = spool_write(r, bytes, len);
	} else if (strbuf_append(&r->body, bytes, len) < 0) {
		return -1;
	}
	return 0;
}

static int on_body_complete(struct http_conn *c)
{
	struct http_request *r = c ? c->request : NULL;
	if (!r)
		return -1;
	if (r->body_len == 0)
		return 0; /* told twice of a body that is empty */
	if (r->dispatched)
		return r->close_after && r->out.len > r->out_at ? 0 : -1;
	if (r->body_got != r->body_len)
		return -1;
	lws_set_timeout(c->wsi, NO_PENDING_TIMEOUT, 0);
	if (r->file_fd >= 0) {
		if (r->body_error == 0)
			r->body_error = spool_finish(r);
		if (r->body_error < 0) {
			r->dispatched = true;
			http_reply_error(r, 507, "the body could not be stored: %s",
					 strerror(-r->body_error));
			return 0;
		}
	}
	request_dispatch(r);
	return 0;
}

/* A WebSocket wants to open: 0 goes on, 1 after an answer of our own. */
static int on_upgrade(struct http_server *s, struct lws *wsi, const char *protocol)
{
	struct http_conn *c = conn_of(wsi);
	if (!c)
		c = conn_new(s, wsi);
	if (!c || c->request || c->socket || !protocol || strcmp(protocol, "websocket") != 0)
		return -1;
	char path[HTTP_PATH_MAX];
	int n = lws_hdr_copy(wsi, path, sizeof(path), WSI_TOKEN_GET_URI);
	if (n <= 0)
		return -1;
	const struct http_socket_route *route = s->config.sockets;
	while (route && route->path && strcmp(route->path, path) != 0)
		route++;
	if (!route || !route->path)
		return lws_return_http_status(wsi, 404, NULL) ? -1 : 1;
	if (http_admit(c, route->flags) < 0)
		return lws_return_http_status(wsi, c->peer.role == IDENTITY_NONE ? 401 : 403, NULL) ?
			       -1 : 1;
	return http_socket_accept(c, route);
}

static int server_tls(struct http_server *s, SSL_CTX *ctx, struct lws_vhost *vhost)
{
	/* The public vhost has the administrator's certificate, loaded by libwebsockets. */
	if (s->config.public_name && strcmp(lws_get_vhost_name(vhost), s->config.public_name) == 0)
		return SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) ? 0 : -1;
	return identity_tls_setup_server(s->config.identity, false, ctx) < 0 ? -1 : 0;
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
		    size_t len)
{
	struct lws_context *context = lws_get_context(wsi);
	struct http_server *s = context ? lws_context_user(context) : NULL;
	if (!s)
		return 0;
	switch (reason) {
	case LWS_CALLBACK_OPENSSL_LOAD_EXTRA_SERVER_VERIFY_CERTS:
		return server_tls(s, user, in);
	case LWS_CALLBACK_FILTER_NETWORK_CONNECTION:
		return s->conns_count >= HTTP_CONNECTIONS_MAX ? 1 : 0;
	case LWS_CALLBACK_HTTP:
		return on_http(s, wsi);
	case LWS_CALLBACK_HTTP_BODY:
		return on_body(conn_of(wsi), in, len);
	case LWS_CALLBACK_HTTP_BODY_COMPLETION:
		return on_body_complete(conn_of(wsi));
	case LWS_CALLBACK_HTTP_WRITEABLE:
		return conn_of(wsi) ? http_reply_pump(conn_of(wsi)) : 0;
	case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE:
		return on_upgrade(s, wsi, in);
	case LWS_CALLBACK_FILTER_PROTOCOL_CONNECTION:
		return conn_of(wsi) && conn_of(wsi)->socket ? 0 : 1;
	case LWS_CALLBACK_ESTABLISHED:
		return conn_of(wsi) ? http_socket_established(conn_of(wsi)) : -1;
	case LWS_CALLBACK_RECEIVE:
		return conn_of(wsi) ? http_socket_receive(conn_of(wsi), in, len) : -1;
	case LWS_CALLBACK_SERVER_WRITEABLE:
		return conn_of(wsi) ? http_socket_pump(conn_of(wsi)) : -1;
	case LWS_CALLBACK_CLOSED:
	case LWS_CALLBACK_CLOSED_HTTP:
	case LWS_CALLBACK_WSI_DESTROY:
		conn_free(conn_of(wsi));
		return 0;
	default:
		return 0;
	}
}

static const struct lws_protocols protocols[] = {
	{ .name = "reclaim", .callback = callback, .rx_buffer_size = 65536 },
	{ 0 },
};

/* Dead peers are found within seconds even when no FIN ever comes. */
static const lws_retry_bo_t idle_policy = {
	.secs_since_valid_ping = 10,
	.secs_since_valid_hangup = 25,
};

static void info_fill(struct http_server *s, struct lws_context_creation_info *info, void **loops)
{
	info->iface = s->config.address && s->config.address[0] ? s->config.address : NULL;
	info->port = s->config.port;
	info->protocols = protocols;
	info->options = LWS_SERVER_OPTION_LIBUV | LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
			LWS_SERVER_OPTION_CREATE_VHOST_SSL_CTX |
			LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_SKIP_SERVER_CANONICAL_NAME |
			LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND;
	if (s->config.admit_local) {
		info->iface = "127.0.0.1";
		info->options |= LWS_SERVER_OPTION_DISABLE_IPV6; /* else it would be ::ffff:127.0.0.1 */
		info->options &= ~(uint64_t)(LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT |
					     LWS_SERVER_OPTION_CREATE_VHOST_SSL_CTX);
	}
	info->foreign_loops = loops;
	info->user = s;
	info->gid = (gid_t)-1;
	info->uid = (uid_t)-1;
	info->alpn = "http/1.1";
	info->max_http_header_data = HEADER_MAX;
	info->pt_serv_buf_size = HTTP_SERVICE_BUFFER;
	info->provided_client_ssl_ctx = s->client_tls;
	info->timeout_secs = HANDSHAKE_TIMEOUT_S;
	info->keepalive_timeout = KEEPALIVE_IDLE_S;
	info->timeout_secs_ah_idle = 30 * 86400; /* an event stream holds its headers all the while */
	info->retry_and_idle_policy = &idle_policy;
	info->ka_time = 15;
	info->ka_interval = 5;
	info->ka_probes = 3;
}

void http_lws_log(void)
{
	static bool done;
	if (done)
		return;
	done = true;
	/* libwebsockets talks to stderr by itself; errors that matter come back as results. */
	lws_set_log_level(getenv("RECLAIM_LWS_DEBUG") ? LLL_ERR | LLL_WARN | LLL_NOTICE | LLL_INFO : 0,
			  NULL);
}

int http_server_open(struct loop *l, const struct http_server_config *config,
		     struct http_server **ret, struct diag *diag)
{
	struct http_server *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->loop = l;
	s->config = *config;
	s->spool_dir = config->spool_dir ? strdup(config->spool_dir) : NULL;
	s->client_tls = SSL_CTX_new(TLS_client_method());
	if (!s->client_tls) {
		http_server_close(s);
		return -ENOMEM;
	}
	http_lws_log();

	struct lws_context_creation_info info = { 0 };
	void *loops[1] = { loop_uv(l) };
	info_fill(s, &info, loops);
	info.pcontext = &s->context;
	s->context = lws_create_context(&info);
	if (!s->context) {
		diag_set(diag, -EIO, "server", "libwebsockets cannot start (is its libuv plug-in installed?)");
		goto bad;
	}
	info.vhost_name = "reclaim";
	s->vhost = lws_create_vhost(s->context, &info);
	if (!s->vhost) {
		diag_set(diag, -EADDRINUSE, "listen", "cannot listen on %s port %u",
			 info.iface ? info.iface : "any address", config->port);
		goto bad;
	}
	if (config->public_name) {
		info.vhost_name = config->public_name;
		info.port = http_server_port(s);
		info.ssl_cert_filepath = config->public_cert;
		info.ssl_private_key_filepath = config->public_key;
		if (!lws_create_vhost(s->context, &info)) {
			diag_set(diag, -EINVAL, "public",
				 "cannot serve \"%s\": are %s and %s a certificate and its key?",
				 config->public_name, config->public_cert, config->public_key);
			goto bad;
		}
	}
	*ret = s;
	return 0;
bad:
	http_server_close(s);
	return -EADDRINUSE;
}

void http_server_close(struct http_server *s)
{
	if (!s)
		return;
	if (s->context) {
		lws_context_destroy(s->context);
		/* libuv closes handles a turn later; the context goes when the last is closed. */
		for (int i = 0; i < 64 && s->context; i++)
			uv_run(loop_uv(s->loop), UV_RUN_NOWAIT);
		if (s->context)
			lws_context_destroy(s->context);
	}
	while (s->conns)
		conn_free(s->conns);
	SSL_CTX_free(s->client_tls);
	free(s->spool_dir);
	free(s);
}

uint16_t http_server_port(const struct http_server *s)
{
	return (uint16_t)lws_get_vhost_listen_port(s->vhost);
}

void http_server_drop_peer(struct http_server *s, const char *serial)
{
	for (struct http_conn *c = s->conns; c; c = c->next)
		if (strcmp(c->peer.serial, serial) == 0)
			lws_set_timeout(c->wsi, PENDING_TIMEOUT_CLOSE_SEND, LWS_TO_KILL_ASYNC);
}
