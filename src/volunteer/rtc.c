/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See rtc.h. This file owns the socket, the two tables (ICE user name and
 * source address to channel), ICE itself, and each channel's one timer.
 */
#include "volunteer/rtc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "volunteer/rtc_internal.h"

#define BATCH 32
#define BATCHES_PER_TURN 16
#define SOCKET_BUFFER (8 << 20)
#define IDLE_MS 1500u

static struct {
	struct dtls_context *context;
	unsigned users;
} shared; /* one key and certificate for the process */

uint64_t rtc_now_ms(const struct rtc *r)
{
	return loop_now_ns(r->loop) / NS_PER_MS;
}

/* ---- tables ---- */

static uint64_t table_key[2];

static size_t address_bucket(const struct rtc *r, const struct address *a)
{
	return hash_sip24(a, sizeof(*a), table_key[0], table_key[1]) % r->buckets;
}

static size_t ufrag_bucket(const struct rtc *r, const char *ufrag)
{
	return hash_sip24(ufrag, UFRAG_LEN, table_key[0], table_key[1]) % r->buckets;
}

static struct rtc_channel *find_address(const struct rtc *r, const struct address *a)
{
	for (const struct valid_address *v = r->by_address[address_bucket(r, a)]; v; v = v->next) {
		if (address_equal(&v->address, a))
			return v->channel;
	}
	return NULL;
}

static struct rtc_channel *find_ufrag(const struct rtc *r, const char *ufrag, size_t len)
{
	if (len != UFRAG_LEN)
		return NULL;
	for (struct rtc_channel *c = r->by_ufrag[ufrag_bucket(r, ufrag)]; c; c = c->ufrag_next) {
		if (memcmp(c->ufrag, ufrag, UFRAG_LEN) == 0)
			return c;
	}
	return NULL;
}

static void unlink_valid(struct rtc *r, struct valid_address *v)
{
	struct valid_address **at = &r->by_address[address_bucket(r, &v->address)];
	while (*at && *at != v)
		at = &(*at)->next;
	if (*at)
		*at = v->next;
}

/* The index of the address among the channel's valid ones, put there if new. */
static int add_valid(struct rtc_channel *c, const struct address *a)
{
	struct rtc *r = c->rtc;
	for (unsigned i = 0; i < c->valid_count; i++) {
		if (address_equal(&c->valid[i].address, a))
			return (int)i;
	}
	unsigned i = c->valid_count < VALID_MAX ? c->valid_count++ : VALID_MAX - 1;
	struct valid_address *v = &c->valid[i];
	if (v->channel)
		unlink_valid(r, v);
	/* A newer channel between the same two sockets takes the address over: it comes first. */
	size_t bucket = address_bucket(r, a);
	*v = (struct valid_address){ *a, c, r->by_address[bucket] };
	r->by_address[bucket] = v;
	return (int)i;
}

/* ---- sending ---- */

void rtc_send_datagram(struct rtc *r, const struct address *to, const void *bytes, size_t len)
{
	struct sockaddr_storage sa;
	socklen_t sa_len = address_to_sockaddr(to, &sa);
	/* A full socket buffer loses the datagram, as the network would; upper layers repeat. */
	(void)sendto(r->fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&sa, sa_len);
	r->stats.datagrams_out++;
}

static void send_check(struct rtc_channel *c, struct check *check)
{
	char user[SDP_UFRAG_MAX + UFRAG_LEN + 2];
	size_t n = strlen(c->peer_ufrag);
	memcpy(user, c->peer_ufrag, n);
	user[n] = ':';
	memcpy(user + n + 1, c->ufrag, UFRAG_LEN + 1);
	struct stun_request req = { .user = user, .password = c->peer_pwd,
				    .priority = 110u << 24 | 0xffffffu, .controlling = c->controlling,
				    .use_candidate = c->controlling,
				    .tie_breaker = c->rtc->tie_breaker };
	if (random_bytes(check->id, STUN_ID) < 0)
		return;
	memcpy(req.id, check->id, STUN_ID);
	uint8_t buf[STUN_MESSAGE_MAX];
	rtc_send_datagram(c->rtc, &check->address, buf, stun_encode_request(&req, buf));
}

