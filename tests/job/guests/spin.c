/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed piece of work, timed by itself: spin cpu N | spin syscall N | spin disk PATH MIB |
 * spin for ever. Prints seconds of wall clock and of CPU.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t id)
{
	struct timespec ts;

	(void)clock_gettime(id, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static volatile uint64_t sink;

static void work(long n)
{
	uint64_t x = 88172645463325252ULL;

	for (long i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	sink = x;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "ever";
	double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);

	if (!strcmp(what, "cpu")) {
		work(atol(argv[2]));
	} else if (!strcmp(what, "syscall")) {
		for (long i = atol(argv[2]); i > 0; i--)
			(void)lseek(0, 0, SEEK_CUR);
	} else if (!strcmp(what, "disk")) {
		static char buf[1 << 20];
		int fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0600);

		for (long i = atol(argv[3]); i > 0; i--)
			if (write(fd, buf, sizeof(buf)) != (ssize_t)sizeof(buf))
				return 1;
		(void)fsync(fd);
		(void)close(fd);
		(void)unlink(argv[2]);
	} else {
		for (;;)
			work(1 << 20);
	}
	(void)printf("%.6f %.6f\n", now(CLOCK_MONOTONIC) - wall, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
	return 0;
}
