/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WebRTC data channels: many of them on one UDP socket. An endpoint owns the
 * socket, a key and all its channels; datagrams are told apart by the ICE user
 * name until a check has passed, then by their source address.
 *
 * Offers and answers are bundled: one text each, complete with candidates.
 * Whoever offers is in control of ICE, and opens the channel. A reachable
 * endpoint is ICE-lite (it only answers checks); one that may be behind a NAT
 * sends its own checks to the candidates that it was given.
 *
 * Everything from the network is outside input: nothing is kept for a datagram
 * whose integrity does not verify, so a flood costs its processing only.
 */
#ifndef RECLAIM_VOLUNTEER_RTC_H
#define RECLAIM_VOLUNTEER_RTC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/strbuf.h"
#include "io/loop.h"
#include "volunteer/address.h"

#define RTC_ADDRESSES_MAX 8u
#define RTC_QUEUE_MAX (4u << 20) /* bytes waiting in one channel; beyond, it is closed */
#define RTC_MESSAGE_MAX (64u << 10)
#define RTC_CONNECT_MS 10000u    /* from answer to open */
#define RTC_ANSWER_MS 120000u    /* from offer to answer */
#define RTC_SILENT_MS 15000u     /* no valid datagram for so long: closed */
#define RTC_CONSENT_MS 5000u     /* RFC 7675 */

struct rtc;
struct rtc_channel;

struct rtc_config {
	struct address bind;      /* family 0: any IPv4 address; port 0: any */
	struct address public_addresses[RTC_ADDRESSES_MAX]; /* told to others; none: the machine's own */
	size_t public_count;
	bool lite;
	struct address stun_server; /* family 0: none */
};

struct rtc_ops {
	void (*open)(void *user);
	void (*message)(void *user, const void *bytes, size_t len);
	/* Once, unless rtc_channel_close() came first; the channel is gone afterwards. */
	void (*closed)(void *user, const char *why);
};

struct rtc_stats {
	uint64_t datagrams_in, datagrams_out;
	uint64_t stun_in, stun_bad;      /* bad: malformed, of no channel, or of a wrong password */
	uint64_t dropped;                /* datagrams of no channel, or of no known kind */
	uint64_t handshakes, handshakes_bad;
	uint64_t opened, closed;
	uint64_t refused;                /* second channels, oversized or malformed messages */
	uint32_t channels;
};

int rtc_open(struct loop *l, const struct rtc_config *config, struct rtc **ret, struct diag *diag);
void rtc_close(struct rtc *r); /* closes all channels without callbacks */
uint16_t rtc_port(const struct rtc *r);
/* The address a STUN server saw, once known; family 0 before. */
struct address rtc_mapped(const struct rtc *r);
void rtc_stats(const struct rtc *r, struct rtc_stats *ret);

/* A channel that this end offers; the text of the offer goes to ret_sdp. */
int rtc_offer(struct rtc *r, const struct rtc_ops *ops, void *user, struct strbuf *ret_sdp,
	      struct rtc_channel **ret);
int rtc_accept(struct rtc_channel *c, const char *answer, size_t len, struct diag *diag);
/* A channel that the other end offered; the text of the answer goes to ret_sdp. */
int rtc_answer(struct rtc *r, const char *offer, size_t len, const struct rtc_ops *ops, void *user,
	       struct strbuf *ret_sdp, struct rtc_channel **ret, struct diag *diag);
/* A binary message: 0 (sent or queued), -ENOTCONN, -EMSGSIZE, -ENOBUFS (it is being closed). */
int rtc_send(struct rtc_channel *c, const void *bytes, size_t len);
size_t rtc_queued(const struct rtc_channel *c);
bool rtc_is_open(const struct rtc_channel *c);
void rtc_channel_close(struct rtc_channel *c);
/* Where the peer's datagrams come from; family 0 before the first check. */
struct address rtc_peer(const struct rtc_channel *c);

#endif
