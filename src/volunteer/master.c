/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See master.h. Members are volunteers that hold a socket, or whose socket's
 * server went down while their channel stood. In named mode they get their places
 * from master_places.c; in local mode offers go into the tree at the root and find
 * their own way.
 */
#include "volunteer/master.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "volunteer/master_internal.h"
#include "volunteer/sdp.h"

#define TICK_MS 100u
#define PING_MS 3000u       /* a suspect must answer within; a busy machine is slow, not dead */
#define SUSPECT_MS 2000u    /* heard more recently than that: no suspect */
/* Where no channel could be made another one is tried after this, then twice as late each time. */
#define RETRY_MIN_MS 5000u
#define RETRY_MAX_MS 300000u
#define HELLO_MS 10000u     /* a socket that does not join is closed */

static const struct node_ops root_ops;
static const struct rtc_ops child_ops;

uint64_t master_now_ms(const struct master *m)
{
	return loop_now_ns(m->loop) / NS_PER_MS;
}

struct master_member *master_find(const struct master *m, uint64_t node)
{
	return map_get(m->by_node, &node, sizeof(node));
}

void master_send(struct master *m, struct master_member *v, const struct signal *s)
{
	CLEANUP_FREE char *text = v->socket ? signal_encode(s) : NULL;
	if (text)
		(void)v->ops->send(v->socket, text, strlen(text)); /* a full one is closed there */
}

/* ---- the root's channels ---- */

static void child_forget(struct master *m, int slot)
{
	struct master_child *c = &m->children[slot];
	if (c->channel)
		rtc_channel_close(TAKE(c->channel));
}

int master_root_answer(struct master *m, int slot, const char *offer, size_t len,
		       struct strbuf *ret_sdp, struct diag *diag)
{
	child_forget(m, slot);
	struct master_child *c = &m->children[slot];
	return rtc_answer(m->rtc, offer, len, &child_ops, c, ret_sdp, &c->channel, diag);
}

static void child_open(void *user)
{
	struct master_child *c = user;
	node_link_up(c->master->root, c->slot, master_now_ms(c->master));
}

static void child_message(void *user, const void *bytes, size_t len)
{
	struct master_child *c = user;
	node_input(c->master->root, c->slot, bytes, len, master_now_ms(c->master));
}

static void child_closed(void *user, const char *why)
{
	struct master_child *c = user;
	(void)why;
	c->channel = NULL;
	node_link_down(c->master->root, c->slot, master_now_ms(c->master));
}

static const struct rtc_ops child_ops = { child_open, child_message, child_closed };

static void root_send(void *user, int link, const void *bytes, size_t len)
{
	struct master *m = user;
	if (link >= 0 && m->children[link].channel)
		(void)rtc_send(m->children[link].channel, bytes, len); /* a broken one is closed */
}

static void root_close(void *user, int link)
{
	struct master *m = user;
	if (link >= 0)
		child_forget(m, link);
}

static void root_child_changed(void *user, bool up, uint64_t child, uint32_t generation)
{
	struct master *m = user;
	struct master_member *v = master_find(m, child);
	(void)generation;
	if (up || !v)
		return;
	v->via_tree = false;
	if (m->tree && tree_detached(m->tree, child, master_now_ms(m)) == 0)
		master_repairs(m);
}

static void root_take_offer(void *user, int slot, uint64_t origin, const void *sdp, size_t len)
{
	struct master *m = user;
	struct strbuf answer = STRBUF_INIT;
	(void)origin;
	if (master_root_answer(m, slot, sdp, len, &answer, NULL) < 0)
		m->stats.refused++; /* the candidate runs out */
	else
		node_answer_made(m->root, slot, answer.data, answer.len, master_now_ms(m));
	strbuf_done(&answer);
}

static void local_answer(struct master *m, const struct frame *f)
{
	struct master_member *v = master_find(m, f->node);
	CLEANUP_FREE char *sdp = v ? strndup((const char *)f->bytes, f->len) : NULL;
	struct signal s = { .type = SIGNAL_ANSWER, .generation = f->generation, .sdp = sdp };
	if (sdp)
		master_send(m, v, &s);
}

