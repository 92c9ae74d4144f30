/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "scenario/terms.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CLEANUP_JSON json_t *json = NULL;
	struct yaml_lines *lines = NULL;
	struct terms t;
	struct diag diag = DIAG_INIT;

	if (yaml_parse((const char *)data, size, "fuzz", &json, &lines, &diag) == 0 &&
	    schema_decode(&terms_schema, json, SCHEMA_STRICT, lines, &t, &diag) == 0) {
		/* The schedule must hold for whatever was accepted. */
		for (unsigned m = 0; m < TERMS_WEEK_MINUTES; m += 977)
			(void)terms_lendable(&t, m);
		terms_done(&t);
	}
	yaml_lines_free(lines);
	return 0;
}
