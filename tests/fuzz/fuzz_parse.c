/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[256];
	size_t len = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
	memcpy(text, data, len);
	text[len] = '\0';
	uint64_t u;
	int64_t i;
	double d;
	(void)parse_u64(text, &u);
	(void)parse_i64(text, &i);
	(void)parse_double(text, &d);
	(void)parse_duration_ns(text, &u);
	(void)parse_size(text, &u);
	(void)parse_rate_bps(text, &u);
	return 0;
}
