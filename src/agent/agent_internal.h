/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: one loop, one struct. What runs where:
 *
 *     main.c          reads the configuration, opens everything, runs the loop
 *     owner.c         the owner's state: transitions, deadlines, schedule, proof
 *     owner_socket.c  the owner's commands, over a Unix socket
 *     trigger.c       back without a command: who sees the owner, and what follows
 *     journal.c       what must outlive the agent: intent, pause, notice, history
 *     link.c          the coordinator: hello, status and leases, dispatch
 *     guest.c         one incarnation from START to the forgetting of it
 *     guest_shim.c    ... its shim: what it says and what that means
 *     guest_image.c   ... its checkpoints: watch, seal, keep
 *     guest_move.c    ... where its images go: moves, stages, standby tickets
 *     guest_files.c   ... inputs in, results out
 *     output.c        ... its output to the coordinator
 *     adopt.c         guests that an earlier agent left running
 *     edge_glue.c     the edge, where this machine has one
 *     gpu.c           lent GPUs: inventory, baseline, and the proof that they are free again
 *     gang.c          a rank of a gang: its tunnel, notices meant for all ranks
 *
 * Invariants:
 *   - A guest runs only while the owner's state is LENT or NOTICE.
 *   - FREE is said only after every shim has reported "no process left" and the
 *     kill switch, where there is one, was read back.
 *   - The owner's path (owner*.c) never waits for anything but guests.
 *
 * Outside input: the owner's socket, the coordinator's messages, the files of a
 * guest's checkpoint folder, all parsed by their own layers; and state files of
 * an earlier agent, which a crash may have left half-written only where rename
 * is not used (nowhere).
 */
#ifndef RECLAIM_AGENT_AGENT_INTERNAL_H
#define RECLAIM_AGENT_AGENT_INTERNAL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/config.h"
#include "agent/gpu.h"
#include "agent/owner_state.h"
#include "agent/trigger.h"
#include "base/clock.h"
#include "base/vec.h"
#include "edge/edge.h"
#include "image/store.h"
#include "io/control_client.h"
#include "io/identity.h"
#include "io/loop.h"
#include "io/unix_server.h"
#include "job/ckpt_watch.h"
#include "job/shim_client.h"
#include "job/spec.h"
#include "scenario/terms.h"
#include "transfer/transfer.h"
#include "wire/control.h"
#include "wire/owner.h"

#define AGENT_GUESTS_MAX CONTROL_JOBS_MAX

struct agent;

/* ---- one incarnation of one job on this machine ---- */

enum guest_phase {
	GUEST_FETCHING = 0, /* inputs and image on their way here */
	GUEST_RESTORING,
	GUEST_LAUNCHING,    /* the shim makes the sandbox */
	GUEST_RUNNING,
	GUEST_NOTICED,
	GUEST_ENDING,       /* no process left; last image and results under way */
	GUEST_ENDED,        /* told, or to be told, to the coordinator; kept until it says so */
	GUEST_PHASE_COUNT,
};

struct move_tie;
struct guest_take; /* guest_image.c: a sealing under way */

struct guest_image {
	char digest[IMAGE_DIGEST_HEX + 1]; /* "" = none */
	uint64_t epoch, seq;
	uint64_t bytes, new_bytes;
	uint64_t output_offset;
	uint64_t ran_ns;       /* running time of this incarnation at its commit */
	bool final;
	bool durable;          /* the coordinator said so */
	char commit[CONTROL_COMMIT_MAX + 1]; /* its name; "" = the folder itself, or a dump */
};

struct guest_move {
	struct transfer_sender *sender; /* NULL = not sending */
	struct control_peer to;         /* owned strings; node NULL = none */
	bool known;                     /* the coordinator answered: `to`, or no destination */
	bool stage;                     /* ahead of a reclaim */
	bool hold_only;
	uint64_t floor_bps;
	char image[IMAGE_DIGEST_HEX + 1]; /* being sent, or last sent */
	bool done;                      /* the peer has `image` whole */
};

struct guest {
	struct agent *agent;
	struct guest *next;
	char job[CONTROL_NAME_MAX + 1];
	uint64_t epoch;
	char user[CONTROL_NAME_MAX + 1];
	enum guest_phase phase;
	struct control_message start; /* CONTROL_START as it came; owns spec and secrets */
	struct job_spec spec;
	uint8_t key[IMAGE_KEY_LEN];
	unsigned slot_index;          /* into terms.slots, of the first slot */
	char dir[PATH_MAX];           /* jobs/<job>/<epoch> */

