/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs under test, as an administrator would set them up: a
 * coordinator with a CA of its own, a join token per machine and person, an
 * agent per machine in its network, owners and users without root.
 *
 * The programs run from copies in LAB/bin, so that they find each other as
 * installed ones do, and reclaim-cut can have its setuid bit.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "lab/lab_internal.h"

#define READY_MS 15000
#define CALL_MS 20000

/* Programs that must be there, and those that may be. */
static const struct {
	const char *name;
	bool needed;
	mode_t mode;
} programs[] = {
	{ "reclaim", true, 0755 },	    { "reclaimd", true, 0755 },
	{ "reclaim-coordinator", true, 0755 }, { "reclaim-shim", true, 0755 },
	{ "reclaim-transfer", true, 0755 },   { "reclaim-cut", false, 04755 },
	{ "reclaim-tunnel", false, 0755 },
	{ "train", true, 0755 },
};

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	(void)nanosleep(&t, NULL);
}

static int copy_program(const char *from, const char *to, mode_t mode)
{
	CLEANUP_FD int in = open(from, O_RDONLY | O_CLOEXEC);
	CLEANUP_FD int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	struct stat st;
	off_t at = 0;

	if (in < 0 || out < 0 || fstat(in, &st) < 0)
		return -errno;
	while (at < st.st_size)
		if (sendfile(out, in, &at, (size_t)(st.st_size - at)) <= 0)
			return -EIO;
	return fchmod(out, mode) < 0 ? -errno : 0;
}

/* The folder of tools that reclaim-shim puts into guests. */
static int copy_guest_bin(struct lab *l, struct diag *diag)
{
	char from[PROC_PATH_MAX], to[LAB_PATH_MAX], *slash;
	struct proc_spec p = { .argv = { "cp", "-a", from, to } };
	int status = 0, r;

	(void)proc_program("guest-bin/reclaim-init", from);
	slash = strrchr(from, '/');
	if (!slash || strcmp(slash, "/reclaim-init") != 0)
		return diag_set(diag, -ENOENT, "guest-bin", "is not built");
	*slash = 0;
	(void)snprintf(to, sizeof(to), "%s/bin/guest-bin", l->dir);
	r = proc_run(&p, CALL_MS, NULL, &status, diag);
	return r == 0 && status ? diag_set(diag, -EIO, from, "cannot be copied") : r;
}

static int copy_programs(struct lab *l, struct diag *diag)
{
	char from[PROC_PATH_MAX], to[LAB_PATH_MAX];
	int r = 0;

	(void)snprintf(to, sizeof(to), "%s/bin", l->dir);
	r = dir_make_all(to, 0755);
	for (size_t i = 0; i < ARRAY_SIZE(programs) && r == 0; i++) {
		(void)snprintf(to, sizeof(to), "%s/bin/%s", l->dir, programs[i].name);
		(void)proc_program(programs[i].name, from);
		r = copy_program(from, to, l->guard->root ? programs[i].mode : 0755);
		if (r < 0 && !programs[i].needed)
			r = 0;
		else if (r < 0)
			r = diag_set(diag, r, programs[i].name, "is not built: %s", strerror(-r));
	}
	if (r == 0)
		r = copy_guest_bin(l, diag);
	if (r == 0) {
		CLEANUP_FREE char *path = NULL;

		if (asprintf(&path, "%s/bin:%s", l->dir, getenv("PATH") ? getenv("PATH") : "") > 0)
			(void)setenv("PATH", path, 1);
	}
	return r;
}

/* Owners' group, for the agents' getgrnam(): laid over /etc/group, inside the lab only. */
static int make_group(struct lab *l, struct diag *diag)
{
	CLEANUP_FREE char *text = NULL, *all = NULL;
	char path[LAB_PATH_MAX];
	size_t len;
	int r;

	if (!l->guard->root)
		return 0;
	(void)snprintf(path, sizeof(path), "%s/group", l->dir);
	r = file_read("/etc/group", 4u << 20, &text, &len);
	if (r == 0 && asprintf(&all, "%s\n" LAB_OWNER_GROUP ":x:%d:\n", text, LAB_GID_OWNERS) < 0)
		r = -ENOMEM;
	if (r == 0)
		r = file_write_atomic(path, all, strlen(all), 0644);
	if (r == 0 && mount(path, "/etc/group", NULL, MS_BIND, NULL) < 0)
		r = -errno;
	return r < 0 ? diag_set(diag, r, "/etc/group", "%s", strerror(-r)) : 0;
}

