/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's path. Everything here works with the coordinator and the network
 * away: it waits for guests, never for a server. A transition is: look it up in
 * the table, make it durable, act on the guests, then tell whoever listens.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/agent_internal.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/rng.h"

#define PROOF_EVERY_NS (50 * NS_PER_MS)
/* A kill that has not emptied the machine by then is an alarm, and is repeated. */
#define DRAIN_ALARM_NS NS_PER_S

uint64_t owner_remaining_ns(const struct agent *a)
{
	uint64_t now = clock_boot_ns();
	return a->owner.state == CONTROL_OWNER_NOTICE && a->owner.deadline_ns > now
		       ? a->owner.deadline_ns - now
		       : 0;
}

static bool owner_move(struct agent *a, enum owner_event event)
{
	enum control_owner_state next;
	if (owner_state_next(a->owner.state, event, &next) < 0)
		return false;
	if (next != a->owner.state)
		log_info("owner: %s -> %s (%s)", control_owner_state_names[a->owner.state],
			 control_owner_state_names[next], owner_event_names[event]);
	a->owner.state = next;
	return true;
}

static void owner_commit(struct agent *a, bool cancelled)
{
	(void)journal_save(a); /* logged there; the owner's wish is carried out all the same */
	link_send_owner(a, cancelled);
	owner_notify(a);
	trigger_state(a);
}

/* ---- ending a reclaim ---- */

static bool guests_have_process(struct agent *a)
{
	for (struct guest *g = a->guests; g; g = g->next)
		if (guest_has_process(g))
			return true;
	return false;
}

static bool guests_want_window(struct agent *a)
{
	for (struct guest *g = a->guests; g; g = g->next)
		if (guest_wants_window(g))
			return true;
	return false;
}

static void become_free(struct agent *a)
{
	struct owner *o = &a->owner;
	o->freed_ns = clock_boot_ns();
	o->packet_cut = a->edge && edge_killed(a->edge, EDGE_ALL);
	for (struct guest *g = a->guests; g; g = g->next) {
		agent_edge_detach(g);
		guest_move_cancel(g);
	}
	o->proven = o->pids_left == 0 && !gpu_alarm(a)[0];
	(void)snprintf(o->alarm, sizeof(o->alarm), "%s", gpu_alarm(a));
	if (o->alarm[0])
		log_error("handed back, and not proven free: %s", o->alarm);
	loop_timer_stop(&o->deadline);
	loop_timer_stop(&o->proof);
	POINT("agent.owner.free");
	CHECK(owner_move(a, OWNER_EVENT_EMPTY));
	if (a->receiver)
		transfer_receiver_serve(a->receiver, a->terms.shadow.owned);
	owner_commit(a, false);
	CHECK(owner_move(a, OWNER_EVENT_TAKEN));
	owner_commit(a, false);
	owner_schedule_check(a); /* when it may be lent again */
}

void owner_check_empty(struct agent *a)
{
	struct owner *o = &a->owner;
	if (o->state != CONTROL_OWNER_NOTICE && o->state != CONTROL_OWNER_DRAINING)
		return;
	if (guests_have_process(a))
		return;
	if (o->state == CONTROL_OWNER_NOTICE && guests_want_window(a))
		return;
	if (!gpu_handed_back(a))
		return; /* it comes back here */
	become_free(a);
}

static void on_proof(void *user)
{
	struct agent *a = user;
	struct owner *o = &a->owner;
	if (o->state != CONTROL_OWNER_DRAINING)
		return;
	uint64_t since = clock_boot_ns() - o->deadline_ns;
	uint64_t left = 0;
	for (struct guest *g = a->guests; g; g = g->next)
		left += guest_has_process(g);
	if (left && since > DRAIN_ALARM_NS) {
		if (!o->alarm[0]) {
			(void)snprintf(o->alarm, sizeof(o->alarm),
				       "%llu guest(s) still have a process %.1f s after the deadline",
				       (unsigned long long)left, (double)since / 1e9);
			log_error("%s", o->alarm);
			owner_notify(a);
		}
		for (struct guest *g = a->guests; g; g = g->next)
			if (guest_has_process(g)) {
				g->kill_sent = false;
				guest_kill(g, CONTROL_END_RECLAIMED, "still here after the deadline");
			}
	}
	owner_check_empty(a);
	if (o->state == CONTROL_OWNER_DRAINING)
		(void)loop_timer_in(&o->proof, PROOF_EVERY_NS);
}

