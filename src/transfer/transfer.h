/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of moving images: it starts `reclaim-transfer` children and
 * drives them over a socketpair with JSON lines, so that whatever happens to a
 * transfer (a crash, a kill -9, a full disk) is contained there and comes back
 * as a named error. Everything here runs on the caller's libuv loop; callbacks
 * come from the loop, never from inside a call of this header.
 *
 * The receiver is one child per agent, restarted when it dies. Arrived chunks
 * are kept on disk, so after a break of any kind only what lacks travels.
 *
 * Senders queue per (job, peer): one runs, and a newer image takes the place
 * of an older one that waits ("superseded"). A newer one of class
 * TRAFFIC_DEADLINE also cancels an older one that runs.
 */
#ifndef RECLAIM_TRANSFER_TRANSFER_H
#define RECLAIM_TRANSFER_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/diag.h"
#include "image/store.h"
#include "wire/traffic_class.h"
#include "wire/transfer_frame.h"

/* ---- receiving ---- */

struct transfer_receiver;

struct transfer_incoming {
	char job[IMAGE_JOB_MAX + 1];
	uint64_t epoch, seq;
	char image[IMAGE_DIGEST_HEX + 1];
	char from[65];          /* name in the peer's certificate */
	char ticket_serial[33];
	bool hold_only;         /* the ticket let us keep it, not open it */
	uint64_t bytes_total;   /* of the chunks we lacked, as stored */
	uint64_t bytes_wire;    /* payload received in all sessions of this process */
	uint64_t ms;            /* since the session began */
};

struct transfer_receiver_callbacks {
	/* The socket is open (again, after a restart of the child). */
	void (*listening)(void *arg, uint16_t port);
	void (*started)(void *arg, const struct transfer_incoming *in);
	/* The image is whole and on disk here. Not yet durable: that takes the commit record. */
	void (*received)(void *arg, const struct transfer_incoming *in);
	/* A session ended without; what arrived is kept unless the code says otherwise. `in` may
	 * be half filled when the peer was refused early. */
	void (*failed)(void *arg, const struct transfer_incoming *in, enum transfer_code code,
		       const struct diag *diag);
	/* The child died; it is started again at once, then with growing pauses (at most 5 s). */
	void (*crashed)(void *arg, const struct diag *diag);
};

struct transfer_receiver_params {
	const char *program;      /* path of reclaim-transfer; NULL = beside the running program */
	const char *store_dir;
	const char *identity_dir;
	const char *listen_addr;  /* "0.0.0.0", "::", ... */
	uint16_t port;            /* 0 = any */
	uint64_t disk_reserve;    /* bytes to leave free on the store's file system */
	unsigned sessions_max;    /* 0 = 4 */
};

/* Strings are copied. Callbacks may be NULL one by one. Returns 0 or -errno with diag. */
int transfer_receiver_start(uv_loop_t *loop, const struct transfer_receiver_params *p,
			    const struct transfer_receiver_callbacks *cb, void *arg,
			    struct transfer_receiver **ret, struct diag *diag);
/* Refuses arrivals of this job from older epochs from now on (also kept in the store). */
void transfer_receiver_fence(struct transfer_receiver *r, const char *job, uint64_t epoch);
/* Drops a partial arrival: the reclaim was cancelled, or the job is gone. image NULL = all. */
void transfer_receiver_drop(struct transfer_receiver *r, const char *job, const char *image);
/* Serve images to fetchers, or not (lend terms while the owner is at the machine). Default yes. */
void transfer_receiver_serve(struct transfer_receiver *r, bool serve);
/* Ends the child and frees; done (may be NULL) runs when nothing of it is left on the loop. */
void transfer_receiver_stop(struct transfer_receiver *r, void (*done)(void *arg), void *arg);
/* -1 while no child runs. For tests and the owner's status. */
pid_t transfer_receiver_pid(const struct transfer_receiver *r);

/* ---- sending and fetching ---- */

struct transfer_sender;

struct transfer_progress_info {
	uint64_t bytes_done, bytes_total; /* payload; total is an estimate while deltas are made */
	uint64_t chunks_done, chunks_total;
	uint64_t rate_bps;                /* measured over about the last second */
	uint64_t ms;
	uint32_t rtt_us, queue_us;        /* path: round trip, estimated queueing in it */
};

struct transfer_result {
	char image[IMAGE_DIGEST_HEX + 1];
	uint64_t bytes_wire;    /* payload and framing, in all connections of this transfer */
	uint64_t bytes_stored;  /* of the chunks that were lacking, as stored */
	uint64_t chunks_sent, chunks_delta, chunks_zstd;
	uint64_t ms;
	uint32_t reconnects;
	uint64_t peak_rss_bytes; /* of the child, without page cache */
	uint64_t cpu_us;        /* of the child */
};

struct transfer_sender_callbacks {
	void (*progress)(void *arg, const struct transfer_progress_info *p); /* about twice a second */
	/* Exactly one of the two, last. After it the sender is freed. */
	void (*done)(void *arg, const struct transfer_result *r);
	void (*failed)(void *arg, enum transfer_code code, const struct diag *diag);
};

struct transfer_sender_params {
	const char *program;        /* as above */
	const char *store_dir;
	const char *identity_dir;
	const char *peer_host;
	uint16_t peer_port;
	const char *bind_addr;      /* local address, or NULL */
	const char *ticket;         /* text, see wire/ticket.h */
	const char *job;
	const char *image;          /* digest, hexadecimal */
	const uint8_t *key;         /* IMAGE_KEY_LEN bytes, or NULL: then chunks travel as stored */
	enum traffic_class traffic_class; /* TRAFFIC_DEADLINE or TRAFFIC_SCAVENGER */
	uint64_t floor_bps;         /* granted now; the scavenger may have 0 */
	uint64_t rate_max_bps;      /* 0 = none: above its floor it yields to others by delay; a deadline
				     * move without floor and limit goes as fast as it can */
	uint32_t mark_tag;          /* the job's tag in socket marks */
	uint64_t retry_ms;          /* how long to look for a lost peer; 0 = 30,000 */
	unsigned streams;           /* 0 = chosen */
};

int transfer_sender_start(uv_loop_t *loop, const struct transfer_sender_params *p,
			  const struct transfer_sender_callbacks *cb, void *arg,
			  struct transfer_sender **ret, struct diag *diag);
/* Takes effect inside the running TCP connections. */
void transfer_sender_set_rate(struct transfer_sender *t, uint64_t floor_bps,
			      uint64_t rate_max_bps);
void transfer_sender_set_class(struct transfer_sender *t, enum traffic_class c);
/* failed() follows with TRANSFER_E_CANCELLED, unless done() got there first. */
void transfer_sender_cancel(struct transfer_sender *t);
/* -1 while it waits in the queue. */
pid_t transfer_sender_pid(const struct transfer_sender *t);

/* The same in the other direction: asks the holder at peer_host for the image (a ticket of use
 * TICKET_FETCH), into our store; chunks that are here already do not travel. key is not used. */
int transfer_fetch_start(uv_loop_t *loop, const struct transfer_sender_params *p,
			 const struct transfer_sender_callbacks *cb, void *arg,
			 struct transfer_sender **ret, struct diag *diag);

#endif
