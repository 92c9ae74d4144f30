/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See value_runner.h. One folder per value below the runner's own; the sandbox
 * is the one that guests get, without any network. The program is started by
 * the shell, for its redirections alone: the value never passes through it.
 */
#include "cli/value_runner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/program.h"
#include "job/sandbox.h"
#include "volunteer/lend.h"

#define START_MS 20000
#define UID_RANGE 65536u

struct run {
	struct run *next;
	struct value_runner *runner;
	uint64_t value, started_ns;
	char dir[512];
	pid_t pid;
	int pid_fd;
	struct sandbox_child child;
	uv_poll_t *exit_poll, *notify_poll;
	bool cancelled;
};

struct value_runner {
	struct loop *loop;
	const struct value_runner_ops *ops;
	void *user;
	char dir[256], program[300], tools[512], words[512];
	bool has_tools;
	struct sandbox_caps caps;
	struct sandbox_choice choice;
	uint64_t uid_base;
	struct run *runs;
};

/* The guest's tools lie beside us in the build tree, and in libexec when installed. */
static void find_tools(struct value_runner *r)
{
	static const char *const places[] = { "", "../job", "../libexec/reclaim", "../lib/reclaim" };
	r->has_tools = program_find(NULL, places, ARRAY_SIZE(places), "guest-bin/reclaim-init", r->tools,
				    sizeof(r->tools)) == 0;
	if (r->has_tools)
		*strrchr(r->tools, '/') = '\0';
}

int value_runner_new(struct loop *l, const char *rung, const struct value_runner_ops *ops,
		     void *user, struct value_runner **ret, struct diag *diag)
{
	struct value_runner *r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->loop = l;
	r->ops = ops;
	r->user = user;
	find_tools(r);
	sandbox_probe(&r->caps);
	const char *wanted = r->has_tools ? rung : sandbox_rung_names[SANDBOX_PROCESS];
	int e = sandbox_choose(&r->caps, wanted, NULL, false, &r->choice, diag);
	const char *tmp = getenv("TMPDIR");
	(void)snprintf(r->dir, sizeof(r->dir), "%.200s/reclaim-volunteer.XXXXXX", tmp ? tmp : "/tmp");
	if (e == 0 && !mkdtemp(r->dir))
		e = diag_set(diag, -errno, r->dir, "%s", strerror(errno));
	if (e < 0) {
		free(r);
		return e;
	}
	if (chmod(r->dir, 0711) < 0) /* the guest passes through, and lists nothing */
		e = -errno;
	if (geteuid() == 0)
		r->uid_base = 0x60000000 + (uint64_t)UID_RANGE * ((uint64_t)getpid() % 4096);
	(void)snprintf(r->words, sizeof(r->words), "%s", sandbox_rung_names[r->choice.rung]);
	for (size_t i = 0; i < r->choice.lacks_count; i++) {
		size_t at = strlen(r->words);
		(void)snprintf(r->words + at, sizeof(r->words) - at, "%s%s", i ? ", " : "; lacks ",
			       r->choice.lacks[i]);
	}
	*ret = r;
	return 0;
}

const char *value_runner_rung(const struct value_runner *r)
{
	return r->words;
}

int value_runner_program(struct value_runner *r, const void *bytes, size_t len, struct diag *diag)
{
	int e = path_format(r->program, sizeof(r->program), "%s/program", r->dir);
	if (e == 0)
		e = file_write_atomic(r->program, bytes, len, 0755);
	if (e == 0 && chmod(r->program, 0755) < 0)
		e = -errno;
	return e < 0 ? diag_set(diag, e, r->program, "%s", strerror(-e)) : 0;
}

/* ---- one value ---- */

static void on_handle_closed(uv_handle_t *h)
{
	free(h);
}

static void poll_end(uv_poll_t **poll)
{
	if (*poll)
		uv_close((uv_handle_t *)TAKE(*poll), on_handle_closed);
}

static uv_poll_t *poll_begin(struct run *run, int fd, uv_poll_cb fn)
{
	uv_poll_t *poll = calloc(1, sizeof(*poll));
	if (!poll || uv_poll_init(loop_uv(run->runner->loop), poll, fd) < 0) {
		free(poll);
		return NULL;
	}
	poll->data = run;
	(void)uv_poll_start(poll, UV_READABLE, fn); /* init has checked the descriptor */
	return poll;
}

