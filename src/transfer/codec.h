/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which form of a chunk travels: as stored, zstd, or the delta. Chosen per
 * chunk from what was measured in this transfer: the cost of making each
 * form, what it leaves over, and how long a byte takes on its link. Everything
 * adapts, so a link that becomes slower gets smaller bytes. Thread-safe.
 */
#ifndef RECLAIM_TRANSFER_CODEC_H
#define RECLAIM_TRANSFER_CODEC_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/transfer_frame.h"

struct codec_model {
	pthread_mutex_t lock;
	double make_ns[TRANSFER_CODEC_COUNT]; /* per plain byte, on top of reading it */
	double ratio[TRANSFER_CODEC_COUNT];   /* payload bytes per plain byte */
	unsigned tried[TRANSFER_CODEC_COUNT];
	double wire_ns; /* per payload byte on one link */
	unsigned chunks;
};

/* wire_ns: a first guess. */
void codec_model_init(struct codec_model *m, double wire_ns);
void codec_model_done(struct codec_model *m);
enum transfer_codec codec_choose(struct codec_model *m, bool can_zstd, bool can_delta);
void codec_made(struct codec_model *m, enum transfer_codec c, uint64_t plain, uint64_t payload,
		uint64_t ns);
void codec_sent(struct codec_model *m, uint64_t payload, uint64_t ns);

#endif
