/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

#include "base/clock.h"

static void test_numbers(void **state)
{
	uint64_t u = 5;
	int64_t i;
	double d;
	assert_int_equal(parse_u64("18446744073709551615", &u), 0);
	assert_true(u == UINT64_MAX);
	assert_int_equal(parse_u64("18446744073709551616", &u), -ERANGE);
	assert_int_equal(parse_u64("-1", &u), -EINVAL);
	assert_int_equal(parse_u64("", &u), -EINVAL);
	assert_int_equal(parse_u64("12x", &u), -EINVAL);
	assert_int_equal(parse_i64("-9223372036854775808", &i), 0);
	assert_int_equal(parse_double("nan", &d), -EINVAL);
	assert_int_equal(parse_double("0x10", &d), -EINVAL);
	assert_int_equal(parse_double("1e999", &d), -ERANGE);
	assert_int_equal(parse_double("2.5", &d), 0);
	assert_true(d == 2.5);
}

static void test_quantities(void **state)
{
	uint64_t v;
	assert_int_equal(parse_duration_ns("90", &v), 0);
	assert_true(v == 90 * NS_PER_S);
	assert_int_equal(parse_duration_ns("200ms", &v), 0);
	assert_true(v == 200 * NS_PER_MS);
	assert_int_equal(parse_duration_ns("1.5h", &v), 0);
	assert_true(v == 5400 * NS_PER_S);
	assert_int_equal(parse_duration_ns("-3s", &v), -ERANGE);
	assert_int_equal(parse_duration_ns("3 parsecs", &v), -EINVAL);
	assert_int_equal(parse_size("2G", &v), 0);
	assert_true(v == UINT64_C(2) << 30);
	assert_int_equal(parse_size("1.5GB", &v), 0);
	assert_true(v == UINT64_C(1500000000));
	assert_int_equal(parse_size("1e30", &v), -ERANGE);
	assert_int_equal(parse_rate_bps("1Gbit", &v), 0);
	assert_true(v == UINT64_C(1000000000));
}

static void test_formats(void **state)
{
	char b[FORMAT_MAX];
	assert_string_equal(format_size(1536, b), "1.50 KiB");
	assert_string_equal(format_rate(940000000, b), "940 Mbit/s");
	assert_string_equal(format_duration(1500 * NS_PER_MS, b), "1.5 s");
}

static void test_hex(void **state)
{
	uint8_t bytes[2];
	char hex[5];
	assert_int_equal(hex_decode("00ff", 4, bytes, 2), 0);
	hex_encode(bytes, 2, hex);
	assert_string_equal(hex, "00ff");
	assert_int_equal(hex_decode("0g00", 4, bytes, 2), -EINVAL);
	assert_int_equal(hex_decode("000", 3, bytes, 2), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_quantities),
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_hex),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
