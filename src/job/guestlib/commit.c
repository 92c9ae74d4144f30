/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits: DIR/.NAME.new-PID is filled by the program, then every file is synced and
 * digested, MANIFEST written, synced, the folder renamed to DIR/NAME and DIR synced.
 * Until the rename nothing that can be loaded has changed; after it the commit is whole.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reclaim/reclaim.h"
#include "guestlib.h"
#include "sha256.h"

#define PATH_SIZE 4096
#define FILES_MAX 100000
#define COMMITS_MAX 4096

struct reclaim_commit {
	char dir[PATH_SIZE], name[256], tmp[PATH_SIZE + 320];
};

const char *reclaim_checkpoint_dir(void)
{
	return getenv("RECLAIM_CHECKPOINT_DIR");
}

static const char *dir_or_default(const char *dir)
{
	return dir ? dir : reclaim_checkpoint_dir();
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	return remove(path);
}

static int remove_tree(const char *path)
{
	return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) < 0 && errno != ENOENT ? -errno : 0;
}

static int sync_path(const char *path, int flags)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | flags), r = 0;

	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0)
		r = -errno;
	(void)close(fd);
	return r;
}

/* ---- manifest ---- */

struct lines {
	char *text;
	size_t len, cap;
	unsigned files;
};

static int lines_add(struct lines *l, uint64_t size, const char *hex, const char *name)
{
	size_t need = strlen(name) + 100;

	if (l->len + need > l->cap) {
		size_t cap = l->cap * 2 + need;
		char *text = realloc(l->text, cap);

		if (!text)
			return -ENOMEM;
		l->text = text;
		l->cap = cap;
	}
	l->len += (size_t)sprintf(l->text + l->len, "%llu %s %s\n", (unsigned long long)size, hex, name);
	return 0;
}

/* Size and digest of a file; with sync, written out first. */
static int digest_file(const char *path, bool sync, uint64_t *ret_size, char hex[65])
{
	struct guest_sha256 s;
	size_t buf_size = 1 << 20;
	char *buf = malloc(buf_size);
	uint64_t size = 0;
	ssize_t n = 0;
	int r = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0 || !buf) {
		r = fd < 0 ? -errno : -ENOMEM;
		goto out;
	}
	if (sync && fsync(fd) < 0) {
		r = -errno;
		goto out;
	}
	guest_sha256_init(&s);
	while ((n = read(fd, buf, buf_size)) > 0) {
		guest_sha256_update(&s, buf, (size_t)n);
		size += (uint64_t)n;
	}
	if (n < 0)
		r = -errno;
	guest_sha256_final(&s, hex);
	*ret_size = size;
out:
	if (fd >= 0)
		(void)close(fd);
	free(buf);
	return r;
}

static int list_folder(struct lines *l, const char *top, const char *below, int depth)
{
	char path[PATH_SIZE * 2];
	struct dirent *e;
	DIR *dir;
	int r = 0;

	(void)snprintf(path, sizeof(path), "%s%s%s", top, below[0] ? "/" : "", below);
	dir = depth < 8 ? opendir(path) : NULL;
	if (!dir)
		return depth < 8 ? -errno : -ELOOP;
	while (r == 0 && (e = readdir(dir))) {
		char name[PATH_SIZE], file[PATH_SIZE * 3], hex[65];
		struct stat st;
		uint64_t size;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (strchr(e->d_name, '\n') ||
		    snprintf(name, sizeof(name), "%s%s%s", below, below[0] ? "/" : "", e->d_name) >= (int)sizeof(name)) {
			r = -EINVAL; /* the manifest is one name a line */
			break;
		}
		(void)snprintf(file, sizeof(file), "%s/%s", top, name);
		if (lstat(file, &st) < 0) {
			r = -errno;
		} else if (S_ISDIR(st.st_mode)) {
			r = list_folder(l, top, name, depth + 1);
		} else if (!S_ISREG(st.st_mode) || (!below[0] && !strcmp(e->d_name, "MANIFEST"))) {
			r = -EINVAL; /* links and the manifest's own name have no place in a commit */
		} else {
			r = digest_file(file, true, &size, hex);
			if (r == 0 && ++l->files > FILES_MAX)
				r = -E2BIG;
			if (r == 0)
				r = lines_add(l, size, hex, name);
		}
	}
	(void)closedir(dir);
	/* The names in a folder of the commit have to last as well. */
	return r == 0 ? sync_path(path, O_DIRECTORY) : r;
}

