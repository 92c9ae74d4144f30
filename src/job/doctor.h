/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `reclaim doctor` says: of this machine, which rungs, hierarchies and tools it has
 * and what each lacks; of a job, before it is submitted, which channel its program will
 * hear a notice by, what is missing, and what it would lose at a reclaim now.
 *
 * About a job this is reading, not running: scripts and Python files are looked through
 * for handlers and savers, ELF files for symbols and words. It says what it saw and where.
 */
#ifndef RECLAIM_JOB_DOCTOR_H
#define RECLAIM_JOB_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>

#include "base/diag.h"
#include "base/vec.h"

enum doctor_level { DOCTOR_OK = 0, DOCTOR_NOTE, DOCTOR_WARN, DOCTOR_BAD };
extern const char *const doctor_level_names[]; /* "ok", "note", "warn", "bad" */

struct doctor_finding {
	enum doctor_level level;
	char area[32]; /* "sandbox", "notice", "loss", ... */
	char text[400];
};
struct doctor_report {
	struct VEC(struct doctor_finding) findings;
};

void doctor_report_done(struct doctor_report *r);
void doctor_add(struct doctor_report *r, enum doctor_level level, const char *area, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Never fails as a whole: what cannot be found out is a finding. */
void doctor_machine(struct doctor_report *r);
/* 0, or what job_spec_load() says (then there is no report). */
int doctor_job(const char *path, struct doctor_report *r, struct diag *diag);

/* {"findings":[{"level","area","text"}],"worst":"warn"}; a new reference. */
json_t *doctor_json(const struct doctor_report *r);
enum doctor_level doctor_worst(const struct doctor_report *r);

#endif
