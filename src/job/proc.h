/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes as /proc shows them. A pid is only a name that is used again: what is
 * read here is a snapshot, and killing goes by cgroup, namespace or pidfd.
 */
#ifndef RECLAIM_JOB_PROC_H
#define RECLAIM_JOB_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/vec.h"
#include "job/leftover.h"

struct proc_info {
	pid_t pid, ppid, pgid, sid;
	char state;            /* R S D T t Z X */
	char comm[32];
	uint64_t start_ticks;  /* since boot; with pid, a name that is not used again */
	uint64_t cpu_ticks;    /* its own, without its children's */
	uint64_t caught, ignored, blocked; /* signals, bit signo - 1 */
	uint64_t command_hash; /* of the command line; equal after a fork without exec */
};
struct proc_list VEC(struct proc_info);

/* 0, or -ESRCH when it is gone. detail: also signals and command line (two more files). */
int proc_read(pid_t pid, bool detail, struct proc_info *ret);
/* All live descendants of root (root itself not), zombies left out. 0 or -errno. */
int proc_tree(pid_t root, bool detail, struct proc_list *ret);
/* Calls fn for every process; stops at a negative return and gives it back. */
int proc_each(int (*fn)(void *ctx, pid_t pid), void *ctx);
/* Value of NAME in /proc/PID/environ: 0, -ENOENT, or -errno. */
int proc_environ_get(pid_t pid, const char *name, char *buf, size_t buf_size);
/* Kills by pidfd if the process is still the one of start_ticks (0 = whoever). */
int proc_kill(pid_t pid, uint64_t start_ticks, int signo);
/* SIGKILL to all descendants of root, again and again until none is left or the time is up;
 * where the tree grows faster than it is killed it is stopped first. 0, or -EBUSY. */
int proc_tree_kill(pid_t root, uint64_t timeout_ns);

#endif
