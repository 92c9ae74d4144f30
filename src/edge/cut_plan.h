/* SPDX-License-Identifier: Apache-2.0 */
/* edge.cut (cut_file.h) as reclaim-cut reads it. libc only. */
#ifndef RECLAIM_EDGE_CUT_PLAN_H
#define RECLAIM_EDGE_CUT_PLAN_H

#include <stddef.h>
#include <stdint.h>

#define CUT_PATH_MAX 256

struct cut_plan {
	uint32_t gid;                /* UINT32_MAX = root only */
	char bpf[CUT_PATH_MAX];      /* "" = no maps */
	uint64_t netns_dev, netns_ino;
	int ifindex;
	uint32_t leaf;
	char cgroup_v2[CUT_PATH_MAX], cgroup_v1_freezer[CUT_PATH_MAX]; /* "" = none */
};

/* The file's text (NUL-terminated, changed in place). 0, or -EINVAL with the bad line in
 * ret_line: an unknown version, a key twice, a relative path, a number out of range. Unknown
 * keys are of a newer agent and do no harm. */
int cut_plan_parse(char *text, struct cut_plan *ret, unsigned *ret_line);

#endif
