/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The REST side as one table: each row says who may call, what goes in and
 * out, and what handles it. The port's routes and docs/openapi.json come from
 * the rows.
 */
#ifndef RECLAIM_COORDINATOR_API_H
#define RECLAIM_COORDINATOR_API_H

#include "coordinator/server.h"

enum api_role { /* bits */
	API_OWNER = 1 << IDENTITY_OWNER,
	API_GUEST = 1 << IDENTITY_GUEST,
	API_ADMIN = 1 << IDENTITY_ADMIN,
	API_AGENT = 1 << IDENTITY_AGENT,
	API_PEOPLE = API_OWNER | API_GUEST | API_ADMIN,
	API_ANYBODY = -1, /* also without a certificate */
};

enum api_body { API_NO_BODY = 0, API_JSON, API_FILE };

struct api_row {
	const char *method, *path;
	int roles;
	const char *summary;
	const char *queries; /* "offset: first byte; follow: 1 = until the job is over" */
	enum api_body body;
	const struct schema *body_schema;
	int status;          /* of success */
	const char *reply_type;
	const struct schema *reply_schema; /* application/json */
	void (*handle)(struct coordinator *c, struct http_request *r);
};

/* Each table ends with a NULL path. */
extern const struct api_row api_job_rows[], api_node_rows[], api_admin_rows[];

/* For the port; valid for the whole run. */
const struct http_route *api_routes(const struct coordinator_config *config);
json_t *api_describe(void); /* OpenAPI 3.1; a new reference */

/* Decodes the body by the row's table; answers 400 and returns -errno if it does not fit. */
int api_body_decode(struct http_request *r, void *ret);
/* A query that is a number; answers 400 and returns -errno if it is none. */
int api_query_u64(struct http_request *r, const char *name, uint64_t fallback, uint64_t *ret);
/* Encodes by the row's reply table. The struct stays the caller's. */
void api_reply(struct http_request *r, const void *obj);
void api_reply_errno(struct http_request *r, int err, const struct diag *diag);

#endif
