/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each endpoint keeps its register, where its owner and standbys are, who
 * waits for it and who watches it. How it is stored: endpoint.c.
 */
#include "stream/registry.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "stream/registry_internal.h"

int registry_new(const struct registry_options *options, uint64_t now_ns, struct registry **ret)
{
	struct registry *r = calloc(1, sizeof(*r));

	(void)now_ns; /* registers are read when first asked for: each counts from then */
	if (!r)
		return -ENOMEM;
	r->options = *options;
	if (map_new(&r->jobs_by_token) || map_new(&r->endpoints)) {
		registry_free(r);
		return -ENOMEM;
	}
	*ret = r;
	return 0;
}

void registry_free(struct registry *r)
{
	if (!r)
		return;
	VEC_EACH(&r->all, e)
		endpoint_free(*e);
	VEC_DONE(&r->all);
	VEC_EACH(&r->jobs, j) {
		seal_wipe((*j)->secret, SEAL_KEY_LEN);
		free(*j);
	}
	VEC_DONE(&r->jobs);
	VEC_DONE(&r->groups);
	map_free(r->jobs_by_token);
	map_free(r->endpoints);
	free(r);
}

int registry_add_job(struct registry *r, const char *job, const char *token,
		     const uint8_t secret[SEAL_KEY_LEN])
{
	if (!stream_name_valid(job) || strlen(token) > REGISTRY_TOKEN_MAX)
		return -EINVAL;
	if (map_get_str(r->jobs_by_token, token))
		return -EEXIST;
	struct job *j = calloc(1, sizeof(*j));
	if (!j)
		return -ENOMEM;
	snprintf(j->name, sizeof(j->name), "%s", job);
	snprintf(j->token, sizeof(j->token), "%s", token);
	memcpy(j->secret, secret, SEAL_KEY_LEN);
	if (VEC_PUSH(&r->jobs, j) < 0) {
		free(j);
		return -ENOMEM;
	}
	return map_set_str(r->jobs_by_token, token, j, NULL);
}

static struct job *job_find(struct registry *r, const char *name)
{
	VEC_EACH(&r->jobs, j)
		if (!strcmp((*j)->name, name))
			return *j;
	return NULL;
}

int registry_connect(struct registry *r, void *conn, struct registry_client **ret)
{
	struct registry_client *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->registry = r;
	c->conn = conn;
	*ret = c;
	return 0;
}

int registry_client_trust(struct registry_client *c, const char *job)
{
	c->job = job_find(c->registry, job);
	return c->job ? 0 : -ENOENT;
}

void registry_disconnect(struct registry_client *c)
{
	if (!c)
		return;
	struct registry *r = c->registry;

	VEC_EACH(&r->all, pe) {
		struct endpoint *e = *pe;

		if (e->client == c)
			e->client = NULL;
		for (size_t i = e->candidates.count; i-- > 0;)
			if (e->candidates.data[i].client == c)
				VEC_REMOVE(&e->candidates, i);
		for (size_t i = e->watchers.count; i-- > 0;)
			if (e->watchers.data[i] == c)
				VEC_SWAP_REMOVE(&e->watchers, i);
	}
	for (size_t i = r->groups.count; i-- > 0;)
		if (r->groups.data[i].client == c)
			VEC_SWAP_REMOVE(&r->groups, i);
	free(c);
}

/* --- telling --- */

static uint32_t ttl_ms(const struct registry *r)
{
	return (uint32_t)(r->options.terms.ttl_ns / 1000000);
}

static void fill(const struct registry *r, const struct endpoint *e, struct registry_frame *f)
{
	f->state = (uint8_t)e->record.state;
	f->epoch = e->record.epoch;
	f->hid = e->record.hid;
	f->owner = e->record.owner;
	f->target = e->record.target;
	f->ttl_ms = ttl_ms(r);
	snprintf(f->name, sizeof(f->name), "%s", e->name);
	snprintf(f->locator, sizeof(f->locator), "%s", e->locator);
}

