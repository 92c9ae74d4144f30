/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is logged in, out of the bytes of utmp(5). Pure: the file is written by
 * login programs of every kind, so nothing in it is taken for granted; records
 * that are cut short or not of a session are skipped.
 */
#ifndef RECLAIM_AGENT_UTMP_H
#define RECLAIM_AGENT_UTMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define UTMP_SESSIONS_MAX 256 /* further ones are not seen */
#define UTMP_BYTES_MAX (1u << 20)

struct utmp_session {
	char user[33], line[33]; /* printable ASCII; other bytes come as '?' */
	pid_t pid;
	int64_t since_s;         /* wall clock */
};
struct utmp_sessions {
	struct utmp_session items[UTMP_SESSIONS_MAX];
	size_t count;
};

void utmp_parse(const void *bytes, size_t len, struct utmp_sessions *ret);
/* The first session of now that before does not have, or NULL. */
const struct utmp_session *utmp_newcomer(const struct utmp_sessions *before,
					 const struct utmp_sessions *now);

#endif
