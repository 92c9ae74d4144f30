/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: one stream to each member. Keys are placed by rendezvous hashing, so
 * that a change of membership moves only the keys that must. A keyed send
 * after a change waits until every member has taken what it was sent before,
 * which keeps each key's order. What a lost or leaving member has not made
 * stable is sent again, to the others.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "stream/node_internal.h"

enum { GROUP_NUMBER = 0x67000000 }; /* streams of groups stand apart from the caller's */

static struct group_member *member_find(struct reclaim_group *g, const char *name, size_t len)
{
	VEC_EACH(&g->members, m)
		if (strlen(m->name) == len && !memcmp(m->name, name, len))
			return m;
	return NULL;
}

static struct group_member *pick(struct reclaim_group *g, enum reclaim_pick how, uint64_t key)
{
	struct group_member *best = NULL;
	uint64_t best_score = 0;

	VEC_EACH(&g->members, m) {
		uint64_t score;

		if (m->leaving || m->out->error)
			continue;
		if (how == RECLAIM_BY_KEY)
			score = hash_sip24(m->name, strlen(m->name), key, 0x6b6579);
		else
			score = UINT64_MAX - (m->out->tx.last - m->out->tx.delivered);
		if (!best || score > best_score) {
			best = m;
			best_score = score;
		}
	}
	return best;
}

static void add_member(struct reclaim_group *g, const char *name, size_t len)
{
	struct group_member m = { 0 };

	memcpy(m.name, name, len);
	if (!stream_name_valid(m.name))
		return;
	m.out = out_new(g->node, m.name, GROUP_NUMBER | (uint32_t)g->cls, g->cls);
	if (!m.out)
		return;
	m.out->owned_by_group = true;
	if (VEC_PUSH(&g->members, m) < 0) {
		out_free(m.out);
		return;
	}
	out_pump(m.out);
	g->settling = true;
	node_event(g->node, "member joined", m.name, g->members.count, 0);
}

/* Sends again, to the others, what the member will not process any more. */
static void remove_member(struct reclaim_group *g, size_t at)
{
	struct group_member m = g->members.data[at];
	struct reclaim_stream *o = m.out;
	struct segment *s;

	VEC_REMOVE(&g->members, at);
	g->settling = true;
	node_event(g->node, "member left", m.name, g->members.count, o->tx.last - o->tx.stable);
	TAILQ_FOREACH(s, &o->segments, next) {
		const uint8_t *p = s->kind == SEGMENT_RUN ? segment_bytes(o, s) : s->data;

		for (uint32_t i = 0; p && i < s->count; i++) {
			uint32_t len = s->len;

			if (s->kind == SEGMENT_RUN) {
				len = load_le32(p);
				p += STREAM_RECORD_HEAD;
			}
			if (s->seq + i > MAX(o->tx.stable, o->node->level == 0 ? o->tx.delivered : 0)) {
				struct group_member *to = pick(g, RECLAIM_LEAST_LOADED, 0);
				struct iovec iov = { (void *)(uintptr_t)p, len };

				if (to && out_append(to->out, &iov, 1, len) == 0)
					out_pump(to->out);
			}
			p += len;
		}
	}
	out_free(o);
}

void group_changed(struct reclaim_node *n, const char *name, const uint8_t *list, size_t len)
{
	struct reclaim_group *g;

	TAILQ_FOREACH(g, &n->groups, entry) {
		if (strcmp(g->name, name))
			continue;
		g->known = true;
		VEC_EACH(&g->members, m)
			m->leaving = true;
		for (size_t at = 0; at < len;) {
			const uint8_t *end = memchr(list + at, '\n', len - at);
			size_t k = end ? (size_t)(end - list) - at : len - at;
			struct group_member *m = member_find(g, (const char *)list + at, k);

			if (m)
				m->leaving = false;
			else if (k <= STREAM_NAME_MAX)
				add_member(g, (const char *)list + at, k);
			at += k + 1;
		}
		/* Nobody left: keep what is owed until somebody joins. */
		bool any = false;
		VEC_EACH(&g->members, m)
			any |= !m->leaving;
		for (size_t i = g->members.count; any && i-- > 0;)
			if (g->members.data[i].leaving)
				remove_member(g, i);
		node_wake(n);
	}
}

void group_timer(struct reclaim_node *n)
{
	struct reclaim_group *g;

	TAILQ_FOREACH(g, &n->groups, entry)
		reg_members(g);
}

static bool settled(struct reclaim_group *g)
{
	if (!g->settling)
		return true;
	VEC_EACH(&g->members, m)
		if (!m->out->error && m->out->tx.delivered < m->out->tx.last)
			return false;
	g->settling = false;
	return true;
}

int reclaim_group_open(struct reclaim_node *n, const char *group, enum reclaim_class cls,
		       struct reclaim_group **ret)
{
	struct reclaim_group *g;

	if (!stream_name_valid(group) || (unsigned)cls >= STREAM_CLASS_COUNT)
		return -EINVAL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->node = n;
	snprintf(g->name, sizeof(g->name), "%s", group);
	g->cls = cls;
	node_lock(n);
	node_now(n);
	TAILQ_INSERT_TAIL(&n->groups, g, entry);
	reg_members(g);
	*ret = g;
	pthread_mutex_unlock(&n->lock);
	return 0;
}

int reclaim_group_send(struct reclaim_group *g, enum reclaim_pick how, uint64_t key,
		       const void *data, size_t len, unsigned flags, int timeout_ms)
{
	struct reclaim_node *n = g->node;
	uint64_t deadline = node_deadline(timeout_ms);
	struct iovec iov = { (void *)(uintptr_t)data, len };
	int r = 0;

	if (len > STREAM_MESSAGE_MAX)
		return -EMSGSIZE;
	node_lock(n);
	node_now(n);
	for (;;) {
		struct group_member *m = pick(g, how, key);

		if (n->owner.state == OWNER_GONE)
			r = -ESTALE;
		else if (m && (how != RECLAIM_BY_KEY || settled(g)) && out_has_room(m->out, len)) {
			r = out_append(m->out, &iov, 1, len);
			if (r == 0 && (flags & RECLAIM_MORE) && m->out->unsent < SEGMENT_MAX) {
				n->deferred = true;
			} else if (r == 0) {
				out_pump(m->out);
				link_flush_all(n);
			}
			break;
		}
		if (r < 0)
			break;
		if (timeout_ms == 0) {
			node_turn(n, 0);
			r = -EAGAIN;
			break;
		}
		r = node_wait(n, deadline);
		if (r < 0)
			break;
	}
	pthread_mutex_unlock(&n->lock);
	return r;
}

int reclaim_group_members(struct reclaim_group *g)
{
	int count = 0;

	node_lock(g->node);
	VEC_EACH(&g->members, m)
		count += !m->leaving;
	pthread_mutex_unlock(&g->node->lock);
	return count;
}

void group_free(struct reclaim_group *g)
{
	VEC_EACH(&g->members, m)
		out_free(m->out);
	VEC_DONE(&g->members);
	TAILQ_REMOVE(&g->node->groups, g, entry);
	free(g);
}

void reclaim_group_close(struct reclaim_group *g)
{
	struct reclaim_node *n = g->node;

	node_lock(n);
	node_now(n);
	group_free(g);
	pthread_mutex_unlock(&n->lock);
}