	struct shim_client *shim;
	char socket[108];
	uint64_t guest_pid;
	char rung[CONTROL_NAME_MAX + 1];
	char driver[CONTROL_NAME_MAX + 1];
	int driver_kind;              /* enum job_driver, as chosen by the shim */
	bool frozen, acked, exited, kill_sent;
	struct shim_exited exit;      /* reason owned */
	uint64_t started_ns;          /* CLOCK_BOOTTIME, 0 = not yet */
	uint64_t started_wall_ms;
	uint64_t lease_deadline_ns;
	int edge_slot;                /* -1 = no network of its own */

	struct ckpt_watch *watch;
	struct loop_watch *watch_fd;
	struct loop_timer settle;     /* look again at files that are settling */
	uint64_t commit_seq_seen;     /* of the watch, newest imaged or being imaged */
	uint64_t commit_seq_at_notice, noticed_wall_ns; /* the latter as files are stamped */
	uint64_t activity_offset;     /* output when the folder first changed after the last commit */
	bool activity;
	uint64_t quiet_offset;        /* output when the folder was last seen unchanged, ... */
	uint64_t quiet_stamp_ns;      /* ... and when that was, as files are stamped */
	struct guest_take *take;
	bool dumping, dump_final, restored_dump; /* drivers criu and cuda */
	unsigned dump_tries;
	struct guest_image image;     /* newest saved */
	uint64_t image_seq;           /* last used */
	uint64_t save_asked_ns, save_ms, delta_bytes;
	struct loop_timer interval;   /* ask for a checkpoint */
	uint64_t interval_ns;
	struct loop_timer grace;      /* after a commit in a notice: leave, or be frozen */

	struct transfer_sender *fetch;
	size_t holder;                /* the holder being asked */
	bool task_running;            /* restore, inputs or results in a thread */
	image_cancel cancel;          /* asks that thread to end early */
	bool abort;                   /* ended before it ran: finish when the thread is back */

	char notice_id[CONTROL_NAME_MAX + 1]; /* "" = none */
	bool gang_notice;             /* another rank's: this machine stays lent, nothing is moved */
	bool final_ready;             /* nothing will run past guest.image */
	struct guest_move move, stage;
	struct move_tie *ties;        /* guest_move.c: running senders' way back here */
	struct loop_timer standby_timer;
	struct control_message standby; /* CONTROL_STANDBY, or type NONE */
	uint64_t standby_until_ns;

	int output_fd;
	uint64_t output_sent, output_acked;

	enum control_end end;
	int end_status;
	char end_reason[CONTROL_TEXT_MAX];
	uint64_t ran_ms, cpu_ms;
	uint64_t results_bytes;
};

/* ---- the owner ---- */

struct owner {
	enum control_owner_state state;
	bool intent_lent;       /* what the owner last asked for, kept across restarts */
	bool paused;
	bool by_itself;         /* nobody typed this reclaim: `intent_lent` says whether to lend again */
	enum control_reclaim_mode mode;
	char notice_id[CONTROL_NAME_MAX + 1];
	char reason[128];
	uint64_t asked_ns, deadline_ns, window_ns, freed_ns;
	uint64_t pids_left, last_packet_us;
	bool packet_cut, proven;
	char alarm[CONTROL_TEXT_MAX];
	struct loop_timer deadline, schedule, proof;
	struct VEC(struct unix_conn *) watchers;
	struct unix_server *server;
};

