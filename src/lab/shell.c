/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A campus to play with: everything up and lent, a shell in it, and a socket
 * (LAB/lab.sock) over which `reclaim lab do` has events happen. When the shell
 * ends, so does the campus.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "io/unix_client.h"
#include "lab/life.h"

#define TURN_MS 5
#define ASKERS_MAX 32
#define LINE_MAX_BYTES 65536

struct asker {
	int fd;
	struct strbuf line;
	size_t event; /* index + 1 into l->events; 0 = still asking */
};

struct shell {
	struct lab lab;
	int listen_fd;
	struct asker askers[ASKERS_MAX];
	size_t askers_count;
};

/* Stands in LAB/bin. A job's name or id stands for the machine that it runs on. */
static const char on_script[] =
	"#!/bin/sh\n"
	"# on [--root] MACHINE|JOB COMMAND...: runs it there, as the machine's owner\n"
	"root=; [ \"$1\" = --root ] && { root=1; shift; }\n"
	"m=$1; shift\n"
	"known() { [ -n \"$m\" ] && { [ -d \"$LAB_DIR/m/$m\" ] || [ -e \"$LAB_DIR/netns/$m\" ]; }; }\n"
	"job=$m; tries=0\n"
	"while ! known && [ -n \"$job\" ] && [ $tries -lt 150 ]; do\n"
	"\tshown=$(reclaim show --json \"$job\" 2>/dev/null) || break\n"
	"\tm=$(printf '%s\\n' \"$shown\" | sed -n 's/^ *\"node\": \"\\(.*\\)\",*$/\\1/p' | head -1)\n"
	"\ttries=$((tries + 1)); known || sleep 0.2\n"
	"done\n"
	"known || { echo \"usage: on [--root] MACHINE|JOB COMMAND...\" >&2\n"
	"\techo \"machines: $(ls $LAB_DIR/m | tr '\\n' ' ')\" >&2; exit 2; }\n"
	"export RECLAIM_RUN=$LAB_DIR/m/$m/run\n"
	"[ $# -gt 0 ] || set -- ${SHELL:-/bin/sh}\n"
	"[ \"$(id -u)\" = 0 ] || exec \"$@\"\n"
	"enter=; [ -e \"$LAB_DIR/netns/$m\" ] && enter=\"nsenter --net=$LAB_DIR/netns/$m\"\n"
	"uid=$(cat $LAB_DIR/m/$m/owner 2>/dev/null)\n"
	"if [ -n \"$root\" ] || [ -z \"$uid\" ]; then exec $enter \"$@\"; fi\n"
	"exec $enter setpriv --reuid $uid --regid $uid --groups $LAB_OWNERS \"$@\"\n";

static int write_scripts(struct lab *l)
{
	char path[LAB_PATH_MAX], text[32];
	int r;

	(void)snprintf(path, sizeof(path), "%s/bin/on", l->dir);
	r = file_write_atomic(path, on_script, strlen(on_script), 0755);
	for (size_t i = 0; i < l->scenario.topology.machines_count && r == 0; i++) {
		(void)snprintf(path, sizeof(path), "%s/m/%s/owner", l->dir, l->machines[i].spec->name);
		(void)snprintf(text, sizeof(text), "%u\n", l->machines[i].uid);
		r = file_write_atomic(path, text, strlen(text), 0644);
	}
	return r;
}

/* For scripts: what stands where. */
static int write_map(struct lab *l)
{
	json_t *machines = json_object(), *hosts = json_object();
	CLEANUP_JSON json_t *map = NULL;
	CLEANUP_FREE char *text = NULL;
	char path[LAB_PATH_MAX];

	for (size_t i = 0; i < l->scenario.topology.machines_count; i++) {
		const struct lab_machine *m = &l->machines[i];

		(void)json_object_set_new(machines, m->spec->name,
			json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:s}", "building",
				  m->spec->building, "address", m->node->address, "netns",
				  m->node->netns_path, "state", m->state, "run", m->run, "log",
				  m->log, "owner_uid", (int)m->uid, "owner_gid", LAB_GID_OWNERS,
				  "config", m->config, "cgroup", m->cgroup));
	}
	for (size_t i = 0; i < campus_count(l->campus); i++) {
		const struct campus_node *n = campus_at(l->campus, i);

		if (n->kind == CAMPUS_HOST || n->kind == CAMPUS_COORDINATOR)
			(void)json_object_set_new(hosts, n->name,
				json_pack("{s:s, s:s}", "address", n->address, "netns",
					  n->netns_path));
	}
	map = json_pack("{s:o, s:o, s:s, s:s, s:s, s:b, s:b}", "machines", machines, "hosts", hosts,
			"coordinator", l->address, "coordinator_dir", l->coordinator_dir, "admin",
			l->admin_home, "root", l->guard->root, "namespaces",
			campus_has_namespaces(l->campus));
	text = map ? json_dumps(map, JSON_INDENT(2)) : NULL;
	(void)snprintf(path, sizeof(path), "%s/campus.json", l->dir);
	return text ? file_write_atomic(path, text, strlen(text), 0644) : -ENOMEM;
}

