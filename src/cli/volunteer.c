/* SPDX-License-Identifier: Apache-2.0 */
/* `reclaim map` and `reclaim volunteer`: the rows, and the native volunteer. */
#include <curl/curl.h>
#include <errno.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "cli/map.h"
#include "cli/value_runner.h"
#include "volunteer/native.h"
#include "volunteer/socket.h"

#define PROGRAM_MAX (32u << 20)
#define FETCH_S 30L
#define DONE_QUEUE_MAX NODE_HELD_MAX

struct volunteer_values {
	uint64_t cores, udp_port;
	const char *rung, *stun, *udp_address, *ca;
	bool quiet, relay_only;
};

/* A result that came while the node was in the middle of asking for it. */
struct answer {
	struct answer *next;
	uint64_t value;
	bool failed;
	uint32_t took_ms;
	size_t len;
	char bytes[];
};

struct helper {
	const struct volunteer_values *v;
	const char *url;
	struct loop *loop;
	struct native *native;
	struct value_runner *runner;
	char sha256[65];
	int status;
	uint64_t done;
	struct answer *answers, **answers_tail;
	bool deferred;
};

/* ---- the program ---- */

static size_t on_body(char *bytes, size_t size, size_t count, void *user)
{
	struct strbuf *b = user;
	if (b->len + size * count > PROGRAM_MAX)
		return 0;
	return strbuf_append(b, bytes, size * count) < 0 ? 0 : size * count;
}

static int fetch(const char *url, const char *ca, struct strbuf *ret)
{
	CURL *c = curl_easy_init();
	if (!c)
		return -ENOMEM;
	curl_easy_setopt(c, CURLOPT_URL, url);
	curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(c, CURLOPT_WRITEDATA, ret);
	curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
	curl_easy_setopt(c, CURLOPT_TIMEOUT, FETCH_S);
	curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
	if (ca)
		curl_easy_setopt(c, CURLOPT_CAINFO, ca);
	curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
	CURLcode code = curl_easy_perform(c);
	curl_easy_cleanup(c);
	return code == CURLE_OK ? 0 : -EREMOTEIO;
}

static int get_program(struct helper *h, json_t *job)
{
	const char *path = NULL, *sha256 = NULL, *name = "?";
	char origin[256], invite[128], url[1024], digest_hex[65];
	uint8_t digest[32];
	unsigned digest_len = sizeof(digest);
	struct diag diag = DIAG_INIT;
	if (json_unpack(job, "{s:{s:s, s:s, s:s}}", "program", "path", &path, "sha256", &sha256,
			"name", &name) < 0 || path[0] != '/')
		return cli_failf("this map has no program for native volunteers, only a page");
	if (native_parse_url(h->url, origin, sizeof(origin), invite, sizeof(invite)) < 0)
		return -EINVAL;
	if (strcmp(h->sha256, sha256) == 0)
		return 0; /* joined again: it is here */
	struct strbuf body = STRBUF_INIT;
	(void)snprintf(url, sizeof(url), "%s%s", origin, path);
	int r = fetch(url, h->v->ca, &body);
	if (r == 0) {
		(void)EVP_Digest(body.data ? body.data : "", body.len, digest, &digest_len, EVP_sha256(), NULL);
		hex_encode(digest, sizeof(digest), digest_hex);
		r = strcmp(digest_hex, sha256) == 0 ? 0 : diag_set(&diag, -EBADMSG, name, "changed on the way");
	} else {
		diag_set(&diag, r, url, "cannot be fetched");
	}
	if (r == 0)
		r = value_runner_program(h->runner, body.data ? body.data : "", body.len, &diag);
	strbuf_done(&body);
	if (r < 0)
		return cli_fail(&diag);
	(void)snprintf(h->sha256, sizeof(h->sha256), "%s", sha256);
	if (!h->v->quiet)
		fprintf(stderr, "runs %s in sandbox: %s\n", name, value_runner_rung(h->runner));
	return 0;
}

static int on_welcome(void *user, json_t *job)
{
	return get_program(user, job) == 0 ? 0 : -ENOEXEC;
}

/* ---- values ---- */

/* The node must not be entered while it is calling: answers leave from the loop. */
static void send_answers(void *user)
{
	struct helper *h = user;
	h->deferred = false;
	while (h->answers) {
		struct answer *a = h->answers;
		h->answers = a->next;
		if (!h->answers)
			h->answers_tail = &h->answers;
		native_result(h->native, a->value, a->failed, a->bytes, a->len, a->took_ms);
		free(a);
	}
}

static void on_value_done(void *user, uint64_t value, bool failed, const void *bytes, size_t len,
			  uint32_t took_ms)
{
	struct helper *h = user;
	struct answer *a = malloc(sizeof(*a) + len);
	h->done += !failed;
	if (!a)
		return; /* the master lends it again */
	*a = (struct answer){ .value = value, .failed = failed, .took_ms = took_ms, .len = len };
	memcpy(a->bytes, bytes, len);
	*h->answers_tail = a;
	h->answers_tail = &a->next;
	if (!h->deferred)
		h->deferred = loop_defer(h->loop, send_answers, h) == 0;
}

