/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edge from the shell: what it does, who sent what, what this machine can
 * do. It reads the pinned maps by itself, so it works with the agent dead; for
 * that it needs root.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "edge/edge.h"

struct edge_options {
	const char *run, *state;
	bool json;
	uint64_t within;
};

static const char *dir_of(const char *given, const char *variable, const char *fallback)
{
	const char *env = getenv(variable);

	return given ? given : env && *env ? env : fallback;
}

static int open_edge(const struct edge_options *o, struct edge **ret)
{
	struct diag diag = DIAG_INIT;
	int err = edge_open_readonly(dir_of(o->run, "RECLAIM_RUN", "/run/reclaim"),
				     dir_of(o->state, "RECLAIM_STATE", "/var/lib/reclaim"), ret, &diag);

	if (err == -ENOENT)
		return cli_failf("no edge is set up here (%s)", diag.where);
	if (err == -EPERM || err == -EACCES)
		return cli_failf("only root may read the edge's maps");
	return err < 0 ? cli_fail(&diag) : 0;
}

static const char *text_of(const json_t *j, const char *key)
{
	const char *text = json_string_value(json_object_get(j, key));

	return text ? text : "";
}

static uint64_t number_of(const json_t *j, const char *key)
{
	uint64_t v = 0;

	(void)parse_u64(text_of(j, key), &v); /* 0 where there is none */
	return v;
}

static const char *rate_of(const json_t *j, const char *key, const char *none, char buf[FORMAT_MAX])
{
	uint64_t v = number_of(j, key);

	return v ? format_rate(v, buf) : none;
}

static void print_direction(const json_t *j)
{
	char bytes[FORMAT_MAX];

	printf("  %10s in %8llu packets, %llu dropped", format_size(number_of(j, "bytes"), bytes),
	       (unsigned long long)number_of(j, "packets"), (unsigned long long)number_of(j, "dropped"));
}

static void print_guest(const json_t *g)
{
	const json_t *d = json_object_get(g, "drops");

	printf("guest %s.%s on %s, %s%s, lease %lld ms\n", text_of(g, "job"), text_of(g, "epoch"),
	       text_of(g, "interface"), text_of(g, "address"),
	       json_is_true(json_object_get(g, "killed")) ? ", CUT" : "",
	       (long long)json_integer_value(json_object_get(g, "lease_ms")));
	printf("  sent    ");
	print_direction(json_object_get(g, "out"));
	printf("\n  received");
	print_direction(json_object_get(g, "in"));
	printf("\n  dropped as cut %llu, out of lease %llu, denied %llu (IPv6 %llu), spoofed %llu, policed %llu\n",
	       (unsigned long long)number_of(d, "killed"), (unsigned long long)number_of(d, "lease"),
	       (unsigned long long)number_of(d, "denied"), (unsigned long long)number_of(d, "denied_ipv6"),
	       (unsigned long long)number_of(d, "spoofed"), (unsigned long long)number_of(d, "policed"));
}

static void print_status(const json_t *s)
{
	char rate[FORMAT_MAX], floor[FORMAT_MAX], cap[FORMAT_MAX], guests[FORMAT_MAX];
	const json_t *item;
	size_t i;

	printf("uplink %s, %s, %s%s%s\n", text_of(s, "uplink"), rate_of(s, "rate", "?", rate),
	       strcmp(text_of(s, "shaping"), "htb") == 0 ? "shaped by htb" : "policed by a token bucket",
	       text_of(s, "why_police")[0] ? ": " : "", text_of(s, "why_police"));
	printf("floor of moves %s of at most %s, guests up to %s%s%s\n", rate_of(s, "floor", "none", floor),
	       rate_of(s, "floor_cap", "none", cap), rate_of(s, "guest_ceiling", "the uplink's rate", guests),
	       json_is_true(json_object_get(s, "stopped")) ? ", STOPPED by the operator" : "",
	       json_is_true(json_object_get(s, "killed_all")) ? ", all guests CUT" : "");
	json_array_foreach(json_object_get(s, "classes"), i, item) {
		printf("%-10s dscp %2lld  out", text_of(item, "class"),
		       (long long)json_integer_value(json_object_get(item, "dscp")));
		print_direction(json_object_get(item, "out"));
		printf("; in");
		print_direction(json_object_get(item, "in"));
		printf("\n");
	}
	json_array_foreach(json_object_get(s, "guests"), i, item)
		print_guest(item);
}

