/* SPDX-License-Identifier: Apache-2.0 */
/* The native twin of collatz.js: a block's number on stdin, "start steps" on stdout. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#define SIZE 200000u

int main(void)
{
	uint64_t i, best = 0;
	int best_steps = -1;
	if (scanf("%" SCNu64, &i) != 1 || i * SIZE > UINT64_C(1) << 40) {
		fprintf(stderr, "not a block\n");
		return 1;
	}
	for (uint64_t n = i * SIZE + 1; n <= (i + 1) * SIZE; n++) {
		uint64_t x = n;
		int steps = 0;
		for (; x != 1; steps++)
			x = x % 2 == 0 ? x / 2 : (3 * x + 1) / 2;
		if (steps > best_steps) {
			best = n;
			best_steps = steps;
		}
	}
	printf("%" PRIu64 " %d", best, best_steps);
	return 0;
}
