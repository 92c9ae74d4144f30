/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of an image that is being taken, on their way into its pack: named,
 * sealed and written by threads of the writer's own, while its caller reads
 * the next files. One caller; a bounded number of buffers goes round.
 */
#ifndef RECLAIM_IMAGE_CHUNK_WRITER_H
#define RECLAIM_IMAGE_CHUNK_WRITER_H

#include <stdint.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "image/manifest.h"
#include "image/pack.h"
#include "image/seal.h"

struct chunk_list {
	struct VEC(struct chunk) items;
};

struct chunk_writer_params {
	const struct seal_keys *keys;
	const struct packs *packs; /* chunks found there are not written again */
	int pack_fd, direct_fd;    /* borrowed; direct_fd may be -1 */
	uint32_t chunk_size;
};

struct chunk_writer;
int chunk_writer_new(const struct chunk_writer_params *p, struct chunk_writer **ret);
/* Chunks under way are finished first. */
void chunk_writer_free(struct chunk_writer *w);
DEFINE_CLEANUP(struct chunk_writer *, chunk_writer_free)

/* A buffer of chunk_size bytes, the caller's until it is put; waits for one. At most two may be
 * held. An error is that of a chunk put before. */
int chunk_writer_buffer(struct chunk_writer *w, uint8_t **ret);
/* Takes the buffer back. The chunk's row stands in list at index once finish() returned; until
 * then the list may grow, but not go. */
void chunk_writer_put(struct chunk_writer *w, uint8_t *buf, uint32_t len, struct chunk_list *list,
		      uint32_t index);
/* Waits for all that was put: 0 or the first error. */
int chunk_writer_finish(struct chunk_writer *w);

/* What was written; after finish(). The rows are the writer's, and may be sorted. */
struct pack_row *chunk_writer_rows(struct chunk_writer *w, uint32_t *ret_count);
uint64_t chunk_writer_pack_len(const struct chunk_writer *w);
uint64_t chunk_writer_new_bytes(const struct chunk_writer *w);

#endif
