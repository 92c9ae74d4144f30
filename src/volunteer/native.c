/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See native.h. The channel of the parent-to-be is `next` until the node
 * promotes it; children's channels stand by slot.
 */
#include "volunteer/native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/rng.h"
#include "volunteer/door.h"
#include "volunteer/frame.h"
#include "volunteer/signal.h"
#include "volunteer/socket.h"

#define TICK_MS 250u
#define TOKEN_BYTES 16

struct native_channel {
	struct native *native;
	int link;
	uint32_t generation;
	struct rtc_channel *channel;
};

struct native {
	struct loop *loop;
	const struct native_ops *ops;
	void *user;
	char *url, origin[256], invite[SIGNAL_TOKEN_MAX + 1], token[2 * TOKEN_BYTES + 1];
	uint32_t workers;
	bool relay_only, joined, ended, closing;
	struct rtc_config rtc_config;
	struct rtc *rtc;
	struct node *node; /* made at the first welcome */
	uint32_t degree;
	struct socket_client *socket;
	struct native_channel *parent, *next, **children; /* [degree] */
	struct loop_timer tick, retry;
	uint64_t retry_ms;
};

static const struct rtc_ops channel_ops;
static const struct socket_ops socket_ops;

static uint64_t now_ms(const struct native *v)
{
	return loop_now_ns(v->loop) / NS_PER_MS;
}

static void say(struct native *v, const struct signal *s)
{
	CLEANUP_FREE char *text = signal_encode(s);
	if (text && v->socket)
		(void)socket_send(v->socket, text, strlen(text)); /* down: the join says it all anew */
}

/* ---- channels ---- */

static struct native_channel **place_of(struct native *v, int link)
{
	switch (link) {
	case NODE_PARENT:
		return &v->parent;
	case NODE_NEXT:
		return &v->next;
	default:
		return link >= 0 && (uint32_t)link < v->degree ? &v->children[link] : NULL;
	}
}

static void channel_drop(struct native *v, int link)
{
	struct native_channel **at = place_of(v, link);
	if (!at || !*at)
		return;
	rtc_channel_close((*at)->channel);
	free(*at);
	*at = NULL;
}

static struct native_channel *channel_make(struct native *v, int link, uint32_t generation)
{
	struct native_channel **at = place_of(v, link);
	if (!at)
		return NULL;
	channel_drop(v, link);
	*at = calloc(1, sizeof(**at));
	if (*at)
		**at = (struct native_channel){ .native = v, .link = link, .generation = generation };
	return *at;
}

static void channel_open(void *user)
{
	struct native_channel *c = user;
	node_link_up(c->native->node, c->link, now_ms(c->native));
}

static void channel_message(void *user, const void *bytes, size_t len)
{
	struct native_channel *c = user;
	node_input(c->native->node, c->link, bytes, len, now_ms(c->native));
}

static void channel_closed(void *user, const char *why)
{
	struct native_channel *c = user;
	struct native *v = c->native;
	int link = c->link;
	if (link == NODE_NEXT) {
		struct signal s = { .type = SIGNAL_FAILED, .generation = c->generation,
				    .what = (char *)why };
		say(v, &s);
	}
	*place_of(v, link) = NULL;
	free(c);
	node_link_down(v->node, link, now_ms(v));
}

static const struct rtc_ops channel_ops = { channel_open, channel_message, channel_closed };

static void make_offer(struct native *v, uint32_t generation, struct strbuf *ret)
{
	struct native_channel *c = channel_make(v, NODE_NEXT, generation);
	if (c && rtc_offer(v->rtc, &channel_ops, c, ret, &c->channel) < 0) {
		free(c);
		v->next = NULL;
	}
}

static int make_answer(struct native *v, int slot, const char *offer, size_t len,
		       struct strbuf *ret)
{
	struct native_channel *c = channel_make(v, slot, 0);
	int r = c ? rtc_answer(v->rtc, offer, len, &channel_ops, c, ret, &c->channel, NULL) : -ENOMEM;
	if (r < 0 && c) {
		free(c);
		v->children[slot] = NULL;
	}
	return r;
}

/* ---- what the node asks for ---- */

