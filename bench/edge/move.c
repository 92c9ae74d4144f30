/* SPDX-License-Identifier: Apache-2.0 */
#include "move.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/rng.h"
#include "campus.h"

#define STREAMS 4
#define PORT_RECEIVE 7000
#define PORT_RSYNC 8730
#define LINE_MAX_BYTES 1024

const char *const move_system_names[] = { "reclaim", "rsync", "socket" };

/* --- processes in namespaces ---------------------------------------------- */

/* A group of its own for what a program starts in turn: an rsync that a shell began, the daemon's
 * child for a connection. Left behind, they would go on sending beside the next stretch. Called by
 * both sides, since either may be first. */
static void group_make(pid_t pid)
{
	(void)setpgid(pid, pid); /* the child may have done so and be another program already */
}

static void group_end(pid_t pid, int sig)
{
	if (pid <= 0)
		return;
	(void)kill(-pid, sig); /* gone is fine: the number is not reused so soon */
	(void)waitpid(pid, NULL, 0);
}

/* ret_in, ret_out: pipe ends to its standard input and from its output; NULL = /dev/null. */
static pid_t run_in(int ns, char *const argv[], int *ret_in, int *ret_out)
{
	int in[2] = { -1, -1 }, out[2] = { -1, -1 };
	pid_t parent = getpid(), pid;

	if ((ret_in && pipe2(in, O_CLOEXEC) < 0) || (ret_out && pipe2(out, O_CLOEXEC) < 0))
		return -1;
	pid = fork();
	if (pid >= 0)
		group_make(pid);
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		(void)dup2(ret_in ? in[0] : null, 0);
		(void)dup2(ret_out ? out[1] : null, 1);
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent &&
		    (ns < 0 || setns(ns, CLONE_NEWNET) == 0))
			(void)execvp(argv[0], argv);
		_exit(127);
	}
	if (ret_in) {
		close(in[0]);
		*ret_in = in[1];
	}
	if (ret_out) {
		close(out[1]);
		*ret_out = out[0];
	}
	return pid;
}

