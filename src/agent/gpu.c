/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/task.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"

#define AGAIN_NS (50 * NS_PER_MS)
/* A context ends with its process, but the driver may take a moment; then it is an alarm. */
#define SETTLE_NS NS_PER_S
#define SILENT_NS (2 * NS_PER_S)

enum proof { PROOF_NONE = 0, PROOF_FREE, PROOF_ALARM };

struct gpus {
	struct agent *agent;
	struct nvml *nvml;
	struct nvml_gpus now;
	struct nvml_baseline baselines[NVML_GPUS_MAX];
	size_t baselines_count;
	bool used[NVML_GPUS_MAX]; /* by a guest since the baseline, by index */
	bool any_used;
	unsigned generation;      /* of lending: an answer to an earlier question says nothing */
	bool looking;
	enum proof proof;
	uint64_t asked_ns;
	char alarm[CONTROL_TEXT_MAX];
	struct loop_timer again;
};

struct look {
	struct gpus *gpus;
	unsigned generation;
	bool baseline;
	struct nvml_gpus now;
	int error;
	char parent[256]; /* of the guests' control groups; "" = there are none */
	bool owners[NVML_GPUS_MAX][NVML_PROCESSES_MAX]; /* alive, and no guest's */
};

static void look_again(void *user)
{
	struct gpus *s = user;
	owner_check_empty(s->agent);
}

void gpu_open(struct agent *a)
{
	struct gpus *s;
	struct diag diag = DIAG_INIT;
	size_t lent = 0;
	for (size_t i = 0; i < a->terms.slots_count; i++)
		lent += a->terms.slots[i].kind == TERMS_SLOT_GPU;
	if (lent == 0)
		return;
	s = calloc(1, sizeof(*s));
	if (s && nvml_open(NULL, &s->nvml, &diag) == 0 && nvml_list(s->nvml, &s->now, &diag) == 0) {
		s->agent = a;
		loop_timer_init(&s->again, a->loop, look_again, s);
		a->gpus = s;
		return;
	}
	log_warn("GPU slots cannot be lent: %s", s ? diag.what : "out of memory");
	if (s)
		nvml_close(s->nvml);
	free(s);
}

static bool is_of_slot(const struct nvml_gpu *gpu, const struct terms_slot *slot)
{
	char index[16];
	(void)snprintf(index, sizeof(index), "%u", gpu->index);
	return slot->kind == TERMS_SLOT_GPU && slot->gpu &&
	       (strcmp(slot->gpu, index) == 0 || strcmp(slot->gpu, gpu->uuid) == 0 ||
		strcasecmp(slot->gpu, gpu->pci) == 0);
}

const struct nvml_gpu *gpu_of_slot(const struct agent *a, size_t slot)
{
	const struct gpus *s = a->gpus;
	for (size_t i = 0; s && i < s->now.count; i++)
		if (!s->now.items[i].lost && is_of_slot(&s->now.items[i], &a->terms.slots[slot]))
			return &s->now.items[i];
	return NULL;
}

void gpu_used(struct agent *a, size_t slot)
{
	const struct nvml_gpu *gpu = gpu_of_slot(a, slot);
	if (!gpu)
		return;
	a->gpus->used[gpu->index % NVML_GPUS_MAX] = a->gpus->any_used = true;
}

/* ---- looking ---- */

/* Every process of a guest is below the guests' control group, wherever it has got to. */
static bool is_guests(const char *parent, uint32_t pid)
{
	char path[64];
	CLEANUP_FREE char *text = NULL;
	(void)snprintf(path, sizeof(path), "/proc/%u/cgroup", pid);
	if (!parent[0] || file_read(path, 65536, &text, NULL) < 0)
		return true; /* cannot be told apart: not passed over */
	return strstr(text, parent) != NULL;
}

static void look_work(void *arg)
{
	struct look *l = arg;
	l->error = nvml_list(l->gpus->nvml, &l->now, NULL);
	for (size_t i = 0; l->error == 0 && i < l->now.count; i++)
		for (size_t k = 0; k < l->now.items[i].process_count; k++) {
			const struct nvml_process *p = &l->now.items[i].processes[k];
			l->owners[i][k] = p->alive && !is_guests(l->parent, p->pid);
		}
}

static const struct nvml_baseline *baseline_of(const struct gpus *s, const struct nvml_gpu *gpu)
{
	/* One that is lost does not tell its UUID: its place does. */
	if (gpu->lost)
		return gpu->index < s->baselines_count ? &s->baselines[gpu->index] : NULL;
	for (size_t i = 0; i < s->baselines_count; i++)
		if (strcmp(s->baselines[i].uuid, gpu->uuid) == 0)
			return &s->baselines[i];
	return NULL;
}

