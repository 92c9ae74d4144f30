/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts and joints. Order at start: state folder, store, engine with every
 * record, then the port: nobody is answered before all is known. What the
 * engine decides is durable (save_record) before it is said.
 */
#include "coordinator/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "base/schema.h"
#include "coordinator/api.h"
#include "coordinator/forecast.h"
#include "coordinator/maps.h"
#include "io/ticket.h"

#define AGENT_MESSAGE_MAX (1u << 20)
#define AGENT_QUEUE_MAX (8u << 20)
#define LOGS_OPEN_MAX 256
#define OUTLOOK_EVERY_NS (10 * NS_PER_S)
#define FORGET_EVERY_NS (10 * 60 * NS_PER_S)
#define STAGING_MS_MAX (24 * 3600 * 1000) /* the largest inputs over a slow line take hours */
#define FORGET_MAX 64 /* jobs in one go: each is a commit */

/* ---- what the engine asks of us ---- */

static int save_record(void *user, const char *job, json_t *record, uint64_t *revision)
{
	struct coordinator *c = user;
	char key[STORE_KEY_MAX + 1], request_key[STORE_KEY_MAX + 1];
	CLEANUP_FREE char *text = json_dumps(record, JSON_COMPACT);
	struct store_txn t = STORE_TXN_INIT;
	if (!text)
		return -ENOMEM;
	int r = path_format(key, sizeof(key), "jobs/%s", job);
	if (r < 0)
		return r;
	store_compare_revision(&t, key, *revision);
	store_put(&t, key, text, strlen(text));
	/* A gang's ranks are one submit; it is known by its rank 0, which is written last. */
	const char *gang = json_string_value(json_object_get(record, "gang"));
	if (*revision == 0 && c->submit_request && (!gang || strcmp(gang, job) == 0)) {
		const char *owner = json_string_value(json_object_get(record, "user"));
		coordinator_request_key(owner ? owner : "", c->submit_request, request_key,
					sizeof(request_key));
		store_compare_missing(&t, request_key);
		store_put(&t, request_key, job, strlen(job));
	}
	POINT("coordinator.record.before_commit");
	r = store_commit(c->store, &t, revision);
	POINT("coordinator.record.after_commit");
	if (r < 0)
		log_error("record of %s cannot be stored: %s", job, strerror(-r));
	return r == -EAGAIN ? -ESTALE : r;
}

static int forget_record(void *user, const char *job, uint64_t revision)
{
	struct coordinator *c = user;
	char key[STORE_KEY_MAX + 1], logs[4096];
	struct store_txn t = STORE_TXN_INIT;
	int r = path_format(key, sizeof(key), "jobs/%s", job);
	if (r < 0)
		return r;
	store_compare_revision(&t, key, revision);
	store_delete(&t, key);
	r = store_commit(c->store, &t, NULL);
	if (r < 0)
		return r;
	joblog_close(map_remove_str(c->logs, job));
	if (blobs_forget(c->blobs, job) < 0 ||
	    path_format(logs, sizeof(logs), "%s/logs", c->dir) < 0 || joblog_remove(logs, job) < 0)
		log_warn("%s: files of the forgotten job could not all be removed", job);
	return 0;
}

static int send_message(void *user, const char *node, struct control_message *m)
{
	struct coordinator *c = user;
	struct http_socket *s = map_get_str(c->sessions, node);
	if (!s)
		return -ENOTCONN;
	CLEANUP_JSON json_t *out = control_encode(m);
	if (!out)
		return -ENOMEM;
	POINT("coordinator.agent.before_send");
	return http_socket_send_json(s, out);
}

static int sign_ticket(void *user, const struct ticket *t, char ret[TICKET_TEXT_MAX])
{
	struct coordinator *c = user;
	struct diag d = DIAG_INIT;
	int r = ticket_sign(c->identity, t, ret, &d);
	if (r < 0)
		log_error("ticket for %s: %s", t->job, d.what[0] ? d.what : strerror(-r));
	return r < 0 ? r : 0;
}

static int wrap_key(void *user, const uint8_t key[32], char *ret, size_t size)
{
	struct coordinator *c = user;
	CLEANUP_FREE char *text = NULL;
	int r = vault_seal(c->vault, "image-key", key, 32, &text);
	return r < 0 ? r : path_format(ret, size, "%s", text);
}

