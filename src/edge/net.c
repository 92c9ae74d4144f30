/* SPDX-License-Identifier: Apache-2.0 */
/* Messages are built by hand on libnl's core: each is a few attributes, and
 * libnl-route's objects know neither namespace ids nor GSO limits. */
#include "edge/net.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/net_namespace.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netlink/errno.h>
#include <netlink/msg.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/file.h"
#include "base/parse.h"

int net_errno(int nl_err)
{
	static const struct {
		int nl, sys;
	} codes[] = {
		{ NLE_INTR, EINTR }, { NLE_BAD_SOCK, EBADF }, { NLE_AGAIN, EAGAIN },
		{ NLE_NOMEM, ENOMEM }, { NLE_EXIST, EEXIST }, { NLE_INVAL, EINVAL },
		{ NLE_RANGE, ERANGE }, { NLE_MSGSIZE, EMSGSIZE }, { NLE_OPNOTSUPP, EOPNOTSUPP },
		{ NLE_OBJ_NOTFOUND, ENOENT }, { NLE_PERM, EPERM }, { NLE_BUSY, EBUSY },
		{ NLE_NOACCESS, EACCES }, { NLE_NODEV, ENODEV }, { NLE_NOADDR, EADDRNOTAVAIL },
	};

	if (nl_err >= 0)
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
		if (codes[i].nl == -nl_err)
			return -codes[i].sys;
	return -EIO;
}

int net_open(struct nl_sock **ret)
{
	CLEANUP_NL struct nl_sock *s = nl_socket_alloc();
	int err;

	if (!s)
		return -ENOMEM;
	err = nl_connect(s, NETLINK_ROUTE);
	if (err < 0)
		return net_errno(err);
	(void)fcntl(nl_socket_get_fd(s), F_SETFD, FD_CLOEXEC); /* fails only for a bad fd */
	*ret = TAKE(s);
	return 0;
}

int net_run_in(int netns_fd, int (*fn)(void *arg), void *arg)
{
	CLEANUP_FD int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	int err;

	if (home < 0)
		return -errno;
	if (setns(netns_fd, CLONE_NEWNET) < 0)
		return -errno;
	err = fn(arg);
	/* Going on in a guest's namespace would hand it the agent's sockets. */
	CHECK(setns(home, CLONE_NEWNET) == 0);
	return err;
}

static int open_here(void *arg)
{
	return net_open(arg);
}

int net_open_in(int netns_fd, struct nl_sock **ret)
{
	struct nl_sock *s = NULL;
	int err = net_run_in(netns_fd, open_here, &s);

	if (err == 0)
		*ret = s;
	return err;
}

/* Sends and waits for the ack. */
static int talk(struct nl_sock *s, struct nl_msg *msg)
{
	int err = nl_send_auto(s, msg);

	if (err >= 0)
		err = nl_wait_for_ack(s);
	return net_errno(err);
}

static struct nl_msg *link_msg(int type, int flags, int ifindex, unsigned set_flags)
{
	struct ifinfomsg info = {
		.ifi_family = AF_UNSPEC, .ifi_index = ifindex, .ifi_flags = set_flags,
		.ifi_change = set_flags,
	};
	struct nl_msg *m = nlmsg_alloc_simple(type, flags);

	if (m && nlmsg_append(m, &info, sizeof(info), NLMSG_ALIGNTO) < 0) {
		nlmsg_free(m);
		return NULL;
	}
	return m;
}

static int read_link(struct nl_msg *msg, void *arg)
{
	struct nlmsghdr *h = nlmsg_hdr(msg);
	struct nlattr *a[IFLA_MAX + 1];
	struct net_link *l = arg;
	struct ifinfomsg *info = nlmsg_data(h);

	if (h->nlmsg_type != RTM_NEWLINK ||
	    nlmsg_parse(h, sizeof(*info), a, IFLA_MAX, NULL) < 0)
		return NL_SKIP;
	l->ifindex = info->ifi_index;
	l->up = info->ifi_flags & IFF_UP;
	l->peer_nsid = a[IFLA_LINK_NETNSID] ? (int32_t)nla_get_u32(a[IFLA_LINK_NETNSID]) : -1;
	if (a[IFLA_IFNAME])
		nla_strlcpy(l->name, a[IFLA_IFNAME], sizeof(l->name));
	if (a[IFLA_ADDRESS] && nla_len(a[IFLA_ADDRESS]) == sizeof(l->mac))
		memcpy(l->mac, nla_data(a[IFLA_ADDRESS]), sizeof(l->mac));
	return NL_OK;
}

