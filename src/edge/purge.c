/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/purge.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PURGE_COUNT_MAX 64

/* Laid out as the kernel reads it, attributes included: nothing is computed at kill time. */
struct purge_msg {
	struct nlmsghdr head;
	struct tcmsg tc;
	struct nlattr kind_head;
	char kind[8]; /* "bfifo" and padding */
	struct nlattr options_head;
	struct tc_fifo_qopt options;
};
_Static_assert(sizeof(struct purge_msg) % NLMSG_ALIGNTO == 0, "messages follow each other");

int purge_open(void)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int err = -errno;

		(void)close(fd); /* the bind's error is the one to tell */
		return err;
	}
	return fd;
}

/*
 * Deleting a leaf makes HTB put its default there and frees the packets; then
 * a short one takes the default's place. (One replacing message would do if
 * kernels agreed on when that means "change in place"; they do not.)
 */
static void purge_fill(struct purge_msg *m, bool delete, int ifindex, uint32_t classid,
		       uint32_t limit_bytes)
{
	memset(m, 0, sizeof(*m));
	m->head.nlmsg_len = sizeof(*m);
	m->head.nlmsg_type = delete ? RTM_DELQDISC : RTM_NEWQDISC;
	m->head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | (delete ? 0 : NLM_F_CREATE | NLM_F_REPLACE);
	m->tc.tcm_family = AF_UNSPEC;
	m->tc.tcm_ifindex = ifindex;
	m->tc.tcm_parent = classid;
	m->kind_head.nla_type = TCA_KIND;
	m->kind_head.nla_len = NLA_HDRLEN + sizeof("bfifo");
	memcpy(m->kind, "bfifo", sizeof("bfifo"));
	m->options_head.nla_type = TCA_OPTIONS;
	m->options_head.nla_len = NLA_HDRLEN + sizeof(m->options);
	m->options.limit = limit_bytes;
}

/* The kernel has answered by the time sendmsg() returns; this only reads the answers. */
static int purge_answers(int fd, size_t count)
{
	/* An error answer quotes the request. */
	char buf[sizeof(struct purge_msg) + 256];
	int err = 0;

	while (count > 0) {
		ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
		int left = (int)n;

		if (n < 0)
			return err ? err : errno == EAGAIN ? -EIO : -errno;
		for (struct nlmsghdr *h = (struct nlmsghdr *)buf; NLMSG_OK(h, left) && count > 0;
		     h = NLMSG_NEXT(h, left)) {
			const struct nlmsgerr *e = NLMSG_DATA(h);

			if (h->nlmsg_type != NLMSG_ERROR)
				continue;
			count--;
			if (e->error && !err)
				err = e->error;
		}
	}
	return err;
}

int purge_leaves(int fd, int ifindex, const uint32_t *classids, size_t count,
		 uint32_t limit_bytes)
{
	struct purge_msg msgs[2 * PURGE_COUNT_MAX];
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };

	if (count > PURGE_COUNT_MAX)
		return -E2BIG;
	if (count == 0)
		return 0;
	/* All deletions first: they are what counts. */
	for (size_t i = 0; i < count; i++) {
		purge_fill(&msgs[i], true, ifindex, classids[i], limit_bytes);
		purge_fill(&msgs[count + i], false, ifindex, classids[i], limit_bytes);
	}
	if (sendto(fd, msgs, 2 * count * sizeof(msgs[0]), 0, (struct sockaddr *)&kernel,
		   sizeof(kernel)) < 0)
		return -errno;
	return purge_answers(fd, 2 * count);
}
