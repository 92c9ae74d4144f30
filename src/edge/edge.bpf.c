/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The programs at the edge's clsact hooks (edge.h has the picture).
 *
 *   uplink_out   uplink egress: kill, class, count, flow; HTB follows
 *   uplink_in    uplink ingress: count
 *   guest_out    machine's end of a veth, ingress = what the guest sends:
 *                kill, lease, source, destination, label
 *   guest_in     machine's end, egress = what goes to the guest: kill, lease
 *   guest_inner  guest's end, ingress: kill and lease once more, behind the
 *                backlog that the veth crossing may have queued in
 *
 * Trusted: marks (SO_MARK needs CAP_NET_ADMIN, and the crossing of a network
 * namespace clears them) and maps. Not trusted: every byte of a packet.
 * Programs continue to other filters (TC_ACT_UNSPEC) or drop.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "edge/edge_abi.h"
#include "wire/traffic_class.h"

#define PASS TC_ACT_UNSPEC
#define DROP TC_ACT_SHOT
#define BURST_NS 2000000 /* a bucket holds what 2 ms bring, at least two large packets */
#define BURST_MIN 131072
#define NS_PER_S 1000000000ull
#define IP_FRAG_OFFSET_MASK 0x1fff

/* The verifier wants values it can follow: one slot, bounded, once. */
#define SLOT_OF_MARK(mark) ((mark) & EDGE_ABI_TAG_SLOT_MASK)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EDGE_ABI_KILL_COUNT);
	__type(key, __u32);
	__type(value, __u32);
} edge_kill SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_abi_config);
} edge_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EDGE_ABI_SLOTS);
	__type(key, __u32);
	__type(value, struct edge_abi_guest);
} edge_guest SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EDGE_ABI_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} edge_lease SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EDGE_ABI_SLOTS);
	__type(key, __u32);
	__type(value, struct edge_abi_rules);
} edge_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct edge_abi_prefix);
	__type(value, __u32);
} edge_campus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EDGE_ABI_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} edge_slot SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * TRAFFIC_CLASS_COUNT);
	__type(key, __u32);
	__type(value, struct edge_abi_stats);
} edge_class_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EDGE_ABI_SLOTS);
	__type(key, __u32);
	__type(value, struct edge_abi_guest_stats);
} edge_guest_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EDGE_ABI_SLOTS);
	__type(key, __u32);
	__type(value, struct edge_abi_ip6_stats);
} edge_guest_ip6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, EDGE_ABI_FLOWS);
	__type(key, struct edge_abi_flow_key);
	__type(value, struct edge_abi_flow);
} edge_flow SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EDGE_ABI_TAGS);
	__type(key, __u32);
	__type(value, struct edge_abi_tag);
} edge_tag SEC(".maps");

struct bucket {
	struct bpf_spin_lock lock;
	__u32 pad;
	__u64 last_ns;
	__s64 tokens; /* bytes */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EDGE_ABI_BUCKET_COUNT);
	__type(key, __u32);
	__type(value, struct bucket);
} edge_bucket SEC(".maps");

struct packet {
	__u32 src, dst;        /* network byte order */
	__u16 sport, dport;    /* network byte order */
	__u8 proto, tos, first; /* first: not a later fragment */
};

static __always_inline bool is_set(__u32 kill)
{
	__u32 *v = bpf_map_lookup_elem(&edge_kill, &kill);

	return !v || *(volatile __u32 *)v;
}

static __always_inline bool is_killed(__u32 slot)
{
	return is_set(EDGE_ABI_KILL_ALL) || is_set(1 + slot);
}

static __always_inline bool is_expired(__u32 slot)
{
	__u64 *deadline = bpf_map_lookup_elem(&edge_lease, &slot);

	return !deadline || bpf_ktime_get_boot_ns() >= *(volatile __u64 *)deadline;
}

static __always_inline struct edge_abi_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&edge_config, &zero);
}

