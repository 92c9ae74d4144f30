/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

static const char *log_ident = "reclaim";
static enum log_level log_level_max = LOG_LEVEL_INFO;

static const struct {
	const char *name;
	int priority; /* sd-daemon(3) prefix */
} levels[] = {
	[LOG_LEVEL_ERROR] = { "error", 3 },
	[LOG_LEVEL_WARN] = { "warning", 4 },
	[LOG_LEVEL_INFO] = { "info", 6 },
	[LOG_LEVEL_DEBUG] = { "debug", 7 },
};

void log_init(const char *ident, enum log_level level_max)
{
	log_ident = ident;
	log_level_max = level_max;
}

void log_at(enum log_level level, const char *fmt, ...)
{
	if (level > log_level_max)
		return;
	char line[2048];
	int n;
	if (getenv("JOURNAL_STREAM")) {
		n = snprintf(line, sizeof(line), "<%d>%s: ", levels[level].priority, log_ident);
	} else {
		char when[CLOCK_TEXT_MAX];
		n = snprintf(line, sizeof(line), "%s %s %s: ",
			     clock_format_wall(clock_wall_ms(), when), levels[level].name, log_ident);
	}
	va_list args;
	va_start(args, fmt);
	int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, args);
	va_end(args);
	size_t len = (size_t)n + (m > 0 ? (size_t)m : 0);
	if (len > sizeof(line) - 2)
		len = sizeof(line) - 2;
	line[len++] = '\n';
	(void)!write(STDERR_FILENO, line, len); /* nowhere else to say it */
}
