/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gangs: jobs of several ranks, each on a machine of its own. Every rank is a
 * job of its own to the rest of the engine (id "JOB" for rank 0, "JOB.1", ...:
 * own leases, images, moves, output); this file makes one life of them.
 *
 *   start   all ranks or none, with one epoch: all are booked, then all told. A
 *           key that is made for that start alone goes with it; the ranks'
 *           tunnels speak under it.
 *   image   a rank's image is of use only with those of the same commit, by name
 *           and epoch, of all others. Durable is what every rank has durably; a
 *           start takes the newest commit that all have in reach, saved or durable.
 *   notice  when one machine is wanted back all ranks are told; each saves, the
 *           one that must is moved, those that need not stand still where they are
 *           and are ended when it has left.
 *   end     a rank that ended keeps how (gang_end) until no rank is left; then all
 *           ends are judged together: done if all are, a failure only if nothing
 *           but failures can be its cause, else all are started again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/rng.h"
#include "coordinator/engine_internal.h"

#define STOP_AGAIN_NS NS_PER_S

const char *gang_refusal(const struct job_spec *spec)
{
	if (spec->slots.ranks <= 1)
		return NULL;
	if (spec->slots.ranks > CONTROL_RANKS_MAX)
		return "at most 32 ranks can be joined";
	if (spec->checkpoint.driver == JOB_DRIVER_CRIU || spec->checkpoint.driver == JOB_DRIVER_CUDA)
		return "a rank's connections lead out of it, so it cannot be saved from outside: drivers "
		       "signal and poll only";
	if (spec->checkpoint.format == JOB_CKPT_FILES)
		return "ranks must name their commits (checkpoint.format: manifest), or nobody can tell which "
		       "belong together";
	return NULL;
}

size_t gang_members(struct engine *e, const struct ejob *j, struct ejob **ret)
{
	size_t count = 0;
	if (j->ranks == 1) {
		ret[0] = (struct ejob *)j;
		return 1;
	}
	for (uint64_t rank = 0; rank < j->ranks && count < CONTROL_RANKS_MAX; rank++) {
		char id[CONTROL_NAME_MAX + 24];
		if (rank)
			(void)snprintf(id, sizeof(id), "%s.%llu", j->gang, (unsigned long long)rank);
		struct ejob *m = engine_find(e, rank ? id : j->gang);
		if (m)
			ret[count++] = m;
	}
	return count;
}

struct ejob *gang_lead(struct engine *e, const struct ejob *j)
{
	return j->ranks == 1 ? (struct ejob *)j : engine_find(e, j->gang);
}

bool gang_is_at(struct engine *e, const struct ejob *j, const char *node)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	size_t count = gang_members(e, j, ranks);
	for (size_t i = 0; i < count; i++)
		if (ranks[i] != j && ranks[i]->alive && strcmp(ranks[i]->node, node) == 0)
			return true;
	return false;
}

/* ---- images ---- */

static bool same_commit(const struct ejob_image *a, const struct ejob_image *b)
{
	return a->digest[0] && b->digest[0] && a->commit[0] && a->epoch == b->epoch &&
	       strcmp(a->commit, b->commit) == 0;
}

bool gang_has_durable(struct engine *e, const struct ejob *j, const struct ejob_image *im)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	size_t count = gang_members(e, j, ranks);
	for (size_t i = 0; i < count; i++)
		if (ranks[i] != j && !same_commit(im, &ranks[i]->durable) && !same_commit(im, &ranks[i]->before))
			return false;
	return im->digest[0] && count == j->ranks;
}

static bool is_newer(const struct ejob_image *a, const struct ejob_image *b)
{
	return a->digest[0] && (!b->digest[0] || a->epoch > b->epoch || (a->epoch == b->epoch && a->seq > b->seq));
}

#define KINDS 3
static const struct ejob_image *image_of(const struct ejob *j, size_t kind)
{
	return kind == 0 ? &j->saved : kind == 1 ? &j->durable : &j->before;
}

/* That commit as this rank has it, where it can be had from `at`; NULL. */
static const struct ejob_image *find_commit(struct engine *e, const struct ejob *j,
					    const struct ejob_image *like, const struct enode *at)
{
	for (size_t k = 0; k < KINDS; k++)
		if (same_commit(image_of(j, k), like) && ejob_image_reachable(e, image_of(j, k), at))
			return image_of(j, k);
	return NULL;
}