static __always_inline void count_class(__u32 class, __u32 in, __u32 len, bool passed)
{
	__u32 key = 2 * class + in;
	struct edge_abi_stats *s = bpf_map_lookup_elem(&edge_class_stats, &key);

	if (!s)
		return;
	if (passed) {
		s->packets++;
		s->bytes += len;
	} else {
		s->dropped++;
	}
}

static __always_inline int count_guest(__u32 slot, bool in, __u32 len)
{
	struct edge_abi_guest_stats *s = bpf_map_lookup_elem(&edge_guest_stats, &slot);

	if (s) {
		struct edge_abi_stats *d = in ? &s->in : &s->out;

		d->packets++;
		d->bytes += len;
	}
	return PASS;
}

static __always_inline int drop_guest(__u32 slot, bool in, enum edge_abi_reason why)
{
	struct edge_abi_guest_stats *s = bpf_map_lookup_elem(&edge_guest_stats, &slot);

	if (s) {
		struct edge_abi_stats *d = in ? &s->in : &s->out;

		d->dropped++;
		s->reasons[why]++;
	}
	return DROP;
}

/* IPv6 is closed to guests, whatever their rules open; behind the checks of kill and lease. */
static __always_inline int deny_ip6(__u32 slot, bool in)
{
	struct edge_abi_ip6_stats *s = bpf_map_lookup_elem(&edge_guest_ip6, &slot);

	if (s && in)
		s->in++;
	else if (s)
		s->out++;
	return drop_guest(slot, in, EDGE_ABI_DENIED);
}

/* False if it is no whole IPv4 header; ports stay 0 where the packet has none. */
static __always_inline bool parse_ip4(struct __sk_buff *skb, struct packet *p)
{
	struct iphdr ip;
	__u16 ports[2];

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return false;
	p->src = ip.saddr;
	p->dst = ip.daddr;
	p->proto = ip.protocol;
	p->tos = ip.tos;
	p->first = !(ip.frag_off & bpf_htons(IP_FRAG_OFFSET_MASK));
	p->sport = p->dport = 0;
	if (p->first && (ip.protocol == IPPROTO_TCP || ip.protocol == IPPROTO_UDP) &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN + ip.ihl * 4, ports, sizeof(ports))) {
		p->sport = ports[0];
		p->dport = ports[1];
	}
	return true;
}

/*
 * Takes len tokens. Research always gets its packet and drives the bucket
 * below zero, down to one burst, so that the others wait until it is served.
 */
static __always_inline bool take(__u32 id, __u64 rate, __u32 len, bool always)
{
	struct bucket *b = bpf_map_lookup_elem(&edge_bucket, &id);
	__u64 now = bpf_ktime_get_ns(), gained, elapsed;
	__s64 burst;
	bool ok;

	if (!b)
		return true;
	burst = rate * BURST_NS / NS_PER_S;
	if (burst < BURST_MIN)
		burst = BURST_MIN;
	bpf_spin_lock(&b->lock);
	elapsed = now - b->last_ns;
	if (elapsed > NS_PER_S) /* idle, or the clock read on another CPU was ahead */
		elapsed = (__s64)elapsed < 0 ? 0 : NS_PER_S;
	gained = elapsed * (rate >> 10) / (NS_PER_S >> 10);
	if (gained) {
		b->tokens += gained;
		b->last_ns = now;
		if (b->tokens > burst)
			b->tokens = burst;
	}
	ok = always || b->tokens >= (__s64)len;
	if (ok) {
		b->tokens -= len;
		if (b->tokens < -burst)
			b->tokens = -burst;
	}
	bpf_spin_unlock(&b->lock);
	return ok;
}

/* Gives back what take() took from one bucket when the next one refused. */
static __always_inline void give(__u32 id, __u32 len)
{
	struct bucket *b = bpf_map_lookup_elem(&edge_bucket, &id);

	if (!b)
		return;
	bpf_spin_lock(&b->lock);
	b->tokens += len;
	bpf_spin_unlock(&b->lock);
}

/*
 * HTB's order without HTB: everybody draws from the link's bucket; control and
 * research regardless, deadline moves within their floor regardless, all else
 * only what is left.
 */
