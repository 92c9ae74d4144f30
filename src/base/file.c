/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/strbuf.h"

static int read_to_end(int fd, size_t size_max, char **ret, size_t *ret_len)
{
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;
	char chunk[65536];
	for (;;) {
		ssize_t n = read(fd, chunk, sizeof(chunk));
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (n == 0)
			break;
		if ((size_t)n > size_max - b.len)
			return -EFBIG;
		int r = strbuf_append(&b, chunk, (size_t)n);
		if (r < 0)
			return r;
	}
	size_t len = b.len;
	char *text = strbuf_take(&b);
	if (!text)
		return -ENOMEM;
	*ret = text;
	if (ret_len)
		*ret_len = len;
	return 0;
}

int file_read_at(int dir_fd, const char *name, size_t size_max, char **ret, size_t *ret_len)
{
	CLEANUP_FD int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return read_to_end(fd, size_max, ret, ret_len);
}

int file_read(const char *path, size_t size_max, char **ret, size_t *ret_len)
{
	return file_read_at(AT_FDCWD, path, size_max, ret, ret_len);
}

int fd_write_all(int fd, const void *bytes, size_t len)
{
	const char *p = bytes;
	while (len) {
		ssize_t n = write(fd, p, len);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int fd_read_all(int fd, void *bytes, size_t len)
{
	char *p = bytes;
	while (len) {
		ssize_t n = read(fd, p, len);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (n == 0)
			return -ENODATA;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

int dir_sync(const char *path)
{
	CLEANUP_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return fsync(fd) < 0 ? -errno : 0;
}

static int parent_sync(const char *path)
{
	char parent[PATH_MAX];
	int r = path_format(parent, sizeof(parent), "%s", path);
	if (r < 0)
		return r;
	char *slash = strrchr(parent, '/');
	if (!slash)
		return dir_sync(".");
	slash[slash == parent ? 1 : 0] = '\0';
	return dir_sync(parent);
}

int file_write_atomic(const char *path, const void *bytes, size_t len, mode_t mode)
{
	char temp[PATH_MAX];
	int r = path_format(temp, sizeof(temp), "%s.tmp.%d", path, (int)getpid());
	if (r < 0)
		return r;
	/* A left-over of a crashed namesake is ours to replace. */
	(void)unlink(temp);
	CLEANUP_FD int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	r = fd_write_all(fd, bytes, len);
	if (r == 0 && fchmod(fd, mode) < 0)
		r = -errno;
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && rename(temp, path) < 0)
		r = -errno;
	if (r < 0) {
		(void)unlink(temp);
		return r;
	}
	return parent_sync(path);
}

int dir_make_all(const char *path, mode_t mode)
{
	char copy[PATH_MAX];
	int r = path_format(copy, sizeof(copy), "%s", path);
	if (r < 0)
		return r;
	for (char *p = copy + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(copy, mode) < 0 && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	if (mkdir(copy, mode) < 0 && errno != EEXIST)
		return -errno;
	struct stat st;
	if (stat(copy, &st) < 0)
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static int remove_at(int dir_fd, const char *name, unsigned depth)
{
	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (depth > 200)
		return -ELOOP;
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	CLEANUP_DIR DIR *d = fdopendir(fd);
	if (!d) {
		int err = errno;
		(void)close(fd);
		return -err;
	}
	int first_err = 0;
	for (struct dirent *e; (e = readdir(d));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		int r = remove_at(dirfd(d), e->d_name, depth + 1);
		if (r < 0 && first_err == 0)
			first_err = r;
	}
	if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT && first_err == 0)
		first_err = -errno;
	return first_err;
}

int dir_remove_all(const char *path)
{
	return remove_at(AT_FDCWD, path, 0);
}

int path_format(char *buf, size_t buf_size, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	int n = vsnprintf(buf, buf_size, fmt, args);
	va_end(args);
	if (n < 0)
		return -EINVAL;
	return (size_t)n < buf_size ? 0 : -ENAMETOOLONG;
}

bool name_is_plain(const char *name)
{
	if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strlen(name) > NAME_MAX)
		return false;
	for (const unsigned char *p = (const unsigned char *)name; *p; p++)
		if (*p == '/' || *p < 0x20 || *p == 0x7f)
			return false;
	return true;
}
