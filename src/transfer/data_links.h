/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data links of one session, sending or receiving alike: which are
 * attached, when they must end, and what went wrong first on one of them. Links
 * come from threads that this starts, or from threads of a listener.
 */
#ifndef RECLAIM_TRANSFER_DATA_LINKS_H
#define RECLAIM_TRANSFER_DATA_LINKS_H

#include <pthread.h>
#include <stdbool.h>

#include "transfer/link.h"
#include "wire/transfer_frame.h"

struct data_links_params {
	/* Opens data link `stream` (1...) from its own thread; NULL: they come by attach alone. */
	int (*open)(void *arg, unsigned stream, struct link **ret, struct diag *diag);
	void *open_arg;
	void (*serve)(void *arg, struct link *l); /* attaches it and works until the session ends */
	void *serve_arg;
	int wake_fd; /* an eventfd, written to when a link failed; -1 = none */
};

struct data_links {
	struct data_links_params p;
	pthread_mutex_t lock; /* of all below, and of what the session keeps beside it */
	pthread_cond_t changed;
	bool ready, over;     /* links may work; must end */
	int error;            /* the first, before the end */
	struct diag error_diag;
	struct link *links[TRANSFER_STREAMS_MAX];
	unsigned attached;
	struct data_link_opener {
		struct data_links *d;
		unsigned stream;
	} openers[TRANSFER_STREAMS_MAX];
	pthread_t threads[TRANSFER_STREAMS_MAX];
	unsigned thread_count; /* of the session's own thread */
};

void data_links_init(struct data_links *d, const struct data_links_params *p);
void data_links_done(struct data_links *d); /* after data_links_end(), or before any link came */
void data_links_set_ready(struct data_links *d);
/* A slot for l, or -1 when the session is over or full (or, if_ready, not ready yet). */
int data_links_enter(struct data_links *d, struct link *l, bool if_ready);
void data_links_leave(struct data_links *d, int slot);
void data_links_fail(struct data_links *d, int err, const struct diag *diag);
/* The first failure or 0; diag is filled with it. */
int data_links_error(struct data_links *d, struct diag *diag);
/* Opens up to count more from threads; how many were begun. */
unsigned data_links_open(struct data_links *d, unsigned count);
/* No new ones, and returns when all have left. cut: those at work are broken off. */
void data_links_end(struct data_links *d, bool cut);

#endif
