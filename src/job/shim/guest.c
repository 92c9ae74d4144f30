/* SPDX-License-Identifier: Apache-2.0 */
/* The running guest: its processes, standing still, the end and the proof of it. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "job/leftover.h"
#include "job/shim/shim.h"
#include "job/verdict.h"

#define FREEZE_TIMEOUT_NS (500 * NS_PER_MS)
#define KILL_ROUND_NS (5 * NS_PER_MS)
#define LINGER_NS (15 * 60 * NS_PER_S)

/* ---- processes ---- */

int guest_processes(struct shim *s, struct proc_list *ret)
{
	struct proc_list procs = VEC_INIT;
	struct pid_list pids = VEC_INIT;
	int r;

	if (!s->guest_pid)
		return 0;
	if (!s->cgroup) {
		r = proc_tree(s->child.init ? s->guest_pid : getpid(), true, ret);
		/* A child of ours that looks at the disk is none of the guest's. */
		for (size_t i = 0; r == 0 && i < ret->count; i++)
			if (s->disk_pid && ret->data[i].pid == s->disk_pid) {
				VEC_REMOVE(ret, i);
				break;
			}
		return r;
	}
	r = cgroup_pids(s->cgroup, &pids);
	VEC_EACH(&pids, pid) {
		struct proc_info p;

		if (r == 0 && !(s->child.init && *pid == s->guest_pid) && proc_read(*pid, true, &p) == 0)
			r = VEC_PUSH(&procs, p);
	}
	VEC_DONE(&pids);
	if (r < 0) {
		VEC_DONE(&procs);
		return r;
	}
	*ret = procs;
	return 0;
}

pid_t guest_top(const struct shim *s, const struct proc_list *procs)
{
	const struct proc_info *top = NULL;

	if (!s->child.init)
		return s->guest_pid;
	/* Init's eldest child; orphans that came to it later are younger. */
	for (size_t i = 0; i < procs->count; i++) {
		const struct proc_info *p = &procs->data[i];

		if (p->ppid == s->guest_pid && (!top || p->start_ticks < top->start_ticks ||
						(p->start_ticks == top->start_ticks && p->pid < top->pid)))
			top = p;
	}
	return top ? top->pid : s->guest_pid;
}

uint64_t guest_ran_ns(const struct shim *s)
{
	uint64_t end = s->exited.ended_ns ? s->exited.ended_ns : s->now, still = s->frozen_total;

	if (!s->started_ns)
		return 0;
	if (s->frozen)
		still += end - s->frozen_since;
	return end - s->started_ns > still ? end - s->started_ns - still : 0;
}

/* ---- standing still ---- */

/* Without a cgroup: stop signals, until every process is seen stopped. The guest's own
 * parents see their children stop, which a freezer would hide; doctor says so. */
static int freeze_by_signal(struct shim *s, bool frozen)
{
	uint64_t end = clock_boot_ns() + FREEZE_TIMEOUT_NS;

	for (;;) {
		struct proc_list procs = VEC_INIT;
		bool all = true;
		int r = guest_processes(s, &procs);

		VEC_EACH(&procs, p) {
			if (p->state == 'T' || p->state == 't') {
				if (!frozen)
					(void)proc_kill(p->pid, p->start_ticks, SIGCONT);
				continue;
			}
			if (frozen) {
				all = false;
				(void)proc_kill(p->pid, p->start_ticks, SIGSTOP);
			}
		}
		VEC_DONE(&procs);
		if (r < 0 || all)
			return r;
		if (clock_boot_ns() >= end)
			return -ETIMEDOUT;
		(void)poll(NULL, 0, 1);
	}
}

int guest_freeze(struct shim *s, bool frozen, struct diag *diag)
{
	int r;

	if (s->frozen == frozen)
		return 0;
	if (!s->guest_pid || s->guest_reaped || s->state >= SHIM_STOPPING)
		return diag_set(diag, -ESRCH, "freeze", "the guest is %s", shim_state_names[s->state]);
	r = s->cgroup ? cgroup_freeze(s->cgroup, frozen, FREEZE_TIMEOUT_NS) : -ENOTSUP;
	if (r == -ENOTSUP)
		r = freeze_by_signal(s, frozen);
	if (r < 0) {
		if (frozen && s->cgroup)
			(void)cgroup_freeze(s->cgroup, false, FREEZE_TIMEOUT_NS); /* not half of it */
		return diag_set(diag, r, "freeze", "not every process %s: %s", frozen ? "stood still" : "went on",
				strerror(-r));
	}
	if (!frozen && s->stopped_by_dump) {
		struct proc_list procs = VEC_INIT;

		(void)guest_processes(s, &procs); /* none: nobody to wake */
		VEC_EACH(&procs, p)
			(void)proc_kill(p->pid, p->start_ticks, SIGCONT);
		VEC_DONE(&procs);
		s->stopped_by_dump = false;
	}
	s->now = clock_boot_ns();
	if (frozen) {
		s->frozen_since = s->now;
	} else {
		uint64_t still = s->now - s->frozen_since;

		s->frozen_total += still;
		if (s->due.time_limit != NEVER)
			s->due.time_limit += still;
		s->lease_frozen = false;
	}
	s->frozen = frozen;
	return 0;
}

