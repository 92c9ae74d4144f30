/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking an image: a sorted walk over the checkpoint folder that writes new
 * chunks to a pack and records to the file table, then commits by renaming the
 * manifest. Until that rename nothing but a folder under tmp/ exists, which
 * every failure removes and prune sweeps after a crash.
 *
 * Chunking: files larger than half a chunk are cut at multiples of the chunk
 * size in the file, so that a tensor or page that stays where it was finds its
 * old self (and the delta its base) without an index; small ones share chunks,
 * which end where a hash of the path says so: one file that grows then shifts
 * its neighbours only up to the next such place.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/rng.h"
#include "base/vec.h"
#include "image/entry.h"
#include "image/store_internal.h"

#define DEPTH_MAX 256             /* nested folders; each costs a descriptor */
#define SHARED_CHUNK_MIN (128u << 10)
#define SHARED_BREAK_MASK 31      /* a break about every 32 files */

struct chunk_list {
	struct VEC(struct chunk) items;
};

struct taker {
	const struct image_take_params *p;
	struct image_store *store;
	struct seal_keys keys;
	struct sealer *sealer;
	struct packs *packs;      /* what the job has already */
	struct map *own;          /* names written by this image */
	char job_dir[PATH_MAX], tmp[PATH_MAX];
	int pack_fd, direct_fd;
	uint64_t pack_len;
	struct VEC(struct pack_row) rows;
	struct chunk_list data, table;
	struct strbuf records;    /* file table, not yet cut into chunks */
	uint8_t *buf;             /* one chunk of a large file */
	uint8_t *shared;          /* the open shared chunk */
	uint32_t shared_len, shared_index;
	struct map *links;        /* "dev:ino" -> path of the first name */
	struct manifest m;
	uint64_t new_bytes;
};

/* ---- chunks ---- */

static int chunk_write(struct taker *t, const struct chunk *c, uint8_t *sealed)
{
	struct pack_place at = { t->pack_fd, t->direct_fd, t->pack_len, c->len };
	struct pack_row row = { .offset = t->pack_len, .len = c->len };
	int r = pack_write(&at, sealed);

	if (r < 0)
		return r;
	memcpy(row.name, c->name, SEAL_NAME_LEN);
	t->pack_len += pack_align(c->len);
	t->new_bytes += c->len;
	return VEC_PUSH(&t->rows, row);
}

/* Names, and unless the job has it, seals (in place) and writes one chunk. The tag and check of a
 * chunk that is already here come from sealing too: they are a function of the content. */
static int chunk_put(struct taker *t, uint8_t *plain, uint32_t len, struct chunk *ret)
{
	struct chunk c = { .len = len };
	struct pack_place old;
	bool known;
	int r;

	if (image_cancelled(t->p->cancel))
		return -ECANCELED;
	seal_name(&t->keys, plain, len, c.name);
	known = packs_find(t->packs, c.name, &old) == 0 && old.len == len;
	r = sealer_seal(t->sealer, c.name, plain, len, plain, c.tag);
	if (r < 0)
		return r;
	seal_check(plain, len, c.check);
	if (!known) {
		r = map_insert(t->own, c.name, SEAL_NAME_LEN, t);
		if (r == 0)
			r = chunk_write(t, &c, plain);
		if (r < 0 && r != -EEXIST)
			return r;
	}
	*ret = c;
	return 0;
}

static int shared_flush(struct taker *t)
{
	int r;

	if (t->shared_len == 0)
		return 0;
	r = chunk_put(t, t->shared, t->shared_len, &t->data.items.data[t->shared_index]);
	t->shared_len = 0;
	return r;
}

/* Room for len bytes in the shared chunk; opens it (and so fixes its number) if need be. */
static int shared_open(struct taker *t, uint32_t len)
{
	struct chunk placeholder = { .len = 1 };
	int r;

	if (t->shared_len && t->shared_len + len > t->m.chunk_size) {
		r = shared_flush(t);
		if (r < 0)
			return r;
	}
	if (t->shared_len == 0) {
		t->shared_index = (uint32_t)t->data.items.count;
		return VEC_PUSH(&t->data.items, placeholder);
	}
	return 0;
}

/* ---- files ---- */

