/* SPDX-License-Identifier: Apache-2.0 */
/* What of a job must survive the coordinator, as one table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "coordinator/engine_internal.h"

struct record_image {
	char *digest, *commit;
	uint64_t epoch, seq, bytes, output_offset, at_wall_ms, start_cursor;
	char **holders;
	size_t holders_count;
};

struct record {
	int version;
	char *user, *key, *request_id, *reason, *node, *cause;
	json_t *spec, *moves;
	bool inputs, alive;
	int state;
	uint64_t order, epoch, start_epoch, start_output, start_cursor, failures, reclaims, restarts;
	uint64_t submitted_ms, started_ms, ended_ms, ran_ms, results_bytes, lost_ms;
	int exit_status;
	char **slots;
	size_t slots_count;
	struct record_image durable, before, saved;
	bool end_unconfirmed;
	char *gang;
	uint64_t rank, ranks;
	int gang_end;
	struct rest_secret *secrets;
	size_t secrets_count;
};

#define BIG 9e15

static const struct schema_field image_fields[] = {
	FIELD_STR(struct record_image, digest, CONTROL_DIGEST_HEX),
	FIELD_STR(struct record_image, commit, CONTROL_COMMIT_MAX),
	FIELD_U64(struct record_image, epoch, 0, BIG),
	FIELD_U64(struct record_image, seq, 0, BIG),
	FIELD_U64(struct record_image, bytes, 0, BIG),
	FIELD_U64(struct record_image, output_offset, 0, BIG),
	FIELD_U64(struct record_image, at_wall_ms, 0, BIG),
	FIELD_U64(struct record_image, start_cursor, 0, BIG),
	FIELD_STRLIST(struct record_image, holders, CONTROL_NAME_MAX, ENGINE_HOLDERS_MAX),
	FIELD_END,
};
static const struct schema image_schema = SCHEMA(struct record_image, "image", image_fields);

static const struct schema_field secret_fields[] = {
	FIELD_STR(struct rest_secret, name, CONTROL_NAME_MAX),
	FIELD_STR(struct rest_secret, value, 400000),
	FIELD_END,
};
static const struct schema secret_schema = SCHEMA(struct rest_secret, "secret", secret_fields);

static const struct schema_field record_fields[] = {
	FIELD_INT(struct record, version, 1, 1, .flags = FIELD_REQUIRED),
	FIELD_STR(struct record, user, CONTROL_NAME_MAX, .flags = FIELD_REQUIRED),
	FIELD_STR(struct record, key, 511, .flags = FIELD_REQUIRED),
	FIELD_STR(struct record, request_id, CONTROL_NAME_MAX),
	FIELD_STR(struct record, reason, CONTROL_TEXT_MAX),
	FIELD_STR(struct record, node, CONTROL_NAME_MAX),
	FIELD_STR(struct record, cause, 31),
	FIELD_JSON(struct record, spec, .flags = FIELD_REQUIRED),
	FIELD_JSON(struct record, moves),
	FIELD_BOOL(struct record, inputs),
	FIELD_BOOL(struct record, alive),
	FIELD_ENUM(struct record, state, rest_job_state_names, .flags = FIELD_REQUIRED),
	FIELD_U64(struct record, order, 0, BIG),
	FIELD_U64(struct record, epoch, 0, BIG),
	FIELD_U64(struct record, start_epoch, 0, BIG),
	FIELD_U64(struct record, start_output, 0, BIG),
	FIELD_U64(struct record, start_cursor, 0, BIG),
	FIELD_U64(struct record, failures, 0, BIG),
	FIELD_U64(struct record, reclaims, 0, BIG),
	FIELD_U64(struct record, restarts, 0, BIG),
	FIELD_U64(struct record, submitted_ms, 0, BIG),
	FIELD_U64(struct record, started_ms, 0, BIG),
	FIELD_U64(struct record, ended_ms, 0, BIG),
	FIELD_U64(struct record, ran_ms, 0, BIG),
	FIELD_U64(struct record, results_bytes, 0, BIG),
	FIELD_U64(struct record, lost_ms, 0, BIG),
	FIELD_INT(struct record, exit_status, 0, 255),
	FIELD_STRLIST(struct record, slots, CONTROL_NAME_MAX, CONTROL_SLOTS_MAX),
	FIELD_OBJECT(struct record, durable, &image_schema),
	FIELD_OBJECT(struct record, before, &image_schema),
	FIELD_OBJECT(struct record, saved, &image_schema),
	FIELD_BOOL(struct record, end_unconfirmed),
	FIELD_STR(struct record, gang, CONTROL_NAME_MAX),
	FIELD_U64(struct record, rank, 0, CONTROL_RANKS_MAX - 1),
	FIELD_U64(struct record, ranks, 1, CONTROL_RANKS_MAX, .fallback = "1"),
	FIELD_ENUM(struct record, gang_end, control_end_names),
	FIELD_LIST(struct record, secrets, &secret_schema, 256),
	FIELD_END,
};
static const struct schema record_schema = SCHEMA(struct record, "job record", record_fields);

/* Borrows everything; `list` is room for the pointers. */
static struct record_image image_to(const struct ejob_image *im, char *list[ENGINE_HOLDERS_MAX])
{
	for (size_t i = 0; i < im->holders_count; i++)
		list[i] = (char *)im->holders[i];
	return (struct record_image){ im->digest[0] ? (char *)im->digest : NULL,
				      im->commit[0] ? (char *)im->commit : NULL,
				      im->epoch,
				      im->seq,
				      im->bytes,
				      im->output_offset,
				      im->at_wall_ms,
				      im->start_cursor,
				      list,
				      im->holders_count };
}

