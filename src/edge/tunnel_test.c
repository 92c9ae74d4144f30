/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/tunnel.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t key[TUNNEL_KEY_LEN] = "the key of this start, 32 bytes";
static struct tunnel *a, *b;

static size_t packet(uint8_t *p, unsigned from, unsigned to, const char *text)
{
	struct in_addr src = tunnel_address(from), dst = tunnel_address(to);
	memset(p, 0, 20);
	p[0] = 0x45;
	memcpy(p + 12, &src, 4);
	memcpy(p + 16, &dst, 4);
	memcpy(p + 20, text, strlen(text));
	return 20 + strlen(text);
}

static int setup(void **state)
{
	assert_int_equal(tunnel_new(key, 7, 0, 3, &a), 0);
	assert_int_equal(tunnel_new(key, 7, 1, 3, &b), 0);
	return 0;
}

static int teardown(void **state)
{
	tunnel_free(a);
	tunnel_free(b);
	return 0;
}

static void test_a_packet_goes_through_unseen(void **state)
{
	uint8_t p[200], wire[300], got[300];
	unsigned from = 99;
	size_t len = packet(p, 0, 1, "what the ranks say to each other");
	assert_int_equal(tunnel_route(a, p, len), 1);
	ssize_t n = tunnel_seal(a, 1, p, len, wire);
	assert_int_equal(n, len + TUNNEL_OVERHEAD);
	assert_null(memmem(wire, (size_t)n, "what the ranks", 14));
	assert_null(memmem(wire, (size_t)n, p + 12, 8)); /* nor the addresses inside */
	assert_int_equal(tunnel_open(b, wire, (size_t)n, got, &from), len);
	assert_int_equal(from, 0);
	assert_memory_equal(got, p, len);
	/* The same text twice is not the same bytes twice. */
	uint8_t again[300];
	assert_int_equal(tunnel_seal(a, 1, p, len, again), n);
	assert_memory_not_equal(again + TUNNEL_HEADER_LEN, wire + TUNNEL_HEADER_LEN,
				(size_t)n - TUNNEL_HEADER_LEN);
	assert_int_equal(tunnel_seal(a, 1, NULL, 0, wire), TUNNEL_OVERHEAD);
	assert_int_equal(tunnel_open(b, wire, TUNNEL_OVERHEAD, got, &from), 0);
}

