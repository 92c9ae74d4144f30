/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams between the named endpoints of a job, which keep their order and
 * deliver each message exactly once while either end moves to another machine.
 *
 * A *node* is one endpoint, owned by this process while it holds the lease of
 * the name: it receives what others send to that name, and opens streams to
 * other names. One thread at a time may receive; any thread may send, flush,
 * abort, ask for statistics and close. Every call returns 0 or a count, or
 * -errno; nothing is printed. docs/streams.md explains, docs/protocol.md has
 * the bytes.
 *
 * What is promised, per node:
 *   level 1 (default)  exactly once with respect to the state that survives.
 *                      Senders keep every message until the receiver calls it
 *                      stable: reclaim_stable(), or reclaim_checkpoint() and
 *                      reclaim_durable(). A planned move carries the state over.
 *   level 0            fast: a message counts as stable when it was handed out.
 *                      Exactly once over planned moves; after the owner's crash
 *                      what was not yet acknowledged comes again, and the event
 *                      RECLAIM_RECOVERED says from which number on.
 *   level 2            the application stores its effect and (from, number,
 *                      seq, epoch) of the message in one transaction, and skips
 *                      what it already finds there. An effect outside such a
 *                      store cannot be exactly once; no library can promise it.
 */
#ifndef RECLAIM_STREAM_H
#define RECLAIM_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RECLAIM_API
#define RECLAIM_API __attribute__((visibility("default")))
#endif

struct reclaim_node;
struct reclaim_stream;
struct reclaim_group;

enum reclaim_class {
	RECLAIM_CONTROL,    /* small and urgent; before everything else */
	RECLAIM_TOKEN,      /* small, latency counts */
	RECLAIM_ACTIVATION, /* shares what is left */
	RECLAIM_BULK,       /* KV caches, checkpoints; in slices, never ahead of tokens */
};

/* A piece of memory that is application state and moves with the node. */
struct reclaim_region {
	uint32_t id;
	void *data;
	uint64_t len;
};

struct reclaim_sink;
/* Only from inside the save callback. */
RECLAIM_API int reclaim_sink_write(struct reclaim_sink *sink, const void *bytes, size_t len);

struct reclaim_node_options {
	size_t size;             /* sizeof(struct reclaim_node_options) */
	const char *name;        /* "stage-2"; NULL: $RECLAIM_STREAM_NAME */
	const char *group;       /* also a member of this group, or NULL */
	const char *registry;    /* "unix:/path" or "tcp:HOST:PORT"; NULL: $RECLAIM_STREAM_REGISTRY */
	const char *token;       /* what the registry knows this job by; NULL: $RECLAIM_STREAM_TOKEN */
	const char *listen;      /* "HOST:PORT", port 0 = any; NULL: "127.0.0.1:0" */
	const char *advertise;   /* what others connect to, when it differs from listen */
	int level;               /* 0 or 1 (2 is 1 with the application's own store); -1: default, 1 */
	bool standby;            /* wait as target of a move, or to take over when nobody owns the name */
	bool no_takeover;        /* standby: only as the target of a move */
	bool plain;              /* no TLS: for loopback, or inside an encrypted tunnel */
	bool spin;               /* blocking calls spin instead of sleeping */
	bool cursors_in_registry; /* reclaim_stable() also stores the cursors there, for takeovers */
	uint64_t retain_max;     /* bytes of unstable output kept in memory per stream; 0: 64 MiB */
	const char *spill_dir;   /* beyond that to a file here; NULL: no spill, back-pressure at once */
	uint64_t spill_max;      /* bytes of it per node; then back-pressure */
	uint64_t window;         /* receive window in bytes per stream; 0: by class */
	uint32_t freeze_ms;      /* how long a handover may stay frozen; 0: 2000 */
	uint32_t open_timeout_ms; /* for the name to be granted; 0: forever */
	/* From reclaim_checkpoint(), or NULL: the newest that was saved with the state this
	 * owner starts from. All that it covers counts as stable from here on. */
	const void *image;
	size_t image_len;
	const struct reclaim_region *regions;
	size_t regions_count;
	/* A move: hand over what is not in a region. Runs inside a receive call
	 * of the old owner, between two messages. */
	int (*save)(void *arg, struct reclaim_sink *sink);
	/* The new owner, inside its receive call before the first message. */
	int (*load)(void *arg, const void *bytes, size_t len);
	void *arg;
	/* Where a message longer than 16 KiB goes; NULL: the library's memory.
	 * Returns NULL to fall back. The memory is the application's once the
	 * message is handed out, and is handed to unalloc when it never is. */
	void *(*alloc)(void *arg, size_t len);
	void (*unalloc)(void *arg, void *mem, size_t len);
	/* Set for memory that the CPU cannot write: the bytes are given here
	 * instead, piece by piece, with the handle that alloc returned. */
	int (*put)(void *arg, void *mem, size_t offset, const void *bytes, size_t len);
};

