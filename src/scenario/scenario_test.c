/* SPDX-License-Identifier: Apache-2.0 */
#include "scenario/scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#define CAMPUS                                                                  \
	"name: two\n"                                                           \
	"topology:\n"                                                           \
	"  core: {capacity: 1Gbit}\n"                                           \
	"  buildings: [{name: a, uplink: 200Mbit}, {name: b}]\n"                \
	"  machines:\n"                                                         \
	"    - {name: a1, building: a, link: 100Mbit}\n"                        \
	"    - {name: b1, building: b, owner: eve, terms: {window: 5s, caps: {pids: 9}}}\n" \
	"  hosts: [{name: h1, building: b}]\n"                                  \
	"terms: {window: 10s, slots: [{cores: 1}, {cores: 2}], caps: {memory: 2GiB}}\n"

static void refuses(const char *text, const char *where, const char *what)
{
	struct scenario s;
	struct diag diag = DIAG_INIT;
	char text_of[1024];

	assert_true(scenario_parse(text, strlen(text), "s.yaml", &s, &diag) < 0);
	(void)diag_format(&diag, text_of, sizeof(text_of));
	if (!strstr(text_of, where) || !strstr(text_of, what))
		fail_msg("got '%s', wanted '%s' and '%s'", text_of, where, what);
}

static void test_reads(void **state)
{
	static const char text[] = CAMPUS
		"jobs:\n"
		"  - {name: t, command: [train, --steps, \"9\"], interval: 2s, reference: true}\n"
		"events:\n"
		"  - {name: e1, at: 5s, do: back, machines: [a1], wait: durable}\n"
		"  - {after: e1, delay: 1s, do: back, mode: now, holds: t, for: 3s}\n"
		"  - {do: crash, what: coordinator, point: store.commit, nth: 2}\n"
		"  - {do: back, machines: [b1], window: 0s}\n"
		"flows: [{name: f, from: a1, to: h1, streams: 4}]\n"
		"checks: [{name: finished}, {name: ratio, min: 0.97}]\n";
	struct scenario s;
	struct diag diag = DIAG_INIT;

	if (scenario_parse(text, strlen(text), "s.yaml", &s, &diag) < 0)
		fail_msg("%s: %s", diag.where, diag.what);
	assert_true(s.topology.core_bps == 1000000000);
	assert_int_equal(s.topology.machines[1].building_index, 1);
	assert_string_equal(s.topology.machines[0].owner, "owner-a1");
	assert_string_equal(s.topology.machines[1].owner, "eve");
	assert_true(s.topology.machines[0].lend.window_ns == UINT64_C(10000000000));
	assert_true(s.topology.machines[1].lend.window_ns == UINT64_C(5000000000));
	assert_int_equal(s.topology.machines[1].lend.slots_count, 2);
	assert_string_equal(s.topology.machines[1].lend.slots[1].name, "slot1");
	assert_true(s.topology.machines[1].lend.caps.pids == 9);
	assert_true(s.topology.machines[1].lend.caps.memory == UINT64_C(2) << 30);
	assert_int_equal(s.events[0].wait, SCENARIO_WAIT_DURABLE);
	assert_int_equal(s.events[1].mode, SCENARIO_MODE_NOW);
	assert_false(s.events[1].window_set);
	assert_true(s.events[3].window_set && s.events[3].window_ns == 0);
	assert_int_equal(s.events[2].what, SCENARIO_WHAT_COORDINATOR);
	assert_int_equal(scenario_event(&s, "e1"), 0);
	assert_int_equal(scenario_host(&s, "h1"), 0);
	assert_true(scenario_machine(&s, "h1") == SCENARIO_NONE);
	assert_true(isnan(s.checks[0].min) && s.checks[1].min == 0.97 && isnan(s.checks[1].max));
	assert_int_equal(scenario_coordinator_building(&s), 0);
	scenario_done(&s);
	scenario_done(NULL);
}

static void test_refuses(void **state)
{
	refuses("name: x\n", "topology", "missing");
	refuses(CAMPUS "evnets: []\n", "s.yaml:10", "evnets");
	refuses(CAMPUS "events:\n  - {do: back, machines: [a9]}\n", "s.yaml:11: events[0]", "a9");
	refuses(CAMPUS "events:\n  - {do: back, machines: [h1]}\n", "events[0]", "h1");
	refuses(CAMPUS "events:\n  - {do: back}\n", "events[0]", "neither");
	refuses(CAMPUS "events:\n  - {do: explode, machines: [a1]}\n", "s.yaml:11", "explode");
	refuses(CAMPUS "events:\n  - {do: lend, machines: [a1], after: x}\n", "events[0]", "x");
	refuses(CAMPUS "jobs: [{name: t}]\n", "jobs[0]", "needs one of");
	refuses(CAMPUS "jobs: [{name: t, command: [x]}, {name: t, command: [x]}]\n", "jobs[1]",
		"taken");
	refuses(CAMPUS "jobs: [{name: ../t, command: [x]}]\n", "jobs[0]", "../t");
	refuses(CAMPUS "flows: [{name: f, from: a1, to: zz}]\n", "flows[0]", "zz");
	refuses(CAMPUS "flows: [{name: f, from: a1, to: h1, kind: short}]\n", "flows[0]", "sizes");
	refuses("name: x\ntopology:\n  buildings: [{name: a}]\n"
		"  machines: [{name: m, building: q}]\n",
		"machines[0]", "q");
	refuses("name: x\ntopology:\n  buildings: [{name: a}]\n"
		"  machines: [{name: m, building: a, terms: {slots: [{cores: 99999}]}}]\n",
		"s.yaml:4", "4096");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads),
		cmocka_unit_test(test_refuses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
