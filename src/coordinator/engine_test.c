/* SPDX-License-Identifier: Apache-2.0 */
/* The engine against agents that a test plays: whole lives of jobs, in no time. */
#include "coordinator/engine.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/cleanup.h"
#include "base/vec.h"

struct sent {
	char node[16];
	struct control_message m; /* decoded copy, owned */
};

struct world {
	struct engine *e;
	uint64_t now;
	struct VEC(struct sent) sent;
	json_t *records; /* id -> record */
	json_t *revisions;
	int save_error;
	uint64_t stored;
};

static struct world w;

static int op_save(void *user, const char *job, json_t *record, uint64_t *revision)
{
	if (w.save_error)
		return w.save_error;
	json_int_t now = json_integer_value(json_object_get(w.revisions, job));
	if ((uint64_t)now != *revision)
		return -ESTALE;
	*revision = (uint64_t)now + 1;
	json_object_set_new(w.revisions, job, json_integer(now + 1));
	json_object_set_new(w.records, job, json_deep_copy(record));
	return 0;
}

static int op_forget(void *user, const char *job, uint64_t revision)
{
	if (w.save_error)
		return w.save_error;
	assert_int_equal(json_integer_value(json_object_get(w.revisions, job)), revision);
	json_object_del(w.revisions, job);
	json_object_del(w.records, job);
	return 0;
}

static bool op_in_group(void *user, const char *group, const char *person)
{
	return strcmp(group, "physics") == 0 && strcmp(person, "ann") == 0;
}

static int op_send(void *user, const char *node, struct control_message *m)
{
	struct sent s = { 0 };
	struct diag diag;
	snprintf(s.node, sizeof(s.node), "%s", node);
	json_t *json = control_encode(m);
	assert_int_equal(control_decode(json, &s.m, &diag), 0);
	json_decref(json);
	assert_int_equal(VEC_PUSH(&w.sent, s), 0);
	return 0;
}

static int op_sign(void *user, const struct ticket *t, char ret[TICKET_TEXT_MAX])
{
	snprintf(ret, TICKET_TEXT_MAX, "%s:%s:%llu:%s>%s", ticket_use_names[t->use], t->job,
		 (unsigned long long)t->epoch, t->source, t->destination);
	return 0;
}

static int op_wrap(void *user, const uint8_t key[32], char *ret, size_t size)
{
	snprintf(ret, size, "%s", "wrapped");
	return 0;
}

static int op_unwrap(void *user, const char *text, uint8_t ret[32])
{
	memset(ret, 7, 32);
	return 0;
}

static int op_text(void *user, const char *text, char **ret)
{
	*ret = strdup(text);
	return 0;
}

static int op_output(void *user, const char *job, uint64_t epoch, uint64_t replay_from,
		     uint64_t offset, const char *bytes, size_t len, uint64_t *ret_stored)
{
	w.stored = offset + len;
	*ret_stored = w.stored;
	return 0;
}

static uint64_t op_position(void *user, const char *job, uint64_t epoch, uint64_t offset,
			    uint64_t unknown)
{
	return offset;
}

static void op_changed(void *user, const char *job)
{
}

static const struct engine_ops ops = {
	.save = op_save,
	.send = op_send,
	.sign_ticket = op_sign,
	.wrap_key = op_wrap,
	.unwrap_key = op_unwrap,
	.seal_text = op_text,
	.unseal_text = op_text,
	.output = op_output,
	.output_position = op_position,
	.changed = op_changed,
	.forget = op_forget,
	.in_group = op_in_group,
};

static const struct engine_config config = {
	.lease_ms = 3000,
	.lease_margin_ms = 500,
	.status_every_ms = 500,
	.floor_cap_bps = 500000000,
	.interval_ms = 2000,
	.jobs_max = 100,
	.coordinator = "c",
};

static int setup(void **state)
{
	memset(&w, 0, sizeof(w));
	w.now = 1000 * NS_PER_S;
	w.records = json_object();
	w.revisions = json_object();
	return engine_open(&config, &ops, NULL, w.now, &w.e);
}

static void drop_sent(void)
{
	for (size_t i = 0; i < w.sent.count; i++)
		control_done(&w.sent.data[i].m);
	w.sent.count = 0;
}

static int teardown(void **state)
{
	engine_close(w.e);
	drop_sent();
	VEC_DONE(&w.sent);
	json_decref(w.records);
	json_decref(w.revisions);
	return 0;
}

static void pass(uint64_t ms)
{
	w.now += ms * NS_PER_MS;
	engine_tick(w.e, w.now);
}

/* The newest message of that type to that node since drop_sent(), or NULL. */
static struct control_message *last(const char *node, enum control_type type)
{
	for (size_t i = w.sent.count; i-- > 0;)
		if (w.sent.data[i].m.type == type && strcmp(w.sent.data[i].node, node) == 0)
			return &w.sent.data[i].m;
	return NULL;
}

static void say(const char *node, const char *json)
{
	CLEANUP_JSON json_t *in = json_loads(json, 0, NULL);
	assert_non_null(in);
	json_object_set_new(in, "v", json_integer(1));
	struct control_message m;
	struct diag diag = DIAG_INIT;
	int r = control_decode(in, &m, &diag);
	if (r < 0)
		print_message("%s: %s\n", diag.where, diag.what);
	assert_int_equal(r, 0);
	assert_int_equal(engine_agent_message(w.e, node, &m, w.now), 0);
	control_done(&m);
	engine_tick(w.e, w.now);
}

