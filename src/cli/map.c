/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `reclaim map FUNCTION [INPUTS]`: applies a function to a stream of values on
 * the volunteers' machines. The master runs in this command; its volunteers come
 * through the coordinator, or with --here through a door of its own. Results go
 * to stdout, everything else to stderr.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "cli/context.h"
#include "cli/map.h"
#include "cli/map_input.h"
#include "volunteer/carried.h"
#include "volunteer/door.h"
#include "volunteer/master.h"
#include "volunteer/page_files.h"
#include "volunteer/qr.h"

#define FUNCTION_MAX (32u << 20)
#define FUNCTIONS_MAX 2
#define LATE_JOIN_MS 300

struct lent { /* a function that volunteers fetch */
	char *bytes;
	size_t len;
	char sha256[65];
	char path[256]; /* "/collatz.js" */
	const char *name, *kind, *type;
};

struct map {
	const struct map_values *v;
	struct loop *loop;
	struct master *master;
	struct door *door; /* with --here, else: */
	struct cli_context context;
	struct carried *carried;
	bool announced, in_trouble;
	struct map_input in;
	struct strbuf value;
	bool in_ended, failed, finished, interrupted;
	struct lent lent[FUNCTIONS_MAX];
	size_t lent_count;
	struct door_file files[FUNCTIONS_MAX];
	uv_poll_t stdin_poll;
	bool stdin_polled;
	struct loop_timer progress;
	uint64_t known, started_ns, poison;
	bool tty;
};

/* ---- functions ---- */

static void sha256_hex(const void *bytes, size_t len, char ret[65])
{
	uint8_t digest[32];
	unsigned n = sizeof(digest);
	if (EVP_Digest(bytes, len, digest, &n, EVP_sha256(), NULL) != 1)
		memset(digest, 0, sizeof(digest)); /* no memory: volunteers refuse the file */
	hex_encode(digest, sizeof(digest), ret);
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);
	return n >= m && strcmp(text + n - m, end) == 0;
}

static int add_function(struct map *m, const char *file, bool native, struct diag *diag)
{
	if (m->lent_count == FUNCTIONS_MAX)
		return diag_set(diag, -EINVAL, file, "one function for pages and one program at most");
	struct lent *f = &m->lent[m->lent_count];
	int r = file_read(file, FUNCTION_MAX, &f->bytes, &f->len);
	if (r < 0)
		return diag_set(diag, r, file, "%s", strerror(-r));
	const char *slash = strrchr(file, '/');
	f->name = slash ? slash + 1 : file;
	f->kind = native ? "program" : ends_with(file, ".wasm") ? "wasm" : "module";
	f->type = native ? "application/octet-stream" : f->kind[0] == 'w' ? "application/wasm"
									  : "text/javascript";
	sha256_hex(f->bytes, f->len, f->sha256);
	if (!native && strcmp(f->kind, "wasm") == 0 && (f->len < 4 || memcmp(f->bytes, "\0asm", 4) != 0))
		return diag_set(diag, -EINVAL, file, "not a WebAssembly file");
	r = path_format(f->path, sizeof(f->path), "/%s", f->name);
	if (r < 0)
		return diag_set(diag, r, file, "the name is too long");
	m->files[m->lent_count++] = (struct door_file){ f->path, f->type, f->bytes, f->len };
	return 0;
}

static bool is_page_function(const char *file)
{
	return ends_with(file, ".js") || ends_with(file, ".mjs") || ends_with(file, ".wasm");
}

static json_t *describe_function(struct map *m, const struct lent *f)
{
	char path[512];
	(void)snprintf(path, sizeof(path), DOOR_FUNCTION_PATH "%s%s", m->v->invite, f->path);
	return json_pack("{s:s, s:s, s:s, s:s}", "name", f->name, "kind", f->kind, "path", path,
			 "sha256", f->sha256);
}

