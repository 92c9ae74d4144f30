/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landlock: what of the file system the guest may touch, and (ABI 6) no signals or
 * abstract sockets to outside. Behind a mount namespace it is a second lock; on the
 * process rung it is the only one.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "job/sandbox_internal.h"

/* Newer than Debian 12's header; values are the kernel's ABI. */
#define FS_REFER (1ULL << 13)     /* ABI 2 */
#define FS_TRUNCATE (1ULL << 14)  /* ABI 3 */
#define FS_IOCTL_DEV (1ULL << 15) /* ABI 5 */
#define SCOPE_ABSTRACT_UNIX_SOCKET (1ULL << 0) /* ABI 6 */
#define SCOPE_SIGNAL (1ULL << 1)

struct ruleset_attr {
	uint64_t handled_access_fs;
	uint64_t handled_access_net; /* ABI 4 */
	uint64_t scoped;             /* ABI 6 */
};

#define FS_READ (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_FILE (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | \
		 FS_TRUNCATE | FS_IOCTL_DEV)
#define FS_ALL_1 ((1ULL << 13) - 1)

int landlock_abi(void)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	return abi < 0 ? 0 : (int)abi;
}

static uint64_t handled(int abi)
{
	uint64_t mask = FS_ALL_1;

	if (abi >= 2)
		mask |= FS_REFER;
	if (abi >= 3)
		mask |= FS_TRUNCATE;
	if (abi >= 5)
		mask |= FS_IOCTL_DEV;
	return mask;
}

/* A path that does not exist needs no rule. */
static int allow(int ruleset, const char *path, uint64_t access)
{
	CLEANUP_FD int fd = open(path, O_PATH | O_CLOEXEC);
	struct landlock_path_beneath_attr rule = { .allowed_access = access };
	struct stat st;

	if (fd < 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		rule.allowed_access &= FS_FILE;
	rule.parent_fd = fd;
	return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

static int allow_list(int ruleset, const char *const *paths, size_t count, uint64_t access)
{
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++)
		if (paths[i])
			r = allow(ruleset, paths[i], access);
	return r;
}

int sandbox_landlock(const struct sandbox_config *c, struct diag *diag)
{
	int abi = c->caps->landlock_abi, r;
	uint64_t all = handled(abi);
	uint64_t write = all & ~(uint64_t)(LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK);
	struct ruleset_attr attr = { .handled_access_fs = all };
	size_t attr_size = abi >= 6 ? sizeof(attr) : abi >= 4 ? 16 : 8;
	CLEANUP_FD int ruleset = -1;
	bool box = sandbox_has_mounts(c);
	static const char *const system[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
					      "/opt", "/nix", "/sw", "/cvmfs", "/etc", "/sys", "/proc" };
	const char *const box_read[] = { "/" };
	const char *const box_write[] = { BOX_WORK, BOX_CKPT, BOX_HOME, "/tmp", "/dev" };
	const char *const own_write[] = { c->work, c->ckpt, c->home, c->tmp, "/dev/shm", "/dev/pts" };
	const char *const own_read[] = { c->run, c->tools, c->secrets_dir };
	static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random",
					       "/dev/urandom", "/dev/tty", "/dev/ptmx" };

	if (!abi)
		return 0;
	if (abi >= 6)
		attr.scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL;
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, attr_size, 0);
	if (ruleset < 0)
		return diag_set(diag, -errno, "landlock", "no ruleset: %s", strerror(errno));
	if (box) {
		r = allow_list(ruleset, box_read, ARRAY_SIZE(box_read), FS_READ);
		if (r == 0)
			r = allow_list(ruleset, box_write, ARRAY_SIZE(box_write), write);
		if (r == 0) /* programs write their own oom_score_adj, comm, ... */
			r = allow(ruleset, "/proc", FS_READ | LANDLOCK_ACCESS_FS_WRITE_FILE);
	} else {
		r = allow_list(ruleset, system, ARRAY_SIZE(system), FS_READ);
		if (r == 0)
			r = allow_list(ruleset, own_read, ARRAY_SIZE(own_read), FS_READ);
		if (r == 0)
			r = allow_list(ruleset, own_write, ARRAY_SIZE(own_write), write);
		if (r == 0)
			r = allow_list(ruleset, devices, ARRAY_SIZE(devices), FS_FILE & all);
		if (r == 0)
			r = allow_list(ruleset, c->devices, c->device_count, FS_FILE & all);
	}
	for (size_t i = 0; i < c->bind_count && r == 0; i++)
		r = allow(ruleset, box && c->binds[i].to ? c->binds[i].to : c->binds[i].path,
			  c->binds[i].writable ? write : FS_READ);
	if (r < 0)
		return diag_set(diag, r, "landlock", "no rule: %s", strerror(-r));
	if (syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
		return diag_set(diag, -errno, "landlock", "not restricted: %s", strerror(errno));
	return 0;
}
