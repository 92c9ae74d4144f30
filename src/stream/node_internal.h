/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files that make a node. One lock per node covers all of this;
 * whoever holds it may read and write sockets, nobody sleeps with it but a
 * save callback's sink. Data flow:
 *
 *   send.c -> segment.c (retained in wire form) -> out.c -> link.c (gather by class)
 *   socket -> link_read.c (frames) -> in.c (runs queued per class) -> receive.c
 *   timers, registry, handover: node.c, regclient.c, move.c
 *
 * Trusted: nothing from a socket. A link whose peer breaks the protocol is
 * closed, which costs a reconnect and never a message.
 */
#ifndef RECLAIM_STREAM_NODE_INTERNAL_H
#define RECLAIM_STREAM_NODE_INTERNAL_H

#include <pthread.h>
#include <reclaim/stream.h>
#include <stdio.h>
#include <sys/queue.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "stream/owner.h"
#include "stream/receiver.h"
#include "stream/seal.h"
#include "stream/sender.h"
#include "wire/registry_frame.h"
#include "wire/stream_frame.h"

#ifndef RECLAIM_MOBILITY
#define RECLAIM_MOBILITY 1
#endif

enum {
	RECORD_MAX = 16 << 10,       /* longer messages travel as FRAG */
	SEGMENT_MIN = 4 << 10,
	SEGMENT_MAX = 64 << 10,
	BLOCK_SIZE = 256 << 10,
	SLICE_MIN = 16 << 10,
	SLICE_MAX = 512 << 10,
	GATHER_MAX = 64,             /* iovecs of one sendmsg */
	HANDLES_MAX = 65536,
	EVENTS_MAX = 64,
	LINKS_MAX = 4096,
	CHECKPOINTS_MAX = 16,
	DIGESTS_MAX = 1024,
};

enum source { SOURCE_LISTEN, SOURCE_LINK, SOURCE_REGISTRY, SOURCE_WAKE };

struct node;
struct link;

/* --- output --- */

enum segment_kind { SEGMENT_RUN, SEGMENT_MESSAGE };

struct segment {
	TAILQ_ENTRY(segment) next;
	enum segment_kind kind;
	uint64_t seq;           /* of its first message */
	uint32_t count;
	uint32_t len;           /* bytes of records, or of the message */
	uint32_t cap;
	uint32_t pins;          /* pieces of it in an unfinished write */
	bool dead;              /* trimmed while pinned */
	uint8_t *data;          /* NULL: spilled, or external */
	struct iovec *iov;      /* external memory */
	int iov_count;
	struct reclaim_buf buf; /* done, get */
	int64_t spill_at;       /* offset in the spill file, -1 none */
};
TAILQ_HEAD(segments, segment);

struct reclaim_stream {
	TAILQ_ENTRY(reclaim_stream) entry;  /* node->outs */
	TAILQ_ENTRY(reclaim_stream) ready;  /* link's lists */
	bool is_ready;
	struct reclaim_node *node;
	char to[STREAM_NAME_MAX + 1];
	uint32_t number;
	enum reclaim_class cls;
	bool deterministic, hold, restored, owned_by_group;
	struct sender tx;

	struct segments segments;
	struct segment *cursor;   /* being sent */
	uint32_t cursor_at;       /* byte in it */
	uint32_t segment_cap;
	uint64_t retained;        /* bytes in memory */
	uint64_t unsent;          /* bytes */
	struct link *link;
	uint32_t handle;
	bool attach_sent;

	/* route */
	bool route_wanted, route_asked, have_route, moved_hint;
	uint64_t route_at_ns;     /* not before */
	uint32_t backoff_ms;
	uint64_t asked_ns;
	char locator[STREAM_LOCATOR_MAX + 1];
	uint8_t ticket[STREAM_TICKET_MAX];
	uint32_t ticket_len;
	uint8_t session[SEAL_KEY_LEN];

	/* connecting ahead to the target of a move */
	struct {
		bool asked, attached;
		uint64_t epoch;
		struct link *link;
		uint32_t handle;
		char locator[STREAM_LOCATOR_MAX + 1];
		uint8_t ticket[STREAM_TICKET_MAX];
		uint32_t ticket_len;
		uint8_t session[SEAL_KEY_LEN];
	} ahead;

	bool closing, closed_sent;
	int error;                /* sticky */
	uint32_t abort_code;
};
TAILQ_HEAD(outs, reclaim_stream);

/* --- input --- */

struct block {
	uint32_t refs;
	uint32_t cap;
	uint8_t data[];
};