static void sayf(const char *node, const char *fmt, ...)
{
	char text[4096];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	say(node, text);
}

static void node_up(const char *name, const char *extra)
{
	engine_agent_up(w.e, name, "127.0.0.1", "", w.now);
	sayf(name,
	     "{\"type\":\"hello\",\"node\":\"%s\",\"owner_state\":\"lent\",\"transfer_port\":7000,"
	     "\"slots\":[{\"name\":\"s0\",\"cores_milli\":1000}],\"shadow_keep\":true,"
	     "\"disk_free\":1000000000%s}",
	     name, extra);
}

static void submit(const char *id, const char *user)
{
	CLEANUP_JSON json_t *spec = json_pack("{s:s,s:[s],s:i}", "name", id, "command", "true",
					      "failure_limit", 3);
	const struct rest_submit s = { .spec = spec };
	struct diag diag = DIAG_INIT;
	int r = engine_submit(w.e, id, user, &s, w.now, 1, &diag);
	if (r < 0)
		print_message("%s: %s\n", diag.where, diag.what);
	assert_int_equal(r, 0);
	engine_tick(w.e, w.now);
}

static struct rest_job job(const char *id)
{
	struct rest_job j;
	assert_true(engine_job(w.e, id, &j));
	return j;
}

#define IMG_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define IMG_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static void running(const char *node, const char *id, int epoch)
{
	sayf(node, "{\"type\":\"job\",\"job\":\"%s\",\"epoch\":\"%d\",\"state\":\"running\"}", id, epoch);
}

static void status(const char *node, const char *id, int epoch, const char *state)
{
	sayf(node,
	     "{\"type\":\"status\",\"seq\":\"1\",\"owner_state\":\"lent\",\"disk_free\":\"1000000000\","
	     "\"jobs\":[{\"job\":\"%s\",\"epoch\":\"%d\",\"state\":\"%s\",\"ran_ms\":\"1000\"}]}",
	     id, epoch, state);
}

static void saved(const char *node, const char *id, int epoch, int seq, const char *image, bool final)
{
	sayf(node,
	     "{\"type\":\"saved\",\"job\":\"%s\",\"epoch\":\"%d\",\"seq\":\"%d\",\"image\":\"%s\","
	     "\"bytes\":\"1000\",\"new_bytes\":\"1000\",\"output_offset\":\"%d\",\"final\":%s}",
	     id, epoch, seq, image, seq * 10, final ? "true" : "false");
}

static void received(const char *node, const char *id, int epoch, int seq, const char *image)
{
	sayf(node,
	     "{\"type\":\"received\",\"job\":\"%s\",\"epoch\":\"%d\",\"seq\":\"%d\",\"image\":\"%s\"}", id,
	     epoch, seq, image);
}

static void ended(const char *node, const char *id, int epoch, const char *end, int exit_status)
{
	sayf(node,
	     "{\"type\":\"job\",\"job\":\"%s\",\"epoch\":\"%d\",\"state\":\"ended\",\"end\":\"%s\","
	     "\"status\":%d}",
	     id, epoch, end, exit_status);
}

static void notice(const char *node, const char *id, int epoch, int remaining_ms)
{
	sayf(node,
	     "{\"type\":\"owner\",\"state\":\"notice\",\"mode\":\"notice\",\"notice_id\":\"n1\","
	     "\"remaining_ms\":\"%d\",\"jobs\":[{\"job\":\"%s\",\"epoch\":\"%d\",\"state\":\"noticed\","
	     "\"unsaved_ms\":\"500\"}]}",
	     remaining_ms, id, epoch);
}

static void test_a_job_runs_and_ends_with_its_status(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	struct control_message *start = last("n1", CONTROL_START);
	assert_non_null(start);
	assert_int_equal(start->start.epoch, 1);
	assert_null(start->start.image);
	assert_int_equal(job("j1").state, REST_JOB_STARTING);
	running("n1", "j1", 1);
	assert_int_equal(job("j1").state, REST_JOB_RUNNING);
	ended("n1", "j1", 1, "done", 7);
	assert_int_equal(job("j1").state, REST_JOB_DONE);
	assert_int_equal(job("j1").exit_status, 7);
	assert_non_null(last("n1", CONTROL_STOP)); /* the agent may forget it */
}

static void output(const char *node, const char *id, int epoch, int offset, const char *base64)
{
	sayf(node, "{\"type\":\"output\",\"job\":\"%s\",\"epoch\":\"%d\",\"offset\":\"%d\",\"data\":\"%s\"}", id,
	     epoch, offset, base64);
}

