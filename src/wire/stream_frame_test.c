/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/stream_frame.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/parse.h"
#include "wire/registry_frame.h"

/* The vectors of docs/protocol.md. */
static const struct {
	struct stream_frame f;
	const char *hex;
} vectors[] = {
	{ { .type = STREAM_FRAME_HELLO, .code = 1, .producer = "stage-1" },
	  "01000000" "0c000000" "01000000" "07" "73746167652d31" },
	{ { .type = STREAM_FRAME_WELCOME, .cls = STREAM_TOKEN, .handle = 3, .epoch = 7, .seq = 42,
	    .stable = 40, .limit = 1048576, .offset = 0 },
	  "03010000" "28000000" "03000000" "0700000000000000" "2a00000000000000"
	  "2800000000000000" "0000100000000000" "00000000" },
	{ { .type = STREAM_FRAME_ACK, .cls = STREAM_TOKEN, .handle = 3, .epoch = 7, .seq = 50,
	    .stable = 45, .limit = 1050000 },
	  "07010000" "24000000" "03000000" "0700000000000000" "3200000000000000"
	  "2d00000000000000" "9005100000000000" },
	{ { .type = STREAM_FRAME_NACK, .handle = 3, .epoch = 8, .code = STREAM_NACK_MOVED },
	  "04000000" "10000000" "03000000" "0800000000000000" "01000000" },
	{ { .type = STREAM_FRAME_FREEZE, .handle = 3, .epoch = 7, .seq = 50 },
	  "08000000" "14000000" "03000000" "0700000000000000" "3200000000000000" },
	{ { .type = STREAM_FRAME_PREPARE, .epoch = 8, .name = "stage-2", .locator = "10.0.0.7:4000" },
	  "0a000000" "1e000000" "0800000000000000" "07" "73746167652d32" "0d"
	  "31302e302e302e373a34303030" },
	{ { .type = STREAM_FRAME_READY, .hid = 9, .code = 2 },
	  "0f000000" "0c000000" "0900000000000000" "02000000" },
	{ { .type = STREAM_FRAME_CUT, .hid = 9, .limit = 4096, .stable = 100, .seq = 64 },
	  "11000000" "20000000" "4000000000000000" "6400000000000000" "0010000000000000"
	  "0900000000000000" },
};

static void test_vectors(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
		uint8_t buf[512];
		char hex[1025];
		struct bytes_out o = { .data = buf, .cap = sizeof(buf) };
		struct stream_frame f;
		uint32_t payload;

		assert_int_equal(stream_frame_encode(&vectors[i].f, &o), 0);
		hex_encode(buf, o.len, hex);
		assert_string_equal(hex, vectors[i].hex);
		assert_int_equal(stream_frame_decode(buf, o.len, &f, &payload), (int)o.len);
		assert_int_equal(payload, 0);
		assert_int_equal(f.seq, vectors[i].f.seq);
		assert_int_equal(f.code, vectors[i].f.code);
		assert_string_equal(f.name, vectors[i].f.name);
		for (size_t k = 0; k < o.len; k++)
			assert_int_equal(stream_frame_decode(buf, k, &f, &payload), 0);
	}
}

static void test_attach_carries_ticket(void **state)
{
	uint8_t buf[1024];
	static const uint8_t ticket[] = { 1, 2, 3 };
	struct bytes_out o = { .data = buf, .cap = sizeof(buf) };
	struct stream_frame in = { .type = STREAM_FRAME_ATTACH, .cls = STREAM_BULK, .handle = 1,
				   .epoch = 2, .seq = 3, .stable = 9, .producer_epoch = 4, .stream = 5,
				   .level = STREAM_ATTACH_DETERMINISTIC, .name = "a", .producer = "b",
				   .blob = ticket, .blob_len = 3 };
	struct stream_frame out;
	uint32_t payload;

	(void)state;
	assert_int_equal(stream_frame_encode(&in, &o), 0);
	assert_int_equal(stream_frame_decode(buf, o.len, &out, &payload), (int)o.len);
	assert_int_equal(out.producer_epoch, 4);
	assert_int_equal(out.level, STREAM_ATTACH_DETERMINISTIC);
	assert_int_equal(out.blob_len, 3);
	assert_memory_equal(out.blob, ticket, 3);
}

