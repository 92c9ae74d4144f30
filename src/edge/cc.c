/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registering the congestion controls. Where the kernel has links for
 * struct_ops (6.4), a link pinned beside the maps holds each one: it outlives
 * the agent and goes with the bpffs. Elsewhere the registration itself stays
 * until cc_unload(). libbpf 1.1 knows only the latter, hence the system call.
 */
#include "edge/cc.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "edge/cc.skel.h"
#include "wire/traffic_class.h"

/* linux/bpf.h of newer kernels. */
#define FLAG_LINK (1u << 13)   /* BPF_F_LINK */
#define ATTACH_STRUCT_OPS 44   /* BPF_STRUCT_OPS */

static const char *const names[] = { TRAFFIC_CC_FLOOR, TRAFFIC_CC_SCAVENGER };

static bool registered(const char *name)
{
	CLEANUP_FREE char *list = NULL;
	char *save = NULL;
	size_t len;

	if (file_read("/proc/sys/net/ipv4/tcp_available_congestion_control", 4096, &list, &len) < 0)
		return false;
	for (char *word = strtok_r(list, " \n", &save); word; word = strtok_r(NULL, " \n", &save))
		if (strcmp(word, name) == 0)
			return true;
	return false;
}

static bool all_registered(void)
{
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (!registered(names[i]))
			return false;
	return true;
}

DEFINE_CLEANUP(struct cc_bpf *, cc_bpf__destroy)
#define CLEANUP_CC CLEANUP(cc_bpf__destroy_cleanup)

static int load(bool links, struct cc_bpf **ret)
{
	CLEANUP_CC struct cc_bpf *cc = cc_bpf__open();
	struct bpf_map *m;
	int err;

	if (!cc)
		return -errno;
	bpf_object__for_each_map(m, cc->obj)
		if (links && bpf_map__type(m) == BPF_MAP_TYPE_STRUCT_OPS &&
		    bpf_map__set_map_flags(m, bpf_map__map_flags(m) | FLAG_LINK) < 0)
			return -EINVAL;
	err = cc_bpf__load(cc);
	if (err < 0)
		return err;
	*ret = TAKE(cc);
	return 0;
}

int cc_available(void)
{
	CLEANUP_CC struct cc_bpf *cc = NULL;

	/* Loading runs the verifier over the programs; only registering makes them usable. */
	return all_registered() ? 0 : load(false, &cc);
}

static int link_create(int map_fd)
{
	struct {
		uint32_t map_fd, target_fd, attach_type, flags;
		uint8_t rest[48]; /* of union bpf_attr, zero */
	} attr = { .map_fd = (uint32_t)map_fd, .attach_type = ATTACH_STRUCT_OPS };
	int fd = (int)syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));

	return fd < 0 ? -errno : fd;
}

/* One control, unless another edge has it registered. */
static int enlist(struct bpf_map *m, bool links, const char *dir)
{
	struct bpf_link *made = bpf_map__attach_struct_ops(m);
	CLEANUP_FD int fd = -1;
	char path[PATH_MAX];
	int err;

	if (!made)
		return errno == EEXIST ? 0 : -errno;
	/* Freeing libbpf's stand-in would undo the registration that is to stay. */
	bpf_link__disconnect(made);
	(void)bpf_link__destroy(made); /* only frees, once disconnected */
	if (!links)
		return 0;
	fd = link_create(bpf_map__fd(m));
	if (fd < 0)
		return fd == -EEXIST ? 0 : fd;
	err = path_format(path, sizeof(path), "%s/cc_%s", dir, bpf_map__name(m));
	if (err < 0)
		return err;
	(void)unlink(path); /* of a link that has lost its registration */
	return bpf_obj_pin(fd, path) < 0 ? -errno : 0;
}

int cc_load(const char *dir)
{
	CLEANUP_CC struct cc_bpf *cc = NULL;
	bool links = dir != NULL;
	struct bpf_map *m;
	int err = 0;

	if (all_registered())
		return 0;
	if (links && load(true, &cc) < 0)
		links = false;
	if (!links)
		err = load(false, &cc);
	if (err < 0)
		return err;
	bpf_object__for_each_map(m, cc->obj)
		if (bpf_map__type(m) == BPF_MAP_TYPE_STRUCT_OPS && err == 0)
			err = enlist(m, links, dir);
	return err;
}

int cc_unload(const char *dir)
{
	char path[PATH_MAX];
	uint32_t id = 0;
	int err = 0;

	for (size_t i = 0; i < ARRAY_SIZE(names) && dir; i++)
		if (path_format(path, sizeof(path), "%s/cc_%s", dir, names[i]) == 0 &&
		    unlink(path) < 0 && errno != ENOENT)
			err = -errno;
	/* What was registered without a link: by its map's name, which nobody else uses. */
	while (bpf_map_get_next_id(id, &id) == 0) {
		struct bpf_map_info info = { 0 };
		uint32_t info_len = sizeof(info), zero = 0;
		int fd = bpf_map_get_fd_by_id(id);

		if (fd < 0)
			continue;
		if (bpf_obj_get_info_by_fd(fd, &info, &info_len) == 0 &&
		    info.type == BPF_MAP_TYPE_STRUCT_OPS && !(info.map_flags & FLAG_LINK))
			for (size_t i = 0; i < ARRAY_SIZE(names); i++)
				if (strcmp(info.name, names[i]) == 0)
					(void)bpf_map_delete_elem(fd, &zero); /* not registered is fine */
		close(fd);
	}
	return err;
}
