/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/dcep.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct dcep d, again;
	uint8_t buf[DCEP_MAX];
	if (dcep_decode(data, len, &d) < 0)
		return 0;
	CHECK(dcep_decode(buf, dcep_encode(&d, buf), &again) == 0);
	CHECK(d.type == again.type);
	return 0;
}
