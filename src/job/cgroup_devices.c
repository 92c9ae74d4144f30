/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which device nodes a guest may open. v1 has a controller with text rules. v2 has a
 * program instead: a list of comparisons, put together here by hand, since libbpf
 * would be a large guest for forty instructions.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "job/cgroup_internal.h"

#define DEVICES_MAX 128
#define ANY UINT32_MAX

struct device {
	char type; /* 'c' or 'b' */
	unsigned major, minor; /* minor ANY = all */
};

/* null, zero, full, random, urandom, tty, ptmx, and the pts slaves (Linux devices.txt). */
static const struct device standard[] = {
	{ 'c', 1, 3 }, { 'c', 1, 5 }, { 'c', 1, 7 }, { 'c', 1, 8 }, { 'c', 1, 9 }, { 'c', 5, 0 },
	{ 'c', 5, 2 }, { 'c', 136, ANY },
};

static size_t collect(const char *const *paths, size_t count, struct device *ret)
{
	size_t n = ARRAY_SIZE(standard);

	memcpy(ret, standard, sizeof(standard));
	for (size_t i = 0; i < count && n < DEVICES_MAX; i++) {
		struct stat st;

		if (stat(paths[i], &st) < 0 || (!S_ISCHR(st.st_mode) && !S_ISBLK(st.st_mode)))
			continue; /* a lent device that is gone cannot be opened anyway */
		ret[n++] = (struct device){ S_ISCHR(st.st_mode) ? 'c' : 'b', major(st.st_rdev),
					    minor(st.st_rdev) };
	}
	return n;
}

static int put(const char *dir, const char *file, const char *text)
{
	CLEANUP_FD int fd = -1;
	char path[2048];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int cgroup_devices_v1(const char *dir, const char *const *paths, size_t count)
{
	struct device d[DEVICES_MAX];
	size_t n = collect(paths, count, d);
	int r = put(dir, "devices.deny", "a");

	for (size_t i = 0; i < n && r == 0; i++) {
		char text[64];

		if (d[i].minor == ANY)
			(void)snprintf(text, sizeof(text), "%c %u:* rw", d[i].type, d[i].major);
		else
			(void)snprintf(text, sizeof(text), "%c %u:%u rw", d[i].type, d[i].major, d[i].minor);
		r = put(dir, "devices.allow", text);
	}
	return r;
}

/* ---- v2 ---- */

#define INSN(c, d, s, o, i) \
	((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })

/* r2 = type, r3 = major, r4 = minor; a match returns 1, the end 0. mknod (access bit 1)
 * is refused throughout. */
static size_t program_build(const struct device *d, size_t n, struct bpf_insn *out)
{
	size_t at = 0;

	out[at++] = INSN(BPF_LDX | BPF_W | BPF_MEM, 2, 1, 0, 0);
	out[at++] = INSN(BPF_ALU64 | BPF_MOV | BPF_X, 5, 2, 0, 0);
	out[at++] = INSN(BPF_ALU64 | BPF_RSH | BPF_K, 5, 0, 0, 16); /* access */
	out[at++] = INSN(BPF_ALU64 | BPF_AND | BPF_K, 5, 0, 0, BPF_DEVCG_ACC_MKNOD);
	out[at++] = INSN(BPF_JMP | BPF_JEQ | BPF_K, 5, 0, 2, 0);
	out[at++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
	out[at++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	out[at++] = INSN(BPF_ALU64 | BPF_AND | BPF_K, 2, 0, 0, 0xffff);
	out[at++] = INSN(BPF_LDX | BPF_W | BPF_MEM, 3, 1, 4, 0);
	out[at++] = INSN(BPF_LDX | BPF_W | BPF_MEM, 4, 1, 8, 0);
	for (size_t i = 0; i < n; i++) {
		bool any = d[i].minor == ANY;

		out[at++] = INSN(BPF_JMP | BPF_JNE | BPF_K, 2, 0, any ? 3 : 4,
				 d[i].type == 'c' ? BPF_DEVCG_DEV_CHAR : BPF_DEVCG_DEV_BLOCK);
		out[at++] = INSN(BPF_JMP | BPF_JNE | BPF_K, 3, 0, any ? 2 : 3, (int)d[i].major);
		if (!any)
			out[at++] = INSN(BPF_JMP | BPF_JNE | BPF_K, 4, 0, 2, (int)d[i].minor);
		out[at++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1);
		out[at++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	}
	out[at++] = INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
	out[at++] = INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	return at;
}

int cgroup_devices_v2(const char *dir, const char *const *paths, size_t count)
{
	CLEANUP_FD int dir_fd = -1;
	CLEANUP_FD int prog_fd = -1;
	struct device d[DEVICES_MAX];
	struct bpf_insn insns[12 + DEVICES_MAX * 5];
	union bpf_attr attr;
	size_t n = program_build(d, collect(paths, count, d), insns);

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
	attr.insns = (uint64_t)(uintptr_t)insns;
	attr.insn_cnt = (uint32_t)n;
	attr.license = (uint64_t)(uintptr_t) "Dual BSD/GPL";
	prog_fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
	if (prog_fd < 0)
		return -errno;
	dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		return -errno;
	/* The group holds the program: it lives as long as the group does. */
	memset(&attr, 0, sizeof(attr));
	attr.target_fd = (uint32_t)dir_fd;
	attr.attach_bpf_fd = (uint32_t)prog_fd;
	attr.attach_type = BPF_CGROUP_DEVICE;
	attr.attach_flags = BPF_F_ALLOW_MULTI;
	return syscall(SYS_bpf, BPF_PROG_ATTACH, &attr, sizeof(attr)) < 0 ? -errno : 0;
}
