/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One guest's control group, whatever the machine has: v2, v1, or both (hybrid:
 * v1 controllers limit, v2 freezes and kills). cgroup_probe() finds out once;
 * what is missing is named, never guessed. Without any, the callers fall back to
 * the process tree (proc.h).
 *
 * Groups are made below a parent that is ours ("reclaim/<agent>"); nothing else in
 * the hierarchy is touched, except that on v2 the controllers are turned on in
 * cgroup.subtree_control on the way down.
 */
#ifndef RECLAIM_JOB_CGROUP_H
#define RECLAIM_JOB_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"
#include "job/proc.h"

enum cgroup_controller {
	CGROUP_MEMORY,
	CGROUP_CPU,
	CGROUP_PIDS,
	CGROUP_DEVICES,
	CGROUP_FREEZER, /* v1 only: v2 has cgroup.freeze in the core */
	CGROUP_CPUACCT, /* v1 only */
	CGROUP_CONTROLLER_COUNT,
};
extern const char *const cgroup_controller_names[CGROUP_CONTROLLER_COUNT];

#define CGROUP_PATH_MAX 512

struct cgroup_caps {
	char v2[CGROUP_PATH_MAX];  /* where our groups may be made: mount (+ delegated part); "" = none */
	char v2_mount[CGROUP_PATH_MAX];
	unsigned v2_controllers;   /* bit per enum cgroup_controller that can limit */
	char v1[CGROUP_CONTROLLER_COUNT][CGROUP_PATH_MAX]; /* mount, "" = none */
	bool v2_kill;              /* cgroup.kill (Linux 5.14) */
	bool v2_freeze;            /* cgroup.freeze (5.2) */
};

/* Looks at the mounts (mountinfo: normally "/proc/self/mountinfo") and at what we may write.
 * Always succeeds: a machine without cgroups has empty paths. */
void cgroup_probe(const char *mountinfo, struct cgroup_caps *ret);
/* "v1+v2 (limits by v1, freeze and kill by v2)", for doctor. Returns buf. */
const char *cgroup_caps_format(const struct cgroup_caps *caps, char *buf, size_t buf_size);

struct cgroup_limits {
	uint64_t memory_max;  /* bytes; 0 = none. Swap is not given on top */
	uint64_t cores_milli; /* 0 = none */
	uint64_t pids_max;    /* 0 = none */
	bool devices;         /* only the standard ones (null, zero, full, random, urandom, tty, pts)
				 and those listed */
	const char *const *device_paths;
	size_t device_count;
};

struct cgroup;

/* Makes parent/name in every hierarchy that serves; an old empty one is taken over.
 * -ENOTSUP when there is none. */
int cgroup_new(const struct cgroup_caps *caps, const char *parent, const char *name,
	       struct cgroup **ret, struct diag *diag);
/* Finds one again by name, without making it: -ENOENT if it is nowhere. */
int cgroup_open(const struct cgroup_caps *caps, const char *parent, const char *name, struct cgroup **ret);
void cgroup_free(struct cgroup *cg); /* the group itself stays */
/* Path below the v2 mount, for reclaim-cut; NULL when there is no v2. */
const char *cgroup_v2_path(const struct cgroup *cg);

/* Sets what can be set. Each limit that could not be is named in lacks ("memory: ..."),
 * at most lacks_max of them; *ret_lacks counts. 0, or -errno for a failure of the whole. */
#define CGROUP_LACK_MAX 128
int cgroup_limit(struct cgroup *cg, const struct cgroup_limits *limits, char (*lacks)[CGROUP_LACK_MAX],
		 size_t lacks_max, size_t *ret_lacks);
int cgroup_attach(struct cgroup *cg, pid_t pid);

/* Waits at most timeout_ns until the kernel says so: 0, -ETIMEDOUT, -ENOTSUP. */
int cgroup_freeze(struct cgroup *cg, bool frozen, uint64_t timeout_ns);
/* SIGKILL to every process in it, thawing a v1-frozen one first. Does not wait. */
int cgroup_kill(struct cgroup *cg);
/* Live processes in it (host pids); zombies do not count. */
int cgroup_pids(struct cgroup *cg, struct pid_list *ret);
/* 0 = nobody is left, -ETIMEDOUT. */
int cgroup_wait_empty(struct cgroup *cg, uint64_t timeout_ns);
/* Removes the directories: 0, or -EBUSY while somebody is in. */
int cgroup_remove(struct cgroup *cg);

struct cgroup_usage {
	uint64_t cpu_ns;      /* 0 = unknown, as all below */
	uint64_t memory_peak;
	uint64_t memory_now;
	uint64_t oom_kills;
};
void cgroup_usage(struct cgroup *cg, struct cgroup_usage *ret);

#endif
