/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See lend.h. Values live in a ring of `window` entries; what wants to be lent
 * stands in one of two queues (`again` before `open`), and volunteers with
 * room stand in `ready`; each volunteer knows what it holds and when the first
 * of it can be late. So a loan costs the same however many volunteers and values
 * there are. Deadlines are looked at by lend_tick() only.
 *
 * Results and everything else from volunteers are outside input: ids are
 * looked up, never trusted.
 */
#include "volunteer/lend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/lend_internal.h"

#define SCAN_MAX 256u      /* queue entries looked at for one volunteer */
#define FAST_LIMIT_MAX 512u
#define RATE_WINDOW_MS 500u

void lend_defaults(struct lend_config *ret)
{
	*ret = (struct lend_config){
		.ordered = true, .quorum = 1, .window = 65536,
		.stall_ms_min = 2000, .stall_ms_max = 60000, .life_ms = 1000, .signs_per_s = 2000,
		.silent_ms = 3000,
		.horizon_ms = 1000, .errors_max = 3, .losses_max = 8,
	};
}

int lend_new(const struct lend_config *config, struct lend **ret)
{
	if (config->quorum < 1 || config->quorum > LEND_QUORUM_MAX || config->window < 1 ||
	    config->errors_max < 1 || config->losses_max < 1 || config->signs_per_s < 1)
		return -EINVAL;
	struct lend *l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->config = *config;
	l->ring = calloc(config->window, sizeof(*l->ring));
	if (!l->ring || map_new(&l->volunteers) < 0) {
		lend_free(l);
		return -ENOMEM;
	}
	*ret = l;
	return 0;
}

static void value_done(struct value *v)
{
	free(v->bytes);
	free(v->result);
	VEC_EACH(&v->votes, vote)
		free(vote->bytes);
	VEC_DONE(&v->votes);
	VEC_DONE(&v->loans);
	memset(v, 0, sizeof(*v));
}

void lend_free(struct lend *l)
{
	if (!l)
		return;
	for (uint64_t id = l->base; l->ring && id < l->put; id++)
		value_done(&l->ring[id % l->config.window]);
	free(l->ring);
	VEC_EACH(&l->all, w) {
		VEC_DONE(&(*w)->out);
		free(*w);
	}
	VEC_DONE(&l->all);
	map_free(l->volunteers);
	VEC_DONE(&l->open);
	VEC_DONE(&l->again);
	VEC_DONE(&l->ready);
	VEC_DONE(&l->out);
	VEC_DONE(&l->cancels);
	free(l);
}

struct value *lend_value(const struct lend *l, uint64_t id)
{
	return id >= l->base && id < l->put ? &l->ring[id % l->config.window] : NULL;
}

struct volunteer *lend_volunteer(const struct lend *l, uint64_t id)
{
	return map_get(l->volunteers, &id, sizeof(id));
}

struct loan *lend_loan_of(struct value *v, uint64_t volunteer)
{
	VEC_EACH(&v->loans, loan) {
		if (loan->volunteer == volunteer)
			return loan;
	}
	return NULL;
}

/* How many more volunteers the value should be lent to now. */
uint32_t lend_wanted(const struct lend *l, const struct value *v)
{
	if (v->state != VALUE_OPEN)
		return 0;
	uint32_t want = l->config.quorum + v->extra, have = v->active + (uint32_t)v->votes.count;
	return want > have ? want - have : 0;
}

void lend_queue(struct lend *l, uint64_t id, bool first)
{
	struct value *v = lend_value(l, id);
	if (!v || v->queued || lend_wanted(l, v) == 0)
		return;
	int r = first ? VEC_PUSH(&l->again, id) : VEC_PUSH(&l->open, id);
	v->queued = r == 0;
	l->unqueued |= r < 0; /* lend_tick() queues it later */
}

size_t lend_room(const struct lend *l)
{
	return l->config.window - (size_t)(l->put - l->base);
}