static void send_to(struct registry_client *c, const struct registry_frame *f)
{
	c->registry->options.send(c->registry->options.arg, c->conn, f);
}

static struct candidate *candidate_find(struct endpoint *e, uint64_t instance)
{
	VEC_EACH(&e->candidates, c)
		if (c->instance == instance)
			return c;
	return NULL;
}

/* A ticket for `producer` to the given epoch of e. */
static int ticket_for(const struct endpoint *e, uint64_t epoch, const char *producer,
		      uint64_t producer_epoch, struct registry_frame *f)
{
	uint8_t key[SEAL_KEY_LEN];
	struct seal_ticket t = { .producer_epoch = producer_epoch };
	size_t len = 0;

	snprintf(t.producer, sizeof(t.producer), "%s", producer);
	int rc = random_bytes(t.session, SEAL_KEY_LEN);
	if (rc == 0)
		rc = seal_owner_key(e->job->secret, e->name, epoch, key);
	if (rc == 0)
		rc = seal_ticket_make(key, e->name, epoch, &t, f->ticket, &len);
	f->ticket_len = rc == 0 ? (uint32_t)len : 0;
	memcpy(f->key, t.session, SEAL_KEY_LEN);
	seal_wipe(key, sizeof(key));
	seal_wipe(&t, sizeof(t));
	return rc;
}

static void tell(struct registry *r, struct endpoint *e, uint64_t now_ns)
{
	struct registry_frame f = { .op = REGISTRY_VIEW, .flags = REGISTRY_FLAG_TOLD };
	struct candidate *target = candidate_find(e, e->record.target);

	fill(r, e, &f);
	if (e->record.state != REGISTER_FREE && now_ns >= e->record.lease_end_ns)
		f.flags |= REGISTRY_FLAG_RECOVER; /* the owner is silent */
	VEC_EACH(&e->watchers, w)
		if (*w != e->client && !(target && target->client == *w))
			send_to(*w, &f);
	VEC_EACH(&e->candidates, c) {
		if (c == target || c->client == e->client)
			continue;
		f.instance = c->instance;
		send_to(c->client, &f);
	}
	if (target) {
		/* Its key for the epoch that it may commit. */
		f.instance = target->instance;
		if (seal_owner_key(e->job->secret, e->name, e->record.epoch + 1, f.key) == 0)
			send_to(target->client, &f);
		seal_wipe(f.key, sizeof(f.key));
	}
	if (e->client) {
		f.instance = e->record.owner;
		if (target) {
			snprintf(f.locator, sizeof(f.locator), "%s", target->locator);
			(void)ticket_for(e, e->record.epoch + 1, e->name, e->record.epoch, &f);
		}
		send_to(e->client, &f);
		seal_wipe(f.key, sizeof(f.key));
	}
}

static size_t members_text(struct registry *r, const struct job *job, const char *group,
			   struct strbuf *b)
{
	size_t n = 0;

	VEC_EACH(&r->all, pe) {
		const struct endpoint *e = *pe;

		if (e->job != job || e->record.state == REGISTER_FREE || strcmp(e->group, group))
			continue;
		(void)strbuf_printf(b, "%s%s", n++ ? "\n" : "", e->name);
	}
	return n;
}

static void tell_group(struct registry *r, const struct job *job, const char *group)
{
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;
	struct registry_frame f = { .op = REGISTRY_MEMBERS, .flags = REGISTRY_FLAG_TOLD };

	if (!*group)
		return;
	members_text(r, job, group, &b);
	snprintf(f.name, sizeof(f.name), "%s", group);
	f.body = (const uint8_t *)b.data;
	f.body_len = b.len;
	VEC_EACH(&r->groups, g)
		if (g->job == job && !strcmp(g->group, group))
			send_to(g->client, &f);
}

/* --- questions --- */

