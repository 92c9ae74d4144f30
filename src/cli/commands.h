/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of commands of `reclaim`; main.c joins them. Each array ends with a NULL name. */
#ifndef RECLAIM_CLI_COMMANDS_H
#define RECLAIM_CLI_COMMANDS_H

#include "base/option.h"

extern const struct command cli_owner_commands[]; /* lend, back, pause, resume, trigger, status */
extern const struct command cli_owner_page_commands[]; /* page */
extern const struct command cli_guest_tools_commands[]; /* doctor, ack */
extern const struct command cli_guest_commands[]; /* run, submit, ps, show, logs, wait, ... */
extern const struct command cli_edge_commands[];  /* edge show, edge who, edge probe, edge remove */
extern const struct command cli_streams_commands[]; /* streams, streams move */
extern const struct command cli_image_commands[]; /* image ls, show, verify, prune */
extern const struct command cli_lab_commands[];   /* lab run, lab shell, lab do, lab clean */
extern const struct command cli_admin_commands[]; /* enrol, token, nodes, why, admin ... */
extern const struct command cli_volunteer_commands[]; /* map, volunteer */

#endif
