/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "base/rng.h"
#include "coordinator/engine_internal.h"

#define TICK_NS (500 * NS_PER_MS)

struct ejob *engine_find(struct engine *e, const char *id)
{
	return id ? map_get_str(e->by_id, id) : NULL;
}

struct enode *engine_node(struct engine *e, const char *name)
{
	return name && *name ? map_get_str(e->nodes, name) : NULL;
}

int engine_send(struct engine *e, const char *node, struct control_message *m)
{
	struct enode *n = engine_node(e, node);
	return n && n->up && n->hello_seen ? e->ops->send(e->user, node, m) : -ENOTCONN;
}

void engine_wake(struct engine *e, uint64_t at_ns)
{
	if (at_ns < e->next_ns)
		e->next_ns = at_ns;
}

bool ejob_event(struct engine *e, struct ejob *j, enum job_event event, const char *reason_fmt, ...)
{
	enum rest_job_state next;
	if (job_state_next(j->state, event, &next) < 0)
		return false;
	if (reason_fmt) {
		va_list args;
		va_start(args, reason_fmt);
		(void)vsnprintf(j->reason, sizeof(j->reason), reason_fmt, args);
		va_end(args);
	} else {
		j->reason[0] = '\0';
	}
	if (next != j->state)
		log_info("job %s: %s -> %s (%s)%s%s", j->id, rest_job_state_names[j->state],
			 rest_job_state_names[next], job_event_names[event], j->reason[0] ? ": " : "",
			 j->reason);
	j->state = next;
	ejob_changed(e, j);
	return true;
}

void ejob_changed(struct engine *e, struct ejob *j)
{
	j->dirty_view = true;
	engine_wake(e, 0);
}

int ejob_save(struct engine *e, struct ejob *j)
{
	CLEANUP_JSON json_t *record = ejob_record(j);
	POINT("coordinator.job.before_save");
	int r = record ? e->ops->save(e->user, j->id, record, &j->revision) : -ENOMEM;
	POINT("coordinator.job.after_save");
	if (r < 0)
		log_error("job %s: its record cannot be written: %s", j->id, strerror(-r));
	ejob_changed(e, j);
	return r;
}

void ejob_free(struct ejob *j)
{
	if (!j)
		return;
	job_spec_done(&j->spec);
	json_decref(j->spec_json);
	for (size_t i = 0; i < j->slots_count; i++)
		free(j->slots[i]);
	free(j->slots);
	struct rest_job view = { .moves = j->moves, .moves_count = j->moves_count };
	schema_done(&rest_job_schema, &view);
	for (size_t i = 0; i < j->secrets_count; i++) {
		free(j->secrets[i].name);
		free(j->secrets[i].value);
	}
	free(j->secrets);
	explicit_bzero(j->key, sizeof(j->key));
	free(j);
}

int engine_open(const struct engine_config *config, const struct engine_ops *ops, void *user,
		uint64_t now_ns, struct engine **ret)
{
	struct engine *e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->config = *config;
	e->ops = ops;
	e->user = user;
	e->opened_ns = now_ns;
	int r = map_new(&e->by_id);
	if (r == 0)
		r = map_new(&e->nodes);
	if (r == 0)
		r = map_new(&e->users);
	if (r == 0)
		r = random_bytes(&e->ticket_serial, sizeof(e->ticket_serial));
	if (r < 0) {
		engine_close(e);
		return r;
	}
	*ret = e;
	return 0;
}

void engine_close(struct engine *e)
{
	if (!e)
		return;
	VEC_EACH(&e->jobs, j)
		ejob_free(*j);
	VEC_DONE(&e->jobs);
	void *value;
	for (size_t pos = 0; e->nodes && map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		control_done(&n->hello);
		free(n);
	}
	for (size_t pos = 0; e->users && map_next(e->users, &pos, NULL, NULL, &value);)
		free(value);
	map_free(e->by_id);
	map_free(e->nodes);
	map_free(e->users);
	free(e);
}