static int unwrap_key(void *user, const char *text, uint8_t ret[32])
{
	struct coordinator *c = user;
	CLEANUP_FREE char *clear = NULL;
	size_t len = 0;
	int r = vault_unseal(c->vault, "image-key", text, &clear, &len);
	if (r == 0 && len != 32)
		r = -EBADMSG;
	if (r == 0) {
		memcpy(ret, clear, 32);
		explicit_bzero(clear, len);
	}
	return r;
}

static int seal_text(void *user, const char *clear, char **ret)
{
	struct coordinator *c = user;
	return vault_seal(c->vault, "secret", clear, strlen(clear), ret);
}

static int unseal_text(void *user, const char *sealed, char **ret)
{
	struct coordinator *c = user;
	size_t len;
	return vault_unseal(c->vault, "secret", sealed, ret, &len);
}

struct joblog *coordinator_log(struct coordinator *c, const char *job)
{
	struct joblog *l = map_get_str(c->logs, job);
	struct diag d = DIAG_INIT;
	char dir[4096];
	if (l)
		return l;
	if (path_format(dir, sizeof(dir), "%s/logs", c->dir) < 0 ||
	    joblog_open(dir, job, c->config->log_max, &l, &d) < 0) {
		log_error("%s: %s", d.where, d.what);
		return NULL;
	}
	if (map_set_str(c->logs, job, l, NULL) < 0) {
		joblog_close(l);
		return NULL;
	}
	return l;
}

static int store_output(void *user, const char *job, uint64_t epoch, uint64_t replay_from,
			uint64_t offset, const char *bytes, size_t len, uint64_t *ret_stored)
{
	struct coordinator *c = user;
	struct joblog *l = coordinator_log(c, job);
	if (!l)
		return -EIO;
	uint64_t before = joblog_length(l);
	int r = joblog_output(l, epoch, replay_from, offset, bytes, len, ret_stored);
	if (r < 0)
		log_error("output of %s cannot be stored: %s", job, strerror(-r));
	else if (joblog_length(l) != before)
		watch_changed(c, job);
	return r;
}

static uint64_t output_position(void *user, const char *job, uint64_t epoch, uint64_t offset,
				uint64_t unknown)
{
	struct joblog *l = coordinator_log(user, job);
	return l ? joblog_cursor(l, epoch, offset, unknown) : 0;
}

static void job_changed(void *user, const char *job)
{
	watch_changed(user, job);
}

static bool in_group(void *user, const char *group, const char *person)
{
	struct coordinator *c = user;
	return settings_in_group(c->settings, group, person);
}

static const struct engine_ops engine_ops = {
	.save = save_record,
	.forget = forget_record,
	.send = send_message,
	.sign_ticket = sign_ticket,
	.wrap_key = wrap_key,
	.unwrap_key = unwrap_key,
	.seal_text = seal_text,
	.unseal_text = unseal_text,
	.output = store_output,
	.output_position = output_position,
	.changed = job_changed,
	.in_group = in_group,
};

/* ---- time ---- */

void coordinator_poke(struct coordinator *c)
{
	uint64_t now = clock_boot_ns();
	engine_tick(c->engine, now);
	uint64_t next = engine_next_ns(c->engine);
	(void)loop_timer_at(&c->tick, MIN(MAX(next, now), now + 60 * NS_PER_S));
}

static void tick_due(void *user)
{
	coordinator_poke(user);
}

/* Whoever needs one opens it again: a campus has more jobs in its past than descriptors. */
static void close_logs(struct coordinator *c)
{
	const void *key;
	size_t key_len;
	void *l;
	struct map *none;
	if (map_count(c->logs) <= LOGS_OPEN_MAX || map_new(&none) < 0)
		return;
	for (size_t i = 0; map_next(c->logs, &i, &key, &key_len, &l);)
		joblog_close(l);
	map_free(c->logs);
	c->logs = none;
}

static void sync_logs(void *user)
{
	struct coordinator *c = user;
	const void *key;
	size_t key_len;
	void *l;
	for (size_t i = 0; map_next(c->logs, &i, &key, &key_len, &l);)
		if (joblog_sync(l) < 0)
			log_warn("output of %.*s may not survive a power failure", (int)key_len,
				 (const char *)key);
	close_logs(c);
	(void)loop_timer_in(&c->sync, NS_PER_S);
}

static void rate_known(void *user, const char *node, double per_s)
{
	engine_node_hazard(user, node, per_s);
}

