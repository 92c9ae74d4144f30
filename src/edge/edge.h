/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edge of a lent machine: traffic classes and shaping on its uplink, the
 * guests' networks, the kill switch, and who sent what.
 *
 *     guest netns          |  the machine's network namespace
 *     eth0 [tbf]---veth---[in] rgN [out]---route, nat---[out] uplink [htb]--->
 *      [in]  <------------                              [in]
 *
 * [in] and [out] are BPF programs at clsact hooks. Each looks at the kill map
 * first, then at the guest's lease. Guests are shaped on their own eth0, so
 * that a check still follows their queue; their leaves on the uplink are a few
 * packets long and a kill purges them.
 *
 * Everything that enforces lives in the kernel: qdiscs, filters that hold
 * their programs, maps pinned in a bpffs. An agent that dies leaves it in
 * place, edge_open() adopts it. Nothing here needs the agent's loop: all calls
 * are synchronous, take well under a millisecond (attach, detach and open: some
 * milliseconds), and belong to one thread. Attach and detach enter the guest's
 * network namespace and come back; if the way back fails they end the process.
 *
 * One edge serves one network namespace and one uplink; several on one kernel
 * (the lab) keep apart as long as each has its own bpffs and namespace.
 */
#ifndef RECLAIM_EDGE_EDGE_H
#define RECLAIM_EDGE_EDGE_H

#include <jansson.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"
#include "wire/traffic_class.h"

/* --- what this kernel and this user can do ------------------------------- */

enum edge_feature_id {
	EDGE_ROOT = 0,   /* CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN */
	EDGE_BPF,        /* TC programs load (BTF is not needed) */
	EDGE_BPFFS,      /* maps can be pinned: enforcement outlives the agent */
	EDGE_CLSACT,     /* programs attach to devices */
	EDGE_HTB,        /* the class tree; else a BPF token bucket polices */
	EDGE_TBF,        /* guests are shaped, not policed */
	EDGE_VETH,       /* guests have networks of their own */
	EDGE_MASQUERADE, /* nf_tables NAT; else the campus must route guest addresses */
	EDGE_CC,         /* TCP_CONGESTION TRAFFIC_CC_*; else pacing in user space */
	EDGE_CGROUP_KILL, /* cgroup.kill; else pids are killed one by one */
	EDGE_FEATURE_COUNT,
};

#define EDGE_REASON_MAX 160
struct edge_feature {
	const char *name;             /* "htb" */
	bool have;
	char reason[EDGE_REASON_MAX]; /* why, or why not: "EPERM creating a clsact qdisc" */
	const char *fallback;         /* what happens without it; one sentence */
};
struct edge_features {
	struct edge_feature items[EDGE_FEATURE_COUNT];
};

/* Tries each feature on throwaway objects (a veth pair in this namespace that
 * is gone when the call returns). Never fails: a failed try is an answer. */
void edge_probe(struct edge_features *ret);

/* --- opening ------------------------------------------------------------- */

#define EDGE_GUESTS_MAX 64
#define EDGE_RULES_MAX 32
#define EDGE_PREFIXES_MAX 32
#define EDGE_JOB_MAX 64 /* bytes of a job id, with the NUL */
#define EDGE_PATH_MAX 256

struct edge_prefix {
	struct in_addr addr;
	uint8_t len; /* 0..32 */
};