int lend_put(struct lend *l, const void *bytes, size_t len, uint64_t *ret_value)
{
	if (l->ended)
		return -EPIPE;
	if (len > LEND_VALUE_MAX)
		return -EFBIG;
	if (lend_room(l) == 0)
		return -ENOBUFS;
	char *copy = malloc(len + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, bytes, len);
	copy[len] = '\0';
	uint64_t id = l->put++;
	struct value *v = &l->ring[id % l->config.window];
	*v = (struct value){ .bytes = copy, .len = len };
	l->stats.put++;
	lend_queue(l, id, false);
	*ret_value = id;
	return 0;
}

void lend_end(struct lend *l)
{
	l->ended = true;
}

bool lend_finished(const struct lend *l)
{
	return l->ended && l->base == l->put;
}

/* ---- volunteers ---- */

static uint32_t limit_of(const struct lend *l, const struct volunteer *w)
{
	uint32_t least = 2 * MAX(w->workers, 1u);
	double ahead = w->rate * (double)l->config.horizon_ms / 1000.0;
	uint32_t limit = ahead > FAST_LIMIT_MAX ? FAST_LIMIT_MAX : MAX(least, (uint32_t)ahead + 1);
	if (w->stalled) /* a probe, not a batch, until it returns something */
		limit = 1;
	return MIN(limit, w->credit);
}

static bool has_room(const struct lend *l, const struct volunteer *w)
{
	return w->present && w->reachable && w->lies < 3 && w->loans < limit_of(l, w);
}

void lend_mark_ready(struct lend *l, struct volunteer *w)
{
	if (!w->ready && has_room(l, w) && VEC_PUSH(&l->ready, w) == 0)
		w->ready = true;
}

int lend_join(struct lend *l, uint64_t volunteer, uint64_t now_ms)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (!w) {
		w = calloc(1, sizeof(*w));
		if (!w)
			return -ENOMEM;
		w->id = volunteer;
		if (VEC_RESERVE(&l->all, l->all.count + 1) < 0 ||
		    map_insert(l->volunteers, &volunteer, sizeof(volunteer), w) < 0) {
			free(w);
			return -ENOMEM;
		}
		(void)VEC_PUSH(&l->all, w); /* reserved above */
	}
	if (!w->present) {
		l->stats.volunteers++;
		w->present = true;
		w->stalled = false;
		w->loans = 0;
		w->credit = 0;
		w->window_start_ms = now_ms;
		w->window_results = 0;
	}
	w->reachable = true;
	w->heard_ms = now_ms;
	return 0;
}

void lend_alive(struct lend *l, uint64_t volunteer, uint64_t now_ms)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (w && w->present)
		w->heard_ms = now_ms;
}

void lend_demand(struct lend *l, uint64_t volunteer, uint32_t credit, uint32_t workers,
		 uint64_t now_ms)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (!w || !w->present)
		return;
	w->heard_ms = now_ms;
	w->credit = credit;
	w->workers = MIN(workers, 1024u);
	lend_mark_ready(l, w);
}

static uint64_t silence_ms(const struct lend *l, const struct volunteer *w)
{
	return MAX(l->config.silent_ms, UINT64_C(3) * w->life_ms);
}

bool lend_silent(const struct lend *l, uint64_t volunteer, uint64_t now_ms)
{
	const struct volunteer *w = lend_volunteer(l, volunteer);
	return w && w->present && w->out.count > 0 && now_ms >= w->heard_ms + silence_ms(l, w);
}

void lend_reachable(struct lend *l, uint64_t volunteer, bool reachable)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (!w)
		return;
	w->reachable = reachable;
	lend_mark_ready(l, w);
}

