/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the coordinator, several times a second and on a thread of its own (it
 * may be dead and the asking may hang), what the jobs are doing. The thread
 * lives in the coordinator's network namespace.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/schema.h"
#include "io/http_client.h"
#include "io/identity.h"
#include "lab/lab_internal.h"

#define WATCH_EVERY_NS (150 * NS_PER_MS)
#define WATCH_TIMEOUT_MS 1500

/* The part of the coordinator's answer that the lab goes by (wire/rest.h has all of it). */
struct seen_job {
	char *id, *name, *state, *node, *saved, *durable;
	uint64_t epoch, moves_count_total, failures, reclaims, durable_epoch;
	int exit_status;
};

static const struct schema_field seen_fields[] = {
	FIELD_STR(struct seen_job, id, 128, .flags = FIELD_REQUIRED),
	FIELD_STR(struct seen_job, name, 256),
	FIELD_STR(struct seen_job, state, 32, .flags = FIELD_REQUIRED),
	FIELD_STR(struct seen_job, node, 128),
	FIELD_STR(struct seen_job, saved, 128),
	FIELD_STR(struct seen_job, durable, 128),
	FIELD_U64(struct seen_job, epoch, 0, 1e18),
	FIELD_U64(struct seen_job, moves_count_total, 0, 1e18),
	FIELD_U64(struct seen_job, failures, 0, 1e18),
	FIELD_U64(struct seen_job, reclaims, 0, 1e18),
	FIELD_U64(struct seen_job, durable_epoch, 0, 1e18),
	FIELD_INT(struct seen_job, exit_status, -1000, 1000),
	FIELD_END,
};
static const struct schema seen_schema = SCHEMA(struct seen_job, "job", seen_fields);

static bool is_final(const char *state)
{
	return strcmp(state, "done") == 0 || strcmp(state, "failed") == 0 ||
	       strcmp(state, "cancelled") == 0;
}

static void take(struct lab *l, const struct seen_job *s, json_t *raw)
{
	size_t i = lab_job_by_id(l, s->id);
	struct lab_job *j;

	if (i == SCENARIO_NONE)
		return;
	j = &l->jobs[i];
	if (strcmp(j->state, s->state) != 0 && is_final(s->state))
		lab_say(l, "%s is %s", j->spec->name, s->state);
	(void)snprintf(j->state, sizeof(j->state), "%s", s->state);
	(void)snprintf(j->machine, sizeof(j->machine), "%s", s->node ? s->node : "");
	j->epoch = s->epoch;
	j->moves = s->moves_count_total;
	j->failures = s->failures;
	j->reclaims = s->reclaims;
	j->durable = s->durable && (!s->saved || strcmp(s->saved, s->durable) == 0);
	j->durable_epoch = s->durable_epoch;
	j->finished = is_final(s->state);
	j->status = s->exit_status;
	json_decref(j->raw);
	j->raw = json_incref(raw);
}

static void take_all(struct lab *l, json_t *answer)
{
	json_t *item;
	size_t i;

	(void)pthread_mutex_lock(&l->watch_lock);
	json_array_foreach(json_object_get(answer, "jobs"), i, item) {
		struct seen_job s;

		if (schema_decode(&seen_schema, item, SCHEMA_OPEN, NULL, &s, NULL) < 0)
			continue; /* a job of a form we do not know is nobody's here */
		take(l, &s, item);
		schema_done(&seen_schema, &s);
	}
	l->watch_seen_ns = clock_boot_ns();
	l->watch_round++;
	(void)pthread_mutex_unlock(&l->watch_lock);
}

static bool told_to_stop(struct lab *l)
{
	bool stop;

	(void)pthread_mutex_lock(&l->watch_lock);
	stop = l->watch_stop;
	(void)pthread_mutex_unlock(&l->watch_lock);
	return stop;
}

static void *watch(void *arg)
{
	struct lab *l = arg;
	CLEANUP_IDENTITY struct identity *id = NULL;
	CLEANUP_HTTP_CLIENT struct http_client *http = NULL;
	const struct campus_node *node = campus_find(l->campus, "coordinator");
	char dir[LAB_PATH_MAX + 16];

	(void)snprintf(dir, sizeof(dir), "%s", l->admin_home);
	if (campus_enter(node) < 0 || identity_open(dir, &id, NULL) < 0)
		return NULL;
	while (!told_to_stop(l)) {
		struct timespec pause = { 0, WATCH_EVERY_NS };
		CLEANUP_JSON json_t *answer = NULL;

		if (!http && http_client_open(id, l->address, &http, NULL) == 0)
			http_client_set_timeout(http, WATCH_TIMEOUT_MS);
		if (http && http_client_call(http, "GET", "/v1/jobs?all=1", NULL, &answer, NULL) == 0) {
			take_all(l, answer);
		} else if (http) {
			http_client_close(http);
			http = NULL;
		}
		(void)nanosleep(&pause, NULL);
	}
	return NULL;
}

int watch_start(struct lab *l)
{
	int r = pthread_create(&l->watch_thread, NULL, watch, l);

	l->watch_started = r == 0;
	return -r;
}

void watch_stop(struct lab *l)
{
	if (!l->watch_started)
		return;
	(void)pthread_mutex_lock(&l->watch_lock);
	l->watch_stop = true;
	(void)pthread_mutex_unlock(&l->watch_lock);
	(void)pthread_join(l->watch_thread, NULL);
	l->watch_started = false;
}