struct edge_config {
	const char *uplink;      /* interface name; NULL = that of the default route */
	uint64_t uplink_bps;     /* its rate, bit/s; 0 = the link's own speed, else 1 Gbit/s */
	uint64_t guest_ceiling_bps; /* all guests together; 0 = no ceiling but the uplink */
	uint64_t floor_cap_bps;  /* the operator's cap on this uplink's deadline floor; 0 = 80 % */
	uint64_t scavenger_ceiling_bps; /* 0 = whatever is idle */
	const char *run_dir;     /* "/run/reclaim": bpffs at run_dir/bpf, and reclaim-cut's file */
	const char *state_dir;   /* the flow log; NULL = no log on disk */
	gid_t owner_gid;         /* may run reclaim-cut; (gid_t)-1 = root only */
	/* cgroups that hold all guests and nothing else: what reclaim-cut kills. NULL = none. */
	const char *cgroup_v2;   /* the v2 (or unified) directory */
	const char *cgroup_v1_freezer; /* the v1 freezer directory, thawed after the kill */
	struct edge_prefix guest_net; /* guests' addresses, /24 or larger; zero = 100.127.0.0/24 */
	/* Campus addresses, closed to guests by default. None given = private, shared,
	 * link-local and multicast ranges. The uplink's own prefixes always count. */
	struct edge_prefix campus[EDGE_PREFIXES_MAX];
	size_t campus_count;
	uint32_t disable; /* bits 1 << enum edge_feature_id: act as if it were missing (tests) */
};

struct edge;

/*
 * Adopts what an earlier agent left, or builds it. Guests that are still
 * attached stay attached, killed ones stay killed; a class tree that differs
 * from the configuration is changed in place. Needs EDGE_ROOT, EDGE_BPF and
 * EDGE_CLSACT: -EPERM or -EOPNOTSUPP without, with diag naming what is missing
 * (the agent then runs without an edge and says so). Pointers in config are
 * borrowed for the call.
 */
int edge_open(const struct edge_config *config, struct edge **ret, struct diag *diag);
/* For show and who: reads the pinned maps, changes nothing. */
int edge_open_readonly(const char *run_dir, const char *state_dir, struct edge **ret,
		       struct diag *diag);
/* Lets go and leaves everything enforced. NULL is fine. */
void edge_close(struct edge *e);
/* Detaches all guests, removes qdiscs, filters, pins, tables, the bpffs mount if we made it. */
int edge_remove(struct edge *e, struct diag *diag);

/* Call about once a second: writes flows to the log, refreshes link prefixes. */
int edge_tick(struct edge *e, struct diag *diag);

/* --- classes ------------------------------------------------------------- */

/* The deadline class's floor, changed in place. -EDQUOT above the cap (nothing changes). */
int edge_floor_set(struct edge *e, uint64_t bits_per_s);
uint64_t edge_floor_get(const struct edge *e);
uint64_t edge_floor_cap(const struct edge *e);
/* The operator's switch, durable as long as the pins: while on, deadline, scavenger and
 * guest packets are dropped; control and research pass. */
int edge_stop_all(struct edge *e, bool on);
int edge_guest_ceiling_set(struct edge *e, uint64_t bits_per_s);

/* A tag for traffic_mark(), so that packets of this job's moves can be traced
 * to it. The same (job, epoch) gets the same tag; the oldest of
 * EDGE_TAGS_MAX is forgotten when full. */
#define EDGE_TAGS_MAX 1024
int edge_tag(struct edge *e, const char *job, uint64_t epoch, uint32_t *ret_tag);

/* --- guests -------------------------------------------------------------- */

enum edge_proto { EDGE_PROTO_ANY = 0, EDGE_PROTO_TCP = 6, EDGE_PROTO_UDP = 17 };

/* A destination the job declared and the owner allows. */
struct edge_rule {
	struct edge_prefix to;
	uint16_t port_min, port_max; /* 0, 0 = any */
	uint8_t proto;               /* enum edge_proto */
};

struct edge_guest_config {
	const char *job;
	uint64_t epoch;
	int netns_fd;  /* the guest's network namespace; borrowed. -1 = take netns_pid's */
	pid_t netns_pid;
	const struct edge_rule *rules;
	size_t rules_count; /* at most EDGE_RULES_MAX */
	bool internet;      /* may reach what is not campus */
	uint64_t rate_bps;  /* this guest's ceiling; 0 = the ceiling of all guests */
	uint64_t lease_deadline_boot_ns; /* 0 = no packet before edge_guest_lease() */
};

