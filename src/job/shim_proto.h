/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words between agent and shim: one JSON object a line, on the shim's own
 * Unix socket (run/shim/<job>.<epoch>.sock), each {"v":1,"type":...,"id":...}.
 * The shim is the parent of one incarnation of one job and outlives the agent.
 *
 * Instants are CLOCK_BOOTTIME nanoseconds: both ends are on one machine.
 * Commands carry an id > 0; the shim answers each with `reply` {id, error}, in
 * order. Events without a request have id 0. A new connection is greeted with
 * `hello`, which holds the whole state: a restarted agent needs nothing else.
 * Several connections may be open at a time; events go to all of them.
 *
 * Life of a shim, as `hello.state` and `state.state` name it:
 *
 *     WAITING --start--> PREPARING --> READY --go--> RUNNING --notice--> NOTICED
 *     NOTICED --cancel--> RUNNING;  any --kill, T, lease, exit--> STOPPING --> ENDED
 *
 * `frozen` is a flag beside the state. ENDED is reached only when no process of
 * the guest is left: while some would not go the state is STOPPING, and `alarm`
 * names them, first a second after the kill. In ENDED the shim waits for `close` (a
 * quarter of an hour without anybody ends it too); its state file holds the same
 * `exited` record for an agent that finds no shim.
 *
 * Who may speak: the agent's user and root everything; members of reclaim-owner
 * and any other peer with access to the socket only status, notice, cancel, kill
 * (peer credentials are checked). The guest never sees this socket.
 */
#ifndef RECLAIM_JOB_SHIM_PROTO_H
#define RECLAIM_JOB_SHIM_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"
#include "base/strbuf.h"
#include "job/spec.h"

#define SHIM_PROTO_VERSION 1
#define SHIM_GPUS_MAX 64
#define SHIM_RANKS_MAX 1024
#define SHIM_GANG_IFNAME "gang0" /* the ranks' network, inside */
#define SHIM_LINE_MAX (4u << 20) /* a start message holds a script; others are short */

enum shim_state {
	SHIM_WAITING = 0,
	SHIM_PREPARING,
	SHIM_READY,
	SHIM_RUNNING,
	SHIM_NOTICED,
	SHIM_STOPPING,
	SHIM_ENDED,
	SHIM_STATE_COUNT,
};
extern const char *const shim_state_names[]; /* "waiting", ... */

/* How an incarnation ended. Only FAILED counts as a failure of the job. */
enum shim_end {
	SHIM_END_NONE = 0,
	SHIM_END_DONE,      /* finished; status is the job's exit status */
	SHIM_END_FAILED,    /* exit != 0, a signal, or out of memory, without a notice */
	SHIM_END_RESTART,   /* exit 85 or requeue: "saved, start me again" */
	SHIM_END_RECLAIMED, /* left, or was killed, during a notice */
	SHIM_END_LEASE,     /* its lease ran out */
	SHIM_END_TIME_LIMIT,
	SHIM_END_KILLED,    /* the `kill` command (cancel, superseded epoch) */
	SHIM_END_NOT_STARTED, /* this machine could not start it; the job is not to blame */
	SHIM_END_SHIM_LOST, /* only in an agent's own books: the shim died, the guest with it */
	SHIM_END_COUNT,
};
extern const char *const shim_end_names[];

enum shim_lease_action {
	/* At the end of the lease the guest is stopped where it stands (no instruction, no
	 * packet); a later `lease` for the same epoch lets it go on. Falls back to KILL
	 * where nothing can freeze. */
	SHIM_LEASE_FREEZE = 0,
	SHIM_LEASE_KILL,
};
extern const char *const shim_lease_action_names[];

/* ---- agent to shim ---- */

enum shim_command_type {
	SHIM_CMD_NONE = 0,
	SHIM_CMD_START,
	SHIM_CMD_GO,     /* after READY, when the network is attached: exec the guest */
	SHIM_CMD_LEASE,  /* a new lease_deadline_ns */
	SHIM_CMD_NOTICE, /* the machine is wanted back at deadline_ns; may be repeated, earlier or later */
	SHIM_CMD_CANCEL, /* the notice is withdrawn: thaw, tell the guest, go on */
	SHIM_CMD_FREEZE, /* reply comes when every process stands still, or with an error */
	SHIM_CMD_THAW,
	SHIM_CMD_SAVED,  /* the agent holds a commit taken since the notice: no second signal */
	SHIM_CMD_KILL,   /* SIGKILL to all now; `exited` follows within a second or `alarm` */
	SHIM_CMD_SIGNAL, /* ask for a checkpoint: the spec's signal, or a notice-file "checkpoint" */
	SHIM_CMD_DUMP,   /* drivers criu and cuda: image files into `dir`, the guest stays frozen */
	SHIM_CMD_STATUS, /* answered by a `hello` with the same id */
	SHIM_CMD_CLOSE,  /* only in ENDED or WAITING: remove socket, scratch and cgroup, exit */
	SHIM_CMD_COUNT,
};
extern const char *const shim_command_names[];

