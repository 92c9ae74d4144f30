/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Destinations at a notice, by src/policy: all jobs of the machine placed
 * together, over the links that their images cross and beside the moves that
 * were promised before. Who may go where is the engine's (terms, slots, user);
 * who goes where is the policy's. What the policy cannot place is left to the
 * engine's own choice, which tries at least.
 *
 * The network is what agents say of it: a point per building, the machines'
 * uplinks, and trunks between buildings that are not known to be narrow.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/vec.h"
#include "coordinator/engine_internal.h"
#include "policy/placement.h"

#define UPLINK_DEFAULT_BPS 1e9
#define TRUNK_BPS 1e10
#define FLOOR_SHARE 0.8       /* of a link, for floors: agents cap theirs there too */
#define REMAINING_S 3600.0    /* of a job whose end nobody knows */
#define MARGIN_S 1.0
#define SAVE_DEFAULT_S 1.0
#define ROOM_SHOCK 20.0       /* per machine of the room under notice, times its usual rate */

struct plan {
	struct arena arena;
	struct network net;
	struct enode **nodes;
	struct placement_node *facts;
	const char **places; /* building of each point; room/building of each room number */
	size_t nodes_count, points_count, rooms_count;
	char (*rooms)[2 * CONTROL_NAME_MAX + 2];
};

static int64_t point_of(struct plan *p, const char *building)
{
	const char *name = building ? building : "";
	for (size_t i = 0; i < p->points_count; i++)
		if (strcmp(p->places[i], name) == 0)
			return (int64_t)i + 1; /* 0 is the core */
	int64_t point = network_point_add(&p->net);
	if (point < 0)
		return point;
	p->places[p->points_count++] = name;
	if (network_link_add(&p->net, (uint32_t)point, 0, TRUNK_BPS / 8, 0, FLOOR_SHARE, 1e-4) < 0 ||
	    network_link_add(&p->net, 0, (uint32_t)point, TRUNK_BPS / 8, 0, FLOOR_SHARE, 1e-4) < 0)
		return -ENOMEM;
	return point;
}

static uint32_t room_of(struct plan *p, const struct control_hello *h)
{
	char name[2 * CONTROL_NAME_MAX + 2];
	(void)snprintf(name, sizeof(name), "%s/%s", h->building ? h->building : "", h->room ? h->room : "");
	for (size_t i = 0; i < p->rooms_count; i++)
		if (strcmp(p->rooms[i], name) == 0)
			return (uint32_t)i;
	memcpy(p->rooms[p->rooms_count], name, sizeof(name));
	return (uint32_t)p->rooms_count++;
}

static int add_node(struct plan *p, struct enode *n, uint64_t now_ns)
{
	const struct control_hello *h = &n->hello.hello;
	double uplink = h->uplink_bps ? (double)h->uplink_bps : UPLINK_DEFAULT_BPS;
	int64_t point = point_of(p, h->building);
	if (point < 0 || network_node_add(&p->net, (uint32_t)point, uplink / 8, 0, FLOOR_SHARE) < 0)
		return -ENOMEM;
	uint32_t free_slots = 0;
	for (size_t i = 0; i < h->slots_count; i++)
		free_slots += !n->slot_used[i];
	p->nodes[p->nodes_count] = n;
	p->facts[p->nodes_count++] = (struct placement_node){
		.slots_free = free_slots,
		.mem_free_bytes = UINT64_MAX / 4, /* memory is judged with the slots */
		.disk_free_bytes = n->disk_free,
		.lent = n->up && n->owner_state == CONTROL_OWNER_LENT && !n->paused && !n->banned,
		.window_s = (double)h->window_ms / 1e3,
		.room = room_of(p, h),
		.hazard_per_s = enode_hazard_per_s(n, now_ns),
		.survival = -1,
		.room_shock = 1,
	};
	return 0;
}

/* A room of which somebody is leaving: the others are likelier to follow. */
static void shock_rooms(struct plan *p)
{
	for (size_t i = 0; i < p->nodes_count; i++) {
		int state = p->nodes[i]->owner_state;
		if (state != CONTROL_OWNER_NOTICE && state != CONTROL_OWNER_DRAINING)
			continue;
		for (size_t k = 0; k < p->nodes_count; k++)
			if (p->facts[k].room == p->facts[i].room)
				p->facts[k].room_shock += ROOM_SHOCK;
	}
}

static int open_plan(struct engine *e, struct plan *p, uint64_t now_ns)
{
	size_t max = map_count(e->nodes) + 1;
	void *value;
	p->nodes = arena_alloc(&p->arena, max * sizeof(*p->nodes));
	p->facts = arena_alloc(&p->arena, max * sizeof(*p->facts));
	p->places = arena_alloc(&p->arena, max * sizeof(*p->places));
	p->rooms = arena_alloc(&p->arena, max * sizeof(*p->rooms));
	if (!p->nodes || !p->facts || !p->places || !p->rooms || network_point_add(&p->net) < 0)
		return -ENOMEM;
	for (size_t pos = 0; map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		if (n->hello_seen && add_node(p, n, now_ns) < 0)
			return -ENOMEM;
	}
	shock_rooms(p);
	return network_route(&p->net);
}