struct big {                  /* one long message being put together, or handed out */
	uint8_t *data;
	size_t len, cap;
	bool application;         /* from the alloc callback */
};

struct run {
	enum reclaim_kind kind;
	struct in *in;
	uint32_t generation;
	uint32_t code;
	struct block *block;
	uint8_t *copy;            /* instead of a block */
	struct big *big;
	const uint8_t *at, *end;
	uint64_t seq;
	uint32_t count;
};

struct in {
	struct reclaim_node *node;
	char from[STREAM_NAME_MAX + 1];
	uint32_t number;
	uint8_t cls;
	struct receiver rx;
	struct link *link;
	uint32_t handle;
	uint32_t generation;      /* queued runs of an older one are dropped */
	uint64_t queued;          /* bytes */
	uint64_t frag_have;       /* of message rx.arrived + 1 */
	struct big *frag;
	uint32_t frag_total;
	uint8_t *put_buf;         /* a piece on its way to the put callback */
	uint32_t put_at, put_len;
	bool recover_told;
	bool deterministic, refused, ack_listed, replay;
	bool close_known;
	uint64_t close_seq;
	uint64_t *digests;        /* of the last DIGESTS_MAX messages, when deterministic */
};

struct run_queue {
	struct run *data;
	size_t head, count, cap;  /* cap is a power of two */
};

/* --- links --- */

struct pend {
	struct iovec iov;
	struct segment *segment;
};

struct link {
	enum source source;       /* first: epoll hands it back */
	struct reclaim_node *node;
	TAILQ_ENTRY(link) entry;
	int fd;
	bool incoming, connecting, up, dead, want_out;
	bool reading, timeout_set; /* see link_sleep */
	bool greeted;
	bool local;               /* the peer is on this machine */
	void *tls;                /* SSL */
	bool tls_done;
	char locator[STREAM_LOCATOR_MAX + 1];
	char peer[STREAM_NAME_MAX + 1]; /* an incoming link's, once its ticket fitted */
	uint64_t peer_epoch;
	uint64_t tls_epoch;       /* the ticket that opened it */
	uint8_t tls_session[SEAL_KEY_LEN];
	uint8_t tls_ticket[STREAM_TICKET_MAX];
	uint32_t tls_ticket_len;
	uint64_t last_in_ns, last_out_ns, opened_ns;

	struct block *block;
	uint32_t rd, wr;
	struct in *direct;        /* payload of a FRAG goes straight into its message */
	uint32_t direct_left;
	uint8_t *direct_at;
	bool direct_drop;
	bool direct_last;
	uint64_t direct_seq;

	struct strbuf ctl, ctl_out;
	struct outs ready[3];     /* control, token, the rest */
	bool state_ready;         /* a move's state wants to go out here */
	struct pend pend[GATHER_MAX];
	int pend_count, pend_at;
	uint8_t heads[GATHER_MAX][STREAM_FRAG_HEAD];
	int heads_used;
	uint8_t *stage;           /* TLS, device memory: bytes gathered in one piece */
	size_t stage_len, stage_at;

	uint32_t slice, lowat, queue_cap, expect; /* what the socket was told */
	uint64_t rate_from_ns, rate_bytes;
	bool backlogged;

	struct VEC(struct reclaim_stream *) outs;  /* by handle */
	struct VEC(struct in *) ins;
	struct VEC(struct stream_frame_saved *) waiting; /* ATTACH before activation */
};
TAILQ_HEAD(links, link);

/* An ATTACH that waits for this process to become the owner. */
struct stream_frame_saved {
	struct stream_frame f;
	uint8_t ticket[STREAM_TICKET_MAX];
};

/* --- moves --- */

struct region {
	uint32_t id;
	uint8_t *data;
	uint64_t len;
	uint64_t sent;            /* ahead of the freeze */
	uint8_t *dirty;           /* one bit per 4 KiB, NULL until a move begins */
	uint64_t dirty_from;      /* scan position */
};

struct move {
	bool source, target;
	uint64_t hid;
	struct link *link;
	char locator[STREAM_LOCATOR_MAX + 1];
	uint8_t ticket[STREAM_TICKET_MAX];
	uint32_t ticket_len;
	uint8_t session[SEAL_KEY_LEN];
	bool offered, peer_ready, ahead_done, freeze_wanted, cut_sent, final;
	uint32_t ahead;           /* streams that have attached ahead at T */
	struct strbuf opaque;     /* from save(), or for load() */
	struct strbuf library;
	uint64_t state_bytes;     /* sent or received */
	unsigned rounds;          /* passes over dirty pages so far */
	uint64_t opaque_sent, library_sent;
	uint64_t began_ns, ready_ns, frozen_ns, cut_ns, committed_ns, first_ns;
	bool load_due;
};