static int job_add(struct engine *e, struct ejob *j)
{
	int r = VEC_PUSH(&e->jobs, j);
	if (r == 0)
		r = map_set_str(e->by_id, j->id, j, NULL);
	if (r < 0 && e->jobs.count && e->jobs.data[e->jobs.count - 1] == j)
		e->jobs.count--;
	return r;
}

int engine_load(struct engine *e, const char *job, json_t *record, uint64_t revision,
		struct diag *diag)
{
	struct ejob *j = calloc(1, sizeof(*j));
	if (!j)
		return diag_set(diag, -ENOMEM, job, "out of memory");
	(void)snprintf(j->id, sizeof(j->id), "%s", job);
	int r = ejob_from_record(record, j, diag);
	if (r == 0 && e->ops->unwrap_key(e->user, j->key_wrapped, j->key) < 0)
		r = diag_set(diag, -EKEYREJECTED, job, "its key cannot be unwrapped");
	if (r == 0)
		r = job_add(e, j);
	if (r < 0) {
		ejob_free(j);
		return r;
	}
	j->revision = revision;
	e->order = MAX(e->order, j->order);
	/* It had left, and its image was on the way: whoever has it says so at its hello. */
	if (!j->alive && j->state == REST_JOB_MOVING) {
		j->move_pending = true;
		j->notice_deadline_ns = e->opened_ns + e->config.lease_ms * NS_PER_MS;
	}
	/* Nobody knows when the last lease was given: the whole of one must pass. */
	if (j->alive)
		j->lease_until_ns = e->opened_ns +
				    (e->config.lease_ms + e->config.lease_margin_ms) * NS_PER_MS;
	return 0;
}

size_t engine_forget(struct engine *e, uint64_t keep_ms, uint64_t wall_ms, size_t max)
{
	size_t count = 0, kept = 0;
	for (size_t i = 0; i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		/* Unconfirmed: its agent has not heard yet that it is over. A gang's ranks vouch for each
		 * other in the records, and are few: they stay. */
		bool old = rest_job_state_is_final(j->state) && !j->gang[0] &&
			   !j->end_unconfirmed && j->ended_ms && j->ended_ms + keep_ms <= wall_ms;
		if (old && count < max && e->ops->forget(e->user, j->id, j->revision) == 0) {
			log_info("job %s: over for long, forgotten", j->id);
			(void)map_remove_str(e->by_id, j->id);
			ejob_free(j);
			count++;
			continue;
		}
		e->jobs.data[kept++] = j;
	}
	e->jobs.count = kept;
	return count;
}

/* ---- people ---- */

static size_t live_jobs(const struct engine *e)
{
	size_t n = 0;
	VEC_EACH(&e->jobs, j)
		n += !rest_job_state_is_final((*j)->state);
	return n;
}

static int seal_secrets(struct engine *e, struct ejob *j, const struct rest_submit *s)
{
	j->secrets = calloc(s->secrets_count + 1, sizeof(*j->secrets));
	if (!j->secrets)
		return -ENOMEM;
	for (size_t i = 0; i < s->secrets_count; i++) {
		char *sealed;
		int r = e->ops->seal_text(e->user, s->secrets[i].value, &sealed);
		if (r < 0)
			return r;
		j->secrets[j->secrets_count++] = (struct rest_secret){ strdup(s->secrets[i].name), sealed };
	}
	return 0;
}

