/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim-sim: replays traces through the policy code that the coordinator runs. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/option.h"
#include "base/parse.h"
#include "sim/run.h"
#include "sim/score.h"
#include "sim/study.h"

static int complain(const struct diag *diag)
{
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX];
	fprintf(stderr, "reclaim-sim: %s\n", diag_format(diag, text, sizeof(text)));
	return 1;
}

struct score_options {
	const char *machines, *fit, *score;
	struct option_strs before;
	uint64_t refit_ns, step_ns;
	bool json, constant;
};

static const struct option score_options[] = {
	{ "machines", 'm', OPTION_STR, offsetof(struct score_options, machines), "M.csv",
	  .help = "rooms of the machines (m,room)" },
	{ "fit", 0, OPTION_STR, offsetof(struct score_options, fit), "A:B",
	  .help = "learn from this part of the trace, in seconds" },
	{ "score", 0, OPTION_STR, offsetof(struct score_options, score), "C:D",
	  .help = "score predictions in this part" },
	{ "before", 0, OPTION_STRS, offsetof(struct score_options, before), "FILE",
	  .help = "an earlier trace of the same machines, oldest first; may be given again" },
	{ "refit", 0, OPTION_DURATION, offsetof(struct score_options, refit_ns), "TIME", "0",
	  .help = "learn again this often while scoring (0: tables stay as fitted)" },
	{ "step", 0, OPTION_DURATION, offsetof(struct score_options, step_ns), "TIME", "60s",
	  .help = "step of the rate's integral" },
	{ "constant", 0, OPTION_FLAG, offsetof(struct score_options, constant),
	  .help = "score the constant-hazard ablation instead" },
	{ "json", 0, OPTION_FLAG, offsetof(struct score_options, json), .help = "print JSON" },
	{ .kind = OPTION_END },
};

static int parse_window(const char *text, double *ret_from, double *ret_to)
{
	char left[64];
	const char *colon = text ? strchr(text, ':') : NULL;
	if (!colon || (size_t)(colon - text) >= sizeof(left))
		return -EINVAL;
	memcpy(left, text, (size_t)(colon - text));
	left[colon - text] = 0;
	return parse_double(left, ret_from) < 0 || parse_double(colon + 1, ret_to) < 0 ? -EINVAL :
											 0;
}

/* Traces that came before are laid end to end, whole weeks apart, so that the hours match. */
static int run_score(const void *values, int argc, const char *const *argv)
{
	const struct score_options *o = values;
	struct diag diag = DIAG_INIT;
	struct score_config config = { .refit_s = (double)o->refit_ns / 1e9,
				       .step_s = (double)o->step_ns / 1e9,
				       .constant = o->constant };
	if (parse_window(o->fit, &config.fit_from_s, &config.fit_to_s) < 0 ||
	    parse_window(o->score, &config.score_from_s, &config.score_to_s) < 0) {
		fprintf(stderr, "reclaim-sim: --fit A:B and --score C:D are needed, in seconds\n");
		return EXIT_USAGE;
	}
	struct trace trace = TRACE_INIT, before[OPTION_STRS_MAX];
	const struct trace *before_list[OPTION_STRS_MAX];
	double shifts[OPTION_STRS_MAX], shift = 0;
	size_t loaded = 0;
	struct score score;
	int r = trace_load(argv[0], o->machines, false, &trace, &diag);
	for (; r == 0 && loaded < o->before.count; loaded++) {
		r = trace_load(o->before.items[loaded], o->machines, false, &before[loaded], &diag);
		if (r < 0)
			break;
		before_list[loaded] = &before[loaded];
	}
	for (size_t i = loaded; i-- > 0;) {
		shift -= (ceil(before[i].end_s / HAZARD_WEEK_S) + 4) * HAZARD_WEEK_S;
		shifts[i] = shift;
	}
	config.before = before_list;
	config.before_shift_s = shifts;
	config.before_count = loaded;
	if (r == 0)
		r = score_hazard(&trace, &config, &score, &diag);
	trace_done(&trace);
	for (size_t i = 0; i < loaded; i++)
		trace_done(&before[i]);
	if (r < 0)
		return complain(&diag);
	if (o->json) {
		CLEANUP_JSON json_t *j = score_json(&score);
		if (!j || json_dumpf(j, stdout, JSON_COMPACT | JSON_REAL_PRECISION(10)) < 0)
			return 1;
		putchar('\n');
	} else {
		printf("reclaims scored      %llu\n", (unsigned long long)score.reclaims);
		printf("nats over constant   %.4f per reclaim\n", score.nats_over_constant);
		printf("nats over adaptive   %.4f per reclaim (memory %.3g h)\n",
		       score.nats_over_adaptive, score.adaptive_memory_s / 3600);
		printf("expected over seen   %.4f\n", score.expected_over_seen);
		printf("calibration error    %.4f\n", score.calibration_error);
		for (size_t b = 0; b < SCORE_BINS; b++)
			printf("  bin %2zu: said %.4f, came %.4f (%llu)\n", b + 1,
			       score.bins[b].predicted, score.bins[b].observed,
			       (unsigned long long)score.bins[b].count);
	}
	return 0;
}

