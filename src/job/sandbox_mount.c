/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest's file system: a fresh tmpfs becomes the root, the machine's own hangs at
 * /old while the binds are made, and is detached at the end. Nothing of the machine is
 * visible that is not bound here.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "job/sandbox_internal.h"

#define PATH_SIZE 4200

#ifndef MOUNT_ATTR_RDONLY
#define MOUNT_ATTR_RDONLY 0x1
#define MOUNT_ATTR_NOSUID 0x2
#define MOUNT_ATTR_NODEV 0x4
struct mount_attr {
	uint64_t attr_set, attr_clr, propagation, userns_fd;
};
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

static int fail(struct diag *diag, const char *where, const char *doing)
{
	int err = -errno;

	return diag_set(diag, err, where, "%s: %s", doing, strerror(-err));
}

/* Makes the folders of an absolute path below the new root, which is "/" by now. */
static int make_dirs(const char *path)
{
	return dir_make_all(path, 0755);
}

static int make_parent(const char *path)
{
	char dir[PATH_SIZE];
	char *slash;

	(void)snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return 0;
	*slash = '\0';
	return make_dirs(dir);
}

static int make_file(const char *path)
{
	int fd, r = make_parent(path);

	if (r < 0)
		return r;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	(void)close(fd);
	return 0;
}

static int put_file(const char *path, const char *text, mode_t mode)
{
	CLEANUP_FD int fd = -1;
	int r = make_parent(path);

	if (r < 0)
		return r;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	r = fd_write_all(fd, text, strlen(text));
	return r < 0 || fchmod(fd, mode) == 0 ? r : -errno;
}

/* nosuid and nodev on all, and read-only unless writable, with what is mounted below. */
static int harden(const struct sandbox_config *c, const char *to, bool writable, bool devices)
{
	unsigned long flags = MS_BIND | MS_REMOUNT | MS_NOSUID | (devices ? 0 : MS_NODEV) |
			      (writable ? 0 : MS_RDONLY);

	if (c->caps->mount_setattr) {
		struct mount_attr attr = { .attr_set = MOUNT_ATTR_NOSUID |
						       (devices ? 0 : MOUNT_ATTR_NODEV) |
						       (writable ? 0 : MOUNT_ATTR_RDONLY) };

		return syscall(SYS_mount_setattr, AT_FDCWD, to, AT_RECURSIVE, &attr, sizeof(attr)) < 0 ? -errno
												     : 0;
	}
	return mount(NULL, to, NULL, flags, NULL) < 0 ? -errno : 0;
}

static int bind(const struct sandbox_config *c, const char *from, const char *to, bool writable,
		bool device, struct diag *diag)
{
	char old[PATH_SIZE];
	struct stat st;
	int r;

	(void)snprintf(old, sizeof(old), "/old%s", from);
	if (stat(old, &st) < 0)
		return fail(diag, from, "cannot be bound into the sandbox");
	r = S_ISDIR(st.st_mode) ? make_dirs(to) : make_file(to);
	if (r < 0)
		return diag_set(diag, r, to, "cannot make the mount point: %s", strerror(-r));
	if (mount(old, to, NULL, MS_BIND | MS_REC, NULL) < 0)
		return fail(diag, from, "bind");
	r = harden(c, to, writable, device);
	if (r < 0)
		return diag_set(diag, r, to, "cannot be made read-only: %s", strerror(-r));
	return 0;
}

/* Something of the system: a link stays a link, what is absent stays absent. */
static int bind_system(const struct sandbox_config *c, const char *from, const char *to, struct diag *diag)
{
	char old[PATH_SIZE], target[PATH_SIZE];
	struct stat st;
	ssize_t n;

	(void)snprintf(old, sizeof(old), "/old%s", from);
	if (lstat(old, &st) < 0)
		return 0;
	if (!S_ISLNK(st.st_mode))
		return S_ISDIR(st.st_mode) || S_ISREG(st.st_mode) ? bind(c, from, to, false, false, diag) : 0;
	n = readlink(old, target, sizeof(target) - 1);
	if (n < 0)
		return fail(diag, from, "readlink");
	target[n] = '\0';
	if (make_parent(to) < 0 || (symlink(target, to) < 0 && errno != EEXIST))
		return fail(diag, to, "symlink");
	return 0;
}

