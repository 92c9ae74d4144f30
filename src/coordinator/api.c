/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/parse.h"
#include "coordinator/maps.h"

#define JSON_BODY_MAX (4u << 20)
#define ROUTES_MAX 64

static const struct api_row *const tables[] = { api_job_rows, api_node_rows, api_admin_rows };

static void enter(struct http_request *r, void *user)
{
	const struct api_row *row = http_request_data(r);
	const struct identity_peer *peer = http_request_peer(r);
	if (row->roles != API_ANYBODY && !(row->roles & (1 << peer->role))) {
		http_reply_error(r, 403, "%s %s is not for the role %s", row->method, row->path,
				 identity_role_name(peer->role));
		return;
	}
	row->handle(user, r);
}

const struct http_route *api_routes(const struct coordinator_config *config)
{
	static struct http_route routes[ROUTES_MAX + 1];
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		for (const struct api_row *row = tables[i]; row->path; row++) {
			CHECK(n < ROUTES_MAX);
			routes[n++] = (struct http_route){
				.method = row->method,
				.path = row->path,
				.flags = (row->roles == API_ANYBODY ? HTTP_ANONYMOUS : 0) |
					 (row->body == API_JSON ? HTTP_BODY_JSON : 0) |
					 (row->body == API_FILE ? HTTP_BODY_FILE : 0),
				.body_max = row->body == API_JSON ? JSON_BODY_MAX :
					    row->body == API_FILE ? config->inputs_max : 0,
				.handle = enter,
				.data = row,
			};
		}
	}
	for (const struct http_route *route = maps_routes; route->path; route++) {
		CHECK(n < ROUTES_MAX);
		routes[n++] = *route;
	}
	routes[n] = (struct http_route){ 0 };
	return routes;
}

int api_body_decode(struct http_request *r, void *ret)
{
	const struct api_row *row = http_request_data(r);
	struct diag d = DIAG_INIT;
	json_t *in = http_request_json(r);
	int err = -EINVAL;
	if (!in)
		diag_set(&d, err, "body", "is missing: JSON is wanted");
	else
		err = schema_decode(row->body_schema, in, SCHEMA_STRICT, NULL, ret, &d);
	if (err < 0)
		http_reply_diag(r, 400, &d);
	return err;
}

int api_query_u64(struct http_request *r, const char *name, uint64_t fallback, uint64_t *ret)
{
	const char *text = http_request_query(r, name);
	*ret = fallback;
	if (!text || parse_u64(text, ret) == 0)
		return 0;
	http_reply_error(r, 400, "%s=%.40s is no number", name, text);
	return -EINVAL;
}

void api_reply(struct http_request *r, const void *obj)
{
	const struct api_row *row = http_request_data(r);
	json_t *out = schema_encode(row->reply_schema, obj);
	if (out)
		http_reply_json(r, row->status, out);
	else
		http_reply_error(r, 503, "out of memory");
}

void api_reply_errno(struct http_request *r, int err, const struct diag *diag)
{
	static const struct {
		int err, status;
	} statuses[] = {
		{ -EINVAL, 400 }, { -ERANGE, 400 }, { -E2BIG, 400 },  { -EACCES, 403 }, { -EPERM, 403 },
		{ -ENOENT, 404 }, { -EEXIST, 409 }, { -ESTALE, 410 }, { -EFBIG, 413 }, { -EAGAIN, 429 },
		{ -ENOSPC, 507 },
	};
	int status = 500;
	for (size_t i = 0; i < ARRAY_SIZE(statuses); i++)
		if (statuses[i].err == err)
			status = statuses[i].status;
	if (diag && diag->what[0])
		http_reply_diag(r, status, diag);
	else
		http_reply_error(r, status, "%s", strerror(-err));
}

/* ---- OpenAPI ---- */

static json_t *describe_queries(const char *text, json_t *parameters)
{
	char buf[512];
	snprintf(buf, sizeof(buf), "%s", text ? text : "");
	char *save = NULL;
	for (char *q = strtok_r(buf, ";", &save); q; q = strtok_r(NULL, ";", &save)) {
		q += strspn(q, " ");
		char *colon = strchr(q, ':');
		CHECK(colon);
		*colon = 0;
		json_array_append_new(parameters,
				      json_pack("{s:s,s:s,s:s,s:{s:s}}", "name", q, "in", "query",
						"description", colon + 2, "schema", "type", "string"));
	}
	return parameters;
}

