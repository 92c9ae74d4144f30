/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The box a guest runs in, as a ladder of rungs, best first. sandbox_probe() finds
 * out once what the machine can do; sandbox_choose() takes the best rung that it
 * can and that the owner accepts, and names what that rung lacks.
 *
 *   full        root: user, mount, pid, net, ipc, uts, cgroup namespaces; a uid range
 *               per slot; no capabilities, no new privileges; seccomp allow-list;
 *               Landlock; read-only system; own /tmp, home, /dev; cgroup limits
 *   namespaces  the same as root, but something of it is missing on this machine
 *   userns      without root: the same in a user namespace that holds our uid alone.
 *               Lacks: own uids, own network (the guest has the machine's, or none),
 *               cgroup limits unless a group was delegated
 *   process     own process group, resource limits, no new privileges, seccomp and
 *               Landlock where they can be had. Sees the machine's files as we do
 *
 * What is inside (rungs with a mount namespace), always at the same paths, so that an
 * image taken on one machine fits the next:
 *
 *   /reclaim/work   working folder (rw)      /reclaim/run      notice.json, guest.sock (ro)
 *   /reclaim/ckpt   checkpoint folder (rw)   /reclaim/secrets  memory-backed (ro)
 *   /reclaim/home   home, /tmp (rw)          /reclaim/bin      scontrol, srun, reclaim (ro)
 *   /usr /bin /lib* /sbin /opt, parts of /etc and /sys (ro), /proc and /dev of its own
 *
 * The spawner is the shim: one thread, no locks held, so that a child made by clone()
 * may do all of this before it executes anything.
 */
#ifndef RECLAIM_JOB_SANDBOX_H
#define RECLAIM_JOB_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"

enum sandbox_rung {
	SANDBOX_FULL = 0,
	SANDBOX_NAMESPACES,
	SANDBOX_USERNS,
	SANDBOX_PROCESS,
	SANDBOX_RUNG_COUNT,
};
extern const char *const sandbox_rung_names[]; /* NULL-terminated */

struct sandbox_caps {
	bool root;        /* we are root with CAP_SYS_ADMIN in the initial namespace or like it */
	bool namespaces;  /* mount, pid, ipc, uts, as root */
	bool net;         /* network namespaces, as root */
	bool user;        /* user namespaces, as root */
	bool userns;      /* unprivileged user namespaces with all of the above */
	bool cgroupns;
	bool seccomp;
	bool seccomp_notify; /* refused calls can be logged with the job's id */
	bool mount_setattr;  /* read-only with everything mounted below */
	int landlock_abi;    /* 0 = none */
};

void sandbox_probe(struct sandbox_caps *ret);

#define SANDBOX_LACKS_MAX 24
#define SANDBOX_LACK_MAX 128
struct sandbox_choice {
	enum sandbox_rung rung;
	char lacks[SANDBOX_LACKS_MAX][SANDBOX_LACK_MAX];
	size_t lacks_count;
};

/*
 * wanted: a rung by name, or NULL for the best. rung_min: the lowest accepted, or NULL.
 * cgroup_limits: limits by cgroup can be set (full needs them). 0, or -ENOTSUP with diag
 * when the machine cannot climb to rung_min. -EINVAL for a name that is no rung.
 */
int sandbox_choose(const struct sandbox_caps *caps, const char *wanted, const char *rung_min,
		   bool cgroup_limits, struct sandbox_choice *ret, struct diag *diag);

#define SANDBOX_UID 1000 /* inside, at the rungs full and namespaces */

struct sandbox_bind {
	const char *path, *to;
	bool writable;
};
struct sandbox_secret {
	const char *name, *value;
};

struct sandbox_config {
	enum sandbox_rung rung;
	const struct sandbox_caps *caps;
	uint64_t uid_base;       /* first host uid of the range; 0 = none (userns, process) */
	const char *image;       /* root folder, NULL = the machine's */
	const char *work, *ckpt, *home, *tmp; /* host folders, owned by the guest's uid */
	const char *run;         /* host folder with notice.json and guest.sock */
	const char *tools;       /* host folder with reclaim-init and its names; NULL = none */
	const char *hostname;
	const char *cwd;         /* below work, NULL = its top */
	const struct sandbox_bind *binds;
	size_t bind_count;
	const char *const *devices;
	size_t device_count;
	const struct sandbox_secret *secrets;
	size_t secret_count;
	const char *secrets_dir; /* process rung: a folder in memory, made by the caller */
	bool own_network;        /* a network namespace; loopback is brought up */
	bool no_network;         /* userns: an empty one */
	bool metadata;           /* serve on 169.254.169.254:80 and 127.0.0.1 inside it */
	bool plain_mounts;       /* no masks over /proc, no seccomp listener: CRIU has to dump it */
	uint64_t memory_max;     /* sizes /dev/shm */
	bool rlimit_memory;      /* no cgroup limits memory: RLIMIT_DATA per process does */
	uint64_t pids_max;       /* RLIMIT_NPROC, with a uid range */
	uint64_t file_max;       /* RLIMIT_FSIZE, bytes of one file; 0 = none */
	int nice;
	int out_fd;              /* stdout and stderr; stdin is /dev/null */
	char *const *argv;
	char *const *envp;
	int (*attach)(void *ctx, pid_t pid); /* puts the child into its cgroup; may be NULL */
	void *attach_ctx;
};

struct sandbox_child {
	pid_t pid;       /* of init (rungs with a pid namespace) or of the guest itself */
	int ctl_fd;      /* readable after sandbox_go(): call sandbox_started() */
	int notify_fd;   /* seccomp listener, -1 = none */
	int metadata_fds[2]; /* listening sockets inside the guest's network, -1 = none */
	bool init;       /* pid is our init, the guest is its child */
};
#define SANDBOX_CHILD_INIT { -1, -1, -1, { -1, -1 }, false }

/*
 * Makes the child, its namespaces and mounts; returns when it waits for sandbox_go().
 * On failure nothing is left. Blocks for some 10 ms.
 */
int sandbox_spawn(const struct sandbox_config *config, struct sandbox_child *ret, struct diag *diag);
/* Lets it execute the guest. 0 or -errno (it is gone). */
int sandbox_go(struct sandbox_child *child);
/* When ctl_fd is readable: 0 = the guest runs (ctl_fd is closed), 1 = call again when readable,
 * or -errno with diag: it could not be executed. */
int sandbox_started(struct sandbox_child *child, struct diag *diag);
/* Closes the fds; the process is the caller's to wait for. Before sandbox_go() it then exits. */
void sandbox_child_done(struct sandbox_child *child);

/* A refused system call that the listener reports: answers it with EPERM and describes it. */
int sandbox_refusal(int notify_fd, char *buf, size_t buf_size);

#endif
