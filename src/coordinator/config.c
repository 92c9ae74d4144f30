/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/config.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"

static const struct schema_field public_fields[] = {
	FIELD_STR(struct config_public, name, 253, .help = "server name on the browsers' certificate"),
	FIELD_STR(struct config_public, cert, 4000, .help = "PEM file of the certificate chain"),
	FIELD_STR(struct config_public, key, 4000, .help = "PEM file of its key"),
	FIELD_END,
};
static const struct schema public_schema = SCHEMA(struct config_public, "public", public_fields);

static const struct schema_field config_fields[] = {
	FIELD_STR(struct coordinator_config, listen, 300, .fallback = "0.0.0.0:7070",
		  .help = "ADDRESS:PORT of the one TLS port"),
	FIELD_DURATION(struct coordinator_config, lease, 5e8, 3.6e12, .fallback = "10s",
		       .help = "how long a guest may run without hearing from here"),
	FIELD_DURATION(struct coordinator_config, lease_margin, 0, 6e11, .fallback = "1s",
		       .help = "waited on top before a next incarnation starts"),
	FIELD_DURATION(struct coordinator_config, status_every, 5e7, 6e11, .fallback = "1s",
		       .help = "how often an agent reports and asks for leases"),
	FIELD_DURATION(struct coordinator_config, interval, 1e9, 8.64e13, .fallback = "5m",
		       .help = "between checkpoints where nothing better is known"),
	FIELD_RATE(struct coordinator_config, floor, 0, 1e13, .fallback = "0",
		   .help = "least that is guaranteed to one move at notice; 0 = what it needs"),
	FIELD_RATE(struct coordinator_config, floors, 0, 1e13, .fallback = "1Gbit",
		   .help = "campus-wide cap on the sum of floors"),
	FIELD_U64(struct coordinator_config, jobs_max, 1, 1e6, .fallback = "10000",
		  .help = "live jobs at most"),
	FIELD_SIZE(struct coordinator_config, inputs_max, 0, 7e10, .fallback = "4GiB",
		   .help = "bytes of one job's inputs, or of its results"),
	FIELD_SIZE(struct coordinator_config, log_max, 4096, 1e12, .fallback = "256MiB",
		   .help = "bytes of one job's output that are kept"),
	FIELD_DURATION(struct coordinator_config, keep, 0, 3.2e17, .fallback = "30d",
		       .help = "jobs that are over are forgotten after it, with output and results; 0 = never"),
	{ .name = "public", .kind = FIELD_KIND_OBJECT,
	  .offset = offsetof(struct coordinator_config, public_side), .sub = &public_schema,
	  .help = "a second server name, with a certificate that browsers accept" },
	FIELD_END,
};

static int check(const void *obj, struct diag *diag)
{
	return config_check(obj, diag);
}

const struct schema config_schema =
	SCHEMA(struct coordinator_config, "coordinator", config_fields, .check = check);

int config_check(const struct coordinator_config *c, struct diag *diag)
{
	const struct config_public *p = &c->public_side;
	char address[256];
	uint16_t port;
	if (c->status_every * 2 > c->lease)
		return diag_set(diag, -EINVAL, "status_every",
				"must be at most half of lease: one lost report would end every guest");
	if ((p->name || p->cert || p->key) && !(p->name && p->cert && p->key))
		return diag_set(diag, -EINVAL, "public", "wants name, cert and key together");
	return config_listen(c->listen, address, sizeof(address), &port, diag);
}

int config_load(const char *path, struct coordinator_config *ret, struct diag *diag)
{
	if (path)
		return schema_load_yaml(&config_schema, path, ret, diag);
	CLEANUP_JSON json_t *empty = json_object();
	return empty ? schema_decode(&config_schema, empty, SCHEMA_STRICT, NULL, ret, diag) : -ENOMEM;
}

int config_listen(const char *text, char *ret_address, size_t size, uint16_t *ret_port,
		  struct diag *diag)
{
	const char *colon = text ? strrchr(text, ':') : NULL;
	uint64_t port;
	if (!colon || parse_u64(colon + 1, &port) < 0 || port > 65535)
		return diag_set(diag, -EINVAL, "listen", "\"%.100s\" is not ADDRESS:PORT",
				text ? text : "");
	const char *begin = text;
	size_t len = (size_t)(colon - text);
	if (len >= 2 && begin[0] == '[' && begin[len - 1] == ']') {
		begin++;
		len -= 2;
	}
	if (len >= size)
		return diag_set(diag, -EINVAL, "listen", "the address is too long");
	memcpy(ret_address, begin, len);
	ret_address[len] = 0;
	*ret_port = (uint16_t)port;
	return 0;
}
