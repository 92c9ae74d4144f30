/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's commands. They speak to the agent on this machine and to nobody
 * else. When no agent answers, `back` speaks to the guests' supervisors, and
 * `back --now` calls reclaim-cut: both work for the owner's group without root.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/program.h"
#include "base/vec.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "io/unix_client.h"
#include "job/shim_client.h"
#include "wire/control.h"
#include "wire/owner.h"

/* An agent that runs answers at once; an owner does not wait for one that hangs. */
#define ANSWER_NS (2 * NS_PER_S)
#define ANSWER_NOW_NS (300 * NS_PER_MS)
#define AFTER_DEADLINE_NS (5 * NS_PER_S)
/* The declared window stands in the terms, which only the agent reads. */
#define WINDOW_UNKNOWN_NS (60 * NS_PER_S)

struct owner_options {
	const char *run;
	bool json, now, cancel, no_wait, here;
	uint64_t in, history;
	const char *reason;
};

static const char *run_dir(const struct owner_options *o)
{
	const char *env = getenv("RECLAIM_RUN");
	return o->run ? o->run : (env && *env ? env : "/run/reclaim");
}

static int agent_open(const struct owner_options *o, struct unix_client **ret)
{
	char path[256];
	int r = path_format(path, sizeof(path), "%s/agent.sock", run_dir(o));
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
	return cli_failf("%s/agent.sock: %s%s", run_dir(o), strerror(-r), hint);
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

static int back_without_agent(const struct owner_options *o, uint64_t window_ns);
static int cut_without_agent(const struct owner_options *o);

/* The agent died while we waited: what it began, its guests' supervisors and the kernel finish. */
static int agent_left(const struct owner_options *o, const struct owner_status *s, uint64_t end_ns)
{
	uint64_t now = clock_boot_ns(), left = end_ns > now + AFTER_DEADLINE_NS ? end_ns - now - AFTER_DEADLINE_NS : 0;
	if (s->mode == CONTROL_RECLAIM_NOW || left == 0)
		return cut_without_agent(o);
	return back_without_agent(o, left);
}

static int wait_free(const struct owner_options *o, struct unix_client *c, struct owner_status *s)
{
	uint64_t end = clock_boot_ns() + s->remaining_ms * NS_PER_MS + AFTER_DEADLINE_NS;
	bool tty = isatty(STDERR_FILENO) && !o->json;
	while (s->state == CONTROL_OWNER_NOTICE || s->state == CONTROL_OWNER_DRAINING) {
		CLEANUP_JSON json_t *in = NULL;
		struct diag diag = DIAG_INIT;
		char left[FORMAT_MAX];
		uint64_t now = clock_boot_ns();
		if (now >= end)
			return cli_failf("%s: still not free %s after the deadline%s%s", s->node,
					 format_duration(AFTER_DEADLINE_NS, left), s->alarm ? ": " : "",
					 s->alarm ? s->alarm : "");
		if (tty)
			(void)fprintf(stderr, "\r%s: %s, %zu guest(s), at most %s ", s->node,
				      control_owner_state_names[s->state], s->guests_count,
				      format_duration(end - now - AFTER_DEADLINE_NS, left));
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

/* Everything that is needed is in the kernel and in one small program: no agent. */
static int cut_without_agent(const struct owner_options *o)
{
	char beside[4096];
	struct stat st;
	/* An agent of an ordinary user has no edge and no cgroups: its supervisors are all there is. */
	if (geteuid() != 0 && stat(run_dir(o), &st) == 0 && st.st_uid == geteuid())
		return back_without_agent(o, 0);
	static const char *const here[] = { "" };
	const char *program = program_find(NULL, here, 1, "reclaim-cut", beside, sizeof(beside)) == 0 ?
				      beside : "/usr/sbin/reclaim-cut";
	(void)fflush(NULL);
	(void)execl(program, "reclaim-cut", "--run", run_dir(o), (char *)NULL);
	return cli_failf("no agent answers, and %s cannot be run: %s", program, strerror(errno));
}

static int notice_shim(const char *socket, uint64_t window_ns, const char *reason)
{
	char id[] = OWNER_DIRECT_NOTICE;
	struct diag diag = DIAG_INIT;
	struct shim_command cmd = {
		.type = SHIM_CMD_NOTICE,
		.notice = { .notice_id = id,
			    .reason = (char *)reason,
			    .deadline_ns = clock_boot_ns() + window_ns,
			    .window_ns = window_ns },
	};
	int r = shim_call(socket, &cmd, ANSWER_NS, NULL, &diag);
	return r;
}

/* What a supervisor that can no longer be asked has left behind: nobody's word for anything. */
struct unproven {
	uint64_t pids_left;   /* by the supervisors' own count */
	unsigned supervisors; /* gone without a word: their socket lies there, nobody listens */
};

/* True once nothing more is to be heard of the guest behind this supervisor. A socket that is gone
 * was closed after the proof: a new agent has taken over and let go of it. */
static bool shim_is_done(const char *socket, struct unproven *u)
{
	struct shim_command cmd = { .type = SHIM_CMD_STATUS };
	struct shim_event ev = { .type = SHIM_EVENT_HELLO };
	struct diag diag = DIAG_INIT;
	int r = shim_call(socket, &cmd, ANSWER_NS, &ev.hello, &diag);
	if (r == -ENOENT)
		return true;
	if (r == -ECONNREFUSED) {
		u->supervisors++;
		return true;
	}
	if (r < 0)
		return false;
	bool done = ev.hello.state == SHIM_ENDED || ev.hello.state == SHIM_WAITING;
	u->pids_left += done ? ev.hello.exited.pids_left : 0;
	shim_event_done(&ev);
	return done;
}

struct sockets VEC(char *);

static int wait_shims(const struct sockets *told, uint64_t window_ns, struct unproven u)
{
	uint64_t asked = clock_boot_ns(), end = asked + window_ns + AFTER_DEADLINE_NS;
	char text[FORMAT_MAX];
	for (size_t i = 0; i < told->count;) {
		if (shim_is_done(told->data[i], &u)) {
			i++;
			continue;
		}
		if (clock_boot_ns() >= end)
			return cli_failf("a guest is still here %s after the deadline; 'reclaim back --now' ends it",
					 format_duration(AFTER_DEADLINE_NS, text));
		const struct timespec pause = { 0, 50 * 1000000L }; /* it says nothing by itself on this call */
		(void)nanosleep(&pause, NULL);
	}
	if (u.pids_left)
		return cli_failf("%llu guest process(es) are left", (unsigned long long)u.pids_left);
	if (u.supervisors)
		return cli_failf("%u supervisor(s) died without a word: whether their guests are gone is not "
				 "proven; 'reclaim back --now' makes sure", u.supervisors);
	(void)printf("this machine is yours after %s: no guest process is left\n",
		     format_duration(clock_boot_ns() - asked, text));
	return 0;
}

/* The guests' supervisors hold the timers: each gets the notice and keeps its own deadline. A
 * deadline that has passed ends the guest at once. */
static int back_without_agent(const struct owner_options *o, uint64_t window_ns)
{
	char dir_name[256], path[512];
	struct sockets told = VEC_INIT;
	if (path_format(dir_name, sizeof(dir_name), "%s/shim", run_dir(o)) < 0)
		return 1;
	CLEANUP_DIR DIR *d = opendir(dir_name);
	if (!d)
		return cli_failf("no agent answers, and %s: %s", dir_name, strerror(errno));
	unsigned deaf = 0;
	struct unproven unproven = { 0 };
	for (struct dirent *e; (e = readdir(d));) {
		size_t len = strlen(e->d_name);
		if (len < 6 || strcmp(e->d_name + len - 5, ".sock") != 0 ||
		    path_format(path, sizeof(path), "%s/%s", dir_name, e->d_name) < 0)
			continue;
		int r = notice_shim(path, window_ns, o->reason ? o->reason : "owner");
		if (r == 0 && VEC_PUSH(&told, strdup(path)) < 0)
			deaf++;
		else if (r == -ECONNREFUSED)
			unproven.supervisors++;
		else if (r < 0)
			deaf++;
	}
	char text[FORMAT_MAX];
	(void)printf("no agent answers; %zu guest(s) were told by their supervisors and end within %s\n",
		     told.count, format_duration(window_ns, text));
	int status = o->no_wait ? 0 : wait_shims(&told, window_ns, unproven);
	VEC_EACH(&told, t)
		free(*t);
	VEC_DONE(&told);
	if (deaf)
		return cli_failf("%u guest(s) could not be told; 'reclaim back --now' ends them", deaf);
	return status;
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
		return cut_without_agent(o);
	if (r < 0)
		return o->cancel ? no_agent(o, r)
				 : back_without_agent(o, o->in ? o->in : WINDOW_UNKNOWN_NS);
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

#define COMMAND(n, rows, fn, text, ...)                                                            \
	{ .name = (n), .options = (rows), .values_size = sizeof(struct owner_options), .run = (fn), \
	  .help = (text), ##__VA_ARGS__ }

const struct command cli_owner_commands[] = {
	COMMAND("lend", plain_options, run_lend, "lend this machine, as its terms say"),
	COMMAND("back", back_options, run_back, "take this machine back",
		.detail = "Guests are told, save, and move away; at the end of the window whatever is left is\n"
			  "killed. Waits until the machine is free, and says how that was proven. Works with\n"
			  "the coordinator and the network down. With the agent dead the guests' supervisors\n"
			  "keep the window (60 s, or --in), and --now runs reclaim-cut."),
	COMMAND("pause", plain_options, run_pause,
		"place nothing new here, until 'resume'; survives every restart"),
	COMMAND("resume", plain_options, run_resume, "end a pause"),
	COMMAND("status", status_options, run_status, "who is on this machine, and who was"),
	COMMAND("reload", plain_options, run_reload, "read the lend terms again"),
	{ .name = NULL },
};
