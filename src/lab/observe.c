/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/observe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/strbuf.h"
#include "base/vec.h"

#define LOOK_EVERY_NS (8 * NS_PER_MS)

struct place {
	size_t machine;
	char jobs_dir[256];
};

/* A file stays open after it is removed: its last lines are read all the same. */
struct tail {
	struct observe_run run;
	int fd;
	off_t at;
	struct strbuf line;
};

struct observe {
	pthread_t thread;
	bool started;
	_Atomic bool stop;
	pthread_mutex_t lock; /* over tails */
	struct VEC(struct place) places;
	struct VEC(struct tail) tails;
};

int observe_new(struct observe **ret)
{
	struct observe *o = calloc(1, sizeof(*o));

	if (!o)
		return -ENOMEM;
	(void)pthread_mutex_init(&o->lock, NULL);
	*ret = o;
	return 0;
}

int observe_add(struct observe *o, size_t machine, const char *state_dir)
{
	struct place p = { .machine = machine };
	int r = path_format(p.jobs_dir, sizeof(p.jobs_dir), "%s/jobs", state_dir);

	return r < 0 ? r : VEC_PUSH(&o->places, p);
}

void observe_line(struct observe_run *r, const char *line, size_t len, uint64_t now_ns)
{
	char text[200];
	uint64_t step;

	(void)snprintf(text, sizeof(text), "%.*s", (int)(len < 199 ? len : 199), line);
	if (sscanf(text, "resumed at step %" SCNu64, &step) == 1) {
		r->resumed_at = step;
	} else if (sscanf(text, "done step %" SCNu64 " digest %64[0-9a-f]", &step, r->digest) == 2) {
		r->torn |= step != r->last_step && step != r->resumed_at;
	} else if (sscanf(text, "step %" SCNu64 " ", &step) == 1) {
		uint64_t before = r->last_step ? r->last_step : r->resumed_at;

		r->torn |= step != before + 1;
		if (!r->first_step) {
			r->first_step = step;
			r->first_ns = now_ns;
		}
		r->last_step = step;
		r->last_ns = now_ns;
		r->steps++;
	}
}

static void read_tail(struct tail *t)
{
	uint64_t now = clock_boot_ns();
	char buf[16384];
	ssize_t n;

	while ((n = pread(t->fd, buf, sizeof(buf), t->at)) > 0) {
		char *end;

		t->at += n;
		if (strbuf_append(&t->line, buf, (size_t)n) < 0)
			return;
		while ((end = memchr(t->line.data, '\n', t->line.len))) {
			size_t len = (size_t)(end - t->line.data);

			observe_line(&t->run, t->line.data, len, now);
			strbuf_consume(&t->line, len + 1);
		}
	}
}

static bool known(const struct observe *o, size_t machine, const char *job, uint64_t epoch)
{
	for (size_t i = 0; i < o->tails.count; i++) {
		const struct observe_run *r = &o->tails.data[i].run;

		if (r->machine == machine && r->epoch == epoch && strcmp(r->job, job) == 0)
			return true;
	}
	return false;
}

static void look_at_epoch(struct observe *o, const struct place *p, const char *job,
			  const char *epoch_text)
{
	struct tail t = { .fd = -1 };
	char path[512];

	if (parse_u64(epoch_text, &t.run.epoch) < 0 ||
	    known(o, p->machine, job, t.run.epoch) || o->tails.count >= OBSERVE_RUNS_MAX ||
	    path_format(path, sizeof(path), "%s/%s/%s/output.log", p->jobs_dir, job,
			epoch_text) < 0)
		return;
	t.fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (t.fd < 0)
		return; /* not yet */
	(void)snprintf(t.run.job, sizeof(t.run.job), "%s", job);
	t.run.machine = p->machine;
	t.run.seen_ns = clock_boot_ns();
	if (VEC_PUSH(&o->tails, t) < 0)
		(void)close(t.fd);
}

static void each_entry(const char *dir, void (*fn)(struct observe *o, const struct place *p,
						   const char *job, const char *name),
		       struct observe *o, const struct place *p, const char *job)
{
	CLEANUP_DIR DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			fn(o, p, job, e->d_name);
}

static void look_at_job(struct observe *o, const struct place *p, const char *none,
			const char *job)
{
	char dir[400];

	(void)none;
	if (path_format(dir, sizeof(dir), "%s/%s", p->jobs_dir, job) == 0)
		each_entry(dir, look_at_epoch, o, p, job);
}

static void *watch(void *arg)
{
	struct observe *o = arg;

	while (!atomic_load(&o->stop)) {
		struct timespec pause = { 0, LOOK_EVERY_NS };

		(void)pthread_mutex_lock(&o->lock);
		VEC_EACH(&o->places, p)
			each_entry(p->jobs_dir, look_at_job, o, p, NULL);
		VEC_EACH(&o->tails, t)
			read_tail(t);
		(void)pthread_mutex_unlock(&o->lock);
		(void)nanosleep(&pause, NULL);
	}
	return NULL;
}

int observe_start(struct observe *o)
{
	int r = pthread_create(&o->thread, NULL, watch, o);

	o->started = r == 0;
	return -r;
}

void observe_free(struct observe *o)
{
	if (!o)
		return;
	atomic_store(&o->stop, true);
	if (o->started)
		(void)pthread_join(o->thread, NULL);
	VEC_EACH(&o->tails, t) {
		(void)close(t->fd);
		strbuf_done(&t->line);
	}
	VEC_DONE(&o->tails);
	VEC_DONE(&o->places);
	(void)pthread_mutex_destroy(&o->lock);
	free(o);
}

size_t observe_runs(struct observe *o, struct observe_run *ret, size_t cap)
{
	size_t n;

	(void)pthread_mutex_lock(&o->lock);
	n = o->tails.count < cap ? o->tails.count : cap;
	for (size_t i = 0; i < n; i++)
		ret[i] = o->tails.data[i].run;
	(void)pthread_mutex_unlock(&o->lock);
	return n;
}

bool observe_newest(struct observe *o, const char *job, struct observe_run *ret)
{
	bool found = false;

	(void)pthread_mutex_lock(&o->lock);
	for (size_t i = 0; i < o->tails.count; i++) {
		const struct observe_run *r = &o->tails.data[i].run;

		if (strcmp(r->job, job) == 0 && (!found || r->epoch > ret->epoch)) {
			*ret = *r;
			found = true;
		}
	}
	(void)pthread_mutex_unlock(&o->lock);
	return found;
}
