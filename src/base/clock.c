/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

#include "base/check.h"

uint64_t clock_boot_ns(void)
{
	struct timespec t;
	CHECK(clock_gettime(CLOCK_BOOTTIME, &t) == 0);
	return timespec_ns(&t);
}

uint64_t clock_stamp_ns(void)
{
	struct timespec ts;
	(void)clock_gettime(CLOCK_REALTIME_COARSE, &ts);
	return timespec_ns(&ts);
}

uint64_t clock_wall_ms(void)
{
	struct timespec t;
	CHECK(clock_gettime(CLOCK_REALTIME, &t) == 0);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / NS_PER_MS;
}

const char *clock_format_wall(uint64_t wall_ms, char buf[CLOCK_TEXT_MAX])
{
	time_t s = (time_t)(wall_ms / 1000);
	struct tm tm;
	if (!gmtime_r(&s, &tm) || tm.tm_year > 8099) {
		(void)snprintf(buf, CLOCK_TEXT_MAX, "?");
		return buf;
	}
	size_t n = strftime(buf, CLOCK_TEXT_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
	(void)snprintf(buf + n, CLOCK_TEXT_MAX - n, ".%03uZ", (unsigned)(wall_ms % 1000));
	return buf;
}
