/* SPDX-License-Identifier: Apache-2.0 */
/* What a node tells about itself: counters, JSON, Prometheus text. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "stream/address.h"
#include "stream/node_internal.h"

static uint64_t since(uint64_t at, uint64_t began)
{
	return at > began ? at - began : 0;
}

static void fill(struct reclaim_node *n, struct reclaim_stats *s)
{
	const struct move *m = &n->move;

	*s = n->stats;
	s->move_ready_ns = since(m->ready_ns, m->began_ns);
	s->move_frozen_ns = since(m->frozen_ns, m->began_ns);
	s->move_cut_ns = since(m->cut_ns, m->began_ns);
	s->move_committed_ns = since(m->committed_ns, m->began_ns);
	s->move_first_ns = since(m->first_ns, m->began_ns);
	s->move_state_bytes = m->state_bytes;
}

void reclaim_node_stats(struct reclaim_node *n, struct reclaim_stats *ret)
{
	node_lock(n);
	fill(n, ret);
	pthread_mutex_unlock(&n->lock);
}

/* One row per counter; the JSON and the Prometheus text both walk it. */
static const struct {
	const char *name, *type, *help;
	size_t offset;
} counters[] = {
#define C(field, type, help) { #field, type, help, offsetof(struct reclaim_stats, field) }
	C(messages_sent, "counter", "Messages written to a link"),
	C(bytes_sent, "counter", "Payload bytes written"),
	C(messages_received, "counter", "Messages handed to the application"),
	C(bytes_received, "counter", "Payload bytes handed to the application"),
	C(messages_resent, "counter", "Messages written again after a break or a move"),
	C(duplicates_dropped, "counter", "Messages that had arrived before"),
	C(stale_refused, "counter", "Messages and attaches of another epoch"),
	C(acks_sent, "counter", "Acknowledgements written"),
	C(links, "gauge", "Open links"),
	C(links_broken, "counter", "Links closed or broken"),
	C(moves_in, "counter", "Handovers taken"),
	C(moves_out, "counter", "Handovers given"),
	C(moves_aborted, "counter", "Handovers called off by this side"),
	C(recoveries, "counter", "Streams resumed after an owner's loss"),
	C(retained_bytes, "gauge", "Unstable output in memory"),
	C(spilled_bytes, "gauge", "Unstable output on disk"),
	C(queued_bytes, "gauge", "Arrived and not yet taken"),
	C(blocked_ns, "counter", "Time senders waited for room"),
	C(move_ready_ns, "gauge", "Last handover: target ready, since its beginning"),
	C(move_frozen_ns, "gauge", "Last handover: frozen"),
	C(move_cut_ns, "gauge", "Last handover: cut sent or installed"),
	C(move_committed_ns, "gauge", "Last handover: committed"),
	C(move_first_ns, "gauge", "Last handover: first message at the new place"),
	C(move_state_bytes, "gauge", "Last handover: bytes of state"),
#undef C
};

static uint64_t counter_get(const struct reclaim_stats *s, size_t i)
{
	uint64_t v;

	memcpy(&v, (const char *)s + counters[i].offset, sizeof(v));
	return v;
}

char *reclaim_node_metrics(struct reclaim_node *n)
{
	struct strbuf b = STRBUF_INIT;
	struct reclaim_stats s;

	reclaim_node_stats(n, &s);
	for (size_t i = 0; i < ARRAY_SIZE(counters); i++)
		(void)strbuf_printf(&b,
				    "# HELP reclaim_stream_%s %s\n# TYPE reclaim_stream_%s %s\n"
				    "reclaim_stream_%s{endpoint=\"%s\"} %" PRIu64 "\n",
				    counters[i].name, counters[i].help, counters[i].name,
				    counters[i].type, counters[i].name, n->name, counter_get(&s, i));
	return strbuf_take(&b);
}

