/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lending of values to volunteers: every value's result is delivered exactly
 * once, whatever volunteers do.
 *
 * A value is lent to one volunteer (to K distinct ones under a quorum), with a
 * deadline; lent again when the volunteer leaves, says it does not have it, or
 * stalls. Results are accepted by value id, the first one counts; later ones
 * are counted as doubled and dropped. How much a volunteer is lent ahead
 * follows its measured speed, within the credit it grants.
 *
 * Pure: bytes, structs and `now` in, decisions out. The caller sends what
 * lend_next() says and calls lend_tick() at lend_due().
 */
#ifndef RECLAIM_VOLUNTEER_LEND_H
#define RECLAIM_VOLUNTEER_LEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lend;

#define LEND_VALUE_MAX (4u << 20)   /* bytes of one value or result */
#define LEND_COPIES_MAX 8           /* volunteers that hold one value at a time, beyond a quorum */
#define LEND_ERROR_MAX 512          /* bytes of a volunteer's error text that are kept */
#define LEND_QUORUM_MAX 15

struct lend_config {
	bool ordered;
	uint32_t quorum;        /* volunteers per value, 1..LEND_QUORUM_MAX */
	uint32_t window;        /* values taken ahead of the last delivered one (memory bound) */
	uint64_t stall_ms_min;  /* a loan is not late before this, whatever was measured */
	uint64_t stall_ms_max;  /* and late at the latest then */
	uint64_t life_ms;       /* how often a volunteer with loans shows that it lives, ... */
	uint32_t signs_per_s;   /* ... and more rarely, so that all together show it so often */
	uint64_t silent_ms;     /* a volunteer with loans that says nothing for so long stalls, or
				 * for three times the life sign that was asked of it */
	uint64_t horizon_ms;    /* work lent ahead, by measured speed */
	uint32_t errors_max;    /* distinct volunteers that fail on a value before it is poison */
	uint32_t losses_max;    /* volunteers that vanish while computing it, the same */
};
void lend_defaults(struct lend_config *ret);

enum lend_outcome { LEND_OK = 0, LEND_POISON, LEND_OUTCOME_COUNT };

struct lend_loan {
	uint64_t volunteer, value;
	const void *bytes; /* borrowed until the next call */
	size_t len;
	uint64_t deadline_ms;
	uint32_t life_ms; /* the volunteer is to show that it lives so often */
};

struct lend_result {
	uint64_t value; /* ids count from 0 in the order of lend_put() */
	enum lend_outcome outcome;
	char *bytes;    /* owned by the caller: free(); the error text for poison */
	size_t len;
	char *input;    /* poison only: the value, owned by the caller */
	size_t input_len;
	uint64_t volunteer;
};

enum lend_verdict {
	LEND_ACCEPTED,
	LEND_VOTED,     /* kept; the quorum is not complete */
	LEND_DOUBLED,   /* already settled; dropped */
	LEND_NEVER_LENT,/* this volunteer was never lent this value; dropped */
	LEND_TOO_LARGE,
	LEND_VERDICT_COUNT
};

struct lend_stats {
	uint64_t put, delivered, poison;
	uint64_t settled;       /* accepted, perhaps waiting for their turn */
	uint64_t in_flight;     /* values lent out now */
	uint64_t lent, relent, doubled, never_lent, refused;
	uint64_t stalls;
	uint64_t liars;
	uint32_t volunteers;
	double rate;            /* results per second, smoothed */
	uint64_t relend_p50_ms, relend_p99_ms; /* from loss to lent again */
};

int lend_new(const struct lend_config *config, struct lend **ret);
void lend_free(struct lend *l);

/* Values that may be put now without exceeding the window. */
size_t lend_room(const struct lend *l);
/* Copies the bytes. -EFBIG, -ENOBUFS (window full), -EPIPE (after lend_end), -ENOMEM. */
int lend_put(struct lend *l, const void *bytes, size_t len, uint64_t *ret_value);
void lend_end(struct lend *l);
/* All values put, settled and taken. */
bool lend_finished(const struct lend *l);

/* A volunteer that may be lent values; joining again only refreshes it. */
int lend_join(struct lend *l, uint64_t volunteer, uint64_t now_ms);
void lend_leave(struct lend *l, uint64_t volunteer, uint64_t now_ms);
/* Credit: how many values it will hold at once, and how many it computes at once (0 credit:
 * paused). It also proves that the volunteer lives. */
void lend_demand(struct lend *l, uint64_t volunteer, uint32_t credit, uint32_t workers,
		 uint64_t now_ms);
void lend_alive(struct lend *l, uint64_t volunteer, uint64_t now_ms);
/* After a broken path: what it holds. Loans not in the list are lent again. */
void lend_holds(struct lend *l, uint64_t volunteer, const uint64_t *values, size_t count,
		uint64_t now_ms);
/* The loan did not reach it. */
void lend_undelivered(struct lend *l, uint64_t volunteer, uint64_t value, uint64_t now_ms);
/* Whether it holds loans and has said nothing for too long. */
bool lend_silent(const struct lend *l, uint64_t volunteer, uint64_t now_ms);
/* Whether it may be lent to now (its path stands). True after lend_join(). */
void lend_reachable(struct lend *l, uint64_t volunteer, bool reachable);

/* The next thing to send, or false. Volunteers with room take turns. */
bool lend_next(struct lend *l, uint64_t now_ms, struct lend_loan *ret);
/* failed: bytes are the error text. */
enum lend_verdict lend_result(struct lend *l, uint64_t volunteer, uint64_t value, bool failed,
			      const void *bytes, size_t len, uint64_t now_ms);
/* Results to deliver, in order if so configured. */
bool lend_take(struct lend *l, struct lend_result *ret);
/* Loans of settled values that others still compute, to be cancelled. */
bool lend_cancelled(struct lend *l, uint64_t *ret_volunteer, uint64_t *ret_value);

/* Lends again what is late. */
void lend_tick(struct lend *l, uint64_t now_ms);
void lend_stats(const struct lend *l, struct lend_stats *ret);
/* Volunteers whose results lost against a quorum, one per call from *pos = 0. */
bool lend_liar(const struct lend *l, size_t *pos, uint64_t *ret_volunteer, uint32_t *ret_lies);

#endif
