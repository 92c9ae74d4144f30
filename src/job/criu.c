/* SPDX-License-Identifier: Apache-2.0 */
#include "job/criu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/program.h"

/* Where CRIU itself stands in the guest's pid namespace: out of the way of the pids that it
 * has to restore. Taken by a guest (of a very long life) it fails, and is tried again lower. */
#define CRIU_PID 32700

/* ---- probe ---- */

static bool tool_find(const char *name, const char *env, char *ret, size_t ret_size)
{
	static const char *const beside[] = { "", "../../criu", "../libexec/reclaim" };
	const char *given = getenv(env), *path = getenv("PATH");

	if (given && given[0]) {
		(void)snprintf(ret, ret_size, "%s", given);
		return access(ret, X_OK) == 0;
	}
	if (program_find(NULL, beside, ARRAY_SIZE(beside), name, ret, ret_size) == 0)
		return true;
	for (const char *p = path ? path : "/usr/sbin:/usr/bin"; *p;) {
		size_t len = strcspn(p, ":");

		(void)snprintf(ret, ret_size, "%.*s/%s", (int)len, p, name);
		if (len && access(ret, X_OK) == 0)
			return true;
		p += len + (p[len] == ':');
	}
	return false;
}

static int version_read(const char *program, unsigned *ret)
{
	char text[512] = "";
	const char *at;
	unsigned a = 0, b = 0, c = 0;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		(void)dup2(fds[1], 1);
		(void)execl(program, program, "--version", (char *)NULL);
		_exit(127);
	}
	(void)close(fds[1]);
	n = pid < 0 ? -1 : read(fds[0], text, sizeof(text) - 1);
	(void)close(fds[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || n <= 0)
		return -EIO;
	at = strstr(text, "Version:");
	if (!at || sscanf(at + 8, "%u.%u.%u", &a, &b, &c) < 2)
		return -EPROTO;
	*ret = a * 10000 + b * 100 + c;
	return 0;
}

int criu_probe(const char *program, struct criu_info *ret, struct diag *diag)
{
	struct criu_info info = { .version = 0 };
	int r;

	if (program)
		(void)snprintf(info.path, sizeof(info.path), "%s", program);
	else if (!tool_find("criu", "RECLAIM_CRIU", info.path, sizeof(info.path)))
		return diag_set(diag, -ENOENT, "criu", "CRIU is not here (packaging/build-criu.sh builds it)");
	r = version_read(info.path, &info.version);
	if (r < 0)
		return diag_set(diag, -ENOENT, "criu", "%.200s cannot be run", info.path);
	if (info.version < CRIU_VERSION_MIN)
		return diag_set(diag, -ENOTSUP, "criu", "%.200s is version %u.%u.%u; 4.2 or later is needed", info.path,
				info.version / 10000, info.version / 100 % 100, info.version % 100);
	if (geteuid() != 0)
		return diag_set(diag, -EPERM, "criu", "CRIU needs root");
	*ret = info;
	return 0;
}

int criu_cuda_probe(const struct criu_info *criu, struct diag *diag)
{
	char path[512];

	if (!tool_find("cuda-checkpoint", "RECLAIM_CUDA_CHECKPOINT", path, sizeof(path)))
		return diag_set(diag, -ENOENT, "cuda", "cuda-checkpoint is not here");
	if (!criu)
		return diag_set(diag, -ENOENT, "cuda", "cuda-checkpoint is here, and CRIU is not");
	return 0;
}

/* ---- run ---- */

struct prepared {
	int spaces; /* pidfd of init: all its namespaces by one setns() */
	int program, dir;
	char pid[16], inherit[64];
	char program_link[32], dir_link[32];
	char *argv[32];
};

static void argv_build(const struct criu_job *j, struct prepared *p)
{
	size_t n = 0;

	(void)snprintf(p->program_link, sizeof(p->program_link), "/proc/self/fd/%d", p->program);
	(void)snprintf(p->dir_link, sizeof(p->dir_link), "/proc/self/fd/%d", p->dir);
	(void)snprintf(p->pid, sizeof(p->pid), "%d", j->root_pid);
	p->argv[n++] = (char *)"criu";
	p->argv[n++] = (char *)(j->restore ? "restore" : "dump");
	p->argv[n++] = (char *)"-D";
	p->argv[n++] = p->dir_link;
	p->argv[n++] = (char *)"-W";
	p->argv[n++] = p->dir_link;
	p->argv[n++] = (char *)"-o";
	p->argv[n++] = (char *)"criu.log";
	p->argv[n++] = (char *)"-v3";
	p->argv[n++] = (char *)"--manage-cgroups=ignore";
	p->argv[n++] = (char *)"--tcp-established";
	p->argv[n++] = (char *)"--file-locks";
	p->argv[n++] = (char *)"--network-lock";
	p->argv[n++] = (char *)"skip"; /* both ends of its connections stand still */
	p->argv[n++] = (char *)"--link-remap";
	p->argv[n++] = (char *)"--ghost-limit";
	p->argv[n++] = (char *)"256M";
	if (j->restore) {
		p->argv[n++] = (char *)"--restore-detached";
		(void)snprintf(p->inherit, sizeof(p->inherit), "fd[%d]:pipe:[%llu]", j->out_fd, j->pipe_ino);
		p->argv[n++] = (char *)"--inherit-fd";
		p->argv[n++] = p->inherit;
	} else {
		p->argv[n++] = (char *)"-t";
		p->argv[n++] = p->pid;
		p->argv[n++] = (char *)(j->leave_stopped ? "--leave-stopped" : "--leave-running");
	}
	p->argv[n] = NULL;
}

