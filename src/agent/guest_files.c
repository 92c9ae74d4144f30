/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's files: inputs in before it starts, results out when it is over. Both
 * travel as a tar archive over the coordinator's REST port, in a thread with a
 * connection of its own; tar(1) itself packs and unpacks (it strips ".." and
 * absolute names, and never follows a link it has just made).
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/task.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "base/strbuf.h"
#include "io/http_client.h"

#define FILES_TIMEOUT_MS (10 * 60 * 1000)
#define RESULT_TRIES_MAX 3

extern char **environ;

struct files_task {
	struct guest *guest;
	const struct identity *identity;
	char coordinator[260];
	char dir[PATH_MAX], path[512];
	char **patterns;
	size_t patterns_count;
	uint64_t bytes;
	struct diag diag;
	int r;
};

/* Waits for tar; a coordinator that sends no archive is its own error, not silence. */
static int run_tar(char *const argv[], struct diag *diag)
{
	pid_t pid;
	int r = posix_spawnp(&pid, "tar", NULL, NULL, argv, environ);
	if (r != 0)
		return diag_set(diag, -r, "tar", "cannot start: %s", strerror(r));
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return diag_set(diag, -errno, "tar", "cannot wait: %s", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return diag_set(diag, -EIO, "tar", "failed with status %d",
				WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return 0;
}

static int open_scratch(const struct files_task *t, char *name, size_t size)
{
	int r = path_format(name, size, "%s/archive.tar", t->dir);
	if (r < 0)
		return r;
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static void inputs_work(void *arg)
{
	struct files_task *t = arg;
	char name[PATH_MAX], work[PATH_MAX];
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	CLEANUP_FD int fd = open_scratch(t, name, sizeof(name));
	if (fd < 0) {
		t->r = diag_set(&t->diag, fd, t->dir, "cannot make a file: %s", strerror(-fd));
		return;
	}
	t->r = http_client_open(t->identity, t->coordinator, &c, &t->diag);
	if (t->r == 0) {
		http_client_set_timeout(c, FILES_TIMEOUT_MS);
		t->r = http_client_download(c, t->path, fd, &t->bytes, &t->diag);
	}
	POINT("agent.inputs.downloaded");
	if (t->r == 0)
		t->r = path_format(work, sizeof(work), "%s/work", t->dir);
	if (t->r == 0) {
		char *const argv[] = { (char *)"tar", (char *)"-xf", name, (char *)"-C", work,
				       (char *)"--no-same-owner", NULL };
		t->r = run_tar(argv, &t->diag);
	}
	(void)unlink(name);
}

static void inputs_done(void *arg)
{
	struct files_task *t = arg;
	struct guest *g = t->guest;
	g->task_running = false;
	int r = t->r;
	if (g->abort) {
		guest_finish(g, g->end, 0, g->end_reason);
	} else if (r == 0) {
		r = guest_restore_begin(g);
		if (r < 0)
			guest_finish(g, CONTROL_END_NOT_STARTED, 0, strerror(-r));
	} else {
		char why[CONTROL_TEXT_MAX];
		(void)snprintf(why, sizeof(why), "inputs: %.250s: %.500s", t->diag.where, t->diag.what);
		guest_finish(g, CONTROL_END_NOT_STARTED, 0, why);
	}
	free(t);
}

static struct files_task *task_new(struct guest *g, const char *what)
{
	struct files_task *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->guest = g;
	t->identity = g->agent->identity;
	(void)snprintf(t->coordinator, sizeof(t->coordinator), "%s", g->agent->config.coordinator);
	memcpy(t->dir, g->dir, sizeof(t->dir));
	(void)snprintf(t->path, sizeof(t->path), "/v1/jobs/%s/%s?epoch=%llu", g->job, what,
		       (unsigned long long)g->epoch);
	return t;
}

static int task_go(struct guest *g, struct files_task *t, void (*work)(void *), void (*done)(void *))
{
	if (!t)
		return -ENOMEM;
	g->task_running = true;
	int r = task_run(g->agent->loop, work, done, t);
	if (r < 0) {
		g->task_running = false;
		free(t);
	}
	return r;
}

int guest_inputs_begin(struct guest *g)
{
	if (!g->start.start.inputs)
		return guest_restore_begin(g);
	return task_go(g, task_new(g, "inputs"), inputs_work, inputs_done);
}

/* Names below work/ that the patterns match, NUL-separated for tar -T. */
static int collect(const struct files_task *t, struct strbuf *list)
{
	for (size_t i = 0; i < t->patterns_count; i++) {
		char pattern[PATH_MAX];
		glob_t found = { 0 };
		size_t skip = strlen(t->dir) + strlen("/work/");
		/* The spec's parser refuses absolute patterns and "..". */
		int r = path_format(pattern, sizeof(pattern), "%s/work/%s", t->dir, t->patterns[i]);
		if (r == 0 && glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
			for (size_t k = 0; k < found.gl_pathc; k++)
				(void)strbuf_append(list, found.gl_pathv[k] + skip,
						    strlen(found.gl_pathv[k] + skip) + 1);
		globfree(&found);
	}
	return list->failed ? -ENOMEM : 0;
}

static int pack_results(struct files_task *t, char *name, int fd)
{
	CLEANUP_STRBUF struct strbuf list = STRBUF_INIT;
	char names[PATH_MAX], work[PATH_MAX];
	int r = collect(t, &list);
	if (r < 0)
		return r;
	r = path_format(names, sizeof(names), "%s/archive.names", t->dir);
	if (r == 0)
		r = path_format(work, sizeof(work), "%s/work", t->dir);
	if (r == 0)
		r = file_write_atomic(names, list.data ? list.data : "", list.len, 0600);
	if (r < 0)
		return r;
	char *const argv[] = { (char *)"tar", (char *)"-cf", name, (char *)"-C", work, (char *)"--null",
			       (char *)"--verbatim-files-from", (char *)"-T", names,
			       (char *)"--owner=0", (char *)"--group=0", NULL };
	r = run_tar(argv, &t->diag);
	(void)unlink(names);
	off_t size = lseek(fd, 0, SEEK_END);
	t->bytes = size > 0 ? (uint64_t)size : 0;
	(void)lseek(fd, 0, SEEK_SET);
	return r;
}

static bool coordinator_away(int r)
{
	return http_client_went_away(r) || r == -EAGAIN;
}

static void results_work(void *arg)
{
	struct files_task *t = arg;
	char name[PATH_MAX];
	CLEANUP_FD int fd = open_scratch(t, name, sizeof(name));
	if (fd < 0) {
		t->r = diag_set(&t->diag, fd, t->dir, "cannot make a file: %s", strerror(-fd));
		return;
	}
	t->r = pack_results(t, name, fd);
	/* tar wrote a file of its own under that name: read it through a new descriptor. */
	CLEANUP_FD int packed = open(name, O_RDONLY | O_CLOEXEC);
	off_t size = packed >= 0 ? lseek(packed, 0, SEEK_END) : -1;
	t->bytes = size > 0 ? (uint64_t)size : 0;
	POINT("agent.results.packed");
	for (int i = 0; t->r == 0 && i < RESULT_TRIES_MAX; i++) {
		CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
		(void)lseek(packed, 0, SEEK_SET);
		t->r = http_client_open(t->identity, t->coordinator, &c, &t->diag);
		if (t->r == 0) {
			http_client_set_timeout(c, FILES_TIMEOUT_MS);
			t->r = http_client_upload(c, "PUT", t->path, packed, t->bytes, NULL, &t->diag);
		}
		if (t->r == 0)
			break;
		bool again = coordinator_away(t->r);
		t->r = again && i + 1 < RESULT_TRIES_MAX ? 0 : t->r;
	}
	POINT("agent.results.sent");
	(void)unlink(name);
}

static void results_again(void *user)
{
	struct guest *g = user;
	if (guest_results_begin(g) < 0)
		guest_finish(g, g->end, g->exit.status, g->exit.reason);
}

static void results_done(void *arg)
{
	struct files_task *t = arg;
	struct guest *g = t->guest;
	g->task_running = false;
	bool owner_waits = g->agent->owner.state == CONTROL_OWNER_DRAINING ||
			   g->agent->owner.state == CONTROL_OWNER_OWNED;
	if (t->r == 0) {
		g->results_bytes = t->bytes;
	} else {
		log_warn("job %s: results not handed in: %s: %s", g->job, t->diag.where, t->diag.what);
		/* A coordinator that is away comes back: the job is not over before its results are
		 * safe, unless the machine must be given up. */
		bool away = coordinator_away(t->r) || !link_is_up(g->agent);
		if (away && !owner_waits && !g->abort) {
			loop_timer_init(&g->grace, g->agent->loop, results_again, g);
			(void)loop_timer_in(&g->grace, NS_PER_S);
			free(t);
			return;
		}
	}
	free(t);
	guest_finish(g, g->end, g->exit.status, g->exit.reason ? g->exit.reason : g->end_reason);
}

/* -ENOENT when the job names no results. */
int guest_results_begin(struct guest *g)
{
	if (g->spec.results_count == 0)
		return -ENOENT;
	struct files_task *t = task_new(g, "results");
	if (!t)
		return -ENOMEM;
	t->patterns = g->spec.results;
	t->patterns_count = g->spec.results_count;
	return task_go(g, t, results_work, results_done);
}