struct shim_bind {
	char *path;   /* on the host */
	char *to;     /* inside; NULL = the same path */
	bool writable;
};

struct shim_secret {
	char *name;
	char *value; /* text; never written to a disk or a log */
};

/* All paths are absolute, on the host. Folders exist and belong to the agent. */
struct shim_start {
	char *job;              /* stable job id */
	uint64_t epoch;
	struct job_spec spec;
	uint64_t restart_count; /* incarnations before this one */
	uint64_t reclaim_count;

	char *dir;              /* jobs/<job>/<epoch>: holds work/, ckpt/, and our own files */
	char *log;              /* stdout and stderr together, appended */
	uint64_t log_max;       /* bytes; beyond it output is dropped and counted. 0 = 64 MiB */
	char *state_file;       /* what the shim persists; the agent scans for these */
	char *run_dir;          /* for the guest's socket; short (sun_path) */
	char *user;             /* whose job, for logs and the guest's environment */

	uint64_t lease_deadline_ns; /* 0 = no lease (tests, offline use) */
	uint64_t lease_margin_ns;   /* stop this long before the end; 0 = 250 ms */
	int lease_action;           /* enum shim_lease_action */
	uint64_t window_ns;         /* the owner's declared window, told to the guest */
	uint64_t time_used_ns;      /* running time of earlier incarnations */

	/* Limits of this machine for this slot; 0 = none. */
	uint64_t memory_max;
	uint64_t cores_milli;   /* 1500 = one and a half cores */
	uint64_t pids_max;
	uint64_t disk_max;
	uint64_t files_max;     /* files and folders in the job's folders */
	int nice;

	char *cgroup_parent;    /* "reclaim/<agent>"; NULL = no cgroups wanted */
	char *rung_min;         /* lowest sandbox rung the owner accepts (sandbox.h); NULL = any */
	char *rung;             /* exactly this one; NULL = the best there is */
	uint64_t uid_base;      /* first host uid of this slot's range of 65536; 0 = run as ourselves */
	char *image;            /* resolved root folder, or NULL = the machine's system, read-only */
	struct shim_bind *binds;
	size_t binds_count;
	char **devices;         /* "/dev/nvidia0": lent device nodes only */
	size_t devices_count;
	char **gpu_uuids;       /* for CUDA_VISIBLE_DEVICES */
	size_t gpu_uuids_count;
	bool own_network;       /* own network namespace; false = the machine's */
	bool wait_go;           /* stay in READY until `go` */
	char *hostname;         /* inside; NULL = the job's name */
	char **env;             /* "NAME=value" on top of the spec's (gang addresses, ...) */
	size_t env_count;
	struct shim_secret *secrets;
	size_t secrets_count;

	uint64_t rank;          /* of a gang; 0 otherwise */
	char **rank_hosts;      /* names or addresses of all ranks, own included */
	size_t rank_hosts_count;

	char *restore_dir;      /* drivers criu, cuda: images to start from; NULL = fresh start */
	char *criu;             /* program; NULL = found beside ours or on PATH */
	bool auto_criu;         /* driver auto may choose CRIU for a job that declares no way to save */
};
extern const struct schema shim_start_schema;

struct shim_lease {
	uint64_t lease_deadline_ns;
};

struct shim_notice {
	char *notice_id;      /* the reclaim's id, told to the guest */
	char *reason;         /* "owner", "schedule", "login", "shutdown", ... */
	uint64_t deadline_ns; /* T. In the past = kill now */
	uint64_t window_ns;   /* the window as declared, for the guest's information */
};

struct shim_dump {
	char *dir;        /* empty folder for the image files */
	bool leave_frozen; /* true: the guest stays stopped (move); false: it runs on */
};

struct shim_kill {
	char *reason; /* for the log and `exited.reason` */
	int end;      /* enum shim_end to report; NONE = KILLED */
};

struct shim_command {
	enum shim_command_type type;
	uint64_t id;
	union {
		struct shim_start start;
		struct shim_lease lease;
		struct shim_notice notice;
		struct shim_dump dump;
		struct shim_kill kill;
	};
};

/* ---- shim to agent ---- */

enum shim_event_type {
	SHIM_EVENT_NONE = 0,
	SHIM_EVENT_HELLO,   /* all there is to know; on connect and on `status` */
	SHIM_EVENT_REPLY,   /* to a command: error NULL = done */
	SHIM_EVENT_READY,   /* namespaces exist: attach the network, then `go` */
	SHIM_EVENT_STATE,   /* state or frozen changed */
	SHIM_EVENT_TOLD,    /* how the guest was told of a notice: channels and receivers */
	SHIM_EVENT_COMMIT,  /* a guest announced a commit (libreclaim), name = its folder or file */
	SHIM_EVENT_ACKED,   /* the guest says "saved, take me": the window may end now */
	SHIM_EVENT_DUMPED,  /* outcome of `dump` */
	SHIM_EVENT_ALARM,   /* something is wrong that a person must see */
	SHIM_EVENT_EXITED,  /* the end; comes before state ENDED */
	SHIM_EVENT_COUNT,
};
extern const char *const shim_event_names[];

