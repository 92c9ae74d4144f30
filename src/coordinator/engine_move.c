/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where images go and what becomes durable. A commit record is written when a
 * machine other than the job's own says that it has the whole image, and only
 * for the current epoch: that compare-and-swap is what fences late copies.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"
#include "coordinator/engine_internal.h"

#define STAGE_LATE_NS (2 * NS_PER_S) /* faster checkpoints than this are no measure of a way */
#define TICKET_LIFE_MS (10 * 60 * 1000)
#define MOVE_TRIES_MAX 5
#define STANDBY_PEERS 3
/* Kept free at the end of a window for commit, kill and proof. */
#define MOVE_MARGIN_MS 1000
/* A floor that ends the move in half of what the window leaves, and is never so small that an owner
 * waits for the sake of it: 2 % of a gigabit. */
#define FLOOR_MIN_BPS 20000000

int engine_ticket(struct engine *e, const struct ejob *j, enum ticket_use use, uint64_t epoch,
		  const char *image, const char *source, const char *destination, uint64_t remaining_ms,
		  uint64_t floor_bps, char ret[TICKET_TEXT_MAX])
{
	struct ticket t = {
		.use = use,
		.epoch = epoch, /* of the image: receivers fence by it */
		.image_any = !image,
		.remaining_ms = remaining_ms,
		.floor_bps = floor_bps,
		.traffic_class = use == TICKET_STAGE ? TRAFFIC_SCAVENGER : TRAFFIC_DEADLINE,
	};
	(void)snprintf(t.serial, sizeof(t.serial), "%016llx", (unsigned long long)e->ticket_serial++);
	(void)snprintf(t.job, sizeof(t.job), "%s", j->id);
	(void)snprintf(t.source, sizeof(t.source), "%s", source);
	(void)snprintf(t.destination, sizeof(t.destination), "%s", destination);
	if (image && hex_decode(image, strlen(image), t.image, sizeof(t.image)) < 0)
		return -EINVAL;
	return e->ops->sign_ticket(e->user, &t, ret);
}

static struct control_peer peer_of(const struct enode *n, char *ticket)
{
	return (struct control_peer){ (char *)n->name, (char *)enode_host(n), n->hello.hello.transfer_port,
				      ticket };
}

/* ---- durable ---- */

static void send_keep(struct engine *e, const struct ejob *j, const char *node)
{
	char *images[2];
	struct control_message m = { .type = CONTROL_KEEP,
				     .keep = { .job = (char *)j->id, .epoch = j->epoch, .images = images } };
	if (j->durable.digest[0])
		images[m.keep.images_count++] = (char *)j->durable.digest;
	if (j->before.digest[0])
		images[m.keep.images_count++] = (char *)j->before.digest;
	(void)engine_send(e, node, &m);
}

static void send_durable(struct engine *e, const struct ejob *j, const char *holder)
{
	struct control_message m = { .type = CONTROL_DURABLE,
				     .durable = { (char *)j->id, j->durable.epoch, j->durable.seq,
						  (char *)j->durable.digest, (char *)holder } };
	(void)engine_send(e, j->node, &m); /* without it the source waits for its window's end */
	POINT("coordinator.durable.told");
}

void ejob_tell_durable(struct engine *e, struct ejob *j)
{
	if (!j->durable.digest[0] || strcmp(j->saved.digest, j->durable.digest) != 0)
		return;
	for (size_t i = 0; i < j->durable.holders_count; i++) {
		if (strcmp(j->durable.holders[i], j->node) == 0)
			continue;
		send_durable(e, j, j->durable.holders[i]);
		return;
	}
}

static bool commit(struct engine *e, struct ejob *j, const struct control_received *r,
		   const char *holder)
{
	struct ejob_image durable = j->durable, before = j->before;
	/* A rank's image serves only with those of the others: the newest that all have stays. */
	if (j->ranks == 1 || gang_has_durable(e, j, &j->durable))
		j->before = j->durable;
	j->durable = (struct ejob_image){ .epoch = r->epoch,
					  .seq = r->seq,
					  .output_offset = r->output_offset,
					  .at_wall_ms = clock_wall_ms(),
					  .start_cursor = ejob_replay_from(e, j) };
	(void)snprintf(j->durable.digest, sizeof(j->durable.digest), "%s", r->image);
	(void)snprintf(j->durable.commit, sizeof(j->durable.commit), "%s", r->commit ? r->commit : "");
	if (strcmp(j->saved.digest, r->image) == 0) {
		j->durable.bytes = j->saved.bytes;
		j->durable.output_offset = j->saved.output_offset;
		memcpy(j->durable.commit, j->saved.commit, sizeof(j->durable.commit));
		ejob_image_add(&j->durable, j->node);
	}
	ejob_image_add(&j->durable, holder);
	POINT("coordinator.durable.before_save");
	if (ejob_save(e, j) < 0) {
		j->durable = durable;
		j->before = before;
		return false;
	}
	POINT("coordinator.durable.after_save");
	log_info("job %s: image %.12s of epoch %llu is durable on %s", j->id, r->image,
		 (unsigned long long)r->epoch, holder);
	return true;
}