struct run_options {
	const char *policy, *trace, *machines, *jobs, *topology;
	struct option_strs set;
	uint64_t seed, seeds, threads;
	bool json;
};

#define WORLD_OPTIONS \
	{ "trace", 't', OPTION_STR, offsetof(struct run_options, trace), "FILE", \
	  .help = "machines come and go as in this trace (any format that score-hazard reads)" }, \
	{ "machines", 'm', OPTION_STR, offsetof(struct run_options, machines), "M.csv", \
	  .help = "rooms of the trace's machines" }, \
	{ "jobs", 'j', OPTION_STR, offsetof(struct run_options, jobs), "FILE", \
	  .help = "job sizes: submit_s,duration_s,gpus,..." }, \
	{ "topology", 0, OPTION_STR, offsetof(struct run_options, topology), "FILE", \
	  .help = "sites and links as graph text" }, \
	{ "set", 0, OPTION_STRS, offsetof(struct run_options, set), "KEY=VALUE", \
	  .help = "change a setting of the scenario's sim part; sweep: KEY=V1,V2,..." }, \
	{ "seed", 's', OPTION_U64, offsetof(struct run_options, seed), "N", "1", \
	  .help = "draws owners' windows, machines, jobs" }, \
	{ "json", 0, OPTION_FLAG, offsetof(struct run_options, json), .help = "print JSON" }

static const struct option run_options[] = {
	{ "policy", 'p', OPTION_STR, offsetof(struct run_options, policy), "NAME", "reclaim",
	  .help = "the system to simulate; see `compare` for all" },
	WORLD_OPTIONS,
	{ .kind = OPTION_END },
};
static const struct option many_options[] = {
	{ "policy", 'p', OPTION_STR, offsetof(struct run_options, policy), "A,B,...",
	  .help = "systems to simulate (compare: all; sweep: reclaim)" },
	{ "seeds", 'n', OPTION_U64, offsetof(struct run_options, seeds), "N", "20", 1, 10000,
	  .help = "so many seeds, from --seed on" },
	{ "threads", 0, OPTION_U64, offsetof(struct run_options, threads), "N", "0", 0, 1024,
	  .help = "0: one per core" },
	WORLD_OPTIONS,
	{ .kind = OPTION_END },
};

static struct study_input input_of(const struct run_options *o, const char *file)
{
	return (struct study_input){ .file = file,
				     .trace = o->trace,
				     .machines = o->machines,
				     .jobs = o->jobs,
				     .topology = o->topology,
				     .set = o->set.items,
				     .set_count = o->set.count };
}

static void progress(void *ctx, double share)
{
	const char *what = ctx;
	if (share < 0 || !isatty(STDERR_FILENO))
		return;
	fprintf(stderr, "\r%s [%-40.*s] %3.0f %%%s", what, (int)(share * 40),
		"########################################", share * 100, share >= 1 ? "\n" : "");
}

static int print_json(json_t *j)
{
	int r = j ? json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) : -1;
	json_decref(j);
	putchar('\n');
	return r < 0;
}

static int run_run(const void *values, int argc, const char *const *argv)
{
	const struct run_options *o = values;
	struct diag diag = DIAG_INIT;
	struct study_input input = input_of(o, argv[0]);
	struct run_config config = { .seed = o->seed,
				     .progress = progress,
				     .progress_ctx = (void *)o->policy };
	const struct system *system = system_find(o->policy);
	struct run_result result;
	struct world world;
	if (!system) {
		fprintf(stderr, "reclaim-sim: no policy '%s'; `reclaim-sim policies` lists them\n",
			o->policy);
		return EXIT_USAGE;
	}
	if (study_world(&input, o->seed, &world, &diag) < 0)
		return complain(&diag);
	int r = run_system(&world, system, &config, &result);
	progress((void *)o->policy, 1);
	world_done(&world);
	if (r < 0) {
		fprintf(stderr, "reclaim-sim: %s\n", strerror(-r));
		return 1;
	}
	if (o->json)
		return print_json(json_pack("{s:s,s:I,s:o}", "policy", system->name, "seed",
					    (json_int_t)o->seed, "result", run_json(&result)));
	printf("%s, seed %llu: work loss %.3f %% of lent slot time, downtime %.1f s mean, %.1f s p99\n",
	       system->name, (unsigned long long)o->seed, result.work_loss_share * 100,
	       result.downtime_mean_s, result.downtime_p99_s);
	printf("%llu reclaims, %llu power-offs; %llu moves, %llu staged, %llu fell back, %llu missed; "
	       "%llu of %llu jobs done\n",
	       (unsigned long long)result.reclaims, (unsigned long long)result.power_offs,
	       (unsigned long long)result.moves, (unsigned long long)result.stages,
	       (unsigned long long)result.fallbacks, (unsigned long long)result.moves_missed,
	       (unsigned long long)result.jobs_done, (unsigned long long)result.jobs);
	fprintf(stderr, "%llu events in %.2f s\n", (unsigned long long)result.events, result.seconds);
	return 0;
}

