/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by hazard.c (observing), hazard_fit.c (learning), hazard_forecast.c (answering). */
#ifndef RECLAIM_POLICY_HAZARD_INTERNAL_H
#define RECLAIM_POLICY_HAZARD_INTERNAL_H

#include "base/rng.h"
#include "base/vec.h"
#include "policy/hazard.h"

/*
 * The calendar and identity tables come first: both models have them. The
 * tables of the moment (from TABLE_DYN on) only the full model has; the plain
 * model says what is normal for the hour, and forecasts fall back to it as
 * the moment passes.
 */
enum table {
	TABLE_DAY_HOUR = 0, /* weekday or weekend x hour of day */
	TABLE_HOUR,         /* hour of week */
	TABLE_ROOM,
	TABLE_ROOM_HOUR,    /* room x hour of week */
	TABLE_ROOM_SLOT,    /* room x 10 minutes of the week: when classes start */
	TABLE_SLOT,         /* 10 minutes of the week, all rooms */
	TABLE_OWNER,
	TABLE_AGE,
	TABLE_AGE_PART,     /* age x part of the day x weekend */
	TABLE_ORIGIN,       /* how the machine became free x age */
	TABLE_DYN,
	TABLE_BURST = TABLE_DYN, /* reclaims in the room, last minutes, seen / expected */
	TABLE_ROOM_RECENT,  /* the same over the last hour or two */
	TABLE_USE,          /* share of the room's machines in use */
	TABLE_LEFT,         /* free machines left in the room */
	TABLE_LEAVING,      /* owners who left the room in the last minutes */
	TABLE_CAMPUS_HOUR,  /* campus, last hour, seen / expected */
	TABLE_CAMPUS_DAYS,  /* campus, last days */
	TABLE_OWNER_RECENT, /* this machine, last two weeks */
	TABLE_SIGNS,        /* signs of the owner */
	TABLE_COUNT
};
#define DYN_COUNT (TABLE_COUNT - TABLE_DYN)

#define SLOTS_PER_WEEK 1008
#define AGE_BINS 12
#define AGE_PARTS 16
#define ORIGIN_KINDS 6
#define ORIGIN_AGES 4
#define RATIO_BINS 11
#define DYN_BINS_MAX 16
/* A bin whose factor is 1 for good: the moment was not known yet. */
#define DYN_NONE 0

enum model { MODEL_PLAIN = 0, MODEL_FULL, MODEL_COUNT };

struct table_data {
	float *factor[MODEL_COUNT][HAZARD_CAUSE_COUNT];
	float *log_factor[MODEL_COUNT][HAZARD_CAUSE_COUNT];
	float *seen;     /* reclaims, at the last fit */
	float *expected; /* reclaims by the other factors, full model, at the last fit */
	size_t bins, cap;
	double usual[MODEL_COUNT][HAZARD_CAUSE_COUNT]; /* log of the factor that is usual where events are */
	double strength[MODEL_COUNT][HAZARD_CAUSE_COUNT]; /* pseudo-events of the prior */
};

/* What one owner was exposed to, between two cuts. */
struct cell {
	float exposed_s;
	float weight;    /* 1 / chance that it was kept */
	uint32_t owner;
	float end_day;   /* days since the model's first instant */
	uint16_t slot;   /* 10 minutes of the owner's week */
	uint8_t age, origin;
	uint8_t cause;   /* enum hazard_cause, or HAZARD_CAUSE_COUNT: nothing happened */
	uint8_t dyn[DYN_COUNT];
};

/* Seen and expected over a sliding past. */
struct recent {
	double seen, expected, at_s;
};

struct owner {
	uint32_t room;
	uint8_t state;
	uint8_t origin;       /* kind, see origin_kind() */
	uint8_t dyn[DYN_COUNT]; /* at the last cut */
	double offset_s;
	double since_s;       /* of the state */
	double cut_s;         /* exposure before this is accounted */
	double open_rate;     /* what the product said at the cut */
	double signs, signs_s;
	double exposed_s;
	uint64_t reclaims;
	struct recent recent;
	struct hazard_span *declared;
	size_t declared_count;
};

