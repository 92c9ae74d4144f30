/* SPDX-License-Identifier: Apache-2.0 */
#include "job/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "job/proc.h"

/* The parts of NVML's ABI that are used (NVML API reference; stable since driver 418). */
enum { NVML_SUCCESS = 0, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_DRIVER_NOT_LOADED = 9,
       NVML_ERROR_GPU_IS_LOST = 15 };
typedef int nvml_return;
struct nvml_memory {
	unsigned long long total, free, used;
};
struct nvml_utilisation {
	unsigned gpu, memory;
};
struct nvml_pci {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};
struct nvml_process_info { /* v2 and v3 */
	unsigned pid;
	unsigned long long memory;
	unsigned gpu_instance, compute_instance;
};

struct nvml {
	void *handle;
	nvml_return (*init)(void);
	nvml_return (*shutdown)(void);
	nvml_return (*count)(unsigned *);
	nvml_return (*by_index)(unsigned, void **);
	nvml_return (*name)(void *, char *, unsigned);
	nvml_return (*uuid)(void *, char *, unsigned);
	nvml_return (*memory)(void *, struct nvml_memory *);
	nvml_return (*pci)(void *, struct nvml_pci *);
	nvml_return (*minor)(void *, unsigned *);
	nvml_return (*mode)(void *, int *);
	nvml_return (*utilisation)(void *, struct nvml_utilisation *);
	nvml_return (*compute)(void *, unsigned *, struct nvml_process_info *);
	nvml_return (*graphics)(void *, unsigned *, struct nvml_process_info *);
	const char *(*error)(nvml_return);
};

const char *const nvml_free_names[] = { "free", "held", "zombie", "lingers", "lost", NULL };

static const char *error_text(struct nvml *n, nvml_return r)
{
	return n->error ? n->error(r) : "NVML error";
}

/* Newest name first; NULL when the library has none of them. */
static void *find(struct nvml *n, const char *a, const char *b, const char *c)
{
	void *p = dlsym(n->handle, a);

	if (!p && b)
		p = dlsym(n->handle, b);
	if (!p && c)
		p = dlsym(n->handle, c);
	return p;
}

