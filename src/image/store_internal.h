/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the image layer share: paths, locks, opened images. */
#ifndef RECLAIM_IMAGE_STORE_INTERNAL_H
#define RECLAIM_IMAGE_STORE_INTERNAL_H

#include <limits.h>

#include "image/manifest.h"
#include "image/pack.h"
#include "image/store.h"

struct image_store {
	char dir[PATH_MAX];
};

/* "<store>/jobs/<job>"; checks the job id. */
int store_job_dir(const struct image_store *s, const char *job, char ret[PATH_MAX],
		  struct diag *diag);
/* The same, and makes the folder and its parts. */
int store_job_make(const struct image_store *s, const char *job, char ret[PATH_MAX],
		   struct diag *diag);

/* Shared locks for readers and writers, exclusive (never waits: -EBUSY) for prune. The lock goes
 * with the descriptor. */
int job_lock(const char *job_dir, bool exclusive, int *ret_fd, struct diag *diag);

/* A mapped manifest whose digest was checked. */
struct image {
	uint8_t digest[IMAGE_DIGEST_LEN];
	char job_dir[PATH_MAX];
	void *map;
	size_t map_len;
	struct manifest m;
};
int image_open(struct image_store *s, const char *job, const char *digest, struct image *ret,
	       struct diag *diag);
/* The manifest at path, which must have that digest. */
int image_open_path(const char *path, const uint8_t digest[IMAGE_DIGEST_LEN], struct image *ret,
		    struct diag *diag);
void image_close(struct image *img); /* a zeroed one is fine */

int digest_parse(const char *hex, uint8_t ret[IMAGE_DIGEST_LEN], struct diag *diag);
int io_error(struct diag *diag, const char *where);   /* from errno; returns -errno */
bool image_cancelled(const image_cancel *c);
/* "<digest 16 hex>-<n>", the first that no pack in job_dir has. */
int pack_name_new(const char *job_dir, const uint8_t digest[IMAGE_DIGEST_LEN], char ret[64]);
int image_info_compare(const void *a, const void *b); /* newest first */

#define CLEANUP_IMAGE CLEANUP(image_close)
#define CLEANUP_PACKS CLEANUP(packs_close_cleanup)
#define CLEANUP_SEALER CLEANUP(sealer_free_cleanup)

#endif
