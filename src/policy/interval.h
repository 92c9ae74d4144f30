/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often to save. One job alone follows Young and Daly; jobs that share
 * links are solved together, with one price per congested link, on the rate
 * of reclaims that would really lose work (a reclaim whose last save and move
 * fit the owner's window loses nothing).
 *
 * Units: seconds, bytes, bytes per second, events per second. Sources: Young
 * 1974; Daly 2006; Ling, Mi, Lin 2001 (varying rate); Herault et al., IPDPSW
 * 2018 (shared I/O, one multiplier); Oliner et al. 2006 (skip rule).
 */
#ifndef RECLAIM_POLICY_INTERVAL_H
#define RECLAIM_POLICY_INTERVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Both INFINITY for rate 0. */
double interval_young(double stall_s, double rate_per_s);
double interval_daly(double stall_s, double rate_per_s);

/* What a reclaim of one job costs in time, given how its copies travel. */
struct interval_job {
	double weight;          /* slots that work or wait together, > 0 */
	double stall_s;         /* the job stands still this long per checkpoint */
	double save_s;          /* from notice to complete files */
	double restart_s;       /* restore at the destination: for downtime, not for loss */
	double bytes_full;      /* a whole image */
	double bytes_delta;     /* what one checkpoint moves right after another */
	double bytes_per_s;     /* unsaved bytes grow by this until bytes_full */
	double path_bps;        /* what a move at notice may count on (low quantile) */
	double depart_per_s;    /* reclaims and announced power-offs */
	double crash_per_s;     /* losses without any notice */
	const double *windows_s; /* notice windows this owner's reclaims come with, equally likely */
	size_t windows_count;   /* 0 = no notice ever */
	double neighbours;      /* others expected to leave with it over the same path (mass reclaim) */
	const uint32_t *links;  /* that background copies cross */
	size_t links_count;
	double interval_min_s, interval_max_s; /* bounds, e.g. what the guest can do; max 0 = none */
};

struct interval_link {
	double budget_bps; /* what background copies may use: share of the capacity */
};

struct interval {
	double interval_s;   /* between checkpoints; INFINITY = never worth it */
	double copy_every_s; /* between background copies; >= interval_s when the link is dear */
	double rate_eff;     /* events per second that lose work */
	double p_miss;       /* part of the reclaims that do not fit the window */
	double loss_share;   /* expected work loss of this job, as a share of its time */
	double phase_s;      /* first checkpoint after this: staggers co-resident jobs */
};

/*
 * Solves all jobs together. prices (one per link, may be NULL) receives the
 * price of a byte on each link, 0 where it is not congested. Returns the
 * number of rounds used, or -ENOMEM.
 */
int interval_solve(const struct interval_job *jobs, size_t jobs_count,
		   const struct interval_link *links, size_t links_count, struct interval *ret,
		   double *ret_prices);

/* The part of reclaims that miss: P(window < save + bytes over path), mass reclaims included. */
double interval_p_miss(const struct interval_job *job, double interval_s);

/* Varying rate: given rates ahead in steps (hazard_curve), seconds from now until the integral of
 * sqrt(rate_eff/2C) has grown by 1 - done (done: what has accrued since the last checkpoint). */
double interval_next(const double *rates, size_t count, double step_s, double scale_eff,
		     double cost_s, double done);
/* What accrues over dt seconds at this rate. */
double interval_accrue(double rate_eff, double cost_s, double dt_s);

/* Oliner: save only if what is risked until the next opportunity is worth the cost. */
bool interval_skip(double p_fail, double unsaved_s, double next_in_s, double stall_s);

/*
 * The last save in a window: start it X seconds before the end so that the
 * work kept, (window - X) * P(save and move take <= X), is greatest. `cdf`
 * gives that P. Returns X in [0, window_s].
 */
double interval_last_save(double window_s, double (*cdf)(void *ctx, double x_s), void *ctx);

#endif
