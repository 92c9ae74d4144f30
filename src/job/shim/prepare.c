/* SPDX-License-Identifier: Apache-2.0 */
/* From `start` to a child that waits: folders, group, box, sockets, output, environment. */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/point.h"
#include "job/sandbox_internal.h"
#include "job/shim/shim.h"

#define RANGE 65536

struct folders {
	char work[4200], ckpt[4200], home[4200], tmp[4200], secrets[4300];
};

static int folders_make(struct shim *s, struct folders *f, struct diag *diag)
{
	struct {
		char *path;
		const char *name;
	} rows[] = { { f->work, "work" }, { f->ckpt, "ckpt" }, { f->home, "home" }, { f->tmp, "tmp" } };
	char run[4200];
	int r;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		(void)snprintf(rows[i].path, 4200, "%s/%s", s->start.dir, rows[i].name);
		r = dir_make_all(rows[i].path, 0755);
		if (r < 0)
			return diag_set(diag, r, rows[i].path, "cannot be made: %s", strerror(-r));
	}
	(void)snprintf(run, sizeof(run), "%s/%s.%llu", s->start.run_dir, s->start.job,
		       (unsigned long long)s->start.epoch);
	(void)dir_remove_all(run); /* of a shim of this name that died: names are not used twice at once */
	r = dir_make_all(run, 0755);
	if (r < 0)
		return diag_set(diag, r, run, "cannot be made: %s", strerror(-r));
	s->run_dir = strdup(run);
	return s->run_dir ? 0 : diag_set(diag, -ENOMEM, "shim", "out of memory");
}

/* The guest's folders are the guest's, to the last file of a restored image. */
static int folders_chown(const char *path, uid_t uid, struct diag *diag)
{
	char *const paths[] = { (char *)path, NULL };
	FTS *fts = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	FTSENT *e;
	int r = fts ? 0 : -errno;

	while (r == 0 && (e = fts_read(fts))) {
		if (e->fts_info == FTS_DP)
			continue;
		if ((e->fts_info == FTS_ERR || e->fts_info == FTS_DNR || e->fts_info == FTS_NS) ||
		    (e->fts_statp->st_uid != uid && lchown(e->fts_accpath, uid, uid) < 0))
			r = -(e->fts_errno ? e->fts_errno : errno);
	}
	if (fts)
		(void)fts_close(fts);
	return r < 0 ? diag_set(diag, r, path, "cannot be given to the guest: %s", strerror(-r)) : 0;
}

/* checkpoint.dir: a link in the working folder to where checkpoints really are. */
static int checkpoint_link(struct shim *s, const struct folders *f, struct diag *diag)
{
	const char *dir = s->start.spec.checkpoint.dir;
	const char *target = box_path(s, BOX_CKPT, f->ckpt);
	char path[5400], parent[5400];
	struct stat st;
	char *slash;

	if (!dir)
		return 0;
	if (path_format(path, sizeof(path), "%s/%s", f->work, dir) < 0)
		return diag_set(diag, -ENAMETOOLONG, "checkpoint.dir", "too long");
	for (size_t n = strlen(path); n && path[n - 1] == '/'; n--)
		path[n - 1] = '\0';
	(void)snprintf(parent, sizeof(parent), "%s", path);
	slash = strrchr(parent, '/');
	*slash = '\0';
	if (dir_make_all(parent, 0755) < 0)
		return diag_set(diag, -errno, parent, "cannot be made");
	if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
		(void)unlink(path); /* ours, from before; symlink() below tells if not */
	else if (lstat(path, &st) == 0 && rmdir(path) < 0)
		return diag_set(diag, -EEXIST, "checkpoint.dir",
				"\"%s\" comes with the inputs and is not empty: inputs and checkpoints cannot share it",
				dir);
	if (symlink(target, path) < 0)
		return diag_set(diag, -errno, path, "link: %s", strerror(errno));
	return 0;
}

/* ---- what is executed ---- */

static void argv_free(char **argv)
{
	for (char **p = argv; p && *p; p++)
		free(*p);
	free(argv);
}

static int script_write(struct shim *s, struct diag *diag)
{
	char path[4300];
	CLEANUP_FD int fd = -1;
	const char *text = s->start.spec.script;
	int r;

	(void)snprintf(path, sizeof(path), "%s/script", s->run_dir);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
	if (r == 0 && fchmod(fd, 0755) < 0)
		r = -errno;
	return r < 0 ? diag_set(diag, r, path, "cannot be written: %s", strerror(-r)) : 0;
}

