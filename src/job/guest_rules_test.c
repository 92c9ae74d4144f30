/* SPDX-License-Identifier: Apache-2.0 */
/* The pure rules about a guest: what an exit means, who is signalled, what is answered. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/clock.h"
#include "job/notice.h"
#include "job/shim_proto.h"
#include "job/signal_plan.h"
#include "job/verdict.h"

/* ---- verdict ---- */

static void test_verdict(void **state)
{
	static const struct {
		const char *name;
		struct exit_facts f;
		enum shim_end want;
	} rows[] = {
		{ "0", { .started = true }, SHIM_END_DONE },
		{ "1", { .started = true, .status = 1 }, SHIM_END_FAILED },
		{ "85", { .started = true, .status = 85 }, SHIM_END_RESTART },
		{ "crash", { .started = true, .status = 139, .signal = SIGSEGV }, SHIM_END_FAILED },
		{ "requeue", { .started = true, .status = 255, .requeue_asked = true }, SHIM_END_RESTART },
		{ "notice, 1 after a save", { .started = true, .status = 1, .notice = true,
					      .committed_since_notice = true, .checkpoint_used = true },
		  SHIM_END_RECLAIMED },
		{ "notice, 1 without a save", { .started = true, .status = 1, .notice = true }, SHIM_END_RECLAIMED },
		{ "notice, 0, checkpoints", { .started = true, .notice = true, .checkpoint_used = true },
		  SHIM_END_RECLAIMED },
		{ "notice, 0, no checkpoints", { .started = true, .notice = true }, SHIM_END_DONE },
		{ "notice, 0, requeue", { .started = true, .notice = true, .requeue_asked = true },
		  SHIM_END_RECLAIMED },
		{ "notice, 0, means done", { .started = true, .notice = true, .checkpoint_used = true,
					     .done_on_notice_exit = true }, SHIM_END_DONE },
		{ "killed at T", { .started = true, .notice = true, .signal = SIGKILL, .status = 137,
				   .stopped_for = SHIM_END_RECLAIMED }, SHIM_END_RECLAIMED },
		{ "lease", { .started = true, .signal = SIGKILL, .status = 137, .stopped_for = SHIM_END_LEASE },
		  SHIM_END_LEASE },
		{ "cancelled", { .started = true, .signal = SIGKILL, .status = 137,
				 .stopped_for = SHIM_END_KILLED }, SHIM_END_KILLED },
		{ "never began", { .status = 127 }, SHIM_END_NOT_STARTED },
		{ "reclaimed before it began", { .stopped_for = SHIM_END_RECLAIMED, .notice = true },
		  SHIM_END_RECLAIMED },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char why[300];
		enum shim_end got = exit_verdict(&rows[i].f, why, sizeof(why));

		if (got != rows[i].want)
			fail_msg("%s: %s (%s)", rows[i].name, shim_end_names[got], why);
		assert_true(why[0]);
	}
}

/* ---- signals ---- */

#define TERM_BIT (UINT64_C(1) << (SIGTERM - 1))

static bool planned(const struct proc_list *targets, pid_t pid)
{
	for (size_t i = 0; i < targets->count; i++)
		if (targets->data[i].pid == pid)
			return true;
	return false;
}

