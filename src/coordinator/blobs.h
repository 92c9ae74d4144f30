/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs and results of jobs: files named by their SHA-256 under DIR/blobs, and
 * the store says which job refers to which (blobs/<kind>/<job>). A blob is on
 * disk before the store names it; one that nothing names is swept.
 */
#ifndef RECLAIM_COORDINATOR_BLOBS_H
#define RECLAIM_COORDINATOR_BLOBS_H

#include <stdint.h>

#include "base/diag.h"
#include "io/identity.h"
#include "store/store.h"

struct blobs;

/* store is borrowed. Makes DIR/blobs and DIR/spool, empties the spool, sweeps. */
int blobs_open(const char *dir, struct store *store, struct blobs **ret, struct diag *diag);
void blobs_close(struct blobs *b);
const char *blobs_spool(const struct blobs *b);
/* Takes the (synced) file at path. kind: "inputs" or "results". */
int blobs_put(struct blobs *b, const char *kind, const char *job, const char *path,
	      const char sha256[IDENTITY_DIGEST_HEX + 1], uint64_t size);
/* A descriptor for reading, and its size; -ENOENT. */
int blobs_get(struct blobs *b, const char *kind, const char *job, int *ret_fd, uint64_t *ret_size);
/* Forgets what a job referred to. */
int blobs_forget(struct blobs *b, const char *job);

#endif
