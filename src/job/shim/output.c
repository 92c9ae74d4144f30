/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stdout and stderr of the guest, through a pipe of ours into one file. Bounded twice: in
 * size (beyond log_max output is read and dropped, and a line says so), and in rate, since
 * copying costs the owner's CPU and not the guest's: above OUTPUT_RATE the pipe is left
 * full and the guest waits.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "job/shim/shim.h"

#define LOG_MAX_DEFAULT (UINT64_C(64) << 20)
#define OUTPUT_RATE (UINT64_C(32) << 20) /* bytes per second */
#define OUTPUT_BURST (UINT64_C(8) << 20)
#define PIPE_BYTES (256 * 1024)

static void log_write(struct shim *s, const char *bytes, size_t len)
{
	uint64_t max = s->start.log_max ? s->start.log_max : LOG_MAX_DEFAULT;
	size_t fits = s->log_bytes >= max ? 0 : (size_t)MIN((uint64_t)len, max - s->log_bytes);

	if (fits && fd_write_all(s->log_fd, bytes, fits) < 0) {
		/* A full disk must not stop the guest: its log has a hole that the count tells. */
		s->log_dropped += len;
		return;
	}
	s->log_bytes += fits;
	if (fits < len && !s->log_dropped) {
		char line[128];
		int n = snprintf(line, sizeof(line), "\n[reclaim: the limit of %llu bytes of output is reached; "
						     "what follows is dropped]\n",
				 (unsigned long long)max);

		(void)fd_write_all(s->log_fd, line, (size_t)n); /* best effort, as above */
		log_warn("job %s: output beyond %llu bytes is dropped", s->start.job, (unsigned long long)max);
	}
	s->log_dropped += len - fits;
}

static void budget_refill(struct shim *s)
{
	uint64_t ns = s->now > s->log_budget_ns ? s->now - s->log_budget_ns : 0;
	uint64_t more = MIN(ns, NS_PER_S) * OUTPUT_RATE / NS_PER_S;

	s->log_budget = MIN(OUTPUT_BURST, s->log_budget + more);
	s->log_budget_ns = s->now;
}

/* At most one buffer a turn, so that deadlines are looked at in between. */
static void on_output(struct shim *s, struct source *src, uint32_t events)
{
	static char buf[PIPE_BYTES];
	ssize_t n;

	budget_refill(s);
	if (s->log_budget < 65536) {
		source_set(s, src, 0);
		s->due.output = s->now + 20 * NS_PER_MS;
		return;
	}
	n = read(src->fd, buf, MIN(sizeof(buf), (size_t)s->log_budget));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		source_close(s, src);
		return;
	}
	s->log_budget -= (uint64_t)n;
	log_write(s, buf, (size_t)n);
}

void output_resume(struct shim *s)
{
	source_set(s, &s->output, EPOLLIN);
}

int output_open(struct shim *s, int *ret_child_fd, struct diag *diag)
{
	struct stat st;
	int fds[2], r;

	s->log_fd = open(s->start.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640);
	if (s->log_fd < 0)
		return diag_set(diag, -errno, s->start.log, "the log cannot be opened: %s", strerror(errno));
	if (pipe2(fds, O_CLOEXEC) < 0)
		return diag_set(diag, -errno, "output", "pipe: %s", strerror(errno));
	(void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
	(void)fcntl(fds[0], F_SETPIPE_SZ, PIPE_BYTES); /* smaller works too */
	r = source_add(s, &s->output, fds[0], EPOLLIN, on_output);
	if (r < 0) {
		(void)close(fds[0]);
		(void)close(fds[1]);
		return diag_set(diag, r, "output", "epoll: %s", strerror(-r));
	}
	if (fstat(fds[1], &st) == 0)
		s->pipe_ino = st.st_ino;
	s->log_budget = OUTPUT_BURST;
	s->log_budget_ns = s->now;
	*ret_child_fd = fds[1];
	return 0;
}

/* At most what a pipe can hold. */
void output_drain(struct shim *s)
{
	char buf[65536];
	ssize_t n;

	for (size_t sum = 0; s->output.fd >= 0 && sum < (1u << 20); sum += (size_t)n) {
		n = read(s->output.fd, buf, sizeof(buf));
		if (n <= 0)
			break;
		log_write(s, buf, (size_t)n);
	}
}

/* The guest is gone: what is in the pipe is all there will ever be. */
void output_finish(struct shim *s)
{
	output_drain(s);
	source_close(s, &s->output);
	s->due.output = NEVER;
}
