/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

#include "wire/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *in = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
	if (!in)
		return 0;
	struct control_message m;
	struct diag diag;
	if (control_decode(in, &m, &diag) == 0) {
		json_decref(control_encode(&m));
		control_done(&m);
	}
	json_decref(in);
	return 0;
}
