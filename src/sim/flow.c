/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/flow.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define FULL_SHARE 1e-6

int flows_init(struct flows *f, const struct network *net)
{
	size_t n = net->links_count + 1;
	memset(f, 0, sizeof(*f));
	f->net = net;
	f->on_link = calloc(n, sizeof(*f->on_link));
	f->capacity = calloc(n, sizeof(double));
	f->used = calloc(n, sizeof(double));
	f->left = calloc(n, sizeof(double));
	f->floors = calloc(n, sizeof(double));
	f->over = calloc(n, sizeof(double));
	f->active_on = calloc(n, sizeof(uint32_t));
	f->link_stamp = calloc(n, sizeof(uint32_t));
	if (!f->on_link || !f->capacity || !f->used || !f->left || !f->floors || !f->over ||
	    !f->active_on || !f->link_stamp)
		return -ENOMEM;
	for (size_t l = 0; l < net->links_count; l++)
		f->capacity[l] = fmax(net->links[l].capacity_bps - net->links[l].research_bps, 0);
	return 0;
}

void flows_done(struct flows *f)
{
	for (size_t l = 0; f->on_link && l < f->net->links_count; l++)
		free(f->on_link[l].data);
	free(f->on_link);
	free(f->capacity);
	free(f->used);
	free(f->left);
	free(f->floors);
	free(f->over);
	free(f->active_on);
	free(f->link_stamp);
	VEC_DONE(&f->items);
	VEC_DONE(&f->free);
	VEC_DONE(&f->touched);
	VEC_DONE(&f->touched_links);
	memset(f, 0, sizeof(*f));
}

double flow_left(const struct flow *f, double now_s)
{
	return fmax(f->bytes_left - f->rate * (now_s - f->at_s), 0);
}

double flow_end(const struct flow *f)
{
	return f->rate > 0 ? f->at_s + f->bytes_left / f->rate : INFINITY;
}

static int touch_link(struct flows *f, uint32_t link)
{
	if (f->link_stamp[link] == f->stamp)
		return 0;
	f->link_stamp[link] = f->stamp;
	return VEC_PUSH(&f->touched_links, link);
}

static int touch_flow(struct flows *f, uint32_t flow)
{
	if (f->items.data[flow].stamp == f->stamp)
		return 0;
	f->items.data[flow].stamp = f->stamp;
	return VEC_PUSH(&f->touched, flow);
}

/* Full, or so nearly that it may be what holds a flow back. */
static bool full(const struct flows *f, uint32_t link)
{
	return f->used[link] >= f->capacity[link] * (1 - FULL_SHARE);
}

/* All that a change of the touched flows and links can reach: only full links carry news. */
static int reach(struct flows *f, size_t *links_done, size_t *flows_done)
{
	while (*links_done < f->touched_links.count || *flows_done < f->touched.count) {
		if (*flows_done < f->touched.count) {
			const struct flow *x = &f->items.data[f->touched.data[(*flows_done)++]];
			for (uint32_t k = 0; k < x->links_count; k++)
				if (full(f, x->links[k]) && touch_link(f, x->links[k]) < 0)
					return -ENOMEM;
			continue;
		}
		const struct flow_list *list = &f->on_link[f->touched_links.data[(*links_done)++]];
		for (size_t k = 0; k < list->count; k++)
			if (touch_flow(f, list->data[k]) < 0)
				return -ENOMEM;
	}
	return 0;
}

static double narrow(const struct flows *f, const struct flow *x)
{
	double b = x->limit;
	for (uint32_t k = 0; k < x->links_count; k++)
		b = fmin(b, f->left[x->links[k]]);
	return b;
}

static void take(struct flows *f, struct flow *x, double rate)
{
	x->rate += rate;
	for (uint32_t k = 0; k < x->links_count; k++)
		f->left[x->links[k]] = fmax(f->left[x->links[k]] - rate, 0);
}

