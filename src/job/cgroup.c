/* SPDX-License-Identifier: Apache-2.0 */
#include "job/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "job/cgroup_internal.h"

#define CPU_PERIOD_US 100000

const char *const cgroup_controller_names[CGROUP_CONTROLLER_COUNT] = {
	[CGROUP_MEMORY] = "memory",   [CGROUP_CPU] = "cpu",         [CGROUP_PIDS] = "pids",
	[CGROUP_DEVICES] = "devices", [CGROUP_FREEZER] = "freezer", [CGROUP_CPUACCT] = "cpuacct",
};

struct cgroup {
	char v2[CGROUP_PATH_MAX * 2]; /* directories; "" = not there */
	char v1[CGROUP_CONTROLLER_COUNT][CGROUP_PATH_MAX * 2];
	char v2_below[CGROUP_PATH_MAX * 2]; /* v2 without its mount */
	struct cgroup_caps caps;
};

/* ---- small files of the hierarchy ---- */

static int cg_write(const char *dir, const char *file, const char *text)
{
	CLEANUP_FD int fd = -1;
	char path[CGROUP_PATH_MAX * 3];
	int r = path_format(path, sizeof(path), "%s/%s", dir, file);

	if (r < 0)
		return r;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int cg_write_u64(const char *dir, const char *file, uint64_t value)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "%" PRIu64, value);
	return cg_write(dir, file, text);
}

static int cg_read(const char *dir, const char *file, char **ret)
{
	char path[CGROUP_PATH_MAX * 3];
	size_t len;
	int r = path_format(path, sizeof(path), "%s/%s", dir, file);

	return r < 0 ? r : file_read(path, 1u << 22, ret, &len);
}

/* The number after "KEY " in a flat-keyed file, or the file's first number if key is NULL. */
static uint64_t cg_read_u64(const char *dir, const char *file, const char *key)
{
	CLEANUP_FREE char *text = NULL;
	unsigned long long n = 0;
	const char *at;

	if (cg_read(dir, file, &text) < 0)
		return 0;
	at = text;
	if (key) {
		size_t len = strlen(key);

		while (at && (strncmp(at, key, len) || at[len] != ' ')) {
			at = strchr(at, '\n');
			at = at ? at + 1 : NULL;
		}
		if (!at)
			return 0;
		at += len;
	}
	return sscanf(at, "%llu", &n) == 1 ? n : 0;
}

static bool cg_exists(const char *dir, const char *file)
{
	char path[CGROUP_PATH_MAX * 3];

	return path_format(path, sizeof(path), "%s/%s", dir, file) == 0 && access(path, F_OK) == 0;
}

/* ---- probe ---- */

static bool has_word(const char *text, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = text; (p = strstr(p, word)); p += len)
		if ((p == text || p[-1] == ' ' || p[-1] == ',') &&
		    (!p[len] || p[len] == ' ' || p[len] == ',' || p[len] == '\n'))
			return true;
	return false;
}

/* Under a delegation (user@.service, or a unit with Delegate=) only our own subtree is ours. */
static void own_v2_path(const char *mount, char *ret, size_t ret_size)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	const char *at;

	(void)snprintf(ret, ret_size, "%s", mount);
	if (access(mount, W_OK) == 0 && geteuid() == 0)
		return;
	if (file_read("/proc/self/cgroup", 65536, &text, &len) < 0 || !(at = strstr(text, "0::/"))) {
		ret[0] = '\0';
		return;
	}
	at += 3;
	if (path_format(ret, ret_size, "%s%.*s", mount, (int)strcspn(at, "\n"), at) < 0) {
		ret[0] = '\0';
		return;
	}
	/* Our own processes sit in it: groups for guests go beside, into the part delegated above. */
	if (access(ret, W_OK) < 0)
		ret[0] = '\0';
}

static unsigned v2_controllers(const char *dir)
{
	CLEANUP_FREE char *text = NULL;
	unsigned mask = 0;

	if (cg_read(dir, "cgroup.controllers", &text) < 0)
		return 0;
	for (int c = CGROUP_MEMORY; c <= CGROUP_PIDS; c++)
		if (has_word(text, cgroup_controller_names[c]))
			mask |= 1u << c;
	return mask;
}

