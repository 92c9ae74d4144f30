/* SPDX-License-Identifier: Apache-2.0 */
/* Network namespaces and batches of ip and tc commands in them. */
#ifndef RECLAIM_LAB_NETNS_H
#define RECLAIM_LAB_NETNS_H

#include "base/diag.h"
#include "base/strbuf.h"

/* A fresh namespace, held by the descriptor and bound at path (created). Loopback is up. */
int netns_new(const char *path, int *ret_fd, struct diag *diag);
/* Runs `ip -batch` or `tc -batch` (tool "ip" or "tc") with these lines inside. */
int netns_batch(int netns_fd, const char *tool, const char *lines, struct diag *diag);
/* Writes one /proc/sys file as seen from inside. */
int netns_sysctl(int netns_fd, const char *key, const char *value, struct diag *diag);

#endif
