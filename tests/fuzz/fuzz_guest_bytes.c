/* SPDX-License-Identifier: Apache-2.0 */
/* What a guest may send: HTTP on the cloud spot paths, lines on its socket. */
#include <stdint.h>
#include <stdlib.h>

#include "job/notice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct notice n = { .kind = NOTICE_RECLAIM, .id = "r1", .epoch = 1, .window_ns = 5, .deadline_ns = 9 };
	struct strbuf out = STRBUF_INIT;
	struct guest_request q;
	struct diag diag = DIAG_INIT;
	size_t at = 0;

	while (at < size) {
		struct metadata_effect effect;
		int used = metadata_answer(&n, false, 4, 1772352000000, (const char *)data + at, size - at, &out,
					   &effect);

		if (used <= 0)
			break;
		if ((size_t)used > size - at)
			abort();
		at += (size_t)used;
	}
	strbuf_done(&out);
	if (guest_request_decode((const char *)data, size, &q, &diag) == 0)
		guest_request_done(&q);
	return 0;
}
