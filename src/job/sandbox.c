/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making the child. Parent and child speak over one SEQPACKET pair:
 *
 *     parent 'a' --> attached to its cgroup (and mapped, without root): set up
 *     child  'U' --> user namespace made, please map; parent 'u'
 *     child  'R' --> ready, with the listening sockets
 *     parent 'g' --> go: restrict yourself and execute
 *     child  'N' --> the seccomp listener
 *     end of file: executed.   child 'E' text: failed at any step
 */
#include "job/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "job/sandbox_internal.h"

#define STEP_TIMEOUT_MS 20000 /* a loaded machine, not a design figure */
#define ID_RANGE 65536

const char *const sandbox_rung_names[] = { "full", "namespaces", "userns", "process", NULL };

/* ---- probe ---- */

/* All tries run beside each other: the end of a namespace takes the kernel longer than its making. */
static pid_t try_begin(int flags, bool unprivileged)
{
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	/* As an ordinary user would: give root up first. */
	if (unprivileged && geteuid() == 0 &&
	    (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0))
		_exit(1);
	_exit(unshare(flags) == 0 ? 0 : 1);
}

static bool try_end(pid_t pid)
{
	int status;

	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void sandbox_probe(struct sandbox_caps *ret)
{
	struct sandbox_caps c = { 0 };
	int spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
	uint32_t action = SECCOMP_RET_USER_NOTIF;
	pid_t all = try_begin(spaces | CLONE_NEWUSER | CLONE_NEWNET, true);

	if (geteuid() == 0) {
		pid_t inner = try_begin(spaces, false), net = try_begin(CLONE_NEWNET, false),
		      user = try_begin(CLONE_NEWUSER, false), cg = try_begin(CLONE_NEWCGROUP, false);

		c.namespaces = try_end(inner);
		c.net = try_end(net);
		c.user = try_end(user);
		c.cgroupns = try_end(cg);
	} else {
		c.cgroupns = access("/proc/self/ns/cgroup", F_OK) == 0;
	}
	c.root = c.namespaces;
	c.userns = try_end(all);
	c.seccomp = prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
	c.seccomp_notify = c.seccomp && seccomp_api_get() >= 5 &&
			   syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
	c.landlock_abi = landlock_abi();
	errno = 0;
	(void)syscall(442 /* mount_setattr */, -1, "", 0, NULL, 0);
	c.mount_setattr = errno != ENOSYS;
	*ret = c;
}

/* ---- choice ---- */

static void lack(struct sandbox_choice *c, const char *text)
{
	if (c->lacks_count < SANDBOX_LACKS_MAX)
		(void)snprintf(c->lacks[c->lacks_count++], SANDBOX_LACK_MAX, "%s", text);
}

static void describe(const struct sandbox_caps *caps, bool cgroup_limits, struct sandbox_choice *c)
{
	if (c->rung != SANDBOX_PROCESS) {
		if (!caps->cgroupns)
			lack(c, "cgroup namespace");
		if (!caps->mount_setattr)
			lack(c, "read-only for what is mounted below a bound folder (Linux 5.12)");
	}
	if (c->rung == SANDBOX_NAMESPACES) {
		if (!caps->user)
			lack(c, "user namespace");
		if (!caps->net)
			lack(c, "network namespace");
	}
	if (c->rung >= SANDBOX_USERNS) {
		lack(c, "uids of its own");
		lack(c, "network of its own");
	}
	if (c->rung == SANDBOX_PROCESS) {
		lack(c, "mount, pid, ipc, uts and user namespaces");
		lack(c, "read-only system, private /tmp and home");
	}
	if (!caps->seccomp)
		lack(c, "seccomp");
	else if (!caps->seccomp_notify)
		lack(c, "log of refused system calls (Linux 5.0, libseccomp 2.5)");
	if (!caps->landlock_abi)
		lack(c, "Landlock (Linux 5.13)");
	if (!cgroup_limits)
		lack(c, "cgroup limits");
}

static int rung_from_name(const char *name, int fallback)
{
	if (!name)
		return fallback;
	for (int i = 0; sandbox_rung_names[i]; i++)
		if (!strcasecmp(name, sandbox_rung_names[i]))
			return i;
	return -EINVAL;
}

static bool can(const struct sandbox_caps *caps, int rung, bool cgroup_limits)
{
	switch (rung) {
	case SANDBOX_FULL:
		return caps->root && caps->net && caps->user && caps->seccomp && caps->landlock_abi && cgroup_limits;
	case SANDBOX_NAMESPACES:
		return caps->root;
	case SANDBOX_USERNS:
		return caps->userns && geteuid() != 0;
	default:
		return true;
	}
}

int sandbox_choose(const struct sandbox_caps *caps, const char *wanted, const char *rung_min,
		   bool cgroup_limits, struct sandbox_choice *ret, struct diag *diag)
{
	int want = rung_from_name(wanted, -1), lowest = rung_from_name(rung_min, SANDBOX_PROCESS), rung;

	if (want == -EINVAL || lowest < 0)
		return diag_set(diag, -EINVAL, "sandbox", "\"%s\" is no rung (full, namespaces, userns, process)",
				want == -EINVAL ? wanted : rung_min);
	rung = want >= 0 ? want : SANDBOX_FULL;
	while (rung <= SANDBOX_PROCESS && !can(caps, rung, cgroup_limits))
		rung++;
	if (rung > lowest || (want >= 0 && rung != want))
		return diag_set(diag, -ENOTSUP, "sandbox", "this machine gets to \"%s\" and \"%s\" is asked for",
				sandbox_rung_names[rung], sandbox_rung_names[want >= 0 ? want : lowest]);
	*ret = (struct sandbox_choice){ .rung = (enum sandbox_rung)rung };
	describe(caps, cgroup_limits, ret);
	return 0;
}

bool sandbox_has_mounts(const struct sandbox_config *c)
{
	return c->rung != SANDBOX_PROCESS;
}

/* ---- words between parent and child ---- */

static int ctl_send(int fd, char word, const char *text, const int *fds, size_t fd_count)
{
	char body[1024];
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * 4)];
	} control;
	struct iovec iov = { .iov_base = body };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	body[0] = word;
	(void)snprintf(body + 1, sizeof(body) - 1, "%s", text ? text : "");
	iov.iov_len = 1 + strlen(body + 1) + 1;
	if (fd_count) {
		struct cmsghdr *c;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* The word, 0 at the end of file, or -errno. Text (1023 bytes) and up to 2 fds. */
static int ctl_recv(int fd, char *text, int fds[2])
{
	char body[1024] = "";
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * 4)];
	} control;
	struct iovec iov = { .iov_base = body, .iov_len = sizeof(body) - 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	ssize_t n;
	int got = 0;

	do
		n = poll(&pfd, 1, STEP_TIMEOUT_MS);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return -ETIMEDOUT;
	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? 0 : -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < count && c->cmsg_type == SCM_RIGHTS; i++) {
			int one;

			memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (fds && got < 2)
				fds[got++] = one;
			else
				(void)close(one);
		}
	}
	if (n == 0)
		return 0;
	if (text)
		(void)snprintf(text, 1023, "%s", body + 1);
	return (unsigned char)body[0];
}

