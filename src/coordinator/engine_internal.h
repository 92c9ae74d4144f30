/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the engine:
 *     engine.c           jobs and nodes as people see them: submit, cancel, views
 *     engine_record.c    a job's durable record, to JSON and back
 *     engine_agent.c     what agents say
 *     engine_move.c      where images go, what is durable, tickets
 *     engine_schedule.c  who runs next, and where
 *     engine_start.c     giving an incarnation to a machine
 *     engine_gang.c      jobs of several ranks: one life for all of them
 */
#ifndef RECLAIM_COORDINATOR_ENGINE_INTERNAL_H
#define RECLAIM_COORDINATOR_ENGINE_INTERNAL_H

#include "base/clock.h"
#include "base/map.h"
#include "base/vec.h"
#include "coordinator/engine.h"
#include "coordinator/job_state.h"
#include "job/spec.h"

#define ENGINE_AVOID_MAX 8
#define ENGINE_HOLDERS_MAX 8
#define ENGINE_IMAGES_KEPT 2
/* After so many failed starts in a row the image itself is in doubt: the one before is tried. */
#define ENGINE_START_FAILURES_DOUBT 3

/* A committed image, and who is known to have it whole. */
struct ejob_image {
	char digest[CONTROL_DIGEST_HEX + 1]; /* "" = none */
	uint64_t epoch, seq, bytes, output_offset;
	uint64_t at_wall_ms;
	uint64_t start_cursor; /* log position from which its epoch's output was matched */
	char commit[CONTROL_COMMIT_MAX + 1]; /* its name, as the guest gave it */
	char holders[ENGINE_HOLDERS_MAX][CONTROL_NAME_MAX + 1];
	size_t holders_count;
};

struct enode;

struct ejob {
	char id[CONTROL_NAME_MAX + 1];
	char user[CONTROL_NAME_MAX + 1];
	json_t *spec_json;
	struct job_spec spec;
	char key_wrapped[512];
	uint8_t key[32];
	struct rest_secret *secrets; /* values sealed, as in the record */
	size_t secrets_count;
	bool inputs;
	char request_id[CONTROL_NAME_MAX + 1];

	enum rest_job_state state;
	char reason[CONTROL_TEXT_MAX];
	uint64_t order;            /* of submission */
	uint64_t epoch;            /* newest incarnation; 0 = none yet */
	char node[CONTROL_NAME_MAX + 1]; /* of that incarnation */
	char **slots;
	size_t slots_count;
	bool alive;                /* it may still run: not said to have ended, lease not over */
	uint64_t lease_until_ns;   /* grantor's end of the lease, margin included */
	/* The image that this incarnation began from: its epoch, how much output that had written,
	 * and the log position to match from if nothing has come of that epoch. 0: no image. */
	uint64_t start_epoch, start_output, start_cursor;
	uint64_t failures, reclaims, restarts;
	int exit_status;
	uint64_t submitted_ms, started_ms, ended_ms;
	uint64_t ran_ms;           /* of ended incarnations */
	uint64_t results_bytes;
	struct rest_move *moves;
	size_t moves_count;
	uint64_t retry_at_ns;      /* not before: a start failed a moment ago */
	unsigned start_failures;   /* in a row */

	struct ejob_image durable, before; /* before: the one to fall back to */
	struct ejob_image saved;   /* newest known on its own machine; not promised */
	struct ejob_image from;    /* the saved one that this incarnation is to begin from */
	bool saved_final;

	/* the running incarnation, as last reported */
	enum control_job_state inc_state;
	uint64_t inc_ran_ms, unsaved_ms, save_ms, delta_bytes;
	uint64_t stopped_ns;       /* when it stopped computing; 0 = it computes */
	uint64_t lost_ms;          /* of the incarnation that ended */
	char cause[32];            /* why the next one begins */

	/* a reclaim under way */
	char notice_id[CONTROL_NAME_MAX + 1];
	uint64_t notice_deadline_ns;
	bool notice_now;
	char dest[CONTROL_NAME_MAX + 1]; /* "" = none */
	uint64_t floor_bps, move_bytes;
	bool move_pending;         /* its final image may still arrive */
	unsigned move_tries;
	uint64_t interval_ms;      /* between checkpoints, as told last; 0 = not yet */
	double rate_eff, p_miss;   /* behind it, for `why` */
	bool end_unconfirmed;      /* ENDED is recorded, STOP to its agent is due */

	/* one rank of a gang (engine_gang.c); ranks 1 = a job by itself */
	char gang[CONTROL_NAME_MAX + 1]; /* id of rank 0 */
	uint64_t rank, ranks;
	enum control_end gang_end; /* how its incarnation ended; NONE = not judged, or still there */
	bool gang_noticed;         /* told to save because another rank's machine is wanted back */
	int gang_port;
	uint64_t gang_stop_ns;     /* asked to stop; not again before */

