/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of `reclaim map`: lines of stdin, whole files, lines of a file
 * ("@FILE"), or a range of numbers ("1..1000"), one after the other.
 */
#ifndef RECLAIM_CLI_MAP_INPUT_H
#define RECLAIM_CLI_MAP_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/diag.h"
#include "base/strbuf.h"

struct map_input {
	const char *const *args;
	size_t args_count, next;
	FILE *lines;           /* being read; not stdin */
	bool range, use_stdin, ended;
	uint64_t at, to;       /* of the range */
	struct strbuf pending; /* stdin: bytes without a newline yet */
	bool stdin_ended;
};

/* No arguments: stdin. args are borrowed. Opens nothing yet. */
void map_input_init(struct map_input *in, const char *const *args, size_t count);
void map_input_done(struct map_input *in);
/* How many values there will be, if that is known without reading; else 0. */
uint64_t map_input_known(const struct map_input *in);
/*
 * The next value into `ret` (cleared first): 1, 0 at the end, -EAGAIN (stdin
 * has none yet: feed it), -errno with diag.
 */
int map_input_next(struct map_input *in, struct strbuf *ret, struct diag *diag);
/* Stdin became readable. */
void map_input_feed(struct map_input *in);

#endif