struct room {
	struct VEC(uint32_t) members;
	uint32_t counts[HAZARD_STATE_COUNT];
	struct recent burst, recent;
	double leaving, leaving_s;
	double flushed_s;
	double off_last_s, off_flushed_s; /* hazard_group.c */
	unsigned off_size;
};

#define GROUP_AGES 4
#define GROUP_SIZES 3
struct group_bin {
	double events, exposed_s;
};

#define FADES 128
#define EXPERTS_PLAIN 8
#define EXPERTS (EXPERTS_PLAIN + 1)
/* An adaptive rate with one memory. */
struct expert {
	double events[HAZARD_CAUSE_COUNT], exposed_s;
};

struct hazard {
	struct hazard_config config;
	struct rng rng;
	struct VEC(struct owner) owners;
	struct VEC(struct room) rooms;
	struct VEC(struct cell) cells;
	size_t cells_seen;     /* since the last thinning */
	double keep;           /* chance that an empty cell is kept */
	struct table_data tables[TABLE_COUNT];
	double base[MODEL_COUNT][HAZARD_CAUSE_COUNT]; /* per second */
	bool fitted;
	double start_s, now_s, next_tick_s, next_fit_s;
	uint64_t events[HAZARD_CAUSE_COUNT];
	double exposed_s;
	struct recent campus_hour, campus_days, campus_off;
	struct group_bin group[GROUP_AGES][GROUP_SIZES];
	struct expert experts[EXPERTS_PLAIN];
	double log_weight[EXPERTS]; /* the last is the product of tables */
	/* Exposure that is not accounted yet: of n lent machines since their cuts. */
	double open_count, open_rate_sum, open_rate_cut_sum;
	double experts_s;
	double weight[EXPERTS]; /* at weight_s, unless NAN */
	struct fade {
		double in_s, dyn[DYN_COUNT], calendar, level;
	} fades[FADES]; /* forecasts ask for the same instants ahead again and again */
	double expert_rate[HAZARD_CAUSE_COUNT][EXPERTS_PLAIN];
	double weight_s;
};

/* Power-offs follow the calendar; what the moment adds is not worth a model of its own. */
static inline enum model hazard_model_of(enum hazard_cause c)
{
	return c == HAZARD_RECLAIM ? MODEL_FULL : MODEL_PLAIN;
}

/* Where in every table an exposure falls. */
struct where {
	uint32_t bin[TABLE_COUNT];
};

size_t hazard_table_bins(const struct hazard *h, enum table t);
int hazard_tables_grow(struct hazard *h);
void hazard_where(const struct hazard *h, const struct owner *o, uint32_t owner, unsigned slot,
		  unsigned age_bin, unsigned origin, const uint8_t dyn[DYN_COUNT],
		  struct where *ret);
double hazard_product(const struct hazard *h, enum model m, enum hazard_cause c,
		      const struct where *w);
double hazard_log_product(const struct hazard *h, enum model m, enum hazard_cause c,
			  const struct where *w);
unsigned hazard_slot(const struct hazard *h, const struct owner *o, double now_s);
unsigned hazard_age_bin(double age_s);
extern const double hazard_age_edges_s[AGE_BINS - 1];
void hazard_dyn(struct hazard *h, uint32_t owner, double now_s, uint8_t ret[DYN_COUNT]);
void hazard_advance(struct hazard *h, double now_s);
/* Power-offs in groups: exposure up to now is accounted before a room changes, then the off. */
void hazard_group_flush(struct hazard *h, struct room *room, double now_s);
void hazard_group_off(struct hazard *h, struct room *room, double now_s, bool lent);
double hazard_group_rate(const struct hazard *h, const struct room *room, double at_s);
/* log of how many power-offs come these days, against the tables. */
double hazard_off_level(const struct hazard *h);
/* Rate of the mixture given the product's; `c` one cause. */
double hazard_mix(struct hazard *h, enum hazard_cause c, double product, double now_s);
void hazard_expert_rates(const struct hazard *h, enum hazard_cause c, double ret[EXPERTS_PLAIN]);
/* Of the experts, at now, open exposure included; valid until the next change. */
const double *hazard_weights(struct hazard *h, double now_s);

#endif