/* ---- the end ---- */

static void checkpoint_facts(struct shim *s, struct exit_facts *f)
{
	struct ckpt_commit c;

	enum ckpt_still still = s->stop_end == SHIM_END_NONE && !f->signal ? CKPT_EXITED : CKPT_FROZEN;

	if (!s->watch || ckpt_watch_scan(s->watch, s->now, still, &c, NULL) < 0)
		return;
	f->checkpoint_used = c.found;
	if (s->notice_kind == NOTICE_RECLAIM && c.found &&
	    (!s->before.found || c.seq != s->before.seq))
		s->saved = true;
	f->committed_since_notice = s->saved;
}

static void describe_end(struct shim *s)
{
	struct cgroup_usage usage = { 0 };
	struct rusage ru;
	struct exit_facts f = {
		.stopped_for = s->stop_end, .notice = s->notice_kind == NOTICE_RECLAIM,
		.requeue_asked = s->requeue_asked, .done_on_notice_exit = s->start.spec.done_on_notice_exit,
		.started = s->guest_running,
	};
	char why[300];

	if (s->guest_reaped) {
		f.signal = WIFSIGNALED(s->guest_status) ? WTERMSIG(s->guest_status) : 0;
		f.status = f.signal ? 128 + f.signal : WEXITSTATUS(s->guest_status);
		/* Our init passes a death by signal on as a shell would. */
		if (!f.signal && s->child.init && f.status > 128 && f.status <= 128 + 64)
			f.signal = f.status - 128;
	}
	if (s->cgroup)
		cgroup_usage(s->cgroup, &usage);
	f.oom = usage.oom_kills > 0 && f.signal == SIGKILL;
	checkpoint_facts(s, &f);
	s->exited = (struct shim_exited){
		.end = exit_verdict(&f, why, sizeof(why)), .status = f.status, .signal = f.signal,
		.ended_ns = s->now, .cpu_ns = usage.cpu_ns, .memory_peak = usage.memory_peak,
		.log_dropped = s->log_dropped, .oom = f.oom, .acked = s->acked,
	};
	if (!usage.cpu_ns && getrusage(RUSAGE_CHILDREN, &ru) == 0)
		s->exited.cpu_ns = (uint64_t)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * NS_PER_S +
				   (uint64_t)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) * NS_PER_US;
	s->exited.ran_ns = guest_ran_ns(s);
	if (s->stop_reason[0]) {
		char both[600];

		(void)snprintf(both, sizeof(both), "%s (%s)", s->stop_reason, why);
		s->exited.reason = strdup(both);
	} else {
		s->exited.reason = strdup(why);
	}
}

static void guest_end(struct shim *s)
{
	struct shim_event event = { .type = SHIM_EVENT_EXITED };

	s->now = clock_boot_ns();
	output_finish(s);
	describe_end(s);
	s->frozen = false;
	guestsock_close(s);
	source_close(s, &s->seccomp);
	source_close(s, &s->child_ctl);
	source_close(s, &s->watch_src);
	for (size_t i = 0; i < DEADLINE_COUNT; i++)
		((uint64_t *)&s->due)[i] = NEVER;
	s->due.linger = s->now + LINGER_NS;
	POINT("shim.ended");
	/* State first: who asks after the event finds the end told. */
	s->state = SHIM_ENDED;
	event.exited = s->exited;
	conn_event(s, &event);
	log_info("job %s.%llu: ended: %s: %s", s->start.job, (unsigned long long)s->start.epoch,
		 shim_end_names[s->exited.end], s->exited.reason ? s->exited.reason : "");
	state_changed(s, s->exited.reason);
	if (s->cgroup && cgroup_remove(s->cgroup) < 0)
		log_warn("the guest's cgroup is not empty yet");
}

