/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scan reads names, sizes and times of the whole folder into a list, sorted by path,
 * and compares: with the list of the last complete set (files format), or with what the
 * manifests say. inotify only says when it is worth looking; it is never the evidence,
 * since its queue can overflow and a kill closes files as a program would.
 */
#include "job/ckpt_watch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/vec.h"

#define WATCHES_MAX 512
#define WRITER_CHECKS_MAX 256
#define EVENTS (IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ONLYDIR)

struct entry {
	char *path; /* below the folder */
	uint64_t size, mtime_ns, ctime_ns, ino;
	bool folder;
	bool temporary; /* by its name, or by a folder's on the way */
};
struct entry_list VEC(struct entry);

struct ckpt_watch {
	int dir_fd, inotify_fd;
	char path[4096];
	enum job_ckpt_format format;
	uint64_t settle_ns;
	bool scanned;
	uint64_t still_since; /* 0 = it runs */
	uint64_t seq;
	struct ckpt_commit last; /* the newest complete set */
	struct entry_list set;   /* its files (files format) */
	struct entry_list all;   /* of this scan */
	struct VEC(char *) skips;
	struct map *watched;     /* folders with an inotify watch */
};

/* ---- lists ---- */

static void entries_clear(struct entry_list *l)
{
	VEC_EACH(l, e)
		free(e->path);
	l->count = 0;
}

static void entries_done(struct entry_list *l)
{
	entries_clear(l);
	VEC_DONE(l);
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static const struct entry *entry_find(const struct entry_list *l, const char *path)
{
	const struct entry key = { .path = (char *)path };

	return l->count ? bsearch(&key, l->data, l->count, sizeof(key), by_path) : NULL;
}

static bool entry_same(const struct entry *a, const struct entry *b)
{
	return a->size == b->size && a->mtime_ns == b->mtime_ns && a->ino == b->ino;
}

/* Names that writers use until a file is whole. */
static bool looks_temporary(const char *name)
{
	static const char *const ends[] = { ".tmp", ".temp", ".part", ".partial", ".incomplete", ".swp",
					    ".lock", ".writing", "~" };
	size_t len = strlen(name);

	if (name[0] == '.' || name[0] == '#' || !strncasecmp(name, "tmp", 3) || !strncasecmp(name, "temp_", 5))
		return true;
	for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
		size_t n = strlen(ends[i]);

		if (len > n && !strcasecmp(name + len - n, ends[i]))
			return true;
	}
	return strstr(name, ".tmp.") || strstr(name, ".tmp-");
}

/* ---- reading the folder ---- */

static void watch_folder(struct ckpt_watch *w, int fd, const char *path)
{
	char link[64];

	if (w->inotify_fd < 0 || map_count(w->watched) >= WATCHES_MAX || map_get_str(w->watched, path[0] ? path : "."))
		return;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (inotify_add_watch(w->inotify_fd, link, EVENTS) >= 0)
		(void)map_set_str(w->watched, path[0] ? path : ".", w, NULL); /* worst case: watched twice */
}

