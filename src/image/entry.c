/* SPDX-License-Identifier: Apache-2.0 */
#include "image/entry.h"

#include <errno.h>
#include <string.h>

#include "base/le.h"

static int bad(struct diag *diag, const char *what)
{
	return diag_set(diag, -EBADMSG, "file table", "%s", what);
}

int64_t entry_record_len(const uint8_t buf[4])
{
	uint32_t len = le32_get(buf);

	if (len < ENTRY_HEADER_LEN || len > ENTRY_RECORD_MAX)
		return -EBADMSG;
	return len;
}

/* Relative, no empty component, ".", ".." or NUL. */
static bool path_is_safe(const char *p, size_t len)
{
	size_t start = 0;

	if (len > ENTRY_PATH_MAX || memchr(p, 0, len))
		return false;
	if (len == 0)
		return true;
	for (size_t i = 0; i <= len; i++) {
		size_t n = i - start;

		if (i < len && p[i] != '/')
			continue;
		if (n == 0 || n > 255 || (n == 1 && p[start] == '.') ||
		    (n == 2 && p[start] == '.' && p[start + 1] == '.'))
			return false;
		start = i + 1;
	}
	return true;
}

static int check_xattrs(const struct entry *e, size_t room, size_t *ret_len, struct diag *diag)
{
	size_t at = 0;

	if (e->xattr_count > ENTRY_XATTRS_MAX)
		return bad(diag, "too many extended attributes");
	for (uint32_t i = 0; i < e->xattr_count; i++) {
		size_t name_len, value_len;

		if (room - at < 8)
			return bad(diag, "extended attributes cut off");
		name_len = le32_get(e->xattrs + at);
		value_len = le32_get(e->xattrs + at + 4);
		at += 8;
		if (name_len == 0 || name_len > 255 || value_len > 65536 ||
		    room - at < name_len + value_len || memchr(e->xattrs + at, 0, name_len))
			return bad(diag, "extended attribute out of bounds");
		at += name_len + value_len;
	}
	*ret_len = at;
	return 0;
}

static int check_extents(const struct entry *e, struct diag *diag)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < e->extent_count; i++) {
		struct entry_extent x;

		entry_extent_get(e, i, &x);
		if (x.len == 0 || x.file_offset < at || x.file_offset > e->size ||
		    x.len > e->size - x.file_offset)
			return bad(diag, "extents overlap or leave the file");
		at = x.file_offset + x.len;
	}
	return 0;
}

int entry_decode(const uint8_t *rec, size_t len, struct entry *ret, struct diag *diag)
{
	struct entry e = { 0 };
	size_t at = ENTRY_HEADER_LEN, xattrs_len = 0;
	int r;

	if (len < ENTRY_HEADER_LEN || entry_record_len(rec) != (int64_t)len)
		return bad(diag, "record length");
	if (rec[4] == 0 || rec[4] >= ENTRY_TYPE_COUNT || rec[5])
		return bad(diag, "kind of entry unknown");
	e.type = rec[4];
	e.path_len = le16_get(rec + 6);
	e.mode = le32_get(rec + 8);
	e.uid = le32_get(rec + 12);
	e.gid = le32_get(rec + 16);
	e.mtime_ns = le32_get(rec + 20);
	e.mtime_s = (int64_t)le64_get(rec + 24);
	e.size = le64_get(rec + 32);
	e.target_len = le32_get(rec + 40);
	e.xattr_count = le32_get(rec + 44);
	e.extent_count = le32_get(rec + 48);
	if (e.mode > 07777 || e.mtime_ns >= 1000000000 || e.size > INT64_MAX || le32_get(rec + 52))
		return bad(diag, "mode, time or size out of bounds");
	if (e.target_len > ENTRY_PATH_MAX || e.extent_count > ENTRY_EXTENTS_MAX ||
	    len - at < e.path_len + e.target_len)
		return bad(diag, "counts out of bounds");
	e.path = (const char *)rec + at;
	at += e.path_len;
	e.target = (const char *)rec + at;
	at += e.target_len;
	if (!path_is_safe(e.path, e.path_len) ||
	    (e.path_len == 0 && e.type != ENTRY_DIR && e.type != ENTRY_MORE))
		return bad(diag, "path is not a plain relative one");
	e.xattrs = rec + at;
	r = check_xattrs(&e, len - at, &xattrs_len, diag);
	if (r < 0)
		return r;
	at += xattrs_len;
	if (len - at != (size_t)e.extent_count * ENTRY_EXTENT_LEN)
		return bad(diag, "record length does not fit its counts");
	e.extents = rec + at;
	r = check_extents(&e, diag);
	if (r < 0)
		return r;
	if (e.extent_count && e.type != ENTRY_FILE && e.type != ENTRY_MORE)
		return bad(diag, "extents of something that is not a file");
	if (e.type == ENTRY_HARDLINK && (e.target_len == 0 || !path_is_safe(e.target, e.target_len)))
		return bad(diag, "hard link to a path that is not a plain relative one");
	if (e.type == ENTRY_SYMLINK && (e.target_len == 0 || memchr(e.target, 0, e.target_len)))
		return bad(diag, "symbolic link without a target");
	*ret = e;
	return 0;
}

