/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of a lent machine as one table:
 *
 *               lend                back                deadline, now
 *     OWNED ------------> LENT ------------> NOTICE ------------> DRAINING
 *       ^                 ^  |                 |  |                   |
 *       |                 |  +------ now ------|--|---------------->  |
 *       |                 +------- cancel -----+  | empty             | empty
 *       |     taken                               v                   |
 *       +------------------------------------- FREE <-----------------+
 *
 * A second `back` in NOTICE moves the deadline. FREE means proven: no guest
 * process, no guest packet, no guest GPU context. Pure.
 */
#ifndef RECLAIM_AGENT_OWNER_STATE_H
#define RECLAIM_AGENT_OWNER_STATE_H

#include "wire/control.h"

enum owner_event {
	OWNER_EVENT_LEND = 0, /* the owner lends, or the schedule does for them */
	OWNER_EVENT_BACK,     /* wanted back after a window */
	OWNER_EVENT_NOW,      /* wanted back without one */
	OWNER_EVENT_CANCEL,
	OWNER_EVENT_DEADLINE, /* the window has ended */
	OWNER_EVENT_EMPTY,    /* nothing of any guest is left, proven */
	OWNER_EVENT_TAKEN,    /* FREE has been told to whoever asked */
	OWNER_EVENT_COUNT,
};
extern const char *const owner_event_names[];

/* 0 with the next state, or -EINVAL: this event means nothing in this state. */
int owner_state_next(enum control_owner_state state, enum owner_event event,
		     enum control_owner_state *ret);

#endif
