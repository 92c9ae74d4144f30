/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guest's checkpoints: the watch says which commit is complete, a thread
 * seals it into the store, and it becomes guest.image, "saved". Final means
 * that no process runs past it: the guest left, acknowledged, or stands still.
 *
 * The image is taken from the committed folder itself, and of plain files from the
 * checkpoint folder without what the watch says is not of the set. A program that removes
 * it in the middle (it keeps its last two) makes the sealing fail with "changed
 * under our hands", and the newest commit is tried.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/agent_internal.h"
#include "agent/task.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"

/* After a commit in a notice: so long to leave by itself before it is made to stand still. */
#define GRACE_NS (400 * NS_PER_MS)
#define TAKE_TRIES_MAX 5

struct guest_take {
	struct guest *guest;       /* NULL when the guest is gone: the result is dropped */
	struct image_store *store;
	struct image_take_params params;
	char job[IMAGE_JOB_MAX + 1], previous[IMAGE_DIGEST_HEX + 1];
	char src[PATH_MAX];
	char commit[CONTROL_COMMIT_MAX + 1];
	char *meta;
	char **skip;               /* the watch's list, copied */
	size_t skip_count;
	image_cancel cancel;
	uint64_t output_offset, ran_ns, began_ns, took_ns;
	bool final, dump;
	struct image_info info;
	struct diag diag;
	int r;
};

static void take_free(struct guest_take *t)
{
	explicit_bzero(t->params.key, sizeof(t->params.key));
	for (size_t i = 0; i < t->skip_count; i++)
		free(t->skip[i]);
	free(t->skip);
	free(t->meta);
	free(t);
}

static void take_work(void *arg)
{
	struct guest_take *t = arg;
	POINT("agent.take.begin");
	t->r = image_take(t->store, &t->params, &t->info, &t->diag);
	POINT("agent.take.sealed");
	t->took_ns = clock_boot_ns() - t->began_ns;
}

static void send_saved(struct guest *g, const struct guest_take *t)
{
	struct control_message m = {
		.type = CONTROL_SAVED,
		.saved = {
			.job = g->job,
			.epoch = g->epoch,
			.seq = g->image.seq,
			.image = g->image.digest,
			.previous = t->previous[0] ? (char *)t->previous : NULL,
			.bytes = t->info.bytes,
			.new_bytes = t->info.new_bytes,
			.take_ms = t->took_ns / NS_PER_MS,
			.output_offset = g->image.output_offset,
			.final = g->image.final,
			.notice_id = g->notice_id[0] ? g->notice_id : NULL,
			.commit = g->image.commit,
		},
	};
	(void)link_send(g->agent, &m); /* without a link, hello's images say it */
}

static void take_success(struct guest *g, const struct guest_take *t)
{
	memcpy(g->image.digest, t->info.digest, sizeof(g->image.digest));
	g->image.epoch = g->epoch;
	g->image.seq = t->info.seq;
	g->image.bytes = t->info.bytes;
	g->image.new_bytes = t->info.new_bytes;
	g->image.output_offset = t->output_offset;
	g->image.ran_ns = t->ran_ns;
	g->image.final = t->final;
	g->image.durable = false;
	memcpy(g->image.commit, t->commit, sizeof(g->image.commit));
	g->delta_bytes = t->info.new_bytes;
	if (g->save_asked_ns && t->began_ns > g->save_asked_ns)
		g->save_ms = (t->began_ns - g->save_asked_ns) / NS_PER_MS;
	g->save_asked_ns = 0;
	output_pump(g);
	POINT("agent.take.before_told");
	send_saved(g, t);
	POINT("agent.take.told");
	if (g->notice_id[0] && g->shim && !g->exited)
		(void)shim_client_saved(g->shim);
	/* The store keeps the two newest of each job, and those the coordinator pinned. */
	(void)image_prune(g->agent->images, g->job, IMAGE_KEEP_DEFAULT, NULL, NULL, NULL);
}

static void after_take(struct guest *g);

static void take_done(void *arg)
{
	struct guest_take *t = arg;
	struct guest *g = t->guest;
	if (!g) {
		take_free(t);
		return;
	}
	g->take = NULL;
	bool again = t->dump && !t->final;
	if (t->r == 0)
		take_success(g, t);
	else if (t->r != -ECANCELED)
		log_warn("job %s: checkpoint not taken (%s): %s: %s", g->job, image_error_name(t->r),
			 t->diag.where, t->diag.what);
	take_free(t);
	if (again && g->shim && !g->exited && g->phase == GUEST_RUNNING)
		(void)shim_client_thaw(g->shim); /* it stood still for the image's sake */
	after_take(g);
	owner_notify(g->agent);
	owner_check_empty(g->agent);
}

