/* SPDX-License-Identifier: Apache-2.0 */
/* Signs of the owner: utmp's bytes, a real terminal, a lid's file; the arithmetic of own CPU use. */
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utmpx.h>

#include <cmocka.h>

#include "agent/own_use.h"
#include "agent/presence.h"
#include "agent/utmp.h"
#include "base/clock.h"
#include "base/file.h"

static struct utmpx record(short type, const char *user, const char *line, int pid, int at)
{
	struct utmpx u = { .ut_type = type, .ut_pid = pid, .ut_tv.tv_sec = at };
	memcpy(u.ut_user, user, strnlen(user, sizeof(u.ut_user)));
	memcpy(u.ut_line, line, strnlen(line, sizeof(u.ut_line)));
	return u;
}

static void test_utmp(void **state)
{
	struct utmpx file[] = {
		record(BOOT_TIME, "reboot", "~", 0, 1),
		record(USER_PROCESS, "olga", "tty1", 100, 10),
		record(DEAD_PROCESS, "", "tty2", 101, 11),
		record(USER_PROCESS, "a\x1b[2J", "pts/0", 102, 12),
		record(USER_PROCESS, "an-account-name-of-more-than-the-32-bytes", "pts/1", 103, 13),
	};
	static struct utmp_sessions now, before;
	utmp_parse(file, sizeof(file), &now);
	assert_int_equal(now.count, 3);
	assert_string_equal(now.items[0].user, "olga");
	assert_string_equal(now.items[0].line, "tty1");
	assert_string_equal(now.items[1].user, "a?[2J"); /* it ends up on a terminal */
	assert_int_equal(strlen(now.items[2].user), 32);
	utmp_parse(file, sizeof(file) - 1, &now); /* cut short */
	assert_int_equal(now.count, 2);
	utmp_parse(file, 3, &now);
	assert_int_equal(now.count, 0);

	utmp_parse(file, 2 * sizeof(file[0]), &before);
	assert_null(utmp_newcomer(&before, &before));
	file[1].ut_tv.tv_sec = 20; /* the same line, another login */
	utmp_parse(file, 2 * sizeof(file[0]), &now);
	assert_string_equal(utmp_newcomer(&before, &now)->user, "olga");
	utmp_parse(file, sizeof(file[0]), &now); /* logged out */
	assert_null(utmp_newcomer(&before, &now));
}

static void test_own_cpu(void **state)
{
	uint64_t busy;
	assert_int_equal(own_cpu_parse("cpu  100 20 30 4000 50 6 7 0 0 0\ncpu0 1 2 3\n", 100, &busy), 0);
	assert_int_equal(busy, 150 * 10000000ull);
	assert_int_equal(own_cpu_parse("cpu 1 2 3", 100, &busy), -EINVAL);
	assert_int_equal(own_cpu_parse("intr 1 2 3 4 5 6 7", 100, &busy), -EINVAL);
	struct own_cpu_sample a = { .at_ns = 1 * NS_PER_S, .busy_ns = 50 * NS_PER_S, .guests_ns = 20 * NS_PER_S,
				    .ours_ns = NS_PER_S };
	struct own_cpu_sample b = { .at_ns = 6 * NS_PER_S, .busy_ns = 60 * NS_PER_S, .guests_ns = 24 * NS_PER_S,
				    .ours_ns = 2 * NS_PER_S };
	assert_true(own_cpu_cores(&a, &b) > 0.999 && own_cpu_cores(&a, &b) < 1.001); /* (10 - 4 - 1) / 5 */
	b.guests_ns = 29 * NS_PER_S;
	assert_true(own_cpu_cores(&a, &b) == 0); /* all of it is theirs */
	b.guests_ns = 0; /* a guest ended: nothing to take off, but never a huge number */
	assert_true(own_cpu_cores(&a, &b) < 2);
	assert_true(own_cpu_cores(&b, &a) == 0);
}

struct signs {
	unsigned count[PRESENCE_SIGN_COUNT];
	char detail[80];
};

static void on_sign(void *user, enum presence_sign sign, const char *detail)
{
	struct signs *s = user;
	s->count[sign]++;
	(void)snprintf(s->detail, sizeof(s->detail), "%s", detail);
}

