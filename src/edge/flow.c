/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sent what. The programs keep a bounded map of flows as the campus sees
 * them (after NAT). A sweep moves flows that ended, or have been open for
 * long, into STATE_DIR/flows.log, one JSON object a line, with the job's name
 * resolved from the mark; a long flow gives several lines. Two files at most.
 */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/strbuf.h"
#include "base/vec.h"
#include "edge/edge_internal.h"

#define FLOW_IDLE_NS (10 * NS_PER_S)
#define FLOW_OPEN_NS (300 * NS_PER_S)
#define WHO_MAX 100
#define WHO_LINE_MAX 1024

static const char *const class_names[] = TRAFFIC_CLASS_NAMES;

struct flow_seen {
	struct edge_abi_flow_key key;
	struct edge_abi_flow flow;
};

static uint64_t boot_to_wall_ms(uint64_t boot_ns)
{
	return clock_wall_ms() - (clock_boot_ns() - boot_ns) / NS_PER_MS;
}

static json_t *end_json(uint32_t addr, uint16_t port)
{
	char text[INET_ADDRSTRLEN];

	(void)inet_ntop(AF_INET, &addr, text, sizeof(text)); /* large enough */
	return json_sprintf("%s:%u", text, ntohs(port));
}

static json_t *flow_json(const struct edge *e, const struct flow_seen *f)
{
	struct edge_abi_tag tag = { 0 };

	/* A mark without a tag is ours without a single job: control, say. */
	(void)map_read(&e->hooks, EDGE_MAP_TAG, &f->key.mark, &tag);
	tag.job[sizeof(tag.job) - 1] = '\0';
	return json_pack("{s:s, s:o, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "job", tag.job, "epoch",
			 json_sprintf("%llu", (unsigned long long)tag.epoch), "class",
			 class_names[traffic_mark_class(f->key.mark)], "proto", f->key.proto, "local",
			 end_json(f->key.local, f->key.local_port), "remote",
			 end_json(f->key.remote, f->key.remote_port), "first_ms",
			 json_sprintf("%llu", (unsigned long long)boot_to_wall_ms(f->flow.first_boot_ns)),
			 "last_ms",
			 json_sprintf("%llu", (unsigned long long)boot_to_wall_ms(f->flow.last_boot_ns)),
			 "packets", json_sprintf("%llu", (unsigned long long)f->flow.packets), "bytes",
			 json_sprintf("%llu", (unsigned long long)f->flow.bytes));
}

/* Calls fn for each flow in the map; its answer "remove" takes the flow out. */
static int each_flow(const struct edge *e, bool (*fn)(const struct flow_seen *, void *), void *arg)
{
	int fd = e->hooks.maps[EDGE_MAP_FLOW];
	struct flow_seen f;
	struct edge_abi_flow_key next;
	int more = bpf_map_get_next_key(fd, NULL, &f.key);

	/* An LRU map may lose the key we stand on: then the walk starts over, at most this often. */
	for (int i = 0; more == 0 && i < 2 * EDGE_ABI_FLOWS; i++) {
		bool known = bpf_map_lookup_elem(fd, &f.key, &f.flow) == 0;

		more = bpf_map_get_next_key(fd, &f.key, &next);
		if (known && fn(&f, arg))
			(void)bpf_map_delete_elem(fd, &f.key); /* the kernel may have been first */
		f.key = next;
	}
	return more == 0 || more == -ENOENT ? 0 : more;
}

struct sweep {
	const struct edge *e;
	uint64_t now;
	bool all;
	struct strbuf lines;
};

static bool sweep_flow(const struct flow_seen *f, void *arg)
{
	struct sweep *s = arg;
	CLEANUP_JSON json_t *j = NULL;
	CLEANUP_FREE char *line = NULL;

	if (!s->all && f->flow.last_boot_ns + FLOW_IDLE_NS > s->now &&
	    f->flow.first_boot_ns + FLOW_OPEN_NS > s->now)
		return false;
	j = flow_json(s->e, f);
	line = j ? json_dumps(j, JSON_COMPACT) : NULL;
	if (!line || strbuf_printf(&s->lines, "%s\n", line) < 0)
		return false; /* it stays in the map until there is memory */
	return true;
}

static int log_path(const struct edge *e, bool older, char path[EDGE_PATH_MAX + 16])
{
	return path_format(path, EDGE_PATH_MAX + 16, "%s/flows%s.log", e->state_dir, older ? ".1" : "");
}

static int log_append(const struct edge *e, const struct strbuf *lines)
{
	CLEANUP_FD int fd = -1;
	char path[EDGE_PATH_MAX + 16], older[EDGE_PATH_MAX + 16];
	struct stat st;
	int err = log_path(e, false, path);

	if (err == 0)
		err = log_path(e, true, older);
	if (err == 0 && stat(path, &st) == 0 && (uint64_t)st.st_size + lines->len > EDGE_FLOW_LOG_MAX &&
	    rename(path, older) < 0)
		err = -errno;
	if (err < 0)
		return err;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd_write_all(fd, lines->data, lines->len);
}

int flows_sweep(struct edge *e, bool all, struct diag *diag)
{
	struct sweep s = { .e = e, .now = clock_boot_ns(), .all = all, .lines = STRBUF_INIT };
	int err;

	if (e->readonly || !e->state_dir[0])
		return 0;
	err = each_flow(e, sweep_flow, &s);
	if (err == 0 && s.lines.len > 0)
		err = log_append(e, &s.lines);
	strbuf_done(&s.lines);
	return err < 0 ? diag_set(diag, err, "flows.log", "%s", strerror(-err)) : 0;
}

/* --- asking --------------------------------------------------------------- */

