/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's output over all its incarnations, as one log that only grows. An
 * incarnation that resumes from an image writes again what came after that
 * image: those bytes are matched, line by line, against the log's tail and
 * dropped, so that a move neither loses nor repeats a line. A line that is
 * new (nothing of the tail to come equals it) is appended, and matching goes on
 * with the next line. Exact for programs that write the same again; where a
 * program's lines are all alike, an image's place must be known exactly.
 *
 * Two files per job: NAME.log, the text, and NAME.idx, checksummed records
 * that say how far each epoch has come. What was acknowledged survives a kill
 * of the coordinator (both are written before the call returns); joblog_sync()
 * makes it survive power loss. Text beyond what the index vouches for is cut
 * off when the log is opened.
 */
#ifndef RECLAIM_COORDINATOR_JOBLOG_H
#define RECLAIM_COORDINATOR_JOBLOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

#define JOBLOG_EPOCHS_MAX 64 /* whose cursors are remembered */

struct joblog;

/* dir must exist; name is one plain path component. */
int joblog_open(const char *dir, const char *name, uint64_t size_max, struct joblog **ret,
		struct diag *diag);
void joblog_close(struct joblog *l);
/* Removes both files of a log that is not open. */
int joblog_remove(const char *dir, const char *name);

/*
 * Output bytes [offset, offset + len) of an epoch. replay_from: position in the log from which
 * regenerated lines are matched; counts only at an epoch's first piece. ret_stored: up to where
 * this epoch's output is stored: bytes behind a gap are not taken. Pieces of epochs older than
 * the newest are not stored, but counted as such: their fence is elsewhere.
 */
int joblog_output(struct joblog *l, uint64_t epoch, uint64_t replay_from, uint64_t offset,
		  const char *bytes, size_t len, uint64_t *ret_stored);
uint64_t joblog_length(const struct joblog *l);
/* Where matching must begin for an incarnation whose image was taken when this epoch had written
 * `offset` bytes. Beyond what has come: where that ends. `unknown`: the answer for an epoch that
 * nothing has come of. */
uint64_t joblog_cursor(const struct joblog *l, uint64_t epoch, uint64_t offset, uint64_t unknown);
int joblog_fd(const struct joblog *l); /* for reading */
int joblog_sync(struct joblog *l);     /* 0 at once when nothing is new */

#endif
