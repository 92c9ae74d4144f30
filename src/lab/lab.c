/* SPDX-License-Identifier: Apache-2.0 */
/* From options to exit status: the lab's life. */
#include "lab/lab.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "lab/life.h"
#include "lab/report_internal.h"

static int say(const struct diag *diag)
{
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];

	(void)fprintf(stderr, "lab: %s\n", diag_format(diag, text, sizeof(text)));
	return 1;
}

size_t lab_job_by_id(const struct lab *l, const char *id)
{
	for (size_t i = 0; i < l->scenario.jobs_count; i++)
		if (l->jobs[i].id[0] && strcmp(l->jobs[i].id, id) == 0)
			return i;
	return SCENARIO_NONE;
}

size_t lab_machine_by_name(const struct lab *l, const char *name)
{
	return scenario_machine(&l->scenario, name);
}

static int allocate(struct lab *l)
{
	const struct scenario *s = &l->scenario;

	l->references = calloc(s->jobs_count + 1, sizeof(*l->references));
	l->machines = calloc(s->topology.machines_count + 1, sizeof(*l->machines));
	l->jobs = calloc(s->jobs_count + 1, sizeof(*l->jobs));
	l->flows = calloc(s->flows_count + 1, sizeof(struct flow *));
	l->sinks = calloc(s->topology.hosts_count + 1, sizeof(struct sink *));
	if (!l->references || !l->machines || !l->jobs || !l->flows || !l->sinks)
		return -ENOMEM;
	for (size_t i = 0; i < s->jobs_count; i++)
		l->jobs[i].spec = &s->jobs[i];
	for (size_t i = 0; i < s->events_count; i++) {
		struct lab_event e = { .spec = &s->events[i] };

		if (VEC_PUSH(&l->events, e) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int open_campus(struct lab *l, struct diag *diag)
{
	const struct scenario_topology *t = &l->scenario.topology;
	char out[LAB_PATH_MAX];
	int r;

	(void)snprintf(out, sizeof(out), "%s/out", l->dir);
	r = dir_make_all(out, 0755);
	if (r == 0 && l->guard->root)
		r = chmod(out, 01777) < 0 ? -errno : 0; /* every person's commands log there */
	if (r == 0)
		r = campus_build(&l->scenario, l->dir, l->guard->root && !l->opt->loopback,
				 &l->campus, diag);
	if (r < 0)
		return r;
	for (size_t i = 0; i < t->machines_count; i++) {
		l->machines[i].spec = &t->machines[i];
		l->machines[i].node = campus_find(l->campus, t->machines[i].name);
		l->machines[i].uid = l->machines[i].gid = (uid_t)(LAB_UID_OWNERS + i % 500);
	}
	return observe_new(&l->observe);
}

/* The rule for each job, before anything has happened. */
static void say_windows(struct lab *l)
{
	for (size_t i = 0; i < l->scenario.jobs_count; i++) {
		const struct reference *ref = &l->references[i];
		uint64_t need;

		if (!ref->digest[0])
			continue;
		need = reference_window_needed_ns(ref->save_ns, ref->image_bytes,
						  l->scenario.system.floor_bps);
		lab_say(l, "%s alone: %llu steps in %.1f s, checkpoint %.2f MB saved in %.0f ms; a "
			"window is enough from %.2f s (save + bytes/floor + 2 s)", l->jobs[i].spec->name,
			(unsigned long long)ref->steps, ref->seconds, (double)ref->image_bytes / 1e6,
			(double)ref->save_ns / 1e6, (double)need / 1e9);
	}
}

static int run_references(struct lab *l, struct diag *diag)
{
	char dir[LAB_PATH_MAX];

	(void)snprintf(dir, sizeof(dir), "%s/reference", l->dir);
	return reference_run_all(&l->scenario, dir, l->references, diag);
}

int life_traffic(struct lab *l, struct diag *diag)
{
	const struct scenario *s = &l->scenario;
	int r = 0;

	for (size_t i = 0; i < s->topology.hosts_count && r == 0; i++)
		r = sink_start(campus_find(l->campus, s->topology.hosts[i].name), &l->sinks[i],
			       diag);
	for (size_t i = 0; i < s->flows_count && r == 0; i++)
		r = flow_start(&s->flows[i], i, campus_find(l->campus, s->flows[i].from),
			       campus_find(l->campus, s->flows[i].to), l->origin_ns,
			       s->duration_ns + 60 * NS_PER_S, &l->flows[i], diag);
	return r;
}

int life_start(struct lab *l, struct diag *diag)
{
	int r = allocate(l);

	(void)pthread_mutex_init(&l->watch_lock, NULL);
	if (r == 0)
		r = run_references(l, diag);
	if (r < 0)
		return r;
	say_windows(l);
	r = open_campus(l, diag);
	if (r < 0)
		return r;
	lab_say(l, "campus: %zu machines in %zu buildings%s%s", l->scenario.topology.machines_count,
		l->scenario.topology.buildings_count,
		campus_left_out(l->campus) ? "; left out: " : "",
		campus_left_out(l->campus) ? campus_left_out(l->campus) : "");
	r = system_start(l, diag);
	if (r == 0)
		r = observe_start(l->observe);
	if (r == 0)
		r = system_lend_all(l, diag);
	if (r == 0)
		r = watch_start(l);
	return r;
}

void life_stop(struct lab *l)
{
	watch_stop(l);
	if (l->machines && l->campus)
		system_stop(l);
	for (size_t i = 0; l->flows && i < l->scenario.flows_count; i++)
		flow_stop(l->flows[i]);
	for (size_t i = 0; l->sinks && i < l->scenario.topology.hosts_count; i++)
		sink_stop(l->sinks[i]);
	observe_free(l->observe);
}

/* Logs and job folders' outputs leave the lab, for whoever looks into a failure. */
void life_keep(struct lab *l)
{
	CLEANUP_FREE char *command = NULL;
	struct proc_spec p = { .argv = { "sh", "-c" } };
	struct diag diag = DIAG_INIT;
	int status;

	if (!l->opt->keep ||
	    asprintf(&command,
		     "rm -rf '%s'; mkdir -p '%s' && cd '%s' && find . -name '*.log' -o -name '*.yaml' "
		     "-o -path './out/*' -type f | tar cf - -T - | tar xf - -C '%s'",
		     l->opt->keep, l->opt->keep, l->dir, l->opt->keep) < 0)
		return;
	p.argv[2] = command;
	if (proc_run(&p, 20000, NULL, &status, &diag) == 0 && status == 0)
		(void)fprintf(stderr, "lab: the logs are in %s\n", l->opt->keep);
}

static int check_names(const struct scenario *s, struct diag *diag)
{
	for (size_t i = 0; i < s->checks_count; i++)
		if (!checks_known(s->checks[i].name))
			return diag_set(diag, -EINVAL, "checks", "the lab knows no check '%s'",
					s->checks[i].name);
	return 0;
}

int life_load(struct lab *l, const struct lab_options *o, struct diag *diag)
{
	int r = scenario_load(o->scenario, &l->scenario, diag);

	(void)proc_self_folder();
	l->opt = o;
	l->out = stdout;
	return r < 0 ? r : check_names(&l->scenario, diag);
}

static int inside(const struct guard *g, void *arg)
{
	struct lab *l = arg;
	struct diag diag = DIAG_INIT;
	bool ok = false;
	int r;

	l->guard = g;
	(void)snprintf(l->dir, sizeof(l->dir), "%s", g->dir);
	r = life_start(l, &diag);
	if (r == 0) {
		l->origin_ns = clock_boot_ns() + 200 * NS_PER_MS;
		r = life_traffic(l, &diag);
	}
	if (r < 0) {
		(void)say(&diag);
		life_keep(l);
		return 1;
	}
	r = play(l);
	if (report_write(l, &ok) < 0)
		(void)fprintf(stderr, "lab: the report cannot be written to %s\n", l->opt->report);
	if (r < 0 || !ok)
		life_keep(l);
	life_stop(l);
	return r == 0 && ok ? 0 : 1;
}

int lab_run(const struct lab_options *o)
{
	static struct lab l;
	struct diag diag = DIAG_INIT;
	int r;

	if (life_load(&l, o, &diag) < 0)
		return say(&diag);
	r = guard_run(false, true, inside, &l, &diag);
	scenario_done(&l.scenario);
	return r < 0 ? say(&diag) : r;
}

int lab_clean(void)
{
	(void)printf("%d dead labs removed\n", guard_clean_stale());
	return 0;
}
