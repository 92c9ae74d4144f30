/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applies a program to values, each in a sandbox of its own: the value is its
 * standard input, what it prints is the result, another exit status than 0 is
 * a failure with what it said on stderr.
 */
#ifndef RECLAIM_CLI_VALUE_RUNNER_H
#define RECLAIM_CLI_VALUE_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "io/loop.h"

struct value_runner;

struct value_runner_ops {
	void (*done)(void *user, uint64_t value, bool failed, const void *bytes, size_t len,
		     uint32_t took_ms);
};

/* Makes a folder for its work below $TMPDIR. rung: of the sandbox, NULL = the best there is. */
int value_runner_new(struct loop *l, const char *rung, const struct value_runner_ops *ops,
		     void *user, struct value_runner **ret, struct diag *diag);
void value_runner_free(struct value_runner *r); /* kills what runs */
/* The program, 0755 in the runner's folder; replaces an earlier one. */
int value_runner_program(struct value_runner *r, const void *bytes, size_t len, struct diag *diag);
/* ops->done follows, also on failure; bytes are copied. */
void value_runner_start(struct value_runner *r, uint64_t value, const void *bytes, size_t len);
void value_runner_cancel(struct value_runner *r, uint64_t value);
/* What the chosen rung lacks, in words for people; "" = nothing. */
const char *value_runner_rung(const struct value_runner *r);

#endif
