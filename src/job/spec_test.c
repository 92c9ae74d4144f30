/* SPDX-License-Identifier: Apache-2.0 */
#include "job/spec.h"

#include <errno.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"

static int parse(const char *text, struct job_spec *ret, struct job_warnings *warnings, struct diag *diag)
{
	return job_spec_parse(text, strlen(text), "job.sh", ret, warnings, diag);
}

static void test_yaml(void **state)
{
	struct job_spec s;
	struct diag d = DIAG_INIT;

	assert_int_equal(parse("name: demo\ncommand: [python3, train.py]\nslots: {cores: 2, memory: 4GiB, gpus: 1}\n"
			       "time_limit: 1.5h\ncheckpoint:\n  dir: out\n  driver: signal\n  save_estimate: 12s\n"
			       "signal: USR1@30\nenv: {A: x, N: 3, T: true}\nresults: [\"out/*.pt\"]\n",
			       &s, NULL, &d), 0);
	assert_string_equal(s.name, "demo");
	assert_int_equal(s.command_count, 2);
	assert_int_equal(s.slots.cores, 2);
	assert_int_equal(s.slots.memory, UINT64_C(4) << 30);
	assert_int_equal(s.time_limit_ns, 5400 * NS_PER_S);
	assert_int_equal(s.checkpoint.driver, JOB_DRIVER_SIGNAL);
	assert_int_equal(s.checkpoint.save_estimate_ns, 12 * NS_PER_S);
	assert_true(s.requeue);
	assert_int_equal(s.failure_limit, 1);
	assert_string_equal(json_string_value(json_object_get(s.env, "N")), "3");
	assert_string_equal(json_string_value(json_object_get(s.env, "T")), "true");
	job_spec_done(&s);
}

static void test_round_trip(void **state)
{
	struct job_spec a, b;
	struct diag d = DIAG_INIT;
	json_t *ja, *jb;

	assert_int_equal(parse("command: ./train --steps 3\nslots: {ranks: 2}\nsecrets: [{name: k, from: /f}]\n"
			       "network: {mode: declared, destinations: [\"10.0.0.1:80\", \"h:53/udp\"]}\n",
			       &a, NULL, &d), 0);
	assert_string_equal(a.name, "train");
	assert_int_equal(a.command_count, 3); /* sh -c TEXT */
	ja = job_spec_to_json(&a);
	assert_int_equal(job_spec_from_json(ja, &b, &d), 0);
	jb = job_spec_to_json(&b);
	assert_true(json_equal(ja, jb));
	json_decref(ja);
	json_decref(jb);
	job_spec_done(&a);
	job_spec_done(&b);
}

static void test_slurm_script(void **state)
{
	struct job_spec s;
	struct diag d = DIAG_INIT;
	struct job_warnings w = VEC_INIT;

	assert_int_equal(parse("#!/bin/bash\n"
			       "#SBATCH --job-name=lm -t 1-02:00:00 # a comment\n"
			       "#SBATCH --signal=B:USR1@90 --requeue\n"
			       "#SBATCH -c 4 --mem-per-cpu=2G --gres=gpu:a100:2\n"
			       "#SBATCH --partition=gpu\n"
			       "#SBATCH --array=0-9\n"
			       "# a remark\n"
			       "\n"
			       "srun python train.py\n"
			       "#SBATCH --mem=1\n",
			       &s, &w, &d), 0);
	assert_string_equal(s.name, "lm");
	assert_int_equal(s.time_limit_ns, 26 * 3600 * NS_PER_S);
	assert_string_equal(s.signal, "B:USR1@90");
	assert_int_equal(s.slots.cores, 4);
	assert_int_equal(s.slots.memory, UINT64_C(8) << 30);
	assert_int_equal(s.slots.gpus, 2);
	assert_string_equal(s.slots.gpu_type, "a100");
	assert_int_equal(w.count, 3);
	assert_string_equal(w.data[0].where, "job.sh:5");
	assert_non_null(strstr(w.data[0].what, "partition"));
	assert_non_null(strstr(w.data[1].what, "arrays"));
	assert_string_equal(w.data[2].where, "job.sh:10");
	assert_non_null(strstr(w.data[2].what, "after the first command"));
	VEC_DONE(&w);
	job_spec_done(&s);
}

static void test_reclaim_lines(void **state)
{
	struct job_spec s;
	struct diag d = DIAG_INIT;
	struct job_warnings w = VEC_INIT;

	assert_int_equal(parse("#!/bin/sh\n"
			       "#SBATCH --job-name=slurm --cpus-per-task=2\n"
			       "#RECLAIM name: ours\n"
			       "#RECLAIM checkpoint:\n"
			       "#RECLAIM   dir: ck\n"
			       "#RECLAIM   driver: poll\n"
			       "#RECLAIM --failure-limit=3 --memory=512M\n"
			       "true\n",
			       &s, &w, &d), 0);
	assert_string_equal(s.name, "ours"); /* wins over #SBATCH */
	assert_int_equal(s.slots.cores, 2);
	assert_string_equal(s.checkpoint.dir, "ck");
	assert_int_equal(s.checkpoint.driver, JOB_DRIVER_POLL);
	assert_int_equal(s.failure_limit, 3);
	assert_int_equal(s.slots.memory, UINT64_C(512) << 20);
	assert_int_equal(w.count, 0);
	assert_non_null(strstr(s.script, "true"));
	VEC_DONE(&w);
	job_spec_done(&s);
}

