/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who runs next, and where. Users take turns by what they have had lately (the
 * one who has had least goes first); of one user's jobs the oldest goes first.
 * A place is chosen by facts, then by how long it is likely to stay lent and
 * by what of the job's image is there already.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/parse.h"
#include "base/point.h"
#include "coordinator/engine_internal.h"

#define USAGE_HALF_S (6 * 3600.0)
/* A machine of which nothing is known yet is taken to be reclaimed about this often. */
#define HAZARD_PRIOR_EVENTS 0.5
#define HAZARD_PRIOR_S (4 * 3600.0)
#define NEAR_BONUS 0.15

/* ---- fair share ---- */

static struct euser *user_get(struct engine *e, const char *name)
{
	struct euser *u = map_get_str(e->users, name);
	if (u)
		return u;
	u = calloc(1, sizeof(*u));
	if (!u || map_set_str(e->users, name, u, NULL) < 0) {
		free(u);
		return NULL;
	}
	(void)snprintf(u->name, sizeof(u->name), "%s", name);
	return u;
}

static void user_decay(struct euser *u, uint64_t now_ns)
{
	if (now_ns > u->at_ns)
		u->usage *= exp2(-(double)(now_ns - u->at_ns) / 1e9 / USAGE_HALF_S);
	u->at_ns = MAX(u->at_ns, now_ns);
}

void euser_charge(struct engine *e, const char *name, double slot_seconds, uint64_t now_ns)
{
	struct euser *u = user_get(e, name);
	if (!u)
		return; /* out of memory: this use goes uncounted */
	user_decay(u, now_ns);
	u->usage += slot_seconds;
}

/* What was had, and what is being had: an hour under way counts as well as one that is over. */
double euser_usage(struct engine *e, const char *name, uint64_t now_ns)
{
	struct euser *u = user_get(e, name);
	if (!u)
		return 0;
	user_decay(u, now_ns);
	double usage = u->usage;
	VEC_EACH(&e->jobs, pj)
		if ((*pj)->alive && strcmp((*pj)->user, name) == 0)
			/* A slot just given counts for something at once, or one user would take all. */
			usage += (30 + (double)(*pj)->inc_ran_ms / 1e3) * (double)MAX((*pj)->slots_count, (size_t)1);
	return usage;
}

/* ---- facts ---- */

double enode_hazard_per_s(const struct enode *n, uint64_t now_ns)
{
	if (n->hazard_per_s > 0)
		return n->hazard_per_s;
	double lent_s = (double)(n->lent_ns + (n->lent_since_ns ? now_ns - n->lent_since_ns : 0)) / 1e9;
	return ((double)n->reclaims + HAZARD_PRIOR_EVENTS) / (lent_s + HAZARD_PRIOR_S);
}

const char *enode_host(const struct enode *n)
{
	return n->hello.hello.host ? n->hello.hello.host : n->address;
}

bool enode_serves(const struct enode *n)
{
	return n->up && n->hello_seen && n->hello.hello.transfer_port &&
	       (n->owner_state == CONTROL_OWNER_LENT || n->owner_state == CONTROL_OWNER_NOTICE ||
		n->hello.hello.shadow_owned);
}

static bool listed(char *const *list, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(list[i], name) == 0)
			return true;
	return false;
}

static bool admits(struct engine *e, const struct control_hello *h, const char *person)
{
	if (listed(h->deny, h->deny_count, person))
		return false;
	if (h->users_count + h->groups_count == 0 || listed(h->users, h->users_count, person))
		return true;
	for (size_t i = 0; i < h->groups_count && e->ops->in_group; i++)
		if (e->ops->in_group(e->user, h->groups[i], person))
			return true;
	return false;
}

static bool type_fits(const char *have, const char *want)
{
	return !want || (have && strcasestr(have, want));
}

/* Slots that other jobs' moves are on the way to. */
static size_t slots_promised(struct engine *e, const struct enode *n, const struct ejob *except)
{
	size_t count = 0;
	VEC_EACH(&e->jobs, pj)
		if (*pj != except && strcmp((*pj)->dest, n->name) == 0 &&
		    ((*pj)->move_pending || (*pj)->state == REST_JOB_QUEUED))
			count += MAX((*pj)->slots_count, (size_t)1);
	return count;
}