/* Core files exist below the root only: look into a group of our own for a moment. */
static void v2_core_files(struct cgroup_caps *caps)
{
	char dir[CGROUP_PATH_MAX + 64];

	(void)snprintf(dir, sizeof(dir), "%s/reclaim-probe.%d", caps->v2, (int)getpid());
	if (mkdir(dir, 0755) < 0) {
		caps->v2[0] = '\0'; /* not ours to use */
		return;
	}
	caps->v2_kill = cg_exists(dir, "cgroup.kill");
	caps->v2_freeze = cg_exists(dir, "cgroup.freeze");
	(void)rmdir(dir); /* empty, so nothing can hold it */
}

static void probe_line(const char *line, struct cgroup_caps *caps)
{
	char mount[CGROUP_PATH_MAX], root[CGROUP_PATH_MAX], type[32], source[64], options[512];
	const char *dash = strstr(line, " - ");

	/* "ID PARENT DEV ROOT MOUNT OPTIONS [optional...] - TYPE SOURCE SUPER" */
	if (!dash || sscanf(line, "%*d %*d %*s %511s %511s", root, mount) != 2 ||
	    sscanf(dash + 3, "%31s %63s %511s", type, source, options) != 3)
		return;
	if (!strcmp(type, "cgroup2") && !caps->v2_mount[0]) {
		(void)snprintf(caps->v2_mount, sizeof(caps->v2_mount), "%s", mount);
		own_v2_path(mount, caps->v2, sizeof(caps->v2));
		return;
	}
	if (strcmp(type, "cgroup"))
		return;
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT; c++)
		if (!caps->v1[c][0] && has_word(options, cgroup_controller_names[c]) &&
		    access(mount, W_OK) == 0)
			(void)snprintf(caps->v1[c], sizeof(caps->v1[c]), "%s", mount);
}

void cgroup_probe(const char *mountinfo, struct cgroup_caps *ret)
{
	CLEANUP_FREE char *text = NULL;
	char *save = NULL;
	size_t len;

	*ret = (struct cgroup_caps){ .v2_controllers = 0 };
	if (file_read(mountinfo, 4u << 20, &text, &len) < 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		probe_line(line, ret);
	if (ret->v2[0])
		v2_core_files(ret);
	if (ret->v2[0])
		ret->v2_controllers = v2_controllers(ret->v2);
}

const char *cgroup_caps_format(const struct cgroup_caps *caps, char *buf, size_t buf_size)
{
	char limits[128] = "", v1[128] = "";

	for (int c = 0; c < CGROUP_CONTROLLER_COUNT; c++) {
		size_t n = strlen(limits), n1 = strlen(v1);

		if (caps->v2_controllers & (1u << c))
			(void)snprintf(limits + n, sizeof(limits) - n, " %s", cgroup_controller_names[c]);
		if (caps->v1[c][0])
			(void)snprintf(v1 + n1, sizeof(v1) - n1, " %s", cgroup_controller_names[c]);
	}
	if (!caps->v2[0] && !v1[0])
		(void)snprintf(buf, buf_size, "none that we may write");
	else
		(void)snprintf(buf, buf_size, "%s%s%s%s%s%s", caps->v2[0] ? "v2" : "no v2",
			       caps->v2[0] && caps->v2_freeze && caps->v2_kill ? " (freeze, kill)" : "",
			       limits[0] ? " limits:" : "", limits, v1[0] ? "; v1:" : "", v1);
	return buf;
}

/* ---- making and finding ---- */

static int make_below(const char *mount, const char *below, bool v2, unsigned controllers)
{
	char path[CGROUP_PATH_MAX * 2];
	size_t base = strlen(mount);
	int r = path_format(path, sizeof(path), "%s/%s", mount, below);

	if (r < 0)
		return r;
	for (char *p = path + base + 1;; p++) {
		bool last = !*p;

		if (*p != '/' && *p)
			continue;
		*p = '\0';
		if (v2 && controllers) {
			/* On v2 a group has what its parent hands down. */
			char *slash = strrchr(path, '/');

			*slash = '\0';
			for (int c = CGROUP_MEMORY; c <= CGROUP_PIDS; c++)
				if (controllers & (1u << c)) {
					char word[32];

					(void)snprintf(word, sizeof(word), "+%s", cgroup_controller_names[c]);
					(void)cg_write(path, "cgroup.subtree_control",
						       word); /* a refusal shows when the limit is set */
				}
			*slash = '/';
		}
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return -errno;
		if (last)
			return 0;
		*p = '/';
	}
}

static int set_paths(const struct cgroup_caps *caps, const char *parent, const char *name, struct cgroup *cg)
{
	int r = 0;

	cg->caps = *caps;
	if (caps->v2[0]) {
		r = path_format(cg->v2, sizeof(cg->v2), "%s/%s/%s", caps->v2, parent, name);
		(void)snprintf(cg->v2_below, sizeof(cg->v2_below), "%s", cg->v2 + strlen(caps->v2_mount) + 1);
	}
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT && r == 0; c++) {
		if (!caps->v1[c][0])
			continue;
		if (c == CGROUP_FREEZER && caps->v2[0] && caps->v2_freeze && caps->v2_kill)
			continue; /* a v1-frozen task ignores SIGKILL: use v2's where there is one */
		r = path_format(cg->v1[c], sizeof(cg->v1[c]), "%s/%s/%s", caps->v1[c], parent, name);
	}
	return r;
}