static void grant_answer(struct registry *r, struct endpoint *e, struct registry_client *client,
			 uint32_t id, bool recover)
{
	struct registry_frame f = { .op = REGISTRY_JOIN, .flags = REGISTRY_FLAG_ANSWER, .id = id };

	fill(r, e, &f);
	f.instance = e->record.owner;
	if (recover)
		f.flags |= REGISTRY_FLAG_RECOVER;
	f.body = e->cursors;
	f.body_len = e->cursors_len;
	f.status = seal_owner_key(e->job->secret, e->name, e->record.epoch, f.key);
	send_to(client, &f);
	seal_wipe(f.key, sizeof(f.key));
}

/* Tries to make candidate i the owner: 0, or -EAGAIN while another's lease runs. */
static int try_grant(struct registry *r, struct endpoint *e, size_t i, uint64_t now_ns)
{
	struct register_record next = e->record;
	struct candidate c = e->candidates.data[i];
	char group[STREAM_NAME_MAX + 1], old[STREAM_LOCATOR_MAX + 1];
	bool recover = false;
	int rc = register_acquire(&next, &r->options.terms, c.instance, now_ns, &recover);

	if (rc < 0)
		return rc;
	bool again = next.epoch == e->record.epoch;
	memcpy(old, e->locator, sizeof(old));
	memcpy(group, e->group, sizeof(group));
	memcpy(e->locator, c.locator, sizeof(c.locator));
	memcpy(e->group, c.group, sizeof(c.group));
	rc = endpoint_save(r, e, &next);
	if (rc < 0) {
		memcpy(e->locator, old, sizeof(old));
		memcpy(e->group, group, sizeof(group));
		return rc;
	}
	if (!again)
		e->recover = recover;
	struct registry_client *former = e->client == c.client ? NULL : e->client;
	e->client = c.client;
	VEC_REMOVE(&e->candidates, i);
	grant_answer(r, e, c.client, c.id, e->recover);
	if (former) {
		struct registry_frame f = { .op = REGISTRY_VIEW, .flags = REGISTRY_FLAG_TOLD };

		fill(r, e, &f);
		send_to(former, &f);
	}
	if (!again) {
		tell(r, e, now_ns);
		tell_group(r, e->job, e->group);
		if (strcmp(group, e->group))
			tell_group(r, e->job, group);
	}
	return 0;
}

/* It is printed in JSON and parsed by every sender. */
static bool locator_ok(const char *text)
{
	for (const char *p = text; *p; p++)
		if (*p <= ' ' || *p >= 127 || *p == '"' || *p == '\\')
			return false;
	return *text;
}

static int handle_join(struct registry_client *c, const struct registry_frame *f,
		       struct endpoint *e, uint64_t now_ns)
{
	struct registry *r = c->registry;
	struct candidate *old = candidate_find(e, f->instance);
	struct candidate mine = { .client = c, .instance = f->instance, .id = f->id,
				  .standby = f->flags & REGISTRY_FLAG_STANDBY };

	if (f->instance == 0 || !locator_ok(f->locator))
		return -EINVAL;
	memcpy(mine.locator, f->locator, sizeof(mine.locator));
	memcpy(mine.group, f->group, sizeof(mine.group));
	if (old)
		*old = mine;
	else if (VEC_PUSH(&e->candidates, mine) < 0)
		return -ENOMEM;
	if (mine.standby) {
		struct registry_frame a = { .op = REGISTRY_JOIN, .flags = REGISTRY_FLAG_ANSWER |
					    REGISTRY_FLAG_STANDBY, .id = f->id };

		fill(r, e, &a);
		a.instance = f->instance;
		if (e->record.state == REGISTER_PREP && e->record.target == f->instance)
			(void)seal_owner_key(e->job->secret, e->name, e->record.epoch + 1, a.key);
		send_to(c, &a);
		return 0;
	}
	for (size_t i = 0; i < e->candidates.count; i++)
		if (e->candidates.data[i].instance == f->instance) {
			int rc = try_grant(r, e, i, now_ns);

			if (rc != -EAGAIN && rc < 0) {
				VEC_REMOVE(&e->candidates, i);
				return rc;
			}
		}
	return 0; /* answered now, or by registry_tick */
}

