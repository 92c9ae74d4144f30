/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See node.h. Frames come from neighbours and are outside input: what goes up
 * must come from the child in whose subtree it claims to stand, what goes down
 * must come from above, and hello must be from the node that was announced for
 * that slot.
 */
#include "volunteer/node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/node_internal.h"

#define FILL_INNER_MS 5000u
#define FILL_LEAF_MS 2000u
#define SIGNALS_MAX ROUTE_STORED_MAX

int node_new(uint64_t self, uint32_t degree, enum route_mode mode, const struct node_ops *ops,
	     void *user, struct node **ret)
{
	struct node *n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	n->ops = ops;
	n->user = user;
	n->self = self;
	n->position = n->wanted = ROUTE_ANYWHERE;
	link_init(&n->parent);
	link_init(&n->next);
	link_init(&n->socket);
	n->life_ms = NODE_LIFE_MS;
	int r = route_init(&n->route, self, ROUTE_POSITION_MAX, mode, degree);
	if (r == 0) {
		n->child = calloc(degree, sizeof(*n->child));
		n->child_hello_due = calloc(degree, sizeof(*n->child_hello_due));
		n->child_reply = calloc(degree, sizeof(*n->child_reply));
	}
	if (r < 0 || !n->child || !n->child_hello_due || !n->child_reply) {
		node_free(n);
		return r < 0 ? r : -ENOMEM;
	}
	*ret = n;
	return 0;
}

void node_free(struct node *n)
{
	if (!n)
		return;
	link_done(&n->parent);
	link_done(&n->next);
	link_done(&n->socket);
	for (uint32_t i = 0; n->child && i < n->route.degree; i++)
		link_done(&n->child[i]);
	VEC_EACH(&n->stored, s)
		free(s->bytes);
	VEC_DONE(&n->stored);
	node_work_done(n);
	free(n->child);
	free(n->child_hello_due);
	free(n->child_reply);
	route_done(&n->route);
	free(n);
}

struct link *node_link_of(struct node *n, int link)
{
	switch (link) {
	case NODE_PARENT:
		return &n->parent;
	case NODE_NEXT:
		return &n->next;
	case NODE_SOCKET:
		return &n->socket;
	default:
		return link >= 0 && (uint32_t)link < n->route.degree ? &n->child[link] : NULL;
	}
}

int node_uplink(const struct node *n)
{
	if (n->attached)
		return NODE_PARENT;
	return n->socket.up && n->now_ms >= n->socket_from_ms ? NODE_SOCKET : 0;
}

/* Link control goes past the window: it is what moves the window. */
static void send_now(struct node *n, int link, const struct frame *f)
{
	uint8_t buf[FRAME_HEADER + 64];
	size_t len = frame_encode(f, NULL, buf);
	n->ops->send(n->user, link, buf, len);
}

static void send_credit(struct node *n, int link, unsigned flags)
{
	struct link *l = node_link_of(n, link);
	struct frame f = { .type = FRAME_CREDIT, .flags = flags, .node = n->self,
			   .consumed = l->consumed };
	l->told = l->consumed;
	send_now(n, link, &f);
}

static void consumed(struct node *n, int link, size_t len)
{
	struct link *l = link == LINK_NOBODY ? NULL : node_link_of(n, link);
	if (l && l->up && link_consume(l, len))
		send_credit(n, link, 0);
}

void node_flush(struct node *n, int link)
{
	struct link *l = node_link_of(n, link);
	const uint8_t *bytes;
	size_t len;
	int32_t from;
	while (l && (bytes = link_next(l, &len, &from)) != NULL) {
		n->ops->send(n->user, link, bytes, len);
		link_pop(l, n->now_ms);
		consumed(n, from, len);
	}
}

int node_emit(struct node *n, int link, const struct frame *f, const uint64_t *ids)
{
	struct link *l = node_link_of(n, link);
	if (!l || !l->up)
		return -ENOTCONN;
	size_t len = frame_encode(f, ids, n->buf);
	int r = link_push(l, n->buf, len, LINK_NOBODY);
	node_flush(n, link);
	return r;
}

