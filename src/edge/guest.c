/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest's network: a veth pair whose inner end is eth0 in the guest's
 * namespace, a /31 of its own, and its entries in the maps.
 *
 * Order is what keeps this safe. A slot that is not taken is killed and out of
 * lease. Attach writes the maps and attaches the programs while both ends are
 * down, brings them up, and lifts the kill flag last. A failure in between
 * goes through the same code as detach. Slots are given out in turn, so that
 * an address is not used again while its predecessor's connections linger.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "edge/edge_internal.h"

#define INNER_NAME "eth0"
#define GENERATION_MASK (TRAFFIC_MARK_TAG_MASK >> EDGE_ABI_TAG_GENERATION_SHIFT)

struct in_addr slot_address(const struct edge *e, unsigned slot, bool gateway)
{
	uint32_t base = ntohl(e->guest_net.addr.s_addr);

	return (struct in_addr){ htonl(base + 2 * slot + (gateway ? 0 : 1)) };
}

static void slot_ifname(unsigned slot, char name[IFNAMSIZ])
{
	(void)snprintf(name, IFNAMSIZ, "rg%u", slot); /* at most "rg63" */
}

static int guest_read(const struct edge *e, uint32_t slot, struct edge_abi_guest *ret)
{
	return map_read(&e->hooks, EDGE_MAP_GUEST, &slot, ret);
}

static int kill_write(const struct edge *e, uint32_t slot, uint32_t value)
{
	uint32_t key = 1 + slot;

	return map_write(&e->hooks, EDGE_MAP_KILL, &key, &value);
}

static int guest_describe(const struct edge *e, unsigned slot, struct edge_guest *ret)
{
	struct edge_abi_guest g;
	uint32_t key = slot;
	int err = slot < EDGE_GUESTS_MAX ? guest_read(e, slot, &g) : -ENOENT;

	if (err < 0 || !(g.flags & EDGE_ABI_GUEST_ACTIVE))
		return -ENOENT;
	memset(ret, 0, sizeof(*ret));
	ret->slot = slot;
	memcpy(ret->job, g.job, sizeof(ret->job));
	ret->job[sizeof(ret->job) - 1] = '\0';
	ret->epoch = g.epoch;
	slot_ifname(slot, ret->ifname);
	ret->address.s_addr = g.address;
	ret->gateway.s_addr = g.gateway;
	ret->prefix_len = 31;
	ret->killed = edge_killed(e, slot);
	(void)map_read(&e->hooks, EDGE_MAP_LEASE, &key, &ret->lease_deadline_boot_ns); /* 0 if not */
	return 0;
}

size_t edge_guests(const struct edge *e, struct edge_guest *ret, size_t cap)
{
	size_t n = 0;

	for (unsigned slot = 0; slot < EDGE_GUESTS_MAX && n < cap; slot++)
		if (guest_describe(e, slot, &ret[n]) == 0)
			n++;
	return n;
}

int edge_guest_find(const struct edge *e, const char *job, uint64_t epoch, struct edge_guest *ret)
{
	struct edge_guest g;

	for (unsigned slot = 0; slot < EDGE_GUESTS_MAX; slot++)
		if (guest_describe(e, slot, &g) == 0 && g.epoch == epoch && strcmp(g.job, job) == 0) {
			*ret = g;
			return 0;
		}
	return -ENOENT;
}

int edge_guest_lease(struct edge *e, unsigned slot, uint64_t deadline_boot_ns)
{
	struct edge_guest g;
	uint32_t key = slot;
	int err = guest_describe(e, slot, &g);

	return err < 0 ? err : map_write(&e->hooks, EDGE_MAP_LEASE, &key, &deadline_boot_ns);
}

/* --- the pieces of an attach ---------------------------------------------- */

static uint64_t guest_rate(const struct edge *e, uint64_t asked)
{
	uint64_t most = e->tree.guest_ceiling_bps ? MIN(e->tree.guest_ceiling_bps, e->tree.rate_bps)
						  : e->tree.rate_bps;

	return asked ? MIN(asked, most) : most;
}