static void test_signal_launcher(void **state)
{
	/* sh -> torchrun (idle, catches) -> trainer (works, catches) -> data loader (a fork, idle)
	 *                                                            -> tar (does not catch) */
	struct proc_info p[] = {
		{ .pid = 2, .ppid = 1, .command_hash = 1 },
		{ .pid = 3, .ppid = 2, .command_hash = 2, .caught = TERM_BIT, .cpu_ticks = 100 },
		{ .pid = 4, .ppid = 3, .command_hash = 3, .caught = TERM_BIT, .cpu_ticks = 5000 },
		{ .pid = 5, .ppid = 4, .command_hash = 3, .caught = TERM_BIT, .cpu_ticks = 10 },
		{ .pid = 6, .ppid = 4, .command_hash = 4 },
	};
	struct proc_list procs = { p, ARRAY_SIZE(p), 0 }, t = VEC_INIT;
	struct job_signal sig = { .signo = SIGTERM };

	assert_int_equal(signal_plan(&procs, 2, &sig, true, SIGNAL_FIRST, &t), 0);
	assert_false(planned(&t, 2)); /* does not catch it: would only die */
	assert_false(planned(&t, 3)); /* supervisor */
	assert_true(planned(&t, 4));
	assert_false(planned(&t, 6));
	VEC_DONE(&t);
	assert_int_equal(signal_plan(&procs, 2, &sig, true, SIGNAL_LAST, &t), 0);
	assert_int_equal(t.count, 5);
	VEC_DONE(&t);
	sig.batch_only = true;
	assert_int_equal(signal_plan(&procs, 2, &sig, true, SIGNAL_FIRST, &t), 0);
	assert_int_equal(t.count, 1);
	assert_true(planned(&t, 2));
	VEC_DONE(&t);
}

static void test_signal_trainer_with_helper(void **state)
{
	/* A trainer that works has a helper with a program of its own that catches it too. */
	struct proc_info p[] = {
		{ .pid = 2, .ppid = 1, .command_hash = 1, .caught = TERM_BIT, .cpu_ticks = 9000 },
		{ .pid = 3, .ppid = 2, .command_hash = 2, .caught = TERM_BIT, .cpu_ticks = 50 },
	};
	struct proc_list procs = { p, ARRAY_SIZE(p), 0 }, t = VEC_INIT;
	struct job_signal sig = { .signo = SIGTERM };

	assert_int_equal(signal_plan(&procs, 2, &sig, false, SIGNAL_FIRST, &t), 0);
	assert_true(planned(&t, 2));
	assert_true(planned(&t, 3));
	VEC_DONE(&t);
}

static void test_signal_nobody_catches(void **state)
{
	struct proc_info p[] = { { .pid = 2, .ppid = 1 }, { .pid = 3, .ppid = 2 } };
	struct proc_list procs = { p, ARRAY_SIZE(p), 0 }, t = VEC_INIT;
	struct job_signal sig = { .signo = SIGTERM };

	assert_int_equal(signal_plan(&procs, 2, &sig, false, SIGNAL_FIRST, &t), 0);
	assert_int_equal(t.count, 0);
	assert_int_equal(signal_plan(&procs, 2, &sig, true, SIGNAL_FIRST, &t), 0);
	assert_int_equal(t.count, 2);
	VEC_DONE(&t);
}

/* ---- notice and its HTTP paths ---- */

#define WALL UINT64_C(1772352000000) /* 2026-03-01T08:00:00Z */

static void test_document(void **state)
{
	struct notice n = { .kind = NOTICE_RECLAIM, .id = "r1", .epoch = 7, .window_ns = 60 * NS_PER_S,
			    .deadline_ns = 1030 * NS_PER_S };
	json_t *doc = notice_document(&n, 1000 * NS_PER_S, WALL);

	assert_string_equal(json_string_value(json_object_get(doc, "action")), "terminate");
	assert_string_equal(json_string_value(json_object_get(doc, "time")), "2026-03-01T08:00:30Z");
	assert_true(json_number_value(json_object_get(doc, "remaining_s")) == 30.0);
	assert_true(json_number_value(json_object_get(doc, "window_s")) == 60.0);
	assert_int_equal(json_integer_value(json_object_get(doc, "epoch")), 7);
	assert_string_equal(json_string_value(json_object_get(doc, "id")), "r1");
	json_decref(doc);
	n.kind = NOTICE_CANCELLED;
	doc = notice_document(&n, 0, WALL);
	assert_string_equal(json_string_value(json_object_get(doc, "action")), "none");
	json_decref(doc);
}

struct answer {
	int used, status;
	char body[1024];
	struct metadata_effect effect;
};

