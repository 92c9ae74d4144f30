/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

/* Runs fn in a child inside the namespace; its return value must fit an exit status. */
static int in_child(int netns_fd, int (*fn)(void *arg), void *arg)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return -errno;
	if (pid == 0)
		_exit(setns(netns_fd, CLONE_NEWNET) < 0 ? 126 : fn(arg));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct batch {
	const char *tool, *lines;
	int out_fd;
};

static int run_batch(void *arg)
{
	struct batch *b = arg;
	int fds[2];

	/* The lines fit the pipe's buffer or ip reads them as they come. */
	if (pipe(fds) < 0)
		return 126;
	if (fork() == 0) {
		(void)close(fds[0]);
		(void)fd_write_all(fds[1], b->lines, strlen(b->lines));
		_exit(0);
	}
	(void)close(fds[1]);
	if (dup2(fds[0], 0) < 0 || dup2(b->out_fd, 1) < 0 || dup2(b->out_fd, 2) < 0)
		return 126;
	(void)execlp(b->tool, b->tool, "-batch", "-", (char *)NULL);
	return 127;
}

int netns_batch(int netns_fd, const char *tool, const char *lines, struct diag *diag)
{
	struct batch b = { tool, lines, -1 };
	char out[300] = "";
	CLEANUP_FD int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	ssize_t n;
	int r;

	if (fd < 0)
		return diag_set(diag, -errno, "/tmp", "%s", strerror(errno));
	b.out_fd = fd;
	r = in_child(netns_fd, run_batch, &b);
	if (r == 0)
		return 0;
	n = pread(fd, out, sizeof(out) - 1, 0);
	for (ssize_t i = 0; i < n; i++)
		if (out[i] == '\n')
			out[i] = ' ';
	return diag_set(diag, r < 0 ? r : -EIO, tool, "%s (status %d) %.300s",
			r == 127 ? "not found" : "failed", r, out);
}

struct setting {
	const char *path, *value;
};

static int write_setting(void *arg)
{
	const struct setting *s = arg;
	int fd = open(s->path, O_WRONLY | O_CLOEXEC);

	return fd < 0 || fd_write_all(fd, s->value, strlen(s->value)) < 0;
}

int netns_sysctl(int netns_fd, const char *key, const char *value, struct diag *diag)
{
	char path[256];
	struct setting s = { path, value };

	if (path_format(path, sizeof(path), "/proc/sys/%s", key) < 0)
		return -ENAMETOOLONG;
	if (in_child(netns_fd, write_setting, &s) != 0)
		return diag_set(diag, -EIO, path, "cannot be set to %s", value);
	return 0;
}

int netns_new(const char *path, int *ret_fd, struct diag *diag)
{
	CLEANUP_FD int old = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	CLEANUP_FD int fd = -1;
	int file = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0444), r = 0;

	if (old < 0 || file < 0)
		return diag_set(diag, -errno, path, "%s", strerror(errno));
	(void)close(file); /* only a place to bind to */
	if (unshare(CLONE_NEWNET) < 0)
		return diag_set(diag, -errno, path, "no network namespace: %s", strerror(errno));
	fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || mount("/proc/self/ns/net", path, NULL, MS_BIND, NULL) < 0)
		r = diag_set(diag, -errno, path, "cannot bind: %s", strerror(errno));
	if (setns(old, CLONE_NEWNET) < 0)
		r = diag_set(diag, -errno, path, "no way back: %s", strerror(errno));
	if (r == 0)
		r = netns_batch(fd, "ip", "link set lo up\n", diag);
	if (r == 0)
		*ret_fd = TAKE_FD(fd);
	return r;
}