static __always_inline bool police(const struct edge_abi_config *c, __u32 class, __u32 len)
{
	__u32 own = EDGE_ABI_BUCKET_LINK;
	__u64 ceiling = 0;

	if (class == TRAFFIC_RESEARCH || class == TRAFFIC_CONTROL)
		return take(EDGE_ABI_BUCKET_LINK, c->link_rate, len, true);
	if (class == TRAFFIC_DEADLINE) {
		if (c->deadline_rate && take(EDGE_ABI_BUCKET_DEADLINE, c->deadline_rate, len, false))
			return take(EDGE_ABI_BUCKET_LINK, c->link_rate, len, true);
		return take(EDGE_ABI_BUCKET_LINK, c->link_rate, len, false);
	}
	if (class == TRAFFIC_SCAVENGER) {
		own = EDGE_ABI_BUCKET_SCAVENGER;
		ceiling = c->scavenger_rate;
	} else if (class == TRAFFIC_GUEST) {
		own = EDGE_ABI_BUCKET_GUESTS;
		ceiling = c->guest_rate;
	}
	if (ceiling && !take(own, ceiling, len, false))
		return false;
	if (take(EDGE_ABI_BUCKET_LINK, c->link_rate, len, false))
		return true;
	if (ceiling)
		give(own, len);
	return false;
}

static __always_inline void note_flow(struct __sk_buff *skb, const struct packet *p, __u32 mark)
{
	struct edge_abi_flow_key key = {
		.local = p->src, .remote = p->dst, .local_port = p->sport,
		.remote_port = p->dport, .proto = p->proto, .mark = mark,
	};
	struct edge_abi_flow *f = bpf_map_lookup_elem(&edge_flow, &key);
	__u64 now = bpf_ktime_get_boot_ns();

	if (f) {
		f->last_boot_ns = now;
		__sync_fetch_and_add(&f->packets, 1);
		__sync_fetch_and_add(&f->bytes, skb->len);
	} else {
		struct edge_abi_flow fresh = {
			.first_boot_ns = now, .last_boot_ns = now, .packets = 1, .bytes = skb->len,
		};

		bpf_map_update_elem(&edge_flow, &key, &fresh, BPF_NOEXIST);
	}
}

SEC("tc")
int uplink_out(struct __sk_buff *skb)
{
	__u32 mark = skb->mark, class = traffic_mark_class(mark), slot = SLOT_OF_MARK(mark);
	struct edge_abi_config *c;
	struct packet p;

	if (class == TRAFFIC_GUEST) {
		struct edge_abi_guest *g;

		if (is_killed(slot))
			return drop_guest(slot, false, EDGE_ABI_KILLED);
		if (is_expired(slot))
			return drop_guest(slot, false, EDGE_ABI_LEASE);
		/* A packet of the guest that had the slot before. */
		g = bpf_map_lookup_elem(&edge_guest, &slot);
		if (!g || g->mark != mark)
			return DROP;
	}
	c = config();
	if (!c)
		return PASS;
	if ((c->flags & EDGE_ABI_STOP_ALL) && class != TRAFFIC_RESEARCH && class != TRAFFIC_CONTROL) {
		count_class(class, 0, skb->len, false);
		return DROP;
	}
	if ((c->flags & EDGE_ABI_POLICE) && !police(c, class, skb->len)) {
		count_class(class, 0, skb->len, false);
		return class == TRAFFIC_GUEST ? drop_guest(slot, false, EDGE_ABI_POLICED) : DROP;
	}
	count_class(class, 0, skb->len, true);
	if (class == TRAFFIC_RESEARCH)
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP) && parse_ip4(skb, &p))
		note_flow(skb, &p, mark);
	if (class == TRAFFIC_GUEST) {
		if (c->guest_classid)
			skb->priority = c->guest_classid + slot;
	} else if (c->classid[class & 7]) {
		skb->priority = c->classid[class & 7];
	}
	return PASS;
}

