/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of a guest whose shim is gone, found from outside: by its cgroup
 * where it had one, and by the mark in its environment (RECLAIM_JOB_ID and
 * RECLAIM_EPOCH in /proc/PID/environ of its session leader's descendants) where it
 * had none. Blocks for at most the time given; the agent calls it off its hot path.
 */
#ifndef RECLAIM_JOB_LEFTOVER_H
#define RECLAIM_JOB_LEFTOVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/vec.h"

struct pid_list VEC(pid_t);

/* Processes of job/epoch that are alive (zombies are not). epoch 0 = any. 0 or -errno. */
int leftover_find(const char *cgroup_parent, const char *job, uint64_t epoch, struct pid_list *ret);
/* Kills them, waits until they are gone, removes their cgroups: 0, or -EBUSY with those left. */
int leftover_kill(const char *cgroup_parent, const char *job, uint64_t epoch, uint64_t timeout_ns,
		  struct pid_list *ret_left);
/* The same for files, when its shim is gone for good: secrets in memory, the folder of its run
 * (run_dir/<job>.<epoch>) and the shim's socket beside that. */
void leftover_files(const char *run_dir, const char *job, uint64_t epoch);
/* The first two of them, by the folder itself; a shim does it for its own. */
void leftover_run_folder(const char *dir);

#endif
