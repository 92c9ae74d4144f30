/* SPDX-License-Identifier: Apache-2.0 */
/* Files and folders: whole reads with a bound, atomic writes, trees. */
#ifndef RECLAIM_BASE_FILE_H
#define RECLAIM_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Reads at most size_max bytes; -EFBIG beyond. The buffer has a NUL after it; free() it. */
int file_read(const char *path, size_t size_max, char **ret, size_t *ret_len);
int file_read_at(int dir_fd, const char *name, size_t size_max, char **ret, size_t *ret_len);
/* Temporary file, fsync, rename, fsync of the folder. */
int file_write_atomic(const char *path, const void *bytes, size_t len, mode_t mode);
int fd_write_all(int fd, const void *bytes, size_t len);
/* 0 when all len bytes came, -ENODATA at an early end. */
int fd_read_all(int fd, void *bytes, size_t len);
int dir_make_all(const char *path, mode_t mode);
/* Removes a tree without following links; a missing one is fine. */
int dir_remove_all(const char *path);
int dir_sync(const char *path);
/* snprintf that refuses a cut result: 0 or -ENAMETOOLONG. */
int path_format(char *buf, size_t buf_size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* True if the name is one plain path component: not empty, ".", "..", no '/', no control bytes. */
bool name_is_plain(const char *name);

#endif
