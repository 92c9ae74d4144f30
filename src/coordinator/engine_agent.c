/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What agents say. An agent is believed about its own machine and about the
 * incarnations that were given to it, in their epoch; everything else is
 * dropped, and an incarnation that we do not know is told to stop.
 */
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/point.h"
#include "coordinator/engine_internal.h"

/* A start that fails is tried elsewhere at once; when everywhere failed, after a pause. */
#define RETRY_MIN_NS (500 * NS_PER_MS)
#define RETRY_MAX_NS (30 * NS_PER_S)
#define NEVER_RAN 125

static void send_stop(struct engine *e, const char *node, const char *job, uint64_t epoch,
		      const char *why)
{
	struct control_message m = {
		.type = CONTROL_STOP,
		.stop = { .job = (char *)job,
			  .epoch = epoch,
			  .end = CONTROL_END_KILLED,
			  .reason = (char *)why },
	};
	(void)engine_send(e, node, &m); /* said again at its next hello */
}

/* The current incarnation of the job, if it is the one that this node speaks of. */
static struct ejob *job_of(struct engine *e, const char *node, const char *job, uint64_t epoch)
{
	struct ejob *j = engine_find(e, job);
	return j && j->epoch == epoch && strcmp(j->node, node) == 0 ? j : NULL;
}

/* ---- the end of an incarnation ---- */

/* The agent may forget it: everything that its end leads to is durable. */
void ejob_confirm_end(struct engine *e, struct ejob *j)
{
	if (!j->end_unconfirmed || j->move_pending)
		return;
	send_stop(e, j->node, j->id, j->epoch, "known");
	j->end_unconfirmed = false;
	if (!rest_job_state_is_final(j->state))
		return;
	/* Nobody needs its images any more. */
	struct control_message m = { .type = CONTROL_KEEP,
				     .keep = { .job = j->id, .epoch = j->epoch, .forget = true } };
	(void)engine_send(e, j->node, &m);
	for (size_t i = 0; i < j->durable.holders_count; i++)
		(void)engine_send(e, j->durable.holders[i], &m);
	for (size_t i = 0; i < j->before.holders_count; i++)
		(void)engine_send(e, j->before.holders[i], &m);
}

void ejob_end_final(struct ejob *j, struct engine *e, enum job_event event, int status,
		    const char *reason)
{
	j->exit_status = status;
	j->ended_ms = clock_wall_ms();
	(void)ejob_event(e, j, event, "%s", reason ? reason : "");
	j->move_pending = false;
}

void ejob_avoid(struct ejob *j, const char *node)
{
	for (size_t i = 0; i < j->avoid_count; i++)
		if (strcmp(j->avoid[i], node) == 0)
			return;
	if (j->avoid_count == ENGINE_AVOID_MAX) {
		memmove(j->avoid[0], j->avoid[1], (ENGINE_AVOID_MAX - 1) * sizeof(j->avoid[0]));
		j->avoid_count--;
	}
	(void)snprintf(j->avoid[j->avoid_count++], sizeof(j->avoid[0]), "%s", node);
}

static uint64_t retry_pause(unsigned failures)
{
	unsigned doublings = MIN(failures, 6u);
	return MIN(RETRY_MIN_NS << doublings, RETRY_MAX_NS);
}

