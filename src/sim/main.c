/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim-sim: replays traces through the policy code that the coordinator runs. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/option.h"
#include "base/parse.h"
#include "sim/score.h"

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

static const struct command commands[] = {
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
