/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/task.h"

#include <errno.h>
#include <stdlib.h>

struct task {
	uv_work_t work;
	void (*run)(void *arg);
	void (*done)(void *arg);
	void *arg;
};

static void on_work(uv_work_t *w)
{
	struct task *t = w->data;
	t->run(t->arg);
}

static void on_done(uv_work_t *w, int status)
{
	(void)status; /* never cancelled: a queued task always runs and sees its own flag */
	struct task *t = w->data;
	t->done(t->arg);
	free(t);
}

int task_run(struct loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
	struct task *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->run = work;
	t->done = done;
	t->arg = arg;
	t->work.data = t;
	int r = uv_queue_work(loop_uv(l), &t->work, on_work, on_done);
	if (r < 0)
		free(t);
	return r;
}