/* Passes a frame on as it is. */
static int relay(struct node *n, int from, int to, const void *bytes, size_t len)
{
	memcpy(n->buf, bytes, len);
	if (!frame_hop(n->buf, len))
		return -ELOOP;
	struct link *l = node_link_of(n, to);
	int r = link_push(l, n->buf, len, from);
	if (r < 0)
		return r;
	n->stats.relayed++;
	node_flush(n, to);
	return 0;
}

/* ---- children ---- */

static void tell_position(struct node *n, uint32_t slot)
{
	const struct route_slot *s = &n->route.slots[slot];
	struct frame f = { .type = FRAME_HELLO_ACK, .node = s->node,
			   .flags = n->route.mode == ROUTE_LOCAL ? FRAME_LOCAL : 0,
			   .position = route_child(n->route.position, n->route.degree, slot),
			   .generation = s->generation, .degree = n->route.degree, .peer = n->self };
	send_now(n, (int)slot, &f);
}

static void set_position(struct node *n, uint64_t position)
{
	if (n->route.position == position)
		return;
	n->route.position = position;
	for (uint32_t i = 0; i < n->route.degree; i++) {
		if (n->route.slots[i].state == SLOT_CHILD)
			tell_position(n, i);
	}
}

static void start_fill(struct node *n, uint32_t slot, bool inner);

static void drop_child(struct node *n, uint32_t slot, bool tell)
{
	struct link *l = &n->child[slot];
	bool was_child = n->route.slots[slot].state == SLOT_CHILD;
	if (tell && l->up)
		n->ops->close(n->user, (int)slot);
	link_done(l);
	n->child_hello_due[slot] = 0;
	if (n->route.slots[slot].state == SLOT_FREE)
		return;
	uint64_t who = n->route.slots[slot].node;
	uint32_t generation = n->route.slots[slot].generation;
	uint32_t size = route_lost(&n->route, slot);
	if (was_child && n->ops->child_changed)
		n->ops->child_changed(n->user, false, who, generation);
	if (was_child && n->route.mode == ROUTE_LOCAL && !n->leaving)
		start_fill(n, slot, size > 1);
}

int node_expect(struct node *n, uint64_t child, uint64_t position, uint32_t generation,
		uint64_t now_ms)
{
	n->now_ms = now_ms;
	if (position == 0 || position >= ROUTE_POSITION_MAX)
		return -EINVAL;
	uint64_t above = route_parent(position, n->route.degree);
	uint32_t slot = (uint32_t)(position - above * n->route.degree - 1);
	/* The master may know before our parent does that we stand elsewhere now. */
	set_position(n, above);
	if (n->route.slots[slot].state != SLOT_FREE || n->child[slot].up) {
		enum route_mode mode = n->route.mode;
		n->route.mode = ROUTE_NAMED; /* the master fills its own holes */
		drop_child(n, slot, true);
		n->route.mode = mode;
	}
	int r = route_reserve(&n->route, slot, child, generation, now_ms + n->route.candidate_ms);
	struct route_request req = { child, position, generation };
	uint32_t got;
	if (r == 0 && route_request(&n->route, &req, 0, now_ms, &got) != ROUTE_ACCEPT)
		r = -ESTALE;
	return r < 0 ? r : (int)slot;
}

static void forward_stored(struct node *n, uint32_t slot);

static void on_hello(struct node *n, int link, const struct frame *f)
{
	uint32_t slot = (uint32_t)link;
	const struct route_slot *s = &n->route.slots[slot];
	if (link < 0 || s->node != f->node || s->generation != f->generation ||
	    (s->state != SLOT_CANDIDATE && s->state != SLOT_CHILD)) {
		n->stats.refused++;
		if (link >= 0)
			drop_child(n, slot, true);
		return;
	}
	n->child_hello_due[slot] = 0;
	bool is_new = s->state == SLOT_CANDIDATE;
	if (is_new)
		(void)route_connected(&n->route, slot, f->node); /* it is one: checked above */
	tell_position(n, slot);
	if (is_new && n->ops->child_changed)
		n->ops->child_changed(n->user, true, s->node, s->generation);
	forward_stored(n, slot);
}