/* One rank of it; a job by itself is its own rank 0. */
static int submit_rank(struct engine *e, const char *id, const char *user,
		       const struct rest_submit *s, const struct job_spec *spec, uint64_t rank,
		       uint64_t wall_ms, struct diag *diag)
{
	struct ejob *j = calloc(1, sizeof(*j));
	if (!j)
		return diag_set(diag, -ENOMEM, "", "out of memory");
	if (rank)
		(void)snprintf(j->id, sizeof(j->id), "%s.%llu", id, (unsigned long long)rank);
	else
		(void)snprintf(j->id, sizeof(j->id), "%s", id);
	j->rank = rank;
	j->ranks = spec->slots.ranks;
	if (j->ranks > 1)
		(void)snprintf(j->gang, sizeof(j->gang), "%s", id);
	(void)snprintf(j->user, sizeof(j->user), "%s", user);
	if (rank == 0)
		(void)snprintf(j->request_id, sizeof(j->request_id), "%s", s->request_id ? s->request_id : "");
	int r = job_spec_from_json(s->spec, &j->spec, diag);
	if (r == 0)
		r = random_bytes(j->key, sizeof(j->key));
	if (r == 0)
		r = e->ops->wrap_key(e->user, j->key, j->key_wrapped, sizeof(j->key_wrapped));
	if (r == 0)
		r = seal_secrets(e, j, s);
	if (r == 0) {
		j->spec_json = json_incref(s->spec);
		j->inputs = s->inputs;
		j->state = s->inputs ? REST_JOB_STAGING : REST_JOB_QUEUED;
		j->order = e->order + 1;
		j->submitted_ms = wall_ms;
		(void)snprintf(j->reason, sizeof(j->reason), "%s",
			       s->inputs ? "waits for its inputs" : "waits for a machine");
		r = ejob_save(e, j);
	}
	if (r == 0)
		r = job_add(e, j);
	if (r < 0) {
		ejob_free(j);
		return diag && diag->what[0] ? r : diag_set(diag, r, "submit", "%s", strerror(-r));
	}
	e->order = j->order;
	e->schedule_due = true;
	ejob_changed(e, j);
	return 0;
}

int engine_submit(struct engine *e, const char *id, const char *user, const struct rest_submit *s,
		  uint64_t now_ns, uint64_t wall_ms, struct diag *diag)
{
	if (live_jobs(e) >= e->config.jobs_max)
		return diag_set(diag, -EAGAIN, "jobs", "%u jobs wait or run already; try again later",
				e->config.jobs_max);
	struct job_spec spec;
	int r = job_spec_from_json(s->spec, &spec, diag);
	if (r < 0)
		return r;
	const char *refusal = gang_refusal(&spec);
	if (refusal)
		r = diag_set(diag, -EINVAL, "slots.ranks", "%s", refusal);
	/* Rank 0 last: with it the gang is whole, and without it there is none. */
	for (uint64_t rank = spec.slots.ranks; r == 0 && rank-- > 0;)
		r = submit_rank(e, id, user, s, &spec, rank, wall_ms, diag);
	job_spec_done(&spec);
	return r;
}

static int inputs_ready(struct engine *e, struct ejob *j)
{
	(void)ejob_event(e, j, JOB_EVENT_INPUTS, "waits for a machine");
	e->schedule_due = true;
	int r = ejob_save(e, j);
	if (r < 0)
		j->state = REST_JOB_STAGING;
	return r;
}

int engine_inputs_ready(struct engine *e, const char *id, uint64_t now_ns)
{
	struct ejob *j = engine_find(e, id), *ranks[CONTROL_RANKS_MAX];
	int r = 0;
	if (!j)
		return -ENOENT;
	if (j->state != REST_JOB_STAGING)
		return -EEXIST;
	/* Rank 0 last: while it waits, so does the sender, who then tries again. */
	for (size_t i = gang_members(e, j, ranks); r == 0 && i-- > 0;)
		if (ranks[i]->state == REST_JOB_STAGING)
			r = inputs_ready(e, ranks[i]);
	return r;
}

int engine_results_ready(struct engine *e, const char *id, uint64_t epoch, uint64_t bytes)
{
	struct ejob *j = engine_find(e, id);
	if (!j)
		return -ENOENT;
	if (epoch != j->epoch)
		return -ESTALE;
	j->results_bytes = bytes;
	return ejob_save(e, j);
}

void engine_expire_staging(struct engine *e, uint64_t after_ms, uint64_t now_ns, uint64_t wall_ms)
{
	for (size_t i = 0; i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		if (j->state == REST_JOB_STAGING && j->submitted_ms + after_ms <= wall_ms)
			(void)engine_cancel(e, j->id, "its inputs did not come", now_ns); /* or at the next look */
	}
}