static void look_ahead(void *user)
{
	struct coordinator *c = user;
	forecast_tick(c->forecast, clock_wall_ms());
	forecast_each(c->forecast, clock_wall_ms(), rate_known, c->engine);
	engine_plan_intervals(c->engine, clock_boot_ns());
	(void)loop_timer_in(&c->outlook, OUTLOOK_EVERY_NS);
}

/* Request ids of submits, made in one transaction with their job: without it they mean nothing. */
struct stale {
	struct coordinator *c;
	struct store_txn txn;
};

static int stale_add(void *user, const struct store_kv *kv)
{
	struct stale *s = user;
	struct rest_job job;
	if (engine_job(s->c->engine, kv->value, &job))
		return 0;
	store_delete(&s->txn, kv->key);
	return s->txn.count >= STORE_TXN_MAX / 2; /* the rest in the next round */
}

static void forget_old(void *user)
{
	struct coordinator *c = user;
	struct stale s = { .c = c, .txn = STORE_TXN_INIT };
	engine_expire_staging(c->engine, STAGING_MS_MAX, clock_boot_ns(), clock_wall_ms());
	size_t jobs = c->config->keep ? engine_forget(c->engine, c->config->keep / NS_PER_MS,
						      clock_wall_ms(), FORGET_MAX) : 0;
	int r = store_list(c->store, "requests/", stale_add, &s);
	bool more = jobs == FORGET_MAX || r > 0;
	if (s.txn.count)
		r = store_commit(c->store, &s.txn, NULL);
	store_txn_done(&s.txn);
	if (r < 0)
		log_warn("request ids of forgotten jobs cannot be removed: %s", strerror(-r));
	(void)loop_timer_in(&c->forget, more && r >= 0 ? NS_PER_S : FORGET_EVERY_NS);
}

/* ---- agents ---- */

static void refuse(struct http_socket *s, const char *fmt, const char *what)
{
	char reason[CONTROL_TEXT_MAX];
	snprintf(reason, sizeof(reason), fmt, what);
	struct control_message m = { .type = CONTROL_REFUSED, .refused = { .reason = reason } };
	CLEANUP_JSON json_t *out = control_encode(&m);
	if (out)
		(void)http_socket_send_json(s, out); /* it is being closed anyway */
	http_socket_close(s);
}

static int agent_open(struct http_socket *s, void *user)
{
	struct coordinator *c = user;
	const struct identity_peer *peer = http_socket_peer(s);
	if (peer->role != IDENTITY_AGENT) {
		refuse(s, "this is for agents; the certificate says %s", identity_role_name(peer->role));
		return 0;
	}
	/* The newest connection is the agent: the old one may be a cut cable's ghost. */
	struct http_socket *old = NULL;
	if (map_set_str(c->sessions, peer->name, s, (void **)&old) < 0)
		return -ENOMEM;
	if (old) {
		http_socket_set_data(old, NULL);
		http_socket_close(old);
		engine_agent_down(c->engine, peer->name, clock_boot_ns());
	}
	http_socket_set_data(s, s);
	engine_agent_up(c->engine, peer->name, http_socket_address(s), peer->digest, clock_boot_ns());
	coordinator_poke(c);
	return 0;
}

/* The owner's habits, from everything that says in what state the machine is. */
static void observe(struct coordinator *c, const char *node, int state, bool up)
{
	int r = forecast_observe(c->forecast, node, state, up, clock_wall_ms());
	if (r < 0)
		log_warn("%s: what its owner did could not be recorded: %s", node, strerror(-r));
}

static void learn_node(struct coordinator *c, const char *node, const struct control_hello *h)
{
	char place[2 * CONTROL_NAME_MAX + 2];
	snprintf(place, sizeof(place), "%s/%s", h->building ? h->building : "", h->room ? h->room : "");
	int r = forecast_node(c->forecast, node, place, h->utc_offset_s, h->schedule);
	if (r < 0)
		log_warn("%s: no forecasts: %s", node, strerror(-r));
}

static void agent_message(struct http_socket *s, const char *text, size_t len, void *user)
{
	struct coordinator *c = user;
	const struct identity_peer *peer = http_socket_peer(s);
	struct control_message m;
	struct diag d = DIAG_INIT;
	json_error_t error;
	if (!http_socket_data(s))
		return; /* replaced or refused */
	CLEANUP_JSON json_t *in = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(in)) {
		log_warn("agent %s: no JSON object: %s", peer->name, error.text);
		refuse(s, "not a JSON object: %s", error.text);
		return;
	}
	if (control_decode(in, &m, &d) < 0) {
		char what[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
		log_warn("agent %s: %s", peer->name, diag_format(&d, what, sizeof(what)));
		refuse(s, "message not understood: %s", what);
		return;
	}
	if (m.type == CONTROL_HELLO) {
		learn_node(c, peer->name, &m.hello);
		observe(c, peer->name, m.hello.owner_state, true);
	} else if (m.type == CONTROL_OWNER) {
		observe(c, peer->name, m.owner.state, true);
	}
	int r = engine_agent_message(c->engine, peer->name, &m, clock_boot_ns());
	control_done(&m);
	if (r < 0)
		refuse(s, "%s", r == -EPROTO ? "not a message that an agent of this name may send" :
						strerror(-r));
	coordinator_poke(c);
}

