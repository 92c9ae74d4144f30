/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intervals. What a job loses per second of running is
 *
 *     stall/tau + rate_eff * (tau/2 + lag),  rate_eff = depart * P(miss) + crash
 *
 * P(miss) itself grows with what is unsaved and unsent, that is with tau, so
 * the two are solved together, by search. On a link where the
 * copies of all jobs would need more than its budget, each byte gets a price;
 * prices are found link by link by bisection, round after round (dual
 * ascent), until none moves.
 */
#include "policy/interval.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

#define ROUNDS_MAX 60
#define SCAN 24
#define TAU_MAX 1e9

double interval_young(double stall_s, double rate_per_s)
{
	return rate_per_s > 0 ? sqrt(2 * stall_s / rate_per_s) : INFINITY;
}

double interval_daly(double stall_s, double rate_per_s)
{
	if (!(rate_per_s > 0))
		return INFINITY;
	double mu = 1 / rate_per_s;
	if (stall_s >= 2 * mu)
		return mu;
	double x = sqrt(stall_s / (2 * mu));
	return sqrt(2 * stall_s * mu) * (1 + x / 3 + x * x / 9) - stall_s;
}

/* Bytes that must travel at notice, on average, when copies leave every tau seconds. */
static double move_bytes(const struct interval_job *j, double interval_s)
{
	double grown = j->bytes_delta + j->bytes_per_s * interval_s / 2;
	return fmin(j->bytes_full, grown);
}

double interval_p_miss(const struct interval_job *j, double interval_s)
{
	if (j->windows_count == 0)
		return 1;
	/* Neighbours that leave at the same time share the path. */
	double bps = j->path_bps / (1 + fmax(j->neighbours, 0));
	double bytes = move_bytes(j, interval_s);
	double need = j->save_s + (bytes > 0 ? bytes / bps : 0); /* no path: never */
	double miss = 0;
	for (size_t i = 0; i < j->windows_count; i++) {
		/* Not a step: bandwidth is only known to some 15 %. */
		double w = j->windows_s[i];
		if (need <= 0)
			continue;
		double x = (w - need) / (0.15 * need);
		miss += !(need < INFINITY) ? 1 : 1 / (1 + exp(fmin(fmax(1.7 * x, -60), 60)));
	}
	return miss / (double)j->windows_count;
}

static double rate_eff(const struct interval_job *j, double tau, double *ret_p_miss)
{
	double p = interval_p_miss(j, tau);
	if (ret_p_miss)
		*ret_p_miss = p;
	return j->depart_per_s * p + j->crash_per_s;
}

static double loss_at(const struct interval_job *j, double half_cost, double tau)
{
	return half_cost / tau + rate_eff(j, tau, NULL) * tau / 2;
}

/*
 * One job at given prices. Where P(miss) does not move with tau this is
 * Young's root; elsewhere the loss may have two valleys (fit the window, or
 * give it up), so it is searched: a coarse scan, then golden sections.
 */
static double solve_one(const struct interval_job *j, double price)
{
	double half_cost = (j->weight * j->stall_s + j->bytes_delta * price) / j->weight;
	double lo = j->interval_min_s, hi = j->interval_max_s > 0 ? j->interval_max_s : TAU_MAX;
	double least = j->depart_per_s * interval_p_miss(j, 0) + j->crash_per_s;
	double longest = fmin(fmax(interval_young(half_cost, least), lo), hi);
	if (j->windows_count == 0 || j->bytes_per_s <= 0 || j->bytes_delta >= j->bytes_full)
		return longest;
	double most = rate_eff(j, TAU_MAX, NULL);
	double shortest = fmin(fmax(interval_young(half_cost, most), lo), hi);
	if (!(shortest > 0) || !(longest < INFINITY))
		return longest;
	/* The best lies between the roots of the least and the greatest rate. */
	double step = pow(longest / shortest, 1.0 / SCAN), best = shortest, best_loss = INFINITY;
	double tau = shortest;
	for (int i = 0; i <= SCAN; i++, tau *= step) {
		double l = loss_at(j, half_cost, tau);
		if (l < best_loss) {
			best_loss = l;
			best = tau;
		}
	}
	double a = fmax(best / step, shortest), b = fmin(best * step, longest);
	for (int i = 0; i < 30 && b - a > 1e-6 * b; i++) {
		double x = b - (b - a) * 0.6180339887, y = a + (b - a) * 0.6180339887;
		if (loss_at(j, half_cost, x) <= loss_at(j, half_cost, y))
			b = y;
		else
			a = x;
	}
	return (a + b) / 2;
}

static double link_price(const struct interval_job *j, const double *prices)
{
	double sum = 0;
	for (size_t i = 0; i < j->links_count; i++)
		sum += prices[j->links[i]];
	return sum;
}

/* The jobs that cross each link. */
struct crossing {
	size_t *first;
	uint32_t *jobs;
};

static int crossing_make(const struct interval_job *jobs, size_t jobs_count, size_t links_count,
			 struct crossing *ret)
{
	size_t total = 0;
	for (size_t i = 0; i < jobs_count; i++)
		total += jobs[i].links_count;
	ret->first = calloc(links_count + 2, sizeof(size_t));
	ret->jobs = malloc((total + 1) * sizeof(uint32_t));
	if (!ret->first || !ret->jobs)
		return -ENOMEM;
	for (size_t i = 0; i < jobs_count; i++)
		for (size_t k = 0; k < jobs[i].links_count; k++)
			ret->first[jobs[i].links[k] + 2]++;
	for (size_t l = 2; l < links_count + 2; l++)
		ret->first[l] += ret->first[l - 1];
	for (size_t i = 0; i < jobs_count; i++)
		for (size_t k = 0; k < jobs[i].links_count; k++)
			ret->jobs[ret->first[jobs[i].links[k] + 1]++] = (uint32_t)i;
	return 0;
}