static void send_stop(struct engine *e, const struct ejob *j, const char *why)
{
	struct control_message m = {
		.type = CONTROL_STOP,
		.stop = { .job = (char *)j->id,
			  .epoch = j->epoch,
			  .end = CONTROL_END_KILLED,
			  .reason = (char *)why },
	};
	(void)engine_send(e, j->node, &m); /* a node that is away hears it at its hello */
}

static int cancel_one(struct engine *e, struct ejob *j, const char *why)
{
	if (rest_job_state_is_final(j->state))
		return 0;
	enum rest_job_state before = j->state;
	if (!ejob_event(e, j, JOB_EVENT_CANCEL, "%s", why))
		return -EINVAL;
	j->ended_ms = clock_wall_ms();
	int r = ejob_save(e, j);
	if (r < 0) {
		j->state = before;
		return r;
	}
	if (j->alive)
		send_stop(e, j, why);
	else
		ejob_confirm_end(e, j);
	return 0;
}

int engine_cancel(struct engine *e, const char *id, const char *why, uint64_t now_ns)
{
	struct ejob *j = engine_find(e, id), *ranks[CONTROL_RANKS_MAX];
	int r = 0;
	if (!j)
		return -ENOENT;
	size_t count = gang_members(e, j, ranks);
	for (size_t i = 0; r == 0 && i < count; i++)
		r = cancel_one(e, ranks[i], why);
	return r;
}

bool engine_job(struct engine *e, const char *id, struct rest_job *ret)
{
	struct ejob *j = engine_find(e, id);
	if (!j)
		return false;
	uint64_t ran = j->ran_ms + (j->alive ? j->inc_ran_ms : 0);
	*ret = (struct rest_job){
		.id = j->id,
		.name = j->spec.name,
		.user = j->user,
		.state = j->state,
		.reason = j->reason[0] ? j->reason : NULL,
		.node = j->node[0] && !rest_job_state_is_final(j->state) && j->state > REST_JOB_QUEUED
				? j->node
				: NULL,
		.epoch = j->epoch,
		.moves_count_total = j->moves_count ? j->moves_count - 1 : 0,
		.failures = j->failures,
		.reclaims = j->reclaims,
		.exit_status = j->exit_status,
		.submitted_ms = j->submitted_ms,
		.started_ms = j->started_ms,
		.ended_ms = j->ended_ms,
		.ran_ms = ran,
		.saved = j->saved.digest[0] ? j->saved.digest : NULL,
		.durable = j->durable.digest[0] ? j->durable.digest : NULL,
		.durable_epoch = j->durable.epoch,
		.durable_seq = j->durable.seq,
		.durable_at_ms = j->durable.at_wall_ms,
		.durable_bytes = j->durable.bytes,
		.results_bytes = j->results_bytes,
		.moves = j->moves,
		.moves_count = j->moves_count,
	};
	if (j->state == REST_JOB_QUEUED)
		VEC_EACH(&e->jobs, k)
			ret->queue_position += (*k)->state == REST_JOB_QUEUED && (*k)->order <= j->order;
	return true;
}

const char *engine_resolve(struct engine *e, const char *text, const char *user)
{
	const char *found = NULL, *ended = NULL;
	if (engine_find(e, text))
		return engine_find(e, text)->id;
	size_t len = strlen(text);
	VEC_EACH(&e->jobs, pj) {
		struct ejob *j = *pj;
		if (j->rank > 0)
			continue; /* meant by its whole name only */
		bool mine = !user || strcmp(j->user, user) == 0;
		bool named = j->spec.name && strcmp(j->spec.name, text) == 0;
		if (mine && named && rest_job_state_is_final(j->state)) {
			ended = j->id; /* in order of submission: the latest wins */
			named = false;
		}
		if (!mine || (strncmp(j->id, text, len) != 0 && !named))
			continue;
		if (found)
			return NULL; /* two: neither is meant for sure */
		found = j->id;
	}
	return found ? found : ended;
}

const char *engine_gang(struct engine *e, const char *id)
{
	const struct ejob *j = engine_find(e, id);
	return j && j->gang[0] ? j->gang : id;
}

const char *engine_job_next(struct engine *e, size_t *pos)
{
	return *pos < e->jobs.count ? e->jobs.data[(*pos)++]->id : NULL;
}

