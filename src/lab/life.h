/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a lab's life, shared by playing (lab.c) and shell (shell.c). */
#ifndef RECLAIM_LAB_LIFE_H
#define RECLAIM_LAB_LIFE_H

#include "lab/lab_internal.h"

int life_load(struct lab *l, const struct lab_options *o, struct diag *diag);
/* References, campus, programs, lending, watching. l->guard and l->dir are set. */
int life_start(struct lab *l, struct diag *diag);
/* Research flows and sinks, from l->origin_ns on. */
int life_traffic(struct lab *l, struct diag *diag);
void life_stop(struct lab *l);
/* Copies the logs to opt->keep. */
void life_keep(struct lab *l);

#endif