static int rules_write(struct edge *e, uint32_t slot, const struct edge_guest_config *config)
{
	struct edge_abi_rules r = { .count = (uint32_t)config->rules_count };

	for (size_t i = 0; i < config->rules_count; i++) {
		const struct edge_rule *in = &config->rules[i];
		uint32_t mask = in->to.len ? htonl(UINT32_MAX << (32 - in->to.len)) : 0;

		r.rules[i] = (struct edge_abi_rule){
			.address = in->to.addr.s_addr & mask, .mask = mask, .proto = in->proto,
			.port_min = in->port_min, .port_max = in->port_max,
		};
	}
	return map_write(&e->hooks, EDGE_MAP_RULES, &slot, &r);
}

static int guest_write(struct edge *e, uint32_t slot, const struct edge_guest_config *config,
		       int ifindex, struct edge_abi_guest *g)
{
	struct edge_abi_tag tag = { .epoch = config->epoch, .since_boot_ns = clock_boot_ns() };
	uint32_t generation = (g->generation + 1) & GENERATION_MASK;
	int err;

	*g = (struct edge_abi_guest){
		.flags = EDGE_ABI_GUEST_ACTIVE | (config->internet ? EDGE_ABI_GUEST_INTERNET : 0) |
			 (e->tbf ? 0 : EDGE_ABI_GUEST_POLICE),
		.generation = generation,
		.mark = traffic_mark(TRAFFIC_GUEST,
				     generation << EDGE_ABI_TAG_GENERATION_SHIFT | slot),
		.address = slot_address(e, slot, false).s_addr,
		.gateway = slot_address(e, slot, true).s_addr,
		.ifindex = (uint32_t)ifindex,
		.mac = { 0x02, 'R', 'G', (uint8_t)generation, (uint8_t)slot, 2 },
		.gateway_mac = { 0x02, 'R', 'G', (uint8_t)generation, (uint8_t)slot, 1 },
		.epoch = config->epoch,
		.rate = guest_rate(e, config->rate_bps) / 8,
	};
	(void)snprintf(g->job, sizeof(g->job), "%s", config->job);
	memcpy(tag.job, g->job, sizeof(tag.job));
	err = map_write(&e->hooks, EDGE_MAP_TAG, &g->mark, &tag);
	if (err == 0)
		err = map_write(&e->hooks, EDGE_MAP_GUEST, &slot, g);
	if (err == 0)
		err = map_write(&e->hooks, EDGE_MAP_SLOT, &g->ifindex, &slot);
	return err;
}

static int stats_clear(struct edge *e, uint32_t slot)
{
	CLEANUP_FREE void *zero = calloc((size_t)e->hooks.cpus, sizeof(struct edge_abi_guest_stats));
	int err = zero ? map_write(&e->hooks, EDGE_MAP_GUEST_STATS, &slot, zero) : -ENOMEM;

	_Static_assert(sizeof(struct edge_abi_ip6_stats) <= sizeof(struct edge_abi_guest_stats), "zero");
	return err < 0 ? err : map_write(&e->hooks, EDGE_MAP_GUEST_IP6, &slot, zero);
}

/* What happens inside the guest's namespace. */
struct inner {
	const struct edge *e;
	unsigned slot;
	uint64_t rate_bps;
	struct nl_sock *sock;
	int ifindex;
};

static int inner_hook(void *arg)
{
	struct inner *in = arg;

	/* Guests have IPv4 only; this spares them timeouts. The programs drop IPv6 in any case. */
	(void)net_conf_set_v6(INNER_NAME, "disable_ipv6", 1);
	return hooks_attach_in(&in->e->hooks, in->ifindex, EDGE_PROG_GUEST_INNER);
}

static int inner_set(struct inner *in, int netns_fd)
{
	struct net_link lo, eth;
	int err = net_open_in(netns_fd, &in->sock);

	if (err == 0)
		err = net_link_get(in->sock, INNER_NAME, 0, &eth);
	if (err < 0)
		return err;
	in->ifindex = eth.ifindex;
	err = net_run_in(netns_fd, inner_hook, in);
	if (err == 0)
		err = net_link_gso_max(in->sock, in->ifindex, tree_gso_bytes(in->rate_bps));
	if (err == 0 && in->e->tbf)
		err = tree_shaper_set(in->sock, in->ifindex, in->rate_bps);
	if (err == 0 && net_link_get(in->sock, "lo", 0, &lo) == 0 && !lo.up)
		err = net_link_up(in->sock, lo.ifindex);
	if (err == 0)
		err = net_addr_add(in->sock, in->ifindex, slot_address(in->e, in->slot, false), 31);
	if (err == 0)
		err = net_link_up(in->sock, in->ifindex);
	if (err == 0)
		err = net_route_default(in->sock, in->ifindex, slot_address(in->e, in->slot, true));
	return err;
}

