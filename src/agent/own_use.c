/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/own_use.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/task.h"
#include "agent/trigger.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "job/cgroup.h"
#include "job/leftover.h"
#include "job/nvml.h"
#include "job/proc.h"

#define GPU_EVERY_NS NS_PER_S
#define CPU_EVERY_NS (5 * NS_PER_S)
/* One busy sample may be cron's; two in a row are somebody's work. */
#define CPU_SAMPLES 2

/* One look at the GPUs, in a thread: touches nothing else. */
struct gpu_look {
	struct own_use *use;
	unsigned generation;
	bool baseline;               /* take it, instead of comparing with it */
	struct nvml_gpus now;
	struct {
		char job[CONTROL_NAME_MAX + 1];
		uint64_t epoch;
	} guests[AGENT_GUESTS_MAX];
	size_t guests_count;
	char parent[256];
	struct pid_list pids;
	int error;
};

struct own_use {
	struct agent *agent;
	struct loop_timer gpu_timer, cpu_timer;
	struct nvml *nvml;
	struct nvml_baseline baselines[NVML_GPUS_MAX];
	size_t baselines_count;
	unsigned generation;         /* of lending: a look of an earlier one says nothing */
	bool looking, lent;
	struct cgroup_caps caps;
	struct own_cpu_sample cpu;
	unsigned cpu_busy;
	uint32_t gpu_pid;            /* seen in the last look; a guest that just left is gone in the next */
	char gpu_missing[160], cpu_missing[160];
};

/* ---- CPU ---- */

int own_cpu_parse(const char *stat, uint64_t ticks_per_s, uint64_t *ret_busy_ns)
{
	uint64_t user, nice, system, idle, iowait, irq, softirq;
	if (ticks_per_s == 0 ||
	    sscanf(stat, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
		   &user, &nice, &system, &idle, &iowait, &irq, &softirq) != 7)
		return -EINVAL;
	/* Interrupts are left out: guests' packets are served in them. */
	*ret_busy_ns = (user + nice + system) * (NS_PER_S / ticks_per_s);
	return 0;
}

double own_cpu_cores(const struct own_cpu_sample *before, const struct own_cpu_sample *now)
{
	if (now->at_ns <= before->at_ns || now->busy_ns < before->busy_ns)
		return 0;
	/* A guest or a transfer that ended takes its count along: less is taken off then, never more. */
	uint64_t guests = now->guests_ns > before->guests_ns ? now->guests_ns - before->guests_ns : 0;
	uint64_t ours = now->ours_ns > before->ours_ns ? now->ours_ns - before->ours_ns : 0;
	uint64_t busy = now->busy_ns - before->busy_ns;
	if (busy <= guests + ours)
		return 0;
	return (double)(busy - guests - ours) / (double)(now->at_ns - before->at_ns);
}

