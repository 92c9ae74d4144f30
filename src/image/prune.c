/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Garbage collection by reachability, per job, under the exclusive lock (a job
 * in use is left alone). Marked are the chunks of the kept images and of
 * arrivals that may still complete. A pack without a live chunk goes whole;
 * in one with some, the index is first rewritten without the dead chunks (by
 * rename), then their ranges are given back: a crash between costs disk, never
 * data.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/vec.h"
#include "image/store_internal.h"

struct name {
	uint8_t bytes[SEAL_NAME_LEN];
};

struct marks {
	struct VEC(struct name) items; /* sorted once all are in */
};

static int name_compare(const void *a, const void *b)
{
	return memcmp(a, b, SEAL_NAME_LEN);
}

static int mark_manifest(struct marks *marks, const struct manifest *m)
{
	int r = VEC_RESERVE(&marks->items, marks->items.count + m->chunk_count);

	for (uint32_t i = 0; r == 0 && i < m->chunk_count; i++)
		memcpy(marks->items.data[marks->items.count++].bytes,
		       m->chunks + (size_t)i * MANIFEST_CHUNK_LEN, SEAL_NAME_LEN);
	return r;
}

static bool is_live(const struct marks *marks, const uint8_t name[SEAL_NAME_LEN])
{
	return marks->items.count && bsearch(name, marks->items.data, marks->items.count,
					     sizeof(struct name), name_compare);
}

/* Arrivals: older ones than the newest kept image, or of a fenced epoch, will never be wanted. */
static int sweep_incoming(const char *job_dir, uint64_t fence, const struct image_info *newest,
			  unsigned keep, struct marks *marks)
{
	char path[PATH_MAX], sub[PATH_MAX];
	CLEANUP_DIR DIR *dir = NULL;
	int r = path_format(path, sizeof(path), "%s/incoming", job_dir);

	dir = r == 0 ? opendir(path) : NULL;
	if (!dir)
		return r;
	for (struct dirent *e; r == 0 && (e = readdir(dir));) {
		uint8_t digest[IMAGE_DIGEST_LEN];
		struct image img = { 0 };
		bool drop = keep == 0;

		if (!name_is_plain(e->d_name) || digest_parse(e->d_name, digest, NULL) < 0)
			continue;
		r = path_format(sub, sizeof(sub), "%s/%s/manifest", path, e->d_name);
		if (r < 0)
			break;
		if (image_open_path(sub, digest, &img, NULL) < 0)
			drop = true; /* not even its manifest is here */
		else if (img.m.epoch < fence ||
			 (newest && (img.m.epoch < newest->epoch ||
				     (img.m.epoch == newest->epoch && img.m.seq < newest->seq))))
			drop = true;
		if (!drop)
			r = mark_manifest(marks, &img.m);
		image_close(&img);
		if (drop && path_format(sub, sizeof(sub), "%s/%s", path, e->d_name) == 0)
			(void)dir_remove_all(sub); /* next time, then */
	}
	return r;
}

static int sweep_pack(const char *job_dir, struct packs *packs, size_t i, const struct marks *marks,
		      struct image_pruned *sum)
{
	const struct pack_idx *x = packs_idx(packs, i);
	CLEANUP_FREE struct pack_row *live = calloc((size_t)x->count + 1, sizeof(*live));
	char idx_path[PATH_MAX], pack_path[PATH_MAX];
	struct pack_row row;
	uint32_t n = 0;
	CLEANUP_FD int fd = -1;
	int r;

	if (!live)
		return -ENOMEM;
	for (uint32_t k = 0; k < x->count; k++) {
		pack_idx_row(x, k, &row);
		if (is_live(marks, row.name))
			live[n++] = row;
	}
	if (n == x->count && n > 0)
		return 0;
	r = path_format(idx_path, sizeof(idx_path), "%s/packs/%s.idx", job_dir, packs_name(packs, i));
	if (r == 0)
		r = path_format(pack_path, sizeof(pack_path), "%s/packs/%s.pack", job_dir,
				packs_name(packs, i));
	if (r < 0)
		return r;
	sum->chunks += x->count - n;
	if (n == 0) {
		sum->bytes += x->pack_len;
		/* The index first: without it the pack is only an orphan for the next sweep. */
		if (unlink(idx_path) < 0 || unlink(pack_path) < 0)
			return -errno;
		return 0;
	}
	fd = open(pack_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = pack_idx_write(idx_path, live, n, x->pack_len, true);
	POINT("image.prune.before_punch");
	for (uint32_t k = 0; r == 0 && k < x->count; k++) {
		pack_idx_row(x, k, &row);
		if (is_live(marks, row.name))
			continue;
		sum->bytes += pack_align(row.len);
		/* A file system without holes keeps the space until the whole pack is dead. */
		(void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)row.offset,
				(off_t)pack_align(row.len));
	}
	return r;
}