/* ---- the child ---- */

static void raise_limit(int what, rlim_t soft, rlim_t hard)
{
	struct rlimit now, want = { soft, hard };

	if (getrlimit((__rlimit_resource_t)what, &now) == 0) {
		if (now.rlim_max != RLIM_INFINITY) {
			want.rlim_max = MIN(want.rlim_max, now.rlim_max);
			want.rlim_cur = MIN(want.rlim_cur, now.rlim_max);
		}
		(void)setrlimit((__rlimit_resource_t)what, &want); /* a lower one is in force then */
	}
}

static void child_limits(const struct sandbox_config *c)
{
	CLEANUP_FD int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	/* Memory runs short on an owner's machine: the guest goes first. */
	if (fd >= 0)
		(void)!write(fd, "800", 3);
	/* 1, not 0: a core pattern that is a pipe ignores 0 and honours 1 (core(5)). */
	raise_limit(RLIMIT_CORE, 1, 1);
	raise_limit(RLIMIT_NOFILE, 65536, 65536);
	if (c->file_max)
		raise_limit(RLIMIT_FSIZE, c->file_max, c->file_max);
	if (c->pids_max && c->uid_base)
		raise_limit(RLIMIT_NPROC, c->pids_max, c->pids_max);
	if (c->memory_max && c->rlimit_memory)
		raise_limit(RLIMIT_DATA, c->memory_max, c->memory_max);
	if (c->nice)
		(void)setpriority(PRIO_PROCESS, 0, c->nice); /* lower is always allowed */
}

