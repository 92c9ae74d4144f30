/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which system calls a guest may make: an allow-list. What is not on it and is known to
 * be an attempt at something (mount, bpf, ptrace, ...) is refused with EPERM and, where
 * the kernel can, reported to the shim so that the refusal is logged with the job's id;
 * anything else unknown is "not implemented", so that newer C libraries fall back.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "job/proc.h"
#include "job/sandbox_internal.h"

static const char *const allowed[] = {
	"_llseek", "_newselect", "accept", "accept4", "access", "alarm", "arch_prctl", "bind", "brk", "cachestat",
	"capget", "capset", "chdir", "chmod", "chown", "chown32", "clock_getres", "clock_getres_time64",
	"clock_gettime", "clock_gettime64", "clock_nanosleep", "clock_nanosleep_time64", "close", "close_range",
	"connect", "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1",
	"epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd",
	"eventfd2", "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64",
	"fadvise64_64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchown32",
	"fchownat", "fcntl", "fcntl64", "fdatasync", "fgetxattr", "flistxattr", "flock", "fork",
	"fremovexattr", "fsetxattr", "fstat", "fstat64", "fstatat64", "fstatfs", "fstatfs64", "fsync",
	"ftruncate", "ftruncate64", "futex", "futex_requeue", "futex_time64", "futex_wait", "futex_waitv",
	"futex_wake", "futimesat", "get_mempolicy", "get_robust_list", "get_thread_area", "getcpu", "getcwd",
	"getdents", "getdents64", "getegid", "getegid32", "geteuid", "geteuid32", "getgid", "getgid32",
	"getgroups", "getgroups32", "getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid",
	"getpriority", "getrandom", "getresgid", "getresgid32", "getresuid", "getresuid32", "getrlimit",
	"getrusage", "getsid", "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getuid32",
	"getxattr", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel",
	"io_destroy", "io_getevents", "io_pgetevents", "io_pgetevents_time64", "io_setup", "io_submit",
	"ioctl", "ioprio_get", "ioprio_set", "kill", "landlock_add_rule", "landlock_create_ruleset",
	"landlock_restrict_self", "lchown", "lchown32", "lgetxattr", "link", "linkat", "listen", "listxattr",
	"llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "lstat64", "madvise", "map_shadow_stack",
	"mbind", "membarrier", "memfd_create", "memfd_secret", "migrate_pages", "mincore", "mkdir", "mkdirat",
	"mlock", "mlock2", "mlockall", "mmap", "mmap2", "move_pages", "mprotect", "mq_getsetattr",
	"mq_notify", "mq_open", "mq_timedreceive", "mq_timedreceive_time64", "mq_timedsend",
	"mq_timedsend_time64", "mq_unlink", "mremap", "mseal", "msgctl", "msgget", "msgrcv", "msgsnd", "msync",
	"munlock", "munlockall", "munmap", "name_to_handle_at", "nanosleep", "newfstatat", "open", "openat",
	"openat2", "pause", "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free",
	"pkey_mprotect", "poll", "ppoll", "ppoll_time64", "prctl", "pread64", "preadv", "preadv2",
	"prlimit64", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev",
	"pselect6", "pselect6_time64", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink",
	"readlinkat", "readv", "recv", "recvfrom", "recvmmsg", "recvmmsg_time64", "recvmsg",
	"remap_file_pages", "removexattr", "rename", "renameat", "renameat2", "restart_syscall", "rmdir",
	"rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn",
	"rt_sigsuspend", "rt_sigtimedwait", "rt_sigtimedwait_time64", "rt_tgsigqueueinfo",
	"sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
	"sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_rr_get_interval_time64",
	"sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp",
	"select", "semctl", "semget", "semop", "semtimedop", "semtimedop_time64", "send", "sendfile",
	"sendfile64", "sendmmsg", "sendmsg", "sendto", "set_mempolicy", "set_mempolicy_home_node",
	"set_robust_list", "set_thread_area", "set_tid_address", "setfsgid", "setfsgid32", "setfsuid",
	"setfsuid32", "setgid", "setgid32", "setgroups", "setgroups32", "setitimer", "setpgid", "setpriority",
	"setregid", "setregid32", "setresgid", "setresgid32", "setresuid", "setresuid32", "setreuid",
	"setreuid32", "setrlimit", "setsid", "setsockopt", "setuid", "setuid32", "setxattr", "shmat", "shmctl",
	"shmdt", "shmget", "shutdown", "sigaltstack", "signalfd", "signalfd4", "socketpair", "splice", "stat",
	"stat64", "statfs", "statfs64", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs",
	"sysinfo", "tee", "tgkill", "time", "timer_create", "timer_delete", "timer_getoverrun",
	"timer_gettime", "timer_gettime64", "timer_settime", "timer_settime64", "timerfd_create",
	"timerfd_gettime", "timerfd_gettime64", "timerfd_settime", "timerfd_settime64", "times", "tkill",
	"truncate", "truncate64", "ugetrlimit", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat",
	"utimensat_time64", "utimes", "vfork", "vmsplice", "wait4", "waitid", "waitpid", "write", "writev",
};

