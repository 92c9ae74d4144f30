/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "volunteer/carry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct carry c, again;
	struct diag diag = DIAG_INIT;
	json_error_t error;
	CLEANUP_JSON json_t *in = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES, &error);
	if (!in || carry_decode(in, &c, &diag) < 0)
		return 0;
	CLEANUP_JSON json_t *out = carry_encode(&c);
	if (out) {
		CHECK(carry_decode(out, &again, &diag) == 0);
		CHECK(again.type == c.type && again.socket == c.socket && again.more == c.more);
		CHECK(!c.text == !again.text && (!c.text || strcmp(c.text, again.text) == 0));
		carry_done(&again);
	}
	carry_done(&c);
	return 0;
}