int sandbox_drop_caps(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 }, { 0 } };

	/* Those of the bounding set may be gone already (EINVAL) or not ours to drop (EPERM, then
	 * there is no file here with capabilities that no_new_privs would let take effect). */
	for (int cap = 0; cap <= 63; cap++)
		(void)prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	(void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	return syscall(SYS_capset, &head, none) < 0 ? -errno : 0;
}

static int child_stdio(const struct sandbox_config *c)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return -errno;
	if (dup2(null, 0) < 0 || dup2(c->out_fd, 1) < 0 || dup2(c->out_fd, 2) < 0)
		return -errno;
	/* Everything else of the shim's goes at exec. */
	if (syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */) < 0)
		for (int fd = 3; fd < 1024; fd++)
			(void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* not open is fine */
	return 0;
}

static int child_spaces(const struct sandbox_config *c, int ctl, struct diag *diag)
{
	int listeners[2] = { -1, -1 }, r = 0;
	size_t n = 0;

	if (sandbox_has_mounts(c)) {
		if (c->caps->cgroupns && unshare(CLONE_NEWCGROUP) < 0)
			return diag_set(diag, -errno, "sandbox", "cgroup namespace: %s", strerror(errno));
		if (c->hostname && sethostname(c->hostname, strlen(c->hostname)) < 0)
			return diag_set(diag, -errno, "sandbox", "host name: %s", strerror(errno));
		if (c->own_network || c->no_network)
			r = sandbox_network(c, listeners, diag);
		if (r == 0)
			r = sandbox_mounts(c, diag);
		if (r < 0)
			return r;
	}
	if (c->rung <= SANDBOX_NAMESPACES && c->caps->user && c->uid_base) {
		if (unshare(CLONE_NEWUSER) < 0)
			return diag_set(diag, -errno, "sandbox", "user namespace: %s", strerror(errno));
		r = ctl_send(ctl, 'U', NULL, NULL, 0);
		if (r < 0 || ctl_recv(ctl, NULL, NULL) != 'u')
			return diag_set(diag, -EPIPE, "sandbox", "the shim went away");
	}
	n = listeners[0] >= 0 ? 2 : 0;
	r = ctl_send(ctl, 'R', NULL, listeners, n);
	for (size_t i = 0; i < n; i++)
		(void)close(listeners[i]);
	return r < 0 ? diag_set(diag, r, "sandbox", "the shim went away") : 0;
}

static int child_ids(const struct sandbox_config *c, struct diag *diag)
{
	bool mapped = c->rung <= SANDBOX_NAMESPACES && c->caps->user;
	uid_t id = (uid_t)(mapped ? SANDBOX_UID : c->uid_base + SANDBOX_UID);

	if (!c->uid_base)
		return 0;
	if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0)
		return diag_set(diag, -errno, "sandbox", "uid %u: %s", (unsigned)id, strerror(errno));
	return 0;
}

static int child_restrict(const struct sandbox_config *c, int ctl, struct diag *diag)
{
	struct pollfd pfd = { .fd = ctl };
	int r, notify = -1;

	r = child_ids(c, diag);
	if (r < 0)
		return r;
	/* A change of ids clears it, so it is set once more; then look whether the parent died
	 * in between. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (poll(&pfd, 1, 0) > 0 && (pfd.revents & (POLLHUP | POLLERR)))
		return diag_set(diag, -EPIPE, "sandbox", "the shim went away");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return diag_set(diag, -errno, "sandbox", "no_new_privs: %s", strerror(errno));
	r = sandbox_landlock(c, diag);
	if (r < 0)
		return r;
	if (c->uid_base || geteuid() != 0) {
		r = sandbox_drop_caps();
		if (r < 0)
			return diag_set(diag, r, "sandbox", "capabilities: %s", strerror(-r));
	}
	if (!c->caps->seccomp)
		return 0;
	r = sandbox_seccomp(c, &notify, diag);
	if (r == 0 && notify >= 0) {
		r = ctl_send(ctl, 'N', NULL, &notify, 1);
		if (r < 0)
			return diag_set(diag, r, "sandbox", "the shim went away");
	}
	return r;
}

static int child_chdir(const struct sandbox_config *c, struct diag *diag)
{
	const char *top = sandbox_has_mounts(c) ? BOX_WORK : c->work;
	char path[4500];
	int null;

	(void)snprintf(path, sizeof(path), "%s%s%s", top, c->cwd ? "/" : "", c->cwd ? c->cwd : "");
	if (chdir(path) < 0)
		return diag_set(diag, -errno, "work_dir", "\"%s\": %s", c->cwd ? c->cwd : path, strerror(errno));
	/* Once more, inside: the first one belongs to a mount that the guest does not have. */
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0)
		return diag_set(diag, -errno, "/dev/null", "%s", strerror(errno));
	(void)close(null);
	return 0;
}

