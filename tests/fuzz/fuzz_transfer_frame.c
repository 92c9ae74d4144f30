/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "wire/transfer_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A whole frame: header, then the body by its type. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static union {
		struct transfer_hello hello;
		struct transfer_offer offer;
		struct transfer_need need;
		struct transfer_partial partial;
		struct transfer_ready ready;
		struct transfer_chunk chunk;
		struct transfer_progress progress;
		struct transfer_fail fail;
		uint64_t number;
		uint32_t index;
		uint8_t image[32];
	} u;
	struct transfer_header h;
	const uint8_t *body = data + TRANSFER_HEADER_LEN;
	size_t len = size - TRANSFER_HEADER_LEN;

	if (size < TRANSFER_HEADER_LEN || transfer_decode_header(data, &h, NULL) < 0)
		return 0;
	switch (h.type) {
	case TRANSFER_HELLO: (void)transfer_decode_hello(body, len, &u.hello, NULL); break;
	case TRANSFER_OFFER: (void)transfer_decode_offer(body, len, &u.offer, NULL); break;
	case TRANSFER_NEED: (void)transfer_decode_need(body, len, &u.need, NULL); break;
	case TRANSFER_PARTIAL: (void)transfer_decode_partial(body, len, &u.partial, NULL); break;
	case TRANSFER_READY: (void)transfer_decode_ready(body, len, &u.ready, NULL); break;
	case TRANSFER_CHUNK: (void)transfer_decode_chunk(body, len, &u.chunk, NULL); break;
	case TRANSFER_NAK: (void)transfer_decode_nak(body, len, &u.index, NULL); break;
	case TRANSFER_PROGRESS: (void)transfer_decode_progress(body, len, &u.progress, NULL); break;
	case TRANSFER_END: (void)transfer_decode_end(body, len, &u.number, NULL); break;
	case TRANSFER_COMMITTED: (void)transfer_decode_committed(body, len, u.image, NULL); break;
	case TRANSFER_FAIL: (void)transfer_decode_fail(body, len, &u.fail, NULL); break;
	default: break;
	}
	return 0;
}