static const char *slots_refusal(struct engine *e, const struct enode *n, const struct ejob *j,
				 unsigned *ret_slots, size_t *ret_count)
{
	const struct control_hello *h = &n->hello.hello;
	const struct job_slots *want = &j->spec.slots;
	size_t free_slots = 0, taken = 0;
	uint64_t cores = 0, memory = 0, gpus = 0;
	for (size_t i = 0; i < h->slots_count; i++)
		free_slots += !n->slot_used[i];
	size_t promised = slots_promised(e, n, j);
	if (free_slots <= promised)
		return "no free slot";
	for (size_t i = 0; i < h->slots_count && taken < free_slots - promised; i++) {
		const struct control_slot *s = &h->slots[i];
		bool enough = cores >= want->cores * 1000 && gpus >= want->gpus &&
			      (memory >= want->memory || !s->memory) && taken > 0;
		if (n->slot_used[i] || enough)
			continue;
		if ((want->gpus > 0) != s->gpu)
			continue;
		if (want->gpus && (!type_fits(s->gpu_type, want->gpu_type) || s->gpu_memory < want->gpu_memory))
			continue;
		if (ret_slots)
			ret_slots[taken] = (unsigned)i;
		taken++;
		cores += s->cores_milli;
		gpus += s->gpu;
		/* A slot without a limit of its own has what the machine has. */
		memory = s->memory ? memory + s->memory : UINT64_MAX / 2;
	}
	if (ret_count)
		*ret_count = taken;
	if (taken == 0 || gpus < want->gpus)
		return want->gpus ? "no free GPU of that type" : "no free CPU slot";
	if (cores < want->cores * 1000)
		return "too few cores free";
	if (memory < want->memory)
		return "too little memory free";
	return NULL;
}

const char *enode_refusal(struct engine *e, const struct enode *n, const struct ejob *j,
			  unsigned *ret_slots, size_t *ret_slots_count)
{
	const struct control_hello *h = &n->hello.hello;
	if (!n->up || !n->hello_seen)
		return "not in reach";
	if (n->banned)
		return "its certificate is revoked";
	if (n->owner_state != CONTROL_OWNER_LENT)
		return "its owner has it";
	if (n->paused)
		return "paused by its owner";
	if (!admits(e, h, j->user))
		return "its owner's terms do not admit the user";
	if (n->disk_free <= MAX(j->durable.bytes, j->saved.bytes))
		return "too little disk for its image";
	if (!h->transfer_port)
		return "its transfer port is not open yet";
	if (j->ranks > 1 && !h->gang_port)
		return "it cannot give a rank of a gang its own network";
	if (j->ranks > 1 && gang_is_at(e, j, n->name))
		return "another rank of it is there";
	return slots_refusal(e, n, j, ret_slots, ret_slots_count);
}

/* ---- choice ---- */

bool ejob_avoids(const struct ejob *j, const char *node)
{
	for (size_t i = 0; i < j->avoid_count; i++)
		if (strcmp(j->avoid[i], node) == 0)
			return true;
	return false;
}

/* Higher is better: expected share of the next hour that it stays, less for images far away. */
double enode_score(struct engine *e, const struct enode *n, const struct ejob *j, uint64_t now_ns)
{
	const struct enode *own = engine_node(e, j->node);
	double score = exp(-enode_hazard_per_s(n, now_ns) * 3600);
	if (ejob_image_has(&j->durable, n->name) || ejob_image_has(&j->saved, n->name))
		score += 0.3;
	else if (strcmp(n->name, j->stage) == 0)
		score += 0.2;
	if (ejob_avoids(j, n->name))
		score -= 10;
	/* A copy inside the building does not cross the links that everybody shares. */
	const char *building = n->hello.hello.building;
	if (own && own != n && building && own->hello.hello.building &&
	    strcmp(building, own->hello.hello.building) == 0)
		score += NEAR_BONUS;
	/* Neighbours leave together, and share the link that a move would need. */
	const char *room = n->hello.hello.room, *own_room = own ? own->hello.hello.room : NULL;
	if (own && own->owner_state != CONTROL_OWNER_LENT && room && own_room && strcmp(room, own_room) == 0)
		score -= 0.25;
	size_t used = 0;
	for (size_t i = 0; i < n->hello.hello.slots_count; i++)
		used += n->slot_used[i];
	return score - 0.01 * (double)used;
}

