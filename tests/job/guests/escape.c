/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attempts of a guest to get out of its box, one a run: escape NAME [ARG...]. Exit status 0
 * means that it SUCCEEDED, 1 that it was refused or bounded; what happened is printed. The
 * table of rows, and what each needs to be able to succeed without a sandbox, is in
 * tests/job/escape_test.py.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/keyctl.h>
#include <linux/netlink.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int said(const char *what, long r)
{
	(void)printf("%s: %s\n", what, r < 0 ? strerror(errno) : "succeeded");
	return r < 0;
}

static int read_path(const char *path)
{
	char buf[256];
	int fd = open(path, O_RDONLY);
	long n = fd < 0 ? -1 : read(fd, buf, sizeof(buf));

	return said(path, n);
}

/* Only opened for writing; what did not exist is taken away again. */
static int write_path(const char *path)
{
	int fresh = access(path, F_OK) < 0, fd = open(path, O_WRONLY | O_CREAT, 0600);
	int r = said(path, fd);

	if (fd >= 0 && fresh)
		(void)unlink(path);
	return r;
}

static int try_mknod(void)
{
	int fd;

	if (mknod("node", S_IFCHR | 0600, makedev(1, 5)) < 0)
		return said("mknod", -1);
	fd = open("node", O_RDONLY);
	(void)unlink("node");
	return said("open of the node", fd);
}

static int try_namespace(void)
{
	if (unshare(CLONE_NEWUSER) == 0)
		return said("unshare", 0);
	return said("clone", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) < 0 ? -1 : 0);
}

static int try_bpf(void)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_type = BPF_MAP_TYPE_ARRAY;
	attr.key_size = attr.value_size = 4;
	attr.max_entries = 1;
	return said("bpf", syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof(attr)));
}

static int try_ptrace(void)
{
	pid_t pid = fork();
	long r;

	if (pid == 0) {
		(void)pause();
		_exit(0);
	}
	r = ptrace(PTRACE_SEIZE, pid, 0, 0);
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, NULL, 0);
	return said("ptrace", r);
}

static int try_memory_of(pid_t pid)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	fd = open(path, O_RDONLY);
	if (fd >= 0)
		return said(path, 0);
	(void)snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	return read_path(path);
}

static int try_netlink(int protocol)
{
	return said("netlink", socket(AF_NETLINK, SOCK_RAW, protocol));
}

/* Sets an address on loopback: what a guest must not do in its network. */
static int try_address(void)
{
	struct {
		struct nlmsghdr h;
		char body[256];
	} m = { .h = { .nlmsg_len = NLMSG_LENGTH(8), .nlmsg_type = 20 /* RTM_NEWADDR */,
		       .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE } };
	unsigned char *b = (unsigned char *)NLMSG_DATA(&m.h);
	unsigned index = if_nametoindex("lo");
	int fd = socket(AF_NETLINK, SOCK_RAW, 0), err;
	char buf[512];

	if (fd < 0)
		return said("netlink", -1);
	b[0] = AF_INET;
	b[1] = 32;
	memcpy(b + 4, &index, 4);
	b[8] = 8; /* attribute: length, IFA_LOCAL, 10.99.99.99 */
	b[10] = 2;
	b[12] = 10;
	b[13] = b[14] = b[15] = 99;
	m.h.nlmsg_len = NLMSG_LENGTH(16);
	if (send(fd, &m, m.h.nlmsg_len, 0) < 0 || recv(fd, buf, sizeof(buf), 0) < 20)
		return said("netlink", -1);
	memcpy(&err, buf + 16, 4);
	errno = -err;
	return said("a new address", err ? -1 : 0);
}

static int try_connect(const char *address, int port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)inet_pton(AF_INET, address, &in.sin_addr);
	return said(address, fd < 0 ? -1 : connect(fd, (struct sockaddr *)&in, sizeof(in)));
}

static int try_unix(const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	socklen_t len = sizeof(sa);

	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
	if (path[0] == '@') {
		sa.sun_path[0] = '\0';
		len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	}
	return said(path, fd < 0 ? -1 : connect(fd, (struct sockaddr *)&sa, len));
}

