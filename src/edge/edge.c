/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing the edge, its classes, and the kill switch.
 *
 * Opening is adoption: the same steps run on a bare machine and on one where
 * an agent crashed, and each step changes what is there instead of rebuilding
 * it. What must survive (kill flags, leases, the operator's stop, the floor,
 * what we created) lives in the maps, not in this process.
 */
#include "edge/edge.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "edge/cc.h"
#include "edge/edge_internal.h"
#include "edge/purge.h"

#define UPLINK_BPS_DEFAULT UINT64_C(1000000000)
#define FLOOR_CAP_PERCENT 80
#define GUEST_NET_LEN_MAX 25 /* 64 slots of two addresses */

DEFINE_CLEANUP(struct edge *, edge_close)
#define CLEANUP_EDGE CLEANUP(edge_close_cleanup)

static int copy_path(char dst[EDGE_PATH_MAX], const char *src)
{
	return path_format(dst, EDGE_PATH_MAX, "%s", src ? src : "");
}

static bool have(const struct edge *e, const struct edge_config *c, enum edge_feature_id f)
{
	return e->features.items[f].have && !(c->disable & (1u << f));
}

static int need(const struct edge *e, const struct edge_config *c, struct diag *diag)
{
	static const enum edge_feature_id needed[] = { EDGE_ROOT, EDGE_BPF, EDGE_CLSACT };

	for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
		const struct edge_feature *f = &e->features.items[needed[i]];

		if (!have(e, c, needed[i]))
			return diag_set(diag, needed[i] == EDGE_ROOT ? -EPERM : -EOPNOTSUPP, f->name,
					"%s", f->reason);
	}
	return 0;
}

static int settle_config(struct edge *e, const struct edge_config *c, struct diag *diag)
{
	static const uint32_t net_default = 0x647f0000; /* 100.127.0.0, shared space (RFC 6598) */
	int err;

	e->guest_net = c->guest_net;
	if (e->guest_net.len == 0)
		e->guest_net = (struct edge_prefix){ { htonl(net_default) }, 24 };
	if (e->guest_net.len > GUEST_NET_LEN_MAX)
		return diag_set(diag, -EINVAL, "guest_net", "/%u is too small, at most /%d",
				e->guest_net.len, GUEST_NET_LEN_MAX);
	e->guest_net.addr.s_addr &= htonl(UINT32_MAX << (32 - e->guest_net.len));
	if (c->campus_count > EDGE_PREFIXES_MAX)
		return diag_set(diag, -E2BIG, "campus", "at most %d prefixes", EDGE_PREFIXES_MAX);
	e->campus_count = c->campus_count;
	for (size_t i = 0; i < c->campus_count; i++) {
		if (c->campus[i].len > 32)
			return diag_set(diag, -EINVAL, "campus", "prefix %zu: /%u", i, c->campus[i].len);
		e->campus[i] = c->campus[i];
	}
	e->owner_gid = c->owner_gid;
	err = copy_path(e->run_dir, c->run_dir);
	if (err == 0)
		err = copy_path(e->state_dir, c->state_dir);
	if (err == 0)
		err = copy_path(e->cgroup_v2, c->cgroup_v2);
	if (err == 0)
		err = copy_path(e->cgroup_v1_freezer, c->cgroup_v1_freezer);
	return err < 0 ? diag_set(diag, err, "paths", "longer than %d bytes", EDGE_PATH_MAX) : 0;
}

static int settle_uplink(struct edge *e, const struct edge_config *c, struct diag *diag)
{
	struct net_link link;
	int ifindex = 0, err;

	err = net_open(&e->sock);
	if (err < 0)
		return diag_set(diag, err, "netlink", "%s", strerror(-err));
	if (!c->uplink)
		err = net_default_ifindex(e->sock, &ifindex);
	if (err < 0)
		return diag_set(diag, err, "uplink", "no default route tells which interface it is");
	err = net_link_get(e->sock, c->uplink, ifindex, &link);
	if (err < 0)
		return diag_set(diag, err, c->uplink ? c->uplink : "uplink", "%s", strerror(-err));
	(void)snprintf(e->uplink, sizeof(e->uplink), "%s", link.name);
	e->tree = (struct tree){
		.sock = e->sock, .ifindex = link.ifindex, .rate_bps = c->uplink_bps,
		.scavenger_ceiling_bps = c->scavenger_ceiling_bps,
		.guest_ceiling_bps = c->guest_ceiling_bps,
	};
	if (e->tree.rate_bps == 0)
		e->tree.rate_bps = probe_link_speed(e->uplink, &e->tree.physical);
	else
		(void)probe_link_speed(e->uplink, &e->tree.physical); /* only the kind counts */
	if (e->tree.rate_bps == 0)
		e->tree.rate_bps = UPLINK_BPS_DEFAULT;
	e->floor_cap_bps = c->floor_cap_bps ? MIN(c->floor_cap_bps, e->tree.rate_bps)
					    : e->tree.rate_bps / 100 * FLOOR_CAP_PERCENT;
	return 0;
}