void entry_extent_get(const struct entry *e, uint32_t i, struct entry_extent *ret)
{
	const uint8_t *p = e->extents + (size_t)i * ENTRY_EXTENT_LEN;

	ret->file_offset = le64_get(p);
	ret->len = le64_get(p + 8);
	ret->chunk = le32_get(p + 16);
	ret->chunk_offset = le32_get(p + 20);
}

void entry_xattr_next(const struct entry *e, size_t *pos, const char **ret_name,
		      size_t *ret_name_len, const uint8_t **ret_value, size_t *ret_value_len)
{
	const uint8_t *p = e->xattrs + *pos;

	*ret_name_len = le32_get(p);
	*ret_value_len = le32_get(p + 4);
	*ret_name = (const char *)p + 8;
	*ret_value = p + 8 + *ret_name_len;
	*pos += 8 + *ret_name_len + *ret_value_len;
}

int entry_xattr_add(struct strbuf *xattrs, const char *name, const void *value, size_t len)
{
	uint8_t head[8];

	le32_put(head, (uint32_t)strlen(name));
	le32_put(head + 4, (uint32_t)len);
	strbuf_append(xattrs, head, sizeof(head));
	strbuf_add(xattrs, name);
	return strbuf_append(xattrs, value, len);
}

int entry_encode(const struct entry *e, const struct strbuf *xattrs,
		 const struct entry_extent *extents, struct strbuf *out)
{
	uint8_t head[ENTRY_HEADER_LEN] = { 0 };
	size_t xattrs_len = xattrs ? xattrs->len : 0;
	size_t len = ENTRY_HEADER_LEN + e->path_len + e->target_len + xattrs_len +
		     (size_t)e->extent_count * ENTRY_EXTENT_LEN;

	if (len > ENTRY_RECORD_MAX || e->path_len > ENTRY_PATH_MAX)
		return -E2BIG;
	le32_put(head, (uint32_t)len);
	head[4] = (uint8_t)e->type;
	le16_put(head + 6, (uint16_t)e->path_len);
	le32_put(head + 8, e->mode);
	le32_put(head + 12, e->uid);
	le32_put(head + 16, e->gid);
	le32_put(head + 20, e->mtime_ns);
	le64_put(head + 24, (uint64_t)e->mtime_s);
	le64_put(head + 32, e->size);
	le32_put(head + 40, (uint32_t)e->target_len);
	le32_put(head + 44, e->xattr_count);
	le32_put(head + 48, e->extent_count);
	strbuf_append(out, head, sizeof(head));
	strbuf_append(out, e->path, e->path_len);
	strbuf_append(out, e->target, e->target_len);
	if (xattrs_len)
		strbuf_append(out, xattrs->data, xattrs_len);
	for (uint32_t i = 0; i < e->extent_count; i++) {
		uint8_t x[ENTRY_EXTENT_LEN];

		le64_put(x, extents[i].file_offset);
		le64_put(x + 8, extents[i].len);
		le32_put(x + 16, extents[i].chunk);
		le32_put(x + 20, extents[i].chunk_offset);
		strbuf_append(out, x, sizeof(x));
	}
	return out->failed ? -ENOMEM : 0;
}