static void agent_close(struct http_socket *s, void *user)
{
	struct coordinator *c = user;
	const struct identity_peer *peer = http_socket_peer(s);
	if (map_get_str(c->sessions, peer->name) != s)
		return;
	map_remove_str(c->sessions, peer->name);
	observe(c, peer->name, 0, false);
	engine_agent_down(c->engine, peer->name, clock_boot_ns());
	coordinator_poke(c);
}

static const struct http_socket_route agent_socket = {
	"/v1/agent", 0, AGENT_MESSAGE_MAX, AGENT_QUEUE_MAX, agent_open, agent_message, agent_close };

static int admit(const struct identity_peer *peer, void *user)
{
	struct coordinator *c = user;
	return registry_is_revoked(c->registry, peer->serial) ? -EACCES : 0;
}

void coordinator_revoked(void *user, const char *serial, const char *name, enum identity_role role)
{
	struct coordinator *c = user;
	http_server_drop_peer(c->http, serial);
	if (role == IDENTITY_AGENT && registry_node_banned(c->registry, name))
		engine_node_ban(c->engine, name, true, clock_boot_ns());
}

void coordinator_request_key(const char *user, const char *request, char *ret, size_t size)
{
	snprintf(ret, size, "requests/%.64s/%.64s", user, request);
}

/* ---- opening ---- */

static int open_state(struct coordinator *c, struct diag *diag)
{
	char path[4096];
	int r = path_format(path, sizeof(path), "%s/identity", c->dir);
	if (r == 0)
		r = identity_open(path, &c->identity, diag);
	if (r == 0 && identity_self(c->identity)->role != IDENTITY_COORDINATOR)
		r = diag_set(diag, -EINVAL, path, "is not a coordinator's identity");
	if (r == 0)
		r = identity_ca_open(c->dir, &c->ca, diag);
	if (r == 0)
		r = vault_open(c->dir, &c->vault, diag);
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/logs", c->dir);
	if (r == 0) {
		r = dir_make_all(path, 0700);
		if (r < 0)
			diag_set(diag, r, path, "cannot be made: %s", strerror(-r));
	}
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/state.db", c->dir);
	if (r == 0)
		r = store_open_sqlite(path, &c->store, diag);
	if (r == 0)
		r = registry_open(c->store, c->ca, &c->registry, diag);
	if (r == 0)
		r = blobs_open(c->dir, c->store, &c->blobs, diag);
	return r;
}

struct loading {
	struct coordinator *c;
	struct diag *diag;
	size_t count;
};

static int load_job(void *user, const struct store_kv *kv)
{
	struct loading *l = user;
	json_error_t error;
	CLEANUP_JSON json_t *record = json_loadb(kv->value, kv->value_len, 0, &error);
	if (!record)
		return diag_set(l->diag, -EBADMSG, kv->key, "the record is damaged: %s", error.text);
	l->count++;
	return engine_load(l->c->engine, kv->key + strlen("jobs/"), record, kv->mod_revision, l->diag);
}

static int load_node(void *user, const struct store_kv *kv)
{
	struct loading *l = user;
	const char *node = kv->key + strlen("nodes/");
	if (registry_node_banned(l->c->registry, node))
		engine_node_ban(l->c->engine, node, true, clock_boot_ns());
	return 0;
}