/* Complete means that it is on the disk. */
static int files_sync(int dir_fd)
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *e;
	int r = dir ? 0 : -errno;

	while (r == 0 && (e = readdir(dir))) {
		int fd = openat(dir_fd, e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

		if (fd < 0)
			continue;
		if (fsync(fd) < 0 && errno != EINVAL)
			r = -errno;
		(void)close(fd);
	}
	if (dir)
		(void)closedir(dir);
	return r;
}

/*
 * Another process's limits may be read by root with CAP_SYS_RESOURCE or by who has its real
 * uid (prlimit(2)). Where a machine's root lacks the former, CRIU runs with the guest's real
 * uid and root's effective one. The price: the guest could send CRIU a signal, and so fail its
 * own dump; nothing else of root's.
 */
static bool have_sys_resource(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	return syscall(SYS_capget, &head, data) == 0 && (data[0].effective & (1u << CAP_SYS_RESOURCE));
}

/* In the guest's namespaces, but outside its pid namespace still: that takes one more fork. */
static _Noreturn void enter_and_run(const struct criu_job *j, struct prepared *p)
{
	int spaces = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID;
	int32_t tid = CRIU_PID;
	struct clone_args args = { .exit_signal = SIGCHLD };
	int null = open("/dev/null", O_RDWR), status;
	long pid;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (null >= 0) {
		(void)dup2(null, 0);
		(void)dup2(null, 1);
		(void)dup2(null, 2);
	}
	if (setns(p->spaces, spaces) < 0)
		_exit(120);
	if (!have_sys_resource() && (setresgid(j->guest_uid, 0, 0) < 0 || setresuid(j->guest_uid, 0, 0) < 0))
		_exit(118);
	/* Only init's pid namespace has to have a chosen pid for us: when we dump any will do. */
	if (j->restore) {
		args.set_tid = (uint64_t)(uintptr_t)&tid;
		args.set_tid_size = 1;
	}
	pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (setsid() < 0)
			_exit(121);
		(void)execv(p->program_link, p->argv);
		_exit(122);
	}
	if (pid < 0)
		_exit(123);
	while (waitpid((pid_t)pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!j->restore && WIFEXITED(status) && WEXITSTATUS(status) == 0 && files_sync(j->dir_fd) < 0)
		_exit(125);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 124);
}

static void keep_open(int fd)
{
	(void)fcntl(fd, F_SETFD, 0); /* has to pass the exec of CRIU */
}

int criu_start(const struct criu_job *j, struct diag *diag)
{
	struct prepared p = { .dir = j->dir_fd };
	CLEANUP_FD int program = open(j->criu, O_RDONLY | O_CLOEXEC);
	CLEANUP_FD int spaces = (int)syscall(SYS_pidfd_open, j->init_pid, 0);
	sigset_t none;
	pid_t pid;

	if (program < 0)
		return diag_set(diag, -errno, j->criu, "%s", strerror(errno));
	if (spaces < 0)
		return diag_set(diag, -errno, "criu", "the guest is gone: %s", strerror(errno));
	p.program = program;
	p.spaces = spaces;
	argv_build(j, &p);
	pid = fork();
	if (pid < 0)
		return diag_set(diag, -errno, "criu", "fork: %s", strerror(errno));
	if (pid == 0) {
		(void)sigemptyset(&none);
		(void)sigprocmask(SIG_SETMASK, &none, NULL);
		(void)signal(SIGPIPE, SIG_DFL);
		if (j->attach && j->attach(j->attach_ctx, getpid()) < 0)
			_exit(119);
		keep_open(j->dir_fd);
		keep_open(program);
		if (j->out_fd >= 0)
			keep_open(j->out_fd);
		enter_and_run(j, &p);
	}
	return pid;
}

void criu_why(int dir_fd, char *buf, size_t buf_size)
{
	CLEANUP_FREE char *text = NULL;
	char *save = NULL, last[2][201] = { "", "" };
	size_t len, n = 0;

	buf[0] = '\0';
	if (file_read_at(dir_fd, "criu.log", 64u << 20, &text, &len) < 0) {
		(void)snprintf(buf, buf_size, "CRIU left no log");
		return;
	}
	/* Errors that it lives with come first, the fatal one before its closing word. */
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *at = strstr(line, "Error (");

		if (!at || strstr(at, "FAILED"))
			continue;
		(void)snprintf(last[n++ % 2], sizeof(last[0]), "%.200s", at);
	}
	if (n)
		(void)snprintf(buf, buf_size, "%s%s%s", n > 1 ? last[n % 2] : "", n > 1 ? "; " : "", last[(n - 1) % 2]);
	if (!buf[0])
		(void)snprintf(buf, buf_size, "CRIU gives no reason");
}

int cuda_toggle_start(int target, struct diag *diag)
{
	char path[512], number[16];
	pid_t pid;

	if (!tool_find("cuda-checkpoint", "RECLAIM_CUDA_CHECKPOINT", path, sizeof(path)))
		return diag_set(diag, -ENOENT, "cuda", "cuda-checkpoint is not here");
	(void)snprintf(number, sizeof(number), "%d", target);
	pid = fork();
	if (pid < 0)
		return diag_set(diag, -errno, "cuda", "fork: %s", strerror(errno));
	if (pid == 0) {
		(void)execl(path, "cuda-checkpoint", "--toggle", "--pid", number, (char *)NULL);
		_exit(127);
	}
	return pid;
}
