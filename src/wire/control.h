/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words between an agent and the coordinator: one JSON object per
 * WebSocket message, {"v": 1, "type": "...", ...}. Each type is one struct and
 * one table of fields; docs/protocol.md says when each is sent.
 *
 * Unknown keys are ignored (a newer peer), unknown types refused by name.
 * 64-bit integers travel as strings. Spans of time are *remaining*
 * milliseconds, counted by the receiver from when the message came, by the
 * holder of a lease from when it asked: no two clocks need agree.
 *
 * Every message about a job carries the epoch of the incarnation it speaks
 * of. Older epochs are refused on both sides; that is the fence.
 */
#ifndef RECLAIM_WIRE_CONTROL_H
#define RECLAIM_WIRE_CONTROL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"

#define CONTROL_VERSION 1
#define CONTROL_NAME_MAX 64      /* bytes of a job id, a node's or a user's name */
#define CONTROL_HOST_MAX 128
#define CONTROL_DIGEST_HEX 64
#define CONTROL_COMMIT_MAX 255   /* bytes of a commit's name */
#define CONTROL_KEY_HEX 64
#define CONTROL_TICKET_MAX 8192
#define CONTROL_SLOTS_MAX 256
#define CONTROL_JOBS_MAX 512     /* per agent: slots, and what is still moving away */
#define CONTROL_IMAGES_MAX 4096
#define CONTROL_PEERS_MAX 8
#define CONTROL_RANKS_MAX 32     /* of a gang: each rank's edge has a rule for every other */
#define CONTROL_GANG_PORTS 1024  /* UDP ports from hello.gang_port on, for the tunnels of gangs */
#define CONTROL_OUTPUT_MAX 32768 /* bytes of one piece of output, before base64 */
#define CONTROL_TEXT_MAX 1024

enum control_type {
	CONTROL_NONE = 0,
	/* agent to coordinator */
	CONTROL_HELLO,    /* first on each connection: all that holds here */
	CONTROL_STATUS,   /* every status_every_ms; asks for leases */
	CONTROL_OWNER,    /* the owner's state changed */
	CONTROL_JOB,      /* an incarnation changed state, or ended */
	CONTROL_SAVED,    /* an image is complete on this machine */
	CONTROL_RECEIVED, /* an image of another machine is complete here */
	CONTROL_TRANSFER, /* a move of ours: under way, done at our end, or failed */
	CONTROL_OUTPUT,   /* a piece of a job's output */
	/* coordinator to agent */
	CONTROL_WELCOME,  /* answer to hello: settings; what to adopt and what to stop follows */
	CONTROL_LEASE,    /* answer to status */
	CONTROL_START,    /* start this incarnation */
	CONTROL_STOP,     /* end this incarnation, or forget what is left of it */
	CONTROL_MOVE,     /* answer to a notice: where the image goes; or a stage ahead of one */
	CONTROL_STANDBY,  /* tickets for a reclaim while no coordinator answers */
	CONTROL_DURABLE,  /* the commit record of this image is in the store */
	CONTROL_RATES,    /* floors of running moves, the cap, the stop switch */
	CONTROL_INTERVAL, /* when the next checkpoints of a job are due */
	CONTROL_NOTICE,   /* another rank's machine is wanted back: this rank saves too, and waits */
	CONTROL_KEEP,     /* the images of a job worth keeping here; none = forget it */
	CONTROL_OUTPUT_ACK, /* output up to here is stored */
	CONTROL_REFUSED,  /* the connection is not wanted; closed after it */
	CONTROL_TYPE_COUNT,
};
extern const char *const control_type_names[]; /* "hello", ... */

/* ---- what an agent says ------------------------------------------------- */

enum control_owner_state { /* DESIGN: LENT -> NOTICE -> DRAINING -> FREE -> OWNED */
	CONTROL_OWNER_OWNED = 0, /* the owner has it; nothing is placed */
	CONTROL_OWNER_LENT,
	CONTROL_OWNER_NOTICE,    /* wanted back at the deadline; guests save */
	CONTROL_OWNER_DRAINING,  /* past the deadline, or --now: guests are being ended */
	CONTROL_OWNER_FREE,      /* proven free; becomes OWNED */
	CONTROL_OWNER_STATE_COUNT,
};
extern const char *const control_owner_state_names[];

enum control_reclaim_mode {
	CONTROL_RECLAIM_NONE = 0,
	CONTROL_RECLAIM_NOTICE, /* with a window */
	CONTROL_RECLAIM_NOW,    /* without */
};
extern const char *const control_reclaim_mode_names[];

