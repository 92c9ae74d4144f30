/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs that the owner is here, from what every Linux machine has: utmp
 * (logins), the devices of keyboard, mouse and console (somebody reads from
 * them), and the lid's state file. Where there is logind, logind.h says the
 * same and more.
 *
 * Nothing typed is ever read: inotify says *that* a program has read from a
 * device, not what. At most one word per second comes from the devices.
 */
#ifndef RECLAIM_AGENT_PRESENCE_H
#define RECLAIM_AGENT_PRESENCE_H

#include <stddef.h>

#include "io/loop.h"

enum presence_sign {
	PRESENCE_LOGIN = 0,
	PRESENCE_INPUT,
	PRESENCE_LID_CLOSED,
	PRESENCE_LID_OPENED,
	PRESENCE_SIGN_COUNT,
};

struct presence_config {
	const char *utmp;            /* file; need not exist yet */
	const char *const *inputs;   /* glob patterns of devices */
	size_t inputs_count;
	const char *lid;             /* glob pattern of files that say "open" or "closed" */
};

struct presence;

/* All in config is borrowed while it is open. seen() runs on the loop; detail is a user's name or
 * a device. What cannot be watched is missing, by name: opening never fails for it. */
int presence_open(struct loop *l, const struct presence_config *config,
		  void (*seen)(void *user, enum presence_sign sign, const char *detail), void *user,
		  struct presence **ret);
void presence_close(struct presence *p);
/* Why a sign cannot be seen on this machine, or NULL. */
const char *presence_missing(const struct presence *p, enum presence_sign sign);

#endif
