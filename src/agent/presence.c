/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/presence.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "agent/utmp.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

/* After a sign from the devices they rest for a while: a mouse would say it 1,000 times a second. */
#define REST_NS NS_PER_S
/* Devices are plugged in: the patterns are looked at again. */
#define AGAIN_NS (10 * NS_PER_S)
#define LID_EVERY_NS NS_PER_S
#define DEVICES_MAX 256

struct presence {
	struct loop *loop;
	struct presence_config config;
	void (*seen)(void *user, enum presence_sign sign, const char *detail);
	void *user;
	int utmp_fd, input_fd; /* inotify; -1 = none */
	struct loop_watch *utmp_watch, *input_watch;
	struct loop_timer input_timer, lid_timer;
	struct utmp_sessions sessions;
	char *devices[DEVICES_MAX]; /* by watch descriptor */
	size_t devices_count;
	char utmp_missing[160], input_missing[160], lid_missing[160];
	bool lid_known, lid_closed;
};

/* Empties an inotify descriptor; true if an event is about `name` (any, if NULL). Its descriptor
 * goes to ret_wd. */
static bool events_read(int fd, const char *name, int *ret_wd)
{
	union {
		struct inotify_event event;
		char bytes[8192];
	} buf;
	bool hit = false;
	ssize_t n;
	while ((n = read(fd, &buf, sizeof(buf))) > 0) {
		for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= n;) {
			struct inotify_event e;
			memcpy(&e, buf.bytes + at, sizeof(e));
			const char *of = e.len ? buf.bytes + at + sizeof(e) : "";
			at += (ssize_t)(sizeof(e) + e.len);
			/* An overflow may have swallowed what we wait for. */
			if (e.mask & IN_Q_OVERFLOW || (!(e.mask & IN_IGNORED) && (!name || strcmp(of, name) == 0))) {
				hit = true;
				if (ret_wd)
					*ret_wd = e.wd;
			}
		}
	}
	return hit;
}

/* ---- logins ---- */

static void sessions_read(const char *path, struct utmp_sessions *ret)
{
	CLEANUP_FREE char *bytes = NULL;
	size_t len = 0;
	ret->count = 0;
	if (file_read(path, UTMP_BYTES_MAX, &bytes, &len) == 0)
		utmp_parse(bytes, len, ret);
}

static void on_utmp(void *user, int events, int error)
{
	struct presence *p = user;
	const char *slash = strrchr(p->config.utmp, '/');
	if (!events_read(p->utmp_fd, slash ? slash + 1 : p->config.utmp, NULL))
		return;
	static struct utmp_sessions now; /* too large for a stack; one loop, one thread */
	sessions_read(p->config.utmp, &now);
	const struct utmp_session *s = utmp_newcomer(&p->sessions, &now);
	char detail[80];
	if (s)
		(void)snprintf(detail, sizeof(detail), "%s on %s", s->user, s->line);
	p->sessions = now;
	if (s)
		p->seen(p->user, PRESENCE_LOGIN, detail);
}

/* The folder is watched, not the file: it may come later, or be replaced. */
static int utmp_open(struct presence *p)
{
	char dir[PATH_MAX];
	int r = path_format(dir, sizeof(dir), "%s", p->config.utmp);
	if (r < 0)
		return r;
	char *slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return -EINVAL;
	*slash = '\0';
	p->utmp_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (p->utmp_fd < 0 ||
	    inotify_add_watch(p->utmp_fd, dir, IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE) < 0)
		return -errno;
	sessions_read(p->config.utmp, &p->sessions);
	return loop_watch_open(p->loop, p->utmp_fd, UV_READABLE, on_utmp, p, &p->utmp_watch);
}

/* ---- keyboard, mouse, console ---- */

static void inputs_close(struct presence *p)
{
	loop_watch_close(p->input_watch);
	p->input_watch = NULL;
	if (p->input_fd >= 0)
		(void)close(p->input_fd);
	p->input_fd = -1;
	for (size_t i = 0; i < p->devices_count; i++)
		free(p->devices[i]);
	p->devices_count = 0;
}

static void on_input(void *user, int events, int error)
{
	struct presence *p = user;
	int wd = 0;
	if (!events_read(p->input_fd, NULL, &wd))
		return;
	/* Descriptors count from 1 in the order of watching. */
	char detail[80];
	(void)snprintf(detail, sizeof(detail), "%s",
		       wd >= 1 && (size_t)wd <= p->devices_count ? p->devices[wd - 1] : "a device");
	inputs_close(p);
	(void)loop_timer_in(&p->input_timer, REST_NS);
	p->seen(p->user, PRESENCE_INPUT, detail);
}

