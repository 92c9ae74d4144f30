/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim page: the owner's page on 127.0.0.1. A program of its own, so that the
 * agent, which is root, parses no HTTP; it speaks to the agent's socket with the
 * rights of whoever runs it, and lets in only those who have these rights:
 *
 *   run by a user    that user alone, and only with the token of the address that
 *                    it printed: without root, guests have our uid, not our token
 *   run as a service (root, or a system user in the owner's group) root, and
 *                    members of the owner's group
 *
 * The peer's user is the kernel's word about its socket (io/http_local.h).
 */
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/rng.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/owner_internal.h"
#include "cli/owner_page_files.h"
#include "io/http_server.h"
#include "io/unix_client.h"
#include "wire/owner.h"

#define ANSWER_NS (2 * NS_PER_S)
#define GROUPS_MAX 256
#define SAID_MAX 4096

extern char **environ;

struct page_options {
	const char *run, *group, *url_file;
	uint64_t port;
	bool service, quiet;
};

struct page {
	const struct page_options *options;
	struct owner_options owner;
	struct loop *loop;
	char token[33]; /* "" = a service: the user of the socket is enough */
	char group[64];
};

/* ---- who may ---- */

static bool in_group(uid_t uid, const char *name)
{
	struct group *g = getgrnam(name);
	gid_t wanted = g ? g->gr_gid : (gid_t)-1, groups[GROUPS_MAX];
	int n = GROUPS_MAX;
	struct passwd *p = g ? getpwuid(uid) : NULL;
	if (!p || getgrouplist(p->pw_name, p->pw_gid, groups, &n) < 0)
		return false;
	for (int i = 0; i < n; i++)
		if (groups[i] == wanted)
			return true;
	return false;
}

static int admit(uid_t uid, void *user)
{
	const struct page *p = user;
	if (uid == geteuid())
		return 0;
	return !p->token[0] && (uid == 0 || in_group(uid, p->group)) ? 0 : -EACCES;
}

static bool has_token(const struct page *p, struct http_request *r)
{
	const char *given = http_request_query(r, "token");
	unsigned char differs = 0;
	if (!p->token[0])
		return true;
	if (!given || strlen(given) != strlen(p->token))
		return false;
	for (size_t i = 0; p->token[i]; i++)
		differs |= (unsigned char)(given[i] ^ p->token[i]);
	return differs == 0;
}

/* Answers a request of somebody who may not, and says so. */
static bool refuse(const struct page *p, struct http_request *r)
{
	if (admit(http_request_uid(r), (void *)p) < 0) {
		struct passwd *pw = http_request_uid(r) == (uid_t)-1 ? NULL : getpwuid(http_request_uid(r));
		http_reply_error(r, 403, "%.60s is not among this machine's owners (group %s).",
				 pw ? pw->pw_name : "This user", p->group);
		return true;
	}
	if (!has_token(p, r)) {
		http_reply_error(r, 403, "Open the address that 'reclaim page' printed: it has a secret at its end.");
		return true;
	}
	return false;
}

/* ---- what is asked ---- */

/* Without an agent the command does what it can (owner_direct.c); its words are the answer. */
static json_t *without_agent(struct page *p, bool now)
{
	char *argv[] = { "reclaim", "back", now ? "--now" : "--no-wait", "--run", (char *)owner_run_dir(&p->owner), NULL };
	char said[SAID_MAX] = "";
	int pipe_fds[2], status;
	pid_t pid;
	posix_spawn_file_actions_t actions;
	if (pipe(pipe_fds) < 0)
		return NULL;
	(void)posix_spawn_file_actions_init(&actions);
	(void)posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
	(void)posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 2);
	(void)posix_spawn_file_actions_addclose(&actions, pipe_fds[0]);
	int r = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
	(void)posix_spawn_file_actions_destroy(&actions);
	(void)close(pipe_fds[1]);
	size_t len = 0;
	ssize_t n;
	while (r == 0 && len < sizeof(said) - 1 && (n = read(pipe_fds[0], said + len, sizeof(said) - 1 - len)) > 0)
		len += (size_t)n;
	said[len] = '\0';
	(void)close(pipe_fds[0]);
	if (r != 0 || waitpid(pid, &status, 0) < 0)
		return NULL;
	return json_pack("{s:s,s:b}", "said", said, "failed", !WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

static void forward(struct page *p, struct http_request *r, const struct owner_request *q)
{
	char path[256];
	CLEANUP_JSON json_t *out = schema_encode(&owner_request_schema, q);
	json_t *in = NULL;
	int e = path_format(path, sizeof(path), "%s/agent.sock", owner_run_dir(&p->owner));
	if (refuse(p, r))
		return;
	if (e == 0)
		e = out ? unix_client_ask(path, out, ANSWER_NS, &in) : -ENOMEM;
	if (e < 0 && e != -EACCES && q->cmd == OWNER_CMD_BACK)
		in = without_agent(p, q->now);
	if (in)
		http_reply_json(r, 200, in);
	else
		http_reply_error(r, 503, "The agent does not answer (%s).", strerror(-e));
}

static void get_status(struct http_request *r, void *user)
{
	forward(user, r, &(struct owner_request){ .v = OWNER_VERSION, .cmd = OWNER_CMD_STATUS });
}

static void post_back(struct http_request *r, void *user)
{
	forward(user, r, &(struct owner_request){ .v = OWNER_VERSION, .cmd = OWNER_CMD_BACK });
}

static void post_cut(struct http_request *r, void *user)
{
	forward(user, r, &(struct owner_request){ .v = OWNER_VERSION, .cmd = OWNER_CMD_BACK, .now = true });
}

static void post_cancel(struct http_request *r, void *user)
{
	forward(user, r, &(struct owner_request){ .v = OWNER_VERSION, .cmd = OWNER_CMD_CANCEL });
}

static void post_lend(struct http_request *r, void *user)
{
	forward(user, r, &(struct owner_request){ .v = OWNER_VERSION, .cmd = OWNER_CMD_LEND });
}

static void get_file(struct http_request *r, void *user)
{
	const struct owner_page_file *f = http_request_data(r);
	http_reply_bytes(r, 200, f->type, f->bytes, f->len);
}

/* ---- serving ---- */

/* Whoever asks is answered who may not, by refuse(): routes are open, the page tells people why. */
static const struct http_route routes[] = {
	{ "GET", "/v1/owner", HTTP_ANONYMOUS, 0, get_status, NULL },
	{ "POST", "/v1/owner/back", HTTP_ANONYMOUS, 64, post_back, NULL },
	{ "POST", "/v1/owner/cut", HTTP_ANONYMOUS, 64, post_cut, NULL },
	{ "POST", "/v1/owner/cancel", HTTP_ANONYMOUS, 64, post_cancel, NULL },
	{ "POST", "/v1/owner/lend", HTTP_ANONYMOUS, 64, post_lend, NULL },
	{ "GET", "/", HTTP_ANONYMOUS, 0, get_file, &owner_page_files[0] },
	{ "GET", "/owner.css", HTTP_ANONYMOUS, 0, get_file, &owner_page_files[1] },
	{ "GET", "/owner.js", HTTP_ANONYMOUS, 0, get_file, &owner_page_files[2] },
	{ NULL },
};

static void on_stop(void *user, int signum)
{
	loop_stop(user);
}

static int make_token(struct page *p)
{
	uint8_t bits[16];
	int r = random_bytes(bits, sizeof(bits));
	if (r == 0)
		hex_encode(bits, sizeof(bits), p->token);
	return r;
}

static int say_url(const struct page *p, const struct page_options *o, uint16_t port)
{
	char url[128];
	(void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/%s%s", port, p->token[0] ? "#" : "", p->token);
	if (!o->quiet) {
		(void)printf("%s\n", url);
		(void)fflush(stdout);
	}
	return o->url_file ? file_write_atomic(o->url_file, url, strlen(url), 0600) : 0;
}

static int run_page(const void *values, int argc, const char *const *argv)
{
	const struct page_options *o = values;
	struct page p = { .options = o, .owner = { .run = o->run } };
	struct diag diag = DIAG_INIT;
	struct http_server *server;
	(void)snprintf(p.group, sizeof(p.group), "%s", o->group);
	int r = o->service ? 0 : make_token(&p);
	if (r == 0)
		r = loop_new(&p.loop);
	if (r < 0)
		return cli_failf("page: %s", strerror(-r));
	const struct http_server_config config = {
		.port = (uint16_t)o->port,
		.routes = routes,
		.admit_local = admit,
		.user = &p,
	};
	if (http_server_open(p.loop, &config, &server, &diag) < 0)
		return cli_fail(&diag);
	(void)loop_on_signal(p.loop, SIGTERM, on_stop, p.loop);
	(void)loop_on_signal(p.loop, SIGINT, on_stop, p.loop);
	r = say_url(&p, o, http_server_port(server));
	if (r < 0)
		return cli_failf("%s: %s", o->url_file, strerror(-r));
	r = loop_run(p.loop);
	http_server_close(server);
	return r < 0 ? 1 : 0;
}

#define O(m) offsetof(struct page_options, m)
static const struct option page_options[] = {
	{ "run", 0, OPTION_STR, O(run), "DIR", NULL, 0, 0, "the agent's run folder (/run/reclaim)" },
	{ "port", 'p', OPTION_U64, O(port), "N", "7411", 0, 65535, "on 127.0.0.1; 0 = any" },
	{ "service", 0, OPTION_FLAG, O(service), NULL, NULL, 0, 0,
	  "for all of the owner's group, without a secret in the address" },
	{ "group", 0, OPTION_STR, O(group), "NAME", "reclaim-owner", 0, 0, "the owner's group" },
	{ "url-file", 0, OPTION_STR, O(url_file), "FILE", NULL, 0, 0, "write the address there" },
	{ "quiet", 'q', OPTION_FLAG, O(quiet), NULL, NULL, 0, 0, "do not print it" },
	{ .kind = OPTION_END },
};

const struct command cli_owner_page_commands[] = {
	{ .name = "page", .options = page_options, .values_size = sizeof(struct page_options), .run = run_page,
	  .help = "serve the owner's page on 127.0.0.1",
	  .detail = "Shows who is here, until when, and has a button to take the machine back and one to cut.\n"
		    "Only you may use it, with the secret in the address; with --service, root and the\n"
		    "owner's group may, known by the user of their connection." },
	{ .name = NULL },
};