static int mount_image(const struct sandbox_config *c, struct diag *diag)
{
	CLEANUP_DIR DIR *dir = NULL;
	char old[PATH_SIZE];
	struct dirent *e;
	static const char *const ours[] = { "proc", "dev", "sys", "tmp", "reclaim", "old", "run", "home", "root" };

	(void)snprintf(old, sizeof(old), "/old%s", c->image);
	dir = opendir(old);
	if (!dir)
		return fail(diag, c->image, "the image cannot be opened");
	while ((e = readdir(dir))) {
		char from[PATH_SIZE], to[300];
		bool skip = !name_is_plain(e->d_name);
		int r;

		for (size_t i = 0; i < ARRAY_SIZE(ours) && !skip; i++)
			skip = !strcmp(e->d_name, ours[i]);
		if (skip)
			continue;
		r = path_format(from, sizeof(from), "%s/%s", c->image, e->d_name);
		if (r < 0)
			return diag_set(diag, r, c->image, "path too long");
		(void)snprintf(to, sizeof(to), "/%s", e->d_name);
		r = bind_system(c, from, to, diag);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Parts of /etc that programs need and that hold nobody's secrets. */
static const char *const etc_parts[] = {
	"/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime",
	"/etc/timezone", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates",
	"/etc/ca-certificates.conf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/nsswitch.conf",
	"/etc/protocols", "/etc/services", "/etc/mime.types", "/etc/magic", "/etc/fonts", "/etc/gai.conf",
	"/etc/host.conf", "/etc/python3", "/etc/python3.11", "/etc/OpenCL", "/etc/vulkan", "/etc/debian_version",
	"/etc/os-release", "/etc/inputrc", "/etc/bash.bashrc", "/etc/profile", "/etc/environment",
	"/etc/matplotlibrc", "/etc/openmpi", "/etc/R", "/etc/java-17-openjdk", "/etc/resolv.conf",
};

static int mount_system(const struct sandbox_config *c, struct diag *diag)
{
	static const char *const dirs[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
					    "/opt", "/nix", "/sw", "/cvmfs" };
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(dirs) && r == 0; i++)
		r = bind_system(c, dirs[i], dirs[i], diag);
	for (size_t i = 0; i < ARRAY_SIZE(etc_parts) && r == 0; i++) {
		char old[PATH_SIZE];
		struct stat st;

		/* resolv.conf is often a link into /run: take the file behind any link. */
		(void)snprintf(old, sizeof(old), "/old%s", etc_parts[i]);
		if (lstat(old, &st) < 0)
			continue;
		if (S_ISLNK(st.st_mode))
			r = bind_system(c, etc_parts[i], etc_parts[i], diag);
		else
			r = bind(c, etc_parts[i], etc_parts[i], false, false, diag);
	}
	return r;
}

static int mount_accounts(const struct sandbox_config *c, struct diag *diag)
{
	unsigned uid = c->uid_base ? SANDBOX_UID : (unsigned)getuid();
	unsigned gid = c->uid_base ? SANDBOX_UID : (unsigned)getgid();
	char passwd[512], group[256], hosts[256];

	(void)snprintf(passwd, sizeof(passwd),
		       "guest:x:%u:%u:guest:" BOX_HOME ":/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", uid,
		       gid);
	(void)snprintf(group, sizeof(group), "guest:x:%u:\nnogroup:x:65534:\n", gid);
	(void)snprintf(hosts, sizeof(hosts), "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n",
		       c->hostname ? c->hostname : "guest");
	if (put_file("/etc/passwd", passwd, 0644) < 0 || put_file("/etc/group", group, 0644) < 0 ||
	    put_file("/etc/hosts", hosts, 0644) < 0 ||
	    put_file("/etc/hostname", c->hostname ? c->hostname : "guest", 0644) < 0)
		return fail(diag, "/etc/passwd", "write");
	return 0;
}

static int mount_dev(const struct sandbox_config *c, struct diag *diag)
{
	static const char *const nodes[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random",
					     "/dev/urandom", "/dev/tty" };
	static const char *const links[][2] = { { "/proc/self/fd", "/dev/fd" },
						{ "/proc/self/fd/0", "/dev/stdin" },
						{ "/proc/self/fd/1", "/dev/stdout" },
						{ "/proc/self/fd/2", "/dev/stderr" },
						{ "pts/ptmx", "/dev/ptmx" } };
	char options[64];
	int r = make_dirs("/dev/shm");

	for (size_t i = 0; i < ARRAY_SIZE(nodes) && r == 0; i++)
		r = bind(c, nodes[i], nodes[i], true, true, diag);
	for (size_t i = 0; i < c->device_count && r == 0; i++)
		r = bind(c, c->devices[i], c->devices[i], true, true, diag);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0)
			return fail(diag, links[i][1], "symlink");
	if (make_dirs("/dev/pts") < 0 ||
	    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") < 0)
		return fail(diag, "/dev/pts", "mount");
	/* Memory in /dev/shm counts against the guest's own limit where there is one. */
	if (c->memory_max)
		(void)snprintf(options, sizeof(options), "mode=1777,size=%lluk",
			       (unsigned long long)(c->memory_max / 1024));
	else
		(void)snprintf(options, sizeof(options), "mode=1777,size=50%%");
	if (mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
		return fail(diag, "/dev/shm", "mount");
	return 0;
}

static int mount_proc(const struct sandbox_config *c, struct diag *diag)
{
	static const char *const masked[] = { "/proc/kcore", "/proc/keys", "/proc/key-users",
					      "/proc/timer_list", "/proc/sched_debug", "/proc/sysrq-trigger",
					      "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags",
					      "/proc/kpagecgroup", "/proc/slabinfo", "/proc/vmallocinfo" };
	static const char *const fixed[] = { "/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi" };
	static const char *const sys[] = { "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage" };
	static const char *const sys_gpu[] = { "/sys/devices", "/sys/bus/pci", "/sys/class/drm",
					       "/sys/module/nvidia" };
	int r;

	if (make_dirs("/proc") < 0 ||
	    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
		return fail(diag, "/proc", "mount");
	for (size_t i = 0; i < ARRAY_SIZE(masked) && !c->plain_mounts; i++)
		if (access(masked[i], F_OK) == 0 && mount("/dev/null", masked[i], NULL, MS_BIND, NULL) < 0)
			return fail(diag, masked[i], "mask");
	for (size_t i = 0; i < ARRAY_SIZE(fixed) && !c->plain_mounts; i++)
		if (access(fixed[i], F_OK) == 0 &&
		    (mount(fixed[i], fixed[i], NULL, MS_BIND | MS_REC, NULL) < 0 ||
		     mount(NULL, fixed[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
			   NULL) < 0))
			return fail(diag, fixed[i], "make read-only");
	/* Only what tells a program about its processors; a GPU's driver also looks for its card. */
	r = 0;
	for (size_t i = 0; i < ARRAY_SIZE(sys) && r == 0 && !c->device_count; i++)
		r = bind_system(c, sys[i], sys[i], diag);
	for (size_t i = 0; i < ARRAY_SIZE(sys_gpu) && r == 0 && c->device_count; i++)
		r = bind_system(c, sys_gpu[i], sys_gpu[i], diag);
	return r;
}

static int mount_secrets(const struct sandbox_config *c, struct diag *diag)
{
	uid_t uid = c->uid_base ? (uid_t)(c->uid_base + SANDBOX_UID) : getuid();
	gid_t gid = c->uid_base ? (gid_t)(c->uid_base + SANDBOX_UID) : getgid();

	if (!c->secret_count)
		return 0;
	if (make_dirs(BOX_SECRETS) < 0 ||
	    mount("secrets", BOX_SECRETS, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=64m") < 0)
		return fail(diag, BOX_SECRETS, "mount");
	for (size_t i = 0; i < c->secret_count; i++) {
		char path[512];
		int r = path_format(path, sizeof(path), BOX_SECRETS "/%s", c->secrets[i].name);

		if (r == 0)
			r = put_file(path, c->secrets[i].value, 0400);
		if (r == 0 && c->uid_base && chown(path, uid, gid) < 0)
			r = -errno;
		if (r < 0)
			return diag_set(diag, r, c->secrets[i].name, "the secret cannot be handed over: %s",
					strerror(-r));
	}
	if (mount(NULL, BOX_SECRETS, NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  "mode=0755,size=64m") < 0)
		return fail(diag, BOX_SECRETS, "make read-only");
	return 0;
}

static int mount_own(const struct sandbox_config *c, struct diag *diag)
{
	const struct {
		const char *from, *to;
		bool writable;
	} rows[] = {
		{ c->work, BOX_WORK, true }, { c->ckpt, BOX_CKPT, true }, { c->home, BOX_HOME, true },
		{ c->tmp, "/tmp", true },    { c->run, BOX_RUN, false },  { c->tools, BOX_BIN, false },
	};
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(rows) && r == 0; i++)
		if (rows[i].from)
			r = bind(c, rows[i].from, rows[i].to, rows[i].writable, false, diag);
	for (size_t i = 0; i < c->bind_count && r == 0; i++)
		r = bind(c, c->binds[i].path, c->binds[i].to ? c->binds[i].to : c->binds[i].path,
			 c->binds[i].writable, false, diag);
	if (r == 0)
		r = mount_secrets(c, diag);
	if (r == 0 && (make_dirs("/var") < 0 || symlink("/tmp", "/var/tmp") < 0))
		r = fail(diag, "/var/tmp", "make");
	if (r == 0 && make_dirs("/run") < 0)
		r = fail(diag, "/run", "make");
	return r;
}

int sandbox_mounts(const struct sandbox_config *c, struct diag *diag)
{
	int r;

	(void)umask(022);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return fail(diag, "/", "make private");
	/* /tmp exists everywhere and is hidden in this namespace only. */
	if (mount("root", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m") < 0)
		return fail(diag, "/tmp", "mount");
	if (mkdir("/tmp/old", 0700) < 0 || syscall(SYS_pivot_root, "/tmp", "/tmp/old") < 0 || chdir("/") < 0)
		return fail(diag, "/", "pivot_root");
	r = c->image ? mount_image(c, diag) : mount_system(c, diag);
	if (r == 0 && !c->image)
		r = mount_accounts(c, diag);
	if (r == 0)
		r = mount_dev(c, diag);
	if (r == 0)
		r = mount_proc(c, diag);
	if (r == 0)
		r = mount_own(c, diag);
	if (r < 0)
		return r;
	if (umount2("/old", MNT_DETACH) < 0 || rmdir("/old") < 0)
		return fail(diag, "/old", "detach");
	if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
		return fail(diag, "/", "make read-only");
	return 0;
}
