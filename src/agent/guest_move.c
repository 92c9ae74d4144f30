/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a guest's images go. Three kinds, one struct each:
 *
 *     stage    the coordinator names a likely next home: the newest image goes
 *              there behind everything else, so that a reclaim moves little
 *     move     a reclaim: the final image goes to the named peer under a floor
 *     standby  a reclaim with no coordinator in reach: the best of the tickets
 *              that were handed out before; the receiver reports it later
 *
 * A move needs two things, in any order: where to, and the final image.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/point.h"

/* A coordinator that is up answers a notice in far less. */
#define STANDBY_AFTER_NS (1500 * NS_PER_MS)
/* Without a grant a move still has this much, and yields above it. */
#define FLOOR_LEAST_BPS 1000000
/* Background copies yield to everybody, but not to nothing: half a percent of the uplink keeps the
 * durable image from falling behind where round trips tell more of a busy machine than of a queue. */
#define TRICKLE_DIVISOR 200
#define UPLINK_UNKNOWN_BPS UINT64_C(1000000000)

/* What a sender's callbacks get: it outlives the guest, so that a guest can be forgotten while a
 * cancelled child is still being reaped. Freed by the last callback. */
struct move_tie {
	struct guest *guest; /* NULL = forgotten */
	struct transfer_sender *sender;
	struct move_tie *next;
};

static struct move_tie *tie_new(struct guest *g)
{
	struct move_tie *tie = calloc(1, sizeof(*tie));
	if (!tie)
		return NULL;
	tie->guest = g;
	tie->next = g->ties;
	g->ties = tie;
	return tie;
}

/* The last callback: lets go of the sender wherever it is still the current one. */
static struct guest *tie_end(struct move_tie *tie)
{
	struct guest *g = tie->guest;
	if (g && g->move.sender == tie->sender)
		g->move.sender = NULL;
	if (g && g->stage.sender == tie->sender)
		g->stage.sender = NULL;
	if (g && g->fetch == tie->sender)
		g->fetch = NULL;
	for (struct move_tie **p = g ? &g->ties : NULL; p && *p; p = &(*p)->next) {
		if (*p == tie) {
			*p = tie->next;
			break;
		}
	}
	free(tie);
	return g;
}

static void peer_copy(struct control_peer *to, const struct control_peer *from)
{
	free(to->node);
	free(to->host);
	free(to->ticket);
	*to = (struct control_peer){
		.node = from->node ? strdup(from->node) : NULL,
		.host = from->host ? strdup(from->host) : NULL,
		.port = from->port,
		.ticket = from->ticket ? strdup(from->ticket) : NULL,
	};
}

static void peer_done(struct control_peer *p)
{
	free(p->node);
	free(p->host);
	free(p->ticket);
	*p = (struct control_peer){ 0 };
}

static void send_transfer(struct guest *g, const struct guest_move *m,
			  const struct control_transfer *t)
{
	struct control_message msg = { .type = CONTROL_TRANSFER, .transfer = *t };
	msg.transfer.job = g->job;
	msg.transfer.epoch = g->epoch;
	msg.transfer.image = (char *)m->image;
	msg.transfer.to = m->to.node;
	(void)link_send(g->agent, &msg); /* for the account only; the receiver's word counts */
}

/* The floor of the uplink is the sum of its moves' floors. */
static void floor_update(struct agent *a)
{
	uint64_t sum = 0;
	for (struct guest *g = a->guests; g; g = g->next)
		if (g->move.sender)
			sum += g->move.floor_bps;
	if (!a->edge)
		return;
	uint64_t cap = edge_floor_cap(a->edge);
	if (a->floor_cap_bps)
		cap = MIN(cap, a->floor_cap_bps);
	uint64_t before = edge_floor_get(a->edge);
	if (edge_floor_set(a->edge, MIN(sum, cap)) < 0)
		log_warn("edge: cannot set the floor of moves");
	else if (edge_floor_get(a->edge) != before)
		log_info("edge: moves have a floor of %llu bit/s",
			 (unsigned long long)edge_floor_get(a->edge));
}