static int put_manifest(const struct reclaim_commit *c, const struct lines *l)
{
	char path[PATH_SIZE * 2];
	size_t at = 0;
	int fd, r = 0;

	(void)snprintf(path, sizeof(path), "%s/MANIFEST", c->tmp);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	while (at < l->len && r == 0) {
		ssize_t n = write(fd, l->text + at, l->len - at);

		if (n < 0 && errno != EINTR)
			r = -errno;
		else if (n > 0)
			at += (size_t)n;
	}
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r == 0 ? sync_path(c->tmp, O_DIRECTORY) : r;
}

/* ---- begin, end ---- */

static bool name_ok(const char *name)
{
	return name[0] && name[0] != '.' && strlen(name) < 200 && !strchr(name, '/') && !strchr(name, '\n') &&
	       !strchr(name, '"') && !strchr(name, '\\');
}

int reclaim_commit_begin(const char *dir, const char *name, struct reclaim_commit **ret)
{
	struct reclaim_commit *c;

	dir = dir_or_default(dir);
	if (!dir)
		return -ENOENT;
	if (!name_ok(name) || strlen(dir) >= PATH_SIZE)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	(void)snprintf(c->dir, sizeof(c->dir), "%s", dir);
	(void)snprintf(c->name, sizeof(c->name), "%s", name);
	(void)snprintf(c->tmp, sizeof(c->tmp), "%s/.%s.new-%d", dir, name, (int)getpid());
	if (remove_tree(c->tmp) < 0 || mkdir(c->tmp, 0755) < 0) {
		int r = -errno;

		free(c);
		return r;
	}
	*ret = c;
	return 0;
}

const char *reclaim_commit_path(const struct reclaim_commit *c)
{
	return c->tmp;
}

void reclaim_commit_abort(struct reclaim_commit *c)
{
	if (!c)
		return;
	(void)remove_tree(c->tmp); /* a rest has a temporary name, and the next begin removes it */
	free(c);
}

/* rename() replaces a folder only if it is empty: the old one steps aside first. Between
 * the two renames the old commit stands under a name that latest() reads as well. */
static int move_into_place(const struct reclaim_commit *c)
{
	char final[PATH_SIZE + 320], old[PATH_SIZE + 320];

	(void)snprintf(final, sizeof(final), "%s/%s", c->dir, c->name);
	if (rename(c->tmp, final) == 0)
		return sync_path(c->dir, O_DIRECTORY);
	if (errno != ENOTEMPTY && errno != EEXIST)
		return -errno;
	(void)snprintf(old, sizeof(old), "%s/%s.old", c->dir, c->name);
	(void)remove_tree(old); /* a rename over it would fail and say so */
	if (rename(final, old) < 0 || rename(c->tmp, final) < 0)
		return -errno;
	if (sync_path(c->dir, O_DIRECTORY) < 0)
		return -errno;
	(void)remove_tree(old); /* complete as well: harmless if it stays */
	return 0;
}

int reclaim_commit_end(struct reclaim_commit *c, uint64_t step)
{
	struct lines l = { 0 };
	int r = list_folder(&l, c->tmp, "", 0);

	if (r == 0 && !l.files)
		r = -ENODATA;
	if (r == 0)
		r = put_manifest(c, &l);
	if (r == 0)
		r = move_into_place(c);
	free(l.text);
	if (r < 0) {
		reclaim_commit_abort(c);
		return r;
	}
	/* The rename is the commit; telling only saves the watcher a look. */
	(void)reclaim_committed(c->name, step);
	free(c);
	return 0;
}