void ejob_end_requeue(struct engine *e, struct ejob *j, enum control_end end, const char *reason,
		      uint64_t now_ns)
{
	const char *cause = "crash";
	switch (end) {
	case CONTROL_END_RECLAIMED:
		cause = j->notice_now ? "reclaim-now" : "reclaim";
		j->reclaims++;
		break;
	case CONTROL_END_RESTART:
		/* During a notice a guest that says "saved, restart me" is being reclaimed. */
		cause = j->notice_id[0] ? "reclaim" : "requeue";
		j->reclaims += j->notice_id[0] != '\0';
		break;
	case CONTROL_END_LEASE:
		cause = "lease";
		break;
	case CONTROL_END_NOT_STARTED:
		cause = "not-started";
		ejob_avoid(j, j->node);
		/* What it was to begin from is still where it was: nothing newer has come. */
		if (j->from.digest[0] && !j->saved.digest[0])
			j->saved = j->from;
		j->start_failures++;
		j->retry_at_ns = now_ns + retry_pause(j->start_failures);
		break;
	default:
		break;
	}
	if (end != CONTROL_END_NOT_STARTED)
		(void)snprintf(j->cause, sizeof(j->cause), "%s", cause);
	else if (!j->cause[0])
		(void)snprintf(j->cause, sizeof(j->cause), "%s", cause);
	if (!j->spec.requeue && end == CONTROL_END_RECLAIMED && !j->durable.digest[0] &&
	    !j->saved.digest[0]) {
		ejob_end_final(j, e, JOB_EVENT_FAILED, NEVER_RAN,
			  "reclaimed without a checkpoint, and the job asked not to be requeued");
		return;
	}
	j->restarts++;
	bool nothing = !j->durable.digest[0] && !j->saved.digest[0];
	if (j->move_pending)
		(void)ejob_event(e, j, JOB_EVENT_LEFT, "%s; its image is on the way", reason ? reason : cause);
	else
		(void)ejob_event(e, j, JOB_EVENT_REQUEUE, "%.400s%s", reason ? reason : cause,
				 nothing ? "; no checkpoint yet: from the start" : "");
}

static void end_failed(struct engine *e, struct ejob *j, int status, const char *reason,
		       uint64_t now_ns)
{
	j->failures++;
	if (j->failures >= MAX(j->spec.failure_limit, (uint64_t)1)) {
		ejob_end_final(j, e, JOB_EVENT_FAILED, status ? status : 1, reason);
		return;
	}
	(void)snprintf(j->cause, sizeof(j->cause), "crash");
	j->restarts++;
	j->retry_at_ns = now_ns + RETRY_MIN_NS;
	(void)ejob_event(e, j, JOB_EVENT_REQUEUE, "failure %llu of %llu: %.600s",
			 (unsigned long long)j->failures, (unsigned long long)j->spec.failure_limit,
			 reason ? reason : "");
}

/* Images of this incarnation that only its own machine has: usable if that machine serves them. */
static void consider_saved(struct engine *e, struct ejob *j)
{
	if (j->saved.epoch != j->epoch ||
	    (j->durable.epoch == j->saved.epoch && j->durable.seq >= j->saved.seq))
		j->saved.digest[0] = '\0';
}

void ejob_ended(struct engine *e, struct ejob *j, enum control_end end, int status,
		const char *reason, uint64_t now_ns)
{
	if (!j->alive)
		return;
	j->alive = false;
	j->end_unconfirmed = true;
	j->ran_ms += j->inc_ran_ms;
	euser_charge(e, j->user, (double)j->inc_ran_ms / 1e3 * (double)MAX(j->slots_count, (size_t)1),
		     now_ns);
	if (!j->stopped_ns)
		j->stopped_ns = now_ns;
	j->lost_ms = j->saved_final ? 0 : j->unsaved_ms;
	if (end == CONTROL_END_LEASE || end == CONTROL_END_SHIM_LOST)
		j->lost_ms = MAX(j->lost_ms, j->unsaved_ms);
	ejob_release_slots(e, j);
	consider_saved(e, j);
	/* Only a reclaim's move may still bring something; and only while somebody sends it. */
	if (j->move_pending &&
	    (end == CONTROL_END_LEASE || end == CONTROL_END_DONE || !j->dest[0] ||
	     strcmp(j->saved.digest, j->durable.digest) == 0 || /* what it had last is safe */
	     (!j->saved.digest[0] && j->durable.epoch == j->epoch) || j->saved.epoch != j->epoch))
		j->move_pending = false;
	if (rest_job_state_is_final(j->state))
		; /* cancelled before: the end was awaited only to be sure of it */
	else if (j->ranks > 1)
		gang_ended(e, j, end, status, reason, now_ns);
	else if (end == CONTROL_END_DONE)
		ejob_end_final(j, e, JOB_EVENT_DONE, status, reason);
	else if (end == CONTROL_END_TIME_LIMIT)
		ejob_end_final(j, e, JOB_EVENT_FAILED, 124, reason ? reason : "its time limit is reached");
	else if (end == CONTROL_END_FAILED)
		end_failed(e, j, status, reason, now_ns);
	else
		ejob_end_requeue(e, j, end, reason, now_ns);
	if (!j->move_pending)
		j->notice_id[0] = '\0';
	POINT("coordinator.end.before_save");
	if (ejob_save(e, j) < 0)
		return; /* not confirmed: the agent says it again */
	ejob_confirm_end(e, j);
	gang_settle(e, j, now_ns);
	e->schedule_due = true;
	engine_wake(e, 0);
}