static void on_progress(struct guest *g, struct guest_move *m,
			const struct transfer_progress_info *p)
{
	const struct control_transfer t = { .state = CONTROL_TRANSFER_PROGRESS,
					    .bytes_done = p->bytes_done,
					    .bytes_total = p->bytes_total,
					    .rate_bps = p->rate_bps,
					    .ms = p->ms };
	send_transfer(g, m, &t);
}

static void on_done(struct guest *g, struct guest_move *m, const struct transfer_result *r)
{
	m->done = true;
	g->delta_bytes = r->bytes_wire;
	floor_update(g->agent);
	const struct control_transfer t = { .state = CONTROL_TRANSFER_DONE,
					    .bytes_wire = r->bytes_wire,
					    .ms = r->ms };
	POINT("agent.move.sent");
	send_transfer(g, m, &t);
}

static void on_failed(struct guest *g, struct guest_move *m, enum transfer_code code,
		      const struct diag *diag)
{
	char detail[CONTROL_TEXT_MAX];
	floor_update(g->agent);
	(void)diag_format(diag, detail, sizeof(detail));
	if (code != TRANSFER_E_CANCELLED && code != TRANSFER_E_SUPERSEDED)
		log_warn("job %s: image %.12s to %s: %s: %s", g->job, m->image,
			 m->to.node ? m->to.node : "?", transfer_code_name(code), detail);
	if (code == TRANSFER_E_SUPERSEDED) { /* to the coordinator its successor speaks for itself */
		log_info("job %s: an image on its way to %s gives way to a newer one", g->job,
			 m->to.node ? m->to.node : "?");
		return;
	}
	const struct control_transfer t = { .state = CONTROL_TRANSFER_FAILED,
					    .code = (char *)transfer_code_name(code),
					    .detail = detail };
	send_transfer(g, m, &t);
}

static void move_progress(void *arg, const struct transfer_progress_info *p)
{
	struct guest *g = ((struct move_tie *)arg)->guest;
	if (g)
		on_progress(g, &g->move, p);
}

static void move_done(void *arg, const struct transfer_result *r)
{
	struct guest *g = tie_end(arg);
	if (!g)
		return;
	on_done(g, &g->move, r);
	/* A full copy is on another machine: the guest's processes are not needed any more, and the
	 * owner need not wait for the record of it. */
	if (g->final_ready && g->notice_id[0] && strcmp(g->move.image, g->image.digest) == 0)
		guest_kill(g, CONTROL_END_RECLAIMED, "moved");
	owner_notify(g->agent);
	owner_check_empty(g->agent);
}

static void move_failed(void *arg, enum transfer_code code, const struct diag *diag)
{
	struct guest *g = tie_end(arg);
	if (!g)
		return;
	on_failed(g, &g->move, code, diag);
	if (code != TRANSFER_E_CANCELLED && code != TRANSFER_E_SUPERSEDED && g->notice_id[0]) {
		/* Another try with what is known by then: the coordinator may name another peer. */
		g->move.known = link_is_up(g->agent) ? false : g->move.known;
		if (!link_is_up(g->agent))
			guest_standby_arm(g);
	}
	owner_check_empty(g->agent);
}

static void stage_progress(void *arg, const struct transfer_progress_info *p)
{
	struct guest *g = ((struct move_tie *)arg)->guest;
	if (g)
		on_progress(g, &g->stage, p);
}

static void stage_done(void *arg, const struct transfer_result *r)
{
	struct guest *g = tie_end(arg);
	if (g)
		on_done(g, &g->stage, r);
}

static void stage_failed(void *arg, enum transfer_code code, const struct diag *diag)
{
	struct guest *g = tie_end(arg);
	if (g)
		on_failed(g, &g->stage, code, diag);
}

static const struct transfer_sender_callbacks move_callbacks = { move_progress, move_done,
								 move_failed };
static const struct transfer_sender_callbacks stage_callbacks = { stage_progress, stage_done,
								  stage_failed };

