/* SPDX-License-Identifier: Apache-2.0 */
#include "image/manifest.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/le.h"

static const char manifest_magic[8] = "RCLIMG1\n";

static int bad(struct diag *diag, const char *what)
{
	return diag_set(diag, -EBADMSG, "manifest", "%s", what);
}

static bool all_zero(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

int manifest_decode(const void *buf, size_t len, struct manifest *ret, struct diag *diag)
{
	const uint8_t *p = buf;
	struct manifest m = { 0 };
	uint64_t need;

	if (len < MANIFEST_HEADER_LEN || memcmp(p, manifest_magic, 8) != 0)
		return bad(diag, "not an image manifest of this version");
	if (le32_get(p + 8) != MANIFEST_HEADER_LEN || le32_get(p + 12) != 0 ||
	    !all_zero(p + 192, 64))
		return bad(diag, "header of another version");
	memcpy(m.job, p + 16, IMAGE_JOB_MAX);
	if (!name_is_plain(m.job) || !all_zero(p + 16 + strlen(m.job), IMAGE_JOB_MAX - strlen(m.job)))
		return bad(diag, "the job id is not a plain name");
	m.epoch = le64_get(p + 80);
	m.seq = le64_get(p + 88);
	m.created_wall_ms = le64_get(p + 96);
	memcpy(m.previous, p + 104, IMAGE_DIGEST_LEN);
	m.chunk_size = le32_get(p + 136);
	m.chunk_count = le32_get(p + 140);
	m.data_chunk_count = le32_get(p + 144);
	m.meta_len = le32_get(p + 148);
	m.bytes = le64_get(p + 152);
	m.files = le64_get(p + 160);
	m.table_len = le64_get(p + 168);
	memcpy(m.key_check, p + 176, SEAL_KEY_CHECK_LEN);
	if (m.chunk_size < IMAGE_CHUNK_SIZE_MIN || m.chunk_size > IMAGE_CHUNK_SIZE_MAX ||
	    (m.chunk_size & (m.chunk_size - 1)))
		return bad(diag, "chunk size out of bounds");
	if (m.chunk_count > MANIFEST_CHUNKS_MAX || m.data_chunk_count >= m.chunk_count)
		return bad(diag, "chunk counts out of bounds");
	if (m.meta_len > IMAGE_META_MAX)
		return bad(diag, "attached JSON too long");
	need = (uint64_t)MANIFEST_HEADER_LEN + manifest_meta_padded(m.meta_len) +
	       (uint64_t)m.chunk_count * MANIFEST_CHUNK_LEN;
	if (need != len)
		return bad(diag, "length does not fit its counts");
	m.meta = (const char *)p + MANIFEST_HEADER_LEN;
	m.chunks = p + MANIFEST_HEADER_LEN + manifest_meta_padded(m.meta_len);
	for (uint32_t i = 0; i < m.chunk_count; i++) {
		uint32_t n = manifest_chunk_len(&m, i);

		if (n == 0 || n > m.chunk_size)
			return bad(diag, "length of a chunk out of bounds");
	}
	*ret = m;
	return 0;
}

void manifest_chunk(const struct manifest *m, uint32_t i, struct chunk *ret)
{
	const uint8_t *p = m->chunks + (size_t)i * MANIFEST_CHUNK_LEN;

	CHECK(i < m->chunk_count);
	memcpy(ret->name, p, SEAL_NAME_LEN);
	memcpy(ret->tag, p + 16, SEAL_TAG_LEN);
	memcpy(ret->check, p + 32, SEAL_CHECK_LEN);
	ret->len = le32_get(p + 40);
}

uint32_t manifest_chunk_len(const struct manifest *m, uint32_t i)
{
	return le32_get(m->chunks + (size_t)i * MANIFEST_CHUNK_LEN + 40);
}

void manifest_encode_header(const struct manifest *m, uint8_t ret[MANIFEST_HEADER_LEN])
{
	memset(ret, 0, MANIFEST_HEADER_LEN);
	memcpy(ret, manifest_magic, 8);
	le32_put(ret + 8, MANIFEST_HEADER_LEN);
	memcpy(ret + 16, m->job, strlen(m->job));
	le64_put(ret + 80, m->epoch);
	le64_put(ret + 88, m->seq);
	le64_put(ret + 96, m->created_wall_ms);
	memcpy(ret + 104, m->previous, IMAGE_DIGEST_LEN);
	le32_put(ret + 136, m->chunk_size);
	le32_put(ret + 140, m->chunk_count);
	le32_put(ret + 144, m->data_chunk_count);
	le32_put(ret + 148, m->meta_len);
	le64_put(ret + 152, m->bytes);
	le64_put(ret + 160, m->files);
	le64_put(ret + 168, m->table_len);
	memcpy(ret + 176, m->key_check, SEAL_KEY_CHECK_LEN);
}

void manifest_encode_chunk(const struct chunk *c, uint8_t ret[MANIFEST_CHUNK_LEN])
{
	memcpy(ret, c->name, SEAL_NAME_LEN);
	memcpy(ret + 16, c->tag, SEAL_TAG_LEN);
	memcpy(ret + 32, c->check, SEAL_CHECK_LEN);
	le32_put(ret + 40, c->len);
	le32_put(ret + 44, 0);
}

void image_info_fill(const struct manifest *m, const uint8_t digest[IMAGE_DIGEST_LEN],
		     struct image_info *ret)
{
	memset(ret, 0, sizeof(*ret));
	hex_encode(digest, IMAGE_DIGEST_LEN, ret->digest);
	if (!all_zero(m->previous, IMAGE_DIGEST_LEN))
		hex_encode(m->previous, IMAGE_DIGEST_LEN, ret->previous);
	memcpy(ret->job, m->job, sizeof(ret->job));
	ret->epoch = m->epoch;
	ret->seq = m->seq;
	ret->created_wall_ms = m->created_wall_ms;
	ret->files = m->files;
	ret->bytes = m->bytes;
	ret->chunks = m->chunk_count;
	ret->chunk_size = m->chunk_size;
	for (uint32_t i = 0; i < m->chunk_count; i++)
		ret->stored_bytes += manifest_chunk_len(m, i);
}
