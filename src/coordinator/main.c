/* SPDX-License-Identifier: Apache-2.0 */
/* `reclaim-coordinator`: init makes a campus, serve runs it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/option.h"
#include "base/point.h"
#include "coordinator/api.h"
#include "coordinator/config.h"
#include "coordinator/registry.h"
#include "coordinator/server.h"
#include "coordinator/vault.h"

#define COORDINATOR_VALID_S (UINT64_C(10) * 365 * 86400)

static int failed(const struct diag *d)
{
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
	(void)fprintf(stderr, "reclaim-coordinator: %s\n", diag_format(d, text, sizeof(text)));
	return 1;
}

/* ---- init ---- */

struct init_options {
	const char *dir, *campus, *name, *admin, *admin_name, *address;
};

static const struct option init_rows[] = {
	{ "dir", 'd', OPTION_STR, offsetof(struct init_options, dir), "DIR", "/var/lib/reclaim-coordinator",
	  .help = "state folder" },
	{ "campus", 'c', OPTION_STR, offsetof(struct init_options, campus), "NAME", "campus",
	  .help = "name of the certificate authority" },
	{ "name", 'n', OPTION_STR, offsetof(struct init_options, name), "NAME", "coordinator",
	  .help = "this coordinator's name" },
	{ "admin", 'a', OPTION_STR, offsetof(struct init_options, admin), "DIR", NULL,
	  .help = "make the first admin's identity folder here" },
	{ "admin-name", 0, OPTION_STR, offsetof(struct init_options, admin_name), "NAME", "admin",
	  .help = "that admin's name" },
	{ "address", 0, OPTION_STR, offsetof(struct init_options, address), "HOST:PORT", NULL,
	  .help = "where people reach the coordinator; goes into the admin's folder" },
	{ 0 },
};

/* A key and a certificate in `to`, signed and recorded here. */
static int issue(struct registry *g, struct identity_ca *ca, const char *to, const char *name,
		 enum identity_role role, struct diag *diag)
{
	CLEANUP_FREE char *csr = NULL;
	struct enrolment e;
	int r = identity_request(to, name, &csr, diag);
	if (r == 0)
		r = registry_issue(g, name, role, csr, clock_wall_ms(), &e, diag);
	if (r < 0)
		return r;
	r = identity_install(to, identity_ca_pem(ca), e.cert_pem, diag);
	free(e.cert_pem);
	return r;
}

/* The coordinator's own certificate lives as long as a machine does. */
static int issue_self(struct identity_ca *ca, const char *to, const char *name, struct diag *diag)
{
	CLEANUP_FREE char *csr = NULL, *cert = NULL;
	int r = identity_request(to, name, &csr, diag);
	if (r == 0)
		r = identity_ca_sign(ca, csr, name, IDENTITY_COORDINATOR, COORDINATOR_VALID_S, &cert, NULL,
				     diag);
	return r < 0 ? r : identity_install(to, identity_ca_pem(ca), cert, diag);
}

static int make_admin(const struct init_options *o, struct registry *g, struct identity_ca *ca,
		      struct diag *diag)
{
	char path[4096];
	int r = issue(g, ca, o->admin, o->admin_name, IDENTITY_ADMIN, diag);
	if (r == 0 && o->address) {
		r = path_format(path, sizeof(path), "%s/coordinator", o->admin);
		if (r == 0)
			r = file_write_atomic(path, o->address, strlen(o->address), 0644);
		if (r < 0)
			diag_set(diag, r, path, "cannot be written: %s", strerror(-r));
	}
	return r;
}

static int init_campus(const struct init_options *o, struct diag *diag)
{
	char path[4096];
	struct identity_ca *ca = NULL;
	struct store *store = NULL;
	struct registry *g = NULL;
	int r = identity_ca_create(o->dir, o->campus, diag);
	if (r == 0)
		r = vault_create(o->dir, diag);
	if (r == 0)
		r = identity_ca_open(o->dir, &ca, diag);
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/identity", o->dir);
	if (r == 0)
		r = issue_self(ca, path, o->name, diag);
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/state.db", o->dir);
	if (r == 0)
		r = store_open_sqlite(path, &store, diag);
	if (r == 0)
		r = registry_open(store, ca, &g, diag);
	if (r == 0 && o->admin)
		r = make_admin(o, g, ca, diag);
	if (r == 0)
		printf("campus \"%s\" in %s\nfingerprint %s\n", o->campus, o->dir,
		       identity_ca_fingerprint(ca));
	registry_close(g);
	store_close(store);
	identity_ca_free(ca);
	return r;
}

static int run_init(const void *values, int argc, const char *const *argv)
{
	struct diag d = DIAG_INIT;
	umask(077);
	return init_campus(values, &d) < 0 ? failed(&d) : 0;
}

/* ---- serve ---- */

struct serve_options {
	const char *dir, *config, *listen;
	uint64_t lease, margin, status_every, interval;
	uint64_t floor, floors;
	bool check, verbose;
};

