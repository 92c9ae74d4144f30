/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of a scenario, on this machine.
 *
 *     machine [eth0]---[pN] switch of the building [core0]---[bN] core
 *
 * With namespaces, every machine, host, building switch and the core is a
 * network namespace of its own. Each link carries its capacity in each
 * direction by HTB at the sending end, except from a machine to its switch:
 * a machine's own queueing belongs to its agent, so that direction is shaped
 * behind the wire, at the switch (IFB), as a real cable and port would.
 *
 * Without (no root), every node is an address of 127.77.0.0/16 and nothing is
 * shaped or cut; campus_left_out() says so.
 *
 * Namespaces live as long as this process: nothing has to be removed, however
 * it ends.
 */
#ifndef RECLAIM_LAB_CAMPUS_H
#define RECLAIM_LAB_CAMPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "scenario/scenario.h"

enum campus_kind {
	CAMPUS_MACHINE = 0,
	CAMPUS_HOST,
	CAMPUS_COORDINATOR,
	CAMPUS_SWITCH,
	CAMPUS_CORE,
};

struct campus_node {
	char name[SCENARIO_NAME_MAX + 8];
	enum campus_kind kind;
	size_t building;
	size_t port;        /* of the building's switch: interface p<port> */
	char address[16];   /* numeric IPv4 */
	uint64_t link_bps;
	int netns_fd;       /* -1 without namespaces */
	char netns_path[192]; /* for nsenter; "" without namespaces */
};

struct campus;

/* dir: where netns/NAME files are bound. The caller is in a mount namespace of its own. */
int campus_build(const struct scenario *s, const char *dir, bool namespaces, struct campus **ret,
		 struct diag *diag);
void campus_free(struct campus *c);
bool campus_has_namespaces(const struct campus *c);
/* What the fallback leaves out, in words; NULL when nothing. */
const char *campus_left_out(const struct campus *c);

size_t campus_count(const struct campus *c);
const struct campus_node *campus_at(const struct campus *c, size_t i);
/* NULL if there is none. The coordinator's node is called "coordinator". */
const struct campus_node *campus_find(const struct campus *c, const char *name);

/* In a child, before exec: moves into the node's network. 0 or -errno. */
int campus_enter(const struct campus_node *n);
/* A cable pulled or plugged: a machine's or host's, or a building's to the core. */
int campus_link(struct campus *c, const struct campus_node *n, bool up, struct diag *diag);
int campus_uplink(struct campus *c, size_t building, bool up, struct diag *diag);

#endif
