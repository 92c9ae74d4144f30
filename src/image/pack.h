/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs: where chunks lie on disk. A pack holds the chunks that one image
 * brought, each at a multiple of 4096 bytes (so that it can be written without
 * the page cache, and a dead one be given back by punching a hole); its index
 * is sorted by name, mapped, and replaced by rename.
 */
#ifndef RECLAIM_IMAGE_PACK_H
#define RECLAIM_IMAGE_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"
#include "image/seal.h"

#define PACK_ALIGN 4096u
#define PACK_IDX_HEADER_LEN 32
#define PACK_IDX_ROW_LEN 32

static inline uint64_t pack_align(uint64_t n)
{
	return (n + PACK_ALIGN - 1) & ~(uint64_t)(PACK_ALIGN - 1);
}

struct pack_row {
	uint8_t name[SEAL_NAME_LEN];
	uint64_t offset;
	uint32_t len;
};

/* An index in memory; decode borrows buf. Pure. */
struct pack_idx {
	const uint8_t *rows;
	uint32_t count;
	uint64_t pack_len;
};
int pack_idx_decode(const void *buf, size_t len, struct pack_idx *ret, struct diag *diag);
void pack_idx_row(const struct pack_idx *x, uint32_t i, struct pack_row *ret);
/* The row's number, or -1. */
int64_t pack_idx_find(const struct pack_idx *x, const uint8_t name[SEAL_NAME_LEN]);
/* Sorts rows and writes the index file by rename (fsynced if sync). */
int pack_idx_write(const char *path, struct pack_row *rows, uint32_t count, uint64_t pack_len,
		   bool sync);

/* All packs of one job, open for reading. Thread-safe once open. */
struct packs;
int packs_open(const char *job_dir, struct packs **ret, struct diag *diag);
void packs_close(struct packs *p);
DEFINE_CLEANUP(struct packs *, packs_close)
/* Where a chunk lies. The descriptors belong to the packs. */
struct pack_place {
	int fd, direct_fd; /* direct_fd: past the page cache, or -1 */
	uint64_t offset;
	uint32_t len;
};
int packs_find(const struct packs *p, const uint8_t name[SEAL_NAME_LEN], struct pack_place *ret); /* 0 or -ENOENT */
size_t packs_count(const struct packs *p);
const struct pack_idx *packs_idx(const struct packs *p, size_t i);
const char *packs_name(const struct packs *p, size_t i); /* without ".pack" */
int packs_fd(const struct packs *p, size_t i);

/*
 * Chunks go past the page cache where the file system lets them: here that costs
 * a tenth of the CPU (0.13 against 1.6-2.2 s/GB written, measured) and leaves the
 * owner's cache alone. buf is aligned to PACK_ALIGN and has room for
 * pack_align(len) bytes, else the page cache is used after all; what follows len
 * is overwritten.
 */
int pack_read(const struct pack_place *at, void *buf); /* 0, -EBADMSG when cut off, -errno */
int pack_write(const struct pack_place *at, void *buf);
/* A second descriptor of path for the above, or -1. */
int pack_open_direct(const char *path, int flags);

#endif
