/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a node stands in the fat tree, and what it does with a request to
 * join. The same code runs in the master, in native volunteers, in pages (as
 * WebAssembly) and in the growth simulation.
 *
 * Positions. Places are numbered breadth first: the root is 0, the children of
 * p are p*D+1 ... p*D+D. A node is addressed by its position, so forwarding
 * needs arithmetic and no table, and a node that takes over a hole takes over
 * the addresses below it too.
 *
 * Two modes of one code:
 * - named: the request carries the position that the master reserved; it walks
 *   there by arithmetic and is refused if that slot is not reserved for it.
 * - local: the request carries no position; a node takes it if a slot is free,
 *   and otherwise hashes origin and itself to a child (Genet, arXiv
 *   1904.11402). All messages of one joiner take one path as long as nobody on
 *   the path changes, without any table. A node that lost its parent carries
 *   its old position, in either mode.
 *
 * Pure: no allocation beyond route_init(), no clock, no I/O. Times are ms.
 */
#ifndef RECLAIM_VOLUNTEER_ROUTE_H
#define RECLAIM_VOLUNTEER_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum route_mode { ROUTE_NAMED = 0, ROUTE_LOCAL, ROUTE_MODE_COUNT };

#define ROUTE_DEGREE_MAX 16384u
/* Requests kept until their child is there; beyond that the newest is refused. */
#define ROUTE_STORED_MAX 256u
/* A page must be able to hold a position in a double. */
#define ROUTE_POSITION_MAX (UINT64_C(1) << 53)
#define ROUTE_ANYWHERE UINT64_MAX /* a request without a position */

enum slot_state {
	SLOT_FREE = 0,
	SLOT_RESERVED,  /* kept for `node` (0: for whoever fills the hole) until due_ms */
	SLOT_CANDIDATE, /* `node` is connecting, until due_ms */
	SLOT_CHILD,
	SLOT_STATE_COUNT
};

struct route_slot {
	enum slot_state state;
	uint64_t node;
	uint32_t generation;
	uint64_t due_ms;
	uint32_t size;   /* nodes in the child's subtree, as it last said; 0 = not said */
	uint32_t height; /* levels below the child, as it last said */
};

struct route_request {
	uint64_t origin;     /* the joiner; its first 24 bits choose the path in local mode */
	uint64_t position;   /* where it is to stand, or ROUTE_ANYWHERE */
	uint32_t generation; /* of the reservation; 0 = none */
};

struct route_stored {
	struct route_request request;
	uint32_t slot;
	uint64_t due_ms;
	uint64_t cookie; /* the caller's: finds the message that came with the request */
};

struct route {
	uint64_t self;
	uint64_t position;
	enum route_mode mode;
	uint32_t degree;
	uint32_t children, taken; /* slots in state CHILD; slots not FREE */
	uint32_t candidate_ms, stored_ms;
	struct route_slot *slots; /* [degree], owned */
	struct route_stored *stored;
	uint32_t stored_count;
};

/* degree 1..ROUTE_DEGREE_MAX; -EINVAL or -ENOMEM. */
int route_init(struct route *r, uint64_t self, uint64_t position, enum route_mode mode,
	       uint32_t degree);
void route_done(struct route *r);

uint64_t route_parent(uint64_t position, uint32_t degree);
/* ROUTE_ANYWHERE if the number would not fit. */
uint64_t route_child(uint64_t position, uint32_t degree, uint32_t slot);
unsigned route_depth(uint64_t position, uint32_t degree);

enum { ROUTE_UP = -1, ROUTE_HERE = -2 };
/* The slot through which `dest` is reached, ROUTE_HERE, or ROUTE_UP. */
int route_towards(const struct route *r, uint64_t dest);

enum route_verdict {
	ROUTE_ACCEPT,  /* slot is now a candidate for the origin */
	ROUTE_SIGNAL,  /* the origin already is the candidate or child in that slot */
	ROUTE_FORWARD, /* give it to the child in the slot */
	ROUTE_STORE,   /* kept; route_take_stored() returns it when the slot has a child */
	ROUTE_ASCEND,  /* its position is not below this node: give it to the parent */
	ROUTE_REFUSE,  /* stale reservation, no room to store, or too deep */
	ROUTE_VERDICT_COUNT
};
/*
 * ret_slot is written for ACCEPT, SIGNAL, FORWARD and STORE. A request whose
 * position is taken loses it (local mode): what is forwarded is *req as left.
 */
enum route_verdict route_request(struct route *r, struct route_request *req, uint64_t cookie,
				 uint64_t now_ms, uint32_t *ret_slot);

/* Genet's choice for a joiner at this node. */
uint32_t route_hash_slot(const struct route *r, uint64_t origin);

/* Keeps a slot for one node; replaces any reservation there. -EBUSY if a child holds it. */
int route_reserve(struct route *r, uint32_t slot, uint64_t node, uint32_t generation,
		  uint64_t due_ms);
/* Hello acknowledged: candidate to child. -ENOENT if it was none (expired). */
int route_connected(struct route *r, uint32_t slot, uint64_t node);
/* The child or candidate is gone; the slot is free. Returns the subtree it had (0 or 1: none). */
uint32_t route_lost(struct route *r, uint32_t slot);
int route_find(const struct route *r, uint64_t node); /* its slot, or -1 */
void route_report(struct route *r, uint32_t slot, uint32_t size, uint32_t height);
void route_summary(const struct route *r, uint32_t *ret_size, uint32_t *ret_height);

/* One stored request whose slot now has a child. */
bool route_take_stored(struct route *r, uint32_t slot, struct route_stored *ret);
/*
 * Frees reservations and candidates that are over; returns the next slot freed
 * or -1. Stored requests that are over are dropped into ret_dropped one by one.
 */
int route_expire(struct route *r, uint64_t now_ms);
bool route_expire_stored(struct route *r, uint64_t now_ms, struct route_stored *ret_dropped);

/*
 * Repair from local information: the step of a search for the leaf that fills
 * a hole. The slot of the deepest reported subtree (ties by hash of the hole,
 * so that holes spread), or -1: this node itself is the leaf.
 */
int route_deepest(const struct route *r, uint64_t hole);

#endif