static json_t *describe_job(struct map *m)
{
	const struct passwd *who = getpwuid(getuid());
	json_t *job = json_object(), *ice = json_array();
	for (size_t i = 0; i < m->v->ice.count; i++) { /* "stun:host:port", "turn:host:port,user,secret" */
		char text[512];
		(void)snprintf(text, sizeof(text), "%s", m->v->ice.items[i]);
		char *save = NULL, *url = strtok_r(text, ",", &save), *user = strtok_r(NULL, ",", &save),
		     *secret = strtok_r(NULL, ",", &save);
		json_t *row = user && secret ? json_pack("{s:s, s:s, s:s}", "urls", url, "username", user,
							 "credential", secret)
					     : json_pack("{s:s}", "urls", url ? url : "");
		(void)json_array_append_new(ice, row); /* NULL: left out */
	}
	for (size_t i = 0; i < m->lent_count; i++) {
		const struct lent *f = &m->lent[i];
		bool native = strcmp(f->kind, "program") == 0;
		(void)json_object_set_new(job, native ? "program" : "function", describe_function(m, f));
	}
	(void)json_object_set_new(job, "title", json_string(m->v->title ? m->v->title : m->lent[0].name));
	(void)json_object_set_new(job, "owner", json_string(m->v->owner ? m->v->owner
							    : who ? who->pw_name : "somebody"));
	(void)json_object_set_new(job, "ice_servers", ice);
	return job; /* out of memory shows as missing parts, which volunteers report */
}

/* ---- values in, results out ---- */

static void stop_stdin(struct map *m)
{
	if (m->stdin_polled)
		uv_poll_stop(&m->stdin_poll);
}

static void fail(struct map *m, const struct diag *diag)
{
	(void)cli_fail(diag);
	m->failed = true;
	loop_stop(m->loop);
}

static void take_inputs(struct map *m)
{
	struct lend *l = master_lend(m->master);
	struct diag diag = DIAG_INIT;
	bool put = false;
	while (!m->in_ended && !m->failed && lend_room(l) > 0) {
		uint64_t id;
		int r = map_input_next(&m->in, &m->value, &diag);
		if (r == -EAGAIN)
			break;
		if (r < 0) {
			fail(m, &diag);
			return;
		}
		if (r == 0) {
			m->in_ended = true;
			lend_end(l);
			stop_stdin(m);
			break;
		}
		r = lend_put(l, m->value.data ? m->value.data : "", m->value.len, &id);
		if (r < 0) {
			diag_set(&diag, r, "value", "%s", strerror(-r));
			fail(m, &diag);
			return;
		}
		put = true;
	}
	if (put)
		master_pump(m->master);
}

static bool is_text(const char *bytes, size_t len)
{
	json_t *s = json_stringn(bytes, len); /* NULL unless UTF-8 */
	json_decref(s);
	return s != NULL;
}

static void print_json_result(const struct lend_result *r)
{
	CLEANUP_JSON json_t *row = json_pack("{s:I}", "index", (json_int_t)r->value);
	char hex[2 * 64 + 1];
	const char *key = r->outcome == LEND_POISON ? "error" : "result";
	if (is_text(r->bytes, r->len)) {
		(void)json_object_set_new(row, key, json_stringn(r->bytes, r->len));
	} else {
		hex_encode((const uint8_t *)r->bytes, MIN(r->len, (size_t)64), hex);
		(void)json_object_set_new(row, "bytes", json_integer((json_int_t)r->len));
		(void)json_object_set_new(row, "starts", json_string(hex));
	}
	if (r->outcome == LEND_POISON)
		(void)json_object_set_new(row, "input", json_stringn(r->input, r->input_len));
	(void)json_dumpf(row, stdout, JSON_COMPACT);
	fputc('\n', stdout);
}

static int write_result(const struct map *m, const struct lend_result *r)
{
	char path[4200];
	int e = path_format(path, sizeof(path), "%s/%08llu", m->v->out,
			    (unsigned long long)r->value);
	return e < 0 ? e : file_write_atomic(path, r->bytes, r->len, 0644);
}

