/* SPDX-License-Identifier: Apache-2.0 */
/* What one event of a scenario does, how it is known to be over, and its undoing. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "lab/lab_internal.h"

static bool is_target(const struct lab_event *e, size_t machine)
{
	for (size_t i = 0; i < e->targets.count; i++)
		if (e->targets.data[i] == machine)
			return true;
	return false;
}

static int add_target(struct lab_event *e, size_t machine)
{
	return is_target(e, machine) ? 0 : VEC_PUSH(&e->targets, machine);
}

static int add_holder(struct lab *l, struct lab_event *e, struct diag *diag)
{
	struct lab_job *j = &l->jobs[scenario_job(&l->scenario, e->spec->holds)];
	size_t m;

	(void)pthread_mutex_lock(&l->watch_lock);
	m = j->finished ? SCENARIO_NONE : lab_machine_by_name(l, j->machine);
	(void)pthread_mutex_unlock(&l->watch_lock);
	if (m == SCENARIO_NONE)
		return diag_set(diag, -ESRCH, e->spec->holds, "runs nowhere at this moment");
	return add_target(e, m);
}

static int add_room(struct lab *l, struct lab_event *e)
{
	int r = 0;

	for (size_t i = 0; i < l->scenario.topology.machines_count; i++) {
		const char *room = l->machines[i].spec->room;
		bool same = false;

		for (size_t k = 0; k < e->targets.count && room; k++) {
			const char *other = l->machines[e->targets.data[k]].spec->room;

			same |= other && strcmp(other, room) == 0;
		}
		if (same && r == 0)
			r = add_target(e, i);
	}
	return r;
}

/* The machines that an event is about, right now. */
static int find_targets(struct lab *l, struct lab_event *e, struct diag *diag)
{
	const struct scenario_event *s = e->spec;
	int r = 0;

	for (size_t i = 0; i < s->machines_count && r == 0; i++)
		r = add_target(e, scenario_machine(&l->scenario, s->machines[i]));
	if (s->like) {
		const struct lab_event *before =
			&l->events.data[scenario_event(&l->scenario, s->like)];

		for (size_t i = 0; i < before->targets.count && r == 0; i++)
			r = add_target(e, before->targets.data[i]);
	}
	if (r == 0 && s->holds)
		r = add_holder(l, e, diag);
	return r == 0 && s->room ? add_room(l, e) : r;
}

/* Who is on board, by the guests' own output: the newest incarnation of each job is here. */
static void note_passengers(struct lab *l, struct lab_reclaim *r)
{
	for (size_t i = 0; i < l->scenario.jobs_count; i++) {
		struct observe_run run;
		struct lab_job *j = &l->jobs[i];

		if (!j->id[0] || j->finished || r->jobs_count == ARRAY_SIZE(r->jobs) ||
		    !observe_newest(l->observe, j->id, &run) || run.machine != r->machine ||
		    run.digest[0])
			continue;
		r->epochs[r->jobs_count] = run.epoch;
		r->jobs[r->jobs_count++] = i;
	}
}

/* Window >= save + bytes / floor + 2 s, from what the reference runs measured. */
void act_reclaim_window(struct lab *l, struct lab_reclaim *r)
{
	uint64_t bytes = 0, save = 0;

	for (size_t i = 0; i < r->jobs_count; i++) {
		const struct reference *ref = &l->references[r->jobs[i]];
		const struct scenario_cost *c = &l->jobs[r->jobs[i]].spec->cost;

		bytes += ref->image_bytes ? ref->image_bytes : c->image_bytes;
		save = MAX(save, ref->save_ns ? ref->save_ns : c->save_ns);
	}
	r->needed_ns = reference_window_needed_ns(save, bytes, l->scenario.system.floor_bps);
	r->window_enough = r->window_ns >= r->needed_ns;
}

