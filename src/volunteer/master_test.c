/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile members against a master, through a false socket; no network but one UDP port. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "volunteer/frame.h"
#include "volunteer/master.h"
#include "volunteer/rtc.h"
#include "volunteer/signal.h"

struct peer {
	struct master_member *member;
	int closed, sent;
	struct signal last; /* what the master said last, by type in `seen` */
	unsigned seen;
	uint64_t node;
	char error[256];
};

static struct loop *loop;
static struct master *master;

static int on_send(void *socket, const char *text, size_t len)
{
	struct peer *p = socket;
	struct signal s;
	assert_int_equal(signal_decode(text, len, &s, NULL), 0);
	p->sent++;
	p->seen |= 1u << s.type;
	if (s.type == SIGNAL_WELCOME)
		p->node = s.node;
	if (s.type == SIGNAL_ERROR)
		(void)snprintf(p->error, sizeof(p->error), "%s", s.what);
	signal_done(&s);
	return 0;
}

static void on_close(void *socket)
{
	struct peer *p = socket;
	p->closed++;
	p->member = NULL;
}

static const struct master_socket_ops socket_ops = { on_send, on_close };

static void progress(void *user)
{
	struct lend_result r;
	(void)user;
	while (master && lend_take(master_lend(master), &r)) {
		free(r.bytes);
		free(r.input);
	}
}

static const struct master_ops ops = { progress, NULL };

static int setup(void **state)
{
	struct master_config c = { .degree = 3, .invite = "INVITATION" };
	(void)state;
	lend_defaults(&c.lend);
	if (loop_new(&loop) < 0 || address_parse("127.0.0.1", 0, &c.rtc.bind) < 0)
		return -1;
	c.rtc.lite = true;
	return master_new(loop, &c, &ops, NULL, &master, NULL);
}

static int teardown(void **state)
{
	(void)state;
	struct master *m = master;
	master = NULL;
	master_free(m);
	loop_turn(loop, 0);
	loop_free(loop);
	return 0;
}

static void say(struct peer *p, const char *text)
{
	if (p->member)
		master_socket_text(master, p->member, text, strlen(text));
}

static void open_peer(struct peer *p)
{
	memset(p, 0, sizeof(*p));
	assert_int_equal(master_socket_open(master, &socket_ops, p, &p->member), 0);
}

static void join_as(struct peer *p, const char *token)
{
	char text[256];
	open_peer(p);
	(void)snprintf(text, sizeof(text), "{\"type\":\"join\",\"version\":\"1\",\"invite\":\"INVITATION\","
		       "\"token\":\"%s\",\"workers\":\"1\"}", token);
	say(p, text);
	assert_true(p->seen & 1u << SIGNAL_WELCOME);
}

static void say_frame(struct peer *p, const struct frame *f, const uint64_t *ids)
{
	uint8_t bytes[FRAME_MAX];
	char text[2 * FRAME_MAX], whole[2 * FRAME_MAX + 64];
	(void)base64_encode(bytes, frame_encode(f, ids, bytes), text);
	(void)snprintf(whole, sizeof(whole), "{\"type\":\"frame\",\"data\":\"%s\"}", text);
	say(p, whole);
}

static struct master_stats stats(void)
{
	struct master_stats s;
	master_stats(master, &s);
	return s;
}

static void forged_joins(void **state)
{
	struct peer p;
	static const char *const bad[] = {
		"{\"type\":\"join\",\"version\":\"1\",\"invite\":\"WRONG\",\"token\":\"0123456789abcdef\"}",
		"{\"type\":\"join\",\"version\":\"1\",\"invite\":\"INVITATIOM\",\"token\":\"0123456789abcdef\"}",
		"{\"type\":\"join\",\"version\":\"1\",\"token\":\"0123456789abcdef\"}",
		"{\"type\":\"join\",\"version\":\"1\",\"invite\":\"INVITATION\",\"token\":\"short\"}",
		"{\"type\":\"join\",\"version\":\"2\",\"invite\":\"INVITATION\",\"token\":\"0123456789abcdef\"}",
		"{\"type\":\"frame\",\"data\":\"AAAA\"}", "{\"type\":\"nonsense\"}", "[]", "{", "",
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		open_peer(&p);
		say(&p, bad[i]);
		assert_int_equal(p.closed, 1);
		assert_true(p.error[0] != '\0');
	}
	assert_int_equal(stats().volunteers, 0);
	assert_int_equal(stats().refused_joins, 5);
	assert_int_equal(stats().refused, 5);
}

/* The same secret is the same node: a second attempt makes no second one. */
static void a_second_attempt_replaces_the_first(void **state)
{
	struct peer a, b;
	join_as(&a, "0123456789abcdef");
	join_as(&b, "0123456789abcdef");
	assert_int_equal(a.closed, 1);
	assert_int_equal(a.node, b.node);
	assert_int_equal(stats().volunteers, 1);
	master_socket_closed(master, b.member);
	assert_int_equal(stats().volunteers, 0);
}

