/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which form of a chunk travels: as stored, zstd, or the delta. Chosen per
 * chunk from what was measured in this transfer: the CPU time that each form
 * costs, what it leaves over, and how long a byte takes on its link, as acknowledgements
 * say it (the time a write blocks would measure buffers). Everything adapts, so a link that becomes slower gets smaller bytes.
 * A byte on the wire counts for more than its time: others share the link.
 * Thread-safe.
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
	double link_ns; /* per payload byte, all connections together */
	unsigned parallel;
	unsigned chunks;
};

/* link_ns: a first guess. parallel: how many chunks can be made at the same time. */
void codec_model_init(struct codec_model *m, double link_ns, unsigned parallel);
void codec_model_done(struct codec_model *m);
enum transfer_codec codec_choose(struct codec_model *m, bool can_zstd, bool can_delta);
void codec_made(struct codec_model *m, enum transfer_codec c, uint64_t plain, uint64_t payload,
		uint64_t ns);
/* What the path took lately, all connections together; app_limited: it could do more. */
void codec_sent(struct codec_model *m, uint64_t bytes_per_s, bool app_limited);

#endif