static int argv_build(struct shim *s, char ***ret, struct diag *diag)
{
	const struct job_spec *spec = &s->start.spec;
	size_t count = spec->script ? spec->args_count : spec->command_count, n = 0;
	char **argv = calloc(count + 5, sizeof(*argv));
	char host[4300];
	int r = argv ? 0 : -ENOMEM;

	if (r == 0 && s->choice.rung != SANDBOX_PROCESS)
		argv[n++] = strdup(BOX_BIN "/reclaim-init");
	if (r == 0 && s->start.restore_dir) {
		/* Init waits for a tree that CRIU puts below it. */
		char number[32];

		(void)snprintf(number, sizeof(number), "%llu", (unsigned long long)s->dump.root_pid);
		argv[n++] = strdup("--restore");
		argv[n++] = strdup(number);
		count = 0;
	}
	if (r == 0 && spec->script && !s->start.restore_dir) {
		r = script_write(s, diag);
		(void)snprintf(host, sizeof(host), "%s/script", s->run_dir);
		if (strncmp(spec->script, "#!", 2))
			argv[n++] = strdup("/bin/sh");
		argv[n++] = strdup(box_path(s, BOX_RUN "/script", host));
	}
	for (size_t i = 0; r == 0 && i < count; i++)
		argv[n++] = strdup(spec->script ? spec->args[i] : spec->command[i]);
	for (size_t i = 0; r == 0 && i < n; i++)
		if (!argv[i])
			r = -ENOMEM;
	if (r < 0) {
		argv_free(argv);
		return r == -ENOMEM ? diag_set(diag, r, "shim", "out of memory") : r;
	}
	*ret = argv;
	return 0;
}

/* ---- driver ---- */

static void driver_choose(struct shim *s)
{
	const struct job_spec *spec = &s->start.spec;
	const char *why = "the job says so";

	s->driver = spec->checkpoint.driver;
	if (s->driver == JOB_DRIVER_AUTO) {
		if (spec->signal) {
			s->driver = JOB_DRIVER_SIGNAL;
			why = "the job declares a signal";
		} else if (!spec->checkpoint.dir && s->start.criu && !spec->slots.gpus && !s->start.image &&
			   geteuid() == 0 && spec->checkpoint.format == JOB_CKPT_AUTO && s->start.auto_criu) {
			s->driver = JOB_DRIVER_CRIU;
			why = "neither signal nor checkpoint folder is declared, and CRIU is here";
		} else {
			s->driver = JOB_DRIVER_POLL;
			s->signal_if_caught = true;
			why = "no signal is declared: told by file, HTTP and socket, and by SIGTERM if a process "
			      "catches it";
		}
	}
	(void)snprintf(s->driver_why, sizeof(s->driver_why), "%s", why);
}

/* ---- group and box ---- */

static void lacks_add(struct shim *s, const char *text)
{
	struct sandbox_choice *c = &s->choice;

	if (c->lacks_count < SANDBOX_LACKS_MAX)
		(void)snprintf(c->lacks[c->lacks_count++], SANDBOX_LACK_MAX, "%s", text);
}

static int group_make(struct shim *s, size_t *ret_lacks, char (*lacks)[CGROUP_LACK_MAX], size_t lacks_max)
{
	struct cgroup_limits limits = {
		.memory_max = s->start.memory_max,
		.cores_milli = s->start.cores_milli,
		.pids_max = s->start.pids_max,
		.devices = geteuid() == 0,
		.device_paths = (const char *const *)s->start.devices,
		.device_count = s->start.devices_count,
	};
	struct diag diag = DIAG_INIT;
	char name[300], text[800];
	int r;

	*ret_lacks = 0;
	if (!s->start.cgroup_parent)
		return -ENOTSUP;
	cgroup_probe("/proc/self/mountinfo", &s->cgroup_caps);
	(void)snprintf(name, sizeof(name), "%s.%llu", s->start.job, (unsigned long long)s->start.epoch);
	r = cgroup_new(&s->cgroup_caps, s->start.cgroup_parent, name, &s->cgroup, &diag);
	if (r < 0) {
		log_warn("no cgroup: %s", diag_format(&diag, text, sizeof(text)));
		return r;
	}
	return cgroup_limit(s->cgroup, &limits, lacks, lacks_max, ret_lacks);
}