void lend_loan_end(struct lend *l, uint64_t id, struct value *v, struct loan *loan,
		   enum loan_state state)
{
	bool was_out = loan->state == LOAN_ACTIVE || loan->state == LOAN_LATE;
	if (loan->state == LOAN_ACTIVE && --v->active == 0)
		l->stats.in_flight--;
	loan->state = state;
	struct volunteer *w = lend_volunteer(l, loan->volunteer);
	if (!was_out || state == LOAN_LATE || !w)
		return;
	for (size_t i = 0; i < w->out.count; i++) {
		if (w->out.data[i] == id) {
			VEC_REMOVE(&w->out, i);
			break;
		}
	}
	if (w->loans > 0) {
		w->loans--;
		lend_mark_ready(l, w);
	}
}

static void loan_lost(struct lend *l, uint64_t id, struct value *v, struct loan *loan,
		      uint64_t since_ms)
{
	if (loan->state != LOAN_ACTIVE && loan->state != LOAN_LATE)
		return;
	bool counted_on = loan->state == LOAN_ACTIVE;
	lend_loan_end(l, id, v, loan, LOAN_LOST);
	if (v->state != VALUE_OPEN || !counted_on)
		return;
	if (!v->lost)
		v->lost_ms = since_ms;
	v->lost = true;
	lend_queue(l, id, true);
}

void lend_leave(struct lend *l, uint64_t volunteer, uint64_t now_ms)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (!w || !w->present)
		return;
	w->present = false;
	w->credit = 0;
	l->stats.volunteers--;
	/* The eldest loans are those it was computing: they may be what drove it away. */
	uint32_t computing = MAX(w->workers, 1u);
	while (w->out.count > 0) {
		uint64_t id = w->out.data[0];
		struct value *v = lend_value(l, id);
		loan_lost(l, id, v, lend_loan_of(v, volunteer), now_ms);
		if (computing > 0) {
			computing--;
			v->losses++;
			lend_check_poison(l, id, v);
		}
	}
	w->loans = 0;
}

static bool contains(const uint64_t *values, size_t count, uint64_t id)
{
	for (size_t i = 0; i < count; i++) {
		if (values[i] == id)
			return true;
	}
	return false;
}

void lend_holds(struct lend *l, uint64_t volunteer, const uint64_t *values, size_t count,
		uint64_t now_ms)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (!w || !w->present)
		return;
	w->heard_ms = now_ms;
	for (size_t i = 0; i < w->out.count;) {
		uint64_t id = w->out.data[i];
		struct value *v = lend_value(l, id);
		if (contains(values, count, id))
			i++;
		else /* which takes it out of the list */
			loan_lost(l, id, v, lend_loan_of(v, volunteer), now_ms);
	}
}

void lend_undelivered(struct lend *l, uint64_t volunteer, uint64_t value, uint64_t now_ms)
{
	struct value *v = lend_value(l, value);
	struct loan *loan = v ? lend_loan_of(v, volunteer) : NULL;
	if (loan)
		loan_lost(l, value, v, loan, now_ms);
}

/* ---- lending ---- */

/* A volunteer computes a value once; one that failed on it only if nobody else is there. */
static bool may_lend(const struct lend *l, struct value *v, const struct volunteer *w)
{
	const struct loan *loan = lend_loan_of(v, w->id);
	if (!loan || loan->state == LOAN_LOST)
		return true;
	return loan->state == LOAN_FAILED && v->errors >= l->stats.volunteers;
}

static void queue_trim(uint64_t *data, size_t *count, size_t *at)
{
	if (*at == *count) {
		*at = *count = 0;
	} else if (*at > 4096 && *at > *count / 2) {
		memmove(data, data + *at, (*count - *at) * sizeof(*data));
		*count -= *at;
		*at = 0;
	}
}

/* Finds a value for w in a queue; entries that want nothing any more are dropped. */
static uint64_t pick(struct lend *l, const struct volunteer *w, uint64_t *data, size_t *count,
		     size_t *at)
{
	for (size_t i = *at, looked = 0; i < *count && looked < SCAN_MAX; i++, looked++) {
		uint64_t id = data[i];
		struct value *v = lend_value(l, id);
		bool over = !v || lend_wanted(l, v) == 0;
		if (!over && !may_lend(l, v, w))
			continue;
		if (over || lend_wanted(l, v) == 1) { /* nothing left to want after this loan */
			if (v)
				v->queued = false;
			memmove(data + *at + 1, data + *at, (i - *at) * sizeof(*data));
			++*at;
		}
		if (!over)
			return id;
	}
	return UINT64_MAX;
}

