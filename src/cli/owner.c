/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's commands. They speak to the agent on this machine and to nobody
 * else. When no agent answers, `back` goes to owner_direct.c: both ways work for
 * the owner's group without root.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/owner_internal.h"
#include "io/unix_client.h"
#include "wire/control.h"
#include "wire/owner.h"

/* An agent that runs answers at once; an owner does not wait for one that hangs. */
#define ANSWER_NS (2 * NS_PER_S)
#define ANSWER_NOW_NS (300 * NS_PER_MS)

const char *owner_run_dir(const struct owner_options *o)
{
	const char *env = getenv("RECLAIM_RUN");
	return o->run ? o->run : (env && *env ? env : "/run/reclaim");
}

static int agent_open(const struct owner_options *o, struct unix_client **ret)
{
	char path[256];
	int r = path_format(path, sizeof(path), "%s/agent.sock", owner_run_dir(o));
	return r < 0 ? r : unix_client_open(path, ret);
}

static int ask(struct unix_client *c, const struct owner_request *q, uint64_t timeout_ns,
	       struct owner_status *ret)
{
	struct diag diag = DIAG_INIT;
	CLEANUP_JSON json_t *out = schema_encode(&owner_request_schema, q);
	CLEANUP_JSON json_t *in = NULL;
	int r = out ? unix_client_call(c, out, timeout_ns, &in) : -ENOMEM;
	return r < 0 ? r : schema_decode(&owner_status_schema, in, SCHEMA_OPEN, NULL, ret, &diag);
}

static int no_agent(const struct owner_options *o, int r)
{
	const char *hint = r == -EACCES ? "; only root and the owner's group may" :
			   r == -ENOENT || r == -ECONNREFUSED ? "; no agent runs here" : "";
	return cli_failf("%s/agent.sock: %s%s", owner_run_dir(o), strerror(-r), hint);
}

static void print_guest(const struct owner_guest *g)
{
	char ran[FORMAT_MAX];
	(void)printf("  %-14s %-12s %-10s on board %-12s%s%s%s\n", g->job, g->user, g->state,
		     format_duration(g->ran_ms * NS_PER_MS, ran), g->saved ? "  saved" : "",
		     g->moved ? ", moved to " : (g->to ? ", moving to " : ""), g->to ? g->to : "");
}

static void print_status(const struct owner_status *s)
{
	char text[FORMAT_MAX];
	(void)printf("%s: %s%s", s->node, control_owner_state_names[s->state],
		     s->paused ? ", paused (nothing new is placed)" : "");
	if (s->reason && s->state != CONTROL_OWNER_LENT)
		(void)printf(" (%s)", s->reason);
	if (s->state == CONTROL_OWNER_NOTICE)
		(void)printf(", yours in %s at the latest",
			     format_duration(s->remaining_ms * NS_PER_MS, text));
	if (s->state == CONTROL_OWNER_LENT)
		(void)printf(", %llu of %llu slots in use; 'reclaim back' takes at most %s",
			     (unsigned long long)s->slots_used, (unsigned long long)s->slots,
			     format_duration(s->window_ms * NS_PER_MS, text));
	(void)putchar('\n');
	if (s->schedule)
		(void)printf("  schedule: %s\n", s->schedule);
	if (s->lends)
		(void)printf("  lent again %s\n", s->lends);
	if (!s->coordinator_up)
		(void)puts("  the coordinator is not in reach (your commands work all the same)");
	if (s->alarm)
		(void)printf("  ALARM: %s\n", s->alarm);
	for (size_t i = 0; i < s->lacks_count; i++)
		(void)printf("  without: %s\n", s->lacks[i]);
	for (size_t i = 0; i < s->guests_count; i++)
		print_guest(&s->guests[i]);
	if (s->history_count)
		(void)puts("past use, latest first:");
	for (size_t i = 0; i < s->history_count; i++)
		(void)printf("  %s  %-12s %-14s %-10s %s\n", s->history[i].from, s->history[i].user,
			     s->history[i].job, format_duration(s->history[i].ran_ms * NS_PER_MS, text),
			     s->history[i].end);
}

