/* SPDX-License-Identifier: Apache-2.0 */
/* See lend.h: results, votes of a quorum, poison, and what is delivered. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "volunteer/lend_internal.h"

#define RATE_WINDOW_MS 500u

static char *copy_of(const void *bytes, size_t len)
{
	char *copy = malloc(len + 1);
	if (copy) {
		memcpy(copy, bytes, len);
		copy[len] = '\0';
	}
	return copy;
}

void lend_settle(struct lend *l, uint64_t id, struct value *v, enum lend_outcome outcome,
		 char *bytes, size_t len, uint64_t winner)
{
	VEC_EACH(&v->loans, loan) {
		if (loan->state != LOAN_ACTIVE && loan->state != LOAN_LATE)
			continue;
		struct cancel c = { loan->volunteer, id };
		(void)VEC_PUSH(&l->cancels, c); /* no memory: it computes in vain */
		lend_loan_end(l, id, v, loan, LOAN_LOST);
	}
	v->state = VALUE_SETTLED;
	v->outcome = outcome;
	v->result = bytes;
	v->result_len = len;
	v->winner = winner;
	l->stats.settled++;
	l->stats.poison += outcome == LEND_POISON;
	if (!l->config.ordered)
		(void)VEC_PUSH(&l->out, id); /* no memory: lend_take() falls back to the ring */
}

void lend_check_poison(struct lend *l, uint64_t id, struct value *v)
{
	if (v->state != VALUE_OPEN)
		return;
	const char *why = NULL;
	if (v->errors >= l->config.errors_max)
		why = v->result ? v->result : "the function failed";
	else if (v->losses >= l->config.losses_max)
		why = "volunteers vanished each time they computed it";
	if (!why)
		return;
	char *text = copy_of(why, strlen(why));
	free(v->result);
	v->result = NULL;
	lend_settle(l, id, v, LEND_POISON, text, text ? strlen(text) : 0, 0);
}

static void measure(struct lend *l, struct volunteer *w, const struct loan *loan, uint64_t now_ms)
{
	double took = (double)(now_ms - loan->lent_ms);
	l->loan_ms = l->loan_ms == 0 ? MAX(took, 1.0) : 0.95 * l->loan_ms + 0.05 * took;
	w->window_results++;
	uint64_t span = now_ms - w->window_start_ms;
	if (span >= RATE_WINDOW_MS) {
		double rate = w->window_results * 1000.0 / (double)span;
		w->rate = w->rate == 0 ? rate : 0.4 * w->rate + 0.6 * rate;
		w->window_start_ms = now_ms;
		w->window_results = 0;
	}
	l->rate_results++;
	span = now_ms - l->rate_start_ms;
	if (l->rate_start_ms == 0) {
		l->rate_start_ms = now_ms;
	} else if (span >= RATE_WINDOW_MS) {
		double rate = l->rate_results * 1000.0 / (double)span;
		l->stats.rate = l->stats.rate == 0 ? rate : 0.7 * l->stats.rate + 0.3 * rate;
		l->rate_start_ms = now_ms;
		l->rate_results = 0;
	}
}

static size_t votes_like(struct value *v, const struct vote *like)
{
	size_t same = 0;
	VEC_EACH(&v->votes, vote)
		same += vote->len == like->len && memcmp(vote->bytes, like->bytes, like->len) == 0;
	return same;
}

static void name_liars(struct lend *l, struct value *v, const struct vote *truth)
{
	VEC_EACH(&v->votes, vote) {
		if (vote->len == truth->len && memcmp(vote->bytes, truth->bytes, truth->len) == 0)
			continue;
		struct volunteer *w = lend_volunteer(l, vote->volunteer);
		if (w && w->lies++ == 0)
			l->stats.liars++;
	}
}

/* Enough votes: the majority's result, or one more volunteer, or no agreement at all. */
static enum lend_verdict count_votes(struct lend *l, uint64_t id, struct value *v)
{
	if (v->votes.count < l->config.quorum)
		return LEND_VOTED;
	VEC_EACH(&v->votes, vote) {
		if (votes_like(v, vote) < l->config.quorum / 2 + 1)
			continue;
		name_liars(l, v, vote);
		char *bytes = TAKE(vote->bytes);
		lend_settle(l, id, v, LEND_OK, bytes, vote->len, vote->volunteer);
		return LEND_ACCEPTED;
	}
	if (v->votes.count >= 2 * l->config.quorum + 1) {
		static const char why[] = "the volunteers do not agree";
		char *text = copy_of(why, sizeof(why) - 1);
		lend_settle(l, id, v, LEND_POISON, text, text ? sizeof(why) - 1 : 0, 0);
		return LEND_ACCEPTED;
	}
	v->extra = (uint32_t)v->votes.count + 1 - l->config.quorum;
	lend_queue(l, id, true);
	return LEND_VOTED;
}