static void test_hot_heads(void **state)
{
	uint8_t p[STREAM_FRAG_HEAD + 8] = { 0 };
	struct stream_frame f;
	uint32_t payload;

	(void)state;
	stream_run_head(p, STREAM_TOKEN, 2, 1, 7, 5, 8);
	assert_int_equal(stream_frame_decode(p, sizeof(p), &f, &payload), STREAM_RUN_HEAD);
	assert_int_equal(payload, 8);
	assert_int_equal(f.type, STREAM_FRAME_RUN);
	assert_int_equal(f.count, 1);
	assert_int_equal(f.epoch, 7);
	assert_int_equal(f.seq, 5);
	struct stream_frame quick;
	uint32_t quick_payload = 0;
	assert_true(stream_run_decode(p, sizeof(p), &quick, &quick_payload));
	assert_int_equal(quick_payload, 8);
	assert_int_equal(quick.count, 1);
	assert_int_equal(quick.seq, 5);
	assert_int_equal(quick.handle, 2);
	stream_run_head(p, STREAM_TOKEN, 2, 3, 7, 5, 8); /* three records do not fit 8 bytes */
	assert_false(stream_run_decode(p, sizeof(p), &quick, &quick_payload));
	assert_int_equal(stream_frame_decode(p, sizeof(p), &f, &payload), -EBADMSG);
	stream_frag_head(p, STREAM_BULK, 2, 7, 5, 100, 92, 8);
	assert_int_equal(stream_frame_decode(p, sizeof(p), &f, &payload), STREAM_FRAG_HEAD);
	assert_int_equal(f.total, 100);
	assert_int_equal(f.offset, 92);
	stream_frag_head(p, STREAM_BULK, 2, 7, 5, 100, 93, 8);
	assert_int_equal(stream_frame_decode(p, sizeof(p), &f, &payload), -EBADMSG);
}

static void test_refused(void **state)
{
	static const char *const bad[] = {
		"0000000000000000",             /* no such type */
		"ff00000000000000",
		"0104000000000000",             /* no such class */
		"0100010000000000",             /* reserved bits */
		"01000000ffffffff",             /* too long */
		"010000000500000001000000ff",   /* text beyond the end */
		"050000001800000001000000" "00000000" "0100000000000000" "0100000000000000", /* count 0 */
		"050000001800000001000000" "02000000" "0100000000000000" "0100000000000000", /* no room */
		"0100000006000000" "01000000" "012e",  /* a name that begins with a dot */
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		uint8_t buf[128];
		size_t len = strlen(bad[i]) / 2;
		struct stream_frame f;
		uint32_t payload;

		assert_int_equal(hex_decode(bad[i], len * 2, buf, len), 0);
		assert_int_equal(stream_frame_decode(buf, len, &f, &payload), -EBADMSG);
	}
}

static void test_registry_frame(void **state)
{
	static struct registry_frame in = { .op = REGISTRY_JOIN, .flags = REGISTRY_FLAG_STANDBY,
					    .id = 9, .status = -11, .ttl_ms = 5000, .instance = 77,
					    .epoch = 3, .name = "stage-2", .group = "workers",
					    .locator = "127.0.0.1:9", .token = "t", .ticket_len = 4,
					    .body = (const uint8_t *)"xyz", .body_len = 3 };
	static struct registry_frame out;
	uint8_t buf[1024];
	struct bytes_out o = { .data = buf, .cap = sizeof(buf) };

	(void)state;
	assert_int_equal(registry_frame_encode(&in, &o), 0);
	for (size_t k = 0; k < o.len; k++)
		assert_int_equal(registry_frame_decode(buf, k, &out), 0);
	assert_int_equal(registry_frame_decode(buf, o.len, &out), (int)o.len);
	assert_int_equal(out.status, -11);
	assert_string_equal(out.group, "workers");
	assert_int_equal(out.body_len, 3);
	buf[4] = 200;
	assert_int_equal(registry_frame_decode(buf, o.len, &out), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),   cmocka_unit_test(test_attach_carries_ticket),
		cmocka_unit_test(test_hot_heads), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_registry_frame),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
