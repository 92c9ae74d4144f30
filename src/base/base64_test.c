/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base64.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_vectors(void **state) /* RFC 4648, section 10, without padding */
{
	static const char *const rows[][2] = { { "", "" }, { "f", "Zg" }, { "fo", "Zm8" }, { "foo", "Zm9v" },
					       { "foob", "Zm9vYg" }, { "fooba", "Zm9vYmE" },
					       { "foobar", "Zm9vYmFy" }, { "\xfb\xff", "-_8" } };
	char text[32], back[32];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		size_t len = strlen(rows[i][0]);

		assert_int_equal(base64url_encode(rows[i][0], len, text), strlen(rows[i][1]));
		assert_string_equal(text, rows[i][1]);
		assert_int_equal(base64url_decode(text, strlen(text), back, sizeof(back)), len);
		assert_memory_equal(back, rows[i][0], len);
	}
}

static void test_refuses(void **state)
{
	char back[8];

	assert_int_equal(base64url_decode("A", 1, back, 8), -EINVAL);
	assert_int_equal(base64url_decode("Zh", 2, back, 8), -EINVAL);
	assert_int_equal(base64url_decode("Zg==", 4, back, 8), -EINVAL);
	assert_int_equal(base64url_decode("a+b/", 4, back, 8), -EINVAL);
	assert_int_equal(base64url_decode("Zm9vYmFy", 8, back, 5), -ENOBUFS);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_vectors), cmocka_unit_test(test_refuses) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
