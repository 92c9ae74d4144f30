/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our congestion controls, as BPF struct_ops (cc.bpf.c has the algorithms).
 * They belong to the kernel, not to a network namespace: the first agent
 * registers them, others use them; edge_tick() registers them again when the
 * agent that did is gone. Sockets that use one go on without.
 */
#ifndef RECLAIM_EDGE_CC_H
#define RECLAIM_EDGE_CC_H

/* 0 if they are registered or this kernel would take them, else -errno. */
int cc_available(void);
/* Registers what is missing, held by pins below dir, a bpffs (NULL: until cc_unload()). */
int cc_load(const char *dir);
/* Takes back what cc_load(dir) did. */
int cc_unload(const char *dir);

#endif
