/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading one image's chunks: for restore, verify and the sending end of a
 * transfer. Holds the job's shared lock, so nothing is pruned meanwhile.
 * Thread-safe; each thread brings its own buffers and sealer.
 */
#ifndef RECLAIM_IMAGE_READER_H
#define RECLAIM_IMAGE_READER_H

#include "image/manifest.h"
#include "image/seal.h"
#include "image/store.h"

struct image_reader;
int image_reader_open(struct image_store *s, const char *job, const char *digest,
		      struct image_reader **ret, struct diag *diag);
void image_reader_close(struct image_reader *r);
DEFINE_CLEANUP(struct image_reader *, image_reader_close)
#define CLEANUP_IMAGE_READER CLEANUP(image_reader_close_cleanup)

const struct manifest *image_reader_manifest(const struct image_reader *r);
/* The manifest's bytes, as they travel. */
const void *image_reader_bytes(const struct image_reader *r, size_t *ret_len);
const uint8_t *image_reader_digest(const struct image_reader *r);
bool image_reader_has(const struct image_reader *r, uint32_t i);

/* Reads chunk i as stored into buf (manifest_chunk_len bytes, rounded up to
 * 4096; aligned to 4096 it is read past the page cache) and holds it against its check.
 * -EBADMSG damaged, -ENOENT no pack has it. ret (may be NULL) gets the table's row. */
int image_reader_sealed(const struct image_reader *r, uint32_t i, void *buf, struct chunk *ret,
			struct diag *diag);
/* The same, opened in place. */
int image_reader_plain(const struct image_reader *r, uint32_t i, struct sealer *sealer, void *buf,
		       struct chunk *ret, struct diag *diag);
/* -EKEYREJECTED when the key is not the image's. */
int image_reader_key_check(const struct image_reader *r, const struct seal_keys *k,
			   struct diag *diag);

/* The file table as a stream of records. */
struct entry;
typedef int (*entry_fn)(void *arg, const struct entry *e, struct diag *diag);
/* Calls fn for each record, in order; a negative return ends it and is returned. */
int image_reader_entries(const struct image_reader *r, struct sealer *sealer, entry_fn fn,
			 void *arg, struct diag *diag);

#endif