/* The order of DESIGN 8: packets first, then processes, then the proof. */
static void drain(struct agent *a)
{
	struct owner *o = &a->owner;
	agent_edge_kill(a, NULL);
	POINT("agent.owner.after_cut");
	for (struct guest *g = a->guests; g; g = g->next) {
		guest_move_cancel(g);
		guest_kill(g, CONTROL_END_RECLAIMED, o->reason);
	}
	(void)loop_timer_in(&o->proof, PROOF_EVERY_NS);
}

static void on_deadline(void *user)
{
	struct agent *a = user;
	if (!owner_move(a, OWNER_EVENT_DEADLINE))
		return;
	drain(a);
	owner_commit(a, false);
	owner_check_empty(a);
}

/* ---- what an owner can ask for ---- */

static void notice_begin(struct agent *a, enum control_reclaim_mode mode, uint64_t window_ns,
			 const char *reason)
{
	struct owner *o = &a->owner;
	uint64_t bits;
	if (random_bytes(&bits, sizeof(bits)) < 0)
		bits = clock_boot_ns();
	(void)snprintf(o->notice_id, sizeof(o->notice_id), "%.40s-%016llx", a->node,
		       (unsigned long long)bits);
	(void)snprintf(o->reason, sizeof(o->reason), "%s", reason ? reason : "owner");
	o->mode = mode;
	o->asked_ns = clock_boot_ns();
	o->window_ns = window_ns;
	o->deadline_ns = o->asked_ns + window_ns;
	o->freed_ns = o->pids_left = o->last_packet_us = 0;
	o->packet_cut = o->proven = false;
	o->alarm[0] = '\0';
}

static int back_now(struct agent *a, const char *reason)
{
	struct owner *o = &a->owner;
	if (o->state == CONTROL_OWNER_DRAINING)
		return 0;
	bool fresh = o->state == CONTROL_OWNER_LENT;
	if (!owner_move(a, OWNER_EVENT_NOW))
		return -EINVAL;
	if (fresh)
		notice_begin(a, CONTROL_RECLAIM_NOW, 0, reason);
	o->mode = CONTROL_RECLAIM_NOW;
	o->deadline_ns = clock_boot_ns();
	loop_timer_stop(&o->deadline);
	drain(a);
	owner_commit(a, false);
	owner_check_empty(a);
	return 0;
}

int owner_back(struct agent *a, bool now, uint64_t window_ns, const char *reason)
{
	struct owner *o = &a->owner;
	o->intent_lent = false;
	o->by_itself = false;
	if (o->state == CONTROL_OWNER_OWNED) {
		owner_commit(a, false);
		return 0;
	}
	if (now || window_ns == 0)
		return back_now(a, reason);
	bool again = o->state == CONTROL_OWNER_NOTICE;
	if (!owner_move(a, OWNER_EVENT_BACK))
		return -EALREADY; /* draining: faster than any window */
	if (again) {
		o->window_ns = window_ns;
		o->deadline_ns = clock_boot_ns() + window_ns;
	} else {
		notice_begin(a, CONTROL_RECLAIM_NOTICE, window_ns, reason);
	}
	POINT("agent.owner.notice");
	for (struct guest *g = a->guests; g; g = g->next)
		guest_notice(g);
	(void)loop_timer_at(&o->deadline, o->deadline_ns);
	owner_commit(a, false);
	POINT("agent.owner.notice_told");
	owner_check_empty(a);
	return 0;
}

void owner_back_by_itself(struct agent *a, uint64_t window_ns, const char *reason, bool again)
{
	struct owner *o = &a->owner;
	if (owner_back(a, window_ns == 0, window_ns, reason) < 0)
		return; /* draining: faster than any window */
	o->intent_lent = again;
	o->by_itself = true;
	(void)journal_save(a); /* as in owner_commit() */
	if (o->state == CONTROL_OWNER_OWNED)
		owner_schedule_check(a);
}

