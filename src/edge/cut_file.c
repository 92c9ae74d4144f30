/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/cut_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "edge/edge_internal.h"

int cut_file_write(const struct edge *e, struct diag *diag)
{
	CLEANUP_STRBUF struct strbuf b = STRBUF_INIT;
	uint64_t ceiling = e->tree.guest_ceiling_bps ? e->tree.guest_ceiling_bps : e->tree.rate_bps;
	char path[EDGE_PATH_MAX + 16];
	struct stat ns;
	int err;

	if (stat("/proc/thread-self/ns/net", &ns) < 0)
		return diag_set(diag, -errno, "/proc/thread-self/ns/net", "%s", strerror(errno));
	(void)strbuf_printf(&b, "version %d\n", CUT_FILE_VERSION);
	if (e->owner_gid != (gid_t)-1)
		(void)strbuf_printf(&b, "gid %u\n", e->owner_gid);
	if (e->pinned)
		(void)strbuf_printf(&b, "bpf %s/bpf/edge\n", e->run_dir);
	(void)strbuf_printf(&b, "netns %llu %llu\nifindex %d\nleaf %u\n",
			    (unsigned long long)ns.st_dev, (unsigned long long)ns.st_ino,
			    e->tree.ifindex, e->htb ? tree_leaf_bytes(ceiling) : 0);
	if (e->cgroup_v2[0])
		(void)strbuf_printf(&b, "cgroup_v2 %s\n", e->cgroup_v2);
	if (e->cgroup_v1_freezer[0])
		(void)strbuf_printf(&b, "cgroup_v1_freezer %s\n", e->cgroup_v1_freezer);
	(void)snprintf(path, sizeof(path), "%s/" CUT_FILE_NAME, e->run_dir);
	err = b.failed ? -ENOMEM : file_write_atomic(path, b.data, b.len, 0644);
	return err < 0 ? diag_set(diag, err, path, "%s", strerror(-err)) : 0;
}

int cut_file_remove(const char *run_dir)
{
	char path[EDGE_PATH_MAX + 16];

	(void)snprintf(path, sizeof(path), "%s/" CUT_FILE_NAME, run_dir);
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}
