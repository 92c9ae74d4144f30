/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decisions: what is known is put into the policy's structs, its functions are
 * called as the coordinator calls them, and the answer is carried out. What a
 * policy may not know (the true length of a job, future reclaims) is not
 * passed in.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "sim/run_internal.h"

#define CANDIDATES 48
#define RATE_FRESH_S 900.0
#define HORIZON_STEPS 8
#define HORIZON_STEP_S 1800.0
/* Off once in a month or so, per second. */
#define SERVER_SCORE 1e-7
#define OFF_STEPS 6
#define CURVE_STEPS 24
#define CURVE_STEP_S 600.0
#define CHECK_MAX_S 1800.0
#define MARGIN_S 0.5
#define ESCAPES 8
#define PRICED_JOBS_MAX 4096

static const struct world_job *spec(const struct run *r, uint32_t job)
{
	return &r->world->jobs.data[job];
}

static const struct world_model *model(const struct run *r, uint32_t job)
{
	return &r->world->models.data[spec(r, job)->model];
}

/* The planner's view of one machine, no older than RATE_FRESH_S. */
static void place_refresh(struct run *r, uint32_t node)
{
	struct placement_node *p = &r->places[node];
	double ahead[HORIZON_STEPS], sum = 0;
	if (!r->hazard || r->now_s - r->nodes[node].hazard_at_s < RATE_FRESH_S)
		return;
	hazard_curve(r->hazard, node, r->now_s, HORIZON_STEP_S, HORIZON_STEPS, ahead);
	for (int i = 0; i < HORIZON_STEPS; i++)
		sum += ahead[i];
	p->hazard_per_s = sum / HORIZON_STEPS;
	p->room_shock = r->system->constant_hazard || r->system->rooms_blind ? 0 :
						     hazard_room_shock(r->hazard, node, r->now_s);
	r->nodes[node].hazard_at_s = r->now_s;
}

struct ranked {
	uint32_t node;
	double hazard;
};

static int ranked_order(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->hazard != y->hazard)
		return x->hazard < y->hazard ? -1 : 1;
	return x->node < y->node ? -1 : x->node > y->node;
}

void plan_rank_mark(struct run *r, uint32_t node)
{
	const struct sim_node *n = &r->nodes[node];
	if (n->position == NOBODY || !r->rank_open)
		return;
	uint64_t bit = UINT64_C(1) << n->position % 64, *word = &r->rank_open[n->position / 64];
	*word = n->state == HAZARD_LENT && n->free > 0 ? *word | bit : *word & ~bit;
}

/* The first position from `from` on that is lent and has a slot, or rank.count. */
static size_t rank_next(const struct run *r, size_t from)
{
	size_t count = r->rank.count;
	if (from >= count)
		return count;
	uint64_t word = r->rank_open[from / 64] >> from % 64 << from % 64;
	for (size_t i = from / 64;; word = r->rank_open[i]) {
		if (word)
			return i * 64 + (size_t)__builtin_ctzll(word);
		if (++i * 64 >= count)
			return count;
	}
}

static void rank_make(struct run *r)
{
	size_t n = r->world->nodes.count, count = 0;
	struct ranked *k = malloc((n + 1) * sizeof(*k));
	if (!k) {
		r->error = -1;
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (r->nodes[i].state != HAZARD_LENT)
			continue;
		place_refresh(r, i);
		k[count++] = (struct ranked){ i, r->places[i].hazard_per_s };
	}
	qsort(k, count, sizeof(*k), ranked_order);
	if (VEC_RESERVE(&r->rank, count) < 0) {
		r->error = -1;
	} else {
		r->rank.count = count;
		memset(r->rank_open, 0, (n / 64 + 1) * sizeof(*r->rank_open));
		for (size_t i = 0; i < n; i++)
			r->nodes[i].position = NOBODY;
		for (uint32_t i = 0; i < count; i++) {
			r->rank.data[i] = k[i].node;
			r->nodes[k[i].node].position = i;
			plan_rank_mark(r, k[i].node);
		}
	}
	r->lately.count = 0;
	r->cursor = 0;
	free(k);
}

