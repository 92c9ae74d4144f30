/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which commit in a checkpoint folder is complete. Reads only; sees the
 * folder through a directory fd and never follows a link out of it.
 *
 * Two kinds of commit are accepted:
 *
 *   manifest  a folder (below the checkpoint folder, or it itself) with a file
 *             MANIFEST, written last and by rename: lines "SIZE SHA256 NAME". It is
 *             complete when every named file is there with that size and digest.
 *   files     plain files of an unmodified program (torch.save, hpc_ckpt_N.ckpt). A
 *             file counts once it stopped being written: it was renamed into place,
 *             or closed and unchanged for `settle`, and no process has it open for
 *             writing. Names that look temporary (.tmp, .part, ~, a leading dot) never
 *             count. Files that change together within `settle` are one set.
 *
 * A set that is being written is never offered; the one before it still is, as long
 * as the program did not overwrite it in place.
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

struct ckpt_commit {
	bool found;
	char name[256];    /* below the checkpoint folder, "" = the folder itself */
	int format;        /* enum job_ckpt_format: MANIFEST or FILES */
	uint64_t mtime_ns; /* of its last file, wall clock of this machine: order, not age */
	uint64_t seq;      /* grows with each commit this watch has seen; 0 = none */
	uint64_t bytes;    /* of its files */
	size_t files;
	bool settling;     /* something newer is being written right now */
	uint64_t wait_ns;  /* settling: look again after this long */
};

struct ckpt_watch;

/* format as in the spec; settle_ns 0 = 300 ms. The folder must exist. */
int ckpt_watch_new(const char *dir, enum job_ckpt_format format, uint64_t settle_ns,
		   struct ckpt_watch **ret, struct diag *diag);
void ckpt_watch_free(struct ckpt_watch *w);
/* Readable when something changed in the folder: poll it, then scan. */
int ckpt_watch_fd(const struct ckpt_watch *w);
/* Looks at the folder now. With the guest frozen (still = true) nothing is being
 * written: files that are not half-written count at once. */
int ckpt_watch_scan(struct ckpt_watch *w, uint64_t now_ns, bool still, struct ckpt_commit *ret,
		    struct diag *diag);
/* Verifies digests of a manifest commit: 0, -EBADMSG with diag naming the file. */
int ckpt_verify(const char *dir, const char *name, struct diag *diag);

#endif