static void image_from(const struct record_image *r, struct ejob_image *im)
{
	*im = (struct ejob_image){ .epoch = r->epoch,
				   .seq = r->seq,
				   .bytes = r->bytes,
				   .output_offset = r->output_offset,
				   .at_wall_ms = r->at_wall_ms,
				   .start_cursor = r->start_cursor };
	(void)snprintf(im->digest, sizeof(im->digest), "%s", r->digest ? r->digest : "");
	(void)snprintf(im->commit, sizeof(im->commit), "%s", r->commit ? r->commit : "");
	for (size_t i = 0; i < r->holders_count; i++)
		ejob_image_add(im, r->holders[i]);
}

bool ejob_image_has(const struct ejob_image *im, const char *node)
{
	for (size_t i = 0; i < im->holders_count; i++)
		if (strcmp(im->holders[i], node) == 0)
			return true;
	return false;
}

void ejob_image_add(struct ejob_image *im, const char *node)
{
	if (ejob_image_has(im, node))
		return;
	/* Full: the oldest holder makes room; the newest copies are the likeliest to live. */
	if (im->holders_count == ENGINE_HOLDERS_MAX) {
		memmove(im->holders[0], im->holders[1],
			(ENGINE_HOLDERS_MAX - 1) * sizeof(im->holders[0]));
		im->holders_count--;
	}
	(void)snprintf(im->holders[im->holders_count++], sizeof(im->holders[0]), "%s", node);
}

static json_t *moves_to(const struct ejob *j)
{
	/* The table of the REST view serves the record too. */
	struct rest_job view = { .id = (char *)j->id, .moves = j->moves, .moves_count = j->moves_count };
	CLEANUP_JSON json_t *all = schema_encode(&rest_job_schema, &view);
	return all ? json_incref(json_object_get(all, "moves")) : NULL;
}

static int moves_from(json_t *moves, struct ejob *j, struct diag *diag)
{
	if (!moves)
		return 0;
	CLEANUP_JSON json_t *all = json_pack("{s:s,s:s,s:O}", "id", "x", "state", "queued", "moves", moves);
	struct rest_job view;
	int r = schema_decode(&rest_job_schema, all, SCHEMA_OPEN, NULL, &view, diag);
	if (r < 0)
		return r;
	j->moves = view.moves;
	j->moves_count = view.moves_count;
	view.moves = NULL;
	view.moves_count = 0;
	schema_done(&rest_job_schema, &view);
	return 0;
}

