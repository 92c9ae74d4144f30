/* SPDX-License-Identifier: Apache-2.0 */
#include "job/proc.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"

/* At most buf_size - 1 bytes of a small /proc file, with a NUL. Length or -errno. */
static ssize_t proc_text(pid_t pid, const char *file, char *buf, size_t buf_size)
{
	CLEANUP_FD int fd = -1;
	char path[64];
	size_t len = 0;

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (len < buf_size - 1) {
		ssize_t n = read(fd, buf + len, buf_size - 1 - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	buf[len] = '\0';
	return (ssize_t)len;
}

/* "PID (comm) S ppid pgrp sid ...": comm may hold anything, so the last ')' counts. */
static int stat_parse(const char *text, struct proc_info *p)
{
	const char *open_paren = strchr(text, '('), *close_paren = strrchr(text, ')');
	unsigned long long utime, stime, start;
	int ppid, pgid, sid;

	if (!open_paren || !close_paren || close_paren < open_paren)
		return -EINVAL;
	(void)snprintf(p->comm, sizeof(p->comm), "%.*s", (int)(close_paren - open_paren - 1), open_paren + 1);
	if (sscanf(close_paren + 1, " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu",
		   &p->state, &ppid, &pgid, &sid, &utime, &stime, &start) != 7)
		return -EINVAL;
	p->ppid = ppid;
	p->pgid = pgid;
	p->sid = sid;
	p->cpu_ticks = utime + stime;
	p->start_ticks = start;
	return 0;
}

static uint64_t status_mask(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	unsigned long long mask = 0;

	if (at)
		(void)sscanf(at + strlen(key), " %llx", &mask);
	return mask;
}

int proc_read(pid_t pid, bool detail, struct proc_info *ret)
{
	struct proc_info p = { .pid = pid };
	char text[4096];
	ssize_t n = proc_text(pid, "stat", text, sizeof(text));

	if (n < 0)
		return -ESRCH;
	if (stat_parse(text, &p) < 0)
		return -ESRCH;
	if (detail) {
		n = proc_text(pid, "status", text, sizeof(text));
		if (n < 0)
			return -ESRCH;
		p.blocked = status_mask(text, "\nSigBlk:");
		p.ignored = status_mask(text, "\nSigIgn:");
		p.caught = status_mask(text, "\nSigCgt:");
		n = proc_text(pid, "cmdline", text, sizeof(text));
		if (n > 0)
			p.command_hash = hash_sip24(text, (size_t)n, 1, 2);
	}
	*ret = p;
	return 0;
}

int proc_each(int (*fn)(void *ctx, pid_t pid), void *ctx)
{
	CLEANUP_DIR DIR *dir = opendir("/proc");
	struct dirent *e;

	if (!dir)
		return -errno;
	while ((e = readdir(dir))) {
		int r;

		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		r = fn(ctx, (pid_t)atoi(e->d_name));
		if (r < 0)
			return r;
	}
	return 0;
}

static int tree_add(void *ctx, pid_t pid)
{
	struct proc_list *all = ctx;
	struct proc_info p;

	return proc_read(pid, false, &p) < 0 ? 0 : VEC_PUSH(all, p);
}

static int by_pid(const void *a, const void *b)
{
	const struct proc_info *pa = a, *pb = b;

	return (pa->pid > pb->pid) - (pa->pid < pb->pid);
}

/* The list is sorted: proc_tree() sees to it. */
static const struct proc_info *find_pid(const struct proc_list *l, pid_t pid)
{
	const struct proc_info key = { .pid = pid };

	return l->count ? bsearch(&key, l->data, l->count, sizeof(key), by_pid) : NULL;
}

static bool descends_from(const struct proc_list *all, const struct proc_info *p, pid_t root)
{
	/* The snapshot is not atomic, so a loop is thinkable: bound the walk. */
	for (int depth = 0; p && depth < 4096; depth++) {
		if (p->ppid == root)
			return true;
		p = find_pid(all, p->ppid);
	}
	return false;
}

int proc_tree(pid_t root, bool detail, struct proc_list *ret)
{
	struct proc_list all = VEC_INIT, found = VEC_INIT;
	int r = proc_each(tree_add, &all);

	if (all.count)
		qsort(all.data, all.count, sizeof(*all.data), by_pid);
	VEC_EACH(&all, p) {
		struct proc_info full = *p;

		if (r < 0)
			break;
		if (p->state == 'Z' || p->state == 'X' || !descends_from(&all, p, root))
			continue;
		if (detail && proc_read(p->pid, true, &full) < 0)
			continue;
		r = VEC_PUSH(&found, full);
	}
	VEC_DONE(&all);
	if (r < 0) {
		VEC_DONE(&found);
		return r;
	}
	*ret = found;
	return 0;
}

int proc_environ_get(pid_t pid, const char *name, char *buf, size_t buf_size)
{
	CLEANUP_FREE char *text = malloc(256 * 1024);
	size_t name_len = strlen(name);
	ssize_t n;

	if (!text)
		return -ENOMEM;
	n = proc_text(pid, "environ", text, 256 * 1024);
	if (n < 0)
		return (int)n;
	for (char *p = text; p < text + n; p += strlen(p) + 1)
		if (!strncmp(p, name, name_len) && p[name_len] == '=') {
			if (strlen(p + name_len + 1) >= buf_size)
				return -ENAMETOOLONG;
			(void)snprintf(buf, buf_size, "%s", p + name_len + 1);
			return 0;
		}
	return -ENOENT;
}

int proc_kill(pid_t pid, uint64_t start_ticks, int signo)
{
	CLEANUP_FD int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct proc_info p;

	if (fd < 0)
		return errno == ENOSYS ? (kill(pid, signo) < 0 ? -errno : 0) : -errno;
	/* The fd is of whoever has the pid now: look that it is still the one we mean. */
	if (start_ticks && (proc_read(pid, false, &p) < 0 || p.start_ticks != start_ticks))
		return -ESRCH;
	return syscall(SYS_pidfd_send_signal, fd, signo, NULL, 0) < 0 ? -errno : 0;
}

int proc_tree_kill(pid_t root, uint64_t timeout_ns)
{
	uint64_t end = clock_boot_ns() + timeout_ns;

	for (unsigned round = 0;; round++) {
		struct proc_list tree = VEC_INIT;
		int r = proc_tree(root, false, &tree);
		bool empty = r == 0 && tree.count == 0;

		/* From the second round on something forked while we killed: stop all first, so that
		 * a stopped parent cannot fork on. */
		VEC_EACH(&tree, p)
			if (round)
				(void)proc_kill(p->pid, p->start_ticks, SIGSTOP);
		VEC_EACH(&tree, p)
			(void)proc_kill(p->pid, p->start_ticks, SIGKILL); /* gone already is fine */
		VEC_DONE(&tree);
		if (empty || r < 0)
			return r;
		if (clock_boot_ns() >= end)
			return -EBUSY;
		(void)poll(NULL, 0, 1); /* exits take a moment; the caller waits for proof anyway */
	}
}
