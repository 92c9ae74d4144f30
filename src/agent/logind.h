/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What logind tells (org.freedesktop.login1 on the system bus): who logs in,
 * and that the machine is about to go down or to sleep, which waits for us
 * while we hold a delay lock. All calls are asynchronous: an owner's command
 * never waits for a bus. Without a bus it is tried again every 30 s.
 *
 * logind_none.c stands in where the program is built without libsystemd.
 */
#ifndef RECLAIM_AGENT_LOGIND_H
#define RECLAIM_AGENT_LOGIND_H

#include <stdbool.h>
#include <stdint.h>

#include "io/loop.h"

enum logind_event {
	LOGIND_LOGIN = 0,  /* detail: who */
	LOGIND_SHUTDOWN,   /* going down; logind_release() lets it go on */
	LOGIND_SLEEP,      /* going to sleep; likewise */
	LOGIND_STAYS,      /* woke up, or the shutdown was called off; the lock is taken anew */
};

struct logind;

/* 0, or -errno when it can never work (not built in, no memory). */
int logind_open(struct loop *l, void (*event)(void *user, enum logind_event e, const char *detail),
		void *user, struct logind **ret);
void logind_close(struct logind *d);
/* Lets go of the delay lock: logind waits no longer. Fine when not held. */
void logind_release(struct logind *d);
/* How long logind waits at most, from its announcement; 0 = not known, no lock is held. */
uint64_t logind_delay_ns(const struct logind *d);
/* Why nothing is heard, or NULL. */
const char *logind_missing(const struct logind *d);

#endif
