/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pure core under random schedules: producers, processes that may own the
 * endpoint, the register, links that break, clocks that drift. Events are
 * those of tests/model; every step takes one that is enabled. After the chaos
 * comes a calm phase in which everything must be delivered.
 *
 *     core_random_test [SCHEDULES [SEED]]
 *
 * Each mutant leaves out one rule; the test fails unless it is caught.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "stream/owner.h"
#include "stream/receiver.h"
#include "stream/register.h"
#include "stream/sender.h"

enum { PROCS = 3, PRODUCERS = 2, QUEUE = 8, WINDOW = 400, BYTES = 100, MESSAGES_MAX = 24 };

enum mutant {
	MUTANT_NONE,
	MUTANT_EARLY_TRIM,    /* M4: acks promise `delivered` as stable */
	MUTANT_UNFREEZE,      /* M2: S resumes on its timer alone */
	MUTANT_NO_LEASE,      /* takeover does not wait for the lease */
	MUTANT_NO_FENCE,      /* M5: the stable cursor is stored without epoch and lease */
	MUTANT_DUAL_ACTIVE,   /* T delivers before the commit */
	MUTANT_FROM_REPLY,    /* M7: the holder counts from the answer */
	MUTANT_CARRY,         /* M6: limits of the old epoch are kept */
	MUTANT_INCREMENT,     /* M6: credits are increments */
	MUTANT_NO_PRODUCER_FENCE, /* an old producer's words still count */
	MUTANT_COORD_COMMIT,  /* M1: the coordinator commits for T */
	MUTANT_NO_ABA,        /* M3: S aborts only the attempt that it froze for */
	MUTANT_COUNT,
};
static const char *const mutant_names[MUTANT_COUNT] = {
	"none", "early-trim", "unfreeze", "no-lease", "no-fence", "dual-active", "from-reply",
	"carry-credit", "increment-credit", "no-producer-fence", "coordinator-commits", "no-aba",
};

enum frame_kind { ATTACH, WELCOME, NACK, DATA, ACK, FREEZE, RESUME, MOVED };
struct frame {
	uint8_t kind;
	uint64_t epoch, pe, a, b, c;
};
struct queue {
	struct frame f[QUEUE];
	unsigned head, len;
};

enum op { OP_NONE, OP_ACQUIRE, OP_RENEW, OP_COMMIT, OP_ABORT, OP_STORE, OP_READ };
struct request {
	enum op op;
	uint64_t epoch, hid, cur;
	uint64_t asked;
};
struct reply {
	enum op op;
	int rc;
	uint64_t epoch, hid, asked, cur;
	bool recover, valid;
	struct owner_view view;
};

struct proc {
	bool up;
	uint64_t instance;
	int64_t drift_ppm;
	struct owner owner;
	struct receiver rx;
	uint64_t state;          /* application state: last seq it contains */
	uint64_t arrived_max;
	struct queue in[PRODUCERS], out[PRODUCERS];
	bool attached_from[PRODUCERS];
	bool pending_attach[PRODUCERS];
	struct frame pending[PRODUCERS];
	struct request req;
	struct reply rep;
	struct { bool valid; uint64_t hid, cut, st, pe; } hand;
	bool prepare;
};
struct producer {
	bool up;
	struct sender tx;
	int to;                  /* process its link goes to, -1 none */
	bool attach_sent;
	int64_t drift_ppm;
	uint64_t keep_from;      /* oldest message it still has */
	uint64_t carried;        /* MUTANT_CARRY: the old epoch's limit */
};
struct world {
	struct rng rng;
	enum mutant mutant;
	uint64_t now;
	struct register_terms terms;
	struct register_record reg;
	uint64_t stored;         /* stable cursor in the store */
	struct proc p[PROCS];
	struct producer w[PRODUCERS];
	int live_producer;
	uint64_t produced_max;
	uint64_t lineage;        /* what the surviving state contains */
	uint64_t last_epoch;
	uint64_t next_instance;
	uint64_t commits[64];
	uint64_t reg_seen;
	bool calm;
	bool register_up;
	uint64_t deliveries, moves, takeovers, aborts;
	const char *violation;
};

static void violate(struct world *w, const char *what)
{
	if (!w->violation)
		w->violation = what;
}

static uint64_t below(struct world *w, uint64_t n)
{
	return rng_below(&w->rng, n);
}