struct snapshot {
	uint64_t id;
	struct VEC(struct { struct in *in; uint64_t cur; }) ins;
	struct VEC(struct { struct reclaim_stream *out; uint64_t last; }) outs;
};

struct event {
	uint64_t at_ns;
	const char *what;         /* a literal */
	char who[STREAM_NAME_MAX + 1];
	uint64_t a, b;
};

struct question {
	uint32_t id;
	uint8_t op;
	uint64_t asked_ns, hid;
	void *about;              /* reclaim_stream, reclaim_group; NULL once that is gone */
	bool ahead;
	uint64_t cursors_id;      /* STORE: snapshot */
};

struct regclient {
	enum source source;
	int fd;
	bool connecting, up, joined;
	uint32_t next_id;
	struct strbuf in, out;
	bool want_out;
	uint64_t retry_ns, last_in_ns;
	struct VEC(struct question) questions;
	uint64_t ttl_ns;
	uint64_t renew_asked_ns;
	int error;                /* refused: no use to go on */
};

struct listener {
	enum source source;
	int fd;
};

struct group_member {
	char name[STREAM_NAME_MAX + 1];
	struct reclaim_stream *out;
	bool leaving;
};

struct reclaim_group {
	TAILQ_ENTRY(reclaim_group) entry;
	struct reclaim_node *node;
	char name[STREAM_NAME_MAX + 1];
	enum reclaim_class cls;
	struct VEC(struct group_member) members;
	bool asked, known, settling; /* a change: keyed sends wait for the former members */
};
TAILQ_HEAD(groups, reclaim_group);

struct reclaim_node {
	pthread_mutex_t lock, next; /* see node_lock */
	unsigned lock_waiters;
	pthread_cond_t cond;
	pthread_t keeper;
	bool keeper_runs, polling, cancelled, closing;
	unsigned cond_waiters;
	uint64_t progress_ns;     /* when a thread last looked at the sockets */

	struct reclaim_node_options options;
	char *registry_address, *token, *advertise;
	char name[STREAM_NAME_MAX + 1], group[STREAM_NAME_MAX + 1];
	uint64_t instance;
	int level;

	struct owner owner;
	uint8_t key[SEAL_KEY_LEN], key_next[SEAL_KEY_LEN];
	uint64_t key_epoch, key_next_epoch;
	bool recovered;           /* this epoch began without a handover */
	bool moved;               /* GONE because another took over */
	bool active_event, active_told;

	int epoll_fd;
	enum source wake_source;
	int wake_fd;
	struct listener listener;
	bool fd_given;
	struct links links;
	struct links grave;       /* freed at the end of a turn */
	size_t links_count;
	struct link *hot;         /* spoke last */
	struct link *steady;      /* hot for steady_count messages on end */
	unsigned steady_count;
	struct link *unwatched;   /* out of the epoll set while a thread sleeps on it, and a little longer */
	struct regclient reg;

	struct outs outs;
	struct map *in_map;
	struct VEC(struct in *) ins;
	struct VEC(struct in *) acks;
	uint64_t ack_at_ns;       /* 0: none pending */
	struct run_queue queues[STREAM_CLASS_COUNT];
	uint64_t queued_messages_hint;
	/* What the last receive call handed out. */
	struct VEC(struct big *) given_bigs;
	struct VEC(struct block *) given_blocks;
	struct VEC(uint8_t *) given_copies;
	bool in_receive, received_once;
	struct VEC(struct big *) big_pool;
	uint64_t big_pool_bytes;
	struct segments segment_pool;
	unsigned segment_pool_count;
	struct VEC(struct block *) block_pool;

	struct move move;
	struct VEC(struct region) regions;
	struct groups groups;
	struct VEC(struct snapshot *) snapshots;
	uint64_t next_snapshot;

	int spill_fd;
	int64_t spill_end;
	uint64_t spill_live;

	uint64_t now_ns;
	uint64_t timer_ns;
	uint64_t beat_ns;
	bool deferred;            /* RECLAIM_MORE output waits */

	struct reclaim_stats stats;
	struct event events[EVENTS_MAX];
	uint64_t events_count;
};

/*
 * First come, first served. A thread that fills a link with bulk releases the lock for
 * microseconds only; with a plain mutex another one's token waited for 300 ms.
 */
