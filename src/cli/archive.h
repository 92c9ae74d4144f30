/* SPDX-License-Identifier: Apache-2.0 */
/* A job's inputs and results as tar archives, by tar(1). */
#ifndef RECLAIM_CLI_ARCHIVE_H
#define RECLAIM_CLI_ARCHIVE_H

#include <stdint.h>

#include "base/diag.h"
#include "job/spec.h"

/* An unlinked temporary file ($TMPDIR); a descriptor or -errno. */
int archive_scratch(struct diag *diag);
/* Inputs of the spec, each under its name in the working folder. The descriptor stands at the
 * beginning; ret_size is the archive's size. */
int archive_inputs(const struct job_spec *spec, uint64_t *ret_size, struct diag *diag);
/* Unpacks the archive behind fd into a folder, made if it is missing. */
int archive_unpack(int fd, const char *into, struct diag *diag);

#endif