static uint64_t local(const struct world *w, int64_t ppm)
{
	return (uint64_t)((int64_t)w->now + (int64_t)w->now * ppm / 1000000);
}

static bool push(struct queue *q, struct frame f)
{
	if (q->len == QUEUE)
		return false;
	q->f[(q->head + q->len++) % QUEUE] = f;
	return true;
}

static bool pop(struct queue *q, struct frame *ret)
{
	if (!q->len)
		return false;
	*ret = q->f[q->head];
	q->head = (q->head + 1) % QUEUE;
	q->len--;
	return true;
}

static void cut_link(struct world *w, int x, int n)
{
	struct proc *p = &w->p[x];

	memset(&p->in[n], 0, sizeof(p->in[n]));
	memset(&p->out[n], 0, sizeof(p->out[n]));
	p->pending_attach[n] = false;
	if (p->attached_from[n])
		p->rx.attached = false;
	p->attached_from[n] = false;
	if (w->w[n].to == x) {
		w->w[n].to = -1;
		w->w[n].attach_sent = false;
		sender_on_detach(&w->w[n].tx);
	}
}

static void start_proc(struct world *w, int x, bool standby)
{
	struct proc *p = &w->p[x];
	int64_t drift = p->drift_ppm;

	memset(p, 0, sizeof(*p));
	p->up = true;
	p->drift_ppm = drift;
	p->instance = ++w->next_instance;
	owner_init(&p->owner, p->instance, standby);
	p->owner.retry_ns = 50;
	receiver_init(&p->rx, WINDOW);
}

static void welcome(struct world *w, struct proc *p, int n, const struct frame *f)
{
	uint64_t next = 0, limit = 0;
	uint64_t queued = (p->rx.arrived - p->rx.cur) * BYTES;

	(void)w;
	switch (receiver_on_attach(&p->rx, f->pe, f->a, queued, &next, &limit)) {
	case RECEIVER_NEW:
		for (int i = 0; i < PRODUCERS; i++)
			p->attached_from[i] = i == n;
		push(&p->out[n], (struct frame){ WELCOME, p->owner.epoch, 0, next, limit, 0 });
		break;
	case RECEIVER_FENCED:
		push(&p->out[n], (struct frame){ NACK, p->owner.epoch, 1, 0, 0, 0 });
		break;
	default:
		violate(w, "a message that the owner needs is no longer kept");
	}
}

static void act(struct world *w, int x, unsigned todo)
{
	struct proc *p = &w->p[x];

	if (todo & OWNER_DO_PREPARE)
		p->prepare = true;
	if (todo & OWNER_DO_HANDOVER)
		for (int t = 0; t < PROCS; t++)
			if (w->p[t].up && w->p[t].instance == w->reg.target && t != x) {
				w->p[t].hand.valid = true;
				w->p[t].hand.hid = p->owner.hid;
				w->p[t].hand.cut = p->rx.cur;
				w->p[t].hand.st = p->rx.stable;
				w->p[t].hand.pe = p->rx.producer_epoch;
			}
	if (todo & OWNER_DO_COMMIT && !p->req.op)
		p->req = (struct request){ OP_COMMIT, 0, p->owner.hid, 0, local(w, p->drift_ppm) };
	if (todo & OWNER_DO_ABORT && !p->req.op)
		p->req = (struct request){ OP_ABORT, 0, p->owner.hid, 0, local(w, p->drift_ppm) };
	if (todo & OWNER_DO_RESUME)
		for (int n = 0; n < PRODUCERS; n++)
			if (p->attached_from[n])
				push(&p->out[n], (struct frame){ RESUME, p->owner.epoch, 0, 0, 0, 0 });
	if (todo & OWNER_DO_ACTIVATE) {
		if (p->state != w->lineage)
			violate(w, "activated without the state that survived");
		for (int n = 0; n < PRODUCERS; n++)
			if (p->pending_attach[n] && p->pending[n].epoch == p->owner.epoch) {
				p->pending_attach[n] = false;
				welcome(w, p, n, &p->pending[n]);
			}
	}
	if (todo & OWNER_DO_TOMBSTONE)
		for (int n = 0; n < PRODUCERS; n++)
			push(&p->out[n], (struct frame){ MOVED, p->owner.epoch + 1, 0, 0, 0, 0 });
}