/* ---- the coordinator ---- */

/* Points that the scenario's events want a program to be killed at, for its first start. */
static void points_of(struct lab *l, size_t machine, bool coordinator, char *ret, size_t size)
{
	ret[0] = 0;
	for (size_t k = 0; k < l->scenario.events_count; k++) {
		const struct scenario_event *s = &l->scenario.events[k];
		bool here = coordinator && s->what == SCENARIO_WHAT_COORDINATOR;
		size_t len = strlen(ret);

		if (s->act != SCENARIO_DO_CRASH || !s->point)
			continue;
		for (size_t i = 0; i < s->machines_count && !coordinator; i++)
			here |= s->what != SCENARIO_WHAT_COORDINATOR &&
				scenario_machine(&l->scenario, s->machines[i]) == machine;
		if (here)
			(void)snprintf(ret + len, size - len, "%s%s=kill@%llu",
				       len ? "," : "RECLAIM_POINTS=", s->point,
				       (unsigned long long)s->nth);
	}
}

static void set_point(char *ret, size_t size, const char *point, uint64_t nth)
{
	ret[0] = 0;
	if (point)
		(void)snprintf(ret, size, "RECLAIM_POINTS=%s=kill@%llu", point,
			       (unsigned long long)nth);
}

/* Waits for an orderly end; whatever does not end in time is killed. */
static void end_program(pid_t pid)
{
	uint64_t deadline = clock_boot_ns() + 5 * NS_PER_S;

	(void)kill(pid, SIGTERM);
	while (waitpid(pid, NULL, WNOHANG) == 0) {
		if (clock_boot_ns() > deadline)
			(void)kill(pid, SIGKILL);
		pause_ms(5);
	}
}

int system_restart_agent(struct lab *l, size_t machine, const char *point, uint64_t nth,
			 struct diag *diag)
{
	struct lab_machine *m = &l->machines[machine];

	if (m->agent) {
		end_program(m->agent);
		m->agent = 0;
	}
	set_point(m->points, sizeof(m->points), point, nth);
	return system_start_agent(l, machine, diag);
}

int system_restart_coordinator(struct lab *l, const char *point, uint64_t nth, struct diag *diag)
{
	if (l->coordinator) {
		end_program(l->coordinator);
		l->coordinator = 0;
	}
	set_point(l->coordinator_points, sizeof(l->coordinator_points), point, nth);
	return system_start_coordinator(l, diag);
}

int system_start_coordinator(struct lab *l, struct diag *diag)
{
	char program[LAB_PATH_MAX], lease[64], status[64], floor[64], floors[64];
	const struct scenario_system *sys = &l->scenario.system;
	struct proc_spec p = {
		.argv = { program, "serve", "--dir", l->coordinator_dir, "--listen", l->address },
		.node = campus_find(l->campus, "coordinator"),
		.log = l->coordinator_log,
		.own_group = true,
	};
	size_t n = 6;
	int r;

	if (!l->coordinator_starts)
		points_of(l, 0, true, l->coordinator_points, sizeof(l->coordinator_points));
	l->coordinator_armed = l->coordinator_points[0];
	if (l->coordinator_armed)
		p.env[0] = l->coordinator_points;

	(void)snprintf(program, sizeof(program), "%s/bin/reclaim-coordinator", l->dir);
	if (sys->lease_ns) {
		(void)snprintf(lease, sizeof(lease), "--lease=%llums",
			       (unsigned long long)(sys->lease_ns / NS_PER_MS));
		p.argv[n++] = lease;
	}
	if (sys->status_ns) {
		(void)snprintf(status, sizeof(status), "--status-every=%llums",
			       (unsigned long long)(sys->status_ns / NS_PER_MS));
		p.argv[n++] = status;
	}
	if (sys->floor_bps) {
		(void)snprintf(floor, sizeof(floor), "--floor=%llu",
			       (unsigned long long)sys->floor_bps);
		p.argv[n++] = floor;
	}
	if (sys->floors_bps) {
		(void)snprintf(floors, sizeof(floors), "--floors=%llu",
			       (unsigned long long)sys->floors_bps);
		p.argv[n++] = floors;
	}
	r = proc_spawn(&p, &l->coordinator, diag);
	if (r == 0) {
		l->coordinator_starts++;
		l->coordinator_points[0] = 0;
		l->coordinator_down_on_purpose = false;
	}
	return r;
}

