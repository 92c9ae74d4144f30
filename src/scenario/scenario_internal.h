/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RECLAIM_SCENARIO_SCENARIO_INTERNAL_H
#define RECLAIM_SCENARIO_SCENARIO_INTERNAL_H

#include <assert.h>
#include <stddef.h>

#include "scenario/scenario.h"

extern const struct schema scenario_event_schema;

/* Bounds that a check did not give; scenario_load() turns them into NAN. */
#define SCENARIO_UNSET_MIN "-1e300"
#define SCENARIO_UNSET_MAX "1e300"

#endif
