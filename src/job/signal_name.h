/* SPDX-License-Identifier: Apache-2.0 */
/* Signals by name: "USR1", "SIGUSR1", "10". */
#ifndef RECLAIM_JOB_SIGNAL_NAME_H
#define RECLAIM_JOB_SIGNAL_NAME_H

/* The number, or -EINVAL. */
int signal_from_name(const char *name);
/* "SIGUSR1"; "signal 70" style names are not needed: "?" for what has none. */
const char *signal_to_name(int signo);

#endif