/* The newest commit that all ranks have in reach, after `pass` newer ones; 0, or -ENOENT. */
static int choose_commit(struct engine *e, struct ejob *const *ranks, struct enode *const *nodes,
			 size_t count, size_t pass, const struct ejob_image **ret)
{
	const struct ejob_image *last = NULL, *order[KINDS];
	for (size_t k = 0; k < KINDS; k++) {
		size_t at = k;
		for (; at > 0 && is_newer(image_of(ranks[0], k), order[at - 1]); at--)
			order[at] = order[at - 1];
		order[at] = image_of(ranks[0], k);
	}
	for (size_t k = 0; k < KINDS; k++) {
		const struct ejob_image *like = order[k];
		size_t have = 0;
		if (last && same_commit(last, like))
			continue;
		while (have < count && (ret[have] = find_commit(e, ranks[have], like, nodes[have])))
			have++;
		if (have < count)
			continue;
		if (pass-- == 0)
			return 0;
		last = like;
	}
	return -ENOENT;
}

/* ---- starting ---- */

/* One machine for each rank, none twice. */
static bool choose_nodes(struct engine *e, struct ejob *const *ranks, size_t count, struct enode **ret,
			 uint64_t now_ns)
{
	for (size_t i = 0; i < count; i++) {
		double best_score = 0;
		void *value;
		ret[i] = NULL;
		for (size_t pos = 0; map_next(e->nodes, &pos, NULL, NULL, &value);) {
			struct enode *n = value;
			bool taken = enode_refusal(e, n, ranks[i], NULL, NULL) != NULL;
			for (size_t k = 0; k < i; k++)
				taken |= ret[k] == n;
			/* Where another rank's newest image lies, that rank may begin at once. */
			double score = taken ? 0 : enode_score(e, n, ranks[i], now_ns);
			for (size_t k = 0; k < count && !taken; k++)
				if (k != i && ejob_image_has(&ranks[k]->saved, n->name))
					score -= 0.5;
			if (!taken && (!ret[i] || score > best_score)) {
				ret[i] = n;
				best_score = score;
			}
		}
		if (!ret[i])
			return false;
	}
	return true;
}

static int shared_make(struct ejob *const *ranks, struct enode *const *nodes, size_t count,
		       struct engine_gang_start *ret)
{
	uint8_t key[CONTROL_KEY_HEX / 2];
	int r = random_bytes(key, sizeof(key));
	if (r < 0)
		return r;
	hex_encode(key, sizeof(key), ret->key);
	explicit_bzero(key, sizeof(key));
	for (size_t i = 0; i < count; i++) {
		struct enode *n = nodes[i];
		/* Each port in its turn: what the network remembers of a flow must not meet the next one.
		 * Not from the first after a restart of ours, for the same reason. */
		if (n->gang_ports_used == 0 &&
		    random_bytes(&n->gang_ports_used, sizeof(n->gang_ports_used)) < 0)
			return -EIO;
		ranks[i]->gang_port =
			n->hello.hello.gang_port + (int)(n->gang_ports_used++ % CONTROL_GANG_PORTS);
		ret->ranks[i] = (struct control_rank){ (char *)enode_host(n), ranks[i]->gang_port };
	}
	return 0;
}

static bool book_all(struct engine *e, struct ejob *const *ranks, struct enode *const *nodes,
		     size_t count, const struct ejob_image *const *images, uint64_t now_ns)
{
	uint64_t epoch = 0;
	for (size_t i = 0; i < count; i++)
		epoch = MAX(epoch, ranks[i]->epoch);
	for (size_t i = 0; i < count; i++) {
		unsigned slots[CONTROL_SLOTS_MAX];
		size_t slots_count = 0;
		ranks[i]->epoch = epoch; /* one number for all; one that was passed over is never used */
		if (!enode_refusal(e, nodes[i], ranks[i], slots, &slots_count) &&
		    ejob_start_book(e, ranks[i], nodes[i], slots, slots_count, images[i], now_ns)) {
			POINT("coordinator.gang.booked");
			continue;
		}
		/* None was told, so none runs: all wait again. */
		while (i-- > 0) {
			ejob_start_unbook(e, ranks[i], now_ns);
			(void)ejob_save(e, ranks[i]); /* else its lease is waited for */
		}
		return false;
	}
	return true;
}