int owner_cancel(struct agent *a)
{
	struct owner *o = &a->owner;
	if (!owner_move(a, OWNER_EVENT_CANCEL))
		return -EINVAL;
	loop_timer_stop(&o->deadline);
	o->intent_lent = true;
	o->mode = CONTROL_RECLAIM_NONE;
	for (struct guest *g = a->guests; g; g = g->next)
		guest_cancel_notice(g);
	POINT("agent.owner.cancelled");
	owner_commit(a, true);
	o->notice_id[0] = '\0';
	return 0;
}

static unsigned week_minute_now(unsigned *ret_second)
{
	time_t t = time(NULL);
	struct tm local;
	CHECK(localtime_r(&t, &local));
	*ret_second = (unsigned)local.tm_sec;
	return terms_week_minute(&local);
}

static void lend_begin(struct agent *a)
{
	struct owner *o = &a->owner;
	if (!owner_move(a, OWNER_EVENT_LEND))
		return;
	o->mode = CONTROL_RECLAIM_NONE;
	o->notice_id[0] = '\0';
	o->by_itself = false;
	gpu_lent(a);
	agent_edge_clear(a);
	if (a->receiver)
		transfer_receiver_serve(a->receiver, true);
	POINT("agent.owner.lent");
	owner_commit(a, false);
}

int owner_lend(struct agent *a, char *why, size_t why_size)
{
	struct owner *o = &a->owner;
	unsigned second;
	unsigned minute = week_minute_now(&second);
	o->intent_lent = true;
	why[0] = '\0';
	if (a->config.edge.mode == AGENT_EDGE_REQUIRED && !a->edge) {
		o->intent_lent = false;
		(void)snprintf(why, why_size, "the edge is required and missing: %s", a->edge_missing);
		return -EOPNOTSUPP;
	}
	trigger_lend_asked(a);
	uint64_t wait = trigger_wait_asked_ns(a);
	if (o->state == CONTROL_OWNER_OWNED && terms_lendable(&a->terms, minute) && !wait) {
		lend_begin(a);
	} else if (o->state == CONTROL_OWNER_OWNED && wait) {
		char left[FORMAT_MAX];
		(void)snprintf(why, why_size, "lent when you have been away for another %s",
			       format_duration(wait, left));
		owner_commit(a, false);
		owner_schedule_check(a);
	} else if (o->state == CONTROL_OWNER_OWNED) {
		(void)snprintf(why, why_size, "kept by the weekly schedule for another %u min",
			       terms_change_in(&a->terms, minute));
		owner_commit(a, false);
	} else if (o->state != CONTROL_OWNER_LENT) {
		(void)snprintf(why, why_size, "being taken back right now; cancel that, or wait");
		return -EBUSY;
	}
	return 0;
}

void owner_pause(struct agent *a, bool on)
{
	a->owner.paused = on;
	owner_commit(a, false);
}

/* Free *by* the scheduled time: the notice starts one window earlier. */
void owner_schedule_check(struct agent *a)
{
	struct owner *o = &a->owner;
	unsigned second;
	unsigned minute = week_minute_now(&second);
	bool lendable = terms_lendable(&a->terms, minute);
	unsigned change_min = terms_change_in(&a->terms, minute);
	uint64_t left_ns = change_min ? ((uint64_t)change_min * 60 - second) * NS_PER_S : UINT64_MAX;
	if (o->state == CONTROL_OWNER_LENT && (!lendable || left_ns <= a->terms.window_ns)) {
		owner_back_by_itself(a, lendable ? left_ns : 0, "schedule", true);
	} else if (o->state == CONTROL_OWNER_OWNED && o->intent_lent && lendable &&
		   left_ns > 2 * a->terms.window_ns && trigger_wait_ns(a) == 0) {
		lend_begin(a);
	}
	/* The wall clock may jump: look again at least every 30 s, and when it is due. */
	uint64_t wait = 30 * NS_PER_S;
	if (left_ns != UINT64_MAX) {
		uint64_t due = lendable && left_ns > a->terms.window_ns ? left_ns - a->terms.window_ns
									: left_ns;
		wait = MIN(wait, due + NS_PER_S / 10);
	}
	uint64_t quiet = trigger_wait_ns(a);
	if (o->state == CONTROL_OWNER_OWNED && o->intent_lent && quiet < wait)
		wait = quiet + NS_PER_S / 10;
	(void)loop_timer_in(&o->schedule, wait);
}

