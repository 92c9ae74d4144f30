/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"

#define CGROUP_ROOT "/sys/fs/cgroup"
#define CGROUP_DEPTH_MAX 8
#define DIR_TOP "/tmp/"
#define DIR_NAME "rlab-"
#define DIR_PREFIX DIR_TOP DIR_NAME

static void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	(void)nanosleep(&t, NULL);
}

/* ---- cgroups ---- */

static void kill_cgroup(const char *path)
{
	char file[1024];
	int fd;

	/* v1: a frozen task ignores SIGKILL until it is thawed. */
	if (path_format(file, sizeof(file), "%s/freezer.state", path) == 0 &&
	    (fd = open(file, O_WRONLY | O_CLOEXEC)) >= 0) {
		(void)fd_write_all(fd, "THAWED", 6); /* best effort: the kill below says more */
		(void)close(fd);
	}
	if (path_format(file, sizeof(file), "%s/cgroup.kill", path) == 0 &&
	    (fd = open(file, O_WRONLY | O_CLOEXEC)) >= 0) {
		(void)fd_write_all(fd, "1", 1);
		(void)close(fd);
	}
}

/* Children first. Processes may still be leaving, so it is tried a few times. */
static void remove_cgroup(const char *path, int depth)
{
	CLEANUP_DIR DIR *d = depth < CGROUP_DEPTH_MAX ? opendir(path) : NULL;
	struct dirent *e;
	char sub[1024];

	kill_cgroup(path);
	while (d && (e = readdir(d)))
		if (e->d_type == DT_DIR && e->d_name[0] != '.' &&
		    path_format(sub, sizeof(sub), "%s/%s", path, e->d_name) == 0)
			remove_cgroup(sub, depth + 1);
	for (int i = 0; i < 50 && rmdir(path) < 0 && errno == EBUSY; i++)
		pause_ms(20);
}

/* Removes every group named prefix..., at any depth. */
static void sweep_cgroups(const char *path, const char *prefix, int depth)
{
	CLEANUP_DIR DIR *d = depth < CGROUP_DEPTH_MAX ? opendir(path) : NULL;
	struct dirent *e;
	char sub[1024];

	while (d && (e = readdir(d))) {
		if (e->d_type != DT_DIR || e->d_name[0] == '.' ||
		    path_format(sub, sizeof(sub), "%s/%s", path, e->d_name) < 0)
			continue;
		if (strncmp(e->d_name, prefix, strlen(prefix)) == 0)
			remove_cgroup(sub, depth);
		else
			sweep_cgroups(sub, prefix, depth + 1);
	}
}

/* ---- what a lab leaves ---- */

/* Without a PID namespace: whoever still carries the lab's mark. */
static bool kill_marked(const char *id)
{
	CLEANUP_DIR DIR *d = opendir("/proc");
	struct dirent *e;
	char mark[64], path[300];
	bool found = false;
	int mark_len = snprintf(mark, sizeof(mark), "RECLAIM_LAB_ID=%s", id) + 1; /* with its NUL */

	while (d && (e = readdir(d))) {
		CLEANUP_FREE char *env = NULL;
		size_t len;
		uint64_t pid;

		if (parse_u64(e->d_name, &pid) < 0 || (pid_t)pid == getpid() ||
		    path_format(path, sizeof(path), "/proc/%s/environ", e->d_name) < 0 ||
		    file_read(path, 1u << 20, &env, &len) < 0)
			continue;
		if (memmem(env, len, mark, (size_t)mark_len)) {
			found = true;
			(void)kill((pid_t)pid, SIGKILL); /* it may be gone by now */
		}
	}
	return found;
}

static void clean(const struct guard *g)
{
	char prefix[32];

	if (!g->root) /* there may have been no PID namespace */
		for (int i = 0; i < 100 && kill_marked(g->id); i++)
			pause_ms(20);
	if (g->root) {
		(void)snprintf(prefix, sizeof(prefix), GUARD_CGROUP_PREFIX "%s-", g->id);
		sweep_cgroups(CGROUP_ROOT, prefix, 0);
	}
	(void)dir_remove_all(g->dir); /* nobody is left to be told */
}

int guard_clean_stale(void)
{
	CLEANUP_DIR DIR *d = opendir("/tmp");
	struct dirent *e;
	int count = 0;

	while (d && (e = readdir(d))) {
		struct guard g = { .root = geteuid() == 0 };
		char lock[128];
		int fd;

		if (strncmp(e->d_name, DIR_NAME, strlen(DIR_NAME)) != 0 ||
		    path_format(g.dir, sizeof(g.dir), "/tmp/%s", e->d_name) < 0 ||
		    path_format(lock, sizeof(lock), "%s/lock", g.dir) < 0)
			continue;
		(void)snprintf(g.id, sizeof(g.id), "%.15s", e->d_name + strlen(DIR_NAME));
		fd = open(lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0)
			continue; /* being made right now, or not ours to touch */
		if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
			clean(&g);
			count++;
		}
		(void)close(fd);
	}
	return count;
}

/* ---- the processes ---- */

