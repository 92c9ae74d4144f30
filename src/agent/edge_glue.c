/* SPDX-License-Identifier: Apache-2.0 */
/* The edge, where this machine has one. Without it every call here is a no-op, by name. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"

static int prefix_parse(const char *text, struct edge_prefix *ret)
{
	char addr[32];
	size_t len = strcspn(text, "/");
	uint64_t bits = 32;
	if (len >= sizeof(addr))
		return -EINVAL;
	memcpy(addr, text, len);
	addr[len] = '\0';
	if (inet_pton(AF_INET, addr, &ret->addr) != 1)
		return -EINVAL;
	if (text[len] == '/' && (parse_u64(text + len + 1, &bits) < 0 || bits > 32))
		return -EINVAL;
	ret->len = (uint8_t)bits;
	return 0;
}

static int edge_fill(struct agent *a, struct edge_config *e, struct diag *diag)
{
	const struct agent_edge_config *c = &a->config.edge;
	if (c->guest_net && prefix_parse(c->guest_net, &e->guest_net) < 0)
		return diag_set(diag, -EINVAL, "edge.guest_net", "'%s' is no IPv4 prefix", c->guest_net);
	for (size_t i = 0; i < c->campus_count; i++) {
		if (prefix_parse(c->campus[i], &e->campus[i]) < 0)
			return diag_set(diag, -EINVAL, "edge.campus", "'%s' is no IPv4 prefix", c->campus[i]);
		e->campus_count++;
	}
	return 0;
}

int agent_edge_open(struct agent *a, struct diag *diag)
{
	const struct agent_edge_config *c = &a->config.edge;
	char parent[256], v2[512], v1[512];
	if (c->mode == AGENT_EDGE_OFF) {
		(void)snprintf(a->edge_missing, sizeof(a->edge_missing), "edge: switched off");
		return 0;
	}
	struct edge_config e = {
		.uplink = c->uplink,
		.uplink_bps = c->uplink_rate,
		.guest_ceiling_bps = c->guest_ceiling ? c->guest_ceiling : a->terms.caps.uplink,
		.run_dir = a->run_dir,
		.state_dir = a->state_dir,
		.owner_gid = a->owner_gid,
	};
	int r = edge_fill(a, &e, diag);
	if (r < 0)
		return r;
	if (agent_cgroup_parent(a, parent, sizeof(parent))) {
		(void)snprintf(v2, sizeof(v2), "/sys/fs/cgroup%s/%s",
			       access("/sys/fs/cgroup/unified", F_OK) == 0 ? "/unified" : "", parent);
		(void)snprintf(v1, sizeof(v1), "/sys/fs/cgroup/freezer/%s", parent);
		e.cgroup_v2 = v2;
		e.cgroup_v1_freezer = access("/sys/fs/cgroup/freezer", F_OK) == 0 ? v1 : NULL;
	}
	struct diag why = DIAG_INIT;
	r = edge_open(&e, &a->edge, &why);
	if (r < 0) {
		a->edge = NULL;
		(void)snprintf(a->edge_missing, sizeof(a->edge_missing), "edge: %.200s%s%.250s", why.where,
			       why.where[0] ? ": " : "", why.what);
		if (c->mode == AGENT_EDGE_REQUIRED)
			return diag_set(diag, r, "edge", "%s", a->edge_missing);
		log_warn("%s; guests get no network of their own, traffic is not shaped", a->edge_missing);
	}
	return 0;
}

/* "host:port" of a job's declared destinations that the owner's terms allow too. */
static size_t rules_of(const struct guest *g, struct edge_rule *rules, size_t n)
{
	const struct terms *t = &g->agent->terms;
	for (size_t i = 0; i < g->spec.network.destinations_count && n < EDGE_RULES_MAX; i++) {
		char host[128];
		const char *text = g->spec.network.destinations[i];
		size_t len = strcspn(text, ":");
		struct edge_rule rule = { 0 };
		if (len >= sizeof(host))
			continue;
		memcpy(host, text, len);
		host[len] = '\0';
		if (prefix_parse(host, &rule.to) < 0)
			continue;
		uint64_t port = 0;
		if (text[len] == ':') {
			char number[16];
			size_t digits = strcspn(text + len + 1, "/");
			(void)snprintf(number, sizeof(number), "%.*s", (int)digits, text + len + 1);
			(void)parse_u64(number, &port); /* the spec's parser checked it */
			if (strcmp(text + len + 1 + digits, "/udp") == 0)
				rule.proto = EDGE_PROTO_UDP;
		}
		rule.port_min = rule.port_max = (uint16_t)port;
		for (size_t k = 0; k < t->destinations_count; k++) {
			struct edge_prefix allowed;
			if (prefix_parse(t->destinations[k].to, &allowed) < 0)
				continue;
			uint32_t mask = allowed.len ? htonl(UINT32_MAX << (32 - allowed.len)) : 0;
			bool inside = rule.to.len >= allowed.len &&
				      (rule.to.addr.s_addr & mask) == (allowed.addr.s_addr & mask);
			bool port_fits = !t->destinations[k].port || t->destinations[k].port == (int)port;
			if (inside && port_fits) {
				rules[n++] = rule;
				break;
			}
		}
	}
	return n;
}

