/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel objects behind the edge. Pins are `DIR/edge_kill` and, with the
 * ABI's version in the name, `DIR/edge_config_v1` and so on (a bpffs takes no dots). Filters hold their
 * programs, so programs need no pins: a restarted agent loads its own build
 * onto the pinned maps and replaces each filter in place.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/check.h"
#include "base/file.h"
#include "edge/edge.skel.h"
#include "edge/edge_internal.h"

#define FILTER_PRIORITY 1 /* the kill check comes before anybody else's filter */
#define FILTER_HANDLE 0x5243
#define CPUS_MAX 4096

static const char *const map_names[EDGE_MAP_COUNT] = {
	"edge_kill", "edge_config", "edge_guest", "edge_lease", "edge_rules", "edge_campus",
	"edge_slot", "edge_class_stats", "edge_guest_stats", "edge_flow", "edge_tag", "edge_bucket",
	"edge_guest_ip6",
};
static const char *const prog_names[EDGE_PROG_COUNT] = {
	"uplink_out", "uplink_in", "guest_out", "guest_in", "guest_inner",
};

static int pin_path(char path[PATH_MAX], const char *dir, enum edge_map m)
{
	if (m == EDGE_MAP_KILL)
		return path_format(path, PATH_MAX, "%s/%s", dir, map_names[m]);
	return path_format(path, PATH_MAX, "%s/%s_v%d", dir, map_names[m], EDGE_ABI_VERSION);
}

/* libbpf says why through a printer; the first line is the cause and becomes the diag. */
static char first_said[256];

static int keep_said(enum libbpf_print_level level, const char *fmt, va_list args)
{
	if (level == LIBBPF_WARN && !first_said[0]) {
		(void)vsnprintf(first_said, sizeof(first_said), fmt, args);
		first_said[strcspn(first_said, "\n")] = '\0';
	}
	return 0;
}

int hooks_mount(const char *path)
{
	struct statfs fs;
	int err = dir_make_all(path, 0750);

	if (err < 0)
		return err;
	if (statfs(path, &fs) < 0)
		return -errno;
	if (fs.f_type == BPF_FS_MAGIC)
		return 0;
	if (mount("bpf", path, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") < 0)
		return -errno;
	return 1;
}

void hooks_close(struct edge_hooks *h)
{
	if (h->skel)
		edge_bpf__destroy(h->skel);
	else
		for (int i = 0; i < EDGE_MAP_COUNT; i++)
			fd_cleanup(&h->maps[i]);
	h->skel = NULL;
	memset(h->maps, -1, sizeof(h->maps));
}

static int set_pins(struct edge_bpf *skel, const char *dir)
{
	char path[PATH_MAX];
	int err = 0;

	for (int i = 0; i < EDGE_MAP_COUNT && err == 0; i++) {
		struct bpf_map *m = bpf_object__find_map_by_name(skel->obj, map_names[i]);

		CHECK(m != NULL);
		err = pin_path(path, dir, (enum edge_map)i);
		if (err == 0)
			err = bpf_map__set_pin_path(m, path);
	}
	return err;
}

static int load(struct edge_hooks *h, const char *dir, struct diag *diag)
{
	int err;

	h->skel = edge_bpf__open();
	if (!h->skel)
		return diag_set(diag, -errno, "bpf", "opening the object: %s", strerror(errno));
	err = dir ? set_pins(h->skel, dir) : 0;
	if (err < 0)
		return diag_set(diag, err, "bpf", "pin paths: %s", strerror(-err));
	err = edge_bpf__load(h->skel);
	if (err < 0)
		return diag_set(diag, err, "bpf", "%s (%s)", first_said[0] ? first_said : "loading",
				strerror(-err));
	return 0;
}

int hooks_open(struct edge_hooks *h, const char *dir, struct diag *diag)
{
	int err;

	memset(h->maps, -1, sizeof(h->maps));
	first_said[0] = '\0';
	libbpf_set_print(keep_said);
	if (dir && mkdir(dir, 0700) < 0 && errno != EEXIST)
		return diag_set(diag, -errno, dir, "%s", strerror(errno));
	err = load(h, dir, diag);
	if (err < 0) {
		hooks_close(h);
		return err;
	}
	for (int i = 0; i < EDGE_MAP_COUNT; i++)
		h->maps[i] = bpf_object__find_map_fd_by_name(h->skel->obj, map_names[i]);
	for (int i = 0; i < EDGE_PROG_COUNT; i++)
		h->progs[i] = bpf_program__fd(
			bpf_object__find_program_by_name(h->skel->obj, prog_names[i]));
	h->cpus = libbpf_num_possible_cpus();
	return 0;
}

int hooks_open_readonly(struct edge_hooks *h, const char *dir, struct diag *diag)
{
	LIBBPF_OPTS(bpf_obj_get_opts, opts, .file_flags = BPF_F_RDONLY);
	char path[PATH_MAX];

	memset(h, 0, sizeof(*h));
	memset(h->maps, -1, sizeof(h->maps));
	h->cpus = libbpf_num_possible_cpus();
	for (int i = 0; i < EDGE_MAP_COUNT; i++) {
		int err = pin_path(path, dir, (enum edge_map)i);

		if (err == 0)
			h->maps[i] = bpf_obj_get_opts(path, &opts);
		if (err < 0 || h->maps[i] < 0) {
			err = err < 0 ? err : -errno;
			hooks_close(h);
			return diag_set(diag, err, path, "%s", strerror(-err));
		}
	}
	return 0;
}

int hooks_unpin(const char *dir)
{
	CLEANUP_DIR DIR *d = opendir(dir);
	struct dirent *entry;

	if (!d)
		return errno == ENOENT ? 0 : -errno;
	while ((entry = readdir(d)))
		if (strncmp(entry->d_name, "edge_", 5) == 0 && unlinkat(dirfd(d), entry->d_name, 0) < 0)
			return -errno;
	return rmdir(dir) < 0 ? -errno : 0;
}

static int attach_one(const struct edge_hooks *h, int ifindex, enum bpf_tc_attach_point point,
		      enum edge_prog prog)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = point);
	LIBBPF_OPTS(bpf_tc_opts, opts, .handle = FILTER_HANDLE, .priority = FILTER_PRIORITY,
		    .prog_fd = h->progs[prog], .flags = BPF_TC_F_REPLACE);

	return bpf_tc_attach(&hook, &opts);
}

