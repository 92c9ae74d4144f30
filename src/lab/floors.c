/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was really guaranteed to moves, and when: each agent notes in its log
 * every change of its uplink's floor, which stands while a sender runs. The
 * sum over machines is what a link that they share had promised away.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "lab/report_internal.h"

#define LOG_MAX (64u << 20)
#define MARK "moves have a floor of "

/* The log's wall clock on the lab's own. */
static bool time_of(const char *line, uint64_t *ret_boot_ns)
{
	struct tm t = { 0 };
	unsigned ms;

	if (sscanf(line, "%d-%d-%dT%d:%d:%d.%3uZ", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour,
		   &t.tm_min, &t.tm_sec, &ms) != 7)
		return false;
	t.tm_year -= 1900;
	t.tm_mon -= 1;
	uint64_t wall_ms = (uint64_t)timegm(&t) * 1000 + ms, now_ms = clock_wall_ms();

	*ret_boot_ns = clock_boot_ns() - (now_ms > wall_ms ? now_ms - wall_ms : 0) * NS_PER_MS;
	return true;
}

static double overlap(uint64_t a_from, uint64_t a_to, uint64_t b_from, uint64_t b_to)
{
	uint64_t from = a_from > b_from ? a_from : b_from, to = a_to < b_to ? a_to : b_to;

	return to > from ? (double)(to - from) : 0;
}

double floors_granted(const char *text, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t since = 0, bps = 0;
	double bits = 0;

	for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
		uint64_t at;
		const char *mark;

		end = strchrnul(line, '\n');
		mark = memmem(line, (size_t)(end - line), MARK, strlen(MARK));
		if (!mark || !time_of(line, &at))
			continue;
		bits += (double)bps * overlap(since, at, from_ns, to_ns) / 1e9;
		since = at;
		bps = strtoull(mark + strlen(MARK), NULL, 10);
	}
	bits += (double)bps * overlap(since, to_ns, from_ns, to_ns) / 1e9;
	return to_ns > from_ns ? bits / ((double)(to_ns - from_ns) / 1e9) : 0;
}

double floors_of_machine(const struct lab *l, size_t machine, uint64_t from_ns, uint64_t to_ns)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;

	/* A machine whose agent wrote nothing granted nothing. */
	if (file_read(l->machines[machine].log, LOG_MAX, &text, &len) < 0)
		return 0;
	return floors_granted(text, from_ns, to_ns);
}