/* ---- latest, prune ---- */

static bool commit_holds(const char *folder)
{
	char path[PATH_SIZE * 3], line[PATH_SIZE];
	bool ok = false;
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/MANIFEST", folder);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		unsigned long long want;
		char digest[65], hex[65], *nl = strchr(line, '\n');
		uint64_t size;
		int at = 0;

		if (!nl || sscanf(line, "%llu %64[0-9a-fA-F] %n", &want, digest, &at) != 2 || !at) {
			ok = false;
			break;
		}
		*nl = '\0';
		(void)snprintf(path, sizeof(path), "%s/%s", folder, line + at);
		ok = digest_file(path, false, &size, hex) == 0 && size == want && !strcasecmp(hex, digest);
		if (!ok)
			break;
	}
	(void)fclose(f);
	return ok;
}

struct found {
	char name[256];
	struct timespec time;
};

static int newer_first(const void *a, const void *b)
{
	const struct found *fa = a, *fb = b;

	if (fa->time.tv_sec != fb->time.tv_sec)
		return fa->time.tv_sec < fb->time.tv_sec ? 1 : -1;
	if (fa->time.tv_nsec != fb->time.tv_nsec)
		return fa->time.tv_nsec < fb->time.tv_nsec ? 1 : -1;
	return strcmp(fb->name, fa->name);
}

/* Folders with a manifest, newest first. Count or -errno; the array is the caller's. */
static int list_commits(const char *dir, struct found **ret)
{
	struct found *all = NULL;
	int count = 0;
	struct dirent *e;
	DIR *d = opendir(dir);

	if (!d)
		return -errno;
	while (count < COMMITS_MAX && (e = readdir(d))) {
		char path[PATH_SIZE * 2];
		struct found *more;
		struct stat st;

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof(path), "%s/%s/MANIFEST", dir, e->d_name);
		if (stat(path, &st) < 0)
			continue;
		more = realloc(all, sizeof(*all) * (size_t)(count + 1));
		if (!more) {
			free(all);
			(void)closedir(d);
			return -ENOMEM;
		}
		all = more;
		(void)snprintf(all[count].name, sizeof(all[count].name), "%s", e->d_name);
		all[count++].time = st.st_mtim;
	}
	(void)closedir(d);
	if (count)
		qsort(all, (size_t)count, sizeof(*all), newer_first);
	*ret = all;
	return count;
}

int reclaim_commit_latest(const char *dir, char *path, size_t path_size)
{
	struct found *all = NULL;
	int count, found = 0;

	dir = dir_or_default(dir);
	if (!dir)
		return -ENOENT;
	count = list_commits(dir, &all);
	for (int i = 0; i < count && !found; i++) {
		char folder[PATH_SIZE * 2];

		(void)snprintf(folder, sizeof(folder), "%s/%s", dir, all[i].name);
		if (!commit_holds(folder))
			continue;
		if (strlen(folder) >= path_size) {
			free(all);
			return -ENAMETOOLONG;
		}
		(void)snprintf(path, path_size, "%s", folder);
		found = 1;
	}
	free(all);
	return count < 0 ? count : found;
}

int reclaim_commit_prune(const char *dir, unsigned keep)
{
	struct found *all = NULL;
	int count, gone = 0;

	dir = dir_or_default(dir);
	if (!dir)
		return -ENOENT;
	if (!keep)
		return -EINVAL;
	count = list_commits(dir, &all);
	for (int i = (int)keep; i < count; i++) {
		char folder[PATH_SIZE * 2], aside[PATH_SIZE * 2];

		/* Out of sight in one step, so that nobody finds it half removed. */
		(void)snprintf(folder, sizeof(folder), "%s/%s", dir, all[i].name);
		(void)snprintf(aside, sizeof(aside), "%s/.%s.gone", dir, all[i].name);
		if (rename(folder, aside) == 0 && remove_tree(aside) == 0)
			gone++;
	}
	free(all);
	return count < 0 ? count : gone;
}
