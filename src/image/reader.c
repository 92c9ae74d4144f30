/* SPDX-License-Identifier: Apache-2.0 */
#include "image/reader.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "image/entry.h"
#include "image/store_internal.h"

struct image_reader {
	struct image img;
	struct packs *packs;
	int lock_fd;
};

int image_reader_open(struct image_store *s, const char *job, const char *digest,
		      struct image_reader **ret, struct diag *diag)
{
	CLEANUP(image_reader_close_cleanup) struct image_reader *r = calloc(1, sizeof(*r));
	char job_dir[PATH_MAX];
	int err;

	if (!r)
		return -ENOMEM;
	r->lock_fd = -1;
	err = store_job_dir(s, job, job_dir, diag);
	if (err < 0)
		return err;
	if (access(job_dir, F_OK) < 0)
		return diag_set(diag, -ENOENT, job_dir, "no image of this job here");
	err = job_lock(job_dir, false, &r->lock_fd, diag);
	if (err == 0)
		err = image_open(s, job, digest, &r->img, diag);
	if (err == 0)
		err = packs_open(job_dir, &r->packs, diag);
	if (err < 0)
		return err;
	*ret = TAKE(r);
	return 0;
}

void image_reader_close(struct image_reader *r)
{
	if (!r)
		return;
	packs_close(r->packs);
	image_close(&r->img);
	if (r->lock_fd >= 0)
		(void)close(r->lock_fd); /* the lock goes with it */
	free(r);
}

const struct manifest *image_reader_manifest(const struct image_reader *r)
{
	return &r->img.m;
}

const void *image_reader_bytes(const struct image_reader *r, size_t *ret_len)
{
	*ret_len = r->img.map_len;
	return r->img.map;
}

const uint8_t *image_reader_digest(const struct image_reader *r)
{
	return r->img.digest;
}

bool image_reader_has(const struct image_reader *r, uint32_t i)
{
	struct pack_place at;
	struct chunk c;

	manifest_chunk(&r->img.m, i, &c);
	return packs_find(r->packs, c.name, &at) == 0;
}

int image_reader_sealed(const struct image_reader *r, uint32_t i, void *buf, struct chunk *ret,
			struct diag *diag)
{
	struct chunk c;
	uint8_t check[SEAL_CHECK_LEN];
	struct pack_place at;
	int err;

	manifest_chunk(&r->img.m, i, &c);
	if (packs_find(r->packs, c.name, &at) < 0)
		return diag_set(diag, -ENOENT, r->img.job_dir, "chunk %u is not here", i);
	if (at.len != c.len)
		return diag_set(diag, -EBADMSG, r->img.job_dir, "chunk %u has another length", i);
	err = pack_read(&at, buf);
	if (err == -EBADMSG)
		return diag_set(diag, err, r->img.job_dir, "chunk %u is cut off", i);
	if (err < 0)
		return diag_set(diag, err, r->img.job_dir, "chunk %u: %s", i, strerror(-err));
	seal_check(buf, c.len, check);
	if (memcmp(check, c.check, SEAL_CHECK_LEN) != 0)
		return diag_set(diag, -EBADMSG, r->img.job_dir, "chunk %u is damaged", i);
	if (ret)
		*ret = c;
	return 0;
}

int image_reader_plain(const struct image_reader *r, uint32_t i, struct sealer *sealer, void *buf,
		       struct chunk *ret, struct diag *diag)
{
	struct chunk c;
	int err = image_reader_sealed(r, i, buf, &c, diag);

	if (err == 0)
		err = sealer_open(sealer, c.name, c.tag, buf, c.len, buf);
	if (err == -EBADMSG)
		return diag_set(diag, err, r->img.job_dir, "chunk %u does not open: forged or damaged",
				i);
	if (err == 0 && ret)
		*ret = c;
	return err;
}

int image_reader_key_check(const struct image_reader *r, const struct seal_keys *k,
			   struct diag *diag)
{
	if (memcmp(r->img.m.key_check, k->key_check, SEAL_KEY_CHECK_LEN) != 0)
		return diag_set(diag, -EKEYREJECTED, r->img.job_dir,
				"the image is sealed with another key");
	return 0;
}

int image_reader_entries(const struct image_reader *r, struct sealer *sealer, entry_fn fn,
			 void *arg, struct diag *diag)
{
	const struct manifest *m = &r->img.m;
	CLEANUP_STRBUF struct strbuf buf = STRBUF_INIT;
	CLEANUP_FREE uint8_t *chunk = aligned_alloc(PACK_ALIGN, m->chunk_size);
	uint64_t total = 0, entries = 0;

	if (!chunk)
		return -ENOMEM;
	for (uint32_t i = m->data_chunk_count; i < m->chunk_count; i++) {
		struct chunk c;
		size_t at = 0;
		int err = image_reader_plain(r, i, sealer, chunk, &c, diag);

		if (err == 0)
			err = strbuf_append(&buf, chunk, c.len);
		if (err < 0)
			return err;
		total += c.len;
		while (buf.len - at >= 4) {
			int64_t len = entry_record_len((const uint8_t *)buf.data + at);
			struct entry e;

			if (len < 0)
				return diag_set(diag, -EBADMSG, r->img.job_dir, "file table: record length");
			if ((uint64_t)len > buf.len - at)
				break;
			err = entry_decode((const uint8_t *)buf.data + at, (size_t)len, &e, diag);
			if (err == 0)
				err = fn(arg, &e, diag);
			if (err < 0)
				return err;
			entries += e.type != ENTRY_MORE;
			at += (size_t)len;
		}
		strbuf_consume(&buf, at);
	}
	if (buf.len || total != m->table_len || entries != m->files)
		return diag_set(diag, -EBADMSG, r->img.job_dir, "the file table is incomplete");
	return 0;
}
