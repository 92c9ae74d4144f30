/* SPDX-License-Identifier: Apache-2.0 */
#include "base/option_doc.h"

#include <string.h>

static bool in_group(const struct command *c, const char *group)
{
	size_t len = group ? strlen(group) : 0;
	return !group || (strncmp(c->name, group, len) == 0 &&
			  (c->name[len] == '\0' || c->name[len] == ' '));
}

int doc_print_program(const struct program *p, const char *group, FILE *out)
{
	(void)fprintf(out, "%s - %s\n\nUsage: %s COMMAND [OPTION...] [ARGUMENT...]\n\nCommands:\n",
		      p->name, p->summary, p->name);
	for (const struct command *c = p->commands; c->name; c++)
		if (in_group(c, group))
			(void)fprintf(out, "  %-22s %s\n", c->name, c->help);
	(void)fprintf(out, "\n'%s COMMAND --help' says more about one command.\n", p->name);
	if (p->detail && !group)
		(void)fprintf(out, "\n%s\n", p->detail);
	return 0;
}

static void print_options(const struct command *c, FILE *out)
{
	for (const struct option *o = c->options; o && o->kind; o++) {
		char left[64];
		char letter[8] = "    ";
		if (o->letter)
			(void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
		(void)snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name,
			       o->kind == OPTION_FLAG ? "" : " ",
			       o->kind == OPTION_FLAG ? "" : (o->arg ? o->arg : "VALUE"));
		(void)fprintf(out, "  %-30s %s", left, o->help);
		if (o->fallback)
			(void)fprintf(out, " (default %s)", o->fallback);
		(void)fputc('\n', out);
	}
	(void)fprintf(out, "  %-30s %s\n", "-h, --help", "show this and exit");
}

int doc_print_command(const struct program *p, const struct command *c, FILE *out)
{
	(void)fprintf(out, "Usage: %s%s%s [OPTION...]%s%s\n\n%s\n\nOptions:\n", p->name,
		      *c->name ? " " : "", c->name, c->args ? " " : "", c->args ? c->args : "", c->help);
	print_options(c, out);
	if (c->detail)
		(void)fprintf(out, "\n%s\n", c->detail);
	return 0;
}

/* Text into roff: a leading dot or quote would be a request, a backslash an escape. */
static void roff_text(const char *text, FILE *out)
{
	bool line_start = true;
	for (const char *s = text; *s; s++) {
		if (line_start && (*s == '.' || *s == '\''))
			(void)fputs("\\&", out);
		if (*s == '\\')
			(void)fputs("\\e", out);
		else
			(void)fputc(*s, out);
		line_start = *s == '\n';
	}
	(void)fputc('\n', out);
}

/* Details are laid out by hand, in lines that fit a terminal. */
static void man_detail(const char *detail, FILE *out)
{
	if (!detail)
		return;
	(void)fputs(".Bd -unfilled\n", out);
	roff_text(detail, out);
	(void)fputs(".Ed\n", out);
}

static void man_command(const struct command *c, FILE *out)
{
	if (*c->name) {
		(void)fprintf(out, ".Ss %s%s%s\n", c->name, c->args && *c->args ? " " : "", c->args ? c->args : "");
		roff_text(c->help, out);
	}
	if (c->options && c->options->kind) {
		(void)fputs(".Bl -tag -width Ds\n", out);
		for (const struct option *o = c->options; o->kind; o++) {
			(void)fputs(".It ", out);
			if (o->letter)
				(void)fprintf(out, "Fl %c , ", o->letter);
			(void)fprintf(out, "Fl -%s", o->name);
			if (o->kind != OPTION_FLAG)
				(void)fprintf(out, " Ar %s", o->arg ? o->arg : "VALUE");
			(void)fputc('\n', out);
			roff_text(o->help, out);
			if (o->fallback)
				(void)fprintf(out, "Default: %s.\n", o->fallback);
		}
		(void)fputs(".El\n", out);
	}
	man_detail(c->detail, out);
}

int doc_print_man(const struct program *p, FILE *out)
{
	bool alone = *p->commands->name == '\0';

	(void)fprintf(out, ".Dd $Mdocdate$\n.Dt %s %d\n.Os ReclaimNet %s\n.Sh NAME\n.Nm %s\n.Nd %s\n",
		      p->name, p->section ? p->section : 1, p->version, p->name, p->summary);
	(void)fprintf(out, ".Sh SYNOPSIS\n.Nm\n%s.Op Ar option ...\n", alone ? "" : ".Ar command\n");
	if (!alone || p->commands->args)
		(void)fprintf(out, ".Op Ar %s\n", alone ? p->commands->args : "argument ...");
	(void)fputs(".Sh DESCRIPTION\n", out);
	roff_text(alone ? p->commands->help : p->summary, out);
	man_detail(p->detail, out);
	(void)fprintf(out, ".Sh %s\n", alone ? "OPTIONS" : "COMMANDS");
	for (const struct command *c = p->commands; c->name; c++)
		man_command(c, out);
	(void)fputs(".Sh EXIT STATUS\n0 on success, 1 on failure, 2 on wrong usage.\n", out);
	return 0;
}

static void completion_words(const struct command *c, FILE *out)
{
	(void)fputs("COMPREPLY=($(compgen -f -W '", out);
	for (const struct option *o = c->options; o && o->kind; o++)
		(void)fprintf(out, "--%s ", o->name);
	(void)fputs("--help' -- \"$cur\"));;\n", out);
}

int doc_print_completion(const struct program *p, FILE *out)
{
	(void)fprintf(out, "# bash completion for %s, made from its option tables\n_%s() {\n", p->name,
		      p->name);
	(void)fputs("\tlocal cur=${COMP_WORDS[COMP_CWORD]} line=\"${COMP_WORDS[*]:1}\"\n"
		    "\tcase $line in\n", out);
	/* Longer names first: "admin stop-all" must win over "admin". */
	for (int pass = 0; pass < 2; pass++) {
		for (const struct command *c = p->commands; c->name; c++) {
			if ((strchr(c->name, ' ') != NULL) != (pass == 0) || !*c->name)
				continue;
			(void)fprintf(out, "\t\"%s \"*) ", c->name);
			completion_words(c, out);
		}
	}
	if (!*p->commands->name) {
		(void)fputs("\t*) ", out);
		completion_words(p->commands, out);
		(void)fprintf(out, "\tesac\n}\ncomplete -F _%s %s\n", p->name, p->name);
		return 0;
	}
	(void)fputs("\t*) COMPREPLY=($(compgen -W '", out);
	for (const struct command *c = p->commands; c->name; c++)
		if (*c->name)
			(void)fprintf(out, "%s ", c->name);
	(void)fprintf(out, "--help --version' -- \"$cur\"));;\n\tesac\n}\ncomplete -F _%s %s\n", p->name,
		      p->name);
	return 0;
}