static void node_send(void *user, int link, const void *bytes, size_t len)
{
	struct native *v = user;
	if (link == NODE_SOCKET) {
		char text[(FRAME_MAX + 2) / 3 * 4 + 1];
		struct signal s = { .type = SIGNAL_FRAME, .data = text };
		(void)base64_encode(bytes, len, text);
		say(v, &s);
		return;
	}
	struct native_channel **at = place_of(v, link);
	if (at && *at)
		(void)rtc_send((*at)->channel, bytes, len); /* a broken one is reported by itself */
}

static void node_close(void *user, int link)
{
	channel_drop(user, link);
}

static void node_promote(void *user)
{
	struct native *v = user;
	channel_drop(v, NODE_PARENT);
	v->parent = TAKE(v->next);
	v->parent->link = NODE_PARENT;
}

static void node_compute(void *user, uint64_t value, const void *bytes, size_t len)
{
	struct native *v = user;
	v->ops->compute(v->user, value, bytes, len);
}

static void node_cancel(void *user, uint64_t value)
{
	struct native *v = user;
	v->ops->cancel(v->user, value);
}

static void node_make_offer(void *user, uint32_t generation)
{
	struct native *v = user;
	struct strbuf offer = STRBUF_INIT;
	make_offer(v, generation, &offer);
	if (offer.len > 0)
		node_offer_made(v->node, offer.data, offer.len, now_ms(v));
	strbuf_done(&offer);
}

static void node_take_offer(void *user, int slot, uint64_t origin, const void *sdp, size_t len)
{
	struct native *v = user;
	struct strbuf answer = STRBUF_INIT;
	(void)origin;
	if (make_answer(v, slot, sdp, len, &answer) == 0)
		node_answer_made(v->node, slot, answer.data, answer.len, now_ms(v));
	strbuf_done(&answer);
}

static void node_take_answer(void *user, const void *sdp, size_t len)
{
	struct native *v = user;
	if (v->next)
		(void)rtc_accept(v->next->channel, sdp, len, NULL); /* a second one: the first counts */
}

static void parent_changed(void *user, bool up, uint64_t position, uint32_t generation)
{
	struct native *v = user;
	(void)position, (void)generation;
	if (!up && v->degree) {
		struct signal s = { .type = SIGNAL_DETACHED };
		say(v, &s);
	}
	v->ops->state(v->user, up ? "connected" : "lost its parent");
}

static void child_changed(void *user, bool up, uint64_t child, uint32_t generation)
{
	struct native *v = user;
	struct signal s = { .type = SIGNAL_LOST, .node = child, .generation = generation };
	if (!up)
		say(v, &s);
}

static const struct node_ops node_ops = {
	.send = node_send, .close = node_close, .promote = node_promote, .compute = node_compute,
	.cancel = node_cancel, .make_offer = node_make_offer, .take_offer = node_take_offer,
	.take_answer = node_take_answer, .parent_changed = parent_changed,
	.child_changed = child_changed,
};

/* ---- signalling ---- */

static void on_tick(void *user)
{
	struct native *v = user;
	/* On a common grid, so that many volunteers of one process wake it once. */
	uint64_t grid = TICK_MS / 5 * NS_PER_MS;
	uint64_t at = (loop_now_ns(v->loop) + TICK_MS * NS_PER_MS) / grid * grid;
	(void)loop_timer_at(&v->tick, at); /* armed before */
	if (v->node)
		node_tick(v->node, now_ms(v));
}

static void end(struct native *v, bool done, const char *why)
{
	if (v->ended)
		return;
	v->ended = true;
	loop_timer_stop(&v->retry);
	v->ops->ended(v->user, done, why);
}

static void on_welcome(struct native *v, const struct signal *s)
{
	if (!v->node) {
		v->degree = (uint32_t)s->degree;
		v->children = calloc(v->degree ? v->degree : 1, sizeof(*v->children));
		if (!v->children || v->degree == 0 ||
		    node_new(s->node, v->degree, (enum route_mode)s->mode, &node_ops, v, &v->node) < 0) {
			end(v, false, "no memory, or a master that speaks otherwise");
			return;
		}
		(void)loop_timer_in(&v->tick, TICK_MS * NS_PER_MS); /* no memory: no tick, a stall */
	}
	v->joined = true;
	v->retry_ms = NATIVE_RETRY_MIN_MS;
	if (v->ops->welcome(v->user, s->job) < 0) {
		end(v, false, "cannot compute what this map asks for");
		return;
	}
	node_link_up(v->node, NODE_SOCKET, now_ms(v));
	node_set_workers(v->node, v->workers, now_ms(v));
}

