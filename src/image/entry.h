/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of files: a stream of records, one per entry, sorted so that a
 * folder comes before what is in it. Pure encode and decode; the format is in
 * docs/protocol.md. Records come from other machines: a decoder trusts nothing.
 */
#ifndef RECLAIM_IMAGE_ENTRY_H
#define RECLAIM_IMAGE_ENTRY_H

#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/strbuf.h"

#define ENTRY_HEADER_LEN 56
#define ENTRY_RECORD_MAX (256u << 10) /* longer lists of extents go on in ENTRY_MORE records */
#define ENTRY_PATH_MAX 4095
#define ENTRY_EXTENTS_MAX 4096
#define ENTRY_XATTRS_MAX 64

enum entry_type {
	ENTRY_DIR = 1,
	ENTRY_FILE,
	ENTRY_SYMLINK,
	ENTRY_HARDLINK, /* target: path of an entry before it */
	ENTRY_FIFO,
	ENTRY_MORE,     /* more extents of the file before it */
	ENTRY_TYPE_COUNT,
};

/* Bytes of a file that lie in consecutive chunks: from chunk_offset in the first, from 0 in the
 * following. What no extent covers is a hole. */
struct entry_extent {
	uint64_t file_offset, len;
	uint32_t chunk, chunk_offset;
};
#define ENTRY_EXTENT_LEN 24

struct entry {
	enum entry_type type;
	uint32_t mode; /* permission bits, setuid, setgid, sticky */
	uint32_t uid, gid;
	int64_t mtime_s;
	uint32_t mtime_ns;
	uint64_t size;
	const char *path;   /* relative, plain components; "" = the image's root. NUL-terminated copies
			     * are the caller's: these point into the record */
	size_t path_len;
	const char *target; /* symlink text or hardlink path */
	size_t target_len;
	uint32_t xattr_count, extent_count;
	const uint8_t *xattrs, *extents; /* encoded, checked; walk with the functions below */
};

/* The length of the whole record that starts at buf, once 4 bytes are there; -EBADMSG if absurd. */
int64_t entry_record_len(const uint8_t buf[4]);
/* Takes one whole record. 0 or -EBADMSG with diag. */
int entry_decode(const uint8_t *rec, size_t len, struct entry *ret, struct diag *diag);
void entry_extent_get(const struct entry *e, uint32_t i, struct entry_extent *ret);
/* Iterates: *pos from 0. */
void entry_xattr_next(const struct entry *e, size_t *pos, const char **ret_name,
		      size_t *ret_name_len, const uint8_t **ret_value, size_t *ret_value_len);

/* Appends a record. xattrs: encoded by entry_xattr_add. 0, -ENOMEM, -E2BIG. */
int entry_encode(const struct entry *e, const struct strbuf *xattrs,
		 const struct entry_extent *extents, struct strbuf *out);
int entry_xattr_add(struct strbuf *xattrs, const char *name, const void *value, size_t len);

#endif
