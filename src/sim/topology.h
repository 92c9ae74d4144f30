/* SPDX-License-Identifier: Apache-2.0 */
/* Research networks as graph text: "NODES n", n lines, "EDGES m", lines of
 * label src dest weight kbit/s delay_us. One edge is one direction. */
#ifndef RECLAIM_SIM_TOPOLOGY_H
#define RECLAIM_SIM_TOPOLOGY_H

#include <stddef.h>

#include "base/diag.h"
#include "policy/network.h"

#define TOPOLOGY_FILE_MAX (4u << 20)

/* Adds points and links to an empty network; research: their share of every link. Returns the
 * number of sites or an error. */
int topology_load(const char *path, double research, double floors, struct network *net,
		  struct diag *diag);
int topology_parse(const char *text, size_t len, const char *name, double research,
		   double floors, struct network *net, struct diag *diag);

#endif