/* Joins the job's registry, waits until the name is granted (or, as a standby, until it
 * is known). -EPERM bad token, -ETIMEDOUT, -EINVAL. */
RECLAIM_API int reclaim_node_open(const struct reclaim_node_options *options,
				  struct reclaim_node **ret);
/* Leaves the name, aborts what is still queued, frees everything; returns within 50 ms
 * whatever the state. No other call on the node may be running or follow. */
RECLAIM_API void reclaim_node_close(struct reclaim_node *n);
/* Makes every call on the node that blocks, and every later one, return -ECANCELED. Any thread. */
RECLAIM_API void reclaim_node_cancel(struct reclaim_node *n);

enum reclaim_kind {
	RECLAIM_DATA,
	RECLAIM_RECOVERED, /* messages from seq on may have been seen by a lost incarnation */
	RECLAIM_CLOSED,    /* the sender ended the stream after seq */
	RECLAIM_ABORTED,   /* the sender gave up: code */
	RECLAIM_DIVERGED,  /* a restarted producer regenerated something else at seq */
	RECLAIM_ACTIVE,    /* this standby is now the owner, in `epoch` */
};

struct reclaim_msg {
	enum reclaim_kind kind;
	enum reclaim_class cls;
	const char *from;   /* the sending node */
	uint32_t number;    /* which of its streams to us */
	uint32_t code;
	uint64_t seq;
	uint64_t epoch;     /* of this node */
	const void *data;   /* valid until the next receive call on the node */
	size_t len;
};

/* timeout_ms: -1 forever, 0 poll. 1: a message; 0: timeout. -ESTALE: this process no
 * longer owns the name (reclaim_node_state() says why); nothing was handed out. */
RECLAIM_API int reclaim_recv(struct reclaim_node *n, struct reclaim_msg *ret, int timeout_ms);
/* Up to max messages that are there, waiting for the first; their count. */
RECLAIM_API int reclaim_recv_many(struct reclaim_node *n, struct reclaim_msg *ret, int max,
				  int timeout_ms);
/* Readable when reclaim_recv(n, .., 0) has work to do; then call it until it returns 0. */
RECLAIM_API int reclaim_node_fd(struct reclaim_node *n);
/* Refuses the rest of a stream; its sender learns the code. */
RECLAIM_API int reclaim_refuse(struct reclaim_node *n, const char *from, uint32_t number,
			       uint32_t code);

struct reclaim_stream_options {
	size_t size;
	uint32_t number;      /* which stream to that name; lasting across restarts */
	bool deterministic;   /* after a restart the same messages are made again: checked */
	bool hold;            /* send only what reclaim_durable() has covered */
};

/* A stream to a name, which need not be owned yet. A stream restored from an image is
 * found again by its name and number. */
RECLAIM_API int reclaim_stream_open(struct reclaim_node *n, const char *to, enum reclaim_class cls,
				    const struct reclaim_stream_options *options,
				    struct reclaim_stream **ret);

enum {
	RECLAIM_MORE = 1, /* more follows: may wait for it, at most until the next flush,
			   * receive or blocking call, or about 2 ms */
};

/* Queues one message. -EAGAIN (timeout 0) or -ETIMEDOUT: no room (credit, retention); -EPIPE:
 * refused or aborted; -ENODATA: the owner needs what was dropped long ago. */
RECLAIM_API int reclaim_send(struct reclaim_stream *s, const void *data, size_t len, unsigned flags,
			     int timeout_ms);
RECLAIM_API int reclaim_sendv(struct reclaim_stream *s, const struct iovec *iov, int iov_count,
			      unsigned flags, int timeout_ms);
/* As many of the messages as there is room for, at least one, in one call; their count. */
RECLAIM_API int reclaim_send_many(struct reclaim_stream *s, const struct iovec *messages, int count,
				  unsigned flags, int timeout_ms);

/* Without a copy: the memory stays the caller's and unchanged until done() is called (from
 * inside any call on the node, or its helper thread; it may not call the node). */
