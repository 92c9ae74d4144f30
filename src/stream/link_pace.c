/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a link's output may wait where nothing can overtake it.
 *
 * Between our queues and the wire lie the unsent part of the socket's buffer,
 * and what TCP has sent into queues on the way: its own machine's, then the
 * network's. While a control or token stream uses the link, both are kept
 * short: TCP_NOTSENT_LOWAT holds the first at about one slice, a cap on the
 * send buffer holds the sum near what the path itself needs plus a quarter
 * of a millisecond. The rate is measured while there is always more to send; a cap
 * that is too low for the path lets the round trip shrink to its minimum, then
 * the rate that is measured, and with it the cap, grows with every look.
 *
 * A link of bulk alone takes large slices and a queue of a millisecond. Far
 * peers, fast links and the same machine keep the kernel's own tuning.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "stream/node_internal.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72 /* Linux 5.14 */
#endif

enum {
	LOOK_NS = 10 * 1000 * 1000,
	SLICE_NS = 130 * 1000,
	SLICE_ALONE_NS = 1000 * 1000,
	SLICE_ALONE_MAX = 2 << 20,
	QUEUE_NS = 250 * 1000,
	QUEUE_ALONE_NS = 1000 * 1000,
	QUEUE_MIN = 32 << 10,
	QUEUE_START = 128 << 10,
	FAR_US = 2000, /* where our queue is small beside the path's own time */
	/* Beyond it (some 3 Gbit/s) the queues drain fast enough by themselves, and an
	 * unprivileged process may not set a buffer much larger. */
	QUEUE_MAX = 256 << 10,
	EXPECT_MIN = 32 << 10,
	EXPECT_MAX = 128 << 10,
};

static void set_lowat(struct link *l)
{
	int v = (int)l->slice;

	if (l->lowat == l->slice)
		return;
	l->lowat = l->slice;
	(void)setsockopt(l->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &v, sizeof(v));
}

static void set_queue(struct link *l, uint32_t bytes)
{
	int half = (int)(bytes / 2), unlock = 0; /* the kernel doubles it, for its overhead */

	l->queue_cap = bytes;
	if (bytes)
		(void)setsockopt(l->fd, SOL_SOCKET, SO_SNDBUF, &half, sizeof(half));
	else /* the kernel's own tuning again; before Linux 5.14 the cap stays at its highest */
		(void)setsockopt(l->fd, SOL_SOCKET, SO_BUF_LOCK, &unlock, sizeof(unlock));
}

static bool same_machine(int fd)
{
	struct sockaddr_in6 me = { 0 }, peer = { 0 }; /* also long enough for IPv4 */
	socklen_t a = sizeof(me), b = sizeof(peer);

	if (getsockname(fd, (struct sockaddr *)&me, &a) < 0 ||
	    getpeername(fd, (struct sockaddr *)&peer, &b) < 0)
		return false;
	if (me.sin6_family == AF_INET6)
		return !memcmp(&me.sin6_addr, &peer.sin6_addr, sizeof(me.sin6_addr));
	return ((struct sockaddr_in *)&me)->sin_addr.s_addr ==
	       ((struct sockaddr_in *)&peer)->sin_addr.s_addr;
}

void link_pace_start(struct link *l)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	set_lowat(l);
	l->local = same_machine(l->fd);
	/* The first burst too: what it overflows on the way costs the shortest retransmission
	 * timeout, 200 ms. */
	if (!l->local && getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	    info.tcpi_min_rtt <= FAR_US) {
		set_queue(l, QUEUE_START);
		/* The buffer bounds what is in flight. BBR would also stop nearly everything for
		 * 200 ms every ten seconds, to see the empty path. */
		(void)setsockopt(l->fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	}
}

/* A stream that must not wait begins to use the link. */
void link_pace_urgent(struct link *l)
{
	if (l->slice <= SEGMENT_MAX)
		return;
	l->slice = SEGMENT_MAX;
	set_lowat(l);
	l->backlogged = false;
}

static bool is_urgent(const struct link *l)
{
	for (size_t i = 0; i < l->outs.count; i++)
		if (l->outs.data[i] && l->outs.data[i]->link == l &&
		    l->outs.data[i]->cls <= RECLAIM_TOKEN)
			return true;
	return false;
}

static void cap_queue(struct link *l, uint64_t bytes_per_s, bool urgent)
{
	uint64_t queue_us = (urgent ? QUEUE_NS : QUEUE_ALONE_NS) / 1000;
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	if (l->local || getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return;
	uint64_t want = bytes_per_s * (info.tcpi_min_rtt + queue_us) / 1000000;

	want = MAX(want, (uint64_t)QUEUE_MIN);
	if (want > QUEUE_MAX || info.tcpi_min_rtt > FAR_US) {
		if (l->queue_cap) {
			set_queue(l, QUEUE_MAX);
			set_queue(l, 0);
		}
		return;
	}
	if (want > l->queue_cap + l->queue_cap / 8 || want + want / 8 < l->queue_cap)
		set_queue(l, (uint32_t)want);
}

static uint32_t slice_for(uint64_t bytes_per_s, bool urgent)
{
	uint64_t v = bytes_per_s * (urgent ? SLICE_NS : SLICE_ALONE_NS) / NS_PER_S;

	if (!urgent)
		return (uint32_t)MIN(MAX(v, (uint64_t)SLICE_MAX), (uint64_t)SLICE_ALONE_MAX);
	return (uint32_t)MIN(MAX(v, (uint64_t)SLICE_MIN), (uint64_t)SLICE_MAX);
}

void link_pace(struct link *l, size_t bytes, bool blocked)
{
	uint64_t now = l->node->now_ns;

	if (!l->backlogged) {
		l->backlogged = blocked;
		l->rate_from_ns = now;
		l->rate_bytes = 0;
		return;
	}
	l->rate_bytes += bytes;
	if (now - l->rate_from_ns < LOOK_NS)
		return;
	uint64_t rate = l->rate_bytes * NS_PER_S / (now - l->rate_from_ns);
	bool urgent = is_urgent(l);
	uint32_t slice = slice_for(rate, urgent);

	if (slice > l->slice + l->slice / 4 || slice + slice / 4 < l->slice) {
		l->slice = slice;
		set_lowat(l);
	}
	cap_queue(l, rate, urgent);
	l->backlogged = blocked;
	l->rate_from_ns = now;
	l->rate_bytes = 0;
}

/* Before a sleep: half a piece is of no use, so be woken for the rest of it, not for every
 * packet. After a read the next frame may be a short one again. */
void link_expect(struct link *l, bool sleeping)
{
	int v = 1;

	if (l->tls || !l->local)
		return; /* the acknowledgement of what is not read waits, up to 40 ms */
	if (l->direct_left >= EXPECT_MIN && (sleeping || l->expect <= l->direct_left))
		v = sleeping ? (int)MIN(l->direct_left, (uint32_t)EXPECT_MAX) : (int)l->expect;
	if (v == (int)l->expect)
		return;
	l->expect = (uint32_t)v;
	(void)setsockopt(l->fd, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof(v));
}
