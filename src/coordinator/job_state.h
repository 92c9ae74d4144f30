/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's life as one table:
 *
 *     STAGING --inputs--> QUEUED --start--> STARTING --running--> RUNNING
 *                           ^                  |  restoring         |  ^
 *                           |                  v     ^              |  | cancelled
 *                           |               RESTORING               v  |
 *                           +--- lost, requeue ---------------- NOTICED
 *                           |                                       | left
 *                           +----------- settled ------------- MOVING
 *
 *     done, failed, cancel lead from anywhere (not final) to DONE, FAILED, CANCELLED.
 *
 * A reclaim is no failure: it leads back to QUEUED, and from there to a new
 * incarnation (epoch + 1). Pure.
 */
#ifndef RECLAIM_COORDINATOR_JOB_STATE_H
#define RECLAIM_COORDINATOR_JOB_STATE_H

#include "wire/rest.h"

enum job_event {
	JOB_EVENT_INPUTS = 0, /* inputs are complete */
	JOB_EVENT_START,      /* an incarnation was given to a machine */
	JOB_EVENT_RESTORING,
	JOB_EVENT_RUNNING,
	JOB_EVENT_NOTICE,     /* its machine is wanted back */
	JOB_EVENT_KEPT,       /* the notice was withdrawn, it runs on */
	JOB_EVENT_LEFT,       /* nothing of it runs; its last image may be under way */
	JOB_EVENT_REQUEUE,    /* ready for its next incarnation */
	JOB_EVENT_DONE,
	JOB_EVENT_FAILED,
	JOB_EVENT_CANCEL,
	JOB_EVENT_COUNT,
};
extern const char *const job_event_names[];

/* 0 with the next state, or -EINVAL: this event means nothing in this state. */
int job_state_next(enum rest_job_state state, enum job_event event, enum rest_job_state *ret);

#endif
