/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/owner_state.h"

#include <errno.h>

const char *const owner_event_names[] = { "lend",     "back",  "now",   "cancel",
					  "deadline", "empty", "taken", NULL };

/* Rows: state; columns: event. 0 = refused, else state + 1. */
#define TO(s) (CONTROL_OWNER_##s + 1)
static const unsigned char table[CONTROL_OWNER_STATE_COUNT][OWNER_EVENT_COUNT] = {
	[CONTROL_OWNER_OWNED] = { [OWNER_EVENT_LEND] = TO(LENT) },
	[CONTROL_OWNER_LENT] = { [OWNER_EVENT_BACK] = TO(NOTICE),
				 [OWNER_EVENT_NOW] = TO(DRAINING) },
	[CONTROL_OWNER_NOTICE] = { [OWNER_EVENT_BACK] = TO(NOTICE),
				   [OWNER_EVENT_NOW] = TO(DRAINING),
				   [OWNER_EVENT_CANCEL] = TO(LENT),
				   [OWNER_EVENT_DEADLINE] = TO(DRAINING),
				   [OWNER_EVENT_EMPTY] = TO(FREE) },
	[CONTROL_OWNER_DRAINING] = { [OWNER_EVENT_NOW] = TO(DRAINING),
				     [OWNER_EVENT_EMPTY] = TO(FREE) },
	[CONTROL_OWNER_FREE] = { [OWNER_EVENT_TAKEN] = TO(OWNED) },
};

int owner_state_next(enum control_owner_state state, enum owner_event event,
		     enum control_owner_state *ret)
{
	unsigned next = table[state][event];
	if (!next)
		return -EINVAL;
	*ret = (enum control_owner_state)(next - 1);
	return 0;
}
