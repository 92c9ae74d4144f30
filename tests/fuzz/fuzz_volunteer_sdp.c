/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/sdp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
/* What is read must be written and read again as the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct sdp s, again;
	struct diag diag = DIAG_INIT;
	struct strbuf out = STRBUF_INIT;
	if (sdp_parse((const char *)data, len, &s, &diag) == 0) {
		CHECK(s.candidates_count <= SDP_CANDIDATES_MAX);
		CHECK(sdp_format(&s, &out) == 0);
		CHECK(sdp_parse(out.data, out.len, &again, &diag) == 0);
		CHECK(strcmp(s.ufrag, again.ufrag) == 0 && strcmp(s.pwd, again.pwd) == 0);
		CHECK(memcmp(s.fingerprint, again.fingerprint, sizeof(s.fingerprint)) == 0);
		CHECK(s.candidates_count == again.candidates_count);
	}
	strbuf_done(&out);
	return 0;
}
