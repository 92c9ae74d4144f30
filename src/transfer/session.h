/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One conversation about one image. The sending and the receiving half do not
 * care who opened the connections: a pushing sender and a serving holder run
 * the same code, and so do a listening receiver and a fetcher.
 *
 * A session has one control link (frames both ways) and some data links
 * (chunks, one way). It lives on the thread that runs it; data links come with
 * a thread each. It ends by success, a named failure, or a broken link, after
 * which a new session goes on with what the receiver kept.
 */
#ifndef RECLAIM_TRANSFER_SESSION_H
#define RECLAIM_TRANSFER_SESSION_H

#include <stdatomic.h>

#include "image/store.h"
#include "transfer/link.h"
#include "transfer/pacer.h"
#include "wire/transfer_frame.h"

/* How a session ended. TRANSFER_E_LINK and TRANSFER_E_BUSY are worth another try. */
struct session_end {
	enum transfer_code code;
	bool from_peer; /* the peer said so: it need not be told */
	struct diag diag;
};

enum transfer_code transfer_code_of(int err); /* of image and link errors */
/* By an error of our own; diag may be NULL or empty. */
void session_end_set(struct session_end *end, int err, const struct diag *diag);
/* By the peer's FAIL: 1, or -EPROTO when it is none. */
int session_end_take(struct session_end *end, const uint8_t *body, size_t len, struct diag *diag);

/* ---- sending ---- */

struct send_params {
	struct image_store *store;
	const char *job, *image;
	const uint8_t *key;      /* or NULL: chunks as stored */
	unsigned streams;        /* data links wanted; 0 = by image */
	struct pacer *pacer;
	atomic_bool *cancel;
	int wake_fd;             /* readable when cancel is set; -1 = none */
	/* Opens data link `stream` (1...) from its own thread; NULL: they come by send_attach. */
	int (*open)(void *arg, unsigned stream, struct link **ret, struct diag *diag);
	void *open_arg;
};

/* Counters that other threads read. */
struct send_stats {
	atomic_ullong bytes_sent, bytes_stored, bytes_total, chunks_total, chunks_sent, chunks_delta,
		chunks_zstd, bytes_done, chunks_done;
};

struct send_session;
int send_session_new(const struct send_params *p, struct send_stats *stats,
		     struct send_session **ret, struct session_end *end);
void send_session_free(struct send_session *s);
/* From OFFER to COMMITTED. */
void send_session_run(struct send_session *s, struct link *control, struct session_end *end);
/* Serves one data link on the caller's thread until the session ends. */
void send_session_attach(struct send_session *s, struct link *l);

/* ---- receiving ---- */

struct receive_params {
	struct image_store *store;
	const char *job;
	uint8_t image[IMAGE_DIGEST_LEN];
	uint64_t epoch;          /* of the ticket: the image's must be the same */
	uint64_t reserve;
	bool hold_only;          /* a key that comes all the same is not taken */
	atomic_bool *cancel;
	/* As above, for a fetcher. */
	int (*open)(void *arg, unsigned stream, struct link **ret, struct diag *diag);
	void *open_arg;
	unsigned streams;
	void (*started)(void *arg, const struct image_info *info, uint64_t lacking_bytes);
	void *started_arg;
};

struct receive_stats {
	atomic_ullong bytes_wire, bytes_total, chunks_total, chunks_done, bytes_done;
};

struct receive_session;
int receive_session_new(const struct receive_params *p, struct receive_stats *stats,
			struct receive_session **ret, struct session_end *end);
void receive_session_free(struct receive_session *s);
void receive_session_run(struct receive_session *s, struct link *control, struct image_info *ret,
			 struct session_end *end);
void receive_session_attach(struct receive_session *s, struct link *l);

#endif
