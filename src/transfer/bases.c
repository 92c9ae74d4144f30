/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/bases.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "image/entry.h"

struct slot {
	uint64_t key; /* 0 = empty */
	uint32_t chunk;
};

struct finder {
	const struct manifest *m;
	struct slot *slots; /* of the base; power of two */
	size_t mask;
	uint32_t *map;      /* NULL while the base is read */
	char path[ENTRY_PATH_MAX + 1];
	size_t path_len;
};

static uint64_t key_of(const struct finder *f, uint64_t file_offset)
{
	uint64_t key = XXH3_64bits_withSeed(f->path, f->path_len, file_offset);

	return key ? key : 1;
}

static void remember(struct finder *f, uint64_t key, uint32_t chunk)
{
	size_t i = key & f->mask;

	while (f->slots[i].key && f->slots[i].key != key)
		i = (i + 1) & f->mask;
	f->slots[i].key = key;
	f->slots[i].chunk = chunk;
}

static void look_up(struct finder *f, uint64_t key, uint32_t chunk)
{
	for (size_t i = key & f->mask; f->slots[i].key; i = (i + 1) & f->mask) {
		if (f->slots[i].key == key) {
			f->map[chunk] = f->slots[i].chunk;
			return;
		}
	}
}

static int visit(void *arg, const struct entry *e, struct diag *diag)
{
	struct finder *f = arg;

	if (e->type == ENTRY_FILE) {
		memcpy(f->path, e->path, e->path_len);
		f->path_len = e->path_len;
	}
	for (uint32_t i = 0; i < e->extent_count; i++) {
		struct entry_extent x;

		entry_extent_get(e, i, &x);
		while (x.len && x.chunk < f->m->data_chunk_count) {
			uint64_t in_chunk = manifest_chunk_len(f->m, x.chunk) - x.chunk_offset;
			uint64_t n = in_chunk < x.len ? in_chunk : x.len;

			/* Each chunk has one byte 0, so it is met once: the table cannot fill up. */
			if (x.chunk_offset == 0 && f->map)
				look_up(f, key_of(f, x.file_offset), x.chunk);
			else if (x.chunk_offset == 0)
				remember(f, key_of(f, x.file_offset), x.chunk);
			x.file_offset += n;
			x.len -= n;
			x.chunk++;
			x.chunk_offset = 0;
			if (in_chunk > UINT32_MAX)
				return -EBADMSG; /* an offset behind its chunk */
		}
	}
	return 0;
}

int bases_find(const struct image_reader *image, const struct image_reader *base,
	       const struct seal_keys *keys, uint32_t **ret, struct diag *diag)
{
	const struct manifest *m = image_reader_manifest(image);
	struct finder *f = calloc(1, sizeof(*f));
	CLEANUP(sealer_free_cleanup) struct sealer *sealer = NULL;
	CLEANUP_FREE uint32_t *map = malloc((size_t)m->chunk_count * sizeof(*map));
	size_t slots = 64;
	int r;

	if (!f || !map) {
		free(f);
		return -ENOMEM;
	}
	f->m = image_reader_manifest(base);
	while (slots < (size_t)f->m->data_chunk_count * 2)
		slots *= 2;
	f->mask = slots - 1;
	f->slots = calloc(slots, sizeof(*f->slots));
	memset(map, 0xff, (size_t)m->chunk_count * sizeof(*map));
	r = f->slots ? sealer_new(keys, &sealer) : -ENOMEM;
	if (r == 0)
		r = image_reader_entries(base, sealer, visit, f, diag);
	f->m = m;
	f->map = map;
	if (r == 0)
		r = image_reader_entries(image, sealer, visit, f, diag);
	free(f->slots);
	free(f);
	if (r == 0)
		*ret = TAKE(map);
	return r;
}