/* Turns until the count is reached, for 10 s at most. */
static void wait_sign(struct loop *l, struct signs *s, enum presence_sign sign, unsigned count)
{
	uint64_t end = clock_boot_ns() + 10 * NS_PER_S;
	while (s->count[sign] < count) {
		assert_true(clock_boot_ns() < end);
		assert_true(loop_turn(l, 100) >= 0);
	}
}

static void write_file(const char *path, const void *bytes, size_t len)
{
	assert_int_equal(file_write_atomic(path, bytes, len, 0600), 0);
}

static void test_presence(void **state)
{
	char dir[] = "/tmp/reclaim-presence-XXXXXX", utmp[64], lid[64], tty[64], byte;
	int master, slave;
	struct loop *l;
	struct presence *p;
	struct signs s = { { 0 } };
	assert_non_null(mkdtemp(dir));
	(void)snprintf(utmp, sizeof(utmp), "%s/utmp", dir);
	(void)snprintf(lid, sizeof(lid), "%s/lid", dir);
	write_file(lid, "state:      open\n", 17);
	assert_int_equal(openpty(&master, &slave, tty, NULL, NULL), 0);
	const char *inputs[] = { tty, "/dev/input/reclaim-no-such*" };
	const struct presence_config config = { .utmp = utmp, .inputs = inputs, .inputs_count = 2, .lid = lid };
	assert_int_equal(loop_new(&l), 0);
	assert_int_equal(presence_open(l, &config, on_sign, &s, &p), 0);
	for (int i = 0; i < PRESENCE_SIGN_COUNT; i++)
		assert_null(presence_missing(p, (enum presence_sign)i));
	/* A login, into a file that did not exist: seen once; the same file again is no news. */
	struct utmpx u = record(USER_PROCESS, "olga", "tty1", 100, 10);
	write_file(utmp, &u, sizeof(u));
	wait_sign(l, &s, PRESENCE_LOGIN, 1);
	assert_string_equal(s.detail, "olga on tty1");
	write_file(utmp, &u, sizeof(u));
	/* A key: the sign is that a program read it, not that it was pressed. */
	assert_int_equal(write(master, "x\n", 2), 2);
	while (loop_turn(l, 0) > 0)
		;
	assert_int_equal(s.count[PRESENCE_INPUT], 0);
	assert_int_equal(read(slave, &byte, 1), 1);
	wait_sign(l, &s, PRESENCE_INPUT, 1);
	assert_string_equal(s.detail, tty);
	assert_int_equal(s.count[PRESENCE_LOGIN], 1);
	/* It rests for a second, then hears again. */
	uint64_t begin = clock_boot_ns();
	while (s.count[PRESENCE_INPUT] < 2) {
		assert_true(clock_boot_ns() < begin + 10 * NS_PER_S);
		assert_int_equal(write(master, "x\n", 2), 2);
		assert_int_equal(read(slave, &byte, 1), 1);
		assert_true(loop_turn(l, 20) >= 0);
	}
	assert_true(clock_boot_ns() - begin > NS_PER_S / 2);
	write_file(lid, "state:      closed\n", 19);
	wait_sign(l, &s, PRESENCE_LID_CLOSED, 1);
	write_file(lid, "state:      open\n", 17);
	wait_sign(l, &s, PRESENCE_LID_OPENED, 1);
	assert_int_equal(s.count[PRESENCE_LOGIN], 1);
	presence_close(p);
	/* Nothing there: named, and no failure. */
	const char *none[] = { "/nowhere/*" };
	const struct presence_config bare = { .utmp = "/nowhere/utmp", .inputs = none, .inputs_count = 1,
					      .lid = "/nowhere/lid" };
	assert_int_equal(presence_open(l, &bare, on_sign, &s, &p), 0);
	for (int i = 0; i < PRESENCE_SIGN_COUNT; i++)
		assert_non_null(presence_missing(p, (enum presence_sign)i));
	presence_close(p);
	while (loop_turn(l, 0) > 0)
		;
	loop_free(l);
	(void)close(master);
	(void)close(slave);
	assert_int_equal(dir_remove_all(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_utmp),
		cmocka_unit_test(test_own_cpu),
		cmocka_unit_test(test_presence),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
