/* SPDX-License-Identifier: Apache-2.0 */
#include "job/leftover.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "job/cgroup.h"
#include "job/proc.h"

struct search {
	const char *job;
	uint64_t epoch;
	struct pid_list *found;
};

static bool listed(const struct pid_list *l, pid_t pid)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->data[i] == pid)
			return true;
	return false;
}

/* The marks that env.c leaves in every guest's environment. */
static int marked(void *ctx, pid_t pid)
{
	struct search *s = ctx;
	struct proc_info p;
	char text[300], want[32];

	if (pid == getpid() || listed(s->found, pid))
		return 0;
	if (proc_environ_get(pid, "RECLAIM_JOB_ID", text, sizeof(text)) < 0 || strcmp(text, s->job))
		return 0;
	(void)snprintf(want, sizeof(want), "%llu", (unsigned long long)s->epoch);
	if (s->epoch && (proc_environ_get(pid, "RECLAIM_EPOCH", text, sizeof(text)) < 0 || strcmp(text, want)))
		return 0;
	if (proc_read(pid, false, &p) < 0 || p.state == 'Z' || p.state == 'X')
		return 0;
	return VEC_PUSH(s->found, pid);
}

static int group_open(const char *cgroup_parent, const char *job, uint64_t epoch, struct cgroup **ret)
{
	struct cgroup_caps caps;
	char name[300];

	if (!cgroup_parent || !epoch)
		return -ENOENT;
	cgroup_probe("/proc/self/mountinfo", &caps);
	(void)snprintf(name, sizeof(name), "%s.%llu", job, (unsigned long long)epoch);
	return cgroup_open(&caps, cgroup_parent, name, ret);
}

int leftover_find(const char *cgroup_parent, const char *job, uint64_t epoch, struct pid_list *ret)
{
	struct pid_list found = VEC_INIT;
	struct search s = { job, epoch, &found };
	struct cgroup *cg = NULL;
	int r = group_open(cgroup_parent, job, epoch, &cg);

	if (r == 0)
		r = cgroup_pids(cg, &found);
	cgroup_free(cg);
	if (r == 0 || r == -ENOENT)
		r = proc_each(marked, &s);
	if (r < 0) {
		VEC_DONE(&found);
		return r;
	}
	*ret = found;
	return 0;
}

int leftover_kill(const char *cgroup_parent, const char *job, uint64_t epoch, uint64_t timeout_ns,
		  struct pid_list *ret_left)
{
	uint64_t end = clock_boot_ns() + timeout_ns;
	struct cgroup *cg = NULL;
	int r;

	(void)group_open(cgroup_parent, job, epoch, &cg); /* none is fine */
	for (;;) {
		struct pid_list left = VEC_INIT;

		if (cg)
			(void)cgroup_kill(cg); /* looked at below */
		r = leftover_find(cgroup_parent, job, epoch, &left);
		if (r < 0)
			break;
		if (left.count == 0) {
			VEC_DONE(&left);
			if (cg)
				(void)cgroup_remove(cg); /* busy by a zombie: removed with the next */
			break;
		}
		if (clock_boot_ns() >= end) {
			r = -EBUSY;
			if (ret_left)
				*ret_left = left;
			else
				VEC_DONE(&left);
			break;
		}
		VEC_EACH(&left, pid)
			if (*pid > 1)
				(void)kill(*pid, SIGKILL); /* gone already is fine */
		VEC_DONE(&left);
		(void)poll(NULL, 0, 2); /* exits take a moment; then look again */
	}
	cgroup_free(cg);
	return r;
}

void leftover_run_folder(const char *dir)
{
	static const char prefix[] = "/dev/shm/reclaim-secrets-"; /* as prepare.c names them */
	char link[4300], target[256];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "%s/secrets", dir);
	n = readlink(link, target, sizeof(target) - 1);
	if (n > 0) {
		target[n] = '\0';
		if (!strncmp(target, prefix, sizeof(prefix) - 1) && !strchr(target + sizeof(prefix) - 1, '/'))
			(void)dir_remove_all(target); /* of this boot; gone with the next in any case */
	}
	(void)dir_remove_all(dir); /* nothing but names is left in it */
}

void leftover_files(const char *run_dir, const char *job, uint64_t epoch)
{
	char path[4200];

	(void)snprintf(path, sizeof(path), "%s/%s.%llu", run_dir, job, (unsigned long long)epoch);
	leftover_run_folder(path);
	(void)snprintf(path, sizeof(path), "%s/%s.%llu.sock", run_dir, job, (unsigned long long)epoch);
	(void)unlink(path); /* a shim that ended by itself has removed it */
}
