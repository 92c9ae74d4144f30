/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing of a lab outlives it. The campus runs as the first process of a PID
 * namespace with its own mounts: when it ends, in whatever way, the kernel
 * ends every process in it, and namespaces, mounts and pinned BPF objects go
 * with the last of them. What is left is files: a folder and empty cgroups. A
 * guardian, which nothing but its own end can stop, removes those once the
 * rest is gone. What even a lost guardian leaves, the next lab finds by its
 * unlocked lock file.
 *
 *     guard_run --fork--> guardian (waits for the end of a pipe, cleans)
 *         |
 *         +--fork--> inner: pid 1 of the lab, dies with guard_run
 */
#ifndef RECLAIM_LAB_GUARD_H
#define RECLAIM_LAB_GUARD_H

#include <stdbool.h>

#include "base/diag.h"

struct guard {
	char id[16];       /* of this lab: part of names of cgroups */
	char dir[64];      /* the lab's folder; root: a tmpfs of its own */
	bool root;         /* network namespaces and the like may be made */
	bool pid_namespace; /* the caller is pid 1 in it */
};

/*
 * Runs inner in the lab and returns its exit status, 128 + signal if it was
 * killed, or -errno before it came to that. SIGTERM and SIGHUP (and SIGINT
 * unless interactive) reach it as SIGTERM.
 */
int guard_run(bool interactive, bool want_root, int (*inner)(const struct guard *g, void *arg),
	      void *arg, struct diag *diag);

/* Removes what dead labs left; returns how many there were. */
int guard_clean_stale(void);

/* Prefix of the names that a lab's programs must give their cgroups: "lab-<id>-". */
#define GUARD_CGROUP_PREFIX "lab-"

#endif
