/* SPDX-License-Identifier: Apache-2.0 */
#include "base/point.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

#define POINTS_MAX 32
#define POINT_NAME_MAX 96

struct point_rule {
	char name[POINT_NAME_MAX];
	unsigned kill_at; /* the hit that kills; 0 = only count */
	unsigned hits;
};

bool point_active;
static struct point_rule rules[POINTS_MAX];
static size_t rules_count;
static int hits_fd = -1;

static void rule_add(const char *text)
{
	if (rules_count == POINTS_MAX)
		return;
	struct point_rule *r = &rules[rules_count];
	size_t len = strcspn(text, "=");
	if (len == 0 || len >= sizeof(r->name))
		return;
	memcpy(r->name, text, len);
	r->name[len] = '\0';
	r->hits = 0;
	r->kill_at = 0;
	if (strncmp(text + len, "=kill", 5) == 0) {
		const char *at = strchr(text + len, '@');
		r->kill_at = at ? (unsigned)strtoul(at + 1, NULL, 10) : 1;
	}
	rules_count++;
}

void point_init(void)
{
	const char *spec = getenv("RECLAIM_POINTS");
	if (!spec || !*spec)
		return;
	const char *path = getenv("RECLAIM_POINTS_HITS");
	if (path && hits_fd < 0)
		hits_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	char copy[2048];
	strncpy(copy, spec, sizeof(copy) - 1);
	copy[sizeof(copy) - 1] = '\0';
	char *save = NULL;
	for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save))
		rule_add(t);
	point_active = true;
}

static void hit_write(const char *name, const char *end)
{
	char line[POINT_NAME_MAX + 3];
	size_t len = strnlen(name, POINT_NAME_MAX), end_len = strlen(end);
	if (hits_fd < 0)
		return;
	memcpy(line, name, len);
	memcpy(line + len, end, end_len);
	/* One write of a short line: atomic under O_APPEND. */
	(void)!write(hits_fd, line, len + end_len);
}

void point_hit(const char *name)
{
	hit_write(name, "\n");
	for (size_t i = 0; i < rules_count; i++) {
		if (strcmp(rules[i].name, name) != 0)
			continue;
		rules[i].hits++;
		if (rules[i].kill_at && rules[i].hits == rules[i].kill_at) {
			hit_write(name, "!\n"); /* the campaign's sign that it came to this */
			(void)kill(getpid(), SIGKILL);
		}
	}
}