static int outer_set(struct edge *e, unsigned slot, int ifindex, uint64_t rate_bps)
{
	char name[IFNAMSIZ];
	bool created;
	int err;

	slot_ifname(slot, name);
	err = hooks_attach(&e->hooks, ifindex, EDGE_PROG_GUEST_OUT, EDGE_PROG_GUEST_IN, &created);
	if (err == 0)
		err = net_conf_set(name, "forwarding", 1);
	if (err == 0 && e->htb)
		err = tree_guest_add(&e->tree, slot, rate_bps);
	if (err == 0)
		err = net_addr_add(e->sock, ifindex, slot_address(e, slot, true), 31);
	if (err == 0)
		err = net_link_up(e->sock, ifindex);
	return err;
}

/* Forwarding and NAT, when the first guest comes; they stay until edge_remove(). */
static int uplink_forward(struct edge *e, struct diag *diag)
{
	struct edge_abi_config c;
	int was = 0, err = config_read(e, &c);

	if (err < 0)
		return diag_set(diag, err, "edge", "reading its configuration: %s", strerror(-err));
	if (c.created & EDGE_ABI_CREATED_NFT)
		return 0;
	err = net_conf_get(e->uplink, "forwarding", &was);
	if (err < 0)
		return diag_set(diag, err, e->uplink, "forwarding: %s", strerror(-err));
	/* The rules first: with forwarding on and no rules this would be an open router. */
	err = nft_set(e->uplink, &e->guest_net, e->masquerade, was == 0, diag);
	if (err < 0 && !e->masquerade)
		err = 0; /* no nf_tables: the programs alone keep flows and services closed */
	if (err < 0)
		return err;
	if (was == 0)
		err = net_conf_set(e->uplink, "forwarding", 1);
	if (err < 0)
		return diag_set(diag, err, e->uplink, "forwarding: %s", strerror(-err));
	c.created |= EDGE_ABI_CREATED_NFT | (was == 0 ? EDGE_ABI_CREATED_FORWARDING : 0);
	return config_write(e, &c);
}

static int config_check(const struct edge_guest_config *c, struct diag *diag)
{
	if (!c->job || !c->job[0] || strlen(c->job) >= EDGE_JOB_MAX)
		return diag_set(diag, -EINVAL, "job", "an id of 1 to %d bytes", EDGE_JOB_MAX - 1);
	if (c->rules_count > EDGE_RULES_MAX)
		return diag_set(diag, -E2BIG, "rules", "%zu destinations, at most %d", c->rules_count,
				EDGE_RULES_MAX);
	for (size_t i = 0; i < c->rules_count; i++)
		if (c->rules[i].to.len > 32 || c->rules[i].port_min > c->rules[i].port_max)
			return diag_set(diag, -EINVAL, "rules", "number %zu: a bad prefix or ports", i);
	return 0;
}

/* The first free slot after the one given out last. */
static int slot_choose(struct edge *e, struct edge_abi_guest *ret)
{
	for (unsigned i = 0; i < EDGE_GUESTS_MAX; i++) {
		unsigned slot = (e->slot_next + i) % EDGE_GUESTS_MAX;

		if (guest_read(e, slot, ret) == 0 && !(ret->flags & EDGE_ABI_GUEST_ACTIVE)) {
			e->slot_next = (slot + 1) % EDGE_GUESTS_MAX;
			return (int)slot;
		}
	}
	return -ENOSPC;
}

