/* SPDX-License-Identifier: Apache-2.0 */
/* See rtc.h. DTLS, SCTP and the channel protocol of one channel, and its messages. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "volunteer/dcep.h"
#include "volunteer/rtc_internal.h"

#define CLOCK_MS 100u

/* SCTP's timers belong to the process: one clock while any endpoint is open. */
static struct {
	struct loop_timer timer;
	struct loop *loop;
	unsigned users;
	uint64_t last_ms;
} sctp_clock;

static void clock_tick(void *user)
{
	(void)user;
	uint64_t now = loop_now_ns(sctp_clock.loop) / NS_PER_MS;
	if (now > sctp_clock.last_ms)
		assoc_advance((uint32_t)MIN(now - sctp_clock.last_ms, UINT64_C(10000)));
	sctp_clock.last_ms = now;
	(void)loop_timer_in(&sctp_clock.timer, CLOCK_MS * NS_PER_MS); /* armed before */
}

void rtc_clock_use(struct loop *l)
{
	if (sctp_clock.users++ > 0)
		return;
	sctp_clock.loop = l;
	sctp_clock.last_ms = loop_now_ns(l) / NS_PER_MS;
	loop_timer_init(&sctp_clock.timer, l, clock_tick, NULL);
	CHECK(loop_timer_in(&sctp_clock.timer, CLOCK_MS * NS_PER_MS) == 0);
}

void rtc_clock_unuse(void)
{
	if (--sctp_clock.users == 0)
		loop_timer_stop(&sctp_clock.timer);
}

static void opened(struct rtc_channel *c)
{
	if (c->opened || c->doomed)
		return;
	c->opened = true;
	c->rtc->stats.opened++;
	c->heard_ms = rtc_now_ms(c->rtc);
	rtc_arm(c);
	if (c->ops)
		c->ops->open(c->user);
}

/* ---- SCTP ---- */

static void sctp_output(void *user, const void *bytes, size_t len)
{
	struct rtc_channel *c = user;
	c->idle_since_ms = rtc_now_ms(c->rtc);
	if (!c->has_buffers) {
		c->has_buffers = true;
		rtc_arm(c);
	}
	if (dtls_send(c->dtls, bytes, len) < 0)
		rtc_doom(c, "the secure channel broke");
}

static void sctp_up(void *user)
{
	struct rtc_channel *c = user;
	if (!c->offerer)
		return;
	struct dcep open = { .type = DCEP_OPEN, .label = "reclaim" };
	uint8_t buf[DCEP_MAX];
	c->stream = c->dtls_client ? 0 : 1; /* RFC 8832, 6 */
	if (assoc_send(c->sctp, c->stream, DCEP_PPID, buf, dcep_encode(&open, buf)) < 0)
		rtc_doom(c, "the channel cannot be opened");
	else
		opened(c); /* messages may follow at once (RFC 8832, 6) */
}

static void on_dcep(struct rtc_channel *c, uint16_t stream, const uint8_t *bytes, size_t len)
{
	struct dcep d;
	if (dcep_decode(bytes, len, &d) < 0 ||
	    (d.type == DCEP_OPEN && (c->offerer || c->opened || d.channel_type != 0))) {
		c->rtc->stats.refused++;
		return;
	}
	if (d.type == DCEP_ACK)
		return;
	struct dcep ack = { .type = DCEP_ACK };
	uint8_t buf[DCEP_MAX];
	c->stream = stream;
	if (assoc_send(c->sctp, stream, DCEP_PPID, buf, dcep_encode(&ack, buf)) < 0)
		rtc_doom(c, "the channel cannot be opened");
	else
		opened(c);
}

static void sctp_message(void *user, uint16_t stream, uint32_t ppid, const void *bytes, size_t len)
{
	struct rtc_channel *c = user;
	if (c->doomed)
		return;
	if (ppid == DCEP_PPID) {
		on_dcep(c, stream, bytes, len);
		return;
	}
	if (ppid != DCEP_PPID_BINARY || !c->opened || stream != c->stream || len > RTC_MESSAGE_MAX) {
		c->rtc->stats.refused++;
		if (len > RTC_MESSAGE_MAX)
			rtc_doom(c, "a message too large");
		return;
	}
	if (c->ops)
		c->ops->message(c->user, bytes, len);
}

