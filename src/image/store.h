/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint images and where a machine keeps them.
 *
 * An image is one committed checkpoint folder of a job: a manifest (header and
 * chunk table) and the chunks it names, one part of which hold the table of
 * files with all their metadata. Chunks are sealed with a key per job
 * (AES-256-GCM); their names (XXH3-128 under a secret of the job) guard against
 * accident, the seal against a forger without the key, and the SHA-256 of the
 * manifest, which the commit record carries, against rollback and swap.
 *
 *     <store>/jobs/<job>/images/<digest>.manifest   the commit: appears by rename
 *     <store>/jobs/<job>/packs/<digest>.{pack,idx}  the chunks that image brought
 *     <store>/jobs/<job>/incoming/<digest>/         an arriving image; resumable
 *     <store>/jobs/<job>/fence                      newest epoch seen
 *
 * All functions block and touch the disk: run them in uv_queue_work() or in a
 * process of their own. They may run at the same time on one store, in threads
 * and processes: a lock file per job lets readers and writers share, and only
 * prune wants it alone (it skips a job in use).
 *
 * Errors: 0 or -errno with diag filled. The ones to tell apart, named by
 * image_error_name():
 *     -ENOENT       "missing"    no such image here
 *     -EBADMSG      "damaged"    a chunk or manifest is not what its digest says:
 *                                fall back to the image before, or fetch it again
 *     -EKEYREJECTED "key"        sealed with another key
 *     -ENOSPC       "space"      no room; nothing of it is left behind
 *     -ESTALE       "epoch"      older than what is already known here
 *     -ECANCELED    "cancelled"
 *     -EBUSY        "busy"
 *     anything else "io"
 */
#ifndef RECLAIM_IMAGE_STORE_H
#define RECLAIM_IMAGE_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"

#define IMAGE_DIGEST_LEN 32
#define IMAGE_DIGEST_HEX 64
#define IMAGE_KEY_LEN 32
#define IMAGE_JOB_MAX 64       /* bytes of a job id: one plain path component */
#define IMAGE_META_MAX 131072  /* bytes of the caller's JSON */
#define IMAGE_KEEP_DEFAULT 2

struct image_store;

/* Makes the folder if it is not there (mode 0700). Several handles may be open on one folder. */
int image_store_open(const char *dir, struct image_store **ret, struct diag *diag);
void image_store_close(struct image_store *s);
DEFINE_CLEANUP(struct image_store *, image_store_close)
#define CLEANUP_IMAGE_STORE CLEANUP(image_store_close_cleanup)
const char *image_store_dir(const struct image_store *s);

/* What an image says about itself; readable without the key. */
struct image_info {
	char digest[IMAGE_DIGEST_HEX + 1]; /* SHA-256 of the manifest */
	char previous[IMAGE_DIGEST_HEX + 1]; /* "" when there was none */
	char job[IMAGE_JOB_MAX + 1];
	uint64_t epoch, seq;       /* seq grows with each commit of an epoch */
	uint64_t created_wall_ms;
	uint64_t files;            /* entries of every kind */
	uint64_t bytes;            /* of the files, without holes */
	uint64_t stored_bytes;     /* of all its chunks, sealed */
	uint64_t chunks;
	uint32_t chunk_size;
	uint64_t new_bytes;        /* of the chunks that no older image here has; 0 if unknown */
};

const char *image_error_name(int err);

/* For long operations, from another thread: set it and they return -ECANCELED soon. NULL = never. */
typedef atomic_bool image_cancel;

/* ---- take and restore ---- */

enum image_take_flags {
	IMAGE_TAKE_NO_SYNC = 1, /* leave it to the kernel when it reaches the disk: for an image that
				 * is about to become durable on another machine */
};

struct image_take_params {
	const char *job;
	uint64_t epoch, seq;
	const char *src_dir;       /* a committed checkpoint: nobody writes to it now */
	uint8_t key[IMAGE_KEY_LEN];
	const char *previous;      /* digest of the image before, or NULL */
	/* Paths below src_dir that stay out, a folder with all in it; in strcmp() order. */
	const char *const *skip;
	size_t skip_count;
	const char *meta_json;     /* the caller's, in clear in the manifest; NULL = "{}" */
	unsigned flags;
	uint32_t chunk_size;       /* 0 = the previous image's, or by size; else a power of two */
	image_cancel *cancel;
};
/* Seals src_dir into the store. Files that change under our hands are an error (-EAGAIN). */
int image_take(struct image_store *s, const struct image_take_params *p,
	       struct image_info *ret_info, struct diag *diag);

/* Unpacks into dst_dir, which must not exist or be empty: everything is verified and complete in
 * a temporary folder beside it before one rename (against crashes of ours; it is not flushed to
 * disk, the image is what lasts). Owners are restored when we may (root), else
 * left; a holder without the key cannot call this. ret_meta_json (malloc'd) may be NULL. */
int image_restore(struct image_store *s, const char *job, const char *digest,
		  const uint8_t key[IMAGE_KEY_LEN], const char *dst_dir, image_cancel *cancel,
		  char **ret_meta_json, struct diag *diag);

/* ---- looking and keeping ---- */

/* Newest first: by epoch, then seq. job NULL = all jobs. free() the list. */
int image_list(struct image_store *s, const char *job, struct image_info **ret, size_t *ret_count,
	       struct diag *diag);
/* ret_meta_json (malloc'd) may be NULL. Checks the manifest's digest. */
int image_show(struct image_store *s, const char *job, const char *digest,
	       struct image_info *ret, char **ret_meta_json, struct diag *diag);

struct image_damage {
	uint64_t chunks_checked, chunks_bad, chunks_missing;
};
enum image_verify_flags {
	IMAGE_VERIFY_DROP_BAD = 1, /* forget damaged chunks, so that a fetch brings them again */
};
/* Reads every chunk. key may be NULL: then the stored checks are used, which find accidents; with
 * it the seals are opened too. Returns 0 when whole, -EBADMSG when not; ret_damage (may be NULL)
 * is filled in both cases. */
int image_verify(struct image_store *s, const char *job, const char *digest,
		 const uint8_t *key, unsigned flags, image_cancel *cancel,
		 struct image_damage *ret_damage, struct diag *diag);

struct image_pruned {
	uint64_t images, chunks, bytes;
};
/* Keeps the newest `keep` images of each job (all jobs if NULL) and whatever `pinned` (digests,
 * NULL-terminated list, may be NULL) names; frees the chunks that nothing reaches any more, and
 * arrivals of older epochs. keep 0 forgets the job. A job in use is skipped: -EBUSY if job was
 * named. */
int image_prune(struct image_store *s, const char *job, unsigned keep, const char *const *pinned,
		struct image_pruned *ret, struct diag *diag);

/* From now on nothing of an older epoch is taken in for this job. Never goes down. */
int image_fence(struct image_store *s, const char *job, uint64_t epoch, struct diag *diag);
/* 0 when the job is unknown. */
int image_fence_get(struct image_store *s, const char *job, uint64_t *ret_epoch);

/* Bytes under the store, and bytes free for it on its file system. */
int image_store_usage(struct image_store *s, uint64_t *ret_used, uint64_t *ret_free,
		      struct diag *diag);

#endif