static int run_in(struct lab *l, const struct campus_node *node, const char *const *argv,
		  const char *const *env, struct strbuf *out, struct diag *diag)
{
	struct proc_spec p = { .node = node, .err_log = l->coordinator_log };
	int status = 0, r;

	for (size_t i = 0; argv[i] && i + 1 < PROC_ARGS_MAX; i++)
		p.argv[i] = argv[i];
	for (size_t i = 0; env && env[i] && i + 1 < PROC_ENV_MAX; i++)
		p.env[i] = env[i];
	r = proc_run(&p, CALL_MS, out, &status, diag);
	if (r == 0 && status != 0)
		r = diag_set(diag, -EIO, argv[0], "%s ended with %d; see %s", argv[1], status,
			     l->coordinator_log);
	return r;
}

static int make_coordinator(struct lab *l, struct diag *diag)
{
	char program[LAB_PATH_MAX];
	const char *init[] = { program, "init", "--dir", l->coordinator_dir, "--campus",
			       l->scenario.name, "--admin", l->admin_home, "--address", l->address,
			       NULL };
	const struct campus_node *node = campus_find(l->campus, "coordinator");

	(void)snprintf(program, sizeof(program), "%s/bin/reclaim-coordinator", l->dir);
	(void)snprintf(l->address, sizeof(l->address), "%s:%d", node->address, LAB_PORT);
	(void)snprintf(l->coordinator_dir, sizeof(l->coordinator_dir), "%s/coordinator", l->dir);
	(void)snprintf(l->coordinator_log, sizeof(l->coordinator_log), "%s/coordinator.log", l->dir);
	(void)snprintf(l->admin_home, sizeof(l->admin_home), "%s/admin", l->dir);
	return run_in(l, node, init, NULL, NULL, diag);
}

/* ---- people and machines ---- */

static int token(struct lab *l, const char *role, const char *name, char *ret, size_t size,
		 struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf out = STRBUF_INIT;
	const char *args[] = { "token", "create", "--role", role, "--name", name, NULL };
	uint64_t deadline = clock_boot_ns() + READY_MS * NS_PER_MS;
	int status = 1, r;

	/* The coordinator may still be starting: ask until it answers. */
	do {
		strbuf_clear(&out);
		r = system_admin(l, args, &out, &status, diag);
		if (r == 0 && status == 0)
			break;
		pause_ms(30);
	} while (clock_boot_ns() < deadline);
	if (r == 0 && status != 0)
		r = diag_set(diag, -EIO, name, "no token: see %s", l->coordinator_log);
	if (r < 0)
		return r;
	out.data[strcspn(out.data, "\n")] = 0;
	return path_format(ret, size, "%s", out.data);
}

static int enrol(struct lab *l, const struct campus_node *node, const char *role, const char *name,
		 const char *dir, struct diag *diag)
{
	char text[2048], program[LAB_PATH_MAX], identity[LAB_PATH_MAX + 32];
	const char *argv[] = { program, "enrol", text, NULL };
	const char *env[] = { identity, NULL };
	int r = token(l, role, name, text, sizeof(text), diag);

	(void)snprintf(program, sizeof(program), "%s/bin/reclaim", l->dir);
	(void)snprintf(identity, sizeof(identity), "RECLAIM_IDENTITY=%s", dir);
	if (r == 0)
		r = dir_make_all(dir, 0700);
	return r < 0 ? r : run_in(l, node, argv, env, NULL, diag);
}

/* A folder and what is in it become the person's. */
static int give(const char *dir, uid_t uid, gid_t gid)
{
	char cmd_uid[32];
	struct proc_spec p = { .argv = { "chown", "-R", cmd_uid, dir } };
	struct diag diag = DIAG_INIT;
	int status;

	(void)snprintf(cmd_uid, sizeof(cmd_uid), "%u:%u", uid, gid);
	return proc_run(&p, CALL_MS, NULL, &status, &diag) < 0 || status ? -EPERM : 0;
}