static int run_show(const void *values, int argc, const char *const *argv)
{
	const struct edge_options *o = values;
	struct edge *e = NULL;
	json_t *status;
	int r = open_edge(o, &e);

	(void)argc;
	(void)argv;
	if (r)
		return r;
	status = edge_status(e);
	edge_close(e);
	if (!status)
		return cli_failf("out of memory");
	if (o->json) {
		cli_print_json(status);
		return 0;
	}
	print_status(status);
	json_decref(status);
	return 0;
}

/* "now", seconds since 1970, or local "YYYY-MM-DD HH:MM:SS" (or with a T). */
static int parse_when(const char *text, uint64_t *ret_ms)
{
	static const char *const forms[] = { "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M" };
	uint64_t seconds;

	if (strcmp(text, "now") == 0) {
		*ret_ms = clock_wall_ms();
		return 0;
	}
	if (parse_u64(text, &seconds) == 0 && seconds < UINT64_MAX / 1000) {
		*ret_ms = seconds * 1000;
		return 0;
	}
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct tm tm = { .tm_isdst = -1 };
		const char *end = strptime(text, forms[i], &tm);

		if (end && (*end == '\0' || strcmp(end, "Z") == 0)) {
			time_t t = *end ? timegm(&tm) : mktime(&tm);

			*ret_ms = (uint64_t)t * 1000;
			return 0;
		}
	}
	return -EINVAL;
}

static void print_flow(const json_t *f)
{
	char first[CLOCK_TEXT_MAX], last[CLOCK_TEXT_MAX], bytes[FORMAT_MAX];
	const char *job = text_of(f, "job");
	long long proto = json_integer_value(json_object_get(f, "proto"));

	printf("%s.%s  %s  %s%s  %s -> %s  %s .. %s  %s\n", job[0] ? job : "(no single job)",
	       text_of(f, "epoch"), text_of(f, "class"), proto == EDGE_PROTO_TCP ? "tcp" : "",
	       proto == EDGE_PROTO_UDP ? "udp" : "", text_of(f, "local"), text_of(f, "remote"),
	       clock_format_wall(number_of(f, "first_ms"), first),
	       clock_format_wall(number_of(f, "last_ms"), last),
	       format_size(number_of(f, "bytes"), bytes));
}

static int run_who(const void *values, int argc, const char *const *argv)
{
	const struct edge_options *o = values;
	struct diag diag = DIAG_INIT;
	struct in_addr address;
	struct edge *e = NULL;
	uint64_t port, when = 0;
	json_t *found, *item;
	size_t i;
	int r;

	if (inet_pton(AF_INET, argv[0], &address) != 1)
		return cli_failf("'%s' is no IPv4 address", argv[0]), EXIT_USAGE;
	if (parse_u64(argv[1], &port) < 0 || port > UINT16_MAX)
		return cli_failf("'%s' is no port (0 = any)", argv[1]), EXIT_USAGE;
	if (argc > 2 && parse_when(argv[2], &when) < 0)
		return cli_failf("'%s' is no time: now, seconds since 1970, or \"2026-03-01 08:00:00\"", argv[2]),
		       EXIT_USAGE;
	r = open_edge(o, &e);
	if (r)
		return r;
	r = edge_who(e, &address, (uint16_t)port, when, o->within / NS_PER_MS, &found, &diag);
	edge_close(e);
	if (r < 0)
		return cli_fail(&diag);
	if (o->json) {
		cli_print_json(found);
		return 0;
	}
	json_array_foreach(found, i, item)
		print_flow(item);
	r = json_array_size(found) == 0;
	json_decref(found);
	return r ? cli_failf("no job of ours had such a flow then") : 0;
}