/* What the coordinator had not got of the output came with the image, and its holder tells. */
static void test_the_end_of_the_output_comes_with_the_image(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	node_up("n3", "");
	running("n1", "j1", 1);
	output("n1", "j1", 1, 0, "YWJj");
	assert_int_equal(w.stored, 3);
	notice("n1", "j1", 1, 10000);
	struct control_message *move = last("n1", CONTROL_MOVE);
	assert_non_null(move);
	const char *home = strcmp(move->move.to.node, "n2") == 0 ? "n2" : "n3";
	const char *stranger = strcmp(home, "n2") == 0 ? "n3" : "n2";
	saved("n1", "j1", 1, 1, IMG_A, true);
	output(stranger, "j1", 1, 3, "ZGVm");
	assert_int_equal(w.stored, 3); /* nobody sent it anything */
	drop_sent();
	output(home, "j1", 1, 3, "ZGVm");
	assert_int_equal(w.stored, 6);
	assert_null(last(home, CONTROL_OUTPUT_ACK));
	received(home, "j1", 1, 1, IMG_A);
	ended("n1", "j1", 1, "reclaimed", 0);
	assert_int_equal(last(home, CONTROL_START)->start.epoch, 2);
	output(home, "j1", 1, 6, "Z2hp"); /* a new connection: it says so again, late */
	assert_int_equal(w.stored, 9);
	output(stranger, "j1", 1, 9, "amts");
	assert_int_equal(w.stored, 9);
}

static void test_a_reclaim_moves_the_job_with_its_image(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	running("n1", "j1", 1);
	drop_sent();
	notice("n1", "j1", 1, 10000);
	struct control_message *move = last("n1", CONTROL_MOVE);
	assert_non_null(move);
	assert_string_equal(move->move.to.node, "n2");
	assert_true(move->move.floor_bps > 0);
	assert_int_equal(job("j1").state, REST_JOB_NOTICED);
	saved("n1", "j1", 1, 1, IMG_A, true);
	received("n2", "j1", 1, 1, IMG_A);
	assert_string_equal(job("j1").durable, IMG_A);
	assert_non_null(last("n1", CONTROL_DURABLE));
	assert_null(last("n2", CONTROL_START)); /* the old incarnation has not ended yet */
	ended("n1", "j1", 1, "reclaimed", 0);
	struct control_message *start = last("n2", CONTROL_START);
	assert_non_null(start);
	assert_int_equal(start->start.epoch, 2);
	assert_string_equal(start->start.image, IMG_A);
	pass(200);
	running("n2", "j1", 2);
	assert_int_equal(job("j1").failures, 0);
	assert_int_equal(job("j1").reclaims, 1);
	assert_int_equal(job("j1").moves_count, 2);
	assert_int_equal(job("j1").moves[1].downtime_ms, 200);
	assert_string_equal(job("j1").moves[1].cause, "reclaim");
}

static void test_two_leave_together_for_two_machines(void **state)
{
	node_up("n1", ",\"room\":\"a\",\"window_ms\":\"10000\",\"slots\":[{\"name\":\"s0\",\"cores_milli\":1000},"
		      "{\"name\":\"s1\",\"cores_milli\":1000}]");
	submit("j1", "ann");
	submit("j2", "bob");
	running("n1", "j1", 1);
	running("n1", "j2", 1);
	node_up("n2", ",\"room\":\"a\",\"window_ms\":\"10000\"");
	node_up("n3", ",\"room\":\"b\",\"window_ms\":\"10000\"");
	drop_sent();
	sayf("n1",
	     "{\"type\":\"owner\",\"state\":\"notice\",\"mode\":\"notice\",\"notice_id\":\"n1\","
	     "\"remaining_ms\":\"10000\",\"jobs\":["
	     "{\"job\":\"j1\",\"epoch\":\"1\",\"state\":\"noticed\",\"unsaved_ms\":\"500\"},"
	     "{\"job\":\"j2\",\"epoch\":\"1\",\"state\":\"noticed\",\"unsaved_ms\":\"9000\"}]}");
	const char *first = NULL, *second = NULL;
	for (size_t i = 0; i < w.sent.count; i++) {
		if (w.sent.data[i].m.type != CONTROL_MOVE)
			continue;
		*(strcmp(w.sent.data[i].m.move.job, "j1") == 0 ? &first : &second) =
			w.sent.data[i].m.move.to.node;
	}
	assert_non_null(first);
	assert_non_null(second);
	assert_string_not_equal(first, second);
	/* The room that is leaving is the worse place: the one with more to lose avoids it. */
	assert_string_equal(second, "n3");
}

/* A copy that has not arrived when the next one is due goes to another building. */
static void test_a_lagging_copy_goes_another_way(void **state)
{
	node_up("n1", ",\"building\":\"a\"");
	submit("j1", "ann");
	node_up("n2", ",\"building\":\"b\"");
	node_up("n3", ",\"building\":\"c\"");
	running("n1", "j1", 1);
	saved("n1", "j1", 1, 1, IMG_A, false);
	struct control_message *move = last("n1", CONTROL_MOVE);
	assert_non_null(move);
	char first[8];
	(void)snprintf(first, sizeof(first), "%s", move->move.to.node);
	received(first, "j1", 1, 1, IMG_A);
	pass(2500);
	status("n1", "j1", 1, "running");
	drop_sent();
	saved("n1", "j1", 1, 2, IMG_B, false); /* it kept up: the same way again */
	assert_string_equal(last("n1", CONTROL_MOVE)->move.to.node, first);
	pass(2500);
	status("n1", "j1", 1, "running");
	drop_sent();
	saved("n1", "j1", 1, 3, IMG_A, false); /* it did not */
	assert_string_not_equal(last("n1", CONTROL_MOVE)->move.to.node, first);
}