/* Prices of background bytes, jointly over all running jobs. */
static void prices_make(struct run *r)
{
	const struct network *net = &r->world->net;
	size_t count = 0, n = r->world->nodes.count;
	static const double no_notice[1] = { 0 };
	struct interval_job *jobs = calloc(PRICED_JOBS_MAX, sizeof(*jobs));
	struct interval *answers = calloc(PRICED_JOBS_MAX, sizeof(*answers));
	uint32_t (*paths)[NETWORK_PATH_MAX] = calloc(PRICED_JOBS_MAX, sizeof(*paths));
	struct interval_link *links = calloc(net->links_count + 1, sizeof(*links));
	if (!jobs || !answers || !paths || !links) {
		r->error = -1;
		goto out;
	}
	for (size_t l = 0; l < net->links_count; l++)
		links[l].budget_bps = network_budget_bps(&net->links[l]) * r->world->background;
	for (uint32_t node = 0; node < n && count < PRICED_JOBS_MAX; node++) {
		for (uint32_t j = r->nodes[node].jobs; j != NOBODY && count < PRICED_JOBS_MAX;
		     j = r->jobs[j].next) {
			if (r->jobs[j].state != JOB_RUNNING || r->jobs[j].home == NETWORK_NONE ||
			    r->jobs[j].home == node)
				continue;
			int k = network_path(net, node, r->jobs[j].home, paths[count]);
			if (k <= 0)
				continue;
			if (r->system->topology_blind)
				k = 1;
			jobs[count] = (struct interval_job){
				.weight = spec(r, j)->slots,
				.stall_s = model(r, j)->save_s,
				.bytes_full = model(r, j)->image_bytes,
				.bytes_delta = model(r, j)->image_bytes * model(r, j)->delta,
				.crash_per_s = fmax(r->jobs[j].accrued_rate, 1e-9),
				.path_bps = 1,
				.windows_s = no_notice,
				.links = paths[count],
				.links_count = (size_t)k,
			};
			count++;
		}
	}
	if (interval_solve(jobs, count, links, net->links_count, answers, r->prices) < 0)
		r->error = -1;
out:
	free(jobs);
	free(answers);
	free(paths);
	free(links);
}

void plan_tick(struct run *r)
{
	if (!r->system->planned)
		return;
	rank_make(r);
	if (r->now_s >= r->next_price_s) {
		prices_make(r);
		r->next_price_s = r->now_s + 3600;
	}
}

/* Copies never take more than their share of what is free on the way. */
double plan_copy_limit(struct run *r, const uint32_t *path, int count)
{
	double bps = 1e12;
	for (int k = 0; k < count; k++) {
		const struct network_link *l = &r->world->net.links[path[k]];
		bps = fmin(bps, network_usual_bps(l) * r->world->background);
	}
	return fmax(bps, 1);
}

/* Up to CANDIDATES machines with free slots, longest-lasting first, and those lent lately. */
static size_t candidates(struct run *r, uint32_t slots, uint32_t ret[2 * CANDIDATES])
{
	size_t count = 0;
	/* Freed slots set the cursor back; the newly lent come through `lately`. */
	r->cursor = (uint32_t)rank_next(r, r->cursor);
	for (size_t i = r->cursor; i < r->rank.count && count < CANDIDATES;
	     i = rank_next(r, i + 1)) {
		uint32_t node = r->rank.data[i];
		if (r->nodes[node].free >= slots)
			ret[count++] = node;
	}
	size_t from = r->lately.count > CANDIDATES ? r->lately.count - CANDIDATES : 0;
	for (size_t i = from; i < r->lately.count; i++) {
		uint32_t node = r->lately.data[i];
		bool twice = false;
		if (r->nodes[node].state != HAZARD_LENT || r->nodes[node].free < slots)
			continue;
		for (size_t k = 0; k < count && !twice; k++)
			twice = ret[k] == node;
		if (!twice)
			ret[count++] = node;
	}
	for (size_t i = 0; i < count; i++)
		place_refresh(r, ret[i]);
	return count;
}

static struct placement_job ask(struct run *r, uint32_t job)
{
	const struct sim_job *j = &r->jobs[job];
	const struct world_model *m = model(r, job);
	double done = j->state == JOB_RUNNING ? job_done_s(j, r->now_s) : j->done_s;
	struct placement_job p = {
		.id = job,
		.slots = spec(r, job)->slots,
		.slot_kind = spec(r, job)->slot_kind,
		.gpu_type = j->gpu_type,
		.transparent = m->transparent,
		.source = PLACEMENT_NONE,
		.window_s = INFINITY,
		.image_bytes = m->image_bytes,
		.save_again_s = m->save_s,
		.restart_s = m->restore_s,
		/* Jobs that ran long run on long (heavy tails): as long again, within a day. */
		.remaining_s = fmin(fmax(done, 3600), 86400),
		/* Lost at a reclaim without enough notice: half an interval, as it comes out. */
		.loss_per_reclaim_s = spec(r, job)->slots * fmin(900, 300 + done / 4),
	};
	return p;
}