SEC("tc")
int uplink_in(struct __sk_buff *skb)
{
	__u8 tos = 0;
	__u32 class = TRAFFIC_RESEARCH;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, ETH_HLEN + 1, &tos, 1);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u16 head = 0;

		bpf_skb_load_bytes(skb, ETH_HLEN, &head, 2);
		tos = bpf_ntohs(head) >> 4;
	}
	switch (tos >> 2) {
	case TRAFFIC_DSCP_CONTROL: class = TRAFFIC_CONTROL; break;
	case TRAFFIC_DSCP_DEADLINE: class = TRAFFIC_DEADLINE; break;
	case TRAFFIC_DSCP_SCAVENGER: class = TRAFFIC_SCAVENGER; break;
	case TRAFFIC_DSCP_GUEST: class = TRAFFIC_GUEST; break;
	}
	count_class(class, 1, skb->len, true);
	return PASS;
}

static __always_inline bool is_own_mac(const __u8 *a, const __u8 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4] &&
	       a[5] == b[5];
}

/* linux/if_arp.h drags in the C library's headers. */
struct arp_ip4 {
	__u8 head[8];
	__u8 sender_mac[6];
	__u8 sender_ip[4];
	__u8 target_mac[6];
	__u8 target_ip[4];
} __attribute__((packed));

static __always_inline bool arp_is_honest(struct __sk_buff *skb, const struct edge_abi_guest *g)
{
	struct arp_ip4 arp;
	__u32 sender;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &arp, sizeof(arp)))
		return false;
	__builtin_memcpy(&sender, arp.sender_ip, 4);
	return is_own_mac(arp.sender_mac, g->mac) && (sender == g->address || sender == 0);
}

static __always_inline bool is_allowed(const struct edge_abi_guest *g, __u32 slot,
				       const struct packet *p)
{
	struct edge_abi_prefix key = { .prefix_len = 32, .address = p->dst };
	struct edge_abi_rules *r = bpf_map_lookup_elem(&edge_rules, &slot);
	__u16 port = bpf_ntohs(p->dport);

	if (!r || p->dst == g->gateway)
		return false;
	for (__u32 i = 0; i < EDGE_ABI_RULES; i++) {
		const struct edge_abi_rule *rule = &r->rules[i];

		if (i >= r->count)
			break;
		if ((p->dst & rule->mask) != rule->address)
			continue;
		if (rule->proto && rule->proto != p->proto)
			continue;
		/* Later fragments have no ports; without the first they are nothing. */
		if (rule->port_max && p->first && (port < rule->port_min || port > rule->port_max))
			continue;
		return true;
	}
	if (bpf_map_lookup_elem(&edge_campus, &key))
		return false;
	return g->flags & EDGE_ABI_GUEST_INTERNET;
}

/* Replaces the DSCP, keeps ECN, and mends the header's checksum. */
static __always_inline void label_ip4(struct __sk_buff *skb, const struct packet *p)
{
	__u8 tos = TRAFFIC_DSCP_GUEST << 2 | (p->tos & 3);

	if (tos == p->tos)
		return;
	bpf_l3_csum_replace(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, check),
			    bpf_htons(p->tos), bpf_htons(tos), 2);
	bpf_skb_store_bytes(skb, ETH_HLEN + __builtin_offsetof(struct iphdr, tos), &tos, 1, 0);
}

