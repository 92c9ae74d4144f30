/* SPDX-License-Identifier: Apache-2.0 */
/* What agent and helper say to each other: one JSON object a line on a socketpair (descriptor 3 of
 * the helper). Both come from one build, so one flat table serves both directions. */
#ifndef RECLAIM_TRANSFER_MESSAGE_H
#define RECLAIM_TRANSFER_MESSAGE_H

#include "base/schema.h"

#define MESSAGE_LINE_MAX 32768
#define MESSAGE_FD 3

enum message_type {
	/* to the helper: the first line says what it is */
	MESSAGE_RECEIVE,
	MESSAGE_SEND,
	MESSAGE_FETCH,
	MESSAGE_FENCE,
	MESSAGE_DROP,
	MESSAGE_SERVE,
	MESSAGE_RATE,
	MESSAGE_CLASS,
	MESSAGE_CANCEL,
	/* from it */
	MESSAGE_LISTENING,
	MESSAGE_STARTED,
	MESSAGE_RECEIVED,
	MESSAGE_PROGRESS,
	MESSAGE_DONE,
	MESSAGE_FAILED,
	MESSAGE_TYPE_COUNT,
};

struct message {
	int type; /* enum message_type */
	char *store, *identity, *host, *bind, *ticket, *job, *image, *key, *from, *serial, *code, *where,
		*what;
	uint64_t port, reserve, sessions, traffic_class, floor_bps, rate_max_bps, mark_tag, retry_ms,
		streams, epoch, seq, bytes_total, bytes_wire, bytes_stored, bytes_done, chunks_done,
		chunks_total, chunks_delta, chunks_zstd, ms, rate_bps, rtt_us, queue_us, reconnects,
		rss_bytes, cpu_us;
	bool serve, hold_only;
};
extern const struct schema message_schema;

/* A malloc'd line with its newline, or NULL. */
char *message_format(const struct message *m, size_t *ret_len);
int message_parse(const char *line, size_t len, struct message *ret, struct diag *diag);
void message_done(struct message *m);

#endif
