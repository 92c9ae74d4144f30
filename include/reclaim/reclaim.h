/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libreclaim: a guest's half of the contract. A program that links it hears that its
 * machine is wanted back, saves so that no torn checkpoint can ever be loaded, and says
 * when it is done. It has no dependencies and starts no threads; outside a job every
 * call says so (-ENOENT, or "no notice") and the program runs as usual.
 *
 *     while (train(&state)) {
 *             struct reclaim_notice n;
 *             if (reclaim_notice_get(&n) > 0 && n.action == RECLAIM_ACTION_TERMINATE) {
 *                     save(&state);            // reclaim_commit_begin() ... _end()
 *                     reclaim_ack();
 *                     return 85;               // saved, start me again
 *             }
 *     }
 *
 * Functions return 0 (or what is said) or a negative errno. All are safe to call from
 * several threads; none may be called from a signal handler.
 */
#ifndef RECLAIM_RECLAIM_H
#define RECLAIM_RECLAIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RECLAIM_API
#define RECLAIM_API __attribute__((visibility("default")))
#endif

#define RECLAIM_EXIT_RESTART 85 /* exit status: saved, start me again */

enum reclaim_action {
	RECLAIM_ACTION_NONE = 0,   /* nobody wants the machine (also after a cancel) */
	RECLAIM_ACTION_TERMINATE,  /* the machine goes at the deadline: save and leave */
	RECLAIM_ACTION_CHECKPOINT, /* save when you can, and go on */
};

struct reclaim_notice {
	enum reclaim_action action;
	double remaining_s;   /* until the deadline, now */
	double window_s;      /* as the owner declared it */
	double deadline_unix; /* wall clock, for people */
	uint64_t epoch;
	char id[128];
};

RECLAIM_API const char *reclaim_version(void);

/* ---- notice ---- */

/* 1: there is one (or a request for a checkpoint), 0: none. Costs one recv() that does not block. */
RECLAIM_API int reclaim_notice_get(struct reclaim_notice *ret);
/* Waits for a change at most timeout_ms (-1: for ever); as reclaim_notice_get(). */
RECLAIM_API int reclaim_notice_wait(int timeout_ms, struct reclaim_notice *ret);
/* For poll() and epoll: readable when reclaim_notice_get() may say something new. The
 * library's own: do not read or close it. */
RECLAIM_API int reclaim_notice_fd(void);
/* Seconds until the deadline; a large number (1e9) when there is no notice. */
RECLAIM_API double reclaim_remaining(void);

/* "Saved, take me": ends the window early. -EINVAL when there is no notice. */
RECLAIM_API int reclaim_ack(void);
/* "Start me again when I have exited", whatever the exit status. */
RECLAIM_API int reclaim_requeue(void);

/* ---- checkpoints ---- */

/* The job's checkpoint folder, or NULL outside a job. */
RECLAIM_API const char *reclaim_checkpoint_dir(void);

struct reclaim_commit;

/*
 * A commit is a folder that appears whole or not at all: begin makes a temporary folder
 * beside its place, end syncs every file in it, writes MANIFEST (lines "SIZE SHA256
 * NAME"), syncs, renames it to `name`, syncs the parent and tells the shim. dir: where
 * commits live; NULL = the job's checkpoint folder. An older folder `name` is replaced.
 */
RECLAIM_API int reclaim_commit_begin(const char *dir, const char *name, struct reclaim_commit **ret);
/* Where to write its files (an absolute or caller-relative folder); valid until end or abort. */
RECLAIM_API const char *reclaim_commit_path(const struct reclaim_commit *c);
/* Takes the commit in any case; on failure nothing is left of it and an older one stands. */
RECLAIM_API int reclaim_commit_end(struct reclaim_commit *c, uint64_t step);
RECLAIM_API void reclaim_commit_abort(struct reclaim_commit *c);
/* For programs that rename a file of their own into place: tells the shim of it. */
RECLAIM_API int reclaim_committed(const char *name, uint64_t step);

/* The newest commit that holds against its manifest: 1 and its path, 0 if there is none.
 * Damaged ones are passed over. dir as above. */
RECLAIM_API int reclaim_commit_latest(const char *dir, char *path, size_t path_size);
/* Removes all but the newest `keep` commits: how many went, or -errno. */
RECLAIM_API int reclaim_commit_prune(const char *dir, unsigned keep);

#ifdef __cplusplus
}
#endif

#endif
