/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RUN_DIR/edge.cut: what reclaim-cut needs when the agent is dead. Lines of
 * "key value", written by root, trusted only if root owns file and folders and
 * nobody else may write them.
 *
 *     version 1
 *     gid 998                    who may cut besides root; absent = nobody
 *     bpf /run/reclaim/bpf/edge  where the maps are pinned; absent = no packets to cut
 *     netns 4 4026531840         device and inode of the edge's network namespace
 *     ifindex 2                  the uplink
 *     leaf 50000                 bytes of a guest's leaf; 0 = no leaves to purge
 *     cgroup_v2 /sys/fs/cgroup/reclaim.slice/guests
 *     cgroup_v1_freezer /sys/fs/cgroup/freezer/reclaim/guests
 */
#ifndef RECLAIM_EDGE_CUT_FILE_H
#define RECLAIM_EDGE_CUT_FILE_H

#define CUT_FILE_NAME "edge.cut"
#define CUT_FILE_VERSION 1
#define CUT_FILE_MAX 4096

#endif
