/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding processes of the system under test, and ending them badly. A
 * machine's processes are those in its network namespace, or (guests with a
 * namespace of their own, and the loopback campus) those whose environment or
 * command line names the machine's folders, with all their descendants.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "lab/lab_internal.h"

#define PROCS_MAX 8192

struct found {
	pid_t pid, parent;
	char name[32];  /* of the program file */
	char state;
	bool on_machine; /* itself, or a descendant of one */
	bool is_guest;   /* a descendant of a shim */
	bool sender, receiver;
};

static void read_names(struct found *f, const char *dir)
{
	char path[64], exe[512] = "", *slash;
	ssize_t n;

	(void)path_format(path, sizeof(path), "%s/exe", dir);
	n = readlink(path, exe, sizeof(exe) - 1);
	slash = n > 0 ? strrchr(exe, '/') : NULL;
	if (slash) {
		slash[1 + strcspn(slash + 1, " ")] = 0; /* "name (deleted)" */
		(void)snprintf(f->name, sizeof(f->name), "%.31s", slash + 1);
	}
}

static bool mentions(const char *dir, const char *file, const char *word)
{
	CLEANUP_FREE char *text = NULL;
	char path[64];
	size_t len;

	return path_format(path, sizeof(path), "%s/%s", dir, file) == 0 &&
	       file_read(path, 1u << 20, &text, &len) == 0 &&
	       memmem(text, len, word, strlen(word)) != NULL;
}

static bool has_word(const char *dir, const char *word)
{
	return mentions(dir, "cmdline", word);
}

static bool in_netns(const char *dir, const struct campus_node *n)
{
	char path[64];
	struct stat a, b;

	return n->netns_fd >= 0 && path_format(path, sizeof(path), "%s/ns/net", dir) == 0 &&
	       stat(path, &a) == 0 && fstat(n->netns_fd, &b) == 0 && a.st_ino == b.st_ino &&
	       a.st_dev == b.st_dev;
}

static bool read_stat(struct found *f, const char *dir)
{
	CLEANUP_FREE char *text = NULL;
	char path[64], *end;
	size_t len;
	int parent;

	if (path_format(path, sizeof(path), "%s/stat", dir) < 0 ||
	    file_read(path, 4096, &text, &len) < 0)
		return false;
	end = strrchr(text, ')');
	if (!end || sscanf(end + 1, " %c %d", &f->state, &parent) != 2)
		return false;
	f->parent = parent;
	return true;
}

/* All processes, with those of this machine marked. */
static size_t look(const struct lab *l, size_t machine, struct found *all, size_t cap)
{
	const struct lab_machine *m = &l->machines[machine];
	CLEANUP_DIR DIR *d = opendir("/proc");
	struct dirent *e;
	size_t n = 0;
	bool changed = true;

	while (d && n < cap && (e = readdir(d))) {
		struct found f = { 0 };
		char dir[32];
		uint64_t pid;

		if (parse_u64(e->d_name, &pid) < 0)
			continue;
		f.pid = (pid_t)pid;
		(void)snprintf(dir, sizeof(dir), "/proc/%d", f.pid);
		if (!read_stat(&f, dir) || f.state == 'Z')
			continue;
		read_names(&f, dir);
		if (!f.name[0])
			continue; /* no program any more: it has given up its memory and is ending */
		f.on_machine = f.pid == m->agent || in_netns(dir, m->node) ||
			       has_word(dir, m->run) || has_word(dir, m->state);
		if (strcmp(f.name, "reclaim-transfer") == 0) {
			f.sender = has_word(dir, "send");
			f.receiver = has_word(dir, "receive");
		}
		all[n++] = f;
	}
	/* Descendants, however deep: a few passes settle it. */
	while (changed) {
		changed = false;
		for (size_t i = 0; i < n; i++)
			for (size_t k = 0; k < n; k++) {
				bool guest = all[k].is_guest ||
					     strcmp(all[k].name, "reclaim-shim") == 0;

				if (all[i].parent != all[k].pid || all[k].pid == getpid())
					continue;
				if ((all[k].on_machine && !all[i].on_machine) ||
				    (guest && !all[i].is_guest)) {
					all[i].on_machine |= all[k].on_machine;
					all[i].is_guest |= guest;
					changed = true;
				}
			}
	}
	return n;
}

static bool is_kind(const struct found *f, enum scenario_what what)
{
	switch (what) {
	case SCENARIO_WHAT_AGENT: return strcmp(f->name, "reclaimd") == 0;
	case SCENARIO_WHAT_SHIM: return strcmp(f->name, "reclaim-shim") == 0 && !f->is_guest;
	case SCENARIO_WHAT_SENDER: return f->sender;
	case SCENARIO_WHAT_RECEIVER: return f->receiver;
	case SCENARIO_WHAT_GUEST: return f->is_guest;
	default: return false;
	}
}

int crash_kill(struct lab *l, size_t machine, enum scenario_what what)
{
	CLEANUP_FREE struct found *all = NULL;
	size_t n;
	int count = 0;

	if (what == SCENARIO_WHAT_COORDINATOR) {
		if (!l->coordinator)
			return 0;
		l->coordinator_down_on_purpose = true;
		return kill(l->coordinator, SIGKILL) == 0;
	}
	if (what == SCENARIO_WHAT_AGENT) {
		if (!l->machines[machine].agent)
			return 0;
		l->machines[machine].down_on_purpose = true;
		return kill(l->machines[machine].agent, SIGKILL) == 0;
	}
	all = calloc(PROCS_MAX, sizeof(*all));
	if (!all)
		return -ENOMEM;
	n = look(l, machine, all, PROCS_MAX);
	for (size_t i = 0; i < n; i++)
		if (all[i].on_machine && is_kind(&all[i], what) && kill(all[i].pid, SIGKILL) == 0)
			count++;
	return count;
}

uint64_t crash_guests_left(struct lab *l, size_t machine)
{
	CLEANUP_FREE struct found *all = calloc(PROCS_MAX, sizeof(*all));
	uint64_t count = 0;
	size_t n;

	if (!all)
		return UINT64_MAX;
	n = look(l, machine, all, PROCS_MAX);
	for (size_t i = 0; i < n; i++)
		if (all[i].on_machine && all[i].is_guest) {
			count++;
			lab_say(l, "left on %s: process %d (%s, state %c)",
				l->machines[machine].spec->name, all[i].pid, all[i].name,
				all[i].state);
		}
	return count;
}
