/* SPDX-License-Identifier: Apache-2.0 */
/* Reproducible pseudo-random numbers: xoshiro256** (Blackman, Vigna 2018). */
#ifndef RECLAIM_BASE_RNG_H
#define RECLAIM_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng {
	uint64_t s[4];
};

void rng_init(struct rng *r, uint64_t seed);
uint64_t rng_u64(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* uniform in [0, n), n > 0 */
double rng_unit(struct rng *r);                /* uniform in [0, 1) */
double rng_normal(struct rng *r);
double rng_exponential(struct rng *r, double mean);

/* Bytes from the kernel, for keys and tokens: 0 or -errno. */
int random_bytes(void *ret, size_t len);

#endif
