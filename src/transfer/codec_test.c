/* SPDX-License-Identifier: Apache-2.0 */
/* The choices that must come out whatever the constants: small bytes on slow links, cheap ones on
 * fast links, and a change of mind when the link changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "transfer/codec.h"
#include "transfer/scavenger.h"

static unsigned run(struct codec_model *m, double delta_ratio, double wire_ns, unsigned chunks)
{
	static const double make[] = { 0.2, 3.0, 4.0 };
	unsigned deltas = 0;

	for (unsigned i = 0; i < chunks; i++) {
		enum transfer_codec c = codec_choose(m, true, true);
		double ratio = c == TRANSFER_SEALED ? 1 : c == TRANSFER_ZSTD ? 0.92 : delta_ratio;
		uint64_t payload = (uint64_t)(ratio * 1048576);

		codec_made(m, c, 1048576, payload, (uint64_t)(make[c] * 1048576));
		codec_sent(m, (uint64_t)(1e9 / wire_ns), false);
		deltas += c == TRANSFER_DELTA;
	}
	return deltas;
}

static void test_codec_follows_the_link(void **state)
{
	struct codec_model m;

	codec_model_init(&m, 8, 2);
	assert_true(run(&m, 0.72, 8, 100) > 90); /* 1 Gbit/s */
	run(&m, 0.72, 0.8, 50);
	assert_true(run(&m, 0.72, 0.8, 100) < 10); /* 10 Gbit/s each */
	run(&m, 0.72, 80, 100);
	assert_true(run(&m, 0.72, 80, 100) > 90);
	codec_model_done(&m);
	codec_model_init(&m, 8, 2);
	codec_sent(&m, 1000000, true); /* we were slow, not the path */
	run(&m, 1.01, 8, 50);
	assert_true(run(&m, 1.01, 8, 100) < 10); /* nothing in common with the base */
	codec_model_done(&m);
}

/* A link of 1 Gbit/s and 400 us, shared with `others` bit/s that do not give way. */
static uint64_t share(struct scavenger *s, uint64_t *now, uint64_t others, unsigned ms)
{
	const double capacity = 1e9;
	static double queue_bits;
	uint64_t sum = 0, rate = s->rate_bps;
	unsigned n = 0;

	for (unsigned t = 0; t < ms; t += SCAVENGER_SAMPLE_MS) {
		struct scavenger_sample x = { .min_rtt_us = 400 };

		queue_bits += ((double)rate + (double)others - capacity) * SCAVENGER_SAMPLE_MS / 1e3;
		queue_bits = queue_bits < 0 ? 0 : queue_bits > 20e6 ? 20e6 : queue_bits;
		x.rtt_us = 400 + (uint32_t)(queue_bits / capacity * 1e6);
		x.delivered_bps = rate;
		*now += SCAVENGER_SAMPLE_MS * NS_PER_MS;
		rate = scavenger_update(s, &x, *now);
		sum += rate;
		n++;
	}
	return sum / n;
}

static void test_scavenger_fills_and_yields(void **state)
{
	struct scavenger s;
	uint64_t now = NS_PER_S, alone, beside, again;

	scavenger_init(&s, 0, 0, now);
	share(&s, &now, 0, 3000);
	alone = share(&s, &now, 0, 5000);
	assert_true(alone > 700000000);
	assert_true(alone < 1050000000);
	share(&s, &now, 1000000000, 200); /* gone within a fifth of a second */
	beside = share(&s, &now, 1000000000, 5000);
	assert_true(beside < 10000000);
	share(&s, &now, 0, 5000);
	again = share(&s, &now, 0, 5000);
	assert_true(again > 700000000);
}

static void test_scavenger_keeps_its_floor(void **state)
{
	struct scavenger s;
	uint64_t now = NS_PER_S;

	scavenger_init(&s, 100000000, 0, now);
	share(&s, &now, 1000000000, 1000);
	assert_true(share(&s, &now, 1000000000, 2000) >= 100000000);
}

/* A connection that idles keeps the smoothed round trip of a bad moment for ever. */
static void test_scavenger_ignores_idle_connections(void **state)
{
	struct scavenger_sample x = { 0 };

	scavenger_sample_add(&x, 5846, 11311, 30, 2, 3140);
	assert_int_equal(x.rtt_us, 0);
	scavenger_sample_add(&x, 414, 643, 13, 1, 100);
	scavenger_sample_add(&x, 900, 643, 18, 0, 5);
	assert_int_equal(x.rtt_us, 414);
	assert_int_equal(x.min_rtt_us, 13);
	assert_int_equal(x.retrans, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codec_follows_the_link),
		cmocka_unit_test(test_scavenger_fills_and_yields),
		cmocka_unit_test(test_scavenger_keeps_its_floor),
		cmocka_unit_test(test_scavenger_ignores_idle_connections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
