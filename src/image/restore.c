/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacking an image: everything is built in a folder beside the destination
 * and renamed in one step, so nobody ever sees a part of it. Three passes over
 * the file table: folders, files and hard links; then symbolic links (so that
 * none can lead a later entry outside); then the folders' own times and modes,
 * which the first two would have changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "base/check.h"
#include "base/file.h"
#include "base/point.h"
#include "base/rng.h"
#include "image/entry.h"
#include "image/reader.h"
#include "image/store_internal.h"

enum pass { PASS_CONTENT, PASS_SYMLINKS, PASS_DIRS };

struct restorer {
	struct image_reader *reader;
	const struct manifest *m;
	struct sealer *sealer;
	image_cancel *cancel;
	enum pass pass;
	bool root;                 /* may give files away */
	int base_fd;               /* the temporary folder */
	int dir_fd;                /* the last parent, kept: entries come folder by folder */
	char dir_path[ENTRY_PATH_MAX + 1];
	bool dir_valid;
	uint8_t *buf;              /* the last chunk, open */
	uint32_t buf_chunk, buf_len;
	int file_fd;               /* the last file, for ENTRY_MORE */
	char file_path[ENTRY_PATH_MAX + 1];
	uint64_t file_size;
	struct timespec file_time;
};

/* Never through a link, never above the temporary folder. */
static int open_beneath(int base, const char *path, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};
	long fd = syscall(SYS_openat2, base, *path ? path : ".", &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

/* The parent's descriptor (borrowed) and the last component. */
static int parent_open(struct restorer *t, const char *path, int *ret_fd, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;

	*ret_name = slash ? slash + 1 : path;
	if (!t->dir_valid || strlen(t->dir_path) != len || memcmp(t->dir_path, path, len) != 0) {
		int fd;

		memcpy(t->dir_path, path, len);
		t->dir_path[len] = 0;
		t->dir_valid = false;
		fd = open_beneath(t->base_fd, t->dir_path, O_RDONLY | O_DIRECTORY);
		if (fd < 0)
			return fd;
		if (t->dir_fd >= 0)
			(void)close(t->dir_fd); /* only a handle */
		t->dir_fd = fd;
		t->dir_valid = true;
	}
	*ret_fd = t->dir_fd;
	return 0;
}

static int xattrs_set(const struct entry *e, int fd)
{
	size_t pos = 0;

	for (uint32_t i = 0; i < e->xattr_count; i++) {
		const char *name;
		const uint8_t *value;
		size_t name_len, value_len;
		char text[256];

		entry_xattr_next(e, &pos, &name, &name_len, &value, &value_len);
		memcpy(text, name, name_len);
		text[name_len] = 0;
		/* What this kernel or file system refuses (trusted.*, security.*) stays behind. */
		if (fsetxattr(fd, text, value, value_len, 0) < 0 && errno != EPERM &&
		    errno != ENOTSUP && errno != EINVAL)
			return -errno;
	}
	return 0;
}

static int owner_set(const struct restorer *t, const struct entry *e, int fd)
{
	return t->root && fchown(fd, e->uid, e->gid) < 0 ? -errno : 0;
}

static int chunk_load(struct restorer *t, uint32_t chunk, struct diag *diag)
{
	struct chunk c;
	int r;

	if (t->buf_chunk == chunk)
		return 0;
	if (image_cancelled(t->cancel))
		return diag_set(diag, -ECANCELED, "", "the restore was cancelled");
	t->buf_chunk = UINT32_MAX;
	r = image_reader_plain(t->reader, chunk, t->sealer, t->buf, &c, diag);
	if (r < 0)
		return r;
	t->buf_chunk = chunk;
	t->buf_len = c.len;
	return 0;
}

static int extents_write(struct restorer *t, const struct entry *e, struct diag *diag)
{
	for (uint32_t i = 0; i < e->extent_count; i++) {
		struct entry_extent x;

		entry_extent_get(e, i, &x);
		if (x.file_offset > t->file_size || x.len > t->file_size - x.file_offset)
			return diag_set(diag, -EBADMSG, t->file_path, "extent outside the file");
		while (x.len) {
			uint32_t n;
			int r;

			if (x.chunk >= t->m->data_chunk_count)
				return diag_set(diag, -EBADMSG, t->file_path, "extent outside the image");
			r = chunk_load(t, x.chunk, diag);
			if (r < 0)
				return r;
			if (x.chunk_offset >= t->buf_len)
				return diag_set(diag, -EBADMSG, t->file_path, "extent outside its chunk");
			n = (uint32_t)MIN((uint64_t)(t->buf_len - x.chunk_offset), x.len);
			for (uint32_t at = 0; at < n;) {
				ssize_t w = pwrite(t->file_fd, t->buf + x.chunk_offset + at, n - at,
						   (off_t)(x.file_offset + at));

				if (w < 0 && errno == EINTR)
					continue;
				if (w < 0)
					return io_error(diag, t->file_path);
				at += (uint32_t)w;
			}
			x.file_offset += n;
			x.len -= n;
			x.chunk++;
			x.chunk_offset = 0;
		}
	}
	return 0;
}

static int file_finish(struct restorer *t)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, t->file_time };
	int r = 0;

	if (t->file_fd < 0)
		return 0;
	if (futimens(t->file_fd, times) < 0)
		r = -errno;
	if (close(t->file_fd) < 0 && r == 0)
		r = -errno;
	t->file_fd = -1;
	return r;
}

