/* SPDX-License-Identifier: Apache-2.0 */
#include "image/incoming.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/check.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/point.h"
#include "image/store_internal.h"

struct image_incoming {
	struct image_store *store;
	char job[IMAGE_JOB_MAX + 1], job_dir[PATH_MAX], dir[PATH_MAX];
	uint8_t digest[IMAGE_DIGEST_LEN];
	int job_lock_fd, lock_fd;
	uint64_t manifest_len, manifest_got;
	int manifest_fd;       /* while it arrives */
	bool manifest_known;   /* complete already: arriving bytes are passed over */
	bool committed;        /* the image is in the store: nothing lacks */
	struct image img;
	struct packs *packs;
	uint8_t *layout, *have; /* mapped bitmaps */
	size_t bitmap_len;
	uint64_t *offsets;     /* of each 64th chunk in the pack */
	int pack_fd, direct_fd;
	uint64_t pack_len;
	pthread_mutex_t mutex; /* have, counters */
	uint64_t lacking, lacking_bytes;
};

static bool bit_get(const uint8_t *map, uint32_t i)
{
	return map[i / 8] >> (i % 8) & 1;
}

static void bit_set(uint8_t *map, uint32_t i)
{
	map[i / 8] |= (uint8_t)(1 << i % 8);
}

static int in_path(const struct image_incoming *in, const char *name, char ret[PATH_MAX])
{
	return path_format(ret, PATH_MAX, "%s/%s", in->dir, name);
}

int image_incoming_open(struct image_store *s, const char *job,
			const uint8_t digest[IMAGE_DIGEST_LEN], uint64_t manifest_len,
			struct image_incoming **ret, struct diag *diag)
{
	CLEANUP(image_incoming_close_cleanup) struct image_incoming *in = calloc(1, sizeof(*in));
	char hex[IMAGE_DIGEST_HEX + 1], path[PATH_MAX];
	int r;

	if (!in)
		return -ENOMEM;
	in->job_lock_fd = in->lock_fd = in->manifest_fd = in->pack_fd = in->direct_fd = -1;
	pthread_mutex_init(&in->mutex, NULL);
	if (manifest_len < MANIFEST_HEADER_LEN || manifest_len > MANIFEST_LEN_MAX)
		return diag_set(diag, -EBADMSG, "manifest", "impossible length");
	in->store = s;
	in->manifest_len = manifest_len;
	memcpy(in->digest, digest, IMAGE_DIGEST_LEN);
	r = store_job_make(s, job, in->job_dir, diag);
	if (r < 0)
		return r;
	memcpy(in->job, job, strlen(job) + 1);
	r = job_lock(in->job_dir, false, &in->job_lock_fd, diag);
	if (r < 0)
		return r;
	hex_encode(digest, IMAGE_DIGEST_LEN, hex);
	r = path_format(in->dir, sizeof(in->dir), "%s/incoming/%s", in->job_dir, hex);
	if (r == 0)
		r = dir_make_all(in->dir, 0700);
	if (r == 0)
		r = in_path(in, "lock", path);
	if (r < 0)
		return diag_set(diag, r, in->job_dir, "%s", strerror(-r));
	in->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (in->lock_fd < 0)
		return io_error(diag, path);
	if (flock(in->lock_fd, LOCK_EX | LOCK_NB) < 0)
		return diag_set(diag, -EBUSY, in->dir, "this image is arriving already");
	r = path_format(path, sizeof(path), "%s/images/%s.manifest", in->job_dir, hex);
	if (r == 0 && image_open_path(path, digest, &in->img, NULL) == 0)
		in->manifest_known = in->committed = true;
	if (r == 0 && !in->manifest_known)
		r = in_path(in, "manifest", path);
	if (r == 0 && !in->manifest_known && image_open_path(path, digest, &in->img, NULL) == 0)
		in->manifest_known = true;
	if (r == 0 && !in->manifest_known) {
		r = in_path(in, "manifest.part", path);
		in->manifest_fd = r == 0 ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
		if (in->manifest_fd < 0)
			return io_error(diag, path);
	}
	if (r == 0)
		*ret = TAKE(in);
	return r;
}

void image_incoming_close(struct image_incoming *in)
{
	if (!in)
		return;
	packs_close(in->packs);
	if (in->layout)
		(void)munmap(in->layout, in->bitmap_len);
	if (in->have)
		(void)munmap(in->have, in->bitmap_len);
	image_close(&in->img);
	for (int *fd = (int[]){ in->manifest_fd, in->pack_fd, in->direct_fd, in->lock_fd, in->job_lock_fd, -2 };
	     *fd != -2; fd++)
		if (*fd >= 0)
			(void)close(*fd); /* what must be on disk was synced at commit */
	pthread_mutex_destroy(&in->mutex);
	free(in->offsets);
	free(in);
}

