/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See growth.h. Nodes are kept in a table and reused under new ids; a message
 * to a node that has left is lost, as it would be. Every node holds a real
 * struct route; in named mode the root also holds the real struct tree.
 */
#include "volunteer/growth.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/growth_internal.h"

#define RETRY_S 5.0
#define FILL_S 5.0
#define ORIGINAL_RETRY_S 30.0
#define TEARDOWN_S 3.5 /* the original's pause before it joins again */

static bool event_before(const struct event *x, const struct event *y)
{
	return x->at < y->at || (x->at == y->at && x->order < y->order);
}

static void post(struct sim *s, double delay, struct event ev)
{
	ev.at = s->now + delay;
	ev.order = ++s->order;
	if (ev.a != NONE && ev.a_id == 0)
		ev.a_id = s->nodes[ev.a].id;
	if (ev.b != NONE && ev.b_id == 0)
		ev.b_id = s->nodes[ev.b].id;
	CHECK(VEC_PUSH(&s->heap, ev) == 0);
	struct event *h = s->heap.data;
	for (size_t i = s->heap.count - 1; i > 0 && event_before(&h[i], &h[(i - 1) / 2]);
	     i = (i - 1) / 2) {
		struct event t = h[i];
		h[i] = h[(i - 1) / 2];
		h[(i - 1) / 2] = t;
	}
}

static struct event next_event(struct sim *s)
{
	struct event *h = s->heap.data, top = h[0];
	size_t n = --s->heap.count;
	h[0] = h[n];
	for (size_t i = 0;;) {
		size_t c = 2 * i + 1;
		if (c >= n)
			return top;
		if (c + 1 < n && event_before(&h[c + 1], &h[c]))
			c++;
		if (!event_before(&h[c], &h[i]))
			return top;
		struct event t = h[i];
		h[i] = h[c];
		h[c] = t;
		i = c;
	}
}

static uint32_t entry_of(struct sim *s, uint64_t id)
{
	struct sim_node *n = map_get(s->by_id, &id, sizeof(id));
	return n ? (uint32_t)(n - s->nodes) : NONE;
}

static bool is_local(const struct sim *s)
{
	return s->config->rule != GROWTH_NAMED;
}

static uint32_t node_add(struct sim *s)
{
	uint32_t i = s->unused.data[--s->unused.count];
	struct sim_node *n = &s->nodes[i];
	uint32_t *child = n->child;
	memset(n, 0, sizeof(*n));
	n->child = child ? child : calloc(s->config->degree, sizeof(*child));
	CHECK(n->child);
	do
		n->id = i == 0 ? UINT64_C(1) << 40 : rng_u64(&s->rng);
	while (n->id == 0 || map_insert(s->by_id, &n->id, sizeof(n->id), n) != 0);
	n->parent = NONE;
	n->wanted = ROUTE_ANYWHERE;
	n->order = s->joined++;
	n->out_since = s->now;
	CHECK(route_init(&n->route, n->id, i == 0 ? 0 : ROUTE_POSITION_MAX,
			 is_local(s) ? ROUTE_LOCAL : ROUTE_NAMED, s->config->degree) == 0);
	if (s->config->rule == GROWTH_ORIGINAL) {
		n->route.candidate_ms = 30000;
		n->route.stored_ms = UINT32_MAX;
	}
	return i;
}

static uint64_t ms(double s)
{
	return (uint64_t)(s * 1000);
}

/* ---- asking for a place ---- */

static void send_request(struct sim *s, uint32_t a, uint32_t to, double delay)
{
	s->messages++;
	post(s, delay, (struct event){ .kind = EV_REQUEST, .a = a, .b = to,
				       .pos = s->nodes[a].wanted, .gen = s->nodes[a].generation });
}

static void named_place(struct sim *s, const struct tree_place *place)
{
	uint32_t a = entry_of(s, place->node), p = entry_of(s, place->parent);
	if (a == NONE || p == NONE)
		return; /* one of them died, and the master does not know yet */
	struct sim_node *parent = &s->nodes[p], *n = &s->nodes[a];
	uint64_t above = route_parent(place->position, s->config->degree);
	n->wanted = place->position;
	n->generation = place->generation;
	n->asking = true;
	n->moving = n->parent != NONE;
	/* The master tells the parent its position too: it may have only just been named itself. */
	if (p != 0)
		parent->route.position = above;
	uint32_t slot = (uint32_t)(place->position - above * s->config->degree - 1);
	if (parent->route.slots[slot].state == SLOT_CHILD)
		route_lost(&parent->route, slot);
	CHECK(route_reserve(&parent->route, slot, place->node, place->generation,
			    ms(s->now + 10)) == 0);
	s->messages++; /* to the joiner or its parent; the request itself is counted when sent */
	send_request(s, a, p, 2 * s->config->hop_s);
}

