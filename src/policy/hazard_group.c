/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines of a room go off in groups: somebody walks through at closing time,
 * a breaker falls, a script runs. Half of a campus's power-offs come with
 * others of the room in the same minutes. After one, the rate at which the
 * room's other machines follow depends on how long ago it was and how many
 * there were; both are learned from what followed earlier ones, over all rooms.
 *
 * An absolute rate, not a factor: the calendar says little about it.
 */
#include <math.h>

#include "base/check.h"
#include "policy/hazard_internal.h"

/* What a group is: each off follows another by no more than the last edge. */
static const double age_edges_s[GROUP_AGES] = { 15, 45, 120, 300 };
/* A room that was never seen to do it: once in a day's worth of such minutes. */
#define PRIOR_S 3600.0
#define PRIOR_EVENTS 0.04

static unsigned size_bin(unsigned size)
{
	return size >= 4 ? 2 : size >= 2 ? 1 : 0;
}

static double rate(const struct hazard *h, unsigned age, unsigned size)
{
	const struct group_bin *b = &h->group[age][size];
	return (b->events + PRIOR_EVENTS) / (b->exposed_s + PRIOR_S);
}

/* Seconds of [from, to) that lie in an age bin of the room's group. */
static double overlap(const struct room *room, unsigned age, double from_s, double to_s)
{
	double lo = room->off_last_s + (age ? age_edges_s[age - 1] : 0);
	double hi = room->off_last_s + age_edges_s[age];
	return fmax(fmin(to_s, hi) - fmax(from_s, lo), 0);
}

void hazard_group_flush(struct hazard *h, struct room *room, double now_s)
{
	unsigned size = size_bin(room->off_size);
	if (room->off_flushed_s < room->off_last_s + age_edges_s[GROUP_AGES - 1])
		for (unsigned a = 0; a < GROUP_AGES; a++)
			h->group[a][size].exposed_s +=
				room->counts[HAZARD_LENT] * overlap(room, a, room->off_flushed_s, now_s);
	room->off_flushed_s = now_s;
}

void hazard_group_off(struct hazard *h, struct room *room, double now_s, bool lent)
{
	double age = now_s - room->off_last_s;
	bool follows = age <= age_edges_s[GROUP_AGES - 1];
	for (unsigned a = 0; lent && follows; a++) {
		if (age <= age_edges_s[a]) {
			h->group[a][size_bin(room->off_size)].events += 1;
			break;
		}
	}
	room->off_size = follows ? room->off_size + 1 : 1;
	room->off_last_s = now_s;
}

double hazard_group_rate(const struct hazard *h, const struct room *room, double at_s)
{
	double age = at_s - room->off_last_s;
	if (h->config.constant)
		return 0;
	for (unsigned a = 0; a < GROUP_AGES; a++)
		if (age <= age_edges_s[a])
			return rate(h, a, size_bin(room->off_size));
	return 0;
}

double hazard_off_group(struct hazard *h, uint32_t owner, double now_s, double from_s)
{
	CHECK(owner < h->owners.count);
	hazard_advance(h, now_s);
	const struct room *room = &h->rooms.data[h->owners.data[owner].room];
	double sum = 0, from = now_s + fmax(from_s, 0);
	for (unsigned a = 0; !h->config.constant && a < GROUP_AGES; a++)
		sum += rate(h, a, size_bin(room->off_size)) * overlap(room, a, from, INFINITY);
	return -expm1(-sum);
}
