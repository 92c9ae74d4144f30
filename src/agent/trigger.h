/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Back without a command: signs that the owner is here, or that the machine is
 * about to go, each with its switch in the lend terms; and the quiet period
 * after which a machine that was taken back so is lent again.
 *
 *     presence.c  logins, keyboard, lid, from files every machine has
 *     logind.c    logins, shutdown, sleep, where there is logind
 *     own_use.c   the owner's own work on GPU and CPU
 *     reclaim trigger KIND, for what none of these sees: login scripts, acpid, init
 *
 * Signs of use (login, keyboard, gpu, cpu) lead to a notice of the declared
 * window, and lending begins again after `quiet` without any; with no `quiet` it
 * waits for `reclaim lend`. Signs of leaving (shutdown, suspend, lid) lead to a
 * notice no longer than the machine stays up, and lending goes on when it is
 * there again: the owner did not ask for it to end.
 */
#ifndef RECLAIM_AGENT_TRIGGER_H
#define RECLAIM_AGENT_TRIGGER_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/owner.h"

struct agent;

#define TRIGGER_LOGIN OWNER_TRIGGER_LOGIN
#define TRIGGER_KEYBOARD OWNER_TRIGGER_KEYBOARD
#define TRIGGER_GPU OWNER_TRIGGER_GPU
#define TRIGGER_CPU OWNER_TRIGGER_CPU
#define TRIGGER_SHUTDOWN OWNER_TRIGGER_SHUTDOWN
#define TRIGGER_SUSPEND OWNER_TRIGGER_SUSPEND
#define TRIGGER_LID OWNER_TRIGGER_LID
#define TRIGGER_STAYS OWNER_TRIGGER_STAYS

int trigger_open(struct agent *a);
void trigger_close(struct agent *a);
/* A sign, whoever saw it. Does nothing but note the time where the terms do not want it. */
void trigger_fire(struct agent *a, enum owner_trigger kind, const char *detail);
/* The owner's state has changed. */
void trigger_state(struct agent *a);
/* The terms have. */
void trigger_terms(struct agent *a);
/* `reclaim lend`: the machine stays after all. */
void trigger_lend_asked(struct agent *a);
/* Until lending may begin by itself: 0 = now, UINT64_MAX = not while the machine is leaving. */
uint64_t trigger_wait_ns(const struct agent *a);
/* ... by the owner's own word: at once, unless the next key pressed would take it back. */
uint64_t trigger_wait_asked_ns(const struct agent *a);
/* Since the last sign of use; 0 = in use, or not known. */
uint64_t trigger_idle_ns(const struct agent *a);
/* Triggers that the terms want and this machine cannot see: strings are the caller's. */
size_t trigger_lacks(const struct agent *a, char **ret, size_t max);

#endif