static json_t *describe_parameters(const struct api_row *row)
{
	json_t *parameters = json_array();
	for (const char *p = row->path; (p = strchr(p, '{')); p++) {
		size_t len = strcspn(p + 1, "}");
		json_array_append_new(parameters,
				      json_pack("{s:s%,s:s,s:b,s:{s:s}}", "name", p + 1, len, "in", "path",
						"required", 1, "schema", "type", "string"));
	}
	return describe_queries(row->queries, parameters);
}

static json_t *describe_roles(int roles)
{
	json_t *list = json_array();
	for (int i = IDENTITY_OWNER; i < IDENTITY_ROLE_COUNT; i++)
		if (roles != API_ANYBODY && roles & (1 << i))
			json_array_append_new(list, json_string(identity_role_name(i)));
	return list;
}

/* The schema goes among the components, once; a reference stands for it. */
static json_t *reference(json_t *schemas, const struct schema *s)
{
	if (!s)
		return json_object();
	if (!json_object_get(schemas, s->name)) {
		json_t *described = schema_describe(s);
		json_object_del(described, "$schema");
		json_object_set_new(schemas, s->name, described);
	}
	return json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", s->name));
}

static json_t *describe_row(const struct api_row *row, json_t *schemas)
{
	char status[16];
	snprintf(status, sizeof(status), "%d", row->status);
	json_t *op = json_pack("{s:s,s:o,s:o}", "summary", row->summary, "parameters",
			       describe_parameters(row), "x-roles", describe_roles(row->roles));
	if (row->body == API_JSON)
		json_object_set_new(op, "requestBody",
				    json_pack("{s:{s:{s:o}}}", "content", "application/json", "schema",
					      reference(schemas, row->body_schema)));
	else if (row->body == API_FILE)
		json_object_set_new(op, "requestBody",
				    json_pack("{s:{s:{}}}", "content", "application/octet-stream"));
	json_t *reply = json_pack("{s:s}", "description", row->summary);
	if (row->reply_type)
		json_object_set_new(reply, "content",
				    json_pack("{s:{s:o}}", row->reply_type, "schema",
					      reference(schemas, row->reply_schema)));
	json_object_set_new(op, "responses",
			    json_pack("{s:o,s:{s:s}}", status, reply, "default", "$ref",
				      "#/components/responses/error"));
	if (row->roles == API_ANYBODY)
		json_object_set_new(op, "security", json_array());
	return op;
}

json_t *api_describe(void)
{
	json_t *paths = json_object(), *schemas = json_object();
	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		for (const struct api_row *row = tables[i]; row->path; row++) {
			char method[8] = "";
			for (size_t k = 0; row->method[k] && k < sizeof(method) - 1; k++)
				method[k] = (char)(row->method[k] | 0x20);
			json_t *path = json_object_get(paths, row->path);
			if (!path) {
				path = json_object();
				json_object_set_new(paths, row->path, path);
			}
			json_object_set_new(path, method, describe_row(row, schemas));
		}
	}
	return json_pack("{s:s, s:{s:s,s:s,s:s}, s:o, s:{s:o, s:{s:{s:s,s:{s:{s:{s:s,s:{s:{s:s,s:{s:{s:s},"
			 "s:{s:s},s:{s:s}}}}}}}}}, s:{s:{s:s}}}, s:[{s:[]}]}",
			 "openapi", "3.1.0", "info", "title", "ReclaimNet coordinator", "version",
			 RECLAIM_VERSION, "description",
			 "REST over mutual TLS 1.3; docs/protocol.md says what each call means.", "paths",
			 paths, "components", "schemas", schemas, "responses", "error", "description",
			 "what went wrong", "content", "application/json", "schema", "type", "object",
			 "properties", "error", "type", "object", "properties", "status", "type", "integer",
			 "where", "type", "string", "what", "type", "string", "securitySchemes",
			 "certificate", "type", "mutualTLS", "security", "certificate");
}