static void flush_queue(void *user)
{
	struct rtc_channel *c = user;
	while (c->queue && !c->doomed) {
		struct rtc_message *m = c->queue;
		int r = assoc_send(c->sctp, c->stream, DCEP_PPID_BINARY, m->bytes, m->len);
		if (r == -EAGAIN)
			return;
		if (r < 0) {
			rtc_doom(c, "the channel broke");
			return;
		}
		c->queue = m->next;
		if (!c->queue)
			c->queue_tail = &c->queue;
		c->queued -= m->len;
		free(m);
	}
}

static void sctp_down(void *user)
{
	rtc_doom(user, "the peer closed the channel");
}

static const struct assoc_ops assoc_ops = {
	.output = sctp_output, .up = sctp_up, .message = sctp_message, .writable = flush_queue,
	.down = sctp_down,
};

/* ---- DTLS ---- */

static void dtls_output(void *user, const void *bytes, size_t len)
{
	struct rtc_channel *c = user;
	if (c->selected >= 0)
		rtc_send_datagram(c->rtc, &c->valid[c->selected].address, bytes, len);
}

static void dtls_data(void *user, const void *bytes, size_t len)
{
	struct rtc_channel *c = user;
	if (c->sctp && !c->doomed)
		assoc_input(c->sctp, bytes, len);
}

static const struct dtls_ops dtls_ops = { .output = dtls_output, .data = dtls_data };

static void on_event(struct rtc_channel *c, enum dtls_event event)
{
	switch (event) {
	case DTLS_UP:
		c->rtc->stats.handshakes++;
		break;
	case DTLS_CLOSED:
		rtc_doom(c, "the peer closed the channel");
		break;
	case DTLS_FAILED:
		c->rtc->stats.handshakes_bad++;
		rtc_doom(c, "the handshake failed: not the peer that was announced");
		break;
	default:
		break;
	}
	/* Data may come in the datagram that ends the handshake, but not before SCTP exists. */
	if (event == DTLS_UP && !c->doomed &&
	    assoc_open(c->local_port, c->peer_port, &assoc_ops, c, &c->sctp) < 0)
		rtc_doom(c, "no memory");
}

void rtc_channel_reached(struct rtc_channel *c)
{
	if (c->dtls || c->doomed)
		return;
	if (dtls_new(c->rtc->dtls, c->dtls_client, c->peer_fingerprint, &dtls_ops, c, &c->dtls) < 0) {
		rtc_doom(c, "no memory");
		return;
	}
	if (c->dtls_client)
		on_event(c, dtls_start(c->dtls));
	rtc_arm(c);
}

void rtc_channel_dtls(struct rtc_channel *c, const uint8_t *bytes, size_t len)
{
	if (!c->dtls)
		return; /* the answer has not come yet; DTLS repeats its flight */
	bool handshake = !c->sctp;
	c->heard_ms = c->idle_since_ms = rtc_now_ms(c->rtc);
	on_event(c, dtls_input(c->dtls, bytes, len));
	if (handshake || !c->has_buffers) {
		c->has_buffers = true;
		rtc_arm(c);
	}
}

void rtc_channel_dtls_timer(struct rtc_channel *c)
{
	if (dtls_timeout_ms(c->dtls) == 1)
		on_event(c, dtls_timeout(c->dtls));
}

int rtc_send(struct rtc_channel *c, const void *bytes, size_t len)
{
	if (!c->opened || c->doomed)
		return -ENOTCONN;
	if (len > RTC_MESSAGE_MAX)
		return -EMSGSIZE;
	if (!c->queue) {
		int r = assoc_send(c->sctp, c->stream, DCEP_PPID_BINARY, bytes, len);
		if (r != -EAGAIN)
			return r < 0 ? -ENOTCONN : 0;
	}
	struct rtc_message *m = c->queued + len <= RTC_QUEUE_MAX ? malloc(sizeof(*m) + len) : NULL;
	if (!m) {
		rtc_doom(c, "the peer reads too slowly");
		return -ENOBUFS;
	}
	m->next = NULL;
	m->len = len;
	memcpy(m->bytes, bytes, len);
	*c->queue_tail = m;
	c->queue_tail = &m->next;
	c->queued += len;
	return 0;
}

size_t rtc_queued(const struct rtc_channel *c)
{
	return c->queued;
}

void rtc_channel_done(struct rtc_channel *c)
{
	c->doomed = true;
	assoc_close(c->sctp);
	c->sctp = NULL;
	dtls_free(c->dtls);
	c->dtls = NULL;
	while (c->queue) {
		struct rtc_message *m = c->queue;
		c->queue = m->next;
		free(m);
	}
}
