/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/file.h"
#include "base/rng.h"
#include "coordinator/joblog.h"

static char dir[64];
static struct joblog *log_;
static int logs;
static char name[32];

static void reopen(void)
{
	struct diag d = DIAG_INIT;
	joblog_close(log_);
	if (joblog_open(dir, name, 1 << 20, &log_, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
}

static void fresh(void)
{
	snprintf(name, sizeof(name), "job%d", logs++);
	reopen();
}

static uint64_t out_at(uint64_t epoch, uint64_t from, uint64_t offset, const char *text)
{
	uint64_t stored = 0;
	assert_int_equal(joblog_output(log_, epoch, from, offset, text, strlen(text), &stored), 0);
	return stored;
}

static void assert_log(const char *want)
{
	char got[65536];
	uint64_t len = joblog_length(log_);
	assert_true(len < sizeof(got));
	assert_int_equal(pread(joblog_fd(log_), got, len, 0), (int)len);
	got[len] = 0;
	assert_string_equal(got, want);
}

static void test_straight(void **state)
{
	fresh();
	assert_int_equal(out_at(1, 0, 0, "a\nb"), 3);
	assert_int_equal(out_at(1, 0, 3, "c\n"), 5);
	assert_int_equal(out_at(1, 0, 0, "a\nbc\nd\n"), 7); /* sent again after a break */
	assert_int_equal(out_at(1, 0, 9, "gap\n"), 7);
	reopen();
	assert_int_equal(out_at(1, 0, 7, "e\n"), 9);
	assert_log("a\nbc\nd\ne\n");
	assert_int_equal(joblog_cursor(log_, 1, 4, 0), 4);
	assert_int_equal(joblog_cursor(log_, 1, 99, 0), 9);
	assert_int_equal(joblog_cursor(log_, 7, 0, 5), 5);
}

/* Each incarnation says anew that it resumed, and where that line stands is behind what it repeats. */
static void test_said_anew(void **state)
{
	const char *once = "load\nresumed at 2\nstep 3\nstep 4\ndone\n";
	fresh();
	out_at(1, 0, 0, "step 1\nstep 2\nstep 3\nstep 4\ndone\n");
	uint64_t cursor = joblog_cursor(log_, 1, 14, 0);
	for (uint64_t epoch = 2; epoch < 6; epoch++) {
		for (size_t i = 0; once[i]; i++) {
			char text[2] = { once[i], 0 };
			out_at(epoch, cursor, i, text);
			if (i % 5 == epoch)
				reopen();
		}
		assert_log("step 1\nstep 2\nstep 3\nstep 4\ndone\nload\nresumed at 2\n");
	}
	/* One that gets further; what it says is all new. */
	out_at(6, cursor, 0, "load\nresumed at 2\nstep 3\nstep 4\nmore\ndone\nload\n");
	assert_log("step 1\nstep 2\nstep 3\nstep 4\ndone\nload\nresumed at 2\nmore\nload\n");
}

static void test_replay(void **state)
{
	fresh();
	out_at(1, 0, 0, "step 1\nstep 2\nstep 3\nstep 4\n");
	uint64_t cursor = joblog_cursor(log_, 1, 7, 0); /* image after step 1 */
	/* It says that it resumed, repeats 2 to 4 byte by byte, goes on with 5. */
	const char *again = "resumed\nstep 2\nstep 3\nstep 4\nstep 5\n";
	for (size_t i = 0; again[i]; i++) {
		char one[2] = { again[i], 0 };
		assert_int_equal(out_at(2, cursor, i, one), i + 1);
		if (i % 5 == 0)
			reopen();
	}
	assert_log("step 1\nstep 2\nstep 3\nstep 4\nresumed\nstep 5\n");
	/* An image taken while it repeated step 3: the third incarnation matches from there. */
	cursor = joblog_cursor(log_, 2, strlen("resumed\nstep 2\n"), 0);
	assert_int_equal(cursor, strlen("step 1\nstep 2\n"));
	out_at(1, 0, 28, "an old incarnation speaks\n");
	out_at(3, cursor, 0, "step 3\nstep 4\nresumed\nstep 5\nstep 6\n");
	assert_log("step 1\nstep 2\nstep 3\nstep 4\nresumed\nstep 5\nstep 6\n");
}

static void test_cut_line(void **state)
{
	fresh();
	out_at(1, 0, 0, "one\ntw");
	out_at(2, 0, 0, "one\ntwo\nthree\n"); /* continued where it was cut */
	assert_log("one\ntwo\nthree\n");
	fresh();
	out_at(1, 0, 0, "one\ntw");
	out_at(2, 4, 0, "other\n"); /* something else: the cut line stays by itself */
	assert_log("one\ntw\nother\n");
	fresh();
	out_at(1, 0, 0, "one\ntwo\n");
	out_at(2, 0, 0, "onx");
	out_at(2, 0, 3, "\none\ntwo\n3\n");
	assert_log("one\ntwo\nonx\n3\n");
}

/* A deterministic program, killed and resumed from random images: its log is as if uncut. */
static void test_random(void **state)
{
	struct rng rng;
	rng_init(&rng, 11);
	for (int round = 0; round < 60; round++) {
		char full[4096] = "";
		size_t full_len = 0;
		int lines = 30 + (int)rng_below(&rng, 40);
		for (int i = 0; i < lines; i++)
			full_len += (size_t)snprintf(full + full_len, sizeof(full) - full_len,
						     "line %llu\n", (unsigned long long)rng_below(&rng, 4));
		fresh();
		uint64_t image_epoch = 0, image_offset = 0, image_at = 0; /* offset in `full` */
		for (uint64_t epoch = 1;; epoch++) {
			uint64_t from = image_epoch ? joblog_cursor(log_, image_epoch, image_offset, 0) : 0;
			size_t start = (size_t)image_at, at = start;
			bool last = epoch > 6;
			size_t end = last ? full_len : start + (size_t)rng_below(&rng, full_len - start + 1);
			uint64_t new_at = image_at;
			while (at < end) {
				size_t n = MIN(1 + (size_t)rng_below(&rng, 40), end - at);
				uint64_t stored = 0;
				assert_int_equal(joblog_output(log_, epoch, from, at - start, full + at, n,
							       &stored), 0);
				assert_int_equal(stored, at - start + n);
				at += n;
				/* Images are taken at the end of a line. */
				if (rng_below(&rng, 3) == 0 && full[at - 1] == '\n')
					new_at = at;
				if (rng_below(&rng, 8) == 0)
					reopen();
			}
			if (last)
				break;
			if (new_at != image_at) {
				image_epoch = epoch;
				image_offset = new_at - start;
				image_at = new_at;
			}
		}
		assert_log(full);
	}
}

/* The image's place is known only from below, and some lines carry a time. */
static void test_inexact(void **state)
{
	fresh();
	out_at(1, 0, 0, "step 1\nsaving\nstep 2\n{\n}\nstep 3 took 11 ms\nstep 4 t");
	const char *again = "resumed\n{\nstep 2\n{\n}\nstep 3 took 29 ms\nstep 4 took 1 ms\n";
	for (size_t i = 0; again[i]; i++) {
		char one[2] = { again[i], 0 };
		assert_int_equal(out_at(2, 7, i, one), i + 1);
		if (i % 7 == 0)
			reopen();
	}
	assert_log("step 1\nsaving\nstep 2\n{\n}\nstep 3 took 11 ms\nstep 4 t\nresumed\n{\n"
		   "step 3 took 29 ms\nstep 4 took 1 ms\n");
	/* From the very beginning of the log, when nothing better is known. */
	fresh();
	for (int i = 0, at = 0; i < 200; i++) {
		char line[32];
		int n = snprintf(line, sizeof(line), "step %d of 300\n", i);
		out_at(1, 0, (uint64_t)at, line);
		at += n;
	}
	uint64_t before = joblog_length(log_);
	out_at(2, 0, 0, "step 150 of 300\nstep 151 of 300\n");
	assert_int_equal(joblog_length(log_), before);
}

static void test_torn_files(void **state)
{
	char path[128];
	fresh();
	out_at(1, 0, 0, "kept\n");
	joblog_close(log_);
	log_ = NULL;
	/* A kill between text and index, and one in the middle of a record. */
	snprintf(path, sizeof(path), "%s/%s.log", dir, name);
	FILE *f = fopen(path, "a");
	fputs("never acknowledged\n", f);
	fclose(f);
	snprintf(path, sizeof(path), "%s/%s.idx", dir, name);
	f = fopen(path, "a");
	fputs("half a record", f);
	fclose(f);
	reopen();
	assert_log("kept\n");
	out_at(1, 0, 5, "more\n");
	reopen();
	assert_log("kept\nmore\n");
	assert_int_equal(joblog_sync(log_), 0);
}

static void test_full(void **state)
{
	struct diag d = DIAG_INIT;
	joblog_close(log_);
	log_ = NULL;
	assert_int_equal(joblog_open(dir, "small", 16, &log_, &d), 0);
	assert_int_equal(out_at(1, 0, 0, "0123456789\n"), 11);
	assert_int_equal(out_at(1, 0, 11, "0123456789\n"), 22);
	assert_int_equal(out_at(1, 0, 22, "0123456789\n"), 33);
	assert_log("0123456789\n\n[the log is full: output from here on is not kept]\n");
	assert_int_equal(joblog_open(dir, "../x", 16, &log_, &d), -EINVAL);
}

static int setup(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/reclaim-joblog-XXXXXX");
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	joblog_close(log_);
	return dir_remove_all(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_straight), cmocka_unit_test(test_said_anew),
		cmocka_unit_test(test_straight), cmocka_unit_test(test_replay),
		cmocka_unit_test(test_cut_line), cmocka_unit_test(test_random),
		cmocka_unit_test(test_inexact),
		cmocka_unit_test(test_torn_files), cmocka_unit_test(test_full),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