static void deliver(struct world *w, int x)
{
	struct proc *p = &w->p[x];
	uint64_t t = local(w, p->drift_ppm);

	if (!owner_may_deliver(&p->owner, t))
		return;
	if (p->rx.cur >= p->rx.arrived)
		return;
	for (int y = 0; y < PROCS; y++)
		if (y != x && w->p[y].up &&
		    owner_may_deliver(&w->p[y].owner, local(w, w->p[y].drift_ppm)))
			violate(w, "two processes may deliver at once");
	if (p->owner.epoch < w->last_epoch)
		violate(w, "delivered in an old epoch after a new one");
	if (p->rx.cur + 1 != p->state + 1)
		violate(w, "cursor and state differ");
	if (p->state != w->lineage)
		violate(w, "lost or doubled: the state is not the one that survived");
	receiver_take(&p->rx, BYTES);
	p->state++;
	w->lineage = p->state;
	w->last_epoch = p->owner.epoch;
	w->deliveries++;
}

static void take_frame(struct world *w, int x, int n)
{
	struct proc *p = &w->p[x];
	struct frame f;
	uint32_t skip;

	if (!pop(&p->in[n], &f))
		return;
	if (f.kind == ATTACH) {
		bool active = p->owner.state == OWNER_ACTIVE || p->owner.state == OWNER_FROZEN;

		if (active && f.epoch == p->owner.epoch) {
			welcome(w, p, n, &f);
			if (p->owner.state == OWNER_FROZEN)
				push(&p->out[n], (struct frame){ FREEZE, f.epoch, 0, 0, 0, 0 });
		} else if (!active && p->owner.state != OWNER_GONE && f.epoch > p->owner.epoch) {
			p->pending_attach[n] = true;
			p->pending[n] = f;
		} else {
			push(&p->out[n], (struct frame){ NACK, p->owner.epoch, 0, 0, 0, 0 });
		}
		return;
	}
	if (f.kind != DATA)
		return;
	if (!p->attached_from[n] && w->mutant != MUTANT_NO_PRODUCER_FENCE)
		return; /* fenced, or from before the attach */
	if (f.epoch != p->owner.epoch)
		return;
	switch (receiver_on_run(&p->rx, f.a, 1, BYTES, &skip)) {
	case RECEIVER_AGAIN:
		receiver_skip(&p->rx, BYTES);
		break;
	case RECEIVER_OVERRUN:
		violate(w, "sent beyond the credit");
		break;
	case RECEIVER_GAP:
		violate(w, "gap within one attach");
		break;
	default:
		/* Both producers regenerate the same text, so only the pe tells. */
		if (f.pe < p->rx.producer_epoch)
			violate(w, "a fenced producer was heard");
	}
	if ((p->rx.arrived - p->rx.cur) * BYTES > WINDOW)
		violate(w, "buffer overflow");
}

static void send_ack(struct world *w, int x)
{
	struct proc *p = &w->p[x];
	uint64_t st = p->rx.stable;
	uint64_t limit = receiver_limit(&p->rx);

	if (p->owner.state != OWNER_ACTIVE && p->owner.state != OWNER_FROZEN)
		return;
	if (!receiver_ack_pending(&p->rx) && !(w->mutant == MUTANT_INCREMENT && below(w, 4) == 0))
		return;
	if (w->mutant == MUTANT_EARLY_TRIM)
		st = p->rx.cur;
	for (int n = 0; n < PRODUCERS; n++)
		if (p->attached_from[n] &&
		    push(&p->out[n], (struct frame){ ACK, p->owner.epoch, 0, p->rx.cur, st, limit })) {
			p->rx.acked = p->rx.cur;
			p->rx.acked_stable = p->rx.stable;
			if (limit > p->rx.granted)
				p->rx.granted = limit;
		}
}

static void ask(struct world *w, int x)
{
	struct proc *p = &w->p[x];
	uint64_t t = local(w, p->drift_ppm);
	unsigned pick = (unsigned)below(w, 4);

	if (p->req.op)
		return;
	if (w->register_up && w->now >= w->reg.lease_end_ns && below(w, 4) == 0)
		owner_on_vacant(&p->owner);
	if (p->owner.state == OWNER_NONE) {
		p->req = (struct request){ OP_ACQUIRE, 0, 0, 0, t };
	} else if (p->owner.state == OWNER_ACTIVE || p->owner.state == OWNER_FROZEN) {
		if (pick == 0 && p->rx.cur > p->rx.stable)
			p->req = (struct request){ OP_STORE, p->owner.epoch, 0, p->rx.cur, t };
		else
			p->req = (struct request){ OP_RENEW, p->owner.epoch, 0, 0, t };
	} else if (p->owner.state != OWNER_GONE) {
		p->req = (struct request){ OP_READ, 0, 0, 0, t };
	}
}

