/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of the REST port, by every table that takes one; the first byte chooses. */
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "coordinator/config.h"
#include "wire/rest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct schema *const tables[] = { &rest_submit_schema, &rest_job_schema,
						       &rest_jobs_schema, &rest_nodes_schema,
						       &config_schema };
	if (size < 1)
		return 0;
	const struct schema *s = tables[data[0] % ARRAY_SIZE(tables)];
	CLEANUP_JSON json_t *in = json_loadb((const char *)data + 1, size - 1, JSON_REJECT_DUPLICATES, NULL);
	CLEANUP_FREE void *obj = calloc(1, s->size);
	struct diag diag = DIAG_INIT;
	if (!in || !obj)
		return 0;
	if (schema_decode(s, in, SCHEMA_STRICT, NULL, obj, &diag) < 0) {
		CHECK(diag.what[0]);
		return 0;
	}
	CLEANUP_JSON json_t *again = schema_encode(s, obj);
	CHECK(again);
	schema_done(s, obj);
	return 0;
}