/* ---- hello ---- */

static void node_take_hello(struct engine *e, struct enode *n, struct control_message *m)
{
	control_done(&n->hello);
	n->hello = *m;
	m->type = CONTROL_NONE; /* ours now */
	memset(n->slot_used, 0, sizeof(n->slot_used));
	for (size_t i = 0; i < e->jobs.count; i++) {
		const struct ejob *j = e->jobs.data[i];
		if (!j->alive || strcmp(j->node, n->name) != 0)
			continue;
		for (size_t k = 0; k < j->slots_count; k++)
			for (size_t s = 0; s < n->hello.hello.slots_count; s++)
				if (strcmp(n->hello.hello.slots[s].name, j->slots[k]) == 0)
					n->slot_used[s] = true;
	}
}

static void job_report(struct engine *e, struct ejob *j, const struct control_job_report *r,
		       uint64_t now_ns)
{
	j->inc_state = (enum control_job_state)r->state;
	j->inc_ran_ms = MAX(r->ran_ms, j->inc_ran_ms);
	j->unsaved_ms = r->unsaved_ms;
	if (r->save_ms)
		j->save_ms = r->save_ms;
	if (r->delta_bytes)
		j->delta_bytes = r->delta_bytes;
	if (r->image && (j->saved.epoch != j->epoch || j->saved.seq < r->image_seq)) {
		(void)snprintf(j->saved.digest, sizeof(j->saved.digest), "%s", r->image);
		j->saved.epoch = j->epoch;
		j->saved.seq = r->image_seq;
		j->saved.bytes = r->image_bytes;
		j->saved.output_offset = r->image_output;
		(void)snprintf(j->saved.commit, sizeof(j->saved.commit), "%s",
			       r->image_commit ? r->image_commit : "");
		j->saved.holders_count = 0;
		ejob_image_add(&j->saved, j->node);
	}
}

/* Whole images that a machine holds: what it received while we were away becomes durable now. */
static void hello_images(struct engine *e, struct enode *n, uint64_t now_ns)
{
	const struct control_hello *h = &n->hello.hello;
	for (size_t i = 0; i < h->images_count; i++) {
		const struct control_image *im = &h->images[i];
		struct ejob *j = engine_find(e, im->job);
		if (!j || rest_job_state_is_final(j->state)) {
			struct control_message m = {
				.type = CONTROL_KEEP,
				.keep = { .job = im->job, .epoch = j ? j->epoch : im->epoch, .forget = true },
			};
			if (!j || !j->alive)
				(void)engine_send(e, n->name, &m);
			continue;
		}
		if (strcmp(im->image, j->durable.digest) == 0)
			ejob_image_add(&j->durable, n->name);
		if (strcmp(im->image, j->before.digest) == 0)
			ejob_image_add(&j->before, n->name);
		if (strcmp(n->name, j->node) == 0 && im->epoch == j->epoch)
			continue; /* its own machine: saved, not durable */
		const struct control_received r = { .job = im->job,
						    .epoch = im->epoch,
						    .seq = im->seq,
						    .image = im->image,
						    .output_offset = im->output_offset,
						    .commit = im->commit };
		ejob_received(e, j, &r, n->name, now_ns);
	}
}