static void guardian(const struct guard *g, int pipe_fd)
{
	sigset_t all;
	char byte;

	(void)sigfillset(&all);
	(void)sigprocmask(SIG_BLOCK, &all, NULL);
	(void)setsid();
	(void)prctl(PR_SET_NAME, "lab-guardian");
	/* The caller's output must not stay open because of us (a pipeline waits for its end). */
	for (int fd = 0; fd < 3; fd++) {
		int null = open("/dev/null", O_RDWR | O_CLOEXEC);

		if (null >= 0 && null != fd && dup2(null, fd) >= 0)
			(void)close(null);
	}
	while (read(pipe_fd, &byte, 1) < 0 && errno == EINTR)
		;
	clean(g);
	_exit(0);
}

static pid_t inner_pid;
static volatile sig_atomic_t forwarded;

static void forward(int signo)
{
	forwarded = signo;
	if (inner_pid > 0)
		(void)kill(inner_pid, SIGTERM);
}

static int write_text(const char *path, const char *text)
{
	CLEANUP_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

/* In a fresh user namespace: stay who we are. */
static void map_ourselves(uid_t uid, gid_t gid)
{
	char map[64];

	/* Each may be refused; programs then run as nobody, which is no less. */
	(void)write_text("/proc/self/setgroups", "deny");
	(void)snprintf(map, sizeof(map), "%u %u 1\n", gid, gid);
	(void)write_text("/proc/self/gid_map", map);
	(void)snprintf(map, sizeof(map), "%u %u 1\n", uid, uid);
	(void)write_text("/proc/self/uid_map", map);
}

/* fork() into a PID namespace: as root, or through a user namespace. By the bare
 * system call, so that the caller itself stays where it is. */
static pid_t fork_into_pid_namespace(bool root)
{
	uid_t uid = getuid();
	gid_t gid = getgid();
	long pid = syscall(SYS_clone, CLONE_NEWPID | (root ? 0 : CLONE_NEWUSER) | SIGCHLD, NULL,
			   NULL, NULL, NULL);

	if (pid == 0 && !root)
		map_ourselves(uid, gid);
	return (pid_t)pid;
}

static int enter_mounts(const struct guard *g)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return -errno;
	/* setuid and devices stay usable: reclaim-cut is part of what is tested. */
	if (g->root && mount("lab", g->dir, "tmpfs", 0, "mode=0755") < 0)
		return -errno;
	return 0;
}

static int open_dir(struct guard *g)
{
	char path[128];
	int fd;

	(void)snprintf(g->dir, sizeof(g->dir), DIR_PREFIX "XXXXXX");
	if (!mkdtemp(g->dir))
		return -errno;
	(void)chmod(g->dir, 0755); /* users of the lab pass through */
	(void)snprintf(g->id, sizeof(g->id), "%s", g->dir + strlen(DIR_PREFIX));
	(void)snprintf(path, sizeof(path), "%s/lock", g->dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		return -errno;
	return fd; /* held by us and by the guardian, by their common open file */
}

static pid_t start_inner(struct guard *g, int (*inner)(const struct guard *g, void *arg),
			 void *arg)
{
	pid_t outer = getpid(), pid = fork_into_pid_namespace(g->root);
	int r;

	g->pid_namespace = pid >= 0;
	if (pid < 0 && !g->root)
		pid = fork();
	if (pid != 0)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!g->pid_namespace) {
		if (getppid() != outer)
			_exit(1);
		(void)prctl(PR_SET_CHILD_SUBREAPER, 1);
	} else {
		r = enter_mounts(g);
		if (r < 0) {
			(void)fprintf(stderr, "lab: mounts: %s\n", strerror(-r));
			_exit(1);
		}
	}
	(void)setenv("RECLAIM_LAB_ID", g->id, 1);
	r = inner(g, arg);
	(void)fflush(NULL);
	_exit(r);
}

int guard_run(bool interactive, bool want_root, int (*inner)(const struct guard *g, void *arg),
	      void *arg, struct diag *diag)
{
	struct guard g = { .root = want_root && geteuid() == 0 };
	struct sigaction act = { .sa_handler = forward };
	int fds[2], lock, status;
	pid_t warden;

	(void)guard_clean_stale();
	lock = open_dir(&g);
	if (lock < 0)
		return diag_set(diag, lock, g.dir, "cannot be made: %s", strerror(-lock));
	if (pipe2(fds, O_CLOEXEC) < 0)
		return diag_set(diag, -errno, "", "no pipe: %s", strerror(errno));
	warden = fork(); /* before there is a PID namespace: it must stay outside */
	if (warden == 0) {
		(void)close(fds[1]);
		guardian(&g, fds[0]);
	}
	(void)close(fds[0]);
	(void)fflush(NULL);
	inner_pid = start_inner(&g, inner, arg);
	if (inner_pid < 0)
		return diag_set(diag, -errno, "", "no process: %s", strerror(errno));
	(void)sigaction(SIGTERM, &act, NULL);
	(void)sigaction(SIGHUP, &act, NULL);
	act.sa_handler = interactive ? SIG_IGN : forward;
	(void)sigaction(SIGINT, &act, NULL);
	while (waitpid(inner_pid, &status, 0) < 0 && errno == EINTR)
		;
	(void)close(fds[1]);
	while (waitpid(warden, NULL, 0) < 0 && errno == EINTR)
		;
	(void)close(lock);
	if (forwarded)
		return 128 + forwarded;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