/* ---- parent ---- */

void node_assigned(struct node *n, uint64_t position, uint32_t generation, uint64_t now_ms)
{
	n->now_ms = now_ms;
	n->wanted = position;
	n->next_generation = generation;
	n->joining = true;
	n->joining_due = now_ms + n->route.candidate_ms;
}

static void way_up_changed(struct node *n)
{
	n->holds_due = n->demand_due = true;
	node_work_demand(n);
	node_work_resend(n, true);
	/* What waited for the old way, or for none, takes the new one. */
	node_flush(n, NODE_PARENT);
}

static void on_hello_ack(struct node *n, int link, const struct frame *f)
{
	if (f->node != n->self || f->degree != n->route.degree ||
	    f->position >= ROUTE_POSITION_MAX || (link != NODE_NEXT && link != NODE_PARENT)) {
		n->stats.refused++;
		return;
	}
	n->route.mode = f->flags & FRAME_LOCAL ? ROUTE_LOCAL : n->route.mode;
	if (link == NODE_NEXT) {
		if (f->generation != n->next_generation) {
			n->stats.refused++;
			return;
		}
		if (n->parent.up)
			n->ops->close(n->user, NODE_PARENT);
		link_done(&n->parent);
		n->parent = n->next;
		link_init(&n->next);
		n->ops->promote(n->user);
		n->attached = true;
		n->joining = false;
		n->generation = n->next_generation;
		n->told_size = n->told_height = 0;
	}
	n->position = n->wanted = f->position;
	set_position(n, f->position);
	if (link == NODE_NEXT) {
		n->ops->parent_changed(n->user, true, n->position, n->generation);
		way_up_changed(n);
	}
}

static void parent_lost(struct node *n)
{
	link_done(&n->parent);
	if (!n->attached)
		return;
	n->attached = false;
	n->socket_from_ms = n->now_ms;
	n->ops->parent_changed(n->user, false, n->position, n->generation);
	way_up_changed(n);
	if (n->route.mode == ROUTE_LOCAL && !n->joining && !n->leaving)
		node_join_local(n, n->now_ms);
}

/* ---- local mode: offers, answers and holes through the tree ---- */

void node_join_local(struct node *n, uint64_t now_ms)
{
	n->now_ms = now_ms;
	n->joining = true;
	n->joining_due = now_ms + n->route.candidate_ms;
	n->next_generation++;
	if (n->next.up)
		n->ops->close(n->user, NODE_NEXT);
	link_done(&n->next);
	n->ops->make_offer(n->user, n->next_generation);
}

void node_offer_made(struct node *n, const void *sdp, size_t len, uint64_t now_ms)
{
	n->now_ms = now_ms;
	int up = node_uplink(n);
	if (!n->joining || up == 0 || len > FRAME_SIGNAL_MAX)
		return;
	struct frame f = { .type = FRAME_SIGNAL, .node = 0, .peer = n->self, .target = n->wanted,
			   .position = n->attached ? n->position : ROUTE_ANYWHERE,
			   .generation = n->next_generation, .bytes = sdp, .len = len };
	(void)node_emit(n, up, &f, NULL); /* joining_due tries again */
}

void node_answer_made(struct node *n, int slot, const void *sdp, size_t len, uint64_t now_ms)
{
	n->now_ms = now_ms;
	if (slot < 0 || (uint32_t)slot >= n->route.degree || len > FRAME_SIGNAL_MAX)
		return;
	const struct route_slot *s = &n->route.slots[slot];
	if (s->state != SLOT_CANDIDATE)
		return;
	/* Somebody in the tree is answered through it, somebody outside through the signaller. */
	struct frame f = { .type = FRAME_SIGNAL, .flags = FRAME_ANSWER, .node = s->node,
			   .position = n->child_reply[slot], .peer = s->node, .target = n->self,
			   .generation = s->generation, .bytes = sdp, .len = len };
	int way = f.position == ROUTE_ANYWHERE ? NODE_SOCKET : route_towards(&n->route, f.position);
	if (way == ROUTE_UP || way == ROUTE_HERE)
		way = NODE_PARENT;
	if (n->root && (way == NODE_SOCKET || way == NODE_PARENT))
		n->ops->arrived(n->user, NODE_SOCKET, &f);
	else
		(void)node_emit(n, way, &f, NULL); /* the joiner asks again */
}

