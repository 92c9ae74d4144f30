/* SPDX-License-Identifier: Apache-2.0 */
/* A job's life: start, compute, save, lose a machine, go on elsewhere. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "sim/run_internal.h"

static const struct world_job *spec(const struct run *r, uint32_t job)
{
	return &r->world->jobs.data[job];
}

static const struct world_model *model(const struct run *r, uint32_t job)
{
	return &r->world->models.data[spec(r, job)->model];
}

static uint32_t store(const struct run *r)
{
	return r->system->store == STORE_HUB ? r->world->hub : r->world->server;
}

double job_done_s(const struct sim_job *j, double now_s)
{
	double from = fmax(j->at_s, j->stall_until_s);
	return j->done_s + fmax(now_s - from, 0);
}

static void attach(struct run *r, uint32_t job, uint32_t node)
{
	struct sim_job *j = &r->jobs[job];
	j->node = node;
	j->prev = NOBODY;
	j->next = r->nodes[node].jobs;
	if (j->next != NOBODY)
		r->jobs[j->next].prev = job;
	r->nodes[node].jobs = job;
}

static void slots_take(struct run *r, uint32_t node, uint32_t slots)
{
	CHECK(r->nodes[node].free >= slots);
	r->nodes[node].free -= slots;
	r->places[node].slots_free = r->nodes[node].free;
	r->slots_free -= slots;
	plan_rank_mark(r, node);
}

static void slots_give(struct run *r, uint32_t node, uint32_t slots)
{
	r->nodes[node].free += slots;
	r->places[node].slots_free = r->nodes[node].free;
	plan_rank_mark(r, node);
	if (r->nodes[node].state == HAZARD_LENT) {
		r->slots_free += slots;
		r->queue_dirty = true;
		r->cursor = MIN(r->cursor, r->nodes[node].position);
	}
}

static void flow_drop(struct run *r, struct sim_job *j)
{
	if (j->flow == FLOW_NONE)
		return;
	if (flow_remove(&r->flows, j->flow, r->now_s) < 0)
		r->error = -1;
	j->flow = FLOW_NONE;
	run_flows_touched(r);
}

static void flow_start(struct run *r, uint32_t job, uint32_t from, uint32_t to, double bytes)
{
	struct sim_job *j = &r->jobs[job];
	uint32_t path[NETWORK_PATH_MAX];
	int links = network_path(&r->world->net, from, to, path);
	CHECK(links > 0);
	j->floor = 0; /* what an earlier move of this job had says nothing */
	struct flow_spec spec = { .bytes = fmax(bytes, 1),
				  .links = path,
				  .count = (uint32_t)links,
				  .user = FLOW_OF(job, false) };
	if (flow_add(&r->flows, r->now_s, &spec, &j->flow) < 0)
		r->error = -1;
	r->result->moved_bytes += bytes;
	run_flows_touched(r);
}

static void copy_drop(struct run *r, struct sim_job *j)
{
	j->copying++;
	j->pending_s = -1;
	j->checkpoint_due = false;
	if (j->copy == FLOW_NONE)
		return;
	if (flow_remove(&r->flows, j->copy, r->now_s) < 0)
		r->error = -1;
	j->copy = FLOW_NONE;
	run_flows_touched(r);
}

/* The copy may leave: ours in the scavenger's class, others' as any traffic. */
void job_copy(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	uint32_t path[NETWORK_PATH_MAX];
	if (j->node == NOBODY || j->pending_s < 0)
		return;
	int links = network_path(&r->world->net, j->node, j->copy_to, path);
	CHECK(links > 0);
	bool ours = r->system->store == STORE_PEER;
	struct flow_spec spec = { .bytes = fmax(j->copy_bytes, 1),
				  .links = path,
				  .count = (uint32_t)links,
				  .user = FLOW_OF(job, true),
				  .limit = ours ? plan_copy_limit(r, path, links) : 0,
				  .yields = ours };
	if (flow_add(&r->flows, r->now_s, &spec, &j->copy) < 0)
		r->error = -1;
	r->result->background_bytes += j->copy_bytes;
	run_flows_touched(r);
}