static int open_engine(struct coordinator *c, struct diag *diag)
{
	const struct coordinator_config *g = c->config;
	struct engine_config config = {
		.lease_ms = g->lease / NS_PER_MS,
		.lease_margin_ms = g->lease_margin / NS_PER_MS,
		.status_every_ms = g->status_every / NS_PER_MS,
		.floor_bps = g->floor,
		.floor_cap_bps = g->floors,
		.interval_ms = g->interval / NS_PER_MS,
		.jobs_max = (unsigned)g->jobs_max,
		.coordinator = identity_self(c->identity)->name,
	};
	struct loading l = { c, diag, 0 };
	int r = engine_open(&config, &engine_ops, c, clock_boot_ns(), &c->engine);
	if (r < 0)
		return diag_set(diag, r, "engine", "cannot start: %s", strerror(-r));
	r = store_list(c->store, "jobs/", load_job, &l);
	size_t jobs = l.count;
	if (r == 0)
		r = store_list(c->store, "nodes/", load_node, &l);
	if (r < 0)
		return diag->what[0] ? r : diag_set(diag, r, "store", "%s", strerror(-r));
	log_info("%zu jobs in the store; no next incarnation before one lease (%llu ms)", jobs,
		 (unsigned long long)config.lease_ms);
	return 0;
}

static int open_port(struct coordinator *c, struct diag *diag)
{
	char address[256];
	uint16_t port;
	const struct config_public *p = &c->config->public_side;
	int r = config_listen(c->config->listen, address, sizeof(address), &port, diag);
	if (r < 0)
		return r;
	static struct http_socket_route sockets[4]; /* ends with a NULL path */
	sockets[0] = agent_socket;
	sockets[1] = maps_owner_socket;
	sockets[2] = maps_volunteer_socket;
	struct http_server_config config = {
		.address = strcmp(address, "0.0.0.0") == 0 ? "" : address,
		.port = port,
		.identity = c->identity,
		.spool_dir = blobs_spool(c->blobs),
		.routes = api_routes(c->config),
		.sockets = sockets,
		.public_name = p->name, .public_cert = p->cert, .public_key = p->key,
		.admit = admit,
		.user = c,
	};
	r = http_server_open(c->loop, &config, &c->http, diag);
	if (r == 0)
		log_info("listening on port %u", http_server_port(c->http));
	return r;
}

int coordinator_open(const char *dir, const struct coordinator_config *config,
		     struct coordinator **ret, struct diag *diag)
{
	struct coordinator *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->config = config;
	int r = path_format(c->dir, sizeof(c->dir), "%s", dir);
	if (r == 0)
		r = loop_new(&c->loop);
	loop_timer_init(&c->tick, c->loop, tick_due, c);
	loop_timer_init(&c->sync, c->loop, sync_logs, c);
	loop_timer_init(&c->outlook, c->loop, look_ahead, c);
	loop_timer_init(&c->forget, c->loop, forget_old, c);
	if (r == 0)
		r = map_new(&c->logs);
	if (r == 0)
		r = map_new(&c->sessions);
	if (r == 0)
		r = map_new(&c->changed);
	if (r == 0)
		r = open_state(c, diag);
	if (r == 0)
		r = forecast_open(c->store, clock_wall_ms(), &c->forecast, diag);
	if (r == 0)
		r = open_engine(c, diag);
	if (r == 0)
		r = settings_open(c, &c->settings, diag);
	if (r == 0)
		r = maps_open(c, &c->maps);
	if (r == 0)
		r = open_port(c, diag);
	if (r == 0)
		r = loop_timer_in(&c->sync, NS_PER_S);
	if (r == 0)
		r = loop_timer_in(&c->outlook, NS_PER_S);
	if (r == 0)
		r = loop_timer_in(&c->forget, NS_PER_S);
	if (r < 0) {
		coordinator_close(c);
		return r;
	}
	coordinator_poke(c);
	*ret = c;
	return 0;
}

void coordinator_close(struct coordinator *c)
{
	const void *key;
	size_t key_len;
	void *l;
	if (!c)
		return;
	if (c->loop) {
		loop_timer_stop(&c->sync);
		loop_timer_stop(&c->outlook);
	loop_timer_stop(&c->forget);
		if (c->http)
			watch_close_all(c);
		http_server_close(c->http);
		maps_close(c->maps);
		settings_close(c->settings);
		loop_timer_stop(&c->tick);
	}
	engine_close(c->engine);
	for (size_t i = 0; c->logs && map_next(c->logs, &i, &key, &key_len, &l);) {
		(void)joblog_sync(l); /* power must fail right now for this to matter */
		joblog_close(l);
	}
	map_free(c->logs);
	map_free(c->sessions);
	map_free(c->changed);
	forecast_close(c->forecast);
	blobs_close(c->blobs);
	registry_close(c->registry);
	store_close(c->store);
	vault_close(c->vault);
	identity_ca_free(c->ca);
	identity_free(c->identity);
	loop_free(c->loop);
	free(c);
}