static size_t processes_left(struct shim *s, struct proc_list *ret)
{
	struct proc_list left = VEC_INIT;

	/* A pid namespace is empty once its init has been reaped: the kernel waits for that. */
	if (s->guest_reaped && s->child.init && !s->cgroup)
		return 0;
	if (guest_processes(s, &left) < 0)
		return 1; /* not proven */
	if (ret)
		*ret = left;
	else
		VEC_DONE(&left);
	return ret ? ret->count : left.count;
}

static size_t count_left(struct shim *s)
{
	struct proc_list left = VEC_INIT;
	size_t n = processes_left(s, &left);

	n = MAX(n, left.count);
	VEC_DONE(&left);
	return n;
}

void guest_stop_round(struct shim *s)
{
	if (s->state != SHIM_STOPPING)
		return;
	if (s->guest_pid && !s->guest_reaped)
		(void)kill(s->guest_pid, SIGKILL); /* our child: the pid is still its own */
	if (s->cgroup) {
		(void)cgroup_kill(s->cgroup); /* what is left is looked at below */
	} else if (!s->child.init) {
		struct proc_list tree = VEC_INIT;

		if (proc_tree(getpid(), false, &tree) == 0)
			VEC_EACH(&tree, p)
				(void)proc_kill(p->pid, p->start_ticks, SIGKILL);
		VEC_DONE(&tree);
	}
	if ((!s->guest_pid || s->guest_reaped) && count_left(s) == 0) {
		guest_end(s);
		return;
	}
	s->due.kill_round = s->now + KILL_ROUND_NS;
}

void guest_stop(struct shim *s, enum shim_end end, const char *reason)
{
	if (s->state >= SHIM_STOPPING)
		return;
	/* A guest that ends by itself within the grace of its time limit ended for that. */
	if (end != SHIM_END_NONE)
		s->stop_end = end;
	(void)snprintf(s->stop_reason, sizeof(s->stop_reason), "%s", reason ? reason : "");
	s->stop_ns = s->now;
	s->due.kill = s->due.last_signal = s->due.time_limit = s->due.time_limit_kill = s->due.lease =
		s->due.saved_check = NEVER;
	s->due.alarm = s->now + NS_PER_S;
	if (!s->guest_pid) {
		s->state = SHIM_STOPPING;
		guest_end(s);
		return;
	}
	/* Kill first, write about it after: nothing may delay the end. */
	s->state = SHIM_STOPPING;
	POINT("shim.stop");
	if (!s->guest_reaped)
		(void)kill(s->guest_pid, SIGKILL);
	if (s->helper_pid)
		(void)kill(s->helper_pid, SIGKILL); /* the same holds for who saves it */
	if (s->cgroup)
		(void)cgroup_kill(s->cgroup); /* repeated by every round */
	s->due.kill_round = s->now;
	state_changed(s, reason);
}

void guest_alarm(struct shim *s)
{
	struct shim_event event = { .type = SHIM_EVENT_ALARM };
	struct proc_list left = VEC_INIT;
	struct shim_left items[SHIM_LEFT_MAX];
	char what[200];
	size_t n = 0;

	if (s->state != SHIM_STOPPING)
		return;
	(void)processes_left(s, &left);
	VEC_EACH(&left, p)
		if (n < SHIM_LEFT_MAX)
			items[n++] = (struct shim_left){ (uint64_t)p->pid, p->comm };
	(void)snprintf(what, sizeof(what), "%zu processes of the guest are still there %.1f s after SIGKILL%s%s",
		       left.count, (double)(s->now - s->stop_ns) / 1e9, n ? ": " : "", n ? items[0].name : "");
	log_error("job %s.%llu: %s", s->start.job, (unsigned long long)s->start.epoch, what);
	event.alarm = (struct shim_alarm){ .what = what, .left = items, .left_count = n };
	conn_event(s, &event);
	VEC_DONE(&left);
	s->due.alarm = s->now + (s->alarms++ < 5 ? NS_PER_S : 60 * NS_PER_S);
}

