/* SPDX-License-Identifier: Apache-2.0 */
/* A line between agent and shim, either way; what is accepted is encoded and read again. */
#include <stdint.h>
#include <stdlib.h>

#include "job/shim_proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct strbuf out = STRBUF_INIT;
	struct shim_command cmd;
	struct shim_event event;
	struct diag diag = DIAG_INIT;

	if (shim_command_decode((const char *)data, size, &cmd, &diag) == 0) {
		if (shim_command_encode(&cmd, &out) < 0)
			abort();
		shim_command_done(&cmd);
		if (shim_command_decode(out.data, out.len - 1, &cmd, &diag) < 0)
			abort();
		shim_command_done(&cmd);
	}
	strbuf_clear(&out);
	if (shim_event_decode((const char *)data, size, &event, &diag) == 0) {
		if (shim_event_encode(&event, &out) < 0)
			abort();
		shim_event_done(&event);
	}
	strbuf_done(&out);
	return 0;
}