static int attach(void *ctx, pid_t pid)
{
	struct shim *s = ctx;

	return s->cgroup ? cgroup_attach(s->cgroup, pid) : 0;
}

static void on_child_exec(struct shim *s, struct source *src, uint32_t events);

static int spawn(struct shim *s, const struct folders *f, int out_fd, char **argv, char **envp,
		 struct diag *diag)
{
	CLEANUP_FREE struct sandbox_bind *binds = calloc(s->start.binds_count + 1, sizeof(*binds));
	CLEANUP_FREE struct sandbox_secret *secrets = calloc(s->start.secrets_count + 1, sizeof(*secrets));
	bool boxed = s->choice.rung != SANDBOX_PROCESS;
	bool no_network = s->start.spec.network.mode == JOB_NETWORK_NONE && s->choice.rung == SANDBOX_USERNS;
	struct sandbox_config c = {
		.rung = s->choice.rung, .caps = &s->caps, .uid_base = s->start.uid_base, .image = s->start.image,
		.work = f->work, .ckpt = f->ckpt, .home = f->home, .tmp = f->tmp, .run = s->run_dir,
		.tools = s->tools, .cwd = s->start.spec.work_dir, .binds = binds,
		.bind_count = s->start.binds_count, .devices = (const char *const *)s->start.devices,
		.device_count = s->start.devices_count, .secrets = secrets,
		.secret_count = s->start.secrets_count, .secrets_dir = s->start.secrets_count ? f->secrets : NULL,
		.own_network = s->start.own_network, .no_network = no_network,
		.metadata = s->start.own_network || no_network,
		.plain_mounts = s->driver == JOB_DRIVER_CRIU || s->driver == JOB_DRIVER_CUDA,
		.memory_max = s->start.memory_max, .rlimit_memory = !s->cgroup, .pids_max = s->start.pids_max,
		.file_max = s->start.disk_max, .nice = s->start.nice, .out_fd = out_fd, .argv = argv, .envp = envp, .attach = attach,
		.attach_ctx = s, .hostname = s->start.hostname ? s->start.hostname : "guest",
	};

	if (!binds || !secrets)
		return diag_set(diag, -ENOMEM, "shim", "out of memory");
	if (boxed && !s->tools)
		return diag_set(diag, -ENOENT, "guest-bin", "the guest's tools are not installed beside reclaim-shim");
	for (size_t i = 0; i < s->start.binds_count; i++)
		binds[i] = (struct sandbox_bind){ s->start.binds[i].path, s->start.binds[i].to,
						  s->start.binds[i].writable };
	for (size_t i = 0; i < s->start.secrets_count; i++)
		secrets[i] = (struct sandbox_secret){ s->start.secrets[i].name, s->start.secrets[i].value };
	return sandbox_spawn(&c, &s->child, diag);
}

/* Process rung: no mount namespace, so a folder of the machine's memory that is removed. */
static int secrets_on_process_rung(struct shim *s, struct folders *f, struct diag *diag)
{
	char template[] = "/dev/shm/reclaim-secrets-XXXXXX";
	char link[4300];

	if (!s->start.secrets_count || s->choice.rung != SANDBOX_PROCESS)
		return 0;
	if (!mkdtemp(template))
		return diag_set(diag, -errno, "/dev/shm", "secrets: %s", strerror(errno));
	(void)snprintf(f->secrets, sizeof(f->secrets), "%s", template);
	(void)snprintf(link, sizeof(link), "%s/secrets", s->run_dir);
	if (symlink(template, link) < 0)
		return diag_set(diag, -errno, link, "%s", strerror(errno));
	for (size_t i = 0; i < s->start.secrets_count; i++) {
		char path[4600];
		CLEANUP_FD int fd = -1;
		const char *value = s->start.secrets[i].value;

		(void)snprintf(path, sizeof(path), "%s/%s", template, s->start.secrets[i].name);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
		if (fd < 0 || fd_write_all(fd, value, strlen(value)) < 0)
			return diag_set(diag, -EIO, s->start.secrets[i].name, "the secret cannot be handed over");
	}
	return s->start.uid_base ? folders_chown(template, (uid_t)(s->start.uid_base + SANDBOX_UID), diag) : 0;
}