bool gang_start(struct engine *e, struct ejob *lead, uint64_t now_ns)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	struct enode *nodes[CONTROL_RANKS_MAX];
	const struct ejob_image *images[CONTROL_RANKS_MAX] = { NULL };
	static struct ejob_image copies[CONTROL_RANKS_MAX];
	struct engine_gang_start shared;
	size_t count = gang_members(e, lead, ranks);
	for (size_t i = 0; i < count; i++)
		if (ranks[i]->retry_at_ns > now_ns) {
			engine_wake(e, ranks[i]->retry_at_ns);
			return false;
		}
	if (!choose_nodes(e, ranks, count, nodes, now_ns)) {
		char why[80];
		(void)snprintf(why, sizeof(why), "waits for %zu machines at once", count);
		ejob_wait_reason(e, lead, why);
		return false;
	}
	/* An image that failed to come or to unpack some times is passed over in its turn. */
	size_t pass = lead->start_failures >= ENGINE_START_FAILURES_DOUBT ? lead->start_failures % 2 : 0;
	if (choose_commit(e, ranks, nodes, count, pass, images) < 0 &&
	    choose_commit(e, ranks, nodes, count, 0, images) < 0) {
		memset(images, 0, sizeof(images));
		/* Of a commit that all had durably no rank may lack its part for good. */
		if (gang_has_durable(e, lead, &lead->durable) || gang_has_durable(e, lead, &lead->before)) {
			ejob_wait_reason(e, lead, "its last durable images are on machines that are not in reach");
			return false;
		}
	}
	if (shared_make(ranks, nodes, count, &shared) < 0 ||
	    !book_all(e, ranks, nodes, count, images, now_ns))
		return false;
	for (size_t i = 0; i < count; i++) {
		if (images[i])
			copies[i] = *images[i];
		bool saved = images[i] == &ranks[i]->saved;
		ejob_start_give(e, ranks[i], nodes[i], images[i] ? &copies[i] : NULL, saved, &shared, now_ns);
	}
	explicit_bzero(&shared, sizeof(shared));
	log_info("gang %s: %zu ranks started, epoch %llu, from %s", lead->id, count,
		 (unsigned long long)lead->epoch, images[0] ? copies[0].commit : "the start");
	return true;
}

/* ---- the end ---- */

static void stop_rank(struct engine *e, const struct ejob *j, enum control_end end, const char *why)
{
	struct control_message m = {
		.type = CONTROL_STOP,
		.stop = { .job = (char *)j->id, .epoch = j->epoch, .end = end, .reason = (char *)why },
	};
	(void)engine_send(e, j->node, &m); /* unheard: said again */
}

/* Told to save, and not done with it: its own deadline ends it. */
static bool is_leaving(const struct ejob *j)
{
	return j->notice_id[0] || j->gang_noticed || j->inc_state == CONTROL_JOB_NOTICED;
}

void gang_ended(struct engine *e, struct ejob *j, enum control_end end, int status,
		const char *reason, uint64_t now_ns)
{
	j->gang_end = end;
	j->exit_status = status;
	/* The image that it began from is still the newest where nothing came after it. */
	if (!j->saved.digest[0] && is_newer(&j->from, &j->durable))
		j->saved = j->from;
	if (end == CONTROL_END_DONE) {
		(void)snprintf(j->reason, sizeof(j->reason), "this rank has finished");
		ejob_changed(e, j);
		return;
	}
	ejob_end_requeue(e, j, end, reason, now_ns);
	if (end == CONTROL_END_FAILED && reason)
		(void)snprintf(j->reason, sizeof(j->reason), "%s", reason); /* where it goes on is not known yet */
}