static void deliver(struct map *m, struct lend_result *r)
{
	struct diag diag = DIAG_INIT;
	if (r->outcome == LEND_POISON) {
		m->poison++;
		if (!m->v->json)
			fprintf(stderr, "%sreclaim: value %llu (%.*s%s): %s\n", m->tty ? "\r\x1b[K" : "",
				(unsigned long long)r->value, (int)MIN(r->input_len, (size_t)60), r->input,
				r->input_len > 60 ? "…" : "", r->bytes ? r->bytes : "");
	}
	if (m->v->json) {
		print_json_result(r);
	} else if (m->v->out && r->outcome == LEND_OK) {
		int e = write_result(m, r);
		if (e < 0) {
			diag_set(&diag, e, m->v->out, "%s", strerror(-e));
			fail(m, &diag);
		}
	} else if (r->outcome == LEND_OK) {
		(void)fwrite(r->bytes, 1, r->len, stdout); /* checked at the end, with fflush */
		if (r->len == 0 || r->bytes[r->len - 1] != '\n') /* most programs end theirs */
			fputc('\n', stdout);
	} else if (m->v->ordered_gaps) {
		fputc('\n', stdout);
	}
	free(r->bytes);
	free(r->input);
}

static void finish(void *user)
{
	struct map *m = user;
	loop_stop(m->loop);
}

static void on_progress(void *user)
{
	struct map *m = user;
	struct lend *l = master_lend(m->master);
	struct lend_result r;
	bool any = false;
	if (m->finished || m->failed)
		return;
	while (!m->failed && lend_take(l, &r)) {
		deliver(m, &r);
		any = true;
	}
	if (any && fflush(stdout) != 0) {
		m->failed = true; /* the reader has gone */
		loop_stop(m->loop);
		return;
	}
	take_inputs(m);
	if (lend_finished(l) && !m->finished) {
		m->finished = true;
		master_finish(m->master, "Everything is computed.");
		/* Long enough for the news to leave. */
		loop_timer_stop(&m->progress);
		loop_timer_init(&m->progress, m->loop, finish, m);
		(void)loop_timer_in(&m->progress, LATE_JOIN_MS * NS_PER_MS);
	}
}

static const struct master_ops master_ops = { on_progress, NULL };

static void on_stdin(uv_poll_t *poll, int status, int events)
{
	struct map *m = poll->data;
	(void)status, (void)events;
	if (lend_room(master_lend(m->master)) == 0 || m->in.pending.len > (1u << 20))
		return; /* it waits in the pipe */
	map_input_feed(&m->in);
	if (m->in.stdin_ended)
		stop_stdin(m);
	take_inputs(m);
	on_progress(m);
}

/* ---- what people see meanwhile ---- */

static void progress_line(struct map *m, const struct master_stats *s)
{
	char left[FORMAT_MAX] = "?";
	uint64_t total = m->known ? m->known : m->in_ended ? s->lend.put : 0;
	if (total && s->lend.rate > 0 && total >= s->lend.delivered)
		format_duration((uint64_t)((double)(total - s->lend.delivered) / s->lend.rate) * NS_PER_S, left);
	fprintf(stderr, "%s%u volunteer%s (%u direct) · %.1f/s · %llu done%s · %llu in flight · %s left%s",
		m->tty ? "\r\x1b[K" : "", s->volunteers, s->volunteers == 1 ? "" : "s", s->channels,
		s->lend.rate, (unsigned long long)s->lend.delivered, s->lend.poison ? " (some failed)" : "",
		(unsigned long long)s->lend.in_flight, left, m->tty ? "" : "\n");
	fflush(stderr);
}

static void on_report(void *user)
{
	struct map *m = user;
	struct master_stats s;
	(void)loop_timer_in(&m->progress, (m->tty ? 1 : 10) * NS_PER_S); /* armed before */
	master_stats(m->master, &s);
	progress_line(m, &s);
}

