/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The master of one map: root of the tree, signaller of its volunteers, lender
 * of its values. It runs on a program's loop, beside whatever accepts the
 * volunteers' WebSockets (door.h, or the coordinator's server): that side is
 * reached through struct master_socket_ops.
 */
#ifndef RECLAIM_VOLUNTEER_MASTER_H
#define RECLAIM_VOLUNTEER_MASTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "io/loop.h"
#include "volunteer/lend.h"
#include "volunteer/node.h"
#include "volunteer/rtc.h"

#define MASTER_MEMBERS_MAX 200000u
#define MASTER_INVITE_LEN 22u /* characters */

struct master;
struct master_member;

struct master_config {
	struct lend_config lend;
	struct rtc_config rtc;
	enum route_mode mode;
	uint32_t degree;
	bool relay_only;     /* no WebRTC at all: for tests and networks that forbid it */
	json_t *job;         /* borrowed; goes to volunteers in `welcome` */
	const char *invite;  /* NULL: one is made */
};

struct master_socket_ops {
	int (*send)(void *socket, const char *text, size_t len); /* 0 or -errno */
	void (*close)(void *socket); /* no master_socket_*() call follows for it */
};

struct master_ops {
	/* Results are there (lend_take(master_lend(m), ...)), or there is room for more values. */
	void (*progress)(void *user);
	/* A volunteer joined or left, for people. May be NULL. */
	void (*volunteers)(void *user, uint32_t count);
};

struct master_stats {
	uint32_t volunteers, channels, relayed; /* joined; by WebRTC; over their sockets */
	uint32_t pages, natives;
	uint64_t joins, refused_joins, moves;
	uint64_t refused; /* messages and frames that no honest volunteer sends */
	double first_join_s, all_connected_s; /* since the first join: when the last one connected */
	uint64_t connected; /* hello acknowledged and a first result returned */
	struct lend_stats lend;
	struct rtc_stats rtc;
	struct node_stats root;
};

int master_new(struct loop *l, const struct master_config *config, const struct master_ops *ops,
	       void *user, struct master **ret, struct diag *diag);
void master_free(struct master *m);
struct lend *master_lend(struct master *m);
const struct rtc *master_rtc(const struct master *m);
const char *master_invite(const struct master *m);
/* Values were put: lend them. */
void master_pump(struct master *m);
/* Everything is delivered: tells the volunteers. */
void master_finish(struct master *m, const char *what);
void master_stats(const struct master *m, struct master_stats *ret);
size_t master_levels(const struct master *m, size_t *levels, size_t levels_cap);
/* The tree for pictures and tests: {"node", "position", "kind", "state", "via"} each. */
json_t *master_describe(const struct master *m);

/* The socket side. A socket becomes a member with its first message. */
int master_socket_open(struct master *m, const struct master_socket_ops *ops, void *socket,
		       struct master_member **ret);
void master_socket_text(struct master *m, struct master_member *v, const char *text, size_t len);
void master_socket_closed(struct master *m, struct master_member *v);
/* The server side is gone as a whole, and no call of ops comes for this socket any more. The
 * volunteer may still be there by its channel, and come back with its token. */
void master_socket_abandon(struct master_member *v);

#endif