/* Each names its line and its value. */
static void test_bad(void **state)
{
	static const struct {
		const char *text, *where, *what;
	} rows[] = {
		{ "command: [a]\nslots: {cores: 9000}\n", "job.sh:2", "9000" },
		{ "command: [a]\nsignl: USR1\n", "job.sh:2", "signl" },
		{ "command: [a]\nsignal: USR9\n", "job.sh", "USR9" },
		{ "command: [a]\nsignal: KILL\n", "job.sh", "cannot be caught" },
		{ "name: x\n", "job.sh", "neither command nor script" },
		{ "command: [a]\nscript: b\n", "job.sh", "both" },
		{ "command: [a]\ncheckpoint: {dir: ../up}\n", "job.sh", "../up" },
		{ "command: [a]\ncheckpoint: {dir: /abs}\n", "job.sh", "/abs" },
		{ "command: [a]\ninputs: [{path: x, to: ../../etc}]\n", "job.sh", "../../etc" },
		{ "command: [a]\nenv: {\"A B\": 1}\n", "job.sh", "A B" },
		{ "command: [a]\nenv: {A: [1]}\n", "job.sh", "A" },
		{ "command: [a]\nnetwork: {destinations: [nowhere]}\n", "job.sh", "nowhere" },
		{ "command: [a]\nnetwork: {destinations: [\"h:99999\"]}\n", "job.sh", "99999" },
		{ "command: [a]\nslots: {gpu_type: a100}\n", "job.sh", "without gpus" },
		{ "command: [a]\ncheckpoint: {driver: magic}\n", "job.sh:2", "magic" },
		{ "command: [a\n", "job.sh:", "" },
		{ "#!/bin/sh\n#SBATCH --time=soon\ntrue\n", "job.sh:2", "soon" },
		{ "#!/bin/sh\n#SBATCH --cpus-per-task=0\ntrue\n", "job.sh:2", "0" },
		{ "#!/bin/sh\n#SBATCH --mem=lots\ntrue\n", "job.sh:2", "lots" },
		{ "#!/bin/sh\n#SBATCH --signal=NOPE@3\ntrue\n", "job.sh:2", "NOPE" },
		{ "#!/bin/sh\n#SBATCH --comment='open\ntrue\n", "job.sh:2", "quote" },
		{ "#!/bin/sh\n\n#RECLAIM slots: {cores: none}\ntrue\n", "job.sh:3", "none" },
		{ "#!/bin/sh\n#RECLAIM --no-such-thing=1\ntrue\n", "job.sh:2", "no-such-thing" },
		{ "#!/bin/sh\n#RECLAIM command: [x]\ntrue\n", "job.sh", "the script is it" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job_spec s;
		struct diag d = DIAG_INIT;
		char text[800];
		int r = parse(rows[i].text, &s, NULL, &d);

		if (r >= 0)
			fail_msg("accepted: %s", rows[i].text);
		(void)diag_format(&d, text, sizeof(text));
		if (!strstr(text, rows[i].where) || !strstr(text, rows[i].what))
			fail_msg("%s\n gave: %s", rows[i].text, text);
	}
}

static void test_signal(void **state)
{
	struct job_signal sig;

	assert_int_equal(job_signal_parse("USR1", &sig, NULL), 0);
	assert_int_equal(sig.signo, SIGUSR1);
	assert_int_equal(sig.before_s, 60);
	assert_false(sig.batch_only);
	assert_int_equal(job_signal_parse("B:SIGTERM@120", &sig, NULL), 0);
	assert_int_equal(sig.signo, SIGTERM);
	assert_int_equal(sig.before_s, 120);
	assert_true(sig.batch_only);
	assert_int_equal(job_signal_parse("R:10@0", &sig, NULL), 0);
	assert_int_equal(sig.signo, 10);
	assert_true(job_signal_parse("USR1@65536", &sig, NULL) < 0);
	assert_true(job_signal_parse("", &sig, NULL) < 0);
	assert_true(job_signal_parse("65", &sig, NULL) < 0);
}

static void test_argv(void **state)
{
	const char *const argv[] = { "/opt/bin/train", "--steps", "5" };
	struct job_spec s;

	assert_int_equal(job_spec_from_argv(3, argv, &s, NULL), 0);
	assert_string_equal(s.name, "train");
	assert_int_equal(s.command_count, 3);
	job_spec_done(&s);
	assert_true(job_spec_from_argv(0, argv, &s, NULL) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_yaml),	       cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_slurm_script),   cmocka_unit_test(test_reclaim_lines),
		cmocka_unit_test(test_bad),	       cmocka_unit_test(test_signal),
		cmocka_unit_test(test_argv),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
