/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: for the guest they belong to, for an admin, and for the agent that runs them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "coordinator/api.h"

#define JOB_ID_LEN 8

/* The job that the path names, if this peer may act on it. Otherwise answers, as if it were not
 * there, and returns NULL. */
static const char *job_of(struct coordinator *c, struct http_request *r, struct rest_job *ret)
{
	const struct identity_peer *peer = http_request_peer(r);
	const char *text = http_request_param(r, 0);
	bool own = peer->role != IDENTITY_ADMIN && peer->role != IDENTITY_AGENT;
	const char *id = engine_resolve(c->engine, text, own ? peer->name : NULL);
	bool ok = id && engine_job(c->engine, id, ret);
	if (ok && peer->role == IDENTITY_AGENT)
		ok = strcmp(id, text) == 0 && ret->node && strcmp(ret->node, peer->name) == 0;
	else if (ok && own)
		ok = ret->user && strcmp(ret->user, peer->name) == 0;
	if (!ok) {
		http_reply_error(r, 404, "no job \"%.64s\"%s", text,
				 peer->role == IDENTITY_AGENT ? " on this machine" : " of yours");
		return NULL;
	}
	return id;
}

static void reply_job(struct coordinator *c, struct http_request *r, const char *id)
{
	struct rest_job job;
	if (engine_job(c->engine, id, &job))
		api_reply(r, &job);
	else
		http_reply_error(r, 404, "no job %s", id);
}

/* Letters and digits that nobody confuses when reading aloud. */
static int job_id_new(struct coordinator *c, char ret[JOB_ID_LEN + 1])
{
	static const char alphabet[] = "abcdefghjkmnpqrstuvwxyz23456789";
	uint8_t bytes[JOB_ID_LEN];
	struct rest_job job;
	do {
		int r = random_bytes(bytes, sizeof(bytes));
		if (r < 0)
			return r;
		for (size_t i = 0; i < JOB_ID_LEN; i++)
			ret[i] = alphabet[bytes[i] % (sizeof(alphabet) - 1 - (i == 0) * 8)];
		ret[JOB_ID_LEN] = 0;
	} while (engine_job(c->engine, ret, &job));
	return 0;
}

/* A submit that was answered but whose answer got lost gives the same job. */
static bool repeated(struct coordinator *c, struct http_request *r, const char *request_id)
{
	char key[STORE_KEY_MAX + 1];
	CLEANUP_STORE_KV struct store_kv kv = { 0 };
	struct rest_job job;
	coordinator_request_key(http_request_peer(r)->name, request_id, key, sizeof(key));
	if (store_get(c->store, key, &kv) < 0 || !engine_job(c->engine, kv.value, &job))
		return false;
	api_reply(r, &job);
	return true;
}

static void submit(struct coordinator *c, struct http_request *r)
{
	struct rest_submit s;
	struct diag d = DIAG_INIT;
	char id[JOB_ID_LEN + 1];
	if (api_body_decode(r, &s) < 0)
		return;
	if (s.request_id && repeated(c, r, s.request_id)) {
		schema_done(&rest_submit_schema, &s);
		return;
	}
	int e = job_id_new(c, id);
	if (e == 0) {
		c->submit_request = s.request_id;
		e = engine_submit(c->engine, id, http_request_peer(r)->name, &s, clock_boot_ns(),
				  clock_wall_ms(), &d);
		c->submit_request = NULL;
	}
	schema_done(&rest_submit_schema, &s);
	if (e < 0) {
		api_reply_errno(r, e, &d);
		return;
	}
	POINT("coordinator.submit.before_answer");
	reply_job(c, r, id);
	coordinator_poke(c);
}

static void list(struct coordinator *c, struct http_request *r)
{
	const struct identity_peer *peer = http_request_peer(r);
	const char *user = peer->role == IDENTITY_ADMIN ? http_request_query(r, "user") : peer->name;
	uint64_t all;
	size_t pos = 0;
	if (api_query_u64(r, "all", 0, &all) < 0)
		return;
	/* Encoded one by one: the strings of a job are the engine's. */
	json_t *jobs = json_array();
	for (const char *id; (id = engine_job_next(c->engine, &pos));) {
		struct rest_job job;
		if (!engine_job(c->engine, id, &job) || (user && (!job.user || strcmp(job.user, user))) ||
		    (!all && rest_job_state_is_final((enum rest_job_state)job.state)))
			continue;
		json_array_append_new(jobs, schema_encode(&rest_job_schema, &job));
	}
	http_reply_json(r, 200, json_pack("{s:o}", "jobs", jobs));
}

static void show(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	if (job_of(c, r, &job))
		api_reply(r, &job);
}

static void put_file(struct coordinator *c, struct http_request *r, const char *kind, const char *id,
		     uint64_t *ret_size, int *ret_err)
{
	char sha[IDENTITY_DIGEST_HEX + 1];
	const char *path = http_request_file(r, ret_size, sha);
	*ret_err = blobs_put(c->blobs, kind, id, path, sha, *ret_size);
}

