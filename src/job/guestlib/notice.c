/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notice, over the shim's socket for this guest ($RECLAIM_SOCKET): line JSON, flat
 * objects that we know (src/job/notice.h). The reader below takes exactly those, from a
 * peer that is our own keeper; what it does not understand it leaves alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "reclaim/reclaim.h"
#include "guestlib.h"

#define REPLY_TIMEOUT_MS 5000
#define LINE_SIZE 8192

static struct {
	pthread_mutex_t lock;
	int fd; /* -1 = not connected */
	pid_t pid; /* who connected: a forked child makes a connection of its own */
	char in[LINE_SIZE];
	size_t in_len;
	bool have; /* a notice document was seen */
	struct reclaim_notice notice;
	double deadline_boot; /* of remaining_s, by CLOCK_BOOTTIME */
	unsigned replies;
	char error[256]; /* of the last reply */
} g = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

const char *reclaim_version(void)
{
	return RECLAIM_VERSION;
}

static double boot_s(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_BOOTTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* The raw value of "key" in a flat JSON object: text up to its end, or NULL. */
static const char *value_of(const char *json, const char *key)
{
	char quoted[64];
	const char *at;

	(void)snprintf(quoted, sizeof(quoted), "\"%s\":", key);
	at = strstr(json, quoted);
	return at ? at + strlen(quoted) : NULL;
}

static double number_of(const char *json, const char *key)
{
	const char *v = value_of(json, key);

	return v ? strtod(v, NULL) : 0;
}

static bool text_of(const char *json, const char *key, char *buf, size_t buf_size)
{
	const char *v = value_of(json, key);

	if (!v || *v != '"')
		return false;
	(void)snprintf(buf, buf_size, "%.*s", (int)strcspn(v + 1, "\""), v + 1);
	return true;
}

static void take_document(const char *json)
{
	struct reclaim_notice n = { .action = RECLAIM_ACTION_NONE };
	char action[32] = "";

	if (!text_of(json, "action", action, sizeof(action)))
		return;
	if (!strcmp(action, "terminate"))
		n.action = RECLAIM_ACTION_TERMINATE;
	else if (!strcmp(action, "checkpoint"))
		n.action = RECLAIM_ACTION_CHECKPOINT;
	n.remaining_s = number_of(json, "remaining_s");
	n.window_s = number_of(json, "window_s");
	n.deadline_unix = number_of(json, "deadline");
	n.epoch = (uint64_t)number_of(json, "epoch");
	(void)text_of(json, "id", n.id, sizeof(n.id));
	g.notice = n;
	g.deadline_boot = boot_s() + n.remaining_s;
	g.have = true;
}

static void take_line(const char *line)
{
	char event[32] = "";

	(void)text_of(line, "event", event, sizeof(event));
	if (!strcmp(event, "notice")) {
		take_document(line);
	} else if (!strcmp(event, "reply")) {
		g.replies++;
		if (!text_of(line, "error", g.error, sizeof(g.error)))
			g.error[0] = '\0';
	}
}

static void disconnect(void)
{
	if (g.fd >= 0)
		(void)close(g.fd);
	g.fd = -1;
	g.in_len = 0;
}

static int connect_shim(void)
{
	const char *path = getenv("RECLAIM_SOCKET"), *slash = path ? strrchr(path, '/') : NULL;
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	char dir[4096];
	int dir_fd, fd, r = 0;
	static const char hello[] = "{\"op\":\"hello\"}\n";

	if (!slash || (size_t)(slash - path) >= sizeof(dir))
		return -ENOENT;
	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	/* The path may be longer than a socket's address: go by its folder's fd. */
	dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		return -errno;
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/self/fd/%d/%.60s", dir_fd, slash + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ||
	    send(fd, hello, sizeof(hello) - 1, MSG_NOSIGNAL) < 0)
		r = -errno;
	(void)close(dir_fd);
	if (r < 0) {
		if (fd >= 0)
			(void)close(fd);
		return r;
	}
	g.fd = fd;
	g.pid = getpid();
	return 0;
}

