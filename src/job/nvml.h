/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs by NVML, found at run time (dlopen): no GPU and no library is the usual case, and
 * then nvml_open() says so by name. The prototypes are our own, after NVIDIA's public
 * NVML API reference; a small fake library serves the tests (tests/job/fake_nvml.c).
 *
 * Used by the agent's inventory, by the owner's own-use trigger, and by the hand-back
 * proof: at lend time a baseline of used memory is taken per GPU, and a GPU is free again
 * when no process but those of the baseline has a context on it and the memory in use is
 * back at the baseline, within a slack.
 */
#ifndef RECLAIM_JOB_NVML_H
#define RECLAIM_JOB_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

#define NVML_GPUS_MAX 64
#define NVML_PROCESSES_MAX 64
#define NVML_SLACK_BYTES (UINT64_C(64) << 20) /* what the driver keeps or not as it likes */

enum nvml_compute_mode { NVML_MODE_DEFAULT = 0, NVML_MODE_EXCLUSIVE_THREAD, NVML_MODE_PROHIBITED,
			 NVML_MODE_EXCLUSIVE_PROCESS, NVML_MODE_UNKNOWN = 99 };

struct nvml_process {
	uint32_t pid;      /* of the host's pid namespace */
	uint64_t memory;   /* bytes, 0 = unknown */
	bool graphics;     /* a display or a compositor, not compute */
	bool alive;        /* false: a zombie, or gone, and its context still there */
	char name[32];
};

struct nvml_gpu {
	unsigned index;
	char uuid[96], name[96], pci[32];
	char device[32];      /* "/dev/nvidia0", "" = unknown */
	uint64_t memory_total, memory_used; /* bytes */
	int mode;             /* enum nvml_compute_mode */
	unsigned utilisation; /* percent of the last period */
	bool lost;            /* fell off the bus: nothing else here is known */
	struct nvml_process processes[NVML_PROCESSES_MAX];
	size_t process_count;
};
struct nvml_gpus {
	struct nvml_gpu items[NVML_GPUS_MAX];
	size_t count;
};

struct nvml;

/* library: NULL = "libnvidia-ml.so.1" (or $RECLAIM_NVML). 0, -ENOENT (no library),
 * -ENODEV (no driver or no GPU), with diag. */
int nvml_open(const char *library, struct nvml **ret, struct diag *diag);
void nvml_close(struct nvml *n);
/* All GPUs with their processes. A GPU that is lost is listed as lost, not left out. */
int nvml_list(struct nvml *n, struct nvml_gpus *ret, struct diag *diag);
/* Which other device nodes a guest of any GPU needs: /dev/nvidiactl, nvidia-uvm, ... that exist. */
size_t nvml_common_devices(const char **ret, size_t max);

/* ---- hand-back ---- */

struct nvml_baseline {
	char uuid[96];
	uint64_t memory_used;
	uint32_t pids[NVML_PROCESSES_MAX]; /* the owner's own, that were there already */
	size_t pid_count;
};
void nvml_baseline_take(const struct nvml_gpu *gpu, struct nvml_baseline *ret);

enum nvml_free {
	NVML_FREE = 0,
	NVML_HELD,     /* a process that is not of the baseline has a context */
	NVML_ZOMBIE,   /* such a process is dead and its context lives: the driver must be asked */
	NVML_LINGERS,  /* nobody is there and memory is still in use */
	NVML_LOST,     /* the GPU does not answer */
};
extern const char *const nvml_free_names[];

/* why names pids and bytes, for the proof or the alarm. Pure. */
enum nvml_free nvml_is_free(const struct nvml_gpu *now, const struct nvml_baseline *baseline, char *why,
			    size_t why_size);
/* Does a process that is neither of the baseline nor in guests use the GPU (the owner's own use)? */
bool nvml_owner_uses(const struct nvml_gpu *now, const struct nvml_baseline *baseline, const uint32_t *guest_pids,
		     size_t guest_count, uint32_t *ret_pid);

#endif
