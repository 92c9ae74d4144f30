/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission. Transfers that can never meet on a scarce link are planned
 * apart: first they are split into groups. A group's schedule is played
 * forward in phases, from one start or completion to the next; in a phase
 * every link is handed out in order of deadline. Several ways of handing out
 * are tried, since none is best on paths of several links: all to the most
 * urgent; to each first what it just needs, then the rest to the most urgent;
 * and, among few, in any other order. A group is admitted whole if one of
 * them meets every deadline.
 *
 * Otherwise transfers enter one by one, promised ones first, then by saved
 * work per byte, where the demand bound of each of their links (all that is
 * due by a deadline fits before it) allows; the schedule has the last word.
 * Then those left out are tried again, alone and in exchange for cheaper ones.
 */
#include "policy/admission.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/cleanup.h"

#define EPS_S 1e-6
#define EPS_SHARE 1e-9
#define EFFORT_DEFAULT 64
#define SMALL 16
#define LARGE 48
/* Up to so many transfers in a group all subsets are looked at. */
#define EXACT_MAX 9
/* Up to so many that are in, every order is tried. All or none: an order that held once holds
 * for what is left of its transfers later, and then it must be found again. */
#define ORDERS_MAX 6

enum way { WAY_URGENT = 0, WAY_JUST_ENOUGH, WAY_ANY_ORDER, WAY_COUNT };

/* What is left of a link over time: left[i] from t[i] to t[i + 1], the last for ever. */
struct profile {
	double *t, *left;
	size_t count, cap, at; /* at: segment of the transfer that is being laid in */
};

struct work {
	const struct network *net;
	const struct transfer *transfers;
	size_t count;
	const struct admission_config *config;
	struct arena arena;
	double *budget;      /* by link */
	double *left;        /* by link, scratch of a phase */
	double *demand;      /* by link: what its transfers could use together */
	uint32_t *first;     /* by link: a transfer that crosses it, + 1 */
	uint32_t *group;     /* by transfer: union-find parent, then group */
	uint32_t *order;     /* transfers by group, then deadline */
	double *bytes, *rate, *finish, *rate_now; /* by transfer, scratch of a schedule */
	uint32_t *open;
	struct profile *profile; /* by link; their arrays outlive a schedule */
	int error;
	bool *in, *best;     /* by transfer: part of the set under trial; best set so far */
	double valid_s;
};

static uint32_t links_used(const struct work *w, const struct transfer *t)
{
	return w->config->topology_blind ? MIN(t->links_count, 1u) : t->links_count;
}

static double path_budget(const struct work *w, const struct transfer *t)
{
	double b = INFINITY;
	for (uint32_t k = 0; k < links_used(w, t); k++)
		b = fmin(b, w->budget[t->links[k]]);
	return b;
}

static uint32_t find(uint32_t *parent, uint32_t i)
{
	while (parent[i] != i)
		i = parent[i] = parent[parent[i]];
	return i;
}

/* Joins transfers over links that they could fill together. */
static void groups_make(struct work *w)
{
	double *demand = w->demand;
	uint32_t *first = w->first;
	for (size_t i = 0; i < w->count; i++) {
		const struct transfer *t = &w->transfers[i];
		double b = path_budget(w, t);
		w->group[i] = (uint32_t)i;
		for (uint32_t k = 0; k < links_used(w, t); k++)
			demand[t->links[k]] += b;
	}
	for (size_t i = 0; i < w->count; i++) {
		const struct transfer *t = &w->transfers[i];
		for (uint32_t k = 0; k < links_used(w, t); k++) {
			uint32_t l = t->links[k];
			if (demand[l] <= w->budget[l])
				continue;
			if (first[l] == 0)
				first[l] = (uint32_t)i + 1;
			else
				w->group[find(w->group, (uint32_t)i)] = find(w->group, first[l] - 1);
		}
	}
	for (size_t i = 0; i < w->count; i++)
		w->group[i] = find(w->group, (uint32_t)i);
}

struct sorted {
	uint32_t group, index;
	double deadline;
	uint64_t id;
};