struct enode *engine_choose(struct engine *e, const struct ejob *j, bool start, uint64_t now_ns)
{
	struct enode *best = NULL;
	double best_score = 0;
	void *value;
	for (size_t pos = 0; map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		if ((!start && strcmp(n->name, j->node) == 0) || enode_refusal(e, n, j, NULL, NULL))
			continue;
		double score = enode_score(e, n, j, now_ns);
		if (!best || score > best_score) {
			best = n;
			best_score = score;
		}
	}
	return best;
}

static const char *place_of(const struct enode *n)
{
	return n->hello.hello.building ? n->hello.hello.building : n->name;
}

bool engine_is_slow(const struct engine *e, const struct enode *from, const struct enode *to,
		    uint64_t now_ns)
{
	for (size_t i = 0; i < ENGINE_SLOW_MAX; i++)
		if (e->slow[i].until_ns > now_ns && strcmp(e->slow[i].from, place_of(from)) == 0 &&
		    strcmp(e->slow[i].to, place_of(to)) == 0)
			return true;
	return false;
}

void engine_set_slow(struct engine *e, const struct enode *from, const struct enode *to,
		     uint64_t now_ns)
{
	struct engine_slow *s = &e->slow[e->slow_at++ % ENGINE_SLOW_MAX];
	(void)snprintf(s->from, sizeof(s->from), "%s", place_of(from));
	(void)snprintf(s->to, sizeof(s->to), "%s", place_of(to));
	s->until_ns = now_ns + ENGINE_SLOW_NS;
}

struct enode *engine_choose_keeper(struct engine *e, const struct ejob *j, uint64_t now_ns)
{
	const struct enode *own = engine_node(e, j->node);
	struct enode *best = NULL;
	double best_score = 0;
	void *value;
	for (size_t pos = 0; map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		const struct control_hello *h = &n->hello.hello;
		bool owned = n->owner_state != CONTROL_OWNER_LENT;
		if (!n->up || !n->hello_seen || n->banned || !h->shadow_keep || !h->transfer_port ||
		    strcmp(n->name, j->node) == 0 || (owned && !h->shadow_owned) ||
		    n->owner_state == CONTROL_OWNER_NOTICE || n->owner_state == CONTROL_OWNER_DRAINING ||
		    n->disk_free < j->saved.bytes)
			continue;
		double score = enode_score(e, n, j, now_ns) - (owned ? 0.5 : 0) -
			       (enode_refusal(e, n, j, NULL, NULL) ? 0.1 : 0) -
			       (own && engine_is_slow(e, own, n, now_ns) ? 0.6 : 0);
		if (!best || score > best_score) {
			best = n;
			best_score = score;
		}
	}
	return best;
}

/* ---- starting ---- */

/* What the next incarnation begins from; NULL with ret_wait = nothing that exists is in reach. */
static const struct ejob_image *start_image(struct engine *e, const struct ejob *j,
					    const struct enode *at, bool *ret_wait)
{
	const struct ejob_image *order[] = { &j->saved, &j->durable, &j->before }, *fit[3];
	size_t count = 0;
	*ret_wait = false;
	for (size_t i = 0; i < ARRAY_SIZE(order); i++)
		if (ejob_image_reachable(e, order[i], at) &&
		    (count == 0 || strcmp(fit[count - 1]->digest, order[i]->digest) != 0))
			fit[count++] = order[i];
	if (count == 0) {
		*ret_wait = j->durable.digest[0] != '\0';
		return NULL;
	}
	/* The newest; once it has failed some times, each in its turn: it may be damaged, or what
	 * kept it from coming may have passed. */
	size_t turn = j->start_failures >= ENGINE_START_FAILURES_DOUBT ?
			      j->start_failures - ENGINE_START_FAILURES_DOUBT + 1 : 0;
	return fit[turn % count];
}

static int by_turn(const void *a, const void *b)
{
	const struct {
		double usage;
		struct ejob *job;
	} *x = a, *y = b;
	if (x->usage != y->usage)
		return x->usage < y->usage ? -1 : 1;
	return x->job->order < y->job->order ? -1 : x->job->order > y->job->order;
}

