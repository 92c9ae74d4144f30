/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by rtc.c (socket, ICE, addresses) and rtc_channel.c (DTLS, SCTP, messages). */
#ifndef RECLAIM_VOLUNTEER_RTC_INTERNAL_H
#define RECLAIM_VOLUNTEER_RTC_INTERNAL_H

#include <uv.h>

#include "volunteer/dtls.h"
#include "volunteer/rtc.h"
#include "volunteer/assoc.h"
#include "volunteer/sdp.h"
#include "volunteer/stun.h"

#define VALID_MAX 4     /* addresses of the peer that passed a check */
#define CHECKS_MAX 12   /* addresses that are being checked */
#define UFRAG_LEN 8
#define PWD_LEN 24
#define BUCKETS 4096u
#define BUCKETS_FEW 64u
#define DATAGRAM_MAX 2048u

struct valid_address {
	struct address address;
	struct rtc_channel *channel;
	struct valid_address *next; /* in the bucket */
};

struct check {
	struct address address;
	uint8_t id[STUN_ID]; /* of the last request */
};

struct rtc_message {
	struct rtc_message *next;
	size_t len;
	uint8_t bytes[];
};

struct rtc_channel {
	struct rtc *rtc;
	const struct rtc_ops *ops; /* NULL: closed by its owner */
	void *user;
	struct rtc_channel *prev, *next, *ufrag_next;
	bool offerer, controlling, checking, answered, opened, doomed;
	const char *why;
	char ufrag[UFRAG_LEN + 1], pwd[PWD_LEN + 1];
	char *peer_ufrag, *peer_pwd;
	uint8_t peer_fingerprint[DTLS_FINGERPRINT];
	bool dtls_client;
	uint16_t local_port, peer_port, stream;
	struct valid_address valid[VALID_MAX];
	unsigned valid_count;
	int selected; /* index in valid, -1 = none */
	bool nominated;
	struct check *checks; /* [CHECKS_MAX] while checking, then one for consent */
	unsigned checks_count, rounds;
	uint64_t created_ms, heard_ms, check_due_ms, idle_since_ms;
	bool has_buffers;
	struct dtls *dtls;
	struct assoc *sctp;
	struct rtc_message *queue, **queue_tail;
	size_t queued;
	struct loop_timer timer;
};

struct rtc {
	struct loop *loop;
	struct rtc_config config;
	int fd;
	uv_poll_t *poll;
	struct dtls_context *dtls;
	uint64_t tie_breaker;
	struct address local;      /* as bound */
	struct address candidates[RTC_ADDRESSES_MAX + 1];
	size_t candidates_count;
	struct address mapped;
	uint8_t mapped_id[STUN_ID];
	unsigned mapped_tries;
	struct loop_timer mapped_timer;
	struct rtc_channel *channels;
	struct valid_address **by_address;
	struct rtc_channel **by_ufrag;
	size_t buckets;
	struct rtc_stats stats;
	bool closing;
};

uint64_t rtc_now_ms(const struct rtc *r);
void rtc_send_datagram(struct rtc *r, const struct address *to, const void *bytes, size_t len);
/* Closes soon, with the callback, from the channel's own timer. */
void rtc_doom(struct rtc_channel *c, const char *why);
void rtc_arm(struct rtc_channel *c);
/* An address of the peer is good: DTLS begins. */
void rtc_channel_reached(struct rtc_channel *c);
void rtc_channel_dtls(struct rtc_channel *c, const uint8_t *bytes, size_t len);
void rtc_channel_dtls_timer(struct rtc_channel *c);
void rtc_channel_done(struct rtc_channel *c);
void rtc_clock_use(struct loop *l);
void rtc_clock_unuse(void);

#endif
