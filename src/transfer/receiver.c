/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's side of receiving: one helper, kept alive. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "transfer/child.h"
#include "transfer/transfer.h"

#define PAUSE_MAX_MS 5000u

struct transfer_receiver {
	uv_loop_t *loop;
	struct child *child; /* NULL between two */
	uv_timer_t restart;
	bool restart_open;
	char program[PATH_MAX], *store, *identity, *addr;
	uint16_t port;
	uint64_t reserve;
	unsigned sessions_max, pause_ms;
	bool serve, stopping;
	struct transfer_receiver_callbacks cb;
	void *arg;
	void (*stopped)(void *arg);
	void *stopped_arg;
};

static int spawn(struct transfer_receiver *r, struct diag *diag);

static void receiver_free(struct transfer_receiver *r)
{
	void (*stopped)(void *arg) = r->stopped;
	void *arg = r->stopped_arg;

	free(r->store);
	free(r->identity);
	free(r->addr);
	free(r);
	if (stopped)
		stopped(arg);
}

static void on_restart_closed(uv_handle_t *h)
{
	struct transfer_receiver *r = h->data;

	r->restart_open = false;
	if (!r->child)
		receiver_free(r);
}

static void text_copy(char *to, size_t size, const char *from)
{
	size_t len = from ? strnlen(from, size - 1) : 0;

	if (len)
		memcpy(to, from, len);
	to[len] = 0;
}

static void incoming_fill(struct transfer_incoming *in, const struct message *m)
{
	memset(in, 0, sizeof(*in));
	text_copy(in->job, sizeof(in->job), m->job);
	text_copy(in->image, sizeof(in->image), m->image);
	text_copy(in->from, sizeof(in->from), m->from);
	text_copy(in->ticket_serial, sizeof(in->ticket_serial), m->serial);
	in->epoch = m->epoch;
	in->seq = m->seq;
	in->hold_only = m->hold_only;
	in->bytes_total = m->bytes_total;
	in->bytes_wire = m->bytes_wire;
	in->ms = m->ms;
}

static void on_message(struct child *c, const struct message *m)
{
	struct transfer_receiver *r = c->user;
	struct transfer_incoming in;
	struct diag diag = DIAG_INIT;

	if (r->stopping)
		return;
	incoming_fill(&in, m);
	switch (m->type) {
	case MESSAGE_LISTENING:
		r->port = (uint16_t)m->port; /* the same again after a restart */
		r->pause_ms = 0;
		if (r->cb.listening)
			r->cb.listening(r->arg, r->port);
		break;
	case MESSAGE_STARTED:
		if (r->cb.started)
			r->cb.started(r->arg, &in);
		break;
	case MESSAGE_RECEIVED:
		if (r->cb.received)
			r->cb.received(r->arg, &in);
		break;
	case MESSAGE_FAILED:
		text_copy(diag.where, sizeof(diag.where), m->where);
		text_copy(diag.what, sizeof(diag.what), m->what);
		if (r->cb.failed)
			r->cb.failed(r->arg, &in, transfer_code_parse(m->code ? m->code : ""), &diag);
		break;
	default: break;
	}
}

static void on_restart(uv_timer_t *t)
{
	struct transfer_receiver *r = t->data;
	struct diag diag = DIAG_INIT;

	if (spawn(r, &diag) < 0 && r->cb.crashed)
		r->cb.crashed(r->arg, &diag);
}

static void on_end(struct child *c)
{
	struct transfer_receiver *r = c->user;
	struct diag diag = DIAG_INIT;

	child_describe(c, diag.what, sizeof(diag.what));
	free(c);
	r->child = NULL;
	if (r->stopping) {
		if (!r->restart_open)
			receiver_free(r);
		return;
	}
	uv_timer_start(&r->restart, on_restart, r->pause_ms, 0);
	r->pause_ms = MIN(r->pause_ms * 2 + 100, PAUSE_MAX_MS);
	if (r->cb.crashed)
		r->cb.crashed(r->arg, &diag);
}

static int spawn(struct transfer_receiver *r, struct diag *diag)
{
	struct message m = { .type = MESSAGE_RECEIVE, .store = r->store, .identity = r->identity,
			     .bind = r->addr, .port = r->port, .reserve = r->reserve,
			     .sessions = r->sessions_max };
	struct message serve = { .type = MESSAGE_SERVE, .serve = r->serve };
	struct child *c = calloc(1, sizeof(*c));
	bool pending;
	int err;

	if (!c)
		return -ENOMEM;
	c->user = r;
	c->on_message = on_message;
	c->on_end = on_end;
	r->child = c;
	err = child_start(r->loop, r->program, c, &pending, diag);
	if (err < 0)
		return err;
	child_send(c, &m);
	child_send(c, &serve);
	return 0;
}

int transfer_receiver_start(uv_loop_t *loop, const struct transfer_receiver_params *p,
			    const struct transfer_receiver_callbacks *cb, void *arg,
			    struct transfer_receiver **ret, struct diag *diag)
{
	struct transfer_receiver *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return -ENOMEM;
	r->loop = loop;
	r->store = strdup(p->store_dir);
	r->identity = strdup(p->identity_dir);
	r->addr = strdup(p->listen_addr ? p->listen_addr : "0.0.0.0");
	r->port = p->port;
	r->reserve = p->disk_reserve;
	r->sessions_max = p->sessions_max;
	r->serve = true;
	r->cb = *cb;
	r->arg = arg;
	err = r->store && r->identity && r->addr ? child_program(p->program, r->program, sizeof(r->program), diag) :
						   -ENOMEM;
	if (err < 0) {
		r->stopped = NULL;
		receiver_free(r);
		return err;
	}
	CHECK(uv_timer_init(loop, &r->restart) == 0);
	r->restart.data = r;
	r->restart_open = true;
	err = spawn(r, diag);
	if (err < 0) { /* frees itself on the loop */
		transfer_receiver_stop(r, NULL, NULL);
		return err;
	}
	*ret = r;
	return 0;
}

void transfer_receiver_fence(struct transfer_receiver *r, const char *job, uint64_t epoch)
{
	struct message m = { .type = MESSAGE_FENCE, .job = (char *)(uintptr_t)job, .epoch = epoch };

	if (r->child)
		child_send(r->child, &m);
}

void transfer_receiver_drop(struct transfer_receiver *r, const char *job, const char *image)
{
	struct message m = { .type = MESSAGE_DROP, .job = (char *)(uintptr_t)job,
			     .image = (char *)(uintptr_t)image };

	if (r->child)
		child_send(r->child, &m);
}

void transfer_receiver_serve(struct transfer_receiver *r, bool serve)
{
	struct message m = { .type = MESSAGE_SERVE, .serve = serve };

	r->serve = serve;
	if (r->child)
		child_send(r->child, &m);
}

void transfer_receiver_stop(struct transfer_receiver *r, void (*done)(void *arg), void *arg)
{
	if (!r || r->stopping)
		return;
	r->stopping = true;
	r->stopped = done;
	r->stopped_arg = arg;
	if (r->child)
		child_stop(r->child, 0);
	uv_close((uv_handle_t *)&r->restart, on_restart_closed);
}

pid_t transfer_receiver_pid(const struct transfer_receiver *r)
{
	return r->child && !r->child->exited ? r->child->process.pid : -1;
}
