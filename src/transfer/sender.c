/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of sending and fetching: one helper per transfer, queued per
 * (job, peer, direction). Order of the calls is order of the images: a later
 * one takes the place of one that waits, and a later one with a deadline also
 * ends one that runs in the background. What that had moved is not lost: chunks
 * it shares with the newer image are at the receiver.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/parse.h"
#include "transfer/child.h"
#include "transfer/transfer.h"

#define CANCEL_GRACE_MS 3000u

enum sender_state { SENDER_WAITING, SENDER_RUNNING };

struct transfer_sender {
	struct transfer_sender *next;
	uv_loop_t *loop;
	uv_timer_t start; /* begins or ends a waiting one, on the loop */
	enum sender_state state;
	struct child *child;
	char program[PATH_MAX];
	struct message config;
	enum traffic_class traffic_class;
	struct transfer_sender_callbacks cb;
	void *arg;
	bool done; /* its last message came */
	enum transfer_code code;
	enum transfer_code code_forced; /* cancelled or superseded by us */
	struct diag diag;
	struct transfer_result result;
};

/* All transfers of the process: there is one agent, with one loop, per process. */
static struct transfer_sender *senders;

static bool same_key(const struct transfer_sender *a, const struct transfer_sender *b)
{
	return a->loop == b->loop && a->config.type == b->config.type && a->config.port == b->config.port &&
	       strcmp(a->config.job, b->config.job) == 0 && strcmp(a->config.host, b->config.host) == 0;
}

static void unlink_sender(struct transfer_sender *t)
{
	for (struct transfer_sender **p = &senders; *p; p = &(*p)->next) {
		if (*p == t) {
			*p = t->next;
			return;
		}
	}
}

static void on_closed(uv_handle_t *h)
{
	struct transfer_sender *t = h->data;

	if (t->done && t->code == TRANSFER_OK) {
		if (t->cb.done)
			t->cb.done(t->arg, &t->result);
	} else if (t->cb.failed) {
		t->cb.failed(t->arg, t->code, &t->diag);
	}
	message_done(&t->config);
	free(t);
}

static void finish(struct transfer_sender *t)
{
	struct transfer_sender *waiting = NULL;

	unlink_sender(t);
	if (!t->done || t->code != TRANSFER_OK) {
		if (t->code_forced) {
			t->code = t->code_forced;
			diag_set(&t->diag, 0, "", t->code == TRANSFER_E_SUPERSEDED ?
							  "a newer image took its place" : "cancelled");
		} else if (!t->done) {
			t->code = TRANSFER_E_CRASHED;
		}
	}
	for (struct transfer_sender *o = senders; o; o = o->next)
		if (o->state == SENDER_WAITING && same_key(o, t))
			waiting = o;
	if (waiting)
		uv_timer_start(&waiting->start, waiting->start.timer_cb, 0, 0);
	uv_close((uv_handle_t *)&t->start, on_closed);
}

static void on_end(struct child *c)
{
	struct transfer_sender *t = c->user;

	if (!t->done && !t->diag.what[0])
		child_describe(c, t->diag.what, sizeof(t->diag.what));
	free(c);
	t->child = NULL;
	finish(t);
}

static void text_copy(char *to, size_t size, const char *from)
{
	size_t len = from ? strnlen(from, size - 1) : 0;

	if (len)
		memcpy(to, from, len);
	to[len] = 0;
}

static void on_progress(struct transfer_sender *t, const struct message *m)
{
	struct transfer_progress_info p = {
		.bytes_done = m->bytes_done, .bytes_total = m->bytes_total, .chunks_done = m->chunks_done,
		.chunks_total = m->chunks_total, .rate_bps = m->rate_bps, .ms = m->ms,
		.rtt_us = (uint32_t)m->rtt_us, .queue_us = (uint32_t)m->queue_us,
	};

	if (t->cb.progress && !t->code_forced)
		t->cb.progress(t->arg, &p);
}

static void on_message(struct child *c, const struct message *m)
{
	struct transfer_sender *t = c->user;

	if (m->type == MESSAGE_PROGRESS) {
		on_progress(t, m);
	} else if (m->type == MESSAGE_DONE) {
		t->done = true;
		text_copy(t->result.image, sizeof(t->result.image), m->image);
		t->result.bytes_wire = m->bytes_wire;
		t->result.bytes_stored = m->bytes_stored;
		t->result.chunks_sent = m->chunks_done;
		t->result.chunks_delta = m->chunks_delta;
		t->result.chunks_zstd = m->chunks_zstd;
		t->result.ms = m->ms;
		t->result.reconnects = (uint32_t)m->reconnects;
		t->result.peak_rss_bytes = m->rss_bytes;
		t->result.cpu_us = m->cpu_us;
	} else if (m->type == MESSAGE_FAILED) {
		t->done = true;
		t->code = transfer_code_parse(m->code ? m->code : "");
		if (t->code == TRANSFER_OK)
			t->code = TRANSFER_E_PROTOCOL;
		text_copy(t->diag.where, sizeof(t->diag.where), m->where);
		text_copy(t->diag.what, sizeof(t->diag.what), m->what);
	}
}

