/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the stream protocol: what decodes must encode to the same bytes. */
#include <stdint.h>
#include <stdlib.h>

#include "wire/registry_frame.h"
#include "wire/stream_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void stream(const uint8_t *data, size_t size)
{
	struct stream_frame f;
	uint32_t payload = 0;
	int used = stream_frame_decode(data, size, &f, &payload);

	if (used <= 0 || payload)
		return;
	uint8_t buf[STREAM_SMALL_MAX + 64];
	struct bytes_out o = { .data = buf, .cap = sizeof(buf) };

	if (stream_frame_encode(&f, &o) != 0 || o.len != (size_t)used || memcmp(buf, data, o.len))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct registry_frame r;
	static uint8_t buf[REGISTRY_FRAME_MAX + 64];
	int used;

	stream(data, size);
	used = registry_frame_decode(data, size, &r);
	if (used > 0) {
		struct bytes_out o = { .data = buf, .cap = sizeof(buf) };

		if (registry_frame_encode(&r, &o) != 0 || o.len != (size_t)used ||
		    memcmp(buf, data, o.len))
			abort();
	}
	return 0;
}