struct reclaim_buf {
	const struct iovec *iov;
	int iov_count;
	void (*done)(void *arg);
	void *arg;
	/* Set for memory the CPU cannot read: iov[0].iov_len is the length, the
	 * bytes are fetched with this. */
	int (*get)(void *arg, size_t offset, void *bytes, size_t len);
};
RECLAIM_API int reclaim_send_buf(struct reclaim_stream *s, const struct reclaim_buf *buf,
				 unsigned flags, int timeout_ms);

RECLAIM_API int reclaim_flush(struct reclaim_stream *s);
/* Waits until the receiver has taken (stable: will never ask again for) everything sent. */
RECLAIM_API int reclaim_drain(struct reclaim_stream *s, bool stable, int timeout_ms);
/* Ends it in order: the receiver gets RECLAIM_CLOSED after the last message. */
RECLAIM_API int reclaim_stream_close(struct reclaim_stream *s);
/* Ends it now: what is not delivered is dropped, both sides say so. */
RECLAIM_API void reclaim_stream_abort(struct reclaim_stream *s, uint32_t code);

/* --- groups: members join and leave --- */
enum reclaim_pick { RECLAIM_BY_KEY, RECLAIM_LEAST_LOADED };
RECLAIM_API int reclaim_group_open(struct reclaim_node *n, const char *group,
				   enum reclaim_class cls, struct reclaim_group **ret);
/* Messages of one key go to one member, in order, also when the membership changes: then
 * those of moved keys wait until the former member has taken all of its own. What a lost
 * member had not made stable goes to the others. */
RECLAIM_API int reclaim_group_send(struct reclaim_group *g, enum reclaim_pick pick, uint64_t key,
				   const void *data, size_t len, unsigned flags, int timeout_ms);
RECLAIM_API int reclaim_group_members(struct reclaim_group *g);
RECLAIM_API void reclaim_group_close(struct reclaim_group *g);

/* --- what survives --- */
/* Everything taken so far is safe: senders may forget it. */
RECLAIM_API int reclaim_stable(struct reclaim_node *n);
/* Cursors and unstable output as of now, to be saved with the application's state: free()
 * it. Later reclaim_durable(id) says that this state will survive. */
RECLAIM_API int reclaim_checkpoint(struct reclaim_node *n, uint64_t *ret_id, void **ret_image,
				   size_t *ret_len);
RECLAIM_API int reclaim_durable(struct reclaim_node *n, uint64_t id);
/* Bytes of a region changed: a move that is under way sends them again. */
RECLAIM_API void reclaim_region_dirty(struct reclaim_node *n, uint32_t id, uint64_t offset,
				      uint64_t len);

/* --- looking at it --- */
enum reclaim_state {
	RECLAIM_STATE_JOINING,
	RECLAIM_STATE_STANDBY,
	RECLAIM_STATE_OWNER,
	RECLAIM_STATE_FROZEN,
	RECLAIM_STATE_MOVED,   /* another process took over from here */
	RECLAIM_STATE_LOST,    /* the lease ended without a word from the registry */
};
RECLAIM_API enum reclaim_state reclaim_node_state(struct reclaim_node *n);
RECLAIM_API uint64_t reclaim_node_epoch(struct reclaim_node *n);
RECLAIM_API uint64_t reclaim_node_instance(struct reclaim_node *n);

struct reclaim_stats {
	uint64_t messages_sent, bytes_sent, messages_received, bytes_received;
	uint64_t messages_resent, duplicates_dropped, stale_refused;
	uint64_t acks_sent, links, links_broken, moves_in, moves_out, moves_aborted, recoveries;
	uint64_t retained_bytes, spilled_bytes, queued_bytes;
	uint64_t blocked_ns;         /* senders waiting for room */
	/* The last handover, ns since it began (0 = did not happen). */
	uint64_t move_ready_ns, move_frozen_ns, move_cut_ns, move_committed_ns, move_first_ns;
	uint64_t move_state_bytes;
};
RECLAIM_API void reclaim_node_stats(struct reclaim_node *n, struct reclaim_stats *ret);
/* JSON: the node, its streams, credits, the last handover, the last events. free() it. */
RECLAIM_API char *reclaim_node_describe(struct reclaim_node *n);
/* The counters in the Prometheus text format. free() it. */
RECLAIM_API char *reclaim_node_metrics(struct reclaim_node *n);

/* --- moving --- */
/* Asks the registry to move this name to the standby with that instance number; for the
 * scheduler's use, tests and tools. Returns when the attempt has begun. */
RECLAIM_API int reclaim_move(const char *registry, const char *token, const char *name,
			     uint64_t target_instance);

#ifdef __cplusplus
}
#endif

#endif