/* Floors, out of whole links: research does not stop them. What is left is for the others. */
static void share_floors(struct flows *f)
{
	size_t n = f->touched.count;
	for (size_t i = 0; i < n; i++) {
		const struct flow *x = &f->items.data[f->touched.data[i]];
		for (uint32_t k = 0; k < x->links_count; k++) {
			uint32_t l = x->links[k];
			f->left[l] = f->net->links[l].capacity_bps;
			f->floors[l] = 0;
		}
	}
	for (size_t i = 0; i < n; i++) {
		struct flow *x = &f->items.data[f->touched.data[i]];
		x->rate = 0;
		if (!(x->floor > 0))
			continue;
		take(f, x, fmin(x->floor, narrow(f, x)));
		for (uint32_t k = 0; k < x->links_count; k++)
			f->floors[x->links[k]] += x->rate;
	}
	/* A flow outside the set keeps its rate; it shares only links that do not get full. */
	for (size_t i = 0; i < n; i++) {
		const struct flow *x = &f->items.data[f->touched.data[i]];
		for (uint32_t k = 0; k < x->links_count; k++) {
			uint32_t l = x->links[k];
			f->left[l] = fmax(f->capacity[l] - f->floors[l], 0);
		}
	}
}

/* Max-min among those that yield, or those that do not. */
static void share_fair(struct flows *f, bool yields)
{
	size_t n = f->touched.count, open = 0;
	for (size_t i = 0; i < n; i++) {
		struct flow *x = &f->items.data[f->touched.data[i]];
		for (uint32_t k = 0; k < x->links_count; k++)
			f->active_on[x->links[k]] = 0;
	}
	for (size_t i = 0; i < n; i++) {
		struct flow *x = &f->items.data[f->touched.data[i]];
		x->open = x->yields == yields;
		open += x->open;
		for (uint32_t k = 0; x->open && k < x->links_count; k++)
			f->active_on[x->links[k]]++;
	}
	while (open > 0) {
		double step = INFINITY;
		for (size_t i = 0; i < n; i++) {
			const struct flow *x = &f->items.data[f->touched.data[i]];
			if (!x->open)
				continue;
			step = fmin(step, fmax(x->limit - x->rate, 0));
			for (uint32_t k = 0; k < x->links_count; k++)
				step = fmin(step, f->left[x->links[k]] / f->active_on[x->links[k]]);
		}
		if (!(step < INFINITY))
			break;
		for (size_t i = 0; i < n; i++) {
			struct flow *x = &f->items.data[f->touched.data[i]];
			if (x->open)
				take(f, x, step);
		}
		for (size_t i = 0; i < n; i++) {
			struct flow *x = &f->items.data[f->touched.data[i]];
			if (!x->open)
				continue;
			bool full = x->rate >= x->limit * (1 - 1e-9);
			for (uint32_t k = 0; k < x->links_count; k++)
				full |= f->left[x->links[k]] <= 1e-9 * f->net->links[x->links[k]].capacity_bps;
			if (!full)
				continue;
			x->open = false;
			open--;
			for (uint32_t k = 0; k < x->links_count; k++)
				f->active_on[x->links[k]]--;
		}
	}
}

static void over_set(struct flows *f, uint32_t link)
{
	double over = f->on_link[link].count ? fmax(f->floors[link] - f->capacity[link], 0) : 0;
	f->over_sum += over - f->over[link];
	f->over[link] = over;
}

double flows_research_lost(const struct flows *f, double now_s)
{
	return f->research_lost + fmax(f->over_sum, 0) * (now_s - f->over_at_s);
}

static void share(struct flows *f, double now_s)
{
	f->research_lost = flows_research_lost(f, now_s);
	f->over_at_s = now_s;
	share_floors(f);
	share_fair(f, false);
	share_fair(f, true);
	for (size_t i = 0; i < f->touched_links.count; i++)
		over_set(f, f->touched_links.data[i]);
	for (size_t i = 0; i < f->touched.count; i++) {
		const struct flow *x = &f->items.data[f->touched.data[i]];
		for (uint32_t k = 0; k < x->links_count; k++)
			over_set(f, x->links[k]);
	}
}

/* Takes the rates of the touched flows off their links, or puts them on. */
static void use(struct flows *f, double sign)
{
	for (size_t i = 0; i < f->touched.count; i++) {
		const struct flow *x = &f->items.data[f->touched.data[i]];
		for (uint32_t k = 0; k < x->links_count; k++)
			f->used[x->links[k]] += sign * x->rate;
	}
}

