/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/program.h"

static int open_log(const char *path, int to)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

	if (fd < 0 || dup2(fd, to) < 0)
		return -errno;
	(void)close(fd);
	return 0;
}

static int become(const struct proc_spec *s)
{
	if (!s->uid)
		return 0;
	if (setgroups(s->group ? 1 : 0, &s->group) < 0 || setgid(s->gid) < 0 || setuid(s->uid) < 0)
		return -errno;
	return 0;
}

static _Noreturn void child(const struct proc_spec *s, int out_fd)
{
	sigset_t none;
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int r = 0;

	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	(void)signal(SIGPIPE, SIG_DFL);
	if (s->own_group) {
		(void)setpgid(0, 0);
		if (null >= 0)
			(void)dup2(null, 0);
	}
	if (s->log)
		r = open_log(s->log, 1);
	if (r == 0 && out_fd >= 0 && dup2(out_fd, 1) < 0)
		r = -errno;
	if (r == 0 && s->err_log)
		r = open_log(s->err_log, 2);
	else if (r == 0 && s->log && dup2(1, 2) < 0)
		r = -errno;
	if (r == 0 && s->node)
		r = campus_enter(s->node);
	if (r == 0 && s->cwd && chdir(s->cwd) < 0)
		r = -errno;
	if (r == 0)
		r = become(s);
	for (size_t i = 0; i < PROC_ENV_MAX && s->env[i]; i++)
		(void)putenv((char *)s->env[i]);
	if (r == 0) {
		(void)execvp(s->argv[0], (char *const *)s->argv);
		r = -errno;
	}
	(void)dprintf(2, "lab: %s: %s\n", s->argv[0], strerror(-r));
	_exit(127);
}

static int spawn(const struct proc_spec *spec, int out_fd, pid_t *ret, struct diag *diag)
{
	pid_t pid = fork();

	if (pid < 0)
		return diag_set(diag, -errno, spec->argv[0], "no process: %s", strerror(errno));
	if (pid == 0)
		child(spec, out_fd);
	*ret = pid;
	return 0;
}

int proc_spawn(const struct proc_spec *spec, pid_t *ret, struct diag *diag)
{
	return spawn(spec, -1, ret, diag);
}

/* Reads until the end or the deadline. */
static int drain(int fd, uint64_t deadline_ns, struct strbuf *out)
{
	char buf[4096];

	for (;;) {
		uint64_t now = clock_boot_ns();
		struct pollfd p = { fd, POLLIN, 0 };
		ssize_t n;

		if (now >= deadline_ns)
			return -ETIMEDOUT;
		if (poll(&p, 1, (int)((deadline_ns - now) / NS_PER_MS) + 1) <= 0)
			continue;
		n = read(fd, buf, sizeof(buf));
		if (n == 0)
			return 0;
		if (n > 0 && out && strbuf_append(out, buf, (size_t)n) < 0)
			return -ENOMEM;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

int proc_run(const struct proc_spec *spec, uint64_t timeout_ms, struct strbuf *out,
	     int *ret_status, struct diag *diag)
{
	uint64_t deadline = clock_boot_ns() + timeout_ms * NS_PER_MS;
	int fds[2], status, r;
	pid_t pid = -1;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return diag_set(diag, -errno, spec->argv[0], "no pipe: %s", strerror(errno));
	r = spawn(spec, fds[1], &pid, diag);
	(void)close(fds[1]);
	if (r < 0) {
		(void)close(fds[0]);
		return r;
	}
	r = drain(fds[0], deadline, out);
	(void)close(fds[0]);
	if (r < 0)
		(void)kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (r < 0)
		return diag_set(diag, r, spec->argv[0], "%s after %llu ms", strerror(-r),
				(unsigned long long)timeout_ms);
	*ret_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	return 0;
}

/* In a mount namespace that we went into ourselves, within a chroot, the kernel names our file by
 * a path from outside; so the answer of the first call, before, is kept. */
const char *proc_self_folder(void)
{
	static char self[PATH_MAX];

	if (!self[0] && program_dir(self, sizeof(self)) < 0)
		self[0] = '\0';
	return self;
}

const char *proc_program(const char *name, char buf[PROC_PATH_MAX])
{
	/* Beside us when installed; elsewhere in src/ or examples/ in a build tree. */
	static const char *const places[] = {
		"", "../bin", "../sbin", "../coordinator", "../agent", "../job", "../edge", "../transfer", "../sim",
		"../../examples/train", "../libexec/reclaim", "../lib/reclaim/examples",
	};
	static const char *const build_env = "RECLAIM_BIN_DIR";
	const char *from = getenv(build_env) ? getenv(build_env) : proc_self_folder();
	char real[PATH_MAX];

	if (program_find(from, places, ARRAY_SIZE(places), name, buf, PROC_PATH_MAX) == 0) {
		if (realpath(buf, real))
			(void)path_format(buf, PROC_PATH_MAX, "%s", real);
		return buf;
	}
	(void)snprintf(buf, PROC_PATH_MAX, "%s", name);
	return buf;
}