/* True if free; else why says what is left. What the owner runs there is his business, and what it
 * uses cannot be told from what a guest may have left. */
static bool judge(const struct gpus *s, const struct look *l, size_t i, char *why, size_t size)
{
	const struct nvml_gpu *gpu = &l->now.items[i];
	const struct nvml_baseline *lent = baseline_of(s, gpu);
	if (!s->used[gpu->index % NVML_GPUS_MAX])
		return true;
	/* An agent that was started again in between knows no baseline: processes tell it all the same. */
	struct nvml_baseline base = lent ? *lent : (struct nvml_baseline){ .memory_used = UINT64_MAX / 2 };
	bool owner = false;
	for (size_t k = 0; k < gpu->process_count; k++) {
		if (!l->owners[i][k])
			continue;
		owner = true;
		if (base.pid_count < NVML_PROCESSES_MAX)
			base.pids[base.pid_count++] = gpu->processes[k].pid;
	}
	enum nvml_free is = nvml_is_free(gpu, &base, why, size);
	return is == NVML_FREE || (is == NVML_LINGERS && owner);
}

static void judge_all(struct gpus *s, const struct look *l)
{
	char why[400];
	s->alarm[0] = '\0';
	if (l->error) {
		(void)snprintf(s->alarm, sizeof(s->alarm), "NVML does not say what is on the GPUs");
	} else {
		for (size_t i = 0; i < l->now.count && !s->alarm[0]; i++)
			if (!judge(s, l, i, why, sizeof(why)))
				(void)snprintf(s->alarm, sizeof(s->alarm), "%s", why);
	}
	if (!s->alarm[0])
		s->proof = PROOF_FREE;
	else if (clock_boot_ns() >= s->asked_ns + SETTLE_NS)
		s->proof = PROOF_ALARM;
	(void)loop_timer_in(&s->again, s->proof == PROOF_NONE ? AGAIN_NS : 0);
}

static void look_done(void *arg)
{
	struct look *l = arg;
	struct gpus *s = l->gpus;
	s->looking = false;
	if (l->generation == s->generation && l->baseline && l->error == 0) {
		s->now = l->now;
		s->baselines_count = l->now.count;
		for (size_t i = 0; i < l->now.count; i++)
			nvml_baseline_take(&l->now.items[i], &s->baselines[i]);
	} else if (l->generation == s->generation && !l->baseline && s->proof == PROOF_NONE) {
		judge_all(s, l);
	}
	free(l);
}

static void look(struct gpus *s, bool baseline)
{
	struct look *l = s->looking ? NULL : calloc(1, sizeof(*l));
	if (!l)
		return;
	l->gpus = s;
	l->generation = s->generation;
	l->baseline = baseline;
	(void)agent_cgroup_parent(s->agent, l->parent, sizeof(l->parent));
	s->looking = task_run(s->agent->loop, look_work, look_done, l) == 0;
	if (!s->looking)
		free(l);
}

/* ---- lending and handing back ---- */

void gpu_lent(struct agent *a)
{
	struct gpus *s = a->gpus;
	if (!s)
		return;
	s->generation++;
	s->proof = PROOF_NONE;
	s->asked_ns = 0;
	s->alarm[0] = '\0';
	s->any_used = false;
	memset(s->used, 0, sizeof(s->used));
	/* As it was when the agent started, until the answer is there. */
	s->baselines_count = s->now.count;
	for (size_t i = 0; i < s->now.count; i++)
		nvml_baseline_take(&s->now.items[i], &s->baselines[i]);
	look(s, true);
}

bool gpu_handed_back(struct agent *a)
{
	struct gpus *s = a->gpus;
	uint64_t now = clock_boot_ns();
	if (!s || !s->any_used || s->proof != PROOF_NONE)
		return true;
	if (!s->asked_ns)
		s->asked_ns = now;
	if (!s->looking) {
		look(s, false);
	} else if (now >= s->asked_ns + SILENT_NS) {
		(void)snprintf(s->alarm, sizeof(s->alarm), "NVML does not answer: what is on the GPUs is not known");
		s->proof = PROOF_ALARM;
		return true;
	}
	(void)loop_timer_in(&s->again, AGAIN_NS);
	return false;
}

const char *gpu_alarm(const struct agent *a)
{
	return a->gpus && a->gpus->proof == PROOF_ALARM ? a->gpus->alarm : "";
}