struct control_slot {
	char *name;
	bool gpu;
	char *gpu_type;        /* NULL for CPU slots */
	uint64_t gpu_memory;   /* bytes */
	uint64_t cores_milli;
	uint64_t memory;       /* bytes; 0 = no limit of its own */
};

enum control_job_state { /* of one incarnation on one machine */
	CONTROL_JOB_STARTING = 0, /* fetching inputs or image, making the sandbox */
	CONTROL_JOB_RESTORING,    /* unpacking its image */
	CONTROL_JOB_RUNNING,
	CONTROL_JOB_NOTICED,      /* told of a reclaim; saving or saved, still there */
	CONTROL_JOB_MOVING,       /* it stands still; its image is on the way */
	CONTROL_JOB_ENDED,        /* no process of it is left (end says how) */
	CONTROL_JOB_STATE_COUNT,
};
extern const char *const control_job_state_names[];

enum control_end { /* mirrors enum shim_end by name; see job/shim_proto.h */
	CONTROL_END_NONE = 0,
	CONTROL_END_DONE,
	CONTROL_END_FAILED,
	CONTROL_END_RESTART,
	CONTROL_END_RECLAIMED,
	CONTROL_END_LEASE,
	CONTROL_END_TIME_LIMIT,
	CONTROL_END_KILLED,
	CONTROL_END_NOT_STARTED,
	CONTROL_END_SHIM_LOST,
	CONTROL_END_COUNT,
};
extern const char *const control_end_names[];

struct control_job_report {
	char *job;
	uint64_t epoch;
	int state;             /* enum control_job_state */
	char *slot;            /* the first of its slots */
	uint64_t ran_ms;
	char *image;           /* newest saved image of this epoch, NULL = none */
	uint64_t image_seq;
	uint64_t image_output; /* bytes of this epoch's output at that image's commit, at least */
	char *image_commit;    /* the commit's name, as the guest gave it */
	uint64_t unsaved_ms;   /* running time since that image's commit */
	uint64_t image_bytes;  /* of that image's files */
	uint64_t save_ms;      /* measured: asking for a save until its commit; 0 = unknown */
	uint64_t delta_bytes;  /* measured: what one more image costs to move; 0 = unknown */
	uint64_t output_offset;/* bytes of output written by this epoch */
};

struct control_image {
	char *job;
	uint64_t epoch, seq;
	char *image;           /* digest, hexadecimal */
	uint64_t bytes;
	uint64_t output_offset;/* as its manifest says; 0 = not known */
	char *commit;          /* as its manifest says */
};

struct control_hello {
	char *node;            /* as in the certificate */
	char *boot_id;
	uint64_t agent_starts; /* how often this agent was started on this state folder */
	char *version;
	char *host;            /* where other machines reach the transfer port; NULL = seen address */
	int transfer_port;
	int gang_port;         /* first of CONTROL_GANG_PORTS; 0 = no rank of a gang can run here */
	char *arch;            /* uname -m */
	char *libc;            /* "glibc 2.36" */
	char *building;        /* as configured, for topology; may be NULL */
	char *room;
	struct control_slot *slots;
	size_t slots_count;
	uint64_t window_ms;    /* the declared window */
	bool shadow_keep, shadow_owned;
	uint64_t disk_free;    /* bytes left for images */
	uint64_t uplink_bps;
	char **users, **groups, **deny; /* who may run here; empty = everybody enrolled */
	size_t users_count, groups_count, deny_count;
	char *rung;            /* best sandbox rung this machine has */
	char **lacks;          /* features missing, by name */
	size_t lacks_count;
	json_t *schedule;      /* declared schedule, as in the terms file; may be NULL */
	int utc_offset_s;
	int owner_state;       /* enum control_owner_state */
	bool paused;
	uint64_t remaining_ms; /* NOTICE: until the deadline */
	char *notice_id;
	int mode;              /* enum control_reclaim_mode of that notice */
	uint64_t idle_ms;      /* since the owner last used it; 0 = unknown or in use */
	struct control_job_report *jobs;
	size_t jobs_count;
	struct control_image *images; /* whole images in the store here */
	size_t images_count;
};

struct control_status {
	uint64_t seq;
	int owner_state;
	bool paused;
	uint64_t remaining_ms;
	uint64_t idle_ms;
	uint64_t disk_free;
	uint64_t floor_bps;    /* granted and set at the edge right now */
	struct control_job_report *jobs;
	size_t jobs_count;
};