static void hello_jobs(struct engine *e, struct enode *n, uint64_t now_ns)
{
	const struct control_hello *h = &n->hello.hello;
	for (size_t i = 0; i < h->jobs_count; i++) {
		struct ejob *j = job_of(e, n->name, h->jobs[i].job, h->jobs[i].epoch);
		bool ended = h->jobs[i].state == CONTROL_JOB_ENDED;
		if (j && j->alive && !rest_job_state_is_final(j->state)) {
			job_report(e, j, &h->jobs[i], now_ns);
			ejob_tell_durable(e, j);
		} else if (!ended || !j || !j->move_pending) {
			/* Not ours any more: over, or given to another machine since. */
			send_stop(e, n->name, h->jobs[i].job, h->jobs[i].epoch, "this incarnation is over");
		}
	}
	/* What should be there and is not: never arrived, or is gone without a trace. */
	for (size_t i = 0; i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		if (!j->alive || strcmp(j->node, n->name) != 0)
			continue;
		bool there = false;
		for (size_t k = 0; k < h->jobs_count; k++)
			there |= strcmp(h->jobs[k].job, j->id) == 0 && h->jobs[k].epoch == j->epoch;
		if (!there)
			ejob_ended(e, j, j->inc_ran_ms ? CONTROL_END_SHIM_LOST : CONTROL_END_NOT_STARTED, 0,
				   "its machine does not know it", now_ns);
	}
}

static void node_owner_state(struct engine *e, struct enode *n, int state, bool paused,
			     uint64_t remaining_ms, uint64_t now_ns)
{
	if (n->owner_state == CONTROL_OWNER_LENT && state != CONTROL_OWNER_LENT && n->lent_since_ns) {
		n->lent_ns += now_ns - n->lent_since_ns;
		n->reclaims++;
		n->lent_since_ns = 0;
	}
	if (state == CONTROL_OWNER_LENT && !n->lent_since_ns)
		n->lent_since_ns = now_ns;
	if (n->owner_state != state && e->ops->observed)
		e->ops->observed(e->user, n->name, state, n->up);
	n->owner_state = state;
	n->paused = paused;
	n->notice_deadline_ns = state == CONTROL_OWNER_NOTICE ? now_ns + remaining_ms * NS_PER_MS : 0;
	e->schedule_due = true;
}

static void jobs_noticed(struct engine *e, struct enode *n, const char *notice_id, int mode,
			 uint64_t window_ms, const struct control_job_report *reports, size_t count,
			 uint64_t now_ns)
{
	for (size_t i = 0; i < count; i++) {
		struct ejob *j = job_of(e, n->name, reports[i].job, reports[i].epoch);
		if (!j || !j->alive || rest_job_state_is_final(j->state))
			continue;
		job_report(e, j, &reports[i], now_ns);
		bool fresh = strcmp(j->notice_id, notice_id ? notice_id : "") != 0;
		(void)snprintf(j->notice_id, sizeof(j->notice_id), "%s", notice_id ? notice_id : "");
		j->notice_deadline_ns = n->notice_deadline_ns;
		j->notice_now = mode == CONTROL_RECLAIM_NOW;
		if (fresh) {
			j->dest[0] = '\0';
			j->move_tries = 0;
			j->move_bytes = 0;
			j->saved_final = false;
			j->move_pending = !j->notice_now;
		}
		(void)ejob_event(e, j, JOB_EVENT_NOTICE, "%s is wanted back by its owner", n->name);
		if (fresh && !j->notice_now)
			gang_notice(e, j, window_ms, now_ns);
	}
}

static void on_hello(struct engine *e, struct enode *n, struct control_message *m, uint64_t now_ns)
{
	node_take_hello(e, n, m);
	struct control_hello *h = &n->hello.hello;
	n->hello_seen = true;
	n->disk_free = h->disk_free;
	node_owner_state(e, n, h->owner_state, h->paused, h->remaining_ms, now_ns);
	struct control_message w = {
		.type = CONTROL_WELCOME,
		.welcome = { .lease_ms = e->config.lease_ms,
			     .status_every_ms = e->config.status_every_ms,
			     .coordinator = (char *)e->config.coordinator,
			     .stop_all = e->stop_all,
			     .floor_cap_bps = e->config.floor_cap_bps },
	};
	(void)engine_send(e, n->name, &w);
	hello_jobs(e, n, now_ns);
	hello_images(e, n, now_ns);
	if (h->owner_state == CONTROL_OWNER_NOTICE || h->owner_state == CONTROL_OWNER_DRAINING) {
		jobs_noticed(e, n, h->notice_id, h->mode, h->remaining_ms, h->jobs, h->jobs_count, now_ns);
		engine_plan_notice(e, n, now_ns);
	}
	for (size_t i = 0; i < e->jobs.count; i++)
		if (e->jobs.data[i]->end_unconfirmed && strcmp(e->jobs.data[i]->node, n->name) == 0)
			ejob_confirm_end(e, e->jobs.data[i]);
	log_info("node %s: hello, %s, %zu slot(s), %zu guest(s)", n->name,
		 control_owner_state_names[n->owner_state], h->slots_count, h->jobs_count);
}