static void keep_signal(struct node *n, uint64_t cookie, const void *bytes, size_t len)
{
	struct stored_signal s = { cookie, len, malloc(len) };
	if (n->stored.count >= SIGNALS_MAX || !s.bytes || VEC_PUSH(&n->stored, s) < 0) {
		free(s.bytes);
		return;
	}
	memcpy(n->stored.data[n->stored.count - 1].bytes, bytes, len);
}

static bool take_signal(struct node *n, uint64_t cookie, struct stored_signal *ret)
{
	for (size_t i = 0; i < n->stored.count; i++) {
		if (n->stored.data[i].cookie != cookie)
			continue;
		*ret = n->stored.data[i];
		VEC_REMOVE(&n->stored, i);
		return true;
	}
	return false;
}

static void forward_stored(struct node *n, uint32_t slot)
{
	struct route_stored st;
	struct stored_signal sig;
	while (route_take_stored(&n->route, slot, &st)) {
		if (!take_signal(n, st.cookie, &sig))
			continue;
		(void)relay(n, LINK_NOBODY, (int)slot, sig.bytes, sig.len); /* the joiner asks again */
		free(sig.bytes);
	}
}

static void accept_offer(struct node *n, uint32_t slot, const struct frame *f)
{
	if (n->child[slot].up) {
		n->ops->close(n->user, (int)slot);
		link_done(&n->child[slot]);
	}
	n->child_reply[slot] = f->position;
	n->ops->take_offer(n->user, (int)slot, f->peer, f->bytes, f->len);
}

static void on_offer(struct node *n, int link, struct frame *f, const void *bytes, size_t len)
{
	struct route_request req = { f->peer, f->target, f->generation };
	uint32_t slot = 0;
	uint64_t cookie = ++n->cookie;
	uint8_t changed[FRAME_MAX];
	enum route_verdict v = route_request(&n->route, &req, cookie, n->now_ms, &slot);
	if (req.position != f->target) { /* the place it wants is taken: pass that on */
		f->target = req.position;
		len = frame_encode(f, NULL, changed);
		bytes = changed;
	}
	switch (v) {
	case ROUTE_ACCEPT:
		accept_offer(n, slot, f);
		break;
	case ROUTE_FORWARD:
		(void)relay(n, LINK_NOBODY, (int)slot, bytes, len); /* the joiner asks again */
		break;
	case ROUTE_STORE:
		keep_signal(n, cookie, bytes, len);
		break;
	case ROUTE_ASCEND:
		if (n->attached && link != NODE_PARENT)
			(void)relay(n, LINK_NOBODY, NODE_PARENT, bytes, len);
		break;
	default:
		n->stats.refused += v == ROUTE_REFUSE;
		break;
	}
}

static void on_answer(struct node *n, int link, const struct frame *f, const void *bytes,
		      size_t len)
{
	if (f->node == n->self) {
		if (n->joining && f->generation == n->next_generation)
			n->ops->take_answer(n->user, f->bytes, f->len);
		return;
	}
	int way = route_towards(&n->route, f->position);
	if (n->root && way < 0)
		n->ops->arrived(n->user, link, f);
	else if (way == ROUTE_UP && n->attached && link != NODE_PARENT)
		(void)relay(n, LINK_NOBODY, NODE_PARENT, bytes, len);
	else if (way >= 0 && n->child[way].up)
		(void)relay(n, LINK_NOBODY, way, bytes, len);
}