static void inputs_open(struct presence *p)
{
	p->input_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	int r = p->input_fd < 0 ? -errno : 0;
	for (size_t i = 0; i < p->config.inputs_count && r == 0; i++) {
		glob_t found;
		if (glob(p->config.inputs[i], GLOB_NOSORT, NULL, &found) != 0)
			continue;
		for (size_t k = 0; k < found.gl_pathc && p->devices_count < DEVICES_MAX; k++) {
			/* One that vanished, or is not ours to watch: the others still are. */
			if (inotify_add_watch(p->input_fd, found.gl_pathv[k], IN_ACCESS) !=
			    (int)p->devices_count + 1)
				continue;
			p->devices[p->devices_count] = strdup(found.gl_pathv[k]);
			if (p->devices[p->devices_count])
				p->devices_count++;
			else
				r = -ENOMEM;
		}
		globfree(&found);
	}
	if (r == 0 && p->devices_count)
		r = loop_watch_open(p->loop, p->input_fd, UV_READABLE, on_input, p, &p->input_watch);
	p->input_missing[0] = '\0';
	if (r < 0)
		(void)snprintf(p->input_missing, sizeof(p->input_missing), "input devices: %s", strerror(-r));
	else if (!p->devices_count)
		(void)snprintf(p->input_missing, sizeof(p->input_missing),
			       "no keyboard, mouse or console that could be watched");
}

static void on_input_timer(void *user)
{
	struct presence *p = user;
	/* A sign may wait unread while the patterns are looked at again. */
	if (p->input_fd >= 0 && p->input_watch) {
		int wd;
		if (events_read(p->input_fd, NULL, &wd))
			p->seen(p->user, PRESENCE_INPUT, "a device");
	}
	inputs_close(p);
	inputs_open(p);
	(void)loop_timer_in(&p->input_timer, AGAIN_NS);
}

/* ---- lid ---- */

static int lid_read(const char *pattern, bool *ret_closed)
{
	glob_t found;
	int r = -ENOENT;
	if (glob(pattern, 0, NULL, &found) != 0)
		return r;
	*ret_closed = false;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		CLEANUP_FREE char *text = NULL;
		if (file_read(found.gl_pathv[i], 256, &text, NULL) < 0)
			continue;
		r = 0;
		*ret_closed |= strstr(text, "closed") != NULL;
	}
	globfree(&found);
	return r;
}

static void on_lid_timer(void *user)
{
	struct presence *p = user;
	bool closed;
	(void)loop_timer_in(&p->lid_timer, LID_EVERY_NS);
	if (lid_read(p->config.lid, &closed) < 0 || (p->lid_known && closed == p->lid_closed))
		return;
	/* A lid that was closed when we began is no news: a laptop in its dock. */
	bool news = p->lid_known;
	p->lid_known = true;
	p->lid_closed = closed;
	if (news)
		p->seen(p->user, closed ? PRESENCE_LID_CLOSED : PRESENCE_LID_OPENED, "the lid");
}

/* ---- opening and closing ---- */

int presence_open(struct loop *l, const struct presence_config *config,
		  void (*seen)(void *user, enum presence_sign sign, const char *detail), void *user,
		  struct presence **ret)
{
	struct presence *p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->loop = l;
	p->config = *config;
	p->seen = seen;
	p->user = user;
	p->utmp_fd = p->input_fd = -1;
	loop_timer_init(&p->input_timer, l, on_input_timer, p);
	loop_timer_init(&p->lid_timer, l, on_lid_timer, p);
	int r = utmp_open(p);
	if (r < 0)
		(void)snprintf(p->utmp_missing, sizeof(p->utmp_missing), "%.100s: %s", config->utmp,
			       strerror(-r));
	inputs_open(p);
	(void)loop_timer_in(&p->input_timer, AGAIN_NS);
	bool closed;
	if (lid_read(config->lid, &closed) == 0)
		on_lid_timer(p);
	else
		(void)snprintf(p->lid_missing, sizeof(p->lid_missing), "no lid (%.100s)", config->lid);
	*ret = p;
	return 0;
}

void presence_close(struct presence *p)
{
	if (!p)
		return;
	inputs_close(p);
	loop_watch_close(p->utmp_watch);
	if (p->utmp_fd >= 0)
		(void)close(p->utmp_fd);
	loop_timer_stop(&p->input_timer);
	loop_timer_stop(&p->lid_timer);
	free(p);
}

const char *presence_missing(const struct presence *p, enum presence_sign sign)
{
	const char *why = sign == PRESENCE_LOGIN ? p->utmp_missing :
			  sign == PRESENCE_INPUT ? p->input_missing :
						   p->lid_missing;
	return why[0] ? why : NULL;
}