struct extents {
	struct VEC(struct entry_extent) items;
	uint32_t last_chunk;
	bool last_own; /* the last piece is all of its chunk, so the next chunk may follow */
};

static int extent_add(struct extents *x, uint64_t offset, uint32_t len, uint32_t chunk,
		      uint32_t chunk_offset, bool own)
{
	struct entry_extent e = { offset, len, chunk, chunk_offset }, *last;
	bool goes_on = false;
	int r = 0;

	last = x->items.count ? &x->items.data[x->items.count - 1] : NULL;
	if (last && last->file_offset + last->len == offset) {
		if (own)
			goes_on = x->last_own && chunk == x->last_chunk + 1;
		else
			goes_on = !x->last_own && chunk == x->last_chunk &&
				  last->chunk == chunk && last->chunk_offset + last->len == chunk_offset;
	}
	if (goes_on)
		last->len += len;
	else
		r = VEC_PUSH(&x->items, e);
	x->last_chunk = chunk;
	x->last_own = own;
	return r;
}

static int read_at(int fd, uint8_t *buf, uint32_t len, uint64_t offset)
{
	for (uint32_t at = 0; at < len;) {
		ssize_t n = pread(fd, buf + at, len - at, (off_t)(offset + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EAGAIN; /* became shorter under our hands */
		at += (uint32_t)n;
	}
	return 0;
}

/* One piece that lies inside one chunk of the file's grid. */
static int piece_take(struct taker *t, int fd, bool small, uint64_t offset, uint32_t len,
		      struct extents *x)
{
	struct chunk c;
	int r;

	if (small || len <= t->m.chunk_size / 8) {
		r = shared_open(t, len);
		if (r == 0)
			r = read_at(fd, t->shared + t->shared_len, len, offset);
		if (r == 0)
			r = extent_add(x, offset, len, t->shared_index, t->shared_len, false);
		t->shared_len += r == 0 ? len : 0;
		return r;
	}
	r = read_at(fd, t->buf, len, offset);
	if (r == 0)
		r = chunk_put(t, t->buf, len, &c);
	if (r == 0)
		r = VEC_PUSH(&t->data.items, c);
	if (r == 0)
		r = extent_add(x, offset, len, (uint32_t)t->data.items.count - 1, 0, true);
	return r;
}

static int file_take(struct taker *t, int fd, const struct stat *st, struct extents *x)
{
	uint64_t size = (uint64_t)st->st_size, at = 0;
	bool small = size <= t->m.chunk_size / 2, full = (uint64_t)st->st_blocks * 512 >= size;
	int r = 0;

	while (at < size && r == 0) {
		off_t data = full ? (off_t)at : lseek(fd, (off_t)at, SEEK_DATA);
		off_t hole = data < 0 ? -1 : full ? (off_t)size : lseek(fd, data, SEEK_HOLE);

		if (data < 0 && errno == ENXIO)
			break; /* the rest is a hole */
		if (data < 0 || hole < 0)
			return -errno;
		at = (uint64_t)data;
		if ((uint64_t)hole > size)
			hole = (off_t)size;
		while (at < (uint64_t)hole && r == 0) {
			uint64_t end = (at / t->m.chunk_size + 1) * t->m.chunk_size;
			uint32_t len = (uint32_t)(MIN(end, (uint64_t)hole) - at);

			r = piece_take(t, fd, small, at, len, x);
			t->m.bytes += len;
			at += len;
		}
	}
	return r;
}

/* ---- records ---- */

static int table_flush(struct taker *t, bool all)
{
	while (t->records.len >= t->m.chunk_size || (all && t->records.len)) {
		uint32_t len = (uint32_t)MIN(t->records.len, (size_t)t->m.chunk_size);
		struct chunk c;
		int r;

		memcpy(t->buf, t->records.data, len);
		r = chunk_put(t, t->buf, len, &c);
		if (r == 0)
			r = VEC_PUSH(&t->table.items, c);
		if (r < 0)
			return r;
		t->m.table_len += len;
		strbuf_consume(&t->records, len);
	}
	return 0;
}

static int record_put(struct taker *t, struct entry *e, const struct strbuf *xattrs,
		      const struct extents *x)
{
	size_t at = 0, count = x ? x->items.count : 0;
	int r;

	do {
		e->extent_count = (uint32_t)MIN(count - at, (size_t)ENTRY_EXTENTS_MAX);
		r = entry_encode(e, xattrs, x ? x->items.data + at : NULL, &t->records);
		if (r < 0)
			return r;
		at += e->extent_count;
		e->type = ENTRY_MORE;
		e->xattr_count = 0;
		xattrs = NULL;
	} while (at < count);
	t->m.files++;
	return table_flush(t, false);
}

static int xattrs_read(int fd, struct strbuf *out, uint32_t *ret_count)
{
	char names[4096], value[65536];
	ssize_t len = flistxattr(fd, names, sizeof(names));

	*ret_count = 0;
	if (len < 0)
		return errno == ENOTSUP || errno == EPERM || errno == EBADF ? 0 : -errno;
	for (ssize_t at = 0; at < len; at += (ssize_t)strlen(names + at) + 1) {
		ssize_t n = fgetxattr(fd, names + at, value, sizeof(value));

		if (n < 0)
			continue; /* gone, or not ours to read */
		if (*ret_count == ENTRY_XATTRS_MAX)
			return -E2BIG;
		if (entry_xattr_add(out, names + at, value, (size_t)n) < 0)
			return -ENOMEM;
		++*ret_count;
	}
	return 0;
}

static void entry_fill(struct entry *e, const struct stat *st, const char *path)
{
	memset(e, 0, sizeof(*e));
	e->mode = st->st_mode & 07777;
	e->uid = st->st_uid;
	e->gid = st->st_gid;
	e->mtime_s = st->st_mtim.tv_sec;
	e->mtime_ns = (uint32_t)st->st_mtim.tv_nsec;
	e->path = path;
	e->path_len = strlen(path);
	e->target = "";
}

/* True (and e filled) when the inode was taken under another name before. */
static int hardlink_check(struct taker *t, const struct stat *st, struct entry *e, bool *ret_known)
{
	char key[48];
	char *first, *copy;

	*ret_known = false;
	if (st->st_nlink < 2)
		return 0;
	snprintf(key, sizeof(key), "%llx:%llx", (unsigned long long)st->st_dev,
		 (unsigned long long)st->st_ino);
	first = map_get_str(t->links, key);
	if (first) {
		e->type = ENTRY_HARDLINK;
		e->target = first;
		e->target_len = strlen(first);
		*ret_known = true;
		return 0;
	}
	copy = strdup(e->path);
	if (!copy)
		return -ENOMEM;
	if (map_set_str(t->links, key, copy, NULL) < 0) {
		free(copy);
		return -ENOMEM;
	}
	return 0;
}

static int file_entry(struct taker *t, int dir_fd, const char *name, const char *path)
{
	CLEANUP_STRBUF struct strbuf xattrs = STRBUF_INIT;
	struct extents x = { .last_own = false };
	struct stat st, after;
	struct entry e;
	bool known = false;
	CLEANUP_FD int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOATIME);
	int r;

	if (fd < 0 && errno == EPERM)
		fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	entry_fill(&e, &st, path);
	e.type = ENTRY_FILE;
	e.size = (uint64_t)st.st_size;
	r = hardlink_check(t, &st, &e, &known);
	if (r == 0 && known)
		return record_put(t, &e, NULL, NULL);
	if (r == 0)
		r = xattrs_read(fd, &xattrs, &e.xattr_count);
	/* A break of the shared chunk is a property of the path, so it comes again next time. */
	if (r == 0 && t->shared_len >= SHARED_CHUNK_MIN &&
	    (hash_sip24(path, e.path_len, 0, 0) & SHARED_BREAK_MASK) == 0)
		r = shared_flush(t);
	if (r == 0)
		r = file_take(t, fd, &st, &x);
	if (r == 0 && (fstat(fd, &after) < 0 || after.st_size != st.st_size ||
		       after.st_mtim.tv_sec != st.st_mtim.tv_sec ||
		       after.st_mtim.tv_nsec != st.st_mtim.tv_nsec))
		r = -EAGAIN;
	if (r == 0)
		r = record_put(t, &e, &xattrs, &x);
	VEC_DONE(&x.items);
	return r;
}

static int other_entry(struct taker *t, int dir_fd, const char *name, const char *path,
		       const struct stat *st)
{
	char target[ENTRY_PATH_MAX + 1];
	struct entry e;
	bool known = false;
	int r;

	entry_fill(&e, st, path);
	if (S_ISLNK(st->st_mode)) {
		ssize_t n = readlinkat(dir_fd, name, target, sizeof(target));

		if (n < 0)
			return -errno;
		if (n == (ssize_t)sizeof(target))
			return -ENAMETOOLONG;
		e.type = ENTRY_SYMLINK;
		e.mode = 0777;
		e.target = target;
		e.target_len = (size_t)n;
	} else if (S_ISFIFO(st->st_mode)) {
		e.type = ENTRY_FIFO;
	} else if (S_ISSOCK(st->st_mode)) {
		return 0; /* its listener is gone on the other machine, and so is its use */
	} else {
		return -EOPNOTSUPP; /* a device has no place in a checkpoint */
	}
	r = hardlink_check(t, st, &e, &known);
	return r < 0 ? r : record_put(t, &e, NULL, NULL);
}

static int name_compare(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int name_keep(const struct dirent *e)
{
	return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

static int dir_take(struct taker *t, int fd, const char *path, unsigned depth, struct diag *diag);

static int child_take(struct taker *t, int dir_fd, const char *name, const char *path,
		      unsigned depth, struct diag *diag)
{
	struct stat st;
	int r;

	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		r = -errno;
	} else if (S_ISDIR(st.st_mode)) {
		CLEANUP_FD int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		if (fd >= 0)
			return dir_take(t, fd, path, depth + 1, diag);
		r = -errno;
	} else if (S_ISREG(st.st_mode)) {
		r = file_entry(t, dir_fd, name, path);
	} else {
		r = other_entry(t, dir_fd, name, path, &st);
	}
	if (r == -EAGAIN)
		return diag_set(diag, r, path, "changed while the image was taken");
	if (r == -EOPNOTSUPP)
		return diag_set(diag, r, path, "a device cannot be part of a checkpoint");
	return r < 0 ? diag_set(diag, r, path, "%s", strerror(-r)) : 0;
}

static int dir_take(struct taker *t, int fd, const char *path, unsigned depth, struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf xattrs = STRBUF_INIT;
	struct dirent **names = NULL;
	struct stat st;
	struct entry e;
	int n, r;

	if (depth > DEPTH_MAX)
		return diag_set(diag, -ELOOP, path, "more than %d nested folders", DEPTH_MAX);
	if (fstat(fd, &st) < 0)
		return io_error(diag, path);
	entry_fill(&e, &st, path);
	e.type = ENTRY_DIR;
	r = xattrs_read(fd, &xattrs, &e.xattr_count);
	if (r == 0)
		r = record_put(t, &e, &xattrs, NULL);
	if (r < 0)
		return diag_set(diag, r, path, "%s", strerror(-r));
	n = scandirat(fd, ".", &names, name_keep, name_compare);
	if (n < 0)
		return io_error(diag, path);
	for (int i = 0; i < n; i++) {
		char child[ENTRY_PATH_MAX + 1];

		if (r == 0)
			r = path_format(child, sizeof(child), "%s%s%s", path, *path ? "/" : "",
					names[i]->d_name);
		if (r == 0)
			r = child_take(t, fd, names[i]->d_name, child, depth, diag);
		free(names[i]);
	}
	free(names);
	return r;
}

/* ---- room, commit ---- */

static uint64_t data_bytes(int fd)
{
	CLEANUP_DIR DIR *dir = fdopendir(fd);
	uint64_t sum = 0;

	if (!dir) {
		(void)close(fd);
		return 0;
	}
	for (struct dirent *e; (e = readdir(dir));) {
		struct stat st;
		int sub;

		if (!name_keep(e) || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		sum += 256;
		if (S_ISREG(st.st_mode))
			sum += MIN((uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
		if (!S_ISDIR(st.st_mode))
			continue;
		sub = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub >= 0)
			sum += data_bytes(sub);
	}
	return sum;
}

/* A first image must fit whole; a later one shares chunks nobody can count before, so there the
 * disk itself is asked, write by write. */
static int room_check(struct taker *t, uint64_t total, bool first, struct diag *diag)
{
	struct statvfs v;
	uint64_t room, need = first ? total + total / 256 + (1u << 20) : 1u << 20;

	if (statvfs(t->job_dir, &v) < 0)
		return io_error(diag, t->job_dir);
	room = (uint64_t)v.f_bavail * v.f_frsize;
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
	int r = manifest_build(t, &manifest, digest);

	if (r == 0)
		r = pack_name_new(t->job_dir, digest, pack);
	if (r == 0 && sync && fdatasync(t->pack_fd) < 0)
		r = -errno;
	if (r == 0 && t->rows.count) {
		r = path_format(from, sizeof(from), "%s/pack", t->tmp);
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/packs/%s.pack", t->job_dir, pack);
		if (r == 0 && rename(from, to) < 0)
			r = -errno;
		POINT("image.take.before_index");
		if (r == 0)
			r = path_format(to, sizeof(to), "%s/packs/%s.idx", t->job_dir, pack);
		if (r == 0)
			r = pack_idx_write(to, t->rows.data, (uint32_t)t->rows.count, t->pack_len, sync);
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
	info.new_bytes = t->new_bytes;
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
	uint64_t nonce;
	char path[PATH_MAX];
	int r;

	r = seal_keys_derive(t->p->key, &t->keys);
	if (r == 0)
		r = sealer_new(&t->keys, &t->sealer);
	if (r == 0)
		r = map_new(&t->own);
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
	t->buf = aligned_alloc(PACK_ALIGN, t->m.chunk_size);
	t->shared = aligned_alloc(PACK_ALIGN, t->m.chunk_size);
	return t->buf && t->shared ? 0 : -ENOMEM;
}

static void taker_done(struct taker *t)
{
	const void *key;
	size_t key_len, pos = 0;
	void *value;

	while (t->links && map_next(t->links, &pos, &key, &key_len, &value))
		free(value);
	map_free(t->links);
	map_free(t->own);
	sealer_free(t->sealer);
	packs_close(t->packs);
	if (t->pack_fd >= 0)
		(void)close(t->pack_fd); /* synced before, or of no use any more */
	if (t->direct_fd >= 0)
		(void)close(t->direct_fd); /* the same file */
	VEC_DONE(&t->rows);
	VEC_DONE(&t->data.items);
	VEC_DONE(&t->table.items);
	strbuf_done(&t->records);
	free(t->buf);
	free(t->shared);
	explicit_bzero(&t->keys, sizeof(t->keys));
	if (t->tmp[0])
		(void)dir_remove_all(t->tmp); /* prune sweeps what stays */
}

static uint32_t chunk_size_for(uint64_t total)
{
	return total <= (UINT64_C(64) << 30) ? 1u << 20 : total <= (UINT64_C(256) << 30) ? 2u << 20 : 4u << 20;
}

static int take_locked(struct taker *t, struct image_info *ret_info, struct diag *diag)
{
	const struct image_take_params *p = t->p;
	CLEANUP_IMAGE struct image previous = { 0 };
	CLEANUP_FD int fd = open(p->src_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool first = true;
	uint64_t total;
	int r;

	if (fd < 0)
		return io_error(diag, p->src_dir);
	total = data_bytes(dup(fd));
	t->m.chunk_size = p->chunk_size ? p->chunk_size : chunk_size_for(total);
	if (p->previous && *p->previous) {
		r = digest_parse(p->previous, t->m.previous, diag);
		if (r < 0)
			return r;
		/* Its absence costs the delta, nothing else. */
		if (image_open(t->store, p->job, p->previous, &previous, NULL) == 0) {
			first = false;
			if (!p->chunk_size)
				t->m.chunk_size = previous.m.chunk_size;
		}
	}
	r = room_check(t, total, first, diag);
	if (r == 0)
		r = taker_open(t, diag);
	if (r < 0)
		return r;
	memcpy(t->m.key_check, t->keys.key_check, SEAL_KEY_CHECK_LEN);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return io_error(diag, p->src_dir);
	r = dir_take(t, fd, "", 0, diag);
	if (r < 0) {
		diag_prefix(diag, p->src_dir);
		return r;
	}
	r = shared_flush(t);
	if (r == 0)
		r = table_flush(t, true);
	if (r == 0)
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