static void summary(struct map *m)
{
	struct master_stats s;
	master_stats(m->master, &s);
	double took = (double)(clock_boot_ns() - m->started_ns) / 1e9;
	if (m->v->json) {
		CLEANUP_JSON json_t *liars = json_array();
		size_t pos = 0;
		uint64_t who;
		uint32_t lies;
		while (lend_liar(master_lend(m->master), &pos, &who, &lies)) {
			char node[24];
			(void)snprintf(node, sizeof(node), "%llu", (unsigned long long)who);
			(void)json_array_append_new(liars, json_pack("{s:s, s:i}", "node", node, "lies", (int)lies));
		}
		CLEANUP_JSON json_t *row = json_pack(
			"{s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:O}}", "summary",
			"delivered", (json_int_t)s.lend.delivered, "poison", (json_int_t)s.lend.poison,
			"lent", (json_int_t)s.lend.lent, "relent", (json_int_t)s.lend.relent,
			"doubled", (json_int_t)s.lend.doubled, "refused", (json_int_t)(s.refused + s.lend.never_lent),
			"joins", (json_int_t)s.joins, "seconds", took,
			"relend_p99_ms", (json_int_t)s.lend.relend_p99_ms, "liars", liars);
		(void)json_dumpf(row, stdout, JSON_COMPACT);
		fputc('\n', stdout);
		return;
	}
	if (m->v->quiet)
		return;
	fprintf(stderr, "%s%llu values in %.1f s, %llu failed, %llu lent again, %llu volunteers came\n",
		m->tty ? "\r\x1b[K" : "", (unsigned long long)s.lend.delivered, took,
		(unsigned long long)s.lend.poison, (unsigned long long)s.lend.relent,
		(unsigned long long)s.joins);
	size_t pos = 0;
	uint64_t who;
	uint32_t lies;
	while (lend_liar(master_lend(m->master), &pos, &who, &lies))
		fprintf(stderr, "reclaim: volunteer %llu gave %u result%s that the others contradict\n",
			(unsigned long long)who, lies, lies == 1 ? "" : "s");
}

static void announce(struct map *m, const char *origin)
{
	const struct map_values *v = m->v;
	char url[600];
	(void)snprintf(url, sizeof(url), "%s#%s", origin, master_invite(m->master));
	if (v->url_file) {
		int r = file_write_atomic(v->url_file, url, strlen(url), 0600);
		if (r < 0)
			fprintf(stderr, "reclaim: %s: %s\n", v->url_file, strerror(-r));
	}
	if (v->quiet)
		return;
	struct strbuf qr = STRBUF_INIT;
	if (m->tty && !v->no_qr && qr_format(url, &qr) == 0)
		fputs(qr.data, stderr);
	strbuf_done(&qr);
	fprintf(stderr, "Volunteers open or give to 'reclaim volunteer':\n  %s\n", url);
	if (v->here && !v->cert)
		fprintf(stderr, "In clear, so on this machine only; with --cert and --key others can come.\n");
	struct address a = rtc_mapped(master_rtc(m->master));
	char ip[ADDRESS_TEXT_MAX];
	if (a.family)
		fprintf(stderr, "Seen from outside as %s port %u.\n", address_format(&a, ip), a.port);
}

static void announce_here(struct map *m)
{
	const struct map_values *v = m->v;
	char origin[512];
	(void)snprintf(origin, sizeof(origin), "%s://%s:%u/", v->cert ? "https" : "http",
		       v->public_host ? v->public_host : v->address ? v->address : "127.0.0.1",
		       door_port(m->door));
	announce(m, origin);
}

static void on_carried(void *user, const char *origin)
{
	struct map *m = user;
	if (!m->announced)
		announce(m, origin);
	else if (m->in_trouble && !m->v->quiet)
		fprintf(stderr, "The coordinator is there again.\n");
	m->announced = true;
	m->in_trouble = false;
}

static void on_trouble(void *user, const char *why, bool refused)
{
	struct map *m = user;
	if (refused) {
		(void)cli_failf("the coordinator: %s", why);
		m->failed = true;
		loop_stop(m->loop);
	} else if (!m->in_trouble) {
		fprintf(stderr, "reclaim: the coordinator: %s; trying again\n", why);
	}
	m->in_trouble = true;
}