/* What is in pending_s goes to a machine, once the image is complete. */
void job_copy_to(struct run *r, uint32_t job, uint32_t to, double bytes)
{
	struct sim_job *j = &r->jobs[job];
	double pending = j->pending_s;
	bool due = j->checkpoint_due;
	copy_drop(r, j);
	j->pending_s = pending;
	j->checkpoint_due = due;
	j->copy_to = to;
	j->copy_bytes = bytes;
	if (r->now_s < j->stall_until_s)
		run_push(r, j->stall_until_s, EVENT_COPY, job, j->copying);
	else
		job_copy(r, job);
}

/* Off its machine (and off the one it was promised). */
void job_release(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	flow_drop(r, j);
	copy_drop(r, j);
	if (j->node != NOBODY) {
		if (j->prev != NOBODY)
			r->jobs[j->prev].next = j->next;
		else
			r->nodes[j->node].jobs = j->next;
		if (j->next != NOBODY)
			r->jobs[j->next].prev = j->prev;
		slots_give(r, j->node, spec(r, job)->slots);
		j->node = NOBODY;
	}
	if (j->reserved) {
		slots_give(r, j->dest, spec(r, job)->slots);
		j->reserved = false;
	}
	for (size_t i = 0; i < r->moving.count; i++) {
		if (r->moving.data[i] == job) {
			VEC_REMOVE(&r->moving, i);
			break;
		}
	}
	j->version++;
}

static void queue_put(struct run *r, struct job_queue *q, uint32_t job)
{
	if (q->head > 1024 && q->head * 2 > q->count) {
		memmove(q->items, q->items + q->head, (q->count - q->head) * sizeof(*q->items));
		q->count -= q->head;
		q->head = 0;
	}
	if (vec_reserve((void **)&q->items, &q->cap, q->count + 1, sizeof(*q->items)) < 0) {
		r->error = -1;
		return;
	}
	q->items[q->count++] = job;
	r->queue_dirty = true;
}

void job_requeue(struct run *r, uint32_t job, double ready_in_s)
{
	struct sim_job *j = &r->jobs[job];
	j->state = JOB_QUEUED;
	j->version++;
	if (ready_in_s > 0) {
		run_push(r, r->now_s + ready_in_s, EVENT_READY, job, j->version);
		return;
	}
	queue_put(r, j->fresh || r->system->behind ? &r->fresh : &r->evicted, job);
}

/* Slots are taken here. The image, if any, must come first. */
void job_start(struct run *r, uint32_t job, uint32_t node, double fetch_bytes)
{
	struct sim_job *j = &r->jobs[job];
	slots_take(r, node, spec(r, job)->slots);
	attach(r, job, node);
	j->started_s = r->now_s;
	j->version++;
	if (j->fresh) {
		j->fresh = false;
		job_compute(r, job);
		return;
	}
	if (j->image_at == NETWORK_NONE || j->image_at == node || fetch_bytes <= 0) {
		j->state = JOB_RESTORING;
		run_push(r, r->now_s + r->system->start_s + model(r, job)->restore_s,
			 EVENT_RESTORED, job, j->version);
		return;
	}
	j->state = JOB_FETCHING;
	flow_start(r, job, j->image_at, node, fetch_bytes);
}

static void downtime_add(struct run *r, double s)
{
	struct run_result *x = r->result;
	double at = (log10(fmax(s, 0.01)) + 2) / 8 * DOWNTIME_BINS;
	size_t bin = (size_t)fmin(fmax(at, 0), DOWNTIME_BINS - 1);
	if (!r->counting)
		return;
	x->downtime_bins[bin]++;
	x->interruptions++;
	x->downtime_mean_s += s; /* a sum until the end */
}