static bool read_line(int fd, char line[LINE_MAX_BYTES])
{
	size_t n = 0;

	while (n < LINE_MAX_BYTES - 1 && read(fd, line + n, 1) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
	return n > 0;
}

static bool ended_well(pid_t pid)
{
	int status;

	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* --- what there is -------------------------------------------------------- */

static void rsync_start(struct moves *m)
{
	char conf[200], text[512], port[16];
	char *argv[] = { (char *)"rsync", (char *)"--daemon", (char *)"--no-detach", (char *)"--config", conf,
			 (char *)"--port", port, NULL };

	(void)snprintf(conf, sizeof(conf), "%s/rsyncd.conf", m->dir);
	(void)snprintf(port, sizeof(port), "%d", PORT_RSYNC);
	(void)snprintf(text, sizeof(text),
		       "use chroot = no\nuid = 0\ngid = 0\n[sink]\npath = %s/rsync\nread only = no\n", m->dir);
	CHECK(file_write_atomic(conf, text, strlen(text), 0600) == 0);
	(void)snprintf(text, sizeof(text), "%s/rsync", m->dir);
	CHECK(dir_make_all(text, 0700) == 0);
	m->rsync_daemon = run_in(m->c_ns, argv, NULL, NULL);
}

const char *moves_init(struct moves *m, const char *dir, const char *build_dir, int c_ns)
{
	char *argv[] = { m->drive, (char *)"campus", m->dir, NULL };

	memset(m, 0, sizeof(*m));
	m->c_ns = c_ns;
	CHECK(path_format(m->dir, sizeof(m->dir), "%s", dir) == 0);
	CHECK(path_format(m->drive, sizeof(m->drive), "%s/bench/transfer/transfer-drive", build_dir) == 0);
	CHECK(path_format(m->helper, sizeof(m->helper), "%s/src/transfer/reclaim-transfer", build_dir) == 0);
	if (access(m->drive, X_OK) < 0 || access(m->helper, X_OK) < 0)
		m->drive[0] = '\0';
	else if (setenv("RECLAIM_TRANSFER", m->helper, 1) < 0 || !ended_well(run_in(-1, argv, NULL, NULL)))
		return "identities for the two ends";
	if (system("rsync --version >/dev/null 2>&1") == 0)
		rsync_start(m);
	return NULL;
}

const char *moves_lack(const struct moves *m, enum move_system s)
{
	if (s == MOVE_RECLAIM && !m->drive[0])
		return "transfer-drive is not built";
	if (s == MOVE_RSYNC && m->rsync_daemon <= 0)
		return "rsync is not installed";
	return NULL;
}

void moves_done(struct moves *m)
{
	group_end(m->rsync_daemon, SIGKILL);
}

/* --- images --------------------------------------------------------------- */

static void source_dir(const struct moves *m, int site, char path[200])
{
	CHECK(path_format(path, 200, "%s/source%d", m->dir, site) == 0);
}

static void put_random(const char *path, uint64_t bytes, uint64_t seed)
{
	static uint64_t block[1 << 17];
	struct rng r;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	rng_init(&r, seed);
	for (uint64_t left = bytes; left > 0;) {
		size_t n = (size_t)MIN(left, sizeof(block));

		for (size_t i = 0; i < ARRAY_SIZE(block); i++)
			block[i] = rng_u64(&r);
		CHECK(fd_write_all(fd, block, n) == 0);
		left -= n;
	}
	close(fd);
}

/* The digest stands in a file beside the store: each image is taken once. */
static int take(struct moves *m, int site, uint64_t bytes)
{
	char src[200], store[220], line[LINE_MAX_BYTES], *at, digest_path[220];
	char *argv[] = { m->drive, (char *)"take", m->dir, store, src, (char *)"1", NULL };
	int out;
	pid_t pid;

	source_dir(m, site, src);
	CHECK(path_format(store, sizeof(store), "%s/store%d", m->dir, site) == 0);
	CHECK(path_format(digest_path, sizeof(digest_path), "%s/digest%d", m->dir, site) == 0);
	CHECK(dir_remove_all(store) == 0);
	(void)bytes;
	pid = run_in(-1, argv, NULL, &out);
	if (!read_line(out, line) || !ended_well(pid))
		return -EIO;
	close(out);
	at = strstr(line, "\"image\":\"");
	CHECK(at && strlen(at) > 9 + 64);
	return file_write_atomic(digest_path, at + 9, 64, 0600);
}

int moves_prepare(struct moves *m, int site, uint64_t bytes)
{
	char src[200], file[220];

	source_dir(m, site, src);
	CHECK(dir_remove_all(src) == 0 && dir_make_all(src, 0700) == 0);
	CHECK(path_format(file, sizeof(file), "%s/state", src) == 0);
	put_random(file, bytes, (uint64_t)site + 1);
	return m->drive[0] ? take(m, site, bytes) : 0;
}

/* --- the three kinds ------------------------------------------------------ */

static int start_reclaim(struct moves *m, struct move *mv)
{
	char port[16], rate[32], line[LINE_MAX_BYTES], from[220], digest_path[220];
	CLEANUP_FREE char *digest = NULL;
	char *receive[] = { m->drive, (char *)"receive", m->dir, mv->store, (char *)CAMPUS_C, port, NULL };
	char *argv[] = { m->drive, (char *)"send", m->dir, from, (char *)CAMPUS_C, port, NULL,
			 (char *)(mv->traffic_class == TRAFFIC_SCAVENGER ? "scavenger" : "deadline"), rate,
			 (char *)"0", (char *)"30000", NULL };
	size_t len;
	int out;

	(void)snprintf(port, sizeof(port), "%d", PORT_RECEIVE + mv->site);
	(void)snprintf(rate, sizeof(rate), "%llu", (unsigned long long)mv->rate_bps);
	CHECK(path_format(mv->store, sizeof(mv->store), "%s/arrived%d", m->dir, mv->site) == 0);
	CHECK(path_format(from, sizeof(from), "%s/store%d", m->dir, mv->site) == 0);
	CHECK(path_format(digest_path, sizeof(digest_path), "%s/digest%d", m->dir, mv->site) == 0);
	CHECK(file_read(digest_path, 65, &digest, &len) == 0 && len == 64);
	argv[6] = digest;
	CHECK(dir_remove_all(mv->store) == 0 && dir_make_all(mv->store, 0700) == 0);
	mv->receiver = run_in(m->c_ns, receive, &mv->receiver_in, &out);
	if (mv->receiver <= 0 || !read_line(out, line) || !strstr(line, "listening"))
		return -EIO;
	/* Its pipe stays open for the rest: it says little, and must not get SIGPIPE. */
	mv->pid = run_in(mv->ns, argv, NULL, NULL);
	return mv->pid > 0 ? 0 : -EIO;
}

static int start_rsync(struct moves *m, struct move *mv)
{
	char src[200], cmd[512], to[64];
	char *argv[] = { (char *)"sh", (char *)"-c", cmd, NULL };

	source_dir(m, mv->site, src);
	(void)snprintf(to, sizeof(to), "rsync://" CAMPUS_C ":%d/sink/", PORT_RSYNC);
	/* Until it is stopped: the same file under new names, so that all of it travels. */
	CHECK(path_format(cmd, sizeof(cmd),
			  mv->bytes ? "exec rsync -W %s/state %sonce%d"
				    : "i=0; while rsync -W %s/state %sagain%d-$((i %% 3)); do i=$((i+1)); done",
			  src, to, mv->site) == 0);
	mv->pid = run_in(mv->ns, argv, NULL, NULL);
	return mv->pid > 0 ? 0 : -EIO;
}

static const struct move *socket_move;
static const char zeros[65536];

static int socket_open(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(CAMPUS_PORT_MOVE) };
	enum traffic_class class = socket_move->traffic_class;
	const char *cc = class == TRAFFIC_SCAVENGER ? TRAFFIC_CC_SCAVENGER : TRAFFIC_CC_FLOOR;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), tos = traffic_dscp(class) << 2;
	int lowat = 128 << 10;
	uint32_t mark = traffic_mark(class, 1);
	uint64_t pace = socket_move->rate_bps / 8 / STREAMS;

	CHECK(inet_pton(AF_INET, CAMPUS_C, &a.sin_addr) == 1);
	CHECK(setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)) == 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) == 0);
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat)); /* since 3.12 */
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)) < 0)
		fprintf(stderr, "  (no %s here: %s)\n", cc, strerror(errno));
	if (pace)
		CHECK(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &pace, sizeof(pace)) == 0);
	CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
	return fd;
}

