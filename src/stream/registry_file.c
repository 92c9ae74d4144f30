/* SPDX-License-Identifier: Apache-2.0 */
/* A store for the registry: one file per register, replaced by rename, so that it
 * survives a kill of the process at any moment. The revision is the file's first 8 bytes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "stream/registry.h"

enum { VALUE_MAX = 2 << 20 };

static int path_of(const char *dir, const char *key, char *path, size_t cap)
{
	char flat[256];
	size_t n = 0;

	for (; key[n] && n < sizeof(flat) - 1; n++)
		flat[n] = key[n] == '/' ? '+' : key[n]; /* '+' is in no name */
	flat[n] = '\0';
	return path_format(path, cap, "%s/%s", dir, flat);
}

static int get(void *arg, const char *key, void **ret, size_t *ret_len, uint64_t *ret_revision)
{
	CLEANUP_FREE char *text = NULL;
	char path[512];
	size_t len = 0;
	int r = path_of(arg, key, path, sizeof(path));

	if (r == 0)
		r = file_read(path, VALUE_MAX, &text, &len);
	if (r < 0)
		return r;
	if (len < 8)
		return -EBADMSG;
	*ret_revision = load_le64((const uint8_t *)text);
	memmove(text, text + 8, len - 8);
	*ret_len = len - 8;
	*ret = TAKE(text);
	return 0;
}

static int put(void *arg, const char *key, const void *value, size_t len, uint64_t revision,
	       uint64_t *ret_revision)
{
	CLEANUP_FREE uint8_t *all = malloc(len + 8);
	CLEANUP_FREE void *old = NULL;
	size_t old_len = 0;
	uint64_t have = 0;
	char path[512], temp[520];
	int r = get(arg, key, &old, &old_len, &have);

	if (r < 0 && r != -ENOENT)
		return r;
	if (have != revision)
		return -ESTALE;
	if (!all)
		return -ENOMEM;
	store_le64(all, revision + 1);
	memcpy(all + 8, value, len);
	r = path_of(arg, key, path, sizeof(path));
	if (r == 0)
		r = path_format(temp, sizeof(temp), "%s.new", path);
	if (r < 0)
		return r;
	/* No fsync: this store is for tests and for one machine, where the kernel
	 * outlives the process. The coordinator's own store syncs. */
	FILE *f = fopen(temp, "we");
	if (!f)
		return -errno;
	bool ok = fwrite(all, 1, len + 8, f) == len + 8;
	if (fclose(f) || !ok || rename(temp, path) < 0)
		return -EIO;
	*ret_revision = revision + 1;
	return 0;
}

int registry_file_store(const char *dir, struct registry_store *ret)
{
	int r = dir_make_all(dir, 0700);

	if (r < 0)
		return r;
	*ret = (struct registry_store){ get, put, strdup(dir) };
	return ret->arg ? 0 : -ENOMEM;
}

void registry_file_store_done(struct registry_store *s)
{
	free(s->arg);
	s->arg = NULL;
}
