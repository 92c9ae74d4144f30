/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/campus.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "lab/netns.h"

/* 10.77.<building>.0/24 inside a building, 10.78.<building>.0/30 to the core. */
#define BUILDINGS_MAX 250
#define PORTS_MAX 240

struct campus {
	const struct scenario *s;
	bool namespaces;
	char dir[128];
	struct VEC(struct campus_node) nodes;
	size_t ports[BUILDINGS_MAX]; /* taken so far, per building */
	size_t core, *switches;      /* indexes of nodes */
};

bool campus_has_namespaces(const struct campus *c)
{
	return c->namespaces;
}

const char *campus_left_out(const struct campus *c)
{
	return c->namespaces ? NULL :
			       "no root: the campus is addresses of this machine's loopback; no "
			       "link capacities, no cable cuts, no traffic classes, no kill switch";
}

size_t campus_count(const struct campus *c)
{
	return c->nodes.count;
}

const struct campus_node *campus_at(const struct campus *c, size_t i)
{
	return &c->nodes.data[i];
}

const struct campus_node *campus_find(const struct campus *c, const char *name)
{
	for (size_t i = 0; i < c->nodes.count; i++)
		if (strcmp(c->nodes.data[i].name, name) == 0)
			return &c->nodes.data[i];
	return NULL;
}

int campus_enter(const struct campus_node *n)
{
	return n->netns_fd >= 0 && setns(n->netns_fd, CLONE_NEWNET) < 0 ? -errno : 0;
}

/* A FIFO of about 20 ms behind a rate: what a campus switch's port holds. */
static void add_shape(struct strbuf *b, const char *dev, uint64_t bps)
{
	uint64_t limit = bps / 8 / 50;

	(void)strbuf_printf(b,
			    "qdisc add dev %s root handle 1: htb default 1\n"
			    "class add dev %s parent 1: classid 1:1 htb rate %llubit burst 64kb "
			    "cburst 64kb quantum 65536\n"
			    "qdisc add dev %s parent 1:1 handle 10: bfifo limit %llu\n",
			    dev, dev, (unsigned long long)bps, dev,
			    (unsigned long long)MAX(limit, UINT64_C(131072)));
}

/* What comes in at dev goes through ifb first, which shapes it. */
static void add_ingress_shape(struct strbuf *b, const char *dev, const char *ifb)
{
	(void)strbuf_printf(b,
			    "qdisc add dev %s ingress\n"
			    "filter add dev %s parent ffff: protocol all u32 match u32 0 0 action "
			    "mirred egress redirect dev %s\n",
			    dev, dev, ifb);
}

static int add_node(struct campus *c, enum campus_kind kind, const char *name, size_t building,
		    uint64_t bps, size_t *ret, struct diag *diag)
{
	struct campus_node n = { .kind = kind, .building = building, .link_bps = bps,
				 .netns_fd = -1 };
	int r;

	if (campus_find(c, name))
		return diag_set(diag, -EINVAL, name, "this name is the lab's own");
	(void)snprintf(n.name, sizeof(n.name), "%s", name);
	if (c->namespaces) {
		r = path_format(n.netns_path, sizeof(n.netns_path), "%s/netns/%s", c->dir, name);
		if (r == 0)
			r = netns_new(n.netns_path, &n.netns_fd, diag);
		if (r < 0)
			return r;
	}
	r = VEC_PUSH(&c->nodes, n);
	if (r == 0 && ret)
		*ret = c->nodes.count - 1;
	return r;
}

static int build_core(struct campus *c, struct diag *diag)
{
	const struct scenario_topology *t = &c->s->topology;
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;
	int fd, r = add_node(c, CAMPUS_CORE, "core", 0, 0, &c->core, diag);

	if (r < 0 || !c->namespaces)
		return r;
	fd = c->nodes.data[c->core].netns_fd;
	r = netns_sysctl(fd, "net/ipv4/ip_forward", "1", diag);
	if (r < 0 || !t->core_bps)
		return r;
	/* One queue for all that crosses the core. */
	r = netns_batch(fd, "ip", "link add fabric type ifb\nlink set fabric up\n", diag);
	if (r == 0) {
		add_shape(&b, "fabric", t->core_bps);
		r = b.failed ? -ENOMEM : netns_batch(fd, "tc", b.data, diag);
	}
	return r;
}