int cgroup_new(const struct cgroup_caps *caps, const char *parent, const char *name, struct cgroup **ret,
	       struct diag *diag)
{
	CLEANUP_FREE struct cgroup *cg = calloc(1, sizeof(*cg));
	char below[CGROUP_PATH_MAX];
	bool any = false;
	int r;

	if (!cg)
		return diag_set(diag, -ENOMEM, "cgroup", "out of memory");
	r = set_paths(caps, parent, name, cg);
	if (r == 0)
		r = path_format(below, sizeof(below), "%s/%s", parent, name);
	if (r < 0)
		return diag_set(diag, r, "cgroup", "%s/%s is too long", parent, name);
	if (cg->v2[0]) {
		r = make_below(caps->v2, below, true, caps->v2_controllers);
		if (r < 0)
			return diag_set(diag, r, cg->v2, "cannot be made: %s", strerror(-r));
		any = true;
	}
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT; c++) {
		if (!cg->v1[c][0])
			continue;
		r = make_below(caps->v1[c], below, false, 0);
		if (r < 0)
			cg->v1[c][0] = '\0'; /* cgroup_limit() names what cannot be limited */
		else
			any = true;
	}
	if (!any)
		return diag_set(diag, -ENOTSUP, "cgroup", "no hierarchy that we may write");
	*ret = TAKE(cg);
	return 0;
}

int cgroup_open(const struct cgroup_caps *caps, const char *parent, const char *name, struct cgroup **ret)
{
	CLEANUP_FREE struct cgroup *cg = calloc(1, sizeof(*cg));
	bool any = false;
	int r;

	if (!cg)
		return -ENOMEM;
	r = set_paths(caps, parent, name, cg);
	if (r < 0)
		return r;
	if (cg->v2[0] && access(cg->v2, F_OK) < 0)
		cg->v2[0] = '\0';
	any = cg->v2[0];
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT; c++) {
		if (cg->v1[c][0] && access(cg->v1[c], F_OK) < 0)
			cg->v1[c][0] = '\0';
		any |= cg->v1[c][0];
	}
	if (!any)
		return -ENOENT;
	*ret = TAKE(cg);
	return 0;
}

void cgroup_free(struct cgroup *cg)
{
	free(cg);
}

const char *cgroup_v2_path(const struct cgroup *cg)
{
	return cg->v2[0] ? cg->v2_below : NULL;
}

