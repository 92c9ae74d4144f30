/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The systems that are compared: ours, its ablations, and others as rows of
 * one table. docs/evaluation.md gives the source of each row.
 */
#ifndef RECLAIM_SIM_SYSTEM_H
#define RECLAIM_SIM_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

enum system_notice {
	NOTICE_IGNORE = 0, /* the guest runs on and is killed */
	NOTICE_SAVE,       /* saves to the shared file system, exits */
	NOTICE_MOVE,       /* saves, moves to where it goes on */
	NOTICE_TAKEOVER,   /* a neighbour holds a running copy */
	NOTICE_CLAIRVOYANT, /* was saved and moved before anybody knew */
};

enum system_interval { EVERY_NEVER = 0, EVERY_FIXED, EVERY_YOUNG, EVERY_DALY, EVERY_POLICY };

enum system_store { STORE_SERVER = 0, STORE_HUB, STORE_PEER };

struct system {
	const char *name, *help;
	enum system_notice notice;
	enum system_interval interval;
	enum system_store store;
	double fixed_s;      /* EVERY_FIXED */
	double grace_s;      /* NOTICE_IGNORE, NOTICE_SAVE: cut to the owner's window */
	double late_s;       /* from the end of the grace until the guest is gone */
	double requeue_s;    /* from gone to eligible again */
	double start_s;      /* from eligible to started, with a machine free */
	bool behind;         /* goes on as a new job, behind those that wait */
	double redundancy;   /* computing done twice, share */
	bool planned;        /* places by policy/placement.h; else first machine that fits */
	bool oracle;         /* knows the rates (hindsight), not the instants */
	bool constant_hazard, deadline_blind; /* ablations */
	bool topology_blind; /* knows no link but a machine's own */
	bool rooms_blind;    /* nor which machines stand in one room */
};

extern const struct system systems[];
extern const size_t systems_count;
const struct system *system_find(const char *name);

#endif
