/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking an image: a sorted walk over the checkpoint folder (take_walk.c) hands
 * chunks to the writer, which seals new ones into a pack, and records to the
 * file table; then the manifest's rename commits. Until that rename nothing but
 * a folder under tmp/ exists, which every failure removes and prune sweeps
 * after a crash.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/rng.h"
#include "image/take_internal.h"

#define CHUNKS_SMALL_MAX (UINT64_C(64) << 30) /* up to here chunks of 1 MiB */

/* ---- room, commit ---- */

static uint64_t room_left(const struct taker *t)
{
	struct statvfs v;

	return statvfs(t->job_dir, &v) < 0 ? 0 : (uint64_t)v.f_bavail * v.f_frsize;
}

/* All that the folder's file system holds, and a record for each of its inodes: no image of the
 * folder is larger. UINT64_MAX when it does not say. */
static uint64_t bound_of(int fd)
{
	struct statvfs v;

	if (fstatvfs(fd, &v) < 0 || v.f_files == 0)
		return UINT64_MAX;
	return (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize + (uint64_t)(v.f_files - v.f_ffree) * 256;
}

static uint64_t need_of(uint64_t total)
{
	return total + total / 256 + (1u << 20);
}

/* The size that chunk size and room go by. Asking every file for its own is a sixth of the time
 * that many small files take, so not where the bound decides both already. */
static uint64_t total_of(const struct taker *t, int fd)
{
	uint64_t bound = bound_of(fd);

	if (bound <= CHUNKS_SMALL_MAX && need_of(bound) <= room_left(t))
		return bound;
	return take_estimate(dup(fd));
}

/* A first image must fit whole; a later one shares chunks nobody can count before, so there the
 * disk itself is asked, write by write. */
static int room_check(struct taker *t, uint64_t total, bool first, struct diag *diag)
{
	uint64_t room = room_left(t), need = first ? need_of(total) : 1u << 20;

	if (room < need)
		return diag_set(diag, -ENOSPC, t->store->dir,
				"no room for the image: it needs %llu MiB, %llu MiB are free",
				(unsigned long long)(need >> 20), (unsigned long long)(room >> 20));
	return 0;
}

static int manifest_build(struct taker *t, struct strbuf *out, uint8_t ret_digest[IMAGE_DIGEST_LEN])
{
	const char *meta = t->p->meta_json ? t->p->meta_json : "{}";
	uint8_t header[MANIFEST_HEADER_LEN], row[MANIFEST_CHUNK_LEN], pad[8] = { 0 };
	unsigned len;

	t->m.meta_len = (uint32_t)strlen(meta);
	t->m.data_chunk_count = (uint32_t)t->data.items.count;
	t->m.chunk_count = t->m.data_chunk_count + (uint32_t)t->table.items.count;
	manifest_encode_header(&t->m, header);
	strbuf_append(out, header, sizeof(header));
	strbuf_append(out, meta, t->m.meta_len);
	strbuf_append(out, pad, manifest_meta_padded(t->m.meta_len) - t->m.meta_len);
	VEC_EACH(&t->data.items, c) {
		manifest_encode_chunk(c, row);
		strbuf_append(out, row, sizeof(row));
	}
	VEC_EACH(&t->table.items, c) {
		manifest_encode_chunk(c, row);
		strbuf_append(out, row, sizeof(row));
	}
	if (out->failed)
		return -ENOMEM;
	return EVP_Digest(out->data, out->len, ret_digest, &len, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}

static int file_write_plain(const char *path, const void *bytes, size_t len)
{
	CLEANUP_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : fd_write_all(fd, bytes, len);
}

static int commit(struct taker *t, struct image_info *ret_info)
{
	bool sync = !(t->p->flags & IMAGE_TAKE_NO_SYNC);
	CLEANUP_STRBUF struct strbuf manifest = STRBUF_INIT;
	uint8_t digest[IMAGE_DIGEST_LEN];
	char from[PATH_MAX], to[PATH_MAX], pack[64];
	struct image_info info;
	struct manifest check;
	struct pack_row *rows;
	uint32_t row_count;
	int r = chunk_writer_finish(t->writer);

	if (r == 0)
		r = manifest_build(t, &manifest, digest);
	rows = chunk_writer_rows(t->writer, &row_count);
	if (r == 0)
		r = pack_name_new(t->job_dir, digest, pack);
	if (r == 0 && sync && fdatasync(t->pack_fd) < 0)
		r = -errno;
	if (r == 0 && row_count) {
		r = path_format(from, sizeof(from), "%s/pack", t->tmp);
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/packs/%s.pack", t->job_dir, pack);
		if (r == 0 && rename(from, to) < 0)
			r = -errno;
		POINT("image.take.before_index");
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/packs/%s.idx", t->job_dir, pack);
		if (r == 0)
			r = pack_idx_write(to, rows, row_count, chunk_writer_pack_len(t->writer), sync);
	}
	POINT("image.take.before_commit");
	if (r == 0)
		r = path_format(from, sizeof(from), "%s/manifest", t->tmp);
	if (r == 0)
		r = sync ? file_write_atomic(from, manifest.data, manifest.len, 0600) :
			   file_write_plain(from, manifest.data, manifest.len);
	if (r < 0)
		return r;
	r = manifest_decode(manifest.data, manifest.len, &check, NULL);
	if (r < 0)
		return -EOVERFLOW; /* beyond the format: too many chunks, too much JSON */
	image_info_fill(&check, digest, &info);
	info.new_bytes = chunk_writer_new_bytes(t->writer);
	r = path_format(to, sizeof(to), "%s/images/%s.manifest", t->job_dir, info.digest);
	if (r == 0 && rename(from, to) < 0)
		r = -errno;
	if (r == 0 && sync) {
		r = path_format(to, sizeof(to), "%s/images", t->job_dir);
		if (r == 0)
			r = dir_sync(to);
	}
	POINT("image.take.after_commit");
	if (r == 0)
		*ret_info = info;
	return r;
}

static int taker_open(struct taker *t, struct diag *diag)
{
	struct chunk_writer_params writer = { .keys = &t->keys, .chunk_size = t->m.chunk_size };
	uint64_t nonce;
	char path[PATH_MAX];
	int r;

	r = seal_keys_derive(t->p->key, &t->keys);
	if (r == 0)
		r = map_new(&t->links);
	if (r == 0)
		r = packs_open(t->job_dir, &t->packs, diag);
	if (r == 0)
		r = random_bytes(&nonce, sizeof(nonce));
	if (r == 0)
		r = path_format(t->tmp, sizeof(t->tmp), "%s/tmp/take-%016llx", t->job_dir,
				(unsigned long long)nonce);
	if (r == 0 && mkdir(t->tmp, 0700) < 0)
		r = -errno;
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/pack", t->tmp);
	if (r < 0)
		return diag_set(diag, r, t->job_dir, "%s", strerror(-r));
	t->pack_fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (t->pack_fd < 0)
		return io_error(diag, path);
	t->direct_fd = pack_open_direct(path, O_RDWR);
	writer.packs = t->packs;
	writer.pack_fd = t->pack_fd;
	writer.direct_fd = t->direct_fd;
	return chunk_writer_new(&writer, &t->writer);
}

static void taker_done(struct taker *t)
{
	const void *key;
	size_t key_len, pos = 0;
	void *value;

	chunk_writer_free(t->writer); /* before what it uses */
	while (t->links && map_next(t->links, &pos, &key, &key_len, &value))
		free(value);
	map_free(t->links);
	packs_close(t->packs);
	if (t->pack_fd >= 0)
		(void)close(t->pack_fd); /* synced before, or of no use any more */
	if (t->direct_fd >= 0)
		(void)close(t->direct_fd); /* the same file */
	VEC_DONE(&t->data.items);
	VEC_DONE(&t->table.items);
	strbuf_done(&t->records);
	explicit_bzero(&t->keys, sizeof(t->keys));
	if (t->tmp[0])
		(void)dir_remove_all(t->tmp); /* prune sweeps what stays */
}

static uint32_t chunk_size_for(uint64_t total)
{
	return total <= CHUNKS_SMALL_MAX ? 1u << 20 : total <= (UINT64_C(256) << 30) ? 2u << 20 : 4u << 20;
}

static int take_locked(struct taker *t, struct image_info *ret_info, struct diag *diag)
{
	const struct image_take_params *p = t->p;
	CLEANUP_IMAGE struct image previous = { 0 };
	CLEANUP_FD int fd = open(p->src_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool first = true;
	uint64_t total = 0;
	int r;

	if (fd < 0)
		return io_error(diag, p->src_dir);
	if (p->previous && *p->previous) {
		r = digest_parse(p->previous, t->m.previous, diag);
		if (r < 0)
			return r;
		/* Its absence costs the delta, nothing else. */
		if (image_open(t->store, p->job, p->previous, &previous, NULL) == 0) {
			first = false;
			t->m.chunk_size = previous.m.chunk_size;
		}
	}
	if (first) {
		total = total_of(t, fd);
		t->m.chunk_size = chunk_size_for(total);
	}
	if (p->chunk_size)
		t->m.chunk_size = p->chunk_size;
	r = room_check(t, total, first, diag);
	if (r == 0)
		r = taker_open(t, diag);
	if (r < 0)
		return r;
	memcpy(t->m.key_check, t->keys.key_check, SEAL_KEY_CHECK_LEN);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return io_error(diag, p->src_dir);
	r = take_walk(t, fd, diag);
	if (r < 0) {
		diag_prefix(diag, p->src_dir);
		return r;
	}
	r = commit(t, ret_info);
	return r < 0 ? diag_set(diag, r, t->job_dir, "%s", strerror(-r)) : 0;
}

int image_take(struct image_store *s, const struct image_take_params *p,
	       struct image_info *ret_info, struct diag *diag)
{
	struct taker t = { .p = p, .store = s, .pack_fd = -1, .direct_fd = -1 };
	CLEANUP_FD int lock = -1;
	uint64_t fence = 0;
	int r = store_job_make(s, p->job, t.job_dir, diag);

	if (r < 0)
		return r;
	if (p->meta_json && strlen(p->meta_json) > IMAGE_META_MAX)
		return diag_set(diag, -EINVAL, "meta", "more than %d bytes", IMAGE_META_MAX);
	if (p->chunk_size && (p->chunk_size < IMAGE_CHUNK_SIZE_MIN ||
			      p->chunk_size > IMAGE_CHUNK_SIZE_MAX ||
			      (p->chunk_size & (p->chunk_size - 1))))
		return diag_set(diag, -EINVAL, "chunk size", "%u is not a power of two in bounds",
				p->chunk_size);
	if (image_fence_get(s, p->job, &fence) == 0 && p->epoch < fence)
		return diag_set(diag, -ESTALE, p->job, "epoch %llu is over: %llu has begun",
				(unsigned long long)p->epoch, (unsigned long long)fence);
	r = job_lock(t.job_dir, false, &lock, diag);
	if (r < 0)
		return r;
	memcpy(t.m.job, p->job, strlen(p->job));
	t.m.epoch = p->epoch;
	t.m.seq = p->seq;
	t.m.created_wall_ms = clock_wall_ms();
	r = take_locked(&t, ret_info, diag);
	if (r == -ECANCELED)
		diag_set(diag, r, p->job, "taking the image was cancelled");
	taker_done(&t);
	return r;
}
