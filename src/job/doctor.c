/* SPDX-License-Identifier: Apache-2.0 */
#include "job/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "job/cgroup.h"
#include "job/criu.h"
#include "job/nvml.h"
#include "job/sandbox.h"

const char *const doctor_level_names[] = { "ok", "note", "warn", "bad", NULL };

void doctor_report_done(struct doctor_report *r)
{
	VEC_DONE(&r->findings);
}

void doctor_add(struct doctor_report *r, enum doctor_level level, const char *area, const char *fmt, ...)
{
	struct doctor_finding f = { .level = level };
	va_list args;

	(void)snprintf(f.area, sizeof(f.area), "%s", area);
	va_start(args, fmt);
	(void)vsnprintf(f.text, sizeof(f.text), fmt, args);
	va_end(args);
	(void)VEC_PUSH(&r->findings, f); /* a finding that finds no memory is not worth a failure */
}

enum doctor_level doctor_worst(const struct doctor_report *r)
{
	enum doctor_level worst = DOCTOR_OK;

	for (size_t i = 0; i < r->findings.count; i++)
		worst = MAX(worst, r->findings.data[i].level);
	return worst;
}

json_t *doctor_json(const struct doctor_report *r)
{
	json_t *list = json_array();

	for (size_t i = 0; i < r->findings.count; i++) {
		const struct doctor_finding *f = &r->findings.data[i];

		(void)json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "level", doctor_level_names[f->level],
							    "area", f->area, "text", f->text));
	}
	return json_pack("{s:o,s:s}", "findings", list, "worst", doctor_level_names[doctor_worst(r)]);
}

/* ---- this machine ---- */

static void machine_sandbox(struct doctor_report *r, const struct cgroup_caps *cg)
{
	struct sandbox_caps caps;
	struct sandbox_choice choice;
	bool limits = (cg->v2_controllers & 7) == 7 ||
		      (cg->v1[CGROUP_MEMORY][0] && cg->v1[CGROUP_CPU][0] && cg->v1[CGROUP_PIDS][0]);
	struct diag diag = DIAG_INIT;

	sandbox_probe(&caps);
	if (sandbox_choose(&caps, NULL, NULL, limits, &choice, &diag) < 0) {
		doctor_add(r, DOCTOR_BAD, "sandbox", "%s", diag.what);
		return;
	}
	doctor_add(r, choice.rung == SANDBOX_FULL ? DOCTOR_OK : DOCTOR_NOTE, "sandbox", "rung %s%s",
		   sandbox_rung_names[choice.rung],
		   geteuid() == 0 ? "" : " (as this user; the agent as root may get higher)");
	for (size_t i = 0; i < choice.lacks_count; i++)
		doctor_add(r, DOCTOR_NOTE, "sandbox", "this rung lacks: %s", choice.lacks[i]);
	doctor_add(r, DOCTOR_OK, "sandbox", "seccomp %s, Landlock ABI %d, user namespaces %s",
		   caps.seccomp ? (caps.seccomp_notify ? "with reports" : "without reports") : "absent",
		   caps.landlock_abi, caps.user || caps.userns ? "yes" : "no");
}

static void machine_cgroups(struct doctor_report *r, const struct cgroup_caps *cg)
{
	char text[300];
	bool freeze = (cg->v2[0] && cg->v2_freeze) || cg->v1[CGROUP_FREEZER][0];

	doctor_add(r, cg->v2[0] || cg->v1[CGROUP_MEMORY][0] ? DOCTOR_OK : DOCTOR_NOTE, "cgroups", "%s",
		   cgroup_caps_format(cg, text, sizeof(text)));
	if (!freeze)
		doctor_add(r, DOCTOR_NOTE, "cgroups",
			   "nothing can freeze: guests stand still by SIGSTOP, which their own parents see");
	if (!cg->v2[0] || !cg->v2_kill)
		doctor_add(r, DOCTOR_NOTE, "cgroups",
			   "no cgroup.kill (Linux 5.14): guests are killed process by process, frozen first");
}

static void machine_criu(struct doctor_report *r)
{
	struct criu_info info;
	struct diag diag = DIAG_INIT;

	if (criu_probe(NULL, &info, &diag) < 0)
		doctor_add(r, DOCTOR_NOTE, "criu", "%s: unmodified programs cannot be moved from here", diag.what);
	else
		doctor_add(r, DOCTOR_OK, "criu", "%s, version %u.%u.%u", info.path, info.version / 10000,
			   info.version / 100 % 100, info.version % 100);
	if (criu_cuda_probe(info.path[0] ? &info : NULL, &diag) < 0)
		doctor_add(r, DOCTOR_NOTE, "cuda", "%s: GPU state is saved by programs themselves only", diag.what);
	else
		doctor_add(r, DOCTOR_OK, "cuda", "cuda-checkpoint is here");
}

static void machine_gpus(struct doctor_report *r)
{
	struct nvml *nvml;
	struct diag diag = DIAG_INIT;
	struct nvml_gpus gpus;

	if (nvml_open(NULL, &nvml, &diag) < 0) {
		doctor_add(r, DOCTOR_NOTE, "gpus", "%s: slots are CPU cores", diag.what);
		return;
	}
	if (nvml_list(nvml, &gpus, &diag) < 0)
		doctor_add(r, DOCTOR_WARN, "gpus", "%s", diag.what);
	else
		for (size_t i = 0; i < gpus.count; i++)
			doctor_add(r, gpus.items[i].lost ? DOCTOR_WARN : DOCTOR_OK, "gpus",
				   "%u: %s, %llu of %llu MiB in use by %zu processes%s", gpus.items[i].index,
				   gpus.items[i].name, (unsigned long long)(gpus.items[i].memory_used >> 20),
				   (unsigned long long)(gpus.items[i].memory_total >> 20),
				   gpus.items[i].process_count, gpus.items[i].lost ? ", LOST" : "");
	nvml_close(nvml);
}

void doctor_machine(struct doctor_report *r)
{
	struct cgroup_caps cg;
	struct utsname u;

	if (uname(&u) == 0)
		doctor_add(r, DOCTOR_OK, "system", "%s %s, %s", u.sysname, u.release, u.machine);
	cgroup_probe("/proc/self/mountinfo", &cg);
	machine_sandbox(r, &cg);
	machine_cgroups(r, &cg);
	machine_criu(r);
	machine_gpus(r);
}
