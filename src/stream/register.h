/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register of one endpoint: who may deliver, in which epoch. Pure: every
 * operation is one compare-and-swap on this struct, which whoever stores it
 * carries out atomically (registry.c here, the coordinator's store there).
 *
 *     FREE(e) --acquire--> OWN(e+1, A)
 *     OWN(e, S) --prepare--> PREP(e, S, T, hid) --commit by T--> OWN(e+1, T)
 *     PREP(e, S, T, hid) --abort--> OWN(e, S)
 *     OWN | PREP(e, S), S's lease over --acquire--> OWN(e+1, A), "recover"
 *     OWN(e, S) --release by S--> FREE(e)
 *
 * Leases: the holder counts from when it asked, the grantor from when it
 * answered, times 1 + drift, plus a margin (M7). So `now` here is the
 * grantor's clock alone and nobody's clock is compared with it.
 */
#ifndef RECLAIM_STREAM_REGISTER_H
#define RECLAIM_STREAM_REGISTER_H

#include <stdbool.h>
#include <stdint.h>

enum register_state { REGISTER_FREE = 0, REGISTER_OWN, REGISTER_PREP, REGISTER_STATE_COUNT };

struct register_terms {
	uint64_t ttl_ns;       /* what a holder may count on, from its ask */
	uint64_t margin_ns;
	uint32_t drift_ppm;    /* bound on how far two clocks drift apart */
};

struct register_record {
	enum register_state state;
	uint64_t epoch;        /* of the present or last owner; 0: never owned */
	uint64_t owner;        /* instance, 0: none */
	uint64_t target;       /* PREP: who is to take over */
	uint64_t hid;          /* the last attempt begun, or committed */
	uint64_t lease_end_ns; /* grantor's clock: until then nobody else gets the epoch */
};

/* How long a grantor waits for a lease it answered now. */
uint64_t register_lease_ns(const struct register_terms *t);

/* A new or repeated grant to `who`: 0, or -EAGAIN while another's lease runs.
 * *ret_recover: the former owner did not hand over. */
int register_acquire(struct register_record *r, const struct register_terms *t, uint64_t who,
		     uint64_t now_ns, bool *ret_recover);
/* -ESTALE: no longer the owner in that epoch. */
int register_renew(struct register_record *r, const struct register_terms *t, uint64_t who,
		   uint64_t epoch, uint64_t now_ns);
/* Begins an attempt: 0, -EBUSY when one runs, -ENOENT when nobody owns, -EINVAL for itself. */
int register_prepare(struct register_record *r, uint64_t target);
/* By the target alone (M1). 0 also when this attempt is already committed (a lost answer). */
int register_commit(struct register_record *r, const struct register_terms *t, uint64_t who,
		    uint64_t hid, uint64_t now_ns);
/* Ends attempt `hid` in favour of the owner; -ESTALE when it is not the present one. */
int register_abort(struct register_record *r, uint64_t hid);
/* The owner goes and has stopped delivering. */
int register_release(struct register_record *r, uint64_t who, uint64_t epoch);

#endif
