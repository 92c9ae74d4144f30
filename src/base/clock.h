/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks and spans of time. Everything that times out runs on CLOCK_BOOTTIME,
 * which goes on through suspend: a lease must not outlive a closed lid.
 * Wall-clock time is for people (logs, schedules) only.
 */
#ifndef RECLAIM_BASE_CLOCK_H
#define RECLAIM_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

static inline uint64_t timespec_ns(const struct timespec *ts)
{
	return (uint64_t)ts->tv_sec * NS_PER_S + (uint64_t)ts->tv_nsec;
}

uint64_t clock_boot_ns(void);
uint64_t clock_wall_ms(void);
/* The wall clock that stamps files (CLOCK_REALTIME_COARSE): a file written later is not stamped
 * earlier. */
uint64_t clock_stamp_ns(void);

/* RFC 3339 in UTC with milliseconds, "2026-03-01T08:00:00.123Z". Returns buf. */
#define CLOCK_TEXT_MAX 32
const char *clock_format_wall(uint64_t wall_ms, char buf[CLOCK_TEXT_MAX]);

#endif
