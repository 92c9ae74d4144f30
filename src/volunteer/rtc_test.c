/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "volunteer/rtc.h"

struct end {
	struct rtc_channel *channel;
	int opened, messages, closed;
	size_t bytes;
	char last[32], why[64];
	bool echo;
};

static void on_open(void *user)
{
	struct end *e = user;
	e->opened++;
}

static void on_message(void *user, const void *bytes, size_t len)
{
	struct end *e = user;
	e->messages++;
	e->bytes += len;
	if (len < sizeof(e->last)) {
		memcpy(e->last, bytes, len);
		e->last[len] = '\0';
	}
	if (e->echo)
		assert_int_equal(rtc_send(e->channel, bytes, len), 0);
}

static void on_closed(void *user, const char *why)
{
	struct end *e = user;
	e->closed++;
	e->channel = NULL;
	(void)snprintf(e->why, sizeof(e->why), "%s", why);
}

static const struct rtc_ops ops = { on_open, on_message, on_closed };

static struct loop *loop;

static struct rtc *endpoint(bool lite)
{
	struct rtc_config c = { .lite = lite };
	struct rtc *r;
	struct diag d = DIAG_INIT;
	assert_int_equal(address_parse("127.0.0.1", 0, &c.bind), 0);
	if (rtc_open(loop, &c, &r, &d) < 0)
		fail_msg("%s", d.what);
	return r;
}

static void until(const int *what, int count)
{
	uint64_t end = clock_boot_ns() + 20 * NS_PER_S;
	while (*what < count && clock_boot_ns() < end)
		loop_turn(loop, 10);
	assert_true(*what >= count);
}

static void connect_ends(struct rtc *a, struct rtc *b, struct end *x, struct end *y)
{
	struct strbuf offer = STRBUF_INIT, answer = STRBUF_INIT;
	struct diag d = DIAG_INIT;
	assert_int_equal(rtc_offer(a, &ops, x, &offer, &x->channel), 0);
	if (rtc_answer(b, offer.data, offer.len, &ops, y, &answer, &y->channel, &d) < 0)
		fail_msg("%s", d.what);
	if (rtc_accept(x->channel, answer.data, answer.len, &d) < 0)
		fail_msg("%s", d.what);
	assert_int_equal(rtc_accept(x->channel, answer.data, answer.len, NULL), -EALREADY);
	strbuf_done(&offer);
	strbuf_done(&answer);
	until(&x->opened, 1);
	until(&y->opened, 1);
}

static void messages_both_ways(void **state)
{
	for (int lite = 0; lite < 2; lite++) {
		assert_int_equal(loop_new(&loop), 0);
		struct rtc *a = endpoint(false), *b = endpoint(lite);
		struct end x = { 0 }, y = { .echo = true };
		connect_ends(a, b, &x, &y);
		assert_int_equal(rtc_send(x.channel, "hello", 5), 0);
		until(&x.messages, 1);
		assert_string_equal(x.last, "hello");
		static char big[RTC_MESSAGE_MAX + 1];
		for (int i = 0; i < 100; i++)
			assert_int_equal(rtc_send(x.channel, big, 16000), 0);
		until(&x.messages, 101);
		assert_int_equal(x.bytes, 5 + 100 * 16000);
		assert_int_equal(rtc_send(x.channel, big, sizeof(big)), -EMSGSIZE);
		/* idle long enough that the record buffers are given back: it must go on working */
		uint64_t end = clock_boot_ns() + 2 * NS_PER_S;
		while (clock_boot_ns() < end)
			loop_turn(loop, 100);
		assert_int_equal(rtc_send(x.channel, "again", 5), 0);
		until(&x.messages, 102);
		rtc_channel_close(x.channel);
		until(&y.closed, 1);
		rtc_close(a);
		rtc_close(b);
		loop_turn(loop, 0);
		loop_free(loop);
	}
}