static void root_arrived(void *user, int link, const struct frame *f)
{
	struct master *m = user;
	(void)link;
	if (f->type == FRAME_SIGNAL)
		local_answer(m, f);
	else
		master_frame(m, NULL, f);
}

static void root_nothing(void *user, uint64_t value)
{
	(void)user, (void)value;
}

static const struct node_ops root_ops = {
	.send = root_send, .close = root_close, .child_changed = root_child_changed,
	.take_offer = root_take_offer, .arrived = root_arrived, .cancel = root_nothing,
};

/* ---- members ---- */

static void member_left(struct master *m, struct master_member *v)
{
	if (!v->joined)
		return;
	v->joined = false;
	m->stats.volunteers--;
	m->stats.pages -= v->kind == SIGNAL_PAGE;
	m->stats.natives -= v->kind == SIGNAL_NATIVE;
	lend_leave(m->lend, v->node, master_now_ms(m));
	if (!m->tree) { /* the root's own child: its slot is refilled by the rule */
		int slot = -1;
		for (uint32_t i = 0; i < m->config.degree; i++) {
			if (m->children[i].channel && v->via_tree &&
			    route_parent(v->position, m->config.degree) == 0 &&
			    v->position == i + 1)
				slot = (int)i;
		}
		if (slot >= 0) {
			child_forget(m, slot);
			node_link_down(m->root, slot, master_now_ms(m));
		}
	}
	master_leave_tree(m, v);
	if (m->ops->volunteers)
		m->ops->volunteers(m->user, m->stats.volunteers);
	master_pump(m);
}

static void member_free(struct master *m, struct master_member *v)
{
	for (size_t i = 0; i < m->ack_list.count; i++) {
		if (m->ack_list.data[i] == v) {
			VEC_SWAP_REMOVE(&m->ack_list, i);
			break;
		}
	}
	if (v->node && master_find(m, v->node) == v)
		(void)map_remove(m->by_node, &v->node, sizeof(v->node));
	if (v->prev)
		v->prev->next = v->next;
	else
		m->members = v->next;
	if (v->next)
		v->next->prev = v->prev;
	master_member_parts_done(v);
	VEC_DONE(&v->acks);
	free(v->offer);
	free(v);
}