void guest_take_cancel(struct guest *g)
{
	if (!g->take)
		return;
	atomic_store(&g->take->cancel, true);
	g->take->guest = NULL;
	g->take = NULL;
}

static int path_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A set of plain files lies in the checkpoint folder beside what is not part of it. */
static int copy_skips(struct guest_take *t, const struct ckpt_watch *w)
{
	char *const *skip;
	size_t n = ckpt_watch_skips(w, &skip);
	t->skip = calloc(n ? n : 1, sizeof(*t->skip));
	if (!t->skip)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		t->skip[i] = strdup(skip[i]);
		if (!t->skip[i])
			return -ENOMEM;
		t->skip_count++;
	}
	qsort(t->skip, n, sizeof(*t->skip), path_compare);
	return 0;
}

/* Seals g->dir/folder[/name]. commit is the watch's, NULL for a dump. */
static int take_begin(struct guest *g, const char *folder, const struct ckpt_commit *commit, bool final)
{
	struct guest_take *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	bool files = commit && commit->format == JOB_CKPT_FILES;
	const char *name = commit && !files ? commit->name : "";
	int r = path_format(t->src, sizeof(t->src), "%s/%s%s%s", g->dir, folder, name[0] ? "/" : "", name);
	if (r == 0 && files)
		r = copy_skips(t, g->watch);
	if (r < 0) {
		take_free(t);
		return r;
	}
	t->guest = g;
	t->store = g->agent->images;
	(void)snprintf(t->job, sizeof(t->job), "%s", g->job);
	(void)snprintf(t->previous, sizeof(t->previous), "%s", g->image.digest);
	t->dump = !commit;
	(void)snprintf(t->commit, sizeof(t->commit), "%s", name);
	/* Output before the folder began to change is surely before the commit. */
	t->output_offset = g->activity ? g->activity_offset : output_size(g);
	t->began_ns = clock_boot_ns();
	t->ran_ns = guest_ran_ms(g) * NS_PER_MS;
	t->final = final;
	CLEANUP_JSON json_t *meta =
		json_pack("{s:s,s:b,s:I,s:I,s:b}", "commit", name, "dump", t->dump, "output_offset",
			  (json_int_t)t->output_offset, "ran_ms", (json_int_t)guest_ran_ms(g), "final", final);
	json_t *tail = output_tail(g);
	if (tail && json_object_set_new(meta, "output", tail) < 0)
		log_warn("job %s: an image without the end of its output", g->job);
	t->meta = meta ? json_dumps(meta, JSON_COMPACT) : NULL;
	t->params = (struct image_take_params){
		.job = t->job,
		.epoch = g->epoch,
		.seq = ++g->image_seq,
		.src_dir = t->src,
		.previous = t->previous[0] ? t->previous : NULL,
		.skip = (const char *const *)t->skip,
		.skip_count = t->skip_count,
		.meta_json = t->meta,
		.cancel = &t->cancel,
	};
	memcpy(t->params.key, g->key, sizeof(t->params.key));
	g->take = t;
	if (commit)
		g->commit_seq_seen = commit->seq;
	g->activity = false;
	r = task_run(g->agent->loop, take_work, take_done, t);
	if (r < 0) {
		g->take = NULL;
		take_free(t);
	}
	return r;
}

/* Nothing of the guest moves any more: its newest commit is its last. */
static bool stands_still(const struct guest *g)
{
	return g->exited || (g->phase == GUEST_NOTICED && g->frozen);
}

/* A program that left by itself, or acknowledged, has written all that it wanted to; one that
 * was killed or frozen may be in the middle of it. */
static enum ckpt_still stillness(const struct guest *g)
{
	if (!stands_still(g))
		return CKPT_RUNNING;
	if (g->acked)
		return CKPT_EXITED;
	return g->exited && !g->kill_sent && !g->exit.signal ? CKPT_EXITED : CKPT_FROZEN;
}

static int scan(struct guest *g, struct ckpt_commit *ret)
{
	struct diag diag = DIAG_INIT;
	*ret = (struct ckpt_commit){ 0 };
	if (!g->watch)
		return -ENOENT;
	int r = ckpt_watch_scan(g->watch, clock_boot_ns(), stillness(g), ret, &diag);
	if (r < 0)
		log_warn("job %s: checkpoint folder: %s: %s", g->job, diag.where, diag.what);
	return r;
}

