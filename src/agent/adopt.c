/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guests that an earlier agent left. jobs/<job>/<epoch>/guest.json holds the
 * start message (without its secrets, which live in the shim's memory only)
 * and, once it ended, how. The shim answers for the rest; without one the
 * guest is gone, and what may be left of it is killed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/point.h"
#include "job/leftover.h"

#define RECORD_MAX (4u << 20)

static int record_path(const struct guest *g, char *buf, size_t size)
{
	return path_format(buf, size, "%s/guest.json", g->dir);
}

int guest_record_save(struct guest *g)
{
	char path[PATH_MAX];
	int r = record_path(g, path, sizeof(path));
	if (r < 0)
		return r;
	struct control_message bare = g->start;
	bare.start.secrets = NULL;
	bare.start.secrets_count = 0;
	bare.start.gang_key = NULL;
	CLEANUP_JSON json_t *start = control_encode(&bare);
	CLEANUP_JSON json_t *record = json_pack(
		"{s:O,s:I,s:s,s:I,s:i,s:s,s:i,s:s,s:I}", "start", start, "started_wall_ms",
		(json_int_t)g->started_wall_ms, "boot_id", g->agent->boot_id, "ran_ms",
		(json_int_t)g->ran_ms, "ended", g->phase == GUEST_ENDED, "end", control_end_names[g->end],
		"status", g->end_status, "reason", g->end_reason, "results_bytes",
		(json_int_t)g->results_bytes);
	CLEANUP_FREE char *text = record ? json_dumps(record, JSON_COMPACT) : NULL;
	return text ? file_write_atomic(path, text, strlen(text), 0600) : -ENOMEM;
}

static enum control_end end_parse(const char *name)
{
	for (int i = 0; i < CONTROL_END_COUNT; i++)
		if (strcmp(control_end_names[i], name) == 0)
			return (enum control_end)i;
	return CONTROL_END_SHIM_LOST;
}

/* The newest image of this incarnation that is in the store. */
static void adopt_image(struct guest *g)
{
	struct image_info *list = NULL;
	size_t n = 0;
	if (image_list(g->agent->images, g->job, &list, &n, NULL) < 0)
		return;
	for (size_t i = 0; i < n; i++) {
		if (list[i].epoch != g->epoch)
			continue;
		memcpy(g->image.digest, list[i].digest, sizeof(g->image.digest));
		g->image.epoch = list[i].epoch;
		g->image.seq = g->image_seq = list[i].seq;
		g->image.bytes = list[i].bytes;
		g->image.new_bytes = list[i].new_bytes;
		break;
	}
	free(list);
}

static void adopt_without_shim(struct guest *g, const char *why)
{
	char parent[256];
	struct pid_list left = VEC_INIT;
	if (leftover_kill(agent_cgroup_parent(g->agent, parent, sizeof(parent)), g->job, g->epoch, NS_PER_S,
			  &left) < 0) {
		g->agent->owner.pids_left += left.count;
		log_error("job %s: %zu process(es) of an earlier agent would not end", g->job, left.count);
	}
	VEC_DONE(&left);
	guest_shim_sweep(g);
	/* The shim's last words, if it had time for them. */
	char path[PATH_MAX];
	struct shim_record record;
	struct diag diag = DIAG_INIT;
	g->exited = true;
	g->end = g->started_wall_ms ? CONTROL_END_SHIM_LOST : CONTROL_END_NOT_STARTED;
	(void)snprintf(g->end_reason, sizeof(g->end_reason), "%s", why);
	if (path_format(path, sizeof(path), "%s/shim.json", g->dir) == 0 &&
	    shim_record_load(path, &record, &diag) == 0) {
		const struct shim_exited *x = &record.hello.exited;
		if (x->end != SHIM_END_NONE) {
			g->end = (enum control_end)x->end;
			g->exit.status = x->status;
			g->ran_ms = x->ran_ns / NS_PER_MS;
			(void)snprintf(g->end_reason, sizeof(g->end_reason), "%s", x->reason ? x->reason : "");
		}
		shim_record_done(&record);
	}
	guest_set_phase(g, GUEST_ENDING);
	if (guest_watch_open(g, &diag) == 0)
		g->commit_seq_seen = 0; /* what it committed last may not have been imaged */
	guest_finalize(g);
}

static void adopt_running(struct guest *g)
{
	struct diag diag = DIAG_INIT;
	adopt_image(g);
	if (access(g->socket, F_OK) < 0) {
		adopt_without_shim(g, "its supervisor was gone when the agent came back");
		return;
	}
	agent_edge_adopt(g);
	g->phase = GUEST_LAUNCHING;
	int r = guest_watch_open(g, &diag);
	if (r == 0) {
		/* A commit of the time without an agent: the image's own sequence says if it is new. */
		g->commit_seq_seen = 0;
		r = guest_shim_adopt(g, &diag);
	}
	if (r < 0) {
		log_warn("job %s: %s: %s", g->job, diag.where, diag.what);
		adopt_without_shim(g, diag.what);
	}
}

static int adopt_one(struct agent *a, const char *dir)
{
	char path[PATH_MAX];
	struct diag diag = DIAG_INIT;
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = path_format(path, sizeof(path), "%s/guest.json", dir);
	if (r == 0)
		r = file_read(path, RECORD_MAX, &text, &len);
	if (r < 0)
		return r;
	CLEANUP_JSON json_t *record = json_loadb(text, len, 0, NULL);
	struct control_message start;
	r = control_decode(json_object_get(record, "start"), &start, &diag);
	if (r < 0)
		return r;
	if (start.type != CONTROL_START) {
		control_done(&start);
		return -EPROTO;
	}
	struct guest *g = guest_new(a, &start, &diag);
	control_done(&start);
	if (!g) {
		log_warn("%s: %s: %s", dir, diag.where, diag.what);
		return -EINVAL;
	}
	g->started_wall_ms = (uint64_t)json_integer_value(json_object_get(record, "started_wall_ms"));
	/* How far its output was at a commit that nobody saw is not known: surely not before its start. */
	g->activity = true;
	g->activity_offset = 0;
	g->interval_ns = g->start.start.interval_ms * NS_PER_MS;
	const char *boot = json_string_value(json_object_get(record, "boot_id"));
	if (json_integer_value(json_object_get(record, "ended"))) {
		g->ran_ms = (uint64_t)json_integer_value(json_object_get(record, "ran_ms"));
		const char *end = json_string_value(json_object_get(record, "end"));
		const char *reason = json_string_value(json_object_get(record, "reason"));
		g->end_status = (int)json_integer_value(json_object_get(record, "status"));
		g->results_bytes = (uint64_t)json_integer_value(json_object_get(record, "results_bytes"));
		(void)snprintf(g->end_reason, sizeof(g->end_reason), "%s", reason ? reason : "");
		g->end = end_parse(end ? end : "");
		g->exited = true;
		adopt_image(g);
		for (size_t i = 0; i < a->terms.slots_count; i++)
			for (size_t k = 0; k < g->start.start.slots_count; k++)
				if (strcmp(a->terms.slots[i].name, g->start.start.slots[k]) == 0)
					a->slot_used[i] = false;
		g->phase = GUEST_ENDED;
		guest_shim_dismiss(g);
	} else if (!boot || strcmp(boot, a->boot_id) != 0) {
		adopt_image(g);
		adopt_without_shim(g, "the machine was restarted");
	} else {
		adopt_running(g);
	}
	return 0;
}

/* Folders without a readable record are of a start that a crash cut off before it was made. */
static void adopt_job_dir(struct agent *a, const char *job_dir)
{
	CLEANUP_DIR DIR *d = opendir(job_dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		char dir[PATH_MAX];
		uint64_t epoch;
		if (parse_u64(e->d_name, &epoch) < 0 ||
		    path_format(dir, sizeof(dir), "%s/%s", job_dir, e->d_name) < 0)
			continue;
		if (adopt_one(a, dir) < 0) {
			log_warn("%s: no usable record; removed", dir);
			(void)dir_remove_all(dir);
		}
	}
	(void)rmdir(job_dir); /* only when it is empty */
}

int adopt_all(struct agent *a, struct diag *diag)
{
	char jobs[PATH_MAX];
	int r = path_format(jobs, sizeof(jobs), "%s/jobs", a->state_dir);
	if (r == 0)
		r = dir_make_all(jobs, 0700);
	if (r < 0)
		return diag_set(diag, r, a->state_dir, "cannot make jobs/: %s", strerror(-r));
	CLEANUP_DIR DIR *d = opendir(jobs);
	for (struct dirent *e; d && (e = readdir(d));) {
		char dir[PATH_MAX];
		if (name_is_plain(e->d_name) && path_format(dir, sizeof(dir), "%s/%s", jobs, e->d_name) == 0)
			adopt_job_dir(a, dir);
	}
	POINT("agent.adopted");
	return 0;
}