static void start_fill(struct node *n, uint32_t slot, bool inner)
{
	uint64_t due = n->now_ms + (inner ? FILL_INNER_MS : FILL_LEAF_MS);
	(void)route_reserve(&n->route, slot, 0, 0, due); /* it was just freed */
	struct frame f = { .type = FRAME_FILL, .node = n->self, .position = n->position,
			   .peer = route_child(n->route.position, n->route.degree, slot) };
	if (n->attached) {
		(void)node_emit(n, NODE_PARENT, &f, NULL); /* else the reservation runs out */
		return;
	}
	int down = route_deepest(&n->route, f.peer);
	f.flags = FRAME_DOWN;
	if (down >= 0)
		(void)node_emit(n, down, &f, NULL);
}

static void on_fill(struct node *n, int link, struct frame *f, const void *bytes, size_t len)
{
	if (!(f->flags & FRAME_DOWN) && n->attached) {
		(void)relay(n, LINK_NOBODY, NODE_PARENT, bytes, len);
		return;
	}
	int down = route_deepest(&n->route, f->peer);
	if (down >= 0) {
		f->flags |= FRAME_DOWN;
		f->hops = f->hops > 0 ? f->hops - 1 : 0;
		if (f->hops > 0)
			(void)node_emit(n, down, f, NULL);
		return;
	}
	/* A leaf: it goes only up. */
	if (n->joining || n->leaving || !n->attached ||
	    route_depth(n->position, n->route.degree) <= route_depth(f->peer, n->route.degree))
		return;
	n->wanted = f->peer;
	node_join_local(n, n->now_ms);
}

/* ---- links and frames ---- */

void node_link_up(struct node *n, int link, uint64_t now_ms)
{
	struct link *l = node_link_of(n, link);
	if (!l)
		return;
	n->now_ms = now_ms;
	link_open(l, now_ms);
	if (link == NODE_NEXT) {
		struct frame f = { .type = FRAME_HELLO, .node = n->self, .position = n->wanted,
				   .generation = n->next_generation };
		send_now(n, NODE_NEXT, &f);
	} else if (link == NODE_SOCKET) {
		if (!n->socket_from_ms)
			n->socket_from_ms = now_ms + NODE_SOCKET_MS;
		if (!n->attached)
			way_up_changed(n);
	} else if (link >= 0) {
		n->child_hello_due[link] = now_ms + NODE_HELLO_MS;
	}
}

void node_link_down(struct node *n, int link, uint64_t now_ms)
{
	n->now_ms = now_ms;
	switch (link) {
	case NODE_PARENT:
		parent_lost(n);
		break;
	case NODE_NEXT:
		link_done(&n->next);
		break;
	case NODE_SOCKET:
		link_done(&n->socket);
		break;
	default:
		if (link >= 0 && (uint32_t)link < n->route.degree)
			drop_child(n, (uint32_t)link, false);
		break;
	}
}

static void undelivered(struct node *n, const struct frame *f)
{
	if (f->type != FRAME_LEND || f->offset != 0)
		return;
	struct frame b = { .type = FRAME_BOUNCE, .node = f->node, .position = n->position,
			   .value = f->value };
	int up = node_uplink(n);
	n->stats.bounced++;
	if (up)
		(void)node_emit(n, up, &b, NULL); /* else the deadline lends it again */
}

static void from_above(struct node *n, int link, const struct frame *f, const void *bytes,
		       size_t len)
{
	if (f->node != n->self) {
		int way = route_towards(&n->route, f->position);
		if (way < 0 || n->route.slots[way].state != SLOT_CHILD || !n->child[way].up ||
		    relay(n, link, way, bytes, len) < 0) {
			undelivered(n, f);
			consumed(n, link, len);
		}
		return;
	}
	if (f->type == FRAME_LEND)
		node_work_lend(n, f, link);
	else if (f->type == FRAME_ACK)
		node_work_ack(n, f);
	else
		node_work_cancel(n, f->value);
	consumed(n, link, len);
}

static void from_below(struct node *n, int link, const struct frame *f, const void *bytes,
		       size_t len)
{
	/* A child speaks for its own subtree only. */
	bool own = link >= 0 && n->route.slots[link].state == SLOT_CHILD &&
		   route_towards(&n->route, f->position) == link;
	if (!own) {
		n->stats.refused++;
		consumed(n, link, len);
		return;
	}
	if (n->root) {
		n->ops->arrived(n->user, link, f);
		consumed(n, link, len);
		return;
	}
	/* While moving, the old parent would refuse what stands below the new position. */
	int up = NODE_PARENT;
	if (!n->attached || n->position != n->route.position)
		up = n->socket.up ? NODE_SOCKET : NODE_NEXT;
	if (relay(n, link, up, bytes, len) < 0)
		consumed(n, link, len); /* its sender sends again */
}