	char stage[CONTROL_NAME_MAX + 1]; /* where background copies go */
	char stage_image[CONTROL_DIGEST_HEX + 1]; /* the copy last asked for */
	uint64_t stage_sent_ns;
	uint64_t standby_until_ns; /* renew its standby tickets then */
	char avoid[ENGINE_AVOID_MAX][CONTROL_NAME_MAX + 1]; /* failed to start it */
	size_t avoid_count;

	uint64_t revision;
	bool dirty_view;
};

struct enode {
	char name[CONTROL_NAME_MAX + 1];
	char address[CONTROL_HOST_MAX + 1];
	char cert_digest[CONTROL_DIGEST_HEX + 1];
	bool up, hello_seen, banned;
	struct control_message hello; /* type NONE = none yet; owns */
	int owner_state;
	bool paused;
	uint64_t notice_deadline_ns;
	uint64_t disk_free;
	bool slot_used[CONTROL_SLOTS_MAX];
	uint64_t reclaims, lent_ns, lent_since_ns; /* for a first idea of its hazard */
	double hazard_per_s;       /* as the model says; 0 = it says nothing */
	uint64_t gang_ports_used;  /* turns through CONTROL_GANG_PORTS */
};

struct euser {
	char name[CONTROL_NAME_MAX + 1];
	double usage;      /* slot-seconds, halved every USAGE_HALF_S */
	uint64_t at_ns;
};

/* A way on which a background copy did not arrive before the next one was due. */
#define ENGINE_SLOW_MAX 128
#define ENGINE_SLOW_NS (60 * NS_PER_S)
struct engine_slow {
	char from[CONTROL_NAME_MAX + 1], to[CONTROL_NAME_MAX + 1]; /* buildings */
	uint64_t until_ns;
};

struct engine {
	struct engine_config config;
	const struct engine_ops *ops;
	void *user;
	uint64_t opened_ns;
	struct VEC(struct ejob *) jobs; /* in order of submission */
	struct map *by_id;
	struct map *nodes;
	struct map *users;
	uint64_t order;
	uint64_t next_ns;
	bool stop_all, blackout;
	bool schedule_due;
	uint64_t ticket_serial;
	struct engine_slow slow[ENGINE_SLOW_MAX]; /* a ring: the oldest is forgotten */
	size_t slow_at;
};