/* Attempts that are worth a line in the log. */
static const char *const reported[] = {
	"acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "create_module",
	"delete_module", "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick",
	"get_kernel_syms", "init_module", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load",
	"kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount", "nfsservctl",
	"open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd", "pivot_root",
	"ptrace", "quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname", "setns",
	"settimeofday", "stime", "swapoff", "swapon", "syslog", "umount", "umount2", "unshare", "uselib",
	"userfaultfd", "vhangup", "vserver",
};

#define CLONE_NEW_ANY (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
		       CLONE_NEWPID | CLONE_NEWNET)

static int add(scmp_filter_ctx ctx, uint32_t action, const char *name)
{
	int nr = seccomp_syscall_resolve_name(name);

	/* Names of other architectures or newer kernels than libseccomp knows. */
	if (nr == __NR_SCMP_ERROR || nr < 0)
		return 0;
	return seccomp_rule_add(ctx, action, nr, 0);
}

/* Families a program may open: its own machine and the internet; of netlink the one that
 * getifaddrs() reads addresses with, harmless without capabilities. */
static int add_sockets(scmp_filter_ctx ctx, uint32_t refuse)
{
	static const int families[] = { AF_UNIX, AF_INET, AF_INET6 };
	int nr = seccomp_syscall_resolve_name("socket"), r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(families) && r == 0; i++) {
		if (families[i] == AF_UNIX) {
			r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nr, 1,
					     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
			continue;
		}
		r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nr, 2,
				     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]),
				     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xf, SOCK_STREAM));
		if (r == 0)
			r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nr, 2,
					     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]),
					     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xf, SOCK_DGRAM));
		if (r == 0)
			r = seccomp_rule_add(ctx, refuse, nr, 2,
					     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]),
					     SCMP_A1(SCMP_CMP_MASKED_EQ, 0xf, SOCK_RAW));
	}
	if (r == 0)
		r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nr, 2, SCMP_A0(SCMP_CMP_EQ, AF_NETLINK),
				     SCMP_A2(SCMP_CMP_EQ, 0 /* NETLINK_ROUTE */));
	if (r == 0)
		r = seccomp_rule_add(ctx, refuse, nr, 2, SCMP_A0(SCMP_CMP_EQ, AF_NETLINK),
				     SCMP_A2(SCMP_CMP_GT, 0));
	if (r == 0)
		r = seccomp_rule_add(ctx, refuse, nr, 1, SCMP_A0(SCMP_CMP_EQ, AF_PACKET));
	if (r == 0)
		r = seccomp_rule_add(ctx, refuse, nr, 1, SCMP_A0(SCMP_CMP_GT, AF_PACKET));
	return r;
}

