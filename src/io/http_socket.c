/* SPDX-License-Identifier: Apache-2.0 */
/* WebSockets of the server: assembling messages, the send queue and its limit. */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "io/http_internal.h"

/* One message waiting to be sent; libwebsockets wants LWS_PRE bytes of room before it. */
struct http_frame {
	struct http_frame *next;
	size_t len;
	unsigned char bytes[];
};

int http_socket_accept(struct http_conn *c, const struct http_socket_route *route)
{
	struct http_socket *s = calloc(1, sizeof(*s));
	if (!s)
		return -1;
	s->conn = c;
	s->route = route;
	s->out_tail = &s->out_head;
	for (int i = 0; i < HTTP_QUERIES_MAX; i++) {
		int n = lws_hdr_copy_fragment(c->wsi, s->query[i], HTTP_QUERY_LEN_MAX,
					      WSI_TOKEN_HTTP_URI_ARGS, i);
		if (n < 0)
			break;
		s->queries_count++;
	}
	c->socket = s;
	return 0;
}

int http_socket_established(struct http_conn *c)
{
	struct http_socket *s = c->socket;
	if (!s)
		return -1;
	lws_set_timeout(c->wsi, NO_PENDING_TIMEOUT, 0);
	s->open = true;
	if (s->route->on_open && s->route->on_open(s, c->server->config.user) < 0) {
		s->open = false;
		return -1;
	}
	return 0;
}

int http_socket_receive(struct http_conn *c, const char *bytes, size_t len)
{
	struct http_socket *s = c->socket;
	if (!s || !s->open)
		return -1;
	if (s->closing) /* what is said from here on is not heard; what waits still goes out */
		return 0;
	if (s->in.len + len > s->route->message_max) {
		lws_close_reason(c->wsi, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, NULL, 0);
		return -1;
	}
	if (strbuf_append(&s->in, bytes, len) < 0)
		return -1;
	if (!lws_is_final_fragment(c->wsi) || lws_remaining_packet_payload(c->wsi) > 0)
		return 0;
	if (s->route->on_message)
		s->route->on_message(s, s->in.data ? s->in.data : "", s->in.len,
				     c->server->config.user);
	strbuf_clear(&s->in);
	return s->closing && !s->out_head ? -1 : 0;
}

int http_socket_pump(struct http_conn *c)
{
	struct http_socket *s = c->socket;
	if (!s)
		return -1;
	struct http_frame *f = s->out_head;
	if (!f)
		return s->closing ? -1 : 0;
	s->out_head = f->next;
	if (!s->out_head)
		s->out_tail = &s->out_head;
	s->out_bytes -= f->len;
	int n = lws_write(c->wsi, f->bytes + LWS_PRE, f->len, LWS_WRITE_TEXT);
	bool short_write = n < (int)f->len;
	free(f);
	if (short_write)
		return -1;
	if (s->out_head || s->closing)
		lws_callback_on_writable(c->wsi);
	return 0;
}

void http_socket_gone(struct http_conn *c)
{
	struct http_socket *s = c->socket;
	c->socket = NULL;
	s->closing = true;
	if (s->open && s->route->on_close)
		s->route->on_close(s, c->server->config.user);
	while (s->out_head) {
		struct http_frame *f = s->out_head;
		s->out_head = f->next;
		free(f);
	}
	strbuf_done(&s->in);
	free(s);
}

const struct identity_peer *http_socket_peer(const struct http_socket *s)
{
	return &s->conn->peer;
}

const char *http_socket_address(const struct http_socket *s)
{
	return s->conn->address;
}

const char *http_socket_query(const struct http_socket *s, const char *name)
{
	size_t len = strlen(name);
	for (size_t i = 0; i < s->queries_count; i++)
		if (strncmp(s->query[i], name, len) == 0 && s->query[i][len] == '=')
			return s->query[i] + len + 1;
	return NULL;
}

void http_socket_set_data(struct http_socket *s, void *data)
{
	s->data = data;
}

void *http_socket_data(const struct http_socket *s)
{
	return s->data;
}

int http_socket_send(struct http_socket *s, const char *text, size_t len)
{
	if (s->closing)
		return -EPIPE;
	struct http_frame *f = s->out_bytes + len <= s->route->queue_max ?
				       malloc(sizeof(*f) + LWS_PRE + len) : NULL;
	if (!f) {
		/* A peer that does not read must not cost memory: it starts anew. */
		http_socket_close(s);
		return -ENOBUFS;
	}
	f->next = NULL;
	f->len = len;
	memcpy(f->bytes + LWS_PRE, text, len);
	*s->out_tail = f;
	s->out_tail = &f->next;
	s->out_bytes += len;
	lws_callback_on_writable(s->conn->wsi);
	return 0;
}

int http_socket_send_json(struct http_socket *s, json_t *message)
{
	CLEANUP_FREE char *text = json_dumps(message, JSON_COMPACT);
	return text ? http_socket_send(s, text, strlen(text)) : -ENOMEM;
}

void http_socket_close(struct http_socket *s)
{
	if (s->closing)
		return;
	s->closing = true;
	lws_callback_on_writable(s->conn->wsi);
	lws_set_timeout(s->conn->wsi, PENDING_TIMEOUT_CLOSE_SEND, 5);
}
