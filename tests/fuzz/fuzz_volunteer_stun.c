/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "volunteer/stun.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct stun s;
	if (stun_decode(data, len, &s) < 0)
		return 0;
	CHECK(s.user_len <= STUN_USER_MAX && s.integrity < len);
	(void)stun_verify(&s, data, "a password of no channel");
	return 0;
}
