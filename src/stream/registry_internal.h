/* SPDX-License-Identifier: Apache-2.0 */
/* What the registry keeps, shared by registry.c and endpoint.c. */
#ifndef RECLAIM_STREAM_REGISTRY_INTERNAL_H
#define RECLAIM_STREAM_REGISTRY_INTERNAL_H

#include "base/map.h"
#include "base/vec.h"
#include "stream/registry.h"

struct job {
	char name[STREAM_NAME_MAX + 1];
	char token[REGISTRY_TOKEN_MAX + 1];
	uint8_t secret[SEAL_KEY_LEN];
};

/* A process that may become the owner: waits for the grant, or stands by. */
struct candidate {
	struct registry_client *client;
	uint64_t instance;
	uint32_t id; /* of its JOIN */
	bool standby;
	char locator[STREAM_LOCATOR_MAX + 1];
	char group[STREAM_NAME_MAX + 1];
};

struct endpoint {
	struct job *job;
	char name[STREAM_NAME_MAX + 1];
	struct register_record record;
	uint64_t revision;
	bool recover;                    /* how the present epoch began */
	bool vacant_told;                /* standbys know that its lease is over */
	char locator[STREAM_LOCATOR_MAX + 1];
	char group[STREAM_NAME_MAX + 1];
	struct registry_client *client;  /* the owner's, while connected */
	uint8_t *cursors;
	size_t cursors_len;
	struct VEC(struct candidate) candidates;
	struct VEC(struct registry_client *) watchers;
};

struct group_watch {
	struct registry_client *client;
	struct job *job;
	char group[STREAM_NAME_MAX + 1];
};

struct registry {
	struct registry_options options;
	struct map *jobs_by_token;
	struct VEC(struct job *) jobs;
	struct map *endpoints; /* "job/name" */
	struct VEC(struct endpoint *) all;
	struct VEC(struct group_watch) groups;
};

struct registry_client {
	struct registry *registry;
	struct job *job;
	void *conn;
};

/* endpoint.c */
/* The endpoint of that name, from the store if it is not in memory yet, or a new one. */
int endpoint_get(struct registry *r, struct job *job, const char *name, uint64_t now_ns,
		 struct endpoint **ret);
/* Changes the register, by compare-and-swap in the store; on an error nothing has changed. */
int endpoint_save(struct registry *r, struct endpoint *e, const struct register_record *next);
void endpoint_free(struct endpoint *e);

#endif
