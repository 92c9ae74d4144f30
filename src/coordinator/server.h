/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator as a program: one loop, the store, the engine, the port.
 * server.c owns the parts and carries messages between agents and the engine;
 * api*.c answer people; watch.c follows logs and jobs; settings.c keeps what
 * an admin changes at run time.
 */
#ifndef RECLAIM_COORDINATOR_SERVER_H
#define RECLAIM_COORDINATOR_SERVER_H

#include "base/map.h"
#include "coordinator/blobs.h"
#include "coordinator/config.h"
#include "coordinator/engine.h"
#include "coordinator/joblog.h"
#include "coordinator/registry.h"
#include "coordinator/vault.h"
#include "io/http_server.h"
#include "io/loop.h"
#include "store/store.h"

struct forecast;
struct maps;
struct watcher;
struct settings;

struct coordinator {
	const struct coordinator_config *config;
	char dir[3072];
	struct loop *loop;
	struct store *store;
	struct identity *identity;
	struct identity_ca *ca;
	struct vault *vault;
	struct registry *registry;
	struct blobs *blobs;
	struct engine *engine;
	struct http_server *http;
	struct settings *settings;
	struct forecast *forecast;
	struct maps *maps; /* volunteers' sockets and pages (maps.c) */
	struct map *logs;     /* job id -> struct joblog */
	struct map *sessions; /* node -> struct http_socket */
	struct map *changed;  /* job ids to tell watchers of */
	struct watcher *watchers;
	bool flush_due;
	struct loop_timer tick;
	struct loop_timer sync; /* of logs, once a second */
	struct loop_timer outlook; /* rates of owners, to the engine */
	struct loop_timer forget;  /* jobs long over, and what names them */
	/* A submit under way: its job record and its request id are one transaction. */
	const char *submit_request;
};

int coordinator_open(const char *dir, const struct coordinator_config *config,
		     struct coordinator **ret, struct diag *diag);
void coordinator_close(struct coordinator *c);
/* The engine was called: run what is due now, and wake for what is due next. */
void coordinator_poke(struct coordinator *c);
/* The job's log, opened; NULL when it cannot be (said in the program's log). */
struct joblog *coordinator_log(struct coordinator *c, const char *job);
/* Key of a request id that made a job before. */
void coordinator_request_key(const char *user, const char *request, char *ret, size_t size);
/* Closes the connections of a certificate, and stops leases of an agent. */
void coordinator_revoked(void *user, const char *serial, const char *name,
			 enum identity_role role);

/* ---- watch.c ---- */
enum watch_kind { WATCH_LOG, WATCH_JOB, WATCH_ALL };
/* Takes the request. offset: of a log. */
void watch_open(struct coordinator *c, struct http_request *r, enum watch_kind kind,
		const char *job, uint64_t offset);
void watch_changed(struct coordinator *c, const char *job);
void watch_close_all(struct coordinator *c);

/* ---- settings.c ---- */
int settings_open(struct coordinator *c, struct settings **ret, struct diag *diag);
void settings_close(struct settings *s);
/* A new reference: what holds now. */
json_t *settings_show(struct settings *s);
int settings_stop_all(struct settings *s, bool on, struct diag *diag);
int settings_floor_cap(struct settings *s, uint64_t bits_per_s, struct diag *diag);
/* spans: [{"days": [...], "from": "HH:MM", "to": "HH:MM"}]; an empty list ends it. */
int settings_blackout(struct settings *s, json_t *spans, struct diag *diag);
/* people: their names; an empty list ends the group. */
int settings_group(struct settings *s, const char *name, json_t *people, struct diag *diag);
bool settings_in_group(const struct settings *s, const char *group, const char *person);

#endif
