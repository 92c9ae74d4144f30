/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the coordinator knows of owners' habits: every change of a machine's
 * state goes into the store (observed/<ms>.<node>) and into the hazard model
 * of src/policy, which is rebuilt from the store at start. Rates go to the
 * engine, answers in words to people.
 *
 * A machine whose agent is silent for FORECAST_OFF_AFTER_S counts as powered
 * off; while no coordinator runs, nothing is observed and nothing counts.
 */
#ifndef RECLAIM_COORDINATOR_FORECAST_H
#define RECLAIM_COORDINATOR_FORECAST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/diag.h"
#include "store/store.h"

#define FORECAST_OFF_AFTER_S 60
#define FORECAST_KEEP_S (UINT64_C(400) * 86400)

struct forecast;

/* store is borrowed. */
int forecast_open(struct store *store, uint64_t wall_ms, struct forecast **ret, struct diag *diag);
void forecast_close(struct forecast *f);

/* What a machine's agent says of itself. place: what shares a fate ("building/room"). schedule: as
 * in the lend terms, or NULL. */
int forecast_node(struct forecast *f, const char *node, const char *place, int utc_offset_s,
		  const json_t *schedule);
/* state: enum control_owner_state; up: its agent is connected. Durable when it returns 0. */
int forecast_observe(struct forecast *f, const char *node, int state, bool up, uint64_t wall_ms);
/* Once in a while: silence becomes OFF, the mark of being alive moves on, the model is fitted. */
void forecast_tick(struct forecast *f, uint64_t wall_ms);

/* Reclaims and power-offs per second, mean over the next hour; 0 = unknown machine. */
double forecast_rate(struct forecast *f, const char *node, uint64_t wall_ms);
/* For people: numbers and "text"; NULL = unknown machine. A new reference. */
json_t *forecast_explain(struct forecast *f, const char *node, uint64_t wall_ms, uint64_t horizon_s);
/* Every machine known: fn(user, node, rate as above). */
void forecast_each(struct forecast *f, uint64_t wall_ms,
		   void (*fn)(void *user, const char *node, double per_s), void *user);

#endif