static int listen_socket(struct lab *l)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || path_format(a.sun_path, sizeof(a.sun_path), "%s/lab.sock", l->dir) < 0 ||
	    bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, ASKERS_MAX) < 0)
		return -errno;
	return fd;
}

static void answer(struct asker *a, bool ok, const char *why)
{
	CLEANUP_JSON json_t *j = json_pack("{s:b, s:s}", "ok", ok, "why", why);
	CLEANUP_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;

	if (text) {
		(void)fd_write_all(a->fd, text, strlen(text)); /* the asker may have left */
		(void)fd_write_all(a->fd, "\n", 1);
	}
	(void)close(a->fd);
	a->fd = -1;
	strbuf_done(&a->line);
}

/* What the guests did so far, as observed from outside. */
static void tell_runs(struct lab *l, struct asker *a)
{
	CLEANUP_FREE struct observe_run *runs = calloc(OBSERVE_RUNS_MAX, sizeof(*runs));
	size_t n = runs ? observe_runs(l->observe, runs, OBSERVE_RUNS_MAX) : 0;
	CLEANUP_JSON json_t *list = json_array();
	CLEANUP_FREE char *text = NULL;

	for (size_t i = 0; i < n; i++)
		(void)json_array_append_new(list,
			json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:b}", "job",
				  runs[i].job, "epoch", (json_int_t)runs[i].epoch, "machine",
				  l->machines[runs[i].machine].spec->name, "first_step",
				  (json_int_t)runs[i].first_step, "last_step",
				  (json_int_t)runs[i].last_step, "resumed_at",
				  (json_int_t)runs[i].resumed_at, "first_ns",
				  (json_int_t)runs[i].first_ns, "last_ns", (json_int_t)runs[i].last_ns,
				  "digest", runs[i].digest, "torn", runs[i].torn));
	text = json_dumps(list, JSON_COMPACT);
	answer(a, text != NULL, text ? text : "no memory");
}

static void begin(struct shell *s, struct asker *a)
{
	CLEANUP_JSON json_t *j = json_loads(a->line.data, 0, NULL);
	const char *text = json_string_value(json_object_get(j, "event"));
	struct lab_event e = { 0 };
	struct diag diag = DIAG_INIT;
	char why[700];

	if (json_is_true(json_object_get(j, "runs"))) {
		tell_runs(&s->lab, a);
		return;
	}
	int r = text ? scenario_event_parse(text, strlen(text), &s->lab.scenario, &e.own, &diag)
		     : -EINVAL;

	if (r == 0)
		r = VEC_PUSH(&s->lab.events, e);
	if (r < 0) {
		answer(a, false, diag_format(&diag, why, sizeof(why)));
		return;
	}
	a->event = s->lab.events.count;
	/* The vector may have moved: every event of a shell's own points to itself. */
	for (size_t i = s->lab.scenario.events_count; i < s->lab.events.count; i++)
		s->lab.events.data[i].spec = &s->lab.events.data[i].own;
}

static void serve_asker(struct shell *s, struct asker *a)
{
	char buf[4096];
	ssize_t n;

	if (a->event) {
		const struct lab_event *e = &s->lab.events.data[a->event - 1];

		if (e->state == LAB_EVENT_DONE)
			answer(a, !e->failed, e->why);
		return;
	}
	n = recv(a->fd, buf, sizeof(buf), MSG_DONTWAIT);
	if (n > 0 && a->line.len < LINE_MAX_BYTES && strbuf_append(&a->line, buf, (size_t)n) == 0) {
		if (memchr(a->line.data, '\n', a->line.len))
			begin(s, a);
	} else if (n >= 0 || errno != EAGAIN) {
		answer(a, false, "not a request");
	}
}

static void serve(struct shell *s)
{
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0 && s->askers_count < ASKERS_MAX)
		s->askers[s->askers_count++] = (struct asker){ .fd = fd };
	else if (fd >= 0)
		(void)close(fd);
	for (size_t i = 0; i < s->askers_count; i++) {
		serve_asker(s, &s->askers[i]);
		if (s->askers[i].fd < 0)
			s->askers[i--] = s->askers[--s->askers_count];
	}
}

