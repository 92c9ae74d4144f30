/* SPDX-License-Identifier: Apache-2.0 */
/* logind.h without libsystemd. */
#include <errno.h>

#include "agent/logind.h"

int logind_open(struct loop *l, void (*event)(void *user, enum logind_event e, const char *detail),
		void *user, struct logind **ret)
{
	*ret = NULL;
	return -ENOTSUP;
}

void logind_close(struct logind *d)
{
}

void logind_release(struct logind *d)
{
}

uint64_t logind_delay_ns(const struct logind *d)
{
	return 0;
}

const char *logind_missing(const struct logind *d)
{
	return "built without libsystemd";
}