static void secrets_wipe(struct shim *s)
{
	for (size_t i = 0; i < s->start.secrets_count; i++) {
		char *value = s->start.secrets[i].value;

		explicit_bzero(value, strlen(value));
	}
}

static void ready_event(struct shim *s)
{
	struct shim_event event = { .type = SHIM_EVENT_READY };
	struct shim_hello hello;

	state_hello(s, &hello);
	event.ready = (struct shim_ready){
		.guest_pid = hello.guest_pid, .netns = hello.netns, .rung = hello.rung, .lacks = hello.lacks,
		.lacks_count = hello.lacks_count, .driver = hello.driver, .driver_why = hello.driver_why,
		.metadata_port = s->metadata_port,
	};
	conn_event(s, &event);
	free(hello.lacks);
}

static void default_uids(struct shim *s)
{
	/* Never as root: a range of its own from the job's name, where the agent gave none. A tree
	 * that CRIU restores keeps its uids, so there they come from the job on every machine. */
	if (geteuid() == 0 && (!s->start.uid_base || dump_driver(s)))
		s->start.uid_base = 0x40000000 + (uint64_t)RANGE * (hash_sip24(s->start.job, strlen(s->start.job), 5, 6) % 8192);
	if (geteuid() != 0)
		s->start.uid_base = 0;
}

static int prepare_steps(struct shim *s, struct folders *f, struct diag *diag)
{
	char lacks[8][CGROUP_LACK_MAX];
	size_t lacks_count = 0;
	int r, group;

	driver_choose(s);
	default_uids(s);
	group = group_make(s, &lacks_count, lacks, ARRAY_SIZE(lacks));
	sandbox_probe(&s->caps);
	if (dump_driver(s)) {
		r = dump_check(s, diag);
		if (r < 0)
			return r;
		s->caps.user = false; /* criu.h: why not */
		s->caps.landlock_abi = 0;
	}
	r = sandbox_choose(&s->caps, s->start.rung, s->start.rung_min, group == 0 && lacks_count == 0, &s->choice,
			   diag);
	if (r < 0)
		return r;
	for (size_t i = 0; i < lacks_count; i++)
		lacks_add(s, lacks[i]);
	if (s->choice.rung >= SANDBOX_USERNS || !s->caps.net)
		s->start.own_network = false; /* named in lacks */
	if (dump_driver(s) && s->choice.rung > SANDBOX_NAMESPACES)
		return diag_set(diag, -ENOTSUP, "checkpoint.driver", "%s needs the rung namespaces; here it is %s",
				job_driver_names[s->driver], sandbox_rung_names[s->choice.rung]);
	if (s->start.restore_dir) {
		r = restore_take(s, diag);
		if (r < 0)
			return r;
	}
	r = folders_make(s, f, diag);
	if (r == 0)
		r = checkpoint_link(s, f, diag);
	if (r == 0)
		r = secrets_on_process_rung(s, f, diag);
	if (r == 0 && s->start.uid_base) {
		const char *const own[] = { f->work, f->ckpt, f->home, f->tmp };

		for (size_t i = 0; i < ARRAY_SIZE(own) && r == 0; i++)
			r = folders_chown(own[i], (uid_t)(s->start.uid_base + SANDBOX_UID), diag);
	}
	if (r == 0)
		r = guestsock_listen(s, diag);
	if (r == 0) {
		/* From now on commits are seen as they come; what is there already was restored. */
		struct diag d = DIAG_INIT;
		struct ckpt_commit c;

		if (ckpt_watch_new(f->ckpt, (enum job_ckpt_format)s->start.spec.checkpoint.format, 0, &s->watch,
				   &d) < 0 ||
		    ckpt_watch_scan(s->watch, s->now, CKPT_EXITED, &c, &d) < 0)
			log_warn("the checkpoint folder is not watched: %s", d.what);
	}
	return r;
}

