/* SPDX-License-Identifier: Apache-2.0 */
/* What can be done here, found by doing it on throwaway objects: versions lie. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/pkt_sched.h>
#include <linux/sockios.h>
#include <mntent.h>
#include <netlink/route/qdisc.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/file.h"
#include "edge/cc.h"
#include "edge/edge_internal.h"

/* linux/capability.h's numbers, without libcap. */
#define CAP_BIT_NET_ADMIN 12
#define CAP_BIT_SYS_ADMIN 21
#define CAP_BIT_BPF 39

static const struct {
	const char *name, *fallback;
} rows[EDGE_FEATURE_COUNT] = {
	[EDGE_ROOT] = { "root", "no edge: guests share the machine's network, unmarked and unshaped; "
				"the kill switch stops their processes only" },
	[EDGE_BPF] = { "bpf", "no edge: see root" },
	[EDGE_BPFFS] = { "bpffs", "enforcement stays after an agent crash but its successor cannot "
				  "adopt it, and reclaim-cut cannot cut packets" },
	[EDGE_CLSACT] = { "clsact", "no edge: see root" },
	[EDGE_HTB] = { "htb", "a BPF token bucket drops what exceeds its share; a kill cannot purge "
			      "the uplink's own queue" },
	[EDGE_TBF] = { "tbf", "guests are policed at their veth instead of shaped" },
	[EDGE_VETH] = { "veth", "guests share the machine's network; the kill switch stops their "
				"processes only" },
	[EDGE_MASQUERADE] = { "masquerade", "the campus must route guest addresses to this machine" },
	[EDGE_CC] = { "congestion", "moves yield by pacing in user space, some round trips later" },
	[EDGE_CGROUP_KILL] = { "cgroup_kill", "guests' processes are killed one by one, repeatedly" },
};

static void endmntent_cleanup(FILE **f)
{
	if (*f)
		(void)endmntent(*f); /* always 1 */
}

static void answer(struct edge_features *f, enum edge_feature_id id, int err, const char *doing)
{
	struct edge_feature *item = &f->items[id];

	item->have = err >= 0;
	if (err >= 0)
		(void)snprintf(item->reason, sizeof(item->reason), "%s works", doing);
	else
		(void)snprintf(item->reason, sizeof(item->reason), "%s: %s", doing, strerror(-err));
}

static void probe_root(struct edge_features *f)
{
	CLEANUP_FILE FILE *status = fopen("/proc/self/status", "re");
	unsigned long long caps = 0;
	char line[128];
	bool net, sys, bpf;

	while (status && fgets(line, sizeof(line), status))
		if (sscanf(line, "CapEff: %llx", &caps) == 1)
			break;
	net = caps >> CAP_BIT_NET_ADMIN & 1;
	sys = caps >> CAP_BIT_SYS_ADMIN & 1;
	bpf = (caps >> CAP_BIT_BPF & 1) || sys;
	f->items[EDGE_ROOT].have = net && sys && bpf;
	(void)snprintf(f->items[EDGE_ROOT].reason, EDGE_REASON_MAX, "%s%s%s%s",
		       net && sys && bpf ? "has the capabilities" : "lacks",
		       net ? "" : " CAP_NET_ADMIN", sys ? "" : " CAP_SYS_ADMIN", bpf ? "" : " CAP_BPF");
}

static int try_prog(void)
{
	/* r0 = 0; exit */
	static const struct bpf_insn insns[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	int fd = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, "reclaim_probe", "GPL", insns,
			       ARRAY_SIZE(insns), NULL);

	if (fd < 0)
		return fd;
	(void)close(fd);
	return 0;
}

static int try_bpffs(void)
{
	CLEANUP_FILE FILE *list = fopen("/proc/filesystems", "re");
	char line[128];

	if (!list)
		return -errno;
	while (fgets(line, sizeof(line), list))
		if (strstr(line, "\tbpf\n"))
			return 0;
	return -ENODEV;
}

static int try_clsact(int ifindex)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex,
		    .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);

	return bpf_tc_hook_create(&hook);
}

static int try_root_qdisc(struct nl_sock *s, int ifindex, const char *kind)
{
	struct tree t = { .sock = s, .ifindex = ifindex, .rate_bps = 100000000 };

	return strcmp(kind, "htb") == 0 ? tree_set(&t, NULL) : tree_shaper_set(s, ifindex, 100000000);
}

