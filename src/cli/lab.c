/* SPDX-License-Identifier: Apache-2.0 */
/* `reclaim lab`: a campus on this machine, to play scenarios or to play with. */
#include <stddef.h>

#include "base/option.h"
#include "cli/commands.h"
#include "lab/lab.h"

struct values {
	const char *json, *keep, *command;
	bool loopback, quiet;
};

static struct lab_options options_of(const struct values *v, const char *scenario)
{
	return (struct lab_options){ .scenario = scenario, .report = v->json, .keep = v->keep,
				     .shell = v->command, .loopback = v->loopback,
				     .quiet = v->quiet };
}

static int run_run(const void *values, int argc, const char *const *argv)
{
	struct lab_options o = options_of(values, argv[0]);

	return lab_run(&o);
}

static int run_shell(const void *values, int argc, const char *const *argv)
{
	struct lab_options o = options_of(values, argc > 0 ? argv[0] : "examples/campus.yaml");

	return lab_shell(&o);
}

static int run_do(const void *values, int argc, const char *const *argv)
{
	return lab_do(argv[0]);
}

static int run_clean(const void *values, int argc, const char *const *argv)
{
	return lab_clean();
}

#define O(m) offsetof(struct values, m)
#define KEEP_ROW \
	{ "keep", 0, OPTION_STR, O(keep), "DIR", NULL, 0, 0, "where the logs go if something failed" }
#define LOOPBACK_ROW \
	{ "loopback", 0, OPTION_FLAG, O(loopback), NULL, NULL, 0, 0, \
	  "no namespaces: addresses of this machine's loopback" }

static const struct option run_options[] = {
	{ "json", 0, OPTION_STR, O(json), "FILE", NULL, 0, 0, "write the report there" },
	KEEP_ROW,
	LOOPBACK_ROW,
	{ "quiet", 'q', OPTION_FLAG, O(quiet), NULL, NULL, 0, 0, "only the checks" },
	{ .kind = OPTION_END },
};
static const struct option shell_options[] = {
	{ "command", 'c', OPTION_STR, O(command), "COMMAND", NULL, 0, 0,
	  "run this instead of an interactive shell; its exit status is ours" },
	KEEP_ROW,
	LOOPBACK_ROW,
	{ "quiet", 'q', OPTION_FLAG, O(quiet), NULL, NULL, 0, 0, "say nothing but failures" },
	{ .kind = OPTION_END },
};

const struct command cli_lab_commands[] = {
	{ .name = "lab run", .args = "SCENARIO", .args_min = 1, .args_max = 1, .options = run_options,
	  .values_size = sizeof(struct values), .run = run_run,
	  .help = "play a scenario with the real programs in network namespaces",
	  .detail = "Builds the scenario's campus on this machine, starts coordinator and agents in it,\n"
		    "plays its events, checks what came of it, and removes everything. As root with\n"
		    "link capacities, traffic classes and kill switch; otherwise on loopback, saying\n"
		    "what is left out. Exit status 1 if a check fails." },
	{ .name = "lab shell", .args = "[SCENARIO]", .args_max = 1, .options = shell_options,
	  .values_size = sizeof(struct values), .run = run_shell,
	  .help = "bring a campus up and give a shell in it" },
	{ .name = "lab do", .args = "EVENT", .args_min = 1, .args_max = 1, .run = run_do,
	  .help = "inside 'lab shell': have one event of a scenario happen" },
	{ .name = "lab clean", .run = run_clean, .help = "remove what labs that died left behind" },
	{ .name = NULL },
};