static int attach_slot(struct edge *e, unsigned slot, struct edge_abi_guest *g, int netns_fd,
		       const struct edge_guest_config *config, struct diag *diag)
{
	struct inner in = { .e = e, .slot = slot, .rate_bps = guest_rate(e, config->rate_bps) };
	uint8_t generation = (uint8_t)((g->generation + 1) & GENERATION_MASK);
	uint8_t mac[6] = { 0x02, 'R', 'G', generation, (uint8_t)slot, 1 };
	uint8_t peer_mac[6] = { 0x02, 'R', 'G', generation, (uint8_t)slot, 2 };
	const char *step = "veth pair";
	char name[IFNAMSIZ];
	int ifindex, err;

	slot_ifname(slot, name);
	err = net_veth_add(e->sock, name, mac, netns_fd, INNER_NAME, peer_mac, &ifindex);
	if (err < 0)
		return diag_set(diag, err, name, "%s: %s", step, strerror(-err));
	step = "maps";
	err = rules_write(e, slot, config);
	if (err == 0)
		err = stats_clear(e, slot);
	if (err == 0)
		err = guest_write(e, slot, config, ifindex, g);
	if (err == 0) {
		step = "the machine's end";
		err = outer_set(e, slot, ifindex, in.rate_bps);
	}
	if (err == 0) {
		step = "the guest's end";
		err = inner_set(&in, netns_fd);
	}
	if (err < 0) {
		nl_socket_free(in.sock);
		(void)net_link_del(e->sock, ifindex); /* the step's error is the one to tell */
		return diag_set(diag, err, name, "%s: %s", step, strerror(-err));
	}
	e->guests[slot] = (struct edge_guest_state){ in.sock, in.ifindex, in.rate_bps };
	return 0;
}

int edge_guest_attach(struct edge *e, const struct edge_guest_config *config,
		      struct edge_guest *ret, struct diag *diag)
{
	CLEANUP_FD int opened = -1;
	uint64_t deadline = config->lease_deadline_boot_ns;
	struct edge_abi_guest g;
	struct edge_guest other;
	uint32_t key;
	char path[64];
	int slot, netns_fd = config->netns_fd, err = config_check(config, diag);

	if (err < 0)
		return err;
	if (e->readonly)
		return diag_set(diag, -EROFS, "edge", "opened for reading only");
	if (edge_guest_find(e, config->job, config->epoch, &other) == 0)
		return diag_set(diag, -EEXIST, config->job, "already attached at %s", other.ifname);
	if (netns_fd < 0) {
		(void)snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)config->netns_pid);
		netns_fd = opened = open(path, O_RDONLY | O_CLOEXEC);
		if (opened < 0)
			return diag_set(diag, -errno, path, "%s", strerror(errno));
	}
	slot = slot_choose(e, &g);
	if (slot < 0)
		return diag_set(diag, slot, "guests", "all %d slots are taken", EDGE_GUESTS_MAX);
	err = uplink_forward(e, diag);
	if (err < 0)
		return err;
	err = attach_slot(e, (unsigned)slot, &g, netns_fd, config, diag);
	key = (uint32_t)slot;
	if (err == 0)
		err = map_write(&e->hooks, EDGE_MAP_LEASE, &key, &deadline);
	if (err == 0)
		err = kill_write(e, key, 0);
	if (err < 0) {
		(void)edge_guest_detach(e, key); /* what of it was there; the first error counts */
		return err;
	}
	return guest_describe(e, key, ret);
}

int edge_guest_detach(struct edge *e, unsigned slot)
{
	struct edge_abi_guest g;
	struct net_link link;
	uint32_t key = slot;
	uint64_t zero = 0;
	char name[IFNAMSIZ];
	int err;

	if (e->readonly)
		return -EROFS;
	if (slot >= EDGE_GUESTS_MAX || guest_read(e, slot, &g) < 0 ||
	    !(g.flags & EDGE_ABI_GUEST_ACTIVE))
		return -ENOENT;
	/* Closed from here on, whatever follows. */
	err = kill_write(e, slot, 1);
	(void)map_write(&e->hooks, EDGE_MAP_LEASE, &key, &zero); /* the kill flag holds already */
	nl_socket_free(e->guests[slot].inner);
	memset(&e->guests[slot], 0, sizeof(e->guests[slot]));
	slot_ifname(slot, name);
	if (net_link_get(e->sock, name, 0, &link) == 0 && link.ifindex == (int)g.ifindex) {
		int gone = net_link_del(e->sock, link.ifindex);

		err = gone < 0 && gone != -ENODEV ? gone : err;
	}
	if (e->htb)
		(void)tree_guest_del(&e->tree, slot); /* an attach that failed early made none */
	(void)flows_sweep(e, true, NULL); /* its flows get its name while the tag is there */
	(void)map_remove_key(&e->hooks, EDGE_MAP_SLOT, &g.ifindex); /* gone is fine */
	(void)map_remove_key(&e->hooks, EDGE_MAP_TAG, &g.mark);
	g.flags = 0;
	if (map_write(&e->hooks, EDGE_MAP_GUEST, &key, &g) < 0 && err == 0)
		err = -errno;
	return err;
}

