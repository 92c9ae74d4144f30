/* SPDX-License-Identifier: Apache-2.0 */
/* Joining a campus, looking at its machines and decisions, and running it. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "wire/rest.h"

struct admin_options {
	bool json, off;
	const char *role, *name, *owner, *at, *dir;
	uint64_t valid_ns, horizon_ns;
};

/* One call as the user; the answer is a new reference. Prints what is wrong. */
static int ask(const char *method, const char *path, json_t *body, json_t **ret,
	       struct cli_context *ctx)
{
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	CLEANUP_JSON json_t *sent = body;
	struct diag diag = DIAG_INIT;
	int r = cli_context_open(ctx);
	if (r == 0)
		r = cli_connect(ctx, &c);
	if (r < 0)
		return r;
	r = http_client_call(c, method, path, sent, ret, &diag);
	if (r < 0)
		(void)cli_fail(&diag);
	return r;
}

static int ask_and_print(const char *method, const char *path, json_t *body)
{
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	json_t *answer = NULL;
	if (ask(method, path, body, &answer, &ctx) < 0)
		return 1;
	cli_print_json(answer);
	return 0;
}

static const char *text_of(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

/* 64-bit numbers travel as strings. */
static uint64_t number_of(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);
	uint64_t n = 0;
	if (json_is_integer(value))
		return (uint64_t)json_integer_value(value);
	if (json_is_string(value))
		(void)parse_u64(json_string_value(value), &n); /* stays 0: shown as such */
	return n;
}

/* ---- joining ---- */

static int run_token(const void *values, int argc, const char *const *argv)
{
	const struct admin_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_JSON json_t *answer = NULL;
	if (!o->role || !o->name)
		return cli_failf("token create wants --role and --name"), EXIT_USAGE;
	json_t *body = json_pack("{s:s,s:s,s:o,s:s*}", "role", o->role, "name", o->name, "valid",
				 json_sprintf("%llus", (unsigned long long)(o->valid_ns / NS_PER_S)),
				 "owner", o->owner);
	if (ask("POST", "/v1/tokens", body, &answer, &ctx) < 0)
		return 1;
	CLEANUP_FREE char *text = NULL;
	/* The address that reached the coordinator from here goes along. */
	if (asprintf(&text, "%s@%s", text_of(answer, "token"), o->at ? o->at : ctx.address) < 0)
		return 1;
	if (o->json) {
		json_object_set_new(answer, "token", json_string(text));
		cli_print_json(json_incref(answer));
	} else {
		(void)puts(text);
	}
	return 0;
}

/* "rj1.SECRET.FINGERPRINT@HOST:PORT" */
struct token_parts {
	char secret[65];
	char fingerprint[IDENTITY_DIGEST_HEX + 1];
	char address[256];
};

static int token_cut(const char *text, const char *at, struct token_parts *ret)
{
	char rest[256] = "";
	int n = 0;
	if (sscanf(text, "rj1.%64[0-9a-f].%64[0-9a-f]%n", ret->secret, ret->fingerprint, &n) != 2 ||
	    strlen(ret->fingerprint) != IDENTITY_DIGEST_HEX)
		return -EINVAL;
	text += n;
	if (*text == '@' && strlen(text + 1) < sizeof(rest))
		(void)snprintf(rest, sizeof(rest), "%s", text + 1);
	else if (*text)
		return -EINVAL;
	(void)snprintf(ret->address, sizeof(ret->address), "%s", at ? at : rest);
	return ret->address[0] ? 0 : -EDESTADDRREQ;
}

static int identity_dir(const struct admin_options *o, char *buf, size_t size)
{
	return o->dir ? path_format(buf, size, "%s", o->dir) : cli_identity_dir(buf, size);
}

/* Sends the request and installs what comes back. */
static int join(struct http_client *c, const char *path, json_t *body, const char *dir,
		const char *address, struct diag *diag)
{
	CLEANUP_JSON json_t *sent = body, *answer = NULL;
	char file[PATH_MAX];
	int r = http_client_call(c, "POST", path, sent, &answer, diag);
	if (r == 0)
		r = identity_install(dir, text_of(answer, "ca"), text_of(answer, "cert"), diag);
	if (r == 0)
		r = path_format(file, sizeof(file), "%s/coordinator", dir);
	if (r == 0) {
		r = file_write_atomic(file, address, strlen(address), 0644);
		if (r < 0)
			diag_set(diag, r, file, "cannot be written: %s", strerror(-r));
	}
	if (r == 0)
		(void)printf("enrolled as %s \"%s\"\n", text_of(answer, "role"), text_of(answer, "name"));
	return r;
}

