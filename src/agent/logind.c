/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/logind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define NAME "org.freedesktop.login1"
#define PATH "/org/freedesktop/login1"
#define MANAGER NAME ".Manager"
#define AGAIN_NS (30 * NS_PER_S)

struct logind {
	struct loop *loop;
	void (*event)(void *user, enum logind_event e, const char *detail);
	void *user;
	sd_bus *bus; /* NULL = none now */
	struct loop_watch *watch;
	struct loop_timer timer; /* the bus's own timeout, or the next attempt */
	int lock_fd;             /* -1 = not held */
	bool going;              /* announced: no lock is taken until it is called off */
	uint64_t delay_ns;
	char missing[160];
};

static void bus_arm(struct logind *d);

static void bus_drop(struct logind *d, int error)
{
	(void)snprintf(d->missing, sizeof(d->missing), "system bus: %s", strerror(-error));
	loop_watch_close(d->watch);
	d->watch = NULL;
	d->bus = sd_bus_close_unref(d->bus);
	logind_release(d);
	d->delay_ns = 0;
	(void)loop_timer_in(&d->timer, AGAIN_NS);
}

static int failed(struct logind *d, sd_bus_message *m, const char *what)
{
	const sd_bus_error *e = sd_bus_message_get_error(m);
	if (!e)
		return 0;
	(void)snprintf(d->missing, sizeof(d->missing), "%s: %.110s", what, e->message ? e->message : e->name);
	log_warn("logind: %s", d->missing);
	return -EIO;
}

/* ---- the lock ---- */

static int on_lock(sd_bus_message *m, void *user, sd_bus_error *error)
{
	struct logind *d = user;
	int fd;
	if (failed(d, m, "Inhibit") < 0 || sd_bus_message_read(m, "h", &fd) < 0)
		return 0;
	logind_release(d);
	if (!d->going) {
		d->lock_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the message's own goes with it */
		d->missing[0] = '\0';
	}
	return 0;
}

static void lock_take(struct logind *d)
{
	int r = sd_bus_call_method_async(d->bus, NULL, NAME, PATH, MANAGER, "Inhibit", on_lock, d, "ssss",
					 "shutdown:sleep", "ReclaimNet", "guests are told and leave", "delay");
	if (r < 0)
		(void)snprintf(d->missing, sizeof(d->missing), "Inhibit: %s", strerror(-r));
}

static int on_delay(sd_bus_message *m, void *user, sd_bus_error *error)
{
	struct logind *d = user;
	uint64_t us;
	if (failed(d, m, "InhibitDelayMaxUSec") < 0 || sd_bus_message_read(m, "v", "t", &us) < 0)
		return 0;
	d->delay_ns = us > UINT64_MAX / 1000 ? UINT64_MAX : us * 1000;
	return 0;
}

/* ---- signals ---- */

static int on_prepare(struct logind *d, sd_bus_message *m, enum logind_event going)
{
	int active;
	if (sd_bus_message_read(m, "b", &active) < 0)
		return 0;
	d->going = active;
	d->event(d->user, active ? going : LOGIND_STAYS, NULL);
	if (!active)
		lock_take(d);
	return 0;
}

static int on_prepare_shutdown(sd_bus_message *m, void *user, sd_bus_error *error)
{
	return on_prepare(user, m, LOGIND_SHUTDOWN);
}

static int on_prepare_sleep(sd_bus_message *m, void *user, sd_bus_error *error)
{
	return on_prepare(user, m, LOGIND_SLEEP);
}

/* A property of type string out of a{sv}, else "". Leaves the message where it was. */
static void property(sd_bus_message *m, const char *wanted, char *buf, size_t size)
{
	const char *name, *value;
	buf[0] = '\0';
	if (sd_bus_message_rewind(m, true) < 0 || sd_bus_message_enter_container(m, 'a', "{sv}") < 0)
		return;
	while (sd_bus_message_enter_container(m, 'e', "sv") > 0) {
		if (sd_bus_message_read(m, "s", &name) < 0)
			return;
		if (strcmp(name, wanted) == 0 && sd_bus_message_read(m, "v", "s", &value) > 0) {
			(void)snprintf(buf, size, "%s", value);
			return;
		}
		if (sd_bus_message_skip(m, "v") < 0 || sd_bus_message_exit_container(m) < 0)
			return;
	}
}