static int file_restore(struct restorer *t, const struct entry *e, const char *path, int dir_fd,
			const char *name, struct diag *diag)
{
	int r;

	t->file_fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (t->file_fd < 0)
		return -errno;
	memcpy(t->file_path, path, strlen(path) + 1);
	t->file_size = e->size;
	t->file_time.tv_sec = e->mtime_s;
	t->file_time.tv_nsec = e->mtime_ns;
	if (e->size && ftruncate(t->file_fd, (off_t)e->size) < 0)
		return -errno;
	r = owner_set(t, e, t->file_fd);
	if (r == 0)
		r = xattrs_set(e, t->file_fd);
	if (r == 0 && fchmod(t->file_fd, e->mode) < 0) /* after the owner, who clears setuid */
		r = -errno;
	return r < 0 ? r : extents_write(t, e, diag);
}

static int hardlink_restore(struct restorer *t, const struct entry *e, int dir_fd, const char *name)
{
	char target[ENTRY_PATH_MAX + 1];
	CLEANUP_FD int parent = -1;
	char *slash;

	memcpy(target, e->target, e->target_len);
	target[e->target_len] = 0;
	slash = strrchr(target, '/');
	if (slash)
		*slash = 0;
	parent = open_beneath(t->base_fd, slash ? target : "", O_RDONLY | O_DIRECTORY);
	if (parent < 0)
		return parent;
	return linkat(parent, slash ? slash + 1 : target, dir_fd, name, 0) < 0 ? -errno : 0;
}

static int content_restore(struct restorer *t, const struct entry *e, const char *path,
			   struct diag *diag)
{
	const char *name;
	int dir_fd, r;

	if (e->type == ENTRY_MORE) {
		if (t->file_fd < 0 || strcmp(path, t->file_path) != 0)
			return -EBADMSG;
		return extents_write(t, e, diag);
	}
	r = file_finish(t);
	if (r < 0 || *path == 0)
		return r;
	r = parent_open(t, path, &dir_fd, &name);
	if (r < 0)
		return r;
	switch (e->type) {
	case ENTRY_DIR: return mkdirat(dir_fd, name, 0700) < 0 ? -errno : 0;
	case ENTRY_FILE: return file_restore(t, e, path, dir_fd, name, diag);
	case ENTRY_FIFO:
		if (mkfifoat(dir_fd, name, e->mode) < 0)
			return -errno;
		return t->root && fchownat(dir_fd, name, e->uid, e->gid, AT_SYMLINK_NOFOLLOW) < 0 ?
			       -errno : 0;
	default: return 0; /* links come in the second pass, also hard ones: to a symbolic one */
	}
}

static int link_restore(struct restorer *t, const struct entry *e, const char *path)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
				     { .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns } };
	char target[ENTRY_PATH_MAX + 1];
	const char *name;
	int dir_fd, r;

	if (e->type != ENTRY_SYMLINK && e->type != ENTRY_HARDLINK && e->type != ENTRY_FIFO)
		return 0;
	r = parent_open(t, path, &dir_fd, &name);
	if (r < 0)
		return r;
	if (e->type == ENTRY_HARDLINK)
		return hardlink_restore(t, e, dir_fd, name);
	if (e->type == ENTRY_SYMLINK) {
		memcpy(target, e->target, e->target_len);
		target[e->target_len] = 0;
		if (symlinkat(target, dir_fd, name) < 0)
			return -errno;
		if (t->root && fchownat(dir_fd, name, e->uid, e->gid, AT_SYMLINK_NOFOLLOW) < 0)
			return -errno;
	}
	return utimensat(dir_fd, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int dir_restore(struct restorer *t, const struct entry *e, const char *path)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
				     { .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns } };
	int fd, r;

	if (e->type != ENTRY_DIR)
		return 0;
	fd = open_beneath(t->base_fd, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return fd;
	r = owner_set(t, e, fd);
	if (r == 0)
		r = xattrs_set(e, fd);
	if (r == 0 && futimens(fd, times) < 0)
		r = -errno;
	if (r == 0 && fchmod(fd, e->mode) < 0)
		r = -errno;
	(void)close(fd); /* only a handle */
	return r;
}

