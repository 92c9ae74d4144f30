/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs that are lent: what they are (for hello and for guests), how they were
 * when the machine was lent, and whether they are so again when it is handed back.
 * Without NVML, or without a GPU slot in the terms, there is nothing to see to.
 *
 * NVML is asked in threads: a driver that hangs must not keep the owner's commands
 * waiting. It is asked once on the loop, when the agent starts.
 */
#ifndef RECLAIM_AGENT_GPU_H
#define RECLAIM_AGENT_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "job/nvml.h"

struct agent;
struct gpus;

/* Never fails: without NVML it says so in the log, if the terms lend a GPU. */
void gpu_open(struct agent *a);
/* The machine is lent from now on: the baseline. */
void gpu_lent(struct agent *a);
/* The GPU of that slot of the terms, as last seen; NULL: no GPU slot, not there, or lost. */
const struct nvml_gpu *gpu_of_slot(const struct agent *a, size_t slot);
/* A guest was given that slot: what it left on the GPU is looked at. */
void gpu_used(struct agent *a, size_t slot);
/*
 * No guest's process is left: is nothing of theirs on the GPUs either? true: known, and gpu_alarm() is
 * empty or says what is left. false: being asked; owner_check_empty() comes again.
 */
bool gpu_handed_back(struct agent *a);
const char *gpu_alarm(const struct agent *a);

#endif
