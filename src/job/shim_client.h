/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's end of a shim: starts one, or finds a running one again, and
 * passes words to and fro on the agent's libuv loop. Not thread-safe; every
 * callback comes from the loop, never from inside a call.
 *
 *     shim_client_spawn() or shim_client_adopt()
 *         -> on_event(hello), on_event(...)...
 *         -> on_lost(): the shim is gone (its process ended and the socket with it).
 *            Without an `exited` before, the guest died with it; what may be left of
 *            it is removed with leftover_kill() (leftover.h).
 *     shim_client_free() at any time, also from a callback: the shim lives on.
 */
#ifndef RECLAIM_JOB_SHIM_CLIENT_H
#define RECLAIM_JOB_SHIM_CLIENT_H

#include <uv.h>

#include "job/shim_proto.h"

struct shim_client;

struct shim_callbacks {
	/* The event is the client's; copy what must outlive the call. */
	void (*on_event)(void *ctx, struct shim_client *client, const struct shim_event *event);
	/* err: -ECONNREFUSED or -ENOENT (nobody there), -EPIPE (gone), -ETIMEDOUT (did not
	 * come up), -EPROTO (spoke nonsense; diag text in what). Last callback of a client. */
	void (*on_lost)(void *ctx, struct shim_client *client, int err, const char *what);
};

struct shim_client_config {
	const char *program; /* reclaim-shim; NULL = beside our own program, then PATH */
	const char *socket;  /* run/shim/<job>.<epoch>.sock; at most 107 bytes */
	const char *log;     /* where the shim's own stderr goes (appended); NULL = ours */
	uint64_t timeout_ns; /* to come up and greet; 0 = 5 s */
};

/*
 * Starts reclaim-shim in a session of its own, connects, sends `start` when greeted.
 * start is encoded at once and not kept. 0, or -errno if no process could be made.
 */
int shim_client_spawn(uv_loop_t *loop, const struct shim_client_config *config,
		      const struct shim_start *start, const struct shim_callbacks *callbacks,
		      void *ctx, struct shim_client **ret, struct diag *diag);
/* Connects to a shim that an earlier agent started. */
int shim_client_adopt(uv_loop_t *loop, const struct shim_client_config *config,
		      const struct shim_callbacks *callbacks, void *ctx,
		      struct shim_client **ret, struct diag *diag);
void shim_client_free(struct shim_client *client);

/*
 * Sends a command (its id is ours and returned; 0 = out of memory or already lost).
 * Commands given before the greeting are sent in order after it.
 */
uint64_t shim_client_send(struct shim_client *client, struct shim_command *cmd);

/* The usual ones. */
uint64_t shim_client_go(struct shim_client *client);
uint64_t shim_client_lease(struct shim_client *client, uint64_t lease_deadline_ns);
uint64_t shim_client_notice(struct shim_client *client, const char *notice_id, const char *reason,
			    uint64_t deadline_ns, uint64_t window_ns);
uint64_t shim_client_cancel(struct shim_client *client);
uint64_t shim_client_freeze(struct shim_client *client);
uint64_t shim_client_thaw(struct shim_client *client);
uint64_t shim_client_saved(struct shim_client *client);
uint64_t shim_client_signal(struct shim_client *client);
uint64_t shim_client_kill(struct shim_client *client, enum shim_end end, const char *reason);
uint64_t shim_client_dump(struct shim_client *client, const char *dir, bool leave_frozen);
uint64_t shim_client_close(struct shim_client *client);

/*
 * One command and its reply without a loop, for `reclaim back` when no agent is
 * there: connects, sends, waits until the reply or timeout_ns. 0, the shim's
 * error as -EREMOTEIO with diag, or -errno.
 */
int shim_call(const char *socket, struct shim_command *cmd, uint64_t timeout_ns,
	      struct shim_hello *ret_hello, struct diag *diag);

#endif