static int handle_route(struct registry_client *c, const struct registry_frame *f,
			struct endpoint *e, uint64_t now_ns, struct registry_frame *a)
{
	struct registry *r = c->registry;
	struct endpoint *producer;
	uint64_t epoch = e->record.epoch;
	bool known = false;

	/* Only the present owner of its own name may send in that name. */
	if (endpoint_get(r, c->job, f->group, now_ns, &producer) < 0 ||
	    producer->record.state == REGISTER_FREE || producer->record.owner != f->instance ||
	    producer->record.epoch != f->epoch)
		return -ESTALE;
	VEC_EACH(&e->watchers, w)
		known |= *w == c;
	if (!known && VEC_PUSH(&e->watchers, c) < 0)
		return -ENOMEM;
	if (f->flags & REGISTRY_FLAG_AHEAD) {
		struct candidate *t = candidate_find(e, e->record.target);

		if (e->record.state != REGISTER_PREP || !t)
			return -EAGAIN;
		snprintf(a->locator, sizeof(a->locator), "%s", t->locator);
		a->epoch = ++epoch;
		a->flags |= REGISTRY_FLAG_AHEAD;
	} else if (e->record.state == REGISTER_FREE) {
		return -ENOENT;
	}
	return ticket_for(e, epoch, f->group, f->epoch, a);
}

static int handle_commit(struct registry_client *c, const struct registry_frame *f,
			 struct endpoint *e, uint64_t now_ns, struct registry_frame *a)
{
	struct registry *r = c->registry;
	struct register_record next = e->record;
	int rc = register_commit(&next, &r->options.terms, f->instance, f->hid, now_ns);

	if (rc < 0)
		return rc;
	bool fresh = next.epoch != e->record.epoch;
	struct candidate *t = candidate_find(e, f->instance);
	char locator[STREAM_LOCATOR_MAX + 1];

	memcpy(locator, e->locator, sizeof(locator));
	if (t)
		memcpy(e->locator, t->locator, sizeof(e->locator));
	rc = endpoint_save(r, e, &next);
	if (rc < 0) {
		memcpy(e->locator, locator, sizeof(e->locator));
		return rc;
	}
	fill(r, e, a);
	rc = seal_owner_key(e->job->secret, e->name, e->record.epoch, a->key);
	if (fresh) {
		struct registry_client *former = e->client;
		struct registry_frame v = { .op = REGISTRY_VIEW, .flags = REGISTRY_FLAG_TOLD };

		e->client = c;
		e->recover = false;
		if (t)
			VEC_REMOVE(&e->candidates, (size_t)(t - e->candidates.data));
		/* The answer first: the new owner is what everybody waits for. */
		send_to(c, a);
		a->op = 0;
		fill(r, e, &v);
		if (former && former != c)
			send_to(former, &v);
		VEC_EACH(&e->watchers, w)
			if (*w != c && *w != former)
				send_to(*w, &v);
	}
	return rc;
}

static int handle_store(struct registry_client *c, const struct registry_frame *f,
			struct endpoint *e, uint64_t now_ns)
{
	/* M5: fenced by epoch, and by the lease as the grantor sees it. */
	if (e->record.state == REGISTER_FREE || e->record.owner != f->instance ||
	    e->record.epoch != f->epoch || now_ns >= e->record.lease_end_ns)
		return -ESTALE;
	uint8_t *copy = malloc(f->body_len + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, f->body, f->body_len);
	uint8_t *old = e->cursors;
	size_t old_len = e->cursors_len;

	e->cursors = copy;
	e->cursors_len = f->body_len;
	int rc = endpoint_save(c->registry, e, &e->record);
	if (rc < 0) {
		free(copy);
		e->cursors = old;
		e->cursors_len = old_len;
	} else {
		free(old);
	}
	return rc;
}