static int build_switch(struct campus *c, size_t i, struct diag *diag)
{
	const struct scenario_building *bd = &c->s->topology.buildings[i];
	CLEANUP_STRBUF struct strbuf ip = STRBUF_INIT, tc = STRBUF_INIT, core = STRBUF_INIT;
	char name[SCENARIO_NAME_MAX + 8], dev[24];
	const struct campus_node *n;
	int core_fd, r;

	(void)snprintf(name, sizeof(name), "switch-%s", bd->name);
	r = add_node(c, CAMPUS_SWITCH, name, i, bd->uplink_bps, &c->switches[i], diag);
	if (r < 0 || !c->namespaces)
		return r;
	n = &c->nodes.data[c->switches[i]];
	core_fd = c->nodes.data[c->core].netns_fd;
	(void)snprintf(dev, sizeof(dev), "b%zu", i);
	(void)strbuf_printf(&core,
			    "link add %s type veth peer name core0 netns %s\n"
			    "addr add 10.78.%zu.1/30 dev %s\nlink set %s up\n",
			    dev, n->netns_path, i, dev, dev);
	r = core.failed ? -ENOMEM : netns_batch(core_fd, "ip", core.data, diag);
	(void)strbuf_printf(&ip,
			    "link add br0 type bridge\naddr add 10.77.%zu.1/24 dev br0\n"
			    "link set br0 up\naddr add 10.78.%zu.2/30 dev core0\nlink set core0 up\n"
			    "route add default via 10.78.%zu.1\n", i, i, i);
	if (r == 0)
		r = ip.failed ? -ENOMEM : netns_batch(n->netns_fd, "ip", ip.data, diag);
	if (r == 0)
		r = netns_sysctl(n->netns_fd, "net/ipv4/ip_forward", "1", diag);
	strbuf_clear(&core);
	(void)strbuf_printf(&core, "route add 10.77.%zu.0/24 via 10.78.%zu.2\n", i, i);
	if (r == 0)
		r = core.failed ? -ENOMEM : netns_batch(core_fd, "ip", core.data, diag);
	add_shape(&tc, "core0", bd->uplink_bps);
	if (r == 0)
		r = tc.failed ? -ENOMEM : netns_batch(n->netns_fd, "tc", tc.data, diag);
	strbuf_clear(&tc);
	add_shape(&tc, dev, bd->uplink_bps);
	if (c->s->topology.core_bps)
		add_ingress_shape(&tc, dev, "fabric");
	if (r == 0)
		r = tc.failed ? -ENOMEM : netns_batch(core_fd, "tc", tc.data, diag);
	return r;
}

/* Machines' agents shape their own end; everybody else's is shaped here. */
static int build_leaf(struct campus *c, struct campus_node *n, struct diag *diag)
{
	const struct campus_node *sw = &c->nodes.data[c->switches[n->building]];
	CLEANUP_STRBUF struct strbuf ip = STRBUF_INIT, tc = STRBUF_INIT;
	char port[24], ifb[24];
	int r;

	(void)snprintf(port, sizeof(port), "p%zu", n->port);
	(void)snprintf(ifb, sizeof(ifb), "i%zu", n->port);
	(void)strbuf_printf(&ip,
			    "link add %s type veth peer name eth0 netns %s\n"
			    "link set %s master br0\nlink set %s up\n"
			    "link add %s type ifb\nlink set %s up\n",
			    port, n->netns_path, port, port, ifb, ifb);
	add_shape(&tc, port, n->link_bps);
	add_shape(&tc, ifb, n->link_bps);
	add_ingress_shape(&tc, port, ifb);
	r = ip.failed || tc.failed ? -ENOMEM : netns_batch(sw->netns_fd, "ip", ip.data, diag);
	if (r == 0)
		r = netns_batch(sw->netns_fd, "tc", tc.data, diag);
	strbuf_clear(&ip);
	(void)strbuf_printf(&ip,
			    "addr add %s/24 dev eth0\nlink set eth0 up\n"
			    "route add default via 10.77.%zu.1\n",
			    n->address, n->building);
	if (r == 0)
		r = ip.failed ? -ENOMEM : netns_batch(n->netns_fd, "ip", ip.data, diag);
	return r;
}

