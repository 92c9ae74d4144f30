/* SPDX-License-Identifier: Apache-2.0 */
/* Enrolment, machines, and what a campus operator may do. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "coordinator/api.h"
#include "coordinator/forecast.h"

#define PEM_MAX 16384

/* ---- joining ---- */

struct rest_token {
	int role;
	char *name;
	char *owner;
	uint64_t valid; /* ns */
};

static const struct schema_field token_fields[] = {
	FIELD_ENUM(struct rest_token, role, identity_role_names, .flags = FIELD_REQUIRED),
	FIELD_STR(struct rest_token, name, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_STR(struct rest_token, owner, IDENTITY_NAME_MAX, .help = "of a machine: whose it is"),
	FIELD_DURATION(struct rest_token, valid, 1e9, 7.776e15, .fallback = "24h"),
	FIELD_END,
};
static const struct schema token_schema = SCHEMA(struct rest_token, "token", token_fields);

struct rest_token_made {
	char *token;
	char *name;
	int role;
	uint64_t expires_ms;
};

static const struct schema_field token_made_fields[] = {
	FIELD_STR(struct rest_token_made, token, TOKEN_TEXT_MAX, .help = "good for one enrolment"),
	FIELD_STR(struct rest_token_made, name, IDENTITY_NAME_MAX),
	FIELD_ENUM(struct rest_token_made, role, identity_role_names),
	FIELD_U64(struct rest_token_made, expires_ms, 0, 9e15, .help = "wall clock, ms since 1970"),
	FIELD_END,
};
static const struct schema token_made_schema =
	SCHEMA(struct rest_token_made, "token_made", token_made_fields);

struct rest_enroll {
	char *token;
	char *csr;
};

static const struct schema_field enroll_fields[] = {
	FIELD_STR(struct rest_enroll, token, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED,
		  .help = "the token's secret, its second part"),
	FIELD_STR(struct rest_enroll, csr, PEM_MAX, .flags = FIELD_REQUIRED, .help = "PEM"),
	FIELD_END,
};
static const struct schema enroll_schema = SCHEMA(struct rest_enroll, "enroll", enroll_fields);

struct rest_renew {
	char *csr;
};

static const struct schema_field renew_fields[] = {
	FIELD_STR(struct rest_renew, csr, PEM_MAX, .flags = FIELD_REQUIRED, .help = "PEM"),
	FIELD_END,
};
static const struct schema renew_schema = SCHEMA(struct rest_renew, "renew", renew_fields);

struct rest_enrolled {
	char *name;
	int role;
	char *cert, *ca;
	char *coordinator;
};

static const struct schema_field enrolled_fields[] = {
	FIELD_STR(struct rest_enrolled, name, IDENTITY_NAME_MAX),
	FIELD_ENUM(struct rest_enrolled, role, identity_role_names),
	FIELD_STR(struct rest_enrolled, cert, PEM_MAX, .help = "PEM"),
	FIELD_STR(struct rest_enrolled, ca, PEM_MAX, .help = "PEM"),
	FIELD_STR(struct rest_enrolled, coordinator, IDENTITY_NAME_MAX),
	FIELD_END,
};
static const struct schema enrolled_schema =
	SCHEMA(struct rest_enrolled, "enrolled", enrolled_fields);

static void token_create(struct coordinator *c, struct http_request *r)
{
	struct rest_token t;
	struct diag d = DIAG_INIT;
	char text[TOKEN_TEXT_MAX];
	if (api_body_decode(r, &t) < 0)
		return;
	uint64_t now = clock_wall_ms();
	int e = registry_token_create(c->registry, (enum identity_role)t.role, t.name, t.owner,
				      t.valid / NS_PER_S, http_request_peer(r)->name, now, text, &d);
	if (e < 0) {
		api_reply_errno(r, e, &d);
	} else {
		struct rest_token_made made = { text, t.name, t.role, now + t.valid / NS_PER_MS };
		log_info("%s made a token for %s \"%s\"", http_request_peer(r)->name,
			 identity_role_name((enum identity_role)t.role), t.name);
		api_reply(r, &made);
	}
	schema_done(&token_schema, &t);
}

static void reply_enrolled(struct coordinator *c, struct http_request *r, struct enrolment *e)
{
	struct rest_enrolled out = { e->name, (int)e->role, e->cert_pem,
				     (char *)identity_ca_pem(c->ca),
				     (char *)identity_self(c->identity)->name };
	log_info("%s \"%s\" enrolled from %s, certificate %s", identity_role_name(e->role), e->name,
		 http_request_address(r), e->serial);
	if (e->role == IDENTITY_AGENT) {
		engine_node_ban(c->engine, e->name, false, clock_boot_ns());
		coordinator_poke(c);
	}
	api_reply(r, &out);
	free(e->cert_pem);
}

static void enroll(struct coordinator *c, struct http_request *r)
{
	struct rest_enroll in;
	struct enrolment e;
	struct diag d = DIAG_INIT;
	if (api_body_decode(r, &in) < 0)
		return;
	int err = registry_enrol(c->registry, in.token, in.csr, clock_wall_ms(), &e, &d);
	schema_done(&enroll_schema, &in);
	if (err < 0) {
		log_warn("enrolment from %s refused: %s %s", http_request_address(r), d.where, d.what);
		api_reply_errno(r, err, &d);
		return;
	}
	reply_enrolled(c, r, &e);
}

static void renew(struct coordinator *c, struct http_request *r)
{
	struct rest_renew in;
	struct enrolment e;
	struct diag d = DIAG_INIT;
	if (api_body_decode(r, &in) < 0)
		return;
	int err = registry_renew(c->registry, http_request_peer(r), in.csr, clock_wall_ms(), &e, &d);
	schema_done(&renew_schema, &in);
	if (err < 0)
		api_reply_errno(r, err, &d);
	else
		reply_enrolled(c, r, &e);
}

/* ---- machines ---- */

/* An owner sees their own machines only. */
static bool node_visible(struct coordinator *c, const struct identity_peer *peer, const char *node)
{
	char owner[IDENTITY_NAME_MAX + 1];
	if (peer->role != IDENTITY_OWNER)
		return true;
	registry_owner(c->registry, node, owner);
	return strcmp(owner, peer->name) == 0;
}

static void nodes(struct coordinator *c, struct http_request *r)
{
	json_t *all = engine_nodes(c->engine, clock_boot_ns()), *mine = json_array(), *node;
	size_t i;
	json_array_foreach(all, i, node) {
		const char *name = json_string_value(json_object_get(node, "name"));
		if (name && node_visible(c, http_request_peer(r), name))
			json_array_append(mine, node);
	}
	json_decref(all);
	http_reply_json(r, 200, json_pack("{s:o}", "nodes", mine));
}

static void forecast(struct coordinator *c, struct http_request *r)
{
	const char *node = http_request_param(r, 0);
	uint64_t horizon_s;
	if (api_query_u64(r, "horizon_s", 86400, &horizon_s) < 0)
		return;
	horizon_s = MIN(MAX(horizon_s, UINT64_C(60)), UINT64_C(7 * 86400));
	json_t *out = node_visible(c, http_request_peer(r), node) ?
			      forecast_explain(c->forecast, node, clock_wall_ms(), horizon_s) : NULL;
	if (out)
		http_reply_json(r, 200, out);
	else
		http_reply_error(r, 404, "no machine \"%.64s\"%s", node,
				 http_request_peer(r)->role == IDENTITY_OWNER ? " of yours" : "");
}

const struct api_row api_node_rows[] = {
	{ "GET", "/v1/nodes", API_PEOPLE, "Machines; an owner sees their own.", NULL, API_NO_BODY, NULL,
	  200, "application/json", &rest_nodes_schema, nodes },
	{ "GET", "/v1/nodes/{name}/forecast", API_PEOPLE, "How likely its owner wants it back, and why.",
	  "horizon_s: how far ahead, seconds", API_NO_BODY, NULL, 200, "application/json", NULL, forecast },
	{ 0 },
};

/* ---- the operator ---- */

struct rest_switch {
	bool on;
};

static const struct schema_field switch_fields[] = {
	FIELD_BOOL(struct rest_switch, on, .flags = FIELD_REQUIRED),
	FIELD_END,
};
static const struct schema switch_schema = SCHEMA(struct rest_switch, "switch", switch_fields);

struct rest_cap {
	uint64_t rate;
};

static const struct schema_field cap_fields[] = {
	FIELD_RATE(struct rest_cap, rate, 0, 1e13, .flags = FIELD_REQUIRED,
		   .help = "bit/s over all floors of the campus; 0 = no floors"),
	FIELD_END,
};
static const struct schema cap_schema = SCHEMA(struct rest_cap, "cap", cap_fields);

struct rest_blackout {
	json_t *spans;
};

static const struct schema_field blackout_fields[] = {
	FIELD_JSON(struct rest_blackout, spans, .flags = FIELD_REQUIRED,
		   .help = "[{\"days\": [\"mon\"], \"from\": \"08:00\", \"to\": \"18:00\"}], [] = none"),
	FIELD_END,
};
static const struct schema blackout_schema =
	SCHEMA(struct rest_blackout, "blackout", blackout_fields);

struct rest_revoke {
	char *who;
};

static const struct schema_field revoke_fields[] = {
	FIELD_STR(struct rest_revoke, who, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED,
		  .help = "a name (all its certificates), or a serial"),
	FIELD_END,
};
static const struct schema revoke_schema = SCHEMA(struct rest_revoke, "revoke", revoke_fields);

static void show_settings(struct coordinator *c, struct http_request *r)
{
	json_t *out = settings_show(c->settings);
	if (out)
		http_reply_json(r, 200, out);
	else
		http_reply_error(r, 503, "out of memory");
}

static void changed(struct coordinator *c, struct http_request *r, int err, const struct diag *d)
{
	if (err < 0)
		api_reply_errno(r, err, d);
	else
		show_settings(c, r);
}

static void stop_all(struct coordinator *c, struct http_request *r)
{
	struct rest_switch in;
	struct diag d = DIAG_INIT;
	if (api_body_decode(r, &in) == 0)
		changed(c, r, settings_stop_all(c->settings, in.on, &d), &d);
}

static void cap(struct coordinator *c, struct http_request *r)
{
	struct rest_cap in;
	struct diag d = DIAG_INIT;
	if (api_body_decode(r, &in) == 0)
		changed(c, r, settings_floor_cap(c->settings, in.rate, &d), &d);
}

static void blackout(struct coordinator *c, struct http_request *r)
{
	struct rest_blackout in;
	struct diag d = DIAG_INIT;
	if (api_body_decode(r, &in) < 0)
		return;
	int err = settings_blackout(c->settings, in.spans, &d);
	schema_done(&blackout_schema, &in);
	changed(c, r, err, &d);
}

struct rest_group {
	char *name;
	json_t *people;
};

static const struct schema_field group_fields[] = {
	FIELD_STR(struct rest_group, name, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_JSON(struct rest_group, people, .flags = FIELD_REQUIRED,
		   .help = "names; [] ends the group"),
	FIELD_END,
};
static const struct schema group_schema = SCHEMA(struct rest_group, "group", group_fields);

static void group(struct coordinator *c, struct http_request *r)
{
	struct rest_group in;
	struct diag d = DIAG_INIT;
	if (api_body_decode(r, &in) < 0)
		return;
	int err = json_is_array(in.people) ? settings_group(c->settings, in.name, in.people, &d)
					   : diag_set(&d, -EINVAL, "people", "is not a list");
	schema_done(&group_schema, &in);
	changed(c, r, err, &d);
	coordinator_poke(c); /* somebody may be admitted somewhere now */
}

static void revoke_certs(struct coordinator *c, struct http_request *r)
{
	struct rest_revoke in;
	if (api_body_decode(r, &in) < 0)
		return;
	const char *by = http_request_peer(r)->name;
	int count = registry_revoke(c->registry, in.who, by, clock_wall_ms(), coordinator_revoked, c);
	if (count == -ENOENT)
		http_reply_error(r, 404, "no valid certificate of \"%s\"", in.who);
	else if (count < 0)
		api_reply_errno(r, count, NULL);
	else
		http_reply_json(r, 200, json_pack("{s:i}", "revoked", count));
	if (count > 0)
		log_warn("%s revoked %d certificates of \"%s\"", by, count, in.who);
	schema_done(&revoke_schema, &in);
	coordinator_poke(c);
}

static void certs(struct coordinator *c, struct http_request *r)
{
	json_t *list = registry_certs(c->registry);
	if (list)
		http_reply_json(r, 200, json_pack("{s:o}", "certs", list));
	else
		http_reply_error(r, 500, "the store cannot be read");
}

static void openapi(struct coordinator *c, struct http_request *r)
{
	http_reply_json(r, 200, api_describe());
}

#define JSON "application/json"

const struct api_row api_admin_rows[] = {
	{ "POST", "/v1/tokens", API_ADMIN, "A one-time join token.", NULL, API_JSON, &token_schema, 201,
	  JSON, &token_made_schema, token_create },
	{ "POST", "/v1/enroll", API_ANYBODY, "A certificate for a token and a request.", NULL, API_JSON,
	  &enroll_schema, 201, JSON, &enrolled_schema, enroll },
	{ "POST", "/v1/renew", API_PEOPLE | API_AGENT, "A new certificate before the old one ends.", NULL,
	  API_JSON, &renew_schema, 201, JSON, &enrolled_schema, renew },
	{ "GET", "/v1/admin/settings", API_ADMIN, "Stop switch, cap on floors, blackout hours.", NULL,
	  API_NO_BODY, NULL, 200, JSON, NULL, show_settings },
	{ "POST", "/v1/admin/stop-all", API_ADMIN, "Stop all transfers and guest traffic, or go on.",
	  NULL, API_JSON, &switch_schema, 200, JSON, NULL, stop_all },
	{ "POST", "/v1/admin/cap", API_ADMIN, "The cap on the sum of floors.", NULL, API_JSON,
	  &cap_schema, 200, JSON, NULL, cap },
	{ "POST", "/v1/admin/blackout", API_ADMIN, "Hours without floors.", NULL, API_JSON,
	  &blackout_schema, 200, JSON, NULL, blackout },
	{ "POST", "/v1/admin/group", API_ADMIN, "Who is in a group that owners' terms may admit.", NULL,
	  API_JSON, &group_schema, 200, JSON, NULL, group },
	{ "POST", "/v1/admin/revoke", API_ADMIN, "Revoke certificates; works at once.", NULL, API_JSON,
	  &revoke_schema, 200, JSON, NULL, revoke_certs },
	{ "GET", "/v1/admin/certs", API_ADMIN, "Every certificate issued.", NULL, API_NO_BODY, NULL, 200,
	  JSON, NULL, certs },
	{ "GET", "/v1/openapi.json", API_PEOPLE | API_AGENT, "This description.", NULL, API_NO_BODY, NULL,
	  200, JSON, NULL, openapi },
	{ 0 },
};