struct who {
	const struct edge *e;
	struct in_addr address;
	uint16_t port;
	uint64_t from_ms, to_ms;
	struct VEC(json_t *) found;
};

static bool end_matches(const struct who *w, const char *end)
{
	char text[INET_ADDRSTRLEN];
	const char *colon = end ? strrchr(end, ':') : NULL;
	size_t len;

	(void)inet_ntop(AF_INET, &w->address, text, sizeof(text)); /* large enough */
	len = strlen(text);
	return colon && (size_t)(colon - end) == len && memcmp(end, text, len) == 0 &&
	       (w->port == 0 || (unsigned)atoi(colon + 1) == w->port);
}

static uint64_t member_u64(const json_t *j, const char *name)
{
	const char *text = json_string_value(json_object_get(j, name));

	return text ? strtoull(text, NULL, 10) : 0;
}

/* Takes the reference. */
static void who_consider(struct who *w, json_t *j)
{
	if (!j)
		return;
	if (member_u64(j, "first_ms") <= w->to_ms && member_u64(j, "last_ms") >= w->from_ms &&
	    (end_matches(w, json_string_value(json_object_get(j, "local"))) ||
	     end_matches(w, json_string_value(json_object_get(j, "remote")))) &&
	    VEC_PUSH(&w->found, j) == 0)
		return;
	json_decref(j);
}

static bool who_flow(const struct flow_seen *f, void *arg)
{
	struct who *w = arg;

	if (f->key.local == w->address.s_addr || f->key.remote == w->address.s_addr)
		who_consider(w, flow_json(w->e, f));
	return false;
}

static void who_file(struct who *w, const char *path)
{
	CLEANUP_FILE FILE *f = fopen(path, "re");
	char line[WHO_LINE_MAX];

	while (f && fgets(line, sizeof(line), f))
		who_consider(w, json_loads(line, 0, NULL)); /* a torn last line is skipped */
}

static int later_first(const void *a, const void *b)
{
	uint64_t x = member_u64(*(json_t *const *)a, "last_ms");
	uint64_t y = member_u64(*(json_t *const *)b, "last_ms");

	return x < y ? 1 : x > y ? -1 : 0;
}

int edge_who(const struct edge *e, const struct in_addr *address, uint16_t port, uint64_t wall_ms,
	     uint64_t slack_ms, json_t **ret, struct diag *diag)
{
	struct who w = { .e = e, .address = *address, .port = port, .to_ms = UINT64_MAX,
			 .found = VEC_INIT };
	char path[EDGE_PATH_MAX + 16];
	json_t *list = json_array();
	int err;

	if (!list)
		return diag_set(diag, -ENOMEM, "who", "out of memory");
	if (wall_ms) {
		w.from_ms = wall_ms > slack_ms ? wall_ms - slack_ms : 0;
		w.to_ms = wall_ms + slack_ms;
	}
	err = each_flow(e, who_flow, &w);
	for (int older = 0; older < 2 && e->state_dir[0] && err == 0; older++) {
		err = log_path(e, older, path);
		if (err == 0)
			who_file(&w, path);
	}
	if (w.found.count)
		qsort(w.found.data, w.found.count, sizeof(w.found.data[0]), later_first);
	for (size_t i = 0; i < w.found.count; i++) {
		if (i < WHO_MAX)
			(void)json_array_append_new(list, w.found.data[i]);
		else
			json_decref(w.found.data[i]);
	}
	VEC_DONE(&w.found);
	if (err < 0) {
		json_decref(list);
		return diag_set(diag, err, "flows", "%s", strerror(-err));
	}
	*ret = list;
	return 0;
}

/* --- tags of moves -------------------------------------------------------- */

/* Tags of moves are numbers from 1; the class is or-ed in by the sender, so each is stored once
 * per class that a move can have. */
static const enum traffic_class tag_classes[] = { TRAFFIC_DEADLINE, TRAFFIC_SCAVENGER,
						  TRAFFIC_CONTROL };

static int tag_store(struct edge *e, uint32_t number, const struct edge_abi_tag *tag)
{
	int err = 0;

	for (size_t i = 0; i < ARRAY_SIZE(tag_classes) && err == 0; i++) {
		uint32_t mark = traffic_mark(tag_classes[i], number);

		err = map_write(&e->hooks, EDGE_MAP_TAG, &mark, tag);
	}
	return err;
}

int edge_tag(struct edge *e, const char *job, uint64_t epoch, uint32_t *ret_tag)
{
	struct edge_abi_tag tag, fresh = { .epoch = epoch, .since_boot_ns = clock_boot_ns() };
	uint32_t free_number = 0, oldest = 1;
	uint64_t oldest_ns = UINT64_MAX;
	int err;

	if (e->readonly)
		return -EROFS;
	if (strlen(job) >= sizeof(fresh.job))
		return -EINVAL;
	(void)snprintf(fresh.job, sizeof(fresh.job), "%s", job);
	for (uint32_t n = 1; n <= EDGE_TAGS_MAX; n++) {
		uint32_t mark = traffic_mark(TRAFFIC_DEADLINE, n);

		if (map_read(&e->hooks, EDGE_MAP_TAG, &mark, &tag) < 0) {
			free_number = n;
			break; /* numbers are taken in order and never given back */
		}
		if (tag.epoch == epoch && strcmp(tag.job, job) == 0) {
			*ret_tag = n;
			return 0;
		}
		if (tag.since_boot_ns < oldest_ns) {
			oldest_ns = tag.since_boot_ns;
			oldest = n;
		}
	}
	if (free_number == 0) {
		(void)flows_sweep(e, true, NULL); /* the old name's flows, while it has one */
		free_number = oldest;
	}
	err = tag_store(e, free_number, &fresh);
	if (err == 0)
		*ret_tag = free_number;
	return err;
}