static int back_one(struct lab *l, struct lab_event *e, size_t machine, struct diag *diag)
{
	struct lab_machine *m = &l->machines[machine];
	struct lab_command c = { .machine = machine };
	struct lab_reclaim r = { .machine = machine, .last_packet_ns = INT64_MIN, .pids_left = 0 };
	char window[FORMAT_MAX + 8];
	const char *args[8] = { "back" };
	size_t n = 1;
	int err;

	if (e->spec->mode == SCENARIO_MODE_NOW) {
		args[n++] = "--now";
	} else if (e->spec->window_set) {
		(void)snprintf(window, sizeof(window), "--in=%llums",
			       (unsigned long long)(e->spec->window_ns / NS_PER_MS));
		args[n++] = window;
	}
	args[n++] = "--json";
	r.mode = !m->agent || m->down_on_purpose    ? "crash" :
		 e->spec->mode == SCENARIO_MODE_NOW ? "now" :
						     "notice";
	r.window_ns = e->spec->mode == SCENARIO_MODE_NOW ? 0 :
		      e->spec->window_set		  ? e->spec->window_ns :
							    m->spec->lend.window_ns;
	note_passengers(l, &r);
	act_reclaim_window(l, &r);
	r.asked_ns = clock_boot_ns();
	err = system_owner(l, machine, args, &c, diag);
	if (err == 0)
		err = VEC_PUSH(&l->reclaims, r);
	c.reclaim = l->reclaims.count;
	c.started_ns = r.asked_ns;
	if (err == 0)
		err = VEC_PUSH(&e->commands, c);
	if (err == 0)
		lab_say(l, "%s takes back %s (%s, window %.1f s, %zu on board)", m->spec->owner,
			m->spec->name, r.mode, (double)r.window_ns / 1e9, r.jobs_count);
	return err;
}

static int owner_one(struct lab *l, struct lab_event *e, size_t machine, const char *word,
		     const char *option, struct diag *diag)
{
	const char *args[] = { word, option, NULL };
	struct lab_command c = { .machine = machine };
	int r = system_owner(l, machine, args, &c, diag);

	c.started_ns = clock_boot_ns();
	return r < 0 ? r : VEC_PUSH(&e->commands, c);
}

static int crash_one(struct lab *l, struct lab_event *e, size_t machine, struct diag *diag)
{
	const char *what = scenario_what_names[e->spec->what];
	const char *where = machine == SCENARIO_NONE ? "" : l->machines[machine].spec->name;
	int n;

	/* A scenario's points were armed when the programs were started; a shell's are now. */
	if (e->spec->point && e->spec != &e->own)
		return 0;
	if (e->spec->point && machine == SCENARIO_NONE)
		return system_restart_coordinator(l, e->spec->point, e->spec->nth, diag);
	if (e->spec->point)
		return system_restart_agent(l, machine, e->spec->point, e->spec->nth, diag);
	n = crash_kill(l, machine, (enum scenario_what)e->spec->what);
	if (n <= 0)
		return diag_set(diag, n < 0 ? n : -ESRCH, where, "no %s to kill", what);
	lab_say(l, "kill -9: %s%s%s (%d)", what, *where ? " on " : "", where, n);
	return 0;
}

static int restart_one(struct lab *l, size_t machine, enum scenario_what what, struct diag *diag)
{
	if (what == SCENARIO_WHAT_COORDINATOR) {
		lab_say(l, "the coordinator is started again");
		return system_restart_coordinator(l, NULL, 0, diag);
	}
	lab_say(l, "the agent of %s is started again", l->machines[machine].spec->name);
	return system_restart_agent(l, machine, NULL, 0, diag);
}

static int cut(struct lab *l, struct lab_event *e, bool up, struct diag *diag)
{
	const struct scenario_event *s = e->spec;
	int r = 0;

	for (size_t i = 0; i < s->buildings_count && r == 0; i++) {
		lab_say(l, "the uplink of building %s is %s", s->buildings[i], up ? "back" : "cut");
		r = campus_uplink(l->campus, scenario_building(&l->scenario, s->buildings[i]), up,
				  diag);
	}
	VEC_EACH(&e->targets, t) {
		if (r < 0)
			break;
		lab_say(l, "the cable of %s is %s", l->machines[*t].spec->name, up ? "back" : "cut");
		r = campus_link(l->campus, l->machines[*t].node, up, diag);
	}
	return r;
}

static int stop_all(struct lab *l, struct diag *diag)
{
	const char *args[] = { "admin", "stop-all", NULL };
	CLEANUP_STRBUF struct strbuf out = STRBUF_INIT;
	int status, r = system_admin(l, args, &out, &status, diag);

	if (r == 0 && status != 0)
		r = diag_set(diag, -EIO, "stop-all", "ended with %d", status);
	return r;
}

static int cancel_job(struct lab *l, const char *name, struct diag *diag)
{
	struct lab_job *j = &l->jobs[scenario_job(&l->scenario, name)];
	const char *args[] = { "cancel", j->id, NULL };
	CLEANUP_STRBUF struct strbuf out = STRBUF_INIT;
	int status, r = system_user(l, j->user, args, &out, &status, diag);

	if (r == 0 && status != 0)
		r = diag_set(diag, -EIO, name, "cancel ended with %d", status);
	return r;
}