static void run_free(struct run *run)
{
	struct run **at = &run->runner->runs;
	while (*at && *at != run)
		at = &(*at)->next;
	if (*at)
		*at = run->next;
	poll_end(&run->exit_poll);
	poll_end(&run->notify_poll);
	if (run->pid > 0) {
		(void)kill(run->pid, SIGKILL);
		(void)waitpid(run->pid, NULL, 0);
	}
	sandbox_child_done(&run->child);
	if (run->pid_fd >= 0)
		close(run->pid_fd);
	if (run->dir[0])
		(void)dir_remove_all(run->dir); /* what stays is below $TMPDIR */
	free(run);
}

/* The answer, and the end of the run. */
static void run_answer(struct run *run, bool failed, const void *bytes, size_t len)
{
	struct value_runner *r = run->runner;
	uint64_t took = (clock_boot_ns() - run->started_ns) / NS_PER_MS, value = run->value;
	bool tell = !run->cancelled;
	run->runner = r;
	run_free(run);
	if (tell)
		r->ops->done(r->user, value, failed, bytes, len, (uint32_t)took);
}

static void run_failed(struct run *run, const char *what)
{
	char text[LEND_ERROR_MAX];
	(void)snprintf(text, sizeof(text), "%s", what);
	run_answer(run, true, text, strlen(text));
}

static void on_exit_seen(uv_poll_t *poll, int poll_status, int events)
{
	struct run *run = poll->data;
	char path[600], what[LEND_ERROR_MAX];
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;
	int status;
	(void)poll_status, (void)events;
	if (waitpid(run->pid, &status, WNOHANG) != run->pid)
		return;
	run->pid = 0;
	bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	(void)snprintf(path, sizeof(path), "%s/work/%s", run->dir, ok ? ".result" : ".error");
	int r = file_read(path, LEND_VALUE_MAX, &text, &len);
	if (ok && r == 0) {
		run_answer(run, false, text, len);
	} else if (ok) {
		run_failed(run, r == -EFBIG ? "the result is larger than 4 MiB" : "no result");
	} else {
		const char *said = r == 0 ? text : "";
		if (WIFSIGNALED(status))
			(void)snprintf(what, sizeof(what), "killed by signal %d. %s", WTERMSIG(status), said);
		else
			(void)snprintf(what, sizeof(what), "exit status %d. %s", WEXITSTATUS(status), said);
		run_failed(run, what);
	}
}

static void on_refusal(uv_poll_t *poll, int status, int events)
{
	struct run *run = poll->data;
	char text[256];
	(void)status, (void)events;
	if (sandbox_refusal(run->child.notify_fd, text, sizeof(text)) < 0)
		poll_end(&run->notify_poll);
}

static int make_folders(struct run *run, char paths[4][600], const void *bytes, size_t len)
{
	static const char *const names[4] = { "work", "ckpt", "home", "tmp" };
	struct value_runner *r = run->runner;
	uid_t uid = (uid_t)(r->uid_base ? r->uid_base + SANDBOX_UID : geteuid());
	char file[700];
	int e = path_format(run->dir, sizeof(run->dir), "%s/%llu", r->dir,
			    (unsigned long long)run->value);
	(void)dir_remove_all(run->dir); /* of the same value, lent before */
	for (size_t i = 0; e == 0 && i < 4; i++) {
		e = path_format(paths[i], 600, "%s/%s", run->dir, names[i]);
		if (e == 0)
			e = dir_make_all(paths[i], 0755);
		if (e == 0 && r->uid_base && chown(paths[i], uid, uid) < 0)
			e = -errno;
	}
	if (e == 0)
		e = path_format(file, sizeof(file), "%s/.value", paths[0]);
	if (e == 0)
		e = file_write_atomic(file, bytes, len, 0644);
	if (e == 0)
		e = path_format(file, sizeof(file), "%s/.program", paths[0]);
	if (e == 0 && link(r->program, file) < 0)
		e = -errno;
	return e;
}

