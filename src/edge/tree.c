/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/tree.h"

#include <errno.h>
#include <linux/pkt_sched.h>
#include <netlink/route/class.h>
#include <netlink/route/qdisc.h>
#include <netlink/route/qdisc/fifo.h>
#include <netlink/route/qdisc/htb.h>
#include <netlink/route/qdisc/tbf.h>
#include <netlink/route/tc.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "edge/net.h"

#define BURST_US 500        /* what a class may send in one go, as time at its rate */
#define BURST_BYTES_MIN 16384
#define RATE_BYTES_MIN 8000 /* 64 kbit/s */
#define WIRE_OVERHEAD 24    /* preamble, gap and checksum of Ethernet */
#define QUANTUM_MIN 1514
#define QUANTUM_MAX 60000
#define CONTROL_QUEUE_PACKETS 200
#define RESEARCH_QUEUE_PACKETS 1000 /* where the kernel has no fq_codel */
#define DEADLINE_QUEUE_MS 10
#define SCAVENGER_QUEUE_MS 5
#define SHAPER_QUEUE_MS 10
#define OUR_QUEUE_BYTES_MIN 131072
#define GSO_US 100
#define GSO_BYTES_MIN 3000

DEFINE_CLEANUP(struct rtnl_qdisc *, rtnl_qdisc_put)
DEFINE_CLEANUP(struct rtnl_class *, rtnl_class_put)
DEFINE_CLEANUP(struct nl_cache *, nl_cache_free)
#define CLEANUP_QDISC CLEANUP(rtnl_qdisc_put_cleanup)
#define CLEANUP_CLASS CLEANUP(rtnl_class_put_cleanup)
#define CLEANUP_CACHE CLEANUP(nl_cache_free_cleanup)

static uint64_t bytes_in(uint64_t bps, uint64_t us)
{
	return bps / 8 * us / 1000000;
}

uint32_t tree_gso_bytes(uint64_t ceiling_bps)
{
	return (uint32_t)MIN(MAX(bytes_in(ceiling_bps, GSO_US), (uint64_t)GSO_BYTES_MIN),
			     UINT64_C(65536));
}

uint32_t tree_leaf_bytes(uint64_t ceiling_bps)
{
	return 4 * tree_gso_bytes(ceiling_bps);
}

static struct rtnl_qdisc *qdisc_new(int ifindex, uint32_t parent, uint32_t handle,
				    const char *kind)
{
	struct rtnl_qdisc *q = rtnl_qdisc_alloc();

	if (!q)
		return NULL;
	rtnl_tc_set_ifindex(TC_CAST(q), ifindex);
	rtnl_tc_set_parent(TC_CAST(q), parent);
	if (handle)
		rtnl_tc_set_handle(TC_CAST(q), handle);
	if (rtnl_tc_set_kind(TC_CAST(q), kind) < 0) {
		rtnl_qdisc_put(q);
		return NULL;
	}
	return q;
}

/* Creates the leaf below a class, or leaves a longer-lived one of the same kind and resizes it. */
static int leaf_set(const struct tree *t, uint32_t parent, const char *kind, int limit)
{
	CLEANUP_QDISC struct rtnl_qdisc *q = qdisc_new(t->ifindex, parent, 0, kind);

	if (!q)
		return -ENOMEM;
	if (limit)
		rtnl_qdisc_fifo_set_limit(q, limit);
	return net_errno(rtnl_qdisc_add(t->sock, q, NLM_F_CREATE | NLM_F_REPLACE));
}

struct share {
	uint32_t parent, classid;
	uint32_t prio;
	uint64_t rate, ceil; /* bytes per second */
};

static uint32_t burst_bytes(uint64_t rate)
{
	return (uint32_t)MAX(rate * BURST_US / 1000000, (uint64_t)BURST_BYTES_MIN);
}

static int class_set(const struct tree *t, const struct share *s)
{
	CLEANUP_CLASS struct rtnl_class *c = rtnl_class_alloc();
	uint64_t rate = MAX(s->rate, (uint64_t)RATE_BYTES_MIN), ceil = MAX(s->ceil, rate);

	if (!c)
		return -ENOMEM;
	rtnl_tc_set_ifindex(TC_CAST(c), t->ifindex);
	rtnl_tc_set_parent(TC_CAST(c), s->parent);
	rtnl_tc_set_handle(TC_CAST(c), s->classid);
	if (rtnl_tc_set_kind(TC_CAST(c), "htb") < 0)
		return -ENOMEM;
	if (t->physical)
		rtnl_tc_set_overhead(TC_CAST(c), WIRE_OVERHEAD);
	(void)rtnl_htb_set_prio(c, s->prio); /* these fail for other kinds only */
	(void)rtnl_htb_set_rate64(c, rate);
	(void)rtnl_htb_set_ceil64(c, ceil);
	(void)rtnl_htb_set_rbuffer(c, burst_bytes(rate));
	(void)rtnl_htb_set_cbuffer(c, burst_bytes(ceil));
	(void)rtnl_htb_set_quantum(c, (uint32_t)MIN(MAX(rate / 1000, (uint64_t)QUANTUM_MIN),
						    (uint64_t)QUANTUM_MAX));
	return net_errno(rtnl_class_add(t->sock, c, NLM_F_CREATE));
}

