/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim-cut: the owner's last resort. Without root and with the agent dead
 * it cuts all guests' packets and kills their processes, and nothing else.
 *
 *     reclaim-cut [--run RUN_DIR]      default /run/reclaim
 *
 * It runs with root's rights (set-user-id, or file capabilities bpf,
 * net_admin, sys_admin, dac_override, kill) on behalf of a user, so: no
 * environment, no library but libc (linked statically: no loader either), no
 * exec, no path from the user but RUN_DIR, which root must own all the way up
 * with nobody else able to write. What to do stands in RUN_DIR/edge.cut,
 * under the same condition; who may, too. Rights go in two steps as they are
 * used up.
 *
 * Order as for any kill: flag, purge, processes, proof. A failed step does
 * not stop the next one. Prints one line per step; exit 0 only if everything
 * is proven, 1 otherwise, 2 for wrong usage or no permission.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "edge/cut_file.h"
#include "edge/cut_plan.h"
#include "edge/edge_abi.h"
#include "edge/purge.h"

#define RUN_DIR_DEFAULT "/run/reclaim"
#define TREE_GUEST0 0x52430100u /* tree.h, which needs libnl */
#define PROOF_MS 5000
#define DEPTH_MAX 16
#define GROUPS_MAX 65536

#define CAP(c) (UINT64_C(1) << (c))
#define CAPS_PACKETS (CAP(CAP_BPF) | CAP(CAP_NET_ADMIN) | CAP(CAP_SYS_ADMIN))
#define CAPS_PROCESSES (CAP(CAP_DAC_OVERRIDE) | CAP(CAP_KILL))

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_BOOTTIME, &t); /* exists on every kernel with BPF */
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int refuse(const char *what, const char *why)
{
	(void)fprintf(stderr, "reclaim-cut: %s: %s\n", what, why);
	return 2;
}

/* --- rights --------------------------------------------------------------- */

static bool caps_keep(uint64_t keep)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	uint64_t permitted;

	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	permitted = (data[0].permitted | (uint64_t)data[1].permitted << 32) & keep;
	for (int i = 0; i < 2; i++) {
		data[i].permitted = data[i].effective = (uint32_t)(permitted >> (32 * i));
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &head, data) == 0;
}

/* From here on: the user's ids, and of root's rights only those of the two steps. */
static bool rights_narrow(void)
{
	uid_t uid = getuid();
	gid_t gid = getgid();

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return false;
	if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
		return false;
	return caps_keep(CAPS_PACKETS | CAPS_PROCESSES);
}

static bool in_group(uint32_t gid)
{
	gid_t *groups;
	bool found = getgid() == gid;
	int n = getgroups(0, NULL);

	if (found || n <= 0 || n > GROUPS_MAX)
		return found;
	groups = calloc((size_t)n, sizeof(*groups));
	n = groups ? getgroups(n, groups) : 0;
	for (int i = 0; i < n && !found; i++)
		found = groups[i] == gid;
	free(groups);
	return found;
}

/* --- the plan ------------------------------------------------------------- */

/* Root's, and nobody else can put something else in its place. */
static bool is_roots(int fd, bool folder)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || st.st_uid != 0 || (folder ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode)))
		return false;
	/* A sticky folder lets others add, not replace: the next level is checked as well. */
	return !(st.st_mode & (S_IWGRP | S_IWOTH)) || (folder && (st.st_mode & S_ISVTX));
}

/* Every level checked as it is entered; no links. */
static int open_roots(const char *path)
{
	char copy[CUT_PATH_MAX], *save = NULL;
	int at;

	if (path[0] != '/' || strlen(path) >= sizeof(copy))
		return -1;
	memcpy(copy, path, strlen(path) + 1);
	at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (char *name = strtok_r(copy, "/", &save); name && at >= 0; name = strtok_r(NULL, "/", &save)) {
		int next = is_roots(at, true) && strcmp(name, "..") != 0
				   ? openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
				   : -1;

		(void)close(at);
		at = next;
	}
	if (at >= 0 && !is_roots(at, true)) {
		(void)close(at);
		return -1;
	}
	return at;
}

