/* SPDX-License-Identifier: Apache-2.0 */
#include "base/strbuf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

static void test_append_consume_take(void **state)
{
	struct strbuf b = STRBUF_INIT;
	for (int i = 0; i < 1000; i++)
		assert_int_equal(strbuf_printf(&b, "%d,", i % 10), 0);
	assert_int_equal(b.len, 2000);
	strbuf_consume(&b, 1996);
	assert_string_equal(b.data, "8,9,");
	char *text = strbuf_take(&b);
	assert_string_equal(text, "8,9,");
	free(text);
	text = strbuf_take(&b);
	assert_string_equal(text, "");
	free(text);
	strbuf_done(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_append_consume_take) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
