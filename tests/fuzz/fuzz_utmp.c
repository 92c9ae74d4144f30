/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "agent/utmp.h"
#include "base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct utmp_sessions half, whole;
	utmp_parse(data, size / 2, &half);
	utmp_parse(data, size, &whole);
	CHECK(whole.count <= UTMP_SESSIONS_MAX && whole.count >= half.count);
	CHECK(!utmp_newcomer(&whole, &half)); /* what the half has, the whole has */
	for (size_t i = 0; i < whole.count; i++)
		for (const char *p = whole.items[i].user; *p; p++)
			CHECK(*p > ' ' && *p < 0x7f);
	return 0;
}
