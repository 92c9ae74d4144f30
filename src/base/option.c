/* SPDX-License-Identifier: Apache-2.0 */
#include "base/option.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/option_doc.h"
#include "base/parse.h"

#define ARGS_MAX 4096

static const struct option no_options[] = { { .kind = OPTION_END } };

static const struct option *options_of(const struct command *c)
{
	return c->options ? c->options : no_options;
}

static int parse_number(const struct option *o, const char *text, double *ret_for_bounds,
			void *ret_u64_or_double)
{
	uint64_t u = 0;
	int r;
	switch (o->kind) {
	case OPTION_U64:
		r = parse_u64(text, &u);
		break;
	case OPTION_DURATION:
		r = parse_duration_ns(text, &u);
		break;
	case OPTION_SIZE:
		r = parse_size(text, &u);
		break;
	case OPTION_RATE:
		r = parse_rate_bps(text, &u);
		break;
	default:
		r = parse_double(text, ret_for_bounds);
		if (r == 0)
			*(double *)ret_u64_or_double = *ret_for_bounds;
		return r;
	}
	if (r == 0) {
		*ret_for_bounds = (double)u;
		*(uint64_t *)ret_u64_or_double = u;
	}
	return r;
}

static const char *kind_words(enum option_kind kind)
{
	switch (kind) {
	case OPTION_DURATION:
		return "a duration like 90s or 1.5h";
	case OPTION_SIZE:
		return "a size like 512MiB";
	case OPTION_RATE:
		return "a rate like 100Mbit";
	case OPTION_DOUBLE:
		return "a number";
	default:
		return "a whole number of 0 or more";
	}
}

static int option_set(const struct option *o, const char *text, char *values, struct diag *diag)
{
	char where[DIAG_WHERE_MAX];
	(void)snprintf(where, sizeof(where), "--%s", o->name);
	char *at = values + o->offset;
	switch (o->kind) {
	case OPTION_FLAG:
		*(bool *)at = true;
		return 0;
	case OPTION_STR:
		*(const char **)at = text;
		return 0;
	case OPTION_STRS: {
		struct option_strs *list = (struct option_strs *)at;
		if (list->count == OPTION_STRS_MAX)
			return diag_set(diag, -E2BIG, where, "given more than %d times", OPTION_STRS_MAX);
		list->items[list->count++] = text;
		return 0;
	}
	default:
		break;
	}
	double x;
	union {
		uint64_t u;
		double d;
	} value = { .u = 0 };
	int r = parse_number(o, text, &x, &value);
	if (r < 0)
		return diag_set(diag, r, where, "'%.60s' is not %s", text, kind_words(o->kind));
	if (x < o->min || (o->max > 0 && x > o->max))
		return diag_set(diag, -ERANGE, where, "'%.60s' is not between %.15g and %.15g", text,
				o->min, o->max);
	memcpy(at, &value, sizeof(value));
	return 0;
}

static const struct option *find_long(const struct command *c, const char *name, size_t len)
{
	for (const struct option *o = options_of(c); o->kind; o++)
		if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
			return o;
	return NULL;
}

static const struct option *find_letter(const struct command *c, char letter)
{
	for (const struct option *o = options_of(c); o->kind; o++)
		if (o->letter && o->letter == letter)
			return o;
	return NULL;
}

/* One word that starts with '-'; *i moves on when the value is the next word. */
static int parse_option_word(const struct command *c, int argc, const char *const *argv, int *i,
			     char *values, struct diag *diag)
{
	const char *word = argv[*i];
	const struct option *o;
	const char *value = NULL;
	if (word[1] == '-') {
		size_t len = strcspn(word + 2, "=");
		o = find_long(c, word + 2, len);
		if (word[2 + len] == '=')
			value = word + 3 + len;
	} else {
		o = find_letter(c, word[1]);
		if (o && word[2])
			value = word + 2;
	}
	if (!o)
		return diag_set(diag, -EINVAL, word, "is not an option of '%s'; see --help", c->name);
	if (o->kind == OPTION_FLAG) {
		if (value)
			return diag_set(diag, -EINVAL, word, "takes no value");
		return option_set(o, NULL, values, diag);
	}
	if (!value) {
		if (*i + 1 >= argc)
			return diag_set(diag, -EINVAL, word, "needs a value, %s", o->arg ? o->arg : "VALUE");
		value = argv[++*i];
	}
	return option_set(o, value, values, diag);
}