static int add_special(scmp_filter_ctx ctx, uint32_t refuse)
{
	int clone_nr = seccomp_syscall_resolve_name("clone");
	int nodes[] = { seccomp_syscall_resolve_name("mknod"), seccomp_syscall_resolve_name("mknodat") };
	static const scmp_datum_t kinds[] = { S_IFREG, S_IFIFO, S_IFSOCK, 0 };
	static const scmp_datum_t devices[] = { S_IFCHR, S_IFBLK };
	static const scmp_datum_t personalities[] = { 0, 0x40000, 0xffffffff };
	int r;

	/* New threads and processes, but no new namespaces. clone3 hides its flags in memory, so it
	 * is "not implemented" and the C library takes clone. */
	r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, clone_nr, 1, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_NEW_ANY, 0));
	for (unsigned bit = 0; bit < 32 && r == 0; bit++)
		if (CLONE_NEW_ANY & (1u << bit))
			r = seccomp_rule_add(ctx, refuse, clone_nr, 1,
					     SCMP_A0(SCMP_CMP_MASKED_EQ, 1u << bit, 1u << bit));
	for (size_t n = 0; n < ARRAY_SIZE(nodes); n++) {
		if (nodes[n] < 0)
			continue;
		for (size_t i = 0; i < ARRAY_SIZE(kinds) && r == 0; i++)
			r = n == 0 ? seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nodes[n], 1,
						      SCMP_A1(SCMP_CMP_MASKED_EQ, S_IFMT, kinds[i]))
				   : seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nodes[n], 1,
						      SCMP_A2(SCMP_CMP_MASKED_EQ, S_IFMT, kinds[i]));
		for (size_t i = 0; i < ARRAY_SIZE(devices) && r == 0; i++)
			r = n == 0 ? seccomp_rule_add(ctx, refuse, nodes[n], 1,
						      SCMP_A1(SCMP_CMP_MASKED_EQ, S_IFMT, devices[i]))
				   : seccomp_rule_add(ctx, refuse, nodes[n], 1,
						      SCMP_A2(SCMP_CMP_MASKED_EQ, S_IFMT, devices[i]));
	}
	/* Asking for the personality, the plain one and "no randomisation" are harmless. */
	for (size_t i = 0; i < ARRAY_SIZE(personalities) && r == 0; i++)
		r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, seccomp_syscall_resolve_name("personality"), 1,
				     SCMP_A0(SCMP_CMP_EQ, personalities[i]));
	return r;
}

int sandbox_seccomp(const struct sandbox_config *c, int *ret_notify, struct diag *diag)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
	bool listen = c->caps->seccomp_notify && !c->plain_mounts;
	uint32_t refuse = listen ? SCMP_ACT_NOTIFY : SCMP_ACT_ERRNO(EPERM);
	int r = ctx ? 0 : -ENOMEM, fd;

	*ret_notify = -1;
	/* Sorted by libseccomp into a tree: a call costs some ten comparisons, not three hundred. */
	if (r == 0)
		(void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* absent before 2.5: linear */
	if (r == 0)
		r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_NNP, 0); /* set by us already */
	for (size_t i = 0; i < ARRAY_SIZE(allowed) && r == 0; i++)
		r = add(ctx, SCMP_ACT_ALLOW, allowed[i]);
	for (size_t i = 0; i < ARRAY_SIZE(reported) && r == 0; i++)
		r = add(ctx, refuse, reported[i]);
	if (r == 0)
		r = add_sockets(ctx, refuse);
	if (r == 0)
		r = add_special(ctx, refuse);
	if (r == 0)
		r = seccomp_load(ctx);
	if (r == 0 && listen) {
		fd = seccomp_notify_fd(ctx);
		if (fd >= 0)
			*ret_notify = fd;
		else
			r = fd;
	}
	if (ctx)
		seccomp_release(ctx);
	if (r < 0)
		return diag_set(diag, r, "seccomp", "the filter cannot be loaded: %s", strerror(-r));
	return 0;
}

int sandbox_refusal(int notify_fd, char *buf, size_t buf_size)
{
	struct seccomp_notif *req = NULL;
	struct seccomp_notif_resp *resp = NULL;
	struct proc_info p = { .comm = "?" };
	char *name;
	int r = seccomp_notify_alloc(&req, &resp);

	if (r < 0)
		return r;
	memset(req, 0, sizeof(*req)); /* the kernel insists */
	r = seccomp_notify_receive(notify_fd, req);
	if (r < 0)
		goto out;
	name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, req->data.nr);
	(void)proc_read((pid_t)req->pid, false, &p);
	(void)snprintf(buf, buf_size, "refused %s(0x%llx, 0x%llx) of %s (pid %d)", name ? name : "?",
		       (unsigned long long)req->data.args[0], (unsigned long long)req->data.args[1], p.comm,
		       (int)req->pid);
	free(name);
	resp->id = req->id;
	resp->error = -EPERM;
	resp->val = 0;
	resp->flags = 0;
	(void)seccomp_notify_respond(notify_fd, resp); /* the caller may be gone by now */
out:
	seccomp_notify_free(req, resp);
	return r;
}