static void named_repairs(struct sim *s)
{
	struct tree_place place;
	while (tree_next_repair(s->tree, &place)) {
		s->rejoins += s->measuring;
		named_place(s, &place);
	}
}

static bool named_try(struct sim *s, uint32_t a)
{
	struct tree_place place;
	int r = tree_place(s->tree, s->nodes[a].id, ms(s->now), &place);
	if (r == -EAGAIN)
		return false;
	CHECK(r == 0);
	named_place(s, &place);
	return true;
}

static void named_waiting(struct sim *s)
{
	size_t i = 0;
	while (i < s->waiting.count) {
		uint32_t a = s->waiting.data[i];
		if (s->nodes[a].id != 0 && tree_state(s->tree, s->nodes[a].id) == TREE_ABSENT &&
		    !named_try(s, a))
			break;
		i++;
	}
	memmove(s->waiting.data, s->waiting.data + i, (s->waiting.count - i) * sizeof(uint32_t));
	s->waiting.count -= i;
}

static void ask(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	n->asking = true;
	if (is_local(s)) {
		send_request(s, a, 0, s->config->hop_s);
		post(s, s->config->rule == GROWTH_ORIGINAL ? ORIGINAL_RETRY_S : RETRY_S,
		     (struct event){ .kind = EV_RETRY, .a = a, .b = NONE });
		return;
	}
	s->messages++;
	if (s->waiting.count > 0 || !named_try(s, a))
		CHECK(VEC_PUSH(&s->waiting, a) == 0);
}

/* All messages of one joiner take one path: a second request, when the first is accepted, must
 * reach the same candidate slot. */
static void check_path(struct sim *s, uint32_t a, uint32_t target)
{
	struct route_request req = { .origin = s->nodes[a].id, .position = s->nodes[a].wanted,
				     .generation = s->nodes[a].generation };
	uint32_t at = 0, slot;
	if (!is_local(s))
		at = target; /* the master sends it straight to the named parent */
	for (;;) {
		enum route_verdict v = route_request(&s->nodes[at].route, &req, 0, ms(s->now), &slot);
		if (v != ROUTE_FORWARD) {
			s->breaks += v != ROUTE_SIGNAL || at != target;
			return;
		}
		at = growth_child(s, at, slot);
		CHECK(at != NONE); /* nobody leaves in these runs */
	}
}

static void on_request(struct sim *s, const struct event *ev)
{
	struct sim_node *n = &s->nodes[ev->a], *at = &s->nodes[ev->b];
	if (!n->asking || n->generation != ev->gen)
		return;
	struct route_request req = { .origin = n->id, .position = ev->pos, .generation = ev->gen };
	uint32_t slot = 0;
	switch (route_request(&at->route, &req, ev->a, ms(s->now), &slot)) {
	case ROUTE_ACCEPT:
		s->messages++; /* the answer */
		if (s->config->life_s == 0)
			check_path(s, ev->a, ev->b);
		post(s, s->config->connect_s,
		     (struct event){ .kind = EV_CONNECTED, .a = ev->a, .b = ev->b, .n = slot });
		break;
	case ROUTE_FORWARD:
		s->messages++;
		if (growth_child(s, ev->b, slot) != NONE)
			post(s, s->config->hop_s, (struct event){ .kind = EV_REQUEST, .a = ev->a,
				.b = at->child[slot], .pos = req.position, .gen = ev->gen });
		break;
	case ROUTE_ASCEND:
		if (at->parent != NONE) {
			s->messages++;
			post(s, s->config->hop_s, (struct event){ .kind = EV_REQUEST, .a = ev->a,
				.b = at->parent, .pos = ev->pos, .gen = ev->gen });
		}
		break;
	default: /* signal: already connecting; store: comes back; refuse: it asks again */
		break;
	}
}

/* ---- links ---- */

static void report_later(struct sim *s, uint32_t a)
{
	if (!is_local(s) || s->nodes[a].reporting || a == 0 || s->config->life_s == 0)
		return;
	s->nodes[a].reporting = true;
	post(s, 0.5, (struct event){ .kind = EV_REPORT, .a = a, .b = NONE });
}

