/* SPDX-License-Identifier: Apache-2.0 */
/* Open MPI over its TCP transport; it always spins. Its processes come from mpirun, so it
 * has a main of its own, with the loops of bench.h. mpirun -n 2 bench_mpi as there. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	int rank, pingpong, size;
	size_t n = 0, cap = 4000000;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc < 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	pingpong = !strcmp(argv[1], "pingpong");
	size = atoi(argv[2]);
	uint64_t span = (uint64_t)(strtod(argv[3], NULL) * 1e9);
	char *buf = calloc(1, (size_t)size);
	if (rank == 1) {
		for (;;) {
			MPI_Recv(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (buf[0] == 1)
				continue;
			MPI_Send(buf, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
			if (buf[0] == 2)
				break;
		}
		MPI_Finalize();
		return 0;
	}
	uint64_t *t = malloc(cap * sizeof(*t)), warm = now_ns() + 200000000u;
	buf[0] = pingpong ? 0 : 1;
	while (now_ns() < warm) {
		MPI_Send(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		if (pingpong)
			MPI_Recv(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	uint64_t from = now_ns(), end = from + span;
	for (uint64_t at = from; at < end && n < cap;) {
		if (pingpong) {
			MPI_Send(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
			MPI_Recv(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			uint64_t now = now_ns();

			t[n++] = now - at;
			at = now;
		} else {
			for (int i = 0; i < (size >= 65536 ? 1 : 64); i++, n++)
				MPI_Send(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
			at = now_ns();
		}
	}
	buf[0] = 2;
	MPI_Send(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(buf, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	double s = (double)(now_ns() - from) / 1e9;
	if (pingpong) {
		qsort(t, n, sizeof(*t), cmp);
		printf("pingpong %.3f %.3f %zu\n", (double)t[n / 2] / 1000, (double)t[n * 99 / 100] / 1000, n);
	} else {
		printf("throughput %.0f %.3f\n", (double)n / s, (double)n * size / s / 1e6);
	}
	MPI_Finalize();
	return 0;
}