static const struct value_runner_ops runner_ops = { on_value_done };

static void on_compute(void *user, uint64_t value, const void *bytes, size_t len)
{
	struct helper *h = user;
	value_runner_start(h->runner, value, bytes, len);
}

static void on_cancel(void *user, uint64_t value)
{
	struct helper *h = user;
	value_runner_cancel(h->runner, value);
}

static void on_state(void *user, const char *what)
{
	struct helper *h = user;
	if (!h->v->quiet)
		fprintf(stderr, "%s\n", what);
}

static void on_ended(void *user, bool done, const char *why)
{
	struct helper *h = user;
	h->status = done ? 0 : 1;
	if (!h->v->quiet || !done)
		fprintf(stderr, "%s%s\n", done ? "" : "reclaim: ", why);
	loop_stop(h->loop);
}

static const struct native_ops native_ops = { on_welcome, on_compute, on_cancel, on_state, on_ended };

static void on_signal(void *user, int signum)
{
	struct helper *h = user;
	(void)signum;
	loop_stop(h->loop);
}

static int parse_stun(const char *text, struct address *ret)
{
	const char *colon = strrchr(text, ':');
	char host[ADDRESS_TEXT_MAX];
	uint64_t port;
	if (!colon || (size_t)(colon - text) >= sizeof(host) || parse_u64(colon + 1, &port) < 0)
		return -EINVAL;
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = '\0';
	return address_parse(host, (uint16_t)port, ret);
}

static int run_volunteer(const void *values, int argc, const char *const *argv)
{
	const struct volunteer_values *v = values;
	struct helper h = { .v = v, .url = argv[0], .status = 0 };
	struct native_config c = { .url = argv[0], .workers = (uint32_t)v->cores,
				   .relay_only = v->relay_only };
	struct diag diag = DIAG_INIT;
	(void)argc;
	h.answers_tail = &h.answers;
	if (!c.workers)
		c.workers = (uint32_t)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
	if (v->udp_address && address_parse(v->udp_address, 0, &c.rtc.bind) < 0)
		return cli_failf("--udp-address: \"%s\" is not a numeric address", v->udp_address);
	if (v->stun && parse_stun(v->stun, &c.rtc.stun_server) < 0)
		return cli_failf("--stun: \"%s\" is not ADDRESS:PORT", v->stun);
	c.rtc.bind.port = (uint16_t)v->udp_port;
	socket_library_trust(v->ca);
	(void)signal(SIGPIPE, SIG_IGN);
	if (loop_new(&h.loop) < 0)
		return cli_failf("the event loop cannot start");
	if (value_runner_new(h.loop, v->rung, &runner_ops, &h, &h.runner, &diag) < 0 ||
	    native_new(h.loop, &c, &native_ops, &h, &h.native, &diag) < 0) {
		value_runner_free(h.runner);
		return cli_fail(&diag);
	}
	(void)loop_on_signal(h.loop, SIGINT, on_signal, &h);
	(void)loop_on_signal(h.loop, SIGTERM, on_signal, &h);
	(void)loop_run(h.loop);
	native_free(h.native, true);
	value_runner_free(h.runner);
	for (int i = 0; i < 8; i++)
		loop_turn(h.loop, 10); /* what was said last leaves */
	if (!v->quiet)
		fprintf(stderr, "%llu values computed\n", (unsigned long long)h.done);
	return h.status;
}

static int run_map(const void *values, int argc, const char *const *argv)
{
	return map_run(values, argv[0], argv + 1, (size_t)argc - 1);
}

