/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/file.h"
#include "base/map.h"
#include "image/reader.h"
#include "image/store_internal.h"

/* Rewrites the indexes of the job without the named chunks. */
static int drop_chunks(const char *job_dir, const struct map *bad)
{
	CLEANUP_PACKS struct packs *packs = NULL;
	int r = packs_open(job_dir, &packs, NULL);

	for (size_t i = 0; r == 0 && i < packs_count(packs); i++) {
		const struct pack_idx *x = packs_idx(packs, i);
		CLEANUP_FREE struct pack_row *rows = calloc((size_t)x->count + 1, sizeof(*rows));
		char path[PATH_MAX];
		uint32_t n = 0;

		if (!rows)
			return -ENOMEM;
		for (uint32_t k = 0; k < x->count; k++) {
			pack_idx_row(x, k, &rows[n]);
			n += map_get(bad, rows[n].name, SEAL_NAME_LEN) == NULL;
		}
		if (n == x->count)
			continue;
		r = path_format(path, sizeof(path), "%s/packs/%s.idx", job_dir, packs_name(packs, i));
		if (r == 0)
			r = pack_idx_write(path, rows, n, x->pack_len, true);
	}
	return r;
}

struct verifier {
	struct image_reader *reader;
	struct sealer *sealer; /* or NULL */
	uint8_t *buf;
	struct map *bad;
	image_cancel *cancel;
	struct image_damage damage;
};

static int verify_chunks(struct verifier *v, struct diag *diag)
{
	const struct manifest *m = image_reader_manifest(v->reader);

	for (uint32_t i = 0; i < m->chunk_count; i++) {
		struct chunk c;
		int r;

		if (image_cancelled(v->cancel))
			return diag_set(diag, -ECANCELED, "", "verifying was cancelled");
		r = v->sealer ? image_reader_plain(v->reader, i, v->sealer, v->buf, &c, diag) :
				image_reader_sealed(v->reader, i, v->buf, &c, diag);
		v->damage.chunks_checked++;
		if (r == -ENOENT) {
			v->damage.chunks_missing++;
		} else if (r == -EBADMSG) {
			manifest_chunk(m, i, &c);
			v->damage.chunks_bad++;
			r = map_set(v->bad, c.name, SEAL_NAME_LEN, v, NULL);
			if (r < 0)
				return r;
		} else if (r < 0) {
			return r;
		}
	}
	return 0;
}

static int ignore_entry(void *arg, const struct entry *e, struct diag *diag)
{
	return 0;
}

int image_verify(struct image_store *s, const char *job, const char *digest, const uint8_t *key,
		 unsigned flags, image_cancel *cancel, struct image_damage *ret_damage,
		 struct diag *diag)
{
	CLEANUP_IMAGE_READER struct image_reader *reader = NULL;
	CLEANUP_SEALER struct sealer *sealer = NULL;
	CLEANUP_FREE uint8_t *buf = NULL;
	struct verifier v = { .cancel = cancel };
	struct seal_keys keys;
	char job_dir[PATH_MAX];
	int r = store_job_dir(s, job, job_dir, diag);

	if (r == 0)
		r = image_reader_open(s, job, digest, &reader, diag);
	if (r == 0 && key) {
		r = seal_keys_derive(key, &keys);
		if (r == 0)
			r = image_reader_key_check(reader, &keys, diag);
		if (r == 0)
			r = sealer_new(&keys, &sealer);
		explicit_bzero(&keys, sizeof(keys));
	}
	if (r == 0)
		r = map_new(&v.bad);
	if (r < 0)
		return r;
	v.reader = reader;
	v.sealer = sealer;
	v.buf = buf = aligned_alloc(PACK_ALIGN, image_reader_manifest(reader)->chunk_size);
	r = buf ? verify_chunks(&v, diag) : -ENOMEM;
	if (r == 0 && ret_damage)
		*ret_damage = v.damage;
	if (r == 0 && v.damage.chunks_bad && (flags & IMAGE_VERIFY_DROP_BAD))
		r = drop_chunks(job_dir, v.bad);
	map_free(v.bad);
	if (r < 0)
		return r;
	if (v.damage.chunks_bad || v.damage.chunks_missing)
		return diag_set(diag, -EBADMSG, job, "%llu chunks damaged, %llu missing of %llu",
				(unsigned long long)v.damage.chunks_bad,
				(unsigned long long)v.damage.chunks_missing,
				(unsigned long long)v.damage.chunks_checked);
	return sealer ? image_reader_entries(reader, sealer, ignore_entry, NULL, diag) : 0;
}