struct control_owner {
	int state;
	bool paused;
	int mode;
	char *notice_id;       /* of the reclaim, NULL when LENT or OWNED without one */
	char *reason;          /* "owner", "schedule", "login", ... */
	bool cancelled;        /* LENT again because the owner took it back */
	uint64_t remaining_ms; /* NOTICE */
	uint64_t window_ms;    /* as asked for in this reclaim */
	uint64_t waited_ms;    /* FREE: from the asking to the proof */
	uint64_t pids_left;    /* FREE: 0, or an alarm went out */
	uint64_t last_guest_packet_us; /* --now: at our own edge, after the decision; 0 = none seen */
	struct control_job_report *jobs; /* NOTICE: who is on board, and how saved */
	size_t jobs_count;
};

struct control_job {
	char *job;
	uint64_t epoch;
	int state;
	int end;               /* enum control_end, when ENDED */
	int status;            /* exit status when DONE or FAILED */
	char *reason;          /* in words */
	uint64_t ran_ms;       /* of this incarnation, in all */
	uint64_t cpu_ms;
	bool acked;
	char *rung;            /* RUNNING: sandbox rung in use */
	char *driver;          /* RUNNING: as chosen */
	uint64_t downtime_ms;  /* RUNNING after a move: unknown here, 0 */
	uint64_t output_offset;/* ENDED: all output of this epoch, in bytes */
	uint64_t results_bytes;/* ENDED, DONE: results were handed in before this message */
};

struct control_saved {
	char *job;
	uint64_t epoch, seq;
	char *image;
	char *previous;        /* NULL = none */
	uint64_t bytes;        /* of its files */
	uint64_t new_bytes;    /* of chunks the image before did not have */
	uint64_t take_ms;      /* sealing it took so long */
	uint64_t step;         /* as the guest counts; 0 = not said */
	uint64_t output_offset;/* of this epoch's output at the commit */
	bool final;            /* taken after a notice: nothing runs past it */
	char *notice_id;
	char *commit;          /* the commit's name, as the guest gave it; "" = none */
};

struct control_received {
	char *job;
	uint64_t epoch, seq;
	char *image;
	char *from;
	char *ticket_serial;
	bool hold_only;
	uint64_t bytes_wire;
	uint64_t ms;
	uint64_t output_offset;/* as its manifest says */
	char *commit;          /* as its manifest says */
};

enum control_transfer_state {
	CONTROL_TRANSFER_STARTED = 0,
	CONTROL_TRANSFER_PROGRESS,
	CONTROL_TRANSFER_DONE,
	CONTROL_TRANSFER_FAILED,
	CONTROL_TRANSFER_STATE_COUNT,
};
extern const char *const control_transfer_state_names[];

struct control_transfer {
	char *job;
	uint64_t epoch;
	char *image;
	char *to;
	int state;
	char *code;            /* FAILED: named error */
	char *detail;
	uint64_t bytes_done, bytes_total;
	uint64_t rate_bps;
	uint64_t bytes_wire;   /* DONE */
	uint64_t ms;
};

struct control_output {
	char *job;
	uint64_t epoch;
	uint64_t offset;       /* bytes of this epoch's output before this piece */
	char *data;            /* base64 of at most CONTROL_OUTPUT_MAX bytes */
};

/* ---- what the coordinator says ------------------------------------------ */

struct control_welcome {
	uint64_t lease_ms;
	uint64_t status_every_ms;
	char *coordinator;     /* its name */
	bool stop_all;
	uint64_t floor_cap_bps;
};

struct control_lease_item {
	char *job;
	uint64_t epoch;
	uint64_t remaining_ms; /* from when the status was *sent*; 0 = this epoch is over: stop it */
};

struct control_lease {
	uint64_t seq;          /* of the status */
	struct control_lease_item *leases;
	size_t leases_count;
};

/* Where to send an image, or from where to fetch one. */
struct control_peer {
	char *node;
	char *host;
	int port;
	char *ticket;
};

struct control_secret {
	char *name;
	char *value;
};

/* Where a rank's tunnel is met. */
struct control_rank {
	char *host;
	int port;              /* UDP */
};