#define M(m) offsetof(struct map_values, m)
static const struct option map_options[] = {
	{ "here", 0, OPTION_FLAG, M(here), NULL, NULL, 0, 0, "volunteers come to this command, not through the coordinator" },
	{ "page", 0, OPTION_STR, M(page), "FILE", NULL, 0, 0, "function for pages (.js, .mjs, .wasm), beside a program" },
	{ "program", 0, OPTION_STR, M(program), "FILE", NULL, 0, 0, "program for native volunteers, beside a page function" },
	{ "unordered", 'u', OPTION_FLAG, M(unordered), NULL, NULL, 0, 0, "print results as they come" },
	{ "gaps", 0, OPTION_FLAG, M(ordered_gaps), NULL, NULL, 0, 0, "print an empty line for a value that failed" },
	{ "quorum", 'k', OPTION_U64, M(quorum), "K", "1", 1, 15, "compute each value on K volunteers and compare" },
	{ "out", 'o', OPTION_STR, M(out), "DIR", NULL, 0, 0, "one file for each result, instead of lines" },
	{ "json", 0, OPTION_FLAG, M(json), NULL, NULL, 0, 0, "one JSON object a line, and a summary" },
	{ "title", 0, OPTION_STR, M(title), "TEXT", NULL, 0, 0, "what volunteers read above the button" },
	{ "owner", 0, OPTION_STR, M(owner), "TEXT", NULL, 0, 0, "for whom it is computed" },
	{ "errors", 0, OPTION_U64, M(errors), "N", "3", 1, 100, "failures after which a value is given up" },
	{ "stall", 0, OPTION_DURATION, M(stall_ns), "TIME", "60s", 1e8, 8.64e13, "lend a value again after so long at the latest" },
	{ "degree", 0, OPTION_U64, M(degree), "D", "10", 1, 1000, "most children of a volunteer" },
	{ "mode", 0, OPTION_STR, M(mode), "MODE", "named", 0, 0, "named: the master gives each a place; local: by hash" },
	{ "address", 0, OPTION_STR, M(address), "IP", NULL, 0, 0, "listen there (default 127.0.0.1; elsewhere only with --cert)" },
	{ "port", 'p', OPTION_U64, M(port), "N", "0", 0, 65535, "port for the page; 0 = any" },
	{ "cert", 0, OPTION_STR, M(cert), "FILE", NULL, 0, 0, "certificate that browsers accept (PEM)" },
	{ "key", 0, OPTION_STR, M(key), "FILE", NULL, 0, 0, "its key" },
	{ "host", 0, OPTION_STR, M(public_host), "NAME", NULL, 0, 0, "name in the printed address" },
	{ "udp-address", 0, OPTION_STR, M(udp_address), "IP", NULL, 0, 0, "address for direct channels" },
	{ "udp-port", 0, OPTION_U64, M(udp_port), "N", "0", 0, 65535, "port for direct channels; 0 = any" },
	{ "public", 0, OPTION_STRS, M(public_addresses), "IP", NULL, 0, 0, "address under which others reach this machine" },
	{ "lite", 0, OPTION_FLAG, M(lite), NULL, NULL, 0, 0, "reachable: answer checks only, send none" },
	{ "stun", 0, OPTION_STR, M(stun), "IP:PORT", NULL, 0, 0, "ask there how this machine is seen from outside" },
	{ "ice", 0, OPTION_STRS, M(ice), "URL[,USER,SECRET]", NULL, 0, 0, "STUN or TURN server for pages" },
	{ "relay-only", 0, OPTION_FLAG, M(relay_only), NULL, NULL, 0, 0, "no direct channels: everything over the sockets" },
	{ "invite", 0, OPTION_STR, M(invite), "TOKEN", NULL, 0, 0, "invitation token, instead of a random one" },
	{ "url-file", 0, OPTION_STR, M(url_file), "FILE", NULL, 0, 0, "write the address there" },
	{ "no-qr", 0, OPTION_FLAG, M(no_qr), NULL, NULL, 0, 0, "no QR code" },
	{ "quiet", 'q', OPTION_FLAG, M(quiet), NULL, NULL, 0, 0, "results only" },
	{ .kind = OPTION_END },
};

#define V(m) offsetof(struct volunteer_values, m)
static const struct option volunteer_options[] = {
	{ "cores", 'c', OPTION_U64, V(cores), "N", "0", 0, 1024, "values at a time; 0 = one a core" },
	{ "rung", 0, OPTION_STR, V(rung), "RUNG", NULL, 0, 0, "sandbox: full, namespaces, userns, process" },
	{ "udp-address", 0, OPTION_STR, V(udp_address), "IP", NULL, 0, 0, "address for direct channels" },
	{ "udp-port", 0, OPTION_U64, V(udp_port), "N", "0", 0, 65535, "port for direct channels; 0 = any" },
	{ "stun", 0, OPTION_STR, V(stun), "IP:PORT", NULL, 0, 0, "ask there how this machine is seen from outside" },
	{ "ca", 0, OPTION_STR, V(ca), "FILE", NULL, 0, 0, "authorities to trust, instead of the system's (PEM)" },
	{ "relay-only", 0, OPTION_FLAG, V(relay_only), NULL, NULL, 0, 0, "no direct channels" },
	{ "quiet", 'q', OPTION_FLAG, V(quiet), NULL, NULL, 0, 0, "errors only" },
	{ .kind = OPTION_END },
};

const struct command cli_volunteer_commands[] = {
	{ "map", "FUNCTION [INPUT...]", 1, SIZE_MAX, false, map_options, sizeof(struct map_values),
	  "apply a function to values on volunteers' machines",
	  "FUNCTION is a JavaScript module or a WebAssembly file (for pages) or a program (for\n"
	  "'reclaim volunteer'); --page and --program add the other kind. INPUT is a range like\n"
	  "1..1000, a file whose content is one value, @FILE for one value a line, or - for the\n"
	  "lines of standard input, which is also the default. A program gets the value on its\n"
	  "standard input and prints the result.", run_map },
	{ "volunteer", "URL", 1, 1, false, volunteer_options, sizeof(struct volunteer_values),
	  "lend this machine's cores to a map",
	  "URL is what 'reclaim map' printed. Programs run sandboxed, without network.",
	  run_volunteer },
	{ 0 },
};
