/* SPDX-License-Identifier: Apache-2.0 */
/* What a shim says, and what follows from it. */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "job/leftover.h"

#define LEFTOVER_NS NS_PER_S
#define DISMISS_NS (500 * NS_PER_MS)
#define GPU_COMMON_MAX 8

const char *agent_cgroup_parent(const struct agent *a, char *buf, size_t size)
{
	if (geteuid() != 0)
		return NULL; /* no right to make cgroups */
	(void)snprintf(buf, size, "%s%s", a->config.cgroup_parent ? a->config.cgroup_parent : "reclaim/",
		       a->config.cgroup_parent ? "" : a->node);
	return buf;
}

static void on_ready(struct guest *g, const struct shim_ready *r)
{
	struct diag diag = DIAG_INIT;
	g->guest_pid = r->guest_pid;
	g->driver_kind = r->driver;
	(void)snprintf(g->rung, sizeof(g->rung), "%s", r->rung ? r->rung : "");
	(void)snprintf(g->driver, sizeof(g->driver), "%s", job_driver_names[r->driver]);
	POINT("agent.launch.ready");
	if (r->netns && g->agent->edge && agent_edge_attach(g, &diag) < 0) {
		char why[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
		log_warn("job %s: no network for it: %s", g->job, diag_format(&diag, why, sizeof(why)));
		/* A guest that asked for destinations cannot do its work without. */
		if (g->spec.network.mode == JOB_NETWORK_DECLARED) {
			guest_kill(g, CONTROL_END_NOT_STARTED, why);
			return;
		}
	}
	if (g->start.start.ranks > 1) {
		gang_tunnel_begin(g);
		return;
	}
	(void)shim_client_go(g->shim);
	POINT("agent.launch.go");
}

static void on_running(struct guest *g)
{
	if (g->started_ns == 0) {
		g->started_ns = clock_boot_ns();
		g->started_wall_ms = clock_wall_ms();
	}
	if (g->phase < GUEST_RUNNING) {
		guest_set_phase(g, GUEST_RUNNING);
		guest_interval_set(g, g->interval_ns, 0);
		(void)guest_record_save(g); /* only the start time is new */
	}
	/* The owner took the machine back while the guest was being made. */
	if (g->agent->owner.state == CONTROL_OWNER_NOTICE && !g->notice_id[0])
		guest_notice(g);
}

static void on_state(struct guest *g, const struct shim_state_change *s)
{
	g->frozen = s->frozen;
	if (s->state == SHIM_RUNNING)
		on_running(g);
	/* Freezing was asked for after a commit in a notice: now nothing runs past it. */
	if (s->frozen && !s->lease_frozen && g->phase == GUEST_NOTICED)
		guest_finalize(g);
}

/* How a guest left, in the coordinator's words. Names are the same by design. */
static enum control_end end_of(const struct shim_exited *x)
{
	return x->end < CONTROL_END_COUNT ? (enum control_end)x->end : CONTROL_END_FAILED;
}

static void on_exited(struct guest *g, const struct shim_exited *x)
{
	if (g->exited)
		return;
	free(g->exit.reason);
	g->exit = *x;
	g->exit.reason = x->reason ? strdup(x->reason) : NULL;
	g->exited = true;
	g->ran_ms = x->ran_ns / NS_PER_MS;
	g->cpu_ms = x->cpu_ns / NS_PER_MS;
	g->acked = g->acked || x->acked;
	g->agent->owner.pids_left += x->pids_left;
	g->end = end_of(x);
	/* reclaim-cut kills without a word to the supervisor: that is a reclaim, no failure. */
	if (g->end == CONTROL_END_FAILED && x->signal == SIGKILL && !x->oom && g->agent->edge &&
	    edge_killed(g->agent->edge, EDGE_ALL))
		g->end = CONTROL_END_RECLAIMED;
	loop_timer_stop(&g->interval);
	loop_timer_stop(&g->grace);
	/* The network ends with the processes: nothing of it may speak for the guest. */
	agent_edge_detach(g);
	POINT("agent.shim.exited");
	guest_set_phase(g, GUEST_ENDING);
	guest_finalize(g);
}

/* The owner took the machine back while no agent ran. */
static void adopt_reclaim(struct agent *a, const struct shim_hello *h)
{
	uint64_t now = clock_boot_ns();
	bool over = h->state != SHIM_NOTICED || h->deadline_ns <= now;
	if (a->owner.state == CONTROL_OWNER_LENT)
		(void)owner_back(a, over, over ? 0 : h->deadline_ns - now, "owner, without an agent");
}

static void on_hello(struct guest *g, const struct shim_hello *h)
{
	g->guest_pid = h->guest_pid;
	g->frozen = h->frozen;
	g->acked = h->acked;
	if (h->rung)
		(void)snprintf(g->rung, sizeof(g->rung), "%s", h->rung);
	if (h->state >= SHIM_READY) {
		g->driver_kind = h->driver;
		(void)snprintf(g->driver, sizeof(g->driver), "%s", job_driver_names[h->driver]);
	}
	if (h->started_ns && !g->started_ns)
		g->started_ns = h->started_ns;
	if (h->lease_deadline_ns > g->lease_deadline_ns)
		g->lease_deadline_ns = h->lease_deadline_ns;
	if (h->state == SHIM_READY) {
		struct shim_ready r = { .guest_pid = h->guest_pid, .netns = h->netns, .rung = h->rung,
					.driver = h->driver };
		on_ready(g, &r);
	} else if (h->state == SHIM_RUNNING || h->state == SHIM_NOTICED) {
		on_running(g);
	} else if (h->state == SHIM_ENDED) {
		on_exited(g, &h->exited);
	}
	if (h->notice_id && strcmp(h->notice_id, OWNER_DIRECT_NOTICE) == 0)
		adopt_reclaim(g->agent, h);
}

static void on_event(void *ctx, struct shim_client *client, const struct shim_event *event)
{
	struct guest *g = ctx;
	switch (event->type) {
	case SHIM_EVENT_HELLO:
		on_hello(g, &event->hello);
		break;
	case SHIM_EVENT_READY:
		on_ready(g, &event->ready);
		break;
	case SHIM_EVENT_STATE:
		on_state(g, &event->state);
		break;
	case SHIM_EVENT_COMMIT:
		guest_watch_scan(g);
		break;
	case SHIM_EVENT_ACKED:
		g->acked = true;
		if (g->phase == GUEST_NOTICED && g->shim)
			(void)shim_client_freeze(g->shim);
		break;
	case SHIM_EVENT_DUMPED:
		guest_dumped(g, &event->dumped);
		break;
	case SHIM_EVENT_ALARM:
		log_error("job %s: %s", g->job, event->alarm.what ? event->alarm.what : "alarm");
		(void)snprintf(g->agent->owner.alarm, sizeof(g->agent->owner.alarm), "job %s: %s", g->job,
			       event->alarm.what ? event->alarm.what : "alarm");
		owner_notify(g->agent);
		break;
	case SHIM_EVENT_EXITED:
		on_exited(g, &event->exited);
		break;
	case SHIM_EVENT_REPLY:
		if (event->reply.error)
			log_warn("job %s: shim: %s", g->job, event->reply.error);
		break;
	default:
		break;
	}
}

void guest_shim_sweep(struct guest *g)
{
	char run_dir[PATH_MAX];
	if (path_format(run_dir, sizeof(run_dir), "%s/shim", g->agent->run_dir) == 0)
		leftover_files(run_dir, g->job, g->epoch);
}

static void on_lost(void *ctx, struct shim_client *client, int err, const char *what)
{
	struct guest *g = ctx;
	shim_client_free(g->shim);
	g->shim = NULL;
	if (g->exited)
		return;
	log_warn("job %s epoch %llu: its shim is gone: %s", g->job, (unsigned long long)g->epoch, what);
	/* PDEATHSIG took most of the guest with the shim; this takes the rest, and proves it. */
	struct pid_list left = VEC_INIT;
	char parent[256];
	if (leftover_kill(agent_cgroup_parent(g->agent, parent, sizeof(parent)), g->job, g->epoch,
			  LEFTOVER_NS, &left) < 0) {
		g->agent->owner.pids_left += left.count;
		log_error("job %s: %zu process(es) without a supervisor would not end", g->job, left.count);
	}
	VEC_DONE(&left);
	guest_shim_sweep(g);
	g->exited = true;
	g->ran_ms = g->started_ns ? (clock_boot_ns() - g->started_ns) / NS_PER_MS : 0;
	agent_edge_detach(g);
	bool launched = g->phase >= GUEST_RUNNING;
	g->end = launched ? CONTROL_END_SHIM_LOST : CONTROL_END_NOT_STARTED;
	(void)snprintf(g->end_reason, sizeof(g->end_reason), "its supervisor ended: %.200s", what);
	guest_set_phase(g, GUEST_ENDING);
	guest_finalize(g);
}

static const struct shim_callbacks callbacks = { on_event, on_lost };

static void start_limits(const struct guest *g, struct shim_start *s)
{
	const struct terms *t = &g->agent->terms;
	const struct control_start *c = &g->start.start;
	for (size_t k = 0; k < c->slots_count; k++) {
		for (size_t i = 0; i < t->slots_count; i++) {
			if (strcmp(t->slots[i].name, c->slots[k]) != 0)
				continue;
			s->cores_milli += (uint64_t)(t->slots[i].cores * 1000 + 0.5);
			s->memory_max += t->slots[i].memory ? t->slots[i].memory
							    : t->caps.memory / t->slots_count;
		}
	}
	s->pids_max = t->caps.pids;
	s->disk_max = g->spec.slots.disk ? g->spec.slots.disk : t->caps.disk / t->slots_count;
}

/* The lent GPUs' device nodes, and the names that CUDA knows them by. */
static int start_gpus(const struct guest *g, struct shim_start *s)
{
	const struct terms *t = &g->agent->terms;
	const struct control_start *c = &g->start.start;
	for (size_t k = 0; k < c->slots_count; k++)
		for (size_t i = 0; i < t->slots_count; i++) {
			if (strcmp(t->slots[i].name, c->slots[k]) != 0 || t->slots[i].kind != TERMS_SLOT_GPU)
				continue;
			const struct nvml_gpu *gpu = gpu_of_slot(g->agent, i);
			if (!gpu || s->gpu_uuids_count == NVML_GPUS_MAX)
				return -ENODEV;
			s->gpu_uuids[s->gpu_uuids_count++] = (char *)gpu->uuid;
			if (access(gpu->device, F_OK) == 0)
				s->devices[s->devices_count++] = (char *)gpu->device;
		}
	if (s->gpu_uuids_count)
		s->devices_count +=
			nvml_common_devices((const char **)s->devices + s->devices_count, GPU_COMMON_MAX);
	return 0;
}

int guest_shim_spawn(struct guest *g, struct diag *diag)
{
	struct agent *a = g->agent;
	const struct control_start *c = &g->start.start;
	char log[PATH_MAX], state_file[PATH_MAX], shim_log[PATH_MAX], dump[PATH_MAX], parent[256], run_dir[96];
	int r = path_format(log, sizeof(log), "%s/output.log", g->dir);
	if (r == 0)
		r = path_format(state_file, sizeof(state_file), "%s/shim.json", g->dir);
	if (r == 0)
		r = path_format(shim_log, sizeof(shim_log), "%s/shim.log", g->dir);
	if (r == 0)
		r = path_format(run_dir, sizeof(run_dir), "%s/shim", a->run_dir);
	if (r == 0)
		r = path_format(dump, sizeof(dump), "%s/work/.reclaim-dump", g->dir);
	if (r < 0)
		return diag_set(diag, r, g->dir, "the path is too long");
	struct shim_start s = {
		.job = g->job,
		.epoch = g->epoch,
		.spec = g->spec,
		.restart_count = c->restart_count,
		.reclaim_count = c->reclaim_count,
		.dir = g->dir,
		.log = log,
		.state_file = state_file,
		.run_dir = run_dir,
		.user = g->user,
		.lease_deadline_ns = g->lease_deadline_ns,
		.window_ns = a->terms.window_ns,
		.time_used_ns = c->time_used_ms * NS_PER_MS,
		.cgroup_parent = (char *)agent_cgroup_parent(a, parent, sizeof(parent)),
		.rung_min = a->terms.sandbox == TERMS_SANDBOX_PROCESS
				    ? NULL
				    : (char *)terms_sandbox_names[a->terms.sandbox],
		.uid_base = geteuid() == 0 && a->config.uid_base
				    ? a->config.uid_base + (uint64_t)g->slot_index * 65536
				    : 0,
		.image = g->spec.image,
		.own_network = a->edge && a->config.own_network,
		.wait_go = true,
		.secrets = (struct shim_secret *)c->secrets,
		.secrets_count = c->secrets_count,
		.criu = a->config.criu,
		.restore_dir = g->restored_dump ? dump : NULL,
	};
	static_assert(sizeof(struct shim_secret) == sizeof(struct control_secret), "same pairs");
	char *devices[NVML_GPUS_MAX + GPU_COMMON_MAX], *uuids[NVML_GPUS_MAX];
	s.devices = devices;
	s.gpu_uuids = uuids;
	if (start_gpus(g, &s) < 0)
		return diag_set(diag, -ENODEV, "gpu", "the GPU of this slot is not there any more");
	char **hosts = gang_hosts(g);
	if (hosts) {
		s.rank = c->rank;
		s.rank_hosts = hosts;
		s.rank_hosts_count = c->ranks;
	}
	start_limits(g, &s);
	const struct shim_client_config config = {
		.program = a->shim_program,
		.socket = g->socket,
		.log = shim_log,
	};
	r = shim_client_spawn(loop_uv(a->loop), &config, &s, &callbacks, g, &g->shim, diag);
	gang_hosts_free(hosts);
	return r;
}

/* It may wait for an agent to take its word: we have it already, from the record. */
void guest_shim_dismiss(struct guest *g)
{
	struct shim_command cmd = { .type = SHIM_CMD_CLOSE };
	struct diag diag = DIAG_INIT;
	int r = shim_call(g->socket, &cmd, DISMISS_NS, NULL, &diag);
	if (r == -EREMOTEIO || r == -ETIMEDOUT)
		log_warn("job %s: its supervisor does not end: %s", g->job, diag.what);
	else if (r < 0)
		guest_shim_sweep(g);
}

int guest_shim_adopt(struct guest *g, struct diag *diag)
{
	const struct shim_client_config config = { .socket = g->socket };
	return shim_client_adopt(loop_uv(g->agent->loop), &config, &callbacks, g, &g->shim, diag);
}
