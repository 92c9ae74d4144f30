/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which commit counts. The last two tests kill a writer with SIGKILL at random moments
 * (seed printed): what the watch then offers must be a set that the writer finished, and
 * none older than the last that it had said to be finished.
 */
#include "job/ckpt_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/sha.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/rng.h"

static char dir[64];

/* Of the writer: when it last wrote, and the longest pause within one set. On a loaded machine
 * it may be kept from running for longer than a set takes to settle; then a half set is rightly
 * offered, and there is nothing to judge. */
static struct pulse {
	_Atomic uint64_t last_ns, pause_ns;
	_Atomic bool inside;
} *pulse;

static int setup(void **state)
{
	/* In memory where there is one: the writers sync a thousand times, and a kill does not
	 * care where the bytes are. */
	(void)snprintf(dir, sizeof(dir), "%s/reclaim-ckpt-XXXXXX",
		       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	pulse = mmap(NULL, sizeof(*pulse), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return pulse != MAP_FAILED && mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	(void)munmap(pulse, sizeof(*pulse));
	return dir_remove_all(dir);
}

static void put(const char *name, const void *bytes, size_t len)
{
	char path[300];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, bytes, len), 0);
	(void)close(fd);
}

static void make_dir(const char *name)
{
	char path[300];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(dir_make_all(path, 0755), 0);
}

static void manifest_line(char *text, size_t size, const char *name, const char *bytes)
{
	unsigned char digest[32];
	char hex[65];

	(void)SHA256((const unsigned char *)bytes, strlen(bytes), digest);
	hex_encode(digest, 32, hex);
	(void)snprintf(text + strlen(text), size - strlen(text), "%zu %s %s\n", strlen(bytes), hex, name);
}

static struct ckpt_commit scan(struct ckpt_watch *w, enum ckpt_still still)
{
	struct ckpt_commit c;
	struct diag d = DIAG_INIT;

	assert_int_equal(ckpt_watch_scan(w, clock_boot_ns(), still, &c, &d), 0);
	return c;
}

static struct ckpt_watch *watch(enum job_ckpt_format format, uint64_t settle_ns)
{
	struct ckpt_watch *w;
	struct diag d = DIAG_INIT;

	assert_int_equal(ckpt_watch_new(dir, format, settle_ns, &w, &d), 0);
	return w;
}

static bool skipped(struct ckpt_watch *w, const char *path)
{
	char *const *items;
	size_t n = ckpt_watch_skips(w, &items);

	for (size_t i = 0; i < n; i++)
		if (!strcmp(items[i], path))
			return true;
	return false;
}