static bool find_all(struct nvml *n)
{
	n->init = find(n, "nvmlInit_v2", "nvmlInit", NULL);
	n->shutdown = find(n, "nvmlShutdown", NULL, NULL);
	n->count = find(n, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", NULL);
	n->by_index = find(n, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex", NULL);
	n->name = find(n, "nvmlDeviceGetName", NULL, NULL);
	n->uuid = find(n, "nvmlDeviceGetUUID", NULL, NULL);
	n->memory = find(n, "nvmlDeviceGetMemoryInfo", NULL, NULL);
	n->pci = find(n, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", NULL);
	n->minor = find(n, "nvmlDeviceGetMinorNumber", NULL, NULL);
	n->mode = find(n, "nvmlDeviceGetComputeMode", NULL, NULL);
	n->utilisation = find(n, "nvmlDeviceGetUtilizationRates", NULL, NULL);
	n->compute = find(n, "nvmlDeviceGetComputeRunningProcesses_v3",
			  "nvmlDeviceGetComputeRunningProcesses_v2", NULL);
	n->graphics = find(n, "nvmlDeviceGetGraphicsRunningProcesses_v3",
			   "nvmlDeviceGetGraphicsRunningProcesses_v2", NULL);
	n->error = (const char *(*)(nvml_return))find(n, "nvmlErrorString", NULL, NULL);
	return n->init && n->shutdown && n->count && n->by_index && n->name && n->uuid && n->memory && n->compute;
}

int nvml_open(const char *library, struct nvml **ret, struct diag *diag)
{
	struct nvml *n = calloc(1, sizeof(*n));
	unsigned count = 0;
	nvml_return r;

	if (!n)
		return diag_set(diag, -ENOMEM, "nvml", "out of memory");
	if (!library)
		library = getenv("RECLAIM_NVML");
	if (!library)
		library = "libnvidia-ml.so.1";
	n->handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!n->handle) {
		free(n);
		return diag_set(diag, -ENOENT, "nvml", "no NVML (%s is not here)", library);
	}
	if (!find_all(n)) {
		(void)dlclose(n->handle);
		free(n);
		return diag_set(diag, -ENOENT, "nvml", "%s is too old: a function is missing", library);
	}
	r = n->init();
	if (r == NVML_SUCCESS)
		r = n->count(&count);
	if (r != NVML_SUCCESS || !count) {
		int err = diag_set(diag, -ENODEV, "nvml", "%s",
				   r != NVML_SUCCESS ? error_text(n, r) : "NVML is here, and no GPU");

		(void)dlclose(n->handle);
		free(n);
		return err;
	}
	*ret = n;
	return 0;
}

void nvml_close(struct nvml *n)
{
	if (!n)
		return;
	(void)n->shutdown(); /* nothing left to report to */
	(void)dlclose(n->handle);
	free(n);
}

static void add_processes(struct nvml *n, void *dev, bool graphics, struct nvml_gpu *g)
{
	struct nvml_process_info infos[NVML_PROCESSES_MAX];
	nvml_return (*get)(void *, unsigned *, struct nvml_process_info *) = graphics ? n->graphics : n->compute;
	unsigned count = NVML_PROCESSES_MAX;

	if (!get)
		return;
	memset(infos, 0, sizeof(infos));
	/* More than fit: those that did are enough to say that it is held. */
	if (get(dev, &count, infos) != NVML_SUCCESS)
		return;
	for (unsigned i = 0; i < MIN(count, (unsigned)NVML_PROCESSES_MAX) && g->process_count < NVML_PROCESSES_MAX;
	     i++) {
		struct nvml_process *p = &g->processes[g->process_count++];
		struct proc_info info;

		*p = (struct nvml_process){ .pid = infos[i].pid, .graphics = graphics };
		/* All ones is NVML's "not available". */
		p->memory = infos[i].memory == ~0ULL ? 0 : infos[i].memory;
		if (proc_read((pid_t)infos[i].pid, false, &info) == 0) {
			p->alive = info.state != 'Z' && info.state != 'X';
			(void)snprintf(p->name, sizeof(p->name), "%.31s", info.comm);
		}
	}
}

static void read_gpu(struct nvml *n, unsigned index, struct nvml_gpu *g)
{
	struct nvml_memory memory;
	struct nvml_utilisation use;
	struct nvml_pci pci;
	void *dev = NULL;
	unsigned minor;
	nvml_return r = n->by_index(index, &dev);

	*g = (struct nvml_gpu){ .index = index, .mode = NVML_MODE_UNKNOWN };
	if (r == NVML_SUCCESS)
		r = n->memory(dev, &memory);
	if (dev && n->uuid(dev, g->uuid, sizeof(g->uuid)) != NVML_SUCCESS)
		g->uuid[0] = '\0';
	if (dev && n->name(dev, g->name, sizeof(g->name)) != NVML_SUCCESS)
		g->name[0] = '\0';
	if (r != NVML_SUCCESS) {
		g->lost = true;
		return;
	}
	g->memory_total = memory.total;
	g->memory_used = memory.used;
	if (n->pci && n->pci(dev, &pci) == NVML_SUCCESS)
		(void)snprintf(g->pci, sizeof(g->pci), "%.31s", pci.bus_id);
	if (n->minor && n->minor(dev, &minor) == NVML_SUCCESS)
		(void)snprintf(g->device, sizeof(g->device), "/dev/nvidia%u", minor);
	if (n->mode && n->mode(dev, &g->mode) != NVML_SUCCESS)
		g->mode = NVML_MODE_UNKNOWN;
	if (n->utilisation && n->utilisation(dev, &use) == NVML_SUCCESS)
		g->utilisation = use.gpu;
	add_processes(n, dev, false, g);
	add_processes(n, dev, true, g);
}

int nvml_list(struct nvml *n, struct nvml_gpus *ret, struct diag *diag)
{
	unsigned count = 0;
	nvml_return r = n->count(&count);

	if (r != NVML_SUCCESS)
		return diag_set(diag, -EIO, "nvml", "%s", error_text(n, r));
	ret->count = MIN(count, (unsigned)NVML_GPUS_MAX);
	for (unsigned i = 0; i < ret->count; i++)
		read_gpu(n, i, &ret->items[i]);
	return 0;
}

size_t nvml_common_devices(const char **ret, size_t max)
{
	static const char *const nodes[] = { "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
					     "/dev/nvidia-modeset" };
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(nodes) && n < max; i++)
		if (access(nodes[i], F_OK) == 0)
			ret[n++] = nodes[i];
	return n;
}

/* ---- hand-back ---- */

void nvml_baseline_take(const struct nvml_gpu *gpu, struct nvml_baseline *ret)
{
	*ret = (struct nvml_baseline){ .memory_used = gpu->memory_used };
	(void)snprintf(ret->uuid, sizeof(ret->uuid), "%s", gpu->uuid);
	for (size_t i = 0; i < gpu->process_count; i++)
		ret->pids[ret->pid_count++] = gpu->processes[i].pid;
}

static bool in_baseline(const struct nvml_baseline *b, uint32_t pid)
{
	for (size_t i = 0; i < b->pid_count; i++)
		if (b->pids[i] == pid)
			return true;
	return false;
}

enum nvml_free nvml_is_free(const struct nvml_gpu *now, const struct nvml_baseline *b, char *why, size_t why_size)
{
	enum nvml_free worst = NVML_FREE;

	(void)snprintf(why, why_size, "%s: %llu MiB in use, as before", now->uuid,
		       (unsigned long long)(now->memory_used >> 20));
	if (now->lost) {
		(void)snprintf(why, why_size, "GPU %u (%s) does not answer: lost", now->index, b->uuid);
		return NVML_LOST;
	}
	for (size_t i = 0; i < now->process_count; i++) {
		const struct nvml_process *p = &now->processes[i];

		if (in_baseline(b, p->pid))
			continue;
		(void)snprintf(why, why_size, "%s: pid %u (%s)%s holds %llu MiB", now->uuid, p->pid,
			       p->name[0] ? p->name : "?", p->alive ? "" : ", dead,",
			       (unsigned long long)(p->memory >> 20));
		/* One that lives is named before one that is dead: it can be killed. */
		if (p->alive)
			return NVML_HELD;
		worst = NVML_ZOMBIE;
	}
	if (worst == NVML_FREE && now->memory_used > b->memory_used + NVML_SLACK_BYTES) {
		(void)snprintf(why, why_size, "%s: %llu MiB in use and %llu MiB before, by no process that is listed",
			       now->uuid, (unsigned long long)(now->memory_used >> 20),
			       (unsigned long long)(b->memory_used >> 20));
		return NVML_LINGERS;
	}
	return worst;
}

bool nvml_owner_uses(const struct nvml_gpu *now, const struct nvml_baseline *b, const uint32_t *guest_pids,
		     size_t guest_count, uint32_t *ret_pid)
{
	for (size_t i = 0; i < now->process_count; i++) {
		bool guest = false;

		for (size_t k = 0; k < guest_count; k++)
			guest = guest || guest_pids[k] == now->processes[i].pid;
		if (guest || in_baseline(b, now->processes[i].pid) || now->processes[i].graphics)
			continue;
		if (ret_pid)
			*ret_pid = now->processes[i].pid;
		return true;
	}
	return false;
}
