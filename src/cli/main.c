/* SPDX-License-Identifier: Apache-2.0 */
/* `reclaim`: the one command that people type. */
#include <signal.h>
#include <stdio.h>

#include "base/check.h"
#include "base/point.h"
#include "cli/commands.h"

#define COMMANDS_MAX 128

static const struct command *const groups[] = {
	cli_owner_commands,
	cli_owner_page_commands,
	cli_guest_commands,
	cli_guest_tools_commands,
	cli_admin_commands,
	cli_lab_commands,
	cli_volunteer_commands,
	cli_edge_commands,
	cli_image_commands,
	cli_streams_commands,
};

int main(int argc, char **argv)
{
	static struct command all[COMMANDS_MAX + 1]; /* ends with a zeroed row */
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_SIZE(groups); i++) {
		for (const struct command *c = groups[i]; c->name; c++) {
			CHECK(n < COMMANDS_MAX);
			all[n++] = *c;
		}
	}
	const struct program program = {
		.name = "reclaim",
		.summary = "lend machines that you can take back at any moment, and run jobs on them",
		.version = RECLAIM_VERSION,
		.commands = all,
		.detail = "Owners:  lend, back, pause, resume, trigger, status work on this machine alone.\n"
			  "Guests:  run, submit, ps, show, logs, wait, cancel speak to the coordinator.\n"
			  "Exit status: 0 on success, 1 on failure, 2 on wrong usage; 'run' and 'wait'\n"
			  "end with the job's own status.",
	};
	point_init();
	/* A closed pipe (reclaim logs | head) is an ordinary end. */
	(void)signal(SIGPIPE, SIG_DFL);
	return program_main(&program, argc, argv);
}
