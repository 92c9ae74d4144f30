/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/scavenger.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"

#define RATE_MIN UINT64_C(500000)    /* enough to see the path and to end one day */
#define RATE_START UINT64_C(8000000)
#define RATE_TOP UINT64_C(100000000000)
#define PROBE_EVERY_NS (4 * NS_PER_S)
#define PROBE_FOR_NS (60 * NS_PER_MS)

void scavenger_init(struct scavenger *s, uint64_t floor_bps, uint64_t max_bps, uint64_t now_ns)
{
	memset(s, 0, sizeof(*s));
	s->floor_bps = floor_bps;
	s->max_bps = max_bps ? max_bps : RATE_TOP;
	s->rate_bps = MAX(floor_bps, RATE_START);
	s->rate_bps = MIN(s->rate_bps, s->max_bps);
	s->probe_ns = now_ns + PROBE_EVERY_NS;
	s->start = true;
}

void scavenger_sample_add(struct scavenger_sample *x, uint32_t rtt_us, uint32_t rttvar_us,
			  uint32_t min_rtt_us, uint64_t retrans, uint32_t idle_ms)
{
	x->retrans += retrans;
	if (min_rtt_us && (!x->min_rtt_us || min_rtt_us < x->min_rtt_us))
		x->min_rtt_us = min_rtt_us;
	if (idle_ms > SCAVENGER_IDLE_MS || !rtt_us || (x->rtt_us && x->rtt_us <= rtt_us))
		return;
	x->rtt_us = rtt_us;
	x->rttvar_us = rttvar_us;
}

static uint64_t clamp(const struct scavenger *s, uint64_t rate)
{
	uint64_t least = MAX(RATE_MIN, s->floor_bps), up = MAX(rate, least);

	return MIN(up, s->max_bps);
}

/* Queueing by the least of the last samples: one late wake-up of a busy machine is no queue. */
static uint32_t queue_estimate(struct scavenger *s, const struct scavenger_sample *x)
{
	uint32_t low = UINT32_MAX;

	s->window[s->window_at++ % SCAVENGER_WINDOW] = x->rtt_us;
	for (unsigned i = 0; i < MIN(s->window_at, (unsigned)SCAVENGER_WINDOW); i++)
		low = MIN(low, s->window[i]);
	if (x->min_rtt_us && (!s->base_us || x->min_rtt_us < s->base_us))
		s->base_us = x->min_rtt_us;
	return low > s->base_us ? low - s->base_us : 0;
}

static void cut(struct scavenger *s, double factor, uint32_t rtt_us, uint64_t now_ns)
{
	/* Once per round trip: the answer to a cut takes that long to show. */
	if (now_ns - s->cut_ns < (uint64_t)rtt_us * NS_PER_US)
		return;
	s->rate_bps = clamp(s, (uint64_t)((double)s->rate_bps * factor));
	s->cut_ns = now_ns;
	s->start = false;
}

uint64_t scavenger_update(struct scavenger *s, const struct scavenger_sample *x, uint64_t now_ns)
{
	uint32_t queue = queue_estimate(s, x);
	bool lost = x->retrans > s->retrans;

	s->retrans = x->retrans;
	s->queue_us = queue;
	if (s->probe_end_ns) {
		if (now_ns < s->probe_end_ns)
			return clamp(s, RATE_MIN);
		s->probe_end_ns = 0;
		s->probe_ns = now_ns + PROBE_EVERY_NS;
		s->rate_bps = s->rate_before;
	}
	if (lost) {
		cut(s, 0.5, x->rtt_us, now_ns);
	} else if (queue > SCAVENGER_TARGET_US) {
		double over = (double)(queue - SCAVENGER_TARGET_US) / SCAVENGER_TARGET_US;

		cut(s, 1.0 - 0.5 * MIN(over, 1.0), x->rtt_us, now_ns);
	} else if (x->delivered_bps * 2 > s->rate_bps || s->start) {
		/* Up only while the rate is used: an idle sender learns nothing. */
		double room = 1.0 - (double)queue / SCAVENGER_TARGET_US;

		if (s->start && queue > SCAVENGER_TARGET_US / 2)
			s->start = false;
		s->rate_bps = clamp(s, (uint64_t)((double)s->rate_bps * (1.0 + (s->start ? 0.25 : 0.03) * room)) +
					      200000);
	}
	if (now_ns >= s->probe_ns && s->rate_bps > 4 * RATE_MIN) {
		s->rate_before = s->rate_bps;
		s->probe_end_ns = now_ns + PROBE_FOR_NS;
		return clamp(s, RATE_MIN);
	}
	return s->rate_bps;
}
