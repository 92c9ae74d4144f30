/* SPDX-License-Identifier: Apache-2.0 */
/* Manifest, file table, pack index: round trips, and every kind of lie is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/le.h"
#include "base/parse.h"
#include "image/entry.h"
#include "image/manifest.h"
#include "image/pack.h"

static size_t manifest_sample(uint8_t *buf)
{
	struct manifest m = { .epoch = 7, .seq = 3, .created_wall_ms = 1750000000000, .chunk_size = 1 << 20,
			      .chunk_count = 2, .data_chunk_count = 1, .meta_len = 11, .bytes = 5,
			      .files = 2, .table_len = 130 };
	struct chunk c = { .len = 5 };

	strcpy(m.job, "job-1");
	for (int i = 0; i < 16; i++) {
		m.key_check[i] = (uint8_t)i;
		c.name[i] = (uint8_t)(0x10 + i);
		c.tag[i] = (uint8_t)(0x20 + i);
	}
	manifest_encode_header(&m, buf);
	memset(buf + 256, 0, 16);
	memcpy(buf + 256, "{\"offset\":9}", 11);
	manifest_encode_chunk(&c, buf + 272);
	c.len = 130;
	manifest_encode_chunk(&c, buf + 320);
	return 368;
}

static void test_manifest_round_trip(void **state)
{
	uint8_t buf[512];
	size_t len = manifest_sample(buf);
	struct manifest m;
	struct chunk c;

	assert_int_equal(manifest_decode(buf, len, &m, NULL), 0);
	assert_string_equal(m.job, "job-1");
	assert_int_equal(m.epoch, 7);
	assert_int_equal(m.seq, 3);
	assert_int_equal(m.chunk_count, 2);
	assert_memory_equal(m.meta, "{\"offset\":9", 11);
	manifest_chunk(&m, 1, &c);
	assert_int_equal(c.len, 130);
	assert_int_equal(c.name[0], 0x10);
}

static void test_manifest_refuses(void **state)
{
	static const struct {
		size_t at;
		uint32_t value;
	} lies[] = {
		{ 0, 0 }, { 8, 255 }, { 12, 1 }, { 16, 0x2f2e2e }, { 136, 3 }, { 136, 1 << 23 },
		{ 140, 3 }, { 140, 0xffffffff }, { 144, 2 }, { 148, 0xffffffff }, { 200, 1 },
		{ 312, 0 }, { 312, (1 << 20) + 1 },
	};
	uint8_t buf[512];
	struct manifest m;

	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct diag d = DIAG_INIT;
		size_t len = manifest_sample(buf);

		le32_put(buf + lies[i].at, lies[i].value);
		assert_int_equal(manifest_decode(buf, len, &m, &d), -EBADMSG);
		assert_true(d.what[0]);
	}
	for (size_t len = manifest_sample(buf); len--;)
		assert_int_equal(manifest_decode(buf, len, &m, NULL), -EBADMSG);
}

static void test_entry_round_trip(void **state)
{
	struct strbuf xattrs = STRBUF_INIT, out = STRBUF_INIT;
	struct entry_extent x[2] = { { 0, 10, 4, 100 }, { 4096, 5000000, 5, 0 } }, y;
	struct entry e = { .type = ENTRY_FILE, .mode = 04755, .uid = 1000, .gid = 7, .mtime_s = -5,
			   .mtime_ns = 999999999, .size = 6000000, .path = "a/b c", .path_len = 5,
			   .target = "", .xattr_count = 1, .extent_count = 2 }, d;
	const char *name;
	const uint8_t *value;
	size_t pos = 0, name_len, value_len;

	assert_int_equal(entry_xattr_add(&xattrs, "user.x", "\0v", 2), 0);
	assert_int_equal(entry_encode(&e, &xattrs, x, &out), 0);
	assert_int_equal(entry_record_len((uint8_t *)out.data), out.len);
	assert_int_equal(entry_decode((uint8_t *)out.data, out.len, &d, NULL), 0);
	assert_int_equal(d.mode, 04755);
	assert_int_equal(d.mtime_s, -5);
	assert_memory_equal(d.path, "a/b c", 5);
	entry_extent_get(&d, 1, &y);
	assert_memory_equal(&y, &x[1], sizeof(y));
	entry_xattr_next(&d, &pos, &name, &name_len, &value, &value_len);
	assert_int_equal(name_len, 6);
	assert_memory_equal(value, "\0v", 2);
	for (size_t len = 0; len < out.len; len++)
		assert_int_equal(entry_decode((uint8_t *)out.data, len, &d, NULL), -EBADMSG);
	strbuf_done(&xattrs);
	strbuf_done(&out);
}

static void test_entry_refuses_paths(void **state)
{
	static const char *const paths[] = { "/etc/passwd", "..", "a/../b", "a//b", "a/", ".", "./a", "a/." };

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		struct strbuf out = STRBUF_INIT;
		struct entry e = { .type = ENTRY_FILE, .path = paths[i], .path_len = strlen(paths[i]),
				   .target = "" }, d;

		assert_int_equal(entry_encode(&e, NULL, NULL, &out), 0);
		assert_int_equal(entry_decode((uint8_t *)out.data, out.len, &d, NULL), -EBADMSG);
		e.type = ENTRY_HARDLINK;
		e.target = paths[i];
		e.target_len = strlen(paths[i]);
		e.path = "ok";
		e.path_len = 2;
		strbuf_clear(&out);
		assert_int_equal(entry_encode(&e, NULL, NULL, &out), 0);
		assert_int_equal(entry_decode((uint8_t *)out.data, out.len, &d, NULL), -EBADMSG);
		strbuf_done(&out);
	}
}

static void test_pack_index(void **state)
{
	struct pack_row rows[3] = { { .offset = 0, .len = 100 }, { .offset = 4096, .len = 4096 },
				    { .offset = 8192, .len = 1 } }, got;
	char path[] = "/tmp/reclaim-idx-test-XXXXXX", *text = NULL;
	size_t len = 0;
	struct pack_idx x;
	FILE *f;
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	rows[0].name[0] = 9;
	rows[1].name[0] = 3;
	rows[2].name[0] = 5;
	assert_int_equal(pack_idx_write(path, rows, 3, 12288, false), 0);
	f = fopen(path, "rb");
	text = malloc(1000);
	len = fread(text, 1, 1000, f);
	fclose(f);
	unlink(path);
	assert_int_equal(pack_idx_decode(text, len, &x, NULL), 0);
	assert_int_equal(x.count, 3);
	uint8_t name[16] = { 5 };
	int64_t i = pack_idx_find(&x, name);
	assert_int_equal(i, 1);
	pack_idx_row(&x, 1, &got);
	assert_int_equal(got.offset, 8192);
	name[0] = 6;
	assert_int_equal(pack_idx_find(&x, name), -1);
	for (size_t at = 0; at < len; at++) {
		text[at] ^= 1;
		assert_int_equal(pack_idx_decode(text, len, &x, NULL), -EBADMSG);
		text[at] ^= 1;
	}
	free(text);
}

/* The vector of docs/protocol.md: whoever changes names or seals changes the format. */
static void test_seal_vector(void **state)
{
	uint8_t key[32], name[16], tag[16], check[8], buf[5];
	struct seal_keys k;
	struct sealer *s;
	char hex[33];

	for (int i = 0; i < 32; i++)
		key[i] = (uint8_t)i;
	assert_int_equal(seal_keys_derive(key, &k), 0);
	hex_encode(k.key_check, 16, hex);
	assert_string_equal(hex, "e3a679d4c3c846a9326777acdc4b51f3");
	seal_name(&k, "hello", 5, name);
	hex_encode(name, 16, hex);
	assert_string_equal(hex, "b57cf9679a3981142376d768c6aad9da");
	assert_int_equal(sealer_new(&k, &s), 0);
	assert_int_equal(sealer_seal(s, name, "hello", 5, buf, tag), 0);
	hex_encode(buf, 5, hex);
	assert_string_equal(hex, "80113bb4d6");
	hex_encode(tag, 16, hex);
	assert_string_equal(hex, "aa89ce14821a42c8a15c0da7bc0fd969");
	seal_check(buf, 5, check);
	hex_encode(check, 8, hex);
	assert_string_equal(hex, "919ebe4f6fb1b462");
	assert_int_equal(sealer_open(s, name, tag, buf, 5, buf), 0);
	assert_memory_equal(buf, "hello", 5);
	tag[0] ^= 1;
	assert_int_equal(sealer_open(s, name, tag, buf, 5, buf), -EBADMSG);
	sealer_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_manifest_round_trip), cmocka_unit_test(test_manifest_refuses),
		cmocka_unit_test(test_entry_round_trip),    cmocka_unit_test(test_entry_refuses_paths),
		cmocka_unit_test(test_pack_index),          cmocka_unit_test(test_seal_vector),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