static int sorted_order(const void *a, const void *b)
{
	const struct sorted *x = a, *y = b;
	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	if (x->deadline != y->deadline)
		return x->deadline < y->deadline ? -1 : 1;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static int order_make(struct work *w)
{
	CLEANUP_FREE struct sorted *s = malloc((w->count + 1) * sizeof(*s));
	if (!s)
		return -ENOMEM;
	for (size_t i = 0; i < w->count; i++)
		s[i] = (struct sorted){ w->group[i], (uint32_t)i, w->transfers[i].deadline_in_s,
					w->transfers[i].id };
	qsort(s, w->count, sizeof(*s), sorted_order);
	for (size_t i = 0; i < w->count; i++)
		w->order[i] = s[i].index;
	return 0;
}

static double take(struct work *w, const struct transfer *t, double most)
{
	double r = most;
	for (uint32_t k = 0; k < links_used(w, t); k++)
		r = fmin(r, w->left[t->links[k]]);
	if (!(r > 0))
		return 0;
	for (uint32_t k = 0; k < links_used(w, t); k++) {
		double *left = &w->left[t->links[k]];
		*left = fmax(*left - r, 0);
		if (*left < EPS_SHARE * w->budget[t->links[k]])
			*left = 0;
	}
	return r;
}

/* Rates of one phase at time t into w->rate. members are in deadline order. */
static void hand_out(struct work *w, const uint32_t *members, size_t n, enum way way, double t)
{
	for (size_t i = 0; i < n; i++) {
		const struct transfer *x = &w->transfers[members[i]];
		w->rate[members[i]] = 0;
		for (uint32_t k = 0; k < links_used(w, x); k++)
			w->left[x->links[k]] = w->budget[x->links[k]];
	}
	for (int round = way == WAY_JUST_ENOUGH ? 0 : 1; round < 2; round++) {
		for (size_t i = 0; i < n; i++) {
			uint32_t m = members[i];
			const struct transfer *x = &w->transfers[m];
			if (!w->in[m] || w->bytes[m] <= 0 || x->start_in_s > t + EPS_S)
				continue;
			double time = x->deadline_in_s - t;
			double most = round == 0 ? w->bytes[m] / fmax(time, EPS_S) : INFINITY;
			if (round == 1 && links_used(w, x) == 0)
				most = w->bytes[m] / EPS_S;
			w->rate[m] += take(w, x, most);
		}
	}
}

/* Plays the schedule of the members that are in. True if all meet their deadlines; then finish
 * and rate_now hold it. *ret_miss: the first that does not. */
static bool schedule(struct work *w, const uint32_t *members, size_t n, enum way way,
		     double *ret_valid_s, uint32_t *ret_miss)
{
	uint32_t *open = w->open; /* still to be served, in deadline order */
	size_t count = 0;
	double t = 0;
	for (size_t i = 0; i < n; i++) {
		uint32_t m = members[i];
		if (!w->in[m])
			continue;
		w->bytes[m] = w->transfers[m].bytes;
		w->finish[m] = w->transfers[m].start_in_s;
		w->rate_now[m] = 0;
		if (w->bytes[m] > 0)
			open[count++] = m;
	}
	for (bool now = true; count > 0; now = false) {
		double next = INFINITY;
		hand_out(w, open, count, way, t);
		for (size_t i = 0; i < count; i++) {
			uint32_t m = open[i];
			const struct transfer *x = &w->transfers[m];
			if (now)
				w->rate_now[m] = w->rate[m];
			if (x->start_in_s > t + EPS_S)
				next = fmin(next, x->start_in_s);
			else if (w->rate[m] > 0)
				next = fmin(next, t + w->bytes[m] / w->rate[m]);
			if (x->deadline_in_s < t - EPS_S) {
				*ret_miss = m;
				return false;
			}
		}
		if (now && ret_valid_s)
			*ret_valid_s = fmin(*ret_valid_s, next);
		if (!(next < INFINITY)) { /* nobody moves: a link without budget */
			*ret_miss = open[0];
			return false;
		}
		double dt = next - t;
		size_t kept = 0;
		for (size_t i = 0; i < count; i++) {
			uint32_t m = open[i];
			w->bytes[m] -= w->rate[m] * dt;
			if (w->rate[m] <= 0 || (w->bytes[m] > 1e-6 * w->transfers[m].bytes &&
						w->bytes[m] > w->rate[m] * EPS_S)) {
				open[kept++] = m;
				continue;
			}
			w->bytes[m] = 0;
			w->finish[m] = next;
			if (next > w->transfers[m].deadline_in_s + EPS_S) {
				*ret_miss = m;
				return false;
			}
		}
		count = kept;
		t = next;
	}
	return true;
}

static int profile_cut(struct profile *p, double t)
{
	size_t i = p->at;
	while (i + 1 < p->count && p->t[i + 1] <= t)
		i++;
	if (p->t[i] == t)
		return 0;
	if (p->count == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 16;
		double *times = realloc(p->t, cap * sizeof(double));
		if (times)
			p->t = times;
		double *left = realloc(p->left, cap * sizeof(double));
		if (left)
			p->left = left;
		if (!times || !left)
			return -ENOMEM;
		p->cap = cap;
	}
	memmove(p->t + i + 2, p->t + i + 1, (p->count - i - 1) * sizeof(double));
	memmove(p->left + i + 2, p->left + i + 1, (p->count - i - 1) * sizeof(double));
	p->t[i + 1] = t;
	p->left[i + 1] = p->left[i];
	p->count++;
	return 0;
}

/* One transfer takes, from its start on, all that those before it left. */
static int lay_in(struct work *w, uint32_t m, double *ret_valid_s)
{
	const struct transfer *x = &w->transfers[m];
	double t = fmax(x->start_in_s, 0), bytes = x->bytes;
	uint32_t links = links_used(w, x);
	w->finish[m] = t;
	w->rate_now[m] = 0;
	for (uint32_t k = 0; k < links; k++)
		w->profile[x->links[k]].at = 0;
	while (bytes > 0 && links > 0) {
		double rate = INFINITY, until = INFINITY;
		for (uint32_t k = 0; k < links; k++) {
			struct profile *p = &w->profile[x->links[k]];
			while (p->at + 1 < p->count && p->t[p->at + 1] <= t)
				p->at++;
			rate = fmin(rate, p->left[p->at]);
			if (p->at + 1 < p->count)
				until = fmin(until, p->t[p->at + 1]);
		}
		double end = rate > 0 ? t + bytes / rate : INFINITY;
		bool last = end <= until;
		end = last ? end : until;
		if (!(end < INFINITY) || t > x->deadline_in_s + EPS_S)
			break;
		for (uint32_t k = 0; rate > 0 && k < links; k++) {
			struct profile *p = &w->profile[x->links[k]];
			if (profile_cut(p, t) < 0 || profile_cut(p, end) < 0)
				return -ENOMEM;
			for (size_t i = p->at; i < p->count && p->t[i] < end; i++) {
				if (p->t[i] < t)
					continue;
				p->left[i] -= rate;
				if (p->left[i] < EPS_SHARE * w->budget[x->links[k]])
					p->left[i] = 0;
			}
		}
		if (t <= 0)
			w->rate_now[m] = rate;
		*ret_valid_s = fmin(*ret_valid_s, end);
		bytes = last ? 0 : bytes - rate * (end - t);
		t = w->finish[m] = end;
	}
	if (links > 0 && bytes > 0)
		w->finish[m] = INFINITY;
	if (links == 0)
		w->rate_now[m] = bytes / EPS_S;
	if (x->start_in_s > 0)
		*ret_valid_s = fmin(*ret_valid_s, x->start_in_s);
	return 0;
}

/* The same schedule as WAY_URGENT, built transfer by transfer: who comes later never changes
 * what those before it got. */
static bool schedule_urgent(struct work *w, const uint32_t *members, size_t n,
			    double *ret_valid_s, uint32_t *ret_miss)
{
	double valid = INFINITY;
	for (size_t i = 0; i < n; i++) {
		const struct transfer *x = &w->transfers[members[i]];
		for (uint32_t k = 0; w->in[members[i]] && k < links_used(w, x); k++) {
			struct profile *p = &w->profile[x->links[k]];
			p->count = p->at = 0;
		}
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t m = members[i];
		const struct transfer *x = &w->transfers[m];
		if (!w->in[m])
			continue;
		for (uint32_t k = 0; k < links_used(w, x); k++) {
			struct profile *p = &w->profile[x->links[k]];
			if (p->count > 0)
				continue;
			if (p->cap == 0) {
				p->t = malloc(16 * sizeof(double));
				p->left = malloc(16 * sizeof(double));
				p->cap = p->t && p->left ? 16 : 0;
			}
			if (p->cap == 0) {
				w->error = -ENOMEM;
				return false;
			}
			p->count = 1;
			p->t[0] = 0;
			p->left[0] = w->budget[x->links[k]];
		}
		if (lay_in(w, m, &valid) < 0) {
			w->error = -ENOMEM;
			return false;
		}
		if (w->finish[m] > x->deadline_in_s + EPS_S) {
			*ret_miss = m;
			return false;
		}
	}
	if (ret_valid_s)
		*ret_valid_s = fmin(*ret_valid_s, valid);
	return true;
}

/* All that is due on one link by any deadline from d on still fits before it. */
static bool link_bound(const struct work *w, const uint32_t *members, size_t n, uint32_t link)
{
	double sum = 0;
	for (size_t i = 0; i < n; i++) {
		const struct transfer *x = &w->transfers[members[i]];
		if (!w->in[members[i]])
			continue;
		for (uint32_t k = 0; k < links_used(w, x); k++)
			if (x->links[k] == link)
				sum += x->bytes;
		if (sum > w->budget[link] * (x->deadline_in_s + EPS_S) * (1 + EPS_SHARE))
			return false;
	}
	return true;
}

static bool bounds(const struct work *w, const uint32_t *members, size_t n, uint32_t m)
{
	const struct transfer *x = &w->transfers[m];
	for (uint32_t k = 0; k < links_used(w, x); k++)
		if (!link_bound(w, members, n, x->links[k]))
			return false;
	return true;
}

/* On several links the order of deadlines may leave a link idle that a later one needs: tries
 * all orders of the few that are in. */
static bool schedule_any_order(struct work *w, const uint32_t *members, size_t n,
			       double *ret_valid_s, uint32_t *ret_miss)
{
	uint32_t order[ORDERS_MAX];
	size_t count = 0, at[ORDERS_MAX] = { 0 };
	for (size_t i = 0; i < n; i++) {
		if (!w->in[members[i]])
			continue;
		if (count == ORDERS_MAX)
			return false;
		order[count++] = members[i];
	}
	for (size_t i = 0; i < count; i++)
		if (!bounds(w, order, count, order[i]))
			return false; /* in no order, then */
	/* Heap's algorithm; the first order, that of deadlines, was tried before. */
	for (size_t i = 1; i < count && w->error == 0;) {
		if (at[i] >= i) {
			at[i++] = 0;
			continue;
		}
		size_t k = i & 1 ? at[i] : 0;
		uint32_t swapped = order[k];
		order[k] = order[i];
		order[i] = swapped;
		at[i]++;
		i = 1;
		if (schedule_urgent(w, order, count, ret_valid_s, ret_miss))
			return true;
	}
	return false;
}

static bool schedule_way(struct work *w, const uint32_t *members, size_t n, enum way way,
			 double *ret_valid_s, uint32_t *ret_miss)
{
	if (way == WAY_URGENT)
		return schedule_urgent(w, members, n, ret_valid_s, ret_miss);
	if (way == WAY_ANY_ORDER)
		return schedule_any_order(w, members, n, ret_valid_s, ret_miss);
	return schedule(w, members, n, way, ret_valid_s, ret_miss);
}

/* The second way costs a large group dearly. There it is tried only where a promise hangs on it:
 * what was promised in one way in a smaller group must not be broken for want of trying. */
static int ways(const struct work *w, const uint32_t *members, size_t n)
{
	for (size_t i = 0; n > LARGE && i < n; i++)
		if (w->in[members[i]] && !w->transfers[members[i]].promised)
			return 1;
	return WAY_COUNT;
}

static bool feasible(struct work *w, const uint32_t *members, size_t n, enum way *ret_way,
		     uint32_t *ret_miss)
{
	for (int way = 0, most = ways(w, members, n); way < most; way++) {
		uint32_t miss = members[0];
		if (schedule_way(w, members, n, way, NULL, &miss)) {
			*ret_way = way;
			return true;
		}
		if (way == 0)
			*ret_miss = miss;
	}
	return false;
}

static double density(const struct transfer *t)
{
	return t->saved_work / fmax(t->bytes, 1);
}

struct ranked {
	uint32_t member;
	bool promised;
	double key;
	uint64_t id;
};

static int ranked_order(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	if (x->promised != y->promised)
		return x->promised ? -1 : 1;
	if (x->key != y->key)
		return x->key > y->key ? -1 : 1;
	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return x->member < y->member ? -1 : x->member > y->member;
}

static double value(const struct work *w, const uint32_t *members, size_t n)
{
	double v = 0;
	for (size_t i = 0; i < n; i++)
		if (w->in[members[i]])
			/* A promise outweighs whatever is not promised. */
			v += w->transfers[members[i]].saved_work +
			     (w->transfers[members[i]].promised ? 1e15 : 1e-9);
	return v;
}

static void keep_if_better(struct work *w, const uint32_t *members, size_t n, double *best)
{
	double v = value(w, members, n);
	if (v <= *best)
		return;
	*best = v;
	for (size_t i = 0; i < n; i++)
		w->best[members[i]] = w->in[members[i]];
}

/* Takes out the cheapest that shares a link with the first to miss and is served no later. */
static void drop_one(struct work *w, const uint32_t *members, size_t n, uint32_t miss)
{
	const struct transfer *m = &w->transfers[miss];
	uint32_t worst = miss;
	for (size_t i = 0; i < n; i++) {
		const struct transfer *x = &w->transfers[members[i]];
		bool meets = members[i] == miss;
		if (!w->in[members[i]] || x->deadline_in_s > m->deadline_in_s)
			continue;
		for (uint32_t a = 0; a < links_used(w, x) && !meets; a++)
			for (uint32_t b = 0; b < links_used(w, m); b++)
				meets |= x->links[a] == m->links[b];
		const struct transfer *y = &w->transfers[worst];
		if (meets && (x->promised < y->promised ||
			      (x->promised == y->promised && density(x) < density(y))))
			worst = members[i];
	}
	w->in[worst] = false;
}

/* Enters members in rank order as far as bounds and schedule allow; the set is then feasible. */
static void enter_greedy(struct work *w, const uint32_t *members, size_t n,
			 const struct ranked *rank, bool check_each)
{
	enum way way;
	uint32_t miss = 0;
	for (size_t i = 0; i < n; i++)
		w->in[members[i]] = false;
	for (size_t i = 0; i < n; i++) {
		uint32_t m = rank[i].member;
		w->in[m] = true;
		if (!bounds(w, members, n, m) ||
		    (check_each && !feasible(w, members, n, &way, &miss)))
			w->in[m] = false;
	}
	while (!feasible(w, members, n, &way, &miss) && w->error == 0)
		drop_one(w, members, n, miss);
}

/* Tries to put back what was left out, alone, then in place of cheaper ones. */
static void improve(struct work *w, const uint32_t *members, size_t n, const struct ranked *rank,
		    size_t effort)
{
	enum way way;
	uint32_t miss;
	for (size_t i = 0; i < n && effort > 0; i++) {
		uint32_t m = rank[i].member;
		if (w->in[m])
			continue;
		w->in[m] = true;
		if (bounds(w, members, n, m)) {
			effort--;
			if (feasible(w, members, n, &way, &miss))
				continue;
		}
		w->in[m] = false;
		for (size_t j = n; j-- > 0 && effort > 0;) {
			uint32_t out = rank[j].member;
			if (!w->in[out] || w->transfers[out].promised ||
			    w->transfers[out].saved_work >= w->transfers[m].saved_work)
				continue;
			w->in[out] = false;
			w->in[m] = true;
			if (bounds(w, members, n, m)) {
				effort--;
				if (feasible(w, members, n, &way, &miss))
					break;
			}
			w->in[m] = false;
			w->in[out] = true;
		}
	}
}

static void enter_exact(struct work *w, const uint32_t *members, size_t n, double *best)
{
	enum way way;
	uint32_t miss;
	for (uint32_t set = (1u << n) - 1; set > 0; set--) {
		for (size_t i = 0; i < n; i++)
			w->in[members[i]] = set >> i & 1;
		if (value(w, members, n) > *best && feasible(w, members, n, &way, &miss))
			keep_if_better(w, members, n, best);
	}
}

/* Chooses who is in; leaves the choice in w->in. */
static int choose(struct work *w, const uint32_t *members, size_t n)
{
	enum way way;
	uint32_t miss;
	double best = -1;
	if (n == 0 || feasible(w, members, n, &way, &miss))
		return 0;
	CLEANUP_FREE struct ranked *rank = malloc((n + 1) * sizeof(*rank));
	if (!rank)
		return -ENOMEM;
	size_t effort = w->config->effort ? w->config->effort : EFFORT_DEFAULT;
	/* A schedule costs the square of its size: larger groups get fewer second looks. */
	bool large = n > LARGE;
	if (n > SMALL)
		effort = MAX(effort * SMALL / n, (size_t)2);
	for (int by_work = 0; by_work < (large ? 1 : 2); by_work++) {
		for (size_t i = 0; i < n; i++) {
			const struct transfer *t = &w->transfers[members[i]];
			rank[i] = (struct ranked){ members[i], t->promised,
						   by_work ? t->saved_work : density(t), t->id };
		}
		qsort(rank, n, sizeof(*rank), ranked_order);
		enter_greedy(w, members, n, rank, !large);
		improve(w, members, n, rank, n <= EXACT_MAX ? 0 : effort);
		keep_if_better(w, members, n, &best);
	}
	if (n <= EXACT_MAX)
		enter_exact(w, members, n, &best);
	for (size_t i = 0; i < n; i++)
		w->in[members[i]] = w->best[members[i]];
	return 0;
}

static uint32_t narrowest(const struct work *w, const struct transfer *t)
{
	uint32_t link = NETWORK_NONE;
	for (uint32_t k = 0; k < links_used(w, t); k++)
		if (link == NETWORK_NONE || w->budget[t->links[k]] < w->budget[link])
			link = t->links[k];
	return link;
}

/* The link on which a dropped transfer would have asked for most of what was left. */
static uint32_t fullest(const struct work *w, const uint32_t *members, size_t n,
			const struct transfer *t)
{
	uint32_t worst = NETWORK_NONE;
	double worst_load = -1;
	for (uint32_t k = 0; k < links_used(w, t); k++) {
		double bytes = t->bytes;
		for (size_t i = 0; i < n; i++) {
			const struct transfer *x = &w->transfers[members[i]];
			if (!w->in[members[i]] || x->deadline_in_s > t->deadline_in_s)
				continue;
			for (uint32_t j = 0; j < links_used(w, x); j++)
				if (x->links[j] == t->links[k])
					bytes += x->bytes;
		}
		double load = bytes / fmax(w->budget[t->links[k]] * t->deadline_in_s, 1e-9);
		if (load > worst_load) {
			worst_load = load;
			worst = t->links[k];
		}
	}
	return worst;
}

static int plan_group(struct work *w, const uint32_t *members, size_t count, struct admission *ret)
{
	enum way way = WAY_URGENT;
	uint32_t miss;
	size_t n = 0;
	CLEANUP_FREE uint32_t *able = malloc((count + 1) * sizeof(*able));
	if (!able)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		uint32_t m = members[i];
		const struct transfer *t = &w->transfers[m];
		struct admission *a = &ret[m];
		*a = (struct admission){ .finish_in_s = INFINITY, .bottleneck = NETWORK_NONE };
		double need = t->bytes > 0 ? t->bytes / path_budget(w, t) : 0;
		if (t->deadline_in_s == INFINITY) {
			a->verdict = ADMISSION_BACKGROUND;
		} else if (!(fmax(t->start_in_s, 0) + need <= t->deadline_in_s + EPS_S)) {
			a->verdict = ADMISSION_IMPOSSIBLE;
			a->bottleneck = narrowest(w, t);
		} else {
			w->in[m] = true;
			able[n++] = m;
		}
	}
	int r = choose(w, able, n);
	if (r < 0)
		return r;
	/* What was chosen is feasible, so this only finds out in which way. */
	bool ok = n == 0 ||
		  (feasible(w, able, n, &way, &miss) &&
		  schedule_way(w, able, n, way, &w->valid_s, &miss));
	if (w->error)
		return w->error;
	CHECK(ok);
	for (size_t i = 0; i < n; i++) {
		uint32_t m = able[i];
		struct admission *a = &ret[m];
		if (w->in[m]) {
			a->floor_bps = w->rate_now[m];
			a->finish_in_s = w->finish[m];
		} else {
			a->verdict = ADMISSION_DROPPED;
			a->bottleneck = fullest(w, able, n, &w->transfers[m]);
		}
	}
	return 0;
}