/* Sends a request whose answers go to fn; ends at the ack, the end of a dump or an error. */
static int ask(struct nl_sock *s, struct nl_msg *msg, nl_recvmsg_msg_cb_t fn, void *arg)
{
	struct nl_cb *shared = nl_socket_get_cb(s); /* takes a reference */
	struct nl_cb *cb = nl_cb_clone(shared);
	int err;

	nl_cb_put(shared);
	if (!cb)
		return -ENOMEM;
	err = nl_send_auto(s, msg);
	if (err < 0) {
		nl_cb_put(cb);
		return net_errno(err);
	}
	nl_cb_set(cb, NL_CB_VALID, NL_CB_CUSTOM, fn, arg);
	err = nl_recvmsgs(s, cb);
	nl_cb_put(cb);
	if (err < 0)
		return net_errno(err);
	/* A dump ends by itself; a single answer is followed by its ack. */
	if (!(nlmsg_hdr(msg)->nlmsg_flags & NLM_F_DUMP))
		err = nl_wait_for_ack(s);
	return net_errno(err);
}

int net_link_get(struct nl_sock *s, const char *name, int ifindex, struct net_link *ret)
{
	CLEANUP_MSG struct nl_msg *m = link_msg(RTM_GETLINK, 0, name ? 0 : ifindex, 0);
	struct net_link l = { 0 };
	int err;

	if (!m || (name && nla_put_string(m, IFLA_IFNAME, name) < 0))
		return -ENOMEM;
	err = ask(s, m, read_link, &l);
	if (err < 0)
		return err == -ENOENT ? -ENODEV : err;
	if (l.ifindex == 0)
		return -ENODEV;
	*ret = l;
	return 0;
}

int net_veth_add(struct nl_sock *s, const char *name, const uint8_t mac[6], int peer_ns_fd,
		 const char *peer_name, const uint8_t peer_mac[6], int *ret_ifindex)
{
	CLEANUP_MSG struct nl_msg *m = link_msg(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, 0, 0);
	struct ifinfomsg peer_info = { .ifi_family = AF_UNSPEC };
	struct nlattr *info, *data, *peer;
	struct net_link l;
	int err;

	if (!m || nla_put_string(m, IFLA_IFNAME, name) < 0 || nla_put(m, IFLA_ADDRESS, 6, mac) < 0)
		return -ENOMEM;
	info = nla_nest_start(m, IFLA_LINKINFO);
	if (!info || nla_put_string(m, IFLA_INFO_KIND, "veth") < 0)
		return -ENOMEM;
	data = nla_nest_start(m, IFLA_INFO_DATA);
	peer = data ? nla_nest_start(m, VETH_INFO_PEER) : NULL;
	if (!peer || nlmsg_append(m, &peer_info, sizeof(peer_info), NLMSG_ALIGNTO) < 0 ||
	    nla_put_string(m, IFLA_IFNAME, peer_name) < 0 ||
	    nla_put(m, IFLA_ADDRESS, 6, peer_mac) < 0 ||
	    (peer_ns_fd >= 0 && nla_put_u32(m, IFLA_NET_NS_FD, (uint32_t)peer_ns_fd) < 0))
		return -ENOMEM;
	nla_nest_end(m, peer);
	nla_nest_end(m, data);
	nla_nest_end(m, info);
	err = talk(s, m);
	if (err < 0)
		return err;
	err = net_link_get(s, name, 0, &l);
	if (err < 0)
		return err;
	*ret_ifindex = l.ifindex;
	return 0;
}

int net_link_del(struct nl_sock *s, int ifindex)
{
	CLEANUP_MSG struct nl_msg *m = link_msg(RTM_DELLINK, 0, ifindex, 0);

	return m ? talk(s, m) : -ENOMEM;
}

int net_link_up(struct nl_sock *s, int ifindex)
{
	CLEANUP_MSG struct nl_msg *m = link_msg(RTM_NEWLINK, 0, ifindex, IFF_UP);

	return m ? talk(s, m) : -ENOMEM;
}