/* Guarantees in bytes per second; research has what the others leave. */
struct shares {
	uint64_t all, control, floor, trickle;
};

static struct shares shares_of(const struct tree *t)
{
	struct shares s = { .all = t->rate_bps / 8 };

	s.control = MAX(s.all / 100, (uint64_t)RATE_BYTES_MIN);
	s.trickle = MAX(s.all / 1000, (uint64_t)RATE_BYTES_MIN);
	s.floor = MAX(t->floor_bps / 8, s.trickle);
	return s;
}

int tree_floor_set(const struct tree *t)
{
	struct shares s = shares_of(t);
	uint64_t taken = s.control + s.floor + 2 * s.trickle;
	struct share research = { TREE_ROOT, TREE_RESEARCH, 1,
				  taken < s.all ? s.all - taken : RATE_BYTES_MIN, s.all };
	struct share deadline = { TREE_ROOT, TREE_DEADLINE, 2, s.floor, s.all };
	int err = class_set(t, &research);

	return err < 0 ? err : class_set(t, &deadline);
}

int tree_guests_set(const struct tree *t)
{
	struct shares s = shares_of(t);
	uint64_t ceiling = t->guest_ceiling_bps ? t->guest_ceiling_bps / 8 : s.all;
	struct share guests = { TREE_ROOT, TREE_GUESTS, 3, s.trickle, MIN(ceiling, s.all) };

	return class_set(t, &guests);
}

int tree_guest_add(const struct tree *t, unsigned slot, uint64_t rate_bps)
{
	struct shares s = shares_of(t);
	struct share guest = { TREE_GUESTS, TREE_GUEST0 + slot, 3, s.trickle / 8, rate_bps / 8 };
	int err = class_set(t, &guest);

	if (err < 0)
		return err;
	return leaf_set(t, guest.classid, "bfifo", (int)tree_leaf_bytes(rate_bps));
}

int tree_guest_del(const struct tree *t, unsigned slot)
{
	CLEANUP_CLASS struct rtnl_class *c = rtnl_class_alloc();

	if (!c)
		return -ENOMEM;
	rtnl_tc_set_ifindex(TC_CAST(c), t->ifindex);
	rtnl_tc_set_handle(TC_CAST(c), TREE_GUEST0 + slot);
	rtnl_tc_set_parent(TC_CAST(c), TREE_GUESTS);
	return net_errno(rtnl_class_delete(t->sock, c));
}

static int root_add(const struct tree *t)
{
	CLEANUP_QDISC struct rtnl_qdisc *q = qdisc_new(t->ifindex, TC_H_ROOT, TREE_MAJOR, "htb");

	if (!q)
		return -ENOMEM;
	(void)rtnl_htb_set_defcls(q, TC_H_MIN(TREE_RESEARCH)); /* fails for other kinds only */
	return net_errno(rtnl_qdisc_add(t->sock, q, NLM_F_CREATE | NLM_F_REPLACE));
}

static int leaves_set(const struct tree *t)
{
	int err = leaf_set(t, TREE_CONTROL, "pfifo", CONTROL_QUEUE_PACKETS);

	if (err == 0 && leaf_set(t, TREE_RESEARCH, "fq_codel", 0) < 0)
		err = leaf_set(t, TREE_RESEARCH, "pfifo", RESEARCH_QUEUE_PACKETS);
	if (err == 0)
		err = leaf_set(t, TREE_DEADLINE, "bfifo",
			       (int)MAX(bytes_in(t->rate_bps, DEADLINE_QUEUE_MS * 1000),
					(uint64_t)OUR_QUEUE_BYTES_MIN));
	if (err == 0)
		err = leaf_set(t, TREE_SCAVENGER, "bfifo",
			       (int)MAX(bytes_in(t->rate_bps, SCAVENGER_QUEUE_MS * 1000),
					(uint64_t)OUR_QUEUE_BYTES_MIN));
	return err;
}