static void set_position(struct sim *s, uint32_t a, uint64_t position)
{
	struct sim_node *n = &s->nodes[a];
	if (n->route.position == position)
		return;
	n->route.position = position;
	for (uint32_t i = 0; i < s->config->degree; i++) {
		if (growth_child(s, a, i) != NONE)
			set_position(s, n->child[i], route_child(position, s->config->degree, i));
	}
}

static void unlink_from_parent(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	if (n->parent == NONE)
		return;
	struct route *above = &s->nodes[n->parent].route;
	if (above->slots[n->slot].state == SLOT_CHILD && above->slots[n->slot].node == n->id) {
		route_lost(above, n->slot);
		report_later(s, n->parent);
	}
	n->parent = NONE;
}

static void on_connected(struct sim *s, const struct event *ev)
{
	struct sim_node *n = &s->nodes[ev->a], *p = &s->nodes[ev->b];
	if (route_connected(&p->route, ev->n, n->id) < 0)
		return;
	if (n->parent == NONE && s->measuring)
		s->lost_node_s += s->now - MAX(n->out_since, s->config->settle_s);
	unlink_from_parent(s, ev->a);
	n->parent = ev->b;
	n->slot = ev->n;
	n->asking = n->moving = false;
	p->child[ev->n] = ev->a;
	set_position(s, ev->a, route_child(p->route.position, s->config->degree, ev->n));
	if (is_local(s)) {
		n->wanted = n->route.position;
		n->told_size = n->told_height = 0;
		report_later(s, ev->a);
		report_later(s, ev->b);
		struct route_stored st;
		while (route_take_stored(&p->route, ev->n, &st)) {
			uint32_t who = (uint32_t)st.cookie;
			if (s->nodes[who].id != st.request.origin)
				continue;
			s->messages++;
			post(s, s->config->hop_s, (struct event){ .kind = EV_REQUEST, .a = who,
				.b = ev->a, .pos = st.request.position,
				.gen = st.request.generation });
		}
		return;
	}
	(void)tree_attached(s->tree, n->id, n->generation, ms(s->now)); /* overtaken: the next repair comes */
	named_repairs(s);
	named_waiting(s);
}

static void on_report(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	n->reporting = false;
	uint32_t size, height;
	route_summary(&n->route, &size, &height);
	if (n->parent == NONE || (size == n->told_size && height == n->told_height))
		return;
	n->told_size = size;
	n->told_height = height;
	route_report(&s->nodes[n->parent].route, n->slot, size, height);
	report_later(s, n->parent);
}

/* ---- leaving ---- */

static void arm_life(struct sim *s, uint32_t a)
{
	if (s->config->life_s > 0)
		post(s, rng_exponential(&s->rng, s->config->life_s),
		     (struct event){ .kind = EV_DEATH, .a = a, .b = NONE });
}

static void new_node(struct sim *s)
{
	uint32_t a = node_add(s);
	s->joins++;
	arm_life(s, a);
	ask(s, a);
}

static void teardown(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	for (uint32_t i = 0; i < s->config->degree; i++) {
		uint32_t c = growth_child(s, a, i);
		if (n->route.slots[i].state == SLOT_CHILD)
			route_lost(&n->route, i);
		if (c != NONE) {
			s->nodes[c].parent = NONE;
			s->nodes[c].out_since = s->now;
			teardown(s, c);
		}
	}
	n->wanted = ROUTE_ANYWHERE;
	n->asking = true;
	s->rejoins += s->measuring;
	post(s, TEARDOWN_S, (struct event){ .kind = EV_JOIN, .a = a, .b = NONE });
}

static void on_death(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	s->result->failures += s->measuring;
	if (s->measuring && n->parent == NONE)
		s->lost_node_s += s->now - MAX(n->out_since, s->config->settle_s);
	if (is_local(s) && n->parent != NONE)
		post(s, s->config->detect_s, (struct event){ .kind = EV_CHILD_LOST, .a = n->parent,
			.b = NONE, .n = n->slot, .pos = n->id });
	for (uint32_t i = 0; i < s->config->degree; i++) {
		if (growth_child(s, a, i) == NONE)
			continue;
		struct sim_node *c = &s->nodes[n->child[i]];
		c->parent = NONE;
		c->out_since = s->now;
		if (is_local(s))
			post(s, s->config->detect_s,
			     (struct event){ .kind = EV_PARENT_LOST, .a = n->child[i], .b = NONE });
	}
	uint64_t id = n->id;
	if (!is_local(s)) /* the held WebSocket falls: the master notices like a neighbour */
		post(s, s->config->detect_s, (struct event){ .kind = EV_CHILD_LOST, .a = 0,
			.b = NONE, .pos = id });
	(void)map_remove(s->by_id, &id, sizeof(id));
	route_done(&n->route);
	if (n->parent != NONE && !is_local(s)) {
		struct route *above = &s->nodes[n->parent].route;
		if (above->slots[n->slot].node == id)
			route_lost(above, n->slot);
	}
	n->id = 0;
	CHECK(VEC_PUSH(&s->unused, a) == 0);
	new_node(s); /* somebody else comes: the number of volunteers stays */
}