int edge_guest_rate_set(struct edge *e, unsigned slot, uint64_t bits_per_s)
{
	struct edge_guest_state *s;
	struct edge_abi_guest g;
	uint32_t key = slot;
	int err = slot < EDGE_GUESTS_MAX ? guest_read(e, slot, &g) : -ENOENT;

	if (err < 0 || !(g.flags & EDGE_ABI_GUEST_ACTIVE))
		return -ENOENT;
	s = &e->guests[slot];
	s->rate_bps = guest_rate(e, bits_per_s);
	g.rate = s->rate_bps / 8;
	err = map_write(&e->hooks, EDGE_MAP_GUEST, &key, &g);
	if (err == 0 && e->htb)
		err = tree_guest_add(&e->tree, slot, s->rate_bps);
	if (err == 0 && e->tbf)
		err = s->inner ? tree_shaper_set(s->inner, s->inner_ifindex, s->rate_bps) : -ENODEV;
	return err;
}

/* --- after a restart ------------------------------------------------------ */

/* Puts this build's programs in place and finds the guest's namespace again. */
static int adopt(struct edge *e, unsigned slot, const struct edge_abi_guest *g)
{
	CLEANUP_FD int ns = -1;
	struct inner in = { .e = e, .slot = slot, .rate_bps = g->rate * 8 };
	struct net_link link, eth;
	char name[IFNAMSIZ];
	bool created;
	int err;

	slot_ifname(slot, name);
	if (net_link_get(e->sock, name, 0, &link) < 0 || link.ifindex != (int)g->ifindex)
		return -ENODEV;
	err = hooks_attach(&e->hooks, link.ifindex, EDGE_PROG_GUEST_OUT, EDGE_PROG_GUEST_IN, &created);
	if (err == 0 && e->htb)
		err = tree_guest_add(&e->tree, slot, in.rate_bps);
	if (err < 0)
		return err;
	e->guests[slot].rate_bps = in.rate_bps;
	ns = net_find_ns(e->sock, link.peer_nsid);
	if (ns < 0 || net_open_in(ns, &in.sock) < 0)
		return 0; /* no process is left in it; the old inner program still stands */
	if (net_link_get(in.sock, INNER_NAME, 0, &eth) < 0) {
		nl_socket_free(in.sock);
		return 0;
	}
	in.ifindex = eth.ifindex;
	e->guests[slot].inner = in.sock;
	e->guests[slot].inner_ifindex = in.ifindex;
	return net_run_in(ns, inner_hook, &in);
}

void guests_adopt(struct edge *e)
{
	struct edge_abi_guest g;

	for (unsigned slot = 0; slot < EDGE_GUESTS_MAX; slot++) {
		if (guest_read(e, slot, &g) < 0)
			continue;
		if (!(g.flags & EDGE_ABI_GUEST_ACTIVE))
			(void)kill_write(e, slot, 1); /* a free slot is closed; fails only with the map */
		else if (adopt(e, slot, &g) < 0)
			(void)edge_guest_detach(e, slot); /* its veth went with its namespace */
	}
}

int guests_remove(struct edge *e)
{
	int err = 0;

	for (unsigned slot = 0; slot < EDGE_GUESTS_MAX; slot++) {
		int r = edge_guest_detach(e, slot);

		if (r < 0 && r != -ENOENT && err == 0)
			err = r;
	}
	return err;
}
