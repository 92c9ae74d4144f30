/* SPDX-License-Identifier: Apache-2.0 */
#include "image/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/le.h"
#include "base/vec.h"

static const char pack_magic[8] = "RCLIDX1\n";

static int bad(struct diag *diag, const char *what)
{
	return diag_set(diag, -EBADMSG, "pack index", "%s", what);
}

int pack_idx_decode(const void *buf, size_t len, struct pack_idx *ret, struct diag *diag)
{
	const uint8_t *p = buf;
	struct pack_idx x;
	uint8_t check[SEAL_CHECK_LEN];

	if (len < PACK_IDX_HEADER_LEN + SEAL_CHECK_LEN || memcmp(p, pack_magic, 8) != 0)
		return bad(diag, "not a pack index of this version");
	x.count = le32_get(p + 8);
	x.pack_len = le64_get(p + 16);
	x.rows = p + PACK_IDX_HEADER_LEN;
	if ((len - PACK_IDX_HEADER_LEN - SEAL_CHECK_LEN) / PACK_IDX_ROW_LEN != x.count ||
	    (len - PACK_IDX_HEADER_LEN - SEAL_CHECK_LEN) % PACK_IDX_ROW_LEN != 0)
		return bad(diag, "length does not fit its count");
	seal_check(p, len - SEAL_CHECK_LEN, check);
	if (memcmp(check, p + len - SEAL_CHECK_LEN, SEAL_CHECK_LEN) != 0)
		return bad(diag, "damaged");
	for (uint32_t i = 0; i < x.count; i++) {
		struct pack_row row;

		pack_idx_row(&x, i, &row);
		if (row.offset % PACK_ALIGN || row.offset > x.pack_len || row.len > x.pack_len - row.offset)
			return bad(diag, "a chunk outside the pack");
		if (i > 0 && memcmp(x.rows + (size_t)(i - 1) * PACK_IDX_ROW_LEN, row.name,
				    SEAL_NAME_LEN) >= 0)
			return bad(diag, "not sorted");
	}
	*ret = x;
	return 0;
}

void pack_idx_row(const struct pack_idx *x, uint32_t i, struct pack_row *ret)
{
	const uint8_t *p = x->rows + (size_t)i * PACK_IDX_ROW_LEN;

	memcpy(ret->name, p, SEAL_NAME_LEN);
	ret->offset = le64_get(p + 16);
	ret->len = le32_get(p + 24);
}

int64_t pack_idx_find(const struct pack_idx *x, const uint8_t name[SEAL_NAME_LEN])
{
	uint32_t lo = 0, hi = x->count;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		int c = memcmp(x->rows + (size_t)mid * PACK_IDX_ROW_LEN, name, SEAL_NAME_LEN);

		if (c == 0)
			return mid;
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

static int row_compare(const void *a, const void *b)
{
	return memcmp(((const struct pack_row *)a)->name, ((const struct pack_row *)b)->name,
		      SEAL_NAME_LEN);
}

int pack_idx_write(const char *path, struct pack_row *rows, uint32_t count, uint64_t pack_len,
		   bool sync)
{
	size_t len = PACK_IDX_HEADER_LEN + (size_t)count * PACK_IDX_ROW_LEN + SEAL_CHECK_LEN;
	CLEANUP_FREE uint8_t *buf = calloc(1, len);
	uint32_t n = 0;
	int r;

	if (!buf)
		return -ENOMEM;
	if (count)
		qsort(rows, count, sizeof(*rows), row_compare);
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *p = buf + PACK_IDX_HEADER_LEN + (size_t)n * PACK_IDX_ROW_LEN;

		if (n > 0 && memcmp(p - PACK_IDX_ROW_LEN, rows[i].name, SEAL_NAME_LEN) == 0)
			continue; /* one image may hold a chunk twice */
		memcpy(p, rows[i].name, SEAL_NAME_LEN);
		le64_put(p + 16, rows[i].offset);
		le32_put(p + 24, rows[i].len);
		n++;
	}
	len = PACK_IDX_HEADER_LEN + (size_t)n * PACK_IDX_ROW_LEN + SEAL_CHECK_LEN;
	memcpy(buf, pack_magic, 8);
	le32_put(buf + 8, n);
	le64_put(buf + 16, pack_len);
	seal_check(buf, len - SEAL_CHECK_LEN, buf + len - SEAL_CHECK_LEN);
	if (sync)
		return file_write_atomic(path, buf, len, 0600);

	char tmp[PATH_MAX];
	CLEANUP_FD int fd = -1;

	r = path_format(tmp, sizeof(tmp), "%s.tmp", path);
	if (r < 0)
		return r;
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = fd_write_all(fd, buf, len);
	if (r == 0 && rename(tmp, path) < 0)
		r = -errno;
	if (r < 0)
		(void)unlink(tmp); /* the first error counts */
	return r;
}

struct pack {
	char name[72];
	int fd, direct_fd;
	void *map;
	size_t map_len;
	struct pack_idx idx;
};

struct packs {
	struct VEC(struct pack) items;
};

static void pack_close(struct pack *k)
{
	if (k->fd >= 0)
		(void)close(k->fd); /* only read */
	if (k->direct_fd >= 0)
		(void)close(k->direct_fd); /* only read */
	if (k->map)
		(void)munmap(k->map, k->map_len);
}

void packs_close(struct packs *p)
{
	if (!p)
		return;
	VEC_EACH(&p->items, k) {
		pack_close(k);
	}
	VEC_DONE(&p->items);
	free(p);
}