/* What all ends together mean. */
static enum control_end judge(struct ejob *const *ranks, size_t count, struct ejob **ret)
{
	size_t done = 0;
	struct ejob *failed = NULL;
	bool excused = false;
	for (size_t i = 0; i < count; i++) {
		switch (ranks[i]->gang_end) {
		case CONTROL_END_DONE:
			done++;
			break;
		case CONTROL_END_TIME_LIMIT:
			*ret = ranks[i];
			return CONTROL_END_TIME_LIMIT;
		case CONTROL_END_FAILED:
			failed = failed ? failed : ranks[i];
			break;
		case CONTROL_END_NONE:
		case CONTROL_END_KILLED:
			break;
		default:
			excused = true; /* a peer that vanishes makes the best program fail */
		}
	}
	*ret = failed;
	if (done == count)
		return CONTROL_END_DONE;
	return failed && !excused ? CONTROL_END_FAILED : CONTROL_END_RESTART;
}

static void finish(struct engine *e, struct ejob *j, enum job_event event, int status, const char *reason)
{
	ejob_end_final(j, e, event, status, reason);
	if (ejob_save(e, j) == 0)
		ejob_confirm_end(e, j);
}

/* Written rank by rank, rank 0 last: until then this is judged again, with the same outcome. */
static void finish_all(struct engine *e, struct ejob *const *ranks, size_t count, enum job_event event,
		       int status, const char *reason)
{
	for (size_t i = count; i-- > 0;) {
		/* Its own status is what a rank is known by; that of the gang is rank 0's. */
		bool own = event == JOB_EVENT_DONE || ranks[i]->gang_end == CONTROL_END_FAILED;
		if (!rest_job_state_is_final(ranks[i]->state))
			finish(e, ranks[i], event, own && i ? ranks[i]->exit_status : status, reason);
	}
}

static void restart_all(struct engine *e, struct ejob *const *ranks, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct ejob *j = ranks[i];
		j->gang_end = CONTROL_END_NONE;
		j->gang_noticed = false;
		if (j->state != REST_JOB_QUEUED) /* it had finished, and does its last part again */
			(void)ejob_event(e, j, JOB_EVENT_REQUEUE, "again, with the others");
		(void)ejob_save(e, j); /* else it is judged again after a restart of ours */
	}
}

/* True if there is nothing to judge, or all ranks wait for a start afterwards. */
static bool judge_all(struct engine *e, struct ejob *const *ranks, size_t count)
{
	bool any = false;
	for (size_t i = 0; i < count; i++)
		any |= ranks[i]->gang_end != CONTROL_END_NONE;
	if (!any)
		return true;
	struct ejob *cause = NULL, *lead = ranks[0];
	char reason[CONTROL_TEXT_MAX];
	enum control_end end = judge(ranks, count, &cause);
	if (end == CONTROL_END_DONE) {
		finish_all(e, ranks, count, JOB_EVENT_DONE, lead->exit_status, "");
		return false;
	}
	if (end == CONTROL_END_TIME_LIMIT) {
		finish_all(e, ranks, count, JOB_EVENT_FAILED, 124, "its time limit is reached");
		return false;
	}
	if (end == CONTROL_END_FAILED) {
		lead->failures++;
		if (lead->failures >= MAX(lead->spec.failure_limit, (uint64_t)1)) {
			(void)snprintf(reason, sizeof(reason), "rank %llu: %.900s",
				       (unsigned long long)cause->rank, cause->reason);
			finish_all(e, ranks, count, JOB_EVENT_FAILED,
				   cause->exit_status ? cause->exit_status : 1, reason);
			return false;
		}
	}
	restart_all(e, ranks, count);
	return true;
}

bool gang_ready(struct engine *e, struct ejob *lead)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	size_t count = gang_members(e, lead, ranks);
	if (rest_job_state_is_final(lead->state) || count < lead->ranks)
		return false;
	for (size_t i = 0; i < count; i++)
		if (ranks[i]->alive || ranks[i]->move_pending)
			return false;
	if (!judge_all(e, ranks, count))
		return false;
	for (size_t i = 0; i < count; i++)
		if (ranks[i]->state != REST_JOB_QUEUED)
			return false;
	return true;
}

/* ---- a reclaim ---- */