/* ---- a channel's life ---- */

void rtc_doom(struct rtc_channel *c, const char *why)
{
	if (c->doomed)
		return;
	c->doomed = true;
	c->why = why;
	(void)loop_timer_in(&c->timer, 0); /* the timer exists: rearming allocates nothing */
}

static void channel_free(struct rtc_channel *c)
{
	struct rtc *r = c->rtc;
	loop_timer_stop(&c->timer);
	rtc_channel_done(c);
	for (unsigned i = 0; i < c->valid_count; i++)
		unlink_valid(r, &c->valid[i]);
	struct rtc_channel **at = &r->by_ufrag[ufrag_bucket(r, c->ufrag)];
	while (*at && *at != c)
		at = &(*at)->ufrag_next;
	if (*at)
		*at = c->ufrag_next;
	if (c->prev)
		c->prev->next = c->next;
	else
		r->channels = c->next;
	if (c->next)
		c->next->prev = c->prev;
	r->stats.channels--;
	r->stats.closed++;
	free(c->peer_ufrag);
	free(c->peer_pwd);
	free(c->checks);
	free(c);
}

void rtc_channel_close(struct rtc_channel *c)
{
	if (!c)
		return;
	c->ops = NULL;
	rtc_doom(c, "closed here");
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* An offer may wait for its answer; from then on things must move. */
static uint64_t connect_ms(const struct rtc_channel *c)
{
	return c->offerer && !c->answered ? RTC_ANSWER_MS : RTC_CONNECT_MS;
}

void rtc_arm(struct rtc_channel *c)
{
	if (c->doomed)
		return;
	uint64_t now = rtc_now_ms(c->rtc), due = c->heard_ms + RTC_SILENT_MS;
	if (!c->opened)
		due = c->created_ms + connect_ms(c);
	if (c->checking)
		due = earliest(due, c->check_due_ms);
	if (c->dtls) {
		int ms = dtls_timeout_ms(c->dtls);
		if (ms >= 0)
			due = earliest(due, now + (uint64_t)ms);
	}
	if (c->has_buffers)
		due = earliest(due, c->idle_since_ms + IDLE_MS);
	/* On a grid of 8 ms, so that thousands of channels share wake-ups. */
	due = (MAX(due, now) + 7) & ~UINT64_C(7);
	(void)loop_timer_at(&c->timer, due * NS_PER_MS); /* armed before: no allocation */
}

static void checks_due(struct rtc_channel *c, uint64_t now)
{
	if (c->selected >= 0) { /* consent to go on (RFC 7675), at a random moment around 5 s */
		uint8_t dice = 0;
		c->checks[0].address = c->valid[c->selected].address;
		c->checks_count = 1;
		send_check(c, &c->checks[0]);
		(void)random_bytes(&dice, 1);
		c->check_due_ms = now + RTC_CONSENT_MS * 4 / 5 + RTC_CONSENT_MS * dice / 640;
		return;
	}
	for (unsigned i = 0; i < c->checks_count; i++)
		send_check(c, &c->checks[i]);
	uint64_t pause = UINT64_C(50) << MIN(c->rounds, 4u);
	c->rounds++;
	c->check_due_ms = now + pause;
}

static void on_timer(void *user)
{
	struct rtc_channel *c = user;
	uint64_t now = rtc_now_ms(c->rtc);
	if (c->doomed) {
		const struct rtc_ops *ops = c->ops;
		void *owner = c->user;
		const char *why = c->why;
		channel_free(c);
		if (ops)
			ops->closed(owner, why);
		return;
	}
	if (!c->opened && now >= c->created_ms + connect_ms(c)) {
		rtc_doom(c, c->selected >= 0 ? "no handshake in time" : "the peer cannot be reached");
		return;
	}
	if (c->opened && now >= c->heard_ms + RTC_SILENT_MS) {
		rtc_doom(c, "nothing heard for too long");
		return;
	}
	if (c->checking && now >= c->check_due_ms)
		checks_due(c, now);
	if (c->dtls)
		rtc_channel_dtls_timer(c);
	if (c->has_buffers && now >= c->idle_since_ms + IDLE_MS && c->dtls) {
		dtls_idle(c->dtls);
		c->has_buffers = false;
	}
	rtc_arm(c);
}

static void random_text(char *ret, size_t len)
{
	static const char alphabet[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint8_t bytes[64];
	CHECK(len < sizeof(bytes) && random_bytes(bytes, len) == 0);
	for (size_t i = 0; i < len; i++)
		ret[i] = alphabet[bytes[i] & 63];
	ret[len] = '\0';
}

static struct rtc_channel *channel_new(struct rtc *r, const struct rtc_ops *ops, void *user)
{
	struct rtc_channel *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->rtc = r;
	c->ops = ops;
	c->user = user;
	c->selected = -1;
	c->queue_tail = &c->queue;
	c->created_ms = c->heard_ms = rtc_now_ms(r);
	c->local_port = assoc_port_next();
	loop_timer_init(&c->timer, r->loop, on_timer, c);
	if (loop_timer_in(&c->timer, RTC_CONNECT_MS * NS_PER_MS) < 0) {
		free(c);
		return NULL;
	}
	random_text(c->ufrag, UFRAG_LEN);
	random_text(c->pwd, PWD_LEN);
	size_t bucket = ufrag_bucket(r, c->ufrag);
	c->ufrag_next = r->by_ufrag[bucket];
	r->by_ufrag[bucket] = c;
	c->next = r->channels;
	if (c->next)
		c->next->prev = c;
	r->channels = c;
	r->stats.channels++;
	return c;
}

static int format_own(struct rtc_channel *c, enum sdp_setup setup, const char *mid,
		      struct strbuf *out)
{
	const struct rtc *r = c->rtc;
	struct sdp s = { .setup = setup, .ice_lite = r->config.lite, .sctp_port = c->local_port,
			 .message_max = RTC_MESSAGE_MAX };
	memcpy(s.ufrag, c->ufrag, sizeof(c->ufrag));
	memcpy(s.pwd, c->pwd, sizeof(c->pwd));
	memcpy(s.mid, mid, strlen(mid) + 1);
	memcpy(s.fingerprint, dtls_context_fingerprint(r->dtls), sizeof(s.fingerprint));
	for (size_t i = 0; i < r->candidates_count; i++)
		s.candidates[s.candidates_count++] = r->candidates[i];
	if (r->mapped.family)
		s.candidates[s.candidates_count++] = r->mapped;
	return sdp_format(&s, out);
}

static int take_peer(struct rtc_channel *c, const struct sdp *s)
{
	c->peer_ufrag = strdup(s->ufrag);
	c->peer_pwd = strdup(s->pwd);
	c->checks = calloc(CHECKS_MAX, sizeof(*c->checks));
	if (!c->peer_ufrag || !c->peer_pwd || !c->checks)
		return -ENOMEM;
	memcpy(c->peer_fingerprint, s->fingerprint, sizeof(c->peer_fingerprint));
	c->peer_port = s->sctp_port;
	c->answered = true;
	/* The offerer controls, unless it is lite and we are not (RFC 8445, 6.1.1). */
	c->controlling = c->offerer ? !c->rtc->config.lite || s->ice_lite
				    : s->ice_lite && !c->rtc->config.lite;
	if (c->rtc->config.lite)
		return 0;
	for (size_t i = 0; i < s->candidates_count && c->checks_count < CHECKS_MAX; i++)
		c->checks[c->checks_count++].address = s->candidates[i];
	c->checking = true;
	c->check_due_ms = rtc_now_ms(c->rtc);
	return 0;
}

int rtc_offer(struct rtc *r, const struct rtc_ops *ops, void *user, struct strbuf *ret_sdp,
	      struct rtc_channel **ret)
{
	struct rtc_channel *c = channel_new(r, ops, user);
	if (!c)
		return -ENOMEM;
	c->offerer = true;
	if (format_own(c, SDP_ACTPASS, "0", ret_sdp) < 0) {
		channel_free(c);
		return -ENOMEM;
	}
	*ret = c;
	return 0;
}

int rtc_accept(struct rtc_channel *c, const char *answer, size_t len, struct diag *diag)
{
	struct sdp s;
	if (c->answered)
		return diag_set(diag, -EALREADY, "answer", "a second one for the same offer");
	int r = sdp_parse(answer, len, &s, diag);
	if (r == 0 && s.setup == SDP_ACTPASS)
		r = diag_set(diag, -EINVAL, "answer", "a=setup must be active or passive");
	if (r == 0)
		r = take_peer(c, &s);
	if (r < 0)
		return r;
	c->dtls_client = s.setup == SDP_PASSIVE;
	c->created_ms = rtc_now_ms(c->rtc);
	rtc_arm(c);
	if (c->selected >= 0) /* its check came before its answer */
		rtc_channel_reached(c);
	return 0;
}

int rtc_answer(struct rtc *r, const char *offer, size_t len, const struct rtc_ops *ops, void *user,
	       struct strbuf *ret_sdp, struct rtc_channel **ret, struct diag *diag)
{
	struct sdp s;
	int err = sdp_parse(offer, len, &s, diag);
	if (err < 0)
		return err;
	struct rtc_channel *c = channel_new(r, ops, user);
	if (!c)
		return -ENOMEM;
	/* Active unless asked otherwise would save a flight, but a lite end that waits for the
	 * first check cannot speak first. */
	c->dtls_client = s.setup == SDP_PASSIVE;
	err = take_peer(c, &s);
	if (err == 0)
		err = format_own(c, c->dtls_client ? SDP_ACTIVE : SDP_PASSIVE, s.mid, ret_sdp);
	if (err < 0) {
		channel_free(c);
		return err;
	}
	rtc_arm(c);
	*ret = c;
	return 0;
}

struct address rtc_peer(const struct rtc_channel *c)
{
	return c->selected >= 0 ? c->valid[c->selected].address : (struct address){ 0 };
}

bool rtc_is_open(const struct rtc_channel *c)
{
	return c->opened && !c->doomed;
}

/* ---- datagrams ---- */

static void select_address(struct rtc_channel *c, const struct address *a, bool nominated)
{
	int i = add_valid(c, a);
	if (c->selected >= 0 && (c->nominated || !nominated))
		return;
	c->selected = i;
	c->nominated = nominated;
	if (c->answered)
		rtc_channel_reached(c);
}

static void on_request(struct rtc *r, const struct stun *s, const uint8_t *bytes,
		       const struct address *from)
{
	const char *colon = s->user ? memchr(s->user, ':', s->user_len) : NULL;
	struct rtc_channel *c = colon ? find_ufrag(r, s->user, (size_t)(colon - s->user)) : NULL;
	if (!c || c->doomed || !s->fingerprint || !stun_verify(s, bytes, c->pwd)) {
		r->stats.stun_bad++;
		return;
	}
	uint8_t buf[STUN_MESSAGE_MAX];
	size_t len = stun_encode_success(s->id, from, c->pwd, buf);
	rtc_send_datagram(r, from, buf, len);
	c->heard_ms = rtc_now_ms(r);
	select_address(c, from, s->use_candidate || s->controlled);
	/* A peer behind a NAT shows an address that was not in its candidates: check that one. */
	if (!c->checking || c->selected >= 0)
		return;
	for (unsigned i = 0; i < c->checks_count; i++) {
		if (address_equal(&c->checks[i].address, from))
			return;
	}
	if (c->checks_count < CHECKS_MAX) {
		c->checks[c->checks_count++].address = *from;
		c->check_due_ms = rtc_now_ms(r);
		rtc_arm(c);
	}
}

static void on_mapped(struct rtc *r, const struct stun *s)
{
	r->mapped = s->mapped;
	loop_timer_stop(&r->mapped_timer);
}

/* A response is looked for in the channels that check that address: by its transaction. */
static struct rtc_channel *find_check(struct rtc *r, const struct stun *s, const struct address *from)
{
	struct rtc_channel *c = find_address(r, from);
	if (c && c->checks) {
		for (unsigned i = 0; i < c->checks_count; i++) {
			if (memcmp(c->checks[i].id, s->id, STUN_ID) == 0)
				return c;
		}
	}
	for (c = r->channels; c; c = c->next) {
		for (unsigned i = 0; c->checking && c->selected < 0 && i < c->checks_count; i++) {
			if (memcmp(c->checks[i].id, s->id, STUN_ID) == 0)
				return c;
		}
	}
	return NULL;
}

static void on_response(struct rtc *r, const struct stun *s, const uint8_t *bytes,
			const struct address *from)
{
	if (r->mapped_tries > 0 && memcmp(s->id, r->mapped_id, STUN_ID) == 0 &&
	    address_equal(from, &r->config.stun_server)) {
		if (s->type == STUN_SUCCESS && s->mapped.family)
			on_mapped(r, s);
		return;
	}
	struct rtc_channel *c = find_check(r, s, from);
	if (!c || c->doomed || s->type != STUN_SUCCESS || !stun_verify(s, bytes, c->peer_pwd)) {
		r->stats.stun_bad++;
		return;
	}
	c->heard_ms = rtc_now_ms(r);
	if (c->selected < 0)
		c->check_due_ms = c->heard_ms + RTC_CONSENT_MS;
	select_address(c, from, c->controlling);
}

static void on_datagram(struct rtc *r, const uint8_t *bytes, size_t len, const struct address *from)
{
	r->stats.datagrams_in++;
	if (stun_is(bytes, len)) {
		struct stun s;
		r->stats.stun_in++;
		if (stun_decode(bytes, len, &s) < 0)
			r->stats.stun_bad++;
		else if (s.type == STUN_REQUEST)
			on_request(r, &s, bytes, from);
		else if (s.type == STUN_SUCCESS || s.type == STUN_ERROR)
			on_response(r, &s, bytes, from);
		return;
	}
	struct rtc_channel *c = len > 0 && bytes[0] >= 20 && bytes[0] <= 63 ? find_address(r, from) : NULL;
	if (!c || c->doomed) {
		r->stats.dropped++;
		return;
	}
	rtc_channel_dtls(c, bytes, len);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	static uint8_t bytes[BATCH][DATAGRAM_MAX]; /* one loop, one thread */
	struct rtc *r = poll->data;
	struct mmsghdr messages[BATCH];
	struct iovec iov[BATCH];
	struct sockaddr_storage from[BATCH];
	(void)status, (void)events;
	for (int round = 0; round < BATCHES_PER_TURN && !r->closing; round++) {
		for (int i = 0; i < BATCH; i++) {
			iov[i] = (struct iovec){ bytes[i], DATAGRAM_MAX };
			messages[i] = (struct mmsghdr){ .msg_hdr = {
				.msg_name = &from[i], .msg_namelen = sizeof(from[i]),
				.msg_iov = &iov[i], .msg_iovlen = 1 } };
		}
		int n = recvmmsg(r->fd, messages, BATCH, MSG_DONTWAIT, NULL);
		for (int i = 0; i < n; i++) {
			struct address a;
			if (!(messages[i].msg_hdr.msg_flags & MSG_TRUNC) &&
			    address_from_sockaddr((struct sockaddr *)&from[i], &a) == 0)
				on_datagram(r, bytes[i], messages[i].msg_len, &a);
		}
		if (n < BATCH)
			return;
	}
}

/* ---- the endpoint ---- */

static void ask_mapped(void *user)
{
	struct rtc *r = user;
	if (r->mapped_tries++ >= 7 || random_bytes(r->mapped_id, STUN_ID) < 0)
		return; /* no answer: host candidates alone */
	struct stun_request req = { 0 };
	memcpy(req.id, r->mapped_id, STUN_ID);
	uint8_t buf[STUN_MESSAGE_MAX];
	rtc_send_datagram(r, &r->config.stun_server, buf, stun_encode_request(&req, buf));
	(void)loop_timer_in(&r->mapped_timer, (UINT64_C(100) << r->mapped_tries) * NS_PER_MS);
}

static int bind_socket(struct rtc *r, struct diag *diag)
{
	struct address any = r->config.bind;
	if (!any.family)
		any.family = 4;
	struct sockaddr_storage sa;
	socklen_t len = address_to_sockaddr(&any, &sa);
	r->fd = socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (r->fd < 0)
		return diag_set(diag, -errno, "udp", "no socket: %s", strerror(errno));
	int size = SOCKET_BUFFER;
	(void)setsockopt(r->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)); /* as far as allowed */
	(void)setsockopt(r->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	if (bind(r->fd, (struct sockaddr *)&sa, len) < 0)
		return diag_set(diag, -errno, "udp", "port %u: %s", any.port, strerror(errno));
	if (getsockname(r->fd, (struct sockaddr *)&sa, &len) < 0)
		return -errno;
	return address_from_sockaddr((struct sockaddr *)&sa, &r->local);
}

static void find_candidates(struct rtc *r)
{
	static const uint8_t unspecified[16];
	struct address own[RTC_ADDRESSES_MAX];
	unsigned n = 0;
	if (r->config.public_count > 0) {
		n = (unsigned)r->config.public_count;
		memcpy(own, r->config.public_addresses, n * sizeof(*own));
	} else if (memcmp(r->local.ip, unspecified, sizeof(unspecified)) != 0) {
		own[n++] = r->local;
	} else {
		n = address_local(own, RTC_ADDRESSES_MAX);
	}
	for (unsigned i = 0; i < n; i++) {
		if (own[i].family != r->local.family)
			continue;
		if (own[i].port == 0 || r->config.public_count == 0)
			own[i].port = r->local.port;
		r->candidates[r->candidates_count++] = own[i];
	}
}

static int poll_start(struct rtc *r)
{
	r->poll = calloc(1, sizeof(*r->poll));
	if (!r->poll)
		return -ENOMEM;
	int e = uv_poll_init(loop_uv(r->loop), r->poll, r->fd);
	if (e < 0) {
		free(r->poll);
		r->poll = NULL;
		return e;
	}
	r->poll->data = r;
	return uv_poll_start(r->poll, UV_READABLE, on_readable);
}

int rtc_open(struct loop *l, const struct rtc_config *config, struct rtc **ret, struct diag *diag)
{
	struct rtc *r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->loop = l;
	r->config = *config;
	r->fd = -1;
	loop_timer_init(&r->mapped_timer, l, ask_mapped, r);
	/* Many channels stand on a reachable endpoint; a volunteer has its children's. */
	r->buckets = config->lite ? BUCKETS : BUCKETS_FEW;
	r->by_address = calloc(r->buckets, sizeof(*r->by_address));
	r->by_ufrag = calloc(r->buckets, sizeof(*r->by_ufrag));
	int e = r->by_address && r->by_ufrag ? random_bytes(&r->tie_breaker, sizeof(r->tie_breaker))
					     : -ENOMEM;
	if (e == 0 && table_key[0] == 0)
		e = random_bytes(table_key, sizeof(table_key));
	if (e == 0 && shared.users == 0)
		e = dtls_context_new(&shared.context);
	if (e == 0) {
		shared.users++;
		r->dtls = shared.context;
		rtc_clock_use(l);
		e = bind_socket(r, diag);
	}
	if (e == 0)
		e = poll_start(r);
	if (e < 0) {
		rtc_close(r);
		return diag && diag->what[0] ? e : diag_set(diag, e, "udp", "%s", strerror(-e));
	}
	find_candidates(r);
	if (config->stun_server.family)
		ask_mapped(r);
	*ret = r;
	return 0;
}

static void on_poll_closed(uv_handle_t *handle)
{
	free(handle);
}

void rtc_close(struct rtc *r)
{
	if (!r)
		return;
	r->closing = true;
	while (r->channels)
		channel_free(r->channels);
	loop_timer_stop(&r->mapped_timer);
	if (r->poll) {
		r->poll->data = NULL;
		uv_close((uv_handle_t *)r->poll, on_poll_closed);
	}
	if (r->fd >= 0)
		close(r->fd);
	if (r->dtls) {
		rtc_clock_unuse();
		if (--shared.users == 0) {
			dtls_context_free(shared.context);
			shared.context = NULL;
		}
	}
	free(r->by_address);
	free(r->by_ufrag);
	free(r);
}

uint16_t rtc_port(const struct rtc *r)
{
	return r->local.port;
}

struct address rtc_mapped(const struct rtc *r)
{
	return r->mapped;
}

void rtc_stats(const struct rtc *r, struct rtc_stats *ret)
{
	*ret = r->stats;
}