/* ---- the other messages ---- */

static void on_status(struct engine *e, struct enode *n, const struct control_status *s,
		      uint64_t now_ns)
{
	CLEANUP_FREE struct control_lease_item *items = calloc(s->jobs_count + 1, sizeof(*items));
	if (!items)
		return; /* no answer, no lease: safe */
	if (n->owner_state != s->owner_state || n->paused != s->paused)
		node_owner_state(e, n, s->owner_state, s->paused, s->remaining_ms, now_ns);
	n->disk_free = s->disk_free;
	size_t count = 0;
	for (size_t i = 0; i < s->jobs_count; i++) {
		const struct control_job_report *r = &s->jobs[i];
		struct ejob *j = job_of(e, n->name, r->job, r->epoch);
		bool good = j && j->alive && !rest_job_state_is_final(j->state) && !n->banned;
		if (r->state == CONTROL_JOB_ENDED)
			continue;
		items[count++] = (struct control_lease_item){ r->job, r->epoch,
							      good ? e->config.lease_ms : 0 };
		if (!good)
			continue;
		job_report(e, j, r, now_ns);
		/* Counted from this answer, with margin: later than the holder counts. */
		j->lease_until_ns =
			now_ns + (e->config.lease_ms + e->config.lease_margin_ms) * NS_PER_MS;
	}
	struct control_message m = { .type = CONTROL_LEASE,
				     .lease = { s->seq, items, count } };
	(void)engine_send(e, n->name, &m);
}

static void on_owner(struct engine *e, struct enode *n, const struct control_owner *o,
		     uint64_t now_ns)
{
	POINT("coordinator.owner.received");
	node_owner_state(e, n, o->state, o->paused, o->remaining_ms, now_ns);
	if (o->state == CONTROL_OWNER_NOTICE || o->state == CONTROL_OWNER_DRAINING)
		jobs_noticed(e, n, o->notice_id, o->mode, o->window_ms, o->jobs, o->jobs_count, now_ns);
	if (o->state == CONTROL_OWNER_NOTICE) {
		engine_plan_notice(e, n, now_ns);
		return;
	}
	for (size_t i = 0; i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		if (strcmp(j->node, n->name) != 0 || !j->notice_id[0])
			continue;
		if (o->cancelled && j->alive) {
			(void)ejob_event(e, j, JOB_EVENT_KEPT, "its owner withdrew the notice");
			j->notice_id[0] = '\0';
			j->stopped_ns = 0;
			ejob_move_over(e, j);
			gang_notice_cancel(e, j);
		} else if (o->cancelled) {
			(void)snprintf(j->cause, sizeof(j->cause), "cancelled-reclaim");
			ejob_move_over(e, j);
		}
	}
}

static void on_job(struct engine *e, struct enode *n, const struct control_job *m, uint64_t now_ns)
{
	struct ejob *j = job_of(e, n->name, m->job, m->epoch);
	if (!j) {
		/* Somebody else's, or of a past that nobody needs: let it go. */
		send_stop(e, n->name, m->job, m->epoch, "this incarnation is over");
		return;
	}
	if (!j->alive) {
		if (m->state == CONTROL_JOB_ENDED) {
			j->end_unconfirmed = true;
			ejob_confirm_end(e, j);
		} else {
			send_stop(e, n->name, m->job, m->epoch, "this incarnation is over");
		}
		return;
	}
	j->inc_ran_ms = MAX(j->inc_ran_ms, m->ran_ms);
	j->inc_state = (enum control_job_state)m->state;
	switch (m->state) {
	case CONTROL_JOB_RESTORING:
		(void)ejob_event(e, j, JOB_EVENT_RESTORING, "on %s", n->name);
		break;
	case CONTROL_JOB_RUNNING:
		if (j->state == REST_JOB_RUNNING)
			break;
		(void)ejob_event(e, j, JOB_EVENT_RUNNING, NULL);
		if (!j->started_ms)
			j->started_ms = clock_wall_ms();
		j->start_failures = 0;
		j->avoid_count = 0;
		if (j->ranks == 1)
			j->from = (struct ejob_image){ 0 };
		if (j->moves_count && j->stopped_ns) {
			struct rest_move *mv = &j->moves[j->moves_count - 1];
			if (mv->epoch == j->epoch && !mv->downtime_ms)
				mv->downtime_ms = (now_ns - j->stopped_ns) / NS_PER_MS;
		}
		j->stopped_ns = 0;
		(void)ejob_save(e, j); /* figures only; a failure was logged and changes nothing */
		break;
	case CONTROL_JOB_MOVING:
		if (!j->stopped_ns)
			j->stopped_ns = now_ns;
		gang_settle(e, j, now_ns);
		break;
	case CONTROL_JOB_ENDED:
		ejob_ended(e, j, (enum control_end)m->end, m->status, m->reason, now_ns);
		break;
	default:
		break;
	}
}

