/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planned move. S: PREPARE (connect, state ahead, senders connect ahead),
 * freeze at a message boundary, send what is left and the cut. T: install,
 * commit in the register, welcome the senders. The decisions are owner.c's.
 *
 * State is regions, which travel while S still runs and whose dirty pages go
 * again after the freeze; what save() writes; and the library's own: cursors
 * and retained output (image.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream/node_internal.h"

enum { STATE_HEAD = STREAM_FRAME_HEAD + 9, REGION_HEAD = 12, PAGE = 4096, LOAD_MAX = 1 << 30,
       FREEZE_PAGES = 32, ROUNDS_MAX = 12, AHEAD_WAIT_MS = 50 };

struct reclaim_sink {
	struct strbuf *to;
};

int reclaim_sink_write(struct reclaim_sink *sink, const void *bytes, size_t len)
{
	return sink->to->len + len > LOAD_MAX ? -EFBIG : strbuf_append(sink->to, bytes, len);
}

void move_end(struct reclaim_node *n)
{
	struct move *m = &n->move;

	if (m->link) {
		struct link *l = m->link;

		m->link = NULL;
		l->state_ready = false;
		if (m->source)
			link_close(l, "move ended"); /* it may hold pieces of what is freed now */
	}
	strbuf_done(&m->opaque);
	strbuf_done(&m->library);
	seal_wipe(m->session, sizeof(m->session));
	memset(m, 0, sizeof(*m));
	VEC_EACH(&n->regions, r) {
		free(r->dirty);
		r->dirty = NULL;
		r->sent = r->dirty_from = 0;
	}
}

/* --- S --- */

static void offer(struct reclaim_node *n)
{
	struct move *m = &n->move;
	struct stream_frame f = { .type = STREAM_FRAME_OFFER, .cls = STREAM_CONTROL,
				  .epoch = n->owner.epoch + 1, .hid = m->hid, .blob = m->ticket,
				  .blob_len = m->ticket_len };

	memcpy(f.name, n->name, sizeof(f.name));
	memcpy(f.producer, n->name, sizeof(f.producer));
	m->offered = true;
	link_send(m->link, &f);
}

static void tell_senders(struct reclaim_node *n)
{
	struct stream_frame f = { .type = STREAM_FRAME_PREPARE, .epoch = n->owner.epoch + 1 };
	struct link *l;

	memcpy(f.name, n->name, sizeof(f.name));
	memcpy(f.locator, n->move.locator, sizeof(f.locator));
	TAILQ_FOREACH(l, &n->links, entry)
		if (l->incoming && l->up && l->ins.count)
			link_send(l, &f);
}

void move_begin(struct reclaim_node *n)
{
	struct move *m = &n->move;

	if (!m->source || m->hid != n->owner.hid) {
		struct move keep = *m;

		/* The way to the target came with the news of the attempt. */
		if (m->source && m->link) {
			struct link *l = m->link;

			m->link = NULL;
			link_close(l, "a newer attempt");
		}
		strbuf_done(&m->opaque);
		strbuf_done(&m->library);
		memset(m, 0, sizeof(*m));
		memcpy(m->locator, keep.locator, sizeof(m->locator));
		memcpy(m->ticket, keep.ticket, sizeof(m->ticket));
		m->ticket_len = keep.ticket_len;
		memcpy(m->session, keep.session, sizeof(m->session));
		m->source = true;
		m->hid = n->owner.hid;
		m->began_ns = n->now_ns;
		VEC_EACH(&n->regions, r) {
			free(r->dirty);
			r->dirty = calloc(1, (r->len / PAGE + 8) / 8);
			r->sent = r->dirty_from = 0;
		}
		node_event(n, "prepare", m->locator, n->owner.epoch, m->hid);
		tell_senders(n);
	}
	if (!m->ticket_len)
		return; /* not told yet */
	m->link = link_connect(n, m->locator, n->owner.epoch + 1, m->ticket, m->ticket_len,
			       m->session);
	if (m->link && m->link->up && !m->offered)
		offer(n);
	if (!m->link)
		node_soon(n, n->now_ns + 5 * NS_PER_MS);
}

void move_link_up(struct link *l)
{
	if (l->node->move.source && l->node->move.link == l && !l->node->move.offered)
		offer(l->node);
}

void move_link_down(struct link *l)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;

	l->state_ready = false;
	if (m->link != l)
		return;
	m->link = NULL;
	if (m->source) {
		/* Begin again from the start, as long as the attempt lives. */
		m->offered = m->peer_ready = m->ahead_done = false;
		m->ahead = 0;
		m->rounds = 0;
		m->opaque_sent = m->library_sent = m->state_bytes = 0;
		VEC_EACH(&n->regions, r)
			r->sent = r->dirty_from = 0;
		node_soon(n, n->now_ns + 5 * NS_PER_MS);
	} else if (m->target && n->owner.state == OWNER_STANDBY) {
		move_end(n);
	}
}

