/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One incarnation of one job on this machine:
 *
 *     FETCHING -> RESTORING -> LAUNCHING -> RUNNING <-> NOTICED
 *         \___________\____________\__________\__________/
 *                                  |
 *                               ENDING      last image, results, output
 *                                  |
 *                                ENDED      until the coordinator says STOP or KEEP
 *
 * Ending early is the same path from everywhere: guest_kill(). What runs in a
 * thread (restore, inputs) is asked to stop, and the path goes on when it is
 * back.
 */
#include "agent/agent_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"

static const char *const phase_names[] = { "fetching", "restoring", "launching", "running",
					   "noticed",  "ending",    "ended" };

struct guest *guest_find(struct agent *a, const char *job, uint64_t epoch)
{
	for (struct guest *g = a->guests; g; g = g->next)
		if (g->epoch == epoch && strcmp(g->job, job) == 0)
			return g;
	return NULL;
}

enum control_job_state guest_state(const struct guest *g)
{
	switch (g->phase) {
	case GUEST_FETCHING:
	case GUEST_LAUNCHING:
		return CONTROL_JOB_STARTING;
	case GUEST_RESTORING:
		return CONTROL_JOB_RESTORING;
	case GUEST_RUNNING:
		return CONTROL_JOB_RUNNING;
	case GUEST_NOTICED:
		return g->final_ready ? CONTROL_JOB_MOVING : CONTROL_JOB_NOTICED;
	case GUEST_ENDING:
		return CONTROL_JOB_MOVING;
	case GUEST_ENDED:
		/* Over for the coordinator only when it has all of its output. */
		return output_drained(g) ? CONTROL_JOB_ENDED : CONTROL_JOB_MOVING;
	case GUEST_PHASE_COUNT:
		break;
	}
	return CONTROL_JOB_ENDED;
}

void guest_set_phase(struct guest *g, enum guest_phase phase)
{
	if (g->phase == phase)
		return;
	log_info("job %s epoch %llu: %s -> %s", g->job, (unsigned long long)g->epoch,
		 phase_names[g->phase], phase_names[phase]);
	g->phase = phase;
	if (phase != GUEST_ENDED) /* told by guest_finish(), with how */
		link_send_job(g);
	owner_notify(g->agent);
}

uint64_t guest_ran_ms(const struct guest *g)
{
	if (g->exited || g->phase >= GUEST_ENDING)
		return g->ran_ms;
	return g->started_ns ? (clock_boot_ns() - g->started_ns) / NS_PER_MS : 0;
}

bool guest_has_process(const struct guest *g)
{
	return g->shim && !g->exited;
}

bool guest_wants_window(const struct guest *g)
{
	if (g->take || g->task_running)
		return true;
	/* A final image that has not reached its new home, when there is one or may be one. Without a
	 * coordinator and without a ticket nobody will name one. */
	bool may_come = link_is_up(g->agent) || g->standby.type == CONTROL_STANDBY;
	return g->notice_id[0] && !g->gang_notice && g->final_ready && g->image.digest[0] && g->image.epoch == g->epoch &&
	       !g->image.durable && !g->move.done && (g->move.sender || (!g->move.known && may_come));
}

void guest_lease(struct guest *g, uint64_t deadline_ns)
{
	/* Leases only grow: an answer that was overtaken must not shorten one. */
	if (deadline_ns <= g->lease_deadline_ns)
		return;
	g->lease_deadline_ns = deadline_ns;
	if (g->shim && !g->exited)
		(void)shim_client_lease(g->shim, deadline_ns);
	if (g->edge_slot >= 0 && g->agent->edge)
		(void)edge_guest_lease(g->agent->edge, (unsigned)g->edge_slot, deadline_ns);
}

/* ---- making one ---- */

static int slot_take(struct agent *a, struct guest *g, struct diag *diag)
{
	const struct control_start *s = &g->start.start;
	unsigned found[CONTROL_SLOTS_MAX];
	size_t n = 0;
	for (size_t k = 0; k < s->slots_count; k++) {
		size_t i = 0;
		while (i < a->terms.slots_count && strcmp(a->terms.slots[i].name, s->slots[k]) != 0)
			i++;
		if (i == a->terms.slots_count)
			return diag_set(diag, -ENOENT, s->slots[k], "is not a slot of this machine");
		if (a->slot_used[i])
			return diag_set(diag, -EBUSY, s->slots[k], "the slot is in use");
		found[n++] = (unsigned)i;
	}
	if (n == 0)
		return diag_set(diag, -EINVAL, "slots", "none given");
	for (size_t k = 0; k < n; k++) {
		a->slot_used[found[k]] = true;
		gpu_used(a, found[k]);
	}
	g->slot_index = found[0];
	return 0;
}

