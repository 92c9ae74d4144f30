/* SPDX-License-Identifier: Apache-2.0 */
/* Traces and topologies, as anybody may hand them to reclaim-sim. */
#include <stddef.h>
#include <stdint.h>

#include "sim/topology.h"
#include "sim/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct trace t;
	struct network n = NETWORK_INIT;
	struct diag diag = DIAG_INIT;
	if (trace_parse((const char *)data, size, NULL, 0, "t", size & 1, &t, &diag) == 0)
		trace_done(&t);
	(void)topology_parse((const char *)data, size, "g", 0.5, 0.9, &n, &diag);
	network_done(&n);
	return 0;
}