static int on_session(sd_bus_message *m, void *user, sd_bus_error *error)
{
	static const char *const nobody[] = { "greeter",  "lock-screen",   "background",   "background-light",
					      "manager",  "manager-early", "none" };
	struct logind *d = user;
	char class[32], name[64];
	if (sd_bus_message_get_error(m))
		return 0; /* a session that has ended already */
	property(m, "Class", class, sizeof(class));
	property(m, "Name", name, sizeof(name));
	for (size_t i = 0; i < ARRAY_SIZE(nobody); i++)
		if (strcmp(class, nobody[i]) == 0)
			return 0;
	d->event(d->user, LOGIND_LOGIN, name[0] ? name : "somebody");
	return 0;
}

static int on_session_new(sd_bus_message *m, void *user, sd_bus_error *error)
{
	struct logind *d = user;
	const char *id, *path;
	if (sd_bus_message_read(m, "so", &id, &path) < 0)
		return 0;
	(void)sd_bus_call_method_async(d->bus, NULL, NAME, path, "org.freedesktop.DBus.Properties", "GetAll",
				       on_session, d, "s", NAME ".Session");
	return 0;
}

/* ---- the bus on our loop ---- */

static void bus_serve(struct logind *d)
{
	int r;
	while ((r = sd_bus_process(d->bus, NULL)) > 0)
		if (!d->bus)
			return;
	if (r < 0)
		bus_drop(d, r);
	else
		bus_arm(d);
}

static void on_bus(void *user, int events, int error)
{
	bus_serve(user);
}

static void bus_arm(struct logind *d)
{
	uint64_t until_us;
	int events = sd_bus_get_events(d->bus);
	if (events < 0 || sd_bus_get_timeout(d->bus, &until_us) < 0) {
		bus_drop(d, events < 0 ? events : -EIO);
		return;
	}
	(void)loop_watch_set(d->watch, (events & 1 /* POLLIN */ ? UV_READABLE : 0) |
				       (events & 4 /* POLLOUT */ ? UV_WRITABLE : 0));
	if (until_us == UINT64_MAX) {
		loop_timer_stop(&d->timer);
		return;
	}
	struct timespec now;
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	(void)loop_timer_in(&d->timer, until_us > now_us ? (until_us - now_us) * 1000 : 0);
}

static int bus_ask(struct logind *d)
{
	int r = sd_bus_match_signal_async(d->bus, NULL, NAME, PATH, MANAGER, "SessionNew", on_session_new, NULL, d);
	if (r >= 0)
		r = sd_bus_match_signal_async(d->bus, NULL, NAME, PATH, MANAGER, "PrepareForShutdown",
					      on_prepare_shutdown, NULL, d);
	if (r >= 0)
		r = sd_bus_match_signal_async(d->bus, NULL, NAME, PATH, MANAGER, "PrepareForSleep",
					      on_prepare_sleep, NULL, d);
	if (r >= 0)
		r = sd_bus_call_method_async(d->bus, NULL, NAME, PATH, "org.freedesktop.DBus.Properties", "Get",
					     on_delay, d, "ss", MANAGER, "InhibitDelayMaxUSec");
	if (r >= 0)
		lock_take(d);
	return r;
}

static void bus_connect(struct logind *d)
{
	int r = sd_bus_open_system(&d->bus);
	if (r >= 0)
		r = loop_watch_open(d->loop, sd_bus_get_fd(d->bus), UV_READABLE, on_bus, d, &d->watch);
	if (r >= 0)
		r = bus_ask(d);
	if (r < 0) {
		bus_drop(d, r);
		return;
	}
	d->missing[0] = '\0';
	bus_serve(d);
}

static void on_timer(void *user)
{
	struct logind *d = user;
	if (d->bus)
		bus_serve(d);
	else
		bus_connect(d);
}

int logind_open(struct loop *l, void (*event)(void *user, enum logind_event e, const char *detail),
		void *user, struct logind **ret)
{
	struct logind *d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->loop = l;
	d->event = event;
	d->user = user;
	d->lock_fd = -1;
	loop_timer_init(&d->timer, l, on_timer, d);
	bus_connect(d);
	*ret = d;
	return 0;
}

void logind_close(struct logind *d)
{
	if (!d)
		return;
	loop_watch_close(d->watch);
	d->bus = sd_bus_close_unref(d->bus);
	logind_release(d);
	loop_timer_stop(&d->timer);
	free(d);
}

void logind_release(struct logind *d)
{
	if (d && d->lock_fd >= 0) {
		(void)close(d->lock_fd);
		d->lock_fd = -1;
	}
}

uint64_t logind_delay_ns(const struct logind *d)
{
	return d && d->lock_fd >= 0 ? d->delay_ns : 0;
}

const char *logind_missing(const struct logind *d)
{
	return d->missing[0] ? d->missing : NULL;
}