static void begin(struct transfer_sender *t)
{
	struct child *c = calloc(1, sizeof(*c));
	bool pending;

	t->state = SENDER_RUNNING;
	if (!c) {
		diag_set(&t->diag, 0, "", "out of memory");
		finish(t);
		return;
	}
	c->user = t;
	c->on_message = on_message;
	c->on_end = on_end;
	t->child = c;
	if (child_start(t->loop, t->program, c, &pending, &t->diag) < 0)
		return; /* on_end follows */
	child_send(c, &t->config);
	if (t->config.key)
		explicit_bzero(t->config.key, strlen(t->config.key));
}

static void on_start(uv_timer_t *timer)
{
	struct transfer_sender *t = timer->data;

	if (t->state != SENDER_WAITING)
		return;
	if (t->code_forced) {
		finish(t);
		return;
	}
	for (struct transfer_sender *o = senders; o; o = o->next)
		if (o != t && o->state == SENDER_RUNNING && same_key(o, t))
			return; /* its end starts us */
	begin(t);
}

static void end_by_us(struct transfer_sender *t, enum transfer_code code)
{
	struct message m = { .type = MESSAGE_CANCEL };

	if (!t->code_forced)
		t->code_forced = code;
	if (t->state == SENDER_WAITING) {
		uv_timer_start(&t->start, on_start, 0, 0);
	} else if (t->child) {
		child_send(t->child, &m);
		child_stop(t->child, CANCEL_GRACE_MS);
	}
}

static int config_fill(struct message *c, const struct transfer_sender_params *p, enum message_type type)
{
	c->type = (int)type;
	c->store = strdup(p->store_dir);
	c->identity = strdup(p->identity_dir);
	c->host = strdup(p->peer_host);
	c->bind = p->bind_addr ? strdup(p->bind_addr) : NULL;
	c->ticket = strdup(p->ticket);
	c->job = strdup(p->job);
	c->image = strdup(p->image);
	if (p->key && type == MESSAGE_SEND) {
		c->key = malloc(2 * IMAGE_KEY_LEN + 1);
		if (c->key)
			hex_encode(p->key, IMAGE_KEY_LEN, c->key);
	}
	c->port = p->peer_port;
	c->traffic_class = p->traffic_class;
	c->floor_bps = p->floor_bps;
	c->rate_max_bps = p->rate_max_bps;
	c->mark_tag = p->mark_tag;
	c->retry_ms = p->retry_ms;
	c->streams = p->streams;
	return c->store && c->identity && c->host && c->ticket && c->job && c->image &&
			       (!p->bind_addr || c->bind) && (!p->key || type != MESSAGE_SEND || c->key) ? 0 : -ENOMEM;
}

static int start(uv_loop_t *loop, const struct transfer_sender_params *p, enum message_type type,
		 const struct transfer_sender_callbacks *cb, void *arg, struct transfer_sender **ret,
		 struct diag *diag)
{
	struct transfer_sender *t = calloc(1, sizeof(*t));
	int r;

	if (!t)
		return -ENOMEM;
	t->loop = loop;
	t->cb = *cb;
	t->arg = arg;
	t->traffic_class = p->traffic_class;
	r = child_program(p->program, t->program, sizeof(t->program), diag);
	if (r == 0)
		r = config_fill(&t->config, p, type);
	if (r < 0) {
		message_done(&t->config);
		free(t);
		return r;
	}
	for (struct transfer_sender *o = senders; o; o = o->next) {
		if (!same_key(o, t))
			continue;
		if (o->state == SENDER_WAITING ||
		    (t->traffic_class == TRAFFIC_DEADLINE && o->traffic_class != TRAFFIC_DEADLINE))
			end_by_us(o, TRANSFER_E_SUPERSEDED);
	}
	CHECK(uv_timer_init(loop, &t->start) == 0);
	t->start.data = t;
	uv_timer_start(&t->start, on_start, 0, 0);
	t->next = senders;
	senders = t;
	*ret = t;
	return 0;
}

int transfer_sender_start(uv_loop_t *loop, const struct transfer_sender_params *p,
			  const struct transfer_sender_callbacks *cb, void *arg,
			  struct transfer_sender **ret, struct diag *diag)
{
	return start(loop, p, MESSAGE_SEND, cb, arg, ret, diag);
}

int transfer_fetch_start(uv_loop_t *loop, const struct transfer_sender_params *p,
			 const struct transfer_sender_callbacks *cb, void *arg,
			 struct transfer_sender **ret, struct diag *diag)
{
	return start(loop, p, MESSAGE_FETCH, cb, arg, ret, diag);
}

void transfer_sender_set_rate(struct transfer_sender *t, uint64_t floor_bps, uint64_t rate_max_bps)
{
	struct message m = { .type = MESSAGE_RATE, .floor_bps = floor_bps, .rate_max_bps = rate_max_bps };

	t->config.floor_bps = floor_bps; /* for one that has not begun */
	t->config.rate_max_bps = rate_max_bps;
	if (t->child)
		child_send(t->child, &m);
}

void transfer_sender_set_class(struct transfer_sender *t, enum traffic_class c)
{
	struct message m = { .type = MESSAGE_CLASS, .traffic_class = c };

	t->traffic_class = c;
	t->config.traffic_class = c;
	if (t->child)
		child_send(t->child, &m);
}

void transfer_sender_cancel(struct transfer_sender *t)
{
	end_by_us(t, TRANSFER_E_CANCELLED);
}

pid_t transfer_sender_pid(const struct transfer_sender *t)
{
	return t->child && !t->child->exited ? t->child->process.pid : -1;
}
