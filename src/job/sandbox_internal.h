/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a sandboxed start. All run in the child, between clone() and exec. */
#ifndef RECLAIM_JOB_SANDBOX_INTERNAL_H
#define RECLAIM_JOB_SANDBOX_INTERNAL_H

#include "job/sandbox.h"

#define BOX_WORK "/reclaim/work"
#define BOX_CKPT "/reclaim/ckpt"
#define BOX_HOME "/reclaim/home"
#define BOX_RUN "/reclaim/run"
#define BOX_BIN "/reclaim/bin"
#define BOX_SECRETS "/reclaim/secrets"

/* Everything below returns 0 or -errno with diag filled. */
int sandbox_mounts(const struct sandbox_config *c, struct diag *diag);
int sandbox_network(const struct sandbox_config *c, int ret_listeners[2], struct diag *diag);
int sandbox_landlock(const struct sandbox_config *c, struct diag *diag);
/* Returns the listener fd (>= 0) if one was wanted, or -1 without one, via ret_notify. */
int sandbox_seccomp(const struct sandbox_config *c, int *ret_notify, struct diag *diag);
int sandbox_drop_caps(void);
bool sandbox_has_mounts(const struct sandbox_config *c);
int landlock_abi(void);

#endif