struct agent {
	struct loop *loop;
	struct agent_config config;
	struct terms terms;
	const char *config_path;
	char state_dir[PATH_MAX / 2];
	char run_dir[80];             /* short: sockets live below it */
	char identity_dir[PATH_MAX];
	char node[CONTROL_NAME_MAX + 1];
	char boot_id[64];
	uint64_t starts;
	struct identity *identity;
	struct image_store *images;
	struct transfer_receiver *receiver;
	uint16_t transfer_port;
	char *transfer_program, *shim_program; /* NULL = beside our own */
	char tunnel_program[PATH_MAX]; /* "" = not there */
	struct gpus *gpus;            /* NULL = no GPU is lent here */
	struct control_client *link;
	bool welcomed;                /* the coordinator answered our hello on this connection */
	uint64_t lease_ns, status_every_ns;
	uint64_t status_seq;
	struct {
		uint64_t seq, sent_ns;
	} asked[32];                  /* recent status messages, for counting leases */
	struct loop_timer status_timer, tick;
	struct edge *edge;
	struct edge_features features;
	char edge_missing[DIAG_WHAT_MAX]; /* why there is no edge, "" = there is */
	uint64_t floor_cap_bps;
	bool stop_all;
	gid_t owner_gid;
	struct guest *guests;
	size_t guests_count;
	bool *slot_used;              /* per terms.slots */
	struct owner owner;
	struct trigger *trigger;
	bool closing;
};

/* owner.c */
int owner_open(struct agent *a, struct diag *diag);
void owner_close(struct agent *a);
/* After adoption: carries on a reclaim that an earlier agent began. */
void owner_resume(struct agent *a);
int owner_lend(struct agent *a, char *why, size_t why_size);
int owner_back(struct agent *a, bool now, uint64_t window_ns, const char *reason);
/* A notice that nobody typed: schedule, triggers. again: lend when nothing stands against it. */
void owner_back_by_itself(struct agent *a, uint64_t window_ns, const char *reason, bool again);
int owner_cancel(struct agent *a);
void owner_pause(struct agent *a, bool on);
/* A guest ended or a move finished: is the machine free now? */
void owner_check_empty(struct agent *a);
void owner_schedule_check(struct agent *a);
uint64_t owner_remaining_ns(const struct agent *a);
/* The strings in ret are owned: release with schema_done(&owner_status_schema). */
void owner_snapshot(struct agent *a, uint64_t history, struct owner_status *ret);
void owner_notify(struct agent *a);
void owner_publish_window(struct agent *a);

/* owner_socket.c */
int owner_socket_open(struct agent *a, struct diag *diag);
/* Reads the terms again; on failure the terms before stay and error says why. */
int owner_reload(struct agent *a, char *error, size_t size);

/* journal.c */
int journal_load(struct agent *a, struct diag *diag);
int journal_save(struct agent *a);
void journal_use(struct agent *a, const struct guest *g);
/* Latest first; fills at most n entries (owned strings), returns how many. */
size_t journal_history(struct agent *a, struct owner_use *ret, size_t n);

/* link.c */
int link_open(struct agent *a, struct diag *diag);
int link_send(struct agent *a, struct control_message *m);
void link_send_owner(struct agent *a, bool cancelled);
void link_send_job(struct guest *g);
bool link_is_up(const struct agent *a);
/* What the agent that took an image attached to it (a new reference), or NULL. */
json_t *link_image_meta(struct agent *a, const char *job, const char *digest);
/* Where in the output of its epoch it was taken; 0 = not known. */
uint64_t link_image_output(const json_t *meta, char ret_commit[CONTROL_COMMIT_MAX + 1]);
void guest_report(const struct guest *g, struct control_job_report *ret); /* borrowed strings */

/* guest.c */
int guest_start(struct agent *a, struct control_message *start);
struct guest *guest_find(struct agent *a, const char *job, uint64_t epoch);
struct guest *guest_new(struct agent *a, struct control_message *start, struct diag *diag);
void guest_free(struct guest *g);      /* also removes its folder */
void guest_launch(struct guest *g);
void guest_notice(struct guest *g);    /* from the owner's present notice */
void guest_notice_as(struct guest *g, const char *id, const char *reason, uint64_t deadline_ns,
		     uint64_t window_ns);
void guest_cancel_notice(struct guest *g);
void guest_kill(struct guest *g, enum control_end end, const char *reason);
/* Ends an incarnation that has no process (any more). */
void guest_finish(struct guest *g, enum control_end end, int status, const char *reason);
/* Tells the coordinator of the end, once all output is there. */
void guest_tell_end(struct guest *g);
void guest_stop(struct agent *a, const struct control_stop *stop);
void guest_set_phase(struct guest *g, enum guest_phase phase);
enum control_job_state guest_state(const struct guest *g);
uint64_t guest_ran_ms(const struct guest *g);
bool guest_has_process(const struct guest *g);
/* True while something of it is still worth the owner's window. */
bool guest_wants_window(const struct guest *g);
void guest_lease(struct guest *g, uint64_t deadline_ns);