void image_incoming_discard(struct image_incoming *in)
{
	if (in)
		(void)dir_remove_all(in->dir); /* prune takes what stays */
	image_incoming_close(in);
}

int image_incoming_manifest(struct image_incoming *in, const void *bytes, size_t len,
			    struct diag *diag)
{
	int r = 0;

	if (len > in->manifest_len - in->manifest_got)
		return diag_set(diag, -EBADMSG, "manifest", "longer than announced");
	if (!in->manifest_known)
		r = fd_write_all(in->manifest_fd, bytes, len);
	if (r < 0)
		return diag_set(diag, r, in->dir, "%s", strerror(-r));
	in->manifest_got += len;
	return 0;
}

/* ---- ready ---- */

static int manifest_accept(struct image_incoming *in, struct diag *diag)
{
	char part[PATH_MAX], path[PATH_MAX];
	int r;

	if (in->manifest_known)
		return 0;
	if (in->manifest_got != in->manifest_len)
		return diag_set(diag, -EBADMSG, "manifest", "shorter than announced");
	r = in_path(in, "manifest.part", part);
	if (r == 0)
		r = in_path(in, "manifest", path);
	if (r == 0)
		r = image_open_path(part, in->digest, &in->img, diag);
	if (r == 0 && (fsync(in->manifest_fd) < 0 || rename(part, path) < 0))
		return io_error(diag, path);
	return r;
}

/* Neither of an epoch that is over nor older than what is held: a replay of an old image would
 * undo steps that the job's owner saw done. */
static int order_check(struct image_incoming *in, bool asked, struct diag *diag)
{
	CLEANUP_FREE struct image_info *infos = NULL;
	const struct manifest *m = &in->img.m;
	uint64_t fence = 0;
	size_t count = 0;
	int r;

	if (strcmp(m->job, in->job) != 0)
		return diag_set(diag, -EBADMSG, "manifest", "of another job, %s", m->job);
	if (asked)
		return 0;
	r = image_fence_get(in->store, in->job, &fence);
	if (r < 0)
		return diag_set(diag, r, in->job_dir, "cannot read the epoch fence");
	if (m->epoch < fence)
		return diag_set(diag, -ESTALE, in->job, "epoch %llu is over: %llu has begun",
				(unsigned long long)m->epoch, (unsigned long long)fence);
	r = image_list(in->store, in->job, &infos, &count, diag);
	if (r < 0)
		return r;
	if (count && !in->committed &&
	    (m->epoch < infos[0].epoch || (m->epoch == infos[0].epoch && m->seq < infos[0].seq)))
		return diag_set(diag, -ESTALE, in->job,
				"older (epoch %llu, commit %llu) than the image held here (%llu, %llu)",
				(unsigned long long)m->epoch, (unsigned long long)m->seq,
				(unsigned long long)infos[0].epoch, (unsigned long long)infos[0].seq);
	return 0;
}

static int bitmap_map(struct image_incoming *in, const char *name, uint8_t **ret, bool *ret_fresh)
{
	char path[PATH_MAX];
	CLEANUP_FD int fd = -1;
	struct stat st;
	void *map;
	int r = in_path(in, name, path);

	if (r < 0)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	*ret_fresh = (size_t)st.st_size != in->bitmap_len;
	/* Allocated, not only long: a full disk must be an error here, not a SIGBUS later. */
	if (*ret_fresh && (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)in->bitmap_len) < 0))
		return -errno;
	r = posix_fallocate(fd, 0, (off_t)in->bitmap_len);
	if (r != 0)
		return -r;
	map = mmap(NULL, in->bitmap_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	*ret = map;
	return 0;
}

static bool held_elsewhere(const struct image_incoming *in, uint32_t i)
{
	struct pack_place at;
	struct chunk c;

	manifest_chunk(&in->img.m, i, &c);
	return packs_find(in->packs, c.name, &at) == 0 && at.len == c.len;
}

static uint64_t chunk_offset(const struct image_incoming *in, uint32_t i)
{
	uint64_t at = in->offsets[i / 64];

	for (uint32_t k = i / 64 * 64; k < i; k++)
		if (bit_get(in->layout, k))
			at += pack_align(manifest_chunk_len(&in->img.m, k));
	return at;
}

static int layout_make(struct image_incoming *in, bool fresh)
{
	const struct manifest *m = &in->img.m;

	for (uint32_t i = 0; i < m->chunk_count; i++) {
		bool held = held_elsewhere(in, i);

		if (fresh && !held)
			bit_set(in->layout, i);
		if (!fresh && !held && !bit_get(in->layout, i))
			return -ESTALE; /* lost since the arrival began: lay it out anew */
	}
	free(in->offsets);
	in->offsets = calloc(m->chunk_count / 64 + 1, sizeof(*in->offsets));
	if (!in->offsets)
		return -ENOMEM;
	in->pack_len = 0;
	for (uint32_t i = 0; i < m->chunk_count; i++) {
		if (i % 64 == 0)
			in->offsets[i / 64] = in->pack_len;
		if (bit_get(in->layout, i))
			in->pack_len += pack_align(manifest_chunk_len(m, i));
	}
	return 0;
}

