/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments, loop and timers of reclaim-shim; shim.h has the chapter. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/option.h"
#include "base/point.h"
#include "base/program.h"
#include "job/shim/shim.h"

#define START_TIMEOUT_NS (30 * NS_PER_S)

int source_add(struct shim *s, struct source *src, int fd, uint32_t events,
	       void (*ready)(struct shim *, struct source *, uint32_t))
{
	struct epoll_event ev = { .events = events, .data.ptr = src };

	if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return -errno;
	src->fd = fd;
	src->ready = ready;
	return 0;
}

void source_set(struct shim *s, struct source *src, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = src };

	if (src->fd >= 0)
		CHECK(epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, src->fd, &ev) == 0);
}

void source_close(struct shim *s, struct source *src)
{
	if (src->fd < 0)
		return;
	/* Explicitly: a child that holds a copy of the fd would keep it in the epoll set. */
	(void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, src->fd, NULL);
	(void)close(src->fd);
	src->fd = -1;
}

static void on_signal(struct shim *s, struct source *src, uint32_t events)
{
	struct signalfd_siginfo info;

	/* SIGCHLD: reaped once a turn. The others end a shim that has no guest; one that has a
	 * guest is not stopped by a stray signal, it is told by its agent. */
	while (read(src->fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		if (s->state == SHIM_WAITING || s->state == SHIM_ENDED)
			s->quit = true;
		else
			log_warn("%s ignored: the guest's agent decides when it ends",
				 strsignal((int)info.ssi_signo));
	}
}

static void on_timer(struct shim *s, struct source *src, uint32_t events)
{
	uint64_t ticks;

	(void)!read(src->fd, &ticks, sizeof(ticks)); /* only wakes us */
}

static bool due(struct shim *s, uint64_t *deadline)
{
	if (*deadline > s->now)
		return false;
	*deadline = NEVER;
	return true;
}

/* In the order of what must not wait. */
static void deadlines_run(struct shim *s)
{
	if (due(s, &s->due.kill)) {
		POINT("shim.deadline");
		guest_stop(s, SHIM_END_RECLAIMED, "the window ended");
	}
	if (due(s, &s->due.lease)) {
		struct diag diag = DIAG_INIT;

		POINT("shim.lease_end");
		if (s->start.lease_action == SHIM_LEASE_FREEZE &&
		    (s->frozen || guest_freeze(s, true, &diag) == 0)) {
			s->lease_frozen = true;
			state_changed(s, "the lease ran out");
		} else {
			guest_stop(s, SHIM_END_LEASE, "the lease ran out");
		}
	}
	if (due(s, &s->due.kill_round))
		guest_stop_round(s);
	if (due(s, &s->due.alarm))
		guest_alarm(s);
	if (due(s, &s->due.time_limit))
		notice_time_limit(s);
	if (due(s, &s->due.time_limit_kill))
		guest_stop(s, SHIM_END_TIME_LIMIT, "the job's time limit");
	if (due(s, &s->due.last_signal))
		notice_last(s);
	if (due(s, &s->due.saved_check))
		notice_look(s);
	if (due(s, &s->due.disk))
		disk_look(s);
	if (due(s, &s->due.output))
		output_resume(s);
	if (due(s, &s->due.start)) {
		log_error("nobody said what to start");
		s->quit = true;
	}
	if (due(s, &s->due.linger) && !conn_agent_present(s))
		s->quit = true;
}

static void timer_arm(struct shim *s)
{
	const uint64_t *d = (const uint64_t *)&s->due;
	uint64_t next = NEVER;
	struct itimerspec its = { .it_value = { 0, 0 } };

	for (size_t i = 0; i < DEADLINE_COUNT; i++)
		next = MIN(next, d[i]);
	if (next != NEVER) {
		its.it_value.tv_sec = (time_t)(next / NS_PER_S);
		its.it_value.tv_nsec = (long)(next % NS_PER_S);
		if (!next)
			its.it_value.tv_nsec = 1;
	}
	CHECK(timerfd_settime(s->timer.fd, TFD_TIMER_ABSTIME, &its, NULL) == 0);
}

static int loop(struct shim *s)
{
	while (!s->quit) {
		struct epoll_event events[64];
		int n;

		timer_arm(s);
		n = epoll_wait(s->epoll_fd, events, ARRAY_SIZE(events), -1);
		if (n < 0 && errno != EINTR)
			return -errno;
		s->now = clock_boot_ns();
		for (int i = 0; i < n; i++) {
			struct source *src = events[i].data.ptr;

			/* An earlier source of this turn may have closed it. */
			if (src->fd >= 0)
				src->ready(s, src, events[i].events);
		}
		guest_reap(s);
		s->now = clock_boot_ns();
		deadlines_run(s);
		conn_flush(s);
	}
	return 0;
}

static int setup(struct shim *s, struct diag *diag)
{
	sigset_t mask;
	int fd, r;

	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (s->epoll_fd < 0)
		return diag_set(diag, -errno, "epoll", "%s", strerror(errno));
	(void)sigemptyset(&mask);
	(void)sigaddset(&mask, SIGCHLD);
	(void)sigaddset(&mask, SIGTERM);
	(void)sigaddset(&mask, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &mask, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGHUP, SIG_IGN);
	fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	r = fd < 0 ? -errno : source_add(s, &s->signals, fd, EPOLLIN, on_signal);
	if (r == 0) {
		fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
		r = fd < 0 ? -errno : source_add(s, &s->timer, fd, EPOLLIN, on_timer);
	}
	if (r < 0)
		return diag_set(diag, r, "shim", "%s", strerror(-r));
	/* Orphans of the guest come to us, not to init: none gets out of sight. */
	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return diag_set(diag, -errno, "subreaper", "%s", strerror(errno));
	return conn_listen(s, diag);
}

struct shim_options {
	const char *socket, *tools;
};

/* The guest's tools lie beside us in the build tree, and in libexec when installed. */
static const char *tools_find(const char *given, char *buf, size_t buf_size)
{
	static const char *const places[] = { "", "../libexec/reclaim", "../lib/reclaim" };
	char path[600];

	if (given)
		return realpath(given, buf) && strlen(buf) < buf_size ? buf : NULL;
	if (program_find(NULL, places, ARRAY_SIZE(places), "guest-bin/reclaim-init", path, sizeof(path)) < 0)
		return NULL;
	*strrchr(path, '/') = '\0';
	return realpath(path, buf) ? buf : NULL;
}

static int run(const void *values, int argc, const char *const *argv)
{
	static struct shim shim; /* some 100 KiB */
	static char tools[4096];
	const struct shim_options *o = values;
	struct shim *s = &shim;
	struct diag diag = DIAG_INIT;
	char text[800];

	if (!o->socket) {
		log_error("--socket is missing");
		return EXIT_USAGE;
	}
	for (size_t i = 0; i < DEADLINE_COUNT; i++)
		((uint64_t *)&s->due)[i] = NEVER;
	struct source *sources[] = { &s->listener, &s->signals, &s->timer, &s->child_ctl, &s->seccomp,
				     &s->watch_src, &s->guest_listener, &s->http_listeners[0],
				     &s->http_listeners[1], &s->output };
	for (size_t i = 0; i < ARRAY_SIZE(sources); i++)
		sources[i]->fd = -1;
	for (size_t i = 0; i < SHIM_CONNS_MAX; i++)
		s->conns[i].src.fd = -1;
	for (size_t i = 0; i < GUEST_CONNS_MAX; i++)
		s->guest_conns[i].src.fd = -1;
	s->child = (struct sandbox_child)SANDBOX_CHILD_INIT;
	s->log_fd = -1;
	s->restore_out_fd = -1;
	s->dump.dir_fd = -1;
	s->socket_path = o->socket;
	s->tools = tools_find(o->tools, tools, sizeof(tools));
	/* A session of our own: what happens to the agent's terminal or group is not for us. */
	(void)setsid(); /* we may lead one already */
	s->now = clock_boot_ns();
	s->due.start = s->now + START_TIMEOUT_NS;
	if (setup(s, &diag) < 0) {
		log_error("%s", diag_format(&diag, text, sizeof(text)));
		return 1;
	}
	int r = loop(s);
	if (r < 0)
		log_error("epoll: %s", strerror(-r));
	guest_cleanup(s);
	conn_close_all(s);
	(void)unlink(s->socket_path); /* it may be gone with its folder */
	return r < 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ .name = "socket", .kind = OPTION_STR, .offset = offsetof(struct shim_options, socket), .arg = "PATH",
		  .help = "where the agent finds this shim" },
		{ .name = "tools", .kind = OPTION_STR, .offset = offsetof(struct shim_options, tools), .arg = "DIR",
		  .help = "the guest's tools (reclaim-init, scontrol, srun, reclaim)" },
		{ .kind = OPTION_END },
	};
	static const struct command commands[] = {
		{ .name = "", .options = options, .values_size = sizeof(struct shim_options), .run = run,
		  .help = "parent of one guest; started by reclaimd" },
		{ .name = NULL },
	};
	static const struct program program = {
		.name = "reclaim-shim", .summary = "keeps one guest and its deadlines, also while the agent is away",
		.version = RECLAIM_VERSION, .commands = commands,
	};

	point_init();
	log_init("reclaim-shim", LOG_LEVEL_INFO);
	return program_main(&program, argc, argv);
}
