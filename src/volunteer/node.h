/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volunteer's node: joins under a parent, takes children, relays, computes.
 * Sans-IO: bytes and `now` in, calls of struct node_ops out. The same code is
 * the native volunteer, the page (as WebAssembly) and the chaos tests.
 *
 * Links. A node has a parent link, a link that is being made to the next
 * parent (make before break), one link per child slot, and the held WebSocket,
 * which carries frames while there is no parent (repair, or WebRTC failed).
 * The owner opens channels and tells the node; which SDP goes where is decided
 * by the master (named mode) or by frames through the tree (local mode).
 *
 * A result is kept until the master acknowledges it, and sent again on each new
 * way up: frames may be lost with a relay, results may not.
 */
#ifndef RECLAIM_VOLUNTEER_NODE_H
#define RECLAIM_VOLUNTEER_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "volunteer/route.h"

enum node_link {
	NODE_PARENT = -1, /* children are 0 ... degree-1 */
	NODE_NEXT = -2,   /* on its way to becoming the parent */
	NODE_SOCKET = -3, /* the held WebSocket */
};

#define NODE_VALUE_MAX (4u << 20)
#define NODE_HELD_MAX 512u            /* values */
#define NODE_HELD_BYTES_MAX (64u << 20)
#define NODE_LIFE_MS 1000u            /* life sign while values are held, or as the master asks */
#define NODE_LIFE_MAX_MS 60000u
#define NODE_RESEND_MS 5000u
#define NODE_HELLO_MS 5000u           /* a channel without hello is closed */
#define NODE_SOCKET_MS 2000u          /* a first channel may take so long before the socket stands in */
#define NODE_PING_MS 1000u            /* to the parent, while there is work; to the root as life signs */
#define NODE_DEAF_MS 4000u            /* a parent that answers no ping is gone */
#define NODE_DEAF_ROOT_MS 15000u      /* the root, while its socket stands: it may be busy */

struct frame;

struct node_ops {
	/* Called from within node_*(); must not call back. */
	void (*send)(void *user, int link, const void *bytes, size_t len);
	void (*close)(void *user, int link);
	/* The channel of NODE_NEXT is NODE_PARENT's from now on; the old one was closed. */
	void (*promote)(void *user);
	void (*compute)(void *user, uint64_t value, const void *bytes, size_t len);
	void (*cancel)(void *user, uint64_t value);
	/* Local mode: make an offer (answered by node_offer_made()), answer one
	 * (node_answer_made()), take the answer for NODE_NEXT. */
	void (*make_offer)(void *user, uint32_t generation);
	void (*take_offer)(void *user, int slot, uint64_t origin, const void *sdp, size_t len);
	void (*take_answer)(void *user, const void *sdp, size_t len);
	/* The parent is gone, or there is one again: for the master and for people. */
	void (*parent_changed)(void *user, bool up, uint64_t position, uint32_t generation);
	void (*child_changed)(void *user, bool up, uint64_t child, uint32_t generation);
	/* The root only: what came up; via_tree is false for frames of the held WebSocket. */
	void (*arrived)(void *user, int link, const struct frame *f);
};

struct node_stats {
	uint64_t computed, failed, relayed, resent;
	uint64_t refused; /* frames that no honest neighbour sends, and values beyond the credit */
	uint64_t bounced;
	uint32_t held, children;
	bool attached;
	uint64_t position;
};

struct node;

int node_new(uint64_t self, uint32_t degree, enum route_mode mode, const struct node_ops *ops,
	     void *user, struct node **ret);
void node_free(struct node *n);

/* Cores to use; 0 pauses (what is being computed is finished). */
void node_set_workers(struct node *n, uint32_t workers, uint64_t now_ms);
/* No channel will come: the held WebSocket is the way up. */
void node_use_socket(struct node *n, uint64_t now_ms);
void node_set_mode(struct node *n, enum route_mode mode);

/* Named mode: the master says that `child` will connect to this node, to stand at position.
 * Returns the slot whose channel it gets (any earlier channel there is closed), or -errno. */
int node_expect(struct node *n, uint64_t child, uint64_t position, uint32_t generation,
		uint64_t now_ms);
/* Named mode: this node is to stand at position; NODE_NEXT is being made for it. */
void node_assigned(struct node *n, uint64_t position, uint32_t generation, uint64_t now_ms);

/* The root: position 0, nobody above; up-frames go to ops->arrived. */
void node_set_root(struct node *n);
/* The root sends a frame down to f->node at f->position. -ENOTCONN if no channel leads there. */
int node_down(struct node *n, const struct frame *f, const uint64_t *ids);
/* The root takes a SIGNAL frame that came from a joiner through the signaller. */
void node_signal(struct node *n, const void *bytes, size_t len, uint64_t now_ms);

void node_link_up(struct node *n, int link, uint64_t now_ms);
void node_link_down(struct node *n, int link, uint64_t now_ms);
void node_input(struct node *n, int link, const void *bytes, size_t len, uint64_t now_ms);
/* The transport of a link takes more again (it refused or buffered before). */
void node_result(struct node *n, uint64_t value, bool failed, const void *bytes, size_t len,
		 uint32_t took_ms, uint64_t now_ms);

void node_offer_made(struct node *n, const void *sdp, size_t len, uint64_t now_ms);
void node_answer_made(struct node *n, int slot, const void *sdp, size_t len, uint64_t now_ms);
/* Local mode: find a place (again). */
void node_join_local(struct node *n, uint64_t now_ms);

/* Leaves: tells parent and children at once. Results not acknowledged go first. */
void node_leave(struct node *n, uint64_t now_ms);
/* About every 250 ms. */
void node_tick(struct node *n, uint64_t now_ms);
void node_stats(const struct node *n, struct node_stats *ret);

#endif
