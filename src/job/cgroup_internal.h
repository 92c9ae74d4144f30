/* SPDX-License-Identifier: Apache-2.0 */
/* Device rules, shared by cgroup.c and cgroup_devices.c. */
#ifndef RECLAIM_JOB_CGROUP_INTERNAL_H
#define RECLAIM_JOB_CGROUP_INTERNAL_H

#include <stddef.h>

/* Both leave only the standard devices and those at paths usable; 0 or -errno. */
int cgroup_devices_v1(const char *dir, const char *const *paths, size_t count);
int cgroup_devices_v2(const char *dir, const char *const *paths, size_t count);

#endif