static void mark(struct region *r, uint64_t offset, uint64_t len)
{
	for (uint64_t p = offset / PAGE; r->dirty && len && p <= (offset + len - 1) / PAGE; p++)
		r->dirty[p / 8] |= (uint8_t)(1u << (p % 8));
}

void reclaim_region_dirty(struct reclaim_node *n, uint32_t id, uint64_t offset, uint64_t len)
{
	/* Taken only while a move is on: the flag is set before any byte is read. */
	if (!__atomic_load_n(&n->move.source, __ATOMIC_ACQUIRE))
		return;
	node_lock(n);
	VEC_EACH(&n->regions, r)
		if (r->id == id && offset < r->len)
			mark(r, offset, MIN(len, r->len - offset));
	pthread_mutex_unlock(&n->lock);
}

static size_t send_piece(struct link *l, uint8_t kind, const struct region *r, uint64_t offset,
			 const uint8_t *p, uint32_t len)
{
	struct move *m = &l->node->move;
	uint8_t *head = link_head(l);
	uint32_t extra = r ? REGION_HEAD : 0;

	store_le32(head, STREAM_FRAME_STATE | STREAM_BULK << 8);
	store_le32(head + 4, 9 + extra + len);
	store_le64(head + 8, m->hid);
	head[16] = kind;
	if (r) {
		store_le32(head + 17, r->id);
		store_le64(head + 21, offset);
	}
	link_pend(l, head, STATE_HEAD + extra, NULL);
	link_pend(l, p, len, NULL);
	m->state_bytes += len;
	return len + STATE_HEAD + extra;
}

/* The next run of dirty pages; false when there is none. */
static bool next_dirty(struct region *r, uint32_t max, uint64_t *ret_at, uint32_t *ret_len)
{
	uint64_t pages = (r->len + PAGE - 1) / PAGE, p = r->dirty_from;

	if (!r->dirty)
		return false;
	while (p < pages && !(r->dirty[p / 8] & (1u << (p % 8))))
		p = p % 8 == 0 && !r->dirty[p / 8] ? p + 8 : p + 1;
	if (p >= pages)
		return false;
	uint64_t end = p;

	while (end < pages && (end - p + 1) * PAGE <= MAX(max, (uint32_t)PAGE) &&
	       (r->dirty[end / 8] & (1u << (end % 8)))) {
		r->dirty[end / 8] &= (uint8_t)~(1u << (end % 8));
		end++;
	}
	r->dirty_from = end;
	*ret_at = p * PAGE;
	*ret_len = (uint32_t)(MIN(end * PAGE, r->len) - p * PAGE);
	return true;
}

static size_t gather_regions(struct link *l, size_t budget, bool dirty)
{
	struct reclaim_node *n = l->node;

	VEC_EACH(&n->regions, r) {
		if (r->sent < r->len) {
			uint32_t len = (uint32_t)MIN((uint64_t)budget, r->len - r->sent);
			uint64_t at = r->sent;

			r->sent += len;
			return send_piece(l, STREAM_STATE_AHEAD, r, at, r->data + at, len);
		}
		uint64_t at;
		uint32_t len;

		if (dirty && next_dirty(r, (uint32_t)budget, &at, &len))
			return send_piece(l, STREAM_STATE_AHEAD, r, at, r->data + at, len);
	}
	return 0;
}

static uint64_t dirty_pages(const struct reclaim_node *n)
{
	uint64_t count = 0;

	for (size_t i = 0; i < n->regions.count; i++) {
		const struct region *r = &n->regions.data[i];

		for (uint64_t p = 0; r->dirty && p < (r->len / PAGE + 8) / 8; p++)
			count += (uint64_t)__builtin_popcount(r->dirty[p]);
	}
	return count;
}

static size_t gather_text(struct link *l, uint8_t kind, const struct strbuf *b, uint64_t *sent,
			  size_t budget)
{
	uint32_t len = (uint32_t)MIN(b->len - *sent, budget);
	size_t n;

	if (!len)
		return 0;
	n = send_piece(l, kind, NULL, 0, (const uint8_t *)b->data + *sent, len);
	*sent += len;
	return n;
}

