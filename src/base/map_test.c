/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <stdio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

#include "base/rng.h"

static void test_against_a_plain_array(void **state)
{
	enum { KEYS = 500, STEPS = 50000 };
	static void *model[KEYS];
	struct map *m;
	struct rng r;
	size_t live = 0;
	rng_init(&r, 7);
	assert_int_equal(map_new(&m), 0);
	for (int step = 0; step < STEPS; step++) {
		char key[16];
		size_t k = rng_below(&r, KEYS);
		snprintf(key, sizeof(key), "k%zu", k);
		void *value = (void *)(uintptr_t)(step + 1);
		switch (rng_below(&r, 3)) {
		case 0: {
			void *old;
			assert_int_equal(map_set_str(m, key, value, &old), 0);
			assert_ptr_equal(old, model[k]);
			live += !model[k];
			model[k] = value;
			break;
		}
		case 1:
			assert_ptr_equal(map_remove_str(m, key), model[k]);
			live -= model[k] != NULL;
			model[k] = NULL;
			break;
		default:
			assert_ptr_equal(map_get_str(m, key), model[k]);
		}
		assert_int_equal(map_count(m), live);
	}
	size_t seen = 0, pos = 0;
	const void *key;
	size_t key_len;
	void *value;
	while (map_next(m, &pos, &key, &key_len, &value)) {
		assert_ptr_equal(model[atoi((const char *)key + 1)], value);
		seen++;
	}
	assert_int_equal(seen, live);
	map_free(m);
}

static void test_insert_refuses_twice(void **state)
{
	struct map *m;
	assert_int_equal(map_new(&m), 0);
	assert_int_equal(map_insert(m, "a", 1, "x"), 0);
	assert_int_equal(map_insert(m, "a", 1, "y"), -EEXIST);
	assert_string_equal(map_get_str(m, "a"), "x");
	map_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_a_plain_array),
		cmocka_unit_test(test_insert_refuses_twice),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