static uint64_t trickle_bps(const struct agent *a)
{
	uint64_t uplink = a->config.edge.uplink_rate;
	return (uplink ? uplink : UPLINK_UNKNOWN_BPS) / TRICKLE_DIVISOR;
}

static void send_image(struct guest *g, struct guest_move *m)
{
	struct agent *a = g->agent;
	struct diag diag = DIAG_INIT;
	uint32_t tag = 0;
	if (a->edge)
		(void)edge_tag(a->edge, g->job, g->epoch, &tag); /* untagged packets still move */
	(void)snprintf(m->image, sizeof(m->image), "%s", g->image.digest);
	m->done = false;
	const struct transfer_sender_params p = {
		.program = a->transfer_program,
		.store_dir = image_store_dir(a->images),
		.identity_dir = a->identity_dir,
		.peer_host = m->to.host,
		.peer_port = (uint16_t)m->to.port,
		.ticket = m->to.ticket,
		.job = g->job,
		.image = m->image,
		.key = m->hold_only ? NULL : g->key,
		.traffic_class = m->stage ? TRAFFIC_SCAVENGER : TRAFFIC_DEADLINE,
		.floor_bps = m->stage ? trickle_bps(a) : MAX(m->floor_bps, (uint64_t)FLOOR_LEAST_BPS),
		.mark_tag = tag,
	};
	POINT("agent.move.begin");
	struct move_tie *tie = tie_new(g);
	int r = tie ? transfer_sender_start(loop_uv(a->loop), &p,
					    m->stage ? &stage_callbacks : &move_callbacks, tie,
					    &m->sender, &diag)
		    : diag_set(&diag, -ENOMEM, "", "out of memory");
	if (r < 0) {
		if (tie)
			(void)tie_end(tie);
		m->sender = NULL;
		log_warn("job %s: cannot send its image: %s: %s", g->job, diag.where, diag.what);
		return;
	}
	tie->sender = m->sender;
	const struct control_transfer t = { .state = CONTROL_TRANSFER_STARTED };
	send_transfer(g, m, &t);
	floor_update(a);
}

void guest_move_consider(struct guest *g)
{
	if (!g->image.digest[0])
		return;
	bool own = g->image.epoch == g->epoch; /* restored images are durable already */
	if (g->notice_id[0]) {
		bool sent = g->move.done && strcmp(g->move.image, g->image.digest) == 0;
		if (g->final_ready && g->move.known && g->move.to.node && !g->move.sender && !sent)
			send_image(g, &g->move);
		return;
	}
	if (own && g->stage.to.node && !g->image.durable &&
	    (g->agent->owner.state == CONTROL_OWNER_LENT) &&
	    strcmp(g->stage.image, g->image.digest) != 0)
		send_image(g, &g->stage);
}

void guest_move_set(struct guest *g, const struct control_move *move)
{
	if (!g->notice_id[0] || (move->notice_id && strcmp(move->notice_id, g->notice_id) != 0))
		return; /* an answer to a notice that is over */
	struct guest_move *m = &g->move;
	bool same = m->to.node && move->to.node && strcmp(m->to.node, move->to.node) == 0;
	if (m->sender && !same)
		transfer_sender_cancel(m->sender);
	if (!same)
		m->done = false;
	peer_copy(&m->to, &move->to);
	m->known = true;
	m->hold_only = move->hold_only;
	m->floor_bps = move->floor_bps;
	loop_timer_stop(&g->standby_timer);
	POINT("agent.move.known");
	if (m->sender && same) {
		transfer_sender_set_rate(m->sender, MAX(m->floor_bps, (uint64_t)FLOOR_LEAST_BPS), 0);
		floor_update(g->agent);
	}
	guest_move_consider(g);
	owner_notify(g->agent);
	owner_check_empty(g->agent);
}

