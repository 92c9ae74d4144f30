/* SPDX-License-Identifier: Apache-2.0 */
/* What take.c (opening, room, commit) and take_walk.c (folders, files, records) share. */
#ifndef RECLAIM_IMAGE_TAKE_INTERNAL_H
#define RECLAIM_IMAGE_TAKE_INTERNAL_H

#include "base/strbuf.h"
#include "image/chunk_writer.h"
#include "image/store_internal.h"

struct taker {
	const struct image_take_params *p;
	struct image_store *store;
	struct seal_keys keys;
	struct packs *packs;      /* what the job has already */
	char job_dir[PATH_MAX], tmp[PATH_MAX];
	int pack_fd, direct_fd;
	struct chunk_writer *writer;
	struct chunk_list data, table;
	struct strbuf records;    /* file table, not yet cut into chunks */
	uint8_t *shared;          /* the open shared chunk, if shared_len > 0 */
	uint32_t shared_len, shared_index;
	struct map *links;        /* "dev:ino" -> path of the first name */
	struct manifest m;
};

/* The folder behind fd and all below it: chunks and records, to the last one. */
int take_walk(struct taker *t, int fd, struct diag *diag);
/* Bytes and room for records that a walk would find; an estimate. Closes fd. */
uint64_t take_estimate(int fd);

#endif
