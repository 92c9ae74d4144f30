/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process's view of one endpoint: may it deliver, and what is its part in
 * a handover. Pure; the caller carries out the actions that a call returns and
 * feeds the outcome back. The events are those of tests/model/handover.pml.
 *
 *   as owner   ACTIVE --PREP seen--> (PREPARE) --freeze--> FROZEN
 *              FROZEN --abort won | OWN(e, me) read under the lease--> ACTIVE   (M2)
 *              any --epoch+1 seen | lease over--> GONE
 *   as target  STANDBY --cut installed--> INSTALLED --commit won--> ACTIVE      (M1)
 *              STANDBY, INSTALLED --attempt over--> STANDBY
 *
 * FROZEN with the register unreachable stays frozen until the lease ends.
 */
#ifndef RECLAIM_STREAM_OWNER_H
#define RECLAIM_STREAM_OWNER_H

#include <stdbool.h>
#include <stdint.h>

#include "stream/register.h"

enum owner_state {
	OWNER_NONE = 0,  /* asks for the endpoint */
	OWNER_STANDBY,   /* a possible target */
	OWNER_INSTALLED, /* has the cut of attempt hid, tries to commit */
	OWNER_ACTIVE,
	OWNER_FROZEN,
	OWNER_GONE,      /* another delivers, or nobody: never delivers again */
	OWNER_STATE_COUNT,
};

enum owner_action {
	OWNER_DO_PREPARE = 1 << 0,   /* begin attempt hid: ready the target, tell senders */
	OWNER_DO_HANDOVER = 1 << 1,  /* send the cut under attempt hid */
	OWNER_DO_ABORT = 1 << 2,     /* compare-and-swap PREP(hid) back to OWN */
	OWNER_DO_RESUME = 1 << 3,    /* tell senders: go on from cut + 1 */
	OWNER_DO_COMMIT = 1 << 4,    /* compare-and-swap PREP(hid) to OWN(e+1, me) */
	OWNER_DO_ACTIVATE = 1 << 5,  /* welcome senders in the new epoch */
	OWNER_DO_TOMBSTONE = 1 << 6, /* answer MOVED from now on, free the rest */
};

struct owner {
	enum owner_state state;
	uint64_t me;
	uint64_t epoch;              /* in which this process delivers, or last did */
	uint64_t hid;                /* the attempt served; 0 none */
	uint64_t hid_seen;           /* the last attempt begun: each begins once */
	uint64_t lease_until_ns;     /* own clock, counted from the ask */
	uint64_t freeze_deadline_ns;
	uint64_t retry_ns;           /* after the deadline, how often to ask for the abort */
};

/* What the register says; `owned` and `targeted`: by this process. */
struct owner_view {
	enum register_state state;
	uint64_t epoch;
	uint64_t hid;
	bool owned;
	bool targeted;
};

void owner_init(struct owner *o, uint64_t me, bool standby);

/* The answer to acquire: this process owns `epoch`. One that comes after the lease
 * that it grants is worth nothing: another may own it by now. */
unsigned owner_on_grant(struct owner *o, uint64_t epoch, uint64_t asked_ns, uint64_t ttl_ns,
			uint64_t now_ns);
/* The answer to a renewal asked at asked_ns. */
void owner_on_renewed(struct owner *o, uint64_t epoch, uint64_t asked_ns, uint64_t ttl_ns);
/* The register was read, or pushed a change. */
unsigned owner_on_view(struct owner *o, const struct owner_view *v, uint64_t now_ns);
/* The caller is at a message boundary and the target is ready. */
unsigned owner_freeze(struct owner *o, uint64_t deadline_ns, uint64_t now_ns);
/* Time passed: deadline of a freeze, end of the lease. */
unsigned owner_on_time(struct owner *o, uint64_t now_ns);
unsigned owner_on_abort_result(struct owner *o, uint64_t hid, bool won, uint64_t now_ns);
/* Standby: nobody owns the endpoint any more (its lease is over, or it was left):
 * ask for it like any other. A target with a complete cut commits instead. */
void owner_on_vacant(struct owner *o);
/* Target: the whole cut of attempt hid is in. */
unsigned owner_on_installed(struct owner *o, uint64_t hid);
unsigned owner_on_commit_result(struct owner *o, uint64_t hid, bool won, uint64_t epoch,
				uint64_t asked_ns, uint64_t ttl_ns, uint64_t now_ns);

static inline bool owner_may_deliver(const struct owner *o, uint64_t now_ns)
{
	return o->state == OWNER_ACTIVE && now_ns < o->lease_until_ns;
}

/* May the stable cursor be written? Also while frozen; never beyond the lease (M5). */
static inline bool owner_may_store(const struct owner *o, uint64_t now_ns)
{
	return (o->state == OWNER_ACTIVE || o->state == OWNER_FROZEN) && now_ns < o->lease_until_ns;
}

const char *owner_state_name(enum owner_state s);

#endif