SEC("tc")
int guest_out(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, *found, slot;
	struct edge_abi_guest *g;
	struct edge_abi_config *c;
	struct ethhdr eth;
	struct packet p;

	if (is_set(EDGE_ABI_KILL_ALL)) {
		found = bpf_map_lookup_elem(&edge_slot, &ifindex);
		return found ? drop_guest(*found & EDGE_ABI_TAG_SLOT_MASK, false, EDGE_ABI_KILLED)
			     : DROP;
	}
	found = bpf_map_lookup_elem(&edge_slot, &ifindex);
	if (!found)
		return DROP;
	slot = *found & EDGE_ABI_TAG_SLOT_MASK;
	if (is_set(1 + slot))
		return drop_guest(slot, false, EDGE_ABI_KILLED);
	if (is_expired(slot))
		return drop_guest(slot, false, EDGE_ABI_LEASE);
	g = bpf_map_lookup_elem(&edge_guest, &slot);
	if (!g || !(g->flags & EDGE_ABI_GUEST_ACTIVE) || g->ifindex != ifindex)
		return DROP;
	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)) || !is_own_mac(eth.h_source, g->mac))
		return drop_guest(slot, false, EDGE_ABI_SPOOFED);
	if (eth.h_proto == bpf_htons(ETH_P_ARP))
		return arp_is_honest(skb, g) ? PASS : drop_guest(slot, false, EDGE_ABI_SPOOFED);
	if (eth.h_proto == bpf_htons(ETH_P_IPV6))
		return deny_ip6(slot, false);
	/* VLAN tags and all else are closed: guests have IPv4 only. */
	if (eth.h_proto != bpf_htons(ETH_P_IP) || skb->vlan_present)
		return drop_guest(slot, false, EDGE_ABI_DENIED);
	if (!parse_ip4(skb, &p) || p.src != g->address)
		return drop_guest(slot, false, EDGE_ABI_SPOOFED);
	if (!is_allowed(g, slot, &p))
		return drop_guest(slot, false, EDGE_ABI_DENIED);
	if ((g->flags & EDGE_ABI_GUEST_POLICE) && g->rate &&
	    !take(EDGE_ABI_BUCKET_GUEST0 + slot, g->rate, skb->len, false))
		return drop_guest(slot, false, EDGE_ABI_POLICED);
	skb->mark = g->mark;
	c = config();
	if (c && (c->flags & EDGE_ABI_ROUTED))
		note_flow(skb, &p, g->mark);
	label_ip4(skb, &p);
	return count_guest(slot, false, skb->len);
}

SEC("tc")
int guest_in(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex, *found, slot;
	struct edge_abi_guest *g;
	struct edge_abi_config *c;
	struct packet p;

	found = bpf_map_lookup_elem(&edge_slot, &ifindex);
	if (!found)
		return DROP;
	slot = *found & EDGE_ABI_TAG_SLOT_MASK;
	if (is_killed(slot))
		return drop_guest(slot, true, EDGE_ABI_KILLED);
	if (is_expired(slot))
		return drop_guest(slot, true, EDGE_ABI_LEASE);
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return deny_ip6(slot, true);
	g = bpf_map_lookup_elem(&edge_guest, &slot);
	if (!g || skb->protocol != bpf_htons(ETH_P_IP) || !parse_ip4(skb, &p) || p.dst != g->address)
		return drop_guest(slot, true, EDGE_ABI_DENIED);
	c = config();
	if (c && (c->flags & EDGE_ABI_ROUTED) && p.proto != IPPROTO_ICMP) {
		struct edge_abi_flow_key key = {
			.local = p.dst, .remote = p.src, .local_port = p.dport,
			.remote_port = p.sport, .proto = p.proto, .mark = g->mark,
		};

		if (p.first && !bpf_map_lookup_elem(&edge_flow, &key))
			return drop_guest(slot, true, EDGE_ABI_DENIED);
	}
	return count_guest(slot, true, skb->len);
}

SEC("tc")
int guest_inner(struct __sk_buff *skb)
{
	struct edge_abi_config *c;
	__u32 slot;
	struct packet p;

	if (is_set(EDGE_ABI_KILL_ALL))
		return DROP;
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return skb->protocol == bpf_htons(ETH_P_ARP) ? PASS : DROP;
	c = config();
	if (!c || !parse_ip4(skb, &p) || (p.dst & c->guest_mask) != c->guest_net)
		return DROP;
	/* The interface index means nothing in this namespace; the address does. */
	slot = bpf_ntohl(p.dst & ~c->guest_mask) >> 1;
	if (slot >= EDGE_ABI_SLOTS)
		return DROP;
	if (is_set(1 + slot))
		return drop_guest(slot, true, EDGE_ABI_KILLED);
	if (is_expired(slot))
		return drop_guest(slot, true, EDGE_ABI_LEASE);
	return PASS;
}

char edge_license[] SEC("license") = "Dual BSD/GPL";
