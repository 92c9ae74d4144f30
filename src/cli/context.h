/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who the user is to the coordinator, and where it is: an identity folder
 * ($RECLAIM_IDENTITY, else ~/.config/reclaim) with ca.pem, cert.pem, key.pem
 * and `coordinator`, a file with its address ($RECLAIM_COORDINATOR wins).
 */
#ifndef RECLAIM_CLI_CONTEXT_H
#define RECLAIM_CLI_CONTEXT_H

#include "base/diag.h"
#include "io/http_client.h"
#include "io/identity.h"

struct cli_context {
	struct identity *identity;
	char address[260]; /* "host:port" */
};

/* The folder, whether it exists or not. 0 or -errno. */
int cli_identity_dir(char *buf, size_t size);
/* Prints what is wrong and returns -errno. */
int cli_context_open(struct cli_context *c);
void cli_context_close(struct cli_context *c);
#define CLEANUP_CONTEXT __attribute__((cleanup(cli_context_close)))
/* A connection of its own (one per thread). Prints what is wrong. */
int cli_connect(const struct cli_context *c, struct http_client **ret);
/* Both, for a command that needs one connection. Prints what is wrong; 0 or -errno. */
int cli_open(struct cli_context *c, struct http_client **ret);

/* "reclaim: where: what" on stderr; returns 1, the exit status for it. */
int cli_fail(const struct diag *diag);
int cli_failf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints a JSON value on stdout, indented. Takes the reference. */
void cli_print_json(json_t *value);

#endif
