/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/observe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/clock.h"
#include "lab/reference.h"
#include "lab/report_internal.h"

static void line(struct observe_run *r, const char *text, uint64_t now)
{
	observe_line(r, text, strlen(text), now);
}

static void test_lines(void **state)
{
	struct observe_run r = { 0 };

	line(&r, "model of 5 parameters", 1);
	line(&r, "step 1 loss 4.2", 2);
	line(&r, "step 2 loss 4.1", 3);
	assert_int_equal(r.first_step, 1);
	assert_int_equal(r.last_step, 2);
	assert_int_equal(r.first_ns, 2);
	assert_int_equal(r.last_ns, 3);
	assert_false(r.torn);
	line(&r, "step 4 loss 4.1", 3);
	assert_true(r.torn);

	r = (struct observe_run){ 0 };
	line(&r, "resumed at step 40", 1);
	line(&r, "step 41 loss 1", 2);
	line(&r, "done step 41 digest 0123456789abcdef", 3);
	assert_int_equal(r.resumed_at, 40);
	assert_int_equal(r.steps, 1);
	assert_string_equal(r.digest, "0123456789abcdef");
	assert_false(r.torn);
}

static void sleep_ms(long ms)
{
	struct timespec t = { 0, ms * 1000000 };

	(void)nanosleep(&t, NULL);
}

/* Lines count when they are complete, also those written after the file was removed. */
static void test_tail(void **state)
{
	char top[] = "/tmp/observe-test-XXXXXX", path[200];
	struct observe *o;
	struct observe_run r;
	FILE *f;

	assert_non_null(mkdtemp(top));
	assert_int_equal(observe_new(&o), 0);
	assert_int_equal(observe_add(o, 3, top), 0);
	assert_int_equal(observe_start(o), 0);
	(void)snprintf(path, sizeof(path), "%s/jobs/j1/2", top);
	assert_int_equal(dir_make_all(path, 0755), 0);
	(void)snprintf(path, sizeof(path), "%s/jobs/j1/2/output.log", top);
	f = fopen(path, "we");
	assert_non_null(f);
	(void)fputs("step 1 loss 1\nstep 2", f);
	(void)fflush(f);
	for (int i = 0; i < 200 && !(observe_newest(o, "j1", &r) && r.last_step); i++)
		sleep_ms(10);
	assert_int_equal(r.last_step, 1);
	assert_int_equal(r.machine, 3);
	assert_int_equal(r.epoch, 2);
	(void)unlink(path);
	(void)fputs(" loss 1\n", f);
	(void)fclose(f);
	for (int i = 0; i < 200 && r.last_step < 2; i++) {
		sleep_ms(10);
		assert_true(observe_newest(o, "j1", &r));
	}
	assert_int_equal(r.last_step, 2);
	assert_false(observe_newest(o, "j2", &r));
	observe_free(o);
	(void)dir_remove_all(top);
}

static void test_window(void **state)
{
	/* 1 MB at 8 Mbit/s is a second. */
	assert_int_equal(reference_window_needed_ns(500000000, 1000000, 8000000), 3500000000u);
	assert_int_equal(reference_window_needed_ns(0, 1000000, 0), 2000000000u);
}

/* A line of an agent's log of so long ago. */
static size_t log_line(char *to, size_t size, uint64_t ago_ms, const char *what)
{
	uint64_t wall_ms = clock_wall_ms() - ago_ms;
	time_t t = (time_t)(wall_ms / 1000);
	struct tm tm;
	char when[32];

	assert_non_null(gmtime_r(&t, &tm));
	(void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	return (size_t)snprintf(to, size, "%s.%03uZ info reclaimd: %s\n", when,
				(unsigned)(wall_ms % 1000), what);
}

static void test_floors(void **state)
{
	char text[1024];
	uint64_t now = clock_boot_ns();
	size_t n = log_line(text, sizeof(text), 8000, "edge: moves have a floor of 20000000 bit/s");

	n += log_line(text + n, sizeof(text) - n, 7000, "job x: something else of 99 bit/s");
	n += log_line(text + n, sizeof(text) - n, 6000, "edge: moves have a floor of 40000000 bit/s");
	(void)log_line(text + n, sizeof(text) - n, 5000, "edge: moves have a floor of 0 bit/s");
	/* 2 s at 20 Mbit/s and 1 s at 40, of ten. A log counts in ms. */
	assert_true(abs((int)(floors_granted(text, now - 10000 * NS_PER_MS, now) - 8e6)) < 200000);
	assert_true(abs((int)(floors_granted(text, now - 7000 * NS_PER_MS, now - 6000 * NS_PER_MS) -
			      20e6)) < 200000);
	assert_true(floors_granted(text, now - 4000 * NS_PER_MS, now) < 1);
	assert_true(floors_granted("", now - 4000 * NS_PER_MS, now) < 1);
	assert_true(floors_granted("moves have a floor of 5 bit/s", 1, now) < 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_floors),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_tail),
		cmocka_unit_test(test_window),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