/* engine.c */
struct ejob *engine_find(struct engine *e, const char *id);
struct enode *engine_node(struct engine *e, const char *name);
/* Moves the state by the table; false = the event means nothing here. */
bool ejob_event(struct engine *e, struct ejob *j, enum job_event event, const char *reason_fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Writes the record; on failure nothing may be said that follows from the change. */
int ejob_save(struct engine *e, struct ejob *j);
void ejob_changed(struct engine *e, struct ejob *j);
void ejob_free(struct ejob *j);
int engine_send(struct engine *e, const char *node, struct control_message *m);
void engine_wake(struct engine *e, uint64_t at_ns);

/* engine_record.c */
json_t *ejob_record(const struct ejob *j);
int ejob_from_record(json_t *record, struct ejob *j, struct diag *diag);
bool ejob_image_has(const struct ejob_image *im, const char *node);
void ejob_image_add(struct ejob_image *im, const char *node);

/* engine_agent.c */
uint64_t ejob_replay_from(struct engine *e, const struct ejob *j);
/* The incarnation is over: said so by its agent, or its lease has ended. Books and decides what
 * comes next. */
void ejob_ended(struct engine *e, struct ejob *j, enum control_end end, int status,
		const char *reason, uint64_t now_ns);
void ejob_confirm_end(struct engine *e, struct ejob *j);
/* Over for good. Not saved yet. */
void ejob_end_final(struct ejob *j, struct engine *e, enum job_event event, int status,
		    const char *reason);
/* Back to the queue, or waiting for its image. Not saved yet. */
void ejob_end_requeue(struct engine *e, struct ejob *j, enum control_end end, const char *reason,
		      uint64_t now_ns);

/* engine_move.c */
void engine_plan_notice(struct engine *e, struct enode *n, uint64_t now_ns);
void ejob_plan_stage(struct engine *e, struct ejob *j, uint64_t now_ns);
void ejob_send_standby(struct engine *e, struct ejob *j, uint64_t now_ns);
void ejob_received(struct engine *e, struct ejob *j, const struct control_received *r,
		   const char *holder, uint64_t now_ns);
void ejob_move_failed(struct engine *e, struct ejob *j, const char *why, uint64_t now_ns);
void ejob_move_over(struct engine *e, struct ejob *j);
/* Says once more that its newest image is safe elsewhere: a restart of ours may have swallowed it. */
void ejob_tell_durable(struct engine *e, struct ejob *j);
void engine_send_rates(struct engine *e);
int engine_ticket(struct engine *e, const struct ejob *j, enum ticket_use use, uint64_t epoch,
		  const char *image, const char *source, const char *destination, uint64_t remaining_ms,
		  uint64_t floor_bps, char ret[TICKET_TEXT_MAX]);

/* engine_start.c */
struct engine_gang_start; /* what the ranks of one start share */
bool ejob_image_reachable(struct engine *e, const struct ejob_image *im, const struct enode *at);
/* Books it: epoch + 1 on that machine, in the store. Nobody has been told. */
bool ejob_start_book(struct engine *e, struct ejob *j, struct enode *n, const unsigned *slots,
		     size_t slots_count, const struct ejob_image *im, uint64_t now_ns);
/* Takes the booking back: another rank's failed. */
void ejob_start_unbook(struct engine *e, struct ejob *j, uint64_t now_ns);
/* Tells the machine. im must be a copy: the job's own images change. */
void ejob_start_give(struct engine *e, struct ejob *j, struct enode *n, const struct ejob_image *im,
		     bool im_is_saved, const struct engine_gang_start *gang, uint64_t now_ns);
void ejob_wait_reason(struct engine *e, struct ejob *j, const char *why);

/* engine_gang.c */
struct engine_gang_start {
	char key[CONTROL_KEY_HEX + 1];
	struct control_rank ranks[CONTROL_RANKS_MAX];
};
/* NULL, or why such a gang is not taken. */
const char *gang_refusal(const struct job_spec *spec);
/* All that are known, by rank; `ret` has room for CONTROL_RANKS_MAX. */
size_t gang_members(struct engine *e, const struct ejob *j, struct ejob **ret);
/* Rank 0 of the gang, or the job itself; NULL: its rank 0 was never written. */
struct ejob *gang_lead(struct engine *e, const struct ejob *j);
/* One of its incarnations has ended: books it, and what it means for the others. Not saved yet. */
void gang_ended(struct engine *e, struct ejob *j, enum control_end end, int status,
		const char *reason, uint64_t now_ns);
/* Judges the ends once no rank is left. True: all ranks wait for a start. lead: rank 0. */
bool gang_ready(struct engine *e, struct ejob *lead);
/* All ranks or none, each on a machine of its own. */
bool gang_start(struct engine *e, struct ejob *lead, uint64_t now_ns);
/* A rank's machine is wanted back, or not any more: the others hear of it. */
void gang_notice(struct engine *e, struct ejob *j, uint64_t window_ms, uint64_t now_ns);
void gang_notice_cancel(struct engine *e, struct ejob *j);
/* Ranks that cannot go on without one that has ended, or only wait for the next start, are ended
 * too. Looks at what is: call it whenever something may have changed. */
void gang_settle(struct engine *e, struct ejob *j, uint64_t now_ns);
/* Every rank has this commit, of this epoch, durably. */
bool gang_has_durable(struct engine *e, const struct ejob *j, const struct ejob_image *im);
bool gang_is_at(struct engine *e, const struct ejob *j, const char *node); /* another rank */

/* engine_schedule.c */
void engine_schedule(struct engine *e, uint64_t now_ns);
/* Why this node cannot take the job now; NULL = it can. slots (may be NULL) gets the slot indices. */
const char *enode_refusal(struct engine *e, const struct enode *n, const struct ejob *j,
			  unsigned *ret_slots, size_t *ret_slots_count);
/* The best machine to go on from here on; NULL = none now. For a move (start false) the job's own
 * machine is out. */
/* What the policy says of a job at a notice; dest NULL = it places it nowhere. */
struct engine_place {
	struct enode *dest;
	double p_fit, survival;
	uint32_t considered;
};
/* All of them together (engine_place.c). Returns how many it placed. */
size_t engine_place(struct engine *e, struct ejob *const *jobs, size_t count, uint64_t now_ns,
		    struct engine_place *ret);
/* How good a place it is, all else given; higher is better. */
double enode_score(struct engine *e, const struct enode *n, const struct ejob *j, uint64_t now_ns);
void ejob_avoid(struct ejob *j, const char *node);
bool ejob_avoids(const struct ejob *j, const char *node); /* a start failed there */
struct enode *engine_choose(struct engine *e, const struct ejob *j, bool start, uint64_t now_ns);
/* The best machine that may keep a copy; with free slots if there is one. except: array of nodes. */
/* Copies from one node towards the other's building lag behind, as was seen a short while ago. */
bool engine_is_slow(const struct engine *e, const struct enode *from, const struct enode *to,
		    uint64_t now_ns);
void engine_set_slow(struct engine *e, const struct enode *from, const struct enode *to,
		     uint64_t now_ns);
struct enode *engine_choose_keeper(struct engine *e, const struct ejob *j, uint64_t now_ns);
/* May others fetch images from it now? */
bool enode_serves(const struct enode *n);
double enode_hazard_per_s(const struct enode *n, uint64_t now_ns);
void euser_charge(struct engine *e, const char *name, double slot_seconds, uint64_t now_ns);
double euser_usage(struct engine *e, const char *name, uint64_t now_ns);
void ejob_release_slots(struct engine *e, struct ejob *j);
const char *enode_host(const struct enode *n);

#endif