static void test_a_failed_restore_is_tried_elsewhere_from_the_same_image(void **state)
{
	node_up("n1", ",\"shadow_owned\":true");
	submit("j1", "ann");
	running("n1", "j1", 1);
	notice("n1", "j1", 1, 10000);
	saved("n1", "j1", 1, 1, IMG_A, true); /* saved only: no other machine has it */
	ended("n1", "j1", 1, "reclaimed", 0);
	node_up("n2", "");
	assert_string_equal(last("n2", CONTROL_START)->start.image, IMG_A);
	node_up("n3", "");
	drop_sent();
	ended("n2", "j1", 2, "not_started", 0);
	pass(3000);
	struct control_message *start = last("n3", CONTROL_START);
	assert_non_null(start);
	assert_string_equal(start->start.image, IMG_A);
	assert_int_equal(job("j1").failures, 0);
}

static void test_an_old_epoch_commits_nothing(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	running("n1", "j1", 1);
	ended("n1", "j1", 1, "shim_lost", 0);
	running("n1", "j1", 2);
	drop_sent();
	received("n2", "j1", 1, 9, IMG_B);
	assert_null(job("j1").durable);
	struct control_message *keep = last("n2", CONTROL_KEEP);
	assert_non_null(keep);
	assert_int_equal(keep->keep.epoch, 2); /* the fence it carries */
	status("n2", "j1", 1, "running"); /* an incarnation that is over asks for a lease */
	assert_int_equal(last("n2", CONTROL_LEASE)->lease.leases[0].remaining_ms, 0);
}

static void test_no_next_epoch_before_the_lease_is_over(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	running("n1", "j1", 1);
	status("n1", "j1", 1, "running");
	engine_agent_down(w.e, "n1", w.now);
	drop_sent();
	pass(3400); /* lease 3000 + margin 500 */
	assert_null(last("n2", CONTROL_START));
	assert_int_equal(job("j1").epoch, 1);
	pass(200);
	assert_non_null(last("n2", CONTROL_START));
	assert_int_equal(job("j1").epoch, 2);
	assert_int_equal(job("j1").failures, 0);
}

static void test_a_restarted_coordinator_waits_a_lease_or_adopts(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	running("n1", "j1", 1);
	engine_close(w.e);
	assert_int_equal(engine_open(&config, &ops, NULL, w.now, &w.e), 0);
	struct diag diag = DIAG_INIT;
	assert_int_equal(engine_load(w.e, "j1", json_object_get(w.records, "j1"),
				     (uint64_t)json_integer_value(json_object_get(w.revisions, "j1")), &diag),
			 0);
	node_up("n2", "");
	drop_sent();
	pass(3000);
	assert_null(last("n2", CONTROL_START));
	node_up("n1", ",\"jobs\":[{\"job\":\"j1\",\"epoch\":\"1\",\"state\":\"running\"}]");
	status("n1", "j1", 1, "running");
	pass(2000);
	assert_null(last("n2", CONTROL_START));
	assert_int_equal(job("j1").epoch, 1);
	assert_true(last("n1", CONTROL_LEASE)->lease.leases[0].remaining_ms > 0);
}

static void restart(void)
{
	struct diag diag = DIAG_INIT;
	engine_close(w.e);
	assert_int_equal(engine_open(&config, &ops, NULL, w.now, &w.e), 0);
	assert_int_equal(engine_load(w.e, "j1", json_object_get(w.records, "j1"),
				     (uint64_t)json_integer_value(json_object_get(w.revisions, "j1")), &diag),
			 0);
	drop_sent();
}

/* The coordinator dies between the end of an incarnation and the record of its last image. */
static void test_a_restart_in_mid_move_goes_on(void **state)
{
	for (int arrives = 0; arrives < 2; arrives++) {
		node_up("n1", "");
		submit("j1", "ann");
		node_up("n2", "");
		running("n1", "j1", 1);
		notice("n1", "j1", 1, 10000);
		saved("n1", "j1", 1, 1, IMG_A, true);
		ended("n1", "j1", 1, "reclaimed", 0);
		assert_int_equal(job("j1").state, REST_JOB_MOVING);
		restart();
		node_up("n2", arrives ? ",\"images\":[{\"job\":\"j1\",\"epoch\":\"1\",\"seq\":\"1\",\"image\":\""
					IMG_A "\",\"bytes\":\"5\"}]" : "");
		pass(arrives ? 100 : 4000);
		struct control_message *start = last("n2", CONTROL_START);
		assert_non_null(start);
		assert_int_equal(start->start.epoch, 2);
		if (arrives)
			assert_string_equal(start->start.image, IMG_A);
		teardown(NULL);
		setup(NULL);
	}
}

static void test_reclaims_are_no_failures(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	for (int i = 1; i <= 50; i++) {
		running("n1", "j1", i);
		ended("n1", "j1", i, "reclaimed", 0);
		pass(100);
	}
	running("n1", "j1", 51);
	ended("n1", "j1", 51, "failed", 3);
	pass(1000);
	assert_int_equal(job("j1").failures, 1);
	assert_int_equal(job("j1").epoch, 52);
	assert_false(rest_job_state_is_final(job("j1").state));
	for (int i = 52; i < 54; i++) {
		running("n1", "j1", i);
		ended("n1", "j1", i, "failed", 3);
		pass(1000);
	}
	assert_int_equal(job("j1").state, REST_JOB_FAILED);
	assert_int_equal(job("j1").exit_status, 3);
}