static void on_attach(struct native *v, const struct signal *s)
{
	struct strbuf offer = STRBUF_INIT;
	make_offer(v, (uint32_t)s->generation, &offer);
	node_assigned(v->node, s->position, (uint32_t)s->generation, now_ms(v));
	struct signal out = { .type = SIGNAL_OFFER, .generation = s->generation, .sdp = offer.data };
	if (offer.len > 0)
		say(v, &out);
	strbuf_done(&offer);
}

static void on_offer(struct native *v, const struct signal *s)
{
	struct strbuf answer = STRBUF_INIT;
	int slot = s->sdp ? node_expect(v->node, s->node, s->position, (uint32_t)s->generation, now_ms(v))
			  : -EINVAL;
	if (slot >= 0 && make_answer(v, slot, s->sdp, strlen(s->sdp), &answer) == 0) {
		struct signal out = { .type = SIGNAL_ANSWER, .node = s->node,
				      .generation = s->generation, .sdp = answer.data };
		say(v, &out);
	}
	strbuf_done(&answer);
}

static void on_answer(struct native *v, const struct signal *s)
{
	if (!v->next || !s->sdp)
		return;
	/* The join's own offer went out before there was a generation to name. */
	if (v->next->generation == 0 || v->next->generation == s->generation) {
		if (s->position)
			node_assigned(v->node, s->position, (uint32_t)s->generation, now_ms(v));
		v->next->generation = (uint32_t)s->generation;
		(void)rtc_accept(v->next->channel, s->sdp, strlen(s->sdp), NULL); /* else it times out */
	}
}

static void on_frame(struct native *v, const char *data)
{
	uint8_t bytes[FRAME_MAX + 16];
	long len = data ? base64_decode(data, strlen(data), bytes, sizeof(bytes)) : -1;
	if (len > 0)
		node_input(v->node, NODE_SOCKET, bytes, (size_t)len, now_ms(v));
}

static void on_text(void *user, const char *text, size_t len)
{
	struct native *v = user;
	struct signal s;
	if (signal_decode(text, len, &s, NULL) < 0)
		return;
	struct signal pong = { .type = SIGNAL_PONG };
	if (s.type == SIGNAL_WELCOME)
		on_welcome(v, &s);
	else if (s.type == SIGNAL_ERROR)
		end(v, false, s.what ? s.what : "refused");
	else if (s.type == SIGNAL_PING)
		say(v, &pong);
	else if (v->node && !v->ended)
		switch (s.type) {
		case SIGNAL_ATTACH:
			on_attach(v, &s);
			break;
		case SIGNAL_OFFER:
			on_offer(v, &s);
			break;
		case SIGNAL_ANSWER:
			on_answer(v, &s);
			break;
		case SIGNAL_RELAY:
			node_use_socket(v->node, now_ms(v));
			v->ops->state(v->user, "relayed");
			break;
		case SIGNAL_FRAME:
			on_frame(v, s.data);
			break;
		case SIGNAL_DONE:
			end(v, true, s.what ? s.what : "done");
			break;
		default:
			break;
		}
	signal_done(&s);
}

static void on_up(void *user)
{
	struct native *v = user;
	struct strbuf offer = STRBUF_INIT;
	if (!v->relay_only)
		make_offer(v, 0, &offer);
	struct signal s = { .type = SIGNAL_JOIN, .version = SIGNAL_VERSION, .kind = SIGNAL_NATIVE,
			    .invite = v->invite, .token = v->token, .workers = v->workers,
			    .sdp = offer.data };
	say(v, &s);
	strbuf_done(&offer);
}

static void connect_later(struct native *v)
{
	(void)loop_timer_in(&v->retry, v->retry_ms * NS_PER_MS); /* armed before */
	v->retry_ms = MIN(2 * v->retry_ms, (uint64_t)NATIVE_RETRY_MAX_MS);
}