static void describe_streams(struct reclaim_node *n, struct strbuf *b)
{
	struct reclaim_stream *o;
	bool first = true;

	(void)strbuf_add(b, ",\"outputs\":[");
	TAILQ_FOREACH(o, &n->outs, entry) {
		(void)strbuf_printf(b,
				    "%s{\"to\":\"%s\",\"number\":%u,\"class\":\"%s\",\"epoch\":\"%" PRIu64
				    "\",\"attached\":%s,\"frozen\":%s,\"last\":\"%" PRIu64
				    "\",\"next\":\"%" PRIu64 "\",\"delivered\":\"%" PRIu64
				    "\",\"stable\":\"%" PRIu64 "\",\"credit\":\"%" PRIu64
				    "\",\"retained\":\"%" PRIu64 "\",\"unsent\":\"%" PRIu64
				    "\",\"error\":%d}",
				    first ? "" : ",", o->to, o->number, stream_class_name(o->cls),
				    o->tx.epoch, o->tx.attached ? "true" : "false",
				    o->tx.frozen ? "true" : "false", o->tx.last, o->tx.next,
				    o->tx.delivered, o->tx.stable,
				    o->tx.limit > o->tx.offset ? o->tx.limit - o->tx.offset : 0,
				    o->retained, o->unsent, o->error);
		first = false;
	}
	(void)strbuf_add(b, "],\"inputs\":[");
	for (size_t i = 0; i < n->ins.count; i++) {
		const struct in *in = n->ins.data[i];

		(void)strbuf_printf(b,
				    "%s{\"from\":\"%s\",\"number\":%u,\"class\":\"%s\",\"epoch\":\"%" PRIu64
				    "\",\"attached\":%s,\"taken\":\"%" PRIu64 "\",\"stable\":\"%" PRIu64
				    "\",\"arrived\":\"%" PRIu64 "\",\"queued\":\"%" PRIu64
				    "\",\"granted\":\"%" PRIu64 "\"}",
				    i ? "," : "", in->from, in->number, stream_class_name(in->cls),
				    in->rx.producer_epoch, in->link ? "true" : "false", in->rx.cur,
				    in->rx.stable, in->rx.arrived, in->queued, in->rx.granted);
	}
	(void)strbuf_add(b, "]");
}

char *reclaim_node_describe(struct reclaim_node *n)
{
	struct strbuf b = STRBUF_INIT;
	struct reclaim_stats s;

	node_lock(n);
	node_now(n);
	fill(n, &s);
	(void)strbuf_printf(&b,
			    "{\"name\":\"%s\",\"instance\":\"%" PRIu64
			    "\",\"state\":\"%s\",\"epoch\":\"%" PRIu64 "\",\"lease_ms\":%" PRIu64,
			    n->name, n->instance, owner_state_name(n->owner.state), n->owner.epoch,
			    since(n->owner.lease_until_ns, n->now_ns) / NS_PER_MS);
	describe_streams(n, &b);
	(void)strbuf_add(&b, ",\"counters\":{");
	for (size_t i = 0; i < ARRAY_SIZE(counters); i++)
		(void)strbuf_printf(&b, "%s\"%s\":\"%" PRIu64 "\"", i ? "," : "", counters[i].name,
				    counter_get(&s, i));
	(void)strbuf_add(&b, "},\"events\":[");
	uint64_t from = n->events_count > EVENTS_MAX ? n->events_count - EVENTS_MAX : 0;
	for (uint64_t i = from; i < n->events_count; i++) {
		const struct event *e = &n->events[i % EVENTS_MAX];

		(void)strbuf_printf(&b, "%s{\"ago_us\":%" PRIu64 ",\"what\":\"%s\",\"who\":\"%s\",\"a\":\"%"
				    PRIu64 "\",\"b\":\"%" PRIu64 "\"}",
				    i > from ? "," : "", since(n->now_ns, e->at_ns) / NS_PER_US, e->what,
				    e->who, e->a, e->b);
	}
	(void)strbuf_add(&b, "]}");
	pthread_mutex_unlock(&n->lock);
	return strbuf_take(&b);
}