static int for_each(struct lab *l, struct lab_event *e, size_t machine, struct diag *diag)
{
	switch (e->spec->act) {
	case SCENARIO_DO_BACK: return back_one(l, e, machine, diag);
	case SCENARIO_DO_LEND:
		lab_say(l, "%s lends %s", l->machines[machine].spec->owner,
			l->machines[machine].spec->name);
		return owner_one(l, e, machine, "lend", NULL, diag);
	case SCENARIO_DO_CANCEL:
		lab_say(l, "%s changes their mind", l->machines[machine].spec->owner);
		return owner_one(l, e, machine, "back", "--cancel", diag);
	case SCENARIO_DO_PAUSE: return owner_one(l, e, machine, "pause", NULL, diag);
	case SCENARIO_DO_RESUME: return owner_one(l, e, machine, "resume", NULL, diag);
	case SCENARIO_DO_CRASH: return crash_one(l, e, machine, diag);
	case SCENARIO_DO_RESTART:
		return restart_one(l, machine, (enum scenario_what)e->spec->what, diag);
	case SCENARIO_DO_POWER_OFF:
		(void)campus_link(l->campus, l->machines[machine].node, false, NULL);
		(void)crash_kill(l, machine, SCENARIO_WHAT_AGENT);
		(void)crash_kill(l, machine, SCENARIO_WHAT_SHIM);
		(void)crash_kill(l, machine, SCENARIO_WHAT_GUEST);
		(void)crash_kill(l, machine, SCENARIO_WHAT_SENDER);
		(void)crash_kill(l, machine, SCENARIO_WHAT_RECEIVER);
		lab_say(l, "%s goes dark", l->machines[machine].spec->name);
		return 0;
	case SCENARIO_DO_POWER_ON:
		(void)campus_link(l->campus, l->machines[machine].node, true, NULL);
		lab_say(l, "%s is switched on", l->machines[machine].spec->name);
		return system_start_agent(l, machine, diag);
	default: return 0;
	}
}

int act_fire(struct lab *l, struct lab_event *e, struct diag *diag)
{
	int r = find_targets(l, e, diag);

	if (r < 0)
		return r;
	switch (e->spec->act) {
	case SCENARIO_DO_CUT: return cut(l, e, false, diag);
	case SCENARIO_DO_RESTORE: return cut(l, e, true, diag);
	case SCENARIO_DO_STOP_ALL: return stop_all(l, diag);
	case SCENARIO_DO_CANCEL_JOB: return cancel_job(l, e->spec->job, diag);
	case SCENARIO_DO_CRASH:
		if (e->spec->what == SCENARIO_WHAT_COORDINATOR)
			return crash_one(l, e, SCENARIO_NONE, diag);
		break;
	case SCENARIO_DO_RESTART:
		if (e->spec->what == SCENARIO_WHAT_COORDINATOR)
			return restart_one(l, SCENARIO_NONE, SCENARIO_WHAT_COORDINATOR, diag);
		break;
	default: break;
	}
	for (size_t i = 0; i < e->targets.count && r == 0; i++)
		r = for_each(l, e, e->targets.data[i], diag);
	return r;
}

bool act_is_over(struct lab *l, struct lab_event *e)
{
	VEC_EACH(&e->commands, c)
		if (c->pid)
			return false;
	if (e->spec->act == SCENARIO_DO_CRASH && e->spec->point && !e->failed && e->spec != &e->own) {
		/* Over when the armed program has died of it. */
		if (e->spec->what == SCENARIO_WHAT_COORDINATOR)
			return l->coordinator_down_on_purpose;
		VEC_EACH(&e->targets, t)
			if (e->spec->what == SCENARIO_WHAT_AGENT && !l->machines[*t].down_on_purpose)
				return false;
	}
	return true;
}