static void on_schedule(void *user)
{
	owner_schedule_check(user);
}

/* ---- snapshot for people ---- */

static char *copy_or_null(const char *text)
{
	return text && *text ? strdup(text) : NULL;
}

static void snapshot_guest(const struct guest *g, struct owner_guest *ret)
{
	*ret = (struct owner_guest){
		.job = strdup(g->job),
		.name = copy_or_null(g->spec.name),
		.user = strdup(g->user),
		.epoch = g->epoch,
		.state = strdup(control_job_state_names[guest_state(g)]),
		.slot = g->start.start.slots_count ? strdup(g->start.start.slots[0]) : NULL,
		.ran_ms = guest_ran_ms(g),
		.saved = g->notice_id[0] && g->image.final,
		.moved = g->move.done,
		.to = copy_or_null(g->move.to.node),
		.rung = copy_or_null(g->rung),
	};
}

static char *schedule_words(const struct agent *a)
{
	unsigned second;
	unsigned minute = week_minute_now(&second);
	unsigned change = terms_change_in(&a->terms, minute);
	bool lendable = terms_lendable(&a->terms, minute);
	char text[128], span[FORMAT_MAX];
	if (!change)
		return lendable ? NULL : strdup("never lent by its schedule");
	(void)format_duration((uint64_t)change * 60 * NS_PER_S, span);
	(void)snprintf(text, sizeof(text), "%s by its schedule for another %s",
		       lendable ? "lendable" : "kept", span);
	return strdup(text);
}

static char *lends_words(const struct agent *a)
{
	uint64_t wait = trigger_wait_ns(a);
	char text[128], span[FORMAT_MAX];
	if (a->owner.state == CONTROL_OWNER_LENT || !a->owner.intent_lent)
		return NULL;
	if (wait == UINT64_MAX)
		return strdup("when the machine is up again");
	if (!wait)
		return strdup("by its schedule");
	(void)snprintf(text, sizeof(text), "when you have been away for another %s", format_duration(wait, span));
	return strdup(text);
}

void owner_snapshot(struct agent *a, uint64_t history, struct owner_status *ret)
{
	struct owner *o = &a->owner;
	uint64_t now = clock_boot_ns();
	*ret = (struct owner_status){
		.v = OWNER_VERSION,
		.node = strdup(a->node),
		.state = o->state,
		.paused = o->paused,
		.coordinator_up = link_is_up(a),
		.mode = o->mode,
		.notice_id = copy_or_null(o->notice_id),
		.reason = copy_or_null(o->mode ? o->reason : ""),
		.remaining_ms = owner_remaining_ns(a) / NS_PER_MS,
		.window_ms = (o->state == CONTROL_OWNER_NOTICE ? o->window_ns : a->terms.window_ns) /
			     NS_PER_MS,
		.waited_ms = !o->mode ? 0
			     : (o->freed_ns ? o->freed_ns - o->asked_ns : now - o->asked_ns) / NS_PER_MS,
		.proven_free = o->proven && o->state != CONTROL_OWNER_LENT,
		.pids_left = o->pids_left,
		.decided_boot_ns = o->mode == CONTROL_RECLAIM_NOW ? o->deadline_ns : 0,
		.last_guest_packet_us = o->last_packet_us,
		.packet_cut = o->packet_cut,
		.alarm = copy_or_null(o->alarm),
		.schedule = schedule_words(a),
		.lends = lends_words(a),
		.idle_ms = trigger_idle_ns(a) / NS_PER_MS,
		.slots = a->terms.slots_count,
	};
	for (size_t i = 0; i < a->terms.slots_count; i++)
		ret->slots_used += a->slot_used[i];
	ret->guests = calloc(a->guests_count + 1, sizeof(*ret->guests));
	for (struct guest *g = a->guests; g && ret->guests; g = g->next)
		if (g->phase != GUEST_ENDED)
			snapshot_guest(g, &ret->guests[ret->guests_count++]);
	ret->history = calloc(history + 1, sizeof(*ret->history));
	if (ret->history)
		ret->history_count = journal_history(a, ret->history, history);
	ret->lacks = calloc(EDGE_FEATURE_COUNT + 1 + OWNER_TRIGGER_COUNT, sizeof(*ret->lacks));
	if (ret->lacks && a->edge_missing[0])
		ret->lacks[ret->lacks_count++] = strdup(a->edge_missing);
	if (ret->lacks)
		ret->lacks_count += trigger_lacks(a, ret->lacks + ret->lacks_count, OWNER_TRIGGER_COUNT);
}

