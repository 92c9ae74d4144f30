/* SPDX-License-Identifier: Apache-2.0 */
#include "image/delta.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"

#define LEN_MAX (1u << 18)

static uint8_t cur[LEN_MAX], old[LEN_MAX], back[LEN_MAX];
static uint8_t *payload;
static struct delta_coder *coder;

static int setup(void **state)
{
	payload = malloc(delta_bound(LEN_MAX));
	return payload ? delta_coder_new(LEN_MAX, &coder) : -1;
}

static int teardown(void **state)
{
	free(payload);
	delta_coder_free(coder);
	return 0;
}

static int64_t round_trip(size_t len, size_t old_len)
{
	int64_t n = delta_encode(coder, cur, len, old, old_len, 3, payload);

	assert_true(n > 0);
	assert_true((size_t)n <= delta_bound(len));
	memset(back, 0xa5, len);
	assert_int_equal(delta_decode(coder, payload, (size_t)n, old, old_len, back, len), 0);
	assert_memory_equal(back, cur, len);
	return n;
}

static void test_lengths(void **state)
{
	static const size_t lens[] = { 1, 2, 3, 4, 5, 63, 64, 100, 4095, 4096, 4097, 8200, 65537, LEN_MAX };
	struct rng r;

	rng_init(&r, 1);
	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		for (size_t k = 0; k < lens[i]; k++) {
			old[k] = (uint8_t)rng_u64(&r);
			cur[k] = (uint8_t)rng_u64(&r);
		}
		round_trip(lens[i], lens[i]);
		round_trip(lens[i], lens[i] / 2);
		round_trip(lens[i], 0);
		memcpy(cur, old, lens[i]);
		assert_true(round_trip(lens[i], lens[i]) < 64);
	}
}

static void fill_training(size_t n, uint64_t seed)
{
	struct rng r;

	rng_init(&r, seed);
	for (size_t i = 0; i < n; i++) {
		float w = (float)(rng_normal(&r) * 0.05), g = (float)(w + rng_normal(&r) * 0.001);

		memcpy(old + 4 * i, &w, 4);
		memcpy(cur + 4 * i, &g, 4);
	}
}

/* A small change of every element must cost clearly less than the element. */
static void test_floats_that_moved_a_little(void **state)
{
	int64_t n;

	fill_training(LEN_MAX / 4, 3);
	n = round_trip(LEN_MAX, LEN_MAX);
	assert_int_equal(payload[0], DELTA_FLOAT);
	assert_true(n < LEN_MAX * 8 / 10);
}

/* Decay by a common factor is predicted, whatever the magnitudes. */
static void test_floats_that_decayed(void **state)
{
	struct rng r;
	int64_t n;

	rng_init(&r, 4);
	for (size_t i = 0; i < LEN_MAX / 4; i++) {
		float v = (float)exp(rng_normal(&r) * 4 - 20), d = v * 0.9047f;

		memcpy(old + 4 * i, &v, 4);
		memcpy(cur + 4 * i, &d, 4);
	}
	n = round_trip(LEN_MAX, LEN_MAX);
	assert_true(n < LEN_MAX / 8);
}

static void test_special_floats(void **state)
{
	static const uint32_t odd[] = { 0, 0x80000000, 1, 0x807fffff, 0x7f800000, 0xff800000,
					0x7fc00001, 0xffffffff, 0x00800000, 0x7f7fffff };
	size_t n = LEN_MAX / 4;
	struct rng r;

	fill_training(n, 5);
	rng_init(&r, 6);
	for (size_t i = 0; i < n; i += 7) {
		memcpy(old + 4 * i, &odd[rng_below(&r, ARRAY_SIZE(odd))], 4);
		memcpy(cur + 4 * (i + rng_below(&r, 3)) % LEN_MAX, &odd[rng_below(&r, ARRAY_SIZE(odd))], 4);
	}
	round_trip(LEN_MAX, LEN_MAX);
}

static void test_changed_pages_only(void **state)
{
	struct rng r;
	int64_t n;

	rng_init(&r, 8);
	for (size_t i = 0; i < LEN_MAX; i++)
		old[i] = (uint8_t)rng_u64(&r);
	memcpy(cur, old, LEN_MAX);
	for (size_t page = 3; page < LEN_MAX / DELTA_PAGE; page += 16)
		for (size_t i = 0; i < DELTA_PAGE; i++)
			cur[page * DELTA_PAGE + i] = (uint8_t)rng_u64(&r);
	n = round_trip(LEN_MAX, LEN_MAX);
	assert_true(n < (int64_t)(4 * DELTA_PAGE + 1024));
}

/* Any damage is an error or other bytes, never a fault; the seal above tells the bytes. */
static void test_damage_is_survived(void **state)
{
	struct rng r;
	int64_t n;

	rng_init(&r, 9);
	for (int mode = 0; mode < 2; mode++) {
		if (mode == 0) {
			fill_training(16384, 10);
		} else {
			memset(old, 3, 65536);
			memset(cur, 5, 65536);
			for (size_t i = 0; i < 65536; i += 5)
				cur[i] = (uint8_t)i;
		}
		n = delta_encode(coder, cur, 65536, old, 65536, 3, payload);
		for (int i = 0; i < 2000; i++) {
			size_t at = (size_t)rng_below(&r, (uint64_t)n);
			uint8_t was = payload[at];

			payload[at] ^= (uint8_t)(1 + rng_below(&r, 255));
			(void)delta_decode(coder, payload, (size_t)n, old, 65536, back, 65536);
			(void)delta_decode(coder, payload, at, old, 65536, back, 65536);
			payload[at] = was;
		}
	}
	assert_int_equal(delta_decode(coder, payload, 3, old, 65536, back, 65536), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_floats_that_moved_a_little),
		cmocka_unit_test(test_floats_that_decayed),
		cmocka_unit_test(test_special_floats),
		cmocka_unit_test(test_changed_pages_only),
		cmocka_unit_test(test_damage_is_survived),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