void job_compute(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	j->state = JOB_RUNNING;
	j->done_s = fmax(j->durable_s, j->done_s);
	j->at_s = j->stall_until_s = r->now_s;
	j->started_s = r->now_s;
	if (!isnan(j->stopped_s))
		downtime_add(r, r->now_s - j->stopped_s);
	j->stopped_s = NAN;
	j->version++;
	j->accrued = 0;
	j->accrued_at_s = r->now_s;
	if (model(r, job)->transparent)
		j->gpu_type = r->world->nodes.data[j->node].gpu_type;
	if (r->system->store == STORE_PEER && r->system->interval == EVERY_POLICY)
		plan_home(r, job);
	if (r->system->store == STORE_PEER && j->image_at == j->node && j->home != j->node &&
	    j->home != NETWORK_NONE && j->durable_s > 0) {
		/* After a move the image lies on this machine alone: out with a copy at once. */
		j->pending_s = j->durable_s;
		job_copy_to(r, job, j->home, model(r, job)->image_bytes);
	}
	if (r->system->notice == NOTICE_TAKEOVER) {
		/* The next lent machine of the same building computes along. */
		uint32_t n = (uint32_t)r->world->nodes.count;
		j->partner = NOBODY;
		for (uint32_t k = 1; k < n && j->partner == NOBODY; k++) {
			uint32_t p = (j->node + k) % n;
			if (r->nodes[p].state == HAZARD_LENT &&
			    r->world->nodes.data[p].building ==
				    r->world->nodes.data[j->node].building)
				j->partner = p;
		}
	}
	run_push(r, r->now_s + spec(r, job)->work_s - j->done_s, EVENT_DONE, job, j->version);
	plan_checkpoint(r, job);
}

static void account_run(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	double ran = (r->now_s - fmax(j->started_s, r->world->start_s)) * spec(r, job)->slots;
	if (r->counting && ran > 0) {
		r->result->used_s += ran;
		r->result->redundant_s += ran * r->system->redundancy;
	}
}

void job_finish(struct run *r, uint32_t job)
{
	account_run(r, job);
	job_release(r, job);
	r->jobs[job].state = JOB_OVER;
	r->result->jobs_done++;
	r->jobs_left--;
}

/* Gone from its machine now; what is not durable is lost. */
void job_evict(struct run *r, uint32_t job, bool power_off)
{
	struct sim_job *j = &r->jobs[job];
	bool computed = j->state == JOB_RUNNING || j->state == JOB_DYING;
	if (power_off && j->image_at == j->node && j->durable_s > 0 && j->earlier_s > 0 &&
	    j->earlier_at != j->node && j->state >= JOB_RUNNING) {
		/* The newest image went dark with its machine: the one before it serves. */
		j->done_s = computed ? job_done_s(j, r->now_s) : j->done_s;
		j->at_s = j->stall_until_s = r->now_s;
		j->durable_s = j->earlier_s;
		j->image_at = j->earlier_at;
	}
	double done = computed ? job_done_s(j, r->now_s) : j->done_s;
	if (j->state >= JOB_RUNNING) {
		if (computed)
			account_run(r, job);
		run_lost(r, j, (done - j->durable_s) * spec(r, job)->slots, power_off);
	}
	if (isnan(j->stopped_s))
		j->stopped_s = r->now_s;
	job_release(r, job);
	j->done_s = j->durable_s;
	if (j->durable_s <= 0)
		j->image_at = NETWORK_NONE;
	job_requeue(r, job, r->system->requeue_s);
}

void job_checkpoint(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	const struct world_model *m = model(r, job);
	double done = job_done_s(j, r->now_s);
	if (j->pending_s >= 0) { /* the copy before has not arrived: newer state would supersede
				  * it, and perhaps none would ever arrive; wait for it */
		j->checkpoint_due = true;
		j->check++;
		return;
	}
	j->done_s = done;
	j->at_s = r->now_s;
	j->stall_until_s = r->now_s + m->save_s;
	if (r->counting) {
		r->result->stalled_s += m->save_s * spec(r, job)->slots;
		r->result->checkpoints++;
	}
	uint32_t to = r->system->store == STORE_PEER ? j->home : store(r);
	if (to != NETWORK_NONE && to != j->node) {
		double bytes = m->image_bytes;
		if (r->system->store == STORE_PEER && j->image_at == to)
			bytes *= m->delta;
		j->pending_s = done;
		job_copy_to(r, job, to, bytes);
	}
	j->accrued = 0;
	j->accrued_at_s = r->now_s;
	j->version++;
	run_push(r, j->stall_until_s + spec(r, job)->work_s - done, EVENT_DONE, job, j->version);
	plan_checkpoint(r, job);
}

/* A notice or the death of a machine for one job that computes no more: what it had reached. */
static void freeze(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	j->done_s = job_done_s(j, r->now_s);
	j->at_s = j->stall_until_s = r->now_s;
	account_run(r, job);
	j->stopped_s = r->now_s;
}