static void test_a_failed_start_goes_elsewhere(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	drop_sent();
	ended("n1", "j1", 1, "not_started", 0);
	assert_non_null(last("n2", CONTROL_START));
	assert_int_equal(job("j1").failures, 0);
}

static void test_the_user_who_had_least_goes_first(void **state)
{
	node_up("n1", "");
	submit("a1", "ann");
	submit("a2", "ann");
	submit("b1", "bob");
	running("n1", "a1", 1);
	status("n1", "a1", 1, "running");
	ended("n1", "a1", 1, "done", 0);
	assert_int_equal(job("b1").state, REST_JOB_STARTING);
	assert_int_equal(job("a2").state, REST_JOB_QUEUED);
}

static void test_a_cancelled_reclaim_goes_on_in_place(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	running("n1", "j1", 1);
	notice("n1", "j1", 1, 10000);
	say("n1", "{\"type\":\"owner\",\"state\":\"lent\",\"cancelled\":true}");
	assert_int_equal(job("j1").state, REST_JOB_RUNNING);
	assert_int_equal(job("j1").epoch, 1);
}

static void test_no_destination_keeps_the_image_where_it_is(void **state)
{
	node_up("n1", ",\"shadow_owned\":true");
	submit("j1", "ann");
	running("n1", "j1", 1);
	drop_sent();
	notice("n1", "j1", 1, 5000);
	assert_null(last("n1", CONTROL_MOVE)->move.to.node);
	saved("n1", "j1", 1, 1, IMG_A, true);
	ended("n1", "j1", 1, "reclaimed", 0);
	assert_int_equal(job("j1").state, REST_JOB_QUEUED);
	say("n1", "{\"type\":\"owner\",\"state\":\"owned\"}");
	node_up("n2", "");
	struct control_message *start = last("n2", CONTROL_START);
	assert_non_null(start);
	assert_string_equal(start->start.image, IMG_A);
	assert_string_equal(start->start.holders[0].node, "n1");
}

static void test_a_move_that_fails_is_tried_elsewhere(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	node_up("n3", "");
	running("n1", "j1", 1);
	notice("n1", "j1", 1, 10000);
	char first[16];
	snprintf(first, sizeof(first), "%s", last("n1", CONTROL_MOVE)->move.to.node);
	saved("n1", "j1", 1, 1, IMG_A, true);
	sayf(first, "{\"type\":\"owner\",\"state\":\"notice\",\"mode\":\"notice\",\"notice_id\":\"x\","
		    "\"remaining_ms\":\"9000\"}");
	drop_sent();
	sayf("n1", "{\"type\":\"transfer\",\"job\":\"j1\",\"epoch\":\"1\",\"to\":\"%s\",\"state\":\"failed\","
		   "\"code\":\"link\"}", first);
	assert_non_null(last("n1", CONTROL_MOVE));
	assert_string_not_equal(last("n1", CONTROL_MOVE)->move.to.node, first);
}

static void test_images_received_while_away_become_durable(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	running("n1", "j1", 1);
	node_up("n2", ",\"images\":[{\"job\":\"j1\",\"epoch\":\"1\",\"seq\":\"4\",\"image\":\"" IMG_B
		      "\",\"bytes\":\"5\"}]");
	assert_string_equal(job("j1").durable, IMG_B);
}

static void test_nothing_is_said_that_is_not_saved(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	node_up("n2", "");
	running("n1", "j1", 1);
	saved("n1", "j1", 1, 1, IMG_A, false);
	drop_sent();
	w.save_error = -EIO;
	received("n2", "j1", 1, 1, IMG_A);
	assert_null(job("j1").durable);
	assert_null(last("n1", CONTROL_DURABLE));
	ended("n1", "j1", 1, "reclaimed", 0);
	assert_null(last("n1", CONTROL_STOP));
	w.save_error = 0;
	pass(1000);
	assert_int_equal(job("j1").epoch, 2);
}

static void test_paused_and_foreign_machines_get_nothing(void **state)
{
	node_up("n1", ",\"paused\":true");
	node_up("n2", ",\"users\":[\"bob\"]");
	submit("j1", "ann");
	assert_int_equal(job("j1").state, REST_JOB_QUEUED);
	say("n1", "{\"type\":\"owner\",\"state\":\"lent\",\"paused\":false}");
	assert_int_equal(job("j1").state, REST_JOB_STARTING);
	assert_string_equal(job("j1").node, "n1");
}

static void test_groups_are_admitted(void **state)
{
	node_up("n1", ",\"users\":[\"cid\"],\"groups\":[\"chemistry\",\"physics\"],\"deny\":[\"dan\"]");
	submit("j1", "bob");
	assert_int_equal(job("j1").state, REST_JOB_QUEUED);
	submit("j2", "ann");
	assert_int_equal(job("j2").state, REST_JOB_STARTING);
	node_up("n2", ",\"groups\":[\"physics\"],\"deny\":[\"ann\"]");
	submit("j3", "ann");
	assert_int_equal(job("j3").state, REST_JOB_QUEUED);
}