struct edge_guest {
	unsigned slot;          /* names the guest in the calls below; 0..EDGE_GUESTS_MAX-1 */
	char job[EDGE_JOB_MAX];
	uint64_t epoch;
	char ifname[16];        /* the machine's end: "rg0" */
	struct in_addr address; /* the guest's, on its eth0 */
	struct in_addr gateway; /* the machine's end; it offers no service */
	uint8_t prefix_len;
	uint64_t lease_deadline_boot_ns;
	bool killed;
};

/*
 * Gives the guest's namespace an eth0 with address and default route, and lo.
 * Everything is closed before the interface comes up: an error leaves nothing.
 * -EEXIST: this job and epoch is attached; -ENOSPC: EDGE_GUESTS_MAX are.
 */
int edge_guest_attach(struct edge *e, const struct edge_guest_config *config,
		      struct edge_guest *ret, struct diag *diag);
/* Removes the guest's veth (with the peer) and forgets it; fine if the namespace is gone. */
int edge_guest_detach(struct edge *e, unsigned slot);
/* The guests attached, adopted ones too. Returns how many were written. */
size_t edge_guests(const struct edge *e, struct edge_guest *ret, size_t cap);
/* -ENOENT if not attached. */
int edge_guest_find(const struct edge *e, const char *job, uint64_t epoch, struct edge_guest *ret);
/* The dead-man timer: from this CLOCK_BOOTTIME on, no packet passes either way, whoever is
 * still alive. Renewed with every lease. */
int edge_guest_lease(struct edge *e, unsigned slot, uint64_t deadline_boot_ns);
int edge_guest_rate_set(struct edge *e, unsigned slot, uint64_t bits_per_s);

/* --- kill switch --------------------------------------------------------- */

#define EDGE_ALL UINT32_MAX

/* How long each step took, for the record. */
struct edge_kill_report {
	uint64_t decided_boot_ns; /* when the call was entered */
	uint64_t map_ns;          /* until the flag stood */
	uint64_t purge_ns;        /* until the uplink held no guest packet; 0 = nothing to purge */
};

/*
 * Cuts one guest (slot) or EDGE_ALL, both directions: flag, then purge. The
 * flag of a slot falls with the next attach there, that of EDGE_ALL with
 * edge_kill_clear(). report may be NULL. Killing processes is the caller's.
 */
int edge_kill(struct edge *e, uint32_t slot, struct edge_kill_report *report);
int edge_kill_clear(struct edge *e);
/* Reads the flags back: true if neither direction lets a packet of it pass. */
bool edge_killed(const struct edge *e, uint32_t slot);

/* --- what happened ------------------------------------------------------- */

struct edge_count {
	uint64_t packets, bytes;
	uint64_t dropped_packets; /* killed, out of lease, denied, spoofed, policed */
};
struct edge_class_count {
	struct edge_count out, in;
	uint64_t backlog_bytes;   /* on the uplink; 0 without HTB */
};
struct edge_guest_count {
	struct edge_count out, in;
	uint64_t killed, lease, denied, spoofed, policed; /* dropped packets by reason */
	uint64_t ip6_out, ip6_in; /* of the denied: IPv6, which guests do not have */
	uint64_t backlog_bytes; /* in the guest's own queue and its leaf on the uplink */
};
int edge_class_count(const struct edge *e, enum traffic_class c, struct edge_class_count *ret);
int edge_guest_count(const struct edge *e, unsigned slot, struct edge_guest_count *ret);

/* One snapshot for `reclaim edge show --json`, docs/schema/edge-show.json. A new reference. */
json_t *edge_status(const struct edge *e);

/*
 * Who had a flow with this address and port (either end; 0 = any port) around
 * that time: an array of {job, epoch, class, proto, local, remote, first, last,
 * bytes}, latest first, at most 100. wall_ms 0 = any time. Looks at the live
 * flow map and the log on disk (two files of EDGE_FLOW_LOG_MAX bytes; the
 * older goes when full).
 */
#define EDGE_FLOW_LOG_MAX (16u << 20)
int edge_who(const struct edge *e, const struct in_addr *address, uint16_t port, uint64_t wall_ms,
	     uint64_t slack_ms, json_t **ret, struct diag *diag);

#endif
