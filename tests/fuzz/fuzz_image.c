/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "image/delta.h"
#include "image/entry.h"
#include "image/manifest.h"
#include "image/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void entry(const uint8_t *data, size_t size)
{
	struct entry e;
	size_t pos = 0;

	if (entry_decode(data, size, &e, NULL) < 0)
		return;
	for (uint32_t i = 0; i < e.xattr_count; i++) {
		const char *name;
		const uint8_t *value;
		size_t name_len, value_len;

		entry_xattr_next(&e, &pos, &name, &name_len, &value, &value_len);
		if (name_len == 0 || value + value_len > data + size)
			abort();
	}
}

static void delta(const uint8_t *data, size_t size)
{
	static struct delta_coder *coder;
	static uint8_t base[20000], out[20000];

	if (!coder) {
		if (delta_coder_new(sizeof(out), &coder) < 0)
			return;
		for (size_t i = 0; i < sizeof(base); i++)
			base[i] = (uint8_t)(i * 37 >> 3);
	}
	for (size_t len = 5; len < sizeof(out); len = len * 3 + 1)
		(void)delta_decode(coder, data, size, base, sizeof(base) - len / 2, out, len);
}

/* The first byte chooses the decoder. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct manifest m;
	struct pack_idx x;

	if (size == 0)
		return 0;
	switch (data[0] & 3) {
	case 0:
		if (manifest_decode(data + 1, size - 1, &m, NULL) == 0)
			for (uint32_t i = 0; i < m.chunk_count; i++) {
				struct chunk c;

				manifest_chunk(&m, i, &c);
			}
		break;
	case 1: entry(data + 1, size - 1); break;
	case 2: (void)pack_idx_decode(data + 1, size - 1, &x, NULL); break;
	default: delta(data + 1, size - 1);
	}
	return 0;
}
