/* SPDX-License-Identifier: Apache-2.0 */
/* A reclaim-transfer process on a libuv loop: start, lines to and from it, its end. */
#ifndef RECLAIM_TRANSFER_CHILD_H
#define RECLAIM_TRANSFER_CHILD_H

#include <uv.h>

#include "base/strbuf.h"
#include "transfer/message.h"

struct child {
	uv_process_t process;
	uv_pipe_t pipe;
	uv_timer_t kill_timer;
	struct strbuf in;
	unsigned handles;     /* open ones; at 0 on_end runs */
	bool exited;
	int64_t exit_status;
	int term_signal;
	void *user;
	void (*on_message)(struct child *c, const struct message *m);
	/* The process is reaped and every handle closed: c may be freed. */
	void (*on_end)(struct child *c);
};

/* 0 or -errno with diag; on failure on_end still comes, from the loop, if *ret_pending. */
int child_start(uv_loop_t *loop, const char *program, struct child *c, bool *ret_pending,
		struct diag *diag);
void child_send(struct child *c, const struct message *m);
/* Kills it after grace_ms, unless it ends before. */
void child_stop(struct child *c, unsigned grace_ms);
/* Why it ended, for a diag. */
void child_describe(const struct child *c, char *buf, size_t size);

/* The path of the helper: given, or near the running program. */
int child_program(const char *given, char *ret, size_t size, struct diag *diag);

#endif