int net_link_gso_max(struct nl_sock *s, int ifindex, uint32_t bytes)
{
	CLEANUP_MSG struct nl_msg *m = link_msg(RTM_NEWLINK, 0, ifindex, 0);

	if (!m || nla_put_u32(m, IFLA_GSO_MAX_SIZE, bytes) < 0)
		return -ENOMEM;
	return talk(s, m);
}

int net_addr_add(struct nl_sock *s, int ifindex, struct in_addr addr, uint8_t prefix_len)
{
	struct ifaddrmsg info = {
		.ifa_family = AF_INET, .ifa_prefixlen = prefix_len, .ifa_index = (unsigned)ifindex,
	};
	CLEANUP_MSG struct nl_msg *m =
		nlmsg_alloc_simple(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);

	if (!m || nlmsg_append(m, &info, sizeof(info), NLMSG_ALIGNTO) < 0 ||
	    nla_put(m, IFA_LOCAL, 4, &addr) < 0 || nla_put(m, IFA_ADDRESS, 4, &addr) < 0)
		return -ENOMEM;
	return talk(s, m);
}

int net_route_default(struct nl_sock *s, int ifindex, struct in_addr gateway)
{
	struct rtmsg info = {
		.rtm_family = AF_INET, .rtm_table = RT_TABLE_MAIN, .rtm_protocol = RTPROT_STATIC,
		.rtm_scope = RT_SCOPE_UNIVERSE, .rtm_type = RTN_UNICAST,
	};
	CLEANUP_MSG struct nl_msg *m =
		nlmsg_alloc_simple(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);

	if (!m || nlmsg_append(m, &info, sizeof(info), NLMSG_ALIGNTO) < 0 ||
	    nla_put_u32(m, RTA_OIF, (uint32_t)ifindex) < 0 ||
	    nla_put(m, RTA_GATEWAY, 4, &gateway) < 0)
		return -ENOMEM;
	return talk(s, m);
}

struct addr_walk {
	void (*fn)(struct in_addr, uint8_t, int, void *);
	void *arg;
};

static int read_addr(struct nl_msg *msg, void *arg)
{
	struct nlmsghdr *h = nlmsg_hdr(msg);
	struct ifaddrmsg *info = nlmsg_data(h);
	struct nlattr *a[IFA_MAX + 1];
	struct addr_walk *w = arg;
	struct in_addr addr;

	if (h->nlmsg_type != RTM_NEWADDR || nlmsg_parse(h, sizeof(*info), a, IFA_MAX, NULL) < 0 ||
	    info->ifa_family != AF_INET || !a[IFA_LOCAL] || nla_len(a[IFA_LOCAL]) != 4)
		return NL_SKIP;
	memcpy(&addr, nla_data(a[IFA_LOCAL]), 4);
	w->fn(addr, info->ifa_prefixlen, (int)info->ifa_index, w->arg);
	return NL_OK;
}

int net_addr_each(struct nl_sock *s, void (*fn)(struct in_addr, uint8_t, int ifindex, void *),
		  void *arg)
{
	struct ifaddrmsg info = { .ifa_family = AF_INET };
	CLEANUP_MSG struct nl_msg *m = nlmsg_alloc_simple(RTM_GETADDR, NLM_F_DUMP);
	struct addr_walk w = { fn, arg };

	if (!m || nlmsg_append(m, &info, sizeof(info), NLMSG_ALIGNTO) < 0)
		return -ENOMEM;
	return ask(s, m, read_addr, &w);
}

struct route_walk {
	int ifindex;
	uint32_t metric;
};

static int read_route(struct nl_msg *msg, void *arg)
{
	struct nlmsghdr *h = nlmsg_hdr(msg);
	struct rtmsg *info = nlmsg_data(h);
	struct nlattr *a[RTA_MAX + 1];
	struct route_walk *w = arg;
	uint32_t metric;

	if (h->nlmsg_type != RTM_NEWROUTE || nlmsg_parse(h, sizeof(*info), a, RTA_MAX, NULL) < 0 ||
	    info->rtm_dst_len != 0 || info->rtm_table != RT_TABLE_MAIN || !a[RTA_OIF])
		return NL_SKIP;
	metric = a[RTA_PRIORITY] ? nla_get_u32(a[RTA_PRIORITY]) : 0;
	if (w->ifindex == 0 || metric < w->metric) {
		w->ifindex = (int)nla_get_u32(a[RTA_OIF]);
		w->metric = metric;
	}
	return NL_OK;
}