/* Trusts nothing that an earlier process noted: reads it back. */
static int have_check(struct image_incoming *in)
{
	CLEANUP_FREE uint8_t *buf = aligned_alloc(PACK_ALIGN, in->img.m.chunk_size);
	const struct manifest *m = &in->img.m;

	if (!buf)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->chunk_count; i++) {
		struct pack_place at = { in->pack_fd, in->direct_fd, 0, 0 };
		uint8_t check[SEAL_CHECK_LEN];
		struct chunk c;

		if (!bit_get(in->have, i))
			continue;
		manifest_chunk(m, i, &c);
		at.offset = chunk_offset(in, i);
		at.len = c.len;
		if (pack_read(&at, buf) == 0) {
			seal_check(buf, c.len, check);
			if (memcmp(check, c.check, SEAL_CHECK_LEN) == 0)
				continue;
		}
		in->have[i / 8] &= (uint8_t)~(1 << i % 8);
	}
	return 0;
}

static int room_check(struct image_incoming *in, uint64_t reserve, struct diag *diag)
{
	struct statvfs v;
	struct stat st;
	uint64_t room, held, need;

	if (fstatvfs(in->pack_fd, &v) < 0 || fstat(in->pack_fd, &st) < 0)
		return io_error(diag, in->dir);
	room = (uint64_t)v.f_bavail * v.f_frsize;
	held = (uint64_t)st.st_blocks * 512;
	need = (in->pack_len > held ? in->pack_len - held : 0) +
	       (uint64_t)in->img.m.chunk_count * PACK_IDX_ROW_LEN + (1u << 16);
	if (room < need || room - need < reserve)
		return diag_set(diag, -ENOSPC, in->store->dir,
				"no room for the image: it needs %llu MiB beside a reserve of %llu MiB, "
				"%llu MiB are free",
				(unsigned long long)(need >> 20), (unsigned long long)(reserve >> 20),
				(unsigned long long)(room >> 20));
	if (in->pack_len == 0 || fallocate(in->pack_fd, 0, 0, (off_t)in->pack_len) == 0)
		return 0;
	if (errno == EOPNOTSUPP) /* this file system cannot promise: errors come with the writes */
		return 0;
	return io_error(diag, in->dir);
}

static int storage_open(struct image_incoming *in, uint64_t reserve, struct diag *diag)
{
	char path[PATH_MAX];
	bool layout_fresh, have_fresh;
	int r = in_path(in, "pack", path);

	in->bitmap_len = in->img.m.chunk_count / 8 + 1;
	if (r < 0)
		return r;
	in->pack_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (in->pack_fd < 0)
		return io_error(diag, path);
	in->direct_fd = pack_open_direct(path, O_RDWR);
	r = bitmap_map(in, "layout", &in->layout, &layout_fresh);
	if (r == 0)
		r = bitmap_map(in, "have", &in->have, &have_fresh);
	if (r == 0)
		r = layout_make(in, layout_fresh);
	if (r == -ESTALE) {
		memset(in->layout, 0, in->bitmap_len);
		have_fresh = true;
		r = layout_make(in, true);
	}
	if (r == 0 && (layout_fresh || have_fresh))
		memset(in->have, 0, in->bitmap_len);
	if (r < 0)
		return diag_set(diag, r, in->dir, "%s", strerror(-r));
	r = room_check(in, reserve, diag);
	return r == 0 ? have_check(in) : r;
}

int image_incoming_ready(struct image_incoming *in, uint64_t reserve, bool asked, struct diag *diag)
{
	int r = manifest_accept(in, diag);

	if (r == 0)
		r = order_check(in, asked, diag);
	if (r == 0)
		r = packs_open(in->job_dir, &in->packs, diag);
	if (r == 0)
		r = storage_open(in, reserve, diag);
	for (uint32_t i = 0; r == 0 && i < in->img.m.chunk_count; i++) {
		if (image_incoming_lacks(in, i)) {
			in->lacking++;
			in->lacking_bytes += manifest_chunk_len(&in->img.m, i);
		}
	}
	if (r == -ESTALE || r == -ENOSPC) /* refused: nothing of it stays */
		(void)dir_remove_all(in->dir);
	return r;
}

const struct manifest *image_incoming_image(const struct image_incoming *in)
{
	return &in->img.m;
}

