/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-back proof against the fake library (argv[1]), and the absence of any. */
#include "job/nvml.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *library;
static char world_path[] = "/tmp/reclaim-nvml-XXXXXX";
static struct nvml_gpus gpus;

static void world(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void world(const char *fmt, ...)
{
	FILE *f = fopen(world_path, "w");
	va_list args;

	assert_non_null(f);
	va_start(args, fmt);
	(void)vfprintf(f, fmt, args);
	va_end(args);
	(void)fclose(f);
}

static struct nvml *open_fake(void)
{
	struct nvml *n;
	struct diag d = { "", "" };

	assert_int_equal(nvml_open(library, &n, &d), 0);
	return n;
}

static enum nvml_free check(struct nvml *n, const struct nvml_baseline *b, char *why)
{
	struct diag d = { "", "" };

	assert_int_equal(nvml_list(n, &gpus, &d), 0);
	return nvml_is_free(&gpus.items[0], b, why, 300);
}

static void test_absent(void **state)
{
	struct nvml *n;
	struct diag d = { "", "" };

	assert_int_equal(nvml_open("/no/such/libnvidia-ml.so", &n, &d), -ENOENT);
	assert_non_null(strstr(d.what, "no NVML"));
	world("%s", "");
	assert_int_equal(nvml_open(library, &n, &d), -ENODEV);
	world("A100 GPU-a 0 100\n");
	(void)setenv("FAKE_NVML_DRIVER", "gone", 1);
	assert_int_equal(nvml_open(library, &n, &d), -ENODEV);
	assert_non_null(strstr(d.what, "Driver"));
	(void)unsetenv("FAKE_NVML_DRIVER");
}

static void test_two_types(void **state)
{
	struct nvml *n;
	struct diag d = { "", "" };

	world("A100 GPU-a 5 40960 %d:5\nT4 GPU-t 1 15360\n", (int)getpid());
	n = open_fake();
	assert_int_equal(nvml_list(n, &gpus, &d), 0);
	assert_int_equal(gpus.count, 2);
	assert_string_equal(gpus.items[0].name, "A100");
	assert_string_equal(gpus.items[1].name, "T4");
	assert_int_equal(gpus.items[1].memory_total, UINT64_C(15360) << 20);
	assert_int_equal(gpus.items[0].process_count, 1);
	assert_true(gpus.items[0].processes[0].alive);
	nvml_close(n);
}

static void test_hand_back(void **state)
{
	struct nvml_baseline b;
	struct nvml *n;
	char why[300], pid_text[32];
	uint32_t pid;
	pid_t guest = fork(), zombie;

	if (guest == 0) {
		(void)pause();
		_exit(0);
	}
	world("A100 GPU-a 300 40960 1:300\n"); /* pid 1: the owner's, there before */
	n = open_fake();
	assert_int_equal(nvml_list(n, &gpus, NULL), 0);
	nvml_baseline_take(&gpus.items[0], &b);
	assert_int_equal(check(n, &b, why), NVML_FREE);
	world("A100 GPU-a 20300 40960 1:300 %d:20000\n", (int)guest);
	assert_int_equal(check(n, &b, why), NVML_HELD);
	(void)snprintf(pid_text, sizeof(pid_text), "pid %d", (int)guest);
	assert_non_null(strstr(why, pid_text));
	assert_non_null(strstr(why, "20000 MiB"));
	/* The owner's own use: whoever is neither of before nor a guest. */
	assert_true(nvml_owner_uses(&gpus.items[0], &b, NULL, 0, &pid));
	assert_int_equal(pid, guest);
	pid = (uint32_t)guest;
	assert_false(nvml_owner_uses(&gpus.items[0], &b, &pid, 1, NULL));
	/* Dead, not reaped, its context still there. */
	(void)kill(guest, SIGKILL);
	{
		siginfo_t info;

		assert_int_equal(waitid(P_PID, (id_t)guest, &info, WEXITED | WNOWAIT), 0);
	}
	zombie = guest;
	assert_int_equal(check(n, &b, why), NVML_ZOMBIE);
	assert_non_null(strstr(why, "dead"));
	(void)waitpid(zombie, NULL, 0);
	/* Nobody is listed and memory lingers. */
	world("A100 GPU-a 2300 40960 1:300\n");
	assert_int_equal(check(n, &b, why), NVML_LINGERS);
	assert_non_null(strstr(why, "2300 MiB"));
	world("A100 GPU-a 350 40960 1:300\n"); /* within the slack */
	assert_int_equal(check(n, &b, why), NVML_FREE);
	world("A100 GPU-a 0 40960 lost\n");
	assert_int_equal(check(n, &b, why), NVML_LOST);
	assert_non_null(strstr(why, "lost"));
	nvml_close(n);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_absent),
		cmocka_unit_test(test_two_types),
		cmocka_unit_test(test_hand_back),
	};
	int fd = mkstemp(world_path), r;

	if (argc < 2 || fd < 0)
		return 2;
	library = argv[1];
	(void)close(fd);
	(void)setenv("FAKE_NVML", world_path, 1);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	(void)unlink(world_path);
	return r;
}
