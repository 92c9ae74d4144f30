/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking work (sealing an image, unpacking one) off the loop: libuv's thread pool. */
#ifndef RECLAIM_AGENT_TASK_H
#define RECLAIM_AGENT_TASK_H

#include "io/loop.h"

/*
 * work(arg) runs in a thread and touches nothing but arg; then done(arg) runs
 * on the loop. arg must live until then: the owner of arg asks a running task
 * to end early (a flag in arg) and frees it in done. 0 or -errno.
 */
int task_run(struct loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg);

#endif