int command_parse(const struct command *c, int argc, const char *const *argv, void *ret_values,
		  const char **ret_args, size_t args_cap, size_t *ret_args_count, struct diag *diag)
{
	if (c->values_size)
		memset(ret_values, 0, c->values_size);
	for (const struct option *o = options_of(c); o->kind; o++)
		if (o->fallback)
			CHECK(option_set(o, o->fallback, ret_values, diag) == 0);
	size_t n = 0;
	bool only_args = false;
	for (int i = 0; i < argc; i++) {
		if (!only_args && strcmp(argv[i], "--") == 0) {
			only_args = true;
			continue;
		}
		if (!only_args && argv[i][0] == '-' && argv[i][1]) {
			int r = parse_option_word(c, argc, argv, &i, ret_values, diag);
			if (r < 0)
				return r;
			continue;
		}
		if (n == args_cap || n == c->args_max)
			return diag_set(diag, -E2BIG, argv[i], "is one argument too many for '%s'", c->name);
		ret_args[n++] = argv[i];
		only_args = only_args || c->stop_at_args;
	}
	if (n < c->args_min)
		return diag_set(diag, -EINVAL, c->name, "needs %s; see --help", c->args ? c->args : "more");
	*ret_args_count = n;
	return 0;
}

static int usage_error(const struct program *p, const struct diag *diag)
{
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
	(void)fprintf(stderr, "%s: %s\n", p->name, diag_format(diag, text, sizeof(text)));
	return EXIT_USAGE;
}

/* The longest command name ("admin stop-all" before "admin") that argv starts with. */
static const struct command *command_find(const struct program *p, int argc,
					  const char *const *argv, int *ret_words)
{
	const struct command *best = NULL;
	int best_words = 0;
	for (const struct command *c = p->commands; c->name; c++) {
		const char *rest = c->name;
		int words = 0;
		while (*rest && words < argc) {
			size_t len = strcspn(rest, " ");
			if (strlen(argv[words]) != len || memcmp(argv[words], rest, len) != 0)
				break;
			words++;
			rest += len + (rest[len] == ' ');
		}
		if (!*rest && (words > best_words || (!best && !*c->name))) {
			best = c;
			best_words = words;
		}
	}
	*ret_words = best_words;
	return best;
}

/* Is NAME among the options that follow the command's words? c: NULL if there is no such command. */
static bool asks(const struct command *c, int argc, const char *const *argv, const char *name,
		 char letter)
{
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
		const char *a = argv[i];
		if (strcmp(a, name) == 0 || (letter && a[0] == '-' && a[1] == letter && !a[2]))
			return true;
		if (!c)
			continue;
		if (a[0] != '-') {
			/* The words of another program's command line are not ours to read. */
			if (c->stop_at_args)
				return false;
			continue;
		}
		bool is_long = a[1] == '-', apart = is_long ? !strchr(a, '=') : a[1] && !a[2];
		const struct option *o = is_long ? find_long(c, a + 2, strcspn(a + 2, "="))
						 : find_letter(c, a[1]);
		if (o && o->kind != OPTION_FLAG && apart)
			i++; /* its value, whatever that looks like */
	}
	return false;
}

static int command_run(const struct program *p, const struct command *c, int argc,
		       const char *const *argv)
{
	CLEANUP_FREE char *values = calloc(1, c->values_size ? c->values_size : 1);
	CLEANUP_FREE const char **args = calloc(ARGS_MAX, sizeof(*args));
	if (!values || !args) {
		(void)fprintf(stderr, "%s: out of memory\n", p->name);
		return 1;
	}
	struct diag diag = DIAG_INIT;
	size_t n;
	if (command_parse(c, argc, argv, values, args, ARGS_MAX - 1, &n, &diag) < 0)
		return usage_error(p, &diag);
	return c->run(values, (int)n, args);
}

int program_main(const struct program *p, int argc, char **argv)
{
	const char *const *words = (const char *const *)argv + 1;
	int count = argc > 0 ? argc - 1 : 0, used;
	const struct command *c = command_find(p, count, words, &used);
	if (count > 0 && strcmp(words[0], "--print-man") == 0)
		return doc_print_man(p, stdout);
	if (count > 0 && strcmp(words[0], "--print-completion") == 0)
		return doc_print_completion(p, stdout);
	if (asks(c, count - used, words + used, "--version", 0)) {
		(void)printf("%s %s\n", p->name, p->version);
		return 0;
	}
	if (asks(c, count - used, words + used, "--help", 'h') || (count == 1 && strcmp(words[0], "help") == 0))
		return c ? doc_print_command(p, c, stdout)
			 : doc_print_program(p, count > 0 && words[0][0] != '-' ? words[0] : NULL, stdout);
	if (c)
		return command_run(p, c, count - used, words + used);
	if (count == 0) {
		(void)doc_print_program(p, NULL, stderr);
		return EXIT_USAGE;
	}
	struct diag diag = DIAG_INIT;
	(void)diag_set(&diag, -EINVAL, words[0], "is not a command; see '%s --help'", p->name);
	return usage_error(p, &diag);
}
