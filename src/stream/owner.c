/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/owner.h"

enum { OWNER_RETRY_NS = 20 * 1000 * 1000 };

static const char *const names[OWNER_STATE_COUNT] = { "none",   "standby", "installed",
						      "active", "frozen",  "gone" };

const char *owner_state_name(enum owner_state s)
{
	return s < OWNER_STATE_COUNT ? names[s] : "?";
}

void owner_init(struct owner *o, uint64_t me, bool standby)
{
	*o = (struct owner){ .state = standby ? OWNER_STANDBY : OWNER_NONE, .me = me,
			     .retry_ns = OWNER_RETRY_NS };
}

static bool owning(const struct owner *o)
{
	return o->state == OWNER_ACTIVE || o->state == OWNER_FROZEN;
}

static unsigned end(struct owner *o)
{
	o->state = OWNER_GONE;
	o->hid = 0;
	return OWNER_DO_TOMBSTONE;
}

static unsigned become_owner(struct owner *o, uint64_t epoch, uint64_t lease_until_ns,
			     uint64_t now_ns)
{
	if (now_ns >= lease_until_ns)
		return end(o);
	o->state = OWNER_ACTIVE;
	o->epoch = epoch;
	o->hid = 0;
	o->lease_until_ns = lease_until_ns;
	return OWNER_DO_ACTIVATE;
}

unsigned owner_on_grant(struct owner *o, uint64_t epoch, uint64_t asked_ns, uint64_t ttl_ns,
			uint64_t now_ns)
{
	if (o->state == OWNER_GONE || owning(o) || epoch <= o->epoch)
		return 0;
	return become_owner(o, epoch, asked_ns + ttl_ns, now_ns);
}

void owner_on_renewed(struct owner *o, uint64_t epoch, uint64_t asked_ns, uint64_t ttl_ns)
{
	/* Answers overtake each other: a lease never gets shorter. */
	if (owning(o) && epoch == o->epoch && asked_ns + ttl_ns > o->lease_until_ns)
		o->lease_until_ns = asked_ns + ttl_ns;
}

static unsigned resume(struct owner *o, uint64_t now_ns)
{
	if (now_ns >= o->lease_until_ns)
		return 0; /* owner_on_time ends it */
	o->state = OWNER_ACTIVE;
	o->hid = 0;
	return OWNER_DO_RESUME;
}

static unsigned owner_view_as_owner(struct owner *o, const struct owner_view *v, uint64_t now_ns)
{
	if (v->epoch < o->epoch)
		return 0; /* read before our own grant */
	if (v->epoch > o->epoch || !v->owned)
		return end(o);
	if (v->state == REGISTER_PREP && v->hid > o->hid_seen) {
		o->hid_seen = v->hid;
		o->hid = v->hid;
		/* A newer attempt began while we were frozen for an older one: same cut, new id. */
		return o->state == OWNER_FROZEN ? OWNER_DO_PREPARE | OWNER_DO_HANDOVER :
						  OWNER_DO_PREPARE;
	}
	if (v->state == REGISTER_OWN && v->hid >= o->hid && o->hid) {
		/* The attempt was called off by someone else. */
		if (o->state == OWNER_FROZEN)
			return resume(o, now_ns);
		o->hid = 0;
	}
	return 0;
}

static unsigned owner_view_as_target(struct owner *o, const struct owner_view *v)
{
	if (v->owned && v->state != REGISTER_FREE && o->state == OWNER_INSTALLED &&
	    v->hid == o->hid && v->epoch > o->epoch)
		/* Committed, and the answer was lost: ask again, it comes with the lease. */
		return OWNER_DO_COMMIT;
	if (v->targeted && v->state == REGISTER_PREP) {
		if (o->state == OWNER_INSTALLED && v->hid == o->hid)
			return OWNER_DO_COMMIT;
		if (v->hid > o->hid_seen) {
			o->hid_seen = v->hid;
			o->state = OWNER_STANDBY;
			o->hid = v->hid;
		}
		return 0;
	}
	if (o->state == OWNER_INSTALLED && v->hid >= o->hid) {
		/* Aborted, or taken over by another. */
		o->state = OWNER_STANDBY;
		o->hid = 0;
	}
	return 0;
}

unsigned owner_on_view(struct owner *o, const struct owner_view *v, uint64_t now_ns)
{
	if (owning(o))
		return owner_view_as_owner(o, v, now_ns);
	if (o->state == OWNER_STANDBY || o->state == OWNER_INSTALLED)
		return owner_view_as_target(o, v);
	return 0;
}

unsigned owner_freeze(struct owner *o, uint64_t deadline_ns, uint64_t now_ns)
{
	if (o->state != OWNER_ACTIVE || !o->hid || now_ns >= o->lease_until_ns)
		return 0;
	o->state = OWNER_FROZEN;
	o->freeze_deadline_ns = deadline_ns;
	return OWNER_DO_HANDOVER;
}

unsigned owner_on_time(struct owner *o, uint64_t now_ns)
{
	if (owning(o) && now_ns >= o->lease_until_ns && o->lease_until_ns)
		return end(o);
	if (o->state == OWNER_FROZEN && now_ns >= o->freeze_deadline_ns) {
		/* Ask again until an answer or the lease decides (M2, M3). */
		o->freeze_deadline_ns = now_ns + o->retry_ns;
		return OWNER_DO_ABORT;
	}
	return 0;
}

unsigned owner_on_abort_result(struct owner *o, uint64_t hid, bool won, uint64_t now_ns)
{
	if (o->state == OWNER_FROZEN && won && hid == o->hid)
		return resume(o, now_ns);
	if (o->state == OWNER_ACTIVE && won && hid == o->hid)
		o->hid = 0;
	return 0; /* lost: the view that comes with the answer says to whom */
}

void owner_on_vacant(struct owner *o)
{
	if (o->state == OWNER_STANDBY) {
		o->state = OWNER_NONE;
		o->hid = 0;
	}
}

unsigned owner_on_installed(struct owner *o, uint64_t hid)
{
	/* hid may run ahead of what the register has told us: the compare-and-swap decides. */
	if ((o->state != OWNER_STANDBY && o->state != OWNER_INSTALLED) || hid < o->hid_seen)
		return 0;
	o->state = OWNER_INSTALLED;
	o->hid = hid;
	o->hid_seen = hid;
	return OWNER_DO_COMMIT;
}

unsigned owner_on_commit_result(struct owner *o, uint64_t hid, bool won, uint64_t epoch,
				uint64_t asked_ns, uint64_t ttl_ns, uint64_t now_ns)
{
	if (o->state != OWNER_INSTALLED || hid != o->hid)
		return 0;
	if (won)
		return become_owner(o, epoch, asked_ns + ttl_ns, now_ns);
	o->state = OWNER_STANDBY;
	o->hid = 0;
	return 0;
}
