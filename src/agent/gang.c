/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a gang on this machine: its addresses, its tunnel, and notices that
 * are meant for all ranks because one of them must move. The tunnel is a program
 * of its own (edge/tunnel_main.c) that outlives the agent and ends with the guest.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/task.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "base/program.h"
#include "edge/tunnel.h"

static_assert(TUNNEL_PORTS == CONTROL_GANG_PORTS, "the edge guards what the coordinator gives out");
static_assert(TUNNEL_RANKS_MAX == CONTROL_RANKS_MAX, "as many as can be told of");

#define WORDS_MAX 512

extern char **environ;

int gang_port(const struct agent *a)
{
	bool can = a->edge && a->config.own_network && a->tunnel_program[0] &&
		   access("/dev/net/tun", R_OK | W_OK) == 0;
	return can ? TUNNEL_PORT_MIN : 0;
}

char **gang_hosts(const struct guest *g)
{
	uint64_t ranks = g->start.start.ranks;
	char **hosts = ranks > 1 ? calloc(ranks + 1, sizeof(*hosts)) : NULL;
	for (unsigned i = 0; hosts && i < ranks; i++) {
		struct in_addr at = tunnel_address(i);
		char text[INET_ADDRSTRLEN];
		hosts[i] = strdup(inet_ntop(AF_INET, &at, text, sizeof(text)));
		if (!hosts[i]) {
			gang_hosts_free(hosts);
			return NULL;
		}
	}
	return hosts;
}

void gang_hosts_free(char **hosts)
{
	for (char **p = hosts; p && *p; p++)
		free(*p);
	free(hosts);
}

/* The rank's edge lets its tunnel speak to those of the others, and to nothing more. */
size_t gang_rules(const struct guest *g, struct edge_rule *ret, size_t cap)
{
	const struct control_start *s = &g->start.start;
	size_t n = 0;
	for (size_t i = 0; s->ranks > 1 && i < s->gang_ranks_count && n < cap; i++) {
		const struct control_rank *r = &s->gang_ranks[i];
		struct edge_rule rule = { .to.len = 32, .proto = EDGE_PROTO_UDP };
		rule.port_min = rule.port_max = (uint16_t)r->port;
		/* A name is resolved by the tunnel, and has no rule: machines say their addresses. */
		if (i != s->rank && inet_pton(AF_INET, r->host, &rule.to.addr) == 1)
			ret[n++] = rule;
	}
	return n;
}

/* ---- the tunnel ---- */

struct tunnel_task {
	struct agent *agent;
	char job[CONTROL_NAME_MAX + 1];
	uint64_t epoch;
	char program[PATH_MAX];
	char *orders;
	char words[WORDS_MAX]; /* of its stderr */
	int status;            /* of the program, or -errno */
};

static char *orders_of(const struct guest *g)
{
	const struct control_start *s = &g->start.start;
	CLEANUP_JSON json_t *ranks = json_array();
	for (size_t i = 0; ranks && i < s->gang_ranks_count; i++)
		(void)json_array_append_new(ranks, json_pack("{s:s,s:i}", "host", s->gang_ranks[i].host, "port",
							     s->gang_ranks[i].port));
	char pid[24], epoch[24], rank[24];
	(void)snprintf(pid, sizeof(pid), "%llu", (unsigned long long)g->guest_pid);
	(void)snprintf(epoch, sizeof(epoch), "%llu", (unsigned long long)g->epoch);
	(void)snprintf(rank, sizeof(rank), "%llu", (unsigned long long)s->rank);
	CLEANUP_JSON json_t *orders = json_pack("{s:s,s:s,s:s,s:s,s:O}", "pid", pid, "epoch", epoch, "rank",
						rank, "key", s->gang_key, "ranks", ranks);
	return orders ? json_dumps(orders, JSON_COMPACT) : NULL;
}