static struct loan *loan_record(struct value *v, uint64_t volunteer)
{
	struct loan *loan = lend_loan_of(v, volunteer);
	if (loan)
		return loan;
	for (size_t i = 0; v->loans.count >= LOAN_RECORDS_MAX && i < v->loans.count; i++) {
		if (v->loans.data[i].state == LOAN_LOST) {
			VEC_REMOVE(&v->loans, i);
			break;
		}
	}
	struct loan fresh = { .volunteer = volunteer };
	if (VEC_PUSH(&v->loans, fresh) < 0)
		return NULL;
	return &v->loans.data[v->loans.count - 1];
}

static void relend_sample(struct lend *l, struct value *v, uint64_t now_ms)
{
	uint64_t took = now_ms - v->lost_ms;
	l->relend_ms[l->relend_count++ % RELEND_SAMPLES_MAX] =
		took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
	v->lost = false;
}

static uint64_t deadline_of(const struct lend *l, const struct volunteer *w, uint64_t now_ms)
{
	double turn = w->rate > 0 ? (w->loans + 1) * 1000.0 / w->rate : 0;
	double expected = MAX(turn, l->loan_ms);
	if (expected == 0)
		return now_ms + l->config.stall_ms_max;
	double late = (double)l->config.stall_ms_min + 4 * expected;
	return now_ms + (late < (double)l->config.stall_ms_max ? (uint64_t)late
							     : l->config.stall_ms_max);
}

/* So rarely that all volunteers together say so only `signs_per_s` times. */
static uint32_t life_ms(const struct lend *l)
{
	uint64_t ms = l->stats.volunteers * UINT64_C(1000) / l->config.signs_per_s;
	return (uint32_t)MAX(l->config.life_ms, ms);
}

static bool lend_to(struct lend *l, struct volunteer *w, uint64_t id, uint64_t now_ms,
		    struct lend_loan *ret)
{
	struct value *v = lend_value(l, id);
	struct loan *loan = loan_record(v, w->id);
	if (!loan || VEC_RESERVE(&w->out, w->out.count + 1) < 0) {
		l->unqueued = true;
		return false;
	}
	*loan = (struct loan){ w->id, LOAN_ACTIVE, now_ms, deadline_of(l, w, now_ms) };
	(void)VEC_PUSH(&w->out, id); /* reserved above */
	w->life_ms = life_ms(l);
	w->look_ms = MIN(w->look_ms, MIN(loan->deadline_ms, now_ms + silence_ms(l, w)));
	if (v->active++ == 0)
		l->stats.in_flight++;
	w->loans++;
	l->stats.lent++;
	l->stats.relent += v->lost;
	if (v->lost)
		relend_sample(l, v, now_ms);
	*ret = (struct lend_loan){ w->id, id, v->bytes, v->len, loan->deadline_ms, w->life_ms };
	return true;
}

bool lend_next(struct lend *l, uint64_t now_ms, struct lend_loan *ret)
{
	size_t turns = l->ready.count - l->ready_at;
	while (turns-- > 0) {
		if (l->again_at == l->again.count && l->open_at == l->open.count)
			return false;
		struct volunteer *w = l->ready.data[l->ready_at++];
		w->ready = false;
		uint64_t id = UINT64_MAX;
		bool room = has_room(l, w);
		if (room) {
			id = pick(l, w, l->again.data, &l->again.count, &l->again_at);
			queue_trim(l->again.data, &l->again.count, &l->again_at);
		}
		if (room && id == UINT64_MAX) {
			id = pick(l, w, l->open.data, &l->open.count, &l->open_at);
			queue_trim(l->open.data, &l->open.count, &l->open_at);
		}
		bool lent = id != UINT64_MAX && lend_to(l, w, id, now_ms, ret);
		lend_mark_ready(l, w);
		if (l->ready_at > 4096 && l->ready_at > l->ready.count / 2) {
			memmove(l->ready.data, l->ready.data + l->ready_at,
				(l->ready.count - l->ready_at) * sizeof(*l->ready.data));
			l->ready.count -= l->ready_at;
			l->ready_at = 0;
		}
		if (lent)
			return true;
	}
	return false;
}