static struct placement_config plan_config(const struct run *r)
{
	return (struct placement_config){
		.margin_s = MARGIN_S,
		.downtime_weight = 0.2,
		.byte_price = 1e-12,
		.leftover_price = 8,
		.candidates_max = CANDIDATES,
		.hazard_blind = r->system->constant_hazard,
		.topology_blind = r->system->topology_blind,
		.deadline_blind = r->system->deadline_blind,
	};
}

static int plan_one(struct run *r, const struct placement_job *p, const uint32_t *rank,
		    size_t count, struct placement *ret)
{
	struct placement_config config = plan_config(r);
	config.rank = rank;
	config.rank_count = count;
	int e = placement_plan(&r->world->net, r->places, r->world->net.nodes_count, p, 1, NULL, 0,
			       &config, ret);
	if (e < 0)
		r->error = -1;
	return e;
}

static bool place_planned(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	uint32_t rank[2 * CANDIDATES];
	struct placement_job p = ask(r, job);
	struct placement away, stay = { .node = PLACEMENT_NONE };
	size_t count = candidates(r, p.slots, rank);
	bool image = !j->fresh && j->image_at != NETWORK_NONE && j->durable_s > 0;
	if (count == 0)
		return false;
	/* Where the image lies nothing has to travel. */
	if (image && j->image_at < r->world->nodes.count) {
		place_refresh(r, j->image_at);
		if (plan_one(r, &p, &j->image_at, 1, &stay) < 0)
			return false;
		p.source = j->image_at;
	}
	if (plan_one(r, &p, rank, count, &away) < 0)
		return false;
	if (stay.node != PLACEMENT_NONE &&
	    (away.node == PLACEMENT_NONE || stay.score >= away.score))
		away = stay;
	if (away.node == PLACEMENT_NONE)
		return false;
	job_start(r, job, away.node, image && away.node != j->image_at ? p.image_bytes : 0);
	return true;
}

static bool place_first(struct run *r, uint32_t job)
{
	uint32_t best = NOBODY, slots = spec(r, job)->slots;
	const struct sim_job *j = &r->jobs[job];
	bool last = r->system->notice == NOTICE_CLAIRVOYANT;
	for (uint32_t i = 0; i < r->world->nodes.count; i++) {
		if (r->nodes[i].state != HAZARD_LENT || r->nodes[i].free < slots)
			continue;
		if (j->gpu_type && r->world->nodes.data[i].gpu_type != j->gpu_type)
			continue;
		if (best == NOBODY ||
		    (last && r->nodes[i].next_leave_s > r->nodes[best].next_leave_s))
			best = i;
		if (!last)
			break;
	}
	if (best == NOBODY)
		return false;
	bool image = !j->fresh && j->durable_s > 0;
	job_start(r, job, best, image ? model(r, job)->image_bytes : 0);
	return true;
}

/* An image on a machine that is off is waited for, one on a machine that left is lost. */
static bool image_reachable(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	bool dark = j->image_at < r->world->nodes.count &&
		    (r->nodes[j->image_at].state == HAZARD_OFF ||
		     r->nodes[j->image_at].state == HAZARD_GONE);
	if (dark && j->earlier_s > 0 && j->earlier_s >= j->durable_s && j->earlier_at != j->image_at)
		j->image_at = j->earlier_at; /* as good, if that machine is up */
	if (j->image_at == NETWORK_NONE || j->image_at >= r->world->nodes.count ||
	    r->nodes[j->image_at].state == HAZARD_LENT ||
	    r->nodes[j->image_at].state == HAZARD_OWNED)
		return true;
	/* How long it will be off is not known: wait as long as the image is worth, no longer
	 * (never more than twice the cost of knowing). */
	if (r->nodes[j->image_at].state == HAZARD_OFF && r->now_s - j->stopped_s < j->durable_s)
		return false;
	run_lost(r, j, j->durable_s * spec(r, job)->slots, true);
	j->durable_s = j->done_s = 0;
	j->image_at = NETWORK_NONE;
	return true;
}