static struct owner_view view_for(const struct world *w, const struct proc *p)
{
	return (struct owner_view){ w->reg.state, w->reg.epoch, w->reg.hid,
				    w->reg.owner == p->instance, w->reg.target == p->instance };
}

static void note_epoch(struct world *w)
{
	if (w->reg.epoch < w->reg_seen)
		violate(w, "epochs went back");
	w->reg_seen = w->reg.epoch;
}

static void answer(struct world *w, int x)
{
	struct proc *p = &w->p[x];
	struct request q = p->req;
	struct reply r = { .op = q.op, .hid = q.hid, .asked = q.asked, .cur = q.cur, .valid = true };

	uint64_t epoch;

	if (!q.op || p->rep.valid || !w->register_up)
		return;
	switch (q.op) {
	case OP_ACQUIRE:
		if (w->mutant == MUTANT_NO_LEASE && w->reg.owner != p->instance)
			w->reg.lease_end_ns = 0;
		epoch = w->reg.epoch;
		r.rc = register_acquire(&w->reg, &w->terms, p->instance, w->now, &r.recover);
		if (r.rc == 0 && w->reg.epoch > epoch) {
			/* The endpoint's state is what the store has, also after a release. */
			if (w->lineage > w->stored)
				w->takeovers++;
			w->lineage = w->stored;
			w->last_epoch = w->reg.epoch;
		}
		r.cur = w->stored;
		break;
	case OP_RENEW:
		r.rc = register_renew(&w->reg, &w->terms, p->instance, q.epoch, w->now);
		break;
	case OP_COMMIT:
		epoch = w->reg.epoch;
		r.rc = register_commit(&w->reg, &w->terms, p->instance, q.hid, w->now);
		if (r.rc == 0 && w->reg.epoch > epoch) {
			w->moves++;
			if (w->reg.epoch < 64 && w->commits[w->reg.epoch]++)
				violate(w, "two commits in one epoch");
			w->last_epoch = w->reg.epoch;
		}
		break;
	case OP_ABORT:
		if (w->mutant == MUTANT_UNFREEZE)
			break;
		r.rc = register_abort(&w->reg, q.hid);
		w->aborts += r.rc == 0;
		break;
	case OP_STORE:
		if (w->mutant != MUTANT_NO_FENCE &&
		    (w->reg.owner != p->instance || w->reg.epoch != q.epoch)) {
			r.rc = -1;
			break;
		}
		if (q.cur > w->lineage)
			violate(w, "the stable cursor is ahead of the state that survived");
		w->stored = q.cur;
		break;
	default:
		break;
	}
	note_epoch(w);
	r.epoch = w->reg.epoch;
	r.view = view_for(w, p);
	p->rep = r;
	p->req.op = OP_NONE;
}

static void hear(struct world *w, int x)
{
	struct proc *p = &w->p[x];
	struct reply r = p->rep;
	uint64_t t = local(w, p->drift_ppm);
	uint64_t asked = w->mutant == MUTANT_FROM_REPLY ? t : r.asked;
	uint64_t ttl = w->terms.ttl_ns;

	if (!r.valid)
		return;
	p->rep.valid = false;
	switch (r.op) {
	case OP_ACQUIRE:
		if (r.rc == 0 && p->owner.state == OWNER_NONE) {
			receiver_init(&p->rx, WINDOW);
			receiver_restore(&p->rx, 0, r.cur, r.cur);
			p->state = r.cur;
			act(w, x, owner_on_grant(&p->owner, r.epoch, asked, ttl, t));
		}
		return;
	case OP_RENEW:
		if (r.rc == 0)
			owner_on_renewed(&p->owner, r.view.epoch, asked, ttl);
		break;
	case OP_COMMIT:
		act(w, x, owner_on_commit_result(&p->owner, r.hid, r.rc == 0, r.epoch, asked, ttl,
						 t));
		break;
	case OP_ABORT:
		act(w, x, owner_on_abort_result(&p->owner, r.hid, r.rc == 0, t));
		break;
	case OP_STORE:
		if (r.rc == 0)
			receiver_set_stable(&p->rx, r.cur);
		break;
	default:
		break;
	}
	if (w->mutant == MUTANT_NO_ABA && p->owner.state == OWNER_FROZEN && r.view.hid > p->owner.hid)
		return;
	act(w, x, owner_on_view(&p->owner, &r.view, t));
}