/* How many processes can be had at once; bounded is below the limit given. */
static int try_forks(int limit)
{
	int n = 0;

	for (; n < limit; n++) {
		pid_t pid = fork();

		if (pid == 0) {
			(void)pause();
			_exit(0);
		}
		if (pid < 0)
			break;
	}
	(void)printf("%d processes\n", n);
	(void)fflush(stdout);
	(void)signal(SIGTERM, SIG_IGN);
	(void)kill(0, SIGTERM);
	return n < limit;
}

static int try_memory(long mib)
{
	for (long i = 0; i < mib; i++) {
		char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			return said("mmap", -1);
		memset(p, 1, 1 << 20);
	}
	return said("memory", 0);
}

static int try_disk(long mib)
{
	static char buf[1 << 20];
	int fd = open("big", O_WRONLY | O_CREAT | O_TRUNC, 0600);

	memset(buf, 1, sizeof(buf));
	for (long i = 0; i < mib; i++)
		if (write(fd, buf, sizeof(buf)) != (ssize_t)sizeof(buf)) {
			int r = said("disk", -1);

			(void)unlink("big");
			return r;
		}
	(void)unlink("big");
	return said("disk", 0);
}

static int try_files(long count)
{
	char name[64];

	(void)mkdir("many", 0700);
	for (long i = 0; i < count; i++) {
		int fd;

		(void)snprintf(name, sizeof(name), "many/%ld", i);
		fd = open(name, O_WRONLY | O_CREAT, 0600);
		if (fd < 0) {
			(void)printf("%ld files\n", i);
			return said("files", -1);
		}
		(void)close(fd);
	}
	return said("files", 0);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "", *arg = argc > 2 ? argv[2] : "";
	char buf[64];

	if (!strcmp(name, "read"))
		return read_path(arg);
	if (!strcmp(name, "write"))
		return write_path(arg);
	if (!strcmp(name, "mknod"))
		return try_mknod();
	if (!strcmp(name, "mount"))
		return said("mount", mount("x", "/tmp", "tmpfs", 0, NULL));
	if (!strcmp(name, "umount"))
		return said("umount", umount2(arg, MNT_DETACH));
	if (!strcmp(name, "namespace"))
		return try_namespace();
	if (!strcmp(name, "setuid"))
		return said("setuid(0)", setuid(0) < 0 || geteuid() != 0 ? -1 : 0);
	if (!strcmp(name, "euid"))
		return said("euid 0", geteuid() == 0 ? 0 : -1);
	if (!strcmp(name, "chroot"))
		return said("chroot", chroot("/tmp"));
	if (!strcmp(name, "ptrace"))
		return try_ptrace();
	if (!strcmp(name, "memory-of"))
		return try_memory_of(atoi(arg));
	if (!strcmp(name, "signal"))
		return said("signal", kill(atoi(arg), 0));
	if (!strcmp(name, "raw"))
		return said("raw socket", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	if (!strcmp(name, "packet"))
		return said("packet socket", socket(AF_PACKET, SOCK_RAW, 0));
	if (!strcmp(name, "netlink"))
		return try_netlink(atoi(arg));
	if (!strcmp(name, "address"))
		return try_address();
	if (!strcmp(name, "bpf"))
		return try_bpf();
	if (!strcmp(name, "userfaultfd"))
		return said("userfaultfd", syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY));
	if (!strcmp(name, "keyring"))
		return said("add_key", syscall(SYS_add_key, "user", "x", "y", 1, KEY_SPEC_SESSION_KEYRING));
	if (!strcmp(name, "iouring")) {
		char params[256] = { 0 };

		return said("io_uring", syscall(SYS_io_uring_setup, 4, params));
	}
	if (!strcmp(name, "hostname"))
		return said("sethostname", gethostname(buf, sizeof(buf)) < 0 ? -1 : sethostname(buf, strlen(buf)));
	if (!strcmp(name, "nice"))
		return said("nice -5", setpriority(PRIO_PROCESS, 0, -5));
	if (!strcmp(name, "connect"))
		return try_connect(arg, argc > 3 ? atoi(argv[3]) : 0);
	if (!strcmp(name, "unix"))
		return try_unix(arg);
	if (!strcmp(name, "forks"))
		return try_forks(atoi(arg));
	if (!strcmp(name, "memory"))
		return try_memory(atol(arg));
	if (!strcmp(name, "disk"))
		return try_disk(atol(arg));
	if (!strcmp(name, "files"))
		return try_files(atol(arg));
	(void)fprintf(stderr, "escape: what is \"%s\"?\n", name);
	return 2;
}