struct control_start {
	char *job;
	uint64_t epoch;
	char *user;
	json_t *spec;          /* job/spec.h as JSON */
	char **slots;          /* names of the slots to use */
	size_t slots_count;
	char *key;             /* of the job's images, hexadecimal */
	char *image;           /* to restore from; NULL = from the start */
	uint64_t image_epoch, image_seq;
	struct control_peer *holders; /* who has that image, this machine first if it is one */
	size_t holders_count;
	uint64_t lease_ms;     /* first lease, from when this message was received */
	uint64_t restart_count, reclaim_count;
	uint64_t time_used_ms;
	uint64_t interval_ms;  /* between checkpoints; 0 = the job's own */
	bool inputs;           /* a tar of inputs is at /v1/jobs/ID/inputs */
	struct control_secret *secrets;
	size_t secrets_count;
	char *why;             /* in words: why here, why now */
	/* Of a gang: ranks > 1. */
	char *gang;            /* the job that people know */
	uint64_t rank, ranks;
	char *gang_key;        /* of this epoch's tunnels, hexadecimal; never used for two epochs */
	struct control_rank *gang_ranks; /* of all ranks, in order */
	size_t gang_ranks_count;
};

struct control_stop {
	char *job;
	uint64_t epoch;        /* this epoch and all before it */
	int end;               /* enum control_end to book: KILLED, TIME_LIMIT */
	char *reason;
};

enum control_move_use {
	CONTROL_MOVE_NOTICE = 0, /* a reclaim: the final image, deadline class */
	CONTROL_MOVE_STAGE,      /* ahead of one: the newest image, scavenger class */
};
extern const char *const control_move_use_names[];

struct control_move {
	char *job;
	uint64_t epoch;
	int use;
	char *notice_id;       /* NOTICE */
	char *image;           /* STAGE: which; NOTICE: NULL = the final one */
	struct control_peer to;/* node NULL = no destination; reason says why */
	uint64_t floor_bps;
	bool hold_only;        /* the peer only keeps it (staging to a stable neighbour) */
	char *reason;
};

struct control_standby {
	char *job;
	uint64_t epoch;
	uint64_t remaining_ms;
	struct control_peer *peers; /* best first */
	size_t peers_count;
};

struct control_durable {
	char *job;
	uint64_t epoch, seq;
	char *image;
	char *holder;
};

struct control_rate {
	char *job;
	uint64_t epoch;
	uint64_t floor_bps;
};

struct control_rates {
	uint64_t floor_cap_bps; /* for this uplink; the agent never sets more */
	bool stop_all;          /* the operator's switch: no packet of ours but control */
	bool blackout;          /* no floors now; moves scavenge */
	struct control_rate *rates;
	size_t rates_count;
};

struct control_interval {
	char *job;
	uint64_t epoch;
	uint64_t interval_ms;  /* 0 = the job's own */
	uint64_t next_ms;      /* until the next one is due; 0 = one interval */
};

/* A notice to one guest whose own machine stays lent. */
struct control_notice {
	char *job;
	uint64_t epoch;
	char *notice_id;
	char *reason;
	uint64_t remaining_ms;
	uint64_t window_ms;
	bool cancelled;        /* go on */
};

struct control_keep {
	char *job;
	uint64_t epoch;        /* fence: arrivals of older epochs are refused from now on */
	char **images;         /* pinned: not to be pruned; empty with forget = remove all */
	size_t images_count;
	bool forget;           /* the job is over: nothing of it is needed here */
};

struct control_output_ack {
	char *job;
	uint64_t epoch;
	uint64_t offset;       /* this epoch's output up to here is stored */
};

struct control_refused {
	char *reason;
};

struct control_message {
	enum control_type type;
	union {
		struct control_hello hello;
		struct control_status status;
		struct control_owner owner;
		struct control_job job;
		struct control_saved saved;
		struct control_received received;
		struct control_transfer transfer;
		struct control_output output;
		struct control_welcome welcome;
		struct control_lease lease;
		struct control_start start;
		struct control_stop stop;
		struct control_move move;
		struct control_standby standby;
		struct control_durable durable;
		struct control_rates rates;
		struct control_interval interval;
		struct control_notice notice;
		struct control_keep keep;
		struct control_output_ack output_ack;
		struct control_refused refused;
	};
};

/* The table of a type, for documents; NULL for CONTROL_NONE. */
const struct schema *control_schema(enum control_type type);

/* in is borrowed. 0, -EPROTO (version, type), -EINVAL, -ERANGE, -ENOMEM with diag filled; then
 * ret holds nothing. Release with control_done(). */
int control_decode(json_t *in, struct control_message *ret, struct diag *diag);
/* A new reference, or NULL when out of memory. Strings of the message are borrowed. */
json_t *control_encode(const struct control_message *m);
void control_done(struct control_message *m);

#endif