static inline void node_lock(struct reclaim_node *n)
{
	if (!__atomic_load_n(&n->lock_waiters, __ATOMIC_RELAXED) && !pthread_mutex_trylock(&n->lock))
		return;
	__atomic_fetch_add(&n->lock_waiters, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&n->next);
	pthread_mutex_lock(&n->lock);
	pthread_mutex_unlock(&n->next);
	__atomic_fetch_sub(&n->lock_waiters, 1, __ATOMIC_RELAXED);
}

static inline bool node_try_lock(struct reclaim_node *n)
{
	return !__atomic_load_n(&n->lock_waiters, __ATOMIC_RELAXED) && !pthread_mutex_trylock(&n->lock);
}

/* node.c */
void node_event(struct reclaim_node *n, const char *what, const char *who, uint64_t a, uint64_t b);
uint64_t node_now(struct reclaim_node *n);
/* One turn; wait_ns 0: only look. Called and returns with the lock held. */
void node_turn(struct reclaim_node *n, uint64_t wait_ns);
/* Waits for anything to happen, at most until deadline: -ETIMEDOUT, -ECANCELED or 0. */
int node_wait(struct reclaim_node *n, uint64_t deadline_ns);
void node_act(struct reclaim_node *n, unsigned todo);
void node_wake(struct reclaim_node *n);
uint64_t node_deadline(int timeout_ms);
static inline void node_soon(struct reclaim_node *n, uint64_t at_ns)
{
	if (at_ns < n->timer_ns)
		n->timer_ns = at_ns;
}

/* snapshot.c */
/* The state of that snapshot survives (or, not ok, will never be known to). */
void node_durable(struct reclaim_node *n, uint64_t id, bool ok);

/* link.c */
struct link *link_connect(struct reclaim_node *n, const char *locator, uint64_t epoch,
			  const uint8_t *ticket, uint32_t ticket_len, const uint8_t *session);
/* A link that the owner of (name, epoch) opened to us, or NULL. */
struct link *link_from(struct reclaim_node *n, const char *name, uint64_t epoch);
void link_accept(struct reclaim_node *n);
void link_close(struct link *l, const char *why);
void link_bury(struct reclaim_node *n);
void link_free(struct link *l);
void link_events(struct link *l, unsigned events);
void link_watch_again(struct reclaim_node *n);
void link_flush(struct link *l);
void link_flush_all(struct reclaim_node *n);
void link_send(struct link *l, const struct stream_frame *f);
void link_ready(struct link *l, struct reclaim_stream *o);
void link_unready(struct reclaim_stream *o);
int link_add_out(struct link *l, struct reclaim_stream *o);
/* Adds a piece to the unfinished write. */
void link_pend(struct link *l, const void *bytes, size_t len, struct segment *s);
uint8_t *link_head(struct link *l);

/* link_read.c */
void link_read(struct link *l);
bool link_sleep(struct link *l);

/* link_pace.c */
void link_pace_start(struct link *l);
void link_pace_urgent(struct link *l);
/* bytes were written; blocked: and the socket is full. */
void link_pace(struct link *l, size_t bytes, bool blocked);
void link_expect(struct link *l, bool sleeping);

/* link_frame.c: what frames mean */
void link_frame(struct link *l, const struct stream_frame *f);

/* tls.c */
int tls_attach(struct link *l);          /* to a connected socket */
int tls_handshake(struct link *l);       /* 0 done, -EAGAIN */
ssize_t tls_write(struct link *l, const void *bytes, size_t len);
ssize_t tls_read(struct link *l, void *bytes, size_t len);
bool tls_buffered(struct link *l);
void tls_done(struct link *l);

/* out.c */
void out_free(struct reclaim_stream *o);
size_t out_gather(struct reclaim_stream *o, struct link *l, size_t budget);
void out_detach(struct reclaim_stream *o, bool ask_route);
void out_trim(struct reclaim_stream *o, uint64_t stable);
void out_seek(struct reclaim_stream *o);
void out_pump(struct reclaim_stream *o); /* ready list, or route and link */
void out_attach(struct reclaim_stream *o, struct link *l);
void out_attach_ahead(struct reclaim_stream *o);
void out_drop_ahead(struct reclaim_stream *o);
void out_fail(struct reclaim_stream *o, int error);
void out_on_welcome(struct reclaim_stream *o, const struct stream_frame *f, struct link *l);
bool out_restore(struct reclaim_node *n, const char *to, uint32_t number, uint8_t cls,
		 uint64_t last, uint64_t stable, const uint8_t *records, size_t len);
struct reclaim_stream *out_new(struct reclaim_node *n, const char *to, uint32_t number,
			       enum reclaim_class cls);