int tree_set(const struct tree *t, struct diag *diag)
{
	struct shares s = shares_of(t);
	uint64_t scavenger = t->scavenger_ceiling_bps ? t->scavenger_ceiling_bps / 8 : s.all;
	struct share root = { TREE_MAJOR, TREE_ROOT, 0, s.all, s.all };
	struct share control = { TREE_ROOT, TREE_CONTROL, 0, s.control, s.all };
	struct share last = { TREE_ROOT, TREE_SCAVENGER, 4, s.trickle, MIN(scavenger, s.all) };
	enum tree_found found;
	char kind[16];
	int err = tree_find(t->sock, t->ifindex, &found, kind);

	if (err < 0)
		return diag_set(diag, err, "uplink", "reading its qdiscs: %s", strerror(-err));
	if (found == TREE_FOREIGN)
		return diag_set(diag, -EBUSY, "uplink", "has a root qdisc of its own (%s)", kind);
	if (found == TREE_NONE)
		err = root_add(t);
	if (err < 0)
		return diag_set(diag, err, "uplink", "htb qdisc: %s", strerror(-err));
	err = class_set(t, &root);
	if (err == 0)
		err = class_set(t, &control);
	if (err == 0)
		err = tree_floor_set(t);
	if (err == 0)
		err = class_set(t, &last);
	if (err == 0)
		err = tree_guests_set(t);
	if (err < 0)
		return diag_set(diag, err, "uplink", "htb class: %s", strerror(-err));
	err = leaves_set(t);
	if (err < 0)
		return diag_set(diag, err, "uplink", "htb leaf: %s", strerror(-err));
	return 0;
}

int tree_find(struct nl_sock *sock, int ifindex, enum tree_found *ret, char ret_kind[16])
{
	CLEANUP_CACHE struct nl_cache *all = NULL;
	struct rtnl_qdisc *q;
	uint32_t handle;
	int err = rtnl_qdisc_alloc_cache(sock, &all);

	if (err < 0)
		return net_errno(err);
	q = rtnl_qdisc_get_by_parent(all, ifindex, TC_H_ROOT);
	*ret = TREE_NONE;
	if (!q)
		return 0;
	handle = rtnl_tc_get_handle(TC_CAST(q));
	/* The kernel's own choice has no handle. */
	if (handle != 0)
		*ret = handle == TREE_MAJOR ? TREE_OURS : TREE_FOREIGN;
	(void)snprintf(ret_kind, 16, "%s", rtnl_tc_get_kind(TC_CAST(q)));
	rtnl_qdisc_put(q);
	return 0;
}

int tree_remove(const struct tree *t)
{
	CLEANUP_QDISC struct rtnl_qdisc *q = qdisc_new(t->ifindex, TC_H_ROOT, TREE_MAJOR, "htb");
	enum tree_found found;
	char kind[16];
	int err = tree_find(t->sock, t->ifindex, &found, kind);

	if (err < 0 || found != TREE_OURS)
		return err;
	return q ? net_errno(rtnl_qdisc_delete(t->sock, q)) : -ENOMEM;
}

static uint64_t qdisc_stat(struct nl_sock *sock, int ifindex, uint32_t parent,
			   enum rtnl_tc_stat which)
{
	CLEANUP_CACHE struct nl_cache *all = NULL;
	struct rtnl_qdisc *q;
	uint64_t value = 0;

	if (rtnl_qdisc_alloc_cache(sock, &all) < 0)
		return 0;
	q = rtnl_qdisc_get_by_parent(all, ifindex, parent);
	if (q) {
		value = rtnl_tc_get_stat(TC_CAST(q), which);
		rtnl_qdisc_put(q);
	}
	return value;
}

uint64_t tree_backlog(struct nl_sock *sock, int ifindex, uint32_t parent)
{
	return qdisc_stat(sock, ifindex, parent, RTNL_TC_BACKLOG);
}

uint64_t tree_sent(struct nl_sock *sock, int ifindex, uint32_t parent)
{
	return qdisc_stat(sock, ifindex, parent, RTNL_TC_BYTES);
}

int tree_shaper_set(struct nl_sock *sock, int ifindex, uint64_t rate_bps)
{
	CLEANUP_QDISC struct rtnl_qdisc *q = qdisc_new(ifindex, TC_H_ROOT, TREE_MAJOR, "tbf");
	uint64_t rate = MIN(MAX(rate_bps / 8, (uint64_t)RATE_BYTES_MIN), (uint64_t)INT32_MAX);
	/* An offloaded packet larger than the bucket would be cut up in software. */
	uint32_t bucket = MAX(burst_bytes(rate), 2 * tree_gso_bytes(rate_bps));

	if (!q)
		return -ENOMEM;
	rtnl_qdisc_tbf_set_rate(q, (int)rate, (int)bucket, 0);
	rtnl_qdisc_tbf_set_limit(q, (int)MAX(rate * SHAPER_QUEUE_MS / 1000,
					     (uint64_t)OUR_QUEUE_BYTES_MIN));
	return net_errno(rtnl_qdisc_add(sock, q, NLM_F_CREATE | NLM_F_REPLACE));
}