static int run_probe(const void *values, int argc, const char *const *argv)
{
	const struct edge_options *o = values;
	struct edge_features f;
	json_t *list = json_array();

	(void)argc;
	(void)argv;
	edge_probe(&f);
	for (int i = 0; i < EDGE_FEATURE_COUNT; i++) {
		const struct edge_feature *item = &f.items[i];

		if (o->json)
			(void)json_array_append_new(list, json_pack("{s:s, s:b, s:s, s:s}", "name", item->name,
								    "have", item->have, "reason", item->reason,
								    "fallback", item->fallback));
		else
			printf("%-12s %-3s %s%s%s\n", item->name, item->have ? "yes" : "no", item->reason,
			       item->have ? "" : "; without it: ", item->have ? "" : item->fallback);
	}
	if (o->json)
		cli_print_json(list);
	else
		json_decref(list);
	return 0;
}

static int run_remove(const void *values, int argc, const char *const *argv)
{
	const struct edge_options *o = values;
	struct edge_config config = { .run_dir = dir_of(o->run, "RECLAIM_RUN", "/run/reclaim"),
				      .state_dir = dir_of(o->state, "RECLAIM_STATE", "/var/lib/reclaim"),
				      .owner_gid = (gid_t)-1 };
	struct diag diag = DIAG_INIT;
	char uplink[32];
	struct edge *e = NULL;
	json_t *status;
	int r = open_edge(o, &e);

	(void)argc;
	(void)argv;
	if (r)
		return r;
	status = edge_status(e);
	edge_close(e);
	(void)snprintf(uplink, sizeof(uplink), "%s", text_of(status, "uplink"));
	json_decref(status);
	config.uplink = uplink;
	r = edge_open(&config, &e, &diag);
	if (r == 0) {
		r = edge_remove(e, &diag);
		edge_close(e);
	}
	return r < 0 ? cli_fail(&diag) : 0;
}

#define EDGE_RUN_OPTIONS \
	{ "run", 0, OPTION_STR, offsetof(struct edge_options, run), "DIR", NULL, 0, 0, \
	  "the agent's run folder ($RECLAIM_RUN, /run/reclaim)" }, \
	{ "state", 0, OPTION_STR, offsetof(struct edge_options, state), "DIR", NULL, 0, 0, \
	  "the agent's state folder ($RECLAIM_STATE, /var/lib/reclaim)" }
#define EDGE_JSON_OPTION \
	{ "json", 0, OPTION_FLAG, offsetof(struct edge_options, json), NULL, NULL, 0, 0, "print JSON" }

static const struct option show_options[] = { EDGE_RUN_OPTIONS, EDGE_JSON_OPTION, { .kind = OPTION_END } };
static const struct option remove_options[] = { EDGE_RUN_OPTIONS, { .kind = OPTION_END } };
static const struct option who_options[] = {
	EDGE_RUN_OPTIONS,
	EDGE_JSON_OPTION,
	{ "within", 0, OPTION_DURATION, offsetof(struct edge_options, within), "TIME", "60s", 0, 0,
	  "how far from the given time a flow may lie" },
	{ .kind = OPTION_END },
};

const struct command cli_edge_commands[] = {
	{ .name = "edge show", .options = show_options, .values_size = sizeof(struct edge_options),
	  .help = "traffic classes, guests' networks and their counters (root)", .run = run_show },
	{ .name = "edge who", .args = "ADDRESS PORT [TIME]", .args_min = 2, .args_max = 3,
	  .options = who_options, .values_size = sizeof(struct edge_options),
	  .help = "which job had a flow with this address and port (root)",
	  .detail = "ADDRESS and PORT are either end of the flow as the campus saw it; PORT 0 is any.\n"
		    "TIME is now, seconds since 1970, or \"2026-03-01 08:00:00\" (local; Z for UTC).",
	  .run = run_who },
	{ .name = "edge probe", .options = show_options, .values_size = sizeof(struct edge_options),
	  .help = "what this kernel offers the edge, and what happens without", .run = run_probe },
	{ .name = "edge remove", .options = remove_options, .values_size = sizeof(struct edge_options),
	  .help = "take the edge away: before the package goes, with no agent running (root)",
	  .run = run_remove },
	{ .name = NULL },
};
