/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/register.h"

#include <errno.h>

uint64_t register_lease_ns(const struct register_terms *t)
{
	/* Two steps: the product stays below 2^64 for any lease under a month, and a lease of
	 * microseconds (the random test's) keeps its allowance, rounded up. */
	return t->ttl_ns + (t->ttl_ns / 1000 * t->drift_ppm + 999) / 1000 + t->margin_ns;
}

static void grant(struct register_record *r, const struct register_terms *t, uint64_t who,
		  uint64_t now_ns)
{
	r->state = REGISTER_OWN;
	r->epoch++;
	r->owner = who;
	r->target = 0;
	r->lease_end_ns = now_ns + register_lease_ns(t);
}

int register_acquire(struct register_record *r, const struct register_terms *t, uint64_t who,
		     uint64_t now_ns, bool *ret_recover)
{
	if (who == 0)
		return -EINVAL;
	/* Asked again under its lease: the same grant. After the lease it starts anew like anybody: it may
	 * not know that it owned (a commit whose answer was lost), and has what the store has. */
	if (r->state != REGISTER_FREE && r->owner == who && now_ns < r->lease_end_ns) {
		r->lease_end_ns = now_ns + register_lease_ns(t);
		*ret_recover = false;
		return 0;
	}
	if (r->state != REGISTER_FREE && now_ns < r->lease_end_ns)
		return -EAGAIN;
	*ret_recover = r->state != REGISTER_FREE;
	grant(r, t, who, now_ns);
	return 0;
}

int register_renew(struct register_record *r, const struct register_terms *t, uint64_t who,
		   uint64_t epoch, uint64_t now_ns)
{
	if (r->state == REGISTER_FREE || r->owner != who || r->epoch != epoch)
		return -ESTALE;
	r->lease_end_ns = now_ns + register_lease_ns(t);
	return 0;
}

int register_prepare(struct register_record *r, uint64_t target)
{
	if (r->state == REGISTER_PREP)
		return -EBUSY;
	if (r->state == REGISTER_FREE)
		return -ENOENT;
	if (target == 0 || target == r->owner)
		return -EINVAL;
	r->state = REGISTER_PREP;
	r->target = target;
	r->hid++;
	return 0;
}

int register_commit(struct register_record *r, const struct register_terms *t, uint64_t who,
		    uint64_t hid, uint64_t now_ns)
{
	if (r->state == REGISTER_OWN && r->owner == who && r->hid == hid) {
		r->lease_end_ns = now_ns + register_lease_ns(t);
		return 0;
	}
	if (r->state != REGISTER_PREP || r->hid != hid || r->target != who)
		return -ESTALE;
	grant(r, t, who, now_ns);
	return 0;
}

int register_abort(struct register_record *r, uint64_t hid)
{
	if (r->state != REGISTER_PREP || r->hid != hid)
		return -ESTALE;
	r->state = REGISTER_OWN;
	r->target = 0;
	return 0;
}

int register_release(struct register_record *r, uint64_t who, uint64_t epoch)
{
	if (r->state == REGISTER_FREE || r->owner != who || r->epoch != epoch)
		return -ESTALE;
	r->state = REGISTER_FREE;
	r->owner = 0;
	r->target = 0;
	return 0;
}
