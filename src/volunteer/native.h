/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One native volunteer: socket, endpoint and node in one, on a program's loop.
 * What computes the values is the owner's (struct native_ops): a sandboxed
 * program for `reclaim volunteer`, a C function in benches.
 */
#ifndef RECLAIM_VOLUNTEER_NATIVE_H
#define RECLAIM_VOLUNTEER_NATIVE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "io/loop.h"
#include "volunteer/node.h"
#include "volunteer/rtc.h"

#define NATIVE_RETRY_MIN_MS 200u
#define NATIVE_RETRY_MAX_MS 10000u

struct native;

struct native_ops {
	/* What is computed, for whom: once after each welcome. 0, or -errno: leave again. */
	int (*welcome)(void *user, json_t *job);
	/* bytes are borrowed until the call returns; answer with native_result(). */
	void (*compute)(void *user, uint64_t value, const void *bytes, size_t len);
	void (*cancel)(void *user, uint64_t value);
	/* For people: "connected", "relayed", "lost", ... */
	void (*state)(void *user, const char *what);
	/* The master is done, or refused this volunteer for good. */
	void (*ended)(void *user, bool done, const char *why);
};

struct native_config {
	const char *url;      /* "http://host:port/#INVITE": copied */
	uint32_t workers;
	struct rtc_config rtc;
	bool relay_only;
	const char *token;    /* NULL: one is made */
};

int native_new(struct loop *l, const struct native_config *config, const struct native_ops *ops,
	       void *user, struct native **ret, struct diag *diag);
/* As if the process had been killed, if !leave; no callback comes after. */
void native_free(struct native *v, bool leave);
void native_set_workers(struct native *v, uint32_t workers);
void native_result(struct native *v, uint64_t value, bool failed, const void *bytes, size_t len,
		   uint32_t took_ms);
void native_stats(const struct native *v, struct node_stats *ret);
/* The invitation and origin of a URL as printed by `reclaim map`; -EINVAL. */
int native_parse_url(const char *url, char *origin, size_t origin_size, char *invite,
		     size_t invite_size);

#endif
