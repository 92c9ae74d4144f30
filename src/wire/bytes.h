/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian cursors over bytes, for the binary frames. Failure is sticky,
 * so a codec is a straight list of fields and one check at its end.
 */
#ifndef RECLAIM_WIRE_BYTES_H
#define RECLAIM_WIRE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes_out {
	uint8_t *data;
	size_t len;
	size_t cap;
	bool failed; /* did not fit; what is there is a prefix */
};

struct bytes_in {
	const uint8_t *data;
	size_t len;
	size_t pos;
	bool failed; /* ended early; later reads give zeros */
};

static inline void store_le16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

static inline void store_le32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static inline void store_le64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint16_t load_le16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t load_le32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t load_le64(const uint8_t *p)
{
	return (uint64_t)load_le32(p) | (uint64_t)load_le32(p + 4) << 32;
}

static inline uint8_t *bytes_out_grab(struct bytes_out *o, size_t n)
{
	if (o->failed || o->cap - o->len < n) {
		o->failed = true;
		return NULL;
	}
	uint8_t *p = o->data + o->len;
	o->len += n;
	return p;
}

static inline void bytes_out_raw(struct bytes_out *o, const void *bytes, size_t n)
{
	uint8_t *p = bytes_out_grab(o, n);

	if (p && n)
		memcpy(p, bytes, n);
}

static inline void bytes_out_u8(struct bytes_out *o, uint8_t v)
{
	bytes_out_raw(o, &v, 1);
}

static inline void bytes_out_u16(struct bytes_out *o, uint16_t v)
{
	uint8_t *p = bytes_out_grab(o, 2);

	if (p)
		store_le16(p, v);
}

static inline void bytes_out_u32(struct bytes_out *o, uint32_t v)
{
	uint8_t *p = bytes_out_grab(o, 4);

	if (p)
		store_le32(p, v);
}

static inline void bytes_out_u64(struct bytes_out *o, uint64_t v)
{
	uint8_t *p = bytes_out_grab(o, 8);

	if (p)
		store_le64(p, v);
}

/* u32 length, then the bytes. */
static inline void bytes_out_blob(struct bytes_out *o, const void *bytes, size_t n)
{
	bytes_out_u32(o, (uint32_t)n);
	bytes_out_raw(o, bytes, n);
}

static inline const uint8_t *bytes_in_grab(struct bytes_in *in, size_t n)
{
	if (in->failed || in->len - in->pos < n) {
		in->failed = true;
		return NULL;
	}
	const uint8_t *p = in->data + in->pos;
	in->pos += n;
	return p;
}

static inline uint8_t bytes_in_u8(struct bytes_in *in)
{
	const uint8_t *p = bytes_in_grab(in, 1);

	return p ? *p : 0;
}

static inline uint16_t bytes_in_u16(struct bytes_in *in)
{
	const uint8_t *p = bytes_in_grab(in, 2);

	return p ? load_le16(p) : 0;
}

static inline uint32_t bytes_in_u32(struct bytes_in *in)
{
	const uint8_t *p = bytes_in_grab(in, 4);

	return p ? load_le32(p) : 0;
}

static inline uint64_t bytes_in_u64(struct bytes_in *in)
{
	const uint8_t *p = bytes_in_grab(in, 8);

	return p ? load_le64(p) : 0;
}

/* A view into the input; NULL with *ret_len 0 when failed. */
static inline const uint8_t *bytes_in_blob(struct bytes_in *in, size_t max, size_t *ret_len)
{
	uint32_t n = bytes_in_u32(in);
	const uint8_t *p = n <= max ? bytes_in_grab(in, n) : NULL;

	if (!p)
		in->failed = true;
	*ret_len = p ? n : 0;
	return p;
}

static inline void bytes_in_raw(struct bytes_in *in, void *ret, size_t n)
{
	const uint8_t *p = bytes_in_grab(in, n);

	if (p)
		memcpy(ret, p, n);
	else
		memset(ret, 0, n);
}

#endif