static void queue_serve(struct run *r, struct job_queue *q)
{
	size_t kept = 0, failed = 0;
	for (size_t i = q->head; i < q->count; i++) {
		uint32_t job = q->items[i];
		bool placed = false;
		if (r->slots_free >= spec(r, job)->slots && failed < 16 && image_reachable(r, job)) {
			placed = r->system->planned ? place_planned(r, job) : place_first(r, job);
			failed += !placed;
		} else if (r->slots_free == 0 || failed >= 16) {
			/* Nothing more can start: what is left keeps its place. */
			if (kept == 0) {
				q->head = i;
			} else {
				memmove(q->items + q->head + kept, q->items + i,
					(q->count - i) * sizeof(*q->items));
				q->count = q->head + kept + (q->count - i);
			}
			return;
		}
		if (!placed)
			q->items[q->head + kept++] = job;
	}
	q->count = q->head + kept;
}

void plan_queue(struct run *r)
{
	if (!r->queue_dirty)
		return;
	r->queue_dirty = false;
	if (r->slots_free == 0)
		return;
	queue_serve(r, &r->evicted);
	queue_serve(r, &r->fresh);
	r->queue_dirty = false; /* starting gives no slots */
}

static struct transfer transfer_now(const struct run *r, uint32_t job)
{
	const struct sim_job *j = &r->jobs[job];
	struct transfer t = {
		.id = job,
		.deadline_in_s = r->system->deadline_blind ? INFINITY :
							     j->deadline_s - MARGIN_S / 2 - r->now_s,
		.saved_work = (j->done_s - j->durable_s) * spec(r, job)->slots,
		.promised = j->promised,
	};
	if (j->flow != FLOW_NONE) {
		t.bytes = flow_left(&r->flows.items.data[j->flow], r->now_s);
	} else {
		t.bytes = model(r, job)->image_bytes *
			  (j->image_at == j->dest && j->durable_s > 0 ? model(r, job)->delta : 1);
		t.start_in_s = fmax(j->at_s + model(r, job)->save_s - r->now_s, 0);
	}
	int n = network_path(&r->world->net, j->node, j->dest, t.links);
	t.links_count = n > 0 ? (uint32_t)n : 0;
	return t;
}

void plan_moves(struct run *r, const uint32_t *jobs, size_t count, double window_s)
{
	uint32_t rank[2 * CANDIDATES + 1];
	struct placement_job p[64];
	struct placement answers[64];
	struct placement_have have[64];
	struct placement_config config = plan_config(r);
	struct transfer *running = calloc(r->moving.count + 1, sizeof(*running));
	if (!running) {
		r->error = -1;
		return;
	}
	for (size_t i = 0; i < r->moving.count; i++)
		running[i] = transfer_now(r, r->moving.data[i]);
	config.rank = rank;
	config.rank_count = candidates(r, 1, rank);
	rank[config.rank_count++] = r->world->server; /* to stage on, where nobody has a slot */
	for (size_t i = 0; i < count; i++) {
		struct sim_job *j = &r->jobs[jobs[i]];
		p[i] = ask(r, jobs[i]);
		p[i].source = j->node;
		p[i].window_s = window_s;
		p[i].save_s = model(r, jobs[i])->save_s;
		p[i].unsaved_work_s =
			(job_done_s(j, r->now_s) - j->durable_s) * spec(r, jobs[i])->slots;
		if (j->image_at < r->world->nodes.count && j->durable_s > 0) {
			have[i] = (struct placement_have){
				j->image_at, p[i].image_bytes * (1 - model(r, jobs[i])->delta)
			};
			p[i].have = &have[i];
			p[i].have_count = 1;
		}
	}
	if (placement_plan(&r->world->net, r->places, r->world->net.nodes_count, p, count, running,
			   r->moving.count, &config, answers) < 0)
		r->error = -1;
	free(running);
	for (size_t i = 0; i < count; i++) {
		struct sim_job *j = &r->jobs[jobs[i]];
		j->dest = NOBODY;
		j->staging = answers[i].verdict == PLACEMENT_STAGE;
		j->promised = answers[i].promised;
		if (r->error == 0 && answers[i].verdict != PLACEMENT_FALLBACK)
			j->dest = answers[i].node;
	}
}

