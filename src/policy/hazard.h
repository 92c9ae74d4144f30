/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When will an owner take a machine back? A model of a whole campus that
 * learns from what it is told and answers in rates, probabilities and words.
 *
 * The rate at which a lent machine is reclaimed is a product: a base rate,
 * times one factor for each thing that is known (hour of week, room and hour,
 * this machine, how long it has been free, what its room and the campus did in
 * the last minutes, hours and days). Each factor is a table of bins; each bin
 * holds reclaims seen and reclaims expected by all other factors, and is
 * shrunk towards 1 by as much as the data of that table itself asks for. A
 * trace without calendar gets flat calendar tables, a new machine gets its
 * room's rate. Beside the product run plain adaptive rates; the answer is
 * their mixture, weighted by how well each has predicted so far.
 *
 * Power-off is a second cause with tables of its own over the same bins.
 *
 * Pure: no clock, no file. Times are seconds on the caller's clock and must
 * not go backwards. The coordinator keeps the observations and replays them
 * at start; nothing here is saved.
 */
#ifndef RECLAIM_POLICY_HAZARD_H
#define RECLAIM_POLICY_HAZARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAZARD_WEEK_S 604800.0
/* The first Monday 00:00 UTC of Unix time, for config.monday_s. */
#define HAZARD_MONDAY_UNIX (4 * 86400.0)

enum hazard_state {
	HAZARD_GONE = 0, /* not part of the campus: counts nowhere */
	HAZARD_LENT,     /* free for guests (or carrying one): exposed to a reclaim */
	HAZARD_OWNED,    /* its owner has it */
	HAZARD_OFF,      /* powered off, suspended or unreachable */
	HAZARD_STATE_COUNT
};

enum hazard_cause { HAZARD_RECLAIM = 0, HAZARD_POWER_OFF, HAZARD_CAUSE_COUNT };

struct hazard_config {
	double monday_s;   /* some Monday 00:00 UTC on the caller's clock */
	double tick_s;     /* exposure is cut at least this often; 0 = 600 */
	double history_s;  /* older exposure is forgotten at a fit; 0 = 400 days */
	size_t cells_max;  /* exposure cells kept (32 bytes each); beyond, a sample; 0 = 1 Mi */
	double fit_every_s; /* refit by itself this often; 0 = only in hazard_fit() */
	bool constant;     /* ablation: one campus rate, no factors */
	uint64_t seed;     /* of the sampling */
};

struct hazard;

/* 0 or -ENOMEM. */
int hazard_new(const struct hazard_config *config, struct hazard **ret);
void hazard_free(struct hazard *h);

#define HAZARD_ROOMS_MAX 65535
#define HAZARD_OWNERS_MAX 1000000
/* 0, -ENOMEM or -ENOSPC. A room is any group that shares a fate: a class room, a rack, a zone. */
int hazard_room_add(struct hazard *h, uint32_t *ret_room);
/* utc_offset_s: what to add to UTC for the owner's local time. Starts HAZARD_GONE. */
int hazard_owner_add(struct hazard *h, uint32_t room, double utc_offset_s, uint32_t *ret_owner);
void hazard_owner_zone(struct hazard *h, uint32_t owner, double utc_offset_s);

/*
 * The owner's machine is in this state from now on. LENT -> OWNED is a
 * reclaim, LENT -> OFF a power-off; the same state again changes nothing.
 * 0, or -ENOMEM (the state is kept, the exposure before it is lost).
 */
int hazard_observe(struct hazard *h, uint32_t owner, double now_s, enum hazard_state state);

/*
 * What the owner said in advance: in this part of the week the machine is not
 * lent. Certain, not a rate: forecasts that reach into it say 1. From and to in
 * local seconds since Monday 00:00; replaces what was declared before.
 */
struct hazard_span {
	double from_s, to_s;
};
#define HAZARD_DECLARED_MAX 64
int hazard_declare(struct hazard *h, uint32_t owner, const struct hazard_span *spans, size_t count);

/* Signs of the owner (keyboard, a door, own GPU use), 0 none to 1 strong: raises the rate for
 * some minutes, by a factor learned from what followed earlier signs. */
void hazard_activity(struct hazard *h, uint32_t owner, double now_s, double level);

/* Learns the tables anew from the kept exposure. Some 100 ns per cell and sweep. 0 or -ENOMEM. */
int hazard_fit(struct hazard *h, double now_s);

struct hazard_rate {
	double per_s;     /* reclaims per second, now */
	double low, high; /* 90 % band of per_s */
	double off_per_s; /* power-offs per second, now */
};
void hazard_rate(struct hazard *h, uint32_t owner, double now_s, struct hazard_rate *ret);

struct hazard_forecast {
	double p_reclaim; /* taken back by its owner within the horizon */
	double p_off;     /* gone by power-off first */
	double survival;  /* neither: 1 - p_reclaim - p_off */
	double low, high; /* 90 % band of survival */
	double declared_in_s; /* until the next declared end of lending; INFINITY = none */
};
void hazard_forecast(struct hazard *h, uint32_t owner, double now_s, double horizon_s,
		     struct hazard_forecast *ret);

/*
 * The rate ahead in steps of step_s, for intervals that follow it: ret[i] is
 * the mean rate (reclaim + power-off, per second) over [now + i*step, now + (i+1)*step).
 */
void hazard_curve(struct hazard *h, uint32_t owner, double now_s, double step_s, size_t count,
		  double *ret);

/* The same for one cause alone: a machine that keeps images must stay up, not stay lent. */
void hazard_curve_cause(struct hazard *h, uint32_t owner, enum hazard_cause cause, double now_s,
			double step_s, size_t count, double *ret);

/* Reclaims seen in the owner's room in the last minutes over what was to be expected: above 1,
 * a group is arriving and neighbours are no safe place. */
double hazard_room_shock(struct hazard *h, uint32_t owner, double now_s);

/*
 * Machines of a room go off in groups. The chance that this one follows those
 * that went just now, not within the next from_s but in the minutes after: what
 * a save that takes from_s could still rescue. 0 where none went off lately.
 */
double hazard_off_group(struct hazard *h, uint32_t owner, double now_s, double from_s);

/* The answer in parts, largest effect first, for people. */
struct hazard_reason {
	const char *name;   /* "hour of week", "room and hour", ... static text */
	double factor;      /* what it multiplies the rate by */
	double seen;        /* reclaims behind it */
	double expected;    /* reclaims the other factors expected there */
};
#define HAZARD_REASONS_MAX 24
/* Returns the count. ret_base_per_s: the campus base rate that the factors multiply. */
size_t hazard_explain(struct hazard *h, uint32_t owner, double now_s,
		      struct hazard_reason ret[HAZARD_REASONS_MAX], double *ret_base_per_s);

/* How much history stands behind an owner's answers. */
struct hazard_evidence {
	double exposed_s;  /* lent time observed */
	uint64_t reclaims; /* of this owner */
	uint64_t campus_reclaims;
};
void hazard_evidence(struct hazard *h, uint32_t owner, struct hazard_evidence *ret);

#endif