static int clsact(int ifindex, bool *ret_created)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex,
		    .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	int err = bpf_tc_hook_create(&hook);

	*ret_created = err == 0;
	return err == -EEXIST ? 0 : err;
}

int hooks_attach(const struct edge_hooks *h, int ifindex, enum edge_prog in, enum edge_prog out,
		 bool *ret_created)
{
	int err = clsact(ifindex, ret_created);

	if (err == 0)
		err = attach_one(h, ifindex, BPF_TC_INGRESS, in);
	if (err == 0)
		err = attach_one(h, ifindex, BPF_TC_EGRESS, out);
	return err;
}

int hooks_attach_in(const struct edge_hooks *h, int ifindex, enum edge_prog in)
{
	bool created;
	int err = clsact(ifindex, &created);

	return err < 0 ? err : attach_one(h, ifindex, BPF_TC_INGRESS, in);
}

int hooks_detach(int ifindex, bool whole_qdisc)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex,
		    .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	LIBBPF_OPTS(bpf_tc_opts, opts, .handle = FILTER_HANDLE, .priority = FILTER_PRIORITY);
	int err = 0, r;

	if (whole_qdisc)
		return bpf_tc_hook_destroy(&hook);
	for (int i = 0; i < 2; i++) {
		hook.attach_point = i ? BPF_TC_EGRESS : BPF_TC_INGRESS;
		opts.prog_fd = opts.prog_id = opts.flags = 0;
		r = bpf_tc_detach(&hook, &opts);
		if (r < 0 && r != -ENOENT && err == 0)
			err = r;
	}
	return err;
}

int map_read(const struct edge_hooks *h, enum edge_map m, const void *key, void *ret)
{
	return bpf_map_lookup_elem(h->maps[m], key, ret);
}

int map_write(const struct edge_hooks *h, enum edge_map m, const void *key, const void *value)
{
	return bpf_map_update_elem(h->maps[m], key, value, BPF_ANY);
}

int map_remove_key(const struct edge_hooks *h, enum edge_map m, const void *key)
{
	return bpf_map_delete_elem(h->maps[m], key);
}

int map_read_sum(const struct edge_hooks *h, enum edge_map m, uint32_t key, uint64_t *ret,
		 size_t words)
{
	CLEANUP_FREE uint64_t *all = NULL;
	int err;

	if (h->cpus <= 0 || h->cpus > CPUS_MAX)
		return -EINVAL;
	all = calloc((size_t)h->cpus * words, sizeof(*all));
	if (!all)
		return -ENOMEM;
	err = bpf_map_lookup_elem(h->maps[m], &key, all);
	if (err < 0)
		return err;
	memset(ret, 0, words * sizeof(*ret));
	for (int cpu = 0; cpu < h->cpus; cpu++)
		for (size_t w = 0; w < words; w++)
			ret[w] += all[(size_t)cpu * words + w];
	return 0;
}

int config_read(const struct edge *e, struct edge_abi_config *ret)
{
	uint32_t zero = 0;

	return map_read(&e->hooks, EDGE_MAP_CONFIG, &zero, ret);
}

int config_write(const struct edge *e, const struct edge_abi_config *c)
{
	uint32_t zero = 0;

	return map_write(&e->hooks, EDGE_MAP_CONFIG, &zero, c);
}