void ejob_received(struct engine *e, struct ejob *j, const struct control_received *r,
		   const char *holder, uint64_t now_ns)
{
	POINT("coordinator.received");
	if (r->bytes_wire && j->notice_id[0])
		j->move_bytes = r->bytes_wire;
	if (r->epoch != j->epoch || rest_job_state_is_final(j->state)) {
		send_keep(e, j, holder); /* also raises its fence */
		return;
	}
	bool known = strcmp(j->durable.digest, r->image) == 0;
	if (known && !ejob_image_has(&j->durable, holder)) {
		ejob_image_add(&j->durable, holder);
		(void)ejob_save(e, j); /* one holder more or less known: not a promise */
	}
	bool newer = j->durable.epoch < r->epoch || j->durable.seq < r->seq || !j->durable.digest[0];
	if (!known && (!newer || !commit(e, j, r, holder)))
		return;
	send_durable(e, j, holder);
	send_keep(e, j, holder);
	if (!known && strcmp(j->node, holder) != 0)
		send_keep(e, j, j->node);
	bool final = j->saved_final && strcmp(j->saved.digest, r->image) == 0;
	if (j->move_pending && (final || !j->alive)) {
		j->saved.digest[0] = '\0';
		ejob_move_over(e, j);
	}
	ejob_changed(e, j);
}

/* ---- a reclaim's moves ---- */

static uint64_t floors_granted(struct engine *e, const struct ejob *except)
{
	uint64_t sum = 0;
	VEC_EACH(&e->jobs, pj)
		if (*pj != except && (*pj)->move_pending && (*pj)->dest[0])
			sum += (*pj)->floor_bps;
	return sum;
}

static uint64_t floor_for(struct engine *e, const struct ejob *j, const struct enode *source,
			  uint64_t now_ns)
{
	uint64_t bytes = j->delta_bytes ? j->delta_bytes : j->saved.bytes;
	uint64_t left_ms = j->notice_deadline_ns > now_ns ? (j->notice_deadline_ns - now_ns) / NS_PER_MS : 0;
	uint64_t spent = j->save_ms + MOVE_MARGIN_MS;
	if (e->blackout || e->config.floor_cap_bps == 0)
		return 0;
	left_ms = left_ms > spent ? left_ms - spent : 100;
	uint64_t least = MAX(e->config.floor_bps, (uint64_t)FLOOR_MIN_BPS);
	uint64_t floor = MAX(bytes * 8 * 1000 / left_ms * 2, least);
	uint64_t uplink = source->hello.hello.uplink_bps;
	if (uplink)
		floor = MIN(floor, uplink / 5 * 4);
	uint64_t granted = floors_granted(e, j);
	uint64_t room = e->config.floor_cap_bps > granted ? e->config.floor_cap_bps - granted : 0;
	return MIN(floor, room);
}

static void send_move(struct engine *e, struct ejob *j, const struct enode *source,
		      struct enode *dest, bool hold_only, const struct engine_place *place,
		      uint64_t now_ns)
{
	char ticket[TICKET_TEXT_MAX] = "", why[160];
	uint64_t left_ms = j->notice_deadline_ns > now_ns ? (j->notice_deadline_ns - now_ns) / NS_PER_MS : 0;
	struct control_message m = {
		.type = CONTROL_MOVE,
		.move = { .job = j->id,
			  .epoch = j->epoch,
			  .use = CONTROL_MOVE_NOTICE,
			  .notice_id = j->notice_id,
			  .hold_only = hold_only },
	};
	if (dest) {
		j->floor_bps = floor_for(e, j, source, now_ns);
		if (engine_ticket(e, j, TICKET_MOVE, j->epoch, NULL, source->name, dest->name,
				  left_ms + e->config.lease_margin_ms, j->floor_bps, ticket) < 0)
			return; /* planned again at the next tick */
		(void)snprintf(j->dest, sizeof(j->dest), "%s", dest->name);
		m.move.to = peer_of(dest, ticket);
		m.move.floor_bps = j->floor_bps;
		if (place && place->dest == dest)
			(void)snprintf(why, sizeof(why),
				       "goes on there, the best of %u: fits the window with %.0f %%, stays an hour "
				       "with %.0f %%",
				       place->considered, place->p_fit * 100, place->survival * 100);
		else
			(void)snprintf(why, sizeof(why), "%s",
				       hold_only ? "kept there until a machine is free" : "goes on there");
	} else {
		j->dest[0] = '\0';
		(void)snprintf(why, sizeof(why), "no machine can take it now");
	}
	m.move.reason = why;
	POINT("coordinator.move.before_send");
	(void)engine_send(e, source->name, &m); /* the source then uses its standby ticket */
	POINT("coordinator.move.sent");
	log_info("job %s: reclaimed on %s: image to %s, floor %llu kbit/s (%s)", j->id, source->name,
		 dest ? dest->name : "nowhere", (unsigned long long)(j->floor_bps / 1000), why);
}