int guest_prepare(struct shim *s, struct diag *diag)
{
	static struct folders f;
	char **argv = NULL, **envp = NULL;
	CLEANUP_FD int out_fd = -1;
	int r;

	state_set(s, SHIM_PREPARING, NULL);
	if (s->start.lease_deadline_ns) {
		uint64_t margin = s->start.lease_margin_ns ? s->start.lease_margin_ns : 250 * NS_PER_MS;

		s->due.lease = s->start.lease_deadline_ns > margin ? s->start.lease_deadline_ns - margin : 0;
	}
	r = prepare_steps(s, &f, diag);
	/* Without a network of its own the port has to be known before the environment is made. */
	if (r == 0 && !s->start.own_network &&
	    !(s->start.spec.network.mode == JOB_NETWORK_NONE && s->choice.rung == SANDBOX_USERNS))
		r = guestsock_metadata(s, diag);
	if (r == 0)
		r = output_open(s, &out_fd, diag);
	if (r == 0)
		r = argv_build(s, &argv, diag);
	if (r == 0)
		r = env_build(s, &envp, diag);
	if (r == 0)
		r = spawn(s, &f, out_fd, argv, envp, diag);
	secrets_wipe(s);
	argv_free(argv);
	env_free(envp);
	if (r < 0)
		return r;
	if (s->start.restore_dir) {
		s->restore_out_fd = TAKE_FD(out_fd);
		(void)fcntl(s->restore_out_fd, F_SETFD, FD_CLOEXEC);
	}
	s->guest_pid = s->child.pid;
	if (s->child.metadata_fds[0] >= 0) {
		r = guestsock_metadata(s, diag);
		if (r < 0)
			return r;
	}
	POINT("shim.prepared");
	state_set(s, SHIM_READY, NULL);
	ready_event(s);
	return s->start.wait_go ? 0 : guest_go(s, diag);
}

int guest_go(struct shim *s, struct diag *diag)
{
	int r;

	if (s->state != SHIM_READY || s->child_ctl.fd >= 0)
		return diag_set(diag, -EINVAL, "go", "the guest is %s", shim_state_names[s->state]);
	r = sandbox_go(&s->child);
	if (r == 0)
		r = source_add(s, &s->child_ctl, s->child.ctl_fd, EPOLLIN, on_child_exec);
	return r < 0 ? diag_set(diag, r, "go", "%s", strerror(-r)) : 0;
}

static void on_refusal(struct shim *s, struct source *src, uint32_t events)
{
	char text[200];

	if (events & EPOLLHUP) {
		source_close(s, src);
		return;
	}
	if (sandbox_refusal(src->fd, text, sizeof(text)) < 0)
		return;
	/* A guest may try a million times: each is refused, the first hundred are told. */
	if (++s->refusals <= 100)
		log_warn("job %s.%llu: %s%s", s->start.job, (unsigned long long)s->start.epoch, text,
			 s->refusals == 100 ? "; further refusals are not logged" : "");
}

static void on_child_exec(struct shim *s, struct source *src, uint32_t events)
{
	struct diag diag = DIAG_INIT;
	char text[800];
	int fd = s->child.ctl_fd, r;

	/* sandbox_started() closes the fd at the end; the epoll set must let go of it first. */
	(void)epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	src->fd = -1;
	r = sandbox_started(&s->child, &diag);
	if (r == 1) {
		if (source_add(s, src, fd, EPOLLIN, on_child_exec) < 0 ||
		    source_add(s, &s->seccomp, s->child.notify_fd, EPOLLIN, on_refusal) < 0)
			guest_stop(s, SHIM_END_NOT_STARTED, "out of resources");
		s->child.notify_fd = -1;
		return;
	}
	if (r < 0) {
		guest_stop(s, SHIM_END_NOT_STARTED, diag_format(&diag, text, sizeof(text)));
		return;
	}
	POINT("shim.executed");
	if (s->start.restore_dir && s->state == SHIM_READY) {
		r = restore_begin(s, &diag);
		if (r < 0)
			guest_stop(s, SHIM_END_NOT_STARTED, diag_format(&diag, text, sizeof(text)));
		return;
	}
	guest_runs(s);
}

/* The guest's own program executes from here on. */
void guest_runs(struct shim *s)
{
	s->guest_running = true;
	s->started_ns = s->now;
	disk_arm(s);
	if (s->start.spec.time_limit_ns) {
		uint64_t used = MIN(s->start.time_used_ns, s->start.spec.time_limit_ns);

		s->due.time_limit = s->now + (s->start.spec.time_limit_ns - used);
	}
	if (s->state == SHIM_READY)
		state_set(s, SHIM_RUNNING, s->start.restore_dir ? "restored" : NULL);
}