/* ---- limits ---- */

struct lacks {
	char (*items)[CGROUP_LACK_MAX];
	size_t max, count;
};

static void lack(struct lacks *l, const char *what, const char *why)
{
	if (l->count < l->max)
		(void)snprintf(l->items[l->count++], CGROUP_LACK_MAX, "%.40s limit: %.80s", what, why);
}

static void limit_memory(struct cgroup *cg, uint64_t max, struct lacks *l)
{
	const char *v1 = cg->v1[CGROUP_MEMORY];
	int r = -ENOTSUP;

	if (cg->v2[0] && (cg->caps.v2_controllers & (1u << CGROUP_MEMORY))) {
		r = cg_write_u64(cg->v2, "memory.max", max);
		(void)cg_write(cg->v2, "memory.swap.max", "0");  /* absent without swap accounting */
		(void)cg_write(cg->v2, "memory.oom.group", "1"); /* half a job is no job */
	} else if (v1[0]) {
		r = cg_write_u64(v1, "memory.limit_in_bytes", max);
		(void)cg_write_u64(v1, "memory.memsw.limit_in_bytes", max); /* as above */
	}
	if (r < 0)
		lack(l, "memory", r == -ENOTSUP ? "no controller" : strerror(-r));
}

static void limit_cpu(struct cgroup *cg, uint64_t milli, struct lacks *l)
{
	const char *v1 = cg->v1[CGROUP_CPU];
	uint64_t quota = milli * CPU_PERIOD_US / 1000;
	char text[64];
	int r = -ENOTSUP;

	quota = MAX(quota, UINT64_C(1000)); /* the kernel's least */
	if (cg->v2[0] && (cg->caps.v2_controllers & (1u << CGROUP_CPU))) {
		(void)snprintf(text, sizeof(text), "%" PRIu64 " %d", quota, CPU_PERIOD_US);
		r = cg_write(cg->v2, "cpu.max", text);
		(void)cg_write(cg->v2, "cpu.weight", "1"); /* the owner's own work comes first */
	} else if (v1[0]) {
		(void)cg_write_u64(v1, "cpu.cfs_period_us", CPU_PERIOD_US);
		r = cg_write_u64(v1, "cpu.cfs_quota_us", quota);
		(void)cg_write(v1, "cpu.shares", "2");
	}
	if (r < 0)
		lack(l, "cpu", r == -ENOTSUP ? "no controller" : strerror(-r));
}

static void limit_pids(struct cgroup *cg, uint64_t max, struct lacks *l)
{
	const char *v1 = cg->v1[CGROUP_PIDS];
	int r = -ENOTSUP;

	if (cg->v2[0] && (cg->caps.v2_controllers & (1u << CGROUP_PIDS)))
		r = cg_write_u64(cg->v2, "pids.max", max);
	else if (v1[0])
		r = cg_write_u64(v1, "pids.max", max);
	if (r < 0)
		lack(l, "pids", r == -ENOTSUP ? "no controller" : strerror(-r));
}

int cgroup_limit(struct cgroup *cg, const struct cgroup_limits *limits, char (*lacks)[CGROUP_LACK_MAX],
		 size_t lacks_max, size_t *ret_lacks)
{
	struct lacks l = { lacks, lacks_max, 0 };

	if (limits->memory_max)
		limit_memory(cg, limits->memory_max, &l);
	if (limits->cores_milli)
		limit_cpu(cg, limits->cores_milli, &l);
	if (limits->pids_max)
		limit_pids(cg, limits->pids_max, &l);
	if (limits->devices) {
		int r = -ENOTSUP;

		if (cg->v1[CGROUP_DEVICES][0])
			r = cgroup_devices_v1(cg->v1[CGROUP_DEVICES], limits->device_paths, limits->device_count);
		else if (cg->v2[0])
			r = cgroup_devices_v2(cg->v2, limits->device_paths, limits->device_count);
		if (r < 0)
			lack(&l, "devices", r == -ENOTSUP ? "no controller" : strerror(-r));
	}
	if (ret_lacks)
		*ret_lacks = l.count;
	return 0;
}