static void target_step(struct world *w, int x)
{
	struct proc *p = &w->p[x];

	if (!p->hand.valid)
		return;
	p->hand.valid = false;
	if (p->owner.state != OWNER_STANDBY && p->owner.state != OWNER_INSTALLED)
		return;
	unsigned todo = owner_on_installed(&p->owner, p->hand.hid);
	if (!todo)
		return;
	receiver_init(&p->rx, WINDOW);
	receiver_restore(&p->rx, p->hand.pe, p->hand.cut, p->hand.st);
	p->state = p->hand.cut;
	if (w->mutant == MUTANT_DUAL_ACTIVE)
		todo |= owner_on_commit_result(&p->owner, p->hand.hid, true, w->reg.epoch + 1,
					       local(w, p->drift_ppm), w->terms.ttl_ns,
					       local(w, p->drift_ppm));
	act(w, x, todo);
}

static void freeze(struct world *w, int x)
{
	struct proc *p = &w->p[x];
	uint64_t t = local(w, p->drift_ppm);

	if (!p->prepare)
		return;
	unsigned todo = owner_freeze(&p->owner, t + 400, t);
	p->prepare = false;
	if (!todo)
		return;
	for (int n = 0; n < PRODUCERS; n++)
		if (p->attached_from[n])
			push(&p->out[n], (struct frame){ FREEZE, p->owner.epoch, 0, p->rx.cur, 0, 0 });
	act(w, x, todo);
}

static void producer_send(struct world *w, int n)
{
	struct producer *s = &w->w[n];
	uint64_t t = local(w, s->drift_ppm);

	if (s->to < 0)
		return;
	if (s->tx.offset + BYTES > s->tx.limit || !sender_may_send(&s->tx, t))
		return;
	if (s->tx.next < s->keep_from) {
		violate(w, "asked for a message that is no longer kept");
		return;
	}
	if (push(&w->p[s->to].in[n],
		 (struct frame){ DATA, s->tx.epoch, s->tx.producer_epoch, s->tx.next, 0, 0 })) {
		s->tx.next++;
		s->tx.offset += BYTES;
	}
}

static void producer_hear(struct world *w, int n)
{
	struct producer *s = &w->w[n];
	struct frame f;
	enum sender_verdict v = SENDER_OK;

	if (s->to < 0 || !pop(&w->p[s->to].out[n], &f))
		return;
	switch (f.kind) {
	case WELCOME:
		v = sender_on_welcome(&s->tx, f.epoch, f.a, f.b);
		if (w->mutant == MUTANT_CARRY && s->carried > s->tx.limit)
			s->tx.limit = s->carried;
		break;
	case ACK:
		if (w->mutant == MUTANT_INCREMENT)
			f.c = s->tx.limit + BYTES;
		v = sender_on_ack(&s->tx, f.epoch, f.a, f.b, f.c);
		s->keep_from = s->tx.stable + 1;
		s->carried = s->tx.limit;
		break;
	case FREEZE:
		sender_on_freeze(&s->tx, f.epoch);
		break;
	case RESUME:
		sender_on_resume(&s->tx, f.epoch);
		break;
	case NACK:
		if (f.pe) {
			s->up = false; /* fenced: it learns that another took its place */
			cut_link(w, s->to, n);
			break;
		}
		/* fall through */
	case MOVED:
		cut_link(w, s->to, n);
		s->tx.route_until_ns = 0;
		break;
	default:
		break;
	}
	if (v == SENDER_LOST)
		violate(w, "SENDER_LOST: the owner needs what is no longer kept");
}