static void put_inputs(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	uint64_t size;
	int e;
	const char *id = job_of(c, r, &job);
	char kept[CONTROL_NAME_MAX + 1];
	if (!id)
		return;
	if (job.state != REST_JOB_STAGING) {
		http_reply_error(r, 409, "job %s does not wait for inputs: it is %s", id,
				 rest_job_state_names[job.state]);
		return;
	}
	snprintf(kept, sizeof(kept), "%s", id);
	put_file(c, r, "inputs", kept, &size, &e);
	if (e == 0)
		e = engine_inputs_ready(c->engine, kept, clock_boot_ns());
	if (e < 0) {
		api_reply_errno(r, e, NULL);
		return;
	}
	reply_job(c, r, kept);
	coordinator_poke(c);
}

static void get_file(struct coordinator *c, struct http_request *r, const char *kind)
{
	struct rest_job job;
	int fd = -1;
	uint64_t size = 0;
	const char *id = job_of(c, r, &job);
	if (!id)
		return;
	/* One set of inputs for all ranks of a gang; each has results of its own. */
	const char *of = strcmp(kind, "inputs") == 0 ? engine_gang(c->engine, id) : id;
	int e = blobs_get(c->blobs, kind, of, &fd, &size);
	if (e == -ENOENT)
		http_reply_error(r, 404, "job %s has no %s", id, kind);
	else if (e < 0)
		api_reply_errno(r, e, NULL);
	else
		http_reply_fd(r, "application/x-tar", fd, 0, size);
}

static void get_inputs(struct coordinator *c, struct http_request *r)
{
	get_file(c, r, "inputs");
}

static void get_results(struct coordinator *c, struct http_request *r)
{
	get_file(c, r, "results");
}

static void put_results(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	uint64_t size, epoch;
	int e;
	char kept[CONTROL_NAME_MAX + 1];
	const char *id = job_of(c, r, &job);
	if (!id || api_query_u64(r, "epoch", 0, &epoch) < 0)
		return;
	if (epoch != job.epoch) {
		http_reply_error(r, 410, "epoch %llu of job %s is over; the present one is %llu",
				 (unsigned long long)epoch, id, (unsigned long long)job.epoch);
		return;
	}
	snprintf(kept, sizeof(kept), "%s", id);
	put_file(c, r, "results", kept, &size, &e);
	if (e == 0)
		e = engine_results_ready(c->engine, kept, epoch, size);
	if (e < 0) {
		api_reply_errno(r, e, NULL);
		return;
	}
	reply_job(c, r, kept);
	coordinator_poke(c);
}