/* The new identity takes the old one's place only when it is whole: a token that is refused
 * must not cost anybody the certificate they had. The key is always a new one: after a theft the
 * old one must not be certified again. */
static int move_in(const char *from, const char *to, struct diag *diag)
{
	static const char *const names[] = { "key.pem", "cert.pem", "ca.pem", "coordinator" };
	char a[PATH_MAX], b[PATH_MAX];
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (path_format(a, sizeof(a), "%s/%s", from, names[i]) < 0 ||
		    path_format(b, sizeof(b), "%s/%s", to, names[i]) < 0 || rename(a, b) < 0)
			return diag_set(diag, -errno, to, "%s cannot be put there: %s", names[i],
					strerror(errno));
	}
	(void)dir_remove_all(from); /* it is empty */
	return dir_sync(to);
}

static int run_enrol(const void *values, int argc, const char *const *argv)
{
	const struct admin_options *o = values;
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	CLEANUP_FREE char *csr = NULL;
	struct token_parts t;
	struct diag diag = DIAG_INIT;
	char dir[PATH_MAX - 8], fresh[PATH_MAX];
	int r = token_cut(argv[0], o->at, &t);
	if (r == -EDESTADDRREQ)
		return cli_failf("the token names no coordinator: add --at HOST:PORT");
	if (r < 0)
		return cli_failf("this is no join token: it looks like rj1.SECRET.FINGERPRINT@HOST:PORT");
	r = identity_dir(o, dir, sizeof(dir));
	if (r == 0)
		r = path_format(fresh, sizeof(fresh), "%s/.new", dir);
	if (r == 0)
		r = dir_remove_all(fresh);
	if (r == 0)
		r = identity_request(fresh, "new", &csr, &diag); /* the token says the name */
	if (r == 0)
		r = http_client_open_fingerprint(t.fingerprint, t.address, &c, &diag);
	if (r == 0)
		r = join(c, "/v1/enroll", json_pack("{s:s,s:s}", "token", t.secret, "csr", csr), fresh,
			 t.address, &diag);
	if (r == 0)
		r = move_in(fresh, dir, &diag);
	if (r < 0)
		return cli_fail(&diag);
	(void)printf("identity in %s\n", dir);
	return 0;
}

static int run_renew(const void *values, int argc, const char *const *argv)
{
	const struct admin_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_HTTP_CLIENT struct http_client *c = NULL;
	CLEANUP_FREE char *csr = NULL;
	struct diag diag = DIAG_INIT;
	char dir[PATH_MAX];
	if (identity_dir(o, dir, sizeof(dir)) < 0 || cli_open(&ctx, &c) < 0)
		return 1;
	int r = identity_request(dir, identity_self(ctx.identity)->name, &csr, &diag);
	if (r == 0)
		r = join(c, "/v1/renew", json_pack("{s:s}", "csr", csr), dir, ctx.address, &diag);
	return r < 0 ? cli_fail(&diag) : 0;
}

/* ---- looking ---- */

static void print_node(json_t *n)
{
	json_t *jobs = json_object_get(n, "jobs"), *job;
	char wait[FORMAT_MAX] = "-";
	size_t i;
	if (number_of(n, "remaining_ms"))
		format_duration(number_of(n, "remaining_ms") * NS_PER_MS, wait);
	(void)printf("%-16s %-5s %-9s %6s %4llu/%-4llu %7.2f ", text_of(n, "name"),
		     json_is_true(json_object_get(n, "up")) ? "up" : "down",
		     json_is_true(json_object_get(n, "paused")) ? "paused" : text_of(n, "owner_state"),
		     wait, (unsigned long long)number_of(n, "slots_used"),
		     (unsigned long long)number_of(n, "slots"),
		     (double)number_of(n, "hazard_per_day") / 1000.0);
	json_array_foreach(jobs, i, job)
		(void)printf("%s%s", i ? " " : "", json_string_value(job));
	(void)putchar('\n');
}

static int run_nodes(const void *values, int argc, const char *const *argv)
{
	const struct admin_options *o = values;
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_JSON json_t *answer = NULL;
	json_t *node;
	size_t i;
	if (ask("GET", "/v1/nodes", NULL, &answer, &ctx) < 0)
		return 1;
	if (o->json) {
		cli_print_json(json_incref(answer));
		return 0;
	}
	(void)printf("%-16s %-5s %-9s %6s %9s %7s %s\n", "MACHINE", "AGENT", "STATE", "LEFT", "USED",
		     "PER DAY", "JOBS");
	json_array_foreach(json_object_get(answer, "nodes"), i, node)
		print_node(node);
	return 0;
}

