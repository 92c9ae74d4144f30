/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drivers criu and cuda: the guest's processes into files, and back. Helpers (CRIU,
 * cuda-checkpoint) are children of the shim, one at a time; the loop goes on meanwhile, so
 * that a deadline that comes during a dump still fires.
 *
 *     dump     [cuda-checkpoint of each process that uses the GPU] -> criu dump -> synced
 *              -> meta.json -> renamed to where the agent wants it -> `dumped`
 *     restore  init of the new sandbox runs -> criu restore -> [cuda-checkpoint] -> RUNNING
 *
 * The image folder is made in the agent's own part of the job's folder and only moved when
 * the guest stands still: a guest cannot put a link in its way.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "job/criu.h"
#include "job/nvml.h"
#include "job/shim/shim.h"

#define META_FILE "reclaim-dump.json"
#define RESTORE_TRIES 3

struct meta {
	uint64_t pipe_ino; /* of the output pipe, so that it can be exchanged */
	uint64_t root_pid; /* as seen inside */
	uint64_t uid_base;
	bool cuda;
};
static const struct schema_field meta_fields[] = {
	FIELD_U64(struct meta, pipe_ino, 0, 1.8e19, .flags = FIELD_REQUIRED),
	FIELD_U64(struct meta, root_pid, 1, 4194304, .flags = FIELD_REQUIRED),
	FIELD_U64(struct meta, uid_base, 0, 4294967295.0),
	FIELD_BOOL(struct meta, cuda),
	FIELD_END,
};
static const struct schema meta_schema = SCHEMA(struct meta, "dump", meta_fields);

bool dump_driver(const struct shim *s)
{
	return s->driver == JOB_DRIVER_CRIU || s->driver == JOB_DRIVER_CUDA;
}

/* ---- before the start ---- */

int dump_check(struct shim *s, struct diag *diag)
{
	struct criu_info info;
	int r = criu_probe(s->start.criu, &info, diag);

	if (r < 0)
		return r;
	if (!s->start.criu)
		s->start.criu = strdup(info.path);
	if (!s->start.criu)
		return diag_set(diag, -ENOMEM, "criu", "out of memory");
	if (s->start.image)
		return diag_set(diag, -ENOTSUP, "criu", "a job with an image of its own cannot be saved from outside: "
							"CRIU's libraries are not in it");
	if (s->start.spec.slots.gpus && s->driver == JOB_DRIVER_CRIU)
		return diag_set(diag, -ENOTSUP, "criu", "a job with GPUs needs the driver cuda: CRIU alone loses their memory");
	if (s->driver == JOB_DRIVER_CUDA)
		return criu_cuda_probe(&info, diag);
	return 0;
}

/* ---- helpers ---- */

static uint64_t pid_inside(pid_t pid)
{
	char path[64];
	CLEANUP_FREE char *text = NULL;
	const char *at;
	uint64_t inside = 0;
	size_t len;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (file_read(path, 65536, &text, &len) < 0 || !(at = strstr(text, "\nNSpid:")))
		return 0;
	at += 7;
	/* From the outermost namespace to the innermost. */
	for (const char *end = strchr(at, '\n'); at && at < end;) {
		char *next;
		unsigned long n = strtoul(at, &next, 10);

		if (next == at)
			break;
		inside = n;
		at = next;
	}
	return inside;
}