static int node_view(struct engine *e, const struct enode *n, uint64_t now_ns, json_t *list)
{
	char *jobs[CONTROL_JOBS_MAX];
	const struct control_hello *h = &n->hello.hello;
	struct rest_node view = {
		.name = (char *)n->name,
		.building = h->building,
		.room = h->room,
		.owner_state = (char *)control_owner_state_names[n->owner_state],
		.up = n->up,
		.paused = n->paused,
		.window_ms = h->window_ms,
		.remaining_ms = n->notice_deadline_ns > now_ns ? (n->notice_deadline_ns - now_ns) / NS_PER_MS : 0,
		.slots = h->slots_count,
		.hazard_per_day = (uint64_t)(enode_hazard_per_s(n, now_ns) * 86400e3),
		.version = h->version,
		.jobs = jobs,
	};
	for (size_t i = 0; i < h->slots_count; i++)
		view.slots_used += n->slot_used[i];
	VEC_EACH(&e->jobs, pj)
		if ((*pj)->alive && strcmp((*pj)->node, n->name) == 0 && view.jobs_count < CONTROL_JOBS_MAX)
			jobs[view.jobs_count++] = (*pj)->id;
	return json_array_append_new(list, schema_encode(&rest_node_schema, &view));
}

json_t *engine_nodes(struct engine *e, uint64_t now_ns)
{
	CLEANUP_JSON json_t *list = json_array();
	void *value;
	for (size_t pos = 0; list && map_next(e->nodes, &pos, NULL, NULL, &value);)
		if (node_view(e, value, now_ns, list) < 0)
			return NULL;
	return list ? TAKE(list) : NULL;
}

/* ---- time ---- */

static void job_tick(struct engine *e, struct ejob *j, uint64_t now_ns)
{
	if (j->alive && now_ns >= j->lease_until_ns) {
		const struct enode *n = engine_node(e, j->node);
		ejob_ended(e, j, CONTROL_END_LEASE, 0,
			   n && n->up ? "its lease was not renewed" : "its machine is not in reach", now_ns);
	} else if (j->alive) {
		engine_wake(e, j->lease_until_ns);
	}
	/* A move that has not ended with its window is over: the last durable image serves. */
	if (j->move_pending && now_ns >= j->notice_deadline_ns + e->config.lease_margin_ms * NS_PER_MS) {
		ejob_move_over(e, j);
		e->schedule_due = true;
	} else if (j->move_pending) {
		engine_wake(e, j->notice_deadline_ns + e->config.lease_margin_ms * NS_PER_MS);
	}
	if (j->ranks > 1)
		gang_settle(e, j, now_ns);
	if (j->alive && now_ns >= j->standby_until_ns)
		ejob_send_standby(e, j, now_ns);
	if (j->state == REST_JOB_QUEUED && j->retry_at_ns > now_ns)
		engine_wake(e, j->retry_at_ns);
}

void engine_tick(struct engine *e, uint64_t now_ns)
{
	e->next_ns = now_ns + TICK_NS;
	for (size_t i = 0; i < e->jobs.count; i++)
		if (!rest_job_state_is_final(e->jobs.data[i]->state) || e->jobs.data[i]->alive)
			job_tick(e, e->jobs.data[i], now_ns);
	engine_schedule(e, now_ns);
	for (size_t i = 0; i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		if (!j->dirty_view)
			continue;
		j->dirty_view = false;
		e->ops->changed(e->user, j->id);
	}
}

uint64_t engine_next_ns(const struct engine *e)
{
	return e->next_ns;
}

/* ---- the operator ---- */

void engine_stop_all(struct engine *e, bool on)
{
	e->stop_all = on;
	engine_send_rates(e);
	e->schedule_due = true;
}

void engine_floor_cap(struct engine *e, uint64_t bits_per_s)
{
	e->config.floor_cap_bps = bits_per_s;
	engine_send_rates(e);
}

void engine_blackout(struct engine *e, bool on)
{
	e->blackout = on;
	engine_send_rates(e);
}