int agent_edge_attach(struct guest *g, struct diag *diag)
{
	struct agent *a = g->agent;
	struct edge_rule rules[EDGE_RULES_MAX];
	size_t rules_count = gang_rules(g, rules, EDGE_RULES_MAX);
	struct edge_guest info;
	if (edge_guest_find(a->edge, g->job, g->epoch, &info) == 0) {
		g->edge_slot = (int)info.slot;
		return edge_guest_lease(a->edge, info.slot, g->lease_deadline_ns);
	}
	const struct edge_guest_config config = {
		.job = g->job,
		.epoch = g->epoch,
		.netns_fd = -1,
		.netns_pid = (pid_t)g->guest_pid,
		.rules = rules,
		.rules_count = rules_of(g, rules, rules_count),
		.internet = g->spec.network.mode != JOB_NETWORK_NONE,
		.lease_deadline_boot_ns = g->lease_deadline_ns,
	};
	int r = edge_guest_attach(a->edge, &config, &info, diag);
	if (r == 0)
		g->edge_slot = (int)info.slot;
	return r;
}

void agent_edge_adopt(struct guest *g)
{
	struct edge_guest info;
	if (g->edge_slot < 0 && g->agent->edge &&
	    edge_guest_find(g->agent->edge, g->job, g->epoch, &info) == 0)
		g->edge_slot = (int)info.slot;
}

void agent_edge_detach(struct guest *g)
{
	agent_edge_adopt(g); /* a start that a crash cut off may have got as far as this */
	if (g->edge_slot < 0)
		return;
	if (g->agent->edge && edge_guest_detach(g->agent->edge, (unsigned)g->edge_slot) < 0)
		log_warn("job %s: its network could not be removed", g->job);
	g->edge_slot = -1;
}

void agent_edge_sweep(struct agent *a)
{
	struct edge_guest list[EDGE_GUESTS_MAX];
	size_t n = a->edge ? edge_guests(a->edge, list, EDGE_GUESTS_MAX) : 0;
	for (size_t i = 0; i < n; i++) {
		const struct guest *g = guest_find(a, list[i].job, list[i].epoch);
		if (g && guest_has_process(g))
			continue;
		log_info("job %s epoch %llu: its network outlived it; removed", list[i].job,
			 (unsigned long long)list[i].epoch);
		if (edge_guest_detach(a->edge, list[i].slot) < 0)
			log_warn("job %s: its network could not be removed", list[i].job);
	}
}

void agent_edge_kill(struct agent *a, struct guest *g)
{
	if (!a->edge || (g && g->edge_slot < 0))
		return;
	struct edge_kill_report report;
	int r = edge_kill(a->edge, g ? (uint32_t)g->edge_slot : EDGE_ALL, &report);
	if (r < 0)
		log_error("edge: the kill switch failed: %s", strerror(-r));
	else
		log_info("edge: guests cut in %llu us, queues purged in %llu us",
			 (unsigned long long)report.map_ns / 1000,
			 (unsigned long long)report.purge_ns / 1000);
}

void agent_edge_clear(struct agent *a)
{
	if (a->edge && edge_kill_clear(a->edge) < 0)
		log_error("edge: the kill switch could not be cleared");
}