int cgroup_attach(struct cgroup *cg, pid_t pid)
{
	int r = 0;

	if (cg->v2[0])
		r = cg_write_u64(cg->v2, "cgroup.procs", (uint64_t)pid);
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT && r == 0; c++)
		if (cg->v1[c][0])
			r = cg_write_u64(cg->v1[c], "cgroup.procs", (uint64_t)pid);
	return r;
}

/* ---- freezing and killing ---- */

/* Waits for a change of a kernel file that has poll support (cgroup.events), at most 10 ms a
 * time, since the v1 files have none. */
static void wait_change(const char *dir, const char *file)
{
	CLEANUP_FD int fd = -1;
	char path[CGROUP_PATH_MAX * 3], text[256];
	struct pollfd pfd = { .events = POLLPRI };

	if (path_format(path, sizeof(path), "%s/%s", dir, file) == 0)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	pfd.fd = fd;
	if (fd >= 0)
		(void)!read(fd, text, sizeof(text)); /* arms the poll */
	(void)poll(&pfd, fd >= 0, fd >= 0 ? 2 : 1);
}

static int freeze_v2(struct cgroup *cg, bool frozen, uint64_t end)
{
	int r = cg_write(cg->v2, "cgroup.freeze", frozen ? "1" : "0");

	if (r < 0)
		return r;
	while (cg_read_u64(cg->v2, "cgroup.events", "frozen") != frozen) {
		if (clock_boot_ns() >= end)
			return -ETIMEDOUT;
		wait_change(cg->v2, "cgroup.events");
	}
	return 0;
}

static int freeze_v1(struct cgroup *cg, bool frozen, uint64_t end)
{
	const char *want = frozen ? "FROZEN" : "THAWED";

	for (;;) {
		CLEANUP_FREE char *text = NULL;
		int r = cg_write(cg->v1[CGROUP_FREEZER], "freezer.state", want);

		if (r == 0)
			r = cg_read(cg->v1[CGROUP_FREEZER], "freezer.state", &text);
		if (r < 0)
			return r;
		if (!strncmp(text, want, strlen(want)))
			return 0;
		if (clock_boot_ns() >= end)
			return -ETIMEDOUT;
		(void)poll(NULL, 0, 1);
	}
}

int cgroup_freeze(struct cgroup *cg, bool frozen, uint64_t timeout_ns)
{
	uint64_t end = clock_boot_ns() + timeout_ns;

	if (cg->v2[0] && cg->caps.v2_freeze)
		return freeze_v2(cg, frozen, end);
	if (cg->v1[CGROUP_FREEZER][0])
		return freeze_v1(cg, frozen, end);
	return -ENOTSUP;
}

/* Any hierarchy lists all of a guest's processes; the first there is will do. */
static const char *list_dir(const struct cgroup *cg)
{
	if (cg->v2[0])
		return cg->v2;
	if (cg->v1[CGROUP_FREEZER][0])
		return cg->v1[CGROUP_FREEZER];
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT; c++)
		if (cg->v1[c][0])
			return cg->v1[c];
	return NULL;
}

int cgroup_pids(struct cgroup *cg, struct pid_list *ret)
{
	struct pid_list pids = VEC_INIT;
	CLEANUP_FREE char *text = NULL;
	const char *dir = list_dir(cg);
	char *save = NULL;
	int r;

	if (!dir)
		return -ENOTSUP;
	r = cg_read(dir, "cgroup.procs", &text);
	if (r == -ENOENT || r == -ENODEV)
		r = 0; /* the group is gone, and nobody was in it */
	for (char *t = text ? strtok_r(text, "\n", &save) : NULL; t && r == 0; t = strtok_r(NULL, "\n", &save)) {
		struct proc_info p;
		pid_t pid = (pid_t)atoi(t);

		/* pid 0: a process of a pid namespace that we cannot see. It counts. */
		if (pid == 0 || (proc_read(pid, false, &p) == 0 && p.state != 'Z' && p.state != 'X'))
			r = VEC_PUSH(&pids, pid);
	}
	if (r < 0) {
		VEC_DONE(&pids);
		return r;
	}
	*ret = pids;
	return 0;
}