static void on_saved(struct engine *e, struct enode *n, const struct control_saved *s,
		     uint64_t now_ns)
{
	struct ejob *j = job_of(e, n->name, s->job, s->epoch);
	if (!j || rest_job_state_is_final(j->state))
		return;
	POINT("coordinator.saved.received");
	j->saved = (struct ejob_image){ .epoch = s->epoch,
					.seq = s->seq,
					.bytes = s->bytes,
					.output_offset = s->output_offset };
	(void)snprintf(j->saved.digest, sizeof(j->saved.digest), "%s", s->image);
	(void)snprintf(j->saved.commit, sizeof(j->saved.commit), "%s", s->commit ? s->commit : "");
	ejob_image_add(&j->saved, n->name);
	/* The other end may have been faster to say that it has it, without this number. */
	if (strcmp(j->durable.digest, s->image) == 0 && j->durable.output_offset == 0 &&
	    s->output_offset > 0) {
		j->durable.output_offset = s->output_offset;
		(void)ejob_save(e, j); /* else a replay is matched from further back */
	}
	j->saved_final = s->final;
	if (s->final && j->move_pending && strcmp(j->durable.digest, s->image) == 0)
		ejob_move_over(e, j);
	j->unsaved_ms = 0;
	j->delta_bytes = s->new_bytes;
	ejob_changed(e, j);
	if (!j->notice_id[0])
		ejob_plan_stage(e, j, now_ns);
	gang_settle(e, j, now_ns);
}

static void on_transfer(struct engine *e, struct enode *n, const struct control_transfer *t,
			uint64_t now_ns)
{
	struct ejob *j = job_of(e, n->name, t->job, t->epoch);
	if (!j)
		return;
	if (t->state == CONTROL_TRANSFER_DONE && j->notice_id[0])
		j->move_bytes = t->bytes_wire;
	if (t->state != CONTROL_TRANSFER_FAILED)
		return;
	if (j->notice_id[0] && t->to && strcmp(t->to, j->dest) == 0)
		ejob_move_failed(e, j, t->detail ? t->detail : t->code, now_ns);
	else if (t->to && strcmp(t->to, j->stage) == 0)
		j->stage[0] = '\0'; /* another one at the next image */
}

/*
 * Where in the log this incarnation's output is matched from, should it be about to begin. Asked
 * at each piece: of the output before its image some may still have come since it was started.
 */
uint64_t ejob_replay_from(struct engine *e, const struct ejob *j)
{
	return e->ops->output_position(e->user, j->id, j->start_epoch, j->start_output, j->start_cursor);
}

/* The end of an incarnation's output came with its image, to a machine that we sent it to. */
static bool tells_of_image(const struct ejob *j, const struct enode *n, uint64_t epoch)
{
	if (epoch == j->epoch && (strcmp(j->dest, n->name) == 0 || strcmp(j->stage, n->name) == 0))
		return true;
	return epoch == j->durable.epoch && ejob_image_has(&j->durable, n->name);
}