/* execvp() says EACCES when a folder of the path may not be searched, though the program is nowhere. */
static bool on_path(const char *name)
{
	const char *path = getenv("PATH");
	char file[PATH_MAX];
	struct stat st;

	if (strchr(name, '/'))
		return true;
	for (const char *p = path ? path : ""; *p;) {
		size_t len = strcspn(p, ":");

		if (path_format(file, sizeof(file), "%.*s/%s", (int)len, p, name) == 0 && stat(file, &st) == 0)
			return true;
		p += len + (p[len] == ':');
	}
	return false;
}

static _Noreturn void child_main(const struct sandbox_config *c, int ctl)
{
	struct diag diag = DIAG_INIT;
	sigset_t none;
	int r;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int s = 1; s < 32; s++)
		(void)signal(s, SIG_DFL); /* what cannot be set has its default */
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	if (ctl_recv(ctl, NULL, NULL) != 'a')
		_exit(127);
	(void)setsid();
	r = child_stdio(c);
	if (r < 0)
		(void)diag_set(&diag, r, "sandbox", "standard streams: %s", strerror(-r));
	child_limits(c);
	if (r == 0)
		r = child_spaces(c, ctl, &diag);
	/* READY may last: until the network is attached, or for ever if the shim dies (then the
	 * socket ends). */
	while (r == 0) {
		int word = ctl_recv(ctl, NULL, NULL);

		if (word == 'g')
			break;
		if (word != -ETIMEDOUT)
			_exit(127);
	}
	if (r == 0)
		r = child_chdir(c, &diag);
	if (r == 0)
		r = child_restrict(c, ctl, &diag);
	if (r == 0) {
		environ = (char **)c->envp;
		(void)umask(022);
		(void)execvp(c->argv[0], c->argv);
		r = errno == EACCES && !on_path(c->argv[0]) ? -ENOENT : -errno;
		/* The guest's own program: that is the job's failure, told as a shell would. */
		if (!sandbox_has_mounts(c)) {
			(void)dprintf(2, "reclaim: %s: %s\n", c->argv[0], strerror(-r));
			_exit(r == -ENOENT ? 127 : 126);
		}
		(void)diag_set(&diag, r, c->argv[0], "cannot be executed: %s", strerror(-r));
	}
	{
		char text[900], packed[1000];

		(void)diag_format(&diag, text, sizeof(text));
		(void)snprintf(packed, sizeof(packed), "%d %s", -r, text);
		(void)ctl_send(ctl, 'E', packed, NULL, 0);
	}
	_exit(127);
}

/* ---- the parent ---- */