static void slot_release(struct guest *g)
{
	struct agent *a = g->agent;
	const struct control_start *s = &g->start.start;
	for (size_t k = 0; k < s->slots_count; k++)
		for (size_t i = 0; i < a->terms.slots_count; i++)
			if (strcmp(a->terms.slots[i].name, s->slots[k]) == 0)
				a->slot_used[i] = false;
}

static void guest_interval_fire(void *user);

static int guest_fill(struct guest *g, struct diag *diag)
{
	const struct control_start *s = &g->start.start;
	struct agent *a = g->agent;
	if (!name_is_plain(s->job) || strlen(s->job) > IMAGE_JOB_MAX)
		return diag_set(diag, -EINVAL, "start: job", "'%.64s' is not a plain name", s->job);
	(void)snprintf(g->job, sizeof(g->job), "%s", s->job);
	(void)snprintf(g->user, sizeof(g->user), "%s", s->user);
	g->epoch = s->epoch;
	if (hex_decode(s->key, strlen(s->key), g->key, sizeof(g->key)) < 0)
		return diag_set(diag, -EINVAL, "start: key", "is not %d hexadecimal digits",
				2 * IMAGE_KEY_LEN);
	int r = job_spec_from_json(s->spec, &g->spec, diag);
	if (r < 0)
		return r;
	r = path_format(g->dir, sizeof(g->dir), "%s/jobs/%s/%llu", a->state_dir, g->job,
			(unsigned long long)g->epoch);
	if (r == 0)
		r = path_format(g->socket, sizeof(g->socket), "%s/shim/%s.%llu.sock", a->run_dir, g->job,
				(unsigned long long)g->epoch);
	if (r < 0)
		return diag_set(diag, r, a->run_dir, "the path of a socket would be too long");
	return slot_take(a, g, diag);
}

struct guest *guest_new(struct agent *a, struct control_message *start, struct diag *diag)
{
	struct guest *g = calloc(1, sizeof(*g));
	if (!g || a->guests_count >= AGENT_GUESTS_MAX) {
		free(g);
		(void)diag_set(diag, -ENOMEM, "start", "too many guests on this machine");
		return NULL;
	}
	g->agent = a;
	g->start = *start;
	start->type = CONTROL_NONE; /* ours now */
	g->output_fd = g->edge_slot = -1;
	if (guest_fill(g, diag) < 0) {
		job_spec_done(&g->spec);
		*start = g->start;
		free(g);
		return NULL;
	}
	loop_timer_init(&g->interval, a->loop, guest_interval_fire, g);
	g->next = a->guests;
	a->guests = g;
	a->guests_count++;
	return g;
}

static void guest_refuse(struct agent *a, const struct control_start *s, const char *why)
{
	log_warn("job %s epoch %llu: not started here: %s", s->job, (unsigned long long)s->epoch, why);
	struct control_message m = {
		.type = CONTROL_JOB,
		.job = { .job = s->job,
			 .epoch = s->epoch,
			 .state = CONTROL_JOB_ENDED,
			 .end = CONTROL_END_NOT_STARTED,
			 .reason = (char *)why },
	};
	(void)link_send(a, &m); /* when the link is down, the coordinator sees it missing in hello */
}

static int make_folders(const struct guest *g)
{
	static const char *const names[] = { "work", "ckpt" };
	int r = dir_make_all(g->dir, 0700);
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(names); i++) {
		char path[PATH_MAX];
		r = path_format(path, sizeof(path), "%s/%s", g->dir, names[i]);
		if (r == 0)
			r = dir_make_all(path, 0700);
	}
	return r;
}

