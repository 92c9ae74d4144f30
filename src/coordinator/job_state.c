/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/job_state.h"

#include <errno.h>

const char *const job_event_names[] = { "inputs", "start",   "restoring", "running",
					"notice", "kept",    "left",      "requeue",
					"done",   "failed",  "cancel",    NULL };

/* Rows: state; columns: event. 0 = refused, else state + 1. */
#define TO(s) (REST_JOB_##s + 1)
#define ENDS                                                                             \
	[JOB_EVENT_DONE] = TO(DONE), [JOB_EVENT_FAILED] = TO(FAILED),                      \
	[JOB_EVENT_CANCEL] = TO(CANCELLED), [JOB_EVENT_REQUEUE] = TO(QUEUED),              \
	[JOB_EVENT_LEFT] = TO(MOVING)
static const unsigned char table[REST_JOB_STATE_COUNT][JOB_EVENT_COUNT] = {
	[REST_JOB_STAGING] = { [JOB_EVENT_INPUTS] = TO(QUEUED), [JOB_EVENT_FAILED] = TO(FAILED),
			       [JOB_EVENT_CANCEL] = TO(CANCELLED) },
	[REST_JOB_QUEUED] = { [JOB_EVENT_START] = TO(STARTING), [JOB_EVENT_FAILED] = TO(FAILED),
			      [JOB_EVENT_CANCEL] = TO(CANCELLED) },
	[REST_JOB_STARTING] = { ENDS, [JOB_EVENT_RESTORING] = TO(RESTORING),
				[JOB_EVENT_RUNNING] = TO(RUNNING), [JOB_EVENT_NOTICE] = TO(NOTICED) },
	[REST_JOB_RESTORING] = { ENDS, [JOB_EVENT_RESTORING] = TO(RESTORING),
				 [JOB_EVENT_RUNNING] = TO(RUNNING), [JOB_EVENT_NOTICE] = TO(NOTICED) },
	[REST_JOB_RUNNING] = { ENDS, [JOB_EVENT_RUNNING] = TO(RUNNING),
			       [JOB_EVENT_NOTICE] = TO(NOTICED) },
	[REST_JOB_NOTICED] = { ENDS, [JOB_EVENT_NOTICE] = TO(NOTICED), [JOB_EVENT_KEPT] = TO(RUNNING),
			       [JOB_EVENT_RUNNING] = TO(RUNNING) },
	[REST_JOB_MOVING] = { ENDS, [JOB_EVENT_KEPT] = TO(RUNNING), [JOB_EVENT_RUNNING] = TO(RUNNING) },
};

int job_state_next(enum rest_job_state state, enum job_event event, enum rest_job_state *ret)
{
	unsigned next = table[state][event];
	if (!next)
		return -EINVAL;
	*ret = (enum rest_job_state)(next - 1);
	return 0;
}