int master_socket_open(struct master *m, const struct master_socket_ops *ops, void *socket,
		       struct master_member **ret)
{
	if (map_count(m->by_node) >= MASTER_MEMBERS_MAX)
		return -EUSERS;
	struct master_member *v = calloc(1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	v->ops = ops;
	v->socket = socket;
	v->heard_ms = master_now_ms(m);
	v->next = m->members;
	if (v->next)
		v->next->prev = v;
	m->members = v;
	*ret = v;
	return 0;
}

void master_socket_closed(struct master *m, struct master_member *v)
{
	v->socket = NULL;
	member_left(m, v);
	member_free(m, v);
}

void master_socket_abandon(struct master_member *v)
{
	v->socket = NULL;
}

static void drop(struct master *m, struct master_member *v, const char *what)
{
	struct signal s = { .type = SIGNAL_ERROR, .what = (char *)what };
	if (what)
		master_send(m, v, &s);
	void *socket = TAKE(v->socket);
	if (socket)
		v->ops->close(socket);
	master_socket_closed(m, v);
}

/* Not heard for a while though somebody depends on it: it must answer soon, or it has left. */
void master_suspect(struct master *m, struct master_member *v)
{
	uint64_t now = master_now_ms(m);
	if (v->ping_ms || now < v->heard_ms + SUSPECT_MS)
		return;
	struct signal s = { .type = SIGNAL_PING };
	v->ping_ms = now;
	master_send(m, v, &s);
}

static void send_welcome(struct master *m, struct master_member *v)
{
	struct signal s = { .type = SIGNAL_WELCOME, .version = SIGNAL_VERSION, .node = v->node,
			    .degree = m->config.degree, .mode = (int)m->config.mode,
			    .job = m->config.job };
	master_send(m, v, &s);
}

/* The same secret gives the same number, so that a second attempt makes no second node. */
static uint64_t number_of(const struct master *m, const char *token)
{
	uint64_t node = hash_sip24(token, strlen(token), m->secret[0], m->secret[1]);
	return node ? node : 1;
}

static void local_offer(struct master *m, struct master_member *v, const char *sdp,
			uint32_t generation, uint64_t position)
{
	uint8_t bytes[FRAME_MAX];
	struct frame f = { .type = FRAME_SIGNAL, .peer = v->node, .target = position,
			   .position = ROUTE_ANYWHERE, .generation = generation,
			   .bytes = (const uint8_t *)sdp, .len = strlen(sdp) };
	if (f.len > FRAME_SIGNAL_MAX) {
		m->stats.refused++;
		return;
	}
	node_signal(m->root, bytes, frame_encode(&f, NULL, bytes), master_now_ms(m));
}

/* Its old socket fell with the server that held it; its channel may stand: nothing else changes. */
static void adopt(struct master *m, struct master_member *v, struct master_member *old)
{
	master_flush_acks(m); /* whose list points to the old one */
	v->node = old->node;
	v->joined = v->via_tree = v->adopted = true;
	v->kind = old->kind;
	v->got_result = old->got_result;
	v->counted = old->counted;
	v->generation = old->generation;
	v->position = old->position;
	v->parts.data = TAKE(old->parts.data);
	v->parts.count = old->parts.count;
	v->parts.cap = old->parts.cap;
	old->parts.count = old->parts.cap = 0;
	old->joined = false;
	void *value = NULL;
	CHECK(map_set(m->by_node, &v->node, sizeof(v->node), v, &value) == 0 && value == old);
	member_free(m, old);
	lend_alive(m->lend, v->node, master_now_ms(m));
	send_welcome(m, v);
}

static void on_join(struct master *m, struct master_member *v, struct signal *s)
{
	size_t invite_len = s->invite ? strlen(s->invite) : 0;
	if (s->version != SIGNAL_VERSION) {
		m->stats.refused_joins++;
		drop(m, v, "another version of the protocol: load the page again");
		return;
	}
	if (invite_len != strlen(m->invite) || CRYPTO_memcmp(s->invite, m->invite, invite_len) != 0 ||
	    !s->token || strlen(s->token) < 16) {
		m->stats.refused_joins++;
		drop(m, v, "the invitation is not valid any more");
		return;
	}
	uint64_t node = number_of(m, s->token);
	struct master_member *old = master_find(m, node);
	if (old && !old->socket && old->joined && old->via_tree) {
		adopt(m, v, old);
		return;
	}
	if (old) /* the same node by a new socket: its old one is dead, known or not */
		drop(m, old, "joined again elsewhere");
	v->node = node;
	if (map_insert(m->by_node, &v->node, sizeof(v->node), v) < 0 ||
	    lend_join(m->lend, node, master_now_ms(m)) < 0) {
		drop(m, v, "the master has no memory left");
		return;
	}
	v->joined = true;
	v->kind = s->kind;
	m->stats.joins++;
	m->stats.volunteers++;
	m->stats.pages += v->kind == SIGNAL_PAGE;
	m->stats.natives += v->kind == SIGNAL_NATIVE;
	if (!m->first_join_ms)
		m->first_join_ms = master_now_ms(m);
	send_welcome(m, v);
	if (m->config.relay_only || !s->sdp) {
		master_relay(m, v, s->sdp ? "this map works without direct channels"
					  : "this volunteer offers no direct channel");
	} else if (m->tree) {
		v->offer = TAKE(s->sdp);
		master_wait_for_place(m, v);
		master_place_waiting(m);
	} else {
		local_offer(m, v, s->sdp, (uint32_t)s->generation, ROUTE_ANYWHERE);
	}
	if (m->ops->volunteers)
		m->ops->volunteers(m->user, m->stats.volunteers);
}

static void on_offer(struct master *m, struct master_member *v, struct signal *s)
{
	if (!s->sdp)
		return;
	if (!m->tree) {
		local_offer(m, v, s->sdp, (uint32_t)s->generation, ROUTE_ANYWHERE);
		return;
	}
	struct tree_place place;
	if (s->generation != v->generation || tree_where(m->tree, v->node, &place) < 0)
		return; /* overtaken by a later attach */
	free(v->offer);
	v->offer = TAKE(s->sdp);
	enum tree_state state = tree_state(m->tree, v->node);
	if (state == TREE_ATTACHED)
		return;
	if (tree_target(m->tree, v->node, &place) == 0 && place.generation == v->generation)
		master_deliver_offer(m, v, &place);
}

static void on_answer(struct master *m, struct master_member *v, struct signal *s)
{
	struct master_member *child = master_find(m, s->node);
	struct tree_place place;
	/* Only the parent that was named may answer for that place. */
	if (!child || !s->sdp || !m->tree || tree_target(m->tree, child->node, &place) < 0 ||
	    place.parent != v->node || place.generation != s->generation) {
		m->stats.refused += child != NULL;
		return;
	}
	struct signal out = { .type = SIGNAL_ANSWER, .generation = place.generation,
			      .position = place.position, .sdp = s->sdp };
	master_send(m, child, &out);
}

static void on_failed(struct master *m, struct master_member *v, const struct signal *s)
{
	if (m->tree && s->generation != v->generation)
		return;
	/* Its place goes to somebody else; it goes on over its socket, as a leaf of nobody. */
	master_leave_tree(m, v);
	master_relay(m, v, "no direct channel could be made");
	v->retry_pause_ms = v->retry_pause_ms ? 2 * v->retry_pause_ms : RETRY_MIN_MS;
	v->retry_pause_ms = MIN(v->retry_pause_ms, (uint64_t)RETRY_MAX_MS);
	v->retry_ms = master_now_ms(m) + v->retry_pause_ms;
}

static void on_lost(struct master *m, struct master_member *v, uint64_t child)
{
	struct master_member *c = master_find(m, child);
	struct tree_place place;
	if (!c || !m->tree || tree_where(m->tree, child, &place) < 0 || place.parent != v->node)
		return;
	c->via_tree = false;
	if (tree_detached(m->tree, child, master_now_ms(m)) == 0)
		master_repairs(m);
	master_suspect(m, c);
}

void master_detached(struct master *m, struct master_member *v)
{
	struct tree_place place;
	v->via_tree = false;
	if (!m->tree || tree_where(m->tree, v->node, &place) < 0)
		return;
	struct master_member *p = master_find(m, place.parent);
	uint64_t parent = place.parent;
	if (tree_detached(m->tree, v->node, master_now_ms(m)) == 0)
		master_repairs(m);
	if (p && parent != m->root_id)
		master_suspect(m, p);
}

static void on_frame(struct master *m, struct master_member *v, const char *data)
{
	uint8_t bytes[FRAME_MAX + 16];
	struct frame f;
	long len = data ? base64_decode(data, strlen(data), bytes, sizeof(bytes)) : -EINVAL;
	if (len < 0 || frame_decode(bytes, (size_t)len, &f) < 0) {
		m->stats.refused++;
		return;
	}
	if (f.type == FRAME_SIGNAL && (f.flags & FRAME_ANSWER))
		local_answer(m, &f);
	else if (f.type == FRAME_SIGNAL && f.peer == v->node && !m->tree)
		node_signal(m->root, bytes, (size_t)len, master_now_ms(m));
	else if (f.type != FRAME_CREDIT && f.type != FRAME_BYE)
		master_frame(m, v, &f);
}

void master_socket_text(struct master *m, struct master_member *v, const char *text, size_t len)
{
	struct signal s;
	struct diag diag = DIAG_INIT;
	if (signal_decode(text, len, &s, &diag) < 0) {
		m->stats.refused++;
		drop(m, v, diag.what);
		return;
	}
	v->heard_ms = master_now_ms(m);
	v->ping_ms = 0;
	if (!v->joined && s.type != SIGNAL_JOIN) {
		m->stats.refused++;
		signal_done(&s);
		drop(m, v, "join first");
		return;
	}
	switch (s.type) {
	case SIGNAL_JOIN:
		if (v->joined)
			m->stats.refused++;
		else
			on_join(m, v, &s);
		break;
	case SIGNAL_OFFER:
		on_offer(m, v, &s);
		break;
	case SIGNAL_ANSWER:
		on_answer(m, v, &s);
		break;
	case SIGNAL_DETACHED:
		master_detached(m, v);
		break;
	case SIGNAL_LOST:
		on_lost(m, v, s.node);
		break;
	case SIGNAL_FAILED:
		on_failed(m, v, &s);
		break;
	case SIGNAL_FRAME:
		on_frame(m, v, s.data);
		break;
	case SIGNAL_LEAVE:
		member_left(m, v);
		break;
	case SIGNAL_PONG:
		break;
	default:
		m->stats.refused++;
		break;
	}
	signal_done(&s);
}

/* ---- the tick ---- */

static void look_at_members(struct master *m)
{
	uint64_t now = master_now_ms(m);
	struct master_member *next;
	for (struct master_member *v = m->members; v; v = next) {
		next = v->next;
		if (v->ping_ms && now >= v->ping_ms + PING_MS)
			drop(m, v, NULL); /* no word: if it was only slow, it comes back by itself */
		else if (!v->joined && now >= v->heard_ms + HELLO_MS)
			drop(m, v, "did not join in time");
		else if (v->joined && lend_silent(m->lend, v->node, now))
			master_suspect(m, v);
		else if (m->tree && v->joined && v->relay && v->retry_ms && now >= v->retry_ms) {
			v->retry_ms = 0;
			master_wait_for_place(m, v);
		}
	}
}

static void on_tick(void *user)
{
	struct master *m = user;
	(void)loop_timer_in(&m->tick, TICK_MS * NS_PER_MS); /* armed before */
	node_tick(m->root, master_now_ms(m));
	master_expire_places(m);
	if (++m->ticks % 5 == 0)
		look_at_members(m);
	master_work_tick(m);
	m->ops->progress(m->user);
}

static void on_flush(void *user)
{
	master_flush_acks(user);
}

/* ---- whole ---- */

static int make_invite(struct master *m)
{
	static const char alphabet[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	uint8_t bytes[MASTER_INVITE_LEN];
	int r = random_bytes(bytes, sizeof(bytes));
	for (size_t i = 0; r == 0 && i < MASTER_INVITE_LEN; i++)
		m->invite[i] = alphabet[bytes[i] & 63];
	return r;
}

static int master_setup(struct master *m, struct diag *diag)
{
	int r = random_bytes(m->secret, sizeof(m->secret));
	if (r == 0)
		r = random_bytes(&m->root_id, sizeof(m->root_id));
	m->root_id |= 1;
	if (r == 0 && m->config.invite && strlen(m->config.invite) <= MASTER_INVITE_LEN)
		strcpy(m->invite, m->config.invite);
	else if (r == 0)
		r = make_invite(m);
	if (r == 0)
		r = map_new(&m->by_node);
	if (r == 0)
		r = lend_new(&m->config.lend, &m->lend);
	if (r == 0)
		r = node_new(m->root_id, m->config.degree, m->config.mode, &root_ops, m, &m->root);
	if (r == 0 && m->config.mode == ROUTE_NAMED)
		r = tree_new(m->root_id, m->config.degree, &m->tree);
	if (r < 0)
		return diag_set(diag, r, "master", "%s", strerror(-r));
	node_set_root(m->root);
	m->children = calloc(m->config.degree, sizeof(*m->children));
	if (!m->children)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->config.degree; i++)
		m->children[i] = (struct master_child){ .master = m, .slot = (int)i };
	return rtc_open(m->loop, &m->config.rtc, &m->rtc, diag);
}

int master_new(struct loop *l, const struct master_config *config, const struct master_ops *ops,
	       void *user, struct master **ret, struct diag *diag)
{
	struct master *m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->loop = l;
	m->config = *config;
	m->ops = ops;
	m->user = user;
	loop_timer_init(&m->tick, l, on_tick, m);
	loop_timer_init(&m->flush, l, on_flush, m);
	int r = master_setup(m, diag);
	if (r == 0)
		r = loop_timer_in(&m->tick, TICK_MS * NS_PER_MS);
	if (r < 0) {
		master_free(m);
		return r;
	}
	json_incref(m->config.job);
	*ret = m;
	return 0;
}

void master_free(struct master *m)
{
	if (!m)
		return;
	loop_timer_stop(&m->tick);
	loop_timer_stop(&m->flush);
	while (m->members) {
		struct master_member *v = m->members;
		void *socket = TAKE(v->socket);
		if (socket)
			v->ops->close(socket);
		member_free(m, v);
	}
	rtc_close(m->rtc);
	node_free(m->root);
	tree_free(m->tree);
	lend_free(m->lend);
	map_free(m->by_node);
	VEC_DONE(&m->waiting);
	VEC_DONE(&m->ack_list);
	free(m->children);
	json_decref(m->config.job);
	free(m);
}

struct lend *master_lend(struct master *m)
{
	return m->lend;
}

const struct rtc *master_rtc(const struct master *m)
{
	return m->rtc;
}

const char *master_invite(const struct master *m)
{
	return m->invite;
}

void master_finish(struct master *m, const char *what)
{
	struct signal s = { .type = SIGNAL_DONE, .what = (char *)what };
	master_flush_acks(m);
	for (struct master_member *v = m->members; v; v = v->next)
		master_send(m, v, &s);
}

void master_stats(const struct master *m, struct master_stats *ret)
{
	*ret = m->stats;
	for (const struct master_member *v = m->members; v; v = v->next) {
		ret->channels += v->joined && v->via_tree;
		ret->relayed += v->joined && v->relay;
	}
	if (m->last_connected_ms && m->first_join_ms)
		ret->all_connected_s = (double)(m->last_connected_ms - m->first_join_ms) / 1000;
	lend_stats(m->lend, &ret->lend);
	rtc_stats(m->rtc, &ret->rtc);
	node_stats(m->root, &ret->root);
}

size_t master_levels(const struct master *m, size_t *levels, size_t levels_cap)
{
	if (m->tree)
		return tree_levels(m->tree, levels, levels_cap);
	size_t count = 0;
	memset(levels, 0, levels_cap * sizeof(*levels));
	for (const struct master_member *v = m->members; v; v = v->next) {
		size_t depth = v->via_tree ? route_depth(v->position, m->config.degree) : levels_cap;
		if (depth >= levels_cap)
			continue;
		levels[depth]++;
		count = MAX(count, depth + 1);
	}
	return count;
}

json_t *master_describe(const struct master *m)
{
	static const char *const states[TREE_STATE_COUNT] = { "absent", "connecting", "attached",
							       "moving", "orphan" };
	json_t *list = json_array();
	for (const struct master_member *v = m->members; list && v; v = v->next) {
		char node[24];
		if (!v->joined)
			continue;
		(void)snprintf(node, sizeof(node), "%llu", (unsigned long long)v->node);
		json_t *row = json_pack("{s:s, s:I, s:s, s:s, s:s}", "node", node, "position",
			(json_int_t)(v->via_tree ? v->position : 0), "kind",
			v->kind == SIGNAL_PAGE ? "page" : "native", "state",
			m->tree ? states[tree_state(m->tree, v->node)] : "attached", "via",
			v->via_tree ? "tree" : "socket");
		(void)json_array_append_new(list, row); /* NULL is refused: the row is left out */
	}
	return list;
}