static int spawn_program(const struct tunnel_task *t, int in, int err, pid_t *ret)
{
	posix_spawn_file_actions_t files;
	char *const argv[] = { (char *)t->program, NULL };
	if (posix_spawn_file_actions_init(&files) != 0)
		return -ENOMEM;
	int r = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
	if (r == 0)
		r = posix_spawn(ret, t->program, &files, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	return -r;
}

/* Its background half has closed stderr, so reading it ends. */
static int run_program(struct tunnel_task *t)
{
	int in[2], err[2];
	if (pipe2(in, O_CLOEXEC) < 0)
		return -errno;
	CLEANUP_FD int in_read = in[0];
	CLEANUP_FD int in_write = in[1];
	if (pipe2(err, O_CLOEXEC) < 0)
		return -errno;
	CLEANUP_FD int err_read = err[0];
	CLEANUP_FD int err_write = err[1];
	pid_t pid;
	int status, r = spawn_program(t, in_read, err_write, &pid);
	if (r < 0)
		return r;
	(void)close(TAKE_FD(err_write));
	(void)close(TAKE_FD(in_read));
	r = fd_write_all(in_write, t->orders, strlen(t->orders)); /* an early end is told by its status */
	(void)close(TAKE_FD(in_write));
	size_t len = 0;
	for (ssize_t n; len < sizeof(t->words) - 1 &&
			(n = read(err_read, t->words + len, sizeof(t->words) - 1 - len)) > 0;)
		len += (size_t)n;
	t->words[strcspn(t->words, "\n")] = '\0';
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void tunnel_work(void *arg)
{
	struct tunnel_task *t = arg;
	t->status = run_program(t);
}

static void task_free(struct tunnel_task *t)
{
	if (t->orders)
		explicit_bzero(t->orders, strlen(t->orders));
	free(t->orders);
	free(t);
}

static void tunnel_done(void *arg)
{
	struct tunnel_task *t = arg;
	struct guest *g = guest_find(t->agent, t->job, t->epoch);
	char why[WORDS_MAX + 64];
	POINT("agent.gang.tunnel");
	if (g && g->shim && !g->exited && t->status == 0) {
		(void)shim_client_go(g->shim);
		POINT("agent.launch.go");
	} else if (g && g->shim && !g->exited) {
		(void)snprintf(why, sizeof(why), "no tunnel for this rank: %s",
			       t->words[0] ? t->words : strerror(t->status < 0 ? -t->status : EIO));
		guest_kill(g, CONTROL_END_NOT_STARTED, why);
	}
	task_free(t);
}

void gang_tunnel_begin(struct guest *g)
{
	struct agent *a = g->agent;
	if (g->edge_slot < 0 || !g->start.start.gang_key) {
		guest_kill(g, CONTROL_END_NOT_STARTED,
			   g->edge_slot < 0 ? "a rank of a gang needs a network of its own, and has none here"
					    : "the agent was started again in the middle of its start");
		return;
	}
	struct tunnel_task *t = calloc(1, sizeof(*t));
	if (!t) {
		guest_kill(g, CONTROL_END_NOT_STARTED, "out of memory");
		return;
	}
	t->agent = a;
	t->epoch = g->epoch;
	memcpy(t->job, g->job, sizeof(t->job));
	memcpy(t->program, a->tunnel_program, sizeof(t->program));
	t->orders = orders_of(g);
	if (!t->orders || task_run(a->loop, tunnel_work, tunnel_done, t) < 0) {
		guest_kill(g, CONTROL_END_NOT_STARTED, "out of memory");
		task_free(t);
	}
}

/* ---- notices ---- */

void gang_notice(struct agent *a, const struct control_notice *n)
{
	struct guest *g = guest_find(a, n->job, n->epoch);
	if (!g || g->start.start.ranks < 2)
		return;
	if (n->cancelled) {
		if (g->gang_notice)
			guest_cancel_notice(g);
		return;
	}
	/* Its own machine's notice is the stronger one. */
	if (g->notice_id[0] && !g->gang_notice)
		return;
	g->gang_notice = true;
	POINT("agent.gang.noticed");
	guest_notice_as(g, n->notice_id ? n->notice_id : "gang", n->reason ? n->reason : "another rank",
			clock_boot_ns() + n->remaining_ms * NS_PER_MS, n->window_ms * NS_PER_MS);
}
