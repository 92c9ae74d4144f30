/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/blobs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/file.h"
#include "base/map.h"
#include "base/point.h"

struct blobs {
	struct store *store;
	char *dir, *spool;
};

static int digest_of(const struct store_kv *kv, char ret[IDENTITY_DIGEST_HEX + 1])
{
	CLEANUP_JSON json_t *in = json_loadb(kv->value, kv->value_len, 0, NULL);
	const char *sha = json_string_value(json_object_get(in, "sha256"));
	if (!sha || strlen(sha) != IDENTITY_DIGEST_HEX || !name_is_plain(sha))
		return -EBADMSG;
	memcpy(ret, sha, IDENTITY_DIGEST_HEX + 1);
	return 0;
}

static int name_used(void *user, const struct store_kv *kv)
{
	char sha[IDENTITY_DIGEST_HEX + 1];
	return digest_of(kv, sha) < 0 ? 0 : map_set_str(user, sha, user, NULL);
}

/* Removes blobs that no job names: a crash between file and record leaves such. */
static int sweep(struct blobs *b)
{
	struct map *used;
	int r = map_new(&used);
	if (r < 0)
		return r;
	r = store_list(b->store, "blobs/", name_used, used);
	CLEANUP_DIR DIR *d = r == 0 ? opendir(b->dir) : NULL;
	if (r == 0 && !d)
		r = -errno;
	struct dirent *e;
	while (r == 0 && (e = readdir(d)))
		if (e->d_name[0] != '.' && !map_get_str(used, e->d_name))
			(void)unlinkat(dirfd(d), e->d_name, 0); /* tried again at the next sweep */
	map_free(used);
	return r;
}

int blobs_open(const char *dir, struct store *store, struct blobs **ret, struct diag *diag)
{
	char path[4096];
	struct blobs *b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	b->store = store;
	int r = path_format(path, sizeof(path), "%s/blobs", dir);
	if (r == 0) {
		b->dir = strdup(path);
		r = b->dir ? dir_make_all(path, 0700) : -ENOMEM;
	}
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/spool", dir);
	if (r == 0) {
		b->spool = strdup(path);
		r = b->spool ? dir_remove_all(path) : -ENOMEM;
	}
	if (r == 0)
		r = dir_make_all(path, 0700);
	if (r == 0)
		r = sweep(b);
	if (r < 0) {
		blobs_close(b);
		return diag_set(diag, r, dir, "no room for inputs and results: %s", strerror(-r));
	}
	*ret = b;
	return 0;
}

void blobs_close(struct blobs *b)
{
	if (!b)
		return;
	free(b->dir);
	free(b->spool);
	free(b);
}

const char *blobs_spool(const struct blobs *b)
{
	return b->spool;
}

int blobs_put(struct blobs *b, const char *kind, const char *job, const char *path,
	      const char sha256[IDENTITY_DIGEST_HEX + 1], uint64_t size)
{
	char to[4096], key[256];
	int r = path_format(to, sizeof(to), "%s/%s", b->dir, sha256);
	if (r == 0 && rename(path, to) < 0)
		r = -errno;
	if (r == 0)
		r = dir_sync(b->dir);
	if (r < 0)
		return r;
	POINT("coordinator.blob.before_record");
	CLEANUP_JSON json_t *value = json_pack("{s:s,s:I}", "sha256", sha256, "size", (json_int_t)size);
	CLEANUP_FREE char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	if (!text)
		return -ENOMEM;
	struct store_txn t = STORE_TXN_INIT;
	snprintf(key, sizeof(key), "blobs/%s/%s", kind, job);
	store_put(&t, key, text, strlen(text));
	r = store_commit(b->store, &t, NULL);
	POINT("coordinator.blob.after_record");
	return r;
}

int blobs_get(struct blobs *b, const char *kind, const char *job, int *ret_fd, uint64_t *ret_size)
{
	char path[4096], key[256], sha[IDENTITY_DIGEST_HEX + 1];
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	struct stat st;
	snprintf(key, sizeof(key), "blobs/%s/%s", kind, job);
	int r = store_get(b->store, key, &kv);
	if (r == 0)
		r = digest_of(&kv, sha);
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/%s", b->dir, sha);
	if (r < 0)
		return r;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	*ret_fd = fd;
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

int blobs_forget(struct blobs *b, const char *job)
{
	static const char *const kinds[] = { "inputs", "results" };
	struct store_txn t = STORE_TXN_INIT;
	char key[256];
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		snprintf(key, sizeof(key), "blobs/%s/%s", kinds[i], job);
		store_delete(&t, key);
	}
	int r = store_commit(b->store, &t, NULL);
	return r < 0 ? r : sweep(b);
}