static void start_fill(struct sim *s, uint32_t a, uint32_t slot, bool inner)
{
	struct sim_node *n = &s->nodes[a];
	(void)route_reserve(&n->route, slot, 0, 0, ms(s->now + (inner ? FILL_S : 2)));
	s->messages++;
	post(s, 0, (struct event){ .kind = EV_FILL, .a = a, .b = NONE,
				   .pos = route_child(n->route.position, s->config->degree, slot) });
}

static void on_child_lost(struct sim *s, const struct event *ev)
{
	if (!is_local(s)) {
		/* A joiner that left before it had a place is unknown to the tree. */
		if (tree_leave(s->tree, ev->pos, ms(s->now)) == 0) {
			named_repairs(s);
			named_waiting(s);
		}
		return;
	}
	struct sim_node *n = &s->nodes[ev->a];
	const struct route_slot *slot = &n->route.slots[ev->n];
	if (slot->state != SLOT_CHILD || slot->node != ev->pos)
		return;
	uint32_t size = route_lost(&n->route, ev->n);
	report_later(s, ev->a);
	if (s->config->rule == GROWTH_LOCAL)
		start_fill(s, ev->a, ev->n, size > 1);
}

static void on_parent_lost(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	if (n->parent != NONE || n->asking)
		return;
	if (s->config->rule == GROWTH_ORIGINAL) {
		teardown(s, a);
		return;
	}
	s->rejoins += s->measuring;
	n->wanted = n->route.position;
	ask(s, a);
}

/* Up to the top that can be reached, then down to the deepest leaf, which asks for the hole. */
static void on_fill(struct sim *s, const struct event *ev)
{
	struct sim_node *n = &s->nodes[ev->a];
	if (ev->n == 0 && n->parent != NONE) {
		s->messages++;
		post(s, s->config->hop_s, (struct event){ .kind = EV_FILL, .a = n->parent,
							  .b = NONE, .pos = ev->pos });
		return;
	}
	int down = route_deepest(&n->route, ev->pos);
	if (down >= 0) {
		s->messages++;
		if (growth_child(s, ev->a, (uint32_t)down) != NONE)
			post(s, s->config->hop_s,
			     (struct event){ .kind = EV_FILL, .a = n->child[down], .b = NONE,
					     .pos = ev->pos, .n = 1 });
		return;
	}
	if (ev->a == 0 || n->asking || n->parent == NONE)
		return;
	if (route_depth(n->route.position, s->config->degree) <= route_depth(ev->pos, s->config->degree))
		return;
	n->wanted = ev->pos;
	n->moving = n->asking = true;
	s->rejoins += s->measuring;
	send_request(s, ev->a, n->parent, s->config->hop_s);
	post(s, RETRY_S, (struct event){ .kind = EV_RETRY, .a = ev->a, .b = NONE });
}

static void on_retry(struct sim *s, uint32_t a)
{
	struct sim_node *n = &s->nodes[a];
	if (!n->asking)
		return;
	if (n->moving && n->parent != NONE) { /* the hole is filled or its parent gone: stay */
		n->moving = n->asking = false;
		n->wanted = n->route.position;
		return;
	}
	ask(s, a);
}

/* ---- measuring ---- */

static void on_measure(struct sim *s, double step)
{
	double ratio;
	s->measuring = true;
	s->measured_overlap += growth_overlap(s, s->config->nodes, &ratio, &s->result->depth_max,
				       &s->result->depth_ideal);
	s->measured_depth += ratio;
	s->samples++;
	post(s, step, (struct event){ .kind = EV_MEASURE, .a = NONE, .b = NONE });
}

