/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim-shim: the parent of one guest, and the keeper of its deadlines.
 *
 * One thread, one epoll loop. Phases of a turn, in this order: the clock is read once;
 * sources that are ready are served; ended children are reaped; deadlines that are due
 * are acted on; the next deadline is armed on one timerfd of CLOCK_BOOTTIME.
 *
 *   main      arguments, loop, timers          conn     agent and owner, line JSON
 *   guest     start, freeze, stop, proof       notice   telling the guest
 *   guestsock the guest's socket and HTTP      output   the log file
 *   env       what the guest finds             state    hello, state file
 *   prepare   from `start` to a waiting child  dump     drivers criu and cuda
 *   disk      the limit on its folders
 *
 * Invariants. Only stop() leads to ENDED, and only after it has seen that no process of
 * the guest is left. A deadline once armed fires whether or not anybody is connected.
 * Input from the guest (socket, HTTP, output) is bounded and never blocks the loop.
 */
#ifndef RECLAIM_JOB_SHIM_SHIM_H
#define RECLAIM_JOB_SHIM_SHIM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/strbuf.h"
#include "job/cgroup.h"
#include "job/ckpt_watch.h"
#include "job/notice.h"
#include "job/sandbox.h"
#include "job/shim_proto.h"

#define SHIM_CONNS_MAX 16   /* agents and owners; more are refused at once */
#define GUEST_CONNS_MAX 32  /* on the guest's socket and HTTP together */
#define NEVER UINT64_MAX

struct shim;
struct source {
	int fd; /* -1 = unused */
	void (*ready)(struct shim *s, struct source *src, uint32_t events);
};

struct conn {
	struct source src;
	struct strbuf in, out;
	bool full;   /* may say everything: root or our own user */
	bool greeted;
};

enum guest_conn_kind { GUEST_CONN_SOCKET, GUEST_CONN_HTTP };
struct guest_conn {
	struct source src;
	enum guest_conn_kind kind;
	struct strbuf in, out;
	bool waiting; /* GCP's wait_for_change */
	bool closing;
};

enum dump_phase { DUMP_IDLE = 0, DUMP_CUDA, DUMP_CRIU, DUMP_RESTORE };
struct dump {
	enum dump_phase phase;
	int dir_fd;
	char *wanted; /* where the agent wants it */
	bool leave_stopped;
	uint64_t id, begun_ns, root_pid, pipe_ino;
	struct pid_list cuda; /* processes with GPU state */
	size_t cuda_at;
};

/* Absolute CLOCK_BOOTTIME ns, NEVER = not armed. */
struct deadlines {
	uint64_t start;       /* nobody sent `start` */
	uint64_t lease;       /* already less the margin */
	uint64_t kill;        /* T */
	uint64_t last_signal;
	uint64_t saved_check; /* look at the checkpoint folder */
	uint64_t time_limit;
	uint64_t time_limit_kill;
	uint64_t kill_round;  /* STOPPING: look and kill again */
	uint64_t alarm;       /* STOPPING: name what is left */
	uint64_t output;      /* read on after the rate limit */
	uint64_t disk;        /* look at the disk it uses */
	uint64_t linger;      /* ENDED, nobody came for it */
};
#define DEADLINE_COUNT (sizeof(struct deadlines) / sizeof(uint64_t))

struct shim {
	/* process */
	const char *socket_path;
	const char *tools;
	int epoll_fd;
	struct source listener, signals, timer;
	uint64_t now; /* of this turn */
	struct deadlines due;
	bool quit;

	/* connections */
	struct conn conns[SHIM_CONNS_MAX];

	/* the job */
	struct shim_start start;
	bool have_start;
	enum shim_state state;
	bool frozen, lease_frozen;
	struct cgroup_caps cgroup_caps;
	struct cgroup *cgroup;
	struct sandbox_caps caps;
	struct sandbox_choice choice;
	struct sandbox_child child;
	struct source child_ctl, seccomp;
	uint64_t refusals;
	int driver;
	bool signal_if_caught;
	char driver_why[160];
	pid_t guest_pid;
	bool guest_reaped, guest_running;
	int guest_status;
	uint64_t started_ns, frozen_since, frozen_total;
	char *run_dir; /* start.run_dir/<job>.<epoch> */
	struct dump dump;
	pid_t helper_pid; /* CRIU or cuda-checkpoint, 0 = none */
	pid_t disk_pid;   /* who looks at the disk, 0 = nobody */
	uint64_t disk_begun_ns;
	uint64_t disk_next_ns; /* the next regular look */
	uint64_t disk_free_files, disk_free_bytes; /* of the file system at the last look */
	bool stopped_by_dump;
	int restore_out_fd; /* the guest's end of the output pipe, kept for a restore */
	uint64_t pipe_ino;

