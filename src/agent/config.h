/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's own configuration (agent.yaml): where the coordinator is, which
 * address other machines reach, which uplink is guarded. What is lent and to
 * whom stands apart in the lend terms (scenario/terms.h), which the owner edits.
 */
#ifndef RECLAIM_AGENT_CONFIG_H
#define RECLAIM_AGENT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"

enum agent_edge_mode {
	AGENT_EDGE_AUTO = 0, /* use what this machine has, name what it lacks */
	AGENT_EDGE_OFF,
	AGENT_EDGE_REQUIRED, /* refuse to lend without it */
};

struct agent_edge_config {
	int mode;
	char *uplink;           /* interface; NULL = that of the default route */
	uint64_t uplink_rate;   /* bit/s; 0 = the link's own */
	uint64_t guest_ceiling; /* bit/s for all guests; 0 = the uplink */
	char *guest_net;        /* "100.127.0.0/24" when NULL */
	char **campus;          /* prefixes closed to guests; empty = private ranges */
	size_t campus_count;
};

/* Where signs of the owner are looked for (agent/trigger.h). */
struct agent_sensors {
	char *utmp;             /* file */
	char **inputs;          /* globs of devices; empty = keyboards, mice, consoles */
	size_t inputs_count;
	char *lid;              /* glob of state files */
	bool logind;            /* ask it, where there is a system bus */
};

struct agent_config {
	char *coordinator;      /* "host:port" */
	char *listen;           /* address of the transfer port; NULL = all */
	int transfer_port;
	char *host;             /* how other machines reach us; NULL = as the coordinator sees us */
	char *terms;            /* path of the lend terms */
	char *building, *room;
	char *owner_group;      /* may use the owner's socket */
	struct agent_edge_config edge;
	char *cgroup_parent;    /* "reclaim/NODE" when NULL */
	uint64_t uid_base;      /* first uid of the guests' ranges; 0 = run guests as ourselves */
	uint64_t disk_reserve;  /* bytes to leave free */
	bool own_network;       /* guests in network namespaces of their own, where possible */
	struct agent_sensors sensors;
	char *criu;             /* program; NULL = found on PATH */
};

extern const struct schema agent_config_schema;
int agent_config_load(const char *path, struct agent_config *ret, struct diag *diag);
void agent_config_done(struct agent_config *c);

#endif
