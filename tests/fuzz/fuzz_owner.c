/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on the owner's socket, either way. */
#include <stdint.h>

#include "wire/owner.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *in = json_loadb((const char *)data, size, 0, NULL);
	if (!in)
		return 0;
	struct owner_request q;
	struct owner_status s;
	struct diag diag;
	if (schema_decode(&owner_request_schema, in, SCHEMA_OPEN, NULL, &q, &diag) == 0)
		schema_done(&owner_request_schema, &q);
	if (schema_decode(&owner_status_schema, in, SCHEMA_OPEN, NULL, &s, &diag) == 0)
		schema_done(&owner_status_schema, &s);
	json_decref(in);
	return 0;
}