/* One request, one answer. */
static int simple(const struct owner_options *o, const struct owner_request *q, bool quiet)
{
	CLEANUP_UNIX_CLIENT struct unix_client *c = NULL;
	struct owner_status s;
	int r = agent_open(o, &c);
	if (r == 0)
		r = ask(c, q, ANSWER_NS, &s);
	if (r < 0)
		return no_agent(o, r);
	int status = 0;
	if (o->json)
		cli_print_json(schema_encode(&owner_status_schema, &s));
	else if (!quiet || !s.error)
		print_status(&s);
	if (s.error)
		status = cli_failf("%s", s.error);
	schema_done(&owner_status_schema, &s);
	return status;
}

static int run_lend(const void *values, int argc, const char *const *argv)
{
	const struct owner_request q = { .v = OWNER_VERSION, .cmd = OWNER_CMD_LEND };
	return simple(values, &q, false);
}

static int run_pause(const void *values, int argc, const char *const *argv)
{
	const struct owner_request q = { .v = OWNER_VERSION, .cmd = OWNER_CMD_PAUSE };
	return simple(values, &q, false);
}

static int run_resume(const void *values, int argc, const char *const *argv)
{
	const struct owner_request q = { .v = OWNER_VERSION, .cmd = OWNER_CMD_RESUME };
	return simple(values, &q, false);
}

static int run_reload(const void *values, int argc, const char *const *argv)
{
	const struct owner_request q = { .v = OWNER_VERSION, .cmd = OWNER_CMD_RELOAD };
	return simple(values, &q, false);
}

static int run_status(const void *values, int argc, const char *const *argv)
{
	const struct owner_options *o = values;
	const struct owner_request q = { .v = OWNER_VERSION, .cmd = OWNER_CMD_STATUS,
					 .history = o->history };
	return simple(o, &q, false);
}

/* ---- back ---- */

/* The end of a reclaim, in the owner's words. The exit status says whether it was proven. */
static int print_free(const struct owner_options *o, const struct owner_status *s)
{
	char text[FORMAT_MAX];
	if (o->json) {
		cli_print_json(schema_encode(&owner_status_schema, s));
	} else if (s->proven_free || s->mode == CONTROL_RECLAIM_NONE) {
		(void)printf("%s is yours", s->node);
		if (s->mode != CONTROL_RECLAIM_NONE)
			(void)printf(" after %s: no guest process is left%s",
				     format_duration(s->waited_ms * NS_PER_MS, text),
				     s->packet_cut ? ", guests' packets are cut" : "");
		(void)putchar('\n');
	}
	if (s->pids_left || s->alarm)
		return cli_failf("%s: %s", s->node, s->alarm ? s->alarm : "guest processes are left");
	return 0;
}

/* The agent died while we waited: what it began, its guests' supervisors and the kernel finish. */
static int agent_left(const struct owner_options *o, const struct owner_status *s, uint64_t end_ns)
{
	uint64_t now = clock_boot_ns(), left = end_ns > now + OWNER_AFTER_DEADLINE_NS ? end_ns - now - OWNER_AFTER_DEADLINE_NS : 0;
	if (s->mode == CONTROL_RECLAIM_NOW || left == 0)
		return owner_cut_direct(o);
	return owner_back_direct(o, left);
}