static int kill_listed(struct cgroup *cg)
{
	struct pid_list pids = VEC_INIT;
	int r = cgroup_pids(cg, &pids);

	if (r < 0)
		return r;
	VEC_EACH(&pids, pid)
		if (*pid > 0)
			(void)kill(*pid, SIGKILL); /* gone already is fine */
	VEC_DONE(&pids);
	return 0;
}

int cgroup_kill(struct cgroup *cg)
{
	int r;

	if (cg->v2[0] && cg->caps.v2_kill)
		return cg_write(cg->v2, "cgroup.kill", "1");
	/* Without cgroup.kill: nobody forks while frozen; the kills take effect with the thaw
	 * (v1), or at once (v2 before 5.14). */
	r = cgroup_freeze(cg, true, 200 * NS_PER_MS);
	for (int round = 0; round < 20; round++) {
		struct pid_list left = VEC_INIT;
		size_t n;
		int k = kill_listed(cg);

		if (r != -ENOTSUP)
			(void)cgroup_freeze(cg, false, 200 * NS_PER_MS);
		if (k < 0 || cgroup_pids(cg, &left) < 0)
			return k;
		n = left.count;
		VEC_DONE(&left);
		if (!n)
			return 0;
		if (r != -ENOTSUP)
			(void)cgroup_freeze(cg, true, 50 * NS_PER_MS);
	}
	if (r != -ENOTSUP)
		(void)cgroup_freeze(cg, false, 200 * NS_PER_MS);
	return 0;
}

int cgroup_wait_empty(struct cgroup *cg, uint64_t timeout_ns)
{
	uint64_t end = clock_boot_ns() + timeout_ns;

	for (;;) {
		struct pid_list left = VEC_INIT;
		int r = cgroup_pids(cg, &left);
		size_t n = left.count;

		VEC_DONE(&left);
		if (r < 0 || n == 0)
			return r;
		if (clock_boot_ns() >= end)
			return -ETIMEDOUT;
		wait_change(cg->v2[0] ? cg->v2 : list_dir(cg), "cgroup.events");
	}
}

int cgroup_remove(struct cgroup *cg)
{
	int r = 0;

	if (cg->v2[0] && rmdir(cg->v2) < 0 && errno != ENOENT)
		r = -errno;
	for (int c = 0; c < CGROUP_CONTROLLER_COUNT; c++)
		if (cg->v1[c][0] && rmdir(cg->v1[c]) < 0 && errno != ENOENT && r == 0)
			r = -errno;
	return r;
}

void cgroup_usage(struct cgroup *cg, struct cgroup_usage *ret)
{
	struct cgroup_usage u = { 0 };

	if (cg->v1[CGROUP_CPUACCT][0])
		u.cpu_ns = cg_read_u64(cg->v1[CGROUP_CPUACCT], "cpuacct.usage", NULL);
	else if (cg->v2[0])
		u.cpu_ns = cg_read_u64(cg->v2, "cpu.stat", "usage_usec") * 1000;
	if (cg->v1[CGROUP_MEMORY][0]) {
		u.memory_peak = cg_read_u64(cg->v1[CGROUP_MEMORY], "memory.max_usage_in_bytes", NULL);
		u.memory_now = cg_read_u64(cg->v1[CGROUP_MEMORY], "memory.usage_in_bytes", NULL);
		u.oom_kills = cg_read_u64(cg->v1[CGROUP_MEMORY], "memory.oom_control", "oom_kill");
	} else if (cg->v2[0]) {
		u.memory_peak = cg_read_u64(cg->v2, "memory.peak", NULL);
		u.memory_now = cg_read_u64(cg->v2, "memory.current", NULL);
		u.oom_kills = cg_read_u64(cg->v2, "memory.events", "oom_kill");
	}
	*ret = u;
}
