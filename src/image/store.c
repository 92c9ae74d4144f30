/* SPDX-License-Identifier: Apache-2.0 */
#include "image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "base/parse.h"
#include "base/vec.h"
#include "image/store_internal.h"

int io_error(struct diag *diag, const char *where)
{
	int err = errno;

	return diag_set(diag, -err, where, "%s", strerror(err));
}

const char *image_error_name(int err)
{
	switch (err) {
	case 0: return "ok";
	case -ENOENT: return "missing";
	case -EBADMSG: return "damaged";
	case -EKEYREJECTED: return "key";
	case -ENOSPC:
	case -EDQUOT: return "space";
	case -ESTALE: return "epoch";
	case -ECANCELED: return "cancelled";
	case -EBUSY: return "busy";
	default: return "io";
	}
}

bool image_cancelled(const image_cancel *c)
{
	return c && atomic_load_explicit(c, memory_order_relaxed);
}

int image_store_open(const char *dir, struct image_store **ret, struct diag *diag)
{
	struct image_store *s = calloc(1, sizeof(*s));
	char jobs[PATH_MAX];
	int r;

	if (!s)
		return -ENOMEM;
	r = path_format(s->dir, sizeof(s->dir), "%s", dir);
	if (r == 0)
		r = path_format(jobs, sizeof(jobs), "%s/jobs", dir);
	if (r == 0)
		r = dir_make_all(jobs, 0700);
	if (r < 0) {
		free(s);
		return diag_set(diag, r, dir, "cannot make the image store: %s", strerror(-r));
	}
	*ret = s;
	return 0;
}

void image_store_close(struct image_store *s)
{
	free(s);
}

const char *image_store_dir(const struct image_store *s)
{
	return s->dir;
}

int store_job_dir(const struct image_store *s, const char *job, char ret[PATH_MAX],
		  struct diag *diag)
{
	if (!job || !name_is_plain(job) || strlen(job) > IMAGE_JOB_MAX)
		return diag_set(diag, -EINVAL, "job", "\"%.80s\" is not a job id", job ? job : "");
	return path_format(ret, PATH_MAX, "%s/jobs/%s", s->dir, job);
}

int store_job_make(const struct image_store *s, const char *job, char ret[PATH_MAX],
		   struct diag *diag)
{
	static const char *const parts[] = { "images", "packs", "incoming", "tmp" };
	char path[PATH_MAX];
	int r = store_job_dir(s, job, ret, diag);

	for (size_t i = 0; r == 0 && i < sizeof(parts) / sizeof(parts[0]); i++) {
		r = path_format(path, sizeof(path), "%s/%s", ret, parts[i]);
		if (r == 0)
			r = dir_make_all(path, 0700);
		if (r < 0)
			diag_set(diag, r, ret, "%s", strerror(-r));
	}
	return r;
}