/* Ablation: everybody the same on every link, nobody dropped, nobody promised anything real. */
static void plan_blind(struct work *w, struct admission *ret)
{
	for (size_t i = 0; i < w->count; i++)
		for (uint32_t k = 0; k < links_used(w, &w->transfers[i]); k++)
			w->left[w->transfers[i].links[k]] += 1;
	for (size_t i = 0; i < w->count; i++) {
		const struct transfer *t = &w->transfers[i];
		double r = INFINITY;
		for (uint32_t k = 0; k < links_used(w, t); k++)
			r = fmin(r, w->budget[t->links[k]] / w->left[t->links[k]]);
		ret[i] = (struct admission){ .verdict = ADMISSION_ADMITTED,
					     .floor_bps = r,
					     .finish_in_s = t->start_in_s + t->bytes / r,
					     .bottleneck = NETWORK_NONE };
	}
}

static int work_init(struct work *w)
{
	size_t links = w->net->links_count + 1, n = w->count + 1;
	struct arena *a = &w->arena;
	/* By link: only what a path crosses is touched, so a large campus costs nothing. */
	w->budget = malloc(links * sizeof(double));
	w->left = malloc(links * sizeof(double));
	w->demand = malloc(links * sizeof(double));
	w->first = malloc(links * sizeof(uint32_t));
	w->profile = malloc(links * sizeof(*w->profile));
	w->group = arena_alloc(a, n * sizeof(uint32_t));
	w->order = arena_alloc(a, n * sizeof(uint32_t));
	w->bytes = arena_alloc(a, n * sizeof(double));
	w->rate = arena_alloc(a, n * sizeof(double));
	w->finish = arena_alloc(a, n * sizeof(double));
	w->rate_now = arena_alloc(a, n * sizeof(double));
	w->open = arena_alloc(a, n * sizeof(uint32_t));
	w->in = arena_alloc(a, n * sizeof(bool));
	w->best = arena_alloc(a, n * sizeof(bool));
	if (!w->budget || !w->left || !w->demand || !w->first || !w->group || !w->order || !w->bytes || !w->rate ||
	    !w->finish || !w->rate_now || !w->open || !w->profile || !w->in || !w->best)
		return -ENOMEM;
	for (size_t i = 0; i < w->count; i++) {
		for (uint32_t k = 0; k < w->transfers[i].links_count; k++) {
			uint32_t l = w->transfers[i].links[k];
			CHECK(l < w->net->links_count);
			w->budget[l] = network_budget_bps(&w->net->links[l]);
			w->left[l] = w->demand[l] = 0;
			w->first[l] = 0;
			w->profile[l] = (struct profile){ 0 };
		}
	}
	return 0;
}