static void make_late(struct lend *l, uint64_t id, struct value *v, struct loan *loan,
		      uint64_t since_ms)
{
	lend_loan_end(l, id, v, loan, LOAN_LATE);
	l->stats.stalls++;
	if (!v->lost)
		v->lost_ms = since_ms;
	v->lost = true;
	lend_queue(l, id, true);
}

/* A late loan keeps its place at the volunteer, which gets probes only until it answers. */
static void stall(struct lend *l, struct volunteer *w, uint64_t now_ms)
{
	w->stalled = true;
	w->stalled_until_ms = now_ms + l->config.stall_ms_min;
}

/* With nothing left to lend, what has been out for long is lent to a second volunteer. */
static void copy_stragglers(struct lend *l, uint64_t now_ms)
{
	if (!l->ended || l->again_at != l->again.count || l->open_at != l->open.count)
		return;
	uint64_t old_ms = (uint64_t)(l->loan_ms * 1.5) + 200;
	size_t copies = l->ready.count - l->ready_at;
	for (uint64_t id = l->base; id < l->put && copies > 0; id++) {
		struct value *v = lend_value(l, id);
		if (v->state != VALUE_OPEN || v->active == 0 || v->active + v->votes.count > l->config.quorum ||
		    v->extra >= LEND_COPIES_MAX)
			continue;
		VEC_EACH(&v->loans, loan) {
			if (loan->state == LOAN_ACTIVE && now_ms - loan->lent_ms > old_ms) {
				v->extra++;
				lend_queue(l, id, false);
				copies--;
				break;
			}
		}
	}
}

/* What of it is late; and when the next of it can be. */
static void look_at_loans(struct lend *l, struct volunteer *w, uint64_t now_ms)
{
	w->look_ms = UINT64_MAX;
	for (size_t i = 0; i < w->out.count; i++) {
		uint64_t id = w->out.data[i];
		struct value *v = lend_value(l, id);
		struct loan *loan = lend_loan_of(v, w->id);
		if (loan->state != LOAN_ACTIVE)
			continue;
		uint64_t silent_at = MAX(w->heard_ms, loan->lent_ms) + silence_ms(l, w);
		if (now_ms <= silent_at && now_ms < loan->deadline_ms) {
			w->look_ms = MIN(w->look_ms, MIN(silent_at, loan->deadline_ms));
			continue;
		}
		stall(l, w, now_ms);
		make_late(l, id, v, loan, now_ms > silent_at ? MAX(w->heard_ms, loan->lent_ms)
							     : loan->deadline_ms);
	}
}

void lend_tick(struct lend *l, uint64_t now_ms)
{
	VEC_EACH(&l->all, at) {
		struct volunteer *w = *at;
		if (now_ms >= w->look_ms)
			look_at_loans(l, w, now_ms);
		/* Late loans stop counting in time, or a volunteer that lost them is never asked again. */
		if (w->stalled && now_ms >= w->stalled_until_ms &&
		    now_ms - w->heard_ms <= silence_ms(l, w)) {
			w->stalled_until_ms = now_ms + 2 * l->config.stall_ms_min;
			w->loans = 0;
			lend_mark_ready(l, w);
		}
	}
	bool unqueued = l->unqueued;
	l->unqueued = false; /* again true if there is still no memory */
	for (uint64_t id = l->base; unqueued && id < l->put; id++)
		lend_queue(l, id, false);
	copy_stragglers(l, now_ms);
}