static enum lend_verdict failed_result(struct lend *l, uint64_t id, struct value *v,
				       struct loan *loan, const void *bytes, size_t len)
{
	lend_loan_end(l, id, v, loan, LOAN_FAILED);
	v->errors++;
	free(v->result); /* of an open value: the latest error text */
	v->result = copy_of(bytes, MIN(len, (size_t)LEND_ERROR_MAX));
	lend_check_poison(l, id, v);
	if (v->state == VALUE_OPEN)
		lend_queue(l, id, true);
	return LEND_ACCEPTED;
}

enum lend_verdict lend_result(struct lend *l, uint64_t volunteer, uint64_t value, bool failed,
			      const void *bytes, size_t len, uint64_t now_ms)
{
	struct volunteer *w = lend_volunteer(l, volunteer);
	if (!w || value >= l->put) {
		l->stats.never_lent++;
		return LEND_NEVER_LENT;
	}
	w->heard_ms = now_ms;
	struct value *v = lend_value(l, value);
	if (!v) {
		l->stats.doubled++;
		return LEND_DOUBLED;
	}
	struct loan *loan = lend_loan_of(v, volunteer);
	if (!loan) {
		l->stats.never_lent++;
		return LEND_NEVER_LENT;
	}
	if (len > LEND_VALUE_MAX) {
		l->stats.refused++;
		return LEND_TOO_LARGE;
	}
	if (v->state != VALUE_OPEN || loan->state == LOAN_VOTED || loan->state == LOAN_FAILED) {
		l->stats.doubled++;
		return LEND_DOUBLED;
	}
	w->stalled = false;
	measure(l, w, loan, now_ms);
	if (failed)
		return failed_result(l, value, v, loan, bytes, len);
	char *copy = copy_of(bytes, len);
	if (!copy) { /* it is late, not lost: the deadline lends it again */
		l->stats.refused++;
		return LEND_TOO_LARGE;
	}
	lend_loan_end(l, value, v, loan, LOAN_VOTED);
	if (l->config.quorum == 1) {
		free(v->result);
		lend_settle(l, value, v, LEND_OK, copy, len, volunteer);
		return LEND_ACCEPTED;
	}
	struct vote vote = { volunteer, copy, len };
	if (VEC_PUSH(&v->votes, vote) < 0) {
		free(copy);
		loan->state = LOAN_LOST;
		lend_queue(l, value, true);
		return LEND_VOTED;
	}
	return count_votes(l, value, v);
}

static void take(struct lend *l, uint64_t id, struct value *v, struct lend_result *ret)
{
	*ret = (struct lend_result){ .value = id, .outcome = v->outcome, .bytes = TAKE(v->result),
				     .len = v->result_len, .volunteer = v->winner };
	if (v->outcome == LEND_POISON) {
		ret->input = TAKE(v->bytes);
		ret->input_len = v->len;
	}
	v->state = VALUE_TAKEN;
	l->stats.delivered++;
	l->stats.settled--;
	while (l->base < l->put && lend_value(l, l->base)->state == VALUE_TAKEN) {
		v = lend_value(l, l->base);
		free(v->bytes);
		free(v->result);
		VEC_EACH(&v->votes, vote)
			free(vote->bytes);
		VEC_DONE(&v->votes);
		VEC_DONE(&v->loans);
		memset(v, 0, sizeof(*v));
		l->base++;
	}
}

bool lend_take(struct lend *l, struct lend_result *ret)
{
	if (!l->config.ordered) {
		while (l->out_at < l->out.count) {
			uint64_t id = l->out.data[l->out_at++];
			if (l->out_at == l->out.count)
				l->out_at = l->out.count = 0;
			struct value *v = lend_value(l, id);
			if (v && v->state == VALUE_SETTLED) {
				take(l, id, v, ret);
				return true;
			}
		}
	}
	struct value *v = lend_value(l, l->base);
	if (!v || v->state != VALUE_SETTLED)
		return false;
	take(l, l->base, v, ret);
	return true;
}

bool lend_cancelled(struct lend *l, uint64_t *ret_volunteer, uint64_t *ret_value)
{
	if (l->cancels.count == 0)
		return false;
	struct cancel c = l->cancels.data[--l->cancels.count];
	*ret_volunteer = c.volunteer;
	*ret_value = c.value;
	return true;
}

static int by_ms(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

void lend_stats(const struct lend *l, struct lend_stats *ret)
{
	*ret = l->stats;
	size_t n = MIN(l->relend_count, (size_t)RELEND_SAMPLES_MAX);
	uint32_t *sorted = n ? malloc(n * sizeof(*sorted)) : NULL;
	if (!sorted)
		return;
	memcpy(sorted, l->relend_ms, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_ms);
	ret->relend_p50_ms = sorted[n / 2];
	ret->relend_p99_ms = sorted[MIN(n - 1, n * 99 / 100)];
	free(sorted);
}

bool lend_liar(const struct lend *l, size_t *pos, uint64_t *ret_volunteer, uint32_t *ret_lies)
{
	while (*pos < l->all.count) {
		const struct volunteer *w = l->all.data[(*pos)++];
		if (w->lies == 0)
			continue;
		*ret_volunteer = w->id;
		*ret_lies = w->lies;
		return true;
	}
	return false;
}