static void dispatch(struct node *n, int link, struct frame *f, const void *bytes, size_t len)
{
	bool above = link == NODE_PARENT || link == NODE_SOCKET;
	switch (f->type) {
	case FRAME_LEND:
	case FRAME_ACK:
	case FRAME_CANCEL:
		if (above) {
			from_above(n, link, f, bytes, len);
			return;
		}
		n->stats.refused++;
		break;
	case FRAME_RESULT:
	case FRAME_DEMAND:
	case FRAME_BOUNCE:
		from_below(n, link, f, bytes, len);
		return;
	case FRAME_REPORT:
		if (link >= 0)
			route_report(&n->route, (uint32_t)link, f->size, f->height);
		break;
	case FRAME_SIGNAL:
		if (n->route.mode != ROUTE_LOCAL)
			n->stats.refused++;
		else if (f->flags & FRAME_ANSWER)
			on_answer(n, link, f, bytes, len);
		else
			on_offer(n, link, f, bytes, len);
		break;
	case FRAME_FILL:
		if (n->route.mode == ROUTE_LOCAL)
			on_fill(n, link, f, bytes, len);
		break;
	default:
		break;
	}
	consumed(n, link, len);
}

void node_input(struct node *n, int link, const void *bytes, size_t len, uint64_t now_ms)
{
	n->now_ms = now_ms;
	struct link *l = node_link_of(n, link);
	struct frame f;
	if (!l || !l->up)
		return;
	l->heard_ms = now_ms;
	if (frame_decode(bytes, len, &f) < 0) {
		n->stats.refused++;
		return;
	}
	switch (f.type) { /* link control is not counted */
	case FRAME_HELLO:
		on_hello(n, link, &f);
		return;
	case FRAME_HELLO_ACK:
		on_hello_ack(n, link, &f);
		return;
	case FRAME_CREDIT:
		if (link_credit(l, f.consumed, now_ms) < 0)
			n->stats.refused++;
		if (f.flags & FRAME_PING)
			send_credit(n, link, 0);
		node_flush(n, link);
		return;
	case FRAME_BYE:
		if (link != NODE_SOCKET) {
			n->ops->close(n->user, link);
			node_link_down(n, link, now_ms);
		}
		return;
	default:
		break;
	}
	bool child_said_hello = link < 0 || n->route.slots[link].state == SLOT_CHILD;
	if (link == NODE_NEXT || !child_said_hello) {
		n->stats.refused++;
		return;
	}
	dispatch(n, link, &f, bytes, len);
}

void node_set_root(struct node *n)
{
	n->root = true;
	n->position = n->route.position = n->wanted = 0;
}

int node_down(struct node *n, const struct frame *f, const uint64_t *ids)
{
	int way = route_towards(&n->route, f->position);
	if (way < 0 || n->route.slots[way].state != SLOT_CHILD || !n->child[way].up)
		return -ENOTCONN;
	return node_emit(n, way, f, ids);
}

void node_signal(struct node *n, const void *bytes, size_t len, uint64_t now_ms)
{
	struct frame f;
	n->now_ms = now_ms;
	if (frame_decode(bytes, len, &f) < 0 || f.type != FRAME_SIGNAL || (f.flags & FRAME_ANSWER)) {
		n->stats.refused++;
		return;
	}
	on_offer(n, NODE_SOCKET, &f, bytes, len);
}

void node_set_workers(struct node *n, uint32_t workers, uint64_t now_ms)
{
	n->now_ms = now_ms;
	n->workers = workers;
	n->demand_due = true;
	node_work_demand(n);
	node_work_start(n);
}