static void test_manifest(void **state)
{
	struct ckpt_watch *w = watch(JOB_CKPT_AUTO, 0);
	struct ckpt_commit c;
	struct diag d = DIAG_INIT;
	char text[500] = "";

	make_dir("step-1");
	put("step-1/a", "alpha", 5);
	manifest_line(text, sizeof(text), "a", "alpha");
	manifest_line(text, sizeof(text), "b", "beta");
	put("step-1/MANIFEST", text, strlen(text));
	c = scan(w, CKPT_RUNNING);
	assert_false(c.found); /* b is not there */
	assert_true(skipped(w, "step-1"));
	put("step-1/b", "bet", 3);
	assert_false(scan(w, CKPT_EXITED).found); /* b has another size */
	put("step-1/b", "beta", 4);
	c = scan(w, CKPT_RUNNING);
	assert_true(c.found);
	assert_string_equal(c.name, "step-1");
	assert_int_equal(c.seq, 1);
	assert_int_equal(c.files, 2);
	assert_int_equal(c.bytes, 9);
	assert_int_equal(ckpt_verify(dir, "step-1", &d), 0);
	assert_int_equal(scan(w, CKPT_RUNNING).seq, 1);
	put("step-1/b", "bety", 4);
	assert_int_equal(ckpt_verify(dir, "step-1", &d), -EBADMSG);
	assert_non_null(strstr(d.where, "b"));
	/* Saved within one tick of the clock: the number tells which is newer, not its first digit. */
	{
		const struct timespec same[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
		static const char *const names[] = { "step-999", "step-1000" };
		char path[300];

		text[0] = '\0';
		manifest_line(text, sizeof(text), "a", "alpha");
		for (size_t i = 0; i < 2; i++) {
			make_dir(names[i]);
			(void)snprintf(path, sizeof(path), "%s/a", names[i]);
			put(path, "alpha", 5);
			(void)snprintf(path, sizeof(path), "%s/MANIFEST", names[i]);
			put(path, text, strlen(text));
			(void)snprintf(path, sizeof(path), "%s/%s/MANIFEST", dir, names[i]);
			assert_int_equal(utimensat(AT_FDCWD, path, same, 0), 0);
		}
		(void)snprintf(path, sizeof(path), "%s/step-1", dir);
		assert_int_equal(dir_remove_all(path), 0);
		assert_string_equal(scan(w, CKPT_RUNNING).name, "step-1000");
		(void)snprintf(path, sizeof(path), "%s/step-999", dir);
		assert_int_equal(dir_remove_all(path), 0);
	}
	/* A newer one that is half there does not hide the older. */
	manifest_line(text, sizeof(text), "b", "beta");
	make_dir("step-2000");
	put("step-2000/MANIFEST", text, strlen(text));
	c = scan(w, CKPT_RUNNING);
	assert_string_equal(c.name, "step-1000");
	make_dir(".step-3");
	put(".step-3/a", "alpha", 5);
	assert_true(scan(w, CKPT_RUNNING).found);
	assert_true(skipped(w, ".step-3"));
	ckpt_watch_free(w);
}

static void test_manifest_outside(void **state)
{
	struct ckpt_watch *w = watch(JOB_CKPT_MANIFEST, 0);
	char text[500] = "";

	put("x", "alpha", 5);
	make_dir("s");
	manifest_line(text, sizeof(text), "../x", "alpha");
	put("s/MANIFEST", text, strlen(text));
	assert_false(scan(w, CKPT_EXITED).found);
	text[0] = '\0';
	manifest_line(text, sizeof(text), "/etc/passwd", "alpha");
	put("s/MANIFEST", text, strlen(text));
	assert_false(scan(w, CKPT_EXITED).found);
	/* A link is not followed: neither as a file nor as a folder. */
	{
		char path[300];

		(void)snprintf(path, sizeof(path), "%s/s/l", dir);
		assert_int_equal(symlink("../x", path), 0);
	}
	text[0] = '\0';
	manifest_line(text, sizeof(text), "l", "alpha");
	put("s/MANIFEST", text, strlen(text));
	assert_false(scan(w, CKPT_EXITED).found);
	ckpt_watch_free(w);
}

static void test_files(void **state)
{
	struct ckpt_watch *w = watch(JOB_CKPT_AUTO, 50 * NS_PER_MS);
	struct ckpt_commit c;
	int fd;

	assert_false(scan(w, CKPT_RUNNING).found);
	put("hpc_ckpt_1.ckpt", "one", 3);
	c = scan(w, CKPT_RUNNING);
	assert_false(c.found);
	assert_true(c.settling && c.wait_ns > 0);
	while (!(c = scan(w, CKPT_RUNNING)).found)
		(void)poll(NULL, 0, 5);
	assert_string_equal(c.name, "hpc_ckpt_1.ckpt");
	assert_int_equal(c.seq, 1);
	put("hpc_ckpt_2.ckpt.tmp", "tw", 2);
	c = scan(w, CKPT_RUNNING);
	assert_int_equal(c.seq, 1);
	assert_false(c.settling); /* a temporary name is nobody's business */
	assert_true(skipped(w, "hpc_ckpt_2.ckpt.tmp"));
	/* Open for writing: never complete, however long it rests. */
	{
		char path[300];

		(void)snprintf(path, sizeof(path), "%s/hpc_ckpt_2.ckpt", dir);
		fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	}
	assert_int_equal(write(fd, "tw", 2), 2);
	(void)poll(NULL, 0, 80);
	c = scan(w, CKPT_RUNNING);
	assert_true(c.found && c.settling);
	assert_int_equal(c.seq, 1);
	assert_true(skipped(w, "hpc_ckpt_2.ckpt"));
	assert_false(skipped(w, "hpc_ckpt_1.ckpt"));
	/* Frozen: waiting will not help. */
	c = scan(w, CKPT_FROZEN);
	assert_true(c.settling && c.wait_ns == 0);
	(void)close(fd);
	while ((c = scan(w, CKPT_RUNNING)).seq == 1)
		(void)poll(NULL, 0, 5);
	assert_string_equal(c.name, "hpc_ckpt_2.ckpt");
	assert_int_equal(c.files, 2);
	assert_false(skipped(w, "hpc_ckpt_2.ckpt"));
	/* A program that ended by itself has written what it wanted. */
	put("hpc_ckpt_3.ckpt", "three", 5);
	c = scan(w, CKPT_EXITED);
	assert_int_equal(c.seq, 3);
	ckpt_watch_free(w);
}

/* ---- kill -9 at random moments ---- */

#define PARTS 4
#define PART_BYTES 6000

static void beat(void)
{
	uint64_t now = clock_boot_ns(), pause = now - pulse->last_ns;

	if (pulse->inside && pause > pulse->pause_ns)
		pulse->pause_ns = pause;
	pulse->last_ns = now;
}

static uint64_t longest_pause(void)
{
	uint64_t now = pulse->inside ? clock_boot_ns() - pulse->last_ns : 0;

	return MAX(now, pulse->pause_ns);
}

static void part_fill(char *buf, uint64_t step)
{
	for (size_t i = 0; i < PART_BYTES; i += 8)
		memcpy(buf + i, &step, 8);
}

static void child_put(const char *path, const char *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	/* In pieces, so that a kill finds the middle. */
	for (size_t at = 0; at < len; at += 1500) {
		if (write(fd, bytes + at, MIN((size_t)1500, len - at)) < 0)
			_exit(1);
		beat();
	}
	(void)fsync(fd);
	(void)close(fd);
	beat();
}

/* By the contract: a folder, its manifest, a rename. */
static void save_manifest(uint64_t step)
{
	char buf[PART_BYTES], tmp[200], path[300], text[1000] = "", final[200];

	part_fill(buf, step);
	(void)snprintf(tmp, sizeof(tmp), "%s/.new", dir);
	(void)snprintf(final, sizeof(final), "%s/step-%llu", dir, (unsigned long long)step);
	(void)dir_remove_all(tmp);
	(void)mkdir(tmp, 0755);
	for (int i = 0; i < PARTS; i++) {
		unsigned char digest[32];
		char hex[65];

		(void)snprintf(path, sizeof(path), "%s/part%d", tmp, i);
		child_put(path, buf, sizeof(buf));
		(void)SHA256((unsigned char *)buf, sizeof(buf), digest);
		hex_encode(digest, 32, hex);
		(void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d %s part%d\n", PART_BYTES, hex, i);
	}
	(void)snprintf(path, sizeof(path), "%s/MANIFEST", tmp);
	child_put(path, text, strlen(text));
	(void)rename(tmp, final);
	if (step > 2) {
		(void)snprintf(path, sizeof(path), "%s/step-%llu", dir, (unsigned long long)step - 2);
		(void)dir_remove_all(path);
	}
}

/* An unmodified program: several files, written in place under their last names. */
static void save_plain(uint64_t step)
{
	char buf[PART_BYTES], path[300];

	part_fill(buf, step);
	beat();
	pulse->inside = true;
	for (int i = 0; i < PARTS; i++) {
		(void)snprintf(path, sizeof(path), "%s/s%llu_part%d.pt", dir, (unsigned long long)step, i);
		child_put(path, buf, sizeof(buf));
	}
	for (int i = 0; step > 2 && i < PARTS; i++) {
		(void)snprintf(path, sizeof(path), "%s/s%llu_part%d.pt", dir, (unsigned long long)step - 2, i);
		(void)unlink(path);
	}
	beat();
	pulse->inside = false;
}

static pid_t writer(void (*save)(uint64_t step), uint64_t first, unsigned rest_ms, int done_fd)
{
	pid_t pid = fork();

	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when a check fails while it is stopped */
		for (uint64_t step = first;; step++) {
			save(step);
			if (write(done_fd, &step, sizeof(step)) < 0)
				_exit(1);
			(void)poll(NULL, 0, (int)rest_ms);
		}
	}
	assert_true(pid > 0);
	return pid;
}

/* The step of a whole set at these paths, or 0. */
static uint64_t load(const char *fmt, const char *name)
{
	uint64_t step = 0;

	for (int i = 0; i < PARTS; i++) {
		char path[400];
		CLEANUP_FREE char *text = NULL;
		size_t len;

		(void)snprintf(path, sizeof(path), fmt, dir, name, i);
		if (file_read(path, 1 << 20, &text, &len) < 0 || len != PART_BYTES)
			return 0;
		for (size_t at = 0; at < len; at += 8) {
			uint64_t v;

			memcpy(&v, text + at, 8);
			if (!step)
				step = v;
			if (v != step)
				return 0;
		}
	}
	return step;
}

static uint64_t drain(int fd, uint64_t last)
{
	uint64_t step;

	while (read(fd, &step, sizeof(step)) == sizeof(step))
		last = step;
	return last;
}

static unsigned rounds(unsigned normal)
{
	const char *text = getenv("RECLAIM_KILL_ROUNDS");

	return text ? (unsigned)atoi(text) : normal;
}

static void test_kill_manifest(void **state)
{
	struct ckpt_watch *w = watch(JOB_CKPT_AUTO, 0);
	struct rng rng;
	uint64_t finished = 0;
	int fds[2];

	print_message("seed 1\n");
	rng_init(&rng, 1);
	assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
	for (unsigned round = 0; round < rounds(1000); round++) {
		pid_t pid = writer(save_manifest, finished + 1, 0, fds[1]);
		struct ckpt_commit c;
		uint64_t got;

		(void)usleep((useconds_t)rng_below(&rng, 6000)); /* the random moment itself */
		(void)kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		finished = drain(fds[0], finished);
		c = scan(w, CKPT_FROZEN);
		if (!c.found) {
			assert_int_equal(finished, 0);
			continue;
		}
		got = load("%s/%s/part%d", c.name);
		if (got == 0 || got < finished)
			fail_msg("round %u: offered %s (step %llu), finished %llu", round, c.name,
				 (unsigned long long)got, (unsigned long long)finished);
		finished = got; /* renamed, but killed before it could say so */
	}
	assert_true(finished > 0);
	ckpt_watch_free(w);
	(void)close(fds[0]);
	(void)close(fds[1]);
}

static void test_kill_plain(void **state)
{
	uint64_t settle = 8 * NS_PER_MS, finished = 0, settled = 0;
	struct ckpt_watch *w = watch(JOB_CKPT_FILES, settle);
	struct rng rng;
	unsigned judged = 0;
	int fds[2];

	print_message("seed 2\n");
	rng_init(&rng, 2);
	assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
	for (unsigned round = 0; round < rounds(1000) / 4; round++) {
		*pulse = (struct pulse){ 0 };
		pid_t pid = writer(save_plain, finished + 1, 20, fds[1]);
		uint64_t until = clock_boot_ns() + rng_below(&rng, 40 * NS_PER_MS);
		struct ckpt_commit c = { 0 };

		/* As the agent does: looks when something changes and when it has settled. Each set
		 * that is offered while the writer runs is whole and stays so until it is removed. */
		while (clock_boot_ns() < until) {
			struct pollfd pfd = { .fd = ckpt_watch_fd(w), .events = POLLIN };

			(void)poll(&pfd, 1, c.settling ? 2 : 5);
			c = scan(w, CKPT_RUNNING);
		}
		(void)kill(pid, SIGSTOP); /* the set must be read before it is overwritten */
		(void)waitpid(pid, NULL, WUNTRACED);
		c = scan(w, CKPT_FROZEN);
		if (c.found && longest_pause() < settle) {
			char number[32];
			uint64_t got;

			(void)snprintf(number, sizeof(number), "%llu", strtoull(c.name + 1, NULL, 10));
			got = load("%s/s%s_part%d.pt", number);
			if (got == 0 || got < settled)
				fail_msg("round %u: offered %s (step %llu), settled %llu", round, c.name,
					 (unsigned long long)got, (unsigned long long)settled);
			settled = got;
			judged++;
		}
		(void)kill(pid, SIGKILL);
		(void)waitpid(pid, NULL, 0);
		finished = drain(fds[0], finished);
	}
	print_message("%u rounds judged\n", judged);
	assert_true(judged > 0);
	ckpt_watch_free(w);
	(void)close(fds[0]);
	(void)close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_manifest, setup, teardown),
		cmocka_unit_test_setup_teardown(test_manifest_outside, setup, teardown),
		cmocka_unit_test_setup_teardown(test_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kill_manifest, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kill_plain, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