static void handle(struct sim *s, const struct event *ev)
{
	if (ev->a != NONE && s->nodes[ev->a].id != ev->a_id)
		return;
	if (ev->b != NONE && s->nodes[ev->b].id != ev->b_id)
		return;
	switch (ev->kind) {
	case EV_JOIN:
		ask(s, ev->a);
		break;
	case EV_REQUEST:
		on_request(s, ev);
		break;
	case EV_CONNECTED:
		on_connected(s, ev);
		break;
	case EV_DEATH:
		on_death(s, ev->a);
		break;
	case EV_CHILD_LOST:
		on_child_lost(s, ev);
		break;
	case EV_PARENT_LOST:
		on_parent_lost(s, ev->a);
		break;
	case EV_FILL:
		on_fill(s, ev);
		break;
	case EV_REPORT:
		on_report(s, ev->a);
		break;
	case EV_RETRY:
		on_retry(s, ev->a);
		break;
	case EV_MEASURE:
		on_measure(s, s->config->nodes > 20000 ? 20 : 2);
		break;
	}
}

/* Slots and requests run out on the nodes' own ticks. */
static void expire_all(struct sim *s)
{
	uint64_t now = ms(s->now);
	for (uint32_t i = 0; i < s->nodes_cap; i++) {
		struct sim_node *n = &s->nodes[i];
		struct route_stored st;
		int slot;
		if (n->id == 0)
			continue;
		while ((slot = route_expire(&n->route, now)) >= 0)
			;
		while (route_expire_stored(&n->route, now, &st))
			;
	}
	uint64_t node;
	while (s->tree && tree_expire(s->tree, now, &node)) {
		uint32_t a = entry_of(s, node);
		named_repairs(s);
		if (a != NONE && s->nodes[a].id == node) {
			unlink_from_parent(s, a);
			s->nodes[a].out_since = s->now;
			ask(s, a);
		}
	}
	if (s->tree)
		named_waiting(s);
}

void growth_defaults(enum growth_rule rule, uint32_t nodes, uint32_t degree,
		     struct growth_config *ret)
{
	*ret = (struct growth_config){
		.rule = rule, .nodes = nodes, .degree = degree, .seed = 1,
		.join_s = nodes / 200.0, .hop_s = 0.025, .connect_s = 0.15, .detect_s = 0.5,
	};
}

static void first_joins(struct sim *s)
{
	(void)node_add(s); /* the root */
	s->nodes[0].parent = NONE;
	for (uint32_t i = 0; i < s->config->nodes; i++) {
		uint32_t a = node_add(s);
		s->joins++;
		post(s, s->config->join_s * (i + 1) / s->config->nodes,
		     (struct event){ .kind = EV_JOIN, .a = a, .b = NONE });
		if (s->config->life_s > 0) {
			post(s, s->config->join_s + rng_exponential(&s->rng, s->config->life_s),
			     (struct event){ .kind = EV_DEATH, .a = a, .b = NONE });
		}
	}
}

int growth_run(const struct growth_config *config, struct growth_result *ret)
{
	if (config->nodes < 1 || config->degree < 2 || config->rule >= GROWTH_RULE_COUNT)
		return -EINVAL;
	memset(ret, 0, sizeof(*ret));
	struct sim s = { .config = config, .result = ret, .nodes_cap = config->nodes + 1 };
	rng_init(&s.rng, config->seed);
	s.nodes = calloc(s.nodes_cap, sizeof(*s.nodes));
	if (!s.nodes || map_new(&s.by_id) < 0) {
		free(s.nodes);
		return -ENOMEM;
	}
	for (uint32_t i = s.nodes_cap; i-- > 0;)
		CHECK(VEC_PUSH(&s.unused, i) == 0);
	if (config->rule == GROWTH_NAMED)
		CHECK(tree_new(UINT64_C(1) << 40, config->degree, &s.tree) == 0);
	first_joins(&s);
	double end = config->life_s > 0 ? config->settle_s + config->measure_s : INFINITY;
	if (config->life_s > 0)
		post(&s, config->settle_s, (struct event){ .kind = EV_MEASURE, .a = NONE, .b = NONE });
	for (double tick = 1; s.heap.count > 0;) {
		struct event ev = next_event(&s);
		if (ev.at > end)
			break;
		s.now = ev.at;
		if (s.now >= tick && config->life_s > 0) {
			expire_all(&s);
			tick = floor(s.now) + 1;
		}
		handle(&s, &ev);
	}
	growth_measured(&s, ret);
	for (uint32_t i = 0; i < s.nodes_cap; i++) {
		route_done(&s.nodes[i].route);
		free(s.nodes[i].child);
	}
	free(s.nodes);
	map_free(s.by_id);
	tree_free(s.tree);
	VEC_DONE(&s.heap);
	VEC_DONE(&s.unused);
	VEC_DONE(&s.waiting);
	return 0;
}