static void probe_link(struct edge_features *f)
{
	static const uint8_t mac[2][6] = { { 2, 'R', 'G', 0xff, 0xff, 1 }, { 2, 'R', 'G', 0xff, 0xff, 2 } };
	CLEANUP_NL struct nl_sock *s = NULL;
	struct net_link peer;
	char name[2][IFNAMSIZ];
	int ifindex, err = net_open(&s);

	(void)snprintf(name[0], IFNAMSIZ, "rgp%da", (int)getpid()); /* pids fit */
	(void)snprintf(name[1], IFNAMSIZ, "rgp%db", (int)getpid());
	if (err == 0)
		err = net_veth_add(s, name[0], mac[0], -1, name[1], mac[1], &ifindex);
	answer(f, EDGE_VETH, err, "creating a veth pair");
	if (err < 0) {
		for (int i = 0; i < 3; i++)
			answer(f, ((const enum edge_feature_id[]){ EDGE_CLSACT, EDGE_HTB, EDGE_TBF })[i],
			       err, "a veth pair to try it on");
		return;
	}
	answer(f, EDGE_CLSACT, try_clsact(ifindex), "a clsact qdisc");
	answer(f, EDGE_HTB, try_root_qdisc(s, ifindex, "htb"), "an HTB class tree");
	err = net_link_get(s, name[1], 0, &peer);
	answer(f, EDGE_TBF, err < 0 ? err : try_root_qdisc(s, peer.ifindex, "tbf"), "a TBF qdisc");
	(void)net_link_del(s, ifindex); /* it goes with this namespace at the latest */
}

/* A cgroup of our own for a moment: the root has no cgroup.kill to look at. */
static int try_cgroup_kill(void)
{
	CLEANUP(endmntent_cleanup) FILE *mounts = setmntent("/proc/self/mounts", "re");
	char path[PATH_MAX], file[PATH_MAX + 16];
	struct mntent *m;
	int err = -ENOENT;

	while (mounts && (m = getmntent(mounts))) {
		if (strcmp(m->mnt_type, "cgroup2") != 0)
			continue;
		if (path_format(path, sizeof(path), "%s/reclaim-probe-%d", m->mnt_dir, (int)getpid()) < 0)
			continue;
		if (mkdir(path, 0700) < 0)
			return -errno;
		(void)snprintf(file, sizeof(file), "%s/cgroup.kill", path);
		err = access(file, W_OK) < 0 ? -errno : 0;
		(void)rmdir(path); /* empty: nobody else knows its name */
		return err;
	}
	return err;
}

void edge_probe(struct edge_features *ret)
{
	struct diag why = DIAG_INIT;
	int err;

	memset(ret, 0, sizeof(*ret));
	for (int i = 0; i < EDGE_FEATURE_COUNT; i++) {
		ret->items[i].name = rows[i].name;
		ret->items[i].fallback = rows[i].fallback;
	}
	probe_root(ret);
	answer(ret, EDGE_BPF, try_prog(), "loading a TC program");
	answer(ret, EDGE_BPFFS, ret->items[EDGE_ROOT].have ? try_bpffs() : -EPERM, "a bpffs");
	probe_link(ret);
	err = nft_probe(&why);
	answer(ret, EDGE_MASQUERADE, err, "nf_tables NAT");
	if (err < 0 && why.what[0])
		(void)snprintf(ret->items[EDGE_MASQUERADE].reason, EDGE_REASON_MAX, "%.150s", why.what);
	answer(ret, EDGE_CC, cc_available(), "a BPF congestion control");
	answer(ret, EDGE_CGROUP_KILL, try_cgroup_kill(), "cgroup.kill");
}

uint64_t probe_link_speed(const char *ifname, bool *ret_physical)
{
	static const char *const virtual_drivers[] = { "veth", "bridge", "tun", "dummy", "ifb",
						       "bonding", "team", "macvlan", "ipvlan" };
	struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };
	struct ethtool_cmd link = { .cmd = ETHTOOL_GSET };
	struct ifreq ifr = { 0 };
	CLEANUP_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint32_t mbps;

	*ret_physical = false;
	(void)snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", ifname);
	ifr.ifr_data = (void *)&driver;
	if (fd < 0 || ioctl(fd, SIOCETHTOOL, &ifr) < 0)
		return 0;
	*ret_physical = true;
	for (size_t i = 0; i < ARRAY_SIZE(virtual_drivers); i++)
		if (strcmp(driver.driver, virtual_drivers[i]) == 0)
			*ret_physical = false;
	ifr.ifr_data = (void *)&link;
	/* A virtual link's speed is made up. */
	if (!*ret_physical || ioctl(fd, SIOCETHTOOL, &ifr) < 0)
		return 0;
	mbps = ethtool_cmd_speed(&link);
	return mbps == (uint32_t)SPEED_UNKNOWN || mbps == 0xffff ? 0 : mbps * UINT64_C(1000000);
}
