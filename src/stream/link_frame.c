/* SPDX-License-Identifier: Apache-2.0 */
/* What each frame means, once decoded. Both sides of a link may send to the other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream/node_internal.h"

enum { WAITING_MAX = 4096 };

static void refuse(struct link *l, const struct stream_frame *f, uint32_t code)
{
	struct stream_frame a = { .type = STREAM_FRAME_NACK, .handle = f->handle,
				  .epoch = l->node->owner.epoch, .code = code };

	l->node->stats.stale_refused++;
	link_send(l, &a);
}

static bool ticket_fits(struct link *l, const struct stream_frame *f, uint64_t epoch)
{
	struct reclaim_node *n = l->node;
	const uint8_t *key = n->key_epoch == epoch      ? n->key :
			     n->key_next_epoch == epoch ? n->key_next :
							  NULL;
	struct seal_ticket t;

	if (!key || seal_ticket_open(key, n->name, epoch, f->blob, f->blob_len, &t) < 0)
		return false;
	bool ok = t.producer_epoch == f->producer_epoch && !strcmp(t.producer, f->producer);

	if (ok && l->incoming) {
		/* The registry vouches for who is at the other end: see link_to(). */
		memcpy(l->peer, t.producer, sizeof(l->peer));
		l->peer_epoch = t.producer_epoch;
	}

	seal_wipe(&t, sizeof(t));
	return ok;
}

static void on_attach(struct link *l, const struct stream_frame *f)
{
	struct reclaim_node *n = l->node;
	bool owning = n->owner.state == OWNER_ACTIVE || n->owner.state == OWNER_FROZEN;

	if (strcmp(f->name, n->name)) {
		refuse(l, f, STREAM_NACK_UNKNOWN);
	} else if (n->owner.state == OWNER_GONE || (owning && f->epoch < n->owner.epoch)) {
		refuse(l, f, STREAM_NACK_MOVED);
	} else if (!ticket_fits(l, f, f->epoch)) {
		/* Also an epoch whose key has not reached us yet: the sender comes again. */
		refuse(l, f, STREAM_NACK_REFUSED);
	} else if (owning && f->epoch == n->owner.epoch) {
		in_attach(l, f);
	} else if (l->waiting.count < WAITING_MAX) {
		struct stream_frame_saved *w = malloc(sizeof(*w));

		if (!w || VEC_PUSH(&l->waiting, w) < 0) {
			free(w);
			link_close(l, "no memory");
			return;
		}
		w->f = *f;
		memcpy(w->ticket, f->blob, f->blob_len);
		w->f.blob = w->ticket;
		move_attached_ahead(n);
	} else {
		refuse(l, f, STREAM_NACK_UNKNOWN);
	}
}

static void on_sender_abort(struct link *l, const struct stream_frame *f)
{
	struct in *in = f->handle < l->ins.count ? l->ins.data[f->handle] : NULL;
	struct reclaim_node *n = l->node;
	uint64_t seq;

	if (!in || in->link != l)
		return;
	seq = in->rx.cur;
	n->stats.queued_bytes -= in->queued;
	in_detach(in);
	/* What waits in the queue is of an old generation now; the number may start anew. */
	in->generation++;
	in->queued = 0;
	uint64_t pe = in->rx.producer_epoch;
	receiver_init(&in->rx, in->rx.window);
	in->rx.producer_epoch = pe;
	in->frag_have = 0;
	in_event(in, RECLAIM_ABORTED, seq, f->code);
}

static void on_close(struct link *l, const struct stream_frame *f)
{
	struct in *in = f->handle < l->ins.count ? l->ins.data[f->handle] : NULL;

	if (!in || in->link != l || f->epoch != l->node->owner.epoch || f->seq > in->rx.arrived)
		return;
	if (in->rx.cur == f->seq) {
		in_event(in, RECLAIM_CLOSED, f->seq, 0);
	} else {
		in->close_known = true;
		in->close_seq = f->seq;
	}
}

static void on_ack(struct reclaim_stream *o, const struct stream_frame *f)
{
	struct reclaim_node *n = o->node;
	uint64_t stable = o->tx.stable, delivered = o->tx.delivered;

	if (sender_on_ack(&o->tx, f->epoch, f->seq, f->stable, f->limit) != SENDER_OK)
		return;
	if (o->tx.stable > stable)
		out_trim(o, o->tx.stable);
	if ((o->tx.stable > stable || o->tx.delivered > delivered) && n->cond_waiters)
		node_wake(n);
	if (o->cursor)
		link_ready(o->link, o);
}