static int on_output(struct engine *e, struct enode *n, const struct control_output *o)
{
	struct ejob *j = engine_find(e, o->job);
	bool own = j && job_of(e, n->name, o->job, o->epoch);
	unsigned char bytes[CONTROL_OUTPUT_MAX + 8];
	size_t len = strlen(o->data);
	if (!j || (!own && !tells_of_image(j, n, o->epoch)))
		return 0;
	if (len % 4 != 0 || len / 4 * 3 > sizeof(bytes))
		return -EPROTO;
	int got = EVP_DecodeBlock(bytes, (const unsigned char *)o->data, (int)len);
	if (got < 0)
		return -EPROTO;
	/* EVP_DecodeBlock counts the padding as data. */
	if (len && o->data[len - 1] == '=')
		got--;
	if (len > 1 && o->data[len - 2] == '=')
		got--;
	uint64_t stored;
	uint64_t replay_from = o->epoch == j->epoch ? ejob_replay_from(e, j) : j->durable.start_cursor;
	int r = e->ops->output(e->user, j->id, o->epoch, replay_from, o->offset, (const char *)bytes,
			       (size_t)got, &stored);
	if (r < 0 || !own)
		return 0; /* no acknowledgement: it comes again */
	struct control_message m = { .type = CONTROL_OUTPUT_ACK,
				     .output_ack = { j->id, j->epoch, stored } };
	(void)engine_send(e, n->name, &m);
	return 0;
}

/* ---- connections ---- */

void engine_agent_up(struct engine *e, const char *node, const char *address,
		     const char *cert_digest, uint64_t now_ns)
{
	struct enode *n = engine_node(e, node);
	if (!n) {
		n = calloc(1, sizeof(*n));
		if (!n || map_set_str(e->nodes, node, n, NULL) < 0) {
			free(n);
			return; /* its messages are dropped; it comes again */
		}
		(void)snprintf(n->name, sizeof(n->name), "%s", node);
	}
	(void)snprintf(n->address, sizeof(n->address), "%s", address ? address : "");
	(void)snprintf(n->cert_digest, sizeof(n->cert_digest), "%s", cert_digest ? cert_digest : "");
	n->up = true;
	n->hello_seen = false;
}

void engine_agent_down(struct engine *e, const char *node, uint64_t now_ns)
{
	struct enode *n = engine_node(e, node);
	if (!n)
		return;
	n->up = n->hello_seen = false;
	if (n->lent_since_ns) {
		n->lent_ns += now_ns - n->lent_since_ns;
		n->lent_since_ns = 0;
	}
	if (e->ops->observed)
		e->ops->observed(e->user, n->name, n->owner_state, false);
	log_warn("node %s: connection lost; its guests run on under their leases", n->name);
}

void engine_node_ban(struct engine *e, const char *node, bool banned, uint64_t now_ns)
{
	struct enode *n = engine_node(e, node);
	if (n)
		n->banned = banned;
	e->schedule_due = true;
}

int engine_agent_message(struct engine *e, const char *node, struct control_message *m,
			 uint64_t now_ns)
{
	struct enode *n = engine_node(e, node);
	if (!n)
		return -EPROTO;
	if (m->type == CONTROL_HELLO) {
		if (strcmp(m->hello.node, node) != 0)
			return -EPROTO;
		/* The message is the caller's: take a copy of what it owns by taking it whole. */
		struct control_message own = *m;
		m->type = CONTROL_NONE;
		n->hello_seen = true;
		on_hello(e, n, &own, now_ns);
		control_done(&own);
		return 0;
	}
	if (!n->hello_seen)
		return -EPROTO;
	switch (m->type) {
	case CONTROL_STATUS:
		on_status(e, n, &m->status, now_ns);
		return 0;
	case CONTROL_OWNER:
		on_owner(e, n, &m->owner, now_ns);
		return 0;
	case CONTROL_JOB:
		on_job(e, n, &m->job, now_ns);
		return 0;
	case CONTROL_SAVED:
		on_saved(e, n, &m->saved, now_ns);
		return 0;
	case CONTROL_RECEIVED: {
		struct ejob *j = engine_find(e, m->received.job);
		if (j)
			ejob_received(e, j, &m->received, node, now_ns);
		return 0;
	}
	case CONTROL_TRANSFER:
		on_transfer(e, n, &m->transfer, now_ns);
		return 0;
	case CONTROL_OUTPUT:
		return on_output(e, n, &m->output);
	default:
		return -EPROTO;
	}
}
