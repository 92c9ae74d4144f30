/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lab: a scenario's campus on this machine, with the real programs in it.
 * Demo, system test and bench in one.
 */
#ifndef RECLAIM_LAB_LAB_H
#define RECLAIM_LAB_LAB_H

#include <stdbool.h>
#include <stddef.h>

struct lab_options {
	const char *scenario;  /* file */
	const char *report;    /* JSON written here; NULL = none */
	const char *keep;      /* folder that gets the logs when something failed; NULL = none */
	const char *shell;     /* shell: command to run inside instead of an interactive one */
	bool loopback;         /* no namespaces even where they could be had */
	bool quiet;            /* only the checks */
};

/* Exit status: 0 every check held, 1 one did not or the lab failed. */
int lab_run(const struct lab_options *o);
/* Brings the campus up, submits what the scenario says, and gives the caller a shell in it. */
int lab_shell(const struct lab_options *o);
/* One event, as in a scenario's list, for the lab whose shell this is ($LAB_DIR). */
int lab_do(const char *event_yaml);
/* Removes what labs that died left behind. */
int lab_clean(void);

#endif
