/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's disk limit: bytes and number of files in its folders, looked at by a child at
 * low priority, every second or at a twentieth of the time a look takes; and at once when
 * the file system, asked every 50 ms, has lost an eighth of the limit since. A quota of the
 * kernel (project quota, a file system in a file) would refuse the very write; it needs a
 * file system made for it, while this works on any, also without root. A single file is
 * held by RLIMIT_FSIZE as well. Over the limit the guest is stopped, by name.
 */
#include <errno.h>
#include <fts.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "job/shim/shim.h"

#define LOOK_EVERY_NS NS_PER_S
#define LOOK_SHARE 20
#define WATCH_EVERY_NS (50 * NS_PER_MS)
#define WATCH_SHARE 8

enum { DISK_FITS = 0, DISK_BYTES = 10, DISK_FILES = 11 };

static int look(const char *dir, uint64_t bytes_max, uint64_t files_max)
{
	static const char *const names[] = { "work", "ckpt", "home", "tmp" };
	char paths[ARRAY_SIZE(names)][4300];
	char *list[ARRAY_SIZE(names) + 1] = { NULL };
	uint64_t bytes = 0, files = 0;
	FTSENT *e;
	FTS *fts;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		(void)snprintf(paths[i], sizeof(paths[i]), "%s/%s", dir, names[i]);
		list[i] = paths[i];
	}
	fts = fts_open(list, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
	while (fts && (e = fts_read(fts))) {
		if (e->fts_info == FTS_DP || e->fts_info == FTS_NS)
			continue;
		bytes += (uint64_t)e->fts_statp->st_blocks * 512;
		files++;
		if (bytes_max && bytes > bytes_max)
			return DISK_BYTES;
		if (files_max && files > files_max)
			return DISK_FILES;
	}
	return DISK_FITS;
}

static void remember_free(struct shim *s)
{
	struct statvfs fs;

	if (statvfs(s->start.dir, &fs) < 0)
		return; /* then only the regular looks are left */
	s->disk_free_files = fs.f_ffree;
	s->disk_free_bytes = (uint64_t)fs.f_bfree * fs.f_frsize;
}

/* Others use the file system too: it only says that a look is worth it. */
static bool shrinks_fast(const struct shim *s)
{
	uint64_t files_share = s->start.files_max / WATCH_SHARE, bytes_share = s->start.disk_max / WATCH_SHARE;
	struct statvfs fs;

	if (statvfs(s->start.dir, &fs) < 0)
		return false;
	return (files_share && (uint64_t)fs.f_ffree + files_share < s->disk_free_files) ||
	       (bytes_share && (uint64_t)fs.f_bfree * fs.f_frsize + bytes_share < s->disk_free_bytes);
}

void disk_arm(struct shim *s)
{
	if (!s->start.disk_max && !s->start.files_max)
		return;
	remember_free(s);
	s->disk_next_ns = s->now + LOOK_EVERY_NS;
	s->due.disk = s->now + WATCH_EVERY_NS;
}

void disk_look(struct shim *s)
{
	if (s->disk_pid || (s->state != SHIM_RUNNING && s->state != SHIM_NOTICED))
		return;
	if (s->now < s->disk_next_ns && !shrinks_fast(s)) {
		s->due.disk = s->now + WATCH_EVERY_NS;
		return;
	}
	remember_free(s);
	s->disk_begun_ns = s->now;
	s->disk_pid = fork();
	if (s->disk_pid == 0) {
		(void)setpriority(PRIO_PROCESS, 0, 19); /* a nicety */
		_exit(look(s->start.dir, s->start.disk_max, s->start.files_max));
	}
	if (s->disk_pid < 0) {
		s->disk_pid = 0;
		s->disk_next_ns = s->now + LOOK_EVERY_NS;
		s->due.disk = s->now + WATCH_EVERY_NS;
	}
}

void disk_looked(struct shim *s, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	uint64_t took = s->now - s->disk_begun_ns, wait = took * LOOK_SHARE;
	char why[160];

	s->disk_pid = 0;
	s->disk_next_ns = s->now + MAX(LOOK_EVERY_NS, wait);
	s->due.disk = s->now + WATCH_EVERY_NS;
	if (code == DISK_BYTES)
		(void)snprintf(why, sizeof(why), "it used more disk than its limit of %llu MiB",
			       (unsigned long long)(s->start.disk_max >> 20));
	else if (code == DISK_FILES)
		(void)snprintf(why, sizeof(why), "it has more files than its limit of %llu",
			       (unsigned long long)s->start.files_max);
	if (code == DISK_BYTES || code == DISK_FILES)
		guest_stop(s, SHIM_END_FAILED, why);
}