static void plan_one(struct engine *e, struct ejob *j, struct enode *source,
		     const struct engine_place *place, uint64_t now_ns)
{
	bool hold_only = false;
	/* Another job may have taken the slot that the plan meant. */
	struct enode *dest = place->dest && !enode_refusal(e, place->dest, j, NULL, NULL) ?
				     place->dest : engine_choose(e, j, false, now_ns);
	if (!dest) {
		dest = engine_choose_keeper(e, j, now_ns);
		hold_only = dest != NULL;
	}
	/* "No destination" is said once; then silently looked for until the window ends. */
	if (!dest && j->move_tries > 0)
		return;
	j->move_tries++;
	send_move(e, j, source, dest, hold_only, place, now_ns);
}

static int most_to_lose_first(const void *a, const void *b)
{
	const struct ejob *x = *(struct ejob *const *)a, *y = *(struct ejob *const *)b;
	return x->unsaved_ms != y->unsaved_ms ? (x->unsaved_ms < y->unsaved_ms ? 1 : -1) : 0;
}

void engine_plan_notice(struct engine *e, struct enode *n, uint64_t now_ns)
{
	struct ejob **leaving = calloc(e->jobs.count + 1, sizeof(*leaving));
	struct engine_place *places = calloc(e->jobs.count + 1, sizeof(*places));
	size_t count = 0;
	for (size_t i = 0; leaving && places && i < e->jobs.count; i++) {
		struct ejob *j = e->jobs.data[i];
		if (j->move_pending && !j->notice_now && !j->dest[0] && strcmp(j->node, n->name) == 0 &&
		    j->move_tries < MOVE_TRIES_MAX && j->retry_at_ns <= now_ns)
			leaving[count++] = j;
	}
	if (count > 0) {
		/* Where the policy has no word, the one with most to lose chooses first. */
		qsort(leaving, count, sizeof(*leaving), most_to_lose_first);
		(void)engine_place(e, leaving, count, now_ns, places);
	}
	for (size_t i = 0; i < count; i++) {
		plan_one(e, leaving[i], n, &places[i], now_ns);
		if (!leaving[i]->dest[0])
			leaving[i]->retry_at_ns = now_ns + NS_PER_S / 4;
	}
	free(leaving);
	free(places);
	engine_send_rates(e);
}

void ejob_move_failed(struct engine *e, struct ejob *j, const char *why, uint64_t now_ns)
{
	log_warn("job %s: its move to %s failed: %s", j->id, j->dest, why ? why : "?");
	ejob_avoid(j, j->dest);
	j->dest[0] = '\0';
	struct enode *source = engine_node(e, j->node);
	if (!j->move_pending)
		return;
	if (source && now_ns < j->notice_deadline_ns && j->move_tries < MOVE_TRIES_MAX)
		engine_plan_notice(e, source, now_ns);
	else if (!j->alive)
		ejob_move_over(e, j);
}

void ejob_move_over(struct engine *e, struct ejob *j)
{
	j->move_pending = false;
	j->dest[0] = '\0';
	j->floor_bps = 0;
	if (!j->alive) {
		j->notice_id[0] = '\0';
		if (j->state == REST_JOB_MOVING)
			(void)ejob_event(e, j, JOB_EVENT_REQUEUE, "waits for a machine");
		(void)ejob_save(e, j); /* the state can be told from the rest of the record */
		ejob_confirm_end(e, j);
	}
	e->schedule_due = true;
	engine_send_rates(e);
}