static void begin_save(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	const struct world_model *m = model(r, job);
	freeze(r, job);
	j->state = JOB_SAVING;
	j->version++;
	if (r->counting)
		r->result->stalled_s += m->save_s * spec(r, job)->slots;
	run_push(r, r->now_s + m->save_s, EVENT_SAVED, job, j->version);
	run_push(r, j->deadline_s + r->system->late_s, EVENT_DEADLINE, job, j->version);
}

static bool takeover(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	uint32_t p = j->partner;
	if (p == NOBODY || r->nodes[p].state != HAZARD_LENT)
		return false;
	/* The neighbour holds the state: nothing is lost, whether or not it has a slot now. */
	freeze(r, job);
	j->durable_s = j->done_s;
	j->image_at = p;
	job_release(r, job);
	if (r->nodes[p].free >= spec(r, job)->slots) {
		slots_take(r, p, spec(r, job)->slots);
		attach(r, job, p);
		j->state = JOB_RESTORING;
		j->version++;
		run_push(r, r->now_s + r->system->start_s + 1, EVENT_RESTORED, job, j->version);
	} else {
		job_requeue(r, job, r->system->requeue_s);
	}
	return true;
}

static void clairvoyant_move(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	freeze(r, job);
	if (r->counting)
		r->result->stalled_s += model(r, job)->save_s * spec(r, job)->slots;
	j->durable_s = j->done_s;
	j->image_at = NETWORK_NONE; /* it is wherever it will be needed */
	job_release(r, job);
	job_requeue(r, job, 0);
}

/* Returns true if the job asks for a plan. */
static bool notice_one(struct run *r, uint32_t job, double window_s)
{
	struct sim_job *j = &r->jobs[job];
	const struct system *s = r->system;
	if (j->state == JOB_FETCHING || j->state == JOB_RESTORING) {
		job_release(r, job);
		job_requeue(r, job, s->requeue_s);
		return false;
	}
	if (j->state != JOB_RUNNING)
		return false; /* under notice already */
	j->deadline_s = r->now_s + window_s;
	switch (s->notice) {
	case NOTICE_MOVE:
		return true;
	case NOTICE_CLAIRVOYANT:
		clairvoyant_move(r, job);
		return false;
	case NOTICE_TAKEOVER:
		if (!takeover(r, job))
			job_evict(r, job, false);
		return false;
	case NOTICE_SAVE:
		j->deadline_s = r->now_s + fmin(window_s, s->grace_s);
		if (model(r, job)->save_s < j->deadline_s - r->now_s)
			begin_save(r, job);
		else
			job_evict(r, job, false);
		return false;
	case NOTICE_IGNORE:
		break;
	}
	j->deadline_s = r->now_s + fmin(window_s, s->grace_s);
	if (j->deadline_s + s->late_s <= r->now_s) {
		job_evict(r, job, false);
		return false;
	}
	j->state = JOB_DYING;
	run_push(r, j->deadline_s + s->late_s, EVENT_DEADLINE, job, j->version);
	return false;
}

void job_notice(struct run *r, uint32_t node, double window_s)
{
	uint32_t ask[64];
	size_t count = 0;
	uint8_t class = 0;
	for (size_t i = 0; i < r->result->windows_count; i++)
		if (r->result->windows[i].window_s <= window_s)
			class = (uint8_t)i;
	for (uint32_t job = r->nodes[node].jobs, next; job != NOBODY; job = next) {
		next = r->jobs[job].next;
		struct sim_job *j = &r->jobs[job];
		if (j->state == JOB_RUNNING && r->counting) {
			r->result->windows[class].reclaims++;
			j->window_class = class;
		}
		if (notice_one(r, job, window_s) && count < 64)
			ask[count++] = job;
	}
	if (count == 0)
		return;
	plan_moves(r, ask, count, window_s);
	for (size_t i = 0; i < count; i++) {
		struct sim_job *j = &r->jobs[ask[i]];
		if (j->dest != NOBODY) {
			if (!j->staging) {
				slots_take(r, j->dest, spec(r, ask[i])->slots);
				j->reserved = true;
			}
			if (VEC_PUSH(&r->moving, ask[i]) < 0)
				r->error = -1;
			begin_save(r, ask[i]);
		} else {
			r->result->fallbacks += r->counting;
			job_evict(r, ask[i], false);
		}
	}
	plan_floors(r);
}

