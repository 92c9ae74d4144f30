/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What survives: how far the effects of messages would outlive this process, as
 * the application declares it, by itself or with a checkpoint image.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "stream/node_internal.h"

static struct snapshot *snapshot_new(struct reclaim_node *n)
{
	struct snapshot *s = calloc(1, sizeof(*s));
	struct reclaim_stream *o;

	if (!s)
		return NULL;
	s->id = ++n->next_snapshot;
	VEC_EACH(&n->ins, p) {
		__typeof__(*s->ins.data) item = { *p, (*p)->rx.cur };

		(void)VEC_PUSH(&s->ins, item);
	}
	TAILQ_FOREACH(o, &n->outs, entry) {
		__typeof__(*s->outs.data) item = { o, o->tx.last };

		(void)VEC_PUSH(&s->outs, item);
	}
	if (s->ins.count < n->ins.count || VEC_PUSH(&n->snapshots, s) < 0) {
		VEC_DONE(&s->ins);
		VEC_DONE(&s->outs);
		free(s);
		return NULL;
	}
	if (n->snapshots.count > CHECKPOINTS_MAX) {
		struct snapshot *old = n->snapshots.data[0];

		VEC_REMOVE(&n->snapshots, 0);
		VEC_DONE(&old->ins);
		VEC_DONE(&old->outs);
		free(old);
	}
	return s;
}

static void snapshot_apply(struct reclaim_node *n, struct snapshot *s)
{
	for (size_t i = 0; i < s->ins.count; i++) {
		struct in *in = s->ins.data[i].in;

		receiver_set_stable(&in->rx, s->ins.data[i].cur);
		if (in->link && receiver_ack_pending(&in->rx))
			in_ack(in);
	}
	for (size_t i = 0; i < s->outs.count; i++) {
		struct reclaim_stream *o = s->outs.data[i].out;

		if (o->hold && o->tx.release < s->outs.data[i].last) {
			o->tx.release = s->outs.data[i].last;
			out_pump(o);
		}
	}
	link_flush_all(n);
}

void node_durable(struct reclaim_node *n, uint64_t id, bool ok)
{
	/* Everything up to it is covered by it; what failed is covered by the next. */
	for (size_t i = 0; i < n->snapshots.count; i++) {
		struct snapshot *s = n->snapshots.data[i];

		if (s->id != id)
			continue;
		if (ok && owner_may_store(&n->owner, n->now_ns))
			snapshot_apply(n, s);
		for (size_t k = 0; k <= (ok ? i : 0); k++) {
			size_t at = ok ? 0 : i;

			s = n->snapshots.data[at];
			VEC_DONE(&s->ins);
			VEC_DONE(&s->outs);
			free(s);
			VEC_REMOVE(&n->snapshots, at);
		}
		return;
	}
}

int reclaim_stable(struct reclaim_node *n)
{
	int r = 0;

	node_lock(n);
	node_now(n);
	if (!owner_may_store(&n->owner, n->now_ns)) {
		r = -ESTALE;
	} else {
		struct snapshot *s = snapshot_new(n);

		if (!s) {
			r = -ENOMEM;
		} else if (n->options.cursors_in_registry) {
			struct strbuf b = STRBUF_INIT;

			r = image_write_cursors(n, &b);
			if (r == 0)
				r = reg_store(n, b.data, b.len, s->id);
			if (r < 0)
				node_durable(n, s->id, false);
			strbuf_done(&b);
		} else {
			node_durable(n, s->id, true);
		}
	}
	pthread_mutex_unlock(&n->lock);
	return r;
}

int reclaim_checkpoint(struct reclaim_node *n, uint64_t *ret_id, void **ret_image, size_t *ret_len)
{
	struct strbuf b = STRBUF_INIT;
	int r;

	node_lock(n);
	node_now(n);
	struct snapshot *s = NULL;
	r = owner_may_store(&n->owner, n->now_ns) ? image_write(n, &b) : -ESTALE;
	if (r == 0 && !(s = snapshot_new(n)))
		r = -ENOMEM;
	if (r == 0) {
		*ret_id = s->id;
		*ret_len = b.len;
		*ret_image = strbuf_take(&b);
	}
	pthread_mutex_unlock(&n->lock);
	strbuf_done(&b);
	return r;
}

int reclaim_durable(struct reclaim_node *n, uint64_t id)
{
	node_lock(n);
	node_now(n);
	int r = owner_may_store(&n->owner, n->now_ns) ? 0 : -ESTALE;

	if (r == 0)
		node_durable(n, id, true);
	pthread_mutex_unlock(&n->lock);
	return r;
}