static void test_inputs_that_never_come(void **state)
{
	CLEANUP_JSON json_t *spec = json_pack("{s:s,s:[s]}", "name", "j1", "command", "true");
	const struct rest_submit s = { .spec = spec, .inputs = true };
	struct diag diag = DIAG_INIT;
	assert_int_equal(engine_submit(w.e, "j1", "ann", &s, w.now, 1000, &diag), 0);
	submit("j2", "ann");
	engine_expire_staging(w.e, 500, w.now, 1499);
	assert_int_equal(job("j1").state, REST_JOB_STAGING);
	engine_expire_staging(w.e, 500, w.now, 1500);
	assert_int_equal(job("j1").state, REST_JOB_CANCELLED);
	assert_int_equal(job("j2").state, REST_JOB_QUEUED);
}

static void test_jobs_long_over_are_forgotten(void **state)
{
	node_up("n1", "");
	submit("j1", "ann");
	running("n1", "j1", 1);
	ended("n1", "j1", 1, "done", 0);
	submit("j2", "ann");
	uint64_t end = job("j1").ended_ms;
	assert_true(end > 0);
	assert_int_equal(engine_forget(w.e, 1000, end + 999, 10), 0);
	w.save_error = -EIO;
	assert_int_equal(engine_forget(w.e, 1000, end + 1000, 10), 0);
	w.save_error = 0;
	assert_int_equal(job("j1").state, REST_JOB_DONE);
	assert_int_equal(engine_forget(w.e, 1000, end + 1000, 0), 0);
	assert_int_equal(engine_forget(w.e, 1000, end + 1000, 10), 1);
	struct rest_job gone;
	assert_false(engine_job(w.e, "j1", &gone));
	assert_null(json_object_get(w.records, "j1"));
	assert_true(job("j2").state < REST_JOB_DONE); /* live ones stay, however old */
	assert_int_equal(engine_forget(w.e, 0, UINT64_MAX, 10), 0);
	/* An agent that still has its image may let go of it. */
	drop_sent();
	engine_agent_down(w.e, "n1", w.now);
	node_up("n1", ",\"images\":[{\"job\":\"j1\",\"epoch\":\"1\",\"seq\":\"1\",\"image\":\"" IMG_A "\"}]");
	struct control_message *keep = last("n1", CONTROL_KEEP);
	assert_non_null(keep);
	assert_true(keep->keep.forget);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* ---- gangs ---- */

#define IMG_C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
#define IMG_D "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"

static void gang_node(const char *name)
{
	node_up(name, ",\"gang_port\":24000");
}

static int submit_gang(const char *id, int ranks, const char *driver)
{
	CLEANUP_JSON json_t *spec =
		json_pack("{s:s,s:[s],s:i,s:{s:i},s:{s:s}}", "name", id, "command", "true", "failure_limit", 2,
			  "slots", "ranks", ranks, "checkpoint", "driver", driver);
	const struct rest_submit s = { .spec = spec };
	struct diag diag = DIAG_INIT;
	int r = engine_submit(w.e, id, "u", &s, w.now, 1, &diag);
	engine_tick(w.e, w.now);
	return r;
}

static void saved_as(const char *node, const char *id, int epoch, int seq, const char *image,
		     const char *commit, bool final)
{
	sayf(node,
	     "{\"type\":\"saved\",\"job\":\"%s\",\"epoch\":\"%d\",\"seq\":\"%d\",\"image\":\"%s\","
	     "\"bytes\":\"1000\",\"commit\":\"%s\",\"final\":%s}",
	     id, epoch, seq, image, commit, final ? "true" : "false");
}

/* Which of two nodes has that rank; gang_node() made them n1, n2, ... */
static const char *at(const char *id)
{
	static char names[4][16];
	static unsigned next;
	char *name = names[next++ % 4];
	snprintf(name, sizeof(names[0]), "%s", job(id).node);
	return name;
}

static void test_a_gang_starts_whole_or_not_at_all(void **state)
{
	gang_node("n1");
	node_up("n2", ""); /* has no networks for ranks */
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	assert_null(last("n1", CONTROL_START));
	assert_string_equal(job("g").reason, "waits for 2 machines at once");
	gang_node("n3");
	pass(10);
	struct control_message *a = last("n1", CONTROL_START), *b = last("n3", CONTROL_START);
	assert_non_null(a);
	assert_non_null(b);
	assert_null(last("n2", CONTROL_START));
	assert_int_equal(a->start.epoch, 1);
	assert_int_equal(b->start.epoch, 1);
	assert_int_equal(a->start.ranks, 2);
	assert_true(a->start.rank != b->start.rank);
	assert_string_equal(a->start.gang, "g");
	assert_string_equal(b->start.gang, "g");
	/* One key and one list of ranks for all. */
	assert_string_equal(a->start.gang_key, b->start.gang_key);
	assert_int_equal(strlen(a->start.gang_key), 64);
	assert_int_equal(a->start.gang_ranks_count, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(a->start.gang_ranks[i].port, b->start.gang_ranks[i].port);
		assert_in_range(a->start.gang_ranks[i].port, 24000, 24000 + CONTROL_GANG_PORTS - 1);
	}
	/* Each rank has images of its own, under a key of its own. */
	assert_string_not_equal(a->start.key, b->start.key);
	/* People mean the gang by its name. */
	assert_string_equal(engine_resolve(w.e, "g", NULL), "g");
}

static void test_a_gang_that_cannot_be_saved_together_is_refused(void **state)
{
	assert_int_equal(submit_gang("g", 2, "criu"), -EINVAL);
	assert_int_equal(submit_gang("g", CONTROL_RANKS_MAX + 1, "poll"), -EINVAL);
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
}

static void test_one_reclaim_moves_one_rank_and_restarts_all(void **state)
{
	for (int i = 1; i <= 3; i++)
		gang_node(i == 1 ? "n1" : i == 2 ? "n2" : "n3");
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	const char *n0 = at("g"), *n1 = at("g.1");
	const char *third = strcmp(n0, "n1") && strcmp(n1, "n1") ? "n1" : strcmp(n0, "n2") && strcmp(n1, "n2") ? "n2" : "n3";
	running(n0, "g", 1);
	running(n1, "g.1", 1);
	char key[65];
	snprintf(key, sizeof(key), "%s", last(n0, CONTROL_START)->start.gang_key);
	drop_sent();
	notice(n0, "g", 1, 5000);
	struct control_message *m = last(n0, CONTROL_MOVE);
	assert_non_null(m);
	assert_string_equal(m->move.to.node, third); /* not where another rank is */
	/* The other rank hears of it, with the same deadline; nothing of it is moved. */
	m = last(n1, CONTROL_NOTICE);
	assert_non_null(m);
	assert_string_equal(m->notice.job, "g.1");
	assert_int_equal(m->notice.remaining_ms, 5000);
	assert_null(last(n1, CONTROL_MOVE));
	saved_as(n0, "g", 1, 1, IMG_A, "step-5", true);
	/* One that polls is made to stand still after its commit: that is how its image is the last. */
	saved_as(n1, "g.1", 1, 1, IMG_B, "step-5", false);
	sayf(n1, "{\"type\":\"job\",\"job\":\"g.1\",\"epoch\":\"1\",\"state\":\"moving\"}");
	assert_null(last(n1, CONTROL_STOP)); /* while the owner may still change his mind */
	received(third, "g", 1, 1, IMG_A);
	ended(n0, "g", 1, "reclaimed", 0);
	m = last(n1, CONTROL_STOP);
	assert_non_null(m);
	assert_int_equal(m->stop.end, CONTROL_END_RECLAIMED);
	assert_null(last(third, CONTROL_START)); /* not before all have ended */
	drop_sent();
	ended(n1, "g.1", 1, "reclaimed", 0);
	pass(10);
	m = last(third, CONTROL_START);
	assert_non_null(m);
	assert_string_equal(m->start.job, "g");
	assert_int_equal(m->start.epoch, 2);
	assert_string_equal(m->start.image, IMG_A);
	assert_string_not_equal(m->start.gang_key, key); /* a key serves one start */
	m = last(n1, CONTROL_START);
	assert_non_null(m);
	assert_string_equal(m->start.job, "g.1");
	assert_int_equal(m->start.epoch, 2);
	assert_string_equal(m->start.image, IMG_B);
	assert_int_equal(job("g").failures, 0);
}

static void test_ranks_start_from_the_same_commit_only(void **state)
{
	gang_node("n1");
	gang_node("n2");
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	const char *n0 = at("g"), *n1 = at("g.1");
	running(n0, "g", 1);
	running(n1, "g.1", 1);
	/* Step 5 is durable for both; step 6 for rank 0 alone, step 7 saved by rank 1 alone. */
	saved_as(n0, "g", 1, 1, IMG_A, "step-5", false);
	received(n1, "g", 1, 1, IMG_A);
	saved_as(n1, "g.1", 1, 1, IMG_B, "step-5", false);
	received(n0, "g.1", 1, 1, IMG_B);
	saved_as(n0, "g", 1, 2, IMG_C, "step-6", false);
	received(n1, "g", 1, 2, IMG_C);
	saved_as(n1, "g.1", 1, 2, IMG_D, "step-7", false);
	drop_sent();
	ended(n0, "g", 1, "shim_lost", 0);
	struct control_message *m = last(n1, CONTROL_STOP);
	assert_non_null(m); /* it cannot go on alone */
	assert_int_equal(m->stop.end, CONTROL_END_KILLED);
	ended(n1, "g.1", 1, "killed", 0);
	pass(10);
	m = last(at("g"), CONTROL_START);
	assert_non_null(m);
	assert_int_equal(m->start.epoch, 2);
	assert_string_equal(last(at("g"), CONTROL_START)->start.image, IMG_A);
	assert_string_equal(last(at("g.1"), CONTROL_START)->start.image, IMG_B);
	assert_int_equal(job("g").failures, 0);
}

static void test_a_failure_counts_once_and_only_if_nothing_else_happened(void **state)
{
	gang_node("n1");
	gang_node("n2");
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	const char *n0 = at("g"), *n1 = at("g.1");
	running(n0, "g", 1);
	running(n1, "g.1", 1);
	/* Rank 1 fails because rank 0 vanished: no failure. */
	ended(n1, "g.1", 1, "failed", 1);
	ended(n0, "g", 1, "reclaimed", 0);
	pass(3000);
	assert_int_equal(job("g").failures, 0);
	assert_int_equal(job("g").epoch, 2);
	n0 = at("g"), n1 = at("g.1");
	running(n0, "g", 2);
	running(n1, "g.1", 2);
	for (int epoch = 2; epoch <= 3; epoch++) {
		ended(n0, "g", epoch, "failed", 3);
		ended(n1, "g.1", epoch, "killed", 0);
		pass(3000);
		assert_int_equal(job("g").failures, epoch - 1);
		if (epoch == 2) {
			n0 = at("g"), n1 = at("g.1");
			running(n0, "g", 3);
			running(n1, "g.1", 3);
		}
	}
	assert_int_equal(job("g").state, REST_JOB_FAILED);
	assert_int_equal(job("g.1").state, REST_JOB_FAILED);
	assert_int_equal(job("g").exit_status, 3);
}

static void test_a_gang_is_done_when_all_ranks_are(void **state)
{
	gang_node("n1");
	gang_node("n2");
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	const char *n0 = at("g"), *n1 = at("g.1");
	running(n0, "g", 1);
	running(n1, "g.1", 1);
	drop_sent();
	ended(n0, "g", 1, "done", 0);
	pass(1000);
	assert_int_equal(job("g").state, REST_JOB_RUNNING);
	assert_null(last(n1, CONTROL_STOP));
	ended(n1, "g.1", 1, "done", 0);
	pass(10);
	assert_int_equal(job("g").state, REST_JOB_DONE);
	assert_int_equal(job("g.1").state, REST_JOB_DONE);
}

static void test_a_cancelled_reclaim_lets_all_ranks_go_on(void **state)
{
	gang_node("n1");
	gang_node("n2");
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	const char *n0 = at("g"), *n1 = at("g.1");
	running(n0, "g", 1);
	running(n1, "g.1", 1);
	notice(n0, "g", 1, 5000);
	assert_int_equal(job("g.1").state, REST_JOB_NOTICED);
	drop_sent();
	say(n0, "{\"type\":\"owner\",\"state\":\"lent\",\"cancelled\":true}");
	struct control_message *m = last(n1, CONTROL_NOTICE);
	assert_non_null(m);
	assert_true(m->notice.cancelled);
	assert_int_equal(job("g").state, REST_JOB_RUNNING);
	assert_int_equal(job("g.1").state, REST_JOB_RUNNING);
}

static void test_a_start_that_cannot_be_booked_tells_nobody(void **state)
{
	assert_int_equal(submit_gang("g", 2, "poll"), 0);
	gang_node("n1");
	w.save_error = -EIO;
	gang_node("n2");
	pass(10);
	assert_null(last("n1", CONTROL_START));
	assert_null(last("n2", CONTROL_START));
	w.save_error = 0;
	pass(2000);
	struct control_message *a = last("n1", CONTROL_START), *b = last("n2", CONTROL_START);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_equal(a->start.epoch, b->start.epoch);
	assert_int_equal(engine_cancel(w.e, "g", "enough", w.now), 0);
	assert_int_equal(job("g.1").state, REST_JOB_CANCELLED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_job_runs_and_ends_with_its_status),
		TEST(test_the_end_of_the_output_comes_with_the_image),
		TEST(test_a_reclaim_moves_the_job_with_its_image),
		TEST(test_two_leave_together_for_two_machines),
		TEST(test_a_lagging_copy_goes_another_way),
		TEST(test_a_failed_restore_is_tried_elsewhere_from_the_same_image),
		TEST(test_an_old_epoch_commits_nothing),
		TEST(test_no_next_epoch_before_the_lease_is_over),
		TEST(test_a_restarted_coordinator_waits_a_lease_or_adopts),
		TEST(test_a_restart_in_mid_move_goes_on),
		TEST(test_reclaims_are_no_failures),
		TEST(test_a_failed_start_goes_elsewhere),
		TEST(test_the_user_who_had_least_goes_first),
		TEST(test_a_cancelled_reclaim_goes_on_in_place),
		TEST(test_no_destination_keeps_the_image_where_it_is),
		TEST(test_a_move_that_fails_is_tried_elsewhere),
		TEST(test_images_received_while_away_become_durable),
		TEST(test_nothing_is_said_that_is_not_saved),
		TEST(test_paused_and_foreign_machines_get_nothing),
		TEST(test_a_gang_starts_whole_or_not_at_all),
		TEST(test_a_gang_that_cannot_be_saved_together_is_refused),
		TEST(test_one_reclaim_moves_one_rank_and_restarts_all),
		TEST(test_ranks_start_from_the_same_commit_only),
		TEST(test_a_failure_counts_once_and_only_if_nothing_else_happened),
		TEST(test_a_gang_is_done_when_all_ranks_are),
		TEST(test_a_cancelled_reclaim_lets_all_ranks_go_on),
		TEST(test_a_start_that_cannot_be_booked_tells_nobody),
		TEST(test_groups_are_admitted),
		TEST(test_inputs_that_never_come),
		TEST(test_jobs_long_over_are_forgotten),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