static void floor_set(struct run *r, uint32_t job, double bps)
{
	struct sim_job *j = &r->jobs[job];
	if (j->flow == FLOW_NONE || fabs(j->floor - bps) < 1)
		return;
	j->floor = bps;
	flow_floor(&r->flows, j->flow, bps);
	if (flows_update(&r->flows, j->flow, r->now_s) < 0)
		r->error = -1;
	run_flows_touched(r);
}

/*
 * As the coordinator of a lab does (engine_move.c): every move the same floor, or twice what it
 * needs. Where floors meet on a link that does not carry them all, TCP shares it evenly.
 */
static void floors_even(struct run *r)
{
	uint32_t *on = calloc(r->world->net.links_count + 1, sizeof(*on));
	if (!on) {
		r->error = -1;
		return;
	}
	for (size_t i = 0; i < r->moving.count; i++) {
		const struct sim_job *j = &r->jobs[r->moving.data[i]];
		const struct flow *x = j->flow == FLOW_NONE ? NULL : &r->flows.items.data[j->flow];
		for (uint32_t k = 0; x && k < x->links_count; k++)
			on[x->links[k]]++;
	}
	for (size_t i = 0; r->error == 0 && i < r->moving.count; i++) {
		const struct sim_job *j = &r->jobs[r->moving.data[i]];
		const struct flow *x = j->flow == FLOW_NONE ? NULL : &r->flows.items.data[j->flow];
		if (!x)
			continue;
		double left_s = fmax(j->deadline_s - r->now_s - MARGIN_S, 0.1);
		double bps = fmax(r->world->floor_bps, 2 * flow_left(x, r->now_s) / left_s);
		for (uint32_t k = 0; k < x->links_count; k++)
			bps = fmin(bps, network_budget_bps(&r->world->net.links[x->links[k]]) /
						on[x->links[k]]);
		floor_set(r, r->moving.data[i], bps);
	}
	free(on);
}

/* The schedule's rates now, for all that move at notice. */
void plan_floors(struct run *r)
{
	size_t n = r->moving.count;
	struct admission_config config = { .topology_blind = r->system->topology_blind,
					   .deadline_blind = r->system->deadline_blind };
	if (n == 0 || r->system->notice != NOTICE_MOVE)
		return;
	if (r->world->floor_bps > 0) {
		floors_even(r);
		return;
	}
	struct transfer *t = calloc(n, sizeof(*t));
	struct admission *a = calloc(n, sizeof(*a));
	if (!t || !a)
		r->error = -1;
	for (size_t i = 0; r->error == 0 && i < n; i++)
		t[i] = transfer_now(r, r->moving.data[i]);
	if (r->error == 0 && admission_plan(&r->world->net, t, n, &config, a, NULL) < 0)
		r->error = -1;
	for (size_t i = 0; r->error == 0 && i < n; i++)
		floor_set(r, r->moving.data[i], fmin(a[i].floor_bps, 1e15));
	free(t);
	free(a);
}

static double path_usual(const struct run *r, uint32_t from, uint32_t to)
{
	uint32_t path[NETWORK_PATH_MAX];
	int n = network_path(&r->world->net, from, to, path);
	double bps = INFINITY;
	for (int k = 0; k < (r->system->topology_blind ? MIN(n, 1) : n); k++)
		bps = fmin(bps, network_usual_bps(&r->world->net.links[path[k]]));
	return bps;
}

/* What a reclaim now could move at: towards the copies, where only what changed must go if the
 * last one is there, or to one of the machines that would be asked first. */
static double escape_bps(struct run *r, uint32_t job, double enough_bps)
{
	const struct sim_job *j = &r->jobs[job];
	bool away = j->home != NETWORK_NONE && j->home != j->node;
	double best = path_usual(r, j->node, away ? j->home : r->world->server);
	if (away && j->image_at == j->home && j->durable_s > 0 && j->home < r->world->nodes.count &&
	    r->nodes[j->home].state == HAZARD_LENT && r->nodes[j->home].free > 0)
		best /= fmax(model(r, job)->delta, 0.01);
	size_t at = rank_next(r, r->cursor);
	for (int i = 0; i < ESCAPES && at < r->rank.count && best < enough_bps; i++) {
		uint32_t node = r->rank.data[at];
		if (node != j->node && r->nodes[node].free >= spec(r, job)->slots &&
		    (!j->gpu_type || r->places[node].gpu_type == j->gpu_type))
			best = fmax(best, path_usual(r, j->node, node));
		at = rank_next(r, at + 1);
	}
	return best;
}

