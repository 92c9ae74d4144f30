/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two congestion controls for our own moves (TCP struct_ops).
 *
 * reclaim_floor: for a rate that the schedule has granted. It sends at
 * SO_MAX_PACING_RATE whatever the queues on the way do: a window of two round
 * trips at that rate, so that loss costs no time. The grant is of what arrives:
 * what a full queue drops never crosses the link behind it, so sending it again
 * takes nothing from others there. Whenever less arrived than was granted, for
 * loss, a busy machine or a late timer, it catches up at an eighth more, for at
 * most half a second's worth. It neither probes for more nor gives way to loss,
 * which is what a floor means; if more than a quarter
 * is lost the grant was wrong for this path, and it halves, at most to an
 * eighth. Without SO_MAX_PACING_RATE nothing was granted: then it is Reno.
 *
 * reclaim_yield: for what may wait. Once per round trip it compares the least
 * delay of that round with the least ever; above 1 ms of queue, or when the
 * delay swings as it does under others' traffic, it gives way by up to half,
 * and by half on loss; below, it grows by a packet or 3 %. (LEDBAT++ aims at
 * 60 ms, which is all of a campus switch's buffer.) A newcomer to a full queue
 * would take the queue for distance: the swing tells, and every few seconds it
 * pauses for two round trips to see the path without itself.
 *
 * Arguments beyond the socket are not used where kernels differ in them
 * (cong_control got two more in 6.10).
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define CWND_MIN 2
#define CWND_IDLE 10
#define CWND_MAX 32768
#define US_PER_S 1000000ull
#define RATE_NONE (~0ul)
#define TARGET_US 1000
#define SWING_US 2000
#define PAUSE_EVERY_NS 5000000000ull

/* Only what is used; the loader finds it by name in the kernel's types. */
#define RELOCATE __attribute__((preserve_access_index))
struct sock {
	unsigned long sk_pacing_rate, sk_max_pacing_rate;
	__u32 sk_pacing_status;
} RELOCATE;
struct inet_sock {
	struct sock sk;
} RELOCATE;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	__u8 icsk_ca_state : 5;
	__u64 icsk_ca_priv[13];
} RELOCATE;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 srtt_us, snd_cwnd, snd_ssthresh, snd_cwnd_clamp, mss_cache, delivered, lost, app_limited;
} RELOCATE;
struct ack_sample {
	__u32 pkts_acked;
	__s32 rtt_us;
} RELOCATE;
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_control)(struct sock *sk);
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*init)(struct sock *sk);
	char name[16];
};

#define CA_RECOVERY 3   /* TCP_CA_Recovery; TCP_CA_Loss is 4 */
#define PACING_NEEDED 1 /* SK_PACING_NEEDED: TCP's own timer, no fq qdisc */