static const struct option serve_rows[] = {
	{ "dir", 'd', OPTION_STR, offsetof(struct serve_options, dir), "DIR",
	  "/var/lib/reclaim-coordinator", .help = "state folder, made by init" },
	{ "config", 'c', OPTION_STR, offsetof(struct serve_options, config), "FILE", NULL,
	  .help = "settings in YAML; the options below win" },
	{ "listen", 'l', OPTION_STR, offsetof(struct serve_options, listen), "ADDRESS:PORT", NULL,
	  .help = "the one TLS port (port 0: any)" },
	{ "lease", 0, OPTION_DURATION, offsetof(struct serve_options, lease), "TIME", NULL,
	  .help = "how long a guest may run without hearing from here" },
	{ "margin", 0, OPTION_DURATION, offsetof(struct serve_options, margin), "TIME", NULL,
	  .help = "waited on top of a lease before a next incarnation" },
	{ "status-every", 0, OPTION_DURATION, offsetof(struct serve_options, status_every), "TIME", NULL,
	  .help = "how often agents report" },
	{ "interval", 0, OPTION_DURATION, offsetof(struct serve_options, interval), "TIME", NULL,
	  .help = "between checkpoints where nothing better is known" },
	{ "floor", 0, OPTION_RATE, offsetof(struct serve_options, floor), "RATE", NULL,
	  .help = "guaranteed to one move at notice" },
	{ "floors", 0, OPTION_RATE, offsetof(struct serve_options, floors), "RATE", NULL,
	  .help = "campus-wide cap on the sum of floors" },
	{ "check", 0, OPTION_FLAG, offsetof(struct serve_options, check), NULL, NULL,
	  .help = "only check the settings" },
	{ "verbose", 'v', OPTION_FLAG, offsetof(struct serve_options, verbose), NULL, NULL,
	  .help = "log more" },
	{ 0 },
};

static int settings(const struct serve_options *o, struct coordinator_config *ret, struct diag *diag)
{
	int r = config_load(o->config, ret, diag);
	if (r < 0)
		return r;
	if (o->listen) {
		free(ret->listen);
		ret->listen = strdup(o->listen);
		if (!ret->listen)
			return -ENOMEM;
	}
	ret->lease = o->lease ? o->lease : ret->lease;
	ret->status_every = o->status_every ? o->status_every : ret->status_every;
	if (o->lease && !o->status_every)
		ret->status_every = MIN(ret->status_every, o->lease / 4);
	ret->lease_margin = o->margin ? o->margin : ret->lease_margin;
	ret->interval = o->interval ? o->interval : ret->interval;
	ret->floor = o->floor ? o->floor : ret->floor;
	ret->floors = o->floors ? o->floors : ret->floors;
	return config_check(ret, diag);
}

static void stop(void *user, int signum)
{
	log_info("signal %d: stopping", signum);
	loop_stop(user);
}

static void raise_descriptors(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536) {
		limit.rlim_cur = MIN(limit.rlim_max, (rlim_t)65536);
		(void)setrlimit(RLIMIT_NOFILE, &limit); /* fewer agents fit, then */
	}
}

static int serve(const struct serve_options *o, const struct coordinator_config *config)
{
	struct diag d = DIAG_INIT;
	struct coordinator *c = NULL;
	umask(077);
	raise_descriptors();
	if (coordinator_open(o->dir, config, &c, &d) < 0)
		return failed(&d);
	(void)loop_on_signal(c->loop, SIGTERM, stop, c->loop);
	(void)loop_on_signal(c->loop, SIGINT, stop, c->loop);
	(void)printf("listening on port %u\n", http_server_port(c->http));
	(void)fflush(stdout);
	int r = loop_run(c->loop);
	coordinator_close(c);
	return r < 0 ? 1 : 0;
}

static int run_serve(const void *values, int argc, const char *const *argv)
{
	const struct serve_options *o = values;
	struct coordinator_config config = { 0 };
	struct diag d = DIAG_INIT;
	log_init("reclaim-coordinator", o->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
	int r = settings(o, &config, &d);
	int status = r < 0 ? failed(&d) : o->check ? 0 : serve(o, &config);
	schema_done(&config_schema, &config);
	return status;
}

/* ---- documents ---- */

static int run_openapi(const void *values, int argc, const char *const *argv)
{
	CLEANUP_JSON json_t *doc = api_describe();
	CLEANUP_FREE char *text = doc ? json_dumps(doc, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
	return text && puts(text) >= 0 ? 0 : 1;
}

static int run_schema(const void *values, int argc, const char *const *argv)
{
	CLEANUP_JSON json_t *doc = schema_describe(&config_schema);
	CLEANUP_FREE char *text = doc ? json_dumps(doc, JSON_INDENT(1)) : NULL;
	return text && puts(text) >= 0 ? 0 : 1;
}

static const struct command commands[] = {
	{ .name = "init", .options = init_rows, .values_size = sizeof(struct init_options),
	  .help = "make a campus: authority, store, and the first admin", .run = run_init },
	{ .name = "serve", .options = serve_rows, .values_size = sizeof(struct serve_options),
	  .help = "run the coordinator", .run = run_serve },
	{ .name = "openapi", .help = "print the description of the REST side", .run = run_openapi },
	{ .name = "schema", .help = "print the schema of the settings file", .run = run_schema },
	{ 0 },
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "reclaim-coordinator",
		.summary = "queue, leases and moves of a campus of lent machines",
		.version = RECLAIM_VERSION,
		.section = 8,
		.commands = commands,
	};
	point_init();
	(void)signal(SIGPIPE, SIG_IGN);
	return program_main(&program, argc, argv);
}