void guest_stage_set(struct guest *g, const struct control_move *move)
{
	struct guest_move *m = &g->stage;
	bool same = m->to.node && move->to.node && strcmp(m->to.node, move->to.node) == 0;
	if (!same) {
		if (m->sender)
			transfer_sender_cancel(m->sender);
		m->image[0] = '\0';
	}
	peer_copy(&m->to, &move->to);
	m->stage = true;
	m->hold_only = move->hold_only;
	m->floor_bps = 0;
	guest_move_consider(g);
}

/* Every sender of this guest: also a stage that runs on behind a newer one's back. */
static void cancel_senders(struct guest *g)
{
	for (struct move_tie *tie = g->ties; tie; tie = tie->next)
		if (tie->sender && tie->sender != g->fetch)
			transfer_sender_cancel(tie->sender);
}

void guest_move_cancel(struct guest *g)
{
	cancel_senders(g);
	g->move.known = false;
}

void guest_move_done(struct guest *g)
{
	cancel_senders(g);
	if (g->fetch)
		transfer_sender_cancel(g->fetch);
	/* Their last callbacks are still to come. */
	while (g->ties) {
		g->ties->guest = NULL;
		g->ties = g->ties->next;
	}
	g->move.sender = g->stage.sender = g->fetch = NULL;
	floor_update(g->agent);
	peer_done(&g->move.to);
	peer_done(&g->stage.to);
	control_done(&g->standby);
}

/* ---- standby ---- */

void guest_standby_set(struct guest *g, struct control_message *standby)
{
	control_done(&g->standby);
	g->standby = *standby;
	standby->type = CONTROL_NONE; /* ours now */
	g->standby_until_ns = clock_boot_ns() + g->standby.standby.remaining_ms * NS_PER_MS;
}

/* Nobody grants a floor now: what ends the move in half of the window, within a quarter of the last
 * cap that the coordinator named. */
static uint64_t standby_floor(const struct guest *g)
{
	uint64_t left_ms = owner_remaining_ns(g->agent) / NS_PER_MS;
	uint64_t bytes = MAX(g->image.bytes, g->delta_bytes);
	uint64_t floor = bytes * 8 * 1000 / MAX(left_ms / 2, (uint64_t)100);
	return MIN(floor, g->agent->floor_cap_bps / 4);
}

static void on_standby(void *user)
{
	struct guest *g = user;
	struct guest_move *m = &g->move;
	if (!g->notice_id[0] || m->known || g->standby.type != CONTROL_STANDBY)
		return;
	if (clock_boot_ns() >= g->standby_until_ns)
		return; /* its tickets are void; the image stays here */
	/* The next peer at each try: one that does not answer must not be the end of it. */
	const struct control_standby *s = &g->standby.standby;
	if (s->peers_count == 0)
		return;
	size_t i = g->holder++ % s->peers_count;
	peer_copy(&m->to, &s->peers[i]);
	m->known = true;
	m->floor_bps = standby_floor(g);
	log_info("job %s: no coordinator; its image goes to %s by standby ticket", g->job, m->to.node);
	POINT("agent.move.standby");
	guest_move_consider(g);
}

void guest_standby_arm(struct guest *g)
{
	if (!g->notice_id[0] || g->gang_notice || g->move.sender || g->move.done)
		return;
	if (!g->standby_timer.fn)
		loop_timer_init(&g->standby_timer, g->agent->loop, on_standby, g);
	if (!link_is_up(g->agent)) {
		g->move.known = false;
		(void)loop_timer_in(&g->standby_timer, g->holder ? STANDBY_AFTER_NS / 3 : 0);
	} else {
		(void)loop_timer_in(&g->standby_timer, STANDBY_AFTER_NS);
	}
}

/* ---- durable, rates, fetch ---- */

void guest_durable(struct guest *g, const struct control_durable *d)
{
	if (strcmp(g->image.digest, d->image) != 0)
		return;
	g->image.durable = true;
	POINT("agent.durable.known");
	if (g->notice_id[0] && !g->gang_notice && g->final_ready)
		guest_kill(g, CONTROL_END_RECLAIMED, "moved");
	owner_notify(g->agent);
	owner_check_empty(g->agent);
}

