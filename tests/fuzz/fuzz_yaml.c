/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "base/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *value;
	struct yaml_lines *lines;
	struct diag diag;
	if (yaml_parse((const char *)data, size, "fuzz", &value, &lines, &diag) == 0) {
		json_decref(value);
		yaml_lines_free(lines);
	}
	return 0;
}