static int make_user(struct lab *l, struct lab_user *u, struct diag *diag)
{
	int r;

	(void)snprintf(u->home, sizeof(u->home), "%s/home", l->dir);
	r = dir_make_all(u->home, 0755); /* each home is closed, the way to it is open */
	(void)snprintf(u->home, sizeof(u->home), "%s/home/%s", l->dir, u->name);
	if (r == 0)
		r = enrol(l, campus_find(l->campus, "coordinator"), "guest", u->name, u->home, diag);
	if (r == 0 && l->guard->root)
		r = give(u->home, u->uid, u->uid);
	return r;
}

static int write_text(const char *path, const char *text, struct diag *diag)
{
	int r = file_write_atomic(path, text, strlen(text), 0644);

	return r < 0 ? diag_set(diag, r, path, "%s", strerror(-r)) : 0;
}

static int configure_agent(struct lab *l, struct lab_machine *m, struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;
	CLEANUP_JSON json_t *terms = schema_encode(&terms_schema, &m->spec->lend);
	CLEANUP_FREE char *terms_text = terms ? json_dumps(terms, JSON_INDENT(2)) : NULL;
	bool root = l->guard->root;
	int r;

	if (!terms_text)
		return -ENOMEM;
	(void)strbuf_printf(&b,
			    "coordinator: %s\nhost: %s\nlisten: %s\ntransfer_port: %d\nterms: %s\n"
			    "building: %s\nowner_group: " LAB_OWNER_GROUP "\n"
			    "cgroup_parent: reclaim/%s\ndisk_reserve: 64MiB\nown_network: %s\n"
			    "uid_base: %llu\n",
			    l->address, m->node->address, m->node->address,
			    /* On loopback every machine has its address but not every program binds
			     * one; the ports differ too. */
			    7412, m->terms, m->spec->building, m->cgroup,
			    root && campus_has_namespaces(l->campus) ? "true" : "false",
			    root ? 1879048192ULL + 16777216ULL * (unsigned)(m - l->machines) : 0ULL);
	if (m->spec->room)
		(void)strbuf_printf(&b, "room: %s\n", m->spec->room);
	if (campus_has_namespaces(l->campus))
		(void)strbuf_printf(&b, "edge: {mode: auto, uplink: eth0, uplink_rate: %llu, "
				    "campus: [10.77.0.0/16]}\n",
				    (unsigned long long)m->spec->link_bps);
	else
		(void)strbuf_printf(&b, "edge: {mode: off}\n");
	if (b.failed)
		return -ENOMEM;
	r = write_text(m->terms, terms_text, diag);
	return r < 0 ? r : write_text(m->config, b.data, diag);
}

static int make_agent(struct lab *l, size_t i, struct diag *diag)
{
	struct lab_machine *m = &l->machines[i];
	char dir[LAB_PATH_MAX + 16];
	int r;

	(void)snprintf(m->state, sizeof(m->state), "%s/m/%s/state", l->dir, m->spec->name);
	(void)snprintf(m->run, sizeof(m->run), "%s/m/%s/run", l->dir, m->spec->name);
	(void)snprintf(m->config, sizeof(m->config), "%s/m/%s/agent.yaml", l->dir, m->spec->name);
	(void)snprintf(m->terms, sizeof(m->terms), "%s/m/%s/terms.yaml", l->dir, m->spec->name);
	(void)snprintf(m->log, sizeof(m->log), "%s/m/%s/agent.log", l->dir, m->spec->name);
	(void)snprintf(m->cgroup, sizeof(m->cgroup), GUARD_CGROUP_PREFIX "%s-%.40s", l->guard->id,
		       m->spec->name);
	(void)snprintf(dir, sizeof(dir), "%s/identity", m->state);
	r = dir_make_all(m->run, 0755);
	if (r == 0)
		r = configure_agent(l, m, diag);
	if (r == 0)
		r = enrol(l, m->node, "agent", m->spec->name, dir, diag);
	return r == 0 ? observe_add(l->observe, i, m->state) : r;
}