void engine_send_rates(struct engine *e)
{
	void *value;
	for (size_t pos = 0; map_next(e->nodes, &pos, NULL, NULL, &value);) {
		struct enode *n = value;
		struct control_rate rates[CONTROL_SLOTS_MAX];
		struct control_message m = { .type = CONTROL_RATES,
					     .rates = { .floor_cap_bps = e->config.floor_cap_bps,
							.stop_all = e->stop_all,
							.blackout = e->blackout,
							.rates = rates } };
		if (!n->up)
			continue;
		VEC_EACH(&e->jobs, pj)
			if ((*pj)->move_pending && (*pj)->dest[0] && strcmp((*pj)->node, n->name) == 0 &&
			    m.rates.rates_count < CONTROL_SLOTS_MAX)
				rates[m.rates.rates_count++] =
					(struct control_rate){ (*pj)->id, (*pj)->epoch, (*pj)->floor_bps };
		(void)engine_send(e, n->name, &m);
	}
}

/* ---- ahead of reclaims ---- */

void ejob_plan_stage(struct engine *e, struct ejob *j, uint64_t now_ns)
{
	char ticket[TICKET_TEXT_MAX];
	struct enode *n = engine_node(e, j->stage), *own = engine_node(e, j->node);
	/* Background copies yield to everybody. Where the last one has not arrived by the time of
	 * the next, they will not keep up: another way is better than a stale copy. */
	if (n && own && j->stage_image[0] && strcmp(j->stage_image, j->durable.digest) != 0 &&
	    now_ns - j->stage_sent_ns > STAGE_LATE_NS) {
		engine_set_slow(e, own, n, now_ns);
		n = NULL;
	}
	/* Sticky while it is any good: it has most of the chunks already. */
	if (!n || !n->up || n->banned || strcmp(n->name, j->node) == 0 ||
	    n->owner_state == CONTROL_OWNER_NOTICE || n->owner_state == CONTROL_OWNER_DRAINING ||
	    (n->owner_state != CONTROL_OWNER_LENT && !n->hello.hello.shadow_owned))
		n = engine_choose_keeper(e, j, now_ns);
	if (!n)
		return;
	if (engine_ticket(e, j, TICKET_STAGE, j->epoch, NULL, j->node, n->name, TICKET_LIFE_MS, 0, ticket) < 0)
		return;
	(void)snprintf(j->stage, sizeof(j->stage), "%s", n->name);
	(void)snprintf(j->stage_image, sizeof(j->stage_image), "%s", j->saved.digest);
	j->stage_sent_ns = now_ns;
	struct control_message m = {
		.type = CONTROL_MOVE,
		.move = { .job = j->id,
			  .epoch = j->epoch,
			  .use = CONTROL_MOVE_STAGE,
			  .image = j->saved.digest,
			  .to = peer_of(n, ticket) },
	};
	(void)engine_send(e, j->node, &m);
	POINT("coordinator.stage.sent");
}

void ejob_send_standby(struct engine *e, struct ejob *j, uint64_t now_ns)
{
	static char tickets[STANDBY_PEERS][TICKET_TEXT_MAX];
	struct control_peer peers[STANDBY_PEERS];
	struct control_message m = { .type = CONTROL_STANDBY,
				     .standby = { .job = j->id,
						  .epoch = j->epoch,
						  .remaining_ms = TICKET_LIFE_MS,
						  .peers = peers } };
	j->standby_until_ns = now_ns + MAX(e->config.lease_ms / 2, (uint64_t)2000) * NS_PER_MS;
	engine_wake(e, j->standby_until_ns);
	const struct enode *own = engine_node(e, j->node);
	if (!own || !own->up || j->notice_id[0])
		return;
	/* The present stage first: a standby move there moves least. */
	struct enode *picks[STANDBY_PEERS] = { engine_node(e, j->stage), engine_choose(e, j, false, now_ns),
					       engine_choose_keeper(e, j, now_ns) };
	for (size_t i = 0; i < STANDBY_PEERS; i++) {
		size_t n = m.standby.peers_count;
		bool twice = !picks[i] || !picks[i]->up;
		for (size_t k = 0; k < i; k++)
			twice |= picks[k] == picks[i];
		if (twice || engine_ticket(e, j, TICKET_STANDBY, j->epoch, NULL, j->node, picks[i]->name, TICKET_LIFE_MS,
					   0, tickets[n]) < 0)
			continue;
		peers[n] = peer_of(picks[i], tickets[n]);
		m.standby.peers_count++;
	}
	if (m.standby.peers_count)
		(void)engine_send(e, j->node, &m);
}