json_t *ejob_record(const struct ejob *j)
{
	char *lists[3][ENGINE_HOLDERS_MAX];
	CLEANUP_JSON json_t *moves = moves_to(j);
	const struct record r = {
		.version = 1,
		.user = (char *)j->user,
		.key = (char *)j->key_wrapped,
		.request_id = j->request_id[0] ? (char *)j->request_id : NULL,
		.reason = (char *)j->reason,
		.node = j->node[0] ? (char *)j->node : NULL,
		.cause = j->cause[0] ? (char *)j->cause : NULL,
		.spec = j->spec_json,
		.moves = moves,
		.inputs = j->inputs,
		.alive = j->alive,
		.state = j->state,
		.order = j->order,
		.epoch = j->epoch,
		.start_epoch = j->start_epoch,
		.start_output = j->start_output,
		.start_cursor = j->start_cursor,
		.failures = j->failures,
		.reclaims = j->reclaims,
		.restarts = j->restarts,
		.submitted_ms = j->submitted_ms,
		.started_ms = j->started_ms,
		.ended_ms = j->ended_ms,
		.ran_ms = j->ran_ms,
		.results_bytes = j->results_bytes,
		.lost_ms = j->lost_ms,
		.exit_status = j->exit_status,
		.slots = j->slots,
		.slots_count = j->slots_count,
		.durable = image_to(&j->durable, lists[0]),
		.before = image_to(&j->before, lists[1]),
		.saved = image_to(&j->saved, lists[2]),
		.end_unconfirmed = j->end_unconfirmed,
		.gang = j->gang[0] ? (char *)j->gang : NULL,
		.rank = j->rank,
		.ranks = j->ranks,
		.gang_end = j->gang_end,
		.secrets = j->secrets,
		.secrets_count = j->secrets_count,
	};
	return schema_encode(&record_schema, &r);
}

int ejob_from_record(json_t *record, struct ejob *j, struct diag *diag)
{
	struct record r;
	int err = schema_decode(&record_schema, record, SCHEMA_OPEN, NULL, &r, diag);
	if (err < 0)
		return err;
	err = job_spec_from_json(r.spec, &j->spec, diag);
	if (err == 0)
		err = moves_from(r.moves, j, diag);
	if (err < 0) {
		schema_done(&record_schema, &r);
		return err;
	}
	(void)snprintf(j->user, sizeof(j->user), "%s", r.user);
	(void)snprintf(j->key_wrapped, sizeof(j->key_wrapped), "%s", r.key);
	(void)snprintf(j->request_id, sizeof(j->request_id), "%s", r.request_id ? r.request_id : "");
	(void)snprintf(j->reason, sizeof(j->reason), "%s", r.reason ? r.reason : "");
	(void)snprintf(j->node, sizeof(j->node), "%s", r.node ? r.node : "");
	(void)snprintf(j->cause, sizeof(j->cause), "%s", r.cause ? r.cause : "");
	j->spec_json = json_incref(r.spec);
	j->inputs = r.inputs;
	j->alive = r.alive;
	j->state = (enum rest_job_state)r.state;
	j->order = r.order;
	j->epoch = r.epoch;
	j->start_epoch = r.start_epoch;
	j->start_output = r.start_output;
	j->start_cursor = r.start_cursor;
	j->failures = r.failures;
	j->reclaims = r.reclaims;
	j->restarts = r.restarts;
	j->submitted_ms = r.submitted_ms;
	j->started_ms = r.started_ms;
	j->ended_ms = r.ended_ms;
	j->ran_ms = r.ran_ms;
	j->results_bytes = r.results_bytes;
	j->lost_ms = r.lost_ms;
	j->exit_status = r.exit_status;
	j->end_unconfirmed = r.end_unconfirmed;
	(void)snprintf(j->gang, sizeof(j->gang), "%s", r.gang ? r.gang : "");
	j->rank = r.rank;
	j->ranks = r.ranks;
	j->gang_end = (enum control_end)r.gang_end;
	image_from(&r.durable, &j->durable);
	image_from(&r.before, &j->before);
	image_from(&r.saved, &j->saved);
	j->slots = TAKE(r.slots);
	j->slots_count = r.slots_count;
	r.slots_count = 0;
	j->secrets = TAKE(r.secrets);
	j->secrets_count = r.secrets_count;
	r.secrets_count = 0;
	schema_done(&record_schema, &r);
	return 0;
}
