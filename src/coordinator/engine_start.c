/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An incarnation is given to a machine in two steps: booked (epoch + 1 in the
 * store), then told. Between the two a gang books its other ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/parse.h"
#include "base/point.h"
#include "coordinator/engine_internal.h"

bool ejob_image_reachable(struct engine *e, const struct ejob_image *im, const struct enode *at)
{
	if (!im->digest[0])
		return false;
	if (ejob_image_has(im, at->name))
		return true;
	for (size_t i = 0; i < im->holders_count; i++) {
		const struct enode *h = engine_node(e, im->holders[i]);
		if (h && enode_serves(h))
			return true;
	}
	return false;
}

static int move_record(struct ejob *j, const struct ejob_image *im)
{
	struct rest_move *grown = reallocarray(j->moves, j->moves_count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	j->moves = grown;
	const char *from = j->moves_count ? grown[j->moves_count - 1].to : NULL;
	/* The list is for people: the middle of a very long one is of no use to them. */
	if (j->moves_count == REST_MOVES_MAX) {
		struct rest_move *m = &grown[1];
		free(m->from);
		free(m->to);
		free(m->cause);
		free(m->image);
		memmove(m, m + 1, (REST_MOVES_MAX - 2) * sizeof(*m));
		j->moves_count--;
	}
	grown[j->moves_count++] = (struct rest_move){
		.from = from ? strdup(from) : NULL,
		.to = strdup(j->node),
		.epoch = j->epoch,
		.cause = strdup(j->epoch == 1 ? "start" : (j->cause[0] ? j->cause : "restart")),
		.at_ms = clock_wall_ms(),
		.bytes = j->move_bytes,
		.lost_ms = j->lost_ms,
		.image = im ? strdup(im->digest) : NULL,
	};
	return 0;
}

static void move_unrecord(struct ejob *j)
{
	struct rest_move *m = &j->moves[--j->moves_count];
	free(m->from);
	free(m->to);
	free(m->cause);
	free(m->image);
}

static int take_slots(struct ejob *j, struct enode *n, const unsigned *slots, size_t count)
{
	char **names = calloc(count + 1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		names[i] = strdup(n->hello.hello.slots[slots[i]].name);
		n->slot_used[slots[i]] = true;
	}
	for (size_t i = 0; i < j->slots_count; i++)
		free(j->slots[i]);
	free(j->slots);
	j->slots = names;
	j->slots_count = count;
	return 0;
}

void ejob_release_slots(struct engine *e, struct ejob *j)
{
	struct enode *n = engine_node(e, j->node);
	for (size_t k = 0; n && k < j->slots_count; k++)
		for (size_t i = 0; i < n->hello.hello.slots_count; i++)
			if (strcmp(n->hello.hello.slots[i].name, j->slots[k]) == 0)
				n->slot_used[i] = false;
}

static size_t holders_of(struct engine *e, const struct ejob *j, const struct ejob_image *im,
			 const struct enode *at, struct control_peer *peers,
			 char tickets[CONTROL_PEERS_MAX][TICKET_TEXT_MAX])
{
	size_t n = 0;
	for (size_t i = 0; im && i < im->holders_count && n < CONTROL_PEERS_MAX; i++) {
		const struct enode *h = engine_node(e, im->holders[i]);
		if (!h || (h != at && !enode_serves(h)))
			continue;
		if (h != at && engine_ticket(e, j, TICKET_FETCH, im->epoch, im->digest, h->name, at->name,
					     10 * 60 * 1000, 0, tickets[n]) < 0)
			continue;
		peers[n] = (struct control_peer){ (char *)h->name, (char *)enode_host(h),
						  h->hello.hello.transfer_port, h == at ? NULL : tickets[n] };
		n++;
	}
	return n;
}

static size_t open_secrets(struct engine *e, const struct ejob *j, struct control_secret *out)
{
	size_t n = 0;
	for (size_t i = 0; i < j->secrets_count; i++) {
		char *clear;
		if (e->ops->unseal_text(e->user, j->secrets[i].value, &clear) == 0)
			out[n++] = (struct control_secret){ j->secrets[i].name, clear };
	}
	return n;
}

static void send_start(struct engine *e, struct ejob *j, struct enode *n,
		       const struct ejob_image *im, const struct engine_gang_start *gang)
{
	static char tickets[CONTROL_PEERS_MAX][TICKET_TEXT_MAX];
	struct control_peer peers[CONTROL_PEERS_MAX];
	CLEANUP_FREE struct control_secret *secrets = calloc(j->secrets_count + 1, sizeof(*secrets));
	char key[CONTROL_KEY_HEX + 1], why[200];
	hex_encode(j->key, sizeof(j->key), key);
	(void)snprintf(why, sizeof(why), "%s", j->cause[0] ? j->cause : "start");
	struct control_message m = {
		.type = CONTROL_START,
		.start = {
			.job = j->id,
			.epoch = j->epoch,
			.user = j->user,
			.spec = j->spec_json,
			.slots = j->slots,
			.slots_count = j->slots_count,
			.key = key,
			.image = im ? (char *)im->digest : NULL,
			.image_epoch = im ? im->epoch : 0,
			.image_seq = im ? im->seq : 0,
			.holders = peers,
			.holders_count = holders_of(e, j, im, n, peers, tickets),
			.lease_ms = e->config.lease_ms,
			.restart_count = j->epoch - 1,
			.reclaim_count = j->reclaims,
			.time_used_ms = j->ran_ms,
			.interval_ms = j->spec.checkpoint.interval_ns ? j->spec.checkpoint.interval_ns / NS_PER_MS
				       : j->interval_ms ? j->interval_ms : e->config.interval_ms,
			.inputs = j->inputs,
			.secrets = secrets,
			.secrets_count = secrets ? open_secrets(e, j, secrets) : 0,
			.why = why,
		},
	};
	if (gang) {
		m.start.gang = j->gang;
		m.start.rank = j->rank;
		m.start.ranks = j->ranks;
		m.start.gang_key = (char *)gang->key;
		m.start.gang_ranks = (struct control_rank *)gang->ranks;
		m.start.gang_ranks_count = j->ranks;
	}
	POINT("coordinator.start.before_send");
	(void)engine_send(e, n->name, &m); /* unheard: the next hello shows that it is not there */
	POINT("coordinator.start.sent");
	explicit_bzero(key, sizeof(key));
	for (size_t i = 0; i < m.start.secrets_count; i++) {
		explicit_bzero(secrets[i].value, strlen(secrets[i].value));
		free(secrets[i].value);
	}
}

bool ejob_start_book(struct engine *e, struct ejob *j, struct enode *n, const unsigned *slots,
		     size_t slots_count, const struct ejob_image *im, uint64_t now_ns)
{
	char node_before[sizeof(j->node)];
	memcpy(node_before, j->node, sizeof(node_before));
	if (take_slots(j, n, slots, slots_count) < 0)
		return false;
	j->epoch++;
	(void)snprintf(j->node, sizeof(j->node), "%s", n->name);
	if (move_record(j, im) < 0 || !ejob_event(e, j, JOB_EVENT_START, "on %s", n->name)) {
		j->epoch--;
		memcpy(j->node, node_before, sizeof(node_before));
		return false;
	}
	j->alive = true;
	j->start_epoch = im ? im->epoch : 0;
	j->start_output = im ? im->output_offset : 0;
	j->start_cursor = im ? im->start_cursor : 0;
	if (ejob_save(e, j) < 0) {
		/* Nothing was given to anybody: as before, and tried again. */
		ejob_start_unbook(e, j, now_ns);
		memcpy(j->node, node_before, sizeof(node_before));
		j->epoch--;
		return false;
	}
	return true;
}

void ejob_start_unbook(struct engine *e, struct ejob *j, uint64_t now_ns)
{
	ejob_release_slots(e, j);
	move_unrecord(j);
	j->alive = false;
	j->state = REST_JOB_QUEUED;
	j->retry_at_ns = now_ns + NS_PER_S;
}

void ejob_start_give(struct engine *e, struct ejob *j, struct enode *n, const struct ejob_image *im,
		     bool im_is_saved, const struct engine_gang_start *gang, uint64_t now_ns)
{
	j->lease_until_ns = now_ns + (e->config.lease_ms + e->config.lease_margin_ms) * NS_PER_MS;
	j->from = im && im_is_saved ? *im : (struct ejob_image){ 0 };
	j->saved = (struct ejob_image){ 0 };
	j->saved_final = false;
	j->inc_ran_ms = j->unsaved_ms = j->lost_ms = j->move_bytes = 0;
	j->dest[0] = j->stage[0] = j->stage_image[0] = j->notice_id[0] = '\0';
	j->standby_until_ns = 0;
	j->retry_at_ns = 0;
	j->gang_end = CONTROL_END_NONE;
	j->gang_noticed = false;
	j->gang_stop_ns = 0;
	send_start(e, j, n, im, gang);
	j->cause[0] = '\0';
}

void ejob_wait_reason(struct engine *e, struct ejob *j, const char *why)
{
	if (strcmp(j->reason, why) == 0)
		return;
	(void)snprintf(j->reason, sizeof(j->reason), "%s", why);
	ejob_changed(e, j);
}