static int change(struct registry *r, struct endpoint *e, const struct register_record *next,
		  uint64_t now_ns)
{
	int rc = endpoint_save(r, e, next);

	if (rc == 0)
		tell(r, e, now_ns);
	return rc;
}

static int handle_release(struct registry *r, const struct registry_frame *f, struct endpoint *e,
			  uint64_t now_ns)
{
	struct register_record next = e->record;
	struct candidate *c = candidate_find(e, f->instance);
	int rc = register_release(&next, f->instance, f->epoch);

	if (c) {
		VEC_REMOVE(&e->candidates, (size_t)(c - e->candidates.data));
		if (rc < 0)
			return 0;
	}
	if (rc < 0)
		return rc;
	rc = change(r, e, &next, now_ns);
	if (rc < 0)
		return rc;
	e->client = NULL;
	tell_group(r, e->job, e->group);
	(void)registry_tick(r, now_ns); /* whoever waits need not wait for the lease */
	return 0;
}

static int handle_endpoint(struct registry_client *c, const struct registry_frame *f,
			   struct registry_frame *a, uint64_t now_ns)
{
	struct registry *r = c->registry;
	struct register_record next;
	struct endpoint *e;
	int rc = *f->name ? endpoint_get(r, c->job, f->name, now_ns, &e) : -EINVAL;

	if (rc < 0)
		return rc;
	next = e->record;
	switch (f->op) {
	case REGISTRY_JOIN:
		a->op = 0;
		rc = handle_join(c, f, e, now_ns);
		if (rc < 0)
			a->op = REGISTRY_JOIN;
		return rc;
	case REGISTRY_RENEW:
		rc = register_renew(&next, &r->options.terms, f->instance, f->epoch, now_ns);
		if (rc == 0) {
			e->record = next; /* leases are not stored: a restart waits one out */
			e->client = c;
		}
		break;
	case REGISTRY_ROUTE:
		fill(r, e, a);
		return handle_route(c, f, e, now_ns, a);
	case REGISTRY_PREPARE:
		rc = candidate_find(e, f->target) ? register_prepare(&next, f->target) : -ENOENT;
		if (rc == 0)
			rc = change(r, e, &next, now_ns);
		break;
	case REGISTRY_COMMIT:
		rc = handle_commit(c, f, e, now_ns, a);
		break;
	case REGISTRY_ABORT:
		rc = register_abort(&next, f->hid);
		if (rc == 0)
			rc = change(r, e, &next, now_ns);
		break;
	case REGISTRY_RELEASE:
		rc = handle_release(r, f, e, now_ns);
		break;
	case REGISTRY_STORE:
		rc = handle_store(c, f, e, now_ns);
		break;
	case REGISTRY_READ:
		break;
	default:
		return -EOPNOTSUPP;
	}
	fill(r, e, a);
	return rc;
}

static int handle_members(struct registry_client *c, const struct registry_frame *f,
			  struct strbuf *b)
{
	struct registry *r = c->registry;
	struct group_watch w = { .client = c, .job = c->job };
	bool known = false;

	memcpy(w.group, f->name, sizeof(w.group));
	VEC_EACH(&r->groups, g)
		known |= g->client == c && g->job == c->job && !strcmp(g->group, w.group);
	if (!known && VEC_PUSH(&r->groups, w) < 0)
		return -ENOMEM;
	members_text(r, c->job, f->name, b);
	return b->failed ? -ENOMEM : 0;
}