	/* notice */
	struct shim_notice notice;
	enum notice_kind notice_kind;
	uint64_t notice_ns; /* when it came */
	bool acked, saved, requeue_asked;
	struct ckpt_watch *watch;
	struct source watch_src;
	struct ckpt_commit before; /* the newest commit when the notice came */

	/* end */
	enum shim_end stop_end;
	char stop_reason[256];
	struct shim_exited exited;
	uint64_t stop_ns;
	unsigned alarms;

	/* guest side */
	struct source guest_listener, http_listeners[2];
	uint64_t metadata_port;
	struct guest_conn guest_conns[GUEST_CONNS_MAX];

	/* output */
	struct source output;
	int log_fd;
	uint64_t log_bytes, log_dropped, log_budget, log_budget_ns;
};

/* main */
int source_add(struct shim *s, struct source *src, int fd, uint32_t events,
	       void (*ready)(struct shim *, struct source *, uint32_t));
void source_set(struct shim *s, struct source *src, uint32_t events);
void source_close(struct shim *s, struct source *src);

/* conn */
int conn_listen(struct shim *s, struct diag *diag);
void conn_event(struct shim *s, const struct shim_event *event); /* to all; borrows */
bool conn_agent_present(const struct shim *s);
void conn_close_all(struct shim *s);
void conn_flush(struct shim *s);
void conn_reply(struct shim *s, struct conn *c, uint64_t id, const char *error_fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* guest */
int guest_prepare(struct shim *s, struct diag *diag);
int guest_go(struct shim *s, struct diag *diag);
int guest_freeze(struct shim *s, bool frozen, struct diag *diag);
void guest_stop(struct shim *s, enum shim_end end, const char *reason);
void guest_reap(struct shim *s);
void guest_stop_round(struct shim *s);
void guest_alarm(struct shim *s);
int guest_processes(struct shim *s, struct proc_list *ret); /* with detail, init left out */
pid_t guest_top(const struct shim *s, const struct proc_list *procs);
uint64_t guest_ran_ns(const struct shim *s);
void guest_cleanup(struct shim *s);
int guest_command(struct shim *s, const struct shim_command *cmd, struct diag *diag);

void guest_runs(struct shim *s);

/* disk */
void disk_arm(struct shim *s);
void disk_look(struct shim *s);
void disk_looked(struct shim *s, int status);

/* dump */
bool dump_driver(const struct shim *s);
int dump_check(struct shim *s, struct diag *diag);
int dump_begin(struct shim *s, const struct shim_dump *dump, uint64_t id, struct diag *diag);
int restore_take(struct shim *s, struct diag *diag);
int restore_begin(struct shim *s, struct diag *diag);
void dump_helper_ended(struct shim *s, int status);

/* notice */
void notice_begin(struct shim *s, struct shim_notice *notice); /* takes it */
void notice_cancel(struct shim *s);
void notice_last(struct shim *s);
void notice_saved(struct shim *s, const char *how);
void notice_acked(struct shim *s);
void notice_checkpoint(struct shim *s);
void notice_look(struct shim *s);
void notice_time_limit(struct shim *s);
struct notice notice_now(const struct shim *s);

/* guestsock */
int guestsock_listen(struct shim *s, struct diag *diag);
int guestsock_metadata(struct shim *s, struct diag *diag);
unsigned guestsock_tell(struct shim *s); /* how many were told */
void guestsock_close(struct shim *s);

/* output */
int output_open(struct shim *s, int *ret_child_fd, struct diag *diag);
void output_resume(struct shim *s);
void output_drain(struct shim *s); /* what is in the pipe now */
void output_finish(struct shim *s);

/* env */
int env_build(struct shim *s, char ***ret, struct diag *diag);
void env_free(char **env);
const char *box_path(const struct shim *s, const char *boxed, const char *host);

/* state */
void state_set(struct shim *s, enum shim_state state, const char *why);
void state_changed(struct shim *s, const char *why); /* says so and writes the file */
void state_hello(struct shim *s, struct shim_hello *ret); /* borrowed strings: do not release */
void state_write(struct shim *s);

#endif