static void many_on_one_socket(void **state)
{
	enum { N = 60 };
	assert_int_equal(loop_new(&loop), 0);
	struct rtc *a = endpoint(false), *b = endpoint(true);
	static struct end x[N], y[N];
	memset(x, 0, sizeof(x));
	memset(y, 0, sizeof(y));
	/* Channels between the same two sockets take turns; each works until the next one. */
	connect_ends(a, b, &x[0], &y[0]);
	struct rtc *more[N];
	for (int i = 1; i < N; i++) {
		more[i] = endpoint(false);
		y[i].echo = true;
		connect_ends(more[i], b, &x[i], &y[i]);
	}
	for (int i = 1; i < N; i++)
		assert_int_equal(rtc_send(x[i].channel, "x", 1), 0);
	for (int i = 1; i < N; i++)
		until(&x[i].messages, 1);
	struct rtc_stats s;
	rtc_stats(b, &s);
	assert_int_equal(s.channels, N);
	assert_int_equal(s.opened, N);
	for (int i = 1; i < N; i++)
		rtc_close(more[i]);
	rtc_close(a);
	rtc_close(b);
	loop_turn(loop, 0);
	loop_free(loop);
}

/* An answer that announces another certificate must not connect. */
static void the_wrong_peer_is_refused(void **state)
{
	assert_int_equal(loop_new(&loop), 0);
	struct rtc *a = endpoint(false), *b = endpoint(true);
	struct end x = { 0 }, y = { 0 };
	struct strbuf offer = STRBUF_INIT, answer = STRBUF_INIT;
	assert_int_equal(rtc_offer(a, &ops, &x, &offer, &x.channel), 0);
	assert_int_equal(rtc_answer(b, offer.data, offer.len, &ops, &y, &answer, &y.channel, NULL), 0);
	char *fp = strstr(answer.data, "sha-256 ");
	fp[8] = fp[8] == 'A' ? 'B' : 'A';
	assert_int_equal(rtc_accept(x.channel, answer.data, answer.len, NULL), 0);
	until(&x.closed, 1);
	assert_int_equal(x.opened, 0);
	assert_non_null(strstr(x.why, "not the peer"));
	struct rtc_stats s;
	rtc_stats(a, &s);
	assert_int_equal(s.handshakes_bad, 1);
	strbuf_done(&offer);
	strbuf_done(&answer);
	rtc_close(a);
	rtc_close(b);
	loop_turn(loop, 0);
	loop_free(loop);
}

/* A flood of forged datagrams is counted and forgotten; an honest channel still opens. */
static void floods_are_counted(void **state)
{
	assert_int_equal(loop_new(&loop), 0);
	struct rtc *a = endpoint(false), *b = endpoint(true);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct address to;
	struct sockaddr_storage sa;
	assert_int_equal(address_parse("127.0.0.1", rtc_port(b), &to), 0);
	socklen_t len = address_to_sockaddr(&to, &sa);
	static const uint8_t stun[28] = { 0, 1, 0, 8, 0x21, 0x12, 0xA4, 0x42, [20] = 0, 6, 0, 4, 'a', ':', 'b', 'c' };
	static const uint8_t dtls[16] = { 22, 254, 253 };
	struct end x = { 0 }, y = { 0 };
	for (int i = 0; i < 2000; i++) {
		assert_true(sendto(fd, stun, sizeof(stun), 0, (struct sockaddr *)&sa, len) > 0);
		assert_true(sendto(fd, dtls, sizeof(dtls), 0, (struct sockaddr *)&sa, len) > 0);
		if (i % 100 == 0)
			loop_turn(loop, 0);
	}
	connect_ends(a, b, &x, &y);
	struct rtc_stats s;
	rtc_stats(b, &s);
	assert_true(s.stun_bad > 500);
	assert_true(s.dropped > 500);
	assert_int_equal(s.channels, 1);
	close(fd);
	rtc_close(a);
	rtc_close(b);
	loop_turn(loop, 0);
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_both_ways),
		cmocka_unit_test(many_on_one_socket),
		cmocka_unit_test(the_wrong_peer_is_refused),
		cmocka_unit_test(floods_are_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
