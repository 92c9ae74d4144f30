/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator's heart: jobs, their incarnations, leases, moves, and what
 * is durable. It knows neither sockets nor SQL: messages come in as structs,
 * go out through `send`; a job's record is made durable through `save` before
 * anything that follows from it is said to anybody.
 *
 * Time is given with each call (CLOCK_BOOTTIME ns), so a test plays days in a
 * moment. One thread.
 *
 * Invariants:
 *   - save() of epoch e+1 happens only when epoch e has surely ended: its agent
 *     said so, or its lease and margin are over. After engine_open() that waits
 *     one full lease.
 *   - A commit record is written only for the job's current epoch.
 *   - A reclaim never counts as a failure.
 */
#ifndef RECLAIM_COORDINATOR_ENGINE_H
#define RECLAIM_COORDINATOR_ENGINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/diag.h"
#include "wire/control.h"
#include "wire/rest.h"
#include "wire/ticket.h"

struct engine;

struct engine_config {
	uint64_t lease_ms;
	uint64_t lease_margin_ms;     /* on top, before a next epoch may start */
	uint64_t status_every_ms;
	uint64_t floor_bps;           /* least guaranteed to one move at notice, while the cap allows */
	uint64_t floor_cap_bps;       /* campus-wide, over all moves; 0 = no floors */
	uint64_t interval_ms;         /* between checkpoints where nothing better is known */
	unsigned jobs_max;            /* live ones */
	const char *coordinator;      /* our name */
};

struct engine_ops {
	/*
	 * Makes the record durable: a compare-and-swap on *revision (0 = create), which
	 * gets the new one. record is borrowed. 0; -ESTALE: somebody else wrote it (a
	 * second coordinator leads now); or another -errno: nothing was written.
	 */
	int (*save)(void *user, const char *job, json_t *record, uint64_t *revision);
	/* Removes a record of a job long over. */
	int (*forget)(void *user, const char *job, uint64_t revision);
	/* To the agent of that node; -ENOTCONN when it is not connected. */
	int (*send)(void *user, const char *node, struct control_message *m);
	int (*sign_ticket)(void *user, const struct ticket *t, char ret[TICKET_TEXT_MAX]);
	/* Wraps and unwraps a job's image key for the record (text, at most 512 bytes). */
	int (*wrap_key)(void *user, const uint8_t key[32], char *ret, size_t size);
	int (*unwrap_key)(void *user, const char *text, uint8_t ret[32]);
	/* The same for a secret of any length up to 64 KiB; *ret is malloc'd text. */
	int (*seal_text)(void *user, const char *clear, char **ret);
	int (*unseal_text)(void *user, const char *sealed, char **ret);
	/*
	 * A piece of output of this epoch. replay_from: where in the job's log the image
	 * that this epoch began from had its cursor (regenerated lines are matched from
	 * there). Returns 0 with the offset of this epoch up to which all is stored.
	 */
	int (*output)(void *user, const char *job, uint64_t epoch, uint64_t replay_from,
		      uint64_t offset, const char *bytes, size_t len, uint64_t *ret_stored);
	/* The position in the job's log of an offset of this epoch; `unknown` if nothing has come
	 * of that epoch. */
	uint64_t (*output_position)(void *user, const char *job, uint64_t epoch, uint64_t offset,
				    uint64_t unknown);
	/* Something that people see has changed: engine_job() gives the new view. */
	void (*changed)(void *user, const char *job);
	/* Is this person in that group of users? May be NULL: there are no groups. */
	bool (*in_group)(void *user, const char *group, const char *person);
	/* An owner's machine changed state: for the hazard model's records. May be NULL. */
	void (*observed)(void *user, const char *node, int state, bool up);
};

int engine_open(const struct engine_config *config, const struct engine_ops *ops, void *user,
		uint64_t now_ns, struct engine **ret);
void engine_close(struct engine *e);
/* At start: each record of the store, before anything else. */
int engine_load(struct engine *e, const char *job, json_t *record, uint64_t revision,
		struct diag *diag);

/* Runs what is due; call at engine_next() and after every other call (it is cheap). */
void engine_tick(struct engine *e, uint64_t now_ns);
uint64_t engine_next_ns(const struct engine *e);

/* ---- agents ---- */

/* The connection of a node (name from its certificate) begins, speaks, ends. address: as seen. */
void engine_agent_up(struct engine *e, const char *node, const char *address,
		     const char *cert_digest, uint64_t now_ns);
/* m is the caller's to release; a hello is taken (its type becomes NONE). -EPROTO: not a message of
 * an agent, or of another node; close the connection. */
int engine_agent_message(struct engine *e, const char *node, struct control_message *m,
			 uint64_t now_ns);
void engine_agent_down(struct engine *e, const char *node, uint64_t now_ns);
/* A certificate was revoked: leases of its guests are not renewed, nothing is placed there. */
void engine_node_ban(struct engine *e, const char *node, bool banned, uint64_t now_ns);

/* ---- people ---- */

/* id: fresh job id of the caller's making. 0, -EINVAL with diag, -EAGAIN (too many). The record
 * is durable when it returns 0. Secrets stay in memory; a restart of the coordinator asks the
 * store through the record, where they are wrapped like the key. */
int engine_submit(struct engine *e, const char *id, const char *user, const struct rest_submit *s,
		  uint64_t now_ns, uint64_t wall_ms, struct diag *diag);
int engine_inputs_ready(struct engine *e, const char *id, uint64_t now_ns);
int engine_results_ready(struct engine *e, const char *id, uint64_t epoch, uint64_t bytes);
int engine_cancel(struct engine *e, const char *id, const char *why, uint64_t now_ns);
/* Fills ret; strings are borrowed until the next call that changes the engine: encode at once,
 * never schema_done(). false = unknown. */
bool engine_job(struct engine *e, const char *id, struct rest_job *ret);
/* Unique prefix, or the name of the one live job of that user that has it, or else of the latest
 * that is over; NULL. */
const char *engine_resolve(struct engine *e, const char *text, const char *user);
/* The gang that the job is a rank of, by its rank 0; else the job itself. */
const char *engine_gang(struct engine *e, const char *id);
/* Ids in order of submission; pos starts at 0. */
const char *engine_job_next(struct engine *e, size_t *pos);
/* A new reference: array of rest_node. */
json_t *engine_nodes(struct engine *e, uint64_t now_ns);
/* In words and numbers: what was known, considered, and why this one. A new reference, or NULL. */
json_t *engine_why(struct engine *e, const char *id, uint64_t now_ns);

/* Cancels jobs whose inputs did not come for so long: whoever submitted them is not there any more. */
void engine_expire_staging(struct engine *e, uint64_t after_ms, uint64_t now_ns, uint64_t wall_ms);
/* Removes jobs that have been over for so long, records and files, at most `max` of them: how many. */
size_t engine_forget(struct engine *e, uint64_t keep_ms, uint64_t wall_ms, size_t max);

/* ---- what the policy knows ---- */

/* Reclaims and power-offs per second to expect of a machine; 0 = ask the engine's own guess. */
void engine_node_hazard(struct engine *e, const char *node, double per_s);
/* Solves the checkpoint intervals of all running jobs together and tells their agents. */
void engine_plan_intervals(struct engine *e, uint64_t now_ns);

/* ---- the campus operator ---- */

void engine_stop_all(struct engine *e, bool on);
void engine_floor_cap(struct engine *e, uint64_t bits_per_s);
void engine_blackout(struct engine *e, bool on);

#endif