static int read_folder(struct ckpt_watch *w, int fd, const char *path, bool temporary, int depth)
{
	CLEANUP_DIR DIR *dir = NULL;
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *e;

	if (copy < 0)
		return errno == ENOENT ? 0 : -errno;
	dir = fdopendir(copy);
	if (!dir) {
		(void)close(copy);
		return -errno;
	}
	/* Watched before it is read: what comes after is an event, what came before is seen. */
	watch_folder(w, copy, path);
	while ((e = readdir(dir))) {
		struct entry one = { .temporary = temporary || looks_temporary(e->d_name) };
		struct stat st;
		int r = 0;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (w->all.count >= CKPT_FILES_MAX)
			return -E2BIG;
		if (fstatat(copy, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue; /* gone again */
		if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
			continue;
		if (asprintf(&one.path, "%s%s%s", path, path[0] ? "/" : "", e->d_name) < 0)
			return -ENOMEM;
		one.folder = S_ISDIR(st.st_mode);
		one.size = one.folder ? 0 : (uint64_t)st.st_size;
		one.mtime_ns = timespec_ns(&st.st_mtim);
		one.ctime_ns = timespec_ns(&st.st_ctim);
		one.ino = st.st_ino;
		if (VEC_PUSH(&w->all, one) < 0) {
			free(one.path);
			return -ENOMEM;
		}
		if (one.folder && depth < CKPT_DEPTH_MAX) {
			CLEANUP_FD int sub = openat(copy, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			/* one.path is the list's now and stays while the list grows. */
			if (sub >= 0)
				r = read_folder(w, sub, one.path, one.temporary, depth + 1);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static void drain_events(struct ckpt_watch *w)
{
	char buf[8192];

	while (w->inotify_fd >= 0 && read(w->inotify_fd, buf, sizeof(buf)) > 0)
		;
}

/* ---- manifests ---- */

/* "SIZE SHA256 NAME": the parts, or false. Names stay below their folder. */
static bool manifest_line(char *line, uint64_t *ret_size, const char **ret_digest, const char **ret_name)
{
	char *digest = strchr(line, ' '), *name = digest ? strchr(digest + 1, ' ') : NULL;

	if (!name)
		return false;
	*digest++ = '\0';
	*name++ = '\0';
	if (parse_u64(line, ret_size) < 0 || strlen(digest) != 64 || !name[0] || name[0] == '/')
		return false;
	for (const char *p = name; *p;) {
		size_t n = strcspn(p, "/");

		if (n == 0 || (n == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += n + (p[n] == '/');
	}
	*ret_digest = digest;
	*ret_name = name;
	return true;
}

/* Does every named file stand there with its size? Fills the commit's figures. */
static bool manifest_holds(struct ckpt_watch *w, const char *folder, const struct entry *manifest,
			   struct ckpt_commit *ret)
{
	struct ckpt_commit c = { .found = true, .format = JOB_CKPT_MANIFEST, .mtime_ns = manifest->mtime_ns };
	CLEANUP_FREE char *text = NULL;
	char *save = NULL;
	size_t len;

	if (strlen(folder) >= sizeof(c.name) ||
	    file_read_at(w->dir_fd, manifest->path, CKPT_MANIFEST_MAX, &text, &len) < 0)
		return false;
	if (len && text[len - 1] != '\n')
		return false; /* a whole manifest ends with its line */
	(void)snprintf(c.name, sizeof(c.name), "%s", folder);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char path[4096];
		const char *digest, *name;
		const struct entry *e;
		uint64_t size;

		if (!manifest_line(line, &size, &digest, &name) ||
		    path_format(path, sizeof(path), "%s%s%s", folder, folder[0] ? "/" : "", name) < 0)
			return false;
		e = entry_find(&w->all, path);
		if (!e || e->folder || e->size != size)
			return false;
		c.bytes += size;
		c.files++;
	}
	*ret = c;
	return c.files > 0;
}

static int skip_add(struct ckpt_watch *w, const char *path)
{
	char *copy = strdup(path);

	if (!copy || VEC_PUSH(&w->skips, copy) < 0) {
		free(copy);
		return -ENOMEM;
	}
	return 0;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The newest manifest that holds. ret_any: there is one at all, whole or not. */
static int scan_manifests(struct ckpt_watch *w, struct ckpt_commit *ret, bool *ret_any)
{
	struct ckpt_commit best = { 0 };
	int r = 0;

	*ret_any = false;
	VEC_EACH(&w->all, e) {
		struct ckpt_commit c;
		char folder[4096];
		size_t n = strlen(e->path);

		if (r < 0)
			break;
		if (e->folder || strcmp(base_name(e->path), CKPT_MANIFEST_NAME))
			continue;
		*ret_any = true;
		if (e->temporary)
			continue;
		(void)snprintf(folder, sizeof(folder), "%.*s",
			       (int)(n > sizeof(CKPT_MANIFEST_NAME) ? n - sizeof(CKPT_MANIFEST_NAME) : 0), e->path);
		if (!manifest_holds(w, folder, e, &c)) {
			r = skip_add(w, folder[0] ? folder : e->path);
			continue;
		}
		if (!best.found || c.mtime_ns > best.mtime_ns ||
		    (c.mtime_ns == best.mtime_ns && strverscmp(c.name, best.name) > 0))
			best = c;
	}
	*ret = best;
	return r;
}

/* ---- files ---- */

/* A read lease is refused while anybody has the file open for writing (fcntl(2)). Where
 * leases cannot be had (another owner's file, some file systems) nobody is assumed. */
static bool has_writer(struct ckpt_watch *w, const char *path)
{
	CLEANUP_FD int fd = openat(w->dir_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
		return errno == EAGAIN;
	(void)fcntl(fd, F_SETLEASE, F_UNLCK); /* goes with the fd anyway */
	return false;
}

static bool set_stands(struct ckpt_watch *w)
{
	VEC_EACH(&w->set, old) {
		const struct entry *e = entry_find(&w->all, old->path);

		if (!e || !entry_same(e, old))
			return false;
	}
	return w->set.count > 0;
}

/* How long nothing changed, in the program's own running time. */
static uint64_t quiet_ns(struct ckpt_watch *w, uint64_t now_ns, uint64_t changed_wall_ns)
{
	struct timespec ts;
	uint64_t age, still;

	(void)clock_gettime(CLOCK_REALTIME, &ts);
	age = timespec_ns(&ts) > changed_wall_ns ? timespec_ns(&ts) - changed_wall_ns : 0;
	still = w->still_since && now_ns > w->still_since ? now_ns - w->still_since : 0;
	return age > still ? age - still : 0;
}

static int set_replace(struct ckpt_watch *w)
{
	int r = 0;

	entries_clear(&w->set);
	VEC_EACH(&w->all, e) {
		struct entry copy = *e;

		if (e->folder || e->temporary)
			continue;
		copy.path = strdup(e->path);
		r = copy.path ? VEC_PUSH(&w->set, copy) : -ENOMEM;
		if (r < 0) {
			free(copy.path);
			return r;
		}
	}
	return 0;
}

static int scan_files(struct ckpt_watch *w, uint64_t now_ns, enum ckpt_still still, struct ckpt_commit *ret)
{
	struct ckpt_commit c = { .format = JOB_CKPT_FILES };
	uint64_t changed = 0, quiet;
	bool same = true, writing = false;
	size_t checks = 0;
	int r = 0;

	VEC_EACH(&w->all, e) {
		const struct entry *old;

		if (e->folder || e->temporary)
			continue;
		old = entry_find(&w->set, e->path);
		c.files++;
		c.bytes += e->size;
		changed = MAX(changed, e->ctime_ns);
		if (e->mtime_ns >= c.mtime_ns) {
			c.mtime_ns = e->mtime_ns;
			(void)snprintf(c.name, sizeof(c.name), "%.255s", e->path);
		}
		if (old && entry_same(e, old))
			continue;
		same = false;
		if (still != CKPT_EXITED && checks++ < WRITER_CHECKS_MAX && has_writer(w, e->path))
			writing = true;
	}
	if (c.files == 0)
		return 0;
	c.changed_ns = changed;
	/* A file of the set that was deleted makes another set of the rest. */
	same = same && set_stands(w) && w->set.count == c.files;
	c.found = true;
	if (same) {
		*ret = w->last;
		return 0;
	}
	quiet = quiet_ns(w, now_ns, changed);
	if (still == CKPT_EXITED || (!writing && quiet >= w->settle_ns)) {
		r = set_replace(w);
		*ret = c;
		return r;
	}
	*ret = set_stands(w) ? w->last : (struct ckpt_commit){ 0 };
	ret->settling = true;
	ret->wait_ns = still == CKPT_FROZEN ? 0 : writing ? w->settle_ns : w->settle_ns - quiet + NS_PER_MS;
	return 0;
}

/* What does not belong to the set: temporary names always, and files that are not of it. */
static int list_skips(struct ckpt_watch *w, const struct ckpt_commit *c)
{
	int r = 0;
	bool by_files = c->found && c->format == JOB_CKPT_FILES;

	VEC_EACH(&w->all, e) {
		if (r < 0)
			break;
		if (e->temporary || (by_files && !e->folder && !entry_find(&w->set, e->path)))
			r = skip_add(w, e->path);
	}
	return r;
}

static bool commit_same(const struct ckpt_commit *a, const struct ckpt_commit *b)
{
	return a->found == b->found && a->format == b->format && a->mtime_ns == b->mtime_ns &&
	       a->bytes == b->bytes && a->files == b->files && !strcmp(a->name, b->name);
}

static void skips_clear(struct ckpt_watch *w)
{
	VEC_EACH(&w->skips, p)
		free(*p);
	w->skips.count = 0;
}

int ckpt_watch_scan(struct ckpt_watch *w, uint64_t now_ns, enum ckpt_still still, struct ckpt_commit *ret,
		    struct diag *diag)
{
	struct ckpt_commit c = { 0 };
	bool any_manifest = false;
	int r;

	drain_events(w);
	entries_clear(&w->all);
	skips_clear(w);
	/* What stood there before anything ran (a restored image) is whole. */
	if (!w->scanned && still != CKPT_RUNNING)
		still = CKPT_EXITED;
	w->scanned = true;
	if (still == CKPT_RUNNING)
		w->still_since = 0;
	else if (!w->still_since)
		w->still_since = now_ns;
	r = read_folder(w, w->dir_fd, "", false, 0);
	if (r < 0)
		return diag_set(diag, r, w->path, r == -E2BIG ? "more than %d files" : "cannot be read (%d)",
				r == -E2BIG ? CKPT_FILES_MAX : r);
	if (w->all.count)
		qsort(w->all.data, w->all.count, sizeof(*w->all.data), by_path);
	if (w->format != JOB_CKPT_FILES)
		r = scan_manifests(w, &c, &any_manifest);
	if (r == 0 && !c.found && (w->format == JOB_CKPT_FILES || (w->format == JOB_CKPT_AUTO && !any_manifest)))
		r = scan_files(w, now_ns, still, &c);
	if (r == 0)
		r = list_skips(w, &c);
	if (r < 0)
		return diag_set(diag, r, w->path, "out of memory");
	if (c.found && !commit_same(&c, &w->last)) {
		w->last = c;
		w->last.settling = false;
		w->last.wait_ns = 0;
		w->last.seq = ++w->seq;
	}
	c.seq = c.found ? w->last.seq : 0;
	*ret = c;
	return 0;
}

size_t ckpt_watch_skips(const struct ckpt_watch *w, char *const **ret)
{
	*ret = w->skips.data;
	return w->skips.count;
}

/* ---- life ---- */

int ckpt_watch_new(const char *dir, enum job_ckpt_format format, uint64_t settle_ns, struct ckpt_watch **ret,
		   struct diag *diag)
{
	struct ckpt_watch *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return diag_set(diag, -ENOMEM, dir, "out of memory");
	w->inotify_fd = -1;
	w->format = format;
	w->settle_ns = settle_ns ? settle_ns : CKPT_SETTLE_NS;
	w->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = w->dir_fd < 0 ? -errno : path_format(w->path, sizeof(w->path), "%s", dir);
	if (r == 0)
		r = map_new(&w->watched);
	if (r == 0) {
		w->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
		r = w->inotify_fd < 0 ? -errno : 0;
	}
	if (r == 0)
		watch_folder(w, w->dir_fd, "");
	if (r < 0) {
		ckpt_watch_free(w);
		return diag_set(diag, r, dir, "cannot be watched: %s", strerror(-r));
	}
	*ret = w;
	return 0;
}

void ckpt_watch_free(struct ckpt_watch *w)
{
	if (!w)
		return;
	entries_done(&w->all);
	entries_done(&w->set);
	skips_clear(w);
	VEC_DONE(&w->skips);
	if (w->dir_fd >= 0)
		(void)close(w->dir_fd);
	if (w->inotify_fd >= 0)
		(void)close(w->inotify_fd);
	map_free(w->watched);
	free(w);
}

int ckpt_watch_fd(const struct ckpt_watch *w)
{
	return w->inotify_fd;
}