/* ---- whole ---- */

static void on_signal(void *user, int signum)
{
	struct map *m = user;
	(void)signum;
	m->interrupted = true;
	loop_stop(m->loop);
}

static int parse_endpoint(const char *text, struct address *ret)
{
	char host[ADDRESS_TEXT_MAX];
	const char *colon = strrchr(text, ':');
	uint64_t port;
	if (!colon || (size_t)(colon - text) >= sizeof(host) || parse_u64(colon + 1, &port) < 0 ||
	    port == 0 || port > UINT16_MAX)
		return -EINVAL;
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = '\0';
	return address_parse(host, (uint16_t)port, ret);
}

static int configure(struct map *m, struct master_config *mc, struct diag *diag)
{
	const struct map_values *v = m->v;
	lend_defaults(&mc->lend);
	mc->lend.ordered = !v->unordered;
	mc->lend.quorum = (uint32_t)v->quorum;
	mc->lend.stall_ms_max = v->stall_ns / NS_PER_MS;
	mc->lend.stall_ms_min = MIN(mc->lend.stall_ms_min, mc->lend.stall_ms_max);
	mc->lend.errors_max = (uint32_t)v->errors;
	mc->degree = (uint32_t)v->degree;
	mc->mode = v->mode && strcmp(v->mode, "local") == 0 ? ROUTE_LOCAL : ROUTE_NAMED;
	mc->relay_only = v->relay_only;
	mc->invite = v->invite;
	if (v->mode && strcmp(v->mode, "local") != 0 && strcmp(v->mode, "named") != 0)
		return diag_set(diag, -EINVAL, "--mode", "\"%s\": named or local", v->mode);
	/* In clear the volunteers are on this machine: loopback is all they need. */
	if (v->here && !v->cert && !v->udp_address)
		(void)address_parse("127.0.0.1", (uint16_t)v->udp_port, &mc->rtc.bind);
	else if (v->udp_address && address_parse(v->udp_address, (uint16_t)v->udp_port, &mc->rtc.bind) < 0)
		return diag_set(diag, -EINVAL, "--udp-address", "\"%s\" is not a numeric address", v->udp_address);
	mc->rtc.bind.port = (uint16_t)v->udp_port;
	for (size_t i = 0; i < v->public_addresses.count && i < RTC_ADDRESSES_MAX; i++) {
		if (address_parse(v->public_addresses.items[i], 0, &mc->rtc.public_addresses[i]) < 0)
			return diag_set(diag, -EINVAL, "--public", "\"%s\" is not a numeric address",
					v->public_addresses.items[i]);
		mc->rtc.public_count = i + 1;
	}
	mc->rtc.lite = v->lite;
	if (v->stun && parse_endpoint(v->stun, &mc->rtc.stun_server) < 0)
		return diag_set(diag, -EINVAL, "--stun", "\"%s\" is not ADDRESS:PORT", v->stun);
	return 0;
}

static int map_open(struct map *m, struct diag *diag)
{
	struct master_config mc = { 0 };
	int r = configure(m, &mc, diag);
	if (r < 0)
		return r;
	CLEANUP_JSON json_t *job = describe_job(m);
	mc.job = job;
	r = master_new(m->loop, &mc, &master_ops, m, &m->master, diag);
	if (r < 0)
		return r;
	if (!m->v->here) {
		struct carried_config cc = {
			.identity = m->context.identity, .address = m->context.address,
			.functions = m->files, .functions_count = m->lent_count,
			.ready = on_carried, .trouble = on_trouble, .user = m,
		};
		r = carried_open(m->loop, m->master, &cc, &m->carried);
		return r < 0 ? diag_set(diag, r, m->context.address, "%s", strerror(-r)) : 0;
	}
	struct door_config dc = {
		.address = m->v->address, .port = (uint16_t)m->v->port, .cert = m->v->cert,
		.key = m->v->key, .files = page_files, .files_count = page_files_count,
		.functions = m->files, .functions_count = m->lent_count,
	};
	return door_open(m->loop, m->master, &dc, &m->door, diag);
}