static int pins_open(struct edge *e, const struct edge_config *c, struct diag *diag)
{
	char path[PATH_MAX];
	int mounted;

	(void)path_format(path, sizeof(path), "%s/bpf", e->run_dir); /* shorter than EDGE_PATH_MAX + 4 */
	mounted = have(e, c, EDGE_BPFFS) ? hooks_mount(path) : -EOPNOTSUPP;
	e->pinned = mounted >= 0;
	e->mounted = mounted > 0;
	(void)path_format(path, sizeof(path), "%s/bpf/edge", e->run_dir);
	return hooks_open(&e->hooks, e->pinned ? path : NULL, diag);
}

/* What the programs need to know; keeps what an earlier agent left in force. */
static int settle_programs(struct edge *e)
{
	struct edge_abi_config c;
	int err = config_read(e, &c);

	if (err < 0)
		return err;
	c.flags = (c.flags & EDGE_ABI_STOP_ALL) | (e->htb ? 0 : EDGE_ABI_POLICE) |
		  (e->masquerade ? 0 : EDGE_ABI_ROUTED);
	c.guest_net = e->guest_net.addr.s_addr;
	c.guest_mask = htonl(UINT32_MAX << (32 - e->guest_net.len));
	c.uplink_ifindex = (uint32_t)e->tree.ifindex;
	c.link_rate = e->tree.rate_bps / 8;
	c.deadline_rate = e->tree.floor_bps / 8;
	c.scavenger_rate = e->tree.scavenger_ceiling_bps / 8;
	c.guest_rate = e->tree.guest_ceiling_bps / 8;
	c.floor_cap = e->floor_cap_bps / 8;
	memset(c.classid, 0, sizeof(c.classid));
	c.classid[TRAFFIC_CONTROL] = e->htb ? TREE_CONTROL : 0;
	c.classid[TRAFFIC_DEADLINE] = e->htb ? TREE_DEADLINE : 0;
	c.classid[TRAFFIC_SCAVENGER] = e->htb ? TREE_SCAVENGER : 0;
	c.guest_classid = e->htb ? TREE_GUEST0 : 0;
	if (e->htb)
		c.created |= EDGE_ABI_CREATED_HTB;
	return config_write(e, &c);
}

static int settle_tree(struct edge *e, const struct edge_config *c)
{
	struct edge_abi_config old;
	struct diag why = DIAG_INIT;
	int err = config_read(e, &old);

	if (err < 0)
		return err;
	/* A granted floor holds across a restart, within today's cap. */
	e->tree.floor_bps = MIN(old.deadline_rate * 8, e->floor_cap_bps);
	if (!have(e, c, EDGE_HTB)) {
		(void)snprintf(e->no_htb, sizeof(e->no_htb), "%s",
			       (c->disable & (1u << EDGE_HTB)) ? "switched off"
							       : e->features.items[EDGE_HTB].reason);
		return tree_remove(&e->tree);
	}
	e->htb = tree_set(&e->tree, &why) == 0;
	if (!e->htb)
		(void)snprintf(e->no_htb, sizeof(e->no_htb), "%.150s", why.what);
	return 0;
}

static int settle_hooks(struct edge *e)
{
	struct edge_abi_config c;
	bool created;
	int err = hooks_attach(&e->hooks, e->tree.ifindex, EDGE_PROG_UPLINK_IN, EDGE_PROG_UPLINK_OUT,
			       &created);

	if (err == 0 && created)
		err = config_read(e, &c);
	if (err < 0 || !created)
		return err;
	c.created |= EDGE_ABI_CREATED_CLSACT;
	return config_write(e, &c);
}

/* A help to moves, not a need: sockets that find none pace themselves. */
static void edge_cc(const struct edge *e)
{
	char path[PATH_MAX];

	if (!e->cc)
		return;
	(void)path_format(path, sizeof(path), "%s/bpf/edge", e->run_dir); /* fitted at open */
	(void)cc_load(e->pinned ? path : NULL);
}