static void on_nack(struct link *l, struct reclaim_stream *o, const struct stream_frame *f)
{
	struct reclaim_node *n = o->node;

	n->stats.stale_refused++;
	if (o->ahead.link == l && o->ahead.handle == f->handle) {
		out_drop_ahead(o);
		return;
	}
	if (o->link != l || o->handle != f->handle)
		return;
	node_event(n, stream_nack_name(f->code), o->to, f->epoch, o->tx.next);
	switch (f->code) {
	case STREAM_NACK_STALE:
		out_fail(o, -ESTALE);
		break;
	case STREAM_NACK_LOST:
		out_fail(o, -ENODATA);
		break;
	default:
		out_detach(o, true);
	}
}

static void on_prepare(struct link *l, const struct stream_frame *f)
{
	for (size_t i = 0; i < l->outs.count; i++) {
		struct reclaim_stream *o = l->outs.data[i];

		if (o && o->link == l && !strcmp(o->to, f->name) && o->tx.epoch + 1 == f->epoch &&
		    !o->ahead.asked) {
			o->ahead.asked = true;
			o->ahead.epoch = f->epoch;
			reg_route(o, true);
		}
	}
}

static void on_beat(struct link *l, const struct stream_frame *f)
{
	for (size_t i = 0; i < l->outs.count; i++) {
		struct reclaim_stream *o = l->outs.data[i];

		if (o && o->link == l)
			sender_on_beat(&o->tx, f->epoch, l->node->now_ns + f->limit * NS_PER_MS);
	}
}

/* What an owner says about one of our streams. */
static void about_output(struct link *l, const struct stream_frame *f)
{
	struct reclaim_stream *o = f->handle < l->outs.count ? l->outs.data[f->handle] : NULL;

	if (!o) /* crossed with our own abort */
		return;
	if (f->type == STREAM_FRAME_WELCOME) {
		out_on_welcome(o, f, l);
		return;
	}
	if (f->type == STREAM_FRAME_NACK) {
		on_nack(l, o, f);
		return;
	}
	if (o->link != l || o->handle != f->handle)
		return;
	switch (f->type) {
	case STREAM_FRAME_ACK:
		on_ack(o, f);
		break;
	case STREAM_FRAME_FREEZE:
		sender_on_freeze(&o->tx, f->epoch);
		break;
	case STREAM_FRAME_RESUME:
		sender_on_resume(&o->tx, f->epoch);
		out_drop_ahead(o);
		out_pump(o);
		break;
	default:
		o->abort_code = f->code;
		out_fail(o, -EPIPE);
	}
}

void link_frame(struct link *l, const struct stream_frame *f)
{
	switch (f->type) {
	case STREAM_FRAME_HELLO:
		if (f->code != STREAM_PROTOCOL || l->greeted || !l->incoming)
			link_close(l, "peer speaks another version");
		l->greeted = true;
		break;
	case STREAM_FRAME_BEAT:
		on_beat(l, f);
		break;
	/* from a sender */
	case STREAM_FRAME_ATTACH:
		on_attach(l, f);
		break;
	case STREAM_FRAME_CLOSE:
		on_close(l, f);
		break;
	/* from an owner */
	case STREAM_FRAME_PREPARE:
		on_prepare(l, f);
		break;
	case STREAM_FRAME_WELCOME:
	case STREAM_FRAME_NACK:
	case STREAM_FRAME_ACK:
	case STREAM_FRAME_FREEZE:
	case STREAM_FRAME_RESUME:
		about_output(l, f);
		break;
	/* from either: the class says of which side's stream */
	case STREAM_FRAME_ABORT:
		if (f->cls == STREAM_ABORT_BY_SENDER)
			on_sender_abort(l, f);
		else
			about_output(l, f);
		break;
	case STREAM_FRAME_OFFER:
	case STREAM_FRAME_CUT:
	case STREAM_FRAME_READY:
	case STREAM_FRAME_MOVED:
		move_frame(l, f);
		break;
	default:
		link_close(l, "peer broke the protocol");
	}
}
