/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lend terms: what an owner lends, when, to whom, and within which bounds.
 * One YAML file per machine, read by `reclaimd --check`, `reclaimd` and
 * `reclaim lend`, and embedded per machine in scenario files.
 *
 *     window: 60s
 *     slots:
 *       - {name: gpu0, kind: gpu, gpu: 0, cores: 4, memory: 32GiB}
 *     schedule:
 *       lend:
 *         - {days: [mon, tue, wed, thu, fri], from: "18:00", to: "08:00"}
 *         - {days: [sat, sun], from: "00:00", to: "24:00"}
 *
 * The decoded struct owns its strings and lists; terms_done() releases them.
 */
#ifndef RECLAIM_SCENARIO_TERMS_H
#define RECLAIM_SCENARIO_TERMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"

#define TERMS_SLOTS_MAX 256
#define TERMS_SPANS_MAX 64
#define TERMS_NAMES_MAX 256
#define TERMS_NAME_MAX 64
#define TERMS_WINDOW_MAX_NS (UINT64_C(24) * 3600 * 1000000000)

enum terms_slot_kind {
	TERMS_SLOT_CPU = 0, /* a share of the CPU cores */
	TERMS_SLOT_GPU,     /* one GPU and a share of the cores */
};

struct terms_slot {
	char *name;       /* unique on the machine; "slot0"... when absent */
	int kind;         /* enum terms_slot_kind */
	char *gpu;        /* GPU slots: NVML index, UUID or PCI address; NULL otherwise */
	double cores;     /* CPU cores, fractions allowed */
	uint64_t memory;  /* bytes; 0 = an equal share of caps.memory */
};

/* Days as bits, Monday is bit 0. */
enum {
	TERMS_DAY_MON = 1 << 0,
	TERMS_DAY_SUN = 1 << 6,
	TERMS_DAYS_ALL = 0x7f,
};

/* One weekly span in the machine's local time. A span that ends at or before
 * its start goes on into the next day. */
struct terms_span {
	char **days; /* as written: "mon" ... "sun"; none = every day */
	size_t days_count;
	char *from, *to; /* as written: "HH:MM", to may be "24:00" */
};

struct terms_schedule {
	struct terms_span *lend; /* lent only inside these; none = always */
	size_t lend_count;
	struct terms_span *keep; /* never lent inside these, whatever `lend` says */
	size_t keep_count;
};

/* What all guests together may use; 0 = no cap beyond the slots. */
struct terms_caps {
	uint64_t memory;   /* bytes */
	double cores;
	uint64_t disk;     /* bytes below the agent's state folder, images included */
	uint64_t uplink;   /* bit/s, guests and moves together */
	uint64_t downlink; /* bit/s */
	uint64_t pids;     /* processes per guest */
};

/* Who may run here. Empty lists allow everybody who is enrolled; `deny` wins. */
struct terms_who {
	char **users;
	size_t users_count;
	char **groups;
	size_t groups_count;
	char **deny;
	size_t deny_count;
};

/* Copies of other machines' images that are kept here. */
struct terms_shadow {
	bool keep;     /* accept them at all */
	bool owned;    /* keep and serve them also while the owner has the machine */
	uint64_t disk; /* bytes at most */
};

/* Back without a command. Each leads to `reclaim back` with the window. */
struct terms_triggers {
	bool login;    /* somebody logs in */
	bool keyboard; /* keyboard or mouse used at the console */
	bool gpu;      /* a process that is not a guest uses a lent GPU */
	double cpu;    /* other processes than guests use so many cores for 10 s; 0 = never */
	bool shutdown; /* shutdown, suspend, closed lid */
};

/* A campus destination that guests may reach if their job declares it too. */
struct terms_destination {
	char *to;     /* address or prefix: "10.1.0.0/16", "2001:db8::/32" */
	char *proto;  /* "tcp", "udp" or "any" */
	int port;     /* 0 = any */
};

/* Best first; the numbers are the ladder of job/sandbox.h. */
enum terms_sandbox {
	TERMS_SANDBOX_FULL = 0, /* all namespaces, seccomp, Landlock, own user, cgroup limits */
	TERMS_SANDBOX_NAMESPACES, /* the same without what the kernel lacks */
	TERMS_SANDBOX_USERNS,   /* unprivileged: user namespace, seccomp, no_new_privs */
	TERMS_SANDBOX_PROCESS,  /* own process group and limits only */
};

struct terms {
	int version; /* of this format: 1 */
	uint64_t window_ns; /* how long `reclaim back` gives the guests by default */
	uint64_t quiet_ns;  /* no lending again until the owner was idle for so long */
	struct terms_slot *slots;
	size_t slots_count;
	struct terms_schedule schedule;
	struct terms_caps caps;
	struct terms_who who;
	struct terms_shadow shadow;
	struct terms_triggers triggers;
	struct terms_destination *destinations;
	size_t destinations_count;
	int sandbox; /* enum terms_sandbox: the lowest rung accepted */
	bool lend_at_start; /* lend when the agent first starts, without `reclaim lend` */
};

extern const struct schema terms_schema;

/* 0 or a negative errno with diag filled ("terms.yaml:7: slots[1].cores", "..."). */
int terms_name_slots(struct terms *t, struct diag *diag);
int terms_load(const char *path, struct terms *ret, struct diag *diag);
void terms_done(struct terms *t);
/* Gives slots without a name theirs; part of terms_load(). 0 or -ENOMEM. */
int terms_complete(struct terms *t);

/*
 * The weekly schedule at one minute of the local week (0 = Monday 00:00,
 * 10079 = Sunday 23:59). The caller does the time zone, so that this stays
 * pure: see terms_week_minute().
 */
#define TERMS_WEEK_MINUTES (7 * 24 * 60)
bool terms_lendable(const struct terms *t, unsigned week_minute);
/* Minutes from week_minute until the answer changes; 0 = it never does. */
unsigned terms_change_in(const struct terms *t, unsigned week_minute);

struct tm;
unsigned terms_week_minute(const struct tm *local);

/* May this user run here? groups may be NULL when the count is 0. */
bool terms_admits(const struct terms *t, const char *user, const char *const *groups,
		  size_t groups_count);

/* Names of enum values, NULL-terminated, as written in files. */
extern const char *const terms_slot_kind_names[];
extern const char *const terms_sandbox_names[];

#endif