static int wait_started(struct run *run, struct diag *diag)
{
	int r = sandbox_go(&run->child);
	while (r == 0) {
		struct pollfd p = { .fd = run->child.ctl_fd, .events = POLLIN };
		if (poll(&p, 1, START_MS) <= 0)
			return diag_set(diag, -ETIMEDOUT, "sandbox", "it did not start in time");
		r = sandbox_started(&run->child, diag);
		if (r <= 0)
			return r;
		r = 0;
	}
	return r;
}

static int run_begin(struct run *run, const void *bytes, size_t len, struct diag *diag)
{
	struct value_runner *r = run->runner;
	char paths[4][600], home[640], path_env[640];
	CLEANUP_FD int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	int e = null_fd < 0 ? -errno : make_folders(run, paths, bytes, len);
	if (e < 0)
		return diag_set(diag, e, run->dir, "%s", strerror(-e));
	bool boxed = r->choice.rung != SANDBOX_PROCESS;
	(void)snprintf(home, sizeof(home), "HOME=%s", boxed ? "/reclaim/home" : paths[2]);
	(void)snprintf(path_env, sizeof(path_env), "PATH=/usr/local/bin:/usr/bin:/bin");
	char *argv[] = { "/reclaim/bin/reclaim-init", "/bin/sh", "-c",
			 "exec ./.program <.value >.result 2>.error", NULL };
	char *envp[] = { home, path_env, "LANG=C.UTF-8", NULL };
	struct sandbox_config c = {
		.rung = r->choice.rung, .caps = &r->caps, .uid_base = r->uid_base, .work = paths[0],
		.ckpt = paths[1], .home = paths[2], .tmp = paths[3], .tools = r->has_tools ? r->tools : NULL,
		.hostname = "volunteer", .own_network = r->choice.rung <= SANDBOX_NAMESPACES && r->caps.net,
		.no_network = r->choice.rung == SANDBOX_USERNS, .memory_max = UINT64_C(1) << 30,
		.rlimit_memory = true, .pids_max = 256, .nice = 10, .out_fd = null_fd,
		.argv = boxed ? argv : argv + 1, .envp = envp, .run = run->dir,
	};
	e = sandbox_spawn(&c, &run->child, diag);
	if (e < 0)
		return e;
	run->pid = run->child.pid;
	e = wait_started(run, diag);
	if (e < 0)
		return e;
	run->pid_fd = (int)syscall(SYS_pidfd_open, run->pid, 0);
	if (run->pid_fd < 0)
		return diag_set(diag, -errno, "pidfd", "%s", strerror(errno));
	run->exit_poll = poll_begin(run, run->pid_fd, on_exit_seen);
	if (run->child.notify_fd >= 0)
		run->notify_poll = poll_begin(run, run->child.notify_fd, on_refusal);
	return run->exit_poll ? 0 : -ENOMEM;
}

void value_runner_start(struct value_runner *r, uint64_t value, const void *bytes, size_t len)
{
	struct run *run = calloc(1, sizeof(*run));
	struct diag diag = DIAG_INIT;
	if (!run) {
		r->ops->done(r->user, value, true, "no memory", 9, 0);
		return;
	}
	*run = (struct run){ .next = r->runs, .runner = r, .value = value, .pid_fd = -1,
			     .started_ns = clock_boot_ns(), .child = SANDBOX_CHILD_INIT };
	r->runs = run;
	int e = run_begin(run, bytes, len, &diag);
	if (e < 0) {
		char text[LEND_ERROR_MAX];
		(void)snprintf(text, sizeof(text), "the sandbox cannot be made: %.150s: %.300s", diag.where,
			       diag.what[0] ? diag.what : strerror(-e));
		run_failed(run, text);
	}
}

void value_runner_cancel(struct value_runner *r, uint64_t value)
{
	for (struct run *run = r->runs; run; run = run->next) {
		if (run->value == value) {
			run->cancelled = true;
			run_free(run);
			return;
		}
	}
}

void value_runner_free(struct value_runner *r)
{
	if (!r)
		return;
	while (r->runs)
		run_free(r->runs);
	(void)dir_remove_all(r->dir);
	free(r);
}