int edge_open(const struct edge_config *config, struct edge **ret, struct diag *diag)
{
	CLEANUP_EDGE struct edge *e = calloc(1, sizeof(*e));
	int err;

	if (!e)
		return diag_set(diag, -ENOMEM, "edge", "out of memory");
	e->purge_fd = -1;
	memset(e->hooks.maps, -1, sizeof(e->hooks.maps));
	edge_probe(&e->features);
	err = need(e, config, diag);
	if (err == 0)
		err = settle_config(e, config, diag);
	if (err == 0)
		err = settle_uplink(e, config, diag);
	if (err == 0)
		err = pins_open(e, config, diag);
	if (err < 0)
		return err;
	e->tbf = have(e, config, EDGE_TBF);
	e->masquerade = have(e, config, EDGE_MASQUERADE);
	err = settle_tree(e, config);
	if (err == 0)
		err = settle_programs(e);
	if (err == 0)
		err = campus_refresh(e);
	if (err == 0)
		err = settle_hooks(e);
	if (err < 0)
		return diag_set(diag, err, e->uplink, "%s", strerror(-err));
	e->purge_fd = purge_open();
	if (e->purge_fd < 0)
		return diag_set(diag, e->purge_fd, "netlink", "%s", strerror(-e->purge_fd));
	e->cc = have(e, config, EDGE_CC);
	edge_cc(e);
	guests_adopt(e);
	err = cut_file_write(e, diag);
	if (err < 0)
		return err;
	*ret = TAKE(e);
	return 0;
}

int edge_open_readonly(const char *run_dir, const char *state_dir, struct edge **ret,
		       struct diag *diag)
{
	CLEANUP_EDGE struct edge *e = calloc(1, sizeof(*e));
	struct edge_abi_config c;
	struct net_link link;
	char path[PATH_MAX];
	int err;

	if (!e)
		return diag_set(diag, -ENOMEM, "edge", "out of memory");
	e->readonly = true;
	e->purge_fd = -1;
	memset(e->hooks.maps, -1, sizeof(e->hooks.maps));
	err = copy_path(e->run_dir, run_dir);
	if (err == 0)
		err = copy_path(e->state_dir, state_dir);
	if (err == 0)
		err = path_format(path, sizeof(path), "%s/bpf/edge", run_dir);
	if (err < 0)
		return diag_set(diag, err, "run_dir", "too long");
	err = hooks_open_readonly(&e->hooks, path, diag);
	if (err < 0)
		return err;
	err = config_read(e, &c);
	if (err == 0)
		err = net_open(&e->sock);
	if (err < 0)
		return diag_set(diag, err, "edge", "%s", strerror(-err));
	e->pinned = true;
	e->htb = !(c.flags & EDGE_ABI_POLICE);
	e->masquerade = !(c.flags & EDGE_ABI_ROUTED);
	e->floor_cap_bps = c.floor_cap * 8;
	e->tree = (struct tree){
		.sock = e->sock, .ifindex = (int)c.uplink_ifindex, .rate_bps = c.link_rate * 8,
		.floor_bps = c.deadline_rate * 8, .scavenger_ceiling_bps = c.scavenger_rate * 8,
		.guest_ceiling_bps = c.guest_rate * 8,
	};
	if (net_link_get(e->sock, NULL, e->tree.ifindex, &link) == 0)
		memcpy(e->uplink, link.name, sizeof(link.name));
	*ret = TAKE(e);
	return 0;
}

void edge_close(struct edge *e)
{
	if (!e)
		return;
	for (int i = 0; i < EDGE_GUESTS_MAX; i++)
		nl_socket_free(e->guests[i].inner);
	fd_cleanup(&e->purge_fd);
	hooks_close(&e->hooks);
	nl_socket_free(e->sock);
	free(e);
}

int edge_remove(struct edge *e, struct diag *diag)
{
	struct edge_abi_config c;
	char path[PATH_MAX];
	int err, r;

	if (e->readonly)
		return diag_set(diag, -EROFS, "edge", "opened for reading only");
	err = guests_remove(e);
	r = config_read(e, &c);
	if (r < 0)
		return diag_set(diag, r, "edge", "reading its configuration: %s", strerror(-r));
	if (c.created & EDGE_ABI_CREATED_NFT)
		(void)nft_remove(); /* without nf_tables there was no table */
	if (c.created & EDGE_ABI_CREATED_FORWARDING)
		(void)net_conf_set(e->uplink, "forwarding", 0); /* the uplink may be gone */
	r = hooks_detach(e->tree.ifindex, c.created & EDGE_ABI_CREATED_CLSACT);
	err = err < 0 ? err : r;
	if (c.created & EDGE_ABI_CREATED_HTB) {
		r = tree_remove(&e->tree);
		err = err < 0 ? err : r;
	}
	(void)path_format(path, sizeof(path), "%s/bpf/edge", e->run_dir); /* fitted at open */
	if (e->cc)
		(void)cc_unload(e->pinned ? path : NULL); /* another edge may hold it */
	if (e->pinned) {
		r = hooks_unpin(path);
		err = err < 0 ? err : r;
		(void)path_format(path, sizeof(path), "%s/bpf", e->run_dir);
		/* An agent before us may have mounted it: an empty bpffs of this name is ours. */
		if (rmdir(path) < 0 && errno == EBUSY && umount2(path, MNT_DETACH) == 0)
			(void)rmdir(path); /* an empty folder left behind does no harm */
	}
	r = cut_file_remove(e->run_dir);
	err = err < 0 ? err : r;
	return err < 0 ? diag_set(diag, err, "edge", "removing it: %s", strerror(-err)) : 0;
}

