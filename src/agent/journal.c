/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent.json: what the owner wants, across crashes and reboots (one atomic
 * write per change). history.jsonl: who used the machine, one line per
 * incarnation, two files of at most HISTORY_FILE_MAX bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"

#define HISTORY_FILE_MAX (1u << 20)
#define JOURNAL_MAX (64u << 10)

struct journal {
	uint64_t starts;
	bool lent, paused, by_itself;
	int state;
	int mode;
	char *notice_id;
	char *reason;
	char *boot_id;          /* of the instants below */
	uint64_t asked_ns, deadline_ns, window_ns;
};

static const struct schema_field journal_fields[] = {
	FIELD_U64(struct journal, starts, 0, 9e15),
	FIELD_BOOL(struct journal, lent),
	FIELD_BOOL(struct journal, paused),
	FIELD_BOOL(struct journal, by_itself),
	FIELD_ENUM(struct journal, state, control_owner_state_names, .fallback = "owned"),
	FIELD_ENUM(struct journal, mode, control_reclaim_mode_names),
	FIELD_STR(struct journal, notice_id, CONTROL_NAME_MAX),
	FIELD_STR(struct journal, reason, 127),
	FIELD_STR(struct journal, boot_id, 63),
	FIELD_U64(struct journal, asked_ns, 0, 0),
	FIELD_U64(struct journal, deadline_ns, 0, 0),
	FIELD_U64(struct journal, window_ns, 0, 0),
	FIELD_END,
};
static const struct schema journal_schema = SCHEMA(struct journal, "agent.json", journal_fields);

static int journal_path(const struct agent *a, const char *name, char *buf, size_t size)
{
	return path_format(buf, size, "%s/%s", a->state_dir, name);
}

static void journal_apply(struct agent *a, const struct journal *j)
{
	struct owner *o = &a->owner;
	a->starts = j->starts;
	o->intent_lent = j->lent;
	o->paused = j->paused;
	o->by_itself = j->by_itself;
	bool same_boot = j->boot_id && strcmp(j->boot_id, a->boot_id) == 0;
	/* After a reboot no guest runs: a notice that was under way has ended by itself. */
	if (!same_boot && j->state != CONTROL_OWNER_LENT) {
		o->state = CONTROL_OWNER_OWNED;
		return;
	}
	o->state = (enum control_owner_state)j->state;
	if (o->state != CONTROL_OWNER_NOTICE && o->state != CONTROL_OWNER_DRAINING)
		return;
	o->mode = (enum control_reclaim_mode)j->mode;
	o->asked_ns = j->asked_ns;
	o->deadline_ns = j->deadline_ns;
	o->window_ns = j->window_ns;
	(void)snprintf(o->notice_id, sizeof(o->notice_id), "%s", j->notice_id ? j->notice_id : "");
	(void)snprintf(o->reason, sizeof(o->reason), "%s", j->reason ? j->reason : "");
}

int journal_load(struct agent *a, struct diag *diag)
{
	char path[PATH_MAX];
	int r = journal_path(a, "agent.json", path, sizeof(path));
	if (r < 0)
		return diag_set(diag, r, a->state_dir, "the path is too long");
	CLEANUP_FREE char *text = NULL;
	size_t len;
	r = file_read(path, JOURNAL_MAX, &text, &len);
	if (r == -ENOENT) {
		a->owner.intent_lent = a->terms.lend_at_start;
		a->owner.state = a->owner.intent_lent ? CONTROL_OWNER_LENT : CONTROL_OWNER_OWNED;
		return 0;
	}
	if (r < 0)
		return diag_set(diag, r, path, "cannot read: %s", strerror(-r));
	CLEANUP_JSON json_t *value = json_loadb(text, len, 0, NULL);
	struct journal j;
	r = schema_decode(&journal_schema, value, SCHEMA_OPEN, NULL, &j, diag);
	if (r < 0) {
		diag_prefix(diag, path);
		return r;
	}
	journal_apply(a, &j);
	schema_done(&journal_schema, &j);
	return 0;
}