static int run_compare(const void *values, int argc, const char *const *argv)
{
	const struct run_options *o = values;
	struct diag diag = DIAG_INIT;
	struct study_input input = input_of(o, argv[0]);
	struct study study;
	int r = study_run(&input, o->policy, o->seed, o->seeds, o->threads, progress,
			  (void *)"compare", &study, &diag);
	if (r < 0)
		return complain(&diag);
	if (o->json)
		r = print_json(study_json(&study));
	else
		study_print(&study, stdout);
	study_done(&study);
	return r;
}

static int run_sweep(const void *values, int argc, const char *const *argv)
{
	const struct run_options *o = values;
	struct diag diag = DIAG_INIT;
	struct study_input input = input_of(o, argv[0]);
	const char *list = o->set.count ? o->set.items[o->set.count - 1] : NULL;
	const char *eq = list ? strchr(list, '=') : NULL;
	if (!eq) {
		fprintf(stderr, "reclaim-sim: sweep needs --set KEY=V1,V2,...\n");
		return EXIT_USAGE;
	}
	CLEANUP_JSON json_t *all = json_array();
	for (const char *v = eq + 1; *v;) {
		size_t len = strcspn(v, ",");
		char set[256];
		const char *items[OPTION_STRS_MAX];
		struct study study;
		snprintf(set, sizeof(set), "%.*s=%.*s", (int)(eq - list), list, (int)len, v);
		memcpy(items, o->set.items, sizeof(items));
		items[o->set.count - 1] = set;
		input.set = items;
		if (study_run(&input, o->policy ? o->policy : "reclaim", o->seed, o->seeds,
			      o->threads, progress, set, &study, &diag) < 0)
			return complain(&diag);
		if (o->json) {
			json_array_append_new(all, json_pack("{s:s,s:o}", "set", set, "study",
							     study_json(&study)));
		} else {
			printf("%s\n", set);
			study_print(&study, stdout);
		}
		study_done(&study);
		v += len + (v[len] == ',');
	}
	return o->json ? print_json(json_incref(all)) : 0;
}

static int run_policies(const void *values, int argc, const char *const *argv)
{
	for (size_t i = 0; i < systems_count; i++)
		printf("%-24s %s\n", systems[i].name, systems[i].help);
	return 0;
}

static const struct command commands[] = {
	{ .name = "run",
	  .args = "SCENARIO.yaml|TRACE.csv",
	  .args_min = 1,
	  .args_max = 1,
	  .options = run_options,
	  .values_size = sizeof(struct run_options),
	  .help = "simulate one system on one scenario",
	  .detail = "A scenario file as for `reclaim lab`, or one with a `sim` part; a trace file "
		    "stands for the reference campus with that trace.",
	  .run = run_run },
	{ .name = "compare",
	  .args = "SCENARIO.yaml|TRACE.csv",
	  .args_min = 1,
	  .args_max = 1,
	  .options = many_options,
	  .values_size = sizeof(struct run_options),
	  .help = "simulate many systems on many seeds, with confidence intervals",
	  .run = run_compare },
	{ .name = "sweep",
	  .args = "SCENARIO.yaml|TRACE.csv",
	  .args_min = 1,
	  .args_max = 1,
	  .options = many_options,
	  .values_size = sizeof(struct run_options),
	  .help = "compare at each value of one setting",
	  .run = run_sweep },
	{ .name = "policies", .args = "", .help = "list the systems", .run = run_policies },
	{ .name = "score-hazard",
	  .args = "FILE",
	  .args_min = 1,
	  .args_max = 1,
	  .options = score_options,
	  .values_size = sizeof(struct score_options),
	  .help = "score the hazard model's predictions on a trace",
	  .run = run_score },
	{ .name = NULL },
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "reclaim-sim",
		.summary = "replay campus traces through ReclaimNet's policy code",
		.version = RECLAIM_VERSION,
		.commands = commands,
	};
	return program_main(&program, argc, argv);
}