void node_use_socket(struct node *n, uint64_t now_ms)
{
	n->now_ms = n->socket_from_ms = now_ms;
	if (!n->attached)
		way_up_changed(n);
}

void node_set_mode(struct node *n, enum route_mode mode)
{
	n->route.mode = mode;
}

void node_leave(struct node *n, uint64_t now_ms)
{
	n->now_ms = now_ms;
	n->leaving = true;
	struct frame f = { .type = FRAME_BYE, .node = n->self };
	if (n->parent.up) {
		node_flush(n, NODE_PARENT);
		send_now(n, NODE_PARENT, &f);
	}
	for (uint32_t i = 0; i < n->route.degree; i++) {
		if (n->child[i].up)
			send_now(n, (int)i, &f);
	}
}

static void tick_links(struct node *n)
{
	int slot;
	while ((slot = route_expire(&n->route, n->now_ms)) >= 0) {
		if (n->child[slot].up)
			n->ops->close(n->user, slot);
		link_done(&n->child[slot]);
		n->child_hello_due[slot] = 0;
	}
	/* Most nodes are leaves: their slots are not even touched. */
	for (uint32_t i = 0; n->route.taken > 0 && i < n->route.degree; i++) {
		bool mute = n->child[i].up && n->child_hello_due[i] && n->now_ms >= n->child_hello_due[i];
		if (mute || link_stalled(&n->child[i], n->now_ms))
			drop_child(n, i, true);
	}
	bool work = n->held.count + n->done.count + n->route.children > 0;
	struct link *up = &n->parent;
	/* The root may be busy, and there is nobody else; but not when its socket fell, too. */
	bool patient = route_depth(n->position, n->route.degree) == 1 && n->socket.up;
	uint64_t every = patient ? n->life_ms : NODE_PING_MS;
	if (up->up && (work || !n->socket.up) && n->now_ms >= MAX(up->heard_ms, up->pinged_ms) + every) {
		if (up->pinged_ms <= up->heard_ms)
			n->unanswered_ms = n->now_ms;
		up->pinged_ms = n->now_ms;
		send_credit(n, NODE_PARENT, FRAME_PING);
	}
	uint64_t patience = patient ? MAX(UINT64_C(3) * every, (uint64_t)NODE_DEAF_ROOT_MS) : NODE_DEAF_MS;
	bool deaf = up->pinged_ms > up->heard_ms && n->now_ms >= n->unanswered_ms + patience;
	if (up->up && (deaf || link_stalled(up, n->now_ms))) {
		n->ops->close(n->user, NODE_PARENT);
		parent_lost(n);
	}
	struct route_stored st;
	struct stored_signal sig;
	while (route_expire_stored(&n->route, n->now_ms, &st)) {
		if (take_signal(n, st.cookie, &sig))
			free(sig.bytes);
	}
}

void node_tick(struct node *n, uint64_t now_ms)
{
	n->now_ms = now_ms;
	tick_links(n);
	if (n->joining && now_ms >= n->joining_due) {
		n->joining = false;
		if (n->next.up)
			n->ops->close(n->user, NODE_NEXT);
		link_done(&n->next);
		n->wanted = n->position;
		if (!n->attached && n->route.mode == ROUTE_LOCAL)
			node_join_local(n, now_ms);
	}
	uint32_t size, height;
	route_summary(&n->route, &size, &height);
	if (n->attached && (size != n->told_size || height != n->told_height)) {
		struct frame f = { .type = FRAME_REPORT, .node = n->self, .position = n->position,
				   .size = size, .height = height };
		if (node_emit(n, NODE_PARENT, &f, NULL) == 0) {
			n->told_size = size;
			n->told_height = height;
		}
	}
	bool holding = n->held.count + n->done.count > 0;
	if (n->demand_due || n->holds_due || (holding && now_ms >= n->demand_ms + n->life_ms))
		node_work_demand(n);
	node_work_resend(n, false);
}

void node_stats(const struct node *n, struct node_stats *ret)
{
	*ret = n->stats;
	ret->held = (uint32_t)n->held.count;
	ret->children = n->route.children;
	ret->attached = n->attached;
	ret->position = n->position;
}