/*
 * Programs that do not save themselves: the shim dumps their processes into the
 * working folder, which then is the image (their files belong to their state).
 * The guest stands still from the dump until the image is sealed.
 */
#define DUMP_FOLDER ".reclaim-dump"

void guest_dump_begin(struct guest *g, bool final)
{
	char path[PATH_MAX];
	if (g->dumping || g->take || !g->shim || g->exited || g->frozen)
		return;
	int r = path_format(path, sizeof(path), "%s/work/" DUMP_FOLDER, g->dir);
	if (r == 0)
		r = dir_remove_all(path);
	if (r == 0)
		r = dir_make_all(path, 0700);
	if (r < 0) {
		log_warn("job %s: no dump: %s", g->job, strerror(-r));
		return;
	}
	g->dumping = true;
	g->dump_final = final;
	g->save_asked_ns = clock_boot_ns();
	POINT("agent.dump.begin");
	(void)shim_client_dump(g->shim, path, true);
}

void guest_dumped(struct guest *g, const struct shim_dumped *d)
{
	if (!g->dumping)
		return;
	g->dumping = false;
	POINT("agent.dump.done");
	if (d->error) {
		/* It runs on. In a notice there is time for another try, or for the last image. */
		log_warn("job %s: dump failed, it runs on: %s", g->job, d->error);
		if (g->phase == GUEST_NOTICED && g->dump_tries++ < TAKE_TRIES_MAX)
			(void)loop_timer_in(&g->grace, GRACE_NS);
		return;
	}
	g->frozen = true;
	if (take_begin(g, "work", NULL, g->dump_final || g->phase == GUEST_NOTICED) < 0)
		log_warn("job %s: dump not taken: out of memory", g->job);
}

static bool dumps(const struct guest *g)
{
	return g->driver_kind == JOB_DRIVER_CRIU || g->driver_kind == JOB_DRIVER_CUDA;
}

static void on_settle(void *user)
{
	guest_watch_scan(user);
}

static void on_grace(void *user)
{
	struct guest *g = user;
	if (g->phase == GUEST_NOTICED && dumps(g))
		guest_dump_begin(g, true);
	else if (g->phase == GUEST_NOTICED && g->shim && !g->exited && !g->frozen)
		(void)shim_client_freeze(g->shim); /* the `state` event leads to guest_finalize() */
}

/* Was it made because of the notice? Files take a while to be known for complete: those that
 * were written before are no answer, though they are seen after. */
static bool answers_notice(const struct guest *g, const struct ckpt_commit *c)
{
	return c->seq > g->commit_seq_at_notice &&
	       (c->format != JOB_CKPT_FILES || c->changed_ns >= g->noticed_wall_ns);
}

void guest_watch_quiet(struct guest *g)
{
	if (!g->watch || g->activity)
		return;
	struct pollfd p = { .fd = ckpt_watch_fd(g->watch), .events = POLLIN };
	uint64_t stamp = clock_stamp_ns(), size = output_size(g);
	if (poll(&p, 1, 0) != 0)
		return;
	g->quiet_offset = size;
	g->quiet_stamp_ns = stamp;
}

/* How much output there surely was before the folder began to change. On a busy machine we hear
 * of it late: if the program has said something since, it counts from when all was quiet. */
static uint64_t output_before_change(const struct guest *g)
{
	char path[PATH_MAX];
	struct stat out, dir;
	if (path_format(path, sizeof(path), "%s/output.log", g->dir) < 0 || stat(path, &out) < 0 ||
	    path_format(path, sizeof(path), "%s/ckpt", g->dir) < 0 || stat(path, &dir) < 0)
		return g->quiet_offset;
	uint64_t said = timespec_ns(&out.st_mtim), made = timespec_ns(&dir.st_mtim);
	/* A file rewritten in place leaves no stamp on the folder: then by when we heard of it. */
	return made >= g->quiet_stamp_ns && said >= made ? g->quiet_offset : (uint64_t)out.st_size;
}