/* The agent's and its direct children's: shims and transfers. Guests are below shims. */
static uint64_t our_cpu_ns(void)
{
	CLEANUP_FREE char *text = NULL;
	char path[64];
	struct proc_info p;
	uint64_t ticks = 0;
	if (proc_read(getpid(), false, &p) == 0)
		ticks += p.cpu_ticks;
	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	if (file_read(path, 65536, &text, NULL) == 0) {
		char *save = NULL;
		for (char *word = strtok_r(text, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
			if (proc_read((pid_t)atoi(word), false, &p) == 0)
				ticks += p.cpu_ticks;
	}
	return ticks * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}

static int cpu_sample(struct own_use *u, struct own_cpu_sample *ret)
{
	CLEANUP_FREE char *stat = NULL;
	char parent[256], *name;
	struct cgroup *cg;
	struct cgroup_usage usage;
	int r = file_read("/proc/stat", 1u << 20, &stat, NULL);
	if (r == 0)
		r = own_cpu_parse(stat, (uint64_t)sysconf(_SC_CLK_TCK), &ret->busy_ns);
	if (r < 0)
		return r;
	if (!agent_cgroup_parent(u->agent, parent, sizeof(parent)))
		return -EACCES;
	name = strrchr(parent, '/');
	if (!name)
		return -EINVAL;
	*name++ = '\0';
	ret->at_ns = clock_boot_ns();
	ret->ours_ns = our_cpu_ns();
	ret->guests_ns = 0;
	r = cgroup_open(&u->caps, parent, name, &cg);
	if (r == 0) {
		cgroup_usage(cg, &usage);
		cgroup_free(cg);
		ret->guests_ns = usage.cpu_ns;
	}
	return r == -ENOENT ? 0 : r; /* no guest has been here yet */
}

static void on_cpu_timer(void *user)
{
	struct own_use *u = user;
	struct own_cpu_sample now;
	double wanted = u->agent->terms.triggers.cpu;
	if (!u->lent || wanted <= 0)
		return;
	(void)loop_timer_in(&u->cpu_timer, CPU_EVERY_NS);
	int r = cpu_sample(u, &now);
	if (r < 0) {
		(void)snprintf(u->cpu_missing, sizeof(u->cpu_missing), "guests' CPU time is not known here: %s",
			       strerror(-r));
		return;
	}
	u->cpu_missing[0] = '\0';
	double cores = u->cpu.at_ns ? own_cpu_cores(&u->cpu, &now) : 0;
	u->cpu = now;
	u->cpu_busy = cores >= wanted ? u->cpu_busy + 1 : 0;
	if (u->cpu_busy < CPU_SAMPLES)
		return;
	char detail[64];
	(void)snprintf(detail, sizeof(detail), "%.1f cores", cores);
	u->cpu_busy = 0;
	trigger_fire(u->agent, TRIGGER_CPU, detail);
}

/* ---- GPU ---- */

static void gpu_look(void *arg)
{
	struct gpu_look *l = arg;
	struct diag diag = DIAG_INIT;
	l->error = nvml_list(l->use->nvml, &l->now, &diag);
	for (size_t i = 0; i < l->guests_count && l->error == 0; i++) {
		struct pid_list some = VEC_INIT;
		(void)leftover_find(l->parent[0] ? l->parent : NULL, l->guests[i].job, l->guests[i].epoch, &some);
		VEC_EACH(&some, pid)
			(void)VEC_PUSH(&l->pids, *pid); /* one missed is a trigger too many, once */
		VEC_DONE(&some);
	}
}

static bool gpu_is_lent(const struct agent *a, const struct nvml_gpu *gpu)
{
	char index[16];
	(void)snprintf(index, sizeof(index), "%u", gpu->index);
	for (size_t i = 0; i < a->terms.slots_count; i++) {
		const char *name = a->terms.slots[i].gpu;
		if (name && (strcmp(name, index) == 0 || strcmp(name, gpu->uuid) == 0 ||
			     strcasecmp(name, gpu->pci) == 0))
			return true;
	}
	return false;
}

static void gpu_compare(struct own_use *u, const struct gpu_look *l)
{
	for (size_t i = 0; i < l->now.count; i++) {
		const struct nvml_gpu *gpu = &l->now.items[i];
		const struct nvml_baseline *base = NULL;
		uint32_t pid, guests[1024];
		size_t guests_count = 0;
		for (size_t k = 0; k < u->baselines_count && !base; k++)
			if (strcmp(u->baselines[k].uuid, gpu->uuid) == 0)
				base = &u->baselines[k];
		if (!base || gpu->lost || !gpu_is_lent(u->agent, gpu))
			continue;
		VEC_EACH(&l->pids, p)
			if (guests_count < ARRAY_SIZE(guests))
				guests[guests_count++] = (uint32_t)*p;
		if (!nvml_owner_uses(gpu, base, guests, guests_count, &pid))
			continue;
		if (pid != u->gpu_pid) {
			u->gpu_pid = pid;
			return;
		}
		char detail[64];
		(void)snprintf(detail, sizeof(detail), "process %u on GPU %u", pid, gpu->index);
		trigger_fire(u->agent, TRIGGER_GPU, detail);
		return;
	}
	u->gpu_pid = 0;
}

static void gpu_done(void *arg)
{
	struct gpu_look *l = arg;
	struct own_use *u = l->use;
	u->looking = false;
	if (l->error == 0 && l->generation == u->generation && u->lent) {
		if (l->baseline) {
			u->baselines_count = l->now.count;
			for (size_t i = 0; i < l->now.count; i++)
				nvml_baseline_take(&l->now.items[i], &u->baselines[i]);
		} else {
			gpu_compare(u, l);
		}
	}
	VEC_DONE(&l->pids);
	free(l);
	if (u->lent)
		(void)loop_timer_in(&u->gpu_timer, GPU_EVERY_NS);
}

static void on_gpu_timer(void *user)
{
	struct own_use *u = user;
	struct agent *a = u->agent;
	if (!u->lent || !u->nvml || u->looking || !a->terms.triggers.gpu)
		return;
	struct gpu_look *l = calloc(1, sizeof(*l));
	if (!l)
		return; /* asked again when it is next lent */
	l->use = u;
	l->generation = u->generation;
	l->baseline = u->baselines_count == 0;
	(void)agent_cgroup_parent(a, l->parent, sizeof(l->parent));
	for (struct guest *g = a->guests; g && l->guests_count < AGENT_GUESTS_MAX; g = g->next) {
		(void)snprintf(l->guests[l->guests_count].job, sizeof(l->guests[0].job), "%s", g->job);
		l->guests[l->guests_count++].epoch = g->epoch;
	}
	u->looking = task_run(a->loop, gpu_look, gpu_done, l) == 0;
	if (!u->looking)
		free(l);
}

/* ---- both ---- */

int own_use_open(struct agent *a, struct own_use **ret)
{
	struct own_use *u = calloc(1, sizeof(*u));
	struct diag diag = DIAG_INIT;
	if (!u)
		return -ENOMEM;
	u->agent = a;
	loop_timer_init(&u->gpu_timer, a->loop, on_gpu_timer, u);
	loop_timer_init(&u->cpu_timer, a->loop, on_cpu_timer, u);
	if (nvml_open(NULL, &u->nvml, &diag) < 0)
		(void)snprintf(u->gpu_missing, sizeof(u->gpu_missing), "%.150s", diag.what);
	cgroup_probe("/proc/self/mountinfo", &u->caps);
	*ret = u;
	return 0;
}

void own_use_lent(struct own_use *u, bool lent)
{
	if (!u)
		return;
	u->lent = lent;
	u->generation++;
	u->baselines_count = 0;
	u->cpu.at_ns = 0;
	u->cpu_busy = 0;
	loop_timer_stop(&u->cpu_timer);
	loop_timer_stop(&u->gpu_timer);
	if (lent) {
		on_gpu_timer(u);
		on_cpu_timer(u);
	}
}

const char *own_use_missing_gpu(const struct own_use *u)
{
	return u->gpu_missing[0] ? u->gpu_missing : NULL;
}

const char *own_use_missing_cpu(const struct own_use *u)
{
	return u->cpu_missing[0] ? u->cpu_missing : NULL;
}
