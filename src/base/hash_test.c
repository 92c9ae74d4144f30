/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

static void test_siphash_vector(void **state)
{
	/* The vector of the SipHash paper, appendix A. */
	uint8_t in[15];
	for (uint8_t i = 0; i < sizeof(in); i++)
		in[i] = i;
	assert_true(hash_sip24(in, sizeof(in), UINT64_C(0x0706050403020100),
			       UINT64_C(0x0f0e0d0c0b0a0908)) == UINT64_C(0xa129ca6149be45e5));
}

static void test_crc32c_vector(void **state)
{
	/* RFC 3720, B.4: 32 bytes of zeros; and the check value of "123456789". */
	uint8_t zeros[32] = { 0 };
	assert_int_equal(hash_crc32c(0, zeros, sizeof(zeros)), 0x8a9136aa);
	assert_int_equal(hash_crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(hash_crc32c(hash_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_siphash_vector),
		cmocka_unit_test(test_crc32c_vector),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