/* The undoing of `for`: what was taken is lent again, what was cut is plugged. */
void act_undo(struct lab *l, struct lab_event *e)
{
	struct diag diag = DIAG_INIT;
	char text[512];
	int r = 0;

	if (e->spec->act == SCENARIO_DO_CUT)
		r = cut(l, e, true, &diag);
	else if (e->spec->act == SCENARIO_DO_CRASH && e->spec->what == SCENARIO_WHAT_COORDINATOR)
		r = restart_one(l, SCENARIO_NONE, SCENARIO_WHAT_COORDINATOR, &diag);
	else
		VEC_EACH(&e->targets, t) {
			if (e->spec->act == SCENARIO_DO_BACK && r == 0)
				r = owner_one(l, e, *t, "lend", NULL, &diag);
			if (e->spec->act == SCENARIO_DO_PAUSE && r == 0)
				r = owner_one(l, e, *t, "resume", NULL, &diag);
			if (e->spec->act == SCENARIO_DO_CRASH && r == 0 &&
			    e->spec->what == SCENARIO_WHAT_AGENT)
				r = restart_one(l, *t, SCENARIO_WHAT_AGENT, &diag);
			if (e->spec->act == SCENARIO_DO_POWER_OFF && r == 0) {
				(void)campus_link(l->campus, l->machines[*t].node, true, NULL);
				r = system_start_agent(l, *t, &diag);
			}
		}
	if (r < 0) {
		e->failed = true;
		(void)snprintf(e->why, sizeof(e->why), "%.199s",
			       diag_format(&diag, text, sizeof(text)));
		lab_say(l, "FAILED: undoing %s: %s", scenario_do_names[e->spec->act], e->why);
	}
}

/* The far end's view of a cut: how long after the decision the last guest packet came. */
static void measure_packets(struct lab *l, struct lab_reclaim *r, uint64_t decided_ns)
{
	const char *address = l->machines[r->machine].node->address;

	for (size_t i = 0; i < l->scenario.topology.hosts_count; i++) {
		uint64_t packets = 0;
		uint64_t last = sink_last(l->sinks[i], address, &packets);

		if (!packets)
			continue;
		r->packets_before += packets;
		r->last_packet_ns = MAX(r->last_packet_ns, (int64_t)(last - decided_ns));
	}
}

/* The last line that is a JSON object: the machine's final word. */
static json_t *last_json(const char *path)
{
	CLEANUP_FREE char *text = NULL;
	json_t *found = NULL;
	size_t len;

	if (file_read(path, 1u << 20, &text, &len) < 0)
		return NULL;
	/* One object over several lines, or several of them, one a line: the last that parses. */
	found = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
	for (char *line = text, *next; line && *line; line = next) {
		json_t *one;

		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		one = *line == '{' ? json_loads(line, 0, NULL) : NULL;
		if (one) {
			json_decref(found);
			found = one;
		}
	}
	return found;
}

static uint64_t number(json_t *obj, const char *key)
{
	json_t *v = json_object_get(obj, key);
	uint64_t n = 0;

	if (json_is_integer(v))
		return (uint64_t)json_integer_value(v);
	if (json_is_string(v) && parse_u64(json_string_value(v), &n) == 0)
		return n;
	return 0;
}

static void reclaim_over(struct lab *l, struct lab_reclaim *r, struct lab_command *c)
{
	CLEANUP_JSON json_t *said = last_json(c->out);
	uint64_t decided = number(said, "decided_boot_ns");
	const char *state = json_string_value(json_object_get(said, "state"));

	r->freed_ns = clock_boot_ns();
	r->wait_ms = (double)(r->freed_ns - r->asked_ns) / 1e6;
	r->pids_left = crash_guests_left(l, r->machine);
	if (strcmp(r->mode, "notice") != 0)
		measure_packets(l, r, decided ? decided : r->asked_ns);
	r->cancelled = state && strcmp(state, "LENT") == 0;
	lab_say(l, "%s is %s after %.2f s, %llu guest processes left",
		l->machines[r->machine].spec->name, r->cancelled ? "lent on" : "free",
		r->wait_ms / 1e3, (unsigned long long)r->pids_left);
}

void act_reaped(struct lab *l, struct lab_event *e, struct lab_command *c, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);

	if (c->reclaim) {
		struct lab_reclaim *r = &l->reclaims.data[c->reclaim - 1];

		r->status = code;
		reclaim_over(l, r, c);
	}
	if (code != 0) {
		CLEANUP_FREE char *text = NULL;
		size_t len = 0;

		e->failed = true;
		if (file_read(c->out, 1u << 20, &text, &len) < 0)
			len = 0;
		(void)snprintf(e->why, sizeof(e->why), "a command ended with %d: %.*s", code,
			       (int)MIN(len, (size_t)150), text ? text : "");
		lab_say(l, "FAILED: %s on %s: %s", scenario_do_names[e->spec->act],
			l->machines[c->machine].spec->name, e->why);
	}
}