int admission_plan(const struct network *net, const struct transfer *transfers, size_t count,
		   const struct admission_config *config, struct admission *ret,
		   double *ret_valid_s)
{
	static const struct admission_config plain;
	struct work w = { .net = net,
			  .transfers = transfers,
			  .count = count,
			  .config = config ? config : &plain,
			  .arena = ARENA_INIT,
			  .valid_s = INFINITY };
	int r = work_init(&w);
	bool ready = r == 0;
	if (r == 0 && w.config->deadline_blind) {
		plan_blind(&w, ret);
	} else if (r == 0) {
		groups_make(&w);
		r = order_make(&w);
		for (size_t i = 0, to; r == 0 && i < count; i = to) {
			for (to = i + 1; to < count && w.group[w.order[to]] == w.group[w.order[i]];)
				to++;
			r = plan_group(&w, w.order + i, to - i, ret);
		}
	}
	if (r == 0 && ret_valid_s)
		*ret_valid_s = w.valid_s;
	for (size_t i = 0; ready && i < count; i++) {
		for (uint32_t k = 0; k < transfers[i].links_count; k++) {
			struct profile *p = &w.profile[transfers[i].links[k]];
			free(p->t);
			free(p->left);
			*p = (struct profile){ 0 };
		}
	}
	free(w.budget);
	free(w.left);
	free(w.demand);
	free(w.first);
	free(w.profile);
	arena_done(&w.arena);
	return r;
}

bool admission_feasible(const struct network *net, const struct transfer *transfers, size_t count)
{
	CLEANUP_FREE struct admission *a = malloc((count + 1) * sizeof(*a));
	if (!a || admission_plan(net, transfers, count, NULL, a, NULL) < 0)
		return false;
	for (size_t i = 0; i < count; i++)
		if (a[i].verdict == ADMISSION_DROPPED || a[i].verdict == ADMISSION_IMPOSSIBLE)
			return false;
	return true;
}