/*
 * Recomputes from what was touched. Links that are not full are left out at
 * first, with the flows that only they lead to; if one gets full by what comes
 * out, it was no bystander, and all is done again with it.
 */
static int recompute(struct flows *f, double now_s)
{
	size_t links_done = 0, flows_done = 0, at = 0;
	for (;;) {
		int r = reach(f, &links_done, &flows_done);
		if (r < 0)
			return r;
		for (; at < f->touched.count; at++) {
			struct flow *x = &f->items.data[f->touched.data[at]];
			x->bytes_left = flow_left(x, now_s);
			x->at_s = now_s;
		}
		use(f, -1);
		share(f, now_s);
		use(f, 1);
		size_t before = f->touched_links.count;
		for (size_t i = 0; i < f->touched.count; i++) {
			const struct flow *x = &f->items.data[f->touched.data[i]];
			for (uint32_t k = 0; k < x->links_count; k++)
				if (full(f, x->links[k]) && touch_link(f, x->links[k]) < 0)
					return -ENOMEM;
		}
		if (f->touched_links.count == before)
			return 0;
	}
}

static void begin(struct flows *f)
{
	f->stamp++;
	f->touched.count = 0;
	f->touched_links.count = 0;
}

int flow_add(struct flows *f, double now_s, const struct flow_spec *spec, uint32_t *ret_flow)
{
	uint32_t index, count = spec->count;
	if (f->free.count > 0) {
		index = f->free.data[--f->free.count];
	} else {
		struct flow none = { 0 };
		index = (uint32_t)f->items.count;
		if (VEC_PUSH(&f->items, none) < 0)
			return -ENOMEM;
	}
	struct flow *x = &f->items.data[index];
	*x = (struct flow){ .bytes_left = spec->bytes,
			    .at_s = now_s,
			    .links_count = count,
			    .user = spec->user,
			    .event_s = INFINITY,
			    .limit = spec->limit > 0 ? spec->limit : INFINITY,
			    .yields = spec->yields,
			    .active = true };
	const uint32_t *links = spec->links;
	memcpy(x->links, links, count * sizeof(*links));
	begin(f);
	for (uint32_t k = 0; k < count; k++) {
		struct flow_list *list = &f->on_link[links[k]];
		if (VEC_PUSH(list, index) < 0)
			return -ENOMEM;
	}
	if (touch_flow(f, index) < 0)
		return -ENOMEM;
	f->active_count++;
	*ret_flow = index;
	return recompute(f, now_s);
}

int flow_remove(struct flows *f, uint32_t flow, double now_s)
{
	struct flow *x = &f->items.data[flow];
	CHECK(x->active);
	begin(f);
	for (uint32_t k = 0; k < x->links_count; k++) {
		struct flow_list *list = &f->on_link[x->links[k]];
		for (size_t i = 0; i < list->count; i++) {
			if (list->data[i] == flow) {
				VEC_SWAP_REMOVE(list, i);
				break;
			}
		}
		uint32_t l = x->links[k];
		if (full(f, l) && touch_link(f, l) < 0)
			return -ENOMEM;
		/* An idle link is idle to the last bit: rounding must not add up. */
		f->used[l] = list->count ? f->used[l] - x->rate : 0;
	}
	x->active = false;
	f->active_count--;
	if (VEC_PUSH(&f->free, flow) < 0)
		return -ENOMEM;
	return recompute(f, now_s);
}

void flow_floor(struct flows *f, uint32_t flow, double floor)
{
	f->items.data[flow].floor = floor;
}

int flows_update(struct flows *f, uint32_t flow, double now_s)
{
	begin(f);
	if (touch_flow(f, flow) < 0)
		return -ENOMEM;
	return recompute(f, now_s);
}

int flows_capacity(struct flows *f, uint32_t link, double capacity, double now_s)
{
	begin(f);
	bool news = full(f, link);
	f->capacity[link] = capacity;
	if (f->on_link[link].count == 0 || !(news || full(f, link)))
		return 0;
	if (touch_link(f, link) < 0)
		return -ENOMEM;
	return recompute(f, now_s);
}
