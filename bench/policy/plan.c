/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long one plan takes: RECLAIMS machines of a campus of NODES leave at the
 * same moment, in whole rooms, each with a job; all are placed and admitted
 * jointly. Prints JSON lines.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "policy/placement.h"

#define ROOM 25
#define ROOMS_PER_BUILDING 4

static int double_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int campus(struct network *net, uint32_t nodes)
{
	uint32_t buildings = (nodes + ROOM * ROOMS_PER_BUILDING - 1) / (ROOM * ROOMS_PER_BUILDING);
	if (network_point_add(net) < 0)
		return -1;
	for (uint32_t b = 1; b <= buildings; b++) {
		if (network_point_add(net) < 0 ||
		    network_link_add(net, b, 0, 1.25e9, 0.6 * 1.25e9, 0.9, 1e-4) < 0 ||
		    network_link_add(net, 0, b, 1.25e9, 0.6 * 1.25e9, 0.9, 1e-4) < 0)
			return -1;
	}
	for (uint32_t i = 0; i < nodes; i++)
		if (network_node_add(net, 1 + i / (ROOM * ROOMS_PER_BUILDING), 125e6, 0, 0.9) < 0)
			return -1;
	return network_route(net);
}

int main(int argc, char **argv)
{
	uint32_t nodes = argc > 1 ? (uint32_t)atoi(argv[1]) : 10000;
	uint32_t reclaims = argc > 2 ? (uint32_t)atoi(argv[2]) : 1000;
	int rounds = argc > 3 ? atoi(argv[3]) : 200;
	struct network net = NETWORK_INIT;
	struct rng r;
	CLEANUP_FREE struct placement_node *n = calloc(nodes + 1u, sizeof(*n));
	CLEANUP_FREE struct placement_job *jobs = calloc(reclaims + 1u, sizeof(*jobs));
	CLEANUP_FREE struct placement *out = calloc(reclaims + 1u, sizeof(*out));
	CLEANUP_FREE double *ms = calloc((size_t)rounds + 1, sizeof(double));
	if (!n || !jobs || !out || !ms || nodes < reclaims || campus(&net, nodes) < 0)
		return 1;
	rng_init(&r, 1);
	uint64_t moved = 0, staged = 0, fell = 0;
	for (int round = 0; round < rounds; round++) {
		for (uint32_t i = 0; i < nodes; i++)
			n[i] = (struct placement_node){ .slots_free = (uint32_t)rng_below(&r, 2),
							.slot_kind = 1,
							.gpu_type = 1 + i % 3,
							.gpu_mem_bytes = UINT64_C(24) << 30,
							.mem_free_bytes = UINT64_C(64) << 30,
							.disk_free_bytes = UINT64_C(500) << 30,
							.isa_level = 3,
							.glibc = 2036,
							.lent = rng_below(&r, 10) > 3,
							.room = i / ROOM,
							.hazard_per_s = rng_exponential(&r, 6e-5),
							.survival = -1,
							.window_s = 60 };
		for (uint32_t j = 0; j < reclaims; j++) {
			/* Whole rooms, spread over the campus. */
			uint32_t room = (j / ROOM) * (nodes / ROOM) / (reclaims / ROOM + 1);
			uint32_t source = room * ROOM + j % ROOM;
			static const double windows[] = { 7, 30, 60, 120, 300, 600 };
			n[source].lent = false;
			jobs[j] = (struct placement_job){
				.id = j,
				.slots = 1,
				.slot_kind = 1,
				.gpu_type = (uint32_t)rng_below(&r, 4),
				.source = source,
				.window_s = windows[rng_below(&r, 6)],
				.save_s = 1 + 8 * rng_unit(&r),
				.image_bytes = 2e8 + rng_exponential(&r, 1.5e9),
				.unsaved_work_s = rng_exponential(&r, 900),
				.restart_s = 30,
				.remaining_s = 3600 * (1 + 9 * rng_unit(&r)),
				.loss_per_reclaim_s = 300,
			};
		}
		struct timespec a, b;
		clock_gettime(CLOCK_MONOTONIC, &a);
		if (placement_plan(&net, n, nodes, jobs, reclaims, NULL, 0, NULL, out) < 0)
			return 1;
		clock_gettime(CLOCK_MONOTONIC, &b);
		ms[round] = (double)(b.tv_sec - a.tv_sec) * 1e3 +
			    (double)(b.tv_nsec - a.tv_nsec) / 1e6;
		for (uint32_t j = 0; j < reclaims; j++) {
			moved += out[j].verdict == PLACEMENT_MOVE;
			staged += out[j].verdict == PLACEMENT_STAGE;
			fell += out[j].verdict == PLACEMENT_FALLBACK;
		}
	}
	qsort(ms, (size_t)rounds, sizeof(double), double_order);
	printf("{\"bench\":\"plan\",\"case\":\"%u_reclaims_%u_nodes\",\"system\":\"reclaim\","
	       "\"metric\":\"p50_ms\",\"value\":%.3f,\"unit\":\"ms\",\"n\":%d}\n",
	       reclaims, nodes, ms[rounds / 2], rounds);
	printf("{\"bench\":\"plan\",\"case\":\"%u_reclaims_%u_nodes\",\"system\":\"reclaim\","
	       "\"metric\":\"p99_ms\",\"value\":%.3f,\"unit\":\"ms\",\"n\":%d}\n",
	       reclaims, nodes, ms[(size_t)rounds * 99 / 100], rounds);
	fprintf(stderr, "moved %.1f, staged %.1f, fell back %.1f per plan\n",
		(double)moved / rounds, (double)staged / rounds, (double)fell / rounds);
	network_done(&net);
	return 0;
}