/* Decisions come as JSON with an optional "text": words first, the numbers with --json. */
static int print_decision(const struct admin_options *o, const char *path)
{
	CLEANUP_CONTEXT struct cli_context ctx = { 0 };
	CLEANUP_JSON json_t *answer = NULL;
	if (ask("GET", path, NULL, &answer, &ctx) < 0)
		return 1;
	json_t *text = json_object_get(answer, "text");
	if (!o->json && json_is_string(text))
		(void)puts(json_string_value(text));
	else
		cli_print_json(json_incref(answer));
	return 0;
}

static int run_why(const void *values, int argc, const char *const *argv)
{
	char path[512], job[256];
	if (http_client_escape(argv[0], job, sizeof(job)) < 0)
		return cli_failf("\"%.80s\" is no job", argv[0]);
	(void)snprintf(path, sizeof(path), "/v1/jobs/%s/why", job);
	return print_decision(values, path);
}

static int run_forecast(const void *values, int argc, const char *const *argv)
{
	const struct admin_options *o = values;
	char path[512], node[256];
	if (http_client_escape(argv[0], node, sizeof(node)) < 0)
		return cli_failf("\"%.80s\" is no machine", argv[0]);
	(void)snprintf(path, sizeof(path), "/v1/nodes/%s/forecast?horizon_s=%llu", node,
		       (unsigned long long)(o->horizon_ns / NS_PER_S));
	return print_decision(o, path);
}

/* ---- running ---- */

static int run_settings(const void *values, int argc, const char *const *argv)
{
	return ask_and_print("GET", "/v1/admin/settings", NULL);
}

static int run_stop_all(const void *values, int argc, const char *const *argv)
{
	const struct admin_options *o = values;
	return ask_and_print("POST", "/v1/admin/stop-all", json_pack("{s:b}", "on", !o->off));
}

static int run_cap(const void *values, int argc, const char *const *argv)
{
	return ask_and_print("POST", "/v1/admin/cap", json_pack("{s:s}", "rate", argv[0]));
}

static const char *const days[] = { "mon", "tue", "wed", "thu", "fri", "sat", "sun" };

static int day_index(const char *text, size_t len)
{
	for (int i = 0; i < 7; i++)
		if (len == 3 && strncmp(text, days[i], 3) == 0)
			return i;
	return -1;
}

