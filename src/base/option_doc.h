/* SPDX-License-Identifier: Apache-2.0 */
/* What the option tables print: help, man page (mdoc(7)), shell completion (bash). */
#ifndef RECLAIM_BASE_OPTION_DOC_H
#define RECLAIM_BASE_OPTION_DOC_H

#include <stdio.h>

#include "base/option.h"

/* All return the exit status, 0. group: only commands that start with this word, or NULL. */
int doc_print_program(const struct program *p, const char *group, FILE *out);
int doc_print_command(const struct program *p, const struct command *c, FILE *out);
int doc_print_man(const struct program *p, FILE *out);
int doc_print_completion(const struct program *p, FILE *out);

#endif