int net_default_ifindex(struct nl_sock *s, int *ret)
{
	struct rtmsg info = { .rtm_family = AF_INET };
	CLEANUP_MSG struct nl_msg *m = nlmsg_alloc_simple(RTM_GETROUTE, NLM_F_DUMP);
	struct route_walk w = { 0, 0 };
	int err;

	if (!m || nlmsg_append(m, &info, sizeof(info), NLMSG_ALIGNTO) < 0)
		return -ENOMEM;
	err = ask(s, m, read_route, &w);
	if (err < 0)
		return err;
	if (w.ifindex == 0)
		return -ENOENT;
	*ret = w.ifindex;
	return 0;
}

static int conf_path(const char *ip, const char *ifname, const char *name, char path[128])
{
	return path_format(path, 128, "/proc/sys/net/%s/conf/%s/%s", ip, ifname, name);
}

int net_conf_get(const char *ifname, const char *name, int *ret)
{
	CLEANUP_FREE char *text = NULL;
	char path[128];
	size_t len;
	int err = conf_path("ipv4", ifname, name, path);

	if (err == 0)
		err = file_read(path, 32, &text, &len);
	if (err < 0)
		return err;
	*ret = atoi(text);
	return 0;
}

static int conf_set(const char *ip, const char *ifname, const char *name, int value)
{
	CLEANUP_FD int fd = -1;
	char path[128], text[16];
	int err = conf_path(ip, ifname, name, path), len;

	if (err < 0)
		return err;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	len = snprintf(text, sizeof(text), "%d\n", value);
	return write(fd, text, (size_t)len) == len ? 0 : -errno;
}

int net_conf_set(const char *ifname, const char *name, int value)
{
	return conf_set("ipv4", ifname, name, value);
}

int net_conf_set_v6(const char *ifname, const char *name, int value)
{
	return conf_set("ipv6", ifname, name, value);
}

static int read_nsid(struct nl_msg *msg, void *arg)
{
	struct nlmsghdr *h = nlmsg_hdr(msg);
	struct nlattr *a[NETNSA_MAX + 1];

	if (h->nlmsg_type != RTM_NEWNSID ||
	    nlmsg_parse(h, sizeof(struct rtgenmsg), a, NETNSA_MAX, NULL) < 0 || !a[NETNSA_NSID])
		return NL_SKIP;
	*(int32_t *)arg = (int32_t)nla_get_u32(a[NETNSA_NSID]);
	return NL_OK;
}

static int32_t nsid_of(struct nl_sock *s, int netns_fd)
{
	struct rtgenmsg info = { .rtgen_family = AF_UNSPEC };
	CLEANUP_MSG struct nl_msg *m = nlmsg_alloc_simple(RTM_GETNSID, 0);
	int32_t nsid = -1;

	if (!m || nlmsg_append(m, &info, sizeof(info), NLMSG_ALIGNTO) < 0 ||
	    nla_put_u32(m, NETNSA_FD, (uint32_t)netns_fd) < 0 || ask(s, m, read_nsid, &nsid) < 0)
		return -1;
	return nsid;
}

int net_find_ns(struct nl_sock *s, int32_t nsid)
{
	CLEANUP_DIR DIR *proc = opendir("/proc");
	struct dirent *d;
	ino_t seen = 0;

	if (!proc)
		return -errno;
	if (nsid < 0)
		return -ENOENT;
	while ((d = readdir(proc))) {
		CLEANUP_FD int fd = -1;
		struct stat st;
		char path[300];

		if (!isdigit((unsigned char)d->d_name[0]) ||
		    path_format(path, sizeof(path), "/proc/%s/ns/net", d->d_name) < 0)
			continue;
		fd = open(path, O_RDONLY | O_CLOEXEC);
		/* Most processes share a namespace with the one before: ask once for a run of them. */
		if (fd < 0 || fstat(fd, &st) < 0 || st.st_ino == seen)
			continue;
		seen = st.st_ino;
		if (nsid_of(s, fd) == nsid)
			return TAKE_FD(fd);
	}
	return -ENOENT;
}