int guest_start(struct agent *a, struct control_message *start)
{
	const struct control_start *s = &start->start;
	struct diag diag = DIAG_INIT;
	char why[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
	if (guest_find(a, s->job, s->epoch))
		return 0; /* said twice: on both sides of a reconnect */
	if (a->owner.state != CONTROL_OWNER_LENT || a->owner.paused || a->closing) {
		(void)snprintf(why, sizeof(why), "the machine is %s",
			       a->owner.paused ? "paused" : control_owner_state_names[a->owner.state]);
		guest_refuse(a, s, why);
		return -EAGAIN;
	}
	if (!terms_admits(&a->terms, s->user, NULL, 0)) {
		guest_refuse(a, s, "the owner's terms do not admit this user");
		return -EACCES;
	}
	uint64_t lease_ns = s->lease_ms * NS_PER_MS;
	struct guest *g = guest_new(a, start, &diag);
	if (!g) {
		guest_refuse(a, s, diag_format(&diag, why, sizeof(why)));
		return -EINVAL;
	}
	g->lease_deadline_ns = clock_boot_ns() + lease_ns;
	g->interval_ns = g->start.start.interval_ms * NS_PER_MS;
	int r = make_folders(g);
	if (r == 0)
		r = guest_record_save(g);
	POINT("agent.start.recorded");
	if (r == 0)
		r = guest_fetch_begin(g);
	if (r < 0) {
		(void)snprintf(why, sizeof(why), "cannot prepare it here: %s", strerror(-r));
		guest_finish(g, CONTROL_END_NOT_STARTED, 0, why);
	}
	return r;
}

void guest_launch(struct guest *g)
{
	struct diag diag = DIAG_INIT;
	char why[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
	guest_set_phase(g, GUEST_LAUNCHING);
	POINT("agent.launch.before_shim");
	int r = guest_watch_open(g, &diag);
	if (r == 0)
		r = guest_shim_spawn(g, &diag);
	POINT("agent.launch.after_shim");
	if (r < 0)
		guest_finish(g, CONTROL_END_NOT_STARTED, 0, diag_format(&diag, why, sizeof(why)));
}

/* ---- reclaim ---- */

void guest_notice(struct guest *g)
{
	const struct owner *o = &g->agent->owner;
	g->gang_notice = false;
	guest_notice_as(g, o->notice_id, o->reason, o->deadline_ns, o->window_ns);
}

void guest_notice_as(struct guest *g, const char *id, const char *reason, uint64_t deadline_ns,
		     uint64_t window_ns)
{
	bool again = g->notice_id[0] != '\0';
	(void)snprintf(g->notice_id, sizeof(g->notice_id), "%s", id);
	if (g->phase < GUEST_LAUNCHING) {
		guest_kill(g, CONTROL_END_RECLAIMED, "reclaimed before it ran here");
		return;
	}
	if (g->phase >= GUEST_ENDING)
		return;
	if (!again) {
		struct ckpt_commit c = { 0 };
		if (g->watch && ckpt_watch_scan(g->watch, clock_boot_ns(), false, &c, NULL) == 0)
			g->commit_seq_at_notice = c.found ? c.seq : 0;
		g->save_asked_ns = clock_boot_ns();
		g->noticed_wall_ns = clock_stamp_ns();
		g->final_ready = false;
		g->move.known = false;
	}
	if (g->shim)
		(void)shim_client_notice(g->shim, id, reason, deadline_ns, window_ns);
	loop_timer_stop(&g->interval);
	guest_set_phase(g, GUEST_NOTICED);
	guest_standby_arm(g);
	if (g->driver_kind == JOB_DRIVER_CRIU || g->driver_kind == JOB_DRIVER_CUDA)
		guest_dump_begin(g, true);
}

void guest_cancel_notice(struct guest *g)
{
	if (!g->notice_id[0])
		return;
	g->notice_id[0] = '\0';
	g->gang_notice = false;
	loop_timer_stop(&g->grace);
	loop_timer_stop(&g->standby_timer);
	guest_move_cancel(g);
	g->final_ready = false;
	g->image.final = false;
	if (g->phase == GUEST_NOTICED && g->shim && !g->exited) {
		(void)shim_client_cancel(g->shim);
		g->frozen = g->acked = false;
		guest_set_phase(g, GUEST_RUNNING);
		guest_interval_set(g, g->interval_ns, 0);
	}
}

/* ---- the end ---- */

void guest_kill(struct guest *g, enum control_end end, const char *reason)
{
	if (g->phase >= GUEST_ENDING && !guest_has_process(g))
		return;
	if (g->shim && !g->exited) {
		if (!g->kill_sent)
			(void)shim_client_kill(g->shim, (enum shim_end)end, reason);
		g->kill_sent = true;
		return;
	}
	/* Not launched: what is in a thread is told to stop, and finishes us when it is back. */
	(void)snprintf(g->end_reason, sizeof(g->end_reason), "%s", reason);
	g->end = end;
	if (g->fetch)
		transfer_sender_cancel(g->fetch);
	if (g->task_running) {
		g->abort = true;
		atomic_store(&g->cancel, true);
	} else if (!g->fetch) {
		guest_finish(g, end, 0, reason);
	} else {
		g->abort = true;
	}
}

void guest_tell_end(struct guest *g)
{
	if (g->phase == GUEST_ENDED && guest_state(g) == CONTROL_JOB_ENDED)
		link_send_job(g);
}

void guest_finish(struct guest *g, enum control_end end, int status, const char *reason)
{
	if (g->phase == GUEST_ENDED)
		return;
	struct agent *a = g->agent;
	char why[CONTROL_TEXT_MAX]; /* reason may point into g->end_reason */
	(void)snprintf(why, sizeof(why), "%s", reason ? reason : "");
	memcpy(g->end_reason, why, sizeof(why));
	g->end = end;
	g->end_status = status;
	loop_timer_stop(&g->interval);
	loop_timer_stop(&g->grace);
	loop_timer_stop(&g->settle);
	guest_watch_close(g);
	agent_edge_detach(g);
	if (g->started_wall_ms)
		journal_use(a, g);
	slot_release(g);
	log_info("job %s epoch %llu: ended: %s%s%s", g->job, (unsigned long long)g->epoch,
		 control_end_names[end], why[0] ? ": " : "", why);
	guest_set_phase(g, GUEST_ENDED);
	output_pump(g);
	POINT("agent.end.before_told");
	(void)guest_record_save(g); /* a restart then knows the end; without it, "shim lost" */
	guest_tell_end(g);
	POINT("agent.end.told");
	owner_check_empty(a);
}

void guest_stop(struct agent *a, const struct control_stop *stop)
{
	struct guest *next;
	for (struct guest *g = a->guests; g; g = next) {
		next = g->next;
		if (strcmp(g->job, stop->job) != 0 || g->epoch > stop->epoch)
			continue;
		if (g->phase == GUEST_ENDED) {
			/* A finished final move is what the new epoch starts from: its sender may go,
			 * the image stays in the store until KEEP. */
			guest_free(g);
			continue;
		}
		guest_kill(g, stop->end ? (enum control_end)stop->end : CONTROL_END_KILLED,
			   stop->reason ? stop->reason : "stopped by the coordinator");
	}
}

void guest_free(struct guest *g)
{
	struct agent *a = g->agent;
	for (struct guest **p = &a->guests; *p; p = &(*p)->next) {
		if (*p == g) {
			*p = g->next;
			a->guests_count--;
			break;
		}
	}
	loop_timer_stop(&g->interval);
	loop_timer_stop(&g->grace);
	loop_timer_stop(&g->settle);
	loop_timer_stop(&g->standby_timer);
	guest_watch_close(g);
	guest_take_cancel(g);
	guest_move_done(g);
	agent_edge_detach(g);
	if (g->shim) {
		(void)shim_client_close(g->shim);
		shim_client_free(g->shim);
	}
	if (g->output_fd >= 0)
		(void)close(g->output_fd);
	int r = dir_remove_all(g->dir);
	if (r < 0)
		log_warn("%s: cannot remove: %s", g->dir, strerror(-r));
	char parent[PATH_MAX];
	if (path_format(parent, sizeof(parent), "%s/jobs/%s", a->state_dir, g->job) == 0)
		(void)rmdir(parent); /* stays while another epoch is below it */
	control_done(&g->start);
	job_spec_done(&g->spec);
	explicit_bzero(g->key, sizeof(g->key));
	free(g->exit.reason);
	free(g);
}

static void guest_interval_fire(void *user)
{
	struct guest *g = user;
	/* Ranks that were asked one by one would save at different steps: they save by themselves. */
	if (g->phase != GUEST_RUNNING || g->take || g->start.start.ranks > 1)
		return;
	g->save_asked_ns = clock_boot_ns();
	if (g->shim && g->driver_kind == JOB_DRIVER_SIGNAL)
		(void)shim_client_signal(g->shim);
	else if (g->driver_kind == JOB_DRIVER_CRIU || g->driver_kind == JOB_DRIVER_CUDA)
		guest_dump_begin(g, false);
	if (g->interval_ns)
		(void)loop_timer_in(&g->interval, g->interval_ns);
}

void guest_interval_set(struct guest *g, uint64_t interval_ns, uint64_t next_ns)
{
	g->interval_ns = interval_ns;
	if (interval_ns == 0 || g->phase != GUEST_RUNNING)
		loop_timer_stop(&g->interval);
	else
		(void)loop_timer_in(&g->interval, next_ns ? next_ns : interval_ns);
}