int job_lock(const char *job_dir, bool exclusive, int *ret_fd, struct diag *diag)
{
	char path[PATH_MAX];
	CLEANUP_FD int fd = -1;
	int r = path_format(path, sizeof(path), "%s/lock", job_dir);

	if (r < 0)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return io_error(diag, path);
	while (flock(fd, exclusive ? LOCK_EX | LOCK_NB : LOCK_SH) < 0) {
		if (errno == EWOULDBLOCK)
			return diag_set(diag, -EBUSY, path, "the job's images are in use");
		if (errno != EINTR)
			return io_error(diag, path);
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int digest_parse(const char *hex, uint8_t ret[IMAGE_DIGEST_LEN], struct diag *diag)
{
	if (!hex || strlen(hex) != IMAGE_DIGEST_HEX ||
	    hex_decode(hex, IMAGE_DIGEST_HEX, ret, IMAGE_DIGEST_LEN) < 0)
		return diag_set(diag, -EINVAL, "image", "\"%.80s\" is not an image's digest",
				hex ? hex : "");
	return 0;
}

int image_open_path(const char *path, const uint8_t digest[IMAGE_DIGEST_LEN], struct image *ret,
		    struct diag *diag)
{
	struct image img = { 0 };
	CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	unsigned len = 0;
	uint8_t sum[EVP_MAX_MD_SIZE];
	int r;

	if (fd < 0 && errno == ENOENT)
		return diag_set(diag, -ENOENT, path, "no such image here");
	if (fd < 0 || fstat(fd, &st) < 0)
		return io_error(diag, path);
	if (st.st_size < MANIFEST_HEADER_LEN || (uint64_t)st.st_size > MANIFEST_LEN_MAX)
		return diag_set(diag, -EBADMSG, path, "the manifest has an impossible length");
	img.map_len = (size_t)st.st_size;
	img.map = mmap(NULL, img.map_len, PROT_READ, MAP_PRIVATE, fd, 0);
	if (img.map == MAP_FAILED)
		return io_error(diag, path);
	memcpy(img.digest, digest, IMAGE_DIGEST_LEN);
	r = EVP_Digest(img.map, img.map_len, sum, &len, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
	if (r == 0 && memcmp(sum, digest, IMAGE_DIGEST_LEN) != 0)
		r = diag_set(diag, -EBADMSG, path, "the manifest is not the one its digest names");
	if (r == 0) {
		r = manifest_decode(img.map, img.map_len, &img.m, diag);
		if (r < 0)
			diag_prefix(diag, path);
	}
	if (r < 0) {
		image_close(&img);
		return r;
	}
	*ret = img;
	return 0;
}

int image_open(struct image_store *s, const char *job, const char *digest, struct image *ret,
	       struct diag *diag)
{
	char job_dir[PATH_MAX], path[PATH_MAX];
	uint8_t sum[IMAGE_DIGEST_LEN];
	int r = store_job_dir(s, job, job_dir, diag);

	if (r == 0)
		r = digest_parse(digest, sum, diag);
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/images/%s.manifest", job_dir, digest);
	if (r == 0)
		r = image_open_path(path, sum, ret, diag);
	if (r < 0)
		return r;
	memcpy(ret->job_dir, job_dir, sizeof(job_dir));
	if (strcmp(ret->m.job, job) != 0) {
		image_close(ret);
		return diag_set(diag, -EBADMSG, path, "the manifest is another job's");
	}
	return 0;
}

void image_close(struct image *img)
{
	if (img->map && img->map != MAP_FAILED)
		(void)munmap(img->map, img->map_len);
	img->map = NULL;
}

int pack_name_new(const char *job_dir, const uint8_t digest[IMAGE_DIGEST_LEN], char ret[64])
{
	char hex[17], path[PATH_MAX];

	hex_encode(digest, 8, hex);
	for (unsigned i = 0; i < 1000; i++) {
		int r = path_format(path, sizeof(path), "%s/packs/%s-%u.pack", job_dir, hex, i);

		if (r < 0)
			return r;
		if (access(path, F_OK) < 0) {
			snprintf(ret, 64, "%s-%u", hex, i);
			return 0;
		}
	}
	return -EEXIST;
}

int image_info_compare(const void *a, const void *b)
{
	const struct image_info *x = a, *y = b;

	if (x->epoch != y->epoch)
		return x->epoch < y->epoch ? 1 : -1;
	if (x->seq != y->seq)
		return x->seq < y->seq ? 1 : -1;
	if (x->created_wall_ms != y->created_wall_ms)
		return x->created_wall_ms < y->created_wall_ms ? 1 : -1;
	return strcmp(x->digest, y->digest);
}

struct info_list {
	struct VEC(struct image_info) items;
};

static int list_job(struct image_store *s, const char *job, struct info_list *list)
{
	char job_dir[PATH_MAX], path[PATH_MAX];
	CLEANUP_DIR DIR *dir = NULL;
	int r = store_job_dir(s, job, job_dir, NULL);

	if (r == 0)
		r = path_format(path, sizeof(path), "%s/images", job_dir);
	if (r < 0)
		return r;
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 0 : -errno;
	for (struct dirent *e; (e = readdir(dir));) {
		char hex[IMAGE_DIGEST_HEX + 1];
		struct image_info info;
		struct image img = { 0 };

		if (strlen(e->d_name) != IMAGE_DIGEST_HEX + 9 ||
		    strcmp(e->d_name + IMAGE_DIGEST_HEX, ".manifest") != 0)
			continue;
		memcpy(hex, e->d_name, IMAGE_DIGEST_HEX);
		hex[IMAGE_DIGEST_HEX] = 0;
		if (image_open(s, job, hex, &img, NULL) < 0)
			continue; /* damaged: as good as not there; show and verify name it */
		image_info_fill(&img.m, img.digest, &info);
		image_close(&img);
		r = VEC_PUSH(&list->items, info);
		if (r < 0)
			return r;
	}
	return 0;
}

int image_list(struct image_store *s, const char *job, struct image_info **ret, size_t *ret_count,
	       struct diag *diag)
{
	struct info_list list = { VEC_INIT };
	char path[PATH_MAX];
	CLEANUP_DIR DIR *dir = NULL;
	int r = 0;

	if (job) {
		r = list_job(s, job, &list);
	} else {
		r = path_format(path, sizeof(path), "%s/jobs", s->dir);
		dir = r == 0 ? opendir(path) : NULL;
		if (r == 0 && !dir)
			r = -errno;
		for (struct dirent *e; r == 0 && (e = readdir(dir));)
			if (name_is_plain(e->d_name))
				r = list_job(s, e->d_name, &list);
	}
	if (r < 0) {
		VEC_DONE(&list.items);
		return diag_set(diag, r, s->dir, "%s", strerror(-r));
	}
	if (list.items.count)
		qsort(list.items.data, list.items.count, sizeof(struct image_info),
		      image_info_compare);
	*ret = list.items.data;
	*ret_count = list.items.count;
	return 0;
}

int image_show(struct image_store *s, const char *job, const char *digest, struct image_info *ret,
	       char **ret_meta_json, struct diag *diag)
{
	CLEANUP_IMAGE struct image img = { 0 };
	int r = image_open(s, job, digest, &img, diag);

	if (r < 0)
		return r;
	if (ret_meta_json) {
		char *meta = strndup(img.m.meta, img.m.meta_len);

		if (!meta)
			return -ENOMEM;
		*ret_meta_json = meta;
	}
	image_info_fill(&img.m, img.digest, ret);
	return 0;
}

int image_fence_get(struct image_store *s, const char *job, uint64_t *ret_epoch)
{
	char job_dir[PATH_MAX], path[PATH_MAX];
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = store_job_dir(s, job, job_dir, NULL);

	if (r == 0)
		r = path_format(path, sizeof(path), "%s/fence", job_dir);
	if (r == 0)
		r = file_read(path, 32, &text, &len);
	if (r == -ENOENT) {
		*ret_epoch = 0;
		return 0;
	}
	if (r < 0)
		return r;
	if (len && text[len - 1] == '\n')
		text[len - 1] = 0;
	return parse_u64(text, ret_epoch) < 0 ? -EBADMSG : 0;
}

int image_fence(struct image_store *s, const char *job, uint64_t epoch, struct diag *diag)
{
	char job_dir[PATH_MAX], path[PATH_MAX], text[32];
	uint64_t now = 0;
	int r = store_job_make(s, job, job_dir, diag);

	if (r < 0)
		return r;
	/* A damaged fence is rewritten: the store's epoch of the coordinator still guards. */
	if (image_fence_get(s, job, &now) == 0 && now >= epoch)
		return 0;
	r = path_format(path, sizeof(path), "%s/fence", job_dir);
	if (r < 0)
		return r;
	snprintf(text, sizeof(text), "%llu\n", (unsigned long long)epoch);
	r = file_write_atomic(path, text, strlen(text), 0600);
	return r < 0 ? diag_set(diag, r, path, "%s", strerror(-r)) : 0;
}

static uint64_t tree_bytes(int dir_fd)
{
	CLEANUP_DIR DIR *dir = fdopendir(dir_fd);
	uint64_t sum = 0;

	if (!dir) {
		(void)close(dir_fd);
		return 0;
	}
	for (struct dirent *e; (e = readdir(dir));) {
		struct stat st;
		int fd;

		if (!name_is_plain(e->d_name) ||
		    fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		sum += (uint64_t)st.st_blocks * 512;
		if (!S_ISDIR(st.st_mode))
			continue;
		fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
		if (fd >= 0)
			sum += tree_bytes(fd);
	}
	return sum;
}

int image_store_usage(struct image_store *s, uint64_t *ret_used, uint64_t *ret_free,
		      struct diag *diag)
{
	struct statvfs v;
	int fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return io_error(diag, s->dir);
	if (fstatvfs(fd, &v) < 0) {
		(void)close(fd);
		return io_error(diag, s->dir);
	}
	*ret_free = (uint64_t)v.f_bavail * v.f_frsize;
	*ret_used = tree_bytes(fd);
	return 0;
}
