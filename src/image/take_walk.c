/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over a checkpoint folder, sorted by name.
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
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/check.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/map.h"
#include "image/entry.h"
#include "image/take_internal.h"

#define DEPTH_MAX 256             /* nested folders; each costs a descriptor */
#define SHARED_CHUNK_MIN (512u << 10)
#define SHARED_BREAK_MASK 31      /* a break about every 32 files */

/* ---- chunks ---- */

static int buffer_get(struct taker *t, uint8_t **ret)
{
	return image_cancelled(t->p->cancel) ? -ECANCELED : chunk_writer_buffer(t->writer, ret);
}

/* The number of a chunk whose row will stand in list when it was written. */
static int chunk_announce(struct chunk_list *list, uint32_t *ret_index)
{
	struct chunk placeholder = { .len = 1 };

	*ret_index = (uint32_t)list->items.count;
	return VEC_PUSH(&list->items, placeholder);
}

static int chunk_put(struct taker *t, struct chunk_list *list, uint8_t *buf, uint32_t len)
{
	uint32_t index;
	int r = chunk_announce(list, &index);

	if (r == 0)
		chunk_writer_put(t->writer, buf, len, list, index);
	return r;
}

static void shared_flush(struct taker *t)
{
	if (t->shared_len == 0)
		return;
	chunk_writer_put(t->writer, t->shared, t->shared_len, &t->data, t->shared_index);
	t->shared_len = 0;
}

/* Room for len bytes in the shared chunk; opens it (and so fixes its number) if need be. */
static int shared_open(struct taker *t, uint32_t len)
{
	int r;

	if (t->shared_len && t->shared_len + len > t->m.chunk_size)
		shared_flush(t);
	if (t->shared_len)
		return 0;
	r = buffer_get(t, &t->shared);
	return r == 0 ? chunk_announce(&t->data, &t->shared_index) : r;
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
	uint8_t *buf;
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
	r = buffer_get(t, &buf);
	if (r == 0)
		r = read_at(fd, buf, len, offset);
	if (r == 0)
		r = chunk_put(t, &t->data, buf, len);
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
		uint8_t *buf;
		int r = buffer_get(t, &buf);

		if (r < 0)
			return r;
		memcpy(buf, t->records.data, len);
		r = chunk_put(t, &t->table, buf, len);
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
	/* Not blocking: were it a FIFO by now, nobody would open its other end. */
	int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, r;
	CLEANUP_FD int fd = openat(dir_fd, name, flags | O_NOATIME);

	if (fd < 0 && errno == EPERM)
		fd = openat(dir_fd, name, flags);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EAGAIN;
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
		shared_flush(t);
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

static int skip_compare(const void *path, const void *skip)
{
	return strcmp(path, *(const char *const *)skip);
}

static bool skipped(const struct taker *t, const char *path)
{
	return t->p->skip_count &&
	       bsearch(path, t->p->skip, t->p->skip_count, sizeof(*t->p->skip), skip_compare);
}

static int dir_take(struct taker *t, int fd, const char *path, unsigned depth, struct diag *diag);

/* type: what the folder says of it (DT_UNKNOWN: it does not), which saves asking for each file. */
static int child_take(struct taker *t, int dir_fd, const char *name, unsigned char type,
		      const char *path, unsigned depth, struct diag *diag)
{
	struct stat st;
	int r;

	if (type == DT_REG) {
		r = file_entry(t, dir_fd, name, path);
	} else if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
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
		if (r == 0 && !skipped(t, child))
			r = child_take(t, fd, names[i]->d_name, names[i]->d_type, child, depth,
				       diag);
		free(names[i]);
	}
	free(names);
	return r;
}

int take_walk(struct taker *t, int fd, struct diag *diag)
{
	int r = dir_take(t, fd, "", 0, diag);

	if (r < 0)
		return r;
	shared_flush(t);
	r = table_flush(t, true);
	return r < 0 ? diag_set(diag, r, "", "%s", strerror(-r)) : 0;
}

uint64_t take_estimate(int fd)
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
			sum += take_estimate(sub);
	}
	return sum;
}