static int add_leaf(struct campus *c, enum campus_kind kind, const char *name, size_t building,
		    uint64_t bps, struct diag *diag)
{
	struct campus_node *n;
	size_t at, port = ++c->ports[building];
	int r;

	if (port > PORTS_MAX)
		return diag_set(diag, -E2BIG, c->s->topology.buildings[building].name,
				"the lab has room for %d machines and hosts in a building",
				PORTS_MAX);
	r = add_node(c, kind, name, building, bps, &at, diag);
	if (r < 0)
		return r;
	n = &c->nodes.data[at];
	n->port = port;
	(void)snprintf(n->address, sizeof(n->address), "%s.%u.%u",
		       c->namespaces ? "10.77" : "127.77", (unsigned)building & 255,
		       (unsigned)(port + 9) & 255);
	return c->namespaces ? build_leaf(c, n, diag) : 0;
}

int campus_build(const struct scenario *s, const char *dir, bool namespaces, struct campus **ret,
		 struct diag *diag)
{
	const struct scenario_topology *t = &s->topology;
	struct campus *c;
	char path[192];
	int r;

	if (t->buildings_count > BUILDINGS_MAX)
		return diag_set(diag, -E2BIG, "topology.buildings",
				"the lab has room for %d buildings", BUILDINGS_MAX);
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->s = s;
	c->namespaces = namespaces;
	(void)snprintf(c->dir, sizeof(c->dir), "%s", dir);
	c->switches = calloc(t->buildings_count, sizeof(*c->switches));
	r = c->switches ? path_format(path, sizeof(path), "%s/netns", dir) : -ENOMEM;
	if (r == 0)
		r = dir_make_all(path, 0755);
	if (r == 0)
		r = build_core(c, diag);
	for (size_t i = 0; i < t->buildings_count && r == 0; i++)
		r = build_switch(c, i, diag);
	if (r == 0)
		r = add_leaf(c, CAMPUS_COORDINATOR, "coordinator", scenario_coordinator_building(s),
			     UINT64_C(1000000000), diag);
	for (size_t i = 0; i < t->machines_count && r == 0; i++)
		r = add_leaf(c, CAMPUS_MACHINE, t->machines[i].name, t->machines[i].building_index,
			     t->machines[i].link_bps, diag);
	for (size_t i = 0; i < t->hosts_count && r == 0; i++)
		r = add_leaf(c, CAMPUS_HOST, t->hosts[i].name, t->hosts[i].building_index,
			     t->hosts[i].link_bps, diag);
	if (r < 0) {
		campus_free(c);
		return r;
	}
	*ret = c;
	return 0;
}

void campus_free(struct campus *c)
{
	if (!c)
		return;
	VEC_EACH(&c->nodes, n)
		if (n->netns_fd >= 0)
			(void)close(n->netns_fd);
	VEC_DONE(&c->nodes);
	free(c->switches);
	free(c);
}

int campus_link(struct campus *c, const struct campus_node *n, bool up, struct diag *diag)
{
	char line[64];

	if (!c->namespaces)
		return diag_set(diag, -EOPNOTSUPP, n->name, "cables cannot be cut on loopback");
	(void)snprintf(line, sizeof(line), "link set p%zu %s\n", n->port, up ? "up" : "down");
	return netns_batch(c->nodes.data[c->switches[n->building]].netns_fd, "ip", line, diag);
}

int campus_uplink(struct campus *c, size_t building, bool up, struct diag *diag)
{
	char lines[128];
	int r, fd;

	if (!c->namespaces)
		return diag_set(diag, -EOPNOTSUPP, c->s->topology.buildings[building].name,
				"cables cannot be cut on loopback");
	fd = c->nodes.data[c->switches[building]].netns_fd;
	(void)snprintf(lines, sizeof(lines), "link set core0 %s\n", up ? "up" : "down");
	r = netns_batch(fd, "ip", lines, diag);
	if (r < 0 || !up)
		return r;
	/* Routes over an interface go when it goes down. */
	(void)snprintf(lines, sizeof(lines), "route replace default via 10.78.%zu.1\n", building);
	return netns_batch(fd, "ip", lines, diag);
}