void guest_rates(struct agent *a, const struct control_rates *rates)
{
	a->floor_cap_bps = rates->floor_cap_bps;
	for (size_t i = 0; i < rates->rates_count; i++) {
		struct guest *g = guest_find(a, rates->rates[i].job, rates->rates[i].epoch);
		if (!g)
			continue;
		g->move.floor_bps = rates->blackout ? 0 : rates->rates[i].floor_bps;
		if (g->move.sender)
			transfer_sender_set_rate(g->move.sender,
						 MAX(g->move.floor_bps, (uint64_t)FLOOR_LEAST_BPS), 0);
	}
	if (rates->stop_all != a->stop_all && a->edge && edge_stop_all(a->edge, rates->stop_all) < 0)
		log_error("edge: the operator's stop switch could not be set");
	a->stop_all = rates->stop_all;
	floor_update(a);
}

static void fetch_next(struct guest *g);

static void fetch_done(void *arg, const struct transfer_result *r)
{
	struct guest *g = tie_end(arg);
	if (!g)
		return;
	POINT("agent.fetch.done");
	if (g->abort) {
		guest_finish(g, g->end, 0, g->end_reason);
		return;
	}
	int err = guest_inputs_begin(g);
	if (err < 0)
		guest_finish(g, CONTROL_END_NOT_STARTED, 0, strerror(-err));
}

static void fetch_failed(void *arg, enum transfer_code code, const struct diag *diag)
{
	struct guest *g = tie_end(arg);
	if (!g)
		return;
	if (g->abort) {
		guest_finish(g, g->end, 0, g->end_reason);
		return;
	}
	(void)snprintf(g->end_reason, sizeof(g->end_reason), "image from %s: %s: %.300s",
		       g->start.start.holders[g->holder].node, transfer_code_name(code), diag->what);
	log_warn("job %s: %s", g->job, g->end_reason);
	g->holder++;
	fetch_next(g);
}

static void fetch_next(struct guest *g)
{
	static const struct transfer_sender_callbacks callbacks = { NULL, fetch_done, fetch_failed };
	const struct control_start *s = &g->start.start;
	struct agent *a = g->agent;
	struct diag diag = DIAG_INIT;
	/* Ourselves as holder means that the image should have been here. */
	while (g->holder < s->holders_count && (!s->holders[g->holder].ticket ||
						strcmp(s->holders[g->holder].node, a->node) == 0))
		g->holder++;
	if (g->holder == s->holders_count) {
		guest_finish(g, CONTROL_END_NOT_STARTED, 0,
			     g->end_reason[0] ? g->end_reason : "nobody has its image");
		return;
	}
	const struct control_peer *h = &s->holders[g->holder];
	const struct transfer_sender_params p = {
		.program = a->transfer_program,
		.store_dir = image_store_dir(a->images),
		.identity_dir = a->identity_dir,
		.peer_host = h->host,
		.peer_port = (uint16_t)h->port,
		.ticket = h->ticket,
		.job = g->job,
		.image = s->image,
		.traffic_class = TRAFFIC_DEADLINE,
		.floor_bps = FLOOR_LEAST_BPS,
		.retry_ms = 5000,
	};
	struct move_tie *tie = tie_new(g);
	if (tie && transfer_fetch_start(loop_uv(a->loop), &p, &callbacks, tie, &g->fetch, &diag) == 0) {
		tie->sender = g->fetch;
	} else {
		if (tie)
			(void)tie_end(tie);
		g->fetch = NULL;
		char why[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
		guest_finish(g, CONTROL_END_NOT_STARTED, 0, diag_format(&diag, why, sizeof(why)));
	}
}

int guest_fetch_begin(struct guest *g)
{
	const struct control_start *s = &g->start.start;
	struct image_info info;
	if (!s->image || image_show(g->agent->images, g->job, s->image, &info, NULL, NULL) == 0)
		return guest_inputs_begin(g);
	g->holder = 0;
	fetch_next(g);
	return 0;
}