static int entry_restore(void *arg, const struct entry *e, struct diag *diag)
{
	struct restorer *t = arg;
	char path[ENTRY_PATH_MAX + 1];
	int r;

	memcpy(path, e->path, e->path_len);
	path[e->path_len] = 0;
	if (diag)
		diag->what[0] = 0;
	r = t->pass == PASS_CONTENT ? content_restore(t, e, path, diag) :
	    t->pass == PASS_SYMLINKS ? link_restore(t, e, path) : dir_restore(t, e, path);
	if (r == -EEXIST || r == -ELOOP || r == -EXDEV) /* the walk never makes such a table */
		return diag_set(diag, -EBADMSG, path, "the file table contradicts itself");
	if (r < 0 && diag && !diag->what[0])
		diag_set(diag, r, path, "%s", strerror(-r));
	return r;
}

static int passes(struct restorer *t, struct diag *diag)
{
	int r = 0;

	for (t->pass = PASS_CONTENT; r == 0 && t->pass <= PASS_DIRS; t->pass++) {
		r = image_reader_entries(t->reader, t->sealer, entry_restore, t, diag);
		if (r == 0)
			r = file_finish(t);
		t->dir_valid = false;
	}
	return r;
}

static int room_check(const struct restorer *t, struct diag *diag)
{
	struct statvfs v;
	uint64_t room, need = t->m->bytes + t->m->files * 512 + (1u << 20);

	if (fstatvfs(t->base_fd, &v) < 0)
		return io_error(diag, "");
	room = (uint64_t)v.f_bavail * v.f_frsize;
	if (room < need)
		return diag_set(diag, -ENOSPC, "", "no room to restore: %llu MiB needed, %llu MiB free",
				(unsigned long long)(need >> 20), (unsigned long long)(room >> 20));
	return 0;
}

static int restore_into(struct restorer *t, const char *tmp, const char *dst, struct diag *diag)
{
	int r;

	t->base_fd = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (t->base_fd < 0)
		return io_error(diag, tmp);
	r = room_check(t, diag);
	if (r == 0)
		r = passes(t, diag);
	if (r < 0)
		return r;
	POINT("image.restore.before_rename");
	/* Not flushed: after a power cut the next incarnation restores from the image again, and a
	 * flush would wait for whatever else the machine is writing. */
	if (rename(tmp, dst) < 0)
		return io_error(diag, dst);
	return 0;
}

int image_restore(struct image_store *s, const char *job, const char *digest,
		  const uint8_t key[IMAGE_KEY_LEN], const char *dst_dir, image_cancel *cancel,
		  char **ret_meta_json, struct diag *diag)
{
	struct restorer t = { .base_fd = -1, .dir_fd = -1, .file_fd = -1, .cancel = cancel,
			      .buf_chunk = UINT32_MAX, .root = geteuid() == 0 };
	CLEANUP_IMAGE_READER struct image_reader *reader = NULL;
	CLEANUP_SEALER struct sealer *sealer = NULL;
	CLEANUP_FREE uint8_t *buf = NULL;
	CLEANUP_FREE char *meta = NULL;
	struct seal_keys keys;
	char tmp[PATH_MAX];
	uint64_t nonce;
	int r;

	r = image_reader_open(s, job, digest, &reader, diag);
	if (r == 0)
		r = seal_keys_derive(key, &keys);
	if (r == 0)
		r = image_reader_key_check(reader, &keys, diag);
	if (r == 0)
		r = sealer_new(&keys, &sealer);
	explicit_bzero(&keys, sizeof(keys));
	if (r == 0)
		r = random_bytes(&nonce, sizeof(nonce));
	if (r == 0)
		r = path_format(tmp, sizeof(tmp), "%s.restore-%016llx", dst_dir,
				(unsigned long long)nonce);
	if (r < 0)
		return r;
	t.reader = reader;
	t.sealer = sealer;
	t.m = image_reader_manifest(reader);
	t.buf = buf = aligned_alloc(PACK_ALIGN, t.m->chunk_size);
	meta = strndup(t.m->meta, t.m->meta_len);
	if (!buf || !meta)
		return -ENOMEM;
	if (mkdir(tmp, 0700) < 0)
		return io_error(diag, tmp);
	r = restore_into(&t, tmp, dst_dir, diag);
	if (t.file_fd >= 0)
		(void)close(t.file_fd); /* of a restore that failed */
	if (t.dir_fd >= 0)
		(void)close(t.dir_fd); /* only a handle */
	if (t.base_fd >= 0)
		(void)close(t.base_fd); /* only a handle */
	if (r < 0) {
		(void)dir_remove_all(tmp); /* the first error counts */
		return r;
	}
	if (ret_meta_json)
		*ret_meta_json = TAKE(meta);
	return 0;
}