int edge_tick(struct edge *e, struct diag *diag)
{
	int err = campus_refresh(e);

	edge_cc(e);
	if (err < 0)
		return diag_set(diag, err, "edge", "refreshing prefixes: %s", strerror(-err));
	return flows_sweep(e, false, diag);
}

/* --- classes -------------------------------------------------------------- */

int edge_floor_set(struct edge *e, uint64_t bits_per_s)
{
	struct edge_abi_config c;
	uint64_t old = e->tree.floor_bps;
	int err;

	if (e->readonly)
		return -EROFS;
	if (bits_per_s > e->floor_cap_bps)
		return -EDQUOT;
	err = config_read(e, &c);
	if (err < 0)
		return err;
	e->tree.floor_bps = bits_per_s;
	c.deadline_rate = bits_per_s / 8;
	err = e->htb ? tree_floor_set(&e->tree) : 0;
	if (err == 0)
		err = config_write(e, &c);
	if (err < 0)
		e->tree.floor_bps = old;
	return err;
}

uint64_t edge_floor_get(const struct edge *e)
{
	return e->tree.floor_bps;
}

uint64_t edge_floor_cap(const struct edge *e)
{
	return e->floor_cap_bps;
}

int edge_stop_all(struct edge *e, bool on)
{
	struct edge_abi_config c;
	int err = e->readonly ? -EROFS : config_read(e, &c);

	if (err < 0)
		return err;
	c.flags = on ? c.flags | EDGE_ABI_STOP_ALL : c.flags & ~(uint32_t)EDGE_ABI_STOP_ALL;
	return config_write(e, &c);
}

int edge_guest_ceiling_set(struct edge *e, uint64_t bits_per_s)
{
	struct edge_abi_config c;
	int err = e->readonly ? -EROFS : config_read(e, &c);

	if (err < 0)
		return err;
	e->tree.guest_ceiling_bps = bits_per_s;
	c.guest_rate = bits_per_s / 8;
	err = e->htb ? tree_guests_set(&e->tree) : 0;
	return err < 0 ? err : config_write(e, &c);
}

/* --- kill switch ---------------------------------------------------------- */

static size_t purge_list(const struct edge *e, uint32_t slot, uint32_t list[EDGE_GUESTS_MAX])
{
	struct edge_abi_guest g;
	size_t n = 0;

	for (uint32_t i = 0; i < EDGE_GUESTS_MAX; i++)
		if ((slot == EDGE_ALL || slot == i) && map_read(&e->hooks, EDGE_MAP_GUEST, &i, &g) == 0 &&
		    (g.flags & EDGE_ABI_GUEST_ACTIVE))
			list[n++] = TREE_GUEST0 + i;
	return n;
}

int edge_kill(struct edge *e, uint32_t slot, struct edge_kill_report *report)
{
	struct edge_kill_report r = { .decided_boot_ns = clock_boot_ns() };
	uint32_t list[EDGE_GUESTS_MAX], key = slot == EDGE_ALL ? EDGE_ABI_KILL_ALL : 1 + slot, one = 1;
	uint64_t ceiling = e->tree.guest_ceiling_bps ? e->tree.guest_ceiling_bps : e->tree.rate_bps;
	size_t n;
	int err;

	if (e->readonly)
		return -EROFS;
	if (slot != EDGE_ALL && slot >= EDGE_GUESTS_MAX)
		return -ENOENT;
	err = map_write(&e->hooks, EDGE_MAP_KILL, &key, &one);
	r.map_ns = clock_boot_ns() - r.decided_boot_ns;
	if (err == 0 && e->htb) {
		n = purge_list(e, slot, list);
		err = purge_leaves(e->purge_fd, e->tree.ifindex, list, n, tree_leaf_bytes(ceiling));
		r.purge_ns = n ? clock_boot_ns() - r.decided_boot_ns : 0;
	}
	if (report)
		*report = r;
	return err;
}

int edge_kill_clear(struct edge *e)
{
	uint32_t key = EDGE_ABI_KILL_ALL, zero = 0;

	return e->readonly ? -EROFS : map_write(&e->hooks, EDGE_MAP_KILL, &key, &zero);
}

bool edge_killed(const struct edge *e, uint32_t slot)
{
	uint32_t all = EDGE_ABI_KILL_ALL, key = 1 + slot, value = 0;

	if (map_read(&e->hooks, EDGE_MAP_KILL, &all, &value) == 0 && value)
		return true;
	return slot < EDGE_GUESTS_MAX && map_read(&e->hooks, EDGE_MAP_KILL, &key, &value) == 0 && value;
}
