/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/codec.h"

#include <string.h>

#define PROBE_EVERY 64 /* chunks; every form that can be made is tried again that often */
#define PROBE_AT 40    /* a short transfer does not live to profit from it */
#define WEIGHT 0.2
#define LINK_WEIGHT 0.3
#define BYTE_WORTH 0.25  /* others share the link: a byte costs this much beyond its time */
#define CPU_WORTH 0.1

void codec_model_init(struct codec_model *m, double link_ns, unsigned parallel)
{
	memset(m, 0, sizeof(*m));
	pthread_mutex_init(&m->lock, NULL);
	/* Guesses until measured: an incompressible image, a delta that saves a fifth. */
	m->ratio[TRANSFER_SEALED] = 1.0;
	m->ratio[TRANSFER_ZSTD] = 0.9;
	m->make_ns[TRANSFER_ZSTD] = 3.0;
	m->ratio[TRANSFER_DELTA] = 0.8;
	m->make_ns[TRANSFER_DELTA] = 4.0;
	m->link_ns = link_ns;
	m->parallel = parallel;
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
		/* Making and sending overlap: the slower of the two is the time. */
		double send = m->ratio[c] * m->link_ns, make = m->make_ns[c] / m->parallel;
		double cost = (send > make ? send : make) + BYTE_WORTH * send + CPU_WORTH * m->make_ns[c];

		if (can[c] && cost < least) {
			least = cost;
			best = (enum transfer_codec)c;
		}
	}
	/* Each form now and then; but never one that costs many times the best: on a fast link
	 * the probes themselves would be felt. */
	if (n % PROBE_EVERY == PROBE_AT && can_zstd && m->make_ns[TRANSFER_ZSTD] < 8 * least)
		best = TRANSFER_ZSTD;
	else if (n % PROBE_EVERY == PROBE_AT + 1 && can_delta && m->make_ns[TRANSFER_DELTA] < 8 * least)
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

void codec_sent(struct codec_model *m, uint64_t bytes_per_s, bool app_limited)
{
	double ns;

	if (bytes_per_s == 0)
		return;
	ns = 1e9 / (double)bytes_per_s;
	pthread_mutex_lock(&m->lock);
	if (ns < m->link_ns || !app_limited)
		m->link_ns += LINK_WEIGHT * (ns - m->link_ns);
	pthread_mutex_unlock(&m->lock);
}