static struct answer ask(const struct notice *n, const char *request)
{
	struct strbuf out = STRBUF_INIT;
	struct answer a = { 0 };

	a.used = metadata_answer(n, false, 1000 * NS_PER_S, WALL, request, strlen(request), &out, &a.effect);
	if (out.len) {
		const char *body = strstr(out.data, "\r\n\r\n");

		(void)sscanf(out.data, "HTTP/1.1 %d", &a.status);
		(void)snprintf(a.body, sizeof(a.body), "%s", body ? body + 4 : "");
	}
	strbuf_done(&out);
	return a;
}

static void test_metadata(void **state)
{
	struct notice none = { .kind = NOTICE_NONE };
	struct notice n = { .kind = NOTICE_RECLAIM, .id = "r1", .window_ns = NS_PER_S,
			    .deadline_ns = 1030 * NS_PER_S };
	struct answer a;

	a = ask(&none, "GET /latest/meta-data/spot/instance-action HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_int_equal(a.status, 404);
	a = ask(&n, "GET /latest/meta-data/spot/instance-action HTTP/1.1\r\nHost: x\r\n\r\n");
	assert_int_equal(a.status, 200);
	assert_non_null(strstr(a.body, "\"action\":\"terminate\""));
	a = ask(&n, "GET /latest/meta-data/spot/termination-time HTTP/1.1\r\n\r\n");
	assert_string_equal(a.body, "2026-03-01T08:00:30Z");
	a = ask(&n, "PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n");
	assert_int_equal(a.status, 200);
	a = ask(&n, "GET /computeMetadata/v1/instance/preempted HTTP/1.1\r\n\r\n");
	assert_int_equal(a.status, 403);
	a = ask(&n, "GET /computeMetadata/v1/instance/preempted HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n");
	assert_string_equal(a.body, "TRUE");
	a = ask(&none, "GET /computeMetadata/v1/instance/preempted?wait_for_change=true HTTP/1.1\r\n"
		       "Metadata-Flavor: Google\r\n\r\n");
	assert_true(a.effect.wait);
	assert_int_equal(a.status, 0);
	a = ask(&n, "GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nMetadata: true\r\n\r\n");
	assert_non_null(strstr(a.body, "\"EventType\":\"Preempt\""));
	a = ask(&n, "POST /metadata/scheduledevents HTTP/1.1\r\nContent-Length: 37\r\n\r\n"
		    "{\"StartRequests\": [{\"EventId\": \"1\"}]}");
	assert_true(a.effect.ack);
	assert_int_equal(a.status, 200);
	a = ask(&n, "GET /latest/meta-data/spot/instance-action HTT");
	assert_int_equal(a.used, 0);
	a = ask(&n, "POST /metadata/scheduledevents HTTP/1.1\r\nContent-Length: 37\r\n\r\n{\"Sta");
	assert_int_equal(a.used, 0);
	a = ask(&n, "nonsense\r\n\r\n");
	assert_int_equal(a.used, -EPROTO);
	assert_int_equal(a.status, 400);
	a = ask(&n, "POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n");
	assert_int_equal(a.used, -EMSGSIZE);
	a = ask(&n, "DELETE / HTTP/1.1\r\n\r\n");
	assert_int_equal(a.status, 405);
}

static void test_guest_request(void **state)
{
	struct guest_request q;
	static const char *const bad[] = { "", "{", "[]", "{}", "{\"op\":\"explode\"}", "{\"op\":1}",
					   "{\"op\":\"commit\",\"step\":-1}", "{\"op\":\"ack\",\"op\":\"ack\"}" };
	const char *line = "{\"op\":\"commit\",\"name\":\"step-5\",\"step\":5,\"more\":1}";

	assert_int_equal(guest_request_decode(line, strlen(line), &q, NULL), 0);
	assert_int_equal(q.op, GUEST_OP_COMMIT);
	assert_string_equal(q.name, "step-5");
	assert_int_equal(q.step, 5);
	guest_request_done(&q);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_true(guest_request_decode(bad[i], strlen(bad[i]), &q, NULL) < 0);
}

/* ---- the shim's words ---- */

static void test_proto(void **state)
{
	struct strbuf line = STRBUF_INIT;
	struct shim_command cmd = { .type = SHIM_CMD_NOTICE, .id = 9,
				    .notice = { (char *)"n", (char *)"owner", 123456789012345, 5 } }, back;
	struct shim_event event = { .type = SHIM_EVENT_EXITED }, ev;
	struct diag d = DIAG_INIT;

	assert_int_equal(shim_command_encode(&cmd, &line), 0);
	assert_int_equal(line.data[line.len - 1], '\n');
	assert_int_equal(shim_command_decode(line.data, line.len - 1, &back, &d), 0);
	assert_int_equal(back.type, SHIM_CMD_NOTICE);
	assert_int_equal(back.id, 9);
	assert_int_equal(back.notice.deadline_ns, 123456789012345);
	shim_command_done(&back);
	strbuf_clear(&line);
	event.exited = (struct shim_exited){ .end = SHIM_END_FAILED, .status = 3, .reason = (char *)"why" };
	assert_int_equal(shim_event_encode(&event, &line), 0);
	assert_int_equal(shim_event_decode(line.data, line.len - 1, &ev, &d), 0);
	assert_int_equal(ev.exited.end, SHIM_END_FAILED);
	assert_string_equal(ev.exited.reason, "why");
	shim_event_done(&ev);
	strbuf_done(&line);
}

static void test_proto_bad(void **state)
{
	static const struct {
		const char *line;
		int err;
	} rows[] = {
		{ "", -EINVAL },
		{ "{}", -EINVAL },
		{ "{\"v\":\"2\",\"type\":\"go\"}", -EPROTO },
		{ "{\"v\":\"1\",\"type\":\"dance\"}", -EPROTO },
		{ "{\"v\":\"1\",\"type\":\"none\"}", -EPROTO },
		{ "{\"v\":\"1\",\"type\":\"lease\"}", -EINVAL },
		{ "{\"v\":\"1\",\"type\":\"start\",\"job\":\"a/b\"}", -EINVAL },
		{ "{\"v\":\"1\",\"type\":\"start\",\"job\":\"j\",\"spec\":{\"command\":[\"x\"]},\"dir\":\"rel\","
		  "\"log\":\"/l\",\"state_file\":\"/s\",\"run_dir\":\"/r\"}", -EINVAL },
		{ "{\"v\":\"1\",\"type\":\"start\",\"job\":\"j\",\"spec\":{},\"dir\":\"/d\",\"log\":\"/l\","
		  "\"state_file\":\"/s\",\"run_dir\":\"/r\"}", -EINVAL },
		{ "{\"v\":\"1\",\"type\":\"start\",\"job\":\"j\",\"spec\":{\"command\":[\"x\"]},\"dir\":\"/d\","
		  "\"log\":\"/l\",\"state_file\":\"/s\",\"run_dir\":\"/r\",\"devices\":[\"/etc/shadow\"]}", -EINVAL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct shim_command cmd;
		struct diag d = DIAG_INIT;
		int r = shim_command_decode(rows[i].line, strlen(rows[i].line), &cmd, &d);

		if (r != rows[i].err || !d.what[0])
			fail_msg("%s: %d %s %s", rows[i].line, r, d.where, d.what);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verdict),
		cmocka_unit_test(test_signal_launcher),
		cmocka_unit_test(test_signal_trainer_with_helper),
		cmocka_unit_test(test_signal_nobody_catches),
		cmocka_unit_test(test_document),
		cmocka_unit_test(test_metadata),
		cmocka_unit_test(test_guest_request),
		cmocka_unit_test(test_proto),
		cmocka_unit_test(test_proto_bad),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