static int wait_free(const struct owner_options *o, struct unix_client *c, struct owner_status *s)
{
	uint64_t end = clock_boot_ns() + s->remaining_ms * NS_PER_MS + OWNER_AFTER_DEADLINE_NS;
	bool tty = isatty(STDERR_FILENO) && !o->json;
	while (s->state == CONTROL_OWNER_NOTICE || s->state == CONTROL_OWNER_DRAINING) {
		CLEANUP_JSON json_t *in = NULL;
		struct diag diag = DIAG_INIT;
		char left[FORMAT_MAX];
		uint64_t now = clock_boot_ns();
		if (now >= end)
			return cli_failf("%s: still not free %s after the deadline%s%s", s->node,
					 format_duration(OWNER_AFTER_DEADLINE_NS, left), s->alarm ? ": " : "",
					 s->alarm ? s->alarm : "");
		if (tty)
			(void)fprintf(stderr, "\r%s: %s, %zu guest(s), at most %s ", s->node,
				      control_owner_state_names[s->state], s->guests_count,
				      format_duration(end - now - OWNER_AFTER_DEADLINE_NS, left));
		int r = unix_client_receive(c, MIN(end - now, NS_PER_S), &in);
		if (r == -ETIMEDOUT)
			continue;
		if (r < 0)
			return agent_left(o, s, end);
		struct owner_status next;
		if (schema_decode(&owner_status_schema, in, SCHEMA_OPEN, NULL, &next, &diag) < 0)
			continue;
		schema_done(&owner_status_schema, s);
		*s = next;
	}
	if (tty)
		(void)fputs("\r\033[K", stderr);
	return s->state == CONTROL_OWNER_LENT ? cli_failf("%s: the reclaim was cancelled", s->node)
					      : print_free(o, s);
}

static int run_back(const void *values, int argc, const char *const *argv)
{
	const struct owner_options *o = values;
	if (o->now + o->cancel + (o->in > 0) > 1)
		return cli_failf("--now, --in and --cancel exclude each other"), EXIT_USAGE;
	const struct owner_request q = {
		.v = OWNER_VERSION,
		.cmd = o->cancel ? OWNER_CMD_CANCEL : OWNER_CMD_BACK,
		.now = o->now,
		.window_given = o->in > 0,
		.window_ms = o->in / NS_PER_MS,
		.watch = !o->no_wait && !o->cancel,
		.reason = (char *)o->reason,
	};
	CLEANUP_UNIX_CLIENT struct unix_client *c = NULL;
	struct owner_status s;
	int r = agent_open(o, &c);
	if (r == 0)
		r = ask(c, &q, o->now ? ANSWER_NOW_NS : ANSWER_NS, &s);
	if (r == -EACCES)
		return no_agent(o, r);
	if (r < 0 && o->now)
		return owner_cut_direct(o);
	if (r < 0)
		return o->cancel ? no_agent(o, r)
				 : owner_back_direct_declared(o);
	int status;
	if (s.error)
		status = cli_failf("%s", s.error);
	else if (o->cancel || o->no_wait)
		status = (o->json ? cli_print_json(schema_encode(&owner_status_schema, &s)) : print_status(&s), 0);
	else
		status = wait_free(o, c, &s);
	schema_done(&owner_status_schema, &s);
	return status;
}

/* ---- trigger ---- */

static int trigger_from_name(const char *name)
{
	for (int i = 0; owner_trigger_names[i]; i++)
		if (strcmp(owner_trigger_names[i], name) == 0)
			return i;
	return -EINVAL;
}

static int run_trigger(const void *values, int argc, const char *const *argv)
{
	const struct owner_options *o = values;
	int kind = trigger_from_name(argv[0]);
	if (kind < 0)
		return cli_failf("'%s' is none of login, keyboard, gpu, cpu, shutdown, suspend, lid, stays",
				 argv[0]), EXIT_USAGE;
	bool leaving = kind == OWNER_TRIGGER_SHUTDOWN || kind == OWNER_TRIGGER_SUSPEND || kind == OWNER_TRIGGER_LID;
	const struct owner_request q = {
		.v = OWNER_VERSION,
		.cmd = OWNER_CMD_TRIGGER,
		.trigger = kind,
		.watch = leaving && !o->no_wait,
		.reason = (char *)o->reason,
	};
	CLEANUP_UNIX_CLIENT struct unix_client *c = NULL;
	struct owner_status s;
	int r = agent_open(o, &c);
	if (r == 0)
		r = ask(c, &q, ANSWER_NS, &s);
	if (r < 0 && r != -EACCES && leaving)
		return owner_back_direct_declared(o);
	if (r < 0)
		return no_agent(o, r);
	int status = 0;
	if (s.error)
		status = cli_failf("%s", s.error);
	else if (leaving && !o->no_wait && s.state != CONTROL_OWNER_LENT)
		status = wait_free(o, c, &s);
	schema_done(&owner_status_schema, &s);
	return status;
}