static void producer_route(struct world *w, int n)
{
	struct producer *s = &w->w[n];
	int x;

	if (s->to >= 0 && (s->tx.attached || s->attach_sent)) {
		/* An owner's word under its lease renews the route. */
		struct proc *p = &w->p[s->to];

		if (p->up && p->owner.epoch == s->tx.epoch && w->register_up &&
		    w->reg.owner == p->instance)
			sender_on_beat(&s->tx, s->tx.epoch, local(w, s->drift_ppm) + w->terms.ttl_ns);
		if (local(w, s->drift_ppm) >= s->tx.route_until_ns)
			cut_link(w, s->to, n);
		return;
	}
	if (!w->register_up || w->reg.state == REGISTER_FREE)
		return;
	sender_on_route(&s->tx, w->reg.epoch, local(w, s->drift_ppm) + w->terms.ttl_ns);
	for (x = 0; x < PROCS; x++)
		if (w->p[x].up && w->p[x].instance == w->reg.owner)
			break;
	if (x == PROCS)
		return;
	if (push(&w->p[x].in[n], (struct frame){ ATTACH, s->tx.epoch, s->tx.producer_epoch,
						 s->keep_from, 0, 0 })) {
		s->to = x;
		s->attach_sent = true;
	}
}

static void producer_make(struct world *w, int n)
{
	struct producer *s = &w->w[n];

	if (n != w->live_producer || s->tx.last >= MESSAGES_MAX)
		return;
	s->tx.last++;
	if (s->tx.last > w->produced_max)
		w->produced_max = s->tx.last;
}

/* The producer's machine is lost; its next incarnation starts from a checkpoint
 * between what is stable and what it had made. The old one may live on. */
static void producer_restart(struct world *w)
{
	int old = w->live_producer, n = (old + 1) % PRODUCERS;
	struct producer *a = &w->w[old], *b = &w->w[n];

	if (b->up && b->to >= 0)
		cut_link(w, b->to, n);
	for (int x = 0; x < PROCS; x++)
		cut_link(w, x, n);
	uint64_t at = a->tx.stable + below(w, a->tx.last - a->tx.stable + 1);
	b->up = true;
	b->to = -1;
	b->attach_sent = false;
	sender_init(&b->tx, a->tx.producer_epoch + 1, a->tx.stable, at);
	b->keep_from = a->tx.stable + 1;
	w->live_producer = n;
}

static void proc_step(struct world *w, int x)
{
	struct proc *p = &w->p[x];

	if (!p->up) {
		if (below(w, 8) == 0 || w->calm)
			start_proc(w, x, below(w, 2) && !w->calm);
		return;
	}
	switch (below(w, 10)) {
	case 0: case 1:
		take_frame(w, x, (int)below(w, PRODUCERS));
		break;
	case 2: case 3:
		deliver(w, x);
		break;
	case 4:
		send_ack(w, x);
		break;
	case 5:
		ask(w, x);
		break;
	case 6:
		answer(w, x);
		break;
	case 7:
		hear(w, x);
		break;
	case 8: {
		unsigned todo = owner_on_time(&p->owner, local(w, p->drift_ppm));

		if (w->mutant == MUTANT_UNFREEZE && todo & OWNER_DO_ABORT) {
			todo = owner_on_abort_result(&p->owner, p->owner.hid, true,
						     local(w, p->drift_ppm));
		}
		act(w, x, todo);
		target_step(w, x);
		if (p->owner.state == OWNER_GONE && below(w, 4) == 0) {
			for (int n = 0; n < PRODUCERS; n++)
				cut_link(w, x, n);
			p->up = false;
		}
		break;
	}
	default:
		freeze(w, x);
		target_step(w, x);
	}
}

static void coordinator_step(struct world *w)
{
	unsigned t = (unsigned)below(w, PROCS);

	if (!w->register_up)
		return;
	if (w->reg.state == REGISTER_OWN && w->p[t].up && w->p[t].owner.state == OWNER_STANDBY)
		(void)register_prepare(&w->reg, w->p[t].instance);
	else if (w->reg.state == REGISTER_PREP && w->mutant == MUTANT_COORD_COMMIT)
		(void)register_commit(&w->reg, &w->terms, w->reg.target, w->reg.hid, w->now);
	else if (w->reg.state == REGISTER_PREP && below(w, 4) == 0)
		(void)register_abort(&w->reg, w->reg.hid);
}

