/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an exit means. The commit record is the truth and exit codes are hints: a
 * wrapper may turn 85 into 1, a killed trainer may leave 0 behind. So during a
 * notice nothing counts as a failure, and outside one only what the program did
 * by itself. Pure; docs/job-contract.md has this table.
 */
#ifndef RECLAIM_JOB_VERDICT_H
#define RECLAIM_JOB_VERDICT_H

#include <stdbool.h>
#include <stddef.h>

#include "job/shim_proto.h"

#define EXIT_RESTART 85 /* HTCondor's checkpoint_exit_code by custom: "saved, start me again" */

struct exit_facts {
	int status;           /* exit status, or 128 + signal */
	int signal;           /* 0 = exited by itself */
	int stopped_for;      /* enum shim_end: why we killed it; NONE = we did not */
	bool notice;          /* a notice stood when it ended */
	bool requeue_asked;   /* by scontrol requeue, or through the guest's socket */
	bool committed_since_notice;
	bool checkpoint_used; /* a commit exists in its checkpoint folder, old or new */
	bool done_on_notice_exit;
	bool oom;             /* its memory limit killed it */
	bool started;         /* the guest's program was executed */
};

/* The end, and in words why (borrowed, static or in buf). */
enum shim_end exit_verdict(const struct exit_facts *facts, char *buf, size_t buf_size);

#endif