bool image_incoming_lacks(const struct image_incoming *in, uint32_t i)
{
	return bit_get(in->layout, i) && !bit_get(in->have, i);
}

void image_incoming_lacking(const struct image_incoming *in, uint64_t *ret_chunks,
			    uint64_t *ret_bytes)
{
	*ret_chunks = in->lacking;
	*ret_bytes = in->lacking_bytes;
}

int image_incoming_put(struct image_incoming *in, uint32_t i, void *buf, struct diag *diag)
{
	struct pack_place at = { in->pack_fd, in->direct_fd, 0, 0 };
	uint8_t check[SEAL_CHECK_LEN];
	struct chunk c;
	int r;

	if (i >= in->img.m.chunk_count)
		return diag_set(diag, -EBADMSG, in->dir, "chunk %u is not of this image", i);
	if (!bit_get(in->layout, i) || bit_get(in->have, i))
		return 0;
	manifest_chunk(&in->img.m, i, &c);
	seal_check(buf, c.len, check);
	if (memcmp(check, c.check, SEAL_CHECK_LEN) != 0)
		return diag_set(diag, -EBADMSG, in->dir, "chunk %u arrived damaged", i);
	at.offset = chunk_offset(in, i);
	at.len = c.len;
	r = pack_write(&at, buf);
	if (r < 0)
		return diag_set(diag, r, in->dir, "%s", strerror(-r));
	POINT("image.incoming.before_have");
	pthread_mutex_lock(&in->mutex);
	bit_set(in->have, i);
	in->lacking--;
	in->lacking_bytes -= c.len;
	pthread_mutex_unlock(&in->mutex);
	return 0;
}

/* ---- commit ---- */

static int index_write(struct image_incoming *in, const char *pack)
{
	const struct manifest *m = &in->img.m;
	CLEANUP_FREE struct pack_row *rows = NULL;
	char path[PATH_MAX];
	uint32_t n = 0;
	uint64_t at = 0;
	int r;

	for (uint32_t i = 0; i < m->chunk_count; i++)
		n += bit_get(in->layout, i);
	rows = calloc((size_t)n + 1, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	n = 0;
	for (uint32_t i = 0; i < m->chunk_count; i++) {
		struct chunk c;

		if (!bit_get(in->layout, i))
			continue;
		manifest_chunk(m, i, &c);
		memcpy(rows[n].name, c.name, SEAL_NAME_LEN);
		rows[n].offset = at;
		rows[n++].len = c.len;
		at += pack_align(c.len);
	}
	r = path_format(path, sizeof(path), "%s/packs/%s.idx", in->job_dir, pack);
	return r < 0 ? r : pack_idx_write(path, rows, n, in->pack_len, true);
}

static int commit(struct image_incoming *in, struct image_info *info)
{
	char from[PATH_MAX], to[PATH_MAX], pack[64];
	int r = 0;

	if (in->pack_len) {
		r = pack_name_new(in->job_dir, in->digest, pack);
		if (r == 0 && fdatasync(in->pack_fd) < 0)
			r = -errno;
		POINT("image.incoming.before_pack");
		if (r == 0)
			r = in_path(in, "pack", from);
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/packs/%s.pack", in->job_dir, pack);
		/* A link, not a rename: if we die before the manifest's rename, the arrival is
		 * whole, the index below makes its chunks known, and the next session commits. */
		if (r == 0 && link(from, to) < 0)
			r = -errno;
		POINT("image.incoming.before_index");
		if (r == 0)
			r = index_write(in, pack);
	}
	POINT("image.incoming.before_commit");
	if (r == 0 && !in->committed) {
		r = in_path(in, "manifest", from);
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/images/%s.manifest", in->job_dir, info->digest);
		if (r == 0 && rename(from, to) < 0)
			r = -errno;
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/images", in->job_dir);
		if (r == 0)
			r = dir_sync(to);
	}
	POINT("image.incoming.after_commit");
	if (r == 0)
		(void)dir_remove_all(in->dir); /* prune takes what stays */
	return r;
}

int image_incoming_commit(struct image_incoming *in, struct image_info *ret, struct diag *diag)
{
	struct image_info info;
	int r;

	if (in->lacking)
		return diag_set(diag, -ENODATA, in->dir, "%llu chunks have not arrived",
				(unsigned long long)in->lacking);
	image_info_fill(&in->img.m, in->digest, &info);
	for (uint32_t i = 0; i < in->img.m.chunk_count; i++)
		if (bit_get(in->layout, i))
			info.new_bytes += manifest_chunk_len(&in->img.m, i);
	r = commit(in, &info);
	if (r < 0)
		return diag_set(diag, r, in->dir, "%s", strerror(-r));
	*ret = info;
	return 0;
}

const char *image_incoming_dir(const struct image_incoming *in)
{
	return in->dir;
}
