/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who of a guest's processes gets the signal that asks for a save. Pure.
 *
 * FIRST, at the notice: the processes that catch it, without supervisors. A
 * supervisor is a process that catches the signal itself, has a descendant with a
 * program of its own that catches it too, and does none of the work (torchrun,
 * mpirun, a wrapper): told of a stop, such a launcher kills its workers after a
 * time of its own, in the middle of their save. Processes that do not catch the
 * signal would die of it and are left alone. If nobody catches it, a job whose
 * driver is `signal` gets it everywhere, as Slurm would do; another gets none.
 *
 * LAST, near the end, if nothing was saved: every process in every process group.
 *
 * B: the top process alone, both times.
 */
#ifndef RECLAIM_JOB_SIGNAL_PLAN_H
#define RECLAIM_JOB_SIGNAL_PLAN_H

#include <stdbool.h>

#include "job/proc.h"
#include "job/spec.h"

enum signal_stage { SIGNAL_FIRST, SIGNAL_LAST };

/* procs: the guest's processes with detail; top: its first process. Appends to ret. */
int signal_plan(const struct proc_list *procs, pid_t top, const struct job_signal *sig, bool insist,
		enum signal_stage stage, struct proc_list *ret);

/* Does any process catch the signal? */
bool signal_is_caught(const struct proc_list *procs, int signo);

#endif