int system_start_agent(struct lab *l, size_t machine, struct diag *diag)
{
	struct lab_machine *m = &l->machines[machine];
	char program[LAB_PATH_MAX];
	struct proc_spec p = {
		.argv = { program, "--config", m->config, "--state", m->state, "--run", m->run },
		.node = m->node,
		.log = m->log,
		.own_group = true,
	};
	int r;

	if (m->agent)
		return diag_set(diag, -EALREADY, m->spec->name, "its agent is running");
	(void)snprintf(program, sizeof(program), "%s/bin/reclaimd", l->dir);
	if (!m->starts)
		points_of(l, machine, false, m->points, sizeof(m->points));
	m->armed = m->points[0];
	if (m->armed)
		p.env[0] = m->points;
	r = proc_spawn(&p, &m->agent, diag);
	if (r == 0) {
		m->starts++;
		m->points[0] = 0;
		m->agent_started_ns = clock_boot_ns();
		m->down_on_purpose = false;
	}
	return r;
}

static struct lab_user *user_named(struct lab *l, const char *name)
{
	VEC_EACH(&l->users, u)
		if (strcmp(u->name, name) == 0)
			return u;
	return NULL;
}

static int make_users(struct lab *l, struct diag *diag)
{
	int r = 0;

	for (size_t i = 0; i < l->scenario.jobs_count && r == 0; i++) {
		struct lab_user u = { .name = l->scenario.jobs[i].user,
				      .uid = (uid_t)(LAB_UID_USERS + l->users.count) };

		if (!user_named(l, u.name))
			r = VEC_PUSH(&l->users, u);
	}
	if (r == 0 && l->users.count == 0) {
		struct lab_user u = { .name = "guest", .uid = LAB_UID_USERS };

		r = VEC_PUSH(&l->users, u);
	}
	VEC_EACH(&l->users, u)
		if (r == 0)
			r = make_user(l, u, diag);
	for (size_t i = 0; i < l->scenario.jobs_count && r == 0; i++)
		l->jobs[i].user = user_named(l, l->scenario.jobs[i].user);
	return r;
}

int system_start(struct lab *l, struct diag *diag)
{
	int r = copy_programs(l, diag);

	if (r == 0)
		r = make_group(l, diag);
	if (r == 0)
		r = make_coordinator(l, diag);
	if (r == 0)
		r = system_start_coordinator(l, diag);
	for (size_t i = 0; i < l->scenario.topology.machines_count && r == 0; i++)
		r = make_agent(l, i, diag);
	for (size_t i = 0; i < l->scenario.topology.machines_count && r == 0; i++)
		r = system_start_agent(l, i, diag);
	return r == 0 ? make_users(l, diag) : r;
}

/* ---- people's commands ---- */

static void as_person(struct lab *l, struct proc_spec *p, uid_t uid, gid_t gid, gid_t group)
{
	if (!l->guard->root)
		return;
	p->uid = uid;
	p->gid = gid;
	p->group = group;
}

int system_owner(struct lab *l, size_t machine, const char *const *args, struct lab_command *c,
		 struct diag *diag)
{
	static unsigned count;
	struct lab_machine *m = &l->machines[machine];
	char program[LAB_PATH_MAX], run[LAB_PATH_MAX + 16];
	struct proc_spec p = { .argv = { program }, .node = m->node, .log = c->out,
			       .own_group = true, .env = { run } };

	(void)snprintf(program, sizeof(program), "%s/bin/reclaim", l->dir);
	(void)snprintf(run, sizeof(run), "RECLAIM_RUN=%s", m->run);
	(void)snprintf(c->out, sizeof(c->out), "%s/out/%s-%s-%u", l->dir, m->spec->name, args[0],
		       count++);
	for (size_t i = 0; args[i]; i++)
		p.argv[i + 1] = args[i];
	as_person(l, &p, m->uid, m->gid, LAB_GID_OWNERS);
	return proc_spawn(&p, &c->pid, diag);
}

int system_admin(struct lab *l, const char *const *args, struct strbuf *out, int *ret_status,
		 struct diag *diag)
{
	char program[LAB_PATH_MAX], identity[LAB_PATH_MAX + 32], address[80];
	struct proc_spec p = { .argv = { program }, .env = { identity, address },
			       .node = campus_find(l->campus, "coordinator"),
			       .err_log = l->coordinator_log };