static void watch_stdin(struct map *m)
{
	bool wanted = m->in.args_count == 0;
	for (size_t i = 0; i < m->in.args_count; i++)
		wanted |= strcmp(m->in.args[i], "-") == 0;
	if (!wanted)
		return;
	/* A file cannot be polled, and need not be: reading it never waits for long. */
	struct stat st;
	if (fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode)) {
		while (!m->in.stdin_ended)
			map_input_feed(&m->in);
		return;
	}
	if (uv_poll_init(loop_uv(m->loop), &m->stdin_poll, STDIN_FILENO) < 0) {
		m->in.stdin_ended = true;
		return;
	}
	m->stdin_poll.data = m;
	m->stdin_polled = true;
	(void)uv_poll_start(&m->stdin_poll, UV_READABLE, on_stdin);
}

static void map_close(struct map *m)
{
	loop_timer_stop(&m->progress);
	if (m->stdin_polled)
		uv_close((uv_handle_t *)&m->stdin_poll, NULL);
	door_close(m->door);
	carried_close(m->carried);
	master_free(m->master);
	map_input_done(&m->in);
	strbuf_done(&m->value);
	if (!m->v->here)
		cli_context_close(&m->context);
	for (size_t i = 0; i < m->lent_count; i++)
		free(m->lent[i].bytes);
}

static int make_invite(char ret[MASTER_INVITE_LEN + 1])
{
	uint8_t bytes[MASTER_INVITE_LEN / 2];
	FILE *f = fopen("/dev/urandom", "re");
	bool ok = f && fread(bytes, 1, sizeof(bytes), f) == sizeof(bytes);
	if (f)
		fclose(f);
	hex_encode(bytes, sizeof(bytes), ret);
	return ok ? 0 : -EIO;
}

int map_run(const struct map_values *values, const char *function, const char *const *inputs,
	    size_t inputs_count)
{
	static struct map m; /* one per program; large */
	struct map_values v = *values;
	struct diag diag = DIAG_INIT;
	char invite[MASTER_INVITE_LEN + 1];
	if (!v.invite) {
		if (make_invite(invite) < 0)
			return cli_failf("no random numbers");
		v.invite = invite;
	}
	m = (struct map){ .v = &v, .tty = isatty(STDERR_FILENO) && !v.quiet,
			  .started_ns = clock_boot_ns() };
	if (!v.here && cli_context_open(&m.context) < 0)
		return cli_failf("without a coordinator the command opens a door of its own: --here");
	map_input_init(&m.in, inputs, inputs_count);
	m.known = map_input_known(&m.in);
	int r = add_function(&m, function, !is_page_function(function), &diag);
	if (r == 0 && v.page)
		r = add_function(&m, v.page, false, &diag);
	if (r == 0 && v.program)
		r = add_function(&m, v.program, true, &diag);
	if (r == 0 && v.out && dir_make_all(v.out, 0755) < 0)
		r = diag_set(&diag, -errno, v.out, "%s", strerror(errno));
	if (r == 0 && loop_new(&m.loop) < 0)
		r = diag_set(&diag, -EIO, "loop", "cannot start");
	if (r == 0)
		r = map_open(&m, &diag);
	if (r < 0)
		return cli_fail(&diag);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)loop_on_signal(m.loop, SIGINT, on_signal, &m);
	(void)loop_on_signal(m.loop, SIGTERM, on_signal, &m);
	loop_timer_init(&m.progress, m.loop, on_report, &m);
	if (!v.quiet)
		(void)loop_timer_in(&m.progress, NS_PER_S);
	if (v.here)
		announce_here(&m);
	watch_stdin(&m);
	on_progress(&m);
	if (!m.failed)
		(void)loop_run(m.loop);
	summary(&m);
	bool ok = m.finished && !m.failed && fflush(stdout) == 0;
	map_close(&m);
	return m.interrupted ? 130 : ok && m.poison == 0 ? 0 : 1;
}
