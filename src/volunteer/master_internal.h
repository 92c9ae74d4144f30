/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by master.c (members, signalling, the tree) and master_work.c (frames and values). */
#ifndef RECLAIM_VOLUNTEER_MASTER_INTERNAL_H
#define RECLAIM_VOLUNTEER_MASTER_INTERNAL_H

#include "base/map.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "volunteer/frame.h"
#include "volunteer/master.h"
#include "volunteer/signal.h"
#include "volunteer/tree.h"

struct part { /* a result that comes in several frames */
	uint64_t value;
	uint32_t total, have;
	uint8_t *bytes;
};

struct master_member {
	uint64_t node; /* 0: has not joined yet */
	char token[SIGNAL_TOKEN_MAX + 1];
	int kind;
	const struct master_socket_ops *ops;
	void *socket; /* NULL: gone, or not yet there */
	bool joined, relay, via_tree, waiting, got_result, counted;
	bool adopted; /* by a new socket; whether its channel still stands is not known yet */
	uint64_t retry_ms, retry_pause_ms; /* relayed: a channel is tried again then; 0 = never */
	uint32_t generation;
	uint64_t position; /* as it last said through the tree */
	char *offer;       /* not yet placed */
	uint64_t heard_ms, ping_ms;
	struct VEC(struct part) parts;
	struct VEC(uint64_t) acks;
	bool acks_due;
	struct master_member *prev, *next;
};

struct master_child { /* the channel in one of the root's slots */
	struct master *master;
	int slot;
	struct rtc_channel *channel;
};

struct master {
	struct loop *loop;
	struct master_config config;
	const struct master_ops *ops;
	void *user;
	char invite[MASTER_INVITE_LEN + 1];
	uint64_t secret[2];
	uint64_t root_id;
	struct node *root;
	struct tree *tree; /* NULL in local mode */
	struct lend *lend;
	struct rtc *rtc;
	struct map *by_node;
	struct master_member *members;
	struct VEC(uint64_t) waiting; /* nodes without a place yet, in order */
	size_t waiting_at;
	struct VEC(struct master_member *) ack_list;
	struct master_child *children; /* [degree] */
	struct loop_timer tick;
	bool pumping, pump_again, finished, flush_armed;
	struct loop_timer flush;
	uint64_t first_join_ms, last_connected_ms, ticks;
	struct master_stats stats;
};

uint64_t master_now_ms(const struct master *m);
struct master_member *master_find(const struct master *m, uint64_t node);
void master_send(struct master *m, struct master_member *v, const struct signal *s);
/* A frame to a volunteer, through the tree if it can be reached so, else over its socket. */
int master_send_frame(struct master *m, struct master_member *v, struct frame *f,
		      const uint64_t *ids);
void master_frame(struct master *m, struct master_member *from_socket, const struct frame *f);
void master_work_tick(struct master *m);
void master_flush_acks(struct master *m);
void master_reachable(struct master *m, struct master_member *v);
void master_tree_attached(struct master *m, struct master_member *v, const struct frame *f);
/* ---- master_places.c ---- */
void master_relay(struct master *m, struct master_member *v, const char *why);
/* Takes v's offer to the place's parent; the root answers by itself. */
void master_deliver_offer(struct master *m, struct master_member *v, const struct tree_place *place);
/* Whoever the tree says must connect anew is told. */
void master_repairs(struct master *m);
void master_wait_for_place(struct master *m, struct master_member *v);
void master_place_waiting(struct master *m);
void master_leave_tree(struct master *m, struct master_member *v);
void master_expire_places(struct master *m);

int master_root_answer(struct master *m, int slot, const char *offer, size_t len,
		       struct strbuf *ret_sdp, struct diag *diag);
void master_detached(struct master *m, struct master_member *v);
void master_suspect(struct master *m, struct master_member *v);
void master_member_parts_done(struct master_member *v);

#endif
