/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves state in bench edge: our own transfer programs (driven by
 * bench/transfer's transfer-drive), rsync for scale, and bare sockets with the
 * same marks and congestion control as ours, to tell the programs' share of a
 * result from the network's.
 */
#ifndef RECLAIM_BENCH_EDGE_MOVE_H
#define RECLAIM_BENCH_EDGE_MOVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire/traffic_class.h"

enum move_system { MOVE_RECLAIM = 0, MOVE_RSYNC, MOVE_SOCKET };
extern const char *const move_system_names[];

struct moves {
	char dir[128];
	char drive[512], helper[512]; /* transfer-drive, reclaim-transfer; "" = not built */
	int c_ns;
	pid_t rsync_daemon;
};

/* NULL, or why this system cannot move here. */
const char *moves_init(struct moves *m, const char *dir, const char *build_dir, int c_ns);
const char *moves_lack(const struct moves *m, enum move_system s);
void moves_done(struct moves *m);
/* An incompressible image of so many bytes at a site (0 or 1), ready to be moved. */
int moves_prepare(struct moves *m, int site, uint64_t bytes);

struct move {
	enum move_system system;
	int ns, site;          /* from where */
	enum traffic_class traffic_class;
	uint64_t rate_bps;     /* granted; 0 for the scavenger */
	uint64_t bytes;        /* 0: until it is stopped */
	/* filled by move_start() */
	pid_t pid, receiver;
	int receiver_in;
	char store[200];
};

/* Returns when the receiving end listens and the sender was started. */
int move_start(struct moves *m, struct move *mv);
/* After pid was reaped, or to break it off: ends what is left of it and empties its store. */
void move_end(struct moves *m, struct move *mv);

#endif