/* Reads what there is, waiting at most timeout_ms for the first byte. Lock held. */
static int pump(int timeout_ms)
{
	for (;;) {
		struct pollfd pfd = { .fd = g.fd, .events = POLLIN };
		int r = poll(&pfd, 1, timeout_ms);
		char *nl;
		ssize_t n;

		if (r < 0)
			return errno == EINTR ? 0 : -errno;
		if (r == 0)
			return 0;
		if (g.in_len == sizeof(g.in) - 1)
			g.in_len = 0; /* a line that long is none of ours */
		n = recv(g.fd, g.in + g.in_len, sizeof(g.in) - 1 - g.in_len, MSG_DONTWAIT);
		if (n <= 0) {
			if (n < 0 && (errno == EAGAIN || errno == EINTR))
				return 0;
			disconnect();
			return -EPIPE;
		}
		g.in_len += (size_t)n;
		g.in[g.in_len] = '\0';
		while ((nl = memchr(g.in, '\n', g.in_len))) {
			size_t used = (size_t)(nl - g.in) + 1;

			*nl = '\0';
			take_line(g.in);
			memmove(g.in, g.in + used, g.in_len - used);
			g.in_len -= used;
		}
		timeout_ms = 0;
	}
}

static int ensure_connected(void)
{
	int r;

	if (g.fd >= 0 && g.pid != getpid()) {
		/* The parent's: leave its bytes to it. */
		(void)close(g.fd);
		g.fd = -1;
		g.in_len = 0;
	}
	if (g.fd >= 0)
		return 0;
	r = connect_shim();
	/* The greeting is answered with the state, so the first look is never a guess. */
	return r < 0 ? r : pump(REPLY_TIMEOUT_MS);
}

/* Without the socket (a namespace of its own, an image without /proc) the file says the same. */
static int read_file(void)
{
	const char *path = getenv("RECLAIM_NOTICE_FILE");
	char text[4096];
	ssize_t n;
	int fd;

	if (!path)
		return -ENOENT;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	n = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	take_document(text);
	/* Written when the notice came: what remains goes by the wall clock then. */
	g.deadline_boot = boot_s() + g.notice.deadline_unix - (double)time(NULL);
	return 0;
}

static int notice_result(struct reclaim_notice *ret)
{
	if (!g.have || g.notice.action == RECLAIM_ACTION_NONE) {
		if (ret)
			*ret = (struct reclaim_notice){ .action = RECLAIM_ACTION_NONE };
		return 0;
	}
	if (ret) {
		*ret = g.notice;
		ret->remaining_s = g.deadline_boot - boot_s();
		if (ret->remaining_s < 0 || ret->action != RECLAIM_ACTION_TERMINATE)
			ret->remaining_s = ret->action == RECLAIM_ACTION_TERMINATE ? 0 : 1e9;
	}
	return 1;
}

int reclaim_notice_wait(int timeout_ms, struct reclaim_notice *ret)
{
	int r;

	(void)pthread_mutex_lock(&g.lock);
	r = ensure_connected();
	if (r == 0)
		r = pump(timeout_ms);
	if (r < 0)
		r = read_file();
	if (r == 0)
		r = notice_result(ret);
	(void)pthread_mutex_unlock(&g.lock);
	return r;
}

int reclaim_notice_get(struct reclaim_notice *ret)
{
	return reclaim_notice_wait(0, ret);
}

int reclaim_notice_fd(void)
{
	int r;

	(void)pthread_mutex_lock(&g.lock);
	r = ensure_connected();
	if (r == 0)
		r = g.fd;
	(void)pthread_mutex_unlock(&g.lock);
	return r;
}

double reclaim_remaining(void)
{
	struct reclaim_notice n;

	return reclaim_notice_get(&n) > 0 ? n.remaining_s : 1e9;
}

int guest_ask(const char *request)
{
	int r;

	(void)pthread_mutex_lock(&g.lock);
	r = ensure_connected();
	if (r == 0) {
		unsigned before = g.replies;

		if (send(g.fd, request, strlen(request), MSG_NOSIGNAL) < 0)
			r = -errno;
		while (r == 0 && g.replies == before) {
			struct pollfd pfd = { .fd = g.fd, .events = POLLIN };

			if (poll(&pfd, 1, REPLY_TIMEOUT_MS) == 0)
				r = -ETIMEDOUT;
			else
				r = pump(0);
		}
		if (r == 0 && g.error[0])
			r = -EINVAL;
	}
	(void)pthread_mutex_unlock(&g.lock);
	return r;
}

int reclaim_ack(void)
{
	return guest_ask("{\"op\":\"ack\"}\n");
}

int reclaim_requeue(void)
{
	return guest_ask("{\"op\":\"requeue\"}\n");
}

int reclaim_committed(const char *name, uint64_t step)
{
	char request[512];

	for (const char *p = name; *p; p++)
		if (*p == '"' || *p == '\\' || (unsigned char)*p < 32)
			return -EINVAL;
	(void)snprintf(request, sizeof(request), "{\"op\":\"commit\",\"name\":\"%.255s\",\"step\":%llu}\n", name,
		       (unsigned long long)step);
	return guest_ask(request);
}
