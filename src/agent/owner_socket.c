/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's commands on run/agent.sock. Who may speak is the file's mode:
 * root, the agent's user, and the owner's group. Each request is answered at
 * once; a watcher hears every later change.
 */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

static void answer(struct agent *a, struct unix_conn *c, uint64_t history, const char *error)
{
	struct owner_status s;
	owner_snapshot(a, history, &s);
	if (error && *error)
		s.error = strdup(error);
	CLEANUP_JSON json_t *m = schema_encode(&owner_status_schema, &s);
	schema_done(&owner_status_schema, &s);
	if (m)
		(void)unix_conn_send(c, m); /* an asker that left needs no answer */
}

int owner_reload(struct agent *a, char *error, size_t size)
{
	struct terms fresh;
	struct diag diag = DIAG_INIT;
	if (terms_load(a->config.terms, &fresh, &diag) < 0) {
		(void)snprintf(error, size, "%.250s: %.400s; the terms before stay", diag.where, diag.what);
		return -EINVAL;
	}
	if (fresh.slots_count != a->terms.slots_count && a->guests) {
		terms_done(&fresh);
		(void)snprintf(error, size,
			       "the number of slots changes while guests are on board; take the machine "
			       "back first. The terms before stay");
		return -EBUSY;
	}
	bool *used = calloc(fresh.slots_count + 1, sizeof(*used));
	if (!used) {
		terms_done(&fresh);
		(void)snprintf(error, size, "out of memory");
		return -ENOMEM;
	}
	for (struct guest *g = a->guests; g; g = g->next)
		used[g->slot_index] = g->phase < GUEST_ENDING;
	free(a->slot_used);
	a->slot_used = used;
	terms_done(&a->terms);
	a->terms = fresh;
	owner_publish_window(a);
	log_info("terms: read again from %s", a->config.terms);
	/* A new hello tells the coordinator; it costs a reconnect, and reloads are rare. */
	if (a->link)
		(void)control_client_restart(a->link, NULL);
	trigger_terms(a);
	owner_schedule_check(a);
	return 0;
}

static void do_request(struct agent *a, const struct owner_request *q, char *error, size_t size)
{
	const char *reason = q->reason ? q->reason : "owner";
	int r = 0;
	switch ((enum owner_command)q->cmd) {
	case OWNER_CMD_LEND:
		(void)owner_lend(a, error, size);
		break;
	case OWNER_CMD_BACK:
		r = owner_back(a, q->now,
			       q->window_given ? q->window_ms * NS_PER_MS : a->terms.window_ns, reason);
		/* Already faster than what was asked: nothing to complain about. */
		if (r < 0 && r != -EALREADY)
			(void)snprintf(error, size, "not in state '%s'",
				       control_owner_state_names[a->owner.state]);
		break;
	case OWNER_CMD_CANCEL:
		if (owner_cancel(a) < 0)
			(void)snprintf(error, size, "there is no notice to cancel (the machine is %s)",
				       control_owner_state_names[a->owner.state]);
		break;
	case OWNER_CMD_PAUSE:
	case OWNER_CMD_RESUME:
		owner_pause(a, q->cmd == OWNER_CMD_PAUSE);
		break;
	case OWNER_CMD_RELOAD:
		(void)owner_reload(a, error, size);
		break;
	case OWNER_CMD_TRIGGER:
		trigger_fire(a, (enum owner_trigger)q->trigger, reason);
		break;
	case OWNER_CMD_STATUS:
	case OWNER_CMD_COUNT:
		break;
	}
}

static void on_message(struct unix_conn *c, json_t *message, void *user)
{
	struct agent *a = user;
	struct owner_request q;
	struct diag diag = DIAG_INIT;
	char error[CONTROL_TEXT_MAX] = "";
	int r = schema_decode(&owner_request_schema, message, SCHEMA_OPEN, NULL, &q, &diag);
	if (r < 0) {
		(void)diag_format(&diag, error, sizeof(error));
		answer(a, c, 0, error);
		return;
	}
	if (q.watch && !unix_conn_data(c) && VEC_PUSH(&a->owner.watchers, c) == 0)
		unix_conn_set_data(c, a);
	do_request(a, &q, error, sizeof(error));
	answer(a, c, q.history, error);
	schema_done(&owner_request_schema, &q);
}

static void on_close(struct unix_conn *c, void *user)
{
	struct agent *a = user;
	for (size_t i = 0; i < a->owner.watchers.count; i++) {
		if (a->owner.watchers.data[i] == c) {
			VEC_SWAP_REMOVE(&a->owner.watchers, i);
			return;
		}
	}
}

int owner_socket_open(struct agent *a, struct diag *diag)
{
	static const struct unix_ops ops = { .on_message = on_message, .on_close = on_close };
	char path[128];
	int r = path_format(path, sizeof(path), "%s/agent.sock", a->run_dir);
	if (r == 0)
		r = unix_server_open(a->loop, path, 0660, a->owner_gid, &ops, a, &a->owner.server);
	if (r < 0)
		return diag_set(diag, r, path, "cannot listen: %s%s", strerror(-r),
				r == -EADDRINUSE ? "; another agent runs here" : "");
	return 0;
}
