/* SPDX-License-Identifier: Apache-2.0 */
/* The counters and the one snapshot that text, JSON and page render. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/pkt_sched.h>
#include <string.h>

#include "base/clock.h"
#include "edge/edge_internal.h"

static const char *const class_names[] = TRAFFIC_CLASS_NAMES;
static const uint32_t class_leaf[TRAFFIC_CLASS_COUNT] = {
	[TRAFFIC_RESEARCH] = TREE_RESEARCH, [TRAFFIC_CONTROL] = TREE_CONTROL,
	[TRAFFIC_DEADLINE] = TREE_DEADLINE, [TRAFFIC_SCAVENGER] = TREE_SCAVENGER,
};

int edge_class_count(const struct edge *e, enum traffic_class c, struct edge_class_count *ret)
{
	struct edge_abi_stats s;
	const size_t words = sizeof(s) / sizeof(uint64_t);
	int err = 0;

	if ((unsigned)c >= TRAFFIC_CLASS_COUNT)
		return -EINVAL;
	memset(ret, 0, sizeof(*ret));
	for (uint32_t in = 0; in < 2 && err == 0; in++) {
		struct edge_count *to = in ? &ret->in : &ret->out;

		err = map_read_sum(&e->hooks, EDGE_MAP_CLASS_STATS, 2 * (uint32_t)c + in, (uint64_t *)&s,
				   words);
		if (err == 0)
			*to = (struct edge_count){ s.packets, s.bytes, s.dropped };
	}
	if (err == 0 && e->htb && class_leaf[c])
		ret->backlog_bytes = tree_backlog(e->sock, e->tree.ifindex, class_leaf[c]);
	return err;
}

int edge_guest_count(const struct edge *e, unsigned slot, struct edge_guest_count *ret)
{
	struct edge_abi_guest_stats s;
	struct edge_abi_ip6_stats ip6;
	int err;

	if (slot >= EDGE_GUESTS_MAX)
		return -ENOENT;
	err = map_read_sum(&e->hooks, EDGE_MAP_GUEST_STATS, slot, (uint64_t *)&s,
			   sizeof(s) / sizeof(uint64_t));
	if (err == 0)
		err = map_read_sum(&e->hooks, EDGE_MAP_GUEST_IP6, slot, (uint64_t *)&ip6,
				   sizeof(ip6) / sizeof(uint64_t));
	if (err < 0)
		return err;
	*ret = (struct edge_guest_count){
		.out = { s.out.packets, s.out.bytes, s.out.dropped },
		.in = { s.in.packets, s.in.bytes, s.in.dropped },
		.killed = s.reasons[EDGE_ABI_KILLED], .lease = s.reasons[EDGE_ABI_LEASE],
		.denied = s.reasons[EDGE_ABI_DENIED], .spoofed = s.reasons[EDGE_ABI_SPOOFED],
		.policed = s.reasons[EDGE_ABI_POLICED], .ip6_out = ip6.out, .ip6_in = ip6.in,
	};
	if (e->htb)
		ret->backlog_bytes += tree_backlog(e->sock, e->tree.ifindex, TREE_GUEST0 + slot);
	if (e->guests[slot].inner)
		ret->backlog_bytes += tree_backlog(e->guests[slot].inner, e->guests[slot].inner_ifindex,
						   TC_H_ROOT);
	return 0;
}

/* 64-bit integers travel as text (docs/protocol.md). */
static json_t *u64(uint64_t v)
{
	return json_sprintf("%llu", (unsigned long long)v);
}

static json_t *count_json(const struct edge_count *c)
{
	return json_pack("{s:o, s:o, s:o}", "packets", u64(c->packets), "bytes", u64(c->bytes),
			 "dropped", u64(c->dropped_packets));
}

static json_t *classes_json(const struct edge *e)
{
	json_t *list = json_array();

	for (int c = 0; c < TRAFFIC_CLASS_COUNT; c++) {
		struct edge_class_count n;

		if (edge_class_count(e, (enum traffic_class)c, &n) == 0)
			(void)json_array_append_new(
				list, json_pack("{s:s, s:i, s:o, s:o, s:o}", "class", class_names[c],
						"dscp", traffic_dscp((enum traffic_class)c), "out",
						count_json(&n.out), "in", count_json(&n.in), "backlog",
						u64(n.backlog_bytes)));
	}
	return list;
}

static json_t *guest_json(const struct edge *e, const struct edge_guest *g)
{
	struct edge_guest_count n = { 0 };
	char address[INET_ADDRSTRLEN];
	uint64_t now = clock_boot_ns();
	int64_t left = g->lease_deadline_boot_ns > now
			       ? (int64_t)((g->lease_deadline_boot_ns - now) / NS_PER_MS)
			       : 0;

	(void)edge_guest_count(e, g->slot, &n); /* zeros if the map is gone */
	(void)inet_ntop(AF_INET, &g->address, address, sizeof(address)); /* large enough */
	return json_pack("{s:i, s:s, s:o, s:s, s:s, s:b, s:I, s:o, s:o, s:o, s:{s:o,s:o,s:o,s:o,s:o,s:o}}",
			 "slot", (int)g->slot, "job", g->job, "epoch", u64(g->epoch), "interface",
			 g->ifname, "address", address, "killed", g->killed, "lease_ms",
			 (json_int_t)left, "out", count_json(&n.out), "in", count_json(&n.in),
			 "backlog", u64(n.backlog_bytes), "drops", "killed", u64(n.killed), "lease",
			 u64(n.lease), "denied", u64(n.denied), "denied_ipv6", u64(n.ip6_out + n.ip6_in),
			 "spoofed", u64(n.spoofed), "policed", u64(n.policed));
}

static json_t *guests_json(const struct edge *e)
{
	struct edge_guest guests[EDGE_GUESTS_MAX];
	size_t n = edge_guests(e, guests, EDGE_GUESTS_MAX);
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++)
		(void)json_array_append_new(list, guest_json(e, &guests[i]));
	return list;
}

json_t *edge_status(const struct edge *e)
{
	struct edge_abi_config c = { 0 };

	(void)config_read(e, &c); /* zeros if the map is gone */
	return json_pack(
		"{s:i, s:s, s:o, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:b, s:b, s:o, s:o}", "version", 1,
		"uplink", e->uplink, "rate", u64(e->tree.rate_bps), "shaping",
		c.flags & EDGE_ABI_POLICE ? "police" : "htb", "why_police", e->no_htb, "masquerade",
		!(c.flags & EDGE_ABI_ROUTED), "floor", u64(c.deadline_rate * 8), "floor_cap",
		u64(e->floor_cap_bps), "scavenger_ceiling", u64(c.scavenger_rate * 8),
		"guest_ceiling", u64(c.guest_rate * 8), "stopped",
		(c.flags & EDGE_ABI_STOP_ALL) != 0, "killed_all", edge_killed(e, EDGE_ALL), "classes",
		classes_json(e), "guests", guests_json(e));
}