void owner_notify(struct agent *a)
{
	struct owner *o = &a->owner;
	if (o->watchers.count == 0)
		return;
	struct owner_status s;
	owner_snapshot(a, 0, &s);
	json_t *m = schema_encode(&owner_status_schema, &s);
	schema_done(&owner_status_schema, &s);
	for (size_t i = 0; m && i < o->watchers.count; i++)
		(void)unix_conn_send(o->watchers.data[i], m); /* a watcher that left is closed by io */
	json_decref(m);
}

/* ---- opening: go on where an earlier agent stopped ---- */

/* For `reclaim back` by an owner who finds no agent. */
void owner_publish_window(struct agent *a)
{
	char path[PATH_MAX], text[32];
	(void)snprintf(text, sizeof(text), "%llu\n", (unsigned long long)(a->terms.window_ns / NS_PER_MS));
	int r = path_format(path, sizeof(path), "%s/" OWNER_WINDOW_FILE, a->run_dir);
	if (r == 0)
		r = file_write_atomic(path, text, strlen(text), 0644);
	if (r < 0)
		log_warn("%s/" OWNER_WINDOW_FILE ": %s; 'reclaim back' without an agent would take 60 s",
			 a->run_dir, strerror(-r));
}

int owner_open(struct agent *a, struct diag *diag)
{
	struct owner *o = &a->owner;
	loop_timer_init(&o->deadline, a->loop, on_deadline, a);
	loop_timer_init(&o->schedule, a->loop, on_schedule, a);
	loop_timer_init(&o->proof, a->loop, on_proof, a);
	if (o->state == CONTROL_OWNER_FREE)
		o->state = CONTROL_OWNER_OWNED;
	owner_publish_window(a);
	int r = journal_save(a);
	if (r < 0)
		return diag_set(diag, r, a->state_dir, "cannot write: %s", strerror(-r));
	return 0;
}

void owner_close(struct agent *a)
{
	struct owner *o = &a->owner;
	loop_timer_stop(&o->deadline);
	loop_timer_stop(&o->schedule);
	loop_timer_stop(&o->proof);
	unix_server_close(o->server);
	VEC_DONE(&o->watchers);
}

void owner_resume(struct agent *a)
{
	struct owner *o = &a->owner;
	/* reclaim-cut was used while no agent ran: the owner has taken the machine back. */
	if (o->state == CONTROL_OWNER_LENT && a->edge && edge_killed(a->edge, EDGE_ALL))
		(void)owner_back(a, true, 0, "owner, without an agent");
	if (o->state == CONTROL_OWNER_NOTICE) {
		for (struct guest *g = a->guests; g; g = g->next)
			guest_notice(g);
		(void)loop_timer_at(&o->deadline, o->deadline_ns);
	} else if (o->state == CONTROL_OWNER_DRAINING) {
		drain(a);
	} else if (o->state == CONTROL_OWNER_OWNED) {
		/* No guest may run on an owned machine, whatever an earlier agent left. */
		if (a->guests)
			agent_edge_kill(a, NULL);
		for (struct guest *g = a->guests; g; g = g->next)
			guest_kill(g, CONTROL_END_RECLAIMED, "the machine is its owner's");
	}
	owner_check_empty(a);
	owner_schedule_check(a);
}
