/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of the REST port, either way. */
#include <stdint.h>

#include "wire/rest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct schema *const all[] = { &rest_submit_schema, &rest_jobs_schema,
						    &rest_nodes_schema };
	json_t *in = json_loadb((const char *)data, size, 0, NULL);
	if (!in)
		return 0;
	union {
		struct rest_submit submit;
		struct rest_jobs jobs;
		struct rest_nodes nodes;
	} u;
	struct diag diag;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (schema_decode(all[i], in, SCHEMA_OPEN, NULL, &u, &diag) == 0)
			schema_done(all[i], &u);
	json_decref(in);
	return 0;
}