void guest_watch_scan(struct guest *g)
{
	struct ckpt_commit c;
	if (!g->activity) {
		g->activity = true;
		g->activity_offset = output_before_change(g);
	}
	if (g->take || scan(g, &c) < 0)
		return;
	if (c.settling)
		(void)loop_timer_in(&g->settle, c.wait_ns ? c.wait_ns : 50 * NS_PER_MS);
	if (!c.found || c.seq <= g->commit_seq_seen)
		return;
	POINT("agent.commit.seen");
	if (take_begin(g, "ckpt", &c, false) < 0)
		log_warn("job %s: checkpoint not taken: out of memory", g->job);
	if (g->phase != GUEST_NOTICED || !answers_notice(g, &c))
		return;
	/* A program that polls saves and goes on: every further step would be lost. */
	if (g->driver_kind == JOB_DRIVER_POLL)
		on_grace(g);
	else if (!loop_timer_armed(&g->grace))
		(void)loop_timer_in(&g->grace, GRACE_NS);
}

static void final_is_ready(struct guest *g)
{
	g->image.final = true;
	g->final_ready = true;
	POINT("agent.final.ready");
	if (g->phase == GUEST_NOTICED)
		link_send_job(g);
	guest_move_consider(g);
	if (g->phase != GUEST_ENDING)
		return;
	/* Nothing left to run: a job that is over hands in its results, another is told of. */
	if (g->end == CONTROL_END_DONE || g->end == CONTROL_END_FAILED) {
		if (guest_results_begin(g) == 0)
			return;
	}
	guest_finish(g, g->end, g->exit.status,
		     g->exit.reason ? g->exit.reason : g->end_reason);
}

static void after_take(struct guest *g)
{
	if (stands_still(g)) {
		guest_finalize(g);
		return;
	}
	if (g->phase == GUEST_RUNNING || g->phase == GUEST_NOTICED)
		guest_watch_scan(g); /* something newer may have come meanwhile */
	guest_move_consider(g);
}

void guest_finalize(struct guest *g)
{
	struct ckpt_commit c;
	if (g->take || g->phase >= GUEST_ENDED)
		return; /* take_done() comes back here */
	if (!stands_still(g))
		return;
	if (scan(g, &c) == 0 && c.found && c.seq > g->commit_seq_seen && 
	    take_begin(g, "ckpt", &c, true) == 0)
		return;
	final_is_ready(g);
}

static void on_watch(void *user, int events, int error)
{
	guest_watch_scan(user);
}

int guest_watch_open(struct guest *g, struct diag *diag)
{
	char path[PATH_MAX];
	int r = path_format(path, sizeof(path), "%s/ckpt", g->dir);
	if (r < 0)
		return diag_set(diag, r, g->dir, "the path is too long");
	loop_timer_init(&g->settle, g->agent->loop, on_settle, g);
	loop_timer_init(&g->grace, g->agent->loop, on_grace, g);
	/* A rank's commits must have names, by which they are matched with those of the others. */
	enum job_ckpt_format format =
		g->start.start.ranks > 1 ? JOB_CKPT_MANIFEST : (enum job_ckpt_format)g->spec.checkpoint.format;
	r = ckpt_watch_new(path, format, 0, &g->watch, diag);
	if (r < 0)
		return r;
	/* What was restored is no new commit. */
	struct ckpt_commit c = { 0 };
	if (ckpt_watch_scan(g->watch, clock_boot_ns(), CKPT_EXITED, &c, NULL) == 0 && c.found)
		g->commit_seq_seen = c.seq;
	r = loop_watch_open(g->agent->loop, ckpt_watch_fd(g->watch), UV_READABLE, on_watch, g,
			    &g->watch_fd);
	if (r < 0)
		return diag_set(diag, r, path, "cannot watch: %s", strerror(-r));
	return 0;
}

void guest_watch_close(struct guest *g)
{
	loop_watch_close(g->watch_fd);
	g->watch_fd = NULL;
	ckpt_watch_free(g->watch);
	g->watch = NULL;
	loop_timer_stop(&g->settle);
	loop_timer_stop(&g->grace);
}

/* ---- restore ---- */

struct restore {
	struct guest *guest;
	struct image_store *store;
	char job[IMAGE_JOB_MAX + 1], digest[IMAGE_DIGEST_HEX + 1], dir[PATH_MAX];
	uint8_t key[IMAGE_KEY_LEN];
	image_cancel *cancel;
	char *meta;
	bool dump;
	struct diag diag;
	int r;
};

/* The commit's folder comes from the manifest, which its digest in the commit record vouches for;
 * it still must not lead out of the checkpoint folder. */
