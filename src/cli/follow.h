/* SPDX-License-Identifier: Apache-2.0 */
/* Staying with a job: its output, a live line, its end. Survives coordinator restarts. */
#ifndef RECLAIM_CLI_FOLLOW_H
#define RECLAIM_CLI_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/context.h"
#include "wire/rest.h"

struct follow_options {
	bool output;              /* forward the job's output to stdout */
	bool progress;            /* a live line on stderr when that is a terminal; changes otherwise */
	bool cancel_on_interrupt; /* SIGINT cancels the job */
};

/* Until the job is over and its output forwarded. 0 with its last state (schema_done() it), or
 * -errno after saying why. A coordinator that is away is waited for. */
int follow_job(const struct cli_context *ctx, const char *id, const struct follow_options *o,
	       struct rest_job *ret);
int follow_logs(const struct cli_context *ctx, const char *id, uint64_t offset, bool follow);

#endif