static bool try_start(struct engine *e, struct ejob *j, uint64_t now_ns)
{
	unsigned slots[CONTROL_SLOTS_MAX];
	size_t count = 0;
	bool wait;
	if (j->ranks > 1)
		return gang_start(e, j, now_ns);
	struct enode *n = engine_node(e, j->dest); /* where its image went, if it went */
	if (!n || enode_refusal(e, n, j, NULL, NULL) || ejob_avoids(j, n->name))
		n = engine_choose(e, j, true, now_ns);
	if (!n) {
		if (!j->restarts)
			ejob_wait_reason(e, j, "waits for a machine");
		return false;
	}
	if (ejob_avoids(j, n->name) && now_ns < j->retry_at_ns) {
		engine_wake(e, j->retry_at_ns);
		return false;
	}
	const struct ejob_image *im = start_image(e, j, n, &wait);
	if (wait) {
		ejob_wait_reason(e, j, "its last durable image is on machines that are not in reach");
		return false;
	}
	if (enode_refusal(e, n, j, slots, &count))
		return false;
	/* A copy: the job's own images change with the start. */
	struct ejob_image from = im ? *im : (struct ejob_image){ 0 };
	bool saved = im && im == &j->saved;
	if (!ejob_start_book(e, j, n, slots, count, im, now_ns))
		return false;
	ejob_start_give(e, j, n, im ? &from : NULL, saved, NULL, now_ns);
	return true;
}

/* Reclaims whose jobs found no place look again: something may have come free. */
static void replan_notices(struct engine *e, uint64_t now_ns)
{
	void *value;
	for (size_t pos = 0; map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		bool waits = false;
		if (!n->up || n->owner_state != CONTROL_OWNER_NOTICE)
			continue;
		VEC_EACH(&e->jobs, pj)
			waits |= (*pj)->move_pending && !(*pj)->dest[0] && strcmp((*pj)->node, n->name) == 0;
		if (waits)
			engine_plan_notice(e, n, now_ns);
	}
}

void engine_schedule(struct engine *e, uint64_t now_ns)
{
	struct {
		double usage;
		struct ejob *job;
	} *queue = calloc(e->jobs.count + 1, sizeof(*queue));
	size_t count = 0;
	if (!queue)
		return;
	e->schedule_due = false;
	replan_notices(e, now_ns);
	VEC_EACH(&e->jobs, pj) {
		if ((*pj)->ranks > 1 && (*pj)->rank == 0 && gang_ready(e, *pj) && !e->stop_all)
			queue[count++].job = *pj;
		else if ((*pj)->ranks == 1 && (*pj)->state == REST_JOB_QUEUED && !(*pj)->alive && !e->stop_all)
			queue[count++].job = *pj;
	}
	/* One at a time: each start changes whose turn it is. */
	while (count > 0) {
		for (size_t i = 0; i < count; i++)
			queue[i].usage = euser_usage(e, queue[i].job->user, now_ns);
		qsort(queue, count, sizeof(*queue), by_turn);
		size_t i = 0;
		while (i < count && !try_start(e, queue[i].job, now_ns))
			i++;
		if (i == count)
			break;
		memmove(&queue[i], &queue[i + 1], (count - i - 1) * sizeof(*queue));
		count--;
	}
	free(queue);
}

/* ---- why ---- */

json_t *engine_why(struct engine *e, const char *id, uint64_t now_ns)
{
	struct ejob *j = engine_find(e, id);
	if (!j)
		return NULL;
	CLEANUP_JSON json_t *nodes = json_array();
	void *value;
	for (size_t pos = 0; nodes && map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		const char *refusal = enode_refusal(e, n, j, NULL, NULL);
		(void)json_array_append_new(
			nodes, json_pack("{s:s,s:b,s:s,s:f,s:f,s:b,s:b}", "node", n->name, "possible", !refusal,
					 "reason", refusal ? refusal : "", "score",
					 enode_score(e, n, j, now_ns), "reclaims_per_day",
					 enode_hazard_per_s(n, now_ns) * 86400, "has_image",
					 ejob_image_has(&j->durable, n->name), "failed_before",
					 ejob_avoids(j, n->name)));
	}
	return json_pack("{s:s,s:s,s:s,s:s,s:f,s:I,s:f,s:f,s:O}", "job", j->id, "state",
			 rest_job_state_names[j->state], "reason", j->reason, "node", j->node, "user_usage",
			 euser_usage(e, j->user, now_ns), "interval_ms", (json_int_t)j->interval_ms,
			 "losses_per_day", j->rate_eff * 86400, "p_miss", j->p_miss, "considered", nodes);
}
