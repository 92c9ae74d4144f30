/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "scenario/scenario.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct scenario s;
	struct diag diag = DIAG_INIT;

	if (scenario_parse((const char *)data, size, "fuzz", &s, &diag) == 0)
		scenario_done(&s);
	return 0;
}
