/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NVML for tests: plays the GPUs of the text file $FAKE_NVML, one a line:
 *
 *     NAME UUID USED_MIB TOTAL_MIB [lost] [PID:MIB...]
 *
 * Read anew at every call, so that a test changes the world by writing the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 8
#define PROCESSES 16

struct gpu {
	char name[64], uuid[64];
	unsigned long long used, total;
	int lost;
	unsigned pids[PROCESSES], count;
	unsigned long long memory[PROCESSES];
};
static struct gpu gpus[GPUS];
static unsigned gpu_count;

struct memory {
	unsigned long long total, free, used;
};
struct process {
	unsigned pid;
	unsigned long long memory;
	unsigned gpu_instance, compute_instance;
};

static void load(void)
{
	const char *path = getenv("FAKE_NVML");
	FILE *f = path ? fopen(path, "r") : NULL;
	char line[512];

	gpu_count = 0;
	while (f && gpu_count < GPUS && fgets(line, sizeof(line), f)) {
		struct gpu *g = &gpus[gpu_count];
		char *save = NULL;

		memset(g, 0, sizeof(*g));
		if (sscanf(line, "%63s %63s %llu %llu", g->name, g->uuid, &g->used, &g->total) != 4)
			continue;
		(void)strtok_r(line, " \n", &save);
		for (char *t; (t = strtok_r(NULL, " \n", &save));) {
			char *colon = strchr(t, ':');

			if (!strcmp(t, "lost"))
				g->lost = 1;
			if (colon && g->count < PROCESSES) {
				g->pids[g->count] = (unsigned)atoi(t);
				g->memory[g->count++] = strtoull(colon + 1, NULL, 10) << 20;
			}
		}
		gpu_count++;
	}
	if (f)
		(void)fclose(f);
}

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
	load();
	return getenv("FAKE_NVML_DRIVER") ? 9 : 0;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
	return 0;
}

const char *nvmlErrorString(int r);
const char *nvmlErrorString(int r)
{
	return r == 9 ? "Driver Not Loaded" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
	load();
	*count = gpu_count;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret)
{
	if (i >= gpu_count)
		return 2;
	*ret = &gpus[i];
	return 0;
}

int nvmlDeviceGetName(struct gpu *g, char *buf, unsigned len);
int nvmlDeviceGetName(struct gpu *g, char *buf, unsigned len)
{
	(void)snprintf(buf, len, "%s", g->name);
	return 0;
}

int nvmlDeviceGetUUID(struct gpu *g, char *buf, unsigned len);
int nvmlDeviceGetUUID(struct gpu *g, char *buf, unsigned len)
{
	(void)snprintf(buf, len, "%s", g->uuid);
	return 0;
}

int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *m);
int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *m)
{
	if (g->lost)
		return 15;
	m->used = g->used << 20;
	m->total = g->total << 20;
	m->free = m->total - m->used;
	return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *count, struct process *ret);
int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *g, unsigned *count, struct process *ret)
{
	for (unsigned i = 0; i < g->count && i < *count; i++)
		ret[i] = (struct process){ g->pids[i], g->memory[i], 0, 0 };
	*count = g->count;
	return 0;
}