static void logs(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	uint64_t offset, follow;
	const char *id = job_of(c, r, &job);
	if (!id || api_query_u64(r, "offset", 0, &offset) < 0 ||
	    api_query_u64(r, "follow", 0, &follow) < 0)
		return;
	struct joblog *l = coordinator_log(c, id);
	if (!l) {
		http_reply_error(r, 500, "the log cannot be opened");
		return;
	}
	if (follow) {
		watch_open(c, r, WATCH_LOG, id, offset);
		return;
	}
	uint64_t len = joblog_length(l);
	int fd = fcntl(joblog_fd(l), F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		api_reply_errno(r, -EMFILE, NULL);
	else
		http_reply_fd(r, "text/plain; charset=utf-8", fd, MIN(offset, len),
			      offset < len ? len - offset : 0);
}

static void events(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	const char *id = job_of(c, r, &job);
	if (id)
		watch_open(c, r, WATCH_JOB, id, 0);
}

static void all_events(struct coordinator *c, struct http_request *r)
{
	watch_open(c, r, WATCH_ALL, NULL, 0);
}

static void cancel(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	char kept[CONTROL_NAME_MAX + 1], why[128];
	const char *id = job_of(c, r, &job);
	if (!id)
		return;
	snprintf(kept, sizeof(kept), "%s", id);
	snprintf(why, sizeof(why), "cancelled by %s", http_request_peer(r)->name);
	int e = rest_job_state_is_final((enum rest_job_state)job.state) ?
			0 : engine_cancel(c->engine, kept, why, clock_boot_ns());
	if (e < 0) {
		api_reply_errno(r, e, NULL);
		return;
	}
	reply_job(c, r, kept);
	coordinator_poke(c);
}

/* The decision in words, from its own numbers. */
static json_t *why_text(json_t *why)
{
	CLEANUP_STRBUF struct strbuf text = STRBUF_INIT;
	json_t *node;
	size_t i;
	const char *reason = json_string_value(json_object_get(why, "reason"));
	const char *at = json_string_value(json_object_get(why, "node"));
	strbuf_printf(&text, "%s is %s%s%s", json_string_value(json_object_get(why, "job")),
		      json_string_value(json_object_get(why, "state")), at && *at ? " on " : "",
		      at ? at : "");
	strbuf_printf(&text, "%s%s.\n", reason && *reason ? ": " : "", reason ? reason : "");
	json_int_t interval_ms = json_integer_value(json_object_get(why, "interval_ms"));
	if (interval_ms)
		strbuf_printf(&text,
			      "It saves every %.1f s: %.2f losses of work a day are expected here, and %.0f %% of "
			      "reclaims would not leave time for a last save.\n",
			      (double)interval_ms / 1e3,
			      json_number_value(json_object_get(why, "losses_per_day")),
			      100 * json_number_value(json_object_get(why, "p_miss")));
	strbuf_printf(&text, "Machines considered (a higher score is better):\n");
	json_array_foreach(json_object_get(why, "considered"), i, node) {
		const char *refusal = json_string_value(json_object_get(node, "reason"));
		strbuf_printf(&text, "  %-16s ", json_string_value(json_object_get(node, "node")));
		if (refusal && *refusal)
			strbuf_printf(&text, "no: %s\n", refusal);
		else
			strbuf_printf(&text, "score %.3f; wanted back %.2f times a day%s%s\n",
				      json_number_value(json_object_get(node, "score")),
				      json_number_value(json_object_get(node, "reclaims_per_day")),
				      json_is_true(json_object_get(node, "has_image")) ? "; holds its image" : "",
				      json_is_true(json_object_get(node, "failed_before")) ?
					      "; failed to start it before" : "");
	}
	return json_string(text.data ? text.data : "");
}

static void why(struct coordinator *c, struct http_request *r)
{
	struct rest_job job;
	const char *id = job_of(c, r, &job);
	if (!id)
		return;
	json_t *out = engine_why(c->engine, id, clock_boot_ns());
	if (out)
		json_object_set_new(out, "text", why_text(out));
	if (out)
		http_reply_json(r, 200, out);
	else
		http_reply_error(r, 404, "nothing was decided for job %s yet", id);
}

#define JSON "application/json"
#define TAR "application/x-tar"
#define GUEST (API_GUEST | API_ADMIN)

const struct api_row api_job_rows[] = {
	{ "POST", "/v1/jobs", GUEST, "Submit a job. Durable when answered.", NULL, API_JSON,
	  &rest_submit_schema, 201, JSON, &rest_job_schema, submit },
	{ "GET", "/v1/jobs", GUEST, "Jobs in order of submission.",
	  "all: 1 = also those that are over; user: whose (admin)", API_NO_BODY, NULL, 200, JSON,
	  &rest_jobs_schema, list },
	{ "GET", "/v1/jobs/{id}", GUEST, "One job; the id may be a unique prefix, or a live job's name.",
	  NULL, API_NO_BODY, NULL, 200, JSON, &rest_job_schema, show },
	{ "PUT", "/v1/jobs/{id}/inputs", GUEST, "A tar of the first files; queues the job.", NULL,
	  API_FILE, NULL, 200, JSON, &rest_job_schema, put_inputs },
	{ "GET", "/v1/jobs/{id}/inputs", GUEST | API_AGENT, "That tar.", "epoch: ignored", API_NO_BODY,
	  NULL, 200, TAR, NULL, get_inputs },
	{ "PUT", "/v1/jobs/{id}/results", API_AGENT, "A tar of the results, from the job's machine.",
	  "epoch: of the incarnation that made them", API_FILE, NULL, 200, JSON, &rest_job_schema,
	  put_results },
	{ "GET", "/v1/jobs/{id}/results", GUEST, "That tar.", NULL, API_NO_BODY, NULL, 200, TAR, NULL,
	  get_results },
	{ "GET", "/v1/jobs/{id}/logs", GUEST, "The job's output over all its incarnations.",
	  "offset: first byte; follow: 1 = until the job is over", API_NO_BODY, NULL, 200,
	  "text/plain", NULL, logs },
	{ "GET", "/v1/jobs/{id}/events", GUEST, "The job at every change, one line of JSON each.", NULL,
	  API_NO_BODY, NULL, 200, "application/x-ndjson", &rest_job_schema, events },
	{ "POST", "/v1/jobs/{id}/cancel", GUEST, "End the job.", NULL, API_NO_BODY, NULL, 200, JSON,
	  &rest_job_schema, cancel },
	{ "GET", "/v1/jobs/{id}/why", GUEST, "Why it waits, or why it is where it is.", NULL,
	  API_NO_BODY, NULL, 200, JSON, NULL, why },
	{ "GET", "/v1/events", GUEST, "All one's jobs at every change, one line of JSON each.", NULL,
	  API_NO_BODY, NULL, 200, "application/x-ndjson", &rest_job_schema, all_events },
	{ 0 },
};