void registry_handle(struct registry_client *c, const struct registry_frame *f, uint64_t now_ns)
{
	struct registry *r = c->registry;
	CLEANUP_STRBUF struct strbuf body = STRBUF_INIT;
	struct registry_frame a = { .op = f->op, .flags = REGISTRY_FLAG_ANSWER, .id = f->id,
				    .instance = f->instance };

	if (f->op == REGISTRY_HELLO) {
		c->job = map_get_str(r->jobs_by_token, f->token);
		a.status = c->job ? 0 : -EPERM;
		a.ttl_ms = ttl_ms(r);
	} else if (!c->job) {
		a.status = -EPERM;
	} else if (f->op == REGISTRY_MEMBERS) {
		memcpy(a.name, f->name, sizeof(a.name));
		a.status = handle_members(c, f, &body);
	} else if (f->op == REGISTRY_LIST) {
		char *text = registry_list(r, c->job->name, now_ns);

		a.status = text ? strbuf_add(&body, text) : -ENOMEM;
		free(text);
	} else {
		a.status = handle_endpoint(c, f, &a, now_ns);
	}
	if (body.len) {
		a.body = (const uint8_t *)body.data;
		a.body_len = MIN(body.len, (size_t)REGISTRY_BODY_MAX);
	}
	if (a.op)
		send_to(c, &a);
	seal_wipe(a.key, sizeof(a.key));
}

uint64_t registry_tick(struct registry *r, uint64_t now_ns)
{
	uint64_t next = now_ns + UINT64_C(1000000000);

	VEC_EACH(&r->all, pe) {
		struct endpoint *e = *pe;
		bool over = e->record.state == REGISTER_FREE || now_ns >= e->record.lease_end_ns;

		for (size_t i = 0; i < e->candidates.count; i++) {
			if (e->candidates.data[i].standby)
				continue;
			if (over && try_grant(r, e, i, now_ns) != -EAGAIN)
				break;
		}
		if (!over) {
			e->vacant_told = false;
			if (e->candidates.count && e->record.lease_end_ns < next)
				next = e->record.lease_end_ns;
		} else if (e->record.state != REGISTER_FREE && !e->vacant_told) {
			e->vacant_told = true; /* any standby may ask now */
			tell(r, e, now_ns);
		}
	}
	return next;
}

int registry_prepare(struct registry *r, const char *job, const char *name, uint64_t target,
		     uint64_t now_ns)
{
	struct job *j = job_find(r, job);
	struct endpoint *e;
	int rc = j ? endpoint_get(r, j, name, now_ns, &e) : -ENOENT;

	if (rc < 0)
		return rc;
	struct register_record next = e->record;
	rc = candidate_find(e, target) ? register_prepare(&next, target) : -ENOENT;
	return rc < 0 ? rc : change(r, e, &next, now_ns);
}

char *registry_list(struct registry *r, const char *job, uint64_t now_ns)
{
	static const char *const states[REGISTER_STATE_COUNT] = { "free", "owned", "moving" };
	struct strbuf b = STRBUF_INIT;
	size_t n = 0;

	(void)strbuf_add(&b, "{\"endpoints\":[");
	VEC_EACH(&r->all, pe) {
		const struct endpoint *e = *pe;
		uint64_t left = e->record.lease_end_ns > now_ns ? e->record.lease_end_ns - now_ns : 0;

		if (strcmp(e->job->name, job))
			continue;
		(void)strbuf_printf(&b,
				    "%s{\"name\":\"%s\",\"group\":\"%s\",\"state\":\"%s\","
				    "\"epoch\":\"%" PRIu64 "\",\"owner\":\"%" PRIu64
				    "\",\"target\":\"%" PRIu64 "\",\"handover\":\"%" PRIu64
				    "\",\"locator\":\"%s\",\"lease_ms\":%" PRIu64
				    ",\"standbys\":[",
				    n++ ? "," : "", e->name, e->group, states[e->record.state],
				    e->record.epoch, e->record.owner, e->record.target, e->record.hid,
				    e->locator, left / 1000000);
		for (size_t i = 0; i < e->candidates.count; i++)
			(void)strbuf_printf(&b, "%s\"%" PRIu64 "\"", i ? "," : "",
					    e->candidates.data[i].instance);
		(void)strbuf_add(&b, "]}");
	}
	(void)strbuf_add(&b, "]}");
	return strbuf_take(&b);
}