static int restore_target(struct restore *w, char *buf, size_t size)
{
	CLEANUP_JSON json_t *meta = json_loads(w->meta ? w->meta : "{}", 0, NULL);
	const char *commit = json_string_value(json_object_get(meta, "commit"));
	w->dump = json_is_true(json_object_get(meta, "dump"));
	if (w->dump)
		return path_format(buf, size, "%s/work", w->dir);
	if (!commit || !*commit)
		return path_format(buf, size, "%s/ckpt", w->dir);
	for (const char *p = commit; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL) {
		char part[256];
		size_t len = strcspn(p, "/");
		if (len >= sizeof(part))
			return -ENAMETOOLONG;
		memcpy(part, p, len);
		part[len] = '\0';
		if (!name_is_plain(part))
			return -EINVAL;
	}
	return path_format(buf, size, "%s/ckpt/%s", w->dir, commit);
}

static void restore_work(void *arg)
{
	struct restore *w = arg;
	struct image_info info;
	char target[PATH_MAX], parent[PATH_MAX];
	POINT("agent.restore.begin");
	w->r = image_show(w->store, w->job, w->digest, &info, &w->meta, &w->diag);
	if (w->r == 0)
		w->r = restore_target(w, target, sizeof(target));
	if (w->r == 0) {
		/* Nested commit folders: everything above the last part is made first. */
		(void)snprintf(parent, sizeof(parent), "%s", target);
		*strrchr(parent, '/') = '\0';
		w->r = dir_make_all(parent, 0700);
		if (w->r == 0 && w->dump)
			w->r = dir_remove_all(target); /* inputs: the image holds what became of them */
	}
	if (w->r == 0)
		w->r = image_restore(w->store, w->job, w->digest, w->key, target, w->cancel, NULL,
				     &w->diag);
	POINT("agent.restore.done");
}

static void restore_done(void *arg)
{
	struct restore *w = arg;
	struct guest *g = w->guest;
	char why[CONTROL_TEXT_MAX];
	g->task_running = false;
	if (g->abort) {
		guest_finish(g, g->end, 0, g->end_reason);
	} else if (w->r < 0) {
		(void)snprintf(why, sizeof(why), "image %.12s (%s): %.200s: %.500s", w->digest,
			       image_error_name(w->r), w->diag.where, w->diag.what);
		/* A damaged image is forgotten here, so that it is fetched again or an older one used. */
		if (w->r == -EBADMSG)
			(void)image_verify(w->store, w->job, w->digest, w->key, IMAGE_VERIFY_DROP_BAD, NULL,
					   NULL, NULL);
		guest_finish(g, CONTROL_END_NOT_STARTED, 0, why);
	} else {
		const struct control_start *s = &g->start.start;
		(void)snprintf(g->image.digest, sizeof(g->image.digest), "%s", w->digest);
		g->image.epoch = s->image_epoch;
		g->image.seq = s->image_seq;
		g->image.durable = true;
		g->restored_dump = w->dump;
		guest_launch(g);
	}
	explicit_bzero(w->key, sizeof(w->key));
	free(w->meta);
	free(w);
}

int guest_restore_begin(struct guest *g)
{
	const struct control_start *s = &g->start.start;
	if (!s->image) {
		guest_launch(g);
		return 0;
	}
	struct restore *w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->guest = g;
	w->store = g->agent->images;
	(void)snprintf(w->job, sizeof(w->job), "%s", g->job);
	(void)snprintf(w->digest, sizeof(w->digest), "%s", s->image);
	memcpy(w->dir, g->dir, sizeof(w->dir));
	memcpy(w->key, g->key, sizeof(w->key));
	w->cancel = &g->cancel;
	guest_set_phase(g, GUEST_RESTORING);
	g->task_running = true;
	int r = task_run(g->agent->loop, restore_work, restore_done, w);
	if (r < 0) {
		g->task_running = false;
		free(w);
	}
	return r;
}

void guest_prune(struct agent *a, const struct control_keep *keep)
{
	const char *pinned[17] = { NULL };
	for (size_t i = 0; i < keep->images_count && i < 16; i++)
		pinned[i] = keep->images[i];
	if (a->receiver && keep->epoch)
		transfer_receiver_fence(a->receiver, keep->job, keep->epoch);
	struct guest *next;
	for (struct guest *g = a->guests; g; g = next) {
		next = g->next;
		bool over = keep->forget ? g->epoch <= keep->epoch : g->epoch < keep->epoch;
		if (strcmp(g->job, keep->job) == 0 && g->phase == GUEST_ENDED && over)
			guest_free(g);
	}
	if (keep->forget && a->receiver)
		transfer_receiver_drop(a->receiver, keep->job, NULL);
	(void)image_prune(a->images, keep->job, keep->forget ? 0 : IMAGE_KEEP_DEFAULT, pinned, NULL, NULL);
}
