/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream registry: who owns which endpoint, in which epoch, where, and the
 * tickets to get there. Sans-IO: frames and `now` in, frames out through a
 * callback, so the same code serves in-process (tests), behind sockets
 * (registry_server.h), and inside the coordinator, which relays the frames of
 * its agents' guests and passes its own store.
 *
 * It is off the data path: while it is away, owners deliver until their lease
 * ends and senders send as long as the owner vouches for itself.
 */
#ifndef RECLAIM_STREAM_REGISTRY_H
#define RECLAIM_STREAM_REGISTRY_H

#include <stddef.h>
#include <stdint.h>

#include "stream/register.h"
#include "stream/seal.h"
#include "wire/registry_frame.h"

struct registry;
struct registry_client;

/*
 * Where registers live. Both calls are synchronous; put is a compare-and-swap
 * on the revision that get returned (0: must not exist) and gives the new one.
 * A put that returns 0 is durable. -ESTALE: someone else wrote; the registry
 * reads again. Any other error is passed on to whoever asked.
 */
struct registry_store {
	int (*get)(void *arg, const char *key, void **ret, size_t *ret_len, uint64_t *ret_revision);
	int (*put)(void *arg, const char *key, const void *value, size_t len, uint64_t revision,
		   uint64_t *ret_revision);
	void *arg;
};

struct registry_options {
	struct register_terms terms;
	struct registry_store store;  /* borrowed; get NULL: memory only */
	/* A frame for one client. Borrowed for the call. */
	void (*send)(void *arg, void *conn, const struct registry_frame *f);
	void *arg;
};

/* now_ns: registers found in the store count as leased from now on, so that no epoch
 * begins while a lease that a former registry gave may still run. */
int registry_new(const struct registry_options *options, uint64_t now_ns, struct registry **ret);
void registry_free(struct registry *r);

/* A job that may ask; token is what its workers show. The secret must survive restarts. */
int registry_add_job(struct registry *r, const char *job, const char *token,
		     const uint8_t secret[SEAL_KEY_LEN]);

int registry_connect(struct registry *r, void *conn, struct registry_client **ret);
/* For a relay that knows the job already: no HELLO needed. */
int registry_client_trust(struct registry_client *c, const char *job);
void registry_disconnect(struct registry_client *c);
/* Answers through send(). A broken or unauthorised frame is answered too. */
void registry_handle(struct registry_client *c, const struct registry_frame *f, uint64_t now_ns);
/* Grants what waited for a lease to end; returns when to be called again. */
uint64_t registry_tick(struct registry *r, uint64_t now_ns);

/* The same without a client, for the scheduler: begin and call off moves. */
int registry_prepare(struct registry *r, const char *job, const char *name, uint64_t target,
		     uint64_t now_ns);
/* JSON: {"endpoints":[...]} of one job; free() it. */
char *registry_list(struct registry *r, const char *job, uint64_t now_ns);

/* A file for registry_options.store: one folder, one file per register, written by rename. */
int registry_file_store(const char *dir, struct registry_store *ret);
void registry_file_store_done(struct registry_store *s);

#endif
