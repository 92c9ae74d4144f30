/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/codec.h"

#include <string.h>

#define PROBE_EVERY 32 /* chunks; every form that can be made is tried again that often */
#define WEIGHT 0.2

void codec_model_init(struct codec_model *m, double wire_ns)
{
	memset(m, 0, sizeof(*m));
	pthread_mutex_init(&m->lock, NULL);
	/* Guesses until measured: an incompressible image, a delta that saves a fifth. */
	m->ratio[TRANSFER_SEALED] = 1.0;
	m->ratio[TRANSFER_ZSTD] = 0.9;
	m->make_ns[TRANSFER_ZSTD] = 3.0;
	m->ratio[TRANSFER_DELTA] = 0.8;
	m->make_ns[TRANSFER_DELTA] = 4.0;
	m->wire_ns = wire_ns;
}

void codec_model_done(struct codec_model *m)
{
	pthread_mutex_destroy(&m->lock);
}

enum transfer_codec codec_choose(struct codec_model *m, bool can_zstd, bool can_delta)
{
	const bool can[TRANSFER_CODEC_COUNT] = { true, can_zstd, can_delta };
	enum transfer_codec best = TRANSFER_SEALED;
	double least = 1e300;
	unsigned n;

	pthread_mutex_lock(&m->lock);
	n = m->chunks++;
	for (int c = 0; c < TRANSFER_CODEC_COUNT; c++) {
		double cost = m->make_ns[c] + m->ratio[c] * m->wire_ns;

		if (can[c] && cost < least) {
			least = cost;
			best = (enum transfer_codec)c;
		}
	}
	/* zstd of the whole after the second chunk, then each form now and then; but never one
	 * that costs many times the best: on a fast link the probes themselves would be felt. */
	if (n % PROBE_EVERY == 2 && can_zstd && m->make_ns[TRANSFER_ZSTD] < 8 * least)
		best = TRANSFER_ZSTD;
	else if (n % PROBE_EVERY == 3 && can_delta && m->make_ns[TRANSFER_DELTA] < 8 * least)
		best = TRANSFER_DELTA;
	pthread_mutex_unlock(&m->lock);
	return best;
}

static void blend(double *mean, double value, unsigned *tried)
{
	*mean = *tried ? *mean + WEIGHT * (value - *mean) : value;
	(*tried)++;
}

void codec_made(struct codec_model *m, enum transfer_codec c, uint64_t plain, uint64_t payload,
		uint64_t ns)
{
	unsigned tried;

	if (plain == 0)
		return;
	pthread_mutex_lock(&m->lock);
	tried = m->tried[c];
	blend(&m->make_ns[c], (double)ns / (double)plain, &tried);
	blend(&m->ratio[c], (double)payload / (double)plain, &m->tried[c]);
	pthread_mutex_unlock(&m->lock);
}

void codec_sent(struct codec_model *m, uint64_t payload, uint64_t ns)
{
	if (payload < 65536)
		return; /* says more about the system call than about the path */
	pthread_mutex_lock(&m->lock);
	m->wire_ns += WEIGHT * ((double)ns / (double)payload - m->wire_ns);
	pthread_mutex_unlock(&m->lock);
}