static int plan_load(const char *run_dir, struct cut_plan *ret)
{
	char text[CUT_FILE_MAX + 1];
	unsigned line = 0;
	ssize_t n;
	int dir = open_roots(run_dir), fd;

	if (dir < 0)
		return refuse(run_dir, "not there, or not root's alone");
	fd = openat(dir, CUT_FILE_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	(void)close(dir);
	if (fd < 0)
		return refuse(CUT_FILE_NAME, "no edge was set up here");
	if (!is_roots(fd, false)) {
		(void)close(fd);
		return refuse(CUT_FILE_NAME, "not root's alone");
	}
	n = read(fd, text, sizeof(text));
	(void)close(fd);
	if (n < 0 || n > CUT_FILE_MAX)
		return refuse(CUT_FILE_NAME, "unreadable or too long");
	text[n] = '\0';
	if (cut_plan_parse(text, ret, &line) < 0) {
		(void)fprintf(stderr, "reclaim-cut: " CUT_FILE_NAME ":%u: not understood\n", line);
		return 2;
	}
	return 0;
}

/* --- packets -------------------------------------------------------------- */

static int bpf_get(const char *dir, const char *name)
{
	char path[CUT_PATH_MAX + 64];
	union bpf_attr attr = { 0 };

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	attr.pathname = (uintptr_t)path;
	return (int)syscall(SYS_bpf, BPF_OBJ_GET, &attr, sizeof(attr));
}

static int bpf_element(int cmd, int fd, uint32_t key, void *value)
{
	union bpf_attr attr = { .map_fd = (uint32_t)fd };

	attr.key = (uintptr_t)&key;
	attr.value = (uintptr_t)value;
	return (int)syscall(SYS_bpf, cmd, &attr, sizeof(attr));
}

static bool cut_flag(const struct cut_plan *p)
{
	int fd = bpf_get(p->bpf, "edge_kill");
	uint32_t one = 1, back = 0;
	bool ok = fd >= 0 && bpf_element(BPF_MAP_UPDATE_ELEM, fd, EDGE_ABI_KILL_ALL, &one) == 0 &&
		  bpf_element(BPF_MAP_LOOKUP_ELEM, fd, EDGE_ABI_KILL_ALL, &back) == 0 && back == 1;

	if (fd >= 0)
		(void)close(fd);
	return ok;
}

/* The edge's namespace if this is another one: looked for where `ip netns` keeps names. */
static bool enter_netns(const struct cut_plan *p)
{
	static const char folder[] = "/run/netns";
	struct stat st;
	struct dirent *d;
	bool found = false;
	DIR *dir;

	if (stat("/proc/self/ns/net", &st) == 0 && st.st_dev == p->netns_dev && st.st_ino == p->netns_ino)
		return true;
	dir = opendir(folder);
	while (dir && !found && (d = readdir(dir))) {
		int fd = openat(dirfd(dir), d->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

		found = fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == p->netns_dev &&
			st.st_ino == p->netns_ino && setns(fd, CLONE_NEWNET) == 0;
		if (fd >= 0)
			(void)close(fd);
	}
	if (dir)
		(void)closedir(dir);
	return found;
}

/* 1 purged, 0 nothing to purge, -1 failed. */
static int cut_purge(const struct cut_plan *p)
{
	uint32_t leaves[EDGE_ABI_SLOTS];
	char name[32];
	size_t n = 0;
	int fd, nl, err;

	if (p->leaf == 0)
		return 0;
	(void)snprintf(name, sizeof(name), "edge_guest_v%d", EDGE_ABI_VERSION);
	fd = bpf_get(p->bpf, name);
	for (uint32_t slot = 0; fd >= 0 && slot < EDGE_ABI_SLOTS; slot++) {
		struct edge_abi_guest g;

		if (bpf_element(BPF_MAP_LOOKUP_ELEM, fd, slot, &g) == 0 && (g.flags & EDGE_ABI_GUEST_ACTIVE))
			leaves[n++] = TREE_GUEST0 + slot;
	}
	if (fd < 0 || !enter_netns(p))
		return -1;
	(void)close(fd);
	nl = purge_open();
	if (nl < 0)
		return -1;
	err = purge_leaves(nl, p->ifindex, leaves, n, p->leaf);
	(void)close(nl);
	return err < 0 ? -1 : n > 0;
}

/* --- processes ------------------------------------------------------------ */

static int write_file(int dir, const char *name, const char *text)
{
	int fd = openat(dir, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
	int err = fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;

	if (fd >= 0)
		(void)close(fd);
	return err;
}

/* Calls fn on a cgroup and all below it, parents first. */
static void each_cgroup(int dir, int depth, void (*fn)(int dir, void *arg), void *arg)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
	struct dirent *entry;

	fn(dir, arg);
	while (d && depth < DEPTH_MAX && (entry = readdir(d))) {
		int child;

		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		child = openat(dir, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (child < 0)
			continue;
		each_cgroup(child, depth + 1, fn, arg);
		(void)close(child);
	}
	if (d)
		(void)closedir(d);
	else if (copy >= 0)
		(void)close(copy);
}

/* Kills what a cgroup lists and adds the number to *arg. */
static void kill_listed(int dir, void *arg)
{
	int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
	long pid;

	while (f && fscanf(f, "%ld", &pid) == 1)
		if (pid > 1) { /* 0 = a process that this namespace cannot see */
			++*(unsigned *)arg;
			(void)kill((pid_t)pid, SIGKILL); /* gone already is fine */
		}
	if (f)
		(void)fclose(f);
}

static void count_listed(int dir, void *arg)
{
	int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
	long pid;

	while (f && fscanf(f, "%ld", &pid) == 1)
		++*(unsigned *)arg;
	if (f)
		(void)fclose(f);
}

static void thaw(int dir, void *arg)
{
	(void)arg;
	(void)write_file(dir, "freezer.state", "THAWED"); /* the root of a hierarchy has none */
}

/* Until nothing is left below; how many were, at the end. */
static unsigned wait_empty(int dir, bool again)
{
	uint64_t until = now_ns() + PROOF_MS * UINT64_C(1000000);
	int events = openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
	struct pollfd p = { .fd = events, .events = POLLPRI };
	unsigned left;

	for (;;) {
		char text[256];

		left = 0;
		each_cgroup(dir, 0, again ? kill_listed : count_listed, &left);
		if (left == 0 || now_ns() >= until)
			break;
		/* v2 tells when it changes; elsewhere look again soon. Reading arms the poll. */
		if (events >= 0 && pread(events, text, sizeof(text), 0) < 0)
			p.fd = -1; /* the cgroup is gone; the next look says so */
		(void)poll(&p, events >= 0, events >= 0 && !again ? 20 : 2);
	}
	if (events >= 0)
		(void)close(events);
	return left;
}

/* How many processes are left, or -1 if the cgroup cannot be opened. */
static int cut_processes(const struct cut_plan *p)
{
	int v2 = p->cgroup_v2[0] ? open(p->cgroup_v2, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	int v1 = p->cgroup_v1_freezer[0]
			 ? open(p->cgroup_v1_freezer, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
			 : -1;
	bool one_by_one = v2 < 0 || write_file(v2, "cgroup.kill", "1") < 0;
	unsigned left = 0, hit = 0;

	if (one_by_one)
		each_cgroup(v2 >= 0 ? v2 : v1, 0, kill_listed, &hit);
	/* SIGKILL waits in a v1-frozen process until it is thawed; in v2 it does not. */
	if (v1 >= 0)
		each_cgroup(v1, 0, thaw, NULL);
	if (v2 >= 0)
		left += wait_empty(v2, one_by_one);
	if (v1 >= 0)
		left += wait_empty(v1, one_by_one);
	if (v2 >= 0)
		(void)close(v2);
	if (v1 >= 0)
		(void)close(v1);
	/* No cgroup there: no guest was ever started, or all are gone with it. */
	return v2 < 0 && v1 < 0 ? 0 : (int)left;
}

int main(int argc, char **argv)
{
	uint64_t start = now_ns();
	const char *run_dir = argc == 3 ? argv[2] : RUN_DIR_DEFAULT;
	bool flag = true, all = true;
	struct cut_plan plan;
	uint64_t flag_ns, purge_ns;
	int purged = 0, left, err;

	(void)clearenv(); /* nothing here reads it; this makes sure of libc, too */
	/* The guests may keep every CPU busy; without the right to this it only takes longer. */
	(void)sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 });
	if ((argc != 1 && argc != 3) || (argc == 3 && strcmp(argv[1], "--run") != 0) || run_dir[0] != '/')
		return refuse("usage", "reclaim-cut [--run RUN_DIR]   (an absolute path)");
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return 2; /* a file opened later must not become stderr */
	if (!rights_narrow())
		return refuse("rights", strerror(errno));
	err = plan_load(run_dir, &plan);
	if (err)
		return err;
	if (getuid() != 0 && (plan.gid == UINT32_MAX || !in_group(plan.gid)))
		return refuse("permission", "only root and the owners' group may cut");

	if (plan.bpf[0]) {
		flag = cut_flag(&plan);
		flag_ns = now_ns() - start;
		purged = cut_purge(&plan);
		purge_ns = now_ns() - start;
		if (flag)
			(void)printf("packets: cut after %llu us, decided at %llu ns of boot time\n",
				     (unsigned long long)(flag_ns / 1000), (unsigned long long)start);
		else
			(void)printf("packets: NOT cut: the kill map cannot be written\n");
		(void)printf(purged < 0 ? "queues: NOT purged\n" : "queues: empty after %llu us\n",
			     (unsigned long long)(purge_ns / 1000));
		all = flag && purged >= 0;
	} else {
		(void)printf("packets: no edge here to cut them\n");
	}
	if (!caps_keep(CAPS_PROCESSES))
		return refuse("rights", strerror(errno));
	left = cut_processes(&plan);
	if (left == 0)
		(void)printf("processes: none left after %llu us\n",
			     (unsigned long long)((now_ns() - start) / 1000));
	else
		(void)printf("processes: %d NOT gone after %d ms\n", left, PROOF_MS);
	return all && left == 0 ? 0 : 1;
}
