/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of the lab: started in a node's network, as a user, with a log. */
#ifndef RECLAIM_LAB_PROC_H
#define RECLAIM_LAB_PROC_H

#include <stdint.h>
#include <sys/types.h>

#include "base/diag.h"
#include "base/strbuf.h"
#include "lab/campus.h"

#define PROC_ARGS_MAX 64
#define PROC_ENV_MAX 16

struct proc_spec {
	const char *argv[PROC_ARGS_MAX]; /* NULL-terminated; argv[0] is a path or found on PATH */
	const char *env[PROC_ENV_MAX];   /* "NAME=value" on top of ours; NULL-terminated */
	const struct campus_node *node;  /* NULL = where we are */
	uid_t uid;                       /* 0 = stay who we are */
	gid_t gid;
	gid_t group;                     /* one further group; 0 = none */
	const char *cwd;                 /* NULL = ours */
	const char *log;                 /* stdout and stderr are appended; NULL = ours */
	const char *err_log;             /* stderr apart; NULL = with stdout */
	bool own_group;                  /* a process group of its own, away from the terminal */
};

/* The child is the caller's to reap. It dies with the lab. */
int proc_spawn(const struct proc_spec *spec, pid_t *ret, struct diag *diag);
/*
 * Runs to the end. ret_status: exit status or 128 + signal; out (may be NULL)
 * gets stdout. -ETIMEDOUT after timeout_ms, and the program is killed.
 */
int proc_run(const struct proc_spec *spec, uint64_t timeout_ms, struct strbuf *out,
	     int *ret_status, struct diag *diag);

/* Where a program of ours is: beside this one, in a build tree, or on PATH. Returns buf. */
#define PROC_PATH_MAX 512
/* The folder of this program; to be called once before any namespace is entered. */
const char *proc_self_folder(void);
const char *proc_program(const char *name, char buf[PROC_PATH_MAX]);

#endif
