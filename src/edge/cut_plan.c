/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/cut_plan.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "edge/cut_file.h"

enum cut_key {
	KEY_VERSION = 0,
	KEY_GID,
	KEY_BPF,
	KEY_NETNS,
	KEY_IFINDEX,
	KEY_LEAF,
	KEY_CGROUP_V2,
	KEY_CGROUP_V1_FREEZER,
	KEY_COUNT,
};
static const char *const key_names[KEY_COUNT] = {
	"version", "gid", "bpf", "netns", "ifindex", "leaf", "cgroup_v2", "cgroup_v1_freezer",
};

/* A number and what follows it; digits only, so no sign, no space, no base. */
static bool take_number(const char **text, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;
	const char *p = *text;

	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (v > (max - (uint64_t)(*p - '0')) / 10)
			return false;
		v = v * 10 + (uint64_t)(*p - '0');
	}
	*text = p;
	*ret = v;
	return true;
}

static bool number(const char *text, uint64_t max, uint64_t *ret)
{
	return take_number(&text, max, ret) && *text == '\0';
}

static bool path(const char *text, char ret[CUT_PATH_MAX])
{
	size_t len = strlen(text);

	if (text[0] != '/' || len >= CUT_PATH_MAX || strstr(text, "/../"))
		return false;
	memcpy(ret, text, len + 1);
	return true;
}

static bool parse_value(struct cut_plan *p, enum cut_key key, const char *value)
{
	uint64_t n;

	switch (key) {
	case KEY_VERSION:
		return number(value, INT_MAX, &n) && n == CUT_FILE_VERSION;
	case KEY_GID:
		if (!number(value, UINT32_MAX - 1, &n))
			return false;
		p->gid = (uint32_t)n;
		return true;
	case KEY_BPF:
		return path(value, p->bpf);
	case KEY_NETNS:
		return take_number(&value, UINT64_MAX, &p->netns_dev) && *value++ == ' ' &&
		       number(value, UINT64_MAX, &p->netns_ino);
	case KEY_IFINDEX:
		if (!number(value, INT_MAX, &n))
			return false;
		p->ifindex = (int)n;
		return true;
	case KEY_LEAF:
		if (!number(value, UINT32_MAX, &n))
			return false;
		p->leaf = (uint32_t)n;
		return true;
	case KEY_CGROUP_V2:
		return path(value, p->cgroup_v2);
	case KEY_CGROUP_V1_FREEZER:
		return path(value, p->cgroup_v1_freezer);
	case KEY_COUNT:
		break;
	}
	return false;
}

int cut_plan_parse(char *text, struct cut_plan *ret, unsigned *ret_line)
{
	struct cut_plan p = { .gid = UINT32_MAX };
	unsigned seen = 0, line_number = 0;
	char *save = NULL;

	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(line, ' ');
		int key = 0;

		*ret_line = ++line_number;
		if (!value)
			return -EINVAL;
		*value++ = '\0';
		while (key < KEY_COUNT && strcmp(line, key_names[key]) != 0)
			key++;
		if (line_number == 1 && key != KEY_VERSION)
			return -EINVAL;
		if (key == KEY_COUNT)
			continue;
		if ((seen & 1u << key) || !parse_value(&p, (enum cut_key)key, value))
			return -EINVAL;
		seen |= 1u << key;
	}
	if (!(seen & 1u << KEY_VERSION))
		return -EINVAL;
	*ret = p;
	return 0;
}