static void forged_results(void **state)
{
	struct peer a, b;
	uint64_t id;
	join_as(&a, "aaaaaaaaaaaaaaaa");
	join_as(&b, "bbbbbbbbbbbbbbbb");
	assert_int_equal(lend_put(master_lend(master), "v", 1, &id), 0);
	struct frame demand = { .type = FRAME_DEMAND, .node = a.node, .credit = 1, .workers = 1 };
	say_frame(&a, &demand, NULL);
	assert_true(a.seen & 1u << SIGNAL_FRAME); /* a is lent value 0 */
	struct frame result = { .type = FRAME_RESULT, .node = b.node, .value = 0, .total = 1,
				.bytes = (const uint8_t *)"x", .len = 1 };
	uint64_t refused = stats().refused;
	say_frame(&b, &result, NULL); /* never lent to b */
	result.node = a.node;
	say_frame(&b, &result, NULL); /* b speaks for a, which is not below it */
	result.node = 12345;
	say_frame(&b, &result, NULL);
	result.node = b.node;
	result.value = 99; /* never put */
	say_frame(&b, &result, NULL);
	assert_int_equal(stats().refused, refused + 4);
	assert_int_equal(stats().lend.settled + stats().lend.delivered, 0);
	result.node = a.node;
	result.value = 0;
	say_frame(&a, &result, NULL);
	assert_int_equal(stats().lend.delivered, 1);
	say_frame(&a, &result, NULL);
	assert_int_equal(stats().lend.doubled, 1);
	assert_int_equal(stats().lend.delivered, 1);
	master_socket_closed(master, a.member);
	master_socket_closed(master, b.member);
}

/* Answers only from the parent that was named; offers only for the present reservation. */
static void replayed_offers_and_answers(void **state)
{
	struct peer a, b;
	struct rtc_config rc = { 0 };
	struct rtc *rtc;
	struct strbuf sdp = STRBUF_INIT;
	struct rtc_channel *c;
	static const struct rtc_ops none;
	join_as(&a, "aaaaaaaaaaaaaaaa");
	assert_int_equal(address_parse("127.0.0.1", 0, &rc.bind), 0);
	assert_int_equal(rtc_open(loop, &rc, &rtc, NULL), 0);
	assert_int_equal(rtc_offer(rtc, &none, NULL, &sdp, &c), 0);
	struct signal join = { .type = SIGNAL_JOIN, .version = 1, .invite = "INVITATION",
			       .token = "bbbbbbbbbbbbbbbb", .sdp = sdp.data };
	open_peer(&b);
	char *text = signal_encode(&join);
	say(&b, text);
	assert_true(b.seen & 1u << SIGNAL_ANSWER);
	int sent = b.sent;
	say(&b, text); /* a second join on the same socket */
	assert_int_equal(b.sent, sent);
	free(text);
	struct signal replay = { .type = SIGNAL_OFFER, .generation = 77, .sdp = sdp.data };
	text = signal_encode(&replay);
	say(&b, text);
	assert_int_equal(b.sent, sent); /* not the present generation: no answer */
	free(text);
	uint64_t refused = stats().refused;
	struct signal answer = { .type = SIGNAL_ANSWER, .node = b.node, .generation = 1, .sdp = sdp.data };
	text = signal_encode(&answer);
	say(&a, text); /* a was not named as b's parent */
	assert_int_equal(b.sent, sent);
	assert_int_equal(stats().refused, refused + 1);
	free(text);
	assert_int_equal(stats().rtc.channels, 1);
	strbuf_done(&sdp);
	master_socket_closed(master, a.member);
	master_socket_closed(master, b.member);
	rtc_channel_close(c);
	rtc_close(rtc);
}

static void oversized_messages(void **state)
{
	struct peer p;
	static char big[SIGNAL_MESSAGE_MAX + 100];
	join_as(&p, "aaaaaaaaaaaaaaaa");
	memset(big, ' ', sizeof(big) - 1);
	say(&p, big);
	assert_int_equal(p.closed, 1);
	/* a result that claims more bytes than a value may have */
	join_as(&p, "bbbbbbbbbbbbbbbb");
	struct frame f = { .type = FRAME_RESULT, .node = p.node, .total = UINT32_MAX,
			   .bytes = (const uint8_t *)"x", .len = 1 };
	uint64_t refused = stats().refused;
	say_frame(&p, &f, NULL);
	assert_int_equal(stats().refused, refused + 1);
	master_socket_closed(master, p.member);
}

/* One that joins and then says nothing is asked, and dropped when it stays silent. */
static void the_silent_are_dropped(void **state)
{
	struct peer p;
	uint64_t id;
	join_as(&p, "aaaaaaaaaaaaaaaa");
	assert_int_equal(lend_put(master_lend(master), "v", 1, &id), 0);
	struct frame demand = { .type = FRAME_DEMAND, .node = p.node, .credit = 1, .workers = 1 };
	say_frame(&p, &demand, NULL);
	uint64_t end = clock_boot_ns() + 30 * NS_PER_S;
	while (!p.closed && clock_boot_ns() < end)
		loop_turn(loop, 50);
	assert_int_equal(p.closed, 1);
	assert_true(p.seen & 1u << SIGNAL_PING);
	assert_int_equal(stats().volunteers, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(forged_joins, setup, teardown),
		cmocka_unit_test_setup_teardown(a_second_attempt_replaces_the_first, setup, teardown),
		cmocka_unit_test_setup_teardown(forged_results, setup, teardown),
		cmocka_unit_test_setup_teardown(replayed_offers_and_answers, setup, teardown),
		cmocka_unit_test_setup_teardown(oversized_messages, setup, teardown),
		cmocka_unit_test_setup_teardown(the_silent_are_dropped, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