/* "mon-fri", "sat,sun" -> list of names, or NULL. */
static json_t *days_parse(char *text)
{
	json_t *list = json_array();
	char *save = NULL;
	for (char *part = strtok_r(text, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
		char *dash = strchr(part, '-');
		int from = day_index(part, dash ? (size_t)(dash - part) : strlen(part));
		int to = dash ? day_index(dash + 1, strlen(dash + 1)) : from;
		if (from < 0 || to < 0) {
			json_decref(list);
			return NULL;
		}
		for (int d = from;; d = (d + 1) % 7) {
			json_array_append_new(list, json_string(days[d]));
			if (d == to)
				break;
		}
	}
	return list;
}

/* "08:00-18:00" or "mon-fri 08:00-18:00". */
static json_t *span_parse(const char *text)
{
	char buf[128], from[6], to[6], rest;
	(void)snprintf(buf, sizeof(buf), "%s", text);
	char *space = strrchr(buf, ' ');
	const char *hours = space ? space + 1 : buf;
	if (sscanf(hours, "%5[0-9:]-%5[0-9:]%c", from, to, &rest) != 2)
		return NULL;
	if (space)
		*space = 0;
	json_t *list = space ? days_parse(buf) : json_array();
	return list ? json_pack("{s:o,s:s,s:s}", "days", list, "from", from, "to", to) : NULL;
}

static int run_blackout(const void *values, int argc, const char *const *argv)
{
	json_t *spans = json_array();
	for (int i = 0; i < argc; i++) {
		if (argc == 1 && strcmp(argv[0], "none") == 0)
			break;
		json_t *span = span_parse(argv[i]);
		if (!span) {
			json_decref(spans);
			return cli_failf("\"%.80s\" is no span: write 'mon-fri 08:00-18:00' or 'none'", argv[i]);
		}
		json_array_append_new(spans, span);
	}
	return ask_and_print("POST", "/v1/admin/blackout", json_pack("{s:o}", "spans", spans));
}

static int run_group(const void *values, int argc, const char *const *argv)
{
	json_t *people = json_array();
	for (int i = 1; i < argc; i++)
		if (argc != 2 || strcmp(argv[1], "none") != 0)
			json_array_append_new(people, json_string(argv[i]));
	return ask_and_print("POST", "/v1/admin/group",
			     json_pack("{s:s,s:o}", "name", argv[0], "people", people));
}

static int run_revoke(const void *values, int argc, const char *const *argv)
{
	return ask_and_print("POST", "/v1/admin/revoke", json_pack("{s:s}", "who", argv[0]));
}

static int run_certs(const void *values, int argc, const char *const *argv)
{
	return ask_and_print("GET", "/v1/admin/certs", NULL);
}

/* ---- rows ---- */

#define O(m) offsetof(struct admin_options, m)
#define JSON_ROW { "json", 0, OPTION_FLAG, O(json), NULL, NULL, 0, 0, "print JSON" }
#define END_ROW { .kind = OPTION_END }

static const struct option token_rows[] = {
	{ "role", 'r', OPTION_STR, O(role), "ROLE", NULL, 0, 0, "agent, owner, guest or admin" },
	{ "name", 'n', OPTION_STR, O(name), "NAME", NULL, 0, 0, "the machine's or person's name" },
	{ "owner", 'o', OPTION_STR, O(owner), "NAME", NULL, 0, 0, "of a machine: whose it is" },
	{ "valid", 0, OPTION_DURATION, O(valid_ns), "TIME", "24h", 1e9, 7.776e15, "how long it is good" },
	{ "at", 0, OPTION_STR, O(at), "HOST:PORT", NULL, 0, 0,
	  "how the newcomer reaches the coordinator (as you do)" },
	JSON_ROW,
	END_ROW,
};
static const struct option enrol_rows[] = {
	{ "at", 0, OPTION_STR, O(at), "HOST:PORT", NULL, 0, 0, "the coordinator (as in the token)" },
	{ "dir", 'd', OPTION_STR, O(dir), "DIR", NULL, 0, 0, "identity folder (yours)" },
	END_ROW,
};
static const struct option renew_rows[] = {
	{ "dir", 'd', OPTION_STR, O(dir), "DIR", NULL, 0, 0, "identity folder (yours)" },
	END_ROW,
};
static const struct option json_rows[] = { JSON_ROW, END_ROW };
static const struct option forecast_rows[] = {
	{ "horizon", 0, OPTION_DURATION, O(horizon_ns), "TIME", "24h", 6e10, 6.048e14, "how far ahead" },
	JSON_ROW,
	END_ROW,
};
static const struct option stop_rows[] = {
	{ "off", 0, OPTION_FLAG, O(off), NULL, NULL, 0, 0, "go on again" },
	JSON_ROW,
	END_ROW,
};

#define COMMAND(n, a, lo, hi, rows, fn, text, ...)                                               \
	{ .name = (n), .args = (a), .args_min = (lo), .args_max = (hi), .options = (rows),       \
	  .values_size = sizeof(struct admin_options), .run = (fn), .help = (text), ##__VA_ARGS__ }

const struct command cli_admin_commands[] = {
	COMMAND("enrol", "TOKEN", 1, 1, enrol_rows, run_enrol, "join a campus with a one-time token",
		.detail = "Makes a key that never leaves this machine, and brings back a certificate. The\n"
			  "token carries the campus's fingerprint, so a false coordinator is recognised."),
	COMMAND("renew", NULL, 0, 0, renew_rows, run_renew, "a new certificate before yours ends"),
	COMMAND("nodes", NULL, 0, 0, json_rows, run_nodes, "the machines of the campus"),
	COMMAND("why", "JOB", 1, 1, json_rows, run_why, "why a job waits, or is where it is"),
	COMMAND("forecast", "NODE", 1, 1, forecast_rows, run_forecast,
		"how likely a machine's owner wants it back"),
	COMMAND("token create", NULL, 0, 0, token_rows, run_token, "a one-time token to join with"),
	COMMAND("admin settings", NULL, 0, 0, json_rows, run_settings, "what holds on this campus"),
	COMMAND("admin stop-all", NULL, 0, 0, stop_rows, run_stop_all,
		"stop every transfer and all guest traffic"),
	COMMAND("admin cap", "RATE", 1, 1, json_rows, run_cap, "cap on the sum of all floors"),
	COMMAND("admin blackout", "SPAN...", 1, 32, json_rows, run_blackout,
		"hours without floors: 'mon-fri 08:00-18:00', or 'none'"),
	COMMAND("admin group", "NAME PERSON...", 2, 1000, json_rows, run_group,
		"who is in a group of users ('none' ends it); owners' terms may admit groups"),
	COMMAND("admin revoke", "NAME|SERIAL", 1, 1, json_rows, run_revoke,
		"end somebody's certificates at once"),
	COMMAND("admin certs", NULL, 0, 0, json_rows, run_certs, "every certificate issued"),
	{ .name = NULL },
};