int journal_save(struct agent *a)
{
	struct owner *o = &a->owner;
	struct journal j = {
		.starts = a->starts,
		.lent = o->intent_lent,
		.paused = o->paused,
		.by_itself = o->by_itself,
		.state = o->state,
		.mode = o->mode,
		.notice_id = o->notice_id,
		.reason = o->reason,
		.boot_id = a->boot_id,
		.asked_ns = o->asked_ns,
		.deadline_ns = o->deadline_ns,
		.window_ns = o->window_ns,
	};
	char path[PATH_MAX];
	CLEANUP_JSON json_t *value = schema_encode(&journal_schema, &j);
	CLEANUP_FREE char *text = value ? json_dumps(value, JSON_INDENT(1)) : NULL;
	int r = text ? journal_path(a, "agent.json", path, sizeof(path)) : -ENOMEM;
	POINT("agent.journal.before_save");
	if (r == 0)
		r = file_write_atomic(path, text, strlen(text), 0600);
	POINT("agent.journal.after_save");
	if (r < 0)
		log_error("%s/agent.json: cannot save the owner's state: %s; a restart would forget it",
			  a->state_dir, strerror(-r));
	return r;
}

static int history_append(struct agent *a, const char *line)
{
	char path[PATH_MAX], old[PATH_MAX];
	int r = journal_path(a, "history.jsonl", path, sizeof(path));
	if (r == 0)
		r = journal_path(a, "history.old.jsonl", old, sizeof(old));
	if (r < 0)
		return r;
	CLEANUP_FD int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	off_t size = lseek(fd, 0, SEEK_END);
	r = fd_write_all(fd, line, strlen(line));
	if (r == 0 && size > HISTORY_FILE_MAX && rename(path, old) < 0)
		r = -errno;
	return r;
}

void journal_use(struct agent *a, const struct guest *g)
{
	char from[CLOCK_TEXT_MAX];
	(void)clock_format_wall(g->started_wall_ms, from);
	CLEANUP_JSON json_t *value =
		json_pack("{s:s,s:s,s:s,s:I,s:s}", "user", g->user, "job", g->job, "from", from,
			  "ran_ms", (json_int_t)g->ran_ms, "end", control_end_names[g->end]);
	CLEANUP_FREE char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	CLEANUP_FREE char *line = NULL;
	int r = text && asprintf(&line, "%s\n", text) > 0 ? history_append(a, line) : -ENOMEM;
	if (r < 0)
		log_warn("history of use: %s", strerror(-r));
}

/* Lines of one file, last first. */
static size_t history_read(const char *path, struct owner_use *ret, size_t n)
{
	CLEANUP_FREE char *text = NULL;
	size_t len, count = 0;
	if (n == 0 || file_read(path, HISTORY_FILE_MAX + 8192, &text, &len) < 0)
		return 0;
	while (len > 0 && count < n) {
		while (len > 0 && text[len - 1] == '\n')
			text[--len] = '\0';
		char *line = memrchr(text, '\n', len);
		line = line ? line + 1 : text;
		CLEANUP_JSON json_t *v = json_loads(line, 0, NULL);
		len = (size_t)(line - text);
		const char *user, *job, *from, *end;
		json_int_t ran;
		/* A line cut by a full disk is skipped: history is for people. */
		if (!v || json_unpack(v, "{s:s,s:s,s:s,s:I,s:s}", "user", &user, "job", &job, "from",
				      &from, "ran_ms", &ran, "end", &end) < 0)
			continue;
		ret[count++] = (struct owner_use){ strdup(user), strdup(job), strdup(from),
						   (uint64_t)ran, strdup(end) };
	}
	return count;
}

size_t journal_history(struct agent *a, struct owner_use *ret, size_t n)
{
	char path[PATH_MAX];
	size_t count = 0;
	if (journal_path(a, "history.jsonl", path, sizeof(path)) == 0)
		count = history_read(path, ret, n);
	if (journal_path(a, "history.old.jsonl", path, sizeof(path)) == 0)
		count += history_read(path, ret + count, n - count);
	return count;
}