#define O(m) offsetof(struct owner_options, m)
#define RUN_ROW \
	{ "run", 0, OPTION_STR, O(run), "DIR", NULL, 0, 0, "the agent's run folder (/run/reclaim)" }
#define JSON_ROW { "json", 0, OPTION_FLAG, O(json), NULL, NULL, 0, 0, "print JSON" }
#define END_ROW { .kind = OPTION_END }

static const struct option plain_options[] = { RUN_ROW, JSON_ROW, END_ROW };
static const struct option status_options[] = {
	RUN_ROW,
	JSON_ROW,
	{ "history", 'n', OPTION_U64, O(history), "N", "10", 0, OWNER_HISTORY_MAX,
	  "show the last N uses" },
	END_ROW,
};
static const struct option back_options[] = {
	RUN_ROW,
	JSON_ROW,
	{ "in", 0, OPTION_DURATION, O(in), "TIME", NULL, 0, 86400e9,
	  "give guests this long instead of the declared window" },
	{ "now", 0, OPTION_FLAG, O(now), NULL, NULL, 0, 0,
	  "at once: guests' packets are cut in under a millisecond, guests ended" },
	{ "cancel", 0, OPTION_FLAG, O(cancel), NULL, NULL, 0, 0, "withdraw a notice: guests go on" },
	{ "no-wait", 0, OPTION_FLAG, O(no_wait), NULL, NULL, 0, 0,
	  "do not wait until the machine is free" },
	{ "reason", 0, OPTION_STR, O(reason), "TEXT", NULL, 0, 0,
	  "told to the guests: \"owner\", \"login\", \"shutdown\"" },
	END_ROW,
};

static const struct option trigger_options[] = {
	RUN_ROW,
	{ "no-wait", 0, OPTION_FLAG, O(no_wait), NULL, NULL, 0, 0,
	  "shutdown, suspend, lid: do not wait until the machine is free" },
	{ "reason", 0, OPTION_STR, O(reason), "TEXT", NULL, 0, 0, "for the log: who, which device" },
	END_ROW,
};

#define COMMAND(n, rows, fn, text, ...)                                                            \
	{ .name = (n), .options = (rows), .values_size = sizeof(struct owner_options), .run = (fn), \
	  .help = (text), ##__VA_ARGS__ }

const struct command cli_owner_commands[] = {
	COMMAND("lend", plain_options, run_lend, "lend this machine, as its terms say"),
	COMMAND("back", back_options, run_back, "take this machine back",
		.detail = "Guests are told, save, and move away; at the end of the window whatever is left is\n"
			  "killed. Waits until the machine is free, and says how that was proven. Works with\n"
			  "the coordinator and the network down. With the agent dead the guests' supervisors\n"
			  "keep the window (the declared one, or --in), and --now runs reclaim-cut."),
	COMMAND("pause", plain_options, run_pause,
		"place nothing new here, until 'resume'; survives every restart"),
	COMMAND("resume", plain_options, run_resume, "end a pause"),
	COMMAND("trigger", trigger_options, run_trigger, "tell the agent of a sign that it cannot see itself",
		.args = "KIND", .args_min = 1, .args_max = 1,
		.detail = "KIND is login, keyboard, gpu, cpu, shutdown, suspend or lid; 'stays' takes the last\n"
			  "three back (the machine woke up, the lid was opened). For login scripts, acpid and init\n"
			  "scripts, where there is no logind. What follows is in the lend terms. shutdown, suspend\n"
			  "and lid return when the machine is free."),
	COMMAND("status", status_options, run_status, "who is on this machine, and who was"),
	COMMAND("reload", plain_options, run_reload, "read the lend terms again"),
	{ .name = NULL },
};
