/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by node.c (links, frames, the tree) and node_work.c (values and results). */
#ifndef RECLAIM_VOLUNTEER_NODE_INTERNAL_H
#define RECLAIM_VOLUNTEER_NODE_INTERNAL_H

#include "base/vec.h"
#include "volunteer/frame.h"
#include "volunteer/link.h"
#include "volunteer/node.h"

struct held {
	uint64_t value;
	uint8_t *bytes;
	uint32_t total, have;
	bool computing;
};

struct done {
	uint64_t value;
	bool failed;
	uint8_t *bytes;
	uint32_t len, took_ms;
	uint64_t sent_ms; /* 0: not sent on the present way up */
};

struct stored_signal {
	uint64_t cookie;
	size_t len;
	uint8_t *bytes; /* an encoded SIGNAL frame */
};

struct node {
	const struct node_ops *ops;
	void *user;
	uint64_t self;
	struct route route;
	struct link parent, next, socket, *child; /* child[degree] */
	uint64_t *child_hello_due; /* channel up, no hello yet */
	uint64_t *child_reply;     /* where the answer to its offer goes; ROUTE_ANYWHERE: outside */
	bool attached;             /* the parent has acknowledged our hello */
	bool joining;              /* an offer for NODE_NEXT is out */
	bool leaving, root;
	uint64_t joining_due;
	uint64_t position;         /* as the present parent knows it */
	uint64_t wanted;           /* the position asked for */
	uint32_t generation, next_generation;
	uint32_t told_size, told_height;
	uint32_t workers, computing;
	size_t held_bytes;
	struct VEC(struct held) held;
	struct VEC(struct done) done;
	struct VEC(struct stored_signal) stored;
	uint64_t cookie;
	uint64_t socket_from_ms; /* the socket is a way up from then on */
	uint64_t demand_ms; /* when it was last sent */
	uint32_t life_ms;   /* how often the master wants it */
	uint64_t unanswered_ms; /* of the first ping since the parent was heard */
	bool demand_due, holds_due;
	uint64_t now_ms;
	struct node_stats stats;
	uint8_t buf[FRAME_MAX];
};

struct link *node_link_of(struct node *n, int link);
/* Sends a frame of our own, or queues it. 0, -ENOTCONN, -ENOBUFS. */
int node_emit(struct node *n, int link, const struct frame *f, const uint64_t *ids);
void node_flush(struct node *n, int link);
/* The link that leads to the master now, or 0 if there is none. */
int node_uplink(const struct node *n);

void node_work_lend(struct node *n, const struct frame *f, int link);
void node_work_ack(struct node *n, const struct frame *f);
void node_work_cancel(struct node *n, uint64_t value);
void node_work_start(struct node *n);
void node_work_resend(struct node *n, bool all);
void node_work_demand(struct node *n);
void node_work_done(struct node *n);

#endif