	(void)snprintf(program, sizeof(program), "%s/bin/reclaim", l->dir);
	(void)snprintf(identity, sizeof(identity), "RECLAIM_IDENTITY=%s", l->admin_home);
	(void)snprintf(address, sizeof(address), "RECLAIM_COORDINATOR=%s", l->address);
	for (size_t i = 0; args[i]; i++)
		p.argv[i + 1] = args[i];
	return proc_run(&p, CALL_MS, out, ret_status, diag);
}

int system_user(struct lab *l, const struct lab_user *u, const char *const *args,
		struct strbuf *out, int *ret_status, struct diag *diag)
{
	char program[LAB_PATH_MAX], identity[LAB_PATH_MAX + 32], log[LAB_PATH_MAX];
	struct proc_spec p = { .argv = { program }, .env = { identity }, .cwd = u->home,
			       .node = campus_find(l->campus, "coordinator"), .err_log = log };

	(void)snprintf(program, sizeof(program), "%s/bin/reclaim", l->dir);
	(void)snprintf(identity, sizeof(identity), "RECLAIM_IDENTITY=%s", u->home);
	(void)snprintf(log, sizeof(log), "%s/out/%s.log", l->dir, u->name);
	for (size_t i = 0; args[i]; i++)
		p.argv[i + 1] = args[i];
	as_person(l, &p, u->uid, u->uid, 0);
	return proc_run(&p, CALL_MS, out, ret_status, diag);
}

/* Owners lend, each by their own command; the agent's socket may still be coming. */
int system_lend_all(struct lab *l, struct diag *diag)
{
	uint64_t deadline = clock_boot_ns() + READY_MS * NS_PER_MS;

	for (size_t i = 0; i < l->scenario.topology.machines_count; i++) {
		static const char *const args[] = { "lend", NULL };

		for (;;) {
			struct lab_command c = { .machine = i };
			int status = 0, r = system_owner(l, i, args, &c, diag);

			if (r < 0)
				return r;
			while (waitpid(c.pid, &status, 0) < 0 && errno == EINTR)
				;
			if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
				break;
			if (clock_boot_ns() > deadline || kill(l->machines[i].agent, 0) < 0)
				return diag_set(diag, -EIO, l->machines[i].spec->name,
						"cannot be lent; see %s and %s", c.out,
						l->machines[i].log);
			pause_ms(50);
		}
	}
	return 0;
}

/* ---- jobs ---- */

/* "{address:NAME}" in a scenario's strings is the address of a machine or host. */
static char *expand(struct lab *l, const char *text)
{
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;

	while (*text) {
		const char *mark = strstr(text, "{address:");
		const char *end = mark ? strchr(mark, '}') : NULL;
		char name[SCENARIO_NAME_MAX + 8];
		const struct campus_node *n;

		if (!end) {
			(void)strbuf_add(&b, text);
			break;
		}
		(void)strbuf_append(&b, text, (size_t)(mark - text));
		(void)snprintf(name, sizeof(name), "%.*s", (int)(end - mark - 9), mark + 9);
		n = campus_find(l->campus, name);
		(void)strbuf_add(&b, n ? n->address : "0.0.0.0");
		text = end + 1;
	}
	return strbuf_take(&b);
}

static json_t *expand_json(struct lab *l, json_t *v)
{
	json_t *out, *item;
	const char *key;
	size_t i;

	if (json_is_string(v)) {
		CLEANUP_FREE char *text = expand(l, json_string_value(v));

		return json_string(text ? text : "");
	}
	if (json_is_array(v)) {
		out = json_array();
		json_array_foreach(v, i, item)
			(void)json_array_append_new(out, expand_json(l, item));
		return out;
	}
	if (json_is_object(v)) {
		out = json_object();
		json_object_foreach(v, key, item)
			(void)json_object_set_new(out, key, expand_json(l, item));
		return out;
	}
	return json_incref(v);
}

