/* SPDX-License-Identifier: Apache-2.0 */
/* A job's stream endpoints as its registry knows them, and moving one by hand. */
#include <errno.h>
#include <jansson.h>
#include <reclaim/stream.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "stream/admin.h"

enum { TIMEOUT_MS = 5000 };

struct streams_options {
	const char *registry, *token;
	bool json;
};

static int resolve(const struct streams_options *o, const char **registry, const char **token)
{
	*registry = o->registry ? o->registry : getenv("RECLAIM_STREAM_REGISTRY");
	*token = o->token ? o->token : getenv("RECLAIM_STREAM_TOKEN");
	if (!*registry)
		return cli_failf("no registry: give --registry or set RECLAIM_STREAM_REGISTRY");
	if (!*token)
		*token = "";
	return 0;
}

static const char *text_of(const json_t *j, const char *key)
{
	const char *text = json_string_value(json_object_get(j, key));

	return text ? text : "";
}

static void print_table(const json_t *list)
{
	size_t i;
	json_t *e;

	printf("%-20s %-7s %6s %9s %-22s %-20s %s\n", "ENDPOINT", "STATE", "EPOCH", "LEASE ms", "LOCATOR",
	       "INSTANCE", "MOVES, STANDBYS");
	json_array_foreach(list, i, e) {
		size_t k;
		json_t *s;

		printf("%-20s %-7s %6s %9lld %-22s %-20s %s", text_of(e, "name"), text_of(e, "state"),
		       text_of(e, "epoch"), (long long)json_integer_value(json_object_get(e, "lease_ms")),
		       text_of(e, "locator"), text_of(e, "owner"), text_of(e, "handover"));
		json_array_foreach(json_object_get(e, "standbys"), k, s)
			printf(" %s", json_string_value(s));
		printf("\n");
	}
}

static int run_streams(const void *values, int argc, const char *const *argv)
{
	const struct streams_options *o = values;
	CLEANUP_FREE char *text = NULL;
	const char *registry, *token;
	json_error_t error;

	(void)argc, (void)argv;
	if (resolve(o, &registry, &token))
		return 1;
	int r = stream_admin_list(registry, token, TIMEOUT_MS, &text);
	if (r == -EPERM)
		return cli_failf("the registry does not know this token");
	if (r < 0)
		return cli_failf("%s: %s", registry, strerror(-r));
	if (o->json) {
		printf("%s\n", text);
		return 0;
	}
	CLEANUP_JSON json_t *j = json_loads(text, 0, &error);
	if (!j)
		return cli_failf("%s: %s", registry, error.text);
	print_table(json_object_get(j, "endpoints"));
	return 0;
}

static int run_move(const void *values, int argc, const char *const *argv)
{
	const char *registry, *token;
	uint64_t instance;

	(void)argc;
	if (resolve(values, &registry, &token))
		return 1;
	if (parse_u64(argv[1], &instance) < 0)
		return cli_failf("\"%s\" is no instance number", argv[1]);
	int r = reclaim_move(registry, token, argv[0], instance);
	if (r == -ENOENT)
		return cli_failf("no standby %s of \"%s\"", argv[1], argv[0]);
	if (r < 0)
		return cli_failf("%s: %s", argv[0], strerror(-r));
	return 0;
}

#define REGISTRY_OPTIONS \
	{ "registry", 0, OPTION_STR, offsetof(struct streams_options, registry), "ADDRESS", NULL, 0, 0, \
	  "unix:PATH or tcp:HOST:PORT ($RECLAIM_STREAM_REGISTRY)" }, \
	{ "token", 0, OPTION_STR, offsetof(struct streams_options, token), "TOKEN", NULL, 0, 0, \
	  "the job's token ($RECLAIM_STREAM_TOKEN)" }

static const struct option list_options[] = {
	REGISTRY_OPTIONS,
	{ "json", 0, OPTION_FLAG, offsetof(struct streams_options, json), NULL, NULL, 0, 0, "print JSON" },
	{ .kind = OPTION_END },
};
static const struct option move_options[] = { REGISTRY_OPTIONS, { .kind = OPTION_END } };

const struct command cli_streams_commands[] = {
	{ .name = "streams", .options = list_options, .values_size = sizeof(struct streams_options),
	  .help = "a job's stream endpoints: owner, epoch, lease, standbys", .run = run_streams },
	{ .name = "streams move", .args = "ENDPOINT INSTANCE", .args_min = 2, .args_max = 2,
	  .options = move_options, .values_size = sizeof(struct streams_options),
	  .help = "move an endpoint to one of its standbys", .run = run_move },
	{ .name = NULL },
};