static int put_map(pid_t pid, const char *file, const char *text)
{
	CLEANUP_FD int fd = -1;
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int map_ids(const struct sandbox_config *c, pid_t pid)
{
	char text[64];
	int r;

	if (c->rung == SANDBOX_USERNS) {
		r = put_map(pid, "setgroups", "deny");
		(void)snprintf(text, sizeof(text), "%u %u 1", (unsigned)getuid(), (unsigned)getuid());
		if (r == 0)
			r = put_map(pid, "uid_map", text);
		(void)snprintf(text, sizeof(text), "%u %u 1", (unsigned)getgid(), (unsigned)getgid());
		return r == 0 ? put_map(pid, "gid_map", text) : r;
	}
	(void)snprintf(text, sizeof(text), "0 %llu %d", (unsigned long long)c->uid_base, ID_RANGE);
	r = put_map(pid, "uid_map", text);
	return r == 0 ? put_map(pid, "gid_map", text) : r;
}

static int failure_from(const char *text, struct diag *diag)
{
	int err = atoi(text);
	const char *what = strchr(text, ' ');

	return diag_set(diag, err > 0 ? -err : -EIO, "", "%s", what ? what + 1 : "the sandbox could not be made");
}

static int parent_steps(const struct sandbox_config *c, struct sandbox_child *child, struct diag *diag)
{
	char text[1024] = "";
	int r = 0, word;

	if (c->attach)
		r = c->attach(c->attach_ctx, child->pid);
	if (r < 0)
		return diag_set(diag, r, "cgroup", "the guest cannot be put into its group: %s", strerror(-r));
	if (c->rung == SANDBOX_USERNS)
		r = map_ids(c, child->pid);
	if (r < 0)
		return diag_set(diag, r, "sandbox", "the user namespace cannot be mapped: %s", strerror(-r));
	r = ctl_send(child->ctl_fd, 'a', NULL, NULL, 0);
	for (;;) {
		if (r < 0)
			return diag_set(diag, r, "sandbox", "the child is gone: %s", strerror(-r));
		word = ctl_recv(child->ctl_fd, text, child->metadata_fds);
		if (word == 'R')
			return 0;
		if (word == 'E')
			return failure_from(text, diag);
		if (word != 'U')
			return diag_set(diag, word < 0 ? word : -EPIPE, "sandbox", "the child ended while it was made");
		r = map_ids(c, child->pid);
		if (r < 0)
			return diag_set(diag, r, "sandbox", "uids from %llu cannot be mapped: %s",
					(unsigned long long)c->uid_base, strerror(-r));
		r = ctl_send(child->ctl_fd, 'u', NULL, NULL, 0);
	}
}

static unsigned long clone_flags(const struct sandbox_config *c)
{
	unsigned long flags = SIGCHLD;

	if (!sandbox_has_mounts(c))
		return flags;
	flags |= CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
	if (c->rung == SANDBOX_USERNS)
		flags |= CLONE_NEWUSER;
	if (c->rung == SANDBOX_USERNS ? c->no_network : c->own_network)
		flags |= CLONE_NEWNET;
	return flags;
}

int sandbox_spawn(const struct sandbox_config *c, struct sandbox_child *ret, struct diag *diag)
{
	struct sandbox_child child = SANDBOX_CHILD_INIT;
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return diag_set(diag, -errno, "sandbox", "socketpair: %s", strerror(errno));
	child.init = sandbox_has_mounts(c);
	child.ctl_fd = pair[0];
	child.pid = (pid_t)syscall(SYS_clone, clone_flags(c), NULL, NULL, NULL, NULL);
	if (child.pid == 0) {
		(void)close(pair[0]);
		child_main(c, pair[1]);
	}
	r = child.pid < 0 ? -errno : 0;
	(void)close(pair[1]);
	if (r < 0) {
		(void)close(pair[0]);
		return diag_set(diag, r, "sandbox", "clone: %s", strerror(-r));
	}
	r = parent_steps(c, &child, diag);
	if (r < 0) {
		(void)kill(child.pid, SIGKILL);
		(void)waitpid(child.pid, NULL, 0); /* killed above */
		sandbox_child_done(&child);
		return r;
	}
	*ret = child;
	return 0;
}

int sandbox_go(struct sandbox_child *child)
{
	return ctl_send(child->ctl_fd, 'g', NULL, NULL, 0);
}

int sandbox_started(struct sandbox_child *child, struct diag *diag)
{
	char text[1024] = "";
	int fds[2] = { -1, -1 };
	int word = ctl_recv(child->ctl_fd, text, fds);

	if (word == 'N') {
		child->notify_fd = fds[0];
		return 1;
	}
	(void)close(child->ctl_fd);
	child->ctl_fd = -1;
	if (word == 0)
		return 0;
	return word == 'E' ? failure_from(text, diag)
			   : diag_set(diag, -EPROTO, "sandbox", "the child spoke nonsense");
}

void sandbox_child_done(struct sandbox_child *child)
{
	int *fds[] = { &child->ctl_fd, &child->notify_fd, &child->metadata_fds[0], &child->metadata_fds[1] };

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
		if (*fds[i] >= 0)
			(void)close(*fds[i]);
		*fds[i] = -1;
	}
}
