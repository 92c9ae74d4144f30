/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program log: one line per event on stderr, "LEVEL ident: text", with
 * sd-daemon priority prefixes when JOURNAL_STREAM is set. Libraries below the
 * programs do not log: they return errors.
 */
#ifndef RECLAIM_BASE_LOG_H
#define RECLAIM_BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* ident must outlive the program's logging. Not thread-safe: call it first in main. */
void log_init(const char *ident, enum log_level level_max);
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