/* Rate of losing work, now: reclaims that the window does not cover, and power-offs. */
static double rate_eff(struct run *r, uint32_t job, double *ret_scale)
{
	const struct sim_job *j = &r->jobs[job];
	const struct world_model *m = model(r, job);
	const struct world_node *n = &r->world->nodes.data[j->node];
	/* With this it gets away for certain: no need to look further. */
	double enough = 2 * m->image_bytes / fmax(n->window_s - m->save_s - MARGIN_S, 0.1);
	struct interval_job q = {
		.weight = 1,
		.stall_s = m->save_s,
		.save_s = m->save_s,
		.bytes_full = m->image_bytes,
		.bytes_delta = m->image_bytes,
		.path_bps = escape_bps(r, job, enough),
		.windows_s = &n->window_s,
		.windows_count = r->system->deadline_blind ? 0 : 1,
	};
	struct hazard_rate rate;
	hazard_rate(r->hazard, j->node, r->now_s, &rate);
	double total = rate.per_s + rate.off_per_s;
	double eff = rate.per_s * interval_p_miss(&q, 0) + rate.off_per_s;
	*ret_scale = total > 0 ? eff / total : 1;
	return eff;
}

static double cost_s(const struct run *r, uint32_t job)
{
	const struct sim_job *j = &r->jobs[job];
	double price = 0, cost = model(r, job)->save_s;
	uint32_t path[NETWORK_PATH_MAX];
	if (j->home != NETWORK_NONE && j->home != j->node) {
		int n = network_path(&r->world->net, j->node, j->home, path);
		for (int k = 0; k < (r->system->topology_blind ? MIN(n, 1) : n); k++)
			price += r->prices[path[k]];
	}
	cost += model(r, job)->image_bytes * model(r, job)->delta * price / spec(r, job)->slots;
	return fmax(cost, 0.05);
}

/* The rate that any of the formulas of one constant would use: measured so far, campus-wide. */
static double campus_rate(const struct run *r)
{
	return (r->campus_events + 1) / (r->campus_exposed_s + 4 * 3600.0);
}

void plan_checkpoint(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	double stall = model(r, job)->save_s, in = INFINITY;
	if (j->checkpoint_due)
		return; /* as soon as the copy before it has arrived */
	if (spec(r, job)->interval_s > 0 && r->system->interval != EVERY_NEVER) {
		in = spec(r, job)->interval_s;
	} else if (r->system->interval == EVERY_FIXED) {
		in = r->system->fixed_s;
	} else if (r->system->interval == EVERY_YOUNG) {
		in = interval_young(stall, campus_rate(r));
	} else if (r->system->interval == EVERY_DALY) {
		in = interval_daly(stall, campus_rate(r));
	} else if (r->system->interval == EVERY_POLICY) {
		double curve[CURVE_STEPS], scale, cost = cost_s(r, job);
		double dt = r->now_s - j->accrued_at_s;
		if (dt > 0)
			j->accrued += interval_accrue(j->accrued_rate, cost, dt);
		j->accrued_at_s = r->now_s;
		j->accrued_rate = rate_eff(r, job, &scale);
		hazard_curve(r->hazard, j->node, r->now_s, CURVE_STEP_S, CURVE_STEPS, curve);
		in = interval_next(curve, CURVE_STEPS, CURVE_STEP_S, scale, cost, j->accrued);
		in = fmin(in, CHECK_MAX_S); /* look again: the rate may have moved */
	}
	j->check++;
	if (in < INFINITY)
		run_push(r, fmax(r->now_s, j->stall_until_s) + in, EVENT_CHECKPOINT, job, j->check);
}

/* Enough to be worth a new plan. */
static bool rate_moved(struct run *r, uint32_t job)
{
	const struct sim_job *j = &r->jobs[job];
	double scale, rate;
	if (r->now_s - j->accrued_at_s < 30)
		return false;
	rate = rate_eff(r, job, &scale);
	return rate > 1.5 * j->accrued_rate || rate < 0.5 * j->accrued_rate;
}

