/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/utmp.h"

#include <string.h>
#include <utmpx.h>

#include "base/check.h"

static void text_copy(char *to, size_t to_size, const char *from, size_t from_size)
{
	size_t n = strnlen(from, MIN(from_size, to_size - 1));
	for (size_t i = 0; i < n; i++)
		to[i] = from[i] > ' ' && from[i] < 0x7f ? from[i] : '?';
	to[n] = '\0';
}

void utmp_parse(const void *bytes, size_t len, struct utmp_sessions *ret)
{
	ret->count = 0;
	for (size_t at = 0; len - at >= sizeof(struct utmpx) && ret->count < UTMP_SESSIONS_MAX;
	     at += sizeof(struct utmpx)) {
		struct utmpx u;
		memcpy(&u, (const char *)bytes + at, sizeof(u)); /* the bytes need not be aligned */
		if (u.ut_type != USER_PROCESS || u.ut_pid <= 0 || !u.ut_user[0])
			continue;
		struct utmp_session *s = &ret->items[ret->count++];
		text_copy(s->user, sizeof(s->user), u.ut_user, sizeof(u.ut_user));
		text_copy(s->line, sizeof(s->line), u.ut_line, sizeof(u.ut_line));
		s->pid = u.ut_pid;
		s->since_s = u.ut_tv.tv_sec;
	}
}

const struct utmp_session *utmp_newcomer(const struct utmp_sessions *before,
					 const struct utmp_sessions *now)
{
	for (size_t i = 0; i < now->count; i++) {
		const struct utmp_session *s = &now->items[i];
		bool known = false;
		/* A line is used again and again: it is the pid and the time that tell. */
		for (size_t k = 0; k < before->count && !known; k++)
			known = before->items[k].pid == s->pid && before->items[k].since_s == s->since_s &&
				strcmp(before->items[k].line, s->line) == 0;
		if (!known)
			return s;
	}
	return NULL;
}