static int pack_open(const char *dir, const char *idx_name, struct pack *k, struct diag *diag)
{
	char path[PATH_MAX];
	CLEANUP_FD int fd = -1;
	struct stat st;
	int r;

	memset(k, 0, sizeof(*k));
	k->fd = k->direct_fd = -1;
	if (strlen(idx_name) - 4 >= sizeof(k->name))
		return -ENAMETOOLONG;
	memcpy(k->name, idx_name, strlen(idx_name) - 4);
	r = path_format(path, sizeof(path), "%s/%s", dir, idx_name);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size < PACK_IDX_HEADER_LEN)
		return -EBADMSG;
	k->map_len = (size_t)st.st_size;
	k->map = mmap(NULL, k->map_len, PROT_READ, MAP_PRIVATE, fd, 0);
	if (k->map == MAP_FAILED) {
		k->map = NULL;
		return -errno;
	}
	r = pack_idx_decode(k->map, k->map_len, &k->idx, diag);
	if (r < 0)
		return r;
	r = path_format(path, sizeof(path), "%s/%s.pack", dir, k->name);
	if (r < 0)
		return r;
	k->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (k->fd < 0)
		return -errno;
	k->direct_fd = pack_open_direct(path, O_RDONLY);
	return 0;
}

int packs_open(const char *job_dir, struct packs **ret, struct diag *diag)
{
	CLEANUP(packs_close_cleanup) struct packs *p = calloc(1, sizeof(*p));
	char dir_path[PATH_MAX];
	CLEANUP_DIR DIR *dir = NULL;
	int r;

	if (!p)
		return -ENOMEM;
	r = path_format(dir_path, sizeof(dir_path), "%s/packs", job_dir);
	if (r < 0)
		return r;
	dir = opendir(dir_path);
	if (!dir && errno != ENOENT)
		return diag_set(diag, -errno, dir_path, "%s", strerror(errno));
	for (struct dirent *e; dir && (e = readdir(dir));) {
		size_t len = strlen(e->d_name);
		struct pack k;

		if (len < 5 || strcmp(e->d_name + len - 4, ".idx") != 0)
			continue;
		r = pack_open(dir_path, e->d_name, &k, diag);
		if (r == 0)
			r = VEC_PUSH(&p->items, k);
		if (r < 0) {
			pack_close(&k);
			/* A damaged or half-removed pack only means that its chunks are missing:
			 * they are found elsewhere, fetched again, or the image before serves. */
			if (r != -EBADMSG && r != -ENOENT)
				return r;
		}
	}
	*ret = TAKE(p);
	return 0;
}

int packs_find(const struct packs *p, const uint8_t name[SEAL_NAME_LEN], struct pack_place *ret)
{
	for (size_t n = 0; n < p->items.count; n++) {
		const struct pack *k = &p->items.data[n];
		int64_t i = pack_idx_find(&k->idx, name);

		if (i >= 0) {
			struct pack_row row;

			pack_idx_row(&k->idx, (uint32_t)i, &row);
			*ret = (struct pack_place){ k->fd, k->direct_fd, row.offset, row.len };
			return 0;
		}
	}
	return -ENOENT;
}

int pack_open_direct(const char *path, int flags)
{
	return open(path, flags | O_CLOEXEC | O_DIRECT);
}

static bool is_aligned(const void *buf)
{
	return ((uintptr_t)buf & (PACK_ALIGN - 1)) == 0;
}

int pack_read(const struct pack_place *at, void *buf)
{
	bool direct = at->direct_fd >= 0 && is_aligned(buf);
	uint64_t len = direct ? pack_align(at->len) : at->len;

	for (uint64_t got = 0; got < at->len;) {
		ssize_t n = pread(direct ? at->direct_fd : at->fd, (uint8_t *)buf + got, len - got,
				  (off_t)(at->offset + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (direct && (n < 0 ? errno == EINVAL : got + (uint64_t)n < at->len)) {
			direct = false; /* refused, or an odd piece: the rest the plain way */
			len = at->len;
			got += n > 0 ? (uint64_t)n : 0;
			continue;
		}
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EBADMSG;
		got += (uint64_t)n;
	}
	return 0;
}

int pack_write(const struct pack_place *at, void *buf)
{
	bool direct = at->direct_fd >= 0 && is_aligned(buf);
	uint64_t len = direct ? pack_align(at->len) : at->len;

	if (direct)
		memset((uint8_t *)buf + at->len, 0, len - at->len);
	for (uint64_t put = 0; put < len;) {
		ssize_t n = pwrite(direct ? at->direct_fd : at->fd, (uint8_t *)buf + put, len - put,
				   (off_t)(at->offset + put));

		if (n < 0 && errno == EINTR)
			continue;
		if (direct && (n < 0 ? errno == EINVAL : (uint64_t)n < len - put)) {
			direct = false;
			put += n > 0 ? (uint64_t)n : 0;
			continue;
		}
		if (n < 0)
			return -errno;
		put += (uint64_t)n;
	}
	return 0;
}

size_t packs_count(const struct packs *p)
{
	return p->items.count;
}

const struct pack_idx *packs_idx(const struct packs *p, size_t i)
{
	return &p->items.data[i].idx;
}

const char *packs_name(const struct packs *p, size_t i)
{
	return p->items.data[i].name;
}

int packs_fd(const struct packs *p, size_t i)
{
	return p->items.data[i].fd;
}
