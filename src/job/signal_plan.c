/* SPDX-License-Identifier: Apache-2.0 */
#include "job/signal_plan.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"

/* Below a tenth of the busiest descendant's CPU time a process is not doing the work. */
#define SUPERVISOR_SHARE 10

static bool catches(const struct proc_info *p, int signo)
{
	return p->caught & (UINT64_C(1) << (signo - 1));
}

static const struct proc_info *parent_of(const struct proc_list *procs, const struct proc_info *p)
{
	for (size_t i = 0; i < procs->count; i++)
		if (procs->data[i].pid == p->ppid)
			return &procs->data[i];
	return NULL;
}

/* A fork without exec belongs to its parent's program (a data loader's worker). */
static const struct proc_info *program_root(const struct proc_list *procs, const struct proc_info *p)
{
	for (size_t depth = 0; depth < procs->count; depth++) {
		const struct proc_info *up = parent_of(procs, p);

		if (!up || up->command_hash != p->command_hash)
			return p;
		p = up;
	}
	return p;
}

/* The CPU time of the busiest catching descendant of another program; UINT64_MAX if none. */
static uint64_t busiest_below(const struct proc_list *procs, const struct proc_info *boss, int signo)
{
	uint64_t most = 0;
	bool any = false;

	for (size_t i = 0; i < procs->count; i++) {
		const struct proc_info *p = &procs->data[i], *up = p;

		if (p == boss || !catches(p, signo) || p->command_hash == boss->command_hash)
			continue;
		for (size_t depth = 0; up && up != boss && depth < procs->count; depth++)
			up = parent_of(procs, up);
		if (up != boss)
			continue;
		any = true;
		most = MAX(most, p->cpu_ticks);
	}
	return any ? most : UINT64_MAX;
}

static bool is_supervisor(const struct proc_list *procs, const struct proc_info *p, int signo)
{
	uint64_t below = busiest_below(procs, p, signo);

	return below != UINT64_MAX && p->cpu_ticks * SUPERVISOR_SHARE <= below;
}

bool signal_is_caught(const struct proc_list *procs, int signo)
{
	for (size_t i = 0; i < procs->count; i++)
		if (catches(&procs->data[i], signo))
			return true;
	return false;
}

int signal_plan(const struct proc_list *procs, pid_t top, const struct job_signal *sig, bool insist,
		enum signal_stage stage, struct proc_list *ret)
{
	bool caught = signal_is_caught(procs, sig->signo);
	int r = 0;

	for (size_t i = 0; i < procs->count && r == 0; i++) {
		const struct proc_info *p = &procs->data[i];
		bool take;

		if (sig->batch_only)
			take = p->pid == top;
		else if (stage == SIGNAL_LAST)
			take = true;
		else if (!caught)
			take = insist;
		else
			take = catches(p, sig->signo) && !is_supervisor(procs, program_root(procs, p), sig->signo);
		if (take)
			r = VEC_PUSH(ret, *p);
	}
	return r;
}
