/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which commit in a checkpoint folder is complete. Reads only; sees the
 * folder through a directory fd and never follows a link out of it.
 *
 * Two kinds of commit are accepted:
 *
 *   manifest  a folder (below the checkpoint folder, or it itself) with a file
 *             MANIFEST, written last and by rename: lines "SIZE SHA256 NAME". It is
 *             complete when every named file is there with that size (ckpt_verify()
 *             compares the digests; the image layer does that when it reads them).
 *   files     plain files of an unmodified program (torch.save, hpc_ckpt_N.ckpt). They
 *             are a commit, all together, once nothing of them changed for `settle` of
 *             the program's own running time and nobody has one open for writing.
 *             Names that look temporary (.tmp, .part, ~, a leading dot) never count.
 *
 * A set that is being written is never offered: the one before it still is, as long as
 * its files stand unchanged, and ckpt_watch_skips() names what does not belong to it.
 * A process that was killed or frozen may have left half of a set behind; that is why
 * files it touched within `settle` before do not count then. A process that ended by
 * itself has written what it wanted to write.
 */
#ifndef RECLAIM_JOB_CKPT_WATCH_H
#define RECLAIM_JOB_CKPT_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"
#include "job/spec.h"

#define CKPT_MANIFEST_NAME "MANIFEST"
#define CKPT_MANIFEST_MAX (16u << 20)
#define CKPT_FILES_MAX 100000
#define CKPT_DEPTH_MAX 8
#define CKPT_SETTLE_NS UINT64_C(300000000)

/* What the program that writes there is doing. */
enum ckpt_still {
	CKPT_RUNNING = 0,
	CKPT_FROZEN, /* stands still where it was, or was killed there */
	CKPT_EXITED, /* ended by itself */
};

struct ckpt_commit {
	bool found;
	char name[256];    /* below the checkpoint folder, "" = the folder itself */
	int format;        /* enum job_ckpt_format: MANIFEST or FILES */
	uint64_t mtime_ns; /* of its last file, wall clock of this machine: order, not age */
	uint64_t changed_ns; /* FILES: when the last of them was written or renamed, same clock */
	uint64_t seq;      /* grows with each commit this watch has seen; 0 = none */
	uint64_t bytes;    /* of its files */
	size_t files;
	bool settling;     /* something newer is being written right now */
	uint64_t wait_ns;  /* settling: look again after this long; 0 = waiting will not help */
};

struct ckpt_watch;

/* format as in the spec; settle_ns 0 = CKPT_SETTLE_NS. The folder must exist. */
int ckpt_watch_new(const char *dir, enum job_ckpt_format format, uint64_t settle_ns,
		   struct ckpt_watch **ret, struct diag *diag);
void ckpt_watch_free(struct ckpt_watch *w);
/* Readable when something changed in the folder: then scan, which also makes it unreadable. */
int ckpt_watch_fd(const struct ckpt_watch *w);
/* Looks at the folder now (now_ns: CLOCK_BOOTTIME). 0 or -errno. */
int ckpt_watch_scan(struct ckpt_watch *w, uint64_t now_ns, enum ckpt_still still, struct ckpt_commit *ret,
		    struct diag *diag);
/*
 * After a scan: what in the folder must stay out of an image of the commit it returned:
 * paths below the folder (a folder stands for all in it), valid until the next scan.
 */
size_t ckpt_watch_skips(const struct ckpt_watch *w, char *const **ret);

/* Digests of a manifest commit (name "" = dir itself): 0, or -EBADMSG with diag naming the file. */
int ckpt_verify(const char *dir, const char *name, struct diag *diag);

#endif