/* A reclaim in the room: the neighbours' rates have just changed. */
void plan_room(struct run *r, uint32_t node)
{
	if (r->system->interval != EVERY_POLICY || r->system->constant_hazard ||
	    r->system->rooms_blind)
		return;
	uint32_t room = r->world->nodes.data[node].room;
	for (uint32_t k = r->room_first[room]; k < r->room_first[room + 1]; k++) {
		uint32_t other = r->room_nodes[k];
		if (other == node)
			continue;
		for (uint32_t job = r->nodes[other].jobs; job != NOBODY; job = r->jobs[job].next)
			if (r->jobs[job].state == JOB_RUNNING && rate_moved(r, job))
				plan_checkpoint(r, job);
	}
}

/*
 * A machine of the room went off. Others may follow within seconds, without
 * notice: whoever has more at stake than a checkpoint costs saves now.
 */
void plan_room_off(struct run *r, uint32_t node)
{
	if (r->system->interval != EVERY_POLICY || r->system->constant_hazard ||
	    r->system->rooms_blind)
		return;
	uint32_t room = r->world->nodes.data[node].room;
	for (uint32_t k = r->room_first[room]; k < r->room_first[room + 1]; k++) {
		uint32_t other = r->room_nodes[k];
		for (uint32_t job = other == node ? NOBODY : r->nodes[other].jobs; job != NOBODY;
		     job = r->jobs[job].next) {
			const struct sim_job *j = &r->jobs[job];
			const struct world_model *m = model(r, job);
			uint32_t path[NETWORK_PATH_MAX];
			if (j->state != JOB_RUNNING || j->checkpoint_due || spec(r, job)->interval_s > 0 ||
			    j->home == NETWORK_NONE || j->home == other)
				continue;
			int n = network_path(&r->world->net, other, j->home, path);
			double bytes = m->image_bytes * (j->image_at == j->home ? m->delta : 1);
			double takes = m->save_s + bytes / plan_copy_limit(r, path, n);
			double p = hazard_off_group(r->hazard, other, r->now_s, takes);
			double safe = j->pending_s >= 0 ? j->pending_s : j->durable_s;
			if (!interval_skip(p, job_done_s(j, r->now_s) - safe, 0, cost_s(r, job)))
				job_checkpoint(r, job);
		}
	}
}

/* Chance per second that the machine goes off, over the hours ahead. */
static double off_refresh(struct run *r, uint32_t node)
{
	struct sim_node *n = &r->nodes[node];
	double ahead[OFF_STEPS], sum = 0;
	if (r->now_s - n->off_at_s < 4 * RATE_FRESH_S)
		return n->off_rate;
	hazard_curve_cause(r->hazard, node, HAZARD_POWER_OFF, r->now_s, 7200, OFF_STEPS, ahead);
	for (int i = 0; i < OFF_STEPS; i++)
		sum += ahead[i];
	n->off_at_s = r->now_s;
	return n->off_rate = sum / OFF_STEPS;
}

/*
 * Where its copies go: a machine that stays up (its owner's presence does no
 * harm to an image), outside its own room, and as the likely next place one
 * that lasts and has room.
 */
void plan_home(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	uint32_t rank[2 * CANDIDATES], best = NETWORK_NONE;
	size_t n = candidates(r, spec(r, job)->slots, rank);
	uint32_t room = r->world->nodes.data[j->node].room;
	if (j->home != NETWORK_NONE && j->home != j->node && j->home < r->world->nodes.count &&
	    r->nodes[j->home].state == HAZARD_LENT && r->nodes[j->home].free > 0 &&
	    j->image_at == j->home && off_refresh(r, j->home) < 2 * SERVER_SCORE)
		return; /* what lies there is worth keeping */
	/* The file server keeps images too (it starts nothing); a peer is preferred while it is
	 * about as likely to stay up, since it may also be where the job goes on. */
	double best_score = SERVER_SCORE;
	best = r->world->server;
	uint32_t start = n ? job * 7 % n : 0; /* equal ones are shared out by the job's number */
	for (size_t k = 0; k < n; k++) {
		uint32_t node = rank[(start + k) % n];
		if (node == j->node || (j->gpu_type && r->places[node].gpu_type != j->gpu_type))
			continue;
		double score = off_refresh(r, node) + 0.1 * r->places[node].hazard_per_s +
			       (!r->system->rooms_blind && r->world->nodes.data[node].room == room ? 1e-5 : 0);
		if (score < best_score * 0.95) {
			best_score = score;
			best = node;
		}
	}
	j->home = best;
	if (best < r->world->nodes.count && VEC_PUSH(&r->nodes[best].homed, job) < 0)
		r->error = -1;
}