static __always_inline struct tcp_sock *tcp_of(struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static __always_inline void *priv_of(struct sock *sk)
{
	return (void *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

static __always_inline __u32 clamp_cwnd(const struct tcp_sock *tp, __u64 cwnd)
{
	if (cwnd > CWND_MAX)
		cwnd = CWND_MAX;
	if (cwnd > tp->snd_cwnd_clamp)
		cwnd = tp->snd_cwnd_clamp;
	return cwnd;
}

/* --- reclaim_floor -------------------------------------------------------- */

struct floor {
	__u32 round_end; /* tp->delivered at which this round is over */
	__u32 delivered, lost; /* when it began */
	__u32 eighths;   /* of the granted rate that are sent */
	__u64 began_ns;
	__u64 behind;    /* bytes that the grant was ahead of what arrived */
	__u32 acked_to;  /* Reno: tp->delivered that is accounted for */
	__u32 acked;     /* Reno: towards the next packet of window */
};

SEC("struct_ops/floor_init")
void BPF_PROG(floor_init, struct sock *sk)
{
	struct floor *f = priv_of(sk);

	f->round_end = f->delivered = tcp_of(sk)->delivered;
	f->lost = tcp_of(sk)->lost;
	f->eighths = 8;
	f->acked_to = f->delivered;
	f->acked = 0;
	f->began_ns = bpf_ktime_get_ns();
	f->behind = 0;
	sk->sk_pacing_status = PACING_NEEDED;
}

/* Before floor_round() moves on to the next one. */
static __always_inline void floor_behind(struct floor *f, const struct tcp_sock *tp, __u64 rate)
{
	__u64 arrived = (__u64)(tp->delivered - f->delivered) * tp->mss_cache;
	__u64 now = bpf_ktime_get_ns(), elapsed = now - f->began_ns;

	f->began_ns = now;
	if (tp->app_limited) { /* there was nothing to send: nothing is owed */
		f->behind = 0;
		return;
	}
	if (elapsed > 1000000000)
		elapsed = 1000000000;
	f->behind += rate / 1024 * (elapsed / 1024) / (1000000000 / 1024 / 1024);
	f->behind = f->behind > arrived ? f->behind - arrived : 0;
	if (f->behind > rate / 2)
		f->behind = rate / 2;
}

static __always_inline void floor_round(struct floor *f, const struct tcp_sock *tp, __u64 rate)
{
	__u32 delivered = tp->delivered - f->delivered, lost = tp->lost - f->lost;

	if ((__s32)(tp->delivered - f->round_end) < 0)
		return;
	floor_behind(f, tp, rate);
	if (lost > 8 && lost > delivered / 3)
		f->eighths = f->eighths > 1 ? f->eighths / 2 : 1;
	else if (f->eighths < 8)
		f->eighths++;
	f->delivered = tp->delivered;
	f->lost = tp->lost;
	f->round_end = tp->delivered + tp->snd_cwnd / 2 + 1;
}

/* The window of RFC 5681, by what was delivered since the last look. */
static __always_inline __u32 reno_cwnd(struct floor *f, const struct tcp_sock *tp, bool losing)
{
	__u32 acked = tp->delivered - f->acked_to, cwnd = tp->snd_cwnd;

	f->acked_to = tp->delivered;
	if (losing)
		return cwnd < tp->snd_ssthresh ? cwnd : tp->snd_ssthresh;
	if (cwnd < tp->snd_ssthresh)
		return cwnd + acked;
	f->acked += acked;
	if (f->acked >= cwnd) {
		f->acked = 0;
		cwnd++;
	}
	return cwnd;
}

SEC("struct_ops/floor_control")
void BPF_PROG(floor_control, struct sock *sk)
{
	struct tcp_sock *tp = tcp_of(sk);
	struct floor *f = priv_of(sk);
	__u64 rate = sk->sk_max_pacing_rate, rtt_us = tp->srtt_us >> 3, cwnd;

	floor_round(f, tp, rate == RATE_NONE ? 0 : rate);
	if (rate == RATE_NONE || rate == 0) {
		bool losing = ((struct inet_connection_sock *)sk)->icsk_ca_state >= CA_RECOVERY;

		sk->sk_pacing_rate = RATE_NONE;
		cwnd = reno_cwnd(f, tp, losing);
	} else {
		f->acked_to = tp->delivered;
		rate = rate * f->eighths / 8;
		if (rtt_us == 0)
			rtt_us = 1000;
		/* A round trip below a millisecond is mostly timers: leave room for a late one. */
		cwnd = rate * (rtt_us + 500) * 2 / US_PER_S / (tp->mss_cache ? tp->mss_cache : 1) +
		       CWND_IDLE;
		if (f->behind > 16 * tp->mss_cache)
			rate += rate / 8;
		sk->sk_pacing_rate = rate;
	}
	tp->snd_cwnd = clamp_cwnd(tp, cwnd < CWND_MIN ? CWND_MIN : cwnd);
}

SEC("struct_ops/floor_ssthresh")
__u32 BPF_PROG(floor_ssthresh, struct sock *sk)
{
	__u32 cwnd = tcp_of(sk)->snd_cwnd;

	if (sk->sk_max_pacing_rate != RATE_NONE)
		return cwnd;
	return cwnd / 2 < CWND_MIN ? CWND_MIN : cwnd / 2;
}

SEC("struct_ops/floor_undo")
__u32 BPF_PROG(floor_undo, struct sock *sk)
{
	return tcp_of(sk)->snd_cwnd;
}

SEC(".struct_ops")
struct tcp_congestion_ops reclaim_floor = {
	.init = (void *)floor_init,
	.ssthresh = (void *)floor_ssthresh,
	.cong_control = (void *)floor_control,
	.undo_cwnd = (void *)floor_undo,
	.name = "reclaim_floor",
};

/* --- reclaim_yield -------------------------------------------------------- */

_Static_assert(sizeof(struct floor) <= 13 * 8, "icsk_ca_priv");

struct yield {
	__u32 base_us;            /* least round trip ever; 0 = none yet */
	__u32 low_us, high_us;    /* of this round */
	__u32 round_end, lost;
	__u32 cwnd;               /* in sixteenths of a packet: the window may be below one */
	__u64 pause_ns;           /* when the next pause begins; while in it, when it ends */
	__u32 resume;             /* the window before the pause; 0 = not in one */
	__u32 pad;
};
_Static_assert(sizeof(struct yield) <= 13 * 8, "icsk_ca_priv");

SEC("struct_ops/yield_init")
void BPF_PROG(yield_init, struct sock *sk)
{
	struct yield *y = priv_of(sk);

	y->base_us = y->high_us = y->resume = 0;
	y->low_us = ~0u;
	y->round_end = tcp_of(sk)->delivered + CWND_MIN;
	y->lost = tcp_of(sk)->lost;
	y->cwnd = 4 * 16;
	y->pause_ns = bpf_ktime_get_ns() + PAUSE_EVERY_NS;
	sk->sk_pacing_status = PACING_NEEDED;
}

SEC("struct_ops/yield_acked")
void BPF_PROG(yield_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct yield *y = priv_of(sk);
	__s32 rtt = sample->rtt_us;

	if (rtt <= 0)
		return;
	if ((__u32)rtt < y->low_us)
		y->low_us = rtt;
	if ((__u32)rtt > y->high_us)
		y->high_us = rtt;
	if (y->base_us == 0 || (__u32)rtt < y->base_us)
		y->base_us = rtt;
}

static __always_inline void yield_round(struct yield *y, const struct tcp_sock *tp)
{
	__u32 queue = y->low_us - y->base_us, swing = y->high_us - y->low_us, least = 4;

	if (tp->lost != y->lost) {
		y->cwnd /= 2;
	} else if (queue > TARGET_US || swing > SWING_US) {
		__u32 over = queue > 2 * TARGET_US || swing > SWING_US ? TARGET_US : queue - TARGET_US;

		y->cwnd -= (__u64)y->cwnd * over / (2 * TARGET_US);
	} else {
		__u32 step = y->cwnd / 32;

		y->cwnd += step > 16 ? step : 16;
	}
	if (y->cwnd < least)
		y->cwnd = least;
	if (y->cwnd > CWND_MAX * 16)
		y->cwnd = CWND_MAX * 16;
	y->lost = tp->lost;
	y->low_us = ~0u;
	y->high_us = 0;
	y->round_end = tp->delivered + (y->cwnd >> 4) + 1;
}

static __always_inline void yield_pause(struct yield *y, const struct tcp_sock *tp)
{
	__u64 now = bpf_ktime_get_ns();

	if (now < y->pause_ns)
		return;
	if (y->resume) {
		y->cwnd = y->resume;
		y->resume = 0;
		y->pause_ns = now + PAUSE_EVERY_NS;
	} else if (y->cwnd > 8 * 16) {
		y->resume = y->cwnd;
		y->cwnd = CWND_MIN * 16;
		y->pause_ns = now + 2000ull * (tp->srtt_us >> 3);
	} else {
		y->pause_ns = now + PAUSE_EVERY_NS;
	}
}

SEC("struct_ops/yield_control")
void BPF_PROG(yield_control, struct sock *sk)
{
	struct tcp_sock *tp = tcp_of(sk);
	struct yield *y = priv_of(sk);
	__u64 rtt_us = tp->srtt_us >> 3, rate, cwnd;

	if ((__s32)(tp->delivered - y->round_end) >= 0 && y->low_us != ~0u && !y->resume)
		yield_round(y, tp);
	yield_pause(y, tp);
	cwnd = y->cwnd >> 4;
	tp->snd_cwnd = clamp_cwnd(tp, cwnd < CWND_MIN ? CWND_MIN : cwnd);
	if (rtt_us == 0)
		rtt_us = 1000;
	/* Below two packets a window, the pace alone slows it down further. */
	rate = (__u64)y->cwnd * tp->mss_cache * US_PER_S / 16 / rtt_us;
	rate += rate / 4;
	sk->sk_pacing_rate = rate < sk->sk_max_pacing_rate ? rate : sk->sk_max_pacing_rate;
}

SEC("struct_ops/yield_ssthresh")
__u32 BPF_PROG(yield_ssthresh, struct sock *sk)
{
	__u32 half = tcp_of(sk)->snd_cwnd / 2;

	return half < CWND_MIN ? CWND_MIN : half;
}

SEC("struct_ops/yield_undo")
__u32 BPF_PROG(yield_undo, struct sock *sk)
{
	return tcp_of(sk)->snd_cwnd;
}

SEC(".struct_ops")
struct tcp_congestion_ops reclaim_yield = {
	.init = (void *)yield_init,
	.ssthresh = (void *)yield_ssthresh,
	.cong_control = (void *)yield_control,
	.pkts_acked = (void *)yield_acked,
	.undo_cwnd = (void *)yield_undo,
	.name = "reclaim_yield",
};

char cc_license[] SEC("license") = "Dual BSD/GPL";