static double use_at(const struct interval_job *jobs, const struct crossing *c, size_t link,
		     double price, const double *prices)
{
	double use = 0;
	for (size_t k = c->first[link]; k < c->first[link + 1]; k++) {
		const struct interval_job *j = &jobs[c->jobs[k]];
		double others = link_price(j, prices) - prices[link];
		double tau = solve_one(j, fmax(others, 0) + price);
		use += tau > 0 && tau < TAU_MAX ? j->bytes_delta / tau : 0;
	}
	return use;
}

/* The least price at which the link carries what crosses it. */
static double price_find(const struct interval_job *jobs, const struct crossing *c, size_t link,
			 double budget, const double *prices)
{
	if (c->first[link] == c->first[link + 1] || use_at(jobs, c, link, 0, prices) <= budget)
		return 0;
	double lo = 0, hi = 1e-12;
	while (hi < 1e9 && use_at(jobs, c, link, hi, prices) > budget) {
		lo = hi;
		hi *= 4;
	}
	for (int i = 0; i < 50; i++) {
		double mid = (lo + hi) / 2;
		if (use_at(jobs, c, link, mid, prices) > budget)
			lo = mid;
		else
			hi = mid;
		if (hi - lo <= 1e-7 * hi)
			break;
	}
	return hi;
}

static void answer(const struct interval_job *j, double tau, double price, struct interval *ret)
{
	ret->rate_eff = rate_eff(j, tau, &ret->p_miss);
	ret->interval_s = ret->rate_eff > 0 || j->interval_max_s > 0 ? tau : INFINITY;
	if (tau >= TAU_MAX)
		ret->interval_s = INFINITY;
	ret->copy_every_s = ret->interval_s;
	ret->loss_share = (ret->interval_s < INFINITY ? j->stall_s / fmax(tau, 1e-9) : 0) +
			  ret->rate_eff * fmin(tau, TAU_MAX) / 2;
	(void)price;
}

int interval_solve(const struct interval_job *jobs, size_t jobs_count,
		   const struct interval_link *links, size_t links_count, struct interval *ret,
		   double *ret_prices)
{
	struct crossing c = { 0 };
	CLEANUP_FREE double *prices = calloc(links_count + 1, sizeof(double));
	int r = crossing_make(jobs, jobs_count, links_count, &c);
	int rounds = 0;
	if (!prices)
		r = -ENOMEM;
	for (bool moved = true; r == 0 && moved && rounds < ROUNDS_MAX; rounds++) {
		moved = false;
		for (size_t l = 0; l < links_count; l++) {
			double next = price_find(jobs, &c, l, links[l].budget_bps, prices);
			if (fabs(next - prices[l]) > 1e-4 * fmax(next, prices[l]))
				moved = true;
			prices[l] = next;
		}
	}
	if (r == 0) {
		for (size_t i = 0; i < jobs_count; i++) {
			double price = link_price(&jobs[i], prices);
			answer(&jobs[i], solve_one(&jobs[i], price), price, &ret[i]);
			/* The golden ratio spreads any number of phases evenly. */
			double turn = fmod((double)(i + 1) * 0.61803398874989485, 1);
			ret[i].phase_s = ret[i].interval_s < INFINITY ?
						 turn * ret[i].interval_s : 0;
		}
		if (ret_prices)
			memcpy(ret_prices, prices, links_count * sizeof(double));
		r = rounds;
	}
	free(c.first);
	free(c.jobs);
	return r;
}

double interval_accrue(double rate, double cost_s, double dt_s)
{
	return cost_s > 0 ? sqrt(fmax(rate, 0) / (2 * cost_s)) * dt_s : rate > 0 ? INFINITY : 0;
}

double interval_next(const double *rates, size_t count, double step_s, double scale_eff,
		     double cost_s, double done)
{
	double left = 1 - done;
	if (left <= 0)
		return 0;
	for (size_t i = 0; i < count; i++) {
		double gain = interval_accrue(rates[i] * scale_eff, cost_s, step_s);
		if (gain >= left)
			return ((double)i + left / gain) * step_s;
		left -= gain;
	}
	/* Beyond the forecast its last rate goes on. */
	double gain = count > 0 ? interval_accrue(rates[count - 1] * scale_eff, cost_s, step_s) : 0;
	return gain > 0 ? ((double)count + left / gain) * step_s : INFINITY;
}

bool interval_skip(double p_fail, double unsaved_s, double next_in_s, double stall_s)
{
	return p_fail * (unsaved_s + next_in_s) < stall_s;
}

double interval_last_save(double window_s, double (*cdf)(void *ctx, double x_s), void *ctx)
{
	/* The function need not be smooth: a scan, then a finer one around the best. */
	double best = 0, best_x = 0, lo = 0, hi = window_s;
	for (int round = 0; round < 3; round++) {
		double width = (hi - lo) / 128;
		for (int i = 0; i <= 128; i++) {
			double x = lo + width * i, value = (window_s - x) * cdf(ctx, x);
			if (value > best) {
				best = value;
				best_x = x;
			}
		}
		lo = fmax(best_x - width, 0);
		hi = fmin(best_x + width, window_s);
	}
	return best > 0 ? best_x : window_s;
}
