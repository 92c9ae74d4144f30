/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/ticket.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/parse.h"

static struct ticket sample(void)
{
	struct ticket t = { .serial = "t-17", .use = TICKET_MOVE, .job = "job-1", .epoch = 4,
			    .source = "lab3-a", .destination = "lab9-b", .remaining_ms = 30000,
			    .floor_bps = 600000000, .traffic_class = TRAFFIC_DEADLINE };

	for (int i = 0; i < 32; i++)
		t.image[i] = (uint8_t)i;
	memset(t.source_digest, 'a', 64);
	return t;
}

static void test_round_trip(void **state)
{
	struct ticket t = sample(), back;
	uint8_t body[TICKET_BODY_MAX];
	size_t len;

	assert_int_equal(ticket_encode_body(&t, body, sizeof(body), &len, NULL), 0);
	assert_int_equal(ticket_decode_body(body, len, &back, NULL), 0);
	assert_memory_equal(&t, &back, sizeof(t));
	for (size_t n = 0; n < len; n++)
		assert_int_equal(ticket_decode_body(body, n, &back, NULL), -EBADMSG);
	for (size_t n = 0; n < len; n++)
		assert_int_equal(ticket_encode_body(&t, body, n, &(size_t){ 0 }, NULL), -ENOBUFS);
}

/* The vector of docs/protocol.md. */
static void test_vector(void **state)
{
	struct ticket t = sample();
	uint8_t body[TICKET_BODY_MAX];
	char hex[2 * TICKET_BODY_MAX + 1];
	size_t len;

	assert_int_equal(ticket_encode_body(&t, body, sizeof(body), &len, NULL), 0);
	hex_encode(body, len, hex);
	assert_string_equal(hex,
		"01010200" "0400000000000000" "3075000000000000" "0046c32300000000"
		"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
		"04742d3137" "056a6f622d31" "066c6162332d61"
		"40" "61616161616161616161616161616161" "61616161616161616161616161616161"
		"61616161616161616161616161616161" "61616161616161616161616161616161"
		"066c6162392d62" "00");
}

static void test_refuses(void **state)
{
	struct ticket t = sample(), back;
	uint8_t body[TICKET_BODY_MAX];
	struct diag d = DIAG_INIT;
	size_t len;

	strcpy(t.job, "../x");
	assert_int_equal(ticket_encode_body(&t, body, sizeof(body), &len, &d), -EINVAL);
	assert_true(d.what[0]);
	t = sample();
	strcpy(t.source_digest, "abc");
	assert_int_equal(ticket_encode_body(&t, body, sizeof(body), &len, &d), -EINVAL);
	t = sample();
	assert_int_equal(ticket_encode_body(&t, body, sizeof(body), &len, &d), 0);
	body[1] = 0;
	assert_int_equal(ticket_decode_body(body, len, &back, &d), -EBADMSG);
	body[1] = TICKET_USE_COUNT;
	assert_int_equal(ticket_decode_body(body, len, &back, &d), -EBADMSG);
	body[1] = TICKET_MOVE;
	body[2] = TRAFFIC_RESEARCH;
	assert_int_equal(ticket_decode_body(body, len, &back, &d), -EBADMSG);
}

static void test_text(void **state)
{
	struct ticket_text parts = { .body = "body", .body_len = 4, .signature = "sig", .signature_len = 3,
				     .cert = "cert!", .cert_len = 5 }, back;
	char text[TICKET_TEXT_MAX];

	assert_int_equal(ticket_format(&parts, text, sizeof(text)), 0);
	assert_string_equal(text, "rt1.Ym9keQ.c2ln.Y2VydCE");
	assert_int_equal(ticket_parse(text, &back, NULL), 0);
	assert_memory_equal(&parts, &back, sizeof(parts));
	assert_int_equal(ticket_format(&parts, text, 20), -ENOBUFS);
	assert_int_equal(ticket_parse("rt2.Ym9keQ.c2ln.Y2VydCE", &back, NULL), -EBADMSG);
	assert_int_equal(ticket_parse("rt1.Ym9keQ.c2ln", &back, NULL), -EBADMSG);
	assert_int_equal(ticket_parse("rt1.Ym9keQ..Y2VydCE", &back, NULL), -EBADMSG);
	assert_int_equal(ticket_parse("rt1.Ym9k*Q.c2ln.Y2VydCE", &back, NULL), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip), cmocka_unit_test(test_vector),
		cmocka_unit_test(test_refuses),    cmocka_unit_test(test_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