/* segment.c */
int out_append(struct reclaim_stream *o, const struct iovec *iov, int iov_count, size_t len);
/* As many as there is room for, the first in any case: how many, or why not even that. The
 * calls per message stay within one file, where the compiler makes one loop of them. */
int out_append_many(struct reclaim_stream *o, const struct iovec *messages, int count);
/* One long message; with buf its bytes stay the caller's until they are released. */
int out_append_message(struct reclaim_stream *o, const struct iovec *iov, int iov_count, size_t len,
		       const struct reclaim_buf *buf);
bool out_has_room(const struct reclaim_stream *o, size_t len);
bool out_spill(struct reclaim_stream *o);
void segment_uncount(struct reclaim_stream *o, struct segment *s);
void segment_free(struct reclaim_node *n, struct segment *s);
void segment_unpin(struct reclaim_node *n, struct segment *s);
uint8_t *segment_bytes(struct reclaim_stream *o, struct segment *s);

/* in.c */
struct in *in_find(struct reclaim_node *n, const char *from, uint32_t number);
struct in *in_get(struct reclaim_node *n, const char *from, uint32_t number, uint8_t cls);
void in_free(struct reclaim_node *n, struct in *in);
void in_attach(struct link *l, const struct stream_frame *f);
void in_detach(struct in *in);
void in_run(struct link *l, struct in *in, const struct stream_frame *f, const uint8_t *p,
	    uint32_t len);
/* A FRAG begins: where its payload goes, NULL to drop it. -EBADMSG closes the link. */
int in_frag(struct link *l, struct in *in, const struct stream_frame *f, uint32_t payload,
	    uint8_t **ret_at);
void in_frag_done(struct link *l, struct in *in);
void in_event(struct in *in, enum reclaim_kind kind, uint64_t seq, uint32_t code);
void in_flush_acks(struct reclaim_node *n, bool all);
void in_ack(struct in *in);
void in_ack_later(struct reclaim_node *n, struct in *in);
void in_purge(struct reclaim_node *n);
uint64_t in_window(const struct reclaim_node *n, uint8_t cls);
uint64_t in_digest(const uint8_t *p, size_t len);

/* in_memory.c */
struct block *block_new(struct reclaim_node *n, uint32_t cap);
void block_unref(struct reclaim_node *n, struct block *b);
struct big *big_new(struct reclaim_node *n, size_t len);
/* handed_out: the application has seen it, so its memory is the application's. */
void big_free(struct reclaim_node *n, struct big *b, bool handed_out);
struct run *run_push(struct run_queue *q);
void run_pop(struct run_queue *q);
void run_drop(struct reclaim_node *n, struct run *r);
void in_release_given(struct reclaim_node *n);

/* regclient.c */
void reg_start(struct reclaim_node *n);
void reg_close(struct reclaim_node *n);
void reg_events(struct reclaim_node *n, unsigned events);
void reg_timer(struct reclaim_node *n);
void reg_route(struct reclaim_stream *o, bool ahead);
void reg_commit(struct reclaim_node *n);
void reg_abort(struct reclaim_node *n);
void reg_release(struct reclaim_node *n);
void reg_members(struct reclaim_group *g);
int reg_store(struct reclaim_node *n, const void *cursors, size_t len, uint64_t snapshot);
void reg_forget(struct reclaim_node *n, const void *about);

/* move.c */
void move_begin(struct reclaim_node *n);
void move_link_up(struct link *l);
void move_attached_ahead(struct reclaim_node *n);
void move_link_down(struct link *l);
void move_frame(struct link *l, const struct stream_frame *f);
int move_state_bytes(struct link *l, const struct stream_frame *f, const uint8_t *p, uint32_t len);
size_t move_gather(struct link *l, size_t budget);
void move_try_freeze(struct reclaim_node *n, bool in_receive);
void move_send_cut(struct reclaim_node *n);
void move_resumed(struct reclaim_node *n);
void move_committed(struct reclaim_node *n);
void move_end(struct reclaim_node *n);
int move_load(struct reclaim_node *n);
void move_first_message(struct reclaim_node *n);

/* image.c */
int image_write(struct reclaim_node *n, struct strbuf *b);
int image_read(struct reclaim_node *n, const void *image, size_t len);
int image_restore(struct reclaim_node *n, const void *image, size_t len);
int image_write_cursors(struct reclaim_node *n, struct strbuf *b);

/* group.c */
void group_changed(struct reclaim_node *n, const char *name, const uint8_t *list, size_t len);
void group_timer(struct reclaim_node *n);
void group_free(struct reclaim_group *g);

#endif
