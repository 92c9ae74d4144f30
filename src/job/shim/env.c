/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guest's environment: our own names, those that frameworks look for under Slurm,
 * and on top what the job and the agent say. Nothing is inherited from the agent.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/parse.h"
#include "job/sandbox_internal.h"
#include "job/shim/shim.h"

struct env_list VEC(char *);

/* A later value of a name replaces the earlier one. */
static int env_put(struct env_list *env, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int env_put(struct env_list *env, const char *fmt, ...)
{
	char *text = NULL;
	size_t name_len;
	va_list args;
	int n;

	va_start(args, fmt);
	n = vasprintf(&text, fmt, args);
	va_end(args);
	if (n < 0)
		return -ENOMEM;
	name_len = strcspn(text, "=") + 1;
	VEC_EACH(env, p)
		if (!strncmp(*p, text, name_len)) {
			free(*p);
			*p = text;
			return 0;
		}
	n = VEC_PUSH(env, text);
	if (n < 0)
		free(text);
	return n;
}

const char *box_path(const struct shim *s, const char *boxed, const char *host)
{
	return s->choice.rung == SANDBOX_PROCESS ? host : boxed;
}

/* Slurm's ids are numbers, and frameworks check that (Lightning: [0-9_-]+): the job id's
 * own digits where it is "job-17", else a number that stays the same. */
static uint64_t slurm_id(const char *job)
{
	const char *digits = job + strlen(job);
	uint64_t n;

	while (digits > job && digits[-1] >= '0' && digits[-1] <= '9')
		digits--;
	if (*digits && strlen(digits) <= 9 && parse_u64(digits, &n) == 0 && n > 0)
		return n;
	return 1000000000 + hash_sip24(job, strlen(job), 3, 4) % 1000000000;
}

/* Ranks of a gang are JOB, JOB.1, ...: the job is the same for all of them. */
static const char *job_of(const struct shim_start *st, char *buf, size_t size)
{
	char *dot;

	(void)snprintf(buf, size, "%s", st->job);
	dot = st->rank ? strrchr(buf, '.') : NULL;
	if (dot)
		*dot = '\0';
	return buf;
}

static int env_own(struct shim *s, struct env_list *env)
{
	const struct shim_start *st = &s->start;
	char host[5000], job[256];
	int r = 0;

	r |= env_put(env, "RECLAIM_JOB_ID=%s", job_of(st, job, sizeof(job)));
	r |= env_put(env, "RECLAIM_JOB_NAME=%s", st->spec.name ? st->spec.name : st->job);
	r |= env_put(env, "RECLAIM_EPOCH=%llu", (unsigned long long)st->epoch);
	r |= env_put(env, "RECLAIM_RESTART_COUNT=%llu", (unsigned long long)st->restart_count);
	r |= env_put(env, "RECLAIM_RECLAIM_COUNT=%llu", (unsigned long long)st->reclaim_count);
	r |= env_put(env, "RECLAIM_WINDOW_S=%.3f", (double)st->window_ns / 1e9);
	(void)snprintf(host, sizeof(host), "%s/ckpt", st->dir);
	r |= env_put(env, "RECLAIM_CHECKPOINT_DIR=%s", box_path(s, BOX_CKPT, host));
	(void)snprintf(host, sizeof(host), "%s/notice.json", s->run_dir);
	r |= env_put(env, "RECLAIM_NOTICE_FILE=%s", box_path(s, BOX_RUN "/notice.json", host));
	(void)snprintf(host, sizeof(host), "%s/guest.sock", s->run_dir);
	r |= env_put(env, "RECLAIM_SOCKET=%s", box_path(s, BOX_RUN "/guest.sock", host));
	(void)snprintf(host, sizeof(host), "%s/secrets", s->run_dir);
	if (st->secrets_count)
		r |= env_put(env, "RECLAIM_SECRETS_DIR=%s", box_path(s, BOX_SECRETS, host));
	if (s->metadata_port) {
		r |= env_put(env, "RECLAIM_METADATA_URL=http://127.0.0.1:%llu",
			     (unsigned long long)s->metadata_port);
		r |= env_put(env, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%llu",
			     (unsigned long long)s->metadata_port);
		r |= env_put(env, "GCE_METADATA_HOST=127.0.0.1:%llu", (unsigned long long)s->metadata_port);
	} else {
		r |= env_put(env, "RECLAIM_METADATA_URL=http://169.254.169.254");
	}
	return r ? -ENOMEM : 0;
}

/* What torch.distributed, gloo, NCCL and Open MPI look for. */
static int env_gang(const struct shim_start *st, struct env_list *env)
{
	int r = 0;

	if (st->rank_hosts_count < 2)
		return 0;
	r |= env_put(env, "MASTER_ADDR=%s", st->rank_hosts[0]);
	r |= env_put(env, "MASTER_PORT=29500");
	r |= env_put(env, "RANK=%llu", (unsigned long long)st->rank);
	r |= env_put(env, "WORLD_SIZE=%zu", st->rank_hosts_count);
	r |= env_put(env, "LOCAL_RANK=0");
	r |= env_put(env, "LOCAL_WORLD_SIZE=1");
	/* They would take the address of the host's name, which is loopback. */
	r |= env_put(env, "GLOO_SOCKET_IFNAME=" SHIM_GANG_IFNAME);
	r |= env_put(env, "NCCL_SOCKET_IFNAME=" SHIM_GANG_IFNAME);
	r |= env_put(env, "TP_SOCKET_IFNAME=" SHIM_GANG_IFNAME);
	r |= env_put(env, "OMPI_MCA_btl_tcp_if_include=" SHIM_GANG_IFNAME);
	r |= env_put(env, "OMPI_MCA_oob_tcp_if_include=" SHIM_GANG_IFNAME);
	return r ? -ENOMEM : 0;
}

static int env_slurm(struct shim *s, struct env_list *env)
{
	const struct shim_start *st = &s->start;
	uint64_t ranks = MAX(st->spec.slots.ranks, UINT64_C(1));
	char job[256];
	unsigned long long id = slurm_id(job_of(st, job, sizeof(job))), cores = MAX(st->spec.slots.cores, UINT64_C(1));
	CLEANUP_STRBUF struct strbuf hosts = STRBUF_INIT;
	const char *name = st->spec.name ? st->spec.name : st->job, *node;
	int r = 0;

	for (size_t i = 0; i < st->rank_hosts_count; i++)
		r |= strbuf_printf(&hosts, "%s%s", i ? "," : "", st->rank_hosts[i]);
	node = st->rank < st->rank_hosts_count ? st->rank_hosts[st->rank]
					       : st->hostname ? st->hostname : "localhost";
	r |= env_put(env, "SLURM_JOB_ID=%llu", id);
	r |= env_put(env, "SLURM_JOBID=%llu", id);
	/* Lightning turns its Slurm support off for jobs of these two names. */
	r |= env_put(env, "SLURM_JOB_NAME=%s%s",
		     !strcmp(name, "bash") || !strcmp(name, "interactive") ? "job-" : "", name);
	r |= env_put(env, "SLURM_RESTART_COUNT=%llu", (unsigned long long)st->restart_count);
	r |= env_put(env, "SLURM_NTASKS=%llu", (unsigned long long)ranks);
	r |= env_put(env, "SLURM_NPROCS=%llu", (unsigned long long)ranks);
	r |= env_put(env, "SLURM_NTASKS_PER_NODE=1");
	r |= env_put(env, "SLURM_PROCID=%llu", (unsigned long long)st->rank);
	r |= env_put(env, "SLURM_LOCALID=0");
	r |= env_put(env, "SLURM_NODEID=%llu", (unsigned long long)st->rank);
	r |= env_put(env, "SLURM_NNODES=%llu", (unsigned long long)ranks);
	r |= env_put(env, "SLURM_JOB_NUM_NODES=%llu", (unsigned long long)ranks);
	r |= env_put(env, "SLURM_JOB_NODELIST=%s", hosts.len ? hosts.data : node);
	r |= env_put(env, "SLURM_NODELIST=%s", hosts.len ? hosts.data : node);
	r |= env_put(env, "SLURMD_NODENAME=%s", node);
	r |= env_put(env, "SLURM_CPUS_ON_NODE=%llu", cores);
	r |= env_put(env, "SLURM_CPUS_PER_TASK=%llu", cores);
	r |= env_put(env, "SLURM_CLUSTER_NAME=reclaim");
	r |= env_put(env, "SLURM_JOB_USER=%s", st->user ? st->user : "guest");
	r |= env_put(env, "SLURM_STEP_ID=0");
	r |= env_put(env, "RECLAIM_RANK=%llu", (unsigned long long)st->rank);
	r |= env_put(env, "RECLAIM_RANKS=%llu", (unsigned long long)ranks);
	if (hosts.len)
		r |= env_put(env, "RECLAIM_HOSTS=%s", hosts.data);
	return r ? -ENOMEM : env_gang(st, env);
}

static int env_usual(struct shim *s, struct env_list *env)
{
	const struct shim_start *st = &s->start;
	char home[4300], tmp[4300], work[4300];
	CLEANUP_STRBUF struct strbuf gpus = STRBUF_INIT;
	/* torchrun gives its workers this long after SIGTERM, and 30 s if nobody says more: a save
	 * may need the whole window. */
	uint64_t shutdown_s = MAX(st->window_ns / NS_PER_S, UINT64_C(600));
	int r = 0;

	(void)snprintf(home, sizeof(home), "%s/home", st->dir);
	(void)snprintf(tmp, sizeof(tmp), "%s/tmp", st->dir);
	(void)snprintf(work, sizeof(work), "%s/work", st->dir);
	for (size_t i = 0; i < st->gpu_uuids_count; i++)
		r |= strbuf_printf(&gpus, "%s%s", i ? "," : "", st->gpu_uuids[i]);
	r |= env_put(env, "PATH=%s:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
		     box_path(s, BOX_BIN, s->tools ? s->tools : "/usr/bin"));
	r |= env_put(env, "HOME=%s", box_path(s, BOX_HOME, home));
	r |= env_put(env, "TMPDIR=%s", box_path(s, "/tmp", tmp));
	r |= env_put(env, "USER=guest");
	r |= env_put(env, "LOGNAME=guest");
	r |= env_put(env, "SHELL=/bin/sh");
	r |= env_put(env, "LANG=C.UTF-8");
	r |= env_put(env, "TERM=dumb");
	r |= env_put(env, "SLURM_SUBMIT_DIR=%s", box_path(s, BOX_WORK, work));
	r |= env_put(env, "_CONDOR_SCRATCH_DIR=%s", box_path(s, "/tmp", tmp));
	r |= env_put(env, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=%llu", (unsigned long long)shutdown_s);
	r |= env_put(env, "OMP_NUM_THREADS=%llu",
		     (unsigned long long)MAX(st->spec.slots.cores, UINT64_C(1)));
	/* Empty hides every GPU from CUDA, which is right for a job that was lent none. */
	r |= env_put(env, "CUDA_VISIBLE_DEVICES=%s", gpus.len ? gpus.data : "");
	return r ? -ENOMEM : 0;
}

void env_free(char **env)
{
	for (char **p = env; p && *p; p++)
		free(*p);
	free(env);
}

int env_build(struct shim *s, char ***ret, struct diag *diag)
{
	struct env_list env = VEC_INIT;
	const char *key;
	json_t *value;
	int r;

	r = env_usual(s, &env);
	if (r == 0)
		r = env_slurm(s, &env);
	if (s->start.spec.env)
		json_object_foreach(s->start.spec.env, key, value)
			if (r == 0 && json_is_string(value))
				r = env_put(&env, "%s=%s", key, json_string_value(value));
	for (size_t i = 0; i < s->start.env_count && r == 0; i++)
		if (strchr(s->start.env[i], '='))
			r = env_put(&env, "%s", s->start.env[i]);
	/* Last: a job that copies its own old environment must not hide the truth from itself. */
	if (r == 0)
		r = env_own(s, &env);
	if (r == 0)
		r = VEC_PUSH(&env, NULL);
	if (r < 0) {
		VEC_EACH(&env, p)
			free(*p);
		VEC_DONE(&env);
		return diag_set(diag, r, "environment", "out of memory");
	}
	*ret = env.data;
	return 0;
}