static void send_notice(struct engine *e, struct ejob *to, const struct ejob *cause, uint64_t window_ms,
			bool cancelled, uint64_t now_ns)
{
	char reason[CONTROL_NAME_MAX + 60];
	(void)snprintf(reason, sizeof(reason), "rank %llu on %s is wanted back",
		       (unsigned long long)cause->rank, cause->node);
	struct control_message m = {
		.type = CONTROL_NOTICE,
		.notice = { .job = to->id,
			    .epoch = to->epoch,
			    .notice_id = (char *)cause->notice_id,
			    .reason = reason,
			    .remaining_ms = cause->notice_deadline_ns > now_ns ?
						    (cause->notice_deadline_ns - now_ns) / NS_PER_MS : 0,
			    .window_ms = window_ms,
			    .cancelled = cancelled },
	};
	POINT("coordinator.gang.notice");
	(void)engine_send(e, to->node, &m); /* unheard: it is ended with the one that leaves */
}

void gang_notice(struct engine *e, struct ejob *j, uint64_t window_ms, uint64_t now_ns)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	size_t count = j->ranks > 1 ? gang_members(e, j, ranks) : 0;
	for (size_t i = 0; i < count; i++) {
		struct ejob *to = ranks[i];
		if (to == j || !to->alive || is_leaving(to))
			continue;
		to->gang_noticed = true;
		to->saved_final = false;
		to->notice_deadline_ns = j->notice_deadline_ns;
		send_notice(e, to, j, window_ms, false, now_ns);
		(void)ejob_event(e, to, JOB_EVENT_NOTICE, "rank %llu on %s is wanted back",
				 (unsigned long long)j->rank, j->node);
	}
}

void gang_notice_cancel(struct engine *e, struct ejob *j)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	size_t count = j->ranks > 1 ? gang_members(e, j, ranks) : 0;
	for (size_t i = 0; i < count; i++)
		if (ranks[i]->notice_id[0] || (!ranks[i]->alive && ranks[i]->gang_end != CONTROL_END_DONE))
			return; /* another is leaving still, or has left: nobody goes on without it */
	for (size_t i = 0; i < count; i++) {
		if (!ranks[i]->gang_noticed)
			continue;
		ranks[i]->gang_noticed = false;
		send_notice(e, ranks[i], j, 0, true, 0);
		(void)ejob_event(e, ranks[i], JOB_EVENT_KEPT, "the notice was withdrawn");
	}
}

/* The rank without which nobody can go on; NULL = none. */
static const struct ejob *missing(struct ejob *const *ranks, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!ranks[i]->alive && ranks[i]->gang_end != CONTROL_END_NONE &&
		    ranks[i]->gang_end != CONTROL_END_DONE)
			return ranks[i];
	return NULL;
}

void gang_settle(struct engine *e, struct ejob *j, uint64_t now_ns)
{
	struct ejob *ranks[CONTROL_RANKS_MAX];
	if (j->ranks == 1 || rest_job_state_is_final(j->state))
		return;
	if (!gang_lead(e, j)) {
		finish(e, j, JOB_EVENT_FAILED, 1, "its gang was never written as a whole");
		return;
	}
	size_t count = gang_members(e, j, ranks);
	const struct ejob *gone = missing(ranks, count);
	bool somebody_has_time = false;
	for (size_t i = 0; i < count; i++)
		somebody_has_time |= ranks[i]->alive && ranks[i]->notice_id[0];
	for (size_t i = 0; i < count; i++) {
		struct ejob *m = ranks[i];
		char why[200];
		bool late = m->gang_noticed &&
			    now_ns >= m->notice_deadline_ns + e->config.lease_margin_ms * NS_PER_MS;
		/* Who must leave has left, and this one waits for nothing but the next start: its last
		 * image was final when it was taken, or it stands still behind it since. */
		bool saved = m->saved_final || m->inc_state == CONTROL_JOB_MOVING;
		bool waits = gone && m->gang_noticed && saved && !somebody_has_time;
		if (!m->alive || m->notice_id[0] || now_ns < m->gang_stop_ns ||
		    !(late || waits || (gone && !is_leaving(m))))
			continue;
		(void)snprintf(why, sizeof(why), "rank %llu ended: %.120s",
			       gone ? (unsigned long long)gone->rank : 0, gone ? gone->reason : "late");
		m->gang_stop_ns = now_ns + STOP_AGAIN_NS; /* its agent may not be in reach now */
		stop_rank(e, m, waits ? CONTROL_END_RECLAIMED : CONTROL_END_KILLED, why);
	}
}
