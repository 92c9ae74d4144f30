/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and options as tables. The parser, --help, the man page and shell
 * completion all come from the rows, so they cannot drift apart.
 */
#ifndef RECLAIM_BASE_OPTION_H
#define RECLAIM_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

enum option_kind {
	OPTION_END = 0,
	OPTION_FLAG,     /* bool */
	OPTION_STR,      /* const char *, borrowed from argv */
	OPTION_U64,      /* uint64_t in [min, max] */
	OPTION_DOUBLE,   /* double in [min, max] */
	OPTION_DURATION, /* uint64_t ns in [min, max] */
	OPTION_SIZE,     /* uint64_t bytes */
	OPTION_RATE,     /* uint64_t bit/s */
	OPTION_STRS,     /* struct option_strs: may be given many times */
};

#define OPTION_STRS_MAX 64
struct option_strs {
	const char *items[OPTION_STRS_MAX];
	size_t count;
};

struct option {
	const char *name;  /* long name without dashes */
	char letter;       /* short name, or 0 */
	enum option_kind kind;
	size_t offset;     /* into the values struct */
	const char *arg;   /* name of the argument in help: "FILE" */
	const char *fallback; /* default as text, or NULL */
	double min, max;   /* numbers; max 0 = no bound */
	const char *help;
};

struct command {
	const char *name;       /* "back"; a group's commands may be two words: "admin stop-all" */
	const char *args;       /* "JOB [FILE...]" for the usage line */
	size_t args_min, args_max; /* positional arguments; SIZE_MAX = any */
	bool stop_at_args;      /* everything after the first positional is positional */
	const struct option *options; /* ends with OPTION_END; may be NULL */
	size_t values_size;     /* of the struct the options write to */
	const char *help;       /* one line */
	const char *detail;     /* paragraphs for --help and the man page, or NULL */
	/* Exit status. values is zeroed memory of values_size, then defaults, then argv. */
	int (*run)(const void *values, int argc, const char *const *argv);
};

struct program {
	const char *name;    /* "reclaim" */
	const char *summary; /* one line */
	const char *detail;  /* paragraphs, or NULL */
	const char *version;
	const struct command *commands; /* ends with a NULL name; a single row named "" = no subcommands */
	int section;         /* of the manual; 0 = 1, commands for everybody */
};

enum { EXIT_USAGE = 2 };

/* Parses argv, runs the command, returns the exit status: 0, 1 failed, 2 usage.
 * Adds --help, --version, and the hidden --print-man and --print-completion. */
int program_main(const struct program *p, int argc, char **argv);

/* The parser alone, for tests and job scripts: fills values and the positionals. */
int command_parse(const struct command *c, int argc, const char *const *argv, void *ret_values,
		  const char **ret_args, size_t args_cap, size_t *ret_args_count, struct diag *diag);

#endif
