/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/frame.h"
#include "volunteer/signal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct signal s, again;
	struct diag diag = DIAG_INIT;
	if (signal_decode((const char *)data, len, &s, &diag) < 0)
		return 0;
	char *text = signal_encode(&s);
	if (text) {
		CHECK(signal_decode(text, strlen(text), &again, &diag) == 0);
		CHECK(again.type == s.type && again.node == s.node);
		signal_done(&again);
	}
	free(text);
	if (s.data) {
		uint8_t bytes[FRAME_MAX];
		char *back = malloc(strlen(s.data) + 5);
		long n = base64_decode(s.data, strlen(s.data), bytes, sizeof(bytes));
		if (n >= 0 && back)
			CHECK(base64_encode(bytes, (size_t)n, back) == strlen(s.data));
		free(back);
	}
	signal_done(&s);
	return 0;
}