size_t move_gather(struct link *l, size_t budget)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;
	size_t got;

	budget = MIN(MAX(budget, (size_t)SLICE_MIN), (size_t)STREAM_BODY_MAX / 2);
	got = gather_regions(l, budget, m->final || m->rounds);
	if (got)
		return got;
	if (!m->final && m->rounds < ROUNDS_MAX && dirty_pages(n) > FREEZE_PAGES) {
		/* Again while it runs on: what is left for the freeze should be little. */
		m->rounds++;
		VEC_EACH(&n->regions, r)
			r->dirty_from = 0;
		return gather_regions(l, budget, true);
	}
	if (!m->final) {
		l->state_ready = false;
		if (!m->ahead_done) {
			m->ahead_done = true;
			m->freeze_wanted = true;
			/* The freeze itself is for the turn, or the next receive call. */
		}
		return 0;
	}
	got = gather_text(l, STREAM_STATE_FINAL, &m->opaque, &m->opaque_sent, budget);
	if (!got)
		got = gather_text(l, STREAM_STATE_LIBRARY, &m->library, &m->library_sent, budget);
	if (got)
		return got;
	l->state_ready = false;
	if (!m->cut_sent || m->cut_ns == 0) {
		struct stream_frame f = { .type = STREAM_FRAME_CUT, .hid = m->hid,
					  .limit = m->state_bytes, .stable = m->opaque.len,
					  .seq = m->library.len };

		m->cut_sent = true;
		m->cut_ns = n->now_ns;
		link_send(l, &f);
	}
	return 0;
}

/* Who is not connected to T by the freeze costs the cutover a route, a connection and an
 * attach. So they are waited for, which costs nobody anything: S still delivers. */
static bool senders_are_ahead(struct reclaim_node *n)
{
	uint64_t until = n->move.ready_ns + AHEAD_WAIT_MS * NS_PER_MS;
	uint32_t attached = 0;

	if (n->now_ns >= until)
		return true;
	VEC_EACH(&n->ins, p)
		attached += (*p)->link != NULL;
	if (n->move.ahead >= attached)
		return true;
	node_soon(n, until);
	return false;
}

void move_try_freeze(struct reclaim_node *n, bool in_receive)
{
	struct move *m = &n->move;

	if (!m->source || !m->freeze_wanted || !m->peer_ready || !senders_are_ahead(n))
		return;
	/* Between two messages: inside a receive call, or when the application keeps
	 * nothing that a message in its hands could still change. */
	if (!in_receive && n->received_once &&
	    (n->options.save || n->regions.count || !TAILQ_EMPTY(&n->outs)))
		return;
	m->freeze_wanted = false;
	node_act(n, owner_freeze(&n->owner, n->now_ns + n->options.freeze_ms * NS_PER_MS,
				 n->now_ns));
}

void move_send_cut(struct reclaim_node *n)
{
	struct move *m = &n->move;
	struct reclaim_sink sink = { &m->opaque };

	m->final = true;
	m->frozen_ns = n->now_ns;
	m->cut_ns = 0;
	m->cut_sent = false;
	strbuf_clear(&m->opaque);
	strbuf_clear(&m->library);
	if (image_write(n, &m->library) < 0 ||
	    (n->options.save && n->options.save(n->options.arg, &sink) < 0)) {
		/* Without its state the endpoint stays here. */
		node_event(n, "save failed", n->name, n->owner.epoch, m->hid);
		n->owner.freeze_deadline_ns = n->now_ns;
		node_soon(n, n->now_ns);
		return;
	}
	VEC_EACH(&n->regions, r)
		r->dirty_from = 0;
	node_event(n, "freeze", n->name, n->owner.epoch, m->hid);
	if (m->link && m->peer_ready)
		m->link->state_ready = true;
}

void move_resumed(struct reclaim_node *n)
{
	node_event(n, "resume", n->name, n->owner.epoch, n->move.hid);
	move_end(n);
}

/* --- T --- */

static void move_refuse(struct link *l, uint64_t hid, uint32_t code)
{
	struct stream_frame f = { .type = STREAM_FRAME_MOVED, .hid = hid, .code = code };

	link_send(l, &f);
}

static void tell_ready(struct reclaim_node *n)
{
	struct stream_frame f = { .type = STREAM_FRAME_READY, .hid = n->move.hid };
	struct link *l;

	TAILQ_FOREACH(l, &n->links, entry)
		f.code += (uint32_t)l->waiting.count;
	link_send(n->move.link, &f);
}

void move_attached_ahead(struct reclaim_node *n)
{
	if (n->move.target && n->move.link)
		tell_ready(n);
}

static void on_offer(struct link *l, const struct stream_frame *f)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;
	struct seal_ticket t;

	if (strcmp(f->name, n->name) || n->key_next_epoch != f->epoch ||
	    seal_ticket_open(n->key_next, n->name, f->epoch, f->blob, f->blob_len, &t) < 0 ||
	    strcmp(t.producer, n->name) || t.producer_epoch + 1 != f->epoch) {
		link_close(l, "offer refused"); /* S tries again: our key may be on its way */
		return;
	}
	if (n->owner.state != OWNER_STANDBY) {
		move_refuse(l, f->hid, 1);
		return;
	}
	move_end(n);
	m->target = true;
	m->hid = f->hid;
	m->link = l;
	m->began_ns = n->now_ns;
	tell_ready(n);
	node_event(n, "offered", n->name, f->epoch, f->hid);
}

