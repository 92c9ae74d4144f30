/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRIU and cuda-checkpoint: are they here, and how they are called.
 *
 * A guest whose driver is criu or cuda lives in the usual sandbox without a user
 * namespace, as a fixed host uid that is the same on every machine. CRIU runs inside the
 * guest's own mount, pid, network, ipc and uts namespaces, as root of the machine, so
 * that it sees one plain tree of processes with the paths the guest sees, and neither
 * saves nor makes namespaces: the next machine makes its own sandbox in the usual way and
 * the tree is restored into it. The machine's libraries have to be visible in there for
 * CRIU itself, so a guest with an image of its own cannot use this driver.
 */
#ifndef RECLAIM_JOB_CRIU_H
#define RECLAIM_JOB_CRIU_H

#include <stdbool.h>
#include <stddef.h>

#include "base/diag.h"

#define CRIU_VERSION_MIN 40200 /* 4.2.0: earlier ones fail on current kernels */

struct criu_info {
	char path[512];   /* of the program */
	unsigned version; /* major * 10000 + minor * 100 + patch */
};

/* program: NULL = $RECLAIM_CRIU, beside our own programs, PATH. 0, -ENOENT, -ENOTSUP
 * (too old), -EPERM (not root). */
int criu_probe(const char *program, struct criu_info *ret, struct diag *diag);
/* Can the driver cuda be used here: cuda-checkpoint on PATH (or $RECLAIM_CUDA_CHECKPOINT), and CRIU? */
int criu_cuda_probe(const struct criu_info *criu, struct diag *diag);

struct criu_job {
	const char *criu;   /* program; opened before namespaces are entered */
	int init_pid;       /* whose namespaces */
	unsigned guest_uid; /* on the host, as its gid */
	int root_pid;       /* dump: the tree's root as seen inside; restore: ignored */
	int dir_fd;         /* image folder */
	int out_fd;         /* restore: the pipe that becomes the guest's output, else -1 */
	unsigned long long pipe_ino; /* of the guest's output pipe when it was dumped */
	bool restore;
	bool leave_stopped; /* dump: the tree stays stopped; else it goes on */
	int (*attach)(void *ctx, int pid); /* restore: puts the child into the guest's cgroup */
	void *attach_ctx;
};

/*
 * Starts CRIU: its pid (a child of the caller), or -errno with diag. It writes criu.log into
 * the image folder. Does not wait.
 */
int criu_start(const struct criu_job *job, struct diag *diag);
/* The last error lines of criu.log, in one line. */
void criu_why(int dir_fd, char *buf, size_t buf_size);

/* cuda-checkpoint --toggle of one process, before a dump and after a restore. Starts it: pid or -errno. */
int cuda_toggle_start(int pid, struct diag *diag);

#endif
