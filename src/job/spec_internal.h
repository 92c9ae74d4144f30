/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by spec.c and spec_script.c. */
#ifndef RECLAIM_JOB_SPEC_INTERNAL_H
#define RECLAIM_JOB_SPEC_INTERNAL_H

#include "job/spec.h"

void job_warn(struct job_warnings *warnings, const char *name, unsigned line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* True if the text is a script and not a YAML job file. */
bool job_text_is_script(const char *text, size_t len);

/* A script's marks into one JSON object shaped like the job file (script itself not included).
 * ret_lines knows the places of what came from #RECLAIM lines. */
int job_script_marks(const char *text, size_t len, const char *name, json_t **ret,
		     struct yaml_lines **ret_lines, struct job_warnings *warnings,
		     struct diag *diag);

#endif