int move_state_bytes(struct link *l, const struct stream_frame *f, const uint8_t *p, uint32_t len)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;

	if (!m->target || m->link != l || m->hid != f->hid)
		return 0; /* of an attempt that is over */
	if (f->kind == STREAM_STATE_AHEAD) {
		if (len < REGION_HEAD)
			return -EBADMSG;
		uint32_t id = load_le32(p);
		uint64_t at = load_le64(p + 4);

		len -= REGION_HEAD;
		VEC_EACH(&n->regions, r)
			if (r->id == id && at <= r->len && len <= r->len - at) {
				memcpy(r->data + at, p + REGION_HEAD, len);
				m->state_bytes += len;
				return 0;
			}
		return -EBADMSG; /* a region that we don't have: the two programs differ */
	}
	struct strbuf *b = f->kind == STREAM_STATE_FINAL ? &m->opaque : &m->library;

	if (b->len + len > LOAD_MAX)
		return -EBADMSG;
	m->state_bytes += len;
	return strbuf_append(b, p, len);
}

static void on_cut(struct link *l, const struct stream_frame *f)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;

	if (!m->target || m->link != l || m->hid != f->hid)
		return;
	if (m->state_bytes != f->limit || m->opaque.len != f->stable || m->library.len != f->seq ||
	    image_read(n, m->library.data, m->library.len) < 0) {
		link_close(l, "incomplete state");
		return;
	}
	m->cut_ns = n->now_ns;
	node_event(n, "installed", n->name, n->owner.epoch, f->hid);
	node_act(n, owner_on_installed(&n->owner, f->hid));
}

void move_committed(struct reclaim_node *n)
{
	struct move *m = &n->move;
	struct stream_frame f = { .type = STREAM_FRAME_MOVED, .hid = m->hid,
				  .epoch = n->owner.epoch };

	m->committed_ns = n->now_ns;
	m->load_due = n->options.load != NULL;
	n->stats.moves_in++;
	if (m->link)
		link_send(m->link, &f);
	n->recovered = false;
}

int move_load(struct reclaim_node *n)
{
	struct move *m = &n->move;
	int r;

	m->load_due = false;
	r = n->options.load(n->options.arg, m->opaque.data ? m->opaque.data : "", m->opaque.len);
	if (r < 0) {
		/* Nothing was delivered yet, so another can take over from the cut. */
		node_event(n, "load failed", n->name, n->owner.epoch, (uint64_t)-r);
		n->owner.state = OWNER_GONE;
		reg_release(n);
		return r;
	}
	strbuf_done(&m->opaque);
	strbuf_done(&m->library);
	return 0;
}

void move_first_message(struct reclaim_node *n)
{
	if (!n->move.first_ns)
		n->move.first_ns = n->now_ns;
}

/* --- both --- */

static void on_ready(struct link *l, const struct stream_frame *f)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;

	if (!m->source || m->link != l || m->hid != f->hid)
		return;
	m->ahead = f->code;
	if (m->peer_ready)
		return; /* another sender is there: the turn looks whether all are */
	m->peer_ready = true;
	m->ready_ns = n->now_ns;
	if (m->final || n->regions.count) {
		l->state_ready = true; /* regions, or all of it when already frozen */
	} else if (!m->ahead_done) {
		m->ahead_done = true;
		m->freeze_wanted = true;
	}
}

static void on_moved(struct link *l, const struct stream_frame *f)
{
	struct reclaim_node *n = l->node;
	struct move *m = &n->move;

	if (!m->source || m->link != l || m->hid != f->hid)
		return;
	if (f->code == 0 && f->epoch == n->owner.epoch + 1) {
		/* T holds the key of the next epoch and says that it has committed. */
		struct owner_view v = { REGISTER_OWN, f->epoch, f->hid, false, false };

		n->moved = true;
		node_act(n, owner_on_view(&n->owner, &v, n->now_ns));
	} else if (f->code) {
		n->owner.freeze_deadline_ns = n->now_ns;
		if (n->owner.state == OWNER_ACTIVE)
			reg_abort(n);
		node_soon(n, n->now_ns);
	}
}

void move_frame(struct link *l, const struct stream_frame *f)
{
	switch (f->type) {
	case STREAM_FRAME_OFFER:
		on_offer(l, f);
		break;
	case STREAM_FRAME_CUT:
		on_cut(l, f);
		break;
	case STREAM_FRAME_READY:
		on_ready(l, f);
		break;
	default:
		on_moved(l, f);
	}
}
