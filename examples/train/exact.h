/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic with one right answer. libm's exp and log pick an implementation
 * by CPU, and a fused multiply-add rounds once where two operations round
 * twice; either would make the same training run end in different bits on
 * another machine. So: own exp and log from + - * / only, fused operations
 * off (-ffp-contract=off), and sums in one written-down order.
 */
#ifndef TRAIN_EXACT_H
#define TRAIN_EXACT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* exp(x), relative error below 1e-6; 0 below -87, no use above 87. */
static inline float exact_expf(float x)
{
	const float log2e = 1.44269504f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
	float n, r, p;
	uint32_t bits;

	if (x < -87.0f)
		return 0.0f;
	if (x > 87.0f)
		x = 87.0f;
	n = x * log2e + (x < 0 ? -0.5f : 0.5f);
	n = (float)(int)n;
	r = x - n * ln2_hi;
	r = r - n * ln2_lo;
	p = 1.9875691500e-4f; /* minimax coefficients of Cephes' expf */
	p = p * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * r * r + r + 1.0f;
	bits = (uint32_t)((int)n + 127) << 23;
	memcpy(&r, &bits, sizeof(r));
	return p * r;
}

/* ln(x) for finite x > 0, relative error below 1e-9. */
static inline double exact_log(double x)
{
	uint64_t bits;
	int e;
	double m, z, z2, sum = 0;

	memcpy(&bits, &x, sizeof(bits));
	e = (int)(bits >> 52) - 1022;
	bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3fe0000000000000);
	memcpy(&m, &bits, sizeof(m)); /* [0.5, 1) */
	z = (m - 0.75) / (m + 0.75);
	z2 = z * z;
	for (int k = 15; k >= 1; k -= 2) /* atanh series, |z| <= 0.2 */
		sum = sum * z2 + 1.0 / k;
	return 2.0 * z * sum + e * 0.69314718055994530942 - 0.28768207245178092744;
}

/* Eight running sums, then one fixed tree: the compiler may vectorise it as
 * it stands, without permission to reorder anything. */
static inline float exact_dot(const float *a, const float *b, size_t n)
{
	float s[8] = { 0 };
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		for (size_t k = 0; k < 8; k++)
			s[k] += a[i + k] * b[i + k];
	for (; i < n; i++)
		s[0] += a[i] * b[i];
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static inline void exact_axpy(float *restrict y, float a, const float *restrict x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		y[i] += a * x[i];
}

#endif