static uint32_t index_of(const struct plan *p, const char *node)
{
	for (size_t i = 0; i < p->nodes_count; i++)
		if (strcmp(p->nodes[i]->name, node) == 0)
			return (uint32_t)i;
	return PLACEMENT_NONE;
}

static double left_s(const struct ejob *j, uint64_t now_ns)
{
	return j->notice_deadline_ns > now_ns ? (double)(j->notice_deadline_ns - now_ns) / 1e9 : 0;
}

static double image_bytes(const struct ejob *j)
{
	return (double)MAX(j->saved.bytes, j->durable.bytes);
}

/* Nodes that the engine refuses go into `avoid`: the policy only chooses among the rest. */
static int add_job(struct engine *e, struct plan *p, const struct ejob *j, uint64_t now_ns,
		   struct placement_job *ret)
{
	uint32_t *avoid = arena_alloc(&p->arena, (p->nodes_count + 1) * sizeof(*avoid));
	struct placement_have *have = arena_alloc(&p->arena, (p->nodes_count + 1) * sizeof(*have));
	double save_s = j->save_ms ? (double)j->save_ms / 1e3 : SAVE_DEFAULT_S;
	double bytes = image_bytes(j), delta = j->delta_bytes ? (double)j->delta_bytes : bytes;
	if (!avoid || !have)
		return -ENOMEM;
	*ret = (struct placement_job){
		.slots = (uint32_t)MAX(j->slots_count, (size_t)1),
		.source = index_of(p, j->node),
		.window_s = left_s(j, now_ns),
		.save_s = save_s,
		.save_again_s = save_s,
		.image_bytes = bytes,
		.unsaved_work_s = (double)j->unsaved_ms / 1e3 + save_s,
		.restart_s = 1,
		.remaining_s = REMAINING_S,
		.loss_per_reclaim_s = (double)(j->interval_ms ? j->interval_ms : e->config.interval_ms) / 2e3,
		.have = have,
		.avoid = avoid,
	};
	for (uint32_t i = 0; i < p->nodes_count; i++) {
		const struct enode *n = p->nodes[i];
		if (strcmp(n->name, j->node) == 0 || enode_refusal(e, n, j, NULL, NULL) ||
		    ejob_avoids(j, n->name))
			avoid[ret->avoid_count++] = i;
		else if (ejob_image_has(&j->durable, n->name) || strcmp(j->stage, n->name) == 0)
			have[ret->have_count++] = (struct placement_have){ i, MAX(bytes - delta, 0.0) };
	}
	return ret->source == PLACEMENT_NONE ? -ENOENT : 0;
}

/* Moves that are on their way: their deadlines were promised. */
static size_t promised(struct engine *e, struct plan *p, struct transfer *ret, uint64_t now_ns)
{
	size_t count = 0;
	for (size_t i = 0; i < e->jobs.count; i++) {
		const struct ejob *j = e->jobs.data[i];
		if (!j->move_pending || !j->dest[0])
			continue;
		uint32_t from = index_of(p, j->node), to = index_of(p, j->dest);
		struct transfer *t = &ret[count];
		if (from == PLACEMENT_NONE || to == PLACEMENT_NONE)
			continue;
		int links = network_path(&p->net, from, to, t->links);
		if (links < 0)
			continue;
		t->id = i;
		t->links_count = (uint32_t)links;
		t->bytes = j->delta_bytes ? (double)j->delta_bytes : image_bytes(j);
		t->deadline_in_s = MAX(left_s(j, now_ns) - MARGIN_S, 0.1);
		t->saved_work = (double)j->unsaved_ms / 1e3;
		t->promised = true;
		count++;
	}
	return count;
}

size_t engine_place(struct engine *e, struct ejob *const *jobs, size_t count, uint64_t now_ns,
		    struct engine_place *ret)
{
	static const struct placement_config config = { .margin_s = MARGIN_S };
	struct plan p = { .arena = ARENA_INIT, .net = NETWORK_INIT };
	size_t placed = 0;
	memset(ret, 0, count * sizeof(*ret));
	struct placement_job *asked = arena_alloc(&p.arena, (count + 1) * sizeof(*asked));
	struct placement *answers = arena_alloc(&p.arena, (count + 1) * sizeof(*answers));
	struct transfer *running = arena_alloc(&p.arena, (e->jobs.count + 1) * sizeof(*running));
	int r = asked && answers && running ? open_plan(e, &p, now_ns) : -ENOMEM;
	for (size_t i = 0; r == 0 && i < count; i++) {
		r = add_job(e, &p, jobs[i], now_ns, &asked[i]);
		asked[i].id = i;
	}
	size_t running_count = r == 0 ? promised(e, &p, running, now_ns) : 0;
	if (r == 0)
		r = placement_plan(&p.net, p.facts, p.nodes_count, asked, count, running, running_count,
				   &config, answers);
	for (size_t i = 0; r == 0 && i < count; i++) {
		if (answers[i].verdict != PLACEMENT_MOVE || answers[i].node >= p.nodes_count)
			continue;
		ret[i] = (struct engine_place){ p.nodes[answers[i].node], answers[i].p_fit,
						answers[i].survival, answers[i].considered };
		placed++;
	}
	network_done(&p.net);
	arena_done(&p.arena);
	return placed;
}
