/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image that is arriving: its manifest first, then the chunks that the store
 * lacks, in any order and from several threads, into a pack whose layout
 * follows from the manifest. What has arrived is noted in a mapped bitmap, so
 * that a killed receiver's successor goes on where it stopped; a resumed
 * arrival re-reads what the bitmap claims, since a power cut may have lost it.
 * Nothing of it can be seen until commit renames the manifest.
 *
 *     incoming/<digest>/lock      held by the one session that fills it
 *     incoming/<digest>/manifest  complete once it has this name
 *     incoming/<digest>/layout    bitmap: the chunks this arrival brings
 *     incoming/<digest>/have      bitmap: those that are in the pack
 *     incoming/<digest>/pack
 *     incoming/<digest>/part-<i>  the beginning of a payload (transfer's business)
 */
#ifndef RECLAIM_IMAGE_INCOMING_H
#define RECLAIM_IMAGE_INCOMING_H

#include "image/manifest.h"
#include "image/store.h"

struct image_incoming;

/* Takes the job's shared lock and this arrival's own: -EBUSY when another session has it. */
int image_incoming_open(struct image_store *s, const char *job,
			const uint8_t digest[IMAGE_DIGEST_LEN], uint64_t manifest_len,
			struct image_incoming **ret, struct diag *diag);
/* Keeps what has arrived. */
void image_incoming_close(struct image_incoming *in);
/* Closes and removes it. */
void image_incoming_discard(struct image_incoming *in);
DEFINE_CLEANUP(struct image_incoming *, image_incoming_close)

/* The next bytes of the manifest. -EBADMSG when they are too many. */
int image_incoming_manifest(struct image_incoming *in, const void *bytes, size_t len,
			    struct diag *diag);
/*
 * The manifest is complete: checks its digest, job, epoch against the fence (-ESTALE), that it is
 * not older than the newest image held (-ESTALE: a rollback), and that what lacks fits beside
 * `reserve` free bytes (-ENOSPC), which it then allocates. An image that was `asked` for by its
 * digest (the coordinator names the newest durable one, and this machine may hold what never
 * became it) may be older than both.
 */
int image_incoming_ready(struct image_incoming *in, uint64_t reserve, bool asked, struct diag *diag);

/* From here on after ready(). */
const struct manifest *image_incoming_image(const struct image_incoming *in);
bool image_incoming_lacks(const struct image_incoming *in, uint32_t i);
/* Chunks and their stored bytes that lacked at ready() / lack now. */
void image_incoming_lacking(const struct image_incoming *in, uint64_t *ret_chunks,
			    uint64_t *ret_bytes);
/* One chunk as stored, from any thread. The caller holds at most one thread on one chunk. Checked
 * before it is written: -EBADMSG. A chunk that is here already is fine. buf has room up to the
 * next multiple of 4096, which is overwritten, and should be aligned to it for speed. */
int image_incoming_put(struct image_incoming *in, uint32_t i, void *buf, struct diag *diag);
/* All are here: to disk, then visible. -ENODATA when chunks lack. Still to be closed. */
int image_incoming_commit(struct image_incoming *in, struct image_info *ret, struct diag *diag);

/* The folder, for part files. */
const char *image_incoming_dir(const struct image_incoming *in);

#endif