static int start_shell(struct shell *s, struct diag *diag)
{
	struct lab *l = &s->lab;
	char dir[LAB_PATH_MAX + 16], identity[LAB_PATH_MAX + 32], address[80];
	char admin[LAB_PATH_MAX + 32], prompt[64], owners[32];
	const char *shell = getenv("SHELL") && !l->opt->shell ? getenv("SHELL") : "/bin/bash";
	struct proc_spec p = { .argv = { shell, l->opt->shell ? "-c" : NULL, l->opt->shell },
			       .node = campus_find(l->campus, "coordinator"),
			       .env = { dir, identity, address, admin, prompt, owners } };

	(void)snprintf(dir, sizeof(dir), "LAB_DIR=%s", l->dir);
	(void)snprintf(identity, sizeof(identity), "RECLAIM_IDENTITY=%s", l->users.data[0].home);
	(void)snprintf(address, sizeof(address), "RECLAIM_COORDINATOR=%s", l->address);
	(void)snprintf(admin, sizeof(admin), "LAB_ADMIN=%s", l->admin_home);
	(void)snprintf(owners, sizeof(owners), "LAB_OWNERS=%d", LAB_GID_OWNERS);
	(void)snprintf(prompt, sizeof(prompt), "PS1=lab$ ");
	return proc_spawn(&p, &l->shell, diag);
}

static void say_how(struct lab *l)
{
	const char *one = l->scenario.topology.machines_count ? l->machines[0].spec->name : "NAME";

	if (l->opt->quiet || l->opt->shell)
		return;
	(void)printf("\nThis shell stands at the coordinator, as user %s. Leaving it removes the campus.\n"
		     "  reclaim run -- COMMAND        run something on a lent machine\n"
		     "  reclaim submit SCRIPT; reclaim ps; reclaim logs -f JOB; reclaim wait JOB\n"
		     "  on %s reclaim status          be the owner of %s\n"
		     "  on %s reclaim back            take it back; its guests move; 'lend' lends it again\n"
		     "  reclaim lab do '{do: cut, machines: [%s], for: 5s}'   pull its cable\n\n",
		     l->users.data[0].name, one, one, one, one);
	(void)fflush(stdout);
}

static volatile sig_atomic_t told_to_stop;

static void on_stop(int signo)
{
	told_to_stop = signo;
}

static int live(struct shell *s)
{
	struct sigaction act = { .sa_handler = on_stop };

	(void)sigaction(SIGTERM, &act, NULL);
	(void)signal(SIGINT, SIG_IGN); /* belongs to what runs in the shell */
	while (s->lab.shell && !told_to_stop) {
		play_turn(&s->lab);
		serve(s);
		(void)poll(NULL, 0, TURN_MS);
	}
	return told_to_stop ? 128 + told_to_stop : s->lab.shell_status;
}

static int inside(const struct guard *g, void *arg)
{
	struct shell *s = arg;
	struct lab *l = &s->lab;
	struct diag diag = DIAG_INIT;
	char text[1024];
	int r;

	l->guard = g;
	(void)snprintf(l->dir, sizeof(l->dir), "%s", g->dir);
	r = life_start(l, &diag);
	l->origin_ns = clock_boot_ns();
	if (r == 0)
		r = life_traffic(l, &diag);
	for (size_t i = 0; i < l->scenario.jobs_count && r == 0; i++)
		r = system_submit(l, &l->jobs[i], &diag);
	if (r == 0)
		r = write_scripts(l);
	if (r == 0)
		r = write_map(l);
	if (r == 0)
		r = s->listen_fd = listen_socket(l);
	if (r >= 0) {
		say_how(l);
		r = start_shell(s, &diag);
	}
	if (r < 0) {
		(void)fprintf(stderr, "lab: %s\n",
			      diag.what[0] ? diag_format(&diag, text, sizeof(text)) : strerror(-r));
		life_keep(l);
		return 1;
	}
	r = live(s);
	if (r != 0)
		life_keep(l);
	life_stop(l);
	return r;
}

int lab_shell(const struct lab_options *o)
{
	static struct shell s;
	struct diag diag = DIAG_INIT;
	char text[1024];
	int r = life_load(&s.lab, o, &diag);

	if (r == 0)
		r = guard_run(!o->shell, true, inside, &s, &diag);
	if (r < 0) {
		(void)fprintf(stderr, "lab: %s\n", diag_format(&diag, text, sizeof(text)));
		return 1;
	}
	return r;
}

int lab_do(const char *event_yaml)
{
	const char *dir = getenv("LAB_DIR");
	char path[LAB_PATH_MAX];
	CLEANUP_JSON json_t *ask = json_pack("{s:s}", "event", event_yaml);
	CLEANUP_JSON json_t *told = NULL;
	int r;

	if (!dir || path_format(path, sizeof(path), "%s/lab.sock", dir) < 0) {
		(void)fprintf(stderr, "lab: LAB_DIR is not set: this works inside 'reclaim lab shell'\n");
		return 1;
	}
	r = ask ? unix_client_ask(path, ask, UINT64_MAX, &told) : -ENOMEM;
	if (r < 0) {
		(void)fprintf(stderr, "lab: %s: %s\n", path, strerror(-r));
		return 1;
	}
	if (json_is_true(json_object_get(told, "ok")))
		return 0;
	(void)fprintf(stderr, "lab: %s\n", json_string_value(json_object_get(told, "why")));
	return 1;
}