void guest_reap(struct shim *s)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == s->disk_pid) {
			s->now = clock_boot_ns();
			disk_looked(s, status);
			continue;
		}
		if (pid == s->helper_pid) {
			s->now = clock_boot_ns();
			dump_helper_ended(s, status);
			continue;
		}
		if (pid != s->guest_pid || s->guest_reaped)
			continue; /* an orphan of the guest's, or a helper */
		s->guest_reaped = true;
		s->guest_status = status;
		/* It may have executed and ended within one turn, and have sent its seccomp
		 * listener before that: each word is there, and the end behind them. */
		while (s->child_ctl.fd >= 0 && s->state < SHIM_STOPPING &&
		       poll(&(struct pollfd){ .fd = s->child_ctl.fd, .events = POLLIN }, 1, 0) == 1)
			s->child_ctl.ready(s, &s->child_ctl, 0);
	}
	if (!s->guest_reaped || s->state == SHIM_ENDED)
		return;
	if (s->state < SHIM_STOPPING)
		guest_stop(s, SHIM_END_NONE, NULL);
	if (s->state == SHIM_STOPPING)
		guest_stop_round(s);
}

void guest_cleanup(struct shim *s)
{
	if (s->guest_pid && !s->guest_reaped) {
		(void)kill(s->guest_pid, SIGKILL);
		(void)waitpid(s->guest_pid, NULL, 0); /* killed above */
	}
	if (s->cgroup) {
		(void)cgroup_wait_empty(s->cgroup, NS_PER_S); /* the agent's leftover_kill() is behind us */
		(void)cgroup_remove(s->cgroup);
	}
	if (s->run_dir)
		leftover_run_folder(s->run_dir);
	ckpt_watch_free(s->watch);
	s->watch = NULL;
}

/* ---- commands that are about the guest ---- */

static int lease_command(struct shim *s, const struct shim_lease *lease, struct diag *diag)
{
	uint64_t margin = s->start.lease_margin_ns ? s->start.lease_margin_ns : 250 * NS_PER_MS;

	if (s->state >= SHIM_STOPPING)
		return diag_set(diag, -ESRCH, "lease", "the guest is %s", shim_state_names[s->state]);
	s->start.lease_deadline_ns = lease->lease_deadline_ns;
	s->due.lease = lease->lease_deadline_ns > margin ? lease->lease_deadline_ns - margin : 0;
	if (s->lease_frozen && s->due.lease > s->now) {
		int r = guest_freeze(s, false, diag);

		if (r < 0)
			return r;
		state_changed(s, "the lease was renewed");
	}
	return 0;
}

int guest_command(struct shim *s, const struct shim_command *cmd, struct diag *diag)
{
	int r = 0;

	if (cmd->type == SHIM_CMD_CLOSE) {
		if (s->state != SHIM_ENDED && s->state != SHIM_WAITING)
			return diag_set(diag, -EBUSY, "close", "the guest is %s", shim_state_names[s->state]);
		s->quit = true;
		return 0;
	}
	if (!s->have_start)
		return diag_set(diag, -EINVAL, shim_command_names[cmd->type], "nothing was started");
	switch (cmd->type) {
	case SHIM_CMD_GO:
		return guest_go(s, diag);
	case SHIM_CMD_LEASE:
		return lease_command(s, &cmd->lease, diag);
	case SHIM_CMD_NOTICE:
		if (s->state >= SHIM_STOPPING)
			return diag_set(diag, -ESRCH, "notice", "the guest is %s", shim_state_names[s->state]);
		notice_begin(s, (struct shim_notice *)&cmd->notice);
		return 0;
	case SHIM_CMD_CANCEL:
		if (s->state != SHIM_NOTICED)
			return diag_set(diag, -EINVAL, "cancel", "there is no notice");
		notice_cancel(s);
		return 0;
	case SHIM_CMD_FREEZE:
	case SHIM_CMD_THAW:
		if (cmd->type == SHIM_CMD_THAW && s->lease_frozen)
			return diag_set(diag, -EPERM, "thaw", "the lease ran out: only a new one lets it go on");
		r = guest_freeze(s, cmd->type == SHIM_CMD_FREEZE, diag);
		if (r == 0)
			state_changed(s, NULL);
		return r;
	case SHIM_CMD_SAVED:
		notice_saved(s, "the agent holds it");
		return 0;
	case SHIM_CMD_KILL:
		guest_stop(s, cmd->kill.end == SHIM_END_NONE ? SHIM_END_KILLED : (enum shim_end)cmd->kill.end,
			   cmd->kill.reason ? cmd->kill.reason : "killed");
		return 0;
	case SHIM_CMD_SIGNAL:
		if (s->state != SHIM_RUNNING)
			return diag_set(diag, -EINVAL, "signal", "the guest is %s", shim_state_names[s->state]);
		notice_checkpoint(s);
		return 0;
	case SHIM_CMD_DUMP:
		return dump_begin(s, &cmd->dump, cmd->id, diag);
	default:
		return diag_set(diag, -EINVAL, shim_command_names[cmd->type], "not known here");
	}
}