/* guest_shim.c */
/* "reclaim/NODE", or NULL where we may not make cgroups. Returns buf. */
const char *agent_cgroup_parent(const struct agent *a, char *buf, size_t size);
int guest_shim_spawn(struct guest *g, struct diag *diag);
/* Removes what a shim that is gone for good left in the run folder. */
void guest_shim_sweep(struct guest *g);
/* Ends the shim of a guest whose end is on record. Waits for half a second at most. */
void guest_shim_dismiss(struct guest *g);
int guest_shim_adopt(struct guest *g, struct diag *diag);

/* guest_image.c */
int guest_watch_open(struct guest *g, struct diag *diag);
void guest_watch_close(struct guest *g);
void guest_watch_quiet(struct guest *g); /* now and then: see output_before_change() */
void guest_watch_scan(struct guest *g);
void guest_take_cancel(struct guest *g);
void guest_interval_set(struct guest *g, uint64_t interval_ns, uint64_t next_ns);
/* No process runs past the newest commit any more: image it, then send it. */
void guest_finalize(struct guest *g);
/* Drivers criu and cuda: dump, then seal; final = it stays still. */
void guest_dump_begin(struct guest *g, bool final);
void guest_dumped(struct guest *g, const struct shim_dumped *d);
int guest_restore_begin(struct guest *g);
void guest_prune(struct agent *a, const struct control_keep *keep);

/* guest_move.c */
void guest_move_set(struct guest *g, const struct control_move *move);
void guest_move_consider(struct guest *g);
void guest_move_cancel(struct guest *g);
void guest_move_done(struct guest *g); /* releases */
void guest_stage_set(struct guest *g, const struct control_move *move);
void guest_standby_set(struct guest *g, struct control_message *standby);
void guest_standby_arm(struct guest *g);
void guest_durable(struct guest *g, const struct control_durable *durable);
int guest_fetch_begin(struct guest *g);
void guest_rates(struct agent *a, const struct control_rates *rates);

/* guest_files.c: callbacks come as guest phases move on */
int guest_inputs_begin(struct guest *g);
int guest_results_begin(struct guest *g);

/* output.c */
void output_pump(struct guest *g);
void output_acked(struct guest *g, uint64_t offset);
void output_rewind(struct agent *a); /* a new connection: what was not acked goes again */
bool output_drained(const struct guest *g);
/*
 * What of the output the coordinator may not have yet, as {"at", "data"} for an image's meta
 * (base64url, at most the last OUTPUT_TAIL_MAX bytes); NULL = it has all. Whoever holds the
 * image then tells it, should this machine not come back.
 */
json_t *output_tail(struct guest *g);
void output_tail_tell(struct agent *a, const char *job, uint64_t epoch, const json_t *meta);
/* After a welcome: with all images here. */
void output_tails_tell(struct agent *a);
uint64_t output_size(const struct guest *g);

/* adopt.c */
int adopt_all(struct agent *a, struct diag *diag);
int guest_record_save(struct guest *g);

/* gang.c */
/* First UDP port of this machine's tunnels; 0 = no rank can run here. */
int gang_port(const struct agent *a);
/* The rank's network: then its shim hears `go`, or it is ended. */
void gang_tunnel_begin(struct guest *g);
void gang_notice(struct agent *a, const struct control_notice *n);
/* Addresses of all ranks inside; NULL = no gang. Freed by the caller, strings too. */
char **gang_hosts(const struct guest *g);
void gang_hosts_free(char **hosts);
size_t gang_rules(const struct guest *g, struct edge_rule *ret, size_t cap);

/* edge_glue.c */
int agent_edge_open(struct agent *a, struct diag *diag);
int agent_edge_attach(struct guest *g, struct diag *diag);
/* The slot of one that an earlier agent attached: else its leases end there. */
void agent_edge_adopt(struct guest *g);
void agent_edge_detach(struct guest *g);
/* After adoption: the networks of guests that ended while no agent ran. */
void agent_edge_sweep(struct agent *a);
void agent_edge_kill(struct agent *a, struct guest *g); /* NULL = all */
void agent_edge_clear(struct agent *a);

#endif