static void test_every_bit_counts(void **state)
{
	uint8_t p[100], wire[200], got[200];
	unsigned from;
	size_t len = packet(p, 0, 1, "x");
	ssize_t n = tunnel_seal(a, 1, p, len, wire);
	for (size_t bit = 0; bit < 8 * (size_t)n; bit++) {
		wire[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_true(tunnel_open(b, wire, (size_t)n, got, &from) < 0);
		wire[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (size_t cut = 0; cut < (size_t)n; cut++)
		assert_int_equal(tunnel_open(b, wire, cut, got, &from), -EBADMSG);
	/* None of that has used up the counter. */
	assert_int_equal(tunnel_open(b, wire, (size_t)n, got, &from), len);
}

static void test_nothing_is_taken_twice(void **state)
{
	enum { COUNT = 3 * TUNNEL_WINDOW };
	static uint8_t wire[COUNT][20 + TUNNEL_OVERHEAD];
	uint8_t p[20], got[100];
	unsigned from;
	size_t len = packet(p, 0, 1, "");
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(tunnel_seal(a, 1, p, len, wire[i]), sizeof(wire[i]));
	/* Out of order inside the window: each once. */
	for (int i = TUNNEL_WINDOW - 1; i >= 0; i--)
		assert_int_equal(tunnel_open(b, wire[i], sizeof(wire[i]), got, &from), len);
	for (int i = 0; i < TUNNEL_WINDOW; i++)
		assert_int_equal(tunnel_open(b, wire[i], sizeof(wire[i]), got, &from), -EALREADY);
	/* A jump ahead: what was passed over is taken while the window reaches back to it. */
	assert_int_equal(tunnel_open(b, wire[COUNT - 1], sizeof(wire[0]), got, &from), len);
	assert_int_equal(tunnel_open(b, wire[COUNT - TUNNEL_WINDOW], sizeof(wire[0]), got, &from), len);
	assert_int_equal(tunnel_open(b, wire[COUNT - TUNNEL_WINDOW - 1], sizeof(wire[0]), got, &from), -EALREADY);
	assert_int_equal(tunnel_open(b, wire[COUNT - 1], sizeof(wire[0]), got, &from), -EALREADY);
	assert_int_equal(tunnel_open(b, wire[COUNT - 2], sizeof(wire[0]), got, &from), len);
}

static void test_only_for_us_and_from_whom_it_says(void **state)
{
	uint8_t p[100], wire[200], got[200];
	unsigned from;
	struct tunnel *c, *later, *other;
	uint8_t foreign[TUNNEL_KEY_LEN] = "another gang's";
	assert_int_equal(tunnel_new(key, 7, 2, 3, &c), 0);
	assert_int_equal(tunnel_new(key, 8, 1, 3, &later), 0);
	assert_int_equal(tunnel_new(foreign, 7, 1, 3, &other), 0);
	size_t len = packet(p, 0, 1, "x");
	ssize_t n = tunnel_seal(a, 1, p, len, wire);
	assert_int_equal(tunnel_open(c, wire, (size_t)n, got, &from), -EBADMSG);
	assert_int_equal(tunnel_open(later, wire, (size_t)n, got, &from), -EBADMSG);
	assert_int_equal(tunnel_open(other, wire, (size_t)n, got, &from), -EBADMSG);
	assert_int_equal(tunnel_open(a, wire, (size_t)n, got, &from), -EBADMSG); /* its own, come back */
	/* A rank cannot speak in another's name, nor through us to another. */
	len = packet(p, 2, 1, "x");
	n = tunnel_seal(a, 1, p, len, wire);
	assert_int_equal(tunnel_open(b, wire, (size_t)n, got, &from), -EBADMSG);
	len = packet(p, 0, 2, "x");
	n = tunnel_seal(a, 1, p, len, wire);
	assert_int_equal(tunnel_open(b, wire, (size_t)n, got, &from), -EBADMSG);
	assert_int_equal(tunnel_route(a, p, len), 2);
	len = packet(p, 0, 5, "x");
	assert_int_equal(tunnel_route(a, p, len), -EHOSTUNREACH);
	len = packet(p, 1, 0, "x");
	assert_int_equal(tunnel_route(a, p, len), -EHOSTUNREACH);
	assert_int_equal(tunnel_route(a, "\x60", 1), -EHOSTUNREACH);
	tunnel_free(c);
	tunnel_free(later);
	tunnel_free(other);
}

static void test_bad_arguments(void **state)
{
	struct tunnel *t;
	uint8_t wire[TUNNEL_PACKET_MAX + 100], p[TUNNEL_PACKET_MAX];
	memset(p, 0, sizeof(p));
	assert_int_equal(tunnel_new(key, 1, 0, 1, &t), -EINVAL);
	assert_int_equal(tunnel_new(key, 1, 2, 2, &t), -EINVAL);
	assert_int_equal(tunnel_new(key, 1, 0, TUNNEL_RANKS_MAX + 1, &t), -EINVAL);
	assert_int_equal(tunnel_seal(a, 0, p, 20, wire), -EINVAL);
	assert_int_equal(tunnel_seal(a, 3, p, 20, wire), -EINVAL);
	assert_int_equal(tunnel_seal(a, 1, p, TUNNEL_PACKET_MAX, wire), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_packet_goes_through_unseen, setup, teardown),
		cmocka_unit_test_setup_teardown(test_every_bit_counts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nothing_is_taken_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_only_for_us_and_from_whom_it_says, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_arguments, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
