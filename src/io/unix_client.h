/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocking end of a Unix socket with newline-delimited JSON, for the
 * command line and other programs without a loop. Lines as in unix_server.h.
 */
#ifndef RECLAIM_IO_UNIX_CLIENT_H
#define RECLAIM_IO_UNIX_CLIENT_H

#include <jansson.h>
#include <stdint.h>

#include "base/cleanup.h"

struct unix_client;

/* 0, -ENOENT (no such socket), -ECONNREFUSED (nobody listens), -EACCES, -ENAMETOOLONG, ... */
int unix_client_open(const char *path, struct unix_client **ret);
void unix_client_close(struct unix_client *c);
DEFINE_CLEANUP(struct unix_client *, unix_client_close)
#define CLEANUP_UNIX_CLIENT CLEANUP(unix_client_close_cleanup)

int unix_client_send(struct unix_client *c, json_t *message); /* borrowed */
/* The next message (a new reference). -ETIMEDOUT, -EPIPE when the other end closed, -EMSGSIZE,
 * -EBADMSG (no JSON object). timeout UINT64_MAX = wait for ever. */
int unix_client_receive(struct unix_client *c, uint64_t timeout_ns, json_t **ret);
/* Send and receive one. */
int unix_client_call(struct unix_client *c, json_t *message, uint64_t timeout_ns, json_t **ret);
int unix_client_fd(const struct unix_client *c);

/* Opens, calls, closes. */
int unix_client_ask(const char *path, json_t *message, uint64_t timeout_ns, json_t **ret);

#endif
