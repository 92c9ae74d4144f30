/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of a master whose volunteers come through the coordinator: the other
 * end of carry.h. When the connection falls volunteers go on by their direct
 * channels, and come back to the coordinator by themselves.
 */
#ifndef RECLAIM_VOLUNTEER_CARRIED_H
#define RECLAIM_VOLUNTEER_CARRIED_H

#include "io/identity.h"
#include "io/loop.h"
#include "volunteer/door.h"
#include "volunteer/master.h"

struct carried;

struct carried_config {
	const struct identity *identity; /* borrowed, must outlive it */
	const char *address;             /* the coordinator's "host:port" */
	const struct door_file *functions; /* borrowed */
	size_t functions_count;
	/* Volunteers may come (also after each new connection); the page's address is origin
	 * followed by '#' and the invitation. */
	void (*ready)(void *user, const char *origin);
	/* For people: not connected now, or refused for good. */
	void (*trouble)(void *user, const char *why, bool refused);
	void *user;
};

int carried_open(struct loop *l, struct master *m, const struct carried_config *config,
		 struct carried **ret);
/* Before master_free(). */
void carried_close(struct carried *c);

#endif