static void *socket_stream(void *arg)
{
	uint64_t left = socket_move->bytes ? socket_move->bytes / STREAMS : UINT64_MAX;
	int fd = socket_open();
	char byte;

	(void)arg;
	while (left > 0) {
		ssize_t n = send(fd, zeros, MIN(left, sizeof(zeros)), MSG_NOSIGNAL);

		if (n <= 0)
			_exit(1);
		left -= (uint64_t)n;
	}
	/* Arrived, not only handed to the kernel. */
	if (shutdown(fd, SHUT_WR) < 0 || recv(fd, &byte, 1, 0) != 0)
		_exit(1);
	close(fd);
	return NULL;
}

static int start_socket(struct move *mv)
{
	pid_t parent = getpid();
	pthread_t t[STREAMS];

	mv->pid = fork();
	if (mv->pid >= 0)
		group_make(mv->pid);
	if (mv->pid != 0)
		return mv->pid > 0 ? 0 : -errno;
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || setns(mv->ns, CLONE_NEWNET) < 0)
		_exit(1);
	socket_move = mv;
	for (int i = 0; i < STREAMS; i++)
		CHECK(pthread_create(&t[i], NULL, socket_stream, NULL) == 0);
	for (int i = 0; i < STREAMS; i++)
		(void)pthread_join(t[i], NULL);
	_exit(0);
}

int move_start(struct moves *m, struct move *mv)
{
	mv->receiver = -1;
	mv->receiver_in = -1;
	mv->store[0] = '\0';
	switch (mv->system) {
	case MOVE_RECLAIM:
		return start_reclaim(m, mv);
	case MOVE_RSYNC:
		return start_rsync(m, mv);
	case MOVE_SOCKET:
		return start_socket(mv);
	}
	return -EINVAL;
}

void move_end(struct moves *m, struct move *mv)
{
	char cmd[300];

	group_end(mv->pid, SIGTERM);
	if (mv->receiver_in >= 0)
		close(mv->receiver_in); /* tells it to end */
	if (mv->receiver > 0)
		(void)waitpid(mv->receiver, NULL, 0);
	if (mv->store[0])
		(void)dir_remove_all(mv->store); /* below our own folder */
	if (mv->system == MOVE_RSYNC) {
		(void)snprintf(cmd, sizeof(cmd), "rm -f %s/rsync/*", m->dir);
		CHECK(system(cmd) == 0);
	}
	mv->pid = mv->receiver = mv->receiver_in = -1;
}
