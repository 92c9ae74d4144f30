/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/transfer_frame.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/parse.h"

static uint8_t buf[TRANSFER_BODY_MAX + TRANSFER_HEADER_LEN];

/* Header in order, body length right, and every cut of the body refused by try_len(). */
static void check_frame(int n, enum transfer_frame_type type, int (*try_len)(size_t len))
{
	struct transfer_header h;

	assert_true(n >= TRANSFER_HEADER_LEN);
	assert_int_equal(transfer_decode_header(buf, &h, NULL), 0);
	assert_int_equal(h.type, type);
	assert_int_equal(h.len, n - TRANSFER_HEADER_LEN);
	assert_int_equal(try_len(h.len), 0);
	for (size_t len = 0; len < h.len; len++)
		assert_int_equal(try_len(len), -EBADMSG);
	assert_int_equal(try_len(h.len + 1), -EBADMSG);
}

static struct transfer_hello hello;
static int try_hello(size_t len)
{
	return transfer_decode_hello(buf + 8, len, &hello, NULL);
}
static struct transfer_offer offer;
static int try_offer(size_t len)
{
	return transfer_decode_offer(buf + 8, len, &offer, NULL);
}
static struct transfer_need need;
static int try_need(size_t len)
{
	return transfer_decode_need(buf + 8, len, &need, NULL);
}
static struct transfer_partial partial;
static int try_partial(size_t len)
{
	return transfer_decode_partial(buf + 8, len, &partial, NULL);
}
static struct transfer_ready ready;
static int try_ready(size_t len)
{
	return transfer_decode_ready(buf + 8, len, &ready, NULL);
}
static struct transfer_chunk chunk;
static int try_chunk(size_t len)
{
	return len < TRANSFER_CHUNK_BODY_LEN ? transfer_decode_chunk(buf + 8, len, &chunk, NULL) :
					       transfer_decode_chunk(buf + 8, len + 100, &chunk, NULL);
}
static struct transfer_fail fail_frame;
static int try_fail(size_t len)
{
	return transfer_decode_fail(buf + 8, len, &fail_frame, NULL);
}

static void test_frames(void **state)
{
	struct transfer_hello h = { .version = 1, .mode = TRANSFER_MODE_FETCH, .stream = 0, .streams = 4,
				    .ticket = "rt1.x" };
	struct transfer_offer o = { .manifest_len = 99, .has_key = true, .base_count = 2 };
	uint8_t bits[3] = { 1, 2, 1 };
	struct transfer_need n = { .first = 64, .count = 17, .bitmap = bits };
	struct transfer_chunk c = { .index = 5, .codec = TRANSFER_DELTA, .base_index = 6, .payload_len = 140,
				    .offset = 40, .check = { 1, 2 } };
	struct transfer_partial p = { c };
	struct transfer_ready r = { .lacking = 3, .lacking_bytes = 4, .base = 1 };
	struct transfer_fail f = { .code = TRANSFER_E_SPACE, .text = "no\nroom" };

	h.session[3] = 9;
	check_frame(transfer_encode_hello(&h, buf, sizeof(buf)), TRANSFER_HELLO, try_hello);
	assert_memory_equal(&h, &hello, sizeof(h));
	o.key[0] = 7;
	o.bases[1][31] = 8;
	check_frame(transfer_encode_offer(&o, buf, sizeof(buf)), TRANSFER_OFFER, try_offer);
	assert_memory_equal(&o, &offer, sizeof(o));
	check_frame(transfer_encode_need(&n, buf, sizeof(buf)), TRANSFER_NEED, try_need);
	assert_int_equal(need.first, 64);
	assert_memory_equal(need.bitmap, bits, 3);
	check_frame(transfer_encode_partial(&p, buf, sizeof(buf)), TRANSFER_PARTIAL, try_partial);
	assert_memory_equal(&p, &partial, sizeof(p));
	check_frame(transfer_encode_ready(&r, buf, sizeof(buf)), TRANSFER_READY, try_ready);
	assert_int_equal(ready.lacking_bytes, 4);
	assert_int_equal(transfer_encode_chunk(&c, buf, sizeof(buf)), 8 + TRANSFER_CHUNK_BODY_LEN);
	for (size_t len = 0; len < TRANSFER_CHUNK_BODY_LEN; len++)
		assert_int_equal(try_chunk(len), -EBADMSG);
	assert_int_equal(try_chunk(TRANSFER_CHUNK_BODY_LEN), 0); /* 100 bytes of payload, 40..139 */
	assert_int_equal(try_chunk(TRANSFER_CHUNK_BODY_LEN + 1), -EBADMSG);
	assert_memory_equal(&c, &chunk, sizeof(c));
	check_frame(transfer_encode_fail(&f, buf, sizeof(buf)), TRANSFER_FAIL, try_fail);
	assert_int_equal(fail_frame.code, TRANSFER_E_SPACE);
	assert_string_equal(fail_frame.text, "no?room"); /* never a control character */
}

static void test_limits(void **state)
{
	struct transfer_header h;
	uint8_t head[8] = { TRANSFER_CHUNK };
	uint32_t len = TRANSFER_CHUNK_BODY_LEN + TRANSFER_PAYLOAD_MAX;

	memcpy(head + 4, &len, 4);
	assert_int_equal(transfer_decode_header(head, &h, NULL), 0);
	len++;
	memcpy(head + 4, &len, 4);
	assert_int_equal(transfer_decode_header(head, &h, NULL), -EBADMSG);
	head[0] = TRANSFER_HELLO;
	len = TRANSFER_BODY_MAX + 1;
	memcpy(head + 4, &len, 4);
	assert_int_equal(transfer_decode_header(head, &h, NULL), -EBADMSG);
	head[0] = 0;
	assert_int_equal(transfer_decode_header(head, &h, NULL), -EBADMSG);
}

/* The vector of docs/protocol.md. */
static void test_vector(void **state)
{
	struct transfer_chunk c = { .index = 258, .codec = TRANSFER_SEALED, .payload_len = 1048576,
				    .check = { 0x91, 0x9e, 0xbe, 0x4f, 0x6f, 0xb1, 0xb4, 0x62 } };
	char hex[100];

	assert_int_equal(transfer_encode_chunk(&c, buf, sizeof(buf)), 36);
	hex_encode(buf, 36, hex);
	assert_string_equal(hex, "070000001c001000" "02010000" "00000000" "00000000" "00001000" "00000000"
				 "919ebe4f6fb1b462");
}

static void test_codes(void **state)
{
	for (int i = 0; i < TRANSFER_CODE_COUNT; i++)
		assert_int_equal(transfer_code_parse(transfer_code_name((enum transfer_code)i)), i);
	assert_int_equal(transfer_code_parse("?"), TRANSFER_E_PROTOCOL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_frames), cmocka_unit_test(test_limits),
		cmocka_unit_test(test_vector), cmocka_unit_test(test_codes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