static bool uses_cuda(pid_t pid)
{
	char path[64];
	CLEANUP_FREE char *text = NULL;
	size_t len;

	(void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	return file_read(path, 64u << 20, &text, &len) == 0 && strstr(text, "libcuda.so");
}

/* cuda-checkpoint puts the GPU's memory into the process's own: there must be room for it. */
static int host_memory_check(struct diag *diag)
{
	struct nvml *nvml;
	struct nvml_gpus *gpus = calloc(1, sizeof(*gpus));
	struct sysinfo si;
	uint64_t used = 0, room;
	int r = 0;

	if (gpus && nvml_open(NULL, &nvml, NULL) == 0) {
		if (nvml_list(nvml, gpus, NULL) == 0)
			for (size_t i = 0; i < gpus->count; i++)
				used += gpus->items[i].memory_used;
		nvml_close(nvml);
	}
	free(gpus);
	if (sysinfo(&si) == 0) {
		room = ((uint64_t)si.freeram + si.bufferram) * si.mem_unit;
		if (used > room)
			r = diag_set(diag, -ENOMEM, "cuda", "%llu MiB of GPU memory do not fit into %llu MiB of free memory",
				     (unsigned long long)(used >> 20), (unsigned long long)(room >> 20));
	}
	return r;
}

static int attach(void *ctx, int pid)
{
	struct shim *s = ctx;

	return s->cgroup ? cgroup_attach(s->cgroup, pid) : 0;
}

static uint64_t folder_bytes(const char *path)
{
	CLEANUP_DIR DIR *dir = opendir(path);
	struct dirent *e;
	uint64_t bytes = 0;

	while (dir && (e = readdir(dir))) {
		struct stat st;

		if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
			bytes += (uint64_t)st.st_size;
	}
	return bytes;
}

/* ---- dump ---- */

static void dump_report(struct shim *s, const char *error)
{
	struct shim_event event = { .type = SHIM_EVENT_DUMPED, .id = s->dump.id };

	event.dumped = (struct shim_dumped){ .error = (char *)error, .dir = s->dump.wanted,
					     .bytes = error ? 0 : folder_bytes(s->dump.wanted),
					     .took_ns = s->now - s->dump.begun_ns };
	if (!error && !s->dump.leave_stopped)
		event.dumped.frozen_ns = event.dumped.took_ns;
	log_info("job %s.%llu: dump: %s", s->start.job, (unsigned long long)s->start.epoch,
		 error ? error : "complete");
	conn_event(s, &event);
}

static void dump_done(struct shim *s)
{
	if (s->dump.dir_fd >= 0)
		(void)close(s->dump.dir_fd);
	s->dump.dir_fd = -1;
	free(s->dump.wanted);
	s->dump.wanted = NULL;
	s->dump.phase = DUMP_IDLE;
	VEC_DONE(&s->dump.cuda);
}

/* After a failure the guest goes on: CRIU let go of it, the GPU is taken back. */
static void dump_fail(struct shim *s, const char *error)
{
	char tmp[4300];

	for (size_t i = 0; i < s->dump.cuda_at; i++) {
		pid_t pid = cuda_toggle_start(s->dump.cuda.data[i], NULL);

		if (pid > 0)
			(void)waitpid(pid, NULL, 0); /* its end is all that can be waited for */
	}
	/* The log is kept for people; the rest is of no use. */
	(void)snprintf(tmp, sizeof(tmp), "%s/criu-dump.log", s->start.dir);
	(void)renameat(s->dump.dir_fd, "criu.log", AT_FDCWD, tmp);
	(void)snprintf(tmp, sizeof(tmp), "%s/dump.new", s->start.dir);
	(void)dir_remove_all(tmp); /* in the way of nobody if it stays */
	dump_report(s, error);
	dump_done(s);
}

static int meta_write(struct shim *s)
{
	struct meta m = { .pipe_ino = s->pipe_ino, .root_pid = s->dump.root_pid, .uid_base = s->start.uid_base,
			  .cuda = s->driver == JOB_DRIVER_CUDA };
	CLEANUP_JSON json_t *obj = schema_encode(&meta_schema, &m);
	CLEANUP_FREE char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
	char path[4400];

	(void)snprintf(path, sizeof(path), "%s/dump.new/" META_FILE, s->start.dir);
	return text ? file_write_atomic(path, text, strlen(text), 0600) : -ENOMEM;
}

static void dump_complete(struct shim *s)
{
	char tmp[4300], why[400];
	int r = meta_write(s);

	(void)snprintf(tmp, sizeof(tmp), "%s/dump.new", s->start.dir);
	if (r == 0 && s->dump.leave_stopped) {
		/* Stopped by CRIU already; the freezer holds it also against a SIGCONT of its own. */
		s->stopped_by_dump = true;
		r = guest_freeze(s, true, NULL);
		if (r == 0)
			state_changed(s, "dumped");
	}
	if (r == 0)
		r = dir_remove_all(s->dump.wanted);
	if (r == 0 && rename(tmp, s->dump.wanted) < 0)
		r = -errno;
	if (r < 0) {
		(void)snprintf(why, sizeof(why), "%s: %s", s->dump.wanted, strerror(-r));
		dump_fail(s, why);
		return;
	}
	/* What the guest had printed when it was dumped belongs to this image. */
	output_drain(s);
	POINT("shim.dumped");
	dump_report(s, NULL);
	dump_done(s);
}

static void dump_criu(struct shim *s)
{
	struct criu_job j = { .criu = s->start.criu, .init_pid = s->guest_pid,
			      .guest_uid = (unsigned)(s->start.uid_base + SANDBOX_UID), .root_pid = (int)s->dump.root_pid,
			      .dir_fd = s->dump.dir_fd, .out_fd = -1, .leave_stopped = s->dump.leave_stopped };
	struct diag diag = DIAG_INIT;
	char text[800];
	int pid = criu_start(&j, &diag);

	if (pid < 0) {
		dump_fail(s, diag_format(&diag, text, sizeof(text)));
		return;
	}
	s->dump.phase = DUMP_CRIU;
	s->helper_pid = pid;
}

static void dump_cuda_next(struct shim *s)
{
	struct diag diag = DIAG_INIT;
	char text[800];
	int pid;

	if (s->dump.cuda_at == s->dump.cuda.count) {
		dump_criu(s);
		return;
	}
	pid = cuda_toggle_start(s->dump.cuda.data[s->dump.cuda_at], &diag);
	if (pid < 0) {
		dump_fail(s, diag_format(&diag, text, sizeof(text)));
		return;
	}
	s->dump.phase = DUMP_CUDA;
	s->helper_pid = pid;
}

int dump_begin(struct shim *s, const struct shim_dump *dump, uint64_t id, struct diag *diag)
{
	struct proc_list procs = VEC_INIT;
	char tmp[4300];
	int r;

	if (!dump_driver(s))
		return diag_set(diag, -ENOTSUP, "dump", "driver %s does not save from outside", job_driver_names[s->driver]);
	if (s->state != SHIM_RUNNING && s->state != SHIM_NOTICED)
		return diag_set(diag, -ESRCH, "dump", "the guest is %s", shim_state_names[s->state]);
	if (s->helper_pid)
		return diag_set(diag, -EBUSY, "dump", "another one is under way");
	if (s->frozen)
		return diag_set(diag, -EBUSY, "dump", "the guest stands still; CRIU needs it to run");
	if (dump->dir[0] != '/')
		return diag_set(diag, -EINVAL, "dump", "\"%.200s\" is not an absolute path", dump->dir);
	if (s->driver == JOB_DRIVER_CUDA) {
		r = host_memory_check(diag);
		if (r < 0)
			return r;
	}
	(void)snprintf(tmp, sizeof(tmp), "%s/dump.new", s->start.dir);
	r = dir_remove_all(tmp);
	if (r == 0 && mkdir(tmp, 0700) < 0)
		r = -errno;
	s->dump.dir_fd = r == 0 ? open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (s->dump.dir_fd < 0)
		return diag_set(diag, r < 0 ? r : -errno, tmp, "cannot be made");
	s->dump.wanted = strdup(dump->dir);
	s->dump.leave_stopped = dump->leave_frozen;
	s->dump.id = id;
	s->dump.begun_ns = s->now;
	s->dump.cuda_at = 0;
	r = guest_processes(s, &procs);
	s->dump.root_pid = r == 0 ? pid_inside(guest_top(s, &procs)) : 0;
	VEC_EACH(&procs, p)
		if (s->driver == JOB_DRIVER_CUDA && uses_cuda(p->pid))
			(void)VEC_PUSH(&s->dump.cuda, p->pid); /* none: the dump will name the device file */
	VEC_DONE(&procs);
	if (!s->dump.root_pid || !s->dump.wanted) {
		dump_done(s);
		return diag_set(diag, -ESRCH, "dump", "the guest's processes cannot be seen");
	}
	POINT("shim.dump");
	dump_cuda_next(s);
	return 0;
}

/* ---- restore ---- */

/* Out of the guest's folder before the guest owns it again. */
int restore_take(struct shim *s, struct diag *diag)
{
	char own[4300];
	CLEANUP_JSON json_t *obj = NULL;
	CLEANUP_FREE char *text = NULL;
	struct meta m;
	size_t len;
	int r;

	(void)snprintf(own, sizeof(own), "%s/restore", s->start.dir);
	r = dir_remove_all(own);
	if (r == 0 && rename(s->start.restore_dir, own) < 0)
		r = -errno;
	if (r < 0)
		return diag_set(diag, r, s->start.restore_dir, "cannot be taken: %s", strerror(-r));
	s->dump.dir_fd = open(own, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dump.dir_fd < 0)
		return diag_set(diag, -errno, own, "%s", strerror(errno));
	r = file_read_at(s->dump.dir_fd, META_FILE, 65536, &text, &len);
	if (r < 0)
		return diag_set(diag, r, own, META_FILE ": %s", strerror(-r));
	obj = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	if (!obj)
		return diag_set(diag, -EINVAL, own, META_FILE " is not JSON");
	r = schema_decode(&meta_schema, obj, SCHEMA_OPEN, NULL, &m, diag);
	if (r < 0)
		return r;
	if (m.uid_base != s->start.uid_base)
		return diag_set(diag, -EINVAL, own, "was dumped as uid %llu and would run as %llu",
				(unsigned long long)m.uid_base, (unsigned long long)s->start.uid_base);
	s->dump.root_pid = m.root_pid;
	s->dump.pipe_ino = m.pipe_ino;
	return 0;
}

int restore_begin(struct shim *s, struct diag *diag)
{
	struct criu_job j = { .criu = s->start.criu, .init_pid = s->guest_pid,
			      .guest_uid = (unsigned)(s->start.uid_base + SANDBOX_UID), .dir_fd = s->dump.dir_fd,
			      .out_fd = s->restore_out_fd, .pipe_ino = s->dump.pipe_ino, .restore = true,
			      .attach = attach, .attach_ctx = s };
	int pid = criu_start(&j, diag);

	if (pid < 0)
		return pid;
	s->dump.phase = DUMP_RESTORE;
	s->dump.begun_ns = s->now;
	s->helper_pid = pid;
	return 0;
}

static void restore_complete(struct shim *s)
{
	struct proc_list procs = VEC_INIT;
	char own[4300];

	(void)close(s->restore_out_fd);
	s->restore_out_fd = -1;
	if (s->driver == JOB_DRIVER_CUDA && guest_processes(s, &procs) == 0)
		VEC_EACH(&procs, p) {
			pid_t pid = uses_cuda(p->pid) ? cuda_toggle_start(p->pid, NULL) : 0;

			if (pid > 0)
				(void)waitpid(pid, NULL, 0); /* the guest cannot go on before anyway */
		}
	/* It was dumped stopped, and stands so again. */
	if (procs.count == 0)
		(void)guest_processes(s, &procs);
	VEC_EACH(&procs, p)
		(void)proc_kill(p->pid, p->start_ticks, SIGCONT);
	VEC_DONE(&procs);
	log_info("job %s.%llu: restored in %.0f ms", s->start.job, (unsigned long long)s->start.epoch,
		 (double)(s->now - s->dump.begun_ns) / 1e6);
	dump_done(s);
	(void)snprintf(own, sizeof(own), "%s/restore", s->start.dir);
	(void)dir_remove_all(own); /* the agent has it as an image */
	POINT("shim.restored");
	guest_runs(s);
}

/* A helper has ended. */
void dump_helper_ended(struct shim *s, int status)
{
	bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	char why[600], text[700];

	s->helper_pid = 0;
	if (s->state >= SHIM_STOPPING) {
		if (s->dump.phase != DUMP_IDLE && s->dump.phase != DUMP_RESTORE)
			dump_report(s, "the guest was stopped meanwhile");
		dump_done(s);
		return;
	}
	switch (s->dump.phase) {
	case DUMP_CUDA:
		if (!ok) {
			dump_fail(s, "cuda-checkpoint failed");
			return;
		}
		s->dump.cuda_at++;
		dump_cuda_next(s);
		return;
	case DUMP_CRIU:
		if (ok) {
			dump_complete(s);
			return;
		}
		criu_why(s->dump.dir_fd, why, sizeof(why));
		dump_fail(s, why);
		return;
	case DUMP_RESTORE:
		if (ok) {
			restore_complete(s);
			return;
		}
		criu_why(s->dump.dir_fd, why, sizeof(why));
		(void)snprintf(text, sizeof(text), "the restore failed (%d): %s",
			       WIFEXITED(status) ? WEXITSTATUS(status) : -1, why);
		guest_stop(s, SHIM_END_NOT_STARTED, text);
		return;
	case DUMP_IDLE:
		return;
	}
}