void job_saved(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	const struct world_model *m = model(r, job);
	uint32_t to = r->system->notice == NOTICE_MOVE ? j->dest : store(r);
	double bytes = m->image_bytes;
	if (r->system->notice == NOTICE_MOVE && j->image_at == to && j->durable_s > 0)
		bytes *= m->delta;
	j->state = JOB_MOVING;
	flow_start(r, job, j->node, to, bytes);
	plan_floors(r);
}

/* The image of a notice move has arrived. */
static void arrived(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	uint32_t dest = j->dest;
	bool move = r->system->notice == NOTICE_MOVE, reserved = j->reserved;
	if (move) { /* the sender keeps its copy until the next one is durable elsewhere */
		j->earlier_s = j->done_s;
		j->earlier_at = j->node;
	}
	j->durable_s = j->done_s;
	j->image_at = move ? dest : store(r);
	if (r->counting) {
		r->result->windows[j->window_class].saved++;
		r->result->moves += move && !j->staging;
		r->result->stages += move && j->staging;
	}
	job_release(r, job); /* both machines */
	if (reserved && r->nodes[dest].state == HAZARD_LENT &&
	    r->nodes[dest].free >= spec(r, job)->slots)
		job_start(r, job, dest, 0);
	else
		job_requeue(r, job, r->system->requeue_s);
	plan_floors(r);
}

/* A background copy has arrived: it is the durable image now. */
static void copied(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	bool due = j->checkpoint_due;
	j->durable_s = j->pending_s;
	j->image_at = j->copy_to;
	copy_drop(r, j);
	if (due && j->state == JOB_RUNNING)
		job_checkpoint(r, job);
}

void job_flow_end(struct run *r, uint32_t flow)
{
	uint32_t user = r->flows.items.data[flow].user, job = user >> 1;
	struct sim_job *j = &r->jobs[job];
	if (user & 1) {
		copied(r, job);
		return;
	}
	flow_drop(r, j);
	if (j->state == JOB_MOVING) {
		arrived(r, job);
	} else if (j->state == JOB_FETCHING) {
		j->state = JOB_RESTORING; /* the image stays where it came from, too */
		j->version++;
		run_push(r, r->now_s + r->system->start_s + model(r, job)->restore_s,
			 EVENT_RESTORED, job, j->version);
	}
}

void job_deadline(struct run *r, uint32_t job)
{
	struct sim_job *j = &r->jobs[job];
	if (j->state == JOB_SAVING || j->state == JOB_MOVING) {
		if (r->counting) {
			r->result->moves_missed++;
			r->result->promises_broken += j->promised;
		}
	}
	job_evict(r, job, false);
	if (r->system->notice == NOTICE_MOVE)
		plan_floors(r);
}

/* A machine went off with images on it: who relied on them copies again or waits. */
void job_image_gone(struct run *r, uint32_t node)
{
	if (r->system->store != STORE_PEER)
		return;
	for (size_t i = r->moving.count; i-- > 0;) { /* moves to it have nowhere to go */
		uint32_t job = r->moving.data[i];
		if (r->jobs[job].dest == node)
			job_evict(r, job, true);
		i = i < r->moving.count ? i : r->moving.count;
	}
	size_t count = r->nodes[node].homed.count;
	for (size_t i = 0; i < count; i++) {
		uint32_t job = r->nodes[node].homed.data[i];
		struct sim_job *j = &r->jobs[job];
		if (j->state != JOB_RUNNING || j->home != node)
			continue;
		plan_home(r, job);
		if (j->home == node || j->home == NETWORK_NONE)
			continue;
		/* The durable state is on its own disk too: it travels to the new home. Until it
		 * is there, the old image waits on the machine that is off. */
		if (j->image_at == node && j->durable_s > 0) {
			j->pending_s = j->durable_s;
			job_copy_to(r, job, j->home, model(r, job)->image_bytes);
		} else if (j->pending_s >= 0 && j->copy_to == node) {
			bool due = j->checkpoint_due;
			copy_drop(r, j); /* it went to the machine that is gone */
			if (due)
				job_checkpoint(r, job);
		}
	}
	r->nodes[node].homed.count = 0;
}
