/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the BPF programs, their loader and reclaim-cut share: map layouts and
 * numbers. Needs only linux/types.h. Maps outlive programs (an agent restart
 * or upgrade adopts them by their pins), so a changed layout takes a new
 * EDGE_ABI_VERSION, which is part of every pin's name but the kill map's:
 * that one keeps its layout for good.
 */
#ifndef RECLAIM_EDGE_ABI_H
#define RECLAIM_EDGE_ABI_H

#include <linux/types.h>

#define EDGE_ABI_VERSION 1
#define EDGE_ABI_SLOTS 64
#define EDGE_ABI_RULES 32
#define EDGE_ABI_JOB 64
#define EDGE_ABI_FLOWS 32768
#define EDGE_ABI_TAGS 4096

/* edge_kill: array of __u32; not 0 = cut. Element 0 is all guests, 1 + slot one of them. */
#define EDGE_ABI_KILL_ALL 0
#define EDGE_ABI_KILL_COUNT (1 + EDGE_ABI_SLOTS)

/* A guest's tag in its mark: the slot in the low bits, above it how often the
 * slot was given out, so that a late packet of the guest before is told apart. */
#define EDGE_ABI_TAG_SLOT_MASK 0x3fu
#define EDGE_ABI_TAG_GENERATION_SHIFT 6

enum edge_abi_config_flags {
	EDGE_ABI_STOP_ALL = 1,  /* the operator's switch */
	EDGE_ABI_POLICE = 2,    /* no HTB: the programs police */
	EDGE_ABI_ROUTED = 4,    /* no NAT: inbound packets must answer a known flow */
};

/* edge_config: array of one. */
struct edge_abi_config {
	__u32 flags;
	__u32 guest_net;       /* network byte order */
	__u32 guest_mask;      /* network byte order */
	__u32 uplink_ifindex;
	__u64 link_rate;       /* bytes per second, all of it what follows */
	__u64 deadline_rate;   /* the floor */
	__u64 scavenger_rate;  /* ceiling; 0 = none */
	__u64 guest_rate;      /* ceiling of all guests; 0 = none */
	__u64 floor_cap;       /* for show only */
	__u32 classid[8];      /* of enum traffic_class on the uplink; 0 = leave alone */
	__u32 guest_classid;   /* slot 0's leaf; slot n has the n-th after it */
	__u32 created;         /* enum edge_abi_created, for the loader */
};
_Static_assert(sizeof(struct edge_abi_config) == 96, "edge_abi_config");

/* What the loader built rather than found, so that it removes no more than that. */
enum edge_abi_created {
	EDGE_ABI_CREATED_CLSACT = 1,
	EDGE_ABI_CREATED_HTB = 2,
	EDGE_ABI_CREATED_FORWARDING = 4,
	EDGE_ABI_CREATED_NFT = 8,
};

enum edge_abi_guest_flags {
	EDGE_ABI_GUEST_ACTIVE = 1,   /* the slot is taken */
	EDGE_ABI_GUEST_INTERNET = 2, /* may reach what is not campus */
	EDGE_ABI_GUEST_POLICE = 4,   /* no TBF: police at the veth */
};

/* edge_guest: array by slot. Written by the loader only. */
struct edge_abi_guest {
	__u32 flags;
	__u32 mark;            /* TRAFFIC_GUEST and the tag */
	__u32 address;         /* network byte order */
	__u32 gateway;         /* network byte order */
	__u32 ifindex;         /* the machine's end */
	__u8 mac[6];           /* the guest's end */
	__u8 gateway_mac[6];
	__u64 epoch;
	__u64 rate;            /* bytes per second; for EDGE_ABI_GUEST_POLICE */
	__u32 generation;
	__u32 pad;
	char job[EDGE_ABI_JOB];
};
_Static_assert(sizeof(struct edge_abi_guest) == 120, "edge_abi_guest");

/* edge_lease: array of __u64 by slot: CLOCK_BOOTTIME ns from which nothing passes. */

/* edge_rules: array by slot. The first match passes. */
struct edge_abi_rule {
	__u32 address, mask;   /* network byte order */
	__u16 port_min, port_max; /* host byte order; 0, 0 = any */
	__u8 proto;            /* 0 = any */
	__u8 pad[3];
};
_Static_assert(sizeof(struct edge_abi_rule) == 16, "edge_abi_rule");
struct edge_abi_rules {
	__u32 count;
	__u32 pad;
	struct edge_abi_rule rules[EDGE_ABI_RULES];
};
_Static_assert(sizeof(struct edge_abi_rules) == 520, "edge_abi_rules");

/* edge_campus: LPM trie; a match is closed to guests. */
struct edge_abi_prefix {
	__u32 prefix_len;
	__u32 address;         /* network byte order */
};

/* edge_slot: hash, ifindex of the machine's end -> slot. */

/* edge_class_stats: per-CPU array [2 * class + direction]; 0 out, 1 in. */
struct edge_abi_stats {
	__u64 packets, bytes, dropped;
};

enum edge_abi_reason {
	EDGE_ABI_KILLED = 0,
	EDGE_ABI_LEASE,
	EDGE_ABI_DENIED,
	EDGE_ABI_SPOOFED,
	EDGE_ABI_POLICED,
	EDGE_ABI_REASON_COUNT,
};
/* edge_guest_stats: per-CPU array by slot. */
struct edge_abi_guest_stats {
	struct edge_abi_stats out, in;
	__u64 reasons[EDGE_ABI_REASON_COUNT];
};

/*
 * edge_guest_ip6: per-CPU array by slot: IPv6 packets that were denied, by direction. They are
 * among edge_guest_stats' denied; a map of its own, since those maps outlive a change of programs.
 */
struct edge_abi_ip6_stats {
	__u64 out, in;
};

/* edge_flow: LRU hash. Addresses and ports as the campus sees them. */
struct edge_abi_flow_key {
	__u32 local, remote;   /* network byte order */
	__u16 local_port, remote_port; /* network byte order; 0 where there are none */
	__u8 proto;
	__u8 pad[3];
	__u32 mark;
};
_Static_assert(sizeof(struct edge_abi_flow_key) == 20, "edge_abi_flow_key");
struct edge_abi_flow {
	__u64 first_boot_ns, last_boot_ns;
	__u64 packets, bytes;
};

/* edge_tag: hash, mark -> job. Written by the loader only. */
struct edge_abi_tag {
	__u64 epoch;
	__u64 since_boot_ns;
	char job[EDGE_ABI_JOB];
};

/* edge_bucket: array; token buckets of the policing fallback. */
enum edge_abi_bucket_id {
	EDGE_ABI_BUCKET_LINK = 0, /* research drives it below zero, others need it above */
	EDGE_ABI_BUCKET_DEADLINE,
	EDGE_ABI_BUCKET_SCAVENGER,
	EDGE_ABI_BUCKET_GUESTS,
	EDGE_ABI_BUCKET_GUEST0,   /* one per slot */
	EDGE_ABI_BUCKET_COUNT = EDGE_ABI_BUCKET_GUEST0 + EDGE_ABI_SLOTS,
};

#endif