/* The job file: what the scenario says, and the program itself among the inputs. */
static json_t *job_file(struct lab *l, struct lab_job *j)
{
	CLEANUP_JSON json_t *spec = j->spec->spec ? expand_json(l, j->spec->spec) : json_object();
	json_t *command = json_array(), *out = json_object();
	char path[LAB_PATH_MAX];
	CLEANUP_FREE char *own = NULL;

	if (j->spec->command_count) {
		(void)snprintf(path, sizeof(path), "%s/bin/%s", l->dir, j->spec->command[0]);
		if (!strchr(j->spec->command[0], '/') && access(path, X_OK) == 0) {
			(void)json_object_set_new(out, "inputs",
				json_pack("[{s:s, s:s, s:b}]", "path", path, "to",
					  j->spec->command[0], "executable", 1));
			if (asprintf(&own, "./%s", j->spec->command[0]) < 0)
				own = NULL;
		}
	}
	for (size_t i = 0; i < j->spec->command_count; i++) {
		CLEANUP_FREE char *arg = expand(l, i == 0 && own ? own : j->spec->command[i]);

		(void)json_array_append_new(command, json_string(arg ? arg : ""));
	}
	(void)json_object_set_new(out, "name", json_string(j->spec->name));
	(void)json_object_set_new(out, "command", command);
	if (j->spec->interval_ns)
		(void)json_object_set_new(out, "checkpoint",
			json_pack("{s:f}", "interval", (double)j->spec->interval_ns / 1e9));
	(void)json_object_update(out, spec);
	return out;
}

int system_submit(struct lab *l, struct lab_job *j, struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf out = STRBUF_INIT;
	CLEANUP_JSON json_t *answer = NULL;
	char path[LAB_PATH_MAX + 80];
	const char *id, *args[] = { "submit", "--json", j->spec->file ? j->spec->file : path, NULL };
	int status = 0, r = 0;

	if (!j->spec->file) {
		CLEANUP_JSON json_t *file = job_file(l, j);
		CLEANUP_FREE char *text = json_dumps(file, JSON_INDENT(2));

		(void)snprintf(path, sizeof(path), "%s/%s.yaml", j->user->home, j->spec->name);
		r = text ? file_write_atomic(path, text, strlen(text), 0644) : -ENOMEM;
	}
	if (r == 0)
		r = system_user(l, j->user, args, &out, &status, diag);
	if (r < 0)
		return r;
	answer = json_loads(out.data ? out.data : "", 0, NULL);
	id = json_string_value(json_object_get(answer, "id"));
	if (status != 0 || !id)
		return diag_set(diag, -EIO, j->spec->name, "submit ended with %d; see %s/out/%s.log",
				status, l->dir, j->user->name);
	(void)pthread_mutex_lock(&l->watch_lock);
	(void)snprintf(j->id, sizeof(j->id), "%s", id);
	(void)pthread_mutex_unlock(&l->watch_lock);
	lab_say(l, "%s submits %s as %s", j->user->name, j->spec->name, j->id);
	return 0;
}

/* ---- ends ---- */

void system_reaped(struct lab *l, pid_t pid, int status)
{
	const char *who = NULL;
	bool meant = false;
	char name[80];

	if (pid == l->shell) {
		l->shell = 0;
		l->shell_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		return;
	}
	if (pid == l->coordinator) {
		l->coordinator = 0;
		meant = l->coordinator_down_on_purpose;
		/* A protocol point may have killed it, as an event wanted. */
		if (l->coordinator_armed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
			meant = l->coordinator_down_on_purpose = true;
		who = "the coordinator";
	}
	for (size_t i = 0; i < l->scenario.topology.machines_count; i++) {
		struct lab_machine *m = &l->machines[i];

		if (m->agent != pid)
			continue;
		m->agent = 0;
		if (m->armed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
			m->down_on_purpose = true;
			lab_say(l, "the agent of %s dies at its protocol point", m->spec->name);
		}
		meant = m->down_on_purpose;
		(void)snprintf(name, sizeof(name), "the agent of %s", m->spec->name);
		who = name;
	}
	if (!who || meant)
		return;
	l->surprises++;
	(void)snprintf(l->surprise, sizeof(l->surprise), "(%s: %s %d)", who,
		       WIFSIGNALED(status) ? "signal" : "exit",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	lab_say(l, "FAILED: %s ended by itself %s", who, l->surprise);
}

void system_stop(struct lab *l)
{
	for (size_t i = 0; i < l->scenario.topology.machines_count; i++)
		if (l->machines[i].agent) {
			l->machines[i].down_on_purpose = true;
			(void)kill(l->machines[i].agent, SIGTERM);
		}
	if (l->coordinator) {
		l->coordinator_down_on_purpose = true;
		(void)kill(l->coordinator, SIGTERM);
	}
}
