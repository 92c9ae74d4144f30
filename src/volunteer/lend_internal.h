/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by lend.c (values, volunteers, loans) and lend_settle.c (results, votes, poison). */
#ifndef RECLAIM_VOLUNTEER_LEND_INTERNAL_H
#define RECLAIM_VOLUNTEER_LEND_INTERNAL_H

#include "base/map.h"
#include "base/vec.h"
#include "volunteer/lend.h"

#define RELEND_SAMPLES_MAX 4096
#define LOAN_RECORDS_MAX 64 /* per value; the oldest dead record goes when full */

enum loan_state {
	LOAN_ACTIVE, /* lent, in time */
	LOAN_LATE,   /* lent, no longer counted on; its result is still welcome */
	LOAN_LOST,   /* the volunteer left or does not have it */
	LOAN_FAILED, /* it said that the function failed */
	LOAN_VOTED,  /* its result is in votes */
};

struct loan {
	uint64_t volunteer;
	enum loan_state state;
	uint64_t lent_ms, deadline_ms;
};

struct vote {
	uint64_t volunteer;
	char *bytes;
	size_t len;
};

enum value_state { VALUE_OPEN, VALUE_SETTLED, VALUE_TAKEN };

struct value {
	enum value_state state;
	bool queued;      /* stands in l->open */
	uint32_t extra;   /* copies beyond the quorum: disagreement, stragglers */
	uint32_t active;  /* loans in LOAN_ACTIVE */
	uint32_t errors, losses;
	bool lost;        /* a loan of it was lost at lost_ms, and it was not lent again since */
	uint64_t lost_ms;
	char *bytes;
	size_t len;
	struct VEC(struct loan) loans;
	struct VEC(struct vote) votes;
	enum lend_outcome outcome;
	char *result;
	size_t result_len;
	uint64_t winner;
};

struct volunteer {
	uint64_t id;
	bool present, reachable, ready, stalled;
	uint32_t credit, workers, loans;
	uint32_t lies;
	double rate;              /* results per second */
	uint64_t window_start_ms; /* of the rate being measured */
	uint32_t window_results;
	uint64_t heard_ms, stalled_until_ms;
	uint32_t life_ms;         /* asked of it with its latest loan; 0 = never */
	uint64_t look_ms;         /* no loan of it is late before this */
	struct VEC(uint64_t) out; /* values it was lent and has not answered, in order */
};

struct cancel {
	uint64_t volunteer, value;
};

struct lend {
	struct lend_config config;
	struct value *ring; /* [window]: value id at id % window */
	uint64_t base, put; /* ids in [base, put) are kept */
	bool ended;
	struct map *volunteers;
	struct VEC(struct volunteer *) all;
	bool unqueued; /* a value wants to be lent and found no memory to stand in a queue */
	struct VEC(uint64_t) open;   /* ids that want to be lent, next first; [open_at..) */
	size_t open_at;
	struct VEC(uint64_t) again;  /* the same, to be served before: lost or late */
	size_t again_at;
	struct VEC(struct volunteer *) ready;
	size_t ready_at;
	struct VEC(uint64_t) out;    /* unordered: settled ids to be taken */
	size_t out_at;
	struct VEC(struct cancel) cancels;
	struct lend_stats stats;
	double loan_ms;              /* smoothed time from lent to result */
	uint64_t rate_start_ms;
	uint32_t rate_results;
	uint32_t relend_ms[RELEND_SAMPLES_MAX];
	size_t relend_count;
};

struct value *lend_value(const struct lend *l, uint64_t id); /* NULL unless kept */
struct volunteer *lend_volunteer(const struct lend *l, uint64_t id);
struct loan *lend_loan_of(struct value *v, uint64_t volunteer);
uint32_t lend_wanted(const struct lend *l, const struct value *v);
/* A loan stops being active: the volunteer has room again, unless it is only late. */
void lend_loan_end(struct lend *l, uint64_t id, struct value *v, struct loan *loan,
		   enum loan_state state);
void lend_queue(struct lend *l, uint64_t id, bool first);
void lend_settle(struct lend *l, uint64_t id, struct value *v, enum lend_outcome outcome,
		 char *bytes, size_t len, uint64_t winner);
void lend_check_poison(struct lend *l, uint64_t id, struct value *v);
void lend_mark_ready(struct lend *l, struct volunteer *w);

#endif