static void chaos(struct world *w)
{
	int x = (int)below(w, PROCS);

	switch (below(w, 10)) {
	case 0:
		for (int n = 0; n < PRODUCERS; n++)
			cut_link(w, x, n);
		w->p[x].up = false;
		break;
	case 1: case 2:
		cut_link(w, x, (int)below(w, PRODUCERS));
		break;
	case 3:
		producer_restart(w);
		break;
	case 4:
		/* The register goes away; questions and answers under way are lost. */
		w->register_up = !w->register_up;
		if (w->register_up) {
			w->reg.lease_end_ns = w->now + register_lease_ns(&w->terms);
			for (int i = 0; i < PROCS; i++)
				w->p[i].rep.valid = false;
		}
		break;
	case 5:
		w->now += below(w, w->terms.ttl_ns * 2);
		break;
	default:
		w->now += below(w, 200);
	}
}

static void step(struct world *w)
{
	w->now += 1 + below(w, 4);
	switch (below(w, 9)) {
	case 0: case 1: case 2: case 3: case 4:
		proc_step(w, (int)below(w, PROCS));
		break;
	case 5: case 6: case 7: {
		int n = (int)below(w, PRODUCERS);

		if (!w->w[n].up)
			break;
		switch (below(w, 4)) {
		case 0:
			producer_make(w, n);
			break;
		case 1:
			producer_hear(w, n);
			break;
		case 2:
			producer_route(w, n);
			break;
		default:
			producer_send(w, n);
		}
		break;
	}
	default:
		if (w->calm)
			break;
		if (below(w, 6) == 0)
			chaos(w);
		else
			coordinator_step(w);
	}
}

static bool done(const struct world *w)
{
	return w->w[w->live_producer].tx.last >= w->produced_max && w->lineage >= w->produced_max;
}

static void run(struct world *w, uint64_t seed, enum mutant m)
{
	memset(w, 0, sizeof(*w));
	rng_init(&w->rng, seed);
	w->mutant = m;
	w->terms = (struct register_terms){ .ttl_ns = 3000, .margin_ns = 10, .drift_ppm = 45000 };
	w->now = 1000;
	w->register_up = true;
	for (int x = 0; x < PROCS; x++) {
		w->p[x].drift_ppm = (int64_t)below(w, 40001) - 20000;
		start_proc(w, x, x != 0);
	}
	for (int n = 0; n < PRODUCERS; n++) {
		w->w[n].to = -1;
		w->w[n].drift_ppm = (int64_t)below(w, 40001) - 20000;
	}
	w->w[0].up = true;
	w->w[0].keep_from = 1;
	sender_init(&w->w[0].tx, 1, 0, 0);
	unsigned steps = 200 + (unsigned)below(w, 400);

	for (unsigned i = 0; i < steps && !w->violation; i++)
		step(w);
	w->calm = true;
	w->register_up = true;
	for (unsigned i = 0; i < 40000 && !w->violation && !done(w); i++)
		step(w);
	if (!w->violation && !done(w))
		violate(w, "nothing moves any more: not all was delivered");
}

int main(int argc, char **argv)
{
	uint64_t schedules = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	static struct world w;
	uint64_t deliveries = 0, moves = 0, takeovers = 0, aborts = 0, failed = 0;
	uint64_t began = clock_boot_ns();

	for (uint64_t i = 0; i < schedules && failed < 5; i++) {
		run(&w, seed + i, MUTANT_NONE);
		deliveries += w.deliveries;
		moves += w.moves;
		takeovers += w.takeovers;
		aborts += w.aborts;
		if (w.violation) {
			printf("seed %" PRIu64 ": %s\n", seed + i, w.violation);
			failed++;
		}
	}
	printf("%" PRIu64 " schedules from seed %" PRIu64 " in %.1f s: %" PRIu64 " deliveries, %" PRIu64
	       " moves, %" PRIu64 " takeovers with rollback, %" PRIu64 " aborts, %" PRIu64 " failed\n",
	       schedules, seed, (double)(clock_boot_ns() - began) / NS_PER_S, deliveries, moves,
	       takeovers, aborts, failed);
	for (int m = 1; m < MUTANT_COUNT; m++) {
		uint64_t i = 0;

		for (w.violation = NULL; i < 200000 && !w.violation; i++)
			run(&w, seed + i, (enum mutant)m);
		if (w.violation) {
			printf("mutant %-20s caught after %6" PRIu64 ": %s\n", mutant_names[m], i,
			       w.violation);
		} else {
			printf("mutant %-20s NOT caught\n", mutant_names[m]);
			failed++;
		}
	}
	return failed ? 1 : 0;
}
