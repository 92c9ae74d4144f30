/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of src/edge. */
#ifndef RECLAIM_EDGE_INTERNAL_H
#define RECLAIM_EDGE_INTERNAL_H

#include <net/if.h>
#include <netlink/netlink.h>

#include "edge/edge.h"
#include "edge/edge_abi.h"
#include "edge/net.h"
#include "edge/tree.h"

enum edge_map {
	EDGE_MAP_KILL = 0,
	EDGE_MAP_CONFIG,
	EDGE_MAP_GUEST,
	EDGE_MAP_LEASE,
	EDGE_MAP_RULES,
	EDGE_MAP_CAMPUS,
	EDGE_MAP_SLOT,
	EDGE_MAP_CLASS_STATS,
	EDGE_MAP_GUEST_STATS,
	EDGE_MAP_FLOW,
	EDGE_MAP_TAG,
	EDGE_MAP_BUCKET,
	EDGE_MAP_GUEST_IP6,
	EDGE_MAP_COUNT,
};

enum edge_prog {
	EDGE_PROG_UPLINK_OUT = 0,
	EDGE_PROG_UPLINK_IN,
	EDGE_PROG_GUEST_OUT,
	EDGE_PROG_GUEST_IN,
	EDGE_PROG_GUEST_INNER,
	EDGE_PROG_COUNT,
};

struct edge_bpf; /* the skeleton */

/* Kernel objects: maps by their pins, programs while this process may attach them. */
struct edge_hooks {
	struct edge_bpf *skel; /* NULL when read-only */
	int maps[EDGE_MAP_COUNT];
	int progs[EDGE_PROG_COUNT];
	int cpus;              /* values per element of a per-CPU map */
};

struct edge_guest_state {
	struct nl_sock *inner; /* a socket in the guest's namespace, or NULL */
	int inner_ifindex;     /* its eth0 there */
	uint64_t rate_bps;
};

struct edge {
	bool readonly;
	struct edge_hooks hooks;
	struct nl_sock *sock;
	int purge_fd;
	struct tree tree;
	struct edge_features features;
	bool htb, tbf, masquerade, pinned, cc;
	char no_htb[EDGE_REASON_MAX]; /* why not, if not */
	char uplink[IFNAMSIZ];
	char run_dir[EDGE_PATH_MAX], state_dir[EDGE_PATH_MAX];
	char cgroup_v2[EDGE_PATH_MAX], cgroup_v1_freezer[EDGE_PATH_MAX];
	gid_t owner_gid;
	uint64_t floor_cap_bps;
	struct edge_prefix guest_net;
	struct edge_prefix campus[EDGE_PREFIXES_MAX];
	size_t campus_count;
	struct edge_guest_state guests[EDGE_GUESTS_MAX];
	unsigned slot_next;     /* slots are given out in turn */
	bool mounted;           /* the bpffs is this edge's own */
};

/* hooks.c ------------------------------------------------------------------ */

/* Loads the programs onto the maps pinned at dir, or onto new ones that it pins there.
 * dir NULL: no pins, the maps live as long as the filters. */
int hooks_open(struct edge_hooks *h, const char *dir, struct diag *diag);
int hooks_open_readonly(struct edge_hooks *h, const char *dir, struct diag *diag);
void hooks_close(struct edge_hooks *h);
int hooks_unpin(const char *dir);
/* Attaches at clsact, replacing ours if there; ret_created if the clsact qdisc is new. */
int hooks_attach(const struct edge_hooks *h, int ifindex, enum edge_prog in, enum edge_prog out,
		 bool *ret_created);
/* Only ingress, in this thread's namespace. */
int hooks_attach_in(const struct edge_hooks *h, int ifindex, enum edge_prog in);
int hooks_detach(int ifindex, bool whole_qdisc);
/* Is a bpffs mounted at path / make it so. 1 if this call mounted it. */
int hooks_mount(const char *path);

int map_read(const struct edge_hooks *h, enum edge_map m, const void *key, void *ret);
int map_write(const struct edge_hooks *h, enum edge_map m, const void *key, const void *value);
int map_remove_key(const struct edge_hooks *h, enum edge_map m, const void *key);
/* Sums a per-CPU element of `words` u64 words. */
int map_read_sum(const struct edge_hooks *h, enum edge_map m, uint32_t key, uint64_t *ret,
		 size_t words);
int config_read(const struct edge *e, struct edge_abi_config *ret);
int config_write(const struct edge *e, const struct edge_abi_config *c);

/* nft.c -------------------------------------------------------------------- */

/* NAT for the guests' prefix, no forwarding but for them, no services for them. */
int nft_set(const char *uplink, const struct edge_prefix *guest_net, bool masquerade,
	    bool only_guests_forward, struct diag *diag);
int nft_remove(void);
/* 1 if the table is there. */
int nft_exists(void);
/* Would all of that work here? */
int nft_probe(struct diag *diag);

/* guest.c ------------------------------------------------------------------ */

void guests_adopt(struct edge *e);
int guests_remove(struct edge *e);
struct in_addr slot_address(const struct edge *e, unsigned slot, bool gateway);

/* campus.c: the closed prefixes, ours and configured. */
int campus_refresh(struct edge *e);

/* flow.c ------------------------------------------------------------------- */

int flows_sweep(struct edge *e, bool all, struct diag *diag);

/* probe.c ------------------------------------------------------------------ */

/* The link's own speed in bit/s (0 = it has none to tell) and whether it has a wire. */
uint64_t probe_link_speed(const char *ifname, bool *ret_physical);

/* cut_file.c: what reclaim-cut needs to know, in run_dir. */
int cut_file_write(const struct edge *e, struct diag *diag);
int cut_file_remove(const char *run_dir);

#endif