/* Packs that never got their index: a crash in a commit. */
static void sweep_orphans(const char *job_dir)
{
	char path[PATH_MAX], idx[PATH_MAX];
	CLEANUP_DIR DIR *dir = NULL;

	if (path_format(path, sizeof(path), "%s/packs", job_dir) < 0)
		return;
	dir = opendir(path);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		size_t len = strlen(e->d_name);

		if (len > 4 && strcmp(e->d_name + len - 4, ".tmp") == 0)
			(void)unlinkat(dirfd(dir), e->d_name, 0); /* next time, then */
		if (len < 6 || strcmp(e->d_name + len - 5, ".pack") != 0)
			continue;
		if (path_format(idx, sizeof(idx), "%.*s.idx", (int)len - 5, e->d_name) == 0 &&
		    faccessat(dirfd(dir), idx, F_OK, 0) < 0)
			(void)unlinkat(dirfd(dir), e->d_name, 0); /* next time, then */
	}
}

static bool is_pinned(const char *digest, const char *const *pinned)
{
	for (; pinned && *pinned; pinned++)
		if (strcmp(*pinned, digest) == 0)
			return true;
	return false;
}

static int prune_images(struct image_store *s, const char *job_dir, const char *job, unsigned keep,
			const char *const *pinned, struct marks *marks, struct image_pruned *sum,
			struct diag *diag)
{
	CLEANUP_FREE struct image_info *infos = NULL;
	size_t count = 0;
	uint64_t fence = 0;
	char path[PATH_MAX];
	int r = image_list(s, job, &infos, &count, diag);

	for (size_t i = 0; r == 0 && i < count; i++) {
		struct image img = { 0 };

		if (i >= keep && !is_pinned(infos[i].digest, pinned)) {
			r = path_format(path, sizeof(path), "%s/images/%s.manifest", job_dir,
					infos[i].digest);
			if (r == 0 && unlink(path) < 0)
				r = -errno;
			sum->images += r == 0;
			continue;
		}
		r = image_open(s, job, infos[i].digest, &img, diag);
		if (r == 0)
			r = mark_manifest(marks, &img.m);
		image_close(&img);
	}
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/images", job_dir);
	if (r == 0 && sum->images)
		r = dir_sync(path);
	(void)image_fence_get(s, job, &fence); /* unreadable = no fence to go by */
	return r < 0 ? r : sweep_incoming(job_dir, fence, count ? &infos[0] : NULL, keep, marks);
}

static int prune_job(struct image_store *s, const char *job, unsigned keep,
		     const char *const *pinned, struct image_pruned *sum, struct diag *diag)
{
	char job_dir[PATH_MAX], path[PATH_MAX];
	struct marks marks = { VEC_INIT };
	CLEANUP_PACKS struct packs *packs = NULL;
	CLEANUP_FD int lock = -1;
	int r = store_job_dir(s, job, job_dir, diag);

	if (r == 0 && access(job_dir, F_OK) < 0)
		return 0;
	if (r == 0)
		r = job_lock(job_dir, true, &lock, diag);
	if (r < 0)
		return r;
	if (path_format(path, sizeof(path), "%s/tmp", job_dir) == 0) {
		(void)dir_remove_all(path); /* left by a crash: the lock says nobody is at it */
		(void)dir_make_all(path, 0700);
	}
	sweep_orphans(job_dir);
	r = prune_images(s, job_dir, job, keep, pinned, &marks, sum, diag);
	POINT("image.prune.before_packs");
	if (r == 0)
		r = packs_open(job_dir, &packs, diag);
	if (r == 0 && marks.items.count)
		qsort(marks.items.data, marks.items.count, sizeof(struct name), name_compare);
	for (size_t i = 0; r == 0 && i < packs_count(packs); i++)
		r = sweep_pack(job_dir, packs, i, &marks, sum);
	/* Only when nothing is left: the fence must outlive the images of a live job. */
	if (r == 0 && keep == 0 && marks.items.count == 0)
		r = dir_remove_all(job_dir);
	VEC_DONE(&marks.items);
	return r < 0 ? diag_set(diag, r, job_dir, "%s", strerror(-r)) : 0;
}

int image_prune(struct image_store *s, const char *job, unsigned keep, const char *const *pinned,
		struct image_pruned *ret, struct diag *diag)
{
	struct image_pruned sum = { 0 };
	char path[PATH_MAX];
	CLEANUP_DIR DIR *dir = NULL;
	int r;

	if (job) {
		r = prune_job(s, job, keep, pinned, &sum, diag);
	} else {
		r = path_format(path, sizeof(path), "%s/jobs", s->dir);
		dir = r == 0 ? opendir(path) : NULL;
		if (r == 0 && !dir)
			return io_error(diag, path);
		for (struct dirent *e; r == 0 && (e = readdir(dir));) {
			if (!name_is_plain(e->d_name))
				continue;
			r = prune_job(s, e->d_name, keep, pinned, &sum, diag);
			if (r == -EBUSY)
				r = 0;
		}
	}
	if (r == 0 && ret)
		*ret = sum;
	return r;
}
