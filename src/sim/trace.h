/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces of machines that are lent and taken back, read from the formats in
 * which such data is public, told apart by their first lines:
 *
 *   campus   t,m,s                  state changes of desktops: A and R free, U in use, O off
 *   lab      minute,cap,running_... GPUs of one group: idle ones count as lent
 *   spot     kind,nodes,set,...     availability runs of cloud zones
 *   nodes    t_ms,add|remove,name   a cloud node log
 *
 * A file is outside input: every line is checked, errors name it.
 */
#ifndef RECLAIM_SIM_TRACE_H
#define RECLAIM_SIM_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/vec.h"
#include "policy/hazard.h"

#define TRACE_FILE_MAX (256u << 20)
#define TRACE_MACHINES_MAX 100000

struct trace_event {
	double t_s;
	uint32_t machine;
	uint8_t state; /* enum hazard_state */
};

struct trace_machine {
	uint32_t room;
	double first_s, last_s; /* present between its first and last event */
};

struct trace {
	struct VEC(struct trace_event) events; /* ordered by time, then as in the file */
	struct VEC(struct trace_machine) machines;
	uint32_t rooms_count;
	double monday_s; /* start of a local week on the trace's clock */
	double end_s;
};

#define TRACE_INIT { .monday_s = 0 }
void trace_done(struct trace *t);

/*
 * machines_path: "m,room,..." or NULL (all in one room). keep_edges: states
 * given at the very start count from there and the last state holds to the
 * end, as in a slice; else a machine is there from its first change to its
 * last. 0, -EINVAL, -ENOMEM or an error of reading.
 */
int trace_load(const char *path, const char *machines_path, bool keep_edges, struct trace *ret,
	       struct diag *diag);
/* The same from memory; machines may be NULL. */
int trace_parse(const char *text, size_t len, const char *machines, size_t machines_len,
		const char *name, bool keep_edges, struct trace *ret, struct diag *diag);

#endif
