/* SPDX-License-Identifier: Apache-2.0 */
/* A job file or script as a user gives it; what is accepted must survive the control plane. */
#include <stdint.h>
#include <stdlib.h>

#include "job/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct job_warnings warnings = VEC_INIT;
	struct diag diag = DIAG_INIT;
	struct job_spec spec, back;

	if (job_spec_parse((const char *)data, size, "fuzz", &spec, &warnings, &diag) == 0) {
		json_t *obj = job_spec_to_json(&spec);

		if (!obj || job_spec_from_json(obj, &back, &diag) < 0)
			abort();
		json_decref(obj);
		job_spec_done(&back);
		job_spec_done(&spec);
	} else if (!diag.what[0]) {
		abort(); /* refused without a word */
	}
	VEC_DONE(&warnings);
	return 0;
}