static void on_down(void *user, const char *why)
{
	struct native *v = user;
	v->socket = NULL;
	if (v->node)
		node_link_down(v->node, NODE_SOCKET, now_ms(v));
	if (v->ended || v->closing)
		return;
	v->ops->state(v->user, why);
	connect_later(v);
}

static const struct socket_ops socket_ops = { on_up, on_text, on_down };

static void connect_now(void *user)
{
	struct native *v = user;
	if (v->socket || v->ended)
		return;
	struct diag diag = DIAG_INIT;
	if (socket_open(v->loop, v->origin, DOOR_SOCKET_PATH, &socket_ops, v, &v->socket, &diag) < 0 &&
	    !loop_timer_armed(&v->retry)) { /* armed: on_down came from within */
		v->ops->state(v->user, diag.what);
		connect_later(v);
	}
}

int native_parse_url(const char *url, char *origin, size_t origin_size, char *invite,
		     size_t invite_size)
{
	const char *hash = strchr(url, '#'), *start = strstr(url, "://");
	if (!hash || !start || strlen(hash + 1) == 0 || strlen(hash + 1) >= invite_size)
		return -EINVAL;
	size_t len = (size_t)(start - url) + 3 + strcspn(start + 3, "/?#");
	if (len >= origin_size)
		return -EINVAL;
	memcpy(origin, url, len);
	origin[len] = '\0';
	memcpy(invite, hash + 1, strlen(hash + 1) + 1);
	return 0;
}

int native_new(struct loop *l, const struct native_config *config, const struct native_ops *ops,
	       void *user, struct native **ret, struct diag *diag)
{
	struct native *v = calloc(1, sizeof(*v));
	uint8_t secret[TOKEN_BYTES];
	if (!v)
		return -ENOMEM;
	v->loop = l;
	v->ops = ops;
	v->user = user;
	v->workers = config->workers;
	v->relay_only = config->relay_only;
	v->rtc_config = config->rtc;
	v->retry_ms = NATIVE_RETRY_MIN_MS;
	loop_timer_init(&v->tick, l, on_tick, v);
	loop_timer_init(&v->retry, l, connect_now, v);
	int r = native_parse_url(config->url, v->origin, sizeof(v->origin), v->invite,
				 sizeof(v->invite));
	if (r < 0)
		diag_set(diag, r, config->url, "not an address with an invitation, like "
			 "https://host:port/#INVITATION");
	if (r == 0)
		r = random_bytes(secret, sizeof(secret));
	if (r == 0 && !v->relay_only)
		r = rtc_open(l, &config->rtc, &v->rtc, diag);
	if (r == 0)
		r = loop_timer_in(&v->retry, 0);
	if (r < 0) {
		native_free(v, false);
		return r;
	}
	hex_encode(secret, sizeof(secret), v->token);
	if (config->token && strlen(config->token) < sizeof(v->token))
		strcpy(v->token, config->token);
	*ret = v;
	return 0;
}

void native_free(struct native *v, bool leave)
{
	if (!v)
		return;
	v->closing = v->ended = true;
	if (v->node && leave) {
		struct signal s = { .type = SIGNAL_LEAVE };
		node_leave(v->node, now_ms(v));
		say(v, &s);
	}
	loop_timer_stop(&v->tick);
	loop_timer_stop(&v->retry);
	socket_close(v->socket);
	channel_drop(v, NODE_PARENT);
	channel_drop(v, NODE_NEXT);
	for (uint32_t i = 0; v->children && i < v->degree; i++)
		channel_drop(v, (int)i);
	rtc_close(v->rtc);
	node_free(v->node);
	free(v->children);
	free(v->url);
	free(v);
}

void native_set_workers(struct native *v, uint32_t workers)
{
	v->workers = workers;
	if (v->node)
		node_set_workers(v->node, workers, now_ms(v));
}

void native_result(struct native *v, uint64_t value, bool failed, const void *bytes, size_t len,
		   uint32_t took_ms)
{
	if (v->node)
		node_result(v->node, value, failed, bytes, len, took_ms, now_ms(v));
}

void native_stats(const struct native *v, struct node_stats *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (v->node)
		node_stats(v->node, ret);
}
