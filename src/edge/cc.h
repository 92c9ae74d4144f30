/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our congestion controls, as BPF struct_ops (cc.bpf.c has the algorithms).
 * They belong to the kernel, not to a network namespace: the first agent loads
 * them, others find them there. A socket that uses one keeps it alive.
 */
#ifndef RECLAIM_EDGE_CC_H
#define RECLAIM_EDGE_CC_H

/* 0 if they are loaded or this kernel would take them, else -errno. */
int cc_available(void);
/* Registers those that are missing, pinned below dir (NULL: they stay until this process ends). */
int cc_load(const char *dir);

#endif
