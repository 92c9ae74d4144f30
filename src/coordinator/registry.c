/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/registry.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/rng.h"
#include "base/schema.h"

#define SECRET_LEN 20
#define SECRET_HEX (2 * SECRET_LEN)
#define TIME_MAX 9e15

struct registry {
	struct store *store;
	struct identity_ca *ca;
	struct map *revoked; /* serial -> itself */
};

/* ---- records ---- */

struct token_record {
	int role;
	char *name;
	char *owner;
	char *by;
	uint64_t expires_ms;
};

static const struct schema_field token_fields[] = {
	FIELD_ENUM(struct token_record, role, identity_role_names, .flags = FIELD_REQUIRED),
	FIELD_STR(struct token_record, name, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_STR(struct token_record, owner, IDENTITY_NAME_MAX),
	FIELD_STR(struct token_record, by, IDENTITY_NAME_MAX),
	FIELD_U64(struct token_record, expires_ms, 0, TIME_MAX),
	FIELD_END,
};
static const struct schema token_schema = SCHEMA(struct token_record, "token", token_fields);

struct cert_record {
	int role;
	char *name;
	uint64_t issued_ms, expires_ms;
};

static const struct schema_field cert_fields[] = {
	FIELD_ENUM(struct cert_record, role, identity_role_names, .flags = FIELD_REQUIRED),
	FIELD_STR(struct cert_record, name, IDENTITY_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_U64(struct cert_record, issued_ms, 0, TIME_MAX),
	FIELD_U64(struct cert_record, expires_ms, 0, TIME_MAX),
	FIELD_END,
};
static const struct schema cert_schema = SCHEMA(struct cert_record, "cert", cert_fields);

static void put_json(struct store_txn *t, const char *key, json_t *value)
{
	CLEANUP_FREE char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	if (text)
		store_put(t, key, text, strlen(text));
	else
		t->error = -ENOMEM;
	json_decref(value);
}

static int decode(const struct schema *s, const struct store_kv *kv, void *ret)
{
	CLEANUP_JSON json_t *in = json_loadb(kv->value, kv->value_len, 0, NULL);
	return in ? schema_decode(s, in, SCHEMA_OPEN, NULL, ret, NULL) : -EBADMSG;
}

static int load_revoked(void *user, const struct store_kv *kv)
{
	struct registry *g = user;
	return map_set_str(g->revoked, kv->key + strlen("revoked/"), g, NULL);
}

int registry_open(struct store *store, struct identity_ca *ca, struct registry **ret,
		  struct diag *diag)
{
	struct registry *g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->store = store;
	g->ca = ca;
	int r = map_new(&g->revoked);
	if (r == 0)
		r = store_list(store, "revoked/", load_revoked, g);
	if (r < 0) {
		registry_close(g);
		return diag_set(diag, r, "store", "revocations cannot be read: %s", strerror(-r));
	}
	*ret = g;
	return 0;
}

void registry_close(struct registry *g)
{
	if (!g)
		return;
	map_free(g->revoked);
	free(g);
}

/* ---- tokens ---- */

static int token_key(const char *secret, char *ret, size_t size)
{
	uint8_t digest[EVP_MAX_MD_SIZE];
	char hex[2 * EVP_MAX_MD_SIZE + 1];
	unsigned len = 0;
	if (!EVP_Digest(secret, strlen(secret), digest, &len, EVP_sha256(), NULL))
		return -EIO;
	hex_encode(digest, len, hex);
	return snprintf(ret, size, "tokens/%s", hex) < (int)size ? 0 : -ENAMETOOLONG;
}

int registry_token_create(struct registry *g, enum identity_role role, const char *name,
			  const char *owner, uint64_t valid_s, const char *by, uint64_t wall_ms,
			  char ret_text[TOKEN_TEXT_MAX], struct diag *diag)
{
	uint8_t bytes[SECRET_LEN];
	char secret[SECRET_HEX + 1], key[128];

	if (!identity_name_is_valid(name))
		return diag_set(diag, -EINVAL, "name",
				"\"%.80s\" is no name: letters, digits, '.', '_', '-', at most %d",
				name ? name : "", IDENTITY_NAME_MAX);
	if (owner && !identity_name_is_valid(owner))
		return diag_set(diag, -EINVAL, "owner", "\"%.80s\" is no name", owner);
	if (owner && role != IDENTITY_AGENT)
		return diag_set(diag, -EINVAL, "owner", "only a machine (role agent) has an owner");
	if (role == IDENTITY_NONE || role == IDENTITY_COORDINATOR)
		return diag_set(diag, -EINVAL, "role", "%s cannot be enrolled", identity_role_name(role));
	if (valid_s == 0 || valid_s > TOKEN_VALID_S_MAX)
		return diag_set(diag, -ERANGE, "valid", "wants 1 s to 90 days");
	int r = random_bytes(bytes, sizeof(bytes));
	if (r < 0)
		return r;
	hex_encode(bytes, sizeof(bytes), secret);
	r = token_key(secret, key, sizeof(key));
	if (r < 0)
		return r;
	struct token_record record = { role, (char *)name, (char *)owner, (char *)by,
				       wall_ms + valid_s * 1000 };
	struct store_txn t = STORE_TXN_INIT;
	store_compare_missing(&t, key);
	put_json(&t, key, schema_encode(&token_schema, &record));
	r = store_commit(g->store, &t, NULL);
	if (r < 0)
		return diag_set(diag, r, "store", "the token cannot be stored: %s", strerror(-r));
	snprintf(ret_text, TOKEN_TEXT_MAX, "rj1.%s.%s", secret, identity_ca_fingerprint(g->ca));
	return 0;
}

/* ---- certificates ---- */

/* Signs and adds the record to the transaction. */
static int sign_into(struct registry *g, struct store_txn *t, const char *name,
		     enum identity_role role, const char *csr_pem, uint64_t wall_ms,
		     struct enrolment *ret, struct diag *diag)
{
	char key[128];
	*ret = (struct enrolment){ .role = role };
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	int r = identity_ca_sign(g->ca, csr_pem, name, role, CERT_VALID_S, &ret->cert_pem, ret->serial,
				 diag);
	if (r < 0)
		return r;
	struct cert_record cert = { role, (char *)name, wall_ms, wall_ms + CERT_VALID_S * 1000 };
	snprintf(key, sizeof(key), "certs/%s", ret->serial);
	store_compare_missing(t, key);
	put_json(t, key, schema_encode(&cert_schema, &cert));
	return 0;
}

static int finish(struct registry *g, struct store_txn *t, int r, struct enrolment *ret,
		  struct diag *diag)
{
	if (r == 0) {
		POINT("coordinator.enrol.before_commit");
		r = store_commit(g->store, t, NULL);
		POINT("coordinator.enrol.after_commit");
		if (r == -EAGAIN)
			r = diag_set(diag, -EACCES, "token", "was used just now");
		else if (r < 0)
			diag_set(diag, r, "store", "%s", strerror(-r));
	}
	store_txn_done(t);
	if (r < 0) {
		free(ret->cert_pem);
		*ret = (struct enrolment){ 0 };
	}
	return r;
}

int registry_enrol(struct registry *g, const char *secret, const char *csr_pem, uint64_t wall_ms,
		   struct enrolment *ret, struct diag *diag)
{
	char key[128], node_key[128];
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	struct token_record token = { 0 };
	struct store_txn t = STORE_TXN_INIT;

	if (strlen(secret) != SECRET_HEX)
		return diag_set(diag, -EACCES, "token", "is not one of ours");
	int r = token_key(secret, key, sizeof(key));
	if (r == 0)
		r = store_get(g->store, key, &kv);
	if (r == -ENOENT)
		return diag_set(diag, -EACCES, "token", "is unknown, or was used already");
	if (r == 0)
		r = decode(&token_schema, &kv, &token);
	if (r < 0)
		return diag_set(diag, r, "token", "cannot be read: %s", strerror(-r));
	*ret = (struct enrolment){ 0 };
	if (token.expires_ms < wall_ms) {
		r = diag_set(diag, -EACCES, "token", "is out of date: ask for a new one");
	} else {
		store_compare_revision(&t, key, kv.mod_revision);
		store_delete(&t, key);
		if (token.role == IDENTITY_AGENT) {
			snprintf(node_key, sizeof(node_key), "nodes/%s", token.name);
			put_json(&t, node_key, json_pack("{s:s}", "owner", token.owner ? token.owner : ""));
		}
		r = sign_into(g, &t, token.name, token.role, csr_pem, wall_ms, ret, diag);
	}
	schema_done(&token_schema, &token);
	return finish(g, &t, r, ret, diag);
}

int registry_issue(struct registry *g, const char *name, enum identity_role role,
		   const char *csr_pem, uint64_t wall_ms, struct enrolment *ret, struct diag *diag)
{
	struct store_txn t = STORE_TXN_INIT;
	*ret = (struct enrolment){ 0 };
	int r = sign_into(g, &t, name, role, csr_pem, wall_ms, ret, diag);
	return finish(g, &t, r, ret, diag);
}

int registry_renew(struct registry *g, const struct identity_peer *peer, const char *csr_pem,
		   uint64_t wall_ms, struct enrolment *ret, struct diag *diag)
{
	return registry_issue(g, peer->name, peer->role, csr_pem, wall_ms, ret, diag);
}

bool registry_is_revoked(const struct registry *g, const char *serial)
{
	return map_get_str(g->revoked, serial) != NULL;
}

struct revoking {
	struct registry *g;
	const char *wanted;
	struct store_txn txn;
	json_t *value;
	int count;
	void (*fn)(void *user, const char *serial, const char *name, enum identity_role role);
	void *user;
	bool tell;
};

static int revoke_one(void *user, const struct store_kv *kv)
{
	struct revoking *v = user;
	struct cert_record cert;
	const char *serial = kv->key + strlen("certs/");
	if (decode(&cert_schema, kv, &cert) < 0)
		return 0;
	bool match = strcmp(cert.name, v->wanted) == 0 || strcmp(serial, v->wanted) == 0;
	if (match && v->tell) {
		(void)map_set_str(v->g->revoked, serial, v->g, NULL);
		if (v->fn)
			v->fn(v->user, serial, cert.name, cert.role);
	} else if (match && !registry_is_revoked(v->g, serial)) {
		char key[128];
		snprintf(key, sizeof(key), "revoked/%s", serial);
		put_json(&v->txn, key, json_incref(v->value));
		v->count++;
	}
	schema_done(&cert_schema, &cert);
	return 0;
}

int registry_revoke(struct registry *g, const char *name_or_serial, const char *by,
		    uint64_t wall_ms,
		    void (*fn)(void *user, const char *serial, const char *name,
			       enum identity_role role),
		    void *user)
{
	CLEANUP_JSON json_t *value = json_pack("{s:s,s:I}", "by", by, "at_ms", (json_int_t)wall_ms);
	struct revoking v = { .g = g, .wanted = name_or_serial, .txn = STORE_TXN_INIT,
			      .value = value, .fn = fn, .user = user };
	if (!value)
		return -ENOMEM;
	int r = store_list(g->store, "certs/", revoke_one, &v);
	if (r == 0 && v.count == 0)
		r = -ENOENT;
	if (r == 0)
		r = store_commit(g->store, &v.txn, NULL);
	store_txn_done(&v.txn);
	if (r < 0)
		return r;
	v.tell = true; /* only what is durable is acted upon */
	r = store_list(g->store, "certs/", revoke_one, &v);
	return r < 0 ? r : v.count;
}

void registry_owner(struct registry *g, const char *node, char ret[IDENTITY_NAME_MAX + 1])
{
	char key[128];
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	ret[0] = 0;
	snprintf(key, sizeof(key), "nodes/%.64s", node);
	if (store_get(g->store, key, &kv) < 0)
		return;
	CLEANUP_JSON json_t *in = json_loadb(kv.value, kv.value_len, 0, NULL);
	const char *owner = json_string_value(json_object_get(in, "owner"));
	if (owner)
		snprintf(ret, IDENTITY_NAME_MAX + 1, "%s", owner);
}

struct banned {
	const struct registry *g;
	const char *node;
	int good, bad;
};

static int count_good(void *user, const struct store_kv *kv)
{
	struct banned *b = user;
	struct cert_record cert;
	if (decode(&cert_schema, kv, &cert) < 0)
		return 0;
	if (cert.role == IDENTITY_AGENT && strcmp(cert.name, b->node) == 0) {
		if (registry_is_revoked(b->g, kv->key + strlen("certs/")))
			b->bad++;
		else
			b->good++;
	}
	schema_done(&cert_schema, &cert);
	return 0;
}

bool registry_node_banned(struct registry *g, const char *node)
{
	struct banned b = { g, node, 0, 0 };
	return store_list(g->store, "certs/", count_good, &b) == 0 && b.bad > 0 && b.good == 0;
}

struct certs {
	struct registry *g;
	json_t *list;
};

static int add_cert(void *user, const struct store_kv *kv)
{
	struct certs *c = user;
	json_t *one = json_loadb(kv->value, kv->value_len, 0, NULL);
	const char *serial = kv->key + strlen("certs/");
	json_object_set_new(one, "serial", json_string(serial));
	json_object_set_new(one, "revoked", json_boolean(registry_is_revoked(c->g, serial)));
	return json_array_append_new(c->list, one) < 0 ? -ENOMEM : 0;
}

json_t *registry_certs(struct registry *g)
{
	struct certs c = { g, json_array() };
	if (store_list(g->store, "certs/", add_cert, &c) < 0) {
		json_decref(c.list);
		return NULL;
	}
	return c.list;
}