struct shim_exited {
	int end;           /* enum shim_end */
	int status;        /* exit status, 128 + signal when killed by one; 0 unless the guest ran */
	int signal;        /* 0 = it exited by itself */
	char *reason;      /* in words, for people */
	uint64_t ended_ns; /* when the guest's last process was gone */
	uint64_t ran_ns;   /* running time of this incarnation, frozen time excluded */
	uint64_t cpu_ns;   /* CPU time of all its processes */
	uint64_t memory_peak; /* bytes, 0 = unknown */
	uint64_t log_dropped; /* bytes of output beyond log_max */
	uint64_t pids_left;   /* 0 = proven empty */
	bool oom;
	bool acked;        /* the guest acknowledged the notice before it left */
};

struct shim_hello {
	uint64_t pid;          /* the shim's */
	char *job;
	uint64_t epoch;
	int state;             /* enum shim_state */
	bool frozen;
	bool lease_frozen;     /* it stands still for want of a lease */
	int driver;            /* enum job_driver, as chosen */
	char *driver_why;
	uint64_t guest_pid;    /* host pid of the guest's first process, 0 = none */
	char *netns;           /* "/proc/PID/ns/net", NULL without own network */
	char *rung;            /* sandbox rung in use */
	char **lacks;          /* what this rung lacks, by name */
	size_t lacks_count;
	char *cgroup;          /* v2 path below its mount, for reclaim-cut; NULL = none */
	uint64_t lease_deadline_ns;
	char *notice_id;       /* NULL = no notice */
	uint64_t deadline_ns;
	bool acked;
	bool saved;            /* a commit since the notice is known */
	uint64_t started_ns;   /* guest exec; 0 = not yet */
	uint64_t ran_ns;
	uint64_t log_bytes;    /* written to the log file by this incarnation */
	struct shim_exited exited; /* end NONE until it has ended */
};

struct shim_reply {
	char *error; /* NULL = done */
};

struct shim_ready {
	uint64_t guest_pid; /* host pid; the namespaces stay as long as it does */
	char *netns;        /* "/proc/PID/ns/net", NULL without own network */
	char *rung;
	char **lacks;
	size_t lacks_count;
	int driver;
	char *driver_why;
	uint64_t metadata_port; /* where the cloud spot paths are served (on loopback), 0 = 169.254.169.254:80 */
};

struct shim_state_change {
	int state;
	bool frozen;
	bool lease_frozen;
	char *why;
};

struct shim_told {
	char *notice_id;
	char **channels; /* "file", "http", "socket:2", "SIGUSR1:3" (how many processes) */
	size_t channels_count;
};

struct shim_commit {
	char *name; /* below the checkpoint folder; may be NULL */
	uint64_t step; /* as the guest counts, 0 = not said */
};

struct shim_dumped {
	char *error; /* NULL = the images are complete and synced */
	char *dir;
	uint64_t bytes;
	uint64_t took_ns;
	uint64_t frozen_ns; /* how long the guest stood still (leave_frozen false) */
};

#define SHIM_LEFT_MAX 16
struct shim_left {
	uint64_t pid;
	char *name; /* of the program */
};

struct shim_alarm {
	char *what;
	struct shim_left *left; /* the first few processes that would not go */
	size_t left_count;
};

struct shim_event {
	enum shim_event_type type;
	uint64_t id; /* of the command, 0 = none */
	union {
		struct shim_hello hello;
		struct shim_reply reply;
		struct shim_ready ready;
		struct shim_state_change state;
		struct shim_told told;
		struct shim_commit commit;
		struct shim_dumped dumped;
		struct shim_alarm alarm;
		struct shim_exited exited;
	};
};

/*
 * Lines to structs and back. Decoders take outside bytes (a line without its
 * newline), return 0, -EINVAL, -ERANGE, -EPROTO (other version, unknown type) or
 * -ENOMEM with diag filled, and on failure leave nothing to release. Encoders
 * append one line with its newline: 0 or -ENOMEM.
 */
int shim_command_decode(const char *line, size_t len, struct shim_command *ret, struct diag *diag);
int shim_command_encode(const struct shim_command *cmd, struct strbuf *out);
void shim_command_done(struct shim_command *cmd);
int shim_event_decode(const char *line, size_t len, struct shim_event *ret, struct diag *diag);
int shim_event_encode(const struct shim_event *event, struct strbuf *out);
void shim_event_done(struct shim_event *event);

/*
 * The state file: a hello as JSON plus the boot it belongs to. From another boot,
 * or with no socket behind it, the guest is gone: ret->exited tells how, or its
 * end is NONE and the agent books SHIM_LOST.
 */
struct shim_record {
	char *boot_id;
	char *socket;
	char *dir;
	struct shim_hello hello;
};
extern const struct schema shim_record_schema;
int shim_record_load(const char *state_file, struct shim_record *ret, struct diag *diag);
void shim_record_done(struct shim_record *r);

#endif
